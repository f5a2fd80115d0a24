/* The three protocols of conversations: /v1/chat/completions, /v1/responses, /v1/messages, and what
 * needs only their prompt: count_tokens, /apply-template.
 *
 * src/recipe reads bodies and writes answers; this file carries tokens between it and the back end.
 *   body -> recipe_request -> prompt ids -> call -> tokens -> recipe_stream -> SSE or one object
 * An answer is complete when every choice has ended, by the back end or by a stop string that the
 * recipe finds in the text; then it is sent, and what still runs is cancelled. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "recipe/prompt.h"
#include "recipe/request.h"
#include "recipe/stream.h"
#include "server/demand.h"
#include "server/offload.h"
#include "server/server_internal.h"

#define MAX_CHOICES  64
#define MAX_WARNINGS 1000

typedef struct dialog {
    call base;
    work work;
    recipe_protocol protocol;
    str body;
    bool is_read; /* q and ids are there */
    recipe_request q;
    tok_ids ids; /* of the prompt, until it is submitted */
    demand demand;
    recipe_stream *stream;
    int n, n_ended;
    bool ready;              /* the opening events are out */
    bool failed;             /* there is no answer: see error */
    bool ended[MAX_CHOICES]; /* by choice */
    recipe_error error;
} dialog;

static recipe_options options_of(const server *s, recipe_alias alias[SERVER_MAX_ALIASES])
{
    return (recipe_options){.mode = s->opt.recipe_strict ? RECIPE_STRICT : RECIPE_CLIENT,
                            .thinking_off = s->opt.thinking_off,
                            .alias = alias,
                            .n_alias = server_aliases(s, alias)};
}

/* ---- errors ---- */

static void reply_error(conn *c, recipe_protocol protocol, recipe_error *e)
{
    const server *s = c->loop->srv;
    recipe_mode mode = s->opt.recipe_strict ? RECIPE_STRICT : RECIPE_CLIENT;
    char retry[40] = "";
    str body = {0};

    if (e->status == 429 || e->status == 503)
        snprintf(retry, sizeof retry, "retry-after: %d\r\n", s->opt.retry_after_s);
    metric_count(&c->loop->m,
                 e->status == 429 || e->status == 503 ? METRIC_rejected_busy : METRIC_rejected_bad);
    recipe_error_body(protocol, mode, e, &body);
    if (str_ok(&body))
        conn_reply(c, e->status, "application/json", retry, body.data, body.len);
    else
        conn_close(c);
    str_fini(&body);
}

/* A failed status as the server sees it: a queue that takes nothing any more is 503. */
static void fail_from(recipe_error *e, const di_status *st)
{
    if (st->code == DI_E_CANCELLED)
        recipe_fail(e, 503, "%s", st->message);
    else
        recipe_error_from(e, st);
    if (st->code == DI_E_INVALID && !e->param)
        e->param = error_param(st->message);
}

/* ---- prompts ---- */

/* Conversation -> ids. text may be NULL. */
static bool make_prompt(const server *s, const recipe_request *q, tok_ids *ids, str *text,
                        recipe_error *e)
{
    recipe_prompt p = {0};
    di_status st = {0};
    di_code rc;

    if (q->n_images) {
        const char *path = q->image[0].path;

        snprintf(e->place, sizeof e->place, "%s", path + (*path == '.'));
        return recipe_fail(e, 400, "%s: this model reads text only, not images",
                           path + (*path == '.'));
    }
    DI_TRY(recipe_render(&q->chat, s->replay, &p, &st));
    DI_TRY(recipe_encode_again(s->be->tok, s->known, &p, ids, &st));
    if (text)
        str_append(text, p.text.data, p.text.len);
done:
    recipe_prompt_fini(&p);
    if (rc != DI_OK)
        recipe_error_from(e, &st);
    return rc == DI_OK;
}

/* Read a body and make its prompt; ids and q are the caller's to release in any case. */
static bool read_prompt(const server *s, recipe_protocol protocol, const str *body,
                        recipe_request *q, tok_ids *ids, str *text, recipe_error *e)
{
    recipe_alias alias[SERVER_MAX_ALIASES];
    recipe_options o = options_of(s, alias);

    return recipe_request_parse(q, protocol, &o, str_text(body), body->len, e) &&
           make_prompt(s, q, ids, text, e);
}

/* ---- answers ---- */

/* One event of the protocol into the loop's chunk. */
static void emit(void *ctx, const char *event, const char *data, size_t n)
{
    dialog *d = ctx;
    str *out = chunk_begin(d->base.loop);

    if (event) {
        str_puts(out, "event: ");
        str_puts(out, event);
        str_putc(out, '\n');
    }
    str_puts(out, "data: ");
    str_append(out, data, n);
    str_puts(out, "\n\n");
}

static void fail_dialog(dialog *d, int status, const char *message)
{
    if (d->failed)
        return;
    d->failed = true;
    recipe_fail(&d->error, status, "%s", message);
}

static void send_stream_end(dialog *d)
{
    call *k = &d->base;
    const char *last = recipe_stream_done(d->q.protocol);

    if (d->failed)
        recipe_stream_fail(d->stream, &d->error);
    if (last)
        emit(d, NULL, last, strlen(last));
    conn_chunk(k->conn);
    if (k->conn) /* a client that had gone is noticed by the write */
        conn_end_stream(k->conn);
}

static void send_whole(dialog *d)
{
    str out = {0};

    if (d->failed) {
        reply_error(d->base.conn, d->q.protocol, &d->error);
        return;
    }
    recipe_stream_whole(d->stream, &out);
    conn_reply_json(d->base.conn, 200, &out);
    str_fini(&out);
}

/* Everything is known: the client gets the end of its answer. k may be gone behind it. */
static void send_answer(dialog *d)
{
    call *k = &d->base;

    if (!recipe_stream_ok(d->stream))
        fail_dialog(d, 503, "no memory for the answer");
    k->answered = true;
    k->n_out = recipe_stream_n_tokens(d->stream);
    k->finish = d->failed ? "error" : recipe_stream_finish_reason(d->stream, 0);
    if (d->failed)
        snprintf(k->message, sizeof k->message, "%.200s", d->error.message);
    else
        k->message[0] = 0; /* that of a choice whose rest was not wanted */
    if (k->stream)
        send_stream_end(d);
    else
        send_whole(d);
}

/* ---- events ---- */

static void end_choice(dialog *d, int choice, recipe_finish why)
{
    d->ended[choice] = true;
    d->n_ended++;
    recipe_stream_finish(d->stream, choice, why, (int64_t)time(NULL));
}

/* The tokens that are part of the answer: neither the end of sentence nor a stop id. */
static int n_shown(const dialog *d, const di_event *ev)
{
    const recipe_sampling *sm = &d->q.sampling;
    int n = ev->n_tokens;
    int32_t last = n ? ev->token[n - 1] : -1;

    if (n && !sm->ignore_eos && last == d->base.loop->srv->be->info.eos)
        return n - 1;
    for (int i = 0; n && i < sm->n_stop_ids; i++)
        if (sm->stop_id[i] == last)
            return n - 1;
    return n;
}

#define MAX_EVENT_TOKENS 32

static bool push_tokens(dialog *d, const di_event *ev, int from, int n)
{
    recipe_logprob lp[MAX_EVENT_TOKENS];
    recipe_alternative top[MAX_EVENT_TOKENS * 20];

    if (!ev->logprob)
        return recipe_stream_tokens(d->stream, ev->choice, ev->token + from, (size_t)n, NULL);
    for (int i = 0; i < n; i++) {
        const di_token_logprob *t =
            ev->top ? ev->top + (size_t)(from + i) * (size_t)ev->n_top : NULL;
        recipe_alternative *to = top + (size_t)i * 20;
        int n_top = t ? ev->n_top : 0;

        for (int k = 0; k < n_top; k++)
            to[k] = (recipe_alternative){t[k].token, t[k].logprob};
        lp[i] = (recipe_logprob){ev->token[from + i], ev->logprob[from + i], to, n_top};
    }
    return recipe_stream_tokens(d->stream, ev->choice, ev->token + from, (size_t)n, lp);
}

static void on_tokens(dialog *d, const di_event *ev)
{
    int n = n_shown(d, ev), at = 0;

    while (at < n && !d->ended[ev->choice]) {
        int part = n - at < MAX_EVENT_TOKENS ? n - at : MAX_EVENT_TOKENS;

        if (!push_tokens(d, ev, at, part)) {
            end_choice(d, ev->choice, RECIPE_FINISH_STOP);
            relay_cancel_choice(d->base.relays, ev->choice); /* others may take long yet */
        }
        at += part;
    }
}

static void on_finish(dialog *d, const di_event *ev)
{
    if (d->ended[ev->choice])
        return;
    if (ev->finish == DI_FINISH_STOP)
        end_choice(d, ev->choice, RECIPE_FINISH_STOP);
    else if (ev->finish == DI_FINISH_LENGTH)
        end_choice(d, ev->choice, RECIPE_FINISH_LENGTH);
    else if (ev->code != DI_OK)
        fail_dialog(d, di_code_http(ev->code), ev->message ? ev->message : "the engine failed");
    else
        fail_dialog(d, 503, "the request was cancelled");
}

static void on_event(call *k, int index, const di_event *ev)
{
    dialog *d = (dialog *)(void *)k;

    (void)index;
    if (d->failed || d->n_ended == d->n)
        return;
    k->n_prompt = ev->usage.prompt_tokens;
    k->n_cached = ev->usage.cached_tokens;
    if (!d->ready) {
        d->ready = true;
        recipe_stream_ready(d->stream, k->n_prompt, k->n_cached);
    }
    if (ev->type == DI_EVENT_TOKENS)
        on_tokens(d, ev);
    else if (ev->type == DI_EVENT_FINISH)
        on_finish(d, ev);
    else if (ev->type == DI_EVENT_DONE)
        fail_dialog(d, 500, ev->message ? ev->message : "the engine gave no end");
}

static void on_turn(call *k)
{
    dialog *d = (dialog *)(void *)k;

    if (d->failed || d->n_ended == d->n)
        send_answer(d);
    else
        conn_chunk(k->conn);
}

static void on_end(call *k)
{
    send_answer((dialog *)(void *)k);
}

static void on_free(call *k)
{
    dialog *d = (dialog *)(void *)k;

    recipe_stream_free(d->stream);
    demand_fini(&d->demand);
    recipe_request_fini(&d->q);
    tok_ids_fini(&d->ids);
    str_fini(&d->body);
    mem_free(d);
}

static const call_ops dialog_ops = {
    .event = on_event, .turn = on_turn, .end = on_end, .free = on_free};

/* ---- requests ---- */

static di_request_params params_of(const recipe_request *q, const tok_ids *ids, int64_t max_tokens)
{
    const recipe_sampling *sm = &q->sampling;

    return (di_request_params){.ids = ids->ids,
                               .n_ids = ids->n,
                               .max_tokens = max_tokens,
                               .n = sm->n,
                               .has_seed = (sm->set & RECIPE_SET_SEED) != 0,
                               .seed = sm->seed,
                               .temperature = sm->temperature,
                               .top_p = sm->top_p,
                               .min_p = sm->min_p,
                               .top_k = sm->top_k,
                               .repetition_penalty = sm->repetition_penalty,
                               .presence_penalty = sm->presence_penalty,
                               .frequency_penalty = sm->frequency_penalty,
                               .bias = (const di_logit_bias *)(const void *)sm->bias,
                               .n_bias = (int)sm->n_bias,
                               .stop_ids = sm->stop_id,
                               .n_stop_ids = sm->n_stop_ids,
                               .ignore_eos = sm->ignore_eos,
                               .logprobs = sm->logprobs,
                               .top_logprobs = sm->top_logprobs > 0 ? sm->top_logprobs : 0};
}
_Static_assert(sizeof(recipe_bias) == sizeof(di_logit_bias), "the same two fields");

static uint64_t fresh_seed(void)
{
    uint64_t seed = 0;

    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = clock_ns(); /* early boot only */
    return seed >> 1;      /* below 2^63: what clients may send back */
}

static recipe_stream *new_stream(dialog *d, const conn *c)
{
    static const char *const prefixes[] = {"chatcmpl-", "resp_", "msg_"};
    const server *s = c->loop->srv;
    char id[80];

    snprintf(id, sizeof id, "%s%s", prefixes[d->q.protocol], c->id);
    return recipe_stream_new(&d->q, &(recipe_stream_options){.id = id,
                                                             .model = d->q.model,
                                                             .fingerprint = s->fingerprint,
                                                             .created = (int64_t)time(NULL),
                                                             .seed = fresh_seed(),
                                                             .tok = s->be->tok,
                                                             .replay = s->replay,
                                                             .emit = d->q.stream ? emit : NULL,
                                                             .ctx = d});
}

/* Dropped parts of a schema are told, never left out in silence. */
static void add_warnings(conn *c, const demand *k)
{
    const char *w = demand_warnings(k);

    if (!w)
        return;
    str_puts(&c->extra, "x-deepinfer-warnings: ");
    for (size_t i = 0; w[i] && i < MAX_WARNINGS; i++)
        str_putc(&c->extra, w[i] >= ' ' && w[i] < 0x7F ? w[i] : '?');
    str_puts(&c->extra, "\r\n");
}

/* The prompt is there: submit it. */
static bool submit(conn *c, dialog *d, recipe_error *e)
{
    const server *s = c->loop->srv;
    di_request_params p;
    di_status st = {0};
    int64_t max_tokens;

    if (d->q.sampling.n > MAX_CHOICES)
        return recipe_fail(e, 400, "n is %d, but must be 1 to %d", d->q.sampling.n, MAX_CHOICES);
    if (!recipe_resolve_max_tokens(&d->q, (int64_t)d->ids.n, s->be->context, &max_tokens, e))
        return false;
    d->base.stream = d->q.stream;
    d->n = d->q.sampling.n;
    d->stream = new_stream(d, c);
    if (!d->stream)
        return recipe_fail(e, 503, "no memory for a request");
    p = params_of(&d->q, &d->ids, max_tokens);
    if (!d->q.parsing.tool_calls && s->call_id >= 0) {
        p.banned_ids = &s->call_id;
        p.n_banned_ids = 1;
    }
    if (!p.has_seed) /* drawn here, so that the answer can say it from the start */
        p.seed = fresh_seed();
    p.has_seed = true;
    str_printf(&c->extra, "x-deepinfer-seed: %llu\r\n", (unsigned long long)p.seed);
    if (d->demand.state) {
        p.mask = &grammar_provider;
        p.mask_ctx = d->demand.state;
    }
    if (call_submit(&d->base, 0, &p, &st) != DI_OK) {
        fail_from(e, &st);
        return false;
    }
    d->demand.state = NULL; /* taken over */
    tok_ids_fini(&d->ids);
    return true;
}

/* Reading has ended, well or not: submit and answer, or answer with the error. */
static void proceed(dialog *d)
{
    conn *c = d->base.conn;
    recipe_protocol protocol = d->protocol;
    recipe_error e = d->error;

    if (!d->failed && submit(c, d, &e)) {
        add_warnings(c, &d->demand);
        if (d->q.stream)
            conn_begin_stream(c, "text/event-stream");
        return;
    }
    call_abandon(&d->base); /* frees d */
    reply_error(c, protocol, &e);
}

/* Whatever has not been done yet of reading; on a worker, or the short part of it on the loop. */
static void read_body(dialog *d)
{
    d->is_read = true;
    d->failed =
        !read_prompt(d->base.loop->srv, d->protocol, &d->body, &d->q, &d->ids, NULL, &d->error);
    str_fini(&d->body);
}

static dialog *of_work(work *w)
{
    return (dialog *)(void *)((char *)w - offsetof(dialog, work));
}

static void prepare(work *w)
{
    dialog *d = of_work(w);

    if (!d->is_read)
        read_body(d);
    if (!d->failed)
        d->failed = !demand_make(&d->demand, d->base.loop->srv->grammar, &d->q,
                                 d->ids.n ? d->ids.ids[d->ids.n - 1] : -1,
                                 d->base.loop->srv->opt.policy, &d->error);
}

static void prepared(work *w)
{
    dialog *d = of_work(w);

    if (call_release(&d->base))
        proceed(d);
}

static void handle_dialog(conn *c, recipe_protocol protocol)
{
    const server *s = c->loop->srv;
    dialog *d = mem_try_calloc(1, sizeof *d);
    recipe_error e = {0};

    if (!d) {
        recipe_fail(&e, 503, "no memory for a request");
        reply_error(c, protocol, &e);
        return;
    }
    d->protocol = protocol;
    d->body = c->req.body;
    c->req.body = (str){0};
    call_open(&d->base, &dialog_ops, c, false);
    if (d->body.len <= OFFLOAD_INLINE_BYTES)
        read_body(d);
    if (d->is_read && (d->failed || d->q.constraint.kind == RECIPE_CONSTRAINT_NONE)) {
        proceed(d);
        return;
    }
    call_hold(&d->base);
    if (work_start(s->workers, c->loop, &d->work, prepare, prepared))
        return;
    call_release(&d->base);
    d->failed = true;
    recipe_fail(&d->error, 503, "too many requests are being prepared");
    proceed(d);
}

void handle_chat(conn *c)
{
    handle_dialog(c, RECIPE_PROTOCOL_CHAT);
}

void handle_responses(conn *c)
{
    handle_dialog(c, RECIPE_PROTOCOL_RESPONSES);
}

void handle_messages(conn *c)
{
    handle_dialog(c, RECIPE_PROTOCOL_MESSAGES);
}

/* ---- prompts alone ---- */

/* JSON, or why not. */
typedef struct shown {
    recipe_protocol protocol;
    str json;
    recipe_error error; /* status 0: json is the answer */
} shown;

static void write_prompt(json_write *w, const tok_ids *ids, const str *text)
{
    jw_object(w);
    jw_key(w, "prompt");
    jw_string(w, str_text(text), text->len);
    jw_key(w, "count");
    jw_int(w, (int64_t)ids->n);
    jw_key(w, "tokens");
    jw_array(w);
    for (size_t i = 0; i < ids->n; i++)
        jw_int(w, ids->ids[i]);
    jw_end(w);
    jw_end(w);
}

static void *make_shown(const server *s, recipe_protocol protocol, const str *body)
{
    shown *a = mem_try_calloc(1, sizeof *a);
    recipe_request q = {0};
    tok_ids ids = {0};
    str text = {0};

    if (!a)
        return NULL;
    a->protocol = protocol;
    if (read_prompt(s, protocol, body, &q, &ids, &text, &a->error)) {
        json_write w = {.out = &a->json};

        if (protocol == RECIPE_PROTOCOL_MESSAGES) {
            jw_object(&w);
            jw_key(&w, "input_tokens");
            jw_int(&w, (int64_t)ids.n);
            jw_end(&w);
        } else {
            write_prompt(&w, &ids, &text);
        }
    }
    recipe_request_fini(&q);
    tok_ids_fini(&ids);
    str_fini(&text);
    return a;
}

static void finish_shown(conn *c, void *result)
{
    shown *a = result;

    if (c && a->error.status)
        reply_error(c, a->protocol, &a->error);
    else if (c)
        conn_reply_json(c, 200, &a->json);
    str_fini(&a->json);
    mem_free(a);
}

static void *make_count(const server *s, const str *body)
{
    return make_shown(s, RECIPE_PROTOCOL_MESSAGES, body);
}

static void *make_prompt_text(const server *s, const str *body)
{
    return make_shown(s, RECIPE_PROTOCOL_CHAT, body);
}

void handle_count_tokens(conn *c)
{
    static const offload_ops ops = {.make = make_count, .finish = finish_shown};

    offload(c, &ops);
}

void handle_apply_template(conn *c)
{
    static const offload_ops ops = {.make = make_prompt_text, .finish = finish_shown};

    offload(c, &ops);
}
