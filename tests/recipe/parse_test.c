/* What the output parser promises beyond the recorded cases: the result does not depend on how the
 * output is cut, no delta shows markup, malformed calls stay calls, tokens decide what is a marker.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/mem.h"
#include "recipe/jtree.h"
#include "recipe/parse.h"

#define D                    "｜DSML｜"
#define MARKER               "<｜DSML｜"
#define END_MARKER           "</｜DSML｜"
#define OPEN                 "<｜DSML｜ calls>\n"
#define CLOSE                "</｜DSML｜ calls>"
#define INVOKE(name, params) "<" D " invoke name=\"" name "\">\n" params "</" D " invoke>\n"
#define PARAM(key, value)                                                                          \
    "<" D " parameter name=\"" key "\" string=\"true\">" value "</" D " parameter>\n"
#define RAW(key, value)                                                                            \
    "<" D " parameter name=\"" key "\" string=\"false\">" value "</" D " parameter>\n"

static tokenizer *tok;

/* All events, joined: kinds in capitals, calls by number. */
typedef struct seen {
    str reasoning, content, name[8], args[8];
    int n_calls, n_ended;
    bool markup; /* some delta held a part of a tag */
    str order;
} seen;

static void on_event(void *ctx, const recipe_event *e)
{
    static const char kinds[] = "RCcae";
    seen *s = ctx;

    if (e->kind != RECIPE_EVENT_CALL_END &&
        (s->order.len == 0 || s->order.data[s->order.len - 1] != kinds[e->kind]))
        str_putc(&s->order, kinds[e->kind]);
    for (size_t i = 0; i + 3 <= e->n; i++)
        s->markup = s->markup || memcmp(e->text + i, "｜", 3) == 0;
    switch (e->kind) {
    case RECIPE_EVENT_REASONING:
        str_append(&s->reasoning, e->text, e->n);
        break;
    case RECIPE_EVENT_CONTENT:
        str_append(&s->content, e->text, e->n);
        break;
    case RECIPE_EVENT_CALL:
        assert_int_equal(e->call, s->n_calls);
        assert_true(s->n_calls < 8);
        str_append(&s->name[s->n_calls++], e->text, e->n);
        break;
    case RECIPE_EVENT_ARGS:
        str_append(&s->args[e->call], e->text, e->n);
        break;
    case RECIPE_EVENT_CALL_END:
        s->n_ended++;
        break;
    }
}

static void seen_fini(seen *s)
{
    str_fini(&s->reasoning);
    str_fini(&s->content);
    str_fini(&s->order);
    for (int i = 0; i < 8; i++) {
        str_fini(&s->name[i]);
        str_fini(&s->args[i]);
    }
    *s = (seen){0};
}

static recipe_parsing how(bool thinking, bool tools)
{
    return (recipe_parsing){.tool_calls = tools,
                            .stage = thinking ? RECIPE_STAGE_REASONING : RECIPE_STAGE_CONTENT};
}

/* Parse text cut behind every offset for which cut[i] is set; NULL = one piece. */
static void parse(const char *text, const recipe_parsing *p, recipe_mode mode, const bool *cut,
                  seen *out)
{
    recipe_parser *r = recipe_parser_new(p, mode, NULL, on_event, out);
    size_t from = 0, n = strlen(text);

    assert_non_null(r);
    for (size_t i = 1; i <= n; i++)
        if (i == n || (cut && cut[i])) {
            if (!recipe_parser_text(r, text + from, i - from, 1))
                break;
            from = i;
        }
    recipe_parser_finish(r);
    assert_true(recipe_parser_ok(r));
    recipe_parser_free(r);
}

static void assert_same(const seen *a, const seen *b)
{
    assert_string_equal(str_text(&a->reasoning), str_text(&b->reasoning));
    assert_string_equal(str_text(&a->content), str_text(&b->content));
    assert_string_equal(str_text(&a->order), str_text(&b->order));
    assert_int_equal(a->n_calls, b->n_calls);
    assert_int_equal(a->n_ended, b->n_ended);
    for (int i = 0; i < a->n_calls; i++) {
        assert_string_equal(str_text(&a->name[i]), str_text(&b->name[i]));
        assert_string_equal(str_text(&a->args[i]), str_text(&b->args[i]));
    }
}

static const char two_calls[] = "plan\n</think>\n\nLet me look.\n\n" OPEN INVOKE(
    "f", PARAM("a", "Par\"is\n日本\\ <b> </think>") RAW("n", "[1, {\"k\": null}]")) INVOKE("g", "")
    CLOSE;

/* Row A13 of spec bugs.md. */
static void test_calls_are_the_same_however_the_output_is_cut(void **state)
{
    const recipe_parsing p = how(true, true);
    size_t n = strlen(two_calls);
    bool *cut = calloc(n + 1, sizeof *cut);

    (void)state;
    for (int mode = RECIPE_CLIENT; mode <= RECIPE_STRICT; mode++) {
        seen whole = {0};

        parse(two_calls, &p, (recipe_mode)mode, NULL, &whole);
        assert_string_equal(str_text(&whole.content), "Let me look.");
        assert_string_equal(str_text(&whole.args[0]),
                            "{\"a\": \"Par\\\"is\\n日本\\\\ <b> </think>\", \"n\": [1, {\"k\": "
                            "null}]}");
        assert_string_equal(str_text(&whole.args[1]), "{}");
        for (size_t at = 1; at <= n; at++) { /* n: at every byte */
            seen got = {0};

            for (size_t i = 0; i <= n; i++)
                cut[i] = at == n || i == at;
            parse(two_calls, &p, (recipe_mode)mode, cut, &got);
            assert_same(&whole, &got);
            assert_false(got.markup);
            seen_fini(&got);
        }
        seen_fini(&whole);
    }
    free(cut);
}

static void test_random_cuts_change_nothing(void **state)
{
    static const char *const parts[] = {
        "a",       "\n", "\n\n",      "</think>", "</thin", MARKER,    OPEN,       CLOSE,
        "STOP",    "ST", END_MARKER,  "日本",     "invoke", "name=\"", "\">",      "string=\"",
        "true\">", "{",  "```json\n", "\n```",    "x y",    "\"",      "false\">", " "};
    unsigned seed = 5;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        recipe_parsing p = how(round & 1, round & 2);
        recipe_mode mode = round & 4 ? RECIPE_STRICT : RECIPE_CLIENT;
        bool cut[512];
        str text = {0};
        seen whole = {0}, got = {0};

        p.json_output = mode == RECIPE_CLIENT && (round & 8);
        if (round & 16) {
            p.stop[0] = "STOP";
            p.stop_len[0] = 4;
            p.n_stop = 1;
        }
        for (int i = 0; i < 12; i++)
            str_puts(&text, i == 3 && (round & 32)
                                ? OPEN "<" D " invoke name=\"f\">\n<" D " parameter name=\"k\" "
                                : parts[(unsigned)rand_r(&seed) % ARRAY_LEN(parts)]);
        assert_true(text.len < sizeof cut);
        for (size_t i = 0; i < sizeof cut; i++)
            cut[i] = rand_r(&seed) % 3 == 0;
        parse(str_text(&text), &p, mode, NULL, &whole);
        parse(str_text(&text), &p, mode, cut, &got);
        assert_same(&whole, &got);
        seen_fini(&whole);
        seen_fini(&got);
        str_fini(&text);
    }
}

/* Row A14: a bare call, a section without an end, a broken sibling. */
static void test_malformed_sections_stay_calls(void **state)
{
    static const struct {
        const char *text, *name[2], *args[2];
        int n;
    } cases[] = {
        {INVOKE("f", PARAM("a", "1")), {"f"}, {"{\"a\": \"1\"}"}, 1},
        {OPEN INVOKE("f", PARAM("a", "1")), {"f"}, {"{\"a\": \"1\"}"}, 1},
        {OPEN "<" D " invoke>\n</" D " invoke>\n" INVOKE("f", PARAM("a", "1")) CLOSE,
         {"f"},
         {"{\"a\": \"1\"}"},
         1},
        {OPEN INVOKE("g", "<" D " parameter name=\"a\">5</" D " parameter>\n")
             INVOKE("f", PARAM("a", "1")) CLOSE,
         {"g", "f"},
         {"{\"a\": \"5\"}", "{\"a\": \"1\"}"},
         2},
        {OPEN INVOKE("g", "<" D " parameter name=\"a\" string=\"maybe\">5</" D " parameter>\n")
             INVOKE("f", PARAM("a", "1")) CLOSE,
         {"g", "f"},
         {"{\"a\": null}", "{\"a\": \"1\"}"},
         2},
    };
    const recipe_parsing p = how(false, true);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        seen got = {0};

        parse(cases[i].text, &p, RECIPE_CLIENT, NULL, &got);
        assert_int_equal(got.n_calls, cases[i].n);
        assert_string_equal(str_text(&got.content), "");
        for (int k = 0; k < cases[i].n; k++) {
            assert_string_equal(str_text(&got.name[k]), cases[i].name[k]);
            assert_string_equal(str_text(&got.args[k]), cases[i].args[k]);
        }
        seen_fini(&got);
    }
}

/* Row A15, and section 6 of spec recipe.md: keys and values become JSON whatever they hold. */
static void test_arguments_are_json_whatever_the_model_writes(void **state)
{
    static const struct {
        const char *params, *args;
    } cases[] = {
        {PARAM("a", "007"), "{\"a\": \"007\"}"},
        {RAW("a", "7"), "{\"a\": 7}"},
        {RAW("a", "[1,{\"a\":null}]"), "{\"a\": [1,{\"a\":null}]}"},
        {RAW("a", "nope"), "{\"a\": \"nope\"}"},
        {RAW("a", ""), "{\"a\": \"\"}"},
        {RAW("a", "1 2"), "{\"a\": \"1 2\"}"},
        {PARAM("arguments", "{\"x\": 1}"), "{\"arguments\": \"{\\\"x\\\": 1}\"}"},
        {PARAM("a b", "v"), "{\"a b\": \"v\"}"},
        {PARAM("a\"b", "v"), "{\"a\\\"b\": \"v\"}"},
        {PARAM("a\\b\n", "v"), "{\"a\\\\b\\n\": \"v\"}"},
    };
    const recipe_parsing p = how(false, true);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        str text = {0};
        seen got = {0};
        arena *mem = arena_new(0);

        str_printf(&text, OPEN "<" D " invoke name=\"f\">\n%s</" D " invoke>\n" CLOSE,
                   cases[i].params);
        parse(str_text(&text), &p, RECIPE_CLIENT, NULL, &got);
        assert_string_equal(str_text(&got.args[0]), cases[i].args);
        assert_non_null(jtree_parse(got.args[0].data, got.args[0].len, mem, "args", NULL));
        arena_free(mem);
        seen_fini(&got);
        str_fini(&text);
    }
}

static void push_text_as_tokens(recipe_parser *r, const char *text, bool added)
{
    tok_ids ids = {0};

    assert_int_equal(tokenizer_encode(tok, text, strlen(text), added, &ids, NULL), DI_OK);
    for (size_t i = 0; i < ids.n; i++)
        recipe_parser_tokens(r, &ids.ids[i], 1, NULL);
    tok_ids_fini(&ids);
}

static void test_only_control_tokens_are_markers(void **state)
{
    const recipe_parsing p = how(true, true);
    seen got = {0};
    recipe_parser *r = recipe_parser_new(&p, RECIPE_CLIENT, tok, on_event, &got);

    (void)state;
    push_text_as_tokens(r, "it spells </think> and <" D " invoke name=\"f\">", false);
    push_text_as_tokens(r, "</think>answer: ", true);
    push_text_as_tokens(r, "</think>", false);
    push_text_as_tokens(r, OPEN INVOKE("f", "<" D " parameter name=\"a\" string=\"true\">"), true);
    recipe_parser_finish(r);
    assert_string_equal(str_text(&got.reasoning),
                        "it spells </think> and <" D " invoke name=\"f\">");
    assert_string_equal(str_text(&got.content), "answer: </think>");
    assert_int_equal(got.n_calls, 1);
    recipe_parser_free(r);
    seen_fini(&got);
}

/* Row A16: a call that the request does not allow never reaches the client as markup. */
static void test_calls_that_nobody_asked_for_are_not_shown(void **state)
{
    const recipe_parsing p = how(false, false);
    seen got = {0};
    recipe_parser *r = recipe_parser_new(&p, RECIPE_CLIENT, tok, on_event, &got);

    (void)state;
    push_text_as_tokens(r, "No. <｜DSML｜ is text", false);
    push_text_as_tokens(r, "\n\n" OPEN INVOKE("f", PARAM("a", "1")) CLOSE, true);
    recipe_parser_finish(r);
    assert_string_equal(str_text(&got.content), "No. <｜DSML｜ is text");
    assert_int_equal(got.n_calls, 0);
    recipe_parser_free(r);
    seen_fini(&got);
}

static void test_json_answers_have_nothing_around_them(void **state)
{
    recipe_parsing p = how(false, false);
    seen got = {0};

    (void)state;
    p.json_output = true;
    parse("Sure: ```json\n{\"a\": 1}\n``` bye", &p, RECIPE_CLIENT, NULL, &got);
    assert_string_equal(str_text(&got.content), "{\"a\": 1}");
    seen_fini(&got);
    parse("Sure: {\"a\": 1}", &p, RECIPE_STRICT, NULL, &got);
    assert_string_equal(str_text(&got.content), " {\"a\": 1}");
    seen_fini(&got);
}

/* Row A19. */
static void test_stop_strings_span_pieces(void **state)
{
    static const struct {
        const char *stop, *pieces[6], *content;
        int stop_idx;
    } cases[] = {
        {"DEFGHIJ", {"abc", "DEF", "G", "HI", "J", "k"}, "abc", 0},
        {"gamma", {"alpha ", "gammas", " delta"}, "alpha ", 0},
        {"STOP", {"ST", "OX", "ST"}, "STOXST", -1},
        {"\n\n", {"a\n", "b\n", "\nc"}, "a\nb", 0},
        {"aab", {"xaa", "ab"}, "xa", 0}, /* it begins again inside its own beginning */
        {"\n\nUser", {"a\n", "\n\nU", "ser"}, "a\n", 0},
        {"abab", {"ab", "aa", "baba", "b"}, "aba", 0},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        recipe_parsing p = how(false, false);
        seen got = {0};
        recipe_parser *r;

        p.stop[0] = cases[i].stop;
        p.stop_len[0] = strlen(cases[i].stop);
        p.n_stop = 1;
        r = recipe_parser_new(&p, RECIPE_CLIENT, NULL, on_event, &got);
        for (size_t k = 0; k < 6 && cases[i].pieces[k]; k++)
            if (!recipe_parser_text(r, cases[i].pieces[k], strlen(cases[i].pieces[k]), 1))
                break;
        assert_int_equal(recipe_parser_stop(r), cases[i].stop_idx);
        recipe_parser_finish(r);
        assert_string_equal(str_text(&got.content), cases[i].content);
        recipe_parser_free(r);
        seen_fini(&got);
    }
}

/* A refuted start of a stop string comes out with the byte that refutes it. */
static void test_text_is_not_held_longer_than_needed(void **state)
{
    recipe_parsing p = how(false, false);
    seen got = {0};
    recipe_parser *r;

    (void)state;
    p.stop[0] = "STOP";
    p.stop_len[0] = 4;
    p.n_stop = 1;
    r = recipe_parser_new(&p, RECIPE_CLIENT, NULL, on_event, &got);
    recipe_parser_text(r, "go ", 3, 1);
    recipe_parser_text(r, "ST", 2, 1);
    assert_string_equal(str_text(&got.content), "go ");
    recipe_parser_text(r, "A", 1, 1);
    assert_string_equal(str_text(&got.content), "go STA");
    recipe_parser_free(r);
    seen_fini(&got);
}

/* Row A20: byte tokens of a character, one at a time. */
static void test_characters_are_never_cut(void **state)
{
    static const char text[] = "🦙🏽 שלום 👩‍👩‍👧 日本";
    recipe_parsing p = how(false, false);
    seen got = {0};
    recipe_parser *r = recipe_parser_new(&p, RECIPE_CLIENT, tok, on_event, &got);

    (void)state;
    for (size_t i = 0; i < sizeof text - 1; i++) {
        int32_t id = -1;
        tok_ids ids = {0};

        /* The id of a single byte is what its character's encoding decodes to, found by search. */
        for (int32_t k = 3; k < 259 && id < 0; k++) {
            size_t n;
            const char *bytes = tokenizer_bytes(tok, k, &n);

            if (n == 1 && bytes[0] == text[i])
                id = k;
        }
        assert_true(id >= 0);
        recipe_parser_tokens(r, &id, 1, NULL);
        assert_null(strstr(str_text(&got.content), "\xEF\xBF\xBD"));
        tok_ids_fini(&ids);
    }
    recipe_parser_finish(r);
    assert_string_equal(str_text(&got.content), text);
    assert_int_equal(recipe_parser_n_tokens(r), sizeof text - 1);
    recipe_parser_free(r);
    seen_fini(&got);
}

static void test_out_of_memory_is_remembered(void **state)
{
    const recipe_parsing p = how(true, true);
    int failures = 0;

    (void)state;
    for (uint64_t at = 1;; at++, failures++) {
        seen got = {0};
        recipe_parser *r;
        bool ok;

        mem_fail_at(at);
        r = recipe_parser_new(&p, RECIPE_CLIENT, NULL, on_event, &got);
        if (r) {
            recipe_parser_text(r, two_calls, strlen(two_calls), 1);
            recipe_parser_finish(r);
        }
        mem_fail_at(0);
        ok = r && recipe_parser_ok(r) && got.n_calls == 2 && str_ok(&got.args[0]) &&
             str_ok(&got.content) && str_ok(&got.reasoning) && str_ok(&got.order);
        recipe_parser_free(r);
        seen_fini(&got);
        if (ok && at > 200)
            break;
    }
    assert_true(failures > 10);
}

static int load(void **state)
{
    (void)state;
    return tokenizer_load(&tok, DI_DATA_DIR "/tokenizer-v4/tokenizer.json", NULL) == DI_OK ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    tokenizer_free(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_are_the_same_however_the_output_is_cut),
        cmocka_unit_test(test_random_cuts_change_nothing),
        cmocka_unit_test(test_malformed_sections_stay_calls),
        cmocka_unit_test(test_arguments_are_json_whatever_the_model_writes),
        cmocka_unit_test(test_only_control_tokens_are_markers),
        cmocka_unit_test(test_calls_that_nobody_asked_for_are_not_shown),
        cmocka_unit_test(test_json_answers_have_nothing_around_them),
        cmocka_unit_test(test_stop_strings_span_pieces),
        cmocka_unit_test(test_text_is_not_held_longer_than_needed),
        cmocka_unit_test(test_characters_are_never_cut),
        cmocka_unit_test(test_out_of_memory_is_remembered),
    };

    return cmocka_run_group_tests(tests, load, unload);
}
