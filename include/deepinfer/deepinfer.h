/* DeepInfer-C: the public face of the engine.
 *
 *   di_model *m;  di_engine *e;  di_event event;
 *   di_model_open(&m, "models/tiny", NULL, &st);
 *   di_engine_start(&e, m, NULL, &st);
 *   di_submit(e, &(di_request_params){.text = "Hello", .n_text = 5, .max_tokens = 20}, NULL, &st);
 *   while (di_poll(e, &event, -1)) ...            or a callback in the parameters
 *   di_engine_close(e);  di_model_close(m);
 *
 * docs/api-c.md explains it, examples/minimal.c is a whole program.
 *
 * One answer: the tokens of a request are a pure function of (weights, prompt, parameters, seed).
 * They do not depend on other requests, chunk sizes, cache hits, preemption, speculation, threads.
 *
 * Thread safety: every function may be called from any thread unless it says otherwise. Callbacks
 * run on the engine's host thread and must not block; they may call di_cancel, di_cancel_choice and
 * di_submit.
 * Strings are UTF-8. Every function that can fail takes a di_status (may be NULL). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deepinfer/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- model ---------------------------------------------------------------------------------- */

typedef struct di_model
    di_model; /* a checkpoint, its tokenizer and a back end; immutable once open */

typedef struct di_model_options {
    const char *backend;  /* NULL or "auto" (the CPU's fastest), "avx512", "avx2", "ref", "cuda" */
    const char *numerics; /* NULL or "release"; "f32", "cache" with the ref back end */
    int n_threads;        /* 0 = all processors */
    const char *load_format; /* NULL or "auto"; "dummy" = generated weights for any config.json */
    /* Called while weights load, on the caller's thread: bytes done of total. */
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *progress_arg;
    /* Of "dummy": layers to keep (0 = all), the experts of rank dummy_share of dummy_shares (0 =
     * all of them), most rows of an Engram table (0 = 2^20). */
    int dummy_layers, dummy_share, dummy_shares;
    int64_t dummy_engram_rows;
    /* Engram tables of a GPU: "device", "host" (pinned memory), NULL or "auto": on the device when
     * all weights fit there. */
    const char *engram;
} di_model_options;

/* Open a checkpoint directory in the released layout. Everything is checked before this returns.
 * With generated weights config.json is enough; they are the same in every run.
 * Errors: IO, FORMAT, UNSUPPORTED, NOMEM, INVALID (an option). Close with di_model_close, after all
 * engines on it. */
DI_API di_code di_model_open(di_model **out, const char *dir, const di_model_options *opt,
                             di_status *st);
DI_API void di_model_close(di_model *m); /* accepts NULL */

typedef struct di_model_info {
    int vocab;
    int64_t max_context; /* of the configuration */
    int n_layers, n_draft_stages, draft_block;
    int32_t bos, eos, pad;
    uint64_t fingerprint; /* of configuration and weights' names and sizes */
    const char *backend;  /* the one in use; static storage */
    int n_threads;
} di_model_info;
DI_API di_model_info di_model_get_info(const di_model *m);

/* Text -> ids. Control tokens in `text` are plain text unless `added`. *ids is freed with di_free.
 */
DI_API di_code di_tokenize(const di_model *m, const char *text, size_t n, bool added, int32_t **ids,
                           size_t *n_ids, di_status *st);
/* Ids -> text, ill-formed parts as U+FFFD; *text is 0-terminated and freed with di_free. */
DI_API di_code di_detokenize(const di_model *m, const int32_t *ids, size_t n, bool skip_special,
                             char **text, size_t *n_text, di_status *st);
DI_API void di_free(void *p);

/* ---- engine --------------------------------------------------------------------------------- */

typedef struct di_engine di_engine;

typedef enum di_replay {
    DI_REPLAY_EXACT,   /* prompt tokens outside the tail skip the decoder layers; nothing changes */
    DI_REPLAY_OFF,     /* every prompt token runs every layer */
    DI_REPLAY_COMPACT, /* the last replay_keep tokens only: an approximation (DeepInfer's) */
    DI_REPLAY_MASK     /* the same result as COMPACT, computed over all rows */
} di_replay;

/* 0 or NULL means the default in every field. Zero-initialise and set what matters. */
typedef struct di_engine_options {
    int max_seqs;           /* sequences that run at once; 64 */
    int64_t max_context;    /* prompt and output of a request; the model's, at most 65,536 */
    int max_batched_tokens; /* rows of a step; 512 */
    int decode_latency_ms;  /* prompt rows are cut so that a step with decode rows stays under; 0 =
                               off */
    int64_t kv_tokens;      /* size of the block pool; a quarter of free memory */
    int64_t max_queued;     /* waiting requests; 1,024 */
    int64_t max_queued_tokens;  /* their prompt tokens; 4 x kv_tokens */
    int64_t checkpoint_spacing; /* tokens between encoder checkpoints of a prompt; 4,096 */
    bool no_prefix_cache;
    di_replay replay;
    int64_t replay_keep;  /* COMPACT and MASK only */
    int draft_tokens;     /* -1 = off, 0 = the trained block, n = up to n drafts */
    bool draft_fixed;     /* verify all drafts instead of choosing lengths by expected speed */
    const char *cost_dir; /* where the measured cost table is kept; NULL = not kept */
    bool no_async;        /* plain loop: finish a step before the next is prepared */
    int stats_interval;   /* log the statistics line every so many steps; 0 = never */
} di_engine_options;

/* Start an engine on an open model. Several may run on one model: their steps take turns (open the
 * model again for one that should not wait). Errors: INVALID (an option), NOMEM, FORMAT, IO. */
DI_API di_code di_engine_start(di_engine **out, di_model *m, const di_engine_options *opt,
                               di_status *st);
/* Refuse new requests and wait until all running ones have ended. */
DI_API void di_engine_drain(di_engine *e);
/* Cancel what runs, end the threads, free everything. Accepts NULL. Not from a callback. */
DI_API void di_engine_close(di_engine *e);

/* ---- requests ------------------------------------------------------------------------------- */

/* Constraint on the tokens of one choice. The functions run on threads of the engine: for one
 * context one at a time, for several contexts at the same time. */
typedef struct di_mask_provider {
    /* Fill mask[ceil(vocab/32)]: bit t of word t/32 allows token t. False = no constraint now. */
    bool (*fill)(void *ctx, uint32_t *mask, int vocab);
    /* A token was taken; false = the token is outside the constraint (ends the choice in error). */
    bool (*accept)(void *ctx, int32_t token);
    /* Take back the last n accepted tokens. */
    void (*rollback)(void *ctx, int n);
    /* An independent copy for another choice; NULL when out of memory. */
    void *(*fork)(void *ctx);
    void (*free)(void *ctx);
    /* Nothing but the end of sequence may come: the choice stops without it, whatever min_tokens
     * and ignore_eos say. NULL = never. */
    bool (*finished)(void *ctx);
    /* Tokens that must come next, at most cap: they are the best drafts. The state is as it was.
     * NULL = none. */
    int (*forced)(void *ctx, int32_t *token, int cap);
} di_mask_provider;

typedef struct di_logit_bias {
    int32_t id;
    float bias; /* -100 .. 100 */
} di_logit_bias;

typedef enum di_finish {
    DI_FINISH_NONE,
    DI_FINISH_STOP,      /* end of sequence, stop id or stop string */
    DI_FINISH_LENGTH,    /* max_tokens or the context is reached */
    DI_FINISH_CANCELLED, /* di_cancel, close, or the deadline passed */
    DI_FINISH_ERROR      /* see the event's code and message */
} di_finish;

typedef struct di_request di_request; /* handle: valid until its last event has been delivered */

typedef struct di_token_logprob {
    int32_t token;
    float logprob;
} di_token_logprob;

typedef enum di_event_type {
    DI_EVENT_TOKENS, /* tokens and text of one choice */
    DI_EVENT_PROMPT, /* prompt log-probabilities, when asked for */
    DI_EVENT_FINISH, /* a choice has ended */
    DI_EVENT_DONE    /* all choices have ended; the last event of a request */
} di_event_type;

/* Of a choice (FINISH) or all of them (DONE). Once the prompt is computed,
 * prompt = cached + recomputed + computed: restored from the prefix cache; known to it, but
 * computed again because no state was kept there; new. These are the first choice's: the others
 * start from its state. */
typedef struct di_usage {
    int64_t prompt_tokens, cached_tokens, recomputed_tokens, computed_tokens, output_tokens;
    int64_t repeated_tokens;   /* rows computed again because the choice was preempted */
    int64_t drafted, accepted; /* of speculation */
    int preemptions;
    uint64_t queued_us, first_token_us, total_us;
} di_usage;

/* Pointers are valid during the callback, or until the next di_poll of that thread. */
typedef struct di_event {
    di_event_type type;
    di_request *request;
    void *user;
    int choice;
    int n_tokens;
    const int32_t *token; /* [n_tokens] */
    const char *text;     /* what can be shown now; may be empty while a stop string is open */
    size_t n_text;
    const float *logprob;        /* [n_tokens] when asked for, else NULL */
    const int32_t *rank;         /* [n_tokens] 0 = the most likely */
    const di_token_logprob *top; /* [n_tokens][n_top] */
    int n_top;
    di_finish finish;
    int stop_index;      /* index of the stop string that matched, -1 = none */
    di_code code;        /* DI_FINISH_ERROR */
    const char *message; /* of an error; of PROMPT: why replay was off for this request, or NULL */
    di_usage usage;      /* FINISH and DONE; before: prompt_tokens and cached_tokens only */
    uint64_t seed;       /* the seed in use */
} di_event;

typedef struct di_request_params {
    /* Prompt: ids, or text that is tokenised with added tokens recognised. */
    const int32_t *ids;
    size_t n_ids;
    const char *text;
    size_t n_text;

    int64_t max_tokens; /* -1 = to the end of the context; 0 = none (prompt log-probabilities) */
    int64_t min_tokens; /* end of sequence and stop ids are not sampled before */
    int n;              /* choices; 0 = 1, at most 64 */
    bool has_seed;
    uint64_t seed;
    float temperature; /* < 0 = default 1; 0 = greedy */
    float top_p;       /* 0 = 1 */
    float min_p;
    int32_t top_k;            /* 0 = all */
    float repetition_penalty; /* 0 = 1 */
    float presence_penalty, frequency_penalty;
    const di_logit_bias *bias;
    int n_bias;
    const int32_t *banned_ids; /* at most 64, never sampled, whatever their bias */
    int n_banned_ids;
    const int32_t *stop_ids; /* besides end of sequence */
    int n_stop_ids;
    const char *const *stop; /* stop strings; the match is not part of the text */
    int n_stop;
    bool ignore_eos;
    bool skip_special; /* leave special tokens out of the text */
    bool logprobs;
    int top_logprobs;      /* 0..20 */
    bool prompt_logprobs;  /* forces replay off for this request */
    const int32_t *forced; /* output tokens by index instead of sampled ones; -1 = free */
    size_t n_forced;
    const di_mask_provider *mask; /* NULL = free; mask_ctx is taken over when the call succeeds */
    void *mask_ctx;
    int priority;         /* higher first; 0 */
    uint64_t deadline_us; /* from now; 0 = none */

    /* Events: a callback on the engine's host thread, or NULL for di_poll. */
    void (*on_event)(const di_event *ev);
    void *user;
} di_request_params;

/* Submit a request; everything is copied. Errors: INVALID (names the field, the value, the range),
 * BUSY (queue full), CANCELLED (draining), NOMEM. *out may be NULL when the handle is not needed.
 */
DI_API di_code di_submit(di_engine *e, const di_request_params *p, di_request **out, di_status *st);

/* Ask for an early end; DONE still follows. Harmless when the request has ended but its DONE event
 * has not been delivered. */
DI_API void di_cancel(di_engine *e, di_request *r);

/* The same for one choice of a request with n > 1: its FINISH says CANCELLED, the others go on.
 * An index that the request does not have is ignored. */
DI_API void di_cancel_choice(di_engine *e, di_request *r, int choice);

/* Next event of requests without a callback. timeout_ms -1 = wait until there is one. False: time
 * is up, or no request is left that could send one. */
DI_API bool di_poll(di_engine *e, di_event *ev, int timeout_ms);

/* ---- statistics ----------------------------------------------------------------------------- */

/* Counters since the start. Identities that hold at every moment:
 *   drafted = verified + skipped;  prompt = cached + recomputed + computed;
 *   blocks_total = blocks_used + blocks_cached + blocks_free
 * A prompt token counts once per choice; repeated: rows computed again after a preemption, besides.
 */
typedef struct di_stats {
    uint64_t steps, requests, finished, cancelled, failed, preempted;
    uint64_t prompt_tokens, cached_tokens, recomputed_tokens, computed_tokens, output_tokens;
    uint64_t repeated_tokens;
    uint64_t drafted, verified, skipped, accepted;
    uint64_t verified_at[16], accepted_at[16]; /* per draft position */
    int64_t blocks_total, blocks_used, blocks_cached, blocks_free;
    int64_t running, waiting, waiting_tokens;
    uint64_t busy_ns, idle_ns; /* of the executing side, while there was work */
    uint64_t host_ns;          /* host work of steps */
    /* On a GPU, of busy_ns: time in which it had work; kernels that ran; how often many of them
     * were started by one call, as a recorded step. */
    uint64_t device_ns, launches, replays;
    /* The least that the steps had to read and compute: weights once per step (routed experts as
     * even routing would choose them), state of sequences, products. */
    double work_bytes, work_flops;
} di_stats;
DI_API di_stats di_engine_stats(const di_engine *e);

/* The statistics line of the last interval as JSON (json) or text; 0-terminated, di_free. */
DI_API char *di_engine_stats_line(di_engine *e, bool json);

#ifdef __cplusplus
}
#endif
