/* The part of an answer that does not depend on its protocol. See stream.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "recipe/stream_internal.h"

/* ---- JSON members ---- */

void put_text(json_write *w, const char *key, const char *text)
{
    jw_key(w, key);
    if (text)
        jw_cstr(w, text);
    else
        jw_null(w);
}

void put_str(json_write *w, const char *key, const str *text)
{
    jw_key(w, key);
    jw_string(w, str_text(text), text->len);
}

void put_int(json_write *w, const char *key, int64_t v)
{
    jw_key(w, key);
    jw_int(w, v);
}

void put_null(json_write *w, const char *key)
{
    jw_key(w, key);
    jw_null(w);
}

void put_json(json_write *w, const char *key, const char *json)
{
    jw_key(w, key);
    jw_raw(w, json, strlen(json));
}

void put_list(json_write *w, const char *key, const str *list)
{
    jw_key(w, key);
    jw_raw(w, "[", 1);
    str_append(w->out, str_text(list), list->len);
    str_putc(w->out, ']');
}

/* ---- logprobs ---- */

/* The shortest decimal that is this float; null for an infinite one. */
static void put_float(json_write *w, const char *key, float v)
{
    char text[40];
    int digits = 1;

    jw_key(w, key);
    if (!isfinite(v)) {
        jw_null(w);
        return;
    }
    do
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
    while (strtof(text, NULL) != v && ++digits <= 9);
    jw_number(w, strtod(text, NULL));
}

/* token: its text, or \xNN for every byte when it is not UTF-8 by itself; bytes: as they are. */
static void put_token(recipe_stream *s, json_write *w, int32_t id, float logprob)
{
    size_t n = 0;
    const char *bytes = s->o.tok ? tokenizer_bytes(s->o.tok, id, &n) : NULL;
    str text = {0};

    for (size_t i = 0; i < n; i++)
        str_printf(&text, "\\x%02x", (unsigned)(unsigned char)bytes[i]);
    jw_key(w, "token");
    if (utf8_valid(bytes ? bytes : "", n))
        jw_string(w, bytes ? bytes : "", n);
    else
        jw_string(w, str_text(&text), text.len);
    put_float(w, "logprob", logprob);
    jw_key(w, "bytes");
    jw_array(w);
    for (size_t i = 0; i < n; i++)
        jw_int(w, (unsigned char)bytes[i]);
    jw_end(w);
    str_fini(&text);
}

void stream_logprobs(recipe_stream *s, const recipe_event *e, str *list)
{
    for (size_t i = 0; i < e->n_logprob; i++) {
        const recipe_logprob *lp = &e->logprob[i];
        json_write w = {.out = list};

        if (list->len)
            str_puts(list, ", ");
        jw_object(&w);
        put_token(s, &w, lp->id, lp->logprob);
        jw_key(&w, "top_logprobs");
        jw_array(&w);
        for (int k = 0; k < lp->n_top; k++) {
            jw_object(&w);
            put_token(s, &w, lp->top[k].id, lp->top[k].logprob);
            jw_end(&w);
        }
        jw_end(&w);
        jw_end(&w);
    }
}

/* ---- events ---- */

json_write stream_begin(recipe_stream *s, const char *type)
{
    json_write w = {.out = &s->out};

    jw_object(&w);
    put_text(&w, "type", type);
    return w;
}

void stream_emit(recipe_stream *s, const char *event)
{
    if (!str_ok(&s->out))
        s->failed = true;
    else if (s->o.emit)
        s->o.emit(s->o.ctx, event, str_text(&s->out), s->out.len);
    str_clear(&s->out);
}

call_out *stream_call(choice *c, int call)
{
    return call >= 0 && call < c->n_calls ? &c->call[call] : NULL;
}

/* "call_", two digits of the number, "_", 20 letters or digits, 4 digits. */
static void make_id(const recipe_stream *s, const choice *c, int call, char id[36])
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    int n = snprintf(id, 36, "call_%02d_", call % 100);

    for (uint32_t i = 0; i < 6; i++) {
        philox_block b = {{i, (uint32_t)call, (uint32_t)c->idx, 0x63616c6c}};

        b = philox4x32(b, (uint32_t)s->o.seed, (uint32_t)(s->o.seed >> 32));
        for (int k = 0; k < 4; k++)
            id[n++] = i < 5 ? letters[b.v[k] % 62] : (char)('0' + b.v[k] % 10);
    }
    id[n] = 0;
}

static void begin_call(choice *c, const recipe_event *e)
{
    recipe_stream *s = c->s;
    call_out *more = mem_try_realloc(c->call, (size_t)c->n_calls + 1, sizeof *more), *call;
    const recipe_chat *chat = &s->q->chat;

    if (!more) {
        s->failed = true;
        return;
    }
    c->call = more;
    call = &c->call[c->n_calls];
    *call = (call_out){0};
    make_id(s, c, c->n_calls++, call->id);
    str_append(&call->name, e->text, e->n);
    for (size_t i = 0; i < chat->n_tools; i++)
        if (chat->tool[i].n_name == e->n && memcmp(chat->tool[i].name, e->text, e->n) == 0)
            call->tool = &chat->tool[i];
    call->may_wrap = unwrap_may(s, call);
}

static void end_call(choice *c, const recipe_event *e)
{
    const call_out *call = stream_call(c, e->call);

    if (call && c->s->o.replay && e->markup && str_ok(&e->markup->text))
        recipe_replay_put(c->s->o.replay, call->id, str_text(&call->name),
                          str_text(&call->arguments), call->arguments.len, e->markup);
}

/* What is kept of an event before its shape sees it. */
static void keep_event(choice *c, const recipe_event *e)
{
    recipe_stream *s = c->s;
    call_out *call;

    switch (e->kind) {
    case RECIPE_EVENT_REASONING:
        if (s->keep) {
            str_append(&c->reasoning, e->text, e->n);
            stream_logprobs(s, e, &c->reasoning_logprobs);
        }
        break;
    case RECIPE_EVENT_CONTENT:
        if (s->keep) {
            str_append(&c->content, e->text, e->n);
            stream_logprobs(s, e, &c->logprobs);
        }
        break;
    case RECIPE_EVENT_CALL:
        begin_call(c, e);
        break;
    case RECIPE_EVENT_ARGS:
        call = stream_call(c, e->call);
        if (call && (s->keep || s->o.replay || s->q->protocol == RECIPE_PROTOCOL_RESPONSES))
            str_append(&call->arguments, e->text, e->n);
        break;
    case RECIPE_EVENT_CALL_END:
        end_call(c, e);
        break;
    }
}

static void show_event(choice *c, const recipe_event *e)
{
    keep_event(c, e);
    if (!c->s->failed && e->kind != RECIPE_EVENT_CALL_END)
        c->s->shape->event(c->s, c, e);
}

/* Give out the arguments that are held, or more of them. */
static void unwrap(choice *c, call_out *call, int idx, const char *more, size_t n, bool ends)
{
    str text = {0};

    if (unwrap_take(call, more, n, ends, &text)) {
        const recipe_event e = {
            .kind = RECIPE_EVENT_ARGS, .call = idx, .text = text.data, .n = text.len};

        show_event(c, &e);
    }
    str_fini(&text);
}

static void on_event(void *ctx, const recipe_event *e)
{
    choice *c = ctx;
    call_out *call = stream_call(c, e->call);
    bool args = e->kind == RECIPE_EVENT_ARGS, ends = e->kind == RECIPE_EVENT_CALL_END;

    if ((args || ends) && call && call->may_wrap) {
        unwrap(c, call, e->call, e->text, e->n, ends);
        if (args)
            return;
    }
    show_event(c, e);
}

/* A call that was cut off: what was held is what there is. */
static void show_held(choice *c)
{
    call_out *call = stream_call(c, c->n_calls - 1);
    str text = {0};

    if (!call || !call->may_wrap || !call->held.len)
        return;
    text = call->held;
    call->held = (str){0};
    call->may_wrap = false;
    show_event(c, &(recipe_event){.kind = RECIPE_EVENT_ARGS,
                                  .call = c->n_calls - 1,
                                  .text = text.data,
                                  .n = text.len});
    str_fini(&text);
}

/* ---- life ---- */

static bool copy_options(recipe_stream *s, const recipe_stream_options *o)
{
    s->o = *o;
    s->id = mem_try_strdup(o->id);
    s->model = mem_try_strdup(o->model);
    s->fingerprint = o->fingerprint ? mem_try_strdup(o->fingerprint) : NULL;
    return s->id && s->model && (s->fingerprint || !o->fingerprint);
}

recipe_stream *recipe_stream_new(const recipe_request *q, const recipe_stream_options *o)
{
    recipe_stream *s = mem_try_calloc(1, sizeof *s);
    bool ok;

    if (!s)
        return NULL;
    s->q = q;
    s->keep = o->emit == NULL;
    s->shape = q->protocol == RECIPE_PROTOCOL_CHAT        ? &shape_chat
               : q->protocol == RECIPE_PROTOCOL_RESPONSES ? &shape_responses
                                                          : &shape_messages;
    s->n_choices = q->protocol == RECIPE_PROTOCOL_CHAT && q->sampling.n > 1 ? q->sampling.n : 1;
    s->choice = mem_try_calloc((size_t)s->n_choices, sizeof *s->choice);
    ok = s->choice && copy_options(s, o);
    for (int i = 0; ok && i < s->n_choices; i++) {
        s->choice[i] = (choice){.s = s, .idx = i};
        s->choice[i].parser =
            recipe_parser_new(&q->parsing, q->mode, o->tok, on_event, &s->choice[i]);
        ok = s->choice[i].parser != NULL;
    }
    if (ok)
        return s;
    recipe_stream_free(s);
    return NULL;
}

static void choice_fini(choice *c)
{
    recipe_parser_free(c->parser);
    for (int i = 0; i < c->n_calls; i++) {
        str_fini(&c->call[i].name);
        str_fini(&c->call[i].arguments);
        str_fini(&c->call[i].held);
    }
    mem_free(c->call);
    str_fini(&c->reasoning);
    str_fini(&c->content);
    str_fini(&c->reasoning_logprobs);
    str_fini(&c->logprobs);
}

void recipe_stream_free(recipe_stream *s)
{
    if (!s)
        return;
    for (int i = 0; s->choice && i < s->n_choices; i++)
        choice_fini(&s->choice[i]);
    mem_free(s->choice);
    mem_free(s->id);
    mem_free(s->model);
    mem_free(s->fingerprint);
    str_fini(&s->out);
    str_fini(&s->item_text);
    str_fini(&s->item_logprobs);
    str_fini(&s->output);
    mem_free(s);
}

void recipe_stream_ready(recipe_stream *s, int64_t n_prompt, int64_t n_cached)
{
    s->n_prompt = n_prompt;
    s->n_cached = n_cached;
    s->shape->ready(s);
}

bool recipe_stream_tokens(recipe_stream *s, int choice_idx, const int32_t *ids, size_t n,
                          const recipe_logprob *logprob)
{
    return recipe_parser_tokens(s->choice[choice_idx].parser, ids, n, logprob);
}

bool recipe_stream_text(recipe_stream *s, int choice_idx, const char *text, size_t n,
                        int64_t n_tokens)
{
    return recipe_parser_text(s->choice[choice_idx].parser, text, n, n_tokens);
}

/* Spec recipe.md 3.2: a stop string is a stop, whatever came before it; a choice whose engine gave
 * no reason is a plain stop, even with calls. */
static const char *reason_of(const choice *c)
{
    if (recipe_parser_stop(c->parser) >= 0)
        return "stop";
    switch (c->why) {
    case RECIPE_FINISH_LENGTH:
        return "length";
    case RECIPE_FINISH_FILTER:
        return "content_filter";
    case RECIPE_FINISH_STOP:
        return c->n_calls ? "tool_calls" : "stop";
    case RECIPE_FINISH_NONE:
        break;
    }
    return "stop";
}

void recipe_stream_finish(recipe_stream *s, int choice_idx, recipe_finish why, int64_t now)
{
    choice *c = &s->choice[choice_idx];

    if (c->finished)
        return;
    recipe_parser_finish(c->parser);
    show_held(c);
    c->finished = true;
    c->why = why;
    c->reason = reason_of(c);
    s->completed = now;
    s->n_finished++;
    if (!s->failed)
        s->shape->finish(s, c, s->n_finished == s->n_choices);
}

void recipe_stream_fail(recipe_stream *s, const recipe_error *e)
{
    s->shape->fail(s, e);
}

const char *recipe_stream_done(recipe_protocol protocol)
{
    return protocol == RECIPE_PROTOCOL_CHAT ? "[DONE]" : NULL;
}

void recipe_stream_whole(recipe_stream *s, str *out)
{
    s->shape->whole(s, out);
}

int64_t recipe_stream_n_tokens(const recipe_stream *s)
{
    int64_t n = 0;

    for (int i = 0; i < s->n_choices; i++)
        n += recipe_parser_n_tokens(s->choice[i].parser);
    return n;
}

int64_t recipe_stream_n_reasoning(const recipe_stream *s)
{
    int64_t n = 0;

    for (int i = 0; i < s->n_choices; i++)
        n += recipe_parser_n_reasoning(s->choice[i].parser);
    return n;
}

const char *recipe_stream_finish_reason(const recipe_stream *s, int choice_idx)
{
    return s->choice[choice_idx].reason;
}

bool recipe_stream_ok(const recipe_stream *s)
{
    bool ok = !s->failed && str_ok(&s->item_text) && str_ok(&s->output);

    for (int i = 0; ok && i < s->n_choices; i++)
        ok = recipe_parser_ok(s->choice[i].parser) && str_ok(&s->choice[i].content) &&
             str_ok(&s->choice[i].reasoning) && str_ok(&s->choice[i].logprobs);
    return ok;
}
