/* Events on their way to the caller: a callback at once, or a copy that waits for di_poll. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine_internal.h"

/* ---- building ---- */

static di_usage usage_of(const di_request *r, const choice *only)
{
    uint64_t now = clock_ns(), first = 0;
    const choice *head = &r->choice[0];
    di_usage u = {.prompt_tokens = r->n_prompt,
                  .cached_tokens = head->n_cached,
                  .recomputed_tokens = head->n_recomputed,
                  .computed_tokens = head->n_computed,
                  .queued_us = ((r->start_ns ? r->start_ns : now) - r->submit_ns) / 1000};

    for (int i = 0; i < r->n_choices; i++) {
        const choice *c = &r->choice[i];

        if (only && c != only)
            continue;
        u.output_tokens += c->n_known - r->n_prompt;
        u.repeated_tokens += c->n_repeated;
        u.drafted += c->drafted;
        u.accepted += c->accepted;
        u.preemptions += c->item.n_preempted;
        if (c->first_token_ns && (!first || c->first_token_ns < first))
            first = c->first_token_ns;
    }
    u.first_token_us = first ? (first - r->submit_ns) / 1000 : 0;
    u.total_us = (now - r->submit_ns) / 1000;
    return u;
}

/* Log-probabilities as the arrays of an event. n values into lp, rank [n], top [n][n_top]. */
static void spread(const token_values *v, int n, int n_top, float *lp, int32_t *rank,
                   di_token_logprob *top)
{
    for (int i = 0; i < n; i++) {
        lp[i] = v[i].logprob;
        rank[i] = v[i].rank;
        memcpy(top + (size_t)i * (size_t)n_top, v[i].top, (size_t)n_top * sizeof *top);
    }
}

/* ---- queue for di_poll ---- */

static size_t padded(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* Copy n bytes behind *at and move it on. */
static void *stow(char **at, const void *p, size_t n)
{
    void *to = *at;

    if (!p)
        return NULL;
    memcpy(to, p, n);
    *at += padded(n);
    return to;
}

static queued_event *copy_event(const di_event *ev)
{
    size_t n = (size_t)ev->n_tokens, tops = n * (size_t)ev->n_top;
    size_t message = ev->message ? strlen(ev->message) + 1 : 0;
    size_t bytes = padded(sizeof(queued_event)) + padded(n * 4) * 3 + padded(ev->n_text + 1) +
                   padded(tops * sizeof(di_token_logprob)) + padded(message);
    queued_event *q = mem_try_calloc(bytes, 1);
    char *at = (char *)q + padded(sizeof *q);

    if (!q)
        return NULL;
    q->ev = *ev;
    q->ev.token = stow(&at, ev->token, n * 4);
    q->ev.logprob = stow(&at, ev->logprob, n * 4);
    q->ev.rank = stow(&at, ev->rank, n * 4);
    q->ev.top = stow(&at, ev->top, tops * sizeof(di_token_logprob));
    q->ev.text = stow(&at, ev->text, ev->n_text + 1);
    q->ev.message = stow(&at, ev->message, message);
    return q;
}

static void enqueue(di_engine *e, queued_event *q)
{
    DI_CHECK(e); /* a request lives inside an engine */
    pthread_mutex_lock(&e->lock);
    if (e->event_last)
        e->event_last->next = q;
    else
        e->event_first = q;
    e->event_last = q;
    pthread_cond_broadcast(&e->to_caller);
    pthread_mutex_unlock(&e->lock);
}

static void deliver(di_engine *e, const choice *c, const di_event *ev)
{
    queued_event *q;

    if (c->on_event) {
        c->on_event(ev);
        return;
    }
    q = copy_event(ev);
    if (q)
        enqueue(e, q);
    else /* the caller learns from DONE, whose place was reserved, that something is missing */
        c->req->lost_event = true;
}

/* ---- sending ---- */

/* The event's log-probabilities. Returns memory to free once it is delivered, or NULL. */
static void *attach_values(di_engine *e, const choice *c, di_event *ev, const token_values *values)
{
    int n_top = c->req->p.top_logprobs;
    float *lp = e->ev_logprob;
    int32_t *rank = e->ev_rank;
    di_token_logprob *top = e->ev_top;
    size_t n = (size_t)ev->n_tokens;
    char *space = NULL;

    if (n > MAX_STEP) { /* a whole prompt */
        space = mem_try_calloc(n, 8 + (size_t)n_top * sizeof *top);
        if (!space)
            return NULL;
        lp = (float *)(void *)space;
        rank = (int32_t *)(void *)(space + 4 * n);
        top = (di_token_logprob *)(void *)(space + 8 * n);
    }
    spread(values, ev->n_tokens, n_top, lp, rank, top);
    if (ev->type == DI_EVENT_PROMPT)
        lp[0] = NAN; /* nothing stands before the first token */
    ev->logprob = lp;
    ev->rank = rank;
    ev->top = n_top ? top : NULL;
    ev->n_top = n_top;
    return space;
}

void event_send(di_engine *e, choice *c, di_event_type type, di_event *ev,
                const token_values *values)
{
    void *space = NULL;

    ev->type = type;
    ev->request = c->req;
    ev->user = c->user;
    ev->choice = c->idx;
    ev->seed = c->seed;
    ev->text = "";
    if (type == DI_EVENT_TOKENS) {
        ev->text = str_text(&e->text);
        ev->n_text = e->text.len;
    }
    if (type == DI_EVENT_FINISH) {
        ev->usage = usage_of(c->req, c);
    } else { /* known by now; protocols tell it before the first token */
        ev->usage.prompt_tokens = c->item.n_prompt;
        ev->usage.cached_tokens = (c - c->idx)->n_cached;
    }
    if (values)
        space = attach_values(e, c, ev, values);
    deliver(e, c, ev);
    mem_free(space);
}

void event_done(di_engine *e, di_request *r)
{
    di_event ev = {.type = DI_EVENT_DONE,
                   .request = r,
                   .user = r->p.user,
                   .text = "",
                   .stop_index = -1,
                   .seed = r->sampling.seed,
                   .usage = usage_of(r, NULL)};
    queued_event *q = r->done_event;
    bool polled = !r->p.on_event;

    if (r->lost_event) {
        ev.code = DI_E_NOMEM;
        ev.message = "no memory for an event of this request: its tokens are not complete";
    }
    if (polled) {
        r->done_event = NULL;
        q->ev = ev;
        q->last = true;
        enqueue(e, q);
    } else {
        r->p.on_event(&ev);
    }
    pthread_mutex_lock(&e->lock);
    e->n_open--;
    pthread_cond_broadcast(&e->to_caller);
    pthread_mutex_unlock(&e->lock);
    if (!polled)
        request_free(r);
}

void events_free(di_engine *e)
{
    queued_event *q = e->event_first, *next;

    str_fini(&e->piece);
    str_fini(&e->text);
    if (e->event_given && e->event_given->last)
        request_free(e->event_given->ev.request);
    mem_free(e->event_given);
    for (; q; q = next) {
        next = q->next;
        if (q->last)
            request_free(q->ev.request);
        mem_free(q);
    }
}

bool di_poll(di_engine *e, di_event *ev, int timeout_ms)
{
    struct timespec until;
    queued_event *q, *old;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&e->lock);
    old = e->event_given;
    e->event_given = NULL;
    while (!e->event_first && e->n_open_polled > 0) {
        if (timeout_ms < 0)
            pthread_cond_wait(&e->to_caller, &e->lock);
        else if (pthread_cond_timedwait(&e->to_caller, &e->lock, &until) != 0)
            break;
    }
    q = e->event_first;
    if (q) {
        e->event_first = q->next;
        if (!e->event_first)
            e->event_last = NULL;
        e->event_given = q;
        if (q->last)
            e->n_open_polled--;
        *ev = q->ev;
    }
    pthread_mutex_unlock(&e->lock);
    if (old && old->last)
        request_free(old->ev.request);
    mem_free(old);
    return q != NULL;
}
