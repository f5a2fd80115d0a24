/* The input is an output of a model: options (first two bytes), how it is cut (from the third
 * byte), and text. However it is cut, the answer must be the same; its events must be JSON; and in
 * mode CLIENT the arguments of a call that is complete must be a JSON object. */
#include <stdint.h>
#include <string.h>

#include "base/json_read.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "recipe/stream.h"

static bool is_json(const char *s, size_t n, json_type type)
{
    json_read r;
    bool ok;

    json_open(&r, s, n, "event");
    ok = json_peek(&r) == type && json_skip(&r, NULL) == DI_OK && json_end(&r, NULL) == DI_OK;
    json_close(&r);
    return ok;
}

static void on_sse(void *ctx, const char *event, const char *data, size_t n)
{
    (void)ctx;
    (void)event;
    DI_CHECK(is_json(data, n, JSON_OBJECT));
    DI_CHECK(!memchr(data, '\n', n));
}

typedef struct seen {
    str args;
} seen;

static void on_event(void *ctx, const recipe_event *e)
{
    seen *s = ctx;

    if (e->kind == RECIPE_EVENT_ARGS)
        str_append(&s->args, e->text, e->n);
    if (e->kind == RECIPE_EVENT_CALL)
        str_clear(&s->args);
    if (e->kind == RECIPE_EVENT_CALL_END)
        DI_CHECK(is_json(str_text(&s->args), s->args.len, JSON_OBJECT));
}

/* How many bytes the next piece has. */
static size_t piece(uint32_t seed, uint32_t i)
{
    philox_block v = philox4x32((philox_block){{i, 0, 0, 0}}, seed, 1);

    return 1 + v.v[0] % 9;
}

static void push(recipe_stream *s, const char *text, size_t n, bool cut, uint32_t seed)
{
    uint32_t i = 0;

    recipe_stream_ready(s, 3, 1);
    while (n) {
        size_t take = cut ? piece(seed, i++) : n;

        if (take > n)
            take = n;
        if (!recipe_stream_text(s, 0, text, take, 0))
            break;
        text += take;
        n -= take;
    }
    recipe_stream_finish(s, 0, RECIPE_FINISH_STOP, 0);
}

static void whole(const recipe_request *q, const char *text, size_t n, bool cut, uint32_t seed,
                  str *out)
{
    const recipe_stream_options o = {.id = "i", .model = "m"};
    recipe_stream *s = recipe_stream_new(q, &o);

    push(s, text, n, cut, seed);
    recipe_stream_whole(s, out);
    DI_CHECK(is_json(str_text(out), out->len, JSON_OBJECT));
    recipe_stream_free(s);
}

static const tokenizer *shipped(void)
{
    static tokenizer *t;

    if (!t)
        DI_CHECK(tokenizer_load(&t, "models/tiny/tokenizer.json", NULL) == DI_OK);
    return t;
}

/* Events as one text: neighbours of one kind are joined. */
typedef struct joined {
    str text;
    int kind;
} joined;

static void join_event(void *ctx, const recipe_event *e)
{
    joined *j = ctx;

    if (j->kind != (int)e->kind || e->kind == RECIPE_EVENT_CALL)
        str_printf(&j->text, "\n[%d %d]", (int)e->kind, e->call);
    j->kind = (int)e->kind;
    str_append(&j->text, e->text, e->n);
}

/* The answer as tokens, in one go or in groups. */
static void read_tokens(const recipe_request *q, const tok_ids *ids, bool cut, uint32_t seed,
                        joined *out)
{
    recipe_parser *p = recipe_parser_new(&q->parsing, q->mode, shipped(), join_event, out);
    uint32_t i = 0;

    for (size_t at = 0, take; at < ids->n; at += take) {
        take = cut ? piece(seed, i++) : ids->n;
        if (take > ids->n - at)
            take = ids->n - at;
        if (!recipe_parser_tokens(p, ids->ids + at, take, NULL))
            break;
    }
    recipe_parser_finish(p);
    DI_CHECK(recipe_parser_ok(p));
    recipe_parser_free(p);
}

static void check_tokens(const recipe_request *q, const char *text, size_t n, uint32_t seed)
{
    tok_ids ids = {0};
    joined one = {.kind = -1}, many = {.kind = -1};

    DI_CHECK(tokenizer_encode(shipped(), text, n, true, &ids, NULL) == DI_OK);
    read_tokens(q, &ids, false, 0, &one);
    read_tokens(q, &ids, true, seed, &many);
    DI_CHECK(one.text.len == many.text.len &&
             memcmp(str_text(&one.text), str_text(&many.text), one.text.len) == 0);
    tok_ids_fini(&ids);
    str_fini(&one.text);
    str_fini(&many.text);
}

static void streamed(const recipe_request *q, const char *text, size_t n, uint32_t seed)
{
    const recipe_stream_options o = {.id = "i", .model = "m", .emit = on_sse};
    recipe_stream *s = recipe_stream_new(q, &o);

    push(s, text, n, true, seed);
    DI_CHECK(recipe_stream_ok(s));
    recipe_stream_free(s);
}

static void arguments_are_objects(const recipe_parsing *how, const char *text, size_t n)
{
    seen got = {0};
    recipe_parser *p = recipe_parser_new(how, RECIPE_CLIENT, NULL, on_event, &got);

    recipe_parser_text(p, text, n, 0);
    recipe_parser_finish(p);
    recipe_parser_free(p);
    str_fini(&got.args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const recipe_echo echo = {"null",     "null", "{}", "1.0", "{}",
                                     "\"auto\"", "[]",   "0",  "1.0", "null"};
    recipe_request q = {.sampling = {.n = 1}, .model = "m", .echo = echo};
    str one = {0}, many = {0};
    uint32_t seed;
    const char *text = (const char *)data + 3;

    if (n < 3)
        return 0;
    q.protocol = (recipe_protocol)(data[0] % 3);
    q.mode = data[0] & 0x40 ? RECIPE_STRICT : RECIPE_CLIENT;
    q.parsing.tool_calls = data[0] & 0x20;
    q.parsing.starts_in_tool_calls = (data[0] & 0x30) == 0x30;
    q.parsing.json_output = data[1] & 1 && q.mode == RECIPE_CLIENT;
    q.parsing.stage = (recipe_stage)(data[1] >> 1 & 3);
    q.chat.thinking = q.parsing.stage != RECIPE_STAGE_CONTENT;
    if (data[1] & 8) {
        q.parsing.stop[0] = "STOP";
        q.parsing.stop_len[0] = 4;
        q.parsing.stop[1] = "\n\n";
        q.parsing.stop_len[1] = 2;
        q.parsing.n_stop = 2;
    }
    seed = data[2];
    n -= 3;
    whole(&q, text, n, false, 0, &one);
    whole(&q, text, n, true, seed, &many);
    DI_CHECK(one.len == many.len && memcmp(str_text(&one), str_text(&many), one.len) == 0);
    check_tokens(&q, text, n, seed);
    streamed(&q, text, n, seed);
    if (utf8_valid(text, n))
        arguments_are_objects(&q.parsing, text, n);
    str_fini(&one);
    str_fini(&many);
    return 0;
}
