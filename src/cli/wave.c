/* See wave.h. */
#include "cli/wave.h"

#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"

#define TICK_NS 200000000u

di_code wave_init(wave *w, di_engine *e, int n, int64_t tokens, di_status *st)
{
    pthread_condattr_t attr;

    *w = (wave){.engine = e, .n = n, .cap_gaps = (size_t)tokens + (size_t)n};
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    w->user = mem_try_calloc((size_t)n, sizeof *w->user);
    w->gap_ms = mem_try_calloc(w->cap_gaps, sizeof *w->gap_ms);
    if (w->user && w->gap_ms)
        return DI_OK;
    wave_fini(w);
    return di_fail(st, DI_E_NOMEM, "no memory for %d requests", n);
}

void wave_fini(wave *w)
{
    if (!w->engine)
        return;
    mem_free(w->user);
    mem_free(w->gap_ms);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    *w = (wave){0};
}

static bool window_open(const wave *w)
{
    return w->open_ns && !w->close_ns;
}

static void close_window(wave *w, uint64_t now)
{
    if (!window_open(w))
        return;
    w->close_ns = now;
    w->close = di_engine_stats(w->engine);
}

static void open_window(wave *w, uint64_t now)
{
    if (w->goal == 0 || w->n_first < w->n || w->n_ended > 0)
        return;
    w->open_ns = now;
    w->open = di_engine_stats(w->engine);
}

static void on_tokens(wave *w, wave_user *u, int n, uint64_t now)
{
    bool counts = w->goal == 0 || window_open(w);

    if (window_open(w)) {
        w->window_tokens += n;
        u->in_window += n;
    }
    if (counts && u->n_tokens > 0 && w->n_gaps < w->cap_gaps)
        w->gap_ms[w->n_gaps++] = (double)(now - u->last_ns) * 1e-6;
    if (u->n_tokens == 0) {
        u->first_ns = now;
        w->n_first++;
        open_window(w, now);
    }
    u->n_tokens += n;
    u->last_ns = now;
    if (w->goal > 0 && w->window_tokens >= w->goal)
        close_window(w, now);
}

static void on_event(const di_event *ev)
{
    wave_user *u = ev->user;
    wave *w = u->wave;
    uint64_t now = clock_ns();

    pthread_mutex_lock(&w->lock);
    if (ev->type == DI_EVENT_TOKENS && ev->n_tokens > 0)
        on_tokens(w, u, ev->n_tokens, now);
    if (ev->type == DI_EVENT_FINISH) {
        w->n_ended++;
        close_window(w, now);
        if (ev->finish == DI_FINISH_ERROR)
            di_fail(&w->st, ev->code ? ev->code : DI_E_INTERNAL, "a request failed: %s",
                    ev->message ? ev->message : "");
    }
    if (ev->type == DI_EVENT_DONE) {
        u->done = true;
        w->n_done++;
    }
    if (ev->type == DI_EVENT_DONE || w->close_ns)
        pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

di_code wave_submit(wave *w, di_request_params *p, di_status *st)
{
    wave_user *u = &w->user[w->n_submitted];
    di_request *r;
    di_code rc;

    if (w->n_submitted == 0)
        w->begin = di_engine_stats(w->engine);
    *u = (wave_user){.wave = w, .n_prompt = (int64_t)p->n_ids, .submit_ns = clock_ns()};
    p->on_event = on_event;
    p->user = u;
    rc = di_submit(w->engine, p, &r, st);
    if (rc != DI_OK)
        return rc;
    pthread_mutex_lock(&w->lock);
    u->request = r;
    w->n_submitted++;
    pthread_mutex_unlock(&w->lock);
    return DI_OK;
}

static void cancel_all(wave *w)
{
    for (int i = 0; i < w->n_submitted; i++)
        if (!w->user[i].done) /* its DONE event waits for the lock: the handle is alive */
            di_cancel(w->engine, w->user[i].request);
}

di_code wave_wait(wave *w, uint64_t deadline_ns, void (*tick)(void *arg), void *arg, bool *cut,
                  di_status *st)
{
    bool cancelled = false;

    *cut = false;
    pthread_mutex_lock(&w->lock);
    while (w->n_done < w->n_submitted) {
        uint64_t until = clock_ns() + TICK_NS;
        struct timespec t = {.tv_sec = (time_t)(until / 1000000000u),
                             .tv_nsec = (long)(until % 1000000000u)};

        pthread_cond_timedwait(&w->changed, &w->lock, &t);
        *cut = *cut || (!cancelled && w->n_done < w->n_submitted && clock_ns() >= deadline_ns);
        if (!cancelled && (*cut || w->close_ns)) {
            cancelled = true;
            cancel_all(w);
        }
        pthread_mutex_unlock(&w->lock);
        if (tick)
            tick(arg);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    if (w->st.code != DI_OK)
        return di_fail(st, w->st.code, "%s", w->st.message);
    return DI_OK;
}

spread wave_ttft_ms(const wave *w, double *scratch)
{
    size_t n = 0;

    for (int i = 0; i < w->n_submitted; i++)
        if (w->user[i].first_ns)
            scratch[n++] = (double)(w->user[i].first_ns - w->user[i].submit_ns) * 1e-6;
    return spread_of(scratch, n);
}

spread wave_tpot_ms(const wave *w, double *scratch)
{
    double window_ms = (double)(w->close_ns - w->open_ns) * 1e-6;
    size_t n = 0;

    for (int i = 0; i < w->n_submitted; i++) {
        const wave_user *u = &w->user[i];

        if (w->close_ns && u->in_window > 0)
            scratch[n++] = window_ms / (double)u->in_window;
        else if (w->goal == 0 && u->n_tokens > 1)
            scratch[n++] = (double)(u->last_ns - u->first_ns) * 1e-6 / (double)(u->n_tokens - 1);
    }
    return spread_of(scratch, n);
}
