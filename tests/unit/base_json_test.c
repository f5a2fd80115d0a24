/* JSON reader and writer: values, malformed texts and where they are located, round trips. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/rng.h"

/* Open a copy without a 0 behind it, so that a sanitizer sees any read past the end. */
static char *open_copy(json_read *r, const char *text, size_t n)
{
    char *copy = malloc(n ? n : 1);

    assert_non_null(copy);
    memcpy(copy, text, n);
    json_open(r, copy, n, "t.json");
    return copy;
}

static di_code skip_all(const char *text, size_t n, di_status *st)
{
    json_read r;
    char *copy = open_copy(&r, text, n);
    di_code rc = json_skip(&r, st);

    if (rc == DI_OK)
        rc = json_end(&r, st);
    json_close(&r);
    free(copy);
    return rc;
}

static void test_reads_a_nested_document_in_order(void **state)
{
    const char text[] = " {\"a\": [1, -2 ,3.5e1], \"b\":{\"c\":true,\"d\":null} , \"\":\"x\"} \n";
    static const char *const keys[] = {"a", "b", ""};
    const char *key = NULL, *s;
    json_read r;
    size_t n = 0;
    int64_t i;
    double d;
    bool b;
    int at = 0;
    char *copy = open_copy(&r, text, sizeof text - 1);

    (void)state;
    assert_int_equal(json_peek(&r), JSON_OBJECT);
    assert_int_equal(json_object(&r, NULL), DI_OK);
    while (at < 3 && json_key(&r, &key, &n)) {
        assert_true(json_key_is(key, n, keys[at]));
        if (at == 0) {
            assert_int_equal(json_array(&r, NULL), DI_OK);
            assert_true(json_item(&r));
            assert_int_equal(json_int(&r, &i, NULL), DI_OK);
            assert_int_equal(i, 1);
            assert_true(json_item(&r));
            assert_int_equal(json_int(&r, &i, NULL), DI_OK);
            assert_int_equal(i, -2);
            assert_true(json_item(&r));
            assert_int_equal(json_number(&r, &d, NULL), DI_OK);
            assert_true(d == 35.0);
            assert_int_equal(json_peek(&r), JSON_NONE);
            assert_false(json_item(&r));
        } else if (at == 1) {
            assert_int_equal(json_object(&r, NULL), DI_OK);
            assert_true(json_key(&r, &key, &n));
            assert_int_equal(json_bool(&r, &b, NULL), DI_OK);
            assert_true(b);
            assert_true(json_key(&r, &key, &n));
            assert_int_equal(json_peek(&r), JSON_NULL);
            assert_int_equal(json_null(&r, NULL), DI_OK);
            assert_false(json_key(&r, &key, &n));
        } else {
            assert_int_equal(json_string(&r, &s, &n, NULL), DI_OK);
            assert_memory_equal(s, "x", 1);
        }
        at++;
    }
    assert_int_equal(at, 3);
    assert_false(json_key(&r, &key, &n));
    assert_int_equal(json_end(&r, NULL), DI_OK);
    json_close(&r);
    free(copy);
}

static void test_well_formed_texts_are_accepted(void **state)
{
    static const char *const texts[] = {"0",
                                        "-0",
                                        "1e5",
                                        "1E+05",
                                        "0.5e-7",
                                        "true",
                                        "false",
                                        "null",
                                        "\"\"",
                                        "[]",
                                        "{}",
                                        "\t[ ]\r\n",
                                        "[[],[[]],{}]",
                                        "{\"a\":{\"a\":[{}]}}",
                                        "\"\\u0000\\ud83d\\ude00\\/\\b\"",
                                        "\"\x7f\xc3\xa9\xf0\x9f\x98\x80\"",
                                        "{\"a\":1,\"a\":2}"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        di_status st = {0};

        if (skip_all(texts[i], strlen(texts[i]), &st) != DI_OK)
            fail_msg("%s: %s", texts[i], st.message);
    }
}

static void test_malformed_texts_are_refused_where_they_break(void **state)
{
    static const struct {
        const char *text, *message; /* part of the message */
    } cases[] = {
        {"", "t.json:1:1: the text ends too early"},
        {" \n ", "t.json:2:2: the text ends"},
        {"[1,]", "t.json:1:4: a value"},
        {"[,1]", "t.json:1:2: a value"},
        {"[1 2]", "t.json:1:4: \",\" or \"]\""},
        {"[1", "t.json:1:3: the text ends"},
        {"[1}", "t.json:1:3: \",\" or \"]\""},
        {"{\"a\":1,}", "t.json:1:8: a key"},
        {"{\"a\" 1}", "t.json:1:6: \":\""},
        {"{\"a\":}", "t.json:1:6: a value"},
        {"{a:1}", "t.json:1:2: a key"},
        {"{\"a\":1", "t.json:1:7: the text ends"},
        {"{\"a\":1]", "t.json:1:7: \",\" or \"}\""},
        {"{\"a\"", "t.json:1:5: \":\""},
        {"{1:2}", "t.json:1:2: a key"},
        {"1 2", "t.json:1:3: text behind the value"},
        {"{} x", "t.json:1:4: text behind"},
        {"]", "t.json:1:1: a value"},
        {"\xef\xbb\xbf{}", "t.json:1:1: a value"},
        {"'a'", "t.json:1:1: a value"},
        {"// c", "t.json:1:1: a value"},
        {"tru", "true, false or null"},
        {"nul", "true, false or null"},
        {"fals", "true, false or null"},
        {"truex", "text behind"},
        {"NaN", "a value"},
        {"Infinity", "a value"},
        {"+1", "a value"},
        {".5", "a value"},
        {"-", "t.json:1:2: a digit"},
        {"-a", "t.json:1:2: a digit"},
        {"01", "must not begin with 0"},
        {"-01", "t.json:1:2: a number must not begin with 0"},
        {"1.", "behind the point"},
        {"1.e5", "behind the point"},
        {"1e", "in the exponent"},
        {"1e+", "t.json:1:4: a digit is expected in the exponent"},
        {"0x10", "text behind"},
        {"\"a", "ends inside a string"},
        {"\"a\\", "unknown escape"},
        {"\"a\\\"", "ends inside a string"},
        {"\"\\x41\"", "t.json:1:2: unknown escape"},
        {"\"\\u12\"", "four hexadecimal"},
        {"\"\\u12g4\"", "four hexadecimal"},
        {"\"\\ud800\"", "without its low"},
        {"\"\\ud800\\n\"", "without its low"},
        {"\"\\ud800\\ud800\"", "without its low"},
        {"\"\\udc00\"", "without its high"},
        {"\"a\tb\"", "t.json:1:3: a control character"},
        {"\"a\nb\"", "a control character"},
        {"\"abcdefgh\x01\"", "t.json:1:10: a control character"},
        {"\"\xff\"", "ill-formed UTF-8"},
        {"\"\xc0\x80\"", "ill-formed UTF-8"},
        {"\"\xed\xa0\x80\"", "ill-formed UTF-8"},
        {"\"\xe2\x82\"", "ill-formed UTF-8"},
        {"{\"\xff\":1}", "ill-formed UTF-8"},
        {"[\"\xc3\xa9\",\n\"\xc3\xa9\xc3\xa9\" x]", "t.json:2:6: \",\" or \"]\""},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        di_status st = {0};

        assert_int_equal(skip_all(cases[i].text, strlen(cases[i].text), &st), DI_E_FORMAT);
        if (!strstr(st.message, cases[i].message))
            fail_msg("%s: \"%s\" does not hold \"%s\"", cases[i].text, st.message,
                     cases[i].message);
    }
    assert_int_equal(skip_all("1\0", 2, NULL), DI_E_FORMAT);
    assert_int_equal(skip_all("\0", 1, NULL), DI_E_FORMAT);
}

static void test_every_truncation_of_a_document_is_refused(void **state)
{
    const char text[] = "{\"k\\u00e9y\": [1.5e3, true, null, \"\\ud83d\\ude00\xc3\xa9\", {}, []]}";

    (void)state;
    for (size_t n = 0; n < sizeof text - 1; n++)
        assert_int_equal(skip_all(text, n, NULL), DI_E_FORMAT);
    assert_int_equal(skip_all(text, sizeof text - 1, NULL), DI_OK);
}

static void test_depth_is_bounded(void **state)
{
    char text[3 * JSON_MAX_DEPTH];
    di_status st = {0};

    (void)state;
    for (int depth = JSON_MAX_DEPTH - 1; depth <= JSON_MAX_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        assert_int_equal(skip_all(text, 2 * (size_t)depth, &st),
                         depth <= JSON_MAX_DEPTH ? DI_OK : DI_E_FORMAT);
    }
    assert_non_null(strstr(st.message, "t.json:1:65: nested too deeply"));
}

static void test_a_wrong_type_is_named(void **state)
{
    di_status st = {0};
    json_read r;
    int64_t i;

    (void)state;
    json_open(&r, "{\"a\":\n \"x\"}", 11, "config.json");
    assert_int_equal(json_array(&r, &st), DI_E_FORMAT);
    assert_string_equal(st.message, "config.json:1:1: an array is expected, not an object");
    di_clear(&st);
    assert_int_equal(json_object(&r, &st), DI_OK); /* a wrong guess does not spoil the reader */
    assert_true(json_key(&r, &(const char *){0}, &(size_t){0}));
    assert_int_equal(json_int(&r, &i, &st), DI_E_FORMAT);
    assert_string_equal(st.message, "config.json:2:2: a number is expected, not a string");
    json_close(&r);
}

static void test_integers_cover_64_bits_and_nothing_else(void **state)
{
    static const struct {
        const char *text;
        bool ok;
        int64_t value;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"99999999999999999999999999", false, 0},
        {"1.0", false, 0},
        {"1e3", false, 0},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        json_read r;
        int64_t v = 77;
        char *copy = open_copy(&r, cases[i].text, strlen(cases[i].text));

        assert_int_equal(json_int(&r, &v, NULL), cases[i].ok ? DI_OK : DI_E_FORMAT);
        assert_int_equal(v, cases[i].ok ? cases[i].value : 77);
        json_close(&r);
        free(copy);
    }
}

static void test_numbers_are_the_nearest_double(void **state)
{
    static const struct {
        const char *text;
        double value;
    } cases[] = {
        {"0.1", 0.1},
        {"-1.5", -1.5},
        {"1e22", 1e22},
        {"5e-324", 0x1p-1074},
        {"2e-324", 0.0},
        {"1.7976931348623157e308", DBL_MAX},
        {"9007199254740993", 9007199254740992.0}, /* a tie: to even */
        {"9007199254740993.00000000000000000000000000000000000001", 9007199254740994.0},
    };
    json_read r;
    double v;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char *copy = open_copy(&r, cases[i].text, strlen(cases[i].text));

        assert_int_equal(json_number(&r, &v, NULL), DI_OK);
        assert_true(v == cases[i].value);
        json_close(&r);
        free(copy);
    }
    json_open(&r, "1e999", 5, "t.json");
    assert_int_equal(json_number(&r, &v, NULL), DI_E_FORMAT);
    json_close(&r);
}

static void test_strings_are_decoded(void **state)
{
    const char text[] = "\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\u00e9\\uD83D\\uDE00z\"";
    const char want[] = "a\"\\/\b\f\n\r\t\0\xc3\xa9\xf0\x9f\x98\x80z";
    const char *s;
    json_read r;
    size_t n;
    char *copy = open_copy(&r, text, sizeof text - 1);

    (void)state;
    assert_int_equal(json_string(&r, &s, &n, NULL), DI_OK);
    assert_int_equal(n, sizeof want - 1);
    assert_memory_equal(s, want, n);
    assert_int_equal(json_end(&r, NULL), DI_OK);
    json_close(&r);
    free(copy);
}

static void test_raw_gives_the_text_of_a_value(void **state)
{
    json_read r;
    const char *s;
    size_t n;

    (void)state;
    json_open(&r, "[ {\"a\" : [1]} , 2 ]", 19, "t.json");
    assert_int_equal(json_array(&r, NULL), DI_OK);
    assert_true(json_item(&r));
    assert_int_equal(json_raw(&r, &s, &n, NULL), DI_OK);
    assert_int_equal(n, 11);
    assert_memory_equal(s, "{\"a\" : [1]}", 11);
    assert_true(json_item(&r));
    assert_int_equal(json_raw(&r, &s, &n, NULL), DI_OK);
    assert_int_equal(n, 1);
    assert_memory_equal(s, "2", 1);
    assert_false(json_item(&r));
    assert_int_equal(json_end(&r, NULL), DI_OK);
    json_close(&r);
}

static void test_an_unfinished_document_is_no_end(void **state)
{
    di_status st = {0};
    json_read r;

    (void)state;
    json_open(&r, "[1]", 3, "t.json");
    assert_int_equal(json_array(&r, NULL), DI_OK);
    assert_int_equal(json_end(&r, &st), DI_E_FORMAT);
    assert_non_null(strstr(st.message, "not closed"));
    json_close(&r);
}

static void test_reader_reports_no_memory(void **state)
{
    const char *s;
    json_read r;
    size_t n;

    (void)state;
    json_open(&r, "\"a\\n\"", 5, "t.json");
    mem_fail_at(1);
    assert_int_equal(json_string(&r, &s, &n, NULL), DI_E_NOMEM);
    mem_fail_at(0);
    assert_int_equal(json_end(&r, NULL), DI_E_NOMEM);
    json_close(&r);
}

static void test_writer_places_commas_and_escapes(void **state)
{
    str s = {0};
    json_write w = {.out = &s};

    (void)state;
    jw_object(&w);
    jw_key(&w, "a\"");
    jw_array(&w);
    jw_int(&w, INT64_MIN);
    jw_uint(&w, UINT64_MAX);
    jw_bool(&w, true);
    jw_null(&w);
    jw_array(&w);
    jw_end(&w);
    jw_end(&w);
    jw_key(&w, "s");
    jw_string(&w, "\\\"\b\f\n\r\t\x01\x1f\0/\x7f\xc3\xa9", 14);
    jw_key(&w, "raw");
    jw_raw(&w, "[1]", 3);
    jw_end(&w);
    assert_string_equal(str_text(&s),
                        "{\"a\\\"\": [-9223372036854775808, 18446744073709551615, true, null, []], "
                        "\"s\": \"\\\\\\\"\\b\\f\\n\\r\\t\\u0001\\u001f\\u0000/\x7f\xc3\xa9\", "
                        "\"raw\": [1]}");
    str_fini(&s);
}

static void test_writer_indents(void **state)
{
    str s = {0};
    json_write w = {.out = &s, .indent = 2};

    (void)state;
    jw_object(&w);
    jw_key(&w, "a");
    jw_array(&w);
    jw_int(&w, 1);
    jw_int(&w, 2);
    jw_end(&w);
    jw_key(&w, "b");
    jw_object(&w);
    jw_end(&w);
    jw_end(&w);
    assert_string_equal(str_text(&s), "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}");
    str_fini(&s);
}

static void test_writer_replaces_ill_formed_utf8_by_maximal_subparts(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"a\xff\xfe"
         "b",
         "\"a\xef\xbf\xbd\xef\xbf\xbd"
         "b\""},
        {"\xe2\x82", "\"\xef\xbf\xbd\""},
        {"\xe2\x82z", "\"\xef\xbf\xbdz\""},
        {"\xf0\x80\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        str s = {0};
        json_write w = {.out = &s};

        jw_cstr(&w, cases[i].text);
        assert_string_equal(str_text(&s), cases[i].want);
        str_fini(&s);
    }
}

static void check_number(double v, const char *want)
{
    str s = {0};
    json_write w = {.out = &s};
    json_read r;
    double back = 0;

    jw_number(&w, v);
    if (want)
        assert_string_equal(str_text(&s), want);
    json_open(&r, str_text(&s), s.len, "t.json");
    assert_int_equal(json_number(&r, &back, NULL), DI_OK);
    assert_int_equal(json_end(&r, NULL), DI_OK);
    assert_memory_equal(&back, &v, sizeof v); /* the sign of zero too */
    json_close(&r);
    str_fini(&s);
}

static void test_written_numbers_are_short_and_read_back_exactly(void **state)
{
    (void)state;
    check_number(0, "0");
    check_number(-0.0, "-0");
    check_number(1, "1");
    check_number(0.1, "0.1");
    check_number(0.1 + 0.2, "0.30000000000000004");
    check_number(0x1p-1074, "5e-324");
    check_number(DBL_MAX, "1.7976931348623157e+308");
    for (uint32_t i = 0; i < 20000; i++) {
        philox_block b = philox4x32((philox_block){{i, 0, 0, 0}}, 1, 2);
        uint64_t bits = (uint64_t)b.v[0] << 32 | b.v[1];
        double v;

        if (i % 4 == 0)
            bits &= 0x801FFFFFFFFFFFFFu; /* subnormal and the smallest normal ones */
        memcpy(&v, &bits, sizeof v);
        if (isfinite(v))
            check_number(v, NULL);
    }
}

static void test_numbers_do_not_depend_on_the_locale(void **state)
{
    (void)state;
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "fr_FR.UTF-8"))
        skip(); /* no locale with a decimal comma is installed */
    check_number(0.5, "0.5");
    setlocale(LC_ALL, "C");
}

static void test_writer_writes_null_for_what_json_has_no_number_for(void **state)
{
    str s = {0};
    json_write w = {.out = &s};

    (void)state;
    jw_array(&w);
    jw_number(&w, (double)NAN);
    jw_number(&w, -(double)INFINITY);
    jw_end(&w);
    assert_string_equal(str_text(&s), "[null, null]");
    str_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_a_nested_document_in_order),
        cmocka_unit_test(test_well_formed_texts_are_accepted),
        cmocka_unit_test(test_malformed_texts_are_refused_where_they_break),
        cmocka_unit_test(test_every_truncation_of_a_document_is_refused),
        cmocka_unit_test(test_depth_is_bounded),
        cmocka_unit_test(test_a_wrong_type_is_named),
        cmocka_unit_test(test_integers_cover_64_bits_and_nothing_else),
        cmocka_unit_test(test_numbers_are_the_nearest_double),
        cmocka_unit_test(test_strings_are_decoded),
        cmocka_unit_test(test_raw_gives_the_text_of_a_value),
        cmocka_unit_test(test_an_unfinished_document_is_no_end),
        cmocka_unit_test(test_reader_reports_no_memory),
        cmocka_unit_test(test_writer_places_commas_and_escapes),
        cmocka_unit_test(test_writer_indents),
        cmocka_unit_test(test_writer_replaces_ill_formed_utf8_by_maximal_subparts),
        cmocka_unit_test(test_written_numbers_are_short_and_read_back_exactly),
        cmocka_unit_test(test_numbers_do_not_depend_on_the_locale),
        cmocka_unit_test(test_writer_writes_null_for_what_json_has_no_number_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
