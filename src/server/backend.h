/* What the server needs of an engine; two implementations: the engine itself (backend.c) and
 * scripted replies (script.c), so that protocols and load can be tested without a model.
 *
 * Requests and events are those of deepinfer.h. Events come by callback on one thread of the back
 * end; after DONE the handle is gone. Thread: every function from any thread. */
#pragma once

#include "deepinfer/deepinfer.h"

#include "base/status.h"
#include "tokenizer/tokenizer.h"

typedef struct backend_ops {
    /* Errors as di_submit; on_event may be called before this returns. */
    di_code (*submit)(void *self, const di_request_params *p, void **handle, di_status *st);
    void (*cancel)(void *self, void *handle);
    void (*cancel_choice)(void *self, void *handle, int choice); /* the others go on */
    di_stats (*stats)(void *self);
    void (*free)(void *self); /* after the last DONE */
} backend_ops;

typedef struct backend {
    const backend_ops *ops;
    void *self;
    di_model_info info;
    int64_t context;      /* longest sequence */
    int64_t max_queued;   /* requests that may wait */
    const tokenizer *tok; /* borrowed from self */
} backend;

/* An engine that runs; model and engine stay the caller's. */
backend backend_of_engine(di_model *model, di_engine *engine, int64_t context, int64_t max_queued);

typedef struct script_options {
    const char *model_dir; /* its tokenizer.json is used */
    const char *file;      /* rules, or NULL: one reply for everything */
    int max_seqs, max_queued;
    int64_t context;
    int64_t step_us; /* time between two tokens of a request */
    bool together;   /* tokens of all requests in one moment, as an engine's steps give them */
} script_options;

/* Replies with given tokens at a given pace. The file has one JSON object per line:
 *   {"when": TEXT, "reply": TEXT | "ids": [..], "wait_ms": N, "step_us": N, "repeat": N,
 *    "finish": "stop" | "length" | "error", "burst": N}
 * The first rule whose TEXT occurs in the prompt holds (no "when": always). `reply` is tokenised
 * with added tokens recognised, `repeat` says how often it is given, `wait_ms` passes before the
 * first token, `burst` tokens come at once. Log-probabilities are made up from the token's index.
 * Errors: IO, FORMAT, INVALID, NOMEM. */
di_code backend_script(backend *out, const script_options *o, di_status *st);
