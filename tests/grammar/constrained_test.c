/* Constraints through the engine, on models with random weights: what comes out always fits, and
 * drafts, company and preemption change no token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/mem.h"
#include "engine/model_parts.h"
#include "engine/rig.h"
#include "grammar/grammar.h"
#include "grammar/stree.h"

#define N_PROMPT 12
#define N_CASES  30

static grammar *g;
static int32_t think_begin, think_end, dsml;

/* A request and what it gives alone. */
typedef struct asked {
    int32_t prompt[N_PROMPT];
    grammar_prog *prog; /* borrowed from `progs` */
    int64_t budget;
    di_request_params p;
    reply plain;
} asked;

static asked cases[N_CASES];

enum { SCHEMA, REGEX, EBNF, TOOLS, N_KINDS };
static grammar_prog *progs[N_KINDS];

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":6},\"age\":{"
    "\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{"
    "\"enum\":[\"x\",\"yy\",7]},\"maxItems\":3}},\"required\":[\"name\",\"age\"],"
    "\"additionalProperties\":false}";
static const char regex[] = "(ab|cd){1,5}-[0-9]{2,4}";
static const char ebnf[] = "root ::= \"(\" root \")\" | [a-c]{1,3}";
static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"set\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"mode\":{\"enum\":[\"fast\",\"slow\"]},\"n\":{\"type\":\"integer\","
    "\"minimum\":0,\"maximum\":9}},\"required\":[\"mode\",\"n\"],"
    "\"additionalProperties\":false}}}]";

static grammar_prog *compiled(grammar_kind kind, const char *text)
{
    const grammar_spec spec = {
        .kind = kind, .text = text, .n = strlen(text), .max_whitespace = 2, .single_call = true};
    grammar_prog *p;
    di_status st = {0};

    if (grammar_compile(g, &spec, &p, NULL, &st) != DI_OK)
        fail_msg("%s", st.message);
    return p;
}

static void *state_of(const asked *a)
{
    const grammar_start start = {.last_token = a->prompt[N_PROMPT - 1], .think_budget = a->budget};
    grammar_state *s;

    assert_int_equal(grammar_state_new(a->prog, &start, &s, NULL), DI_OK);
    return s;
}

static di_request_params params_of(const asked *a)
{
    di_request_params p = a->p;

    p.mask_ctx = state_of(a);
    return p;
}

/* ---- what must hold for a text ---- */

static void check_object(const char *text, size_t n)
{
    arena *mem = arena_new(0);
    const snode *v, *tags;
    snode *root;
    di_status st = {0};

    if (stree_read(mem, text, n, "answer", &root, &st) != DI_OK)
        fail_msg("%.*s: %s", (int)n, text, st.message);
    v = stree_get(root, "name");
    assert_non_null(v);
    assert_int_equal(v->type, JSON_STRING);
    assert_true(v->n_text <= 6 * 4);
    v = stree_get(root, "age");
    assert_non_null(v);
    assert_in_range(atoi(v->text), 0, 150);
    tags = stree_get(root, "tags");
    for (v = tags ? tags->child : NULL; v; v = v->next)
        assert_true(stree_is(v, "x") || stree_is(v, "yy") || strcmp(v->text, "7") == 0);
    assert_in_range(root->n_child, 2, 3);
    arena_free(mem);
}

static void check_regex(const char *s)
{
    int words = 0, digits = 0;

    while (strncmp(s, "ab", 2) == 0 || strncmp(s, "cd", 2) == 0) {
        words++;
        s += 2;
    }
    assert_in_range(words, 1, 5);
    assert_int_equal(*s++, '-');
    while (*s >= '0' && *s <= '9') {
        digits++;
        s++;
    }
    assert_in_range(digits, 2, 4);
    assert_int_equal(*s, 0);
}

static void check_ebnf(const char *s)
{
    int open = 0, letters = 0;

    for (; *s == '('; s++)
        open++;
    for (; *s >= 'a' && *s <= 'c'; s++)
        letters++;
    assert_in_range(letters, 1, 3);
    for (; *s == ')'; s++)
        open--;
    assert_int_equal(open, 0);
    assert_int_equal(*s, 0);
}

static void check_tools(const char *s)
{
    static const char mode[] =
        "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"set\">\n<｜DSML｜ parameter name=\"mode\" "
        "string=\"true\">";
    static const char number[] =
        "</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"n\" string=\"false\">";
    static const char end[] = "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

    assert_memory_equal(s, mode, sizeof mode - 1);
    s += sizeof mode - 1;
    assert_true(strncmp(s, "fast", 4) == 0 || strncmp(s, "slow", 4) == 0);
    s += 4;
    assert_memory_equal(s, number, sizeof number - 1);
    s += sizeof number - 1;
    assert_in_range(*s, '0', '9');
    assert_string_equal(s + 1, end);
}

static void check_reply(const asked *a, const reply *r)
{
    const char *text = r->text, *think;

    assert_int_equal(r->finish, DI_FINISH_STOP);
    if (a->prompt[N_PROMPT - 1] == think_begin) {
        think = strstr(text, "</think>");
        assert_non_null(think);
        for (int i = 0; i < r->n && r->token[i] != think_end; i++)
            assert_true(i < a->budget);
        text = think + strlen("</think>");
    }
    if (a->prog == progs[SCHEMA])
        check_object(text, r->n_text - (size_t)(text - r->text));
    else if (a->prog == progs[REGEX])
        check_regex(text);
    else if (a->prog == progs[EBNF])
        check_ebnf(text);
    else
        check_tools(text);
}

/* ---- runs ---- */

/* Right drafts with a wrong one now and then. */
static int seer(void *arg, const int32_t *seen, int64_t n, int32_t *draft, int max)
{
    int64_t at = n - N_PROMPT;
    int k = 0;

    (void)arg;
    for (int i = 0; i < N_CASES; i++) {
        const asked *a = &cases[i];

        if (memcmp(seen, a->prompt, sizeof a->prompt) != 0)
            continue;
        for (; k < max && at + k < a->plain.n; k++)
            draft[k] =
                (at + k) % 7 == 6 ? 3 + (a->plain.token[at + k] + 1) % 400 : a->plain.token[at + k];
        return k;
    }
    return 0;
}

static void same_tokens(const asked *a, const reply *r)
{
    if (r->finish == DI_FINISH_ERROR)
        fail_msg("%s", r->message);
    assert_int_equal(r->finish, a->plain.finish);
    assert_int_equal(r->n, a->plain.n);
    assert_memory_equal(r->token, a->plain.token, sizeof(int32_t) * (size_t)r->n);
    assert_int_equal(r->n_text, a->plain.n_text);
    assert_memory_equal(r->text, a->plain.text, r->n_text);
}

/* All cases at once. */
static void run_all(const char *dir, di_engine_options o, bool see, uint64_t *accepted,
                    uint64_t *preempted)
{
    static reply got[N_CASES];
    di_engine *e = rig_start(dir, o);
    di_stats s;

    if (see)
        e->x.script = seer;
    for (int i = 0; i < N_CASES; i++)
        rig_submit(e, params_of(&cases[i]), &got[i]);
    rig_wait(e);
    for (int i = 0; i < N_CASES; i++)
        same_tokens(&cases[i], &got[i]);
    s = di_engine_stats(e);
    *accepted = s.accepted;
    *preempted = s.preempted;
    rig_close(e);
}

static void ask_plainly(const char *dir)
{
    di_engine *e = rig_start(
        dir, (di_engine_options){
                 .max_seqs = 1, .draft_tokens = -1, .no_prefix_cache = true, .no_async = true});

    for (int i = 0; i < N_CASES; i++) {
        asked *a = &cases[i];

        rig_ids(a->prompt, N_PROMPT);
        a->prog = progs[i % N_KINDS];
        a->budget = i % 3 == 0 ? 1 + i % 8 : 0;
        a->prompt[N_PROMPT - 1] = a->budget ? think_begin : think_end;
        a->p = rig_params(a->prompt, N_PROMPT, 400);
        a->p.temperature = i % 2 ? 1.0f : 0.0f;
        a->p.seed = (uint64_t)i;
        a->p.min_tokens = i % 5 == 0 ? 300 : 0; /* does not go on behind the end */
        a->p.mask = &grammar_provider;
        rig_ask(e, params_of(a), &a->plain);
        check_reply(a, &a->plain);
    }
    rig_close(e);
}

static void test_answers_fit_and_do_not_depend_on_drafts_or_company(void **state)
{
    static const char *const dirs[] = {MINI_F, MINI_B};
    uint64_t accepted, preempted;

    (void)state;
    for (int d = 0; d < 2; d++) {
        rig_seed(100 + (uint32_t)d);
        ask_plainly(dirs[d]);
        run_all(dirs[d], (di_engine_options){.max_seqs = 32, .draft_tokens = -1}, false, &accepted,
                &preempted);
        assert_int_equal(accepted, 0);
        run_all(dirs[d], (di_engine_options){.max_seqs = 8, .draft_tokens = 5, .draft_fixed = true},
                true, &accepted, &preempted);
        assert_true(accepted > 100);
        run_all(dirs[d], (di_engine_options){.max_seqs = 8}, false, &accepted, &preempted);
    }
}

static void test_preempted_answers_go_on(void **state)
{
    uint64_t accepted, preempted;

    (void)state;
    rig_seed(200);
    ask_plainly(MINI_F);
    run_all(MINI_F, (di_engine_options){.max_seqs = 16, .kv_tokens = 1024, .max_context = 512},
            true, &accepted, &preempted);
    assert_true(preempted > 0);
}

static void test_choices_of_a_request_have_states_of_their_own(void **state)
{
    static reply got[4];
    asked *a = &cases[0];
    di_request_params p;
    di_engine *e = rig_start(MINI_F, (di_engine_options){0});

    (void)state;
    rig_seed(300);
    rig_ids(a->prompt, N_PROMPT);
    a->prog = progs[SCHEMA];
    a->budget = 0;
    a->p = rig_params(a->prompt, N_PROMPT, 400);
    a->p.temperature = 1;
    a->p.mask = &grammar_provider;
    p = params_of(a);
    p.n = 4;
    rig_ask(e, p, got);
    for (int i = 0; i < 4; i++)
        check_reply(a, &got[i]);
    assert_true(strcmp(got[0].text, got[1].text) != 0 || strcmp(got[1].text, got[2].text) != 0);
    rig_close(e);
}

/* A10: the first token of the value comes in one step with the end of thinking, at each offset. */
static void test_thinking_may_end_anywhere_in_a_draft(void **state)
{
    di_engine *e = rig_start(MINI_F, (di_engine_options){.draft_tokens = 6, .draft_fixed = true});
    asked *a = &cases[0];
    static reply got;

    (void)state;
    rig_seed(400);
    e->x.script = seer;
    memset(cases, 0, sizeof cases);
    for (int budget = 1; budget <= 7; budget++) {
        rig_ids(a->prompt, N_PROMPT);
        a->prompt[N_PROMPT - 1] = think_begin;
        a->prog = progs[SCHEMA];
        a->budget = budget;
        a->p = rig_params(a->prompt, N_PROMPT, 400);
        a->p.temperature = 1;
        a->p.mask = &grammar_provider;
        rig_plain(MINI_F, params_of(a), &a->plain);
        check_reply(a, &a->plain);
        rig_ask(e, params_of(a), &got);
        same_tokens(a, &got);
        assert_true(got.usage.accepted > 0);
    }
    rig_close(e);
}

/* ---- set-up ---- */

static int open_all(void **state)
{
    const tokenizer *tok = model_parts_tokenizer(rig_model(MINI_F));
    int32_t eos = tokenizer_added_id(tok, "<｜end▁of▁sentence｜>");
    di_status st = {0};

    (void)state;
    think_begin = tokenizer_added_id(tok, "<think>");
    think_end = tokenizer_added_id(tok, "</think>");
    dsml = tokenizer_added_id(tok, "｜DSML｜");
    assert_true(eos >= 0 && think_begin >= 0 && think_end >= 0 && dsml >= 0);
    assert_int_equal(
        grammar_new(&g, tok, di_model_get_info(rig_model(MINI_F)).vocab, &eos, 1, NULL, &st),
        DI_OK);
    if (grammar_prepare(g, &st) != DI_OK) {
        printf("skipped: %s\n", st.message);
        grammar_free(g);
        rig_close_models();
        exit(77);
    }
    progs[SCHEMA] = compiled(GRAMMAR_JSON, schema);
    progs[REGEX] = compiled(GRAMMAR_REGEX, regex);
    progs[EBNF] = compiled(GRAMMAR_EBNF, ebnf);
    progs[TOOLS] = compiled(GRAMMAR_TOOL_CALL_REQUIRED, tools);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int i = 0; i < N_KINDS; i++)
        grammar_prog_unref(progs[i]);
    grammar_free(g);
    rig_close_models();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_fit_and_do_not_depend_on_drafts_or_company),
        cmocka_unit_test(test_preempted_answers_go_on),
        cmocka_unit_test(test_choices_of_a_request_have_states_of_their_own),
        cmocka_unit_test(test_thinking_may_end_anywhere_in_a_draft),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
