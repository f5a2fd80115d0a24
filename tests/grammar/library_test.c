/* The library behind constraints: what happens when it is absent, or another one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "grammar/grammar.h"

#define TOKENIZER "models/tiny/tokenizer.json"

static tokenizer *tok;
static int vocab;
static int32_t eos;

static void refused(const char *library, const char *why)
{
    const grammar_options opt = {.library = library};
    const grammar_spec spec = {.kind = GRAMMAR_REGEX, .text = "a", .n = 1};
    grammar *own;
    grammar_prog *p;
    grammar_detail d;
    di_status st = {0};

    assert_int_equal(grammar_new(&own, tok, vocab, &eos, 1, &opt, NULL), DI_OK);
    for (int i = 0; i < 2; i++) {
        st = (di_status){0};
        assert_int_equal(grammar_compile(own, &spec, &p, &d, &st), DI_E_UNSUPPORTED);
        assert_int_equal(d.fault, GRAMMAR_FAULT_UNAVAILABLE);
        if (!strstr(st.message, why))
            fail_msg("%s", st.message);
        assert_int_equal(di_code_http(st.code), 501);
    }
    grammar_free(own);
}

static void test_a_library_that_is_absent_or_another_is_refused(void **state)
{
    (void)state;
    refused("/nowhere/libllguidance.so", "cannot open");
    refused("libm.so.6", "has no llg_");
    refused(FAKE_LIBRARY, "is llguidance@2.0.0, but llguidance@1.9.x is needed");
}

static int open_tokenizer(void **state)
{
    di_status st = {0};

    (void)state;
    if (tokenizer_load(&tok, TOKENIZER, &st) != DI_OK)
        fail_msg("%s", st.message);
    vocab = tokenizer_n_ids(tok);
    eos = tokenizer_added_id(tok, "<｜end▁of▁sentence｜>");
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    tokenizer_free(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_library_that_is_absent_or_another_is_refused),
    };

    return cmocka_run_group_tests_name("library", tests, open_tokenizer, close_tokenizer);
}
