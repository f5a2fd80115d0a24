/* Constraints that are kept, compiled beside, or run out of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "grammar/rig.h"

static void test_a_constraint_is_compiled_once(void **state)
{
    grammar_spec spec = spec_of(GRAMMAR_REGEX, "once( upon)?"), other = spec;
    grammar_cache_counts before = grammar_get_counts(g), after;
    grammar_prog *a = compiled(spec), *b = compiled(spec), *c;
    grammar_detail d;

    (void)state;
    other.strict = true;
    c = compiled(other);
    after = grammar_get_counts(g);
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    assert_int_equal(after.misses - before.misses, 2);
    assert_int_equal(after.hits - before.hits, 1);
    grammar_prog_unref(a);
    grammar_prog_unref(b);
    grammar_prog_unref(c);

    spec = spec_of(GRAMMAR_REGEX, "(once");
    for (int i = 0; i < 2; i++) {
        di_status st = {0};

        assert_int_equal(grammar_compile(g, &spec, &a, &d, &st), DI_E_INVALID);
        assert_null(a);
        assert_int_equal(d.fault, GRAMMAR_FAULT_SYNTAX);
        assert_non_null(strstr(st.message, "unclosed group"));
    }
    assert_int_equal(grammar_get_counts(g).misses - after.misses, 1);
}

static void test_the_cache_drops_what_was_used_least_recently(void **state)
{
    const grammar_options opt = {.cache_bytes = (size_t)20 << 20};
    grammar *small;
    grammar_cache_counts n;
    grammar_prog *kept = NULL, *p;
    char text[40];

    (void)state;
    assert_int_equal(grammar_new(&small, tok, vocab, &eos, 1, &opt, NULL), DI_OK);
    for (int i = 0; i < 30; i++) {
        grammar_spec spec = spec_of(GRAMMAR_REGEX, text);

        snprintf(text, sizeof text, "a{%d}", i + 1);
        spec.n = strlen(text);
        assert_int_equal(grammar_compile(small, &spec, &p, NULL, NULL), DI_OK);
        if (i == 0)
            kept = p;
        else
            grammar_prog_unref(p);
    }
    n = grammar_get_counts(small);
    assert_true(n.evicted >= 20 && n.bytes <= opt.cache_bytes);
    assert_true(takes(kept, "a", false)); /* who holds one goes on using it */
    grammar_prog_unref(kept);
    grammar_free(small);
}

typedef struct outcome {
    atomic_int n_done, n_good, n_cancelled;
} outcome;

static void note(void *arg, grammar_prog *p, const grammar_detail *d, const di_status *st)
{
    outcome *o = arg;

    atomic_fetch_add(&o->n_good, p != NULL);
    atomic_fetch_add(&o->n_cancelled, d->fault == GRAMMAR_FAULT_CANCELLED);
    assert_true(p || st->code != DI_OK);
    grammar_prog_unref(p);
    atomic_fetch_add(&o->n_done, 1); /* last: the test may end now */
}

static void test_background_compilations_report_once_also_when_cancelled(void **state)
{
    enum { N = 40 };
    static char text[N][60];
    uint64_t ticket[N];
    outcome o = {0};
    grammar *own;

    (void)state;
    assert_int_equal(grammar_new(&own, tok, vocab, &eos, 1, NULL, NULL), DI_OK);
    for (int i = 0; i < N; i++) {
        grammar_spec spec = spec_of(GRAMMAR_REGEX, text[i]);

        snprintf(text[i], sizeof text[i], "[a-z]{1,%d}( x|y){3}", i / 2 + 1);
        spec.n = strlen(text[i]);
        assert_int_equal(grammar_compile_start(own, &spec, note, &o, &ticket[i], NULL), DI_OK);
        if (i % 4 == 3)
            grammar_cancel(own, ticket[i]);
    }
    grammar_cancel(own, 1000000);
    for (int i = 0; i < 10000 && o.n_done < N; i++)
        usleep(1000);
    assert_int_equal(o.n_done, N);
    assert_int_equal(o.n_good + o.n_cancelled, N);
    assert_true(o.n_good >= N - N / 4);
    grammar_free(own);

    /* what still waits when everything ends is cancelled */
    o = (outcome){0};
    assert_int_equal(grammar_new(&own, tok, vocab, &eos, 1, NULL, NULL), DI_OK);
    for (int i = 0; i < N; i++) {
        grammar_spec spec = spec_of(GRAMMAR_REGEX, text[i]);

        assert_int_equal(grammar_compile_start(own, &spec, note, &o, &ticket[i], NULL), DI_OK);
    }
    grammar_free(own);
    assert_int_equal(o.n_done, N);
}

static void test_a_state_may_outlive_its_constraints(void **state)
{
    grammar_spec spec = spec_of(GRAMMAR_JSON, person);
    grammar *own;
    grammar_prog *p;
    grammar_state *s;

    (void)state;
    assert_int_equal(grammar_new(&own, tok, vocab, &eos, 1, NULL, NULL), DI_OK);
    assert_int_equal(grammar_compile(own, &spec, &p, NULL, NULL), DI_OK);
    s = begun(p, think_end);
    grammar_prog_unref(p);
    grammar_free(own);
    grammar_state_free(s);
}

static void test_running_out_of_memory_is_reported(void **state)
{
    const grammar_spec specs[] = {
        spec_of(GRAMMAR_JSON, person), spec_of(GRAMMAR_TOOL_CALL, tools),
        spec_of(GRAMMAR_EBNF, "root ::= \"a\" root | [b-d]{2} x\nx ::= \"x\"?")};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(specs); i++) {
        grammar *own;
        di_code rc = DI_E_NOMEM;
        int n = 0;

        assert_int_equal(grammar_new(&own, tok, vocab, &eos, 1, NULL, NULL), DI_OK);
        assert_int_equal(grammar_prepare(own, NULL), DI_OK);
        while (rc == DI_E_NOMEM) {
            grammar_prog *p;

            mem_fail_at((uint64_t)++n);
            rc = grammar_compile(own, &specs[i], &p, NULL, NULL);
            mem_fail_at(0);
            grammar_prog_unref(p);
        }
        assert_int_equal(rc, DI_OK);
        assert_true(n > 5);
        grammar_free(own);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_constraint_is_compiled_once),
        cmocka_unit_test(test_the_cache_drops_what_was_used_least_recently),
        cmocka_unit_test(test_background_compilations_report_once_also_when_cancelled),
        cmocka_unit_test(test_a_state_may_outlive_its_constraints),
        cmocka_unit_test(test_running_out_of_memory_is_reported),
    };

    return cmocka_run_group_tests_name("grammar cache", tests, rig_open, rig_close);
}
