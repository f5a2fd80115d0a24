/* A conversation of 100,000 tokens: body -> request -> prompt -> ids, one thread; and the answer's
 * side: events per token of each protocol. Limit of the whole way: 60 ms. */
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "bench.h"
#include "recipe/prompt.h"
#include "recipe/stream.h"

#define N_TOKENS 100000

static struct {
    tokenizer *tok;
    str body;
    recipe_request q;
    recipe_prompt prompt;
    tok_ids ids;
    recipe_gaps *known;
    recipe_request answer[3];
    tok_ids output;
    size_t n_events;
} b;

static void check(di_code rc, const di_status *st)
{
    bench_check(rc, st);
}

static void fail(const char *message)
{
    di_status st = {0};

    check(di_fail(&st, DI_E_INVALID, "%s", message), &st);
}

/* ---- the request side ---- */

static void parse(void *arg)
{
    recipe_error e;

    (void)arg;
    recipe_request_fini(&b.q);
    if (!recipe_request_parse(&b.q, RECIPE_PROTOCOL_CHAT, NULL, str_text(&b.body), b.body.len, &e))
        fail(e.message);
}

static void render(void *arg)
{
    di_status st = {0};

    (void)arg;
    check(recipe_render(&b.q.chat, NULL, &b.prompt, &st), &st);
}

static void encode(void *arg)
{
    di_status st = {0};

    b.ids.n = 0;
    check(recipe_encode_again(b.tok, arg, &b.prompt, &b.ids, &st), &st);
}

static void whole_way(void *arg)
{
    parse(NULL);
    render(NULL);
    encode(arg);
}

/* Turns of a user and an assistant that calls a tool, with texts of the golden data: code, prose in
 * many languages, numbers, oddities. */
static void make_body(void)
{
    char *lines;
    size_t n, n_text = 0, turn = 0;
    arena *mem = arena_new(0);
    di_status st = {0};
    str text = {0};

    check(file_read(&lines, &n, DI_DATA_DIR "/recipe/tokenizer.jsonl", (size_t)64 << 20, &st), &st);
    str_puts(&b.body, "{\"model\": \"DeepSeek-V4.1-Flash\", \"tools\": [{\"type\": \"function\", "
                      "\"function\": {\"name\": \"look\", \"parameters\": {\"type\": \"object\", "
                      "\"properties\": {\"key\": {\"type\": \"string\"}}}}}], \"messages\": [");
    for (const char *s = lines; n_text < N_TOKENS;) {
        const char *end = memchr(s, '\n', (size_t)(lines + n - s));
        const jtree *t =
            end ? jtree_get(jtree_parse(s, (size_t)(end - s), mem, "line", NULL), "t") : NULL;

        if (t && t->n > 20 && t->n < 1500) {
            b.ids.n = 0;
            check(tokenizer_encode(b.tok, t->text, t->n, false, &b.ids, &st), &st);
            n_text += b.ids.n;
            jtree_escape(t->text, t->n, &text);
        }
        s = end && end + 1 < lines + n ? end + 1 : lines;
        if (text.len < 2500)
            continue;
        str_printf(&b.body,
                   "%s{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", "
                   "\"content\": \"I look.\", \"reasoning_content\": \"Why not?\", \"tool_calls\": "
                   "[{\"id\": \"c%zu\", \"type\": \"function\", \"function\": {\"name\": \"look\", "
                   "\"arguments\": \"{\\\"key\\\": \\\"%zu\\\"}\"}}]}, {\"role\": \"tool\", "
                   "\"tool_call_id\": \"c%zu\", \"content\": \"Found number %zu.\"}",
                   turn ? ", " : "", str_text(&text), turn, turn, turn, turn);
        turn++;
        str_clear(&text);
        arena_reset(mem);
    }
    str_puts(&b.body, "]}");
    if (!str_ok(&b.body))
        fail("out of memory");
    str_fini(&text);
    arena_free(mem);
    mem_free(lines);
}

/* ---- the answer's side ---- */

static void count_event(void *ctx, const char *event, const char *data, size_t n)
{
    (void)ctx;
    (void)event;
    (void)data;
    b.n_events += n > 0;
}

static void answer(void *arg)
{
    const recipe_stream_options o = {.id = "id", .model = "m", .tok = b.tok, .emit = count_event};
    recipe_stream *s = recipe_stream_new(arg, &o);

    if (!s)
        fail("out of memory");
    recipe_stream_ready(s, 10, 0);
    for (size_t i = 0; i < b.output.n; i++)
        recipe_stream_tokens(s, 0, &b.output.ids[i], 1, NULL);
    recipe_stream_finish(s, 0, RECIPE_FINISH_STOP, 0);
    recipe_stream_free(s);
}

static void make_answers(void)
{
    static const char *const bodies[] = {
        "{\"model\": \"DeepSeek-V4.1-Flash\", \"stream\": true, \"messages\": [{\"role\": "
        "\"user\", \"content\": \"Hi\"}]}",
        "{\"model\": \"DeepSeek-V4.1-Flash\", \"stream\": true, \"input\": \"Hi\"}",
        "{\"model\": \"DeepSeek-V4.1-Flash\", \"stream\": true, \"messages\": [{\"role\": "
        "\"user\", \"content\": \"Hi\"}]}"};
    const char *text = str_text(&b.prompt.text);
    size_t n = b.prompt.text.len < 6000 ? b.prompt.text.len : 6000;
    di_status st = {0};
    recipe_error e;

    for (int i = 0; i < 3; i++)
        if (!recipe_request_parse(&b.answer[i], (recipe_protocol)i, NULL, bodies[i],
                                  strlen(bodies[i]), &e))
            fail(e.message);
    check(tokenizer_encode(b.tok, "why</think>", 11, true, &b.output, &st), &st);
    check(tokenizer_encode(b.tok, text, n, false, &b.output, &st), &st);
    b.output.n = b.output.n < 1000 ? b.output.n : 1000;
}

int main(int argc, char **argv)
{
    bench *r = bench_open("recipe", argc, argv, (size_t)1 << 20);
    di_status st = {0};
    int status;

    check(tokenizer_load(&b.tok, DI_DATA_DIR "/tokenizer-v4/tokenizer.json", &st), &st);
    make_body();
    b.known = recipe_gaps_new((size_t)64 << 20);
    whole_way(NULL);
    if (b.ids.n < N_TOKENS)
        fail("the conversation is too short");
    encode(b.known);
    make_answers();
    bench_time(r, "recipe_request", "chat_100k", 1, 20, parse, NULL);
    bench_time(r, "recipe_render", "chat_100k", 1, 10, render, NULL);
    bench_time(r, "recipe_encode", "chat_100k", 1, 60, encode, NULL);
    bench_time(r, "recipe_encode_again", "chat_100k", 1, 10, encode, b.known);
    bench_time(r, "recipe_prompt", "chat_100k_all", 1, 60, whole_way, NULL);
    bench_time(r, "recipe_answer", "chat_per_1000_tokens", 1, 10, answer, &b.answer[0]);
    bench_time(r, "recipe_answer", "responses_per_1000_tokens", 1, 10, answer, &b.answer[1]);
    bench_time(r, "recipe_answer", "messages_per_1000_tokens", 1, 10, answer, &b.answer[2]);
    status = bench_run(r);
    recipe_request_fini(&b.q);
    for (int i = 0; i < 3; i++)
        recipe_request_fini(&b.answer[i]);
    recipe_prompt_fini(&b.prompt);
    recipe_gaps_free(b.known);
    tok_ids_fini(&b.ids);
    tok_ids_fini(&b.output);
    str_fini(&b.body);
    tokenizer_free(b.tok);
    return status;
}
