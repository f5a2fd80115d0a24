/* Endpoints that do not run the model: health, models, metrics, tokens. */
#include <string.h>

#include "base/mem.h"
#include "server/fields.h"
#include "server/offload.h"
#include "server/server_internal.h"

/* ---- health ---- */

static void reply_status(conn *c, int status, const char *word)
{
    str out = {0};
    json_write w = {.out = &out};

    jw_object(&w);
    jw_key(&w, "status");
    jw_cstr(&w, word);
    jw_end(&w);
    conn_reply_json(c, status, &out);
    str_fini(&out);
}

void handle_health(conn *c)
{
    reply_status(c, 200, "ok");
}

/* Ready: new work is welcome. Balancers stop sending when this is not 200. */
void handle_ready(conn *c)
{
    server *s = c->loop->srv;
    di_stats t;

    if (atomic_load_explicit(&s->draining, memory_order_relaxed)) {
        reply_status(c, 503, "draining");
        return;
    }
    t = s->be->ops->stats(s->be->self);
    if (s->be->max_queued && t.waiting >= s->be->max_queued)
        reply_status(c, 503, "queue full");
    else
        reply_status(c, 200, "ready");
}

void handle_version(conn *c)
{
    str out = {0};
    json_write w = {.out = &out};

    jw_object(&w);
    jw_key(&w, "version");
    jw_cstr(&w, DI_VERSION);
    jw_end(&w);
    conn_reply_json(c, 200, &out);
    str_fini(&out);
}

void handle_metrics(conn *c)
{
    str out = {0};

    metrics_write(c->loop->srv, &out);
    if (str_ok(&out))
        conn_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, out.data, out.len);
    else
        conn_error(c, &(error_body){.status = 503, .message = "no memory for the metrics"});
    str_fini(&out);
}

/* ---- models ---- */

/* OpenAI's shape, and Anthropic's for clients that say who they are. */
static void write_model(json_write *w, const server *s, const char *name, bool anthropic)
{
    time_t t = (time_t)s->created;
    char created[32];
    struct tm tm;

    gmtime_r(&t, &tm);
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &tm);
    jw_object(w);
    if (anthropic) {
        jw_key(w, "type");
        jw_cstr(w, "model");
    }
    jw_key(w, "id");
    jw_cstr(w, name);
    if (anthropic) {
        jw_key(w, "display_name");
        jw_cstr(w, name);
        jw_key(w, "created_at");
        jw_cstr(w, created);
    } else {
        jw_key(w, "object");
        jw_cstr(w, "model");
        jw_key(w, "created");
        jw_int(w, s->created);
        jw_key(w, "owned_by");
        jw_cstr(w, "deepinfer");
        jw_key(w, "max_model_len");
        jw_int(w, s->be->context);
    }
    jw_end(w);
}

static bool is_anthropic(const conn *c)
{
    size_t n;

    return http_field(&c->req, "anthropic-version", &n) != NULL;
}

void handle_models(conn *c)
{
    const server *s = c->loop->srv;
    bool anthropic = is_anthropic(c);
    str out = {0};
    json_write w = {.out = &out};

    jw_object(&w);
    if (!anthropic) {
        jw_key(&w, "object");
        jw_cstr(&w, "list");
    }
    jw_key(&w, "data");
    jw_array(&w);
    for (size_t i = 0; i < s->opt.n_names; i++)
        write_model(&w, s, s->opt.names[i], anthropic);
    jw_end(&w);
    if (anthropic) {
        jw_key(&w, "has_more");
        jw_bool(&w, false);
        jw_key(&w, "first_id");
        jw_cstr(&w, s->opt.names[0]);
        jw_key(&w, "last_id");
        jw_cstr(&w, s->opt.names[s->opt.n_names - 1]);
    }
    jw_end(&w);
    conn_reply_json(c, 200, &out);
    str_fini(&out);
}

size_t server_aliases(const server *s, recipe_alias alias[SERVER_MAX_ALIASES])
{
    /* What clients of the vendors ask for by themselves: a second, small model; current names. */
    static const char *const patterns[] = {"deepseek-*", "DeepSeek-*", "claude-*"};
    size_t n = 0;

    for (size_t i = 0; i < s->opt.n_names && n < SERVER_MAX_ALIASES; i++)
        alias[n++] = (recipe_alias){.name = s->opt.names[i], .family = RECIPE_V41};
    for (size_t i = 0; i < ARRAY_LEN(patterns) && n < SERVER_MAX_ALIASES; i++)
        if (!s->opt.recipe_strict)
            alias[n++] = (recipe_alias){.name = patterns[i], .family = RECIPE_V41};
    return n;
}

bool server_knows_model(const server *s, const char *name, size_t n)
{
    recipe_alias alias[SERVER_MAX_ALIASES];
    size_t n_alias = server_aliases(s, alias);

    for (size_t i = 0; i < n_alias; i++) {
        size_t len = strlen(alias[i].name);
        bool open = alias[i].name[len - 1] == '*';

        if (open ? n >= len - 1 && strncmp(alias[i].name, name, len - 1) == 0
                 : n == len && memcmp(alias[i].name, name, n) == 0)
            return true;
    }
    return false;
}

void handle_model(conn *c)
{
    const server *s = c->loop->srv;
    char *name = strstr(c->req.path, "/models/") + strlen("/models/"); /* where it was found */
    size_t n = http_unescape(name);
    str out = {0};
    json_write w = {.out = &out};

    if (n == SIZE_MAX || !server_knows_model(s, name, n)) {
        conn_error(c, &(error_body){.status = 404,
                                    .message = "there is no such model here",
                                    .param = "model",
                                    .code = "model_not_found"});
        return;
    }
    write_model(&w, s, name, is_anthropic(c));
    conn_reply_json(c, 200, &out);
    str_fini(&out);
}

/* ---- tokens ---- */

typedef struct tokenize_body {
    str prompt;
    bool has_prompt, special, with_text;
} tokenize_body;

static di_code read_tokenize(tokenize_body *b, json_read *r, di_status *st)
{
    const char *key, *text;
    size_t n;
    di_code rc;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        if (json_key_is(key, n, "prompt") || json_key_is(key, n, "content") ||
            json_key_is(key, n, "text")) {
            if (json_peek(r) != JSON_STRING)
                return field_invalid(st, "prompt", "a string");
            DI_TRY(json_string(r, &text, &n, st));
            str_clear(&b->prompt);
            str_append(&b->prompt, text, n);
            b->has_prompt = true;
        } else if (json_key_is(key, n, "parse_special")) {
            DI_TRY(field_bool(r, "parse_special", &b->special, st));
        } else if (json_key_is(key, n, "return_token_strs") || json_key_is(key, n, "with_pieces")) {
            DI_TRY(field_bool(r, "return_token_strs", &b->with_text, st));
        } else {
            DI_TRY(json_skip(r, st));
        }
    }
    DI_TRY(json_end(r, st));
    if (!b->has_prompt)
        rc = field_invalid(st, "prompt", "given: the text to tokenize");
    else if (!str_ok(&b->prompt))
        rc = di_fail(st, DI_E_NOMEM, "no memory for the text");
done:
    return rc;
}

static void write_tokens(const server *s, const tok_ids *ids, bool with_text, str *out)
{
    json_write w = {.out = out};

    jw_object(&w);
    jw_key(&w, "count");
    jw_int(&w, (int64_t)ids->n);
    jw_key(&w, "max_model_len");
    jw_int(&w, s->be->context);
    jw_key(&w, "tokens");
    jw_array(&w);
    for (size_t i = 0; i < ids->n; i++)
        jw_int(&w, ids->ids[i]);
    jw_end(&w);
    if (with_text) {
        jw_key(&w, "token_strs");
        jw_array(&w);
        for (size_t i = 0; i < ids->n; i++) {
            size_t n;
            const char *bytes = tokenizer_bytes(s->be->tok, ids->ids[i], &n);

            jw_string(&w, bytes ? bytes : "", n);
        }
        jw_end(&w);
    }
    jw_end(&w);
}

static void *make_tokens(const server *s, const str *body)
{
    offload_answer *a = mem_try_calloc(1, sizeof *a);
    tokenize_body b = {0};
    tok_ids ids = {0};
    json_read r;
    di_code rc;

    if (!a)
        return NULL;
    json_open(&r, str_text(body), body->len, "the body");
    DI_TRY(read_tokenize(&b, &r, &a->st));
    DI_TRY(
        tokenizer_encode(s->be->tok, str_text(&b.prompt), b.prompt.len, b.special, &ids, &a->st));
    write_tokens(s, &ids, b.with_text, &a->json);
done:
    json_close(&r);
    str_fini(&b.prompt);
    tok_ids_fini(&ids);
    return a;
}

void handle_tokenize(conn *c)
{
    static const offload_ops ops = {.make = make_tokens, .finish = offload_reply};

    offload(c, &ops);
}

static di_code read_detokenize(const server *s, json_read *r, tok_ids *ids, bool *skip_special,
                               di_status *st)
{
    const char *key;
    size_t n;
    int32_t id;
    bool has_tokens = false;
    di_code rc;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        if (json_key_is(key, n, "tokens")) {
            has_tokens = true;
            if (json_peek(r) != JSON_ARRAY)
                return field_invalid(st, "tokens", "a list of token ids");
            DI_TRY(json_array(r, st));
            while (json_item(r)) {
                DI_TRY(field_id(r, "tokens: an id", s->be->info.vocab, &id, st));
                DI_TRY(tok_ids_push(ids, id, st));
            }
        } else if (json_key_is(key, n, "skip_special_tokens")) {
            DI_TRY(field_bool(r, "skip_special_tokens", skip_special, st));
        } else {
            DI_TRY(json_skip(r, st));
        }
    }
    DI_TRY(json_end(r, st));
    if (!has_tokens)
        rc = field_invalid(st, "tokens", "given: a list of token ids");
done:
    return rc;
}

static void *make_text(const server *s, const str *body)
{
    offload_answer *a = mem_try_calloc(1, sizeof *a);
    bool skip_special = false;
    tok_ids ids = {0};
    str text = {0};
    json_read r;

    if (!a)
        return NULL;
    json_open(&r, str_text(body), body->len, "the body");
    if (read_detokenize(s, &r, &ids, &skip_special, &a->st) == DI_OK) {
        json_write w = {.out = &a->json};

        tokenizer_decode(s->be->tok, ids.ids, ids.n, skip_special, &text);
        jw_object(&w);
        jw_key(&w, "prompt");
        jw_string(&w, str_text(&text), text.len);
        jw_end(&w);
    }
    json_close(&r);
    tok_ids_fini(&ids);
    str_fini(&text);
    return a;
}

void handle_detokenize(conn *c)
{
    static const offload_ops ops = {.make = make_text, .finish = offload_reply};

    offload(c, &ops);
}
