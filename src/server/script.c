/* Scripted replies: given tokens at a given pace, with the manners of the engine.
 *
 *   submit -> WAITING (list) -admit-> RUNNING (heap, by the time of its next token) -DONE-> freed
 *   cancel -> due at once, in whatever state
 *
 * One thread gives every running request its next tokens when they are due, those of one moment in
 * the order in which the requests came; more than max_seqs wait. Text, stop strings, end of
 * sentence and bounds behave as in the engine, so that what is built on events can be tested
 * without a model. Lock: `lock` covers list, heap and counters; callbacks run without it. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/mem.h"
#include "recipe/stop.h"
#include "server/backend.h"
#include "server/due_heap.h"

#define MAX_FILE      (64 << 20)
#define MAX_CHOICES   64
#define MAX_TOP       20
#define DEFAULT_REPLY "The quick brown fox jumps over the lazy dog. "

typedef struct rule {
    char *when; /* NULL: always */
    tok_ids reply;
    int64_t wait_ms, step_us, repeat, burst;
    di_finish finish;
} rule;

typedef struct choice {
    tok_decoder decoder;
    stop_match stop;
    int64_t n_out;
    bool ended;
    atomic_bool cancelled; /* by any thread; looked at in every step */
} choice;

typedef struct scripted {
    due_entry due;                /* first: the heap's entry is the request */
    struct scripted *prev, *next; /* while it waits */
    di_request_params p;
    const rule *rule;
    int64_t n_prompt, max_out;
    int32_t stop_id[33];
    int n_stop_ids;
    choice *choice; /* [n] */
    int n, n_ended;
    uint64_t submit_ns, start_ns, first_ns;
    bool running, stamped, cancelled; /* running and cancelled: under the lock */
} scripted;

typedef struct script {
    script_options opt;
    tokenizer *tok;
    rule *rule;
    size_t n_rules;
    int32_t eos;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    scripted *first, *last; /* that wait */
    due_heap heap;          /* that run, or are cancelled */
    size_t n_alive;         /* waiting, in the heap, or with the thread */
    bool closing, may_admit;
    di_stats stats;
    str text; /* of the event that is being sent; the thread's */
} script;

/* ---- events (the script's thread) ---- */

static di_usage usage_of(const scripted *r, int64_t n_out)
{
    uint64_t now = clock_ns();

    return (di_usage){.prompt_tokens = r->n_prompt,
                      .output_tokens = n_out,
                      .queued_us = r->start_ns ? (r->start_ns - r->submit_ns) / 1000 : 0,
                      .first_token_us = r->first_ns ? (r->first_ns - r->submit_ns) / 1000 : 0,
                      .total_us = (now - r->submit_ns) / 1000};
}

static void send_event(scripted *r, di_event *ev)
{
    ev->request = NULL;
    ev->user = r->p.user;
    ev->seed = r->p.has_seed ? r->p.seed : 0;
    ev->text = ev->text ? ev->text : "";
    r->p.on_event(ev);
}

static void end_choice(scripted *r, int i, di_finish why, int stop_index)
{
    choice *c = &r->choice[i];
    di_event ev = {.type = DI_EVENT_FINISH, .choice = i, .finish = why, .stop_index = stop_index};

    c->ended = true;
    r->n_ended++;
    if (why == DI_FINISH_ERROR) {
        ev.code = DI_E_INTERNAL;
        ev.message = "the script says so";
    }
    ev.usage = usage_of(r, c->n_out);
    send_event(r, &ev);
}

static bool is_stop_id(const scripted *r, int32_t id)
{
    for (int i = 0; i < r->n_stop_ids; i++)
        if (r->stop_id[i] == id)
            return true;
    return false;
}

/* Made-up values that a client can check: they depend on the index of the token alone, or (the
 * prompt says "[stamp]") on the time, for measurements of latency. */
static void values_of(const scripted *r, int64_t at, int n, float *lp, int32_t *rank,
                      di_token_logprob *top, const int32_t *ids)
{
    /* Microseconds below 2^24 are exact in a float. */
    float stamp = -(float)(clock_ns() / 1000 % 16000000);

    for (int i = 0; i < n; i++) {
        lp[i] = r->stamped ? stamp : (float)((at + i) % 8) * -0.125f + 0.0f;
        rank[i] = 0;
        for (int k = 0; k < r->p.top_logprobs; k++)
            top[i * r->p.top_logprobs + k] =
                (di_token_logprob){k ? k + 2 : ids[i], lp[i] - 0.5f * (float)k};
    }
}

#define MAX_BURST 16

/* Up to `burst` tokens of a choice as one event, then its end if it has come. */
static int step_choice(script *s, scripted *r, int i)
{
    choice *c = &r->choice[i];
    const rule *u = r->rule;
    int64_t total = (int64_t)u->reply.n * u->repeat;
    int32_t ids[MAX_BURST], rank[MAX_BURST];
    float lp[MAX_BURST];
    di_token_logprob top[MAX_BURST * MAX_TOP];
    di_finish why = DI_FINISH_NONE;
    int stop_index = -1, n = 0;
    int64_t at = c->n_out;
    str piece = {0};
    di_event ev = {.type = DI_EVENT_TOKENS, .choice = i, .stop_index = -1};

    str_clear(&s->text);
    while (n < u->burst && why == DI_FINISH_NONE && c->n_out < r->max_out) {
        int32_t id = c->n_out < total ? u->reply.ids[c->n_out % (int64_t)u->reply.n] : s->eos;

        if (c->n_out >= total && u->finish != DI_FINISH_STOP) {
            why = u->finish;
            break;
        }
        if (c->n_out >= total && r->p.ignore_eos)
            id = u->reply.ids[c->n_out % (int64_t)u->reply.n];
        ids[n++] = id;
        c->n_out++;
        if (is_stop_id(r, id) && c->n_out > r->p.min_tokens) {
            why = DI_FINISH_STOP;
            break;
        }
        str_clear(&piece);
        if (!(r->p.skip_special && tokenizer_is_special(s->tok, id)))
            tok_decoder_push(&c->decoder, id, &piece);
        if (stop_push(&c->stop, str_text(&piece), piece.len, &s->text)) {
            why = DI_FINISH_STOP;
            stop_index = c->stop.matched;
        }
    }
    if (why == DI_FINISH_NONE && c->n_out >= r->max_out)
        why = DI_FINISH_LENGTH;
    if (why != DI_FINISH_NONE && stop_index < 0) {
        str_clear(&piece);
        tok_decoder_flush(&c->decoder, &piece);
        stop_push(&c->stop, str_text(&piece), piece.len, &s->text);
        stop_flush(&c->stop, &s->text);
    }
    str_fini(&piece);
    ev.n_tokens = n;
    ev.token = ids;
    ev.text = str_text(&s->text);
    ev.n_text = s->text.len;
    if (r->p.logprobs) {
        values_of(r, at, n, lp, rank, top, ids);
        ev.logprob = lp;
        ev.rank = rank;
        ev.n_top = r->p.top_logprobs;
        ev.top = ev.n_top ? top : NULL;
    }
    ev.usage = (di_usage){.prompt_tokens = r->n_prompt};
    if (n || ev.n_text)
        send_event(r, &ev);
    if (why != DI_FINISH_NONE)
        end_choice(r, i, why, stop_index);
    return n;
}

static void free_request(scripted *r)
{
    for (int i = 0; i < r->n; i++) {
        tok_decoder_fini(&r->choice[i].decoder);
        stop_fini(&r->choice[i].stop);
    }
    if (r->p.mask && r->p.mask->free)
        r->p.mask->free(r->p.mask_ctx);
    mem_free((void *)r->p.mask);
    mem_free(r->choice);
    mem_free(r);
}

static void finish_request(script *s, scripted *r, bool was_cancelled)
{
    di_event ev = {.type = DI_EVENT_DONE, .stop_index = -1};
    int64_t n_out = 0;

    for (int i = 0; i < r->n; i++)
        n_out += r->choice[i].n_out;
    pthread_mutex_lock(&s->lock);
    s->n_alive--;
    s->may_admit = true;
    *(r->running ? &s->stats.running : &s->stats.waiting) -= r->n;
    s->stats.finished += !was_cancelled;
    s->stats.cancelled += was_cancelled;
    pthread_mutex_unlock(&s->lock);
    ev.usage = usage_of(r, n_out);
    send_event(r, &ev);
    free_request(r);
}

/* The next tokens of every choice; returns their number. */
static int step_request(script *s, scripted *r, uint64_t now, bool cancelled)
{
    int n = 0;

    for (int i = 0; i < r->n; i++) {
        if (r->choice[i].ended)
            continue;
        if (cancelled || atomic_load_explicit(&r->choice[i].cancelled, memory_order_relaxed))
            end_choice(r, i, DI_FINISH_CANCELLED, -1);
        else
            n += step_choice(s, r, i);
    }
    if (!r->first_ns)
        r->first_ns = now;
    return n;
}

/* ---- the thread ---- */

/* Not before t: with `together` at the next beat that all requests share. */
static uint64_t due_at(const script *s, const rule *u, uint64_t t)
{
    uint64_t step = (uint64_t)u->step_us * 1000;

    return s->opt.together && step ? (t + step - 1) / step * step : t;
}

/* Let waiting requests run. Under the lock. */
static void admit_locked(script *s, uint64_t now)
{
    for (scripted *r = s->first, *next; r && s->may_admit; r = next) {
        next = r->next;
        if (s->stats.running + r->n > s->opt.max_seqs)
            continue;
        *(r->prev ? &r->prev->next : &s->first) = r->next;
        *(r->next ? &r->next->prev : &s->last) = r->prev;
        r->running = true;
        s->stats.waiting -= r->n;
        s->stats.running += r->n;
        r->start_ns = now;
        r->due.due_ns = due_at(s, r->rule, now + (uint64_t)r->rule->wait_ms * 1000000);
        due_push(&s->heap, &r->due);
    }
    s->may_admit = false;
}

static void wait_until(script *s, uint64_t now, uint64_t until)
{
    struct timespec t;

    if (until == UINT64_MAX) {
        pthread_cond_wait(&s->wake, &s->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &t);
    until -= now;
    t.tv_sec += (time_t)(until / 1000000000);
    t.tv_nsec += (long)(until % 1000000000);
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&s->wake, &s->lock, &t);
}

/* Give r its tokens, without the lock that the caller holds, and put it back until the next ones.
 * A request that is behind does not make up for it with a burst. */
static void run_locked(script *s, scripted *r, uint64_t now)
{
    bool cancelled = r->cancelled;
    uint64_t next;
    int n;

    pthread_mutex_unlock(&s->lock);
    n = step_request(s, r, now, cancelled);
    if (r->n_ended == r->n) {
        finish_request(s, r, cancelled);
        r = NULL;
    }
    pthread_mutex_lock(&s->lock);
    s->stats.output_tokens += (uint64_t)n;
    if (!r)
        return;
    next = r->due.due_ns + (uint64_t)r->rule->step_us * 1000;
    r->due.due_ns = next > now && !r->cancelled ? next : now + 1;
    if (!r->cancelled)
        r->due.due_ns = due_at(s, r->rule, r->due.due_ns);
    due_push(&s->heap, &r->due);
}

static void *script_main(void *arg)
{
    script *s = arg;

    pthread_mutex_lock(&s->lock);
    while (!s->closing || s->n_alive) {
        uint64_t now = clock_ns();
        due_entry *e;

        admit_locked(s, now);
        e = due_first(&s->heap);
        if (!e || e->due_ns > now) {
            wait_until(s, now, e ? e->due_ns : UINT64_MAX);
            continue;
        }
        s->stats.steps++;
        for (; e && e->due_ns <= now; e = due_first(&s->heap))
            run_locked(s, (scripted *)(void *)due_pop(&s->heap), now);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- requests ---- */

static di_code prompt_of(script *s, const di_request_params *p, str *text, int64_t *n,
                         di_status *st)
{
    tok_ids ids = {0};
    di_code rc = DI_OK;

    for (size_t i = 0; p->ids && i < p->n_ids; i++)
        if (p->ids[i] < 0 || p->ids[i] >= tokenizer_n_ids(s->tok))
            return di_fail(st, DI_E_INVALID,
                           "the prompt holds token id %d, but ids run from 0 to %d", p->ids[i],
                           tokenizer_n_ids(s->tok) - 1);
    if (p->ids) {
        *n = (int64_t)p->n_ids;
        tokenizer_decode(s->tok, p->ids, p->n_ids, false, text);
    } else {
        rc = tokenizer_encode(s->tok, p->text, p->n_text, true, &ids, st);
        *n = (int64_t)ids.n;
        str_append(text, p->text, p->n_text);
    }
    tok_ids_fini(&ids);
    if (rc == DI_OK && *n == 0)
        rc = di_fail(st, DI_E_INVALID, "the prompt is empty: give it at least one token");
    else if (rc == DI_OK && *n > s->opt.context)
        rc = di_fail(st, DI_E_INVALID, "the prompt has %lld tokens, but the context is %lld",
                     (long long)*n, (long long)s->opt.context);
    return rc;
}

static const rule *rule_of(const script *s, const char *prompt)
{
    for (size_t i = 0; i < s->n_rules; i++)
        if (!s->rule[i].when || strstr(prompt, s->rule[i].when))
            return &s->rule[i];
    return &s->rule[s->n_rules - 1]; /* the built-in one, which always holds */
}

static di_code check_ids(const script *s, const di_request_params *p, di_status *st)
{
    for (int i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] < 0 || p->stop_ids[i] >= tokenizer_n_ids(s->tok))
            return di_fail(st, DI_E_INVALID, "stop_ids holds token id %d, but ids run from 0 to %d",
                           p->stop_ids[i], tokenizer_n_ids(s->tok) - 1);
    for (int i = 0; i < p->n_bias; i++)
        if (p->bias[i].id < 0 || p->bias[i].id >= tokenizer_n_ids(s->tok))
            return di_fail(st, DI_E_INVALID,
                           "logit_bias holds token id %d, but ids run from 0 to %d", p->bias[i].id,
                           tokenizer_n_ids(s->tok) - 1);
    return DI_OK;
}

static di_code request_init(script *s, scripted *r, const di_request_params *p, di_status *st)
{
    str text = {0};
    size_t len[STOP_MAX];
    int64_t room;
    di_code rc;

    DI_TRY(check_ids(s, p, st));
    DI_TRY(prompt_of(s, p, &text, &r->n_prompt, st));
    r->rule = rule_of(s, str_text(&text));
    r->stamped = strstr(str_text(&text), "[stamp]") != NULL;
    room = s->opt.context - r->n_prompt;
    room = room < 1 ? 1 : room;
    r->max_out = p->max_tokens < 0 || p->max_tokens > room ? room : p->max_tokens;
    r->p = *p;
    r->p.mask = NULL;
    for (int i = 0; i < p->n_stop_ids && i < 32; i++)
        r->stop_id[r->n_stop_ids++] = p->stop_ids[i];
    if (!p->ignore_eos)
        r->stop_id[r->n_stop_ids++] = s->eos;
    for (int i = 0; i < p->n_stop && i < STOP_MAX; i++)
        len[i] = strlen(p->stop[i]);
    if (p->n < 0 || p->n > MAX_CHOICES) {
        rc = di_fail(st, DI_E_INVALID, "n is %d, but must be 1 to %d", p->n, MAX_CHOICES);
        goto done;
    }
    r->choice = mem_try_calloc(p->n ? (size_t)p->n : 1, sizeof *r->choice);
    if (!r->choice) {
        rc = di_fail(st, DI_E_NOMEM, "no memory for a request");
        goto done;
    }
    for (int i = 0; i < (p->n ? p->n : 1); i++) {
        r->n++;
        tok_decoder_init(&r->choice[i].decoder, s->tok);
        DI_TRY(stop_init(&r->choice[i].stop, p->stop, len, (size_t)p->n_stop, st));
    }
    if (p->mask) {
        di_mask_provider *mask = mem_try_calloc(1, sizeof *mask);

        if (!mask)
            return di_fail(st, DI_E_NOMEM, "no memory for a request");
        *mask = *p->mask;
        r->p.mask = mask;
    }
    r->submit_ns = clock_ns();
done:
    str_fini(&text);
    return rc;
}

static di_code script_submit(void *self, const di_request_params *p, void **handle, di_status *st)
{
    script *s = self;
    scripted *r = mem_try_calloc(1, sizeof *r);
    di_code rc;

    *handle = NULL;
    if (!r)
        return di_fail(st, DI_E_NOMEM, "no memory for a request");
    rc = request_init(s, r, p, st);
    pthread_mutex_lock(&s->lock);
    if (rc == DI_OK && s->stats.waiting + r->n > s->opt.max_queued)
        rc = di_fail(st, DI_E_BUSY, "the queue is full: %lld requests wait",
                     (long long)s->stats.waiting);
    if (rc == DI_OK)
        rc = due_reserve(&s->heap, s->n_alive + 1, st);
    if (rc == DI_OK) {
        r->due.order = s->stats.requests++;
        s->n_alive++;
        s->may_admit = true;
        s->stats.waiting += r->n;
        s->stats.prompt_tokens += (uint64_t)r->n_prompt;
        s->stats.computed_tokens += (uint64_t)r->n_prompt;
        r->prev = s->last;
        *(s->last ? &s->last->next : &s->first) = r;
        s->last = r;
        *handle = r;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    if (rc != DI_OK) {
        mem_free((void *)r->p.mask);
        r->p.mask = NULL; /* its context stays the caller's */
        free_request(r);
    }
    return rc;
}

static void script_cancel(void *self, void *handle)
{
    script *s = self;
    scripted *r = handle;

    pthread_mutex_lock(&s->lock);
    if (!r->cancelled && r->due.at) {
        due_hasten(&s->heap, &r->due, 0);
    } else if (!r->cancelled && !r->running) {
        *(r->prev ? &r->prev->next : &s->first) = r->next;
        *(r->next ? &r->next->prev : &s->last) = r->prev;
        due_push(&s->heap, &r->due); /* due_ns is 0 */
    }                                /* else the thread has it, and looks when it puts it back */
    r->cancelled = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

static void script_cancel_choice(void *self, void *handle, int idx)
{
    scripted *r = handle;

    (void)self;
    if (idx >= 0 && idx < r->n)
        atomic_store_explicit(&r->choice[idx].cancelled, true, memory_order_relaxed);
}

static di_stats script_stats(void *self)
{
    script *s = self;
    di_stats t;

    pthread_mutex_lock(&s->lock);
    t = s->stats;
    pthread_mutex_unlock(&s->lock);
    return t;
}

static void script_free(void *self)
{
    script *s = self;

    if (!s)
        return;
    if (s->started) {
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    for (size_t i = 0; i < s->n_rules; i++) {
        mem_free(s->rule[i].when);
        tok_ids_fini(&s->rule[i].reply);
    }
    mem_free(s->rule);
    due_fini(&s->heap);
    str_fini(&s->text);
    tokenizer_free(s->tok);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

static const backend_ops script_ops = {.submit = script_submit,
                                       .cancel = script_cancel,
                                       .cancel_choice = script_cancel_choice,
                                       .stats = script_stats,
                                       .free = script_free};

/* ---- rules ---- */

/* NULL: out of memory, *st says so. */
static rule *add_rule(script *s, di_status *st)
{
    rule *more = mem_try_realloc(s->rule, s->n_rules + 1, sizeof *more);

    if (!more) {
        di_fail(st, DI_E_NOMEM, "no memory for the script");
        return NULL;
    }
    s->rule = more;
    more += s->n_rules++;
    *more = (rule){.step_us = s->opt.step_us, .repeat = 1, .burst = 1, .finish = DI_FINISH_STOP};
    return more;
}

static di_code read_finish(json_read *r, di_finish *out, di_status *st)
{
    const char *text;
    size_t n;
    di_code rc = json_string(r, &text, &n, st);

    if (rc != DI_OK)
        return rc;
    if (json_key_is(text, n, "stop"))
        *out = DI_FINISH_STOP;
    else if (json_key_is(text, n, "length"))
        *out = DI_FINISH_LENGTH;
    else if (json_key_is(text, n, "error"))
        *out = DI_FINISH_ERROR;
    else
        return json_fail(r, st, "finish must be stop, length or error");
    return DI_OK;
}

static di_code read_ids(json_read *r, tok_ids *out, int n_ids, di_status *st)
{
    int64_t v;
    di_code rc;

    DI_TRY(json_array(r, st));
    while (json_item(r)) {
        DI_TRY(json_int(r, &v, st));
        if (v < 0 || v >= n_ids)
            return json_fail(r, st, "there is no token id %lld", (long long)v);
        DI_TRY(tok_ids_push(out, (int32_t)v, st));
    }
done:
    return rc;
}

static di_code read_member(script *s, rule *u, json_read *r, const char *key, size_t n,
                           di_status *st)
{
    const char *text;
    di_code rc = DI_OK;

    if (json_key_is(key, n, "when")) {
        DI_TRY(json_string(r, &text, &n, st));
        u->when = mem_try_strndup(text, n);
        if (!u->when)
            rc = di_fail(st, DI_E_NOMEM, "no memory for the script");
    } else if (json_key_is(key, n, "reply")) {
        DI_TRY(json_string(r, &text, &n, st));
        DI_TRY(tokenizer_encode(s->tok, text, n, true, &u->reply, st));
    } else if (json_key_is(key, n, "ids")) {
        rc = read_ids(r, &u->reply, tokenizer_n_ids(s->tok), st);
    } else if (json_key_is(key, n, "wait_ms")) {
        rc = json_int(r, &u->wait_ms, st);
    } else if (json_key_is(key, n, "step_us")) {
        rc = json_int(r, &u->step_us, st);
    } else if (json_key_is(key, n, "repeat")) {
        rc = json_int(r, &u->repeat, st);
    } else if (json_key_is(key, n, "burst")) {
        rc = json_int(r, &u->burst, st);
    } else if (json_key_is(key, n, "finish")) {
        rc = read_finish(r, &u->finish, st);
    } else {
        rc = json_fail(r, st, "there is no member \"%.*s\"", (int)n, key);
    }
done:
    return rc;
}

static di_code read_rule(script *s, char *line, const char *name, di_status *st)
{
    json_read r;
    rule *u = add_rule(s, st);
    const char *key;
    size_t n;
    di_code rc;

    if (!u)
        return DI_E_NOMEM;
    json_open(&r, line, strlen(line), name);
    DI_TRY(json_object(&r, st));
    while (json_key(&r, &key, &n))
        DI_TRY(read_member(s, u, &r, key, n, st));
    DI_TRY(json_end(&r, st));
    if (u->wait_ms < 0 || u->step_us < 0 || u->repeat < 0 || u->burst < 1 || u->burst > MAX_BURST)
        rc = json_fail(&r, st, "a number is negative, or burst is not 1 to %d", MAX_BURST);
    if (rc == DI_OK && u->reply.n == 0)
        u->repeat = 0;
done:
    json_close(&r);
    return rc;
}

static di_code read_rules(script *s, di_status *st)
{
    di_code rc = DI_OK;
    char *text = NULL, *next, name[300];
    size_t n;
    int line = 0;
    rule *u;

    if (s->opt.file) {
        DI_TRY(file_read(&text, &n, s->opt.file, MAX_FILE, st));
        for (char *at = text; at; at = next) {
            next = strchr(at, '\n');
            if (next)
                *next++ = 0;
            line++;
            snprintf(name, sizeof name, "%s line %d", s->opt.file, line);
            if (at[strspn(at, " \t\r")])
                DI_TRY(read_rule(s, at, name, st));
        }
    }
    u = add_rule(s, st);
    if (!u) {
        rc = DI_E_NOMEM;
        goto done;
    }
    u->repeat = 1 << 20; /* up to max_tokens */
    rc = tokenizer_encode(s->tok, DEFAULT_REPLY, strlen(DEFAULT_REPLY), false, &u->reply, st);
done:
    mem_free(text);
    return rc;
}

di_code backend_script(backend *out, const script_options *o, di_status *st)
{
    script *s = mem_try_calloc(1, sizeof *s);
    pthread_condattr_t monotonic;
    char path[1024];
    di_code rc;

    if (!s)
        return di_fail(st, DI_E_NOMEM, "no memory for the script");
    s->opt = *o;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    DI_TRY(path_join(path, sizeof path, o->model_dir, "tokenizer.json", st));
    DI_TRY(tokenizer_load(&s->tok, path, st));
    s->eos = tokenizer_added_id(s->tok, "<｜end▁of▁sentence｜>");
    DI_TRY(read_rules(s, st));
    s->started = pthread_create(&s->thread, NULL, script_main, s) == 0;
    if (!s->started)
        rc = di_fail(st, DI_E_IO, "could not start a thread");
done:
    if (rc != DI_OK) {
        script_free(s);
        return rc;
    }
    *out = (backend){.ops = &script_ops,
                     .self = s,
                     .info = {.vocab = tokenizer_n_ids(s->tok),
                              .max_context = o->context,
                              .bos = tokenizer_added_id(s->tok, "<｜begin▁of▁sentence｜>"),
                              .eos = s->eos,
                              .backend = "script"},
                     .context = o->context,
                     .max_queued = o->max_queued,
                     .tok = s->tok};
    return DI_OK;
}
