/* POST /v1/completions: texts continued as they stand (OpenAI's legacy interface with vLLM's
 * extensions; docs/api.md lists the fields). One call has a request of the back end per prompt,
 * each with n choices; the answer's index is prompt * n + choice. */
#include "server/completions.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "server/offload.h"

/* Log-probabilities as the insides of the four lists that the format has. */
typedef struct lists {
    str tokens, values, tops, offsets;
} lists;

typedef struct answer {
    str text; /* not streamed */
    lists lp;
    str ids;            /* with return_ids: the inside of a list */
    const char *finish; /* NULL = goes on */
    size_t n_chars;     /* characters up to here, for offsets */
} answer;

typedef struct completion {
    call base;
    char id[80], model[128];
    int64_t created;
    int n; /* choices of a prompt */
    int n_answers, n_top;
    bool logprobs, include_usage, return_ids, skip_special;
    bool failed; /* the error is out */
    uint64_t seed;
    str start; /* of every streamed chunk, up to its choices */
    answer answer[];
} completion;

/* ---- pieces of JSON ---- */

static void comma(str *s)
{
    if (s->len)
        str_puts(s, ", ");
}

/* A token as text; bytes that are no characters as OpenAI writes them. */
static void token_text(const tokenizer *tok, int32_t id, str *out)
{
    json_write w = {.out = out};
    size_t n;
    const char *bytes = tokenizer_bytes(tok, id, &n);
    str escaped = {0};

    if (bytes && !utf8_valid(bytes, n)) {
        str_puts(&escaped, "bytes:");
        for (size_t i = 0; i < n; i++)
            str_printf(&escaped, "\\x%02x", (unsigned char)bytes[i]);
        jw_string(&w, str_text(&escaped), escaped.len);
        str_fini(&escaped);
        return;
    }
    jw_string(&w, bytes ? bytes : "", n);
}

static void number(str *out, float v)
{
    json_write w = {.out = out};

    jw_number(&w, (double)v); /* null when not finite */
}

/* What a token adds to the text. */
static size_t n_chars(const completion *m, int32_t id)
{
    const tokenizer *tok = m->base.loop->srv->be->tok;
    size_t n, chars = 0;
    const char *bytes = tokenizer_bytes(tok, id, &n);

    if (m->skip_special && tokenizer_is_special(tok, id))
        return 0;
    for (size_t i = 0; bytes && i < n; i++)
        chars += ((unsigned char)bytes[i] & 0xC0) != 0x80;
    return chars;
}

static void add_values(completion *m, answer *a, const di_event *ev)
{
    const tokenizer *tok = m->base.loop->srv->be->tok;

    for (int i = 0; i < ev->n_tokens; i++) {
        const di_token_logprob *top = ev->top ? ev->top + (size_t)i * (size_t)ev->n_top : NULL;

        comma(&a->lp.tokens);
        token_text(tok, ev->token[i], &a->lp.tokens);
        comma(&a->lp.values);
        number(&a->lp.values, ev->logprob[i]);
        comma(&a->lp.offsets);
        str_printf(&a->lp.offsets, "%zu", a->n_chars);
        a->n_chars += n_chars(m, ev->token[i]);
        comma(&a->lp.tops);
        if (!top || isnan(ev->logprob[i])) {
            str_puts(&a->lp.tops, "null");
            continue;
        }
        str_putc(&a->lp.tops, '{');
        for (int k = 0; k < ev->n_top; k++) {
            if (k)
                str_puts(&a->lp.tops, ", ");
            token_text(tok, top[k].token, &a->lp.tops);
            str_puts(&a->lp.tops, ": ");
            number(&a->lp.tops, top[k].logprob);
        }
        str_putc(&a->lp.tops, '}');
    }
}

static void list(json_write *w, const char *key, str *inside)
{
    str all = {0};

    str_putc(&all, '[');
    str_append(&all, inside->data, inside->len);
    str_putc(&all, ']');
    jw_key(w, key);
    jw_raw(w, str_text(&all), all.len);
    str_fini(&all);
    str_clear(inside);
}

static void write_choice(json_write *w, completion *m, int idx, const char *text, size_t n,
                         const char *finish)
{
    answer *a = &m->answer[idx];

    jw_object(w);
    jw_key(w, "index");
    jw_int(w, idx);
    jw_key(w, "text");
    jw_string(w, text, n);
    if (m->return_ids)
        list(w, "token_ids", &a->ids);
    jw_key(w, "logprobs");
    if (m->logprobs && a->lp.tokens.len) {
        jw_object(w);
        list(w, "tokens", &a->lp.tokens);
        list(w, "token_logprobs", &a->lp.values);
        list(w, "top_logprobs", &a->lp.tops);
        list(w, "text_offset", &a->lp.offsets);
        jw_end(w);
    } else {
        jw_null(w);
    }
    jw_key(w, "finish_reason");
    if (finish)
        jw_cstr(w, finish);
    else
        jw_null(w);
    jw_end(w);
}

static void write_start(json_write *w, const completion *m)
{
    jw_object(w);
    jw_key(w, "id");
    jw_cstr(w, m->id);
    jw_key(w, "object");
    jw_cstr(w, "text_completion");
    jw_key(w, "created");
    jw_int(w, m->created);
    jw_key(w, "model");
    jw_cstr(w, m->model);
    jw_key(w, "system_fingerprint");
    jw_cstr(w, m->base.loop->srv->fingerprint);
    jw_key(w, "choices");
    jw_array(w);
}

static void write_usage(json_write *w, const completion *m)
{
    const call *k = &m->base;

    jw_key(w, "usage");
    jw_object(w);
    jw_key(w, "prompt_tokens");
    jw_int(w, k->n_prompt);
    jw_key(w, "completion_tokens");
    jw_int(w, k->n_out);
    jw_key(w, "total_tokens");
    jw_int(w, k->n_prompt + k->n_out);
    jw_key(w, "prompt_tokens_details");
    jw_object(w);
    jw_key(w, "cached_tokens");
    jw_int(w, k->n_cached);
    jw_end(w);
    jw_end(w);
    jw_key(w, "seed");
    jw_uint(w, m->seed);
}

/* ---- streamed ---- */

/* Millions of chunks: what is the same in all of them is written once. */
static void stream_start(completion *m, str *out)
{
    json_write w = {.out = &m->start};

    if (m->start.len == 0) {
        str_puts(&m->start, "data: ");
        write_start(&w, m);
    }
    str_append(out, m->start.data, m->start.len);
}

static void stream_choice(completion *m, int idx, const char *text, size_t n, const char *finish)
{
    str *out = chunk_begin(m->base.loop);
    json_write w = {.out = out};

    stream_start(m, out);
    write_choice(&w, m, idx, text, n, finish);
    str_puts(out, m->include_usage ? "], \"usage\": null}\n\n" : "]}\n\n");
}

static void stream_error(completion *m, const error_body *e)
{
    str *out = chunk_begin(m->base.loop);

    str_puts(out, "data: ");
    error_json(out, e, true, NULL);
    str_puts(out, "\n\n");
    m->failed = true;
}

static void stream_end(completion *m)
{
    str *out = chunk_begin(m->base.loop);
    json_write w = {.out = out};

    if (m->include_usage && !m->failed) {
        str_puts(out, "data: ");
        write_start(&w, m);
        jw_end(&w);
        write_usage(&w, m);
        jw_end(&w);
        str_puts(out, "\n\n");
    }
    str_puts(out, "data: [DONE]\n\n");
    conn_chunk(m->base.conn);
    if (m->base.conn) /* a client that had gone is noticed by the write */
        conn_end_stream(m->base.conn);
}

/* ---- whole ---- */

static void reply_whole(completion *m)
{
    str out = {0};
    json_write w = {.out = &out};

    write_start(&w, m);
    for (int i = 0; i < m->n_answers; i++)
        write_choice(&w, m, i, str_text(&m->answer[i].text), m->answer[i].text.len,
                     m->answer[i].finish);
    jw_end(&w);
    write_usage(&w, m);
    jw_end(&w);
    conn_reply_json(m->base.conn, 200, &out);
    str_fini(&out);
}

/* ---- events ---- */

static void on_tokens(completion *m, int idx, const di_event *ev)
{
    answer *a = &m->answer[idx];

    if (ev->logprob)
        add_values(m, a, ev);
    for (int i = 0; m->return_ids && i < ev->n_tokens; i++) {
        comma(&a->ids);
        str_printf(&a->ids, "%d", ev->token[i]);
    }
    if (!m->base.stream)
        str_append(&a->text, ev->text, ev->n_text);
    else if (ev->n_text || a->lp.tokens.len || a->ids.len)
        stream_choice(m, idx, ev->text, ev->n_text, NULL);
}

static void on_finish(completion *m, int idx, const di_event *ev)
{
    answer *a = &m->answer[idx];

    if (ev->finish == DI_FINISH_STOP || ev->finish == DI_FINISH_LENGTH) {
        a->finish = ev->finish == DI_FINISH_STOP ? "stop" : "length";
        m->base.finish = a->finish;
        if (m->base.stream && !m->failed)
            stream_choice(m, idx, "", 0, a->finish);
    } else if (m->base.code == DI_OK) {
        m->base.code = DI_E_CANCELLED;
        snprintf(m->base.message, sizeof m->base.message, "the request was cancelled");
    }
}

/* Of a prompt that is done. */
static void add_usage(call *k, const di_usage *u)
{
    k->n_prompt += u->prompt_tokens;
    k->n_cached += u->cached_tokens;
    k->n_out += u->output_tokens;
}

static void on_event(call *k, int index, const di_event *ev)
{
    completion *m = (completion *)(void *)k;
    int idx = index * m->n + ev->choice;

    if (ev->type == DI_EVENT_PROMPT)
        for (int i = 0; i < m->n; i++)
            add_values(m, &m->answer[index * m->n + i], ev);
    else if (ev->type == DI_EVENT_TOKENS)
        on_tokens(m, idx, ev);
    else if (ev->type == DI_EVENT_FINISH)
        on_finish(m, idx, ev);
    else
        add_usage(k, &ev->usage);
    if (ev->seed)
        m->seed = ev->seed;
}

static void on_turn(call *k)
{
    conn_chunk(k->conn);
}

static void on_end(call *k)
{
    completion *m = (completion *)(void *)k;
    error_body e;

    if (k->code != DI_OK) {
        k->finish = "error";
        e = error_of(k->loop->srv, k->code, k->message);
        if (!k->stream) {
            conn_error(k->conn, &e);
            return;
        }
        stream_error(m, &e);
    }
    if (k->stream)
        stream_end(m);
    else
        reply_whole(m);
}

static void on_free(call *k)
{
    completion *m = (completion *)(void *)k;

    str_fini(&m->start);
    for (int i = 0; i < m->n_answers; i++) {
        answer *a = &m->answer[i];

        str_fini(&a->text);
        str_fini(&a->ids);
        str_fini(&a->lp.tokens);
        str_fini(&a->lp.values);
        str_fini(&a->lp.tops);
        str_fini(&a->lp.offsets);
    }
    mem_free(m);
}

static const call_ops completion_ops = {
    .event = on_event, .turn = on_turn, .end = on_end, .free = on_free};

/* ---- the request ---- */

/* The answer begins with its prompt. */
static void echo_prompts(completion *m, const completion_body *b)
{
    const tokenizer *tok = m->base.loop->srv->be->tok;

    for (int i = 0; i < m->n_answers; i++) {
        const completion_prompt *p = &b->prompt[i / m->n];

        if (p->text)
            str_append(&m->answer[i].text, p->text, p->n_text);
        else
            tokenizer_decode(tok, p->ids.ids, p->ids.n, b->p.skip_special, &m->answer[i].text);
    }
}

static completion *new_completion(conn *c, const completion_body *b, di_status *st)
{
    size_t n = (size_t)b->n_prompts * (size_t)b->p.n;
    completion *m = mem_try_calloc(1, sizeof *m + n * sizeof *m->answer);

    if (!m) {
        di_fail(st, DI_E_NOMEM, "no memory for a request");
        return NULL;
    }
    snprintf(m->id, sizeof m->id, "cmpl-%s", c->id);
    snprintf(m->model, sizeof m->model, "%s", b->model);
    m->created = time(NULL);
    m->n = b->p.n;
    m->n_answers = (int)n;
    m->logprobs = b->logprobs >= 0;
    m->include_usage = b->include_usage;
    m->return_ids = b->return_ids;
    m->skip_special = b->p.skip_special;
    return m;
}

static di_code submit_all(completion *m, const completion_body *b, di_status *st)
{
    di_code rc = DI_OK;

    for (int i = 0; i < b->n_prompts && rc == DI_OK; i++) {
        di_request_params p = b->p;

        p.ids = b->prompt[i].ids.ids;
        p.n_ids = b->prompt[i].ids.n;
        rc = call_submit(&m->base, i, &p, st);
    }
    return rc;
}

/* A body that was read, or why not. */
typedef struct reading {
    completion_body body;
    di_status st;
} reading;

static void *make_reading(const server *s, const str *body)
{
    reading *r = mem_try_calloc(1, sizeof *r);

    if (r)
        completion_read(&r->body, s, str_text(body), body->len, &r->st);
    return r;
}

static void run_completion(conn *c, const completion_body *b)
{
    di_status st = {0};
    completion *m = new_completion(c, b, &st);

    if (!m) {
        conn_fail(c, &st);
        return;
    }
    call_open(&m->base, &completion_ops, c, b->stream);
    if (b->echo)
        echo_prompts(m, b);
    if (submit_all(m, b, &st) != DI_OK) {
        call_abandon(&m->base);
        conn_fail(c, &st);
    } else if (b->stream) {
        conn_begin_stream(c, "text/event-stream");
    }
}

static void finish_reading(conn *c, void *result)
{
    reading *r = result;

    if (c && r->body.too_long)
        conn_error(c, &(error_body){.status = 400,
                                    .message = r->st.message,
                                    .param = "prompt",
                                    .code = "context_length_exceeded"});
    else if (c && r->st.code != DI_OK)
        conn_fail(c, &r->st);
    else if (c && !server_knows_model(c->loop->srv, r->body.model, strlen(r->body.model)))
        conn_error(c, &(error_body){.status = 404,
                                    .message = "there is no such model here",
                                    .param = "model",
                                    .code = "model_not_found"});
    else if (c)
        run_completion(c, &r->body);
    completion_body_fini(&r->body);
    mem_free(r);
}

void handle_completions(conn *c)
{
    static const offload_ops ops = {.make = make_reading, .finish = finish_reading};

    offload(c, &ops);
}
