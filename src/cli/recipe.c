/* deepinfer recipe: the request language without a model: a request -> its prompt, an output -> its
 * events. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/options.h"
#include "recipe/prompt.h"
#include "recipe/stream.h"

#define MAX_INPUT_BYTES ((size_t)256 << 20)

typedef struct recipe_options_cli {
    const char *model, *tokenizer, *protocol, *mode, *body;
    bool parse;
    tokenizer *tok;
} cli_options;

static opt_result parse_options(cli_options *o, int argc, char **argv, di_status *st)
{
    static const char *const protocols[] = {"chat", "responses", "messages", NULL};
    static const char *const modes[] = {"client", "strict", NULL};
    const opt options[] = {
        {.name = "protocol",
         .kind = OPT_CHOICE,
         .to = &o->protocol,
         .arg = "WORD",
         .choices = protocols,
         .help = "chat (default), responses or messages"},
        {.name = "recipe",
         .kind = OPT_CHOICE,
         .to = &o->mode,
         .arg = "WORD",
         .choices = modes,
         .help = "client (default), or strict: deepseek-recipe to the letter"},
        {.name = "body",
         .kind = OPT_STRING,
         .to = &o->body,
         .arg = "FILE",
         .help = "parse: the request that the output answers (default: a plain one)"},
        {.name = "model",
         .letter = 'm',
         .kind = OPT_STRING,
         .to = &o->model,
         .arg = "DIR",
         .help = "checkpoint whose tokenizer.json is used"},
        {.name = "tokenizer",
         .kind = OPT_STRING,
         .to = &o->tokenizer,
         .arg = "FILE",
         .help = "the tokenizer.json itself, instead of --model"},
    };
    const opt_program program = {
        .name = "recipe",
        .usage = "(render | parse) [OPTION]...",
        .summary = "render: a request body on standard input -> prompt, token ids, sampling and\n"
                   "constraint as JSON. parse: output of the model -> events and whole answer.",
        .options = options,
        .n = ARRAY_LEN(options),
        .notes =
            "parse reads {\"chunks\": [...], \"finish\": \"Stop\", \"body\": {...}, \"id\", "
            "\"fingerprint\",\n\"prompt_tokens\", \"cached_tokens\"}, or the list of chunks alone; "
            "a chunk is\n[\"text\", tokens] or {\"ids\": [...], \"logprobs\": [...]}. Without a "
            "tokenizer render\nprints no ids and parse takes text only. An image is the one id of "
            "its "
            "placeholder\n(129264), not its block of tokens; it is named on standard error.",

    };
    int first = 0;
    opt_result got = opt_parse(&program, argc, argv, &first, st);
    const char *what = argc - first == 1 ? argv[first] : "";

    if (got != OPT_RUN)
        return got;
    o->parse = strcmp(what, "parse") == 0;
    if (!o->parse && strcmp(what, "render") != 0) {
        di_fail(st, DI_E_INVALID, "say what to do: render or parse");
        return OPT_WRONG;
    }
    if (o->model && o->tokenizer) {
        di_fail(st, DI_E_INVALID, "give either --model DIR or --tokenizer FILE");
        return OPT_WRONG;
    }
    return OPT_RUN;
}

static recipe_protocol protocol_of(const cli_options *o)
{
    return strcmp(o->protocol, "responses") == 0  ? RECIPE_PROTOCOL_RESPONSES
           : strcmp(o->protocol, "messages") == 0 ? RECIPE_PROTOCOL_MESSAGES
                                                  : RECIPE_PROTOCOL_CHAT;
}

static recipe_options options_of(const cli_options *o)
{
    return (recipe_options){.mode = strcmp(o->mode, "strict") == 0 ? RECIPE_STRICT : RECIPE_CLIENT};
}

/* ---- render ---- */

static void put(json_write *w, const char *key, const char *text)
{
    jw_key(w, key);
    if (text)
        jw_cstr(w, text);
    else
        jw_null(w);
}

static void put_int(json_write *w, const char *key, bool there, int64_t v)
{
    jw_key(w, key);
    if (there)
        jw_int(w, v);
    else
        jw_null(w);
}

static void put_bool(json_write *w, const char *key, bool v)
{
    jw_key(w, key);
    jw_bool(w, v);
}

static void put_float(json_write *w, const char *key, float v)
{
    char text[32];

    snprintf(text, sizeof text, "%.7g", (double)v);
    jw_key(w, key);
    jw_raw(w, text, strlen(text));
}

static void put_sampling(json_write *w, const recipe_sampling *s)
{
    jw_key(w, "sampling");
    jw_object(w);
    put_int(w, "max_tokens", s->max_tokens >= 0, s->max_tokens);
    put_float(w, "temperature", s->temperature);
    put_float(w, "top_p", s->top_p);
    put_bool(w, "logprobs", s->logprobs);
    put_int(w, "top_logprobs", s->top_logprobs >= 0, s->top_logprobs);
    put_int(w, "seed", (s->set & RECIPE_SET_SEED) != 0, (int64_t)s->seed);
    put_int(w, "n", true, s->n);
    jw_end(w);
}

static void put_constraint(json_write *w, const recipe_constraint *k)
{
    static const char *const kinds[] = {NULL,   "json",      "json_object",       "regex",
                                        "ebnf", "tool_call", "tool_call_required"};

    jw_key(w, "constraint");
    if (k->kind == RECIPE_CONSTRAINT_NONE) {
        jw_null(w);
        return;
    }
    jw_object(w);
    put(w, "kind", kinds[k->kind]);
    jw_key(w, "schema");
    jw_string(w, k->text, k->n);
    jw_end(w);
}

static void put_parsing(json_write *w, const recipe_parsing *p)
{
    static const char *const stages[] = {NULL, "ReasoningStart", "ReasoningContinuation",
                                         "ContentContinuation"};

    jw_key(w, "parsing");
    jw_object(w);
    put_bool(w, "tool_calls", p->tool_calls);
    put_bool(w, "starts_in_tool_calls", p->starts_in_tool_calls);
    put_bool(w, "json_output", p->json_output);
    put(w, "stage", stages[p->stage]);
    jw_key(w, "stop");
    jw_array(w);
    for (size_t i = 0; i < p->n_stop; i++)
        jw_string(w, p->stop[i], p->stop_len[i]);
    jw_end(w);
    jw_end(w);
}

static void put_images(json_write *w, const recipe_request *q)
{
    if (q->n_images == 0)
        return;
    jw_key(w, "images");
    jw_array(w);
    for (size_t i = 0; i < q->n_images; i++) {
        jw_object(w);
        put(w, "kind", q->image[i].kind == RECIPE_IMAGE_URL ? "url" : "data_url");
        put(w, "detail", q->image[i].detail);
        put(w, "path", q->image[i].path);
        jw_end(w);
    }
    jw_end(w);
}

static void put_prompt(json_write *w, const recipe_prompt *p, const tok_ids *ids)
{
    jw_key(w, "prompt");
    jw_string(w, str_text(&p->text), p->text.len);
    jw_key(w, "special");
    jw_array(w);
    for (size_t i = 0; i < p->n_special; i++) {
        jw_array(w);
        jw_uint(w, p->special[i].begin);
        jw_uint(w, p->special[i].end);
        jw_end(w);
    }
    jw_end(w);
    jw_key(w, "ids");
    jw_array(w);
    for (size_t i = 0; i < ids->n; i++)
        jw_int(w, ids->ids[i]);
    jw_end(w);
}

static void put_request(json_write *w, const recipe_request *q, const recipe_prompt *p,
                        const tok_ids *ids)
{
    static const char *const efforts[] = {"high", "low", "max", "xhigh"};
    static const char *const choices[] = {"auto", "none", "required"};
    static const char *const formats[] = {"text", "json_object", "json_schema", "regex", "ebnf"};

    jw_object(w);
    put(w, "model", q->chat.family == RECIPE_V41 ? "v4.1" : "v4");
    put_prompt(w, p, ids);
    put_bool(w, "thinking", q->chat.thinking);
    put(w, "effort", q->chat.thinking ? efforts[q->chat.effort] : NULL);
    put(w, "tool_choice", choices[q->chat.choice]);
    put(w, "response_format", formats[q->chat.format]);
    put_bool(w, "stream", q->stream);
    put_sampling(w, &q->sampling);
    put_constraint(w, &q->constraint);
    put_parsing(w, &q->parsing);
    put_images(w, q);
    jw_end(w);
}

static void put_error(const cli_options *o, const recipe_error *e, str *out)
{
    json_write w = {.out = out};
    str body = {0};

    recipe_error_body(protocol_of(o), options_of(o).mode, e, &body);
    jw_object(&w);
    put(&w, "stage", e->parse ? "parse" : "convert");
    put_int(&w, "status", true, e->status);
    jw_key(&w, "error");
    jw_raw(&w, str_text(&body), body.len);
    jw_end(&w);
    str_fini(&body);
}

/* The number of ids is not what the released model would read: its images are blocks of tokens. */
static void tell_images(size_t n)
{
    fprintf(stderr,
            "deepinfer recipe: %zu image%s in the prompt, each as the one id of its placeholder, "
            "not as "
            "its block of 184 to 1024 tokens; the engine reads no images and refuses the request\n",
            n, n == 1 ? "" : "s");
}

static di_code render(const cli_options *o, const str *in, str *out, bool *found, di_status *st)
{
    const recipe_options ro = options_of(o);
    recipe_request q;
    recipe_error e;
    recipe_prompt p = {0};
    tok_ids ids = {0};
    json_write w = {.out = out};
    di_code rc = DI_OK;

    *found = !recipe_request_parse(&q, protocol_of(o), &ro, str_text(in), in->len, &e);
    if (*found) {
        put_error(o, &e, out);
        goto done;
    }
    DI_TRY(recipe_render(&q.chat, NULL, &p, st));
    if (o->tok)
        DI_TRY(recipe_encode(o->tok, &p, &ids, st));
    put_request(&w, &q, &p, &ids);
    if (q.n_images)
        tell_images(q.n_images);
done:
    recipe_request_fini(&q);
    recipe_prompt_fini(&p);
    tok_ids_fini(&ids);
    return rc;
}

/* ---- parse ---- */

/* Events as they come, each behind the number of its chunk. */
typedef struct collector {
    json_write w;
    int64_t chunk;
} collector;

static void on_event(void *ctx, const char *event, const char *data, size_t n)
{
    collector *c = ctx;

    jw_array(&c->w);
    jw_int(&c->w, c->chunk);
    if (event)
        jw_cstr(&c->w, event);
    else
        jw_null(&c->w);
    jw_raw(&c->w, data, n);
    jw_end(&c->w);
}

static int32_t id_of(const jtree *v)
{
    bool fits = v->type == JSON_NUMBER && v->kind == JTREE_I64 && v->i64 >= 0 && v->i64 < INT32_MAX;

    return fits ? (int32_t)v->i64 : INT32_MAX; /* decodes to nothing */
}

static float number_of(const jtree *v)
{
    return v && v->type == JSON_NUMBER ? (float)jtree_real(v) : -INFINITY;
}

/* [[logprob, [[id, logprob], ...]], ...] beside n ids. NULL: there are none, or no memory. */
static recipe_logprob *read_logprobs(arena *mem, const jtree *list, const int32_t *ids, size_t n)
{
    recipe_logprob *out;
    size_t i = 0;

    if (n == 0 || !list || list->type != JSON_ARRAY || list->n != n)
        return NULL;
    out = arena_alloc(mem, n, sizeof *out);
    for (const jtree *v = list->child; out && v; v = v->next, i++) {
        const jtree *top = v->type == JSON_ARRAY && v->child ? v->child->next : NULL;
        recipe_alternative *alternatives = NULL;

        out[i] = (recipe_logprob){.id = ids[i], .logprob = -INFINITY};
        if (v->type == JSON_ARRAY)
            out[i].logprob = number_of(v->child);
        if (!top || top->type != JSON_ARRAY || top->n == 0)
            continue;
        alternatives = arena_alloc(mem, top->n, sizeof *alternatives);
        if (!alternatives)
            return NULL;
        for (const jtree *a = top->child; a; a = a->next)
            if (a->type == JSON_ARRAY && a->n == 2)
                alternatives[out[i].n_top++] =
                    (recipe_alternative){id_of(a->child), number_of(a->child->next)};
        out[i].top = alternatives;
    }
    return out;
}

static di_code push_ids(recipe_stream *s, const cli_options *o, const jtree *chunk,
                        const jtree *ids, bool *more, di_status *st)
{
    arena *mem = arena_new(0);
    int32_t *list = mem ? arena_alloc(mem, ids->n ? ids->n : 1, sizeof *list) : NULL;
    size_t n = 0;
    di_code rc = DI_OK;

    if (!o->tok) {
        rc = di_fail(st, DI_E_INVALID, "chunks of ids need --model or --tokenizer");
    } else if (!list) {
        rc = di_fail(st, DI_E_NOMEM, "no memory for a chunk");
    } else {
        for (const jtree *v = ids->child; v; v = v->next)
            list[n++] = id_of(v);
        *more = recipe_stream_tokens(s, 0, list, n,
                                     read_logprobs(mem, jtree_get(chunk, "logprobs"), list, n));
    }
    arena_free(mem);
    return rc;
}

/* A chunk: "text", ["text", tokens] or {"ids": [...]}. */
static di_code push_chunk(recipe_stream *s, const cli_options *o, const jtree *v, bool *more,
                          di_status *st)
{
    const jtree *ids = jtree_get(v, "ids"), *text = v->type == JSON_ARRAY ? v->child : v;
    int64_t n_tokens = 1;

    if (ids && ids->type == JSON_ARRAY)
        return push_ids(s, o, v, ids, more, st);
    if (!text || text->type != JSON_STRING)
        return di_fail(st, DI_E_INVALID,
                       "a chunk must be \"text\", [\"text\", tokens] or {\"ids\": [...]}");
    if (text != v && text->next && text->next->type == JSON_NUMBER)
        n_tokens = text->next->i64;
    *more = recipe_stream_text(s, 0, text->text, text->n, n_tokens);
    return DI_OK;
}

static di_code push_chunks(recipe_stream *s, const cli_options *o, const jtree *chunks,
                           collector *c, int64_t *stopped, di_status *st)
{
    bool more = true;
    di_code rc = DI_OK;

    *stopped = -1;
    for (const jtree *v = chunks->child; v && more; v = v->next) {
        DI_TRY(push_chunk(s, o, v, &more, st));
        if (more)
            c->chunk++;
        else
            *stopped = c->chunk;
    }
done:
    return rc;
}

static recipe_finish finish_of(const jtree *t)
{
    return jtree_is(t, "Length")          ? RECIPE_FINISH_LENGTH
           : jtree_is(t, "ContentFilter") ? RECIPE_FINISH_FILTER
           : t && t->type == JSON_NULL    ? RECIPE_FINISH_NONE
                                          : RECIPE_FINISH_STOP;
}

/* The request that the chunks answer. */
static di_code body_of(const cli_options *o, const jtree *in, str *body, di_status *st)
{
    const jtree *t = jtree_get(in, "body");
    char *text;
    size_t n;
    di_code rc = DI_OK;

    if (t && t->type == JSON_STRING) {
        str_append(body, t->text, t->n);
    } else if (t) {
        jtree_print(t, JTREE_PYTHON, body);
    } else if (o->body) {
        rc = file_read(&text, &n, o->body, MAX_INPUT_BYTES, st);
        if (rc == DI_OK) {
            str_append(body, text, n);
            mem_free(text);
        }
    } else {
        str_puts(body, "{\"model\": \"DeepSeek-V4.1-Flash\", \"stream\": true, ");
        str_puts(body, protocol_of(o) == RECIPE_PROTOCOL_RESPONSES
                           ? "\"input\": \"Hi\"}"
                           : "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}");
    }
    return rc;
}

static const char *text_of(const jtree *t, const char *otherwise)
{
    return t && t->type == JSON_STRING ? t->text : otherwise;
}

static int64_t count_of(const jtree *t)
{
    return t && t->type == JSON_NUMBER && t->kind == JTREE_I64 ? t->i64 : 0;
}

/* Both forms of the answer: a stream has its events, the other pass the whole. */
static di_code answer(const cli_options *o, const recipe_request *q, const jtree *in, str *out,
                      di_status *st)
{
    const jtree *chunks = in->type == JSON_ARRAY ? in : jtree_get(in, "chunks");
    const char *end = recipe_stream_done(q->protocol);
    collector c = {.w = {.out = out}, .chunk = -1}, unused = {0};
    const int64_t n_prompt = count_of(jtree_get(in, "prompt_tokens")),
                  n_cached = count_of(jtree_get(in, "cached_tokens"));
    recipe_stream_options so = {.id = text_of(jtree_get(in, "id"), "id-0"),
                                .fingerprint = text_of(jtree_get(in, "fingerprint"), NULL),
                                .model = q->model,
                                .created = (int64_t)time(NULL),
                                .tok = o->tok,
                                .emit = on_event,
                                .ctx = &c};
    recipe_stream *s = recipe_stream_new(q, &so), *whole = NULL;
    int64_t stopped;
    str text = {0};
    di_code rc = DI_OK;

    so.emit = NULL;
    whole = recipe_stream_new(q, &so);
    if (!chunks || chunks->type != JSON_ARRAY || !s || !whole) {
        rc = di_fail(st, DI_E_INVALID, "the input has no list of chunks");
        goto done;
    }
    jw_object(&c.w);
    jw_key(&c.w, "events");
    jw_array(&c.w);
    recipe_stream_ready(s, n_prompt, n_cached);
    c.chunk = 0;
    DI_TRY(push_chunks(s, o, chunks, &c, &stopped, st));
    recipe_stream_finish(s, 0, finish_of(jtree_get(in, "finish")), so.created);
    jw_end(&c.w);
    put_int(&c.w, "stopped_at", stopped >= 0, stopped);
    put(&c.w, "done", end);
    recipe_stream_ready(whole, n_prompt, n_cached);
    DI_TRY(push_chunks(whole, o, chunks, &unused, &stopped, st));
    recipe_stream_finish(whole, 0, finish_of(jtree_get(in, "finish")), so.created);
    recipe_stream_whole(whole, &text);
    jw_key(&c.w, "response");
    jw_raw(&c.w, str_text(&text), text.len);
    jw_end(&c.w);
done:
    recipe_stream_free(s);
    recipe_stream_free(whole);
    str_fini(&text);
    return rc;
}

static di_code parse(const cli_options *o, const str *in, str *out, bool *found, di_status *st)
{
    const recipe_options ro = options_of(o);
    arena *mem = arena_new(0);
    const jtree *t = NULL;
    recipe_request q = {0};
    recipe_error e;
    str body = {0};
    di_code rc = DI_OK;

    if (mem)
        t = jtree_parse(str_text(in), in->len, mem, "standard input", st);
    if (!t) {
        rc = mem ? st->code : di_fail(st, DI_E_NOMEM, "no memory for the input");
        goto done;
    }
    DI_TRY(body_of(o, t, &body, st));
    *found = !recipe_request_parse(&q, protocol_of(o), &ro, str_text(&body), body.len, &e);
    if (*found)
        put_error(o, &e, out);
    else
        DI_TRY(answer(o, &q, t, out, st));
done:
    recipe_request_fini(&q);
    arena_free(mem);
    str_fini(&body);
    return rc;
}

static di_code load(cli_options *o, di_status *st)
{
    char path[4096];
    di_code rc = DI_OK;

    if (o->tokenizer)
        return tokenizer_load(&o->tok, o->tokenizer, st);
    if (!o->model)
        return DI_OK;
    DI_TRY(path_join(path, sizeof path, o->model, "tokenizer.json", st));
    rc = tokenizer_load(&o->tok, path, st);
done:
    return rc;
}

static int run(cli_options *o, di_status *st)
{
    str in = {0}, out = {0};
    bool found = false;
    di_code rc;

    DI_TRY(load(o, st));
    DI_TRY(input_read_stdin(&in, MAX_INPUT_BYTES, st));
    rc = o->parse ? parse(o, &in, &out, &found, st) : render(o, &in, &out, &found, st);
    if (rc == DI_OK && !str_ok(&out))
        rc = di_fail(st, DI_E_NOMEM, "no memory for the output");
    str_putc(&out, '\n');
    if (rc == DI_OK)
        fwrite(str_text(&out), 1, out.len, stdout); /* main reports an output that fails */
done:
    tokenizer_free(o->tok);
    str_fini(&in);
    str_fini(&out);
    return rc != DI_OK ? cli_fail("recipe", st) : found ? CLI_FOUND : CLI_OK;
}

int cli_recipe(int argc, char **argv)
{
    cli_options o = {.protocol = "chat", .mode = "client"};
    di_status st = {0};

    switch (parse_options(&o, argc, argv, &st)) {
    case OPT_HELP_SHOWN:
        return CLI_OK;
    case OPT_WRONG:
        return cli_fail("recipe", &st);
    case OPT_RUN:
        break;
    }
    return run(&o, &st);
}
