/* Streams of text: splitting off the reasoning, and stop strings across pieces. Every case is fed
 * whole, byte by byte and cut at each point: the result may not depend on the cuts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "recipe/stop.h"
#include "recipe/think.h"

static void check_split(bool thinking, const char *text, size_t cut, size_t step,
                        const char *want_reasoning, const char *want_content)
{
    think_split t;
    str reasoning = {0}, content = {0};
    size_t n = strlen(text);

    think_init(&t, thinking);
    think_push(&t, text, cut, &reasoning, &content);
    for (size_t at = cut; at < n; at += step)
        think_push(&t, text + at, n - at < step ? n - at : step, &reasoning, &content);
    think_flush(&t, &reasoning, &content);
    assert_string_equal(str_text(&reasoning), want_reasoning);
    assert_string_equal(str_text(&content), want_content);
    think_fini(&t);
    str_fini(&reasoning);
    str_fini(&content);
}

static void splits(bool thinking, const char *text, const char *reasoning, const char *content)
{
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        check_split(thinking, text, cut, strlen(text) + 1, reasoning, content);
        check_split(thinking, text, cut, 1, reasoning, content);
    }
}

static void test_reasoning_ends_at_the_marker(void **state)
{
    (void)state;
    splits(true, "2+2=4</think>Four.", "2+2=4", "Four.");
    splits(true, "no end", "no end", "");
    splits(true, "</think>at once", "", "at once");
    splits(true, "", "", "");
}

static void test_newlines_around_the_marker_are_dropped(void **state)
{
    (void)state;
    splits(true, "\n\nreason\n\n</think>\n\nanswer\n", "reason", "answer\n");
    splits(true, "a\n\nb\n</thin\n</think>c", "a\n\nb\n</thin", "c");
    splits(false, "\n\nanswer\n\nmore", "", "answer\n\nmore");
}

static void test_stray_and_unfinished_markers(void **state)
{
    (void)state;
    splits(false, "a</think>b", "", "ab");
    splits(true, "a</think>b</think>c", "a", "bc");
    splits(true, "a</thi", "a</thi", "");
    splits(false, "1 < 2 <</think", "", "1 < 2 <</think");
    splits(true, "x<</think>y", "x<", "y");
    splits(true, "end\n\n", "end\n\n", "");
}

static void test_text_before_a_possible_marker_is_not_delayed(void **state)
{
    think_split t;
    str r = {0}, c = {0};

    (void)state;
    think_init(&t, true);
    think_push(&t, "y</", 3, &r, &c);
    assert_string_equal(str_text(&r), "y");
    think_push(&t, "b>", 2, &r, &c);
    assert_string_equal(str_text(&r), "y</b>");
    think_fini(&t);
    str_fini(&r);
    str_fini(&c);
}

static void check_stop(const char *const *stop, size_t n_stop, const char *text, size_t cut,
                       size_t step, const char *want, int matched)
{
    size_t len[STOP_MAX], n = strlen(text);
    stop_match m;
    str out = {0};
    bool found;

    for (size_t i = 0; i < n_stop; i++)
        len[i] = strlen(stop[i]);
    assert_int_equal(stop_init(&m, stop, len, n_stop, NULL), DI_OK);
    found = stop_push(&m, text, cut, &out);
    for (size_t at = cut; at < n; at += step)
        found = stop_push(&m, text + at, n - at < step ? n - at : step, &out);
    stop_flush(&m, &out);
    assert_string_equal(str_text(&out), want);
    assert_int_equal(m.matched, matched);
    assert_int_equal(found, matched >= 0);
    stop_fini(&m);
    str_fini(&out);
}

static void stops(const char *const *stop, size_t n_stop, const char *text, const char *want,
                  int matched)
{
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        check_stop(stop, n_stop, text, cut, strlen(text) + 1, want, matched);
        check_stop(stop, n_stop, text, cut, 1, want, matched);
    }
}

static void test_stop_string_across_pieces_is_never_shown(void **state)
{
    const char *const stop[] = {"DEFGHIJ"};

    (void)state;
    stops(stop, 1, "ABCDEFGHIJKL", "ABC", 0);
    stops(stop, 1, "DEFGHIJ", "", 0);
    stops(stop, 1, "ABCDEFGHI", "ABCDEFGHI", -1);
    stops(stop, 1, "DEFDEFGHDEFGHIJ", "DEFDEFGH", 0);
}

static void test_stop_string_inside_a_piece_cuts_before_it(void **state)
{
    const char *const stop[] = {"gamma"};

    (void)state;
    stops(stop, 1, "alpha gammas", "alpha ", 0);
}

static void test_the_stop_string_that_is_complete_first_wins(void **state)
{
    const char *const stop[] = {"abcd", "bc", "c"};

    (void)state;
    stops(stop, 3, "xabcd", "xa", 1);
    stops(stop, 3, "xc", "x", 2);
    stops(stop + 1, 1, "xabcd", "xa", 0);
}

static void test_overlapping_prefixes_are_found(void **state)
{
    const char *const stop[] = {"aab"};

    (void)state;
    stops(stop, 1, "aaab", "a", 0);
    stops(stop, 1, "aaa", "aaa", -1);
}

static void test_refuted_prefix_comes_out_at_once(void **state)
{
    const char *const stop[] = {"STOP"};
    const size_t len[] = {4};
    stop_match m;
    str out = {0};

    (void)state;
    assert_int_equal(stop_init(&m, stop, len, 1, NULL), DI_OK);
    assert_false(stop_push(&m, "Hello S", 7, &out));
    assert_string_equal(str_text(&out), "Hello ");
    assert_false(stop_push(&m, "a", 1, &out));
    assert_string_equal(str_text(&out), "Hello Sa");
    stop_fini(&m);
    str_fini(&out);
}

static void test_impossible_stop_strings_are_refused(void **state)
{
    const char *stop[STOP_MAX + 1];
    size_t len[STOP_MAX + 1];
    stop_match m;
    di_status st = {0};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(stop); i++) {
        stop[i] = "s";
        len[i] = 1;
    }
    assert_int_equal(stop_init(&m, stop, len, STOP_MAX + 1, &st), DI_E_INVALID);
    assert_non_null(strstr(st.message, "too long: 17"));
    di_clear(&st);
    len[1] = 0;
    assert_int_equal(stop_init(&m, stop, len, 2, &st), DI_E_INVALID);
    assert_non_null(strstr(st.message, "stop[1]"));
    mem_fail_at(1);
    assert_int_equal(stop_init(&m, stop, len, 1, NULL), DI_E_NOMEM);
    mem_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reasoning_ends_at_the_marker),
        cmocka_unit_test(test_newlines_around_the_marker_are_dropped),
        cmocka_unit_test(test_stray_and_unfinished_markers),
        cmocka_unit_test(test_text_before_a_possible_marker_is_not_delayed),
        cmocka_unit_test(test_stop_string_across_pieces_is_never_shown),
        cmocka_unit_test(test_stop_string_inside_a_piece_cuts_before_it),
        cmocka_unit_test(test_the_stop_string_that_is_complete_first_wins),
        cmocka_unit_test(test_overlapping_prefixes_are_found),
        cmocka_unit_test(test_refuted_prefix_comes_out_at_once),
        cmocka_unit_test(test_impossible_stop_strings_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
