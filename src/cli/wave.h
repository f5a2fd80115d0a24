/* Requests that run together and are timed: what a benchmark sends to the engine.
 * Thread: main thread; times are taken on the engine's host thread as events come. */
#pragma once

#include <pthread.h>

#include "cli/measure.h"
#include "deepinfer/deepinfer.h"

typedef struct wave wave;

/* One request; times in ns of the monotonic clock, 0 = not reached. */
typedef struct wave_user {
    wave *wave;
    di_request *request;
    uint64_t submit_ns, first_ns, last_ns;
    int64_t n_tokens, n_prompt;
    int64_t in_window; /* tokens */
    bool done;
} wave_user;

struct wave {
    di_engine *engine;
    wave_user *user; /* [n] */
    int n, n_submitted;
    pthread_mutex_t lock; /* everything below and users */
    pthread_cond_t changed;
    int n_first, n_done;
    double
        *gap_ms; /* between two events with tokens of one request, in the window if there is one */
    size_t n_gaps, cap_gaps;
    /* With goal > 0: from when every request has its first token until so many more have come, or
     * the first request ends. Then the rest is cancelled. No window when one has ended before. */
    int64_t goal;
    uint64_t open_ns, close_ns;
    int64_t window_tokens, n_ended;
    di_stats begin, open, close; /* at the first submission, and at the ends of the window */
    di_status st;                /* of a request that failed */
};

/* n requests with at most `tokens` output tokens in all. Errors: NOMEM. */
di_code wave_init(wave *w, di_engine *e, int n, int64_t tokens, di_status *st);
void wave_fini(wave *w); /* all requests have ended */

/* Submit the next request. The callback and user fields of p are set here. Errors: those of
 * di_submit. */
di_code wave_submit(wave *w, di_request_params *p, di_status *st);

/* Wait until all submitted requests have ended, or deadline_ns: then they are cancelled and waited
 * for, and *cut is true. tick (or NULL) is called a few times a second. Errors: of a request. */
di_code wave_wait(wave *w, uint64_t deadline_ns, void (*tick)(void *arg), void *arg, bool *cut,
                  di_status *st);

/* Times of the requests: to the first token, and per further token (in the window if there is one).
 */
spread wave_ttft_ms(const wave *w, double *scratch);
spread wave_tpot_ms(const wave *w, double *scratch);
