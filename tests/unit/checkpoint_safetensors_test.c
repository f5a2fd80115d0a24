/* One safetensors file: sound ones are read, every kind of lie is refused with a clean message. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/mem.h"
#include "checkpoint/safetensors.h"

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end   \
    "]}"

static di_code parse(st_header *h, const char *text, uint64_t data_bytes, di_status *st)
{
    *st = (di_status){.code = DI_OK};
    return st_header_parse(h, text, strlen(text), data_bytes, "x.safetensors", st);
}

typedef struct lie {
    const char *text;
    uint64_t data_bytes;
    const char *words; /* that the message must hold, beside the name of the file */
} lie;

static const lie lies[] = {
    /* shape, type and offsets */
    {"{" T("a", "F32", "[1000,1000]", "0", "4") "}", 4, "tensor \"a\""},
    {"{" T("a", "F32", "[1]", "8", "4") "}", 8, "end before it"},
    {"{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[1]", "4", "8") "}", 8, "inside \"a\""},
    {"{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "0", "4") "}", 4, "\"b\""},
    {"{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "8", "12") "}", 12,
     "belong to no tensor"},
    {"{" T("a", "F32", "[1]", "4", "8") "}", 8, "belong to no tensor"},
    {"{" T("a", "F32", "[2]", "0", "8") "}", 4, "4 bytes are missing"},
    {"{" T("a", "F32", "[1]", "0", "4") "}", 8, "the last 4 bytes belong to no tensor"},
    {"{}", 3, "the last 3 bytes"},
    {"{" T("a", "I8", "[9223372036854775808]", "0", "1") "}", 1, "tensor \"a\""},
    {"{" T("a", "I8", "[1]", "0", "9223372036854775808") "}", 1, "tensor \"a\""},
    {"{" T("a", "I8", "[9223372036854775807]", "0", "9223372036854775807") "}", 1,
     "9223372036854775806 bytes are missing"},
    {"{" T("a", "F32", "[4294967296,4294967296]", "0", "0") "}", 0, "too large"},
    {"{" T("a", "F32", "[4611686018427387904,4]", "0", "0") "}", 0, "too large"},
    {"{" T("a", "F32", "[-1]", "0", "4") "}", 4, "negative"},
    {"{" T("a", "F32", "[1]", "-4", "0") "}", 4, "negative"},
    {"{" T("a", "F32", "[1.5]", "0", "6") "}", 6, "tensor \"a\""},
    {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "dimensions"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "[begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "two numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "missing"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "twice"},
    /* types and names */
    {"{" T("a", "F33", "[1]", "0", "4") "}", 4, "dtype is unknown"},
    {"{" T("a", "f32", "[1]", "0", "4") "}", 4, "dtype is unknown"},
    {"{" T("a", "", "[1]", "0", "4") "}", 4, "dtype is unknown"},
    {"{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor \"a\""},
    {"{" T("a", "F32", "[1]", "0", "4") "," T("a", "F32", "[1]", "4", "8") "}", 8, "twice"},
    {"{" T("a", "F32", "[1]", "0", "4") "," T("\\u0061", "F32", "[1]", "4", "8") "}", 8, "twice"},
    {"{" T("", "F32", "[1]", "0", "4") "}", 4, "tensor name of 0 bytes"},
    {"{" T("a\\nb", "F32", "[1]", "0", "4") "}", 4, "control character"},
    {"{" T("a\\u0000", "F32", "[1]", "0", "4") "}", 4, "control character"},
    {"{\"a\xff\":{}}", 4, "x.safetensors"},
    {"{\"\\ud800\":{}}", 4, "x.safetensors"},
    /* JSON */
    {"", 0, "x.safetensors"},
    {"[]", 0, "x.safetensors"},
    {"null", 0, "x.safetensors"},
    {"{", 0, "x.safetensors"},
    {"{} {}", 0, "x.safetensors"},
    {"{\"a\":1}", 0, "tensor \"a\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]", 4, "x.safetensors"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "x.safetensors"},
    {"{\"__metadata__\":[]}", 0, "x.safetensors"},
};

static void test_lies_in_a_header_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lies); i++) {
        st_header h;
        di_status st;

        if (parse(&h, lies[i].text, lies[i].data_bytes, &st) != DI_E_FORMAT)
            fail_msg("%s: code %s", lies[i].text, di_code_name(st.code));
        if (!strstr(st.message, lies[i].words) || !strstr(st.message, "x.safetensors"))
            fail_msg("%s: \"%s\" lacks \"%s\"", lies[i].text, st.message, lies[i].words);
    }
}

static void test_sound_header_is_read(void **state)
{
    st_header h;
    di_status st;

    (void)state;
    /* any order of tensors, scalars, empty tensors, unknown fields, blanks behind */
    assert_int_equal(
        parse(&h,
              "{" T("b", "BF16", "[2,3]", "8", "20") ",\"__metadata__\":{\"k\":\"v\"}," T(
                  "none", "F32", "[0,7]", "8", "8") ",\"a\":{\"shape\":[],\"dtype\":\"I64\","
                                                    "\"x\":[{}],\"data_offsets\":[0,8]}}   ",
              20, &st),
        DI_OK);
    assert_int_equal(h.n_tensors, 3);
    assert_string_equal(h.tensor[0].name, "a");
    assert_int_equal(h.tensor[0].n_dims, 0);
    assert_int_equal(h.tensor[0].type, DTYPE_I64);
    assert_string_equal(h.tensor[1].name, "none");
    assert_int_equal(h.tensor[1].bytes, 0);
    assert_string_equal(h.tensor[2].name, "b");
    assert_int_equal(h.tensor[2].shape[0], 2);
    assert_int_equal(h.tensor[2].shape[1], 3);
    assert_int_equal(h.tensor[2].shape[2], 1);
    assert_int_equal(h.tensor[2].offset, 8);
    st_header_fini(&h);
}

/* 10^5 levels, in every place where a value may stand. */
static void test_deep_nesting_is_refused(void **state)
{
    enum { DEPTH = 100000 };
    static const char *const heads[] = {
        "", "{\"a\":", "{\"__metadata__\":{\"k\":", "{\"a\":{\"x\":", "{\"a\":{\"shape\":"};
    static const char opens[] = {'[', '{'};
    char *text = mem_try_calloc(DEPTH * 6 + 64, 1);

    (void)state;
    assert_non_null(text);
    for (size_t i = 0; i < ARRAY_LEN(heads) * 2; i++) {
        st_header h;
        di_status st;
        char *at = text + sprintf(text, "%s", heads[i / 2]);

        for (int d = 0; d < DEPTH; d++)
            at += opens[i % 2] == '{' ? sprintf(at, "{\"a\":") : sprintf(at, "[");
        assert_int_equal(parse(&h, text, 4, &st), DI_E_FORMAT);
    }
    mem_free(text);
}

/* A file of a length field, a header and data bytes of value 1. */
static void write_file(const char *path, uint64_t length, const char *header, size_t data)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    for (int i = 0; i < 8; i++)
        putc((int)(length >> 8 * i & 255), f);
    fputs(header, f);
    for (size_t i = 0; i < data; i++)
        putc(1, f);
    assert_int_equal(fclose(f), 0);
}

static const char good[] = "{" T("a", "F32", "[2]", "0", "8") "}";

static int make_path(void **state)
{
    static char path[64];
    int fd;

    strcpy(path, "/tmp/safetensors-XXXXXX");
    fd = mkstemp(path);
    if (fd < 0)
        return -1;
    close(fd);
    *state = path;
    return 0;
}

static int remove_path(void **state)
{
    return remove(*state);
}

static void assert_file_refused(const char *path, const char *words)
{
    for (int headers_only = 0; headers_only < 2; headers_only++) {
        di_status st = {.code = DI_OK};
        st_file *f;

        assert_int_equal(st_file_open(&f, path, headers_only, &st), DI_E_FORMAT);
        assert_null(f);
        if (!strstr(st.message, words) || !strstr(st.message, path))
            fail_msg("\"%s\" lacks \"%s\"", st.message, words);
    }
}

static void test_file_is_mapped(void **state)
{
    di_status st = {.code = DI_OK};
    const st_tensor *t;
    st_file *f;

    write_file(*state, sizeof good - 1, good, 8);
    assert_int_equal(st_file_open(&f, *state, false, &st), DI_OK);
    assert_int_equal(st_file_n_tensors(f), 1);
    assert_null(st_file_find(f, "b"));
    t = st_file_find(f, "a");
    assert_non_null(t);
    assert_memory_equal(st_file_data(f, t), "\1\1\1\1\1\1\1\1", 8);
    st_file_drop(f, 0, 8);
    assert_memory_equal(st_file_data(f, t), "\1\1\1\1\1\1\1\1", 8); /* read again */
    st_file_close(f);
    assert_int_equal(st_file_open(&f, *state, true, &st), DI_OK);
    assert_null(st_file_data(f, st_file_tensor(f, 0)));
    st_file_close(f);
}

static void test_file_lengths_are_checked(void **state)
{
    write_file(*state, sizeof good - 1, good, 7);
    assert_file_refused(*state, "1 bytes are missing");
    write_file(*state, sizeof good - 1, good, 9);
    assert_file_refused(*state, "the last 1 bytes");
    write_file(*state, sizeof good + 7, good, 7);
    assert_file_refused(*state, "at least 1 bytes are missing");
    write_file(*state, UINT64_C(1) << 63, good, 8);
    assert_file_refused(*state, "header of 9223372036854775808 bytes");
    write_file(*state, UINT64_MAX, good, 8);
    assert_file_refused(*state, "header of 18446744073709551615 bytes");
    write_file(*state, 0, "", 0);
    assert_file_refused(*state, *state);
    assert_int_equal(truncate(*state, 7), 0);
    assert_file_refused(*state, "cut off");
    assert_int_equal(truncate(*state, 0), 0);
    assert_file_refused(*state, "cut off");
}

/* A header of 200 MB that is really there is refused before memory is asked for. */
static void test_huge_header_is_refused(void **state)
{
    write_file(*state, 200000000, "{", 0);
    assert_int_equal(truncate(*state, 300000000), 0);
    assert_file_refused(*state, "header of 200000000 bytes");
}

static void test_what_is_no_file_is_refused(void **state)
{
    static const char *const paths[] = {"/tmp", "/dev/null", "/nonexistent/x.safetensors"};
    st_file *f;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        di_status st = {.code = DI_OK};

        assert_int_equal(st_file_open(&f, paths[i], false, &st), DI_E_IO);
        assert_non_null(strstr(st.message, paths[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies_in_a_header_are_refused),
        cmocka_unit_test(test_sound_header_is_read),
        cmocka_unit_test(test_deep_nesting_is_refused),
        cmocka_unit_test_setup_teardown(test_file_is_mapped, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_file_lengths_are_checked, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_huge_header_is_refused, make_path, remove_path),
        cmocka_unit_test(test_what_is_no_file_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
