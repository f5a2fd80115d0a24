/* What the tests of the engine share: models, engines, replies. Every failure fails the test. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/engine_internal.h"

#define MINI_F    "tests/data/models/mini-f"
#define MINI_B    "tests/data/models/mini-b"
#define MAX_REPLY 800
#define N_TOP     5

/* A sanitizer build is many times slower: tests repeat less. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RIG_SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RIG_SLOW 1
#endif
#endif
#ifndef RIG_SLOW
#define RIG_SLOW 0
#endif

/* One choice's answer. */
typedef struct reply {
    int n, n_events;
    int32_t token[MAX_REPLY], rank[MAX_REPLY];
    float logprob[MAX_REPLY];
    di_token_logprob top[MAX_REPLY][N_TOP];
    float prompt[MAX_REPLY];
    char text[8192];
    size_t n_text;
    bool finished, done;
    di_finish finish;
    di_code code;
    int stop_index;
    char message[256], note[128]; /* of FINISH, of PROMPT */
    di_usage usage;
    uint64_t seed;
} reply;

/* Deterministic random numbers. */
void rig_seed(uint32_t key);
uint32_t rig_draw(uint32_t n);
/* n random token ids. */
void rig_ids(int32_t *ids, int n);

/* The model, opened once per directory with one thread (one_answer varies them), on the back end
 * that DI_BACKEND names. */
di_model *rig_model(const char *dir);
void rig_close_models(void);

/* 0 in max_seqs, max_context, kv_tokens: small ones. */
di_engine *rig_start(const char *dir, di_engine_options o);
/* Nothing is running, waiting or held any more; then close. */
void rig_close(di_engine *e);

/* Parameters of a greedy request without an end: prompt, output length. */
di_request_params rig_params(const int32_t *ids, int n, int max_tokens);

/* r: one reply per choice. */
di_request *rig_submit(di_engine *e, di_request_params p, reply *r);
void rig_wait(di_engine *e); /* until all requests have ended */
void rig_ask(di_engine *e, di_request_params p, reply *r);
/* Alone with the plainest settings. */
void rig_plain(const char *dir, di_request_params p, reply *r);
void rig_take(const di_event *ev);

/* The same tokens, text, end, and bits of log-probabilities. */
void rig_same(const reply *a, const reply *b);
