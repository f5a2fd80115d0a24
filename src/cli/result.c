/* One function per object of the output. See result.h for the shapes. */
#include "cli/result.h"

#include <math.h>
#include <stdio.h>

#include "base/json_write.h"
#include "base/mem.h"
#include "base/utf8.h"

static di_code no_memory(di_status *st)
{
    return di_fail(st, DI_E_NOMEM, "no memory for the answer of a request");
}

static bool grow(void *array, size_t cap, size_t size)
{
    void **at = array, *more = mem_try_realloc(*at, cap, size);

    if (more)
        *at = more;
    return more != NULL;
}

di_code logprob_push(logprob_list *l, const gen_token *t, di_status *st)
{
    size_t top = (size_t)l->n_top;

    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 256;

        if (!grow(&l->id, cap, sizeof *l->id) || !grow(&l->rank, cap, sizeof *l->rank) ||
            !grow(&l->logprob, cap, sizeof *l->logprob) ||
            (top && (!grow(&l->top_id, cap * top, sizeof *l->top_id) ||
                     !grow(&l->top_logprob, cap * top, sizeof *l->top_logprob))))
            return no_memory(st);
        l->cap = cap;
    }
    l->id[l->n] = t->id;
    l->rank[l->n] = t->rank;
    l->logprob[l->n] = t->logprob;
    for (size_t i = 0; i < top; i++) {
        l->top_id[l->n * top + i] = t->top[i].token;
        l->top_logprob[l->n * top + i] = t->top[i].logprob;
    }
    l->n++;
    return DI_OK;
}

void logprob_fini(logprob_list *l)
{
    mem_free(l->id);
    mem_free(l->rank);
    mem_free(l->logprob);
    mem_free(l->top_id);
    mem_free(l->top_logprob);
    *l = (logprob_list){0};
}

/* Nine digits are enough to get the same float back; -inf has no JSON number. */
static void number(json_write *w, float v)
{
    char text[32];
    int n;

    if (!isfinite(v)) {
        jw_null(w);
        return;
    }
    n = snprintf(text, sizeof text, "%.9g", (double)v);
    jw_raw(w, text, (size_t)n);
}

/* The token as text; bytes that are not UTF-8 as \xNN (spec recipe.md 4). */
static void token_text(json_write *w, const tokenizer *tok, int32_t id)
{
    size_t n;
    const char *bytes = tokenizer_bytes(tok, id, &n);
    char hex[8];
    str text = {0};

    if (!bytes || utf8_valid(bytes, n)) {
        jw_string(w, bytes ? bytes : "", n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        int len = snprintf(hex, sizeof hex, "\\x%02x", (unsigned)(unsigned char)bytes[i]);

        str_append(&text, hex, (size_t)len);
    }
    if (!str_ok(&text))
        w->out->failed = true;
    jw_string(w, str_text(&text), text.len);
    str_fini(&text);
}

static void token_bytes(json_write *w, const tokenizer *tok, int32_t id)
{
    size_t n;
    const char *bytes = tokenizer_bytes(tok, id, &n);

    jw_array(w);
    for (size_t i = 0; i < n; i++)
        jw_int(w, (unsigned char)bytes[i]);
    jw_end(w);
}

static void ids(json_write *w, const char *key, const tok_ids *t)
{
    jw_key(w, key);
    jw_array(w);
    for (size_t i = 0; i < t->n; i++)
        jw_int(w, t->ids[i]);
    jw_end(w);
}

static const char *finish_name(gen_finish why)
{
    switch (why) {
    case GEN_STOP:
        return "stop";
    case GEN_LENGTH:
        return "length";
    case GEN_CANCELLED:
        return "cancelled";
    case GEN_FAILED:
        break;
    }
    return "error";
}

static void usage(json_write *w, const result *r)
{
    jw_key(w, "usage");
    jw_object(w);
    jw_key(w, "prompt_tokens");
    jw_int(w, (int64_t)r->req->ids.n);
    jw_key(w, "completion_tokens");
    jw_int(w, (int64_t)r->ids->n);
    jw_key(w, "total_tokens");
    jw_int(w, (int64_t)(r->req->ids.n + r->ids->n));
    if (r->ans->n_reasoning) {
        jw_key(w, "completion_tokens_details");
        jw_object(w);
        jw_key(w, "reasoning_tokens");
        jw_int(w, r->ans->n_reasoning);
        jw_end(w);
    }
    jw_end(w);
}

/* Text of a completion; with echo the prompt stands in front. */
static void text(json_write *w, const result *r)
{
    str all = {0};

    if (!r->req->echo) {
        jw_string(w, str_text(&r->ans->content), r->ans->content.len);
        return;
    }
    tokenizer_decode(r->tok, r->req->ids.ids, r->req->ids.n, true, &all);
    str_append(&all, str_text(&r->ans->content), r->ans->content.len);
    if (!str_ok(&all))
        w->out->failed = true;
    jw_string(w, str_text(&all), all.len);
    str_fini(&all);
}

/* ---- plain lines ---- */

static void entry(json_write *w, const result *r, int32_t id, float logprob, int32_t rank)
{
    jw_key(w, "id");
    jw_int(w, id);
    jw_key(w, "token");
    token_text(w, r->tok, id);
    jw_key(w, "logprob");
    number(w, logprob);
    if (rank >= 0) {
        jw_key(w, "rank");
        jw_int(w, rank);
    }
}

static void logprobs(json_write *w, const char *key, const result *r, const logprob_list *l,
                     bool null_first)
{
    jw_key(w, key);
    jw_array(w);
    if (null_first)
        jw_null(w); /* nothing predicts the first token */
    for (size_t i = 0; i < l->n; i++) {
        jw_object(w);
        entry(w, r, l->id[i], l->logprob[i], l->rank[i]);
        jw_key(w, "top");
        jw_array(w);
        for (size_t k = i * (size_t)l->n_top; k < (i + 1) * (size_t)l->n_top; k++) {
            jw_object(w);
            entry(w, r, l->top_id[k], l->top_logprob[k], -1);
            jw_end(w);
        }
        jw_end(w);
        jw_end(w);
    }
    jw_end(w);
}

static void custom_id(json_write *w, const request *req)
{
    if (!req->has_custom_id)
        return;
    jw_key(w, "custom_id");
    jw_string(w, str_text(&req->custom_id), req->custom_id.len);
}

static void plain_line(json_write *w, const result *r)
{
    jw_object(w);
    jw_key(w, "index");
    jw_int(w, r->index);
    custom_id(w, r->req);
    jw_key(w, "text");
    text(w, r);
    if (r->req->starts_in_reasoning) {
        jw_key(w, "reasoning");
        jw_string(w, str_text(&r->ans->reasoning), r->ans->reasoning.len);
    }
    ids(w, "token_ids", r->ids);
    jw_key(w, "finish_reason");
    jw_cstr(w, finish_name(r->why));
    usage(w, r);
    jw_key(w, "seed");
    jw_uint(w, r->req->sampling.seed);
    if (r->logprobs)
        logprobs(w, "logprobs", r, r->logprobs, false);
    if (r->prompt_logprobs)
        logprobs(w, "prompt_logprobs", r, r->prompt_logprobs, true);
    jw_end(w);
}

/* ---- batch lines ---- */

static void chat_entry(json_write *w, const result *r, int32_t id, float logprob)
{
    jw_key(w, "token");
    token_text(w, r->tok, id);
    jw_key(w, "logprob");
    number(w, logprob);
    jw_key(w, "bytes");
    token_bytes(w, r->tok, id);
}

static void chat_entries(json_write *w, const result *r, size_t begin, size_t end)
{
    const logprob_list *l = r->logprobs;

    jw_array(w);
    for (size_t i = begin; i < end; i++) {
        jw_object(w);
        chat_entry(w, r, l->id[i], l->logprob[i]);
        jw_key(w, "top_logprobs");
        jw_array(w);
        for (size_t k = i * (size_t)l->n_top; k < (i + 1) * (size_t)l->n_top; k++) {
            jw_object(w);
            chat_entry(w, r, l->top_id[k], l->top_logprob[k]);
            jw_end(w);
        }
        jw_end(w);
        jw_end(w);
    }
    jw_end(w);
}

/* The reasoning's tokens first, then the content's; the marker and the stop token have no entry. */
static void chat_logprobs(json_write *w, const result *r)
{
    size_t n = r->logprobs->n, reasoning = (size_t)r->ans->n_reasoning;
    size_t content = reasoning;

    if (r->req->starts_in_reasoning && content < n)
        content++;
    if (r->why == GEN_STOP && n > content && tokenizer_is_special(r->tok, r->logprobs->id[n - 1]))
        n--;
    jw_object(w);
    jw_key(w, "content");
    chat_entries(w, r, content, n);
    if (r->req->starts_in_reasoning) {
        jw_key(w, "reasoning_content");
        chat_entries(w, r, 0, reasoning);
    }
    jw_end(w);
}

static void top_map(json_write *w, const result *r, const logprob_list *l, size_t i)
{
    jw_object(w);
    for (size_t k = i * (size_t)l->n_top; k < (i + 1) * (size_t)l->n_top; k++) {
        size_t n;
        const char *bytes = tokenizer_bytes(r->tok, l->top_id[k], &n);
        str key = {0};

        /* A key is text: ill-formed bytes become U+FFFD here. */
        tokenizer_decode(r->tok, &l->top_id[k], 1, false, &key);
        jw_key(w, bytes ? str_text(&key) : "");
        number(w, l->top_logprob[k]);
        str_fini(&key);
    }
    jw_end(w);
}

/* The arrays of /v1/completions: the prompt's tokens too when it is echoed. */
static void text_logprobs(json_write *w, const result *r)
{
    const logprob_list *lists[] = {r->prompt_logprobs, r->logprobs};
    bool echo = r->prompt_logprobs != NULL;

    jw_object(w);
    for (int column = 0; column < 3; column++) {
        static const char *const keys[] = {"tokens", "token_logprobs", "top_logprobs"};

        jw_key(w, keys[column]);
        jw_array(w);
        if (echo && column == 0)
            token_text(w, r->tok, r->req->ids.ids[0]);
        else if (echo)
            jw_null(w);
        for (size_t k = echo ? 0 : 1; k < ARRAY_LEN(lists); k++)
            for (size_t i = 0; i < lists[k]->n; i++) {
                if (column == 0)
                    token_text(w, r->tok, lists[k]->id[i]);
                else if (column == 1)
                    number(w, lists[k]->logprob[i]);
                else
                    top_map(w, r, lists[k], i);
            }
        jw_end(w);
    }
    jw_end(w);
}

static void message(json_write *w, const result *r)
{
    jw_key(w, "message");
    jw_object(w);
    jw_key(w, "role");
    jw_cstr(w, "assistant");
    jw_key(w, "content");
    jw_string(w, str_text(&r->ans->content), r->ans->content.len);
    if (r->req->starts_in_reasoning) {
        jw_key(w, "reasoning_content");
        jw_string(w, str_text(&r->ans->reasoning), r->ans->reasoning.len);
    }
    jw_end(w);
}

static void choice(json_write *w, const result *r)
{
    bool chat = r->req->kind == REQUEST_CHAT;

    jw_object(w);
    jw_key(w, "index");
    jw_int(w, 0);
    if (chat) {
        message(w, r);
    } else {
        jw_key(w, "text");
        text(w, r);
    }
    jw_key(w, "logprobs");
    if (!r->logprobs)
        jw_null(w);
    else if (chat)
        chat_logprobs(w, r);
    else
        text_logprobs(w, r);
    jw_key(w, "finish_reason");
    jw_cstr(w, finish_name(r->why));
    ids(w, "token_ids", r->ids);
    jw_end(w);
}

static void id_field(json_write *w, const char *key, const char *prefix, int64_t index)
{
    char id[48];

    snprintf(id, sizeof id, "%s%lld", prefix, (long long)index);
    jw_key(w, key);
    jw_cstr(w, id);
}

static void batch_head(json_write *w, const request *req, int64_t index, int status)
{
    jw_object(w);
    id_field(w, "id", "batch_req_", index);
    custom_id(w, req);
    jw_key(w, "response");
    jw_object(w);
    jw_key(w, "status_code");
    jw_int(w, status);
    id_field(w, "request_id", "req_", index);
    jw_key(w, "body");
    jw_object(w);
}

static void batch_line(json_write *w, const result *r)
{
    bool chat = r->req->kind == REQUEST_CHAT;

    batch_head(w, r->req, r->index, 200);
    id_field(w, "id", chat ? "chatcmpl-" : "cmpl-", r->index);
    jw_key(w, "object");
    jw_cstr(w, chat ? "chat.completion" : "text_completion");
    jw_key(w, "created");
    jw_int(w, r->created);
    jw_key(w, "model");
    jw_cstr(w, r->req->model[0] ? r->req->model : r->model);
    jw_key(w, "choices");
    jw_array(w);
    choice(w, r);
    jw_end(w);
    usage(w, r);
    jw_key(w, "seed");
    jw_uint(w, r->req->sampling.seed);
    jw_end(w); /* body */
    jw_end(w); /* response */
    jw_key(w, "error");
    jw_null(w);
    jw_end(w);
}

di_code result_write(const result *r, str *out, di_status *st)
{
    json_write w = {.out = out};

    if (r->req->batch)
        batch_line(&w, r);
    else
        plain_line(&w, r);
    str_putc(out, '\n');
    return str_ok(out) ? DI_OK : no_memory(st);
}

/* A fault of the caller's, or one that the server would answer with 5xx. */
static int http_status(const di_status *why)
{
    return why->code == DI_E_FORMAT || why->code == DI_E_UNSUPPORTED ? 400
                                                                     : di_code_http(why->code);
}

static void error_object(json_write *w, const di_status *why)
{
    const char *type = http_status(why) < 500 ? "invalid_request_error" : "server_error";

    jw_key(w, "error");
    jw_object(w);
    jw_key(w, "message");
    jw_cstr(w, why->message);
    jw_key(w, "type");
    jw_cstr(w, type);
    jw_key(w, "param");
    jw_null(w);
    jw_key(w, "code");
    jw_cstr(w, type);
    jw_end(w);
}

di_code result_write_error(const request *req, int64_t index, const di_status *why, str *out,
                           di_status *st)
{
    json_write w = {.out = out};

    if (req->batch) {
        batch_head(&w, req, index, http_status(why));
        error_object(&w, why);
        jw_end(&w); /* body */
        jw_end(&w); /* response */
        error_object(&w, why);
    } else {
        jw_object(&w);
        jw_key(&w, "index");
        jw_int(&w, index);
        custom_id(&w, req);
        error_object(&w, why);
    }
    jw_end(&w);
    str_putc(out, '\n');
    return str_ok(out) ? DI_OK : no_memory(st);
}
