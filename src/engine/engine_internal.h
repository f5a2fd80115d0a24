/* What the files of the engine share.
 *
 * Two threads own the state. The host thread owns requests, text, the scheduler and the KV store.
 * The executing side (a thread of its own, or the host thread with no_async) owns the model,
 * samplers, calibration and the exec part of every choice. A step travels as a job: the host fills
 * the plan, the executing side fills the results. While a job is with one side the other does not
 * touch it, nor the exec part of the choices in it.
 *
 *   di_submit, di_cancel --inbox--> host --job--> executing side --job--> host --events--> caller
 */
#pragma once

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deepinfer/deepinfer.h"

#include "base/status.h"
#include "base/str.h"
#include "checkpoint/checkpoint.h"
#include "dspark/lengths.h"
#include "kernels/kernels.h"
#include "kv/store.h"
#include "model/model.h"
#include "model/work.h"
#include "recipe/stop.h"
#include "sampler/sampler.h"
#include "sched/sched.h"
#include "tokenizer/tokenizer.h"

#define MAX_TOP    20
#define MAX_STEP   (1 + DSPARK_MAX_DRAFT) /* tokens that a sequence can gain in a step */
#define N_JOBS     2                      /* one runs, one is ready */
#define N_STOP_IDS 32
#define CACHE_LINE 64
#define MAX_CREW   8 /* threads that fill masks */

struct di_model {
    checkpoint *ckpt;
    tokenizer *tok;
    kernels *k;
    int32_t *compressed; /* [vocab] for Engram, or NULL */
    di_model_options opt;
    pthread_mutex_t
        running; /* one engine's step at a time: k's threads and work space are shared */
};

/* What the executing side knows of a choice. */
typedef struct choice_exec {
    const di_request *req; /* the choice's own is in lines that the host writes */
    int32_t *ids;          /* [cap] prompt, output, and room for drafts behind */
    int64_t len;           /* tokens whose state is computed */
    bool pending;          /* ids[len] is known: the newest token, not computed yet */
    bool done;
    di_finish finish;
    int64_t n_out; /* output tokens so far */
    int n_draft;
    int n_sure; /* drafts that the constraint forces: the first ones */
    int32_t draft[DSPARK_MAX_DRAFT];
    float conf[DSPARK_MAX_DRAFT];
    sampler *sampler;
    bool has_survival;
    float survival[DSPARK_MAX_DRAFT]; /* of its drafts so far, the newest count most */
    int pause, backoff;               /* steps without drafts: left, of the last pause */
} choice_exec;

/* Values of a token that were asked for. */
typedef struct token_values {
    float logprob;
    int32_t rank;
    di_token_logprob top[MAX_TOP];
} token_values;

/* Laid out by who touches what: the host hands out the tokens of hundreds of choices per step, each
 * of whose cache lines has to come from memory or from the other side's core. A step of a choice
 * without extras touches the first line of `item` and the two of the host, nothing of the request.
 */
typedef struct choice {
    alignas(CACHE_LINE) sched_item item; /* first: a choice is found from its item */

    alignas(CACHE_LINE) choice_exec x;

    /* Written by the host's side (masks.c) while no step with a mask of this choice is in flight;
     * read by both. */
    uint32_t *mask;        /* [MAX_STEP][words], NULL = no constraint */
    bool masked[MAX_STEP]; /* row has a constraint */
    int n_masked_drafts;   /* drafts that the constraint lets through */

    /* Host thread, every step. */
    alignas(CACHE_LINE) di_request *req;
    void (*on_event)(const di_event *ev); /* of the request, as the next three */
    void *user;
    uint64_t seed;
    bool logprobs, skip_special;
    bool constrained;      /* mask != NULL */
    bool has_stops;        /* stop strings */
    bool scheduled, ended; /* given to the scheduler; FINISH sent */
    bool closed;           /* the constraint is complete */
    int64_t n_known;       /* tokens of x.ids that the host has processed */
    int64_t drafted, accepted;
    /* the second line */
    tok_decoder decoder;
    int idx;
    uint64_t first_token_ns;
    int64_t n_cached; /* see n_counted */

    /* Host thread, now and then. */
    stop_match stop;
    atomic_bool cancelled; /* by any thread */
    void *mask_ctx;
    bool filling; /* its masks are being filled (masks.c) */
    struct choice *next_mask;
    /* Prompt tokens by how they came: n_counted = n_cached + n_recomputed + n_computed. */
    int64_t n_counted, n_recomputed, n_computed;
    int64_t n_repeated; /* rows that a preemption made necessary */
} choice;
_Static_assert(offsetof(sched_item, view) == CACHE_LINE, "what a plan touches is one line");
_Static_assert(offsetof(choice, stop) == offsetof(choice, req) + 2 * CACHE_LINE,
               "what the host touches in a step is two lines");

/* An event that waits for di_poll; one allocation with everything behind it. */
typedef struct queued_event {
    struct queued_event *next;
    di_event ev;
    bool last; /* DONE: the request goes with it */
} queued_event;

struct di_request {
    di_engine *engine;
    di_request *prev, *next; /* list of the engine, or of the inbox */
    di_request_params p;     /* pointers replaced by our copies */
    sampling_params sampling;
    uint64_t salt;
    int64_t n_prompt, max_out;
    int32_t stop_id[N_STOP_IDS];
    int n_stop_ids;
    uint32_t *ban; /* mask without the stop ids, for min_tokens; or NULL */
    choice *choice;
    int n_choices, n_ended;
    int n_scheduled;       /* choices in the scheduler */
    di_request *next_left; /* list of those whose choices have all ended and left it */
    atomic_bool cancelled;
    uint64_t submit_ns, start_ns, deadline_ns; /* start: the first step with it is planned */
    token_values *prompt_value;                /* [n_prompt], or NULL */
    bool queued;                               /* counted in the bounds of the queue */
    bool lost_event;                           /* there was no memory for an event */
    queued_event *done_event;                  /* reserved for DONE when events are polled */
};

/* Results of a part of a step: two cache lines. */
typedef struct part_result {
    alignas(CACHE_LINE) int n; /* tokens gained */
    bool done;
    di_finish finish;
    di_code code;                    /* of a failed step */
    const char *message;             /* of it: a constant, or the job's */
    int offered, verified, accepted; /* drafts at hand, drafts fed, drafts accepted */
    int64_t len;                     /* x.len behind the step */
    token_values *value;             /* [MAX_STEP], filled when asked for */
    int32_t token[MAX_STEP];
} part_result;
_Static_assert(sizeof(part_result) == 2 * CACHE_LINE, "results of a part are two lines");

typedef struct job {
    sched_plan plan;
    part_result *result; /* [max_seqs] */
    di_status failed;    /* of a step that failed */
    uint64_t run_ns;     /* time that the step took */
    kernel_counters did; /* in it */
    double forward_us;   /* of it, without proposing drafts; 0 when no row ran */
    int n_rows;          /* rows that it really had */
    model_work work;     /* the least that it had to read and compute */
    bool more;           /* others wait: idle time before the next job counts */
} job;

/* Work space of the executing side. */
typedef struct exec {
    model *m;
    kernels *k;
    seq_rows *rows;           /* [max_seqs] */
    int *part_of;             /* [max_seqs] part of each sequence of rows */
    sample_row *sample;       /* [max_rows] */
    int32_t *token;           /* [max_rows]; where operations write too, as the lp_ below */
    draft_rows *draft;        /* [max_seqs] */
    sample_row *draft_sample; /* [max_seqs] */
    int *draft_part;          /* [max_seqs] */
    int32_t *draft_out;       /* [max_seqs][max_draft] */
    float *draft_conf;
    draft_offer *offer; /* [max_seqs] */
    int *length, *scratch;
    float *lp;                   /* [max_rows] */
    int32_t *lp_token, *lp_rank; /* [max_rows] */
    int32_t *lp_top;             /* [max_rows][MAX_TOP] */
    float *lp_top_value;
    calibration cal;
    cost_table cost;
    int draft_block; /* drafts to propose; 0 = none */
    bool cpu_clock;  /* see exec_clock_us */
    int draft_next;  /* length of the next round */
    uint64_t n_rounds;
    float survival[DSPARK_MAX_DRAFT]; /* of all drafts so far */
    /* Tests: proposes instead of the draft stages; returns how many. */
    int (*script)(void *arg, const int32_t *ids, int64_t n_ids, int32_t *draft, int max);
    void *script_arg;
    bool pinned; /* bench_pin.h */
    double pin;
} exec;

/* Who fills masks (masks.c). */
typedef struct mask_crew {
    /* Host thread. */
    choice *wanted; /* to be handed over */
    int n_wanted, n_threads;
    bool refused; /* no more threads can be had */
    int n_open;   /* choices handed over and not taken back; the crew reads it under the lock */
    pthread_t thread[MAX_CREW];

    /* Under the engine's lock. */
    pthread_cond_t work;
    choice *queue, *done;
    int n_done;
    bool end;
} mask_crew;

struct di_engine {
    di_model *model;
    di_engine_options opt;
    const model_config *cfg;
    int vocab, mask_words, max_draft;
    int64_t max_context, exact_tail;
    exec x;
    kv_store *kv;
    sched *sched;
    job jobs[N_JOBS];
    uint64_t n_planned, n_run, n_processed; /* jobs; n_run under `lock` */
    pthread_t host, executor;
    bool host_started, exec_started;
    mask_crew crew;

    pthread_mutex_t lock; /* everything below */
    pthread_cond_t to_host, to_exec, to_caller;
    di_request *inbox_first, *inbox_last;
    bool closing, draining, wake;
    int64_t n_open;        /* requests whose DONE has not been sent */
    int64_t n_open_polled; /* of these, without a callback */
    int64_t n_queued, n_queued_tokens;
    queued_event *event_first, *event_last, *event_given;
    uint64_t n_handed; /* jobs given to the executing side */
    bool exec_end;
    uint64_t idle_since; /* the executing side waits for work that there is; 0 = there was none */
    di_stats stats;
    di_stats line_base; /* at the last statistics line */
    uint64_t line_ns;
    uint64_t line_steps; /* host thread: steps at the last line that was logged */

    /* Host thread. */
    di_request *first, *last; /* open requests */
    di_request *left;         /* of these, the ones that DONE can be sent for */
    uint64_t deadline_ns;     /* the first of the open requests'; UINT64_MAX = none */
    str piece, text;          /* of a token, of an event; kept for their memory */
    uint64_t n_deadlocks;     /* requests given up because no step could be planned: 0 */
    cost_table cost;          /* the executing side's at start, corrected here too */
    uint64_t step_ns;         /* of the last step */
    di_stats now;             /* published into `stats` after every step */
    /* Parts of the step that is processed, by drafts that were accepted, and by those whose
     * predecessors were. */
    uint64_t n_accepted[MAX_STEP], n_reached[MAX_STEP];
    float ev_logprob[MAX_STEP]; /* of the event that is being sent */
    int32_t ev_rank[MAX_STEP];
    di_token_logprob ev_top[MAX_STEP * MAX_TOP];
};

static inline choice *choice_of(sched_item *it)
{
    return (choice *)(void *)it;
}

/* request.c: checked copy of the parameters with its choices. The mask context is taken over on
 * success. Errors: INVALID, NOMEM. */
di_code request_new(di_engine *e, const di_request_params *p, di_request **out, di_status *st);
void request_free(di_request *r);
/* One that was not submitted: the mask context stays with the caller. */
void request_free_failed(di_request *r);

/* exec.c: the executing side. */
di_code exec_init(di_engine *e, di_status *st);
void exec_fini(exec *x);
/* Run a step: fills the job's results. */
void exec_run(di_engine *e, job *j);
/* Measure the cost table. */
di_code exec_measure(di_engine *e, di_status *st);

/* Microseconds, to measure what the executing side does: processor time where that is what the work
 * costs (a back end of one thread on the host), so that other programs do not disturb it. */
double exec_clock_us(const di_engine *e);

/* drafts.c: lengths of the drafts at hand, into length[part]; the next drafts. */
void drafts_init(exec *x);
void drafts_choose(di_engine *e, const job *j);
void drafts_propose(di_engine *e, job *j);

/* sample.c: tokens of the rows of a step, and their acceptance. Errors: DEVICE. */
di_code exec_sample(di_engine *e, job *j, int n_seqs, const float *logits, di_status *st);

/* masks.c; host thread. Fill the masks of a choice's next step now: behind the newest token, then
 * behind each draft that the constraint takes. */
void masks_fill(const di_engine *e, choice *c);
/* The same at the next masks_take, which returns the choices that are done by then, linked by
 * next_mask. */
void masks_want(di_engine *e, choice *c);
choice *masks_take(di_engine *e);
void masks_end(di_engine *e); /* ends the threads; nothing is open */

/* host.c: the loop of the host thread, and of the executing one. */
void *host_main(void *engine);
void *executor_main(void *engine);

/* events.c: to the caller. `ev` is filled in, the rest 0, but for type, request, user, choice,
 * text, seed, usage; values [ev->n_tokens] or NULL: log-probabilities. */
void event_send(di_engine *e, choice *c, di_event_type type, di_event *ev,
                const token_values *values);
/* All choices have ended: DONE, and the request goes (with its last event when it is polled). */
void event_done(di_engine *e, di_request *r);
void events_free(di_engine *e);
