/* Constraints without a model: states, drafts, threads, faults, what is dropped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "grammar/rig.h"

#define MAX_WALK 200

static uint32_t rng_at;

static uint32_t draw(uint32_t n)
{
    return n ? philox4x32((philox_block){{rng_at++, 0, 0, 0}}, 5, 6).v[0] % n : 0;
}

static bool in_row(const uint32_t *row, int32_t id)
{
    return row[id / 32] >> (id % 32) & 1;
}

static void check_fit(grammar_spec spec, const char *const *good, const char *const *bad)
{
    grammar_prog *p = compiled(spec);

    for (; *good; good++)
        if (!takes(p, *good, true))
            fail_msg("%s does not take %s", spec.text, *good);
    for (; *bad; bad++)
        if (takes(p, *bad, true))
            fail_msg("%s takes %s", spec.text, *bad);
    grammar_prog_unref(p);
}
#define LIST(...)                                                                                  \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__ __VA_OPT__(, ) NULL                                                            \
    }

/* A random token of a row. */
static int32_t pick(const uint32_t *row)
{
    uint32_t n = 0;

    for (size_t w = 0; w < words; w++)
        n += (uint32_t)__builtin_popcount(row[w]);
    assert_true(n > 0);
    n = draw(n);
    for (int32_t id = 0; id < vocab; id++)
        if (in_row(row, id) && n-- == 0)
            return id;
    return -1;
}

/* A random answer: its tokens, and the row in front of each. */
static int walk(grammar_prog *p, int32_t *out, uint32_t *rows)
{
    grammar_state *s = begun(p, -1);
    int n = 0;

    while (n < MAX_WALK && (n == 0 || out[n - 1] != eos)) {
        uint32_t *row = rows + (size_t)n * words;

        assert_true(grammar_fill(s, row));
        out[n] = in_row(row, eos) && draw(4) ? eos : pick(row);
        assert_true(grammar_accept(s, out[n++]));
    }
    grammar_state_free(s);
    return n;
}

/* ---- states ---- */

typedef struct walks {
    grammar_prog *p[3];
    int32_t out[MAX_WALK];
    uint32_t *rows, *draft_rows;
} walks;

static void walks_init(walks *w)
{
    w->p[0] = compiled(spec_of(GRAMMAR_JSON, person));
    w->p[1] = compiled(spec_of(GRAMMAR_TOOL_CALL, tools));
    w->p[2] =
        compiled(spec_of(GRAMMAR_EBNF, "root ::= \"<\" root \">\" | [a-z ]* \"x\" | \"\\n\" root"));
    w->rows = calloc(MAX_WALK * words, sizeof *w->rows);
    w->draft_rows = calloc(10 * words, sizeof *w->draft_rows);
    assert_true(w->rows && w->draft_rows);
}

static void walks_fini(walks *w)
{
    for (int i = 0; i < 3; i++)
        grammar_prog_unref(w->p[i]);
    free(w->rows);
    free(w->draft_rows);
}

static void test_rows_of_drafts_are_those_of_plain_steps(void **state)
{
    walks w;

    (void)state;
    walks_init(&w);
    for (int round = 0; round < 60; round++) {
        grammar_prog *p = w.p[round % 3];
        int n = walk(p, w.out, w.rows), at = 0;
        grammar_state *s = begun(p, -1);

        while (at < n) {
            int k = 1 + (int)draw(8), wrong = (int)draw(12), m;
            int32_t draft[8];

            k = k < n - at ? k : n - at;
            for (int i = 0; i < k; i++)
                draft[i] = i == wrong ? (int32_t)draw((uint32_t)vocab) : w.out[at + i];
            m = grammar_fill_draft(s, draft, k, w.draft_rows);
            assert_int_equal(m, grammar_valid_prefix(s, draft, k));
            if (wrong >= k)
                assert_int_equal(m, k);
            for (int i = 0; i <= m && i <= (wrong < k ? wrong : k) && at + i < n; i++)
                assert_memory_equal(w.draft_rows + (size_t)i * words,
                                    w.rows + (size_t)(at + i) * words, words * sizeof(uint32_t));
            for (int i = 0; i < k && at < n; i++)
                assert_true(grammar_accept(s, w.out[at++]));
        }
        grammar_state_free(s);
    }
    walks_fini(&w);
}

static void test_taking_back_leads_to_the_same_rows(void **state)
{
    walks w;

    (void)state;
    walks_init(&w);
    for (int round = 0; round < 60; round++) {
        grammar_prog *p = w.p[round % 3];
        int n = walk(p, w.out, w.rows), at = 0;
        grammar_state *s = begun(p, -1), *copy;

        for (int step = 0; step < 40; step++) {
            int to = (int)draw((uint32_t)n);

            if (to < at)
                grammar_rollback(s, at - to);
            for (; at < to; at++)
                assert_true(grammar_accept(s, w.out[at]));
            at = to;
            if (step % 10 == 0) { /* a copy goes on for it */
                copy = grammar_state_clone(s);
                assert_non_null(copy);
                grammar_state_free(s);
                s = copy;
            }
            assert_true(grammar_fill(s, w.draft_rows));
            assert_memory_equal(w.draft_rows, w.rows + (size_t)at * words,
                                words * sizeof(uint32_t));
        }
        grammar_state_free(s);
    }
    walks_fini(&w);
}

static void test_forced_tokens_are_the_only_ones_in_their_rows(void **state)
{
    walks w;
    int n_forced = 0;

    (void)state;
    walks_init(&w);
    for (int round = 0; round < 30; round++) {
        grammar_prog *p = w.p[round % 3];
        int n = walk(p, w.out, w.rows);
        grammar_state *s = begun(p, -1);

        for (int at = 0; at < n; at++) {
            int32_t forced[8];
            int k = grammar_forced(s, forced, 8);

            for (int i = 0; i < k && at + i < n; i++) {
                const uint32_t *row = w.rows + (size_t)(at + i) * words;
                int bits = 0;

                for (size_t v = 0; v < words; v++)
                    bits += __builtin_popcount(row[v]);
                assert_int_equal(bits, 1);
                assert_int_equal(forced[i], w.out[at + i]);
                n_forced++;
            }
            assert_true(grammar_accept(s, w.out[at]));
        }
        grammar_state_free(s);
    }
    assert_true(n_forced > 50);
    walks_fini(&w);
}

static void test_the_budget_of_reasoning_forces_its_end(void **state)
{
    grammar_prog *p = compiled(spec_of(GRAMMAR_REGEX, "ok"));
    uint32_t *row = calloc(words, sizeof *row);
    grammar_state *s;

    (void)state;
    assert_int_equal(
        grammar_state_new(p, &(grammar_start){.last_token = think_begin, .think_budget = 3}, &s,
                          NULL),
        DI_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(grammar_fill(s, row));
        assert_true(in_row(row, think_end) && in_row(row, 300) && !in_row(row, eos));
        assert_false(grammar_accept(s, eos) || grammar_accept(s, think_begin));
        assert_true(grammar_accept(s, 300));
    }
    assert_true(grammar_fill(s, row));
    for (size_t w = 0; w < words; w++)
        assert_int_equal(row[w], w == (size_t)think_end / 32 ? 1u << think_end % 32 : 0);
    assert_false(grammar_can_stop(s));
    assert_true(grammar_accept(s, think_end));
    grammar_rollback(s, 2); /* back into the reasoning, and out again */
    assert_true(grammar_accept(s, 301) && grammar_accept(s, think_end));
    assert_true(grammar_fill(s, row));
    assert_false(in_row(row, think_end) || in_row(row, 300));
    grammar_state_free(s);

    /* a prompt that ends in the middle of reasoning */
    assert_int_equal(grammar_state_new(p, &(grammar_start){300, true, 0}, &s, NULL), DI_OK);
    assert_true(grammar_accept(s, 301) && grammar_accept(s, think_end));
    assert_false(grammar_accept(s, 301));
    grammar_state_free(s);
    grammar_prog_unref(p);
    free(row);
}

/* ---- threads ---- */

#define N_THREADS 8
#define N_STATES  64

typedef struct shared {
    const walks *w;
    int n, which;
    atomic_int n_wrong;
} shared;

static void *walk_again(void *arg)
{
    shared *sh = arg;
    uint32_t *row = calloc(words, sizeof *row);

    for (int i = 0; row && i < N_STATES / N_THREADS; i++) {
        grammar_state *s = begun(sh->w->p[sh->which], -1);

        for (int at = 0; at < sh->n; at++)
            if (!grammar_fill(s, row) ||
                memcmp(row, sh->w->rows + (size_t)at * words, words * sizeof *row) != 0 ||
                !grammar_accept(s, sh->w->out[at]))
                atomic_fetch_add(&sh->n_wrong, 1);
        grammar_state_free(s); /* a spare for the next one */
    }
    free(row);
    return NULL;
}

static void test_rows_are_the_same_on_all_threads_with_and_without_spares(void **state)
{
    walks w;

    (void)state;
    walks_init(&w);
    for (int which = 0; which < 3; which++) {
        shared sh = {.w = &w, .which = which, .n = walk(w.p[which], w.out, w.rows)};
        pthread_t thread[N_THREADS];

        for (int i = 0; i < N_THREADS; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, walk_again, &sh), 0);
        for (int i = 0; i < N_THREADS; i++)
            pthread_join(thread[i], NULL);
        assert_int_equal(sh.n_wrong, 0);
    }
    walks_fini(&w);
}

/* ---- faults ---- */

typedef struct faulty {
    const char *text;
    grammar_kind kind;
    grammar_fault fault;
    const char *pointer, *keyword, *tool;
} faulty;

static void test_faults_name_their_place(void **state)
{
    static char big[(1 << 20) + 2];
    static const faulty cases[] = {
        {"{\"properties\":{\"a/b\":{\"not\":{}}}}", GRAMMAR_JSON, GRAMMAR_FAULT_UNSUPPORTED,
         "/properties/a~1b/not", "not", ""},
        {"{\"type\":\"array\",\"minItems\":-1}", GRAMMAR_JSON, GRAMMAR_FAULT_SYNTAX, "/minItems",
         "minItems", ""},
        {"{\"items\":{\"minLength\":100001}}", GRAMMAR_JSON, GRAMMAR_FAULT_LIMIT,
         "/items/minLength", "minLength", ""},
        {"{\"a\":1,\"a\":2}", GRAMMAR_JSON, GRAMMAR_FAULT_SYNTAX, "", "", ""},
        {"{\"$ref\":\"https://x.example/s\"}", GRAMMAR_JSON, GRAMMAR_FAULT_UNSUPPORTED, "", "$ref",
         ""},
        {"{\"pattern\":\"a{3,2}\"}", GRAMMAR_JSON, GRAMMAR_FAULT_SYNTAX, "/pattern", "pattern", ""},
        {"{\"items\":{\"pattern\":\"^(?=x)\"}}", GRAMMAR_JSON, GRAMMAR_FAULT_UNSUPPORTED,
         "/items/pattern", "pattern", ""},
        {"{\"patternProperties\":{\"(a)\\\\1\":{}}}", GRAMMAR_JSON, GRAMMAR_FAULT_UNSUPPORTED,
         "/patternProperties/(a)\\1", "patternProperties", ""},
        {"{\"oneOf\":[{\"minimum\":1},{\"maximum\":5}]}", GRAMMAR_JSON, GRAMMAR_FAULT_UNSUPPORTED,
         "", "oneOf", ""},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
         GRAMMAR_JSON, GRAMMAR_FAULT_UNSAT, "", "schema", ""},
        {"false", GRAMMAR_JSON, GRAMMAR_FAULT_UNSAT, "", "schema", ""},
        {big, GRAMMAR_JSON, GRAMMAR_FAULT_LIMIT, "", "", ""},
        {"a\xff", GRAMMAR_REGEX, GRAMMAR_FAULT_SYNTAX, "", "", ""},
        {"a{1,1000000}", GRAMMAR_REGEX, GRAMMAR_FAULT_LIMIT, "", "", ""},
        {"root ::= root \"a\"", GRAMMAR_EBNF, GRAMMAR_FAULT_UNSAT, "", "", ""},
        {"[]", GRAMMAR_TOOL_CALL, GRAMMAR_FAULT_SYNTAX, "", "tools", ""},
        {"[{\"name\":\"a b\"}]", GRAMMAR_TOOL_CALL, GRAMMAR_FAULT_SYNTAX, "", "tools", "a b"},
        {"[{\"name\":\"good\"},{\"name\":\"bad\",\"strict\":true,\"parameters\":{\"type\":"
         "\"object\",\"properties\":{\"x\":{\"type\":\"array\",\"uniqueItems\":true}}}}]",
         GRAMMAR_TOOL_CALL, GRAMMAR_FAULT_UNSUPPORTED, "/properties/x/uniqueItems", "uniqueItems",
         "bad"},
    };

    (void)state;
    memset(big, ' ', sizeof big - 1);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const faulty *c = &cases[i];
        grammar_spec spec = spec_of(c->kind, c->text);
        grammar_detail d;
        grammar_prog *p;
        di_status st = {0};

        spec.strict = c->kind != GRAMMAR_TOOL_CALL;
        if (grammar_compile(g, &spec, &p, &d, &st) != DI_E_INVALID)
            fail_msg("%.60s is not refused: %s", c->text, st.message);
        if (d.fault != c->fault)
            fail_msg("%.60s: %s", c->text, st.message);
        assert_string_equal(d.pointer, c->pointer);
        assert_string_equal(d.keyword, c->keyword);
        assert_string_equal(d.tool, c->tool);
        assert_true(st.message[0] != 0);
    }
    assert_string_equal(grammar_fault_code(GRAMMAR_FAULT_SYNTAX, GRAMMAR_REGEX), "invalid_regex");
}

/* Only the patterns that the library refuses go. */
static void test_patterns_of_javascript_are_dropped_one_by_one(void **state)
{
    grammar_prog *p = compiled(spec_of(
        GRAMMAR_JSON,
        "{\"type\":\"object\",\"additionalProperties\":false,\"required\":[\"a\",\"b\"],"
        "\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^(?!x)\",\"maxLength\":2},"
        "\"b\":{\"type\":\"string\",\"pattern\":\"^[0-9]+$\"}}}"));

    (void)state;
    assert_string_equal(grammar_prog_warnings(p),
                        "[{\"pointer\": \"/properties/a/pattern\", \"keyword\": \"pattern\"}]");
    assert_true(takes(p, "{\"a\":\"x\",\"b\":\"7\"}", true));
    assert_false(takes(p, "{\"a\":\"xyz\"", false));
    assert_false(takes(p, "{\"a\":\"x\",\"b\":\"y\"", false));
    grammar_prog_unref(p);
}

/* Who says strict, and who decides. */
static void test_the_policy_comes_before_what_a_tool_says(void **state)
{
    static const char strict_tool[] =
        "[{\"name\":\"t\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":"
        "{\"x\":{\"type\":\"array\",\"uniqueItems\":true}}}}]";
    static const struct {
        grammar_kind kind;
        const char *text;
        bool strict, ok[3]; /* by policy */
    } cases[] = {{GRAMMAR_TOOL_CALL, strict_tool, false, {false, false, true}},
                 {GRAMMAR_JSON, "{\"uniqueItems\":true}", false, {true, false, true}},
                 {GRAMMAR_JSON, "{\"uniqueItems\":true}", true, {false, false, true}}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int policy = 0; policy < 3; policy++) {
            grammar_spec spec = spec_of(cases[i].kind, cases[i].text);
            grammar_prog *p = NULL;

            spec.strict = cases[i].strict;
            spec.policy = (grammar_policy)policy;
            assert_int_equal(grammar_compile(g, &spec, &p, NULL, NULL) == DI_OK,
                             cases[i].ok[policy]);
            if (p)
                assert_non_null(strstr(grammar_prog_warnings(p), "uniqueItems"));
            grammar_prog_unref(p);
        }
}

static void test_what_is_dropped_is_named(void **state)
{
    grammar_prog *p = compiled(spec_of(
        GRAMMAR_JSON, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\","
                      "\"format\":\"x-id\"},\"maxItems\":9000000}"));

    (void)state;
    assert_string_equal(grammar_prog_warnings(p),
                        "[{\"pointer\": \"/maxItems\", \"keyword\": \"maxItems\"}, {\"pointer\": "
                        "\"/uniqueItems\", \"keyword\": \"uniqueItems\"}, {\"pointer\": "
                        "\"/items/format\", \"keyword\": \"format\"}]");
    assert_true(takes(p, "[\"a\",\"a\"]", false));
    assert_false(takes(p, "[1]", false));
    grammar_prog_unref(p);

    p = compiled(spec_of(GRAMMAR_JSON, "{\"oneOf\":[{\"type\":\"integer\",\"minimum\":1},{\"type\":"
                                       "\"integer\",\"maximum\":5}]}"));
    assert_string_equal(grammar_prog_warnings(p), "[{\"pointer\": \"\", \"keyword\": \"oneOf\"}]");
    grammar_prog_unref(p);

    p = compiled(spec_of(GRAMMAR_TOOL_CALL, tools));
    assert_string_equal(grammar_prog_warnings(p), "[]");
    grammar_prog_unref(p);
}

static void test_the_seeming_pitfalls_of_schemas(void **state)
{
    grammar_spec compact = spec_of(GRAMMAR_JSON, person);

    (void)state;
    /* a part without an end is never entered */
    check_fit(spec_of(GRAMMAR_JSON, "{\"$defs\":{\"A\":{\"type\":\"object\",\"properties\":{\"a\":{"
                                    "\"$ref\":\"#/$defs/A\"}},\"required\":[\"a\"]}},\"anyOf\":[{"
                                    "\"$ref\":\"#/$defs/A\"},{\"type\":\"integer\"}]}"),
              LIST("5"), LIST("{\"a\":5}", "{}"));
    /* keywords of the library's own in a schema have no effect */
    check_fit(spec_of(GRAMMAR_JSON,
                      "{\"x-guidance\":{\"lenient\":true,\"whitespace_flexible\":true},"
                      "\"type\":\"integer\"}"),
              LIST("5"), LIST("\"5\""));
    /* empty = any value */
    check_fit(spec_of(GRAMMAR_JSON, ""), LIST("5", "{\"a\": [1, {}]}", "\"x\""),
              LIST("", "{", "x"));
    check_fit(spec_of(GRAMMAR_JSON_OBJECT, ""), LIST("{}", "{\"a\": 1}"), LIST("5", "[]", ""));
    compact.compact = true;
    check_fit(compact, LIST("{\"name\":\"a\",\"age\":3}"), LIST("{\"name\": \"a\",\"age\":3}"));
    /* A11, A12 of public reports: length together with a pattern; escapes in bounded strings */
    check_fit(
        spec_of(GRAMMAR_JSON, "{\"type\":\"string\",\"pattern\":\"^[a-z]+$\",\"maxLength\":3}"),
        LIST("\"abc\""), LIST("\"abcd\"", "\"\"", "\"A\""));
    check_fit(spec_of(GRAMMAR_JSON, "{\"type\":\"string\",\"maxLength\":4}"),
              LIST("\"a\\\"b\\n\"", "\"\\\\\\\\\\\\\\\\\"", "\"😀😀😀😀\"", "\"\\u00e9\""),
              LIST("\"😀😀😀😀😀\"", "\"abcde\"", "\"a\nb\""));
}

static void test_grammars_are_exact_where_a_greedy_lexer_is_not(void **state)
{
    (void)state;
    check_fit(spec_of(GRAMMAR_EBNF, "root ::= [a-z]* \"abc\" | \"(\" root \")\""),
              LIST("abc", "xabc", "(abcabc)", "((zabc))"), LIST("ab", "(abc", "abcx", ""));
    check_fit(spec_of(GRAMMAR_EBNF,
                      "root ::= a \"bc\" | b \"d\" | \"(\" root \")\"\na ::= \"a\"\nb ::= \"ab\""),
              LIST("abc", "abd", "(abd)"), LIST("ab", "abcd"));
    check_fit(
        spec_of(GRAMMAR_EBNF, "root ::= word | root \" \" word\nword ::= [a-z]+ | \"if\" word"),
        LIST("a", "if a", "ifa bcd"), LIST("", " a", "a ", "A"));
    check_fit(spec_of(GRAMMAR_EBNF, "root ::= (\"a\"?)* | \"[\" root \"]\""),
              LIST("", "aaa", "[]", "[[aa]]"), LIST("[", "b"));
    check_fit(spec_of(GRAMMAR_EBNF,
                      "root ::= value\n"
                      "value ::= obj | arr | str | num | \"true\" | \"null\"\n"
                      "obj ::= \"{\" (str \":\" value (\",\" str \":\" value)*)? \"}\"\n"
                      "arr ::= \"[\" (value (\",\" value)*)? \"]\"\n"
                      "str ::= \"\\\"\" ([^\"\\\\\\x00-\\x1F] | \"\\\\\" [\"\\\\nt])* \"\\\"\"\n"
                      "num ::= \"-\"? (\"0\" | [1-9] [0-9]*)"),
              LIST("{\"a\":[1,-20,{\"b\\n\":\"\\\"\"}],\"c\":null}", "0", "[]"),
              LIST("{a:1}", "01", "[1,]", "\"\n\""));
    check_fit(spec_of(GRAMMAR_EBNF, "root ::= \"\\x41\\u00e9\" [\\]^-]{2,3} . # end"),
              LIST("Aé]^x", "Aé---\n"), LIST("Aé]", "Aé]^-]x"));
}

static void test_calls_fit_their_tools(void **state)
{
#define D               "｜DSML｜"
#define BLOCK(...)      "\n\n<" D " calls>\n" __VA_ARGS__ "</" D " calls>"
#define CALL(name, ...) "<" D " invoke name=\"" name "\">\n" __VA_ARGS__ "</" D " invoke>\n"
#define PARAM(name, string, value)                                                                 \
    "<" D " parameter name=\"" name "\" string=\"" string "\">" value "</" D " parameter>\n"
    grammar_spec spec = spec_of(GRAMMAR_TOOL_CALL, tools);

    (void)state;
    check_fit(spec,
              LIST("hi", "a < b", "hi" BLOCK(CALL("a", PARAM("q", "true", "x</y>"))),
                   BLOCK(CALL("ab") CALL("a", PARAM("q", "true", "") PARAM("n", "false", "3")))),
              LIST(BLOCK(), BLOCK(CALL("b")), BLOCK(CALL("a")) "!",
                   BLOCK(CALL("a", PARAM("n", "false", "3"))), "<" D " calls>"));
    spec.single_call = true;
    check_fit(spec, LIST(BLOCK(CALL("ab"))), LIST(BLOCK(CALL("ab") CALL("ab"))));
    spec.kind = GRAMMAR_TOOL_CALL_REQUIRED;
    spec.tool = "ab";
    check_fit(spec, LIST(BLOCK(CALL("ab"))), LIST("hi", BLOCK(CALL("a", PARAM("q", "true", "x")))));
    /* any text, yet no call: control tokens are no text */
    check_fit(spec_of(GRAMMAR_REGEX, "(?s:.*)"), LIST("hi", "", "<tag>"),
              LIST(D, BLOCK(CALL("ab"))));
    /* constraints of strings in raw text; unions; open objects */
    check_fit(
        spec_of(
            GRAMMAR_TOOL_CALL_REQUIRED,
            "[{\"name\":\"t\",\"parameters\":{\"type\":\"object\",\"properties\":{\"c\":{"
            "\"type\":\"string\",\"pattern\":\"^[A-Z]+$\",\"maxLength\":3},\"u\":{\"type\":["
            "\"string\",\"integer\"]},\"e\":{\"anyOf\":[{\"const\":\"x\"},{\"type\":\"null\"}]},"
            "\"d\":{\"type\":\"string\",\"format\":\"date\"}},\"additionalProperties\":{"
            "\"type\":\"boolean\"}}}]"),
        LIST(BLOCK(CALL("t", PARAM("c", "true", "ABC"))), BLOCK(CALL("t", "\n")), BLOCK(CALL("t")),
             BLOCK(CALL("t", PARAM("u", "true", "12") PARAM("e", "false", "null"))),
             BLOCK(CALL("t", PARAM("u", "false", "12") PARAM("e", "true", "x"))),
             BLOCK(CALL("t", PARAM("d", "true", "2026-11-30") PARAM("zz", "false", "true")))),
        LIST(BLOCK(CALL("t", PARAM("c", "true", "ABCD"))),
             BLOCK(CALL("t", PARAM("c", "true", "a"))),
             BLOCK(CALL("t", PARAM("u", "false", "\"12\""))),
             BLOCK(CALL("t", PARAM("e", "true", "y"))),
             BLOCK(CALL("t", PARAM("e", "false", "\"x\""))),
             BLOCK(CALL("t", PARAM("d", "true", "2026-13-30"))),
             BLOCK(CALL("t", PARAM("zz", "false", "1")))));
}

static void test_one_tool_that_cannot_be_compiled_does_not_break_the_others(void **state)
{
    grammar_prog *p = compiled(spec_of(
        GRAMMAR_TOOL_CALL_REQUIRED,
        "[{\"name\":\"good\",\"parameters\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":"
        "\"integer\"}},\"required\":[\"n\"]}},{\"name\":\"odd\",\"parameters\":{\"type\":"
        "\"object\","
        "\"properties\":{\"x\":{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"minimum\":1},"
        "\"b$\":{\"maximum\":2}}}}}},{\"name\":\"bad\",\"parameters\":{\"type\":\"interger\"}}]"));

    (void)state;
    assert_true(takes(p, BLOCK(CALL("good", PARAM("n", "false", "3"))), true));
    assert_false(takes(p, BLOCK(CALL("good", PARAM("n", "false", "x"))), true));
    assert_true(takes(p, BLOCK(CALL("odd", PARAM("x", "false", "{\"ab\": 7}"))), true));
    assert_true(takes(p, BLOCK(CALL("bad", PARAM("any", "true", "thing"))), true));
    assert_non_null(strstr(grammar_prog_warnings(p), "{\"tool\": \"odd\", \"pointer\": "
                                                     "\"/properties/x\""));
    assert_non_null(strstr(grammar_prog_warnings(p), "{\"tool\": \"bad\""));
    grammar_prog_unref(p);
}

/* The library recurses along references and rules. */
static void test_long_chains_do_not_end_the_process(void **state)
{
    enum { N_REFS = 10000, N_RULES = 900 };
    str text = {0};
    grammar_spec spec;
    grammar_prog *p;

    (void)state;
    str_puts(&text, "{\"$ref\": \"#/$defs/0\", \"$defs\": {");
    for (int i = 0; i < N_REFS; i++)
        str_printf(&text, "\"%d\": {\"anyOf\": [{\"$ref\": \"#/$defs/%d\"}]}, ", i, i + 1);
    str_printf(&text, "\"%d\": {\"type\": \"null\"}}}", N_REFS);
    spec = spec_of(GRAMMAR_JSON, str_text(&text));
    p = compiled(spec);
    assert_true(takes(p, "null", false));
    assert_false(takes(p, "0", false));
    grammar_prog_unref(p);

    str_clear(&text);
    str_puts(&text, "root ::= r0\n");
    for (int i = 0; i < N_RULES; i++)
        str_printf(&text, "r%d ::= r%d\n", i, i + 1);
    str_printf(&text, "r%d ::= \"a\" | \"(\" root \")\"", N_RULES);
    spec = spec_of(GRAMMAR_EBNF, str_text(&text));
    p = compiled(spec);
    assert_true(takes(p, "((a))", false));
    grammar_prog_unref(p);
    str_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_drafts_are_those_of_plain_steps),
        cmocka_unit_test(test_taking_back_leads_to_the_same_rows),
        cmocka_unit_test(test_forced_tokens_are_the_only_ones_in_their_rows),
        cmocka_unit_test(test_the_budget_of_reasoning_forces_its_end),
        cmocka_unit_test(test_rows_are_the_same_on_all_threads_with_and_without_spares),
        cmocka_unit_test(test_faults_name_their_place),
        cmocka_unit_test(test_patterns_of_javascript_are_dropped_one_by_one),
        cmocka_unit_test(test_the_policy_comes_before_what_a_tool_says),
        cmocka_unit_test(test_what_is_dropped_is_named),
        cmocka_unit_test(test_the_seeming_pitfalls_of_schemas),
        cmocka_unit_test(test_grammars_are_exact_where_a_greedy_lexer_is_not),
        cmocka_unit_test(test_calls_fit_their_tools),
        cmocka_unit_test(test_one_tool_that_cannot_be_compiled_does_not_break_the_others),
        cmocka_unit_test(test_long_chains_do_not_end_the_process),
    };

    return cmocka_run_group_tests_name("grammar", tests, rig_open, rig_close);
}
