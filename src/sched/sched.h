/* The scheduler: which sequences take part in the next step, and with how many rows.
 *
 * Continuous batching: decode rows, draft rows and prompt chunks share a step under a budget of
 * rows and of time. The scheduler knows token counts and the KV store, never tensors or text.
 *
 *   WAITING -admit-> PROMPT -last chunk-> DECODE -> (removed)
 *   PROMPT, DECODE -preempt-> DRAINING -no step in flight-> WAITING (state kept in a checkpoint)
 *
 * Order of service: priority (higher first), then arrival. Running items keep running; the oldest
 * of the highest priority always makes progress: only it may preempt an item that was preempted
 * three times already, and only what holds blocks twice is ever preempted for its own sake, so
 * every item ends (no livelock). Thread: the engine's host thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kv/store.h"

typedef enum sched_state {
    SCHED_WAITING,
    SCHED_PROMPT,
    SCHED_DECODE,
    SCHED_DRAINING, /* chosen as a victim; waits until no step with it is in flight */
    SCHED_OUT       /* not in the scheduler */
} sched_state;

/* One sequence (a choice of a request). The caller owns it, embeds it, and fills in what is marked
 * so; the rest is kept by the scheduler, and the caller reads. The first 64 bytes are all that a
 * step of plain decoding touches: with hundreds of sequences the time of a plan is that of fetching
 * them. */
typedef struct sched_item {
    struct sched_item *prev, *next;
    int64_t n_prompt;    /* caller: >= 1 */
    int64_t known_len;   /* DECODE: tokens that are certainly in the state (sched_advance) */
    int64_t n_committed; /* of these, in the lease: whole blocks, while nothing else is asked for */
    int64_t room;        /* tokens that the lease has blocks for */
    sched_state state;
    int in_flight; /* planned steps whose results the caller has not taken yet */
    bool blocked;  /* caller: decode waits for the host (mask provider) */
    bool stopped;  /* caller: no more steps; it takes the item out when nothing is in flight */

    kv_view view; /* of the lease, length 0 */
    kv_lease *lease;
    const int32_t *ids; /* caller: prompt, then accepted output tokens */
    int64_t tail; /* caller: the last rows of the prompt that run every layer (replay); -1 = all */
    bool frozen_tail; /* caller: the tail counts back from n_prompt also when a preempted item is
                       * recomputed (approximate replay); else from the end of what is recomputed */
    bool no_match;    /* caller: do not start from a hit (prompt log-probabilities) */
    bool all_logits;  /* caller: every row of its prompt parts needs logits (the same) */
    int priority;     /* caller */
    uint64_t salt;    /* caller: prefix cache; equal salts share */
    int64_t max_len;  /* caller: prompt and output together */
    int64_t n_goal; /* tokens to compute before decoding: n_prompt, or known_len when recomputed */
    int64_t n_done; /* of these, in steps planned so far; restored ones included */
    int64_t n_cached; /* tokens that the last admission restored */
    int64_t n_found;  /* tokens that the cache had blocks of then; behind n_cached they are computed
                       * again for their state */
    bool sampled;     /* the token behind n_goal is known already: the last chunk is not sampled */
    int n_preempted;
    uint64_t arrival;
    kv_checkpoint *resume;
} sched_item;

typedef struct sched_options {
    kv_store *kv;        /* borrowed */
    int max_rows;        /* of a step */
    int max_logit_rows;  /* of these, rows of items with all_logits; 0 = no limit */
    int max_seqs;        /* running at once */
    int max_draft;       /* drafts that a decode row may carry */
    int64_t max_waiting; /* items */
    int64_t max_waiting_tokens;
    int64_t spacing;       /* an encoder checkpoint every so many prompt tokens; multiple of 128 */
    double encoder_cost;   /* cost of a prompt row that skips the decoder layers, 0..1 */
    double step_budget_us; /* time of a step with decode rows; 0 = no limit */
    double (*step_cost_us)(void *arg, int rows); /* NULL with no limit */
    void *cost_arg;
} sched_options;

typedef struct sched sched;

di_code sched_new(sched **out, const sched_options *opt, di_status *st);
void sched_free(sched *s); /* all items removed before */

/* Queue an item. Errors: BUSY (bounded queue: says which bound), INVALID (can never fit the pool).
 */
di_code sched_add(sched *s, sched_item *it, di_status *st);

/* Take out an item that has ended, keeping its state for later requests: a full checkpoint at
 * known_len (all committed) whose copies go into the next plan. Nothing may be in flight. */
void sched_finish(sched *s, sched_item *it);

/* Take an item out in any state; its sequence is closed and its checkpoint released. Not while a
 * step with it is in flight, unless the executing side is known to skip it. */
void sched_remove(sched *s, sched_item *it);

/* A part of a step. */
typedef struct sched_part {
    sched_item *item;
    int64_t pos;        /* first row (prompt parts) */
    int n_rows;         /* prompt parts: rows; decode parts: most rows, 1 + drafts */
    int64_t whole_from; /* prompt parts: rows at this position and behind run every layer */
    bool decode;
    bool sample; /* prompt parts: the prompt ends here: the last row is sampled */
} sched_part;

typedef struct sched_plan {
    sched_part *part;    /* [max_seqs] */
    int n_parts, n_rows; /* n_rows: the most that the step can have */
    int n_logit_rows;    /* of items with all_logits */
    kv_copy *load;       /* copies that must run before the step, in this order */
    kv_copy *save;       /* copies that must run after it and before the next */
    int n_loads, n_saves, cap_loads, cap_saves;
} sched_plan;

/* Arrays of a plan for these options. Errors: NOMEM. */
di_code sched_plan_init(sched_plan *p, const sched *s, di_status *st);
void sched_plan_fini(sched_plan *p);

/* Decide the next step; fills the plan (n_parts 0: nothing can run now). Every item in it has
 * in_flight raised by one; the caller lowers it when the step's results are in. Prompt tokens are
 * committed to the KV store here, and their checkpoints taken: steps run in the order in which they
 * are planned. Accepted output tokens come in by sched_advance. */
void sched_next(sched *s, sched_plan *p);

/* The state of a decoding item holds its first `len` tokens, which stand in ids. */
void sched_advance(sched_item *it, int64_t len);

/* To be called after lowering in_flight: an item that drains and has no step in flight is saved
 * (the copies go into the next plan) and waits again. */
void sched_settle(sched *s, sched_item *it);

typedef struct sched_counts {
    int64_t waiting, waiting_tokens, running, preempted;
} sched_counts;
sched_counts sched_get_counts(const sched *s);
