/* Allocation, arena, map, growing string and status. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/str.h"

static void test_calloc_gives_zeroed_memory_and_refuses_overflow(void **state)
{
    unsigned char *p = mem_try_calloc(100, 3);

    (void)state;
    for (int i = 0; i < 300; i++)
        assert_int_equal(p[i], 0);
    mem_free(p);
    assert_null(mem_try_calloc(SIZE_MAX / 2, 3));
    assert_null(mem_try_realloc(NULL, SIZE_MAX / 2, 3));
    p = mem_try_calloc(0, 0); /* an empty object is still an object */
    assert_non_null(p);
    mem_free(p);
}

static void test_realloc_keeps_the_content_and_a_failed_one_keeps_the_old_block(void **state)
{
    char *p = mem_try_strdup("content"), *q;

    (void)state;
    mem_fail_at(1);
    assert_null(mem_try_realloc(p, 1000, 1));
    mem_fail_at(0);
    assert_string_equal(p, "content");
    q = mem_try_realloc(p, 1000, 1);
    assert_non_null(q);
    assert_string_equal(q, "content");
    mem_free(q);
}

static void test_aligned_memory_is_aligned_zeroed_and_bounded(void **state)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, ((size_t)2 << 20) + 1};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (size_t align = 64; align <= 4096; align *= 8) {
            unsigned char *p = mem_try_aligned(sizes[i], align);

            assert_non_null(p);
            assert_int_equal((uintptr_t)p % align, 0);
            for (size_t k = 0; k < sizes[i]; k++)
                assert_int_equal(p[k], 0);
            mem_free(p);
        }
    assert_null(mem_try_aligned(SIZE_MAX - 10, 64));
}

static void test_strndup_copies_n_bytes_and_ends_them(void **state)
{
    char *s = mem_try_strndup("abcdef", 3);

    (void)state;
    assert_string_equal(s, "abc");
    mem_free(s);
}

static void test_failing_allocator_fails_exactly_the_nth_try_and_counts_all(void **state)
{
    uint64_t before = mem_n_tries();

    (void)state;
    mem_fail_at(3);
    for (int i = 1; i <= 5; i++) {
        void *p = mem_try_calloc(1, 1);

        assert_true((p != NULL) == (i != 3));
        mem_free(p);
    }
    mem_fail_at(0);
    assert_int_equal(mem_n_tries() - before, 5);
}

static void test_size_arithmetic_reports_overflow(void **state)
{
    size_t v = 7;

    (void)state;
    assert_true(size_mul(SIZE_MAX / 3, 3, &v));
    assert_int_equal(v, SIZE_MAX / 3 * 3);
    assert_false(size_mul(SIZE_MAX / 3 + 1, 3, &v));
    assert_true(size_add(SIZE_MAX - 1, 1, &v));
    assert_int_equal(v, SIZE_MAX);
    assert_false(size_add(SIZE_MAX, 1, &v));
}

static void test_large_blocks_end_with_a_whole_huge_page_where_that_costs_little(void **state)
{
    const size_t huge = (size_t)2 << 20;

    (void)state;
    assert_int_equal(mem_aligned_bytes(0), 64);
    assert_int_equal(mem_aligned_bytes(65), 128);
    assert_int_equal(mem_aligned_bytes(4 * huge), 4 * huge);
    assert_int_equal(mem_aligned_bytes(4 * huge + huge / 2), 5 * huge); /* a ninth more */
    assert_int_equal(mem_aligned_bytes(2 * huge + 1), 2 * huge + 4096); /* half as much more */
    assert_int_equal(mem_aligned_bytes(SIZE_MAX - 100), SIZE_MAX);
}

static void test_arena_objects_are_aligned_zeroed_and_apart(void **state)
{
    arena *a = arena_new(1024);
    unsigned char *p[40];

    (void)state;
    for (size_t i = 0; i < 40; i++) {
        p[i] = arena_alloc(a, i + 1, 7);
        assert_int_equal((uintptr_t)p[i] % 64, 0);
        for (size_t k = 0; k < (i + 1) * 7; k++)
            assert_int_equal(p[i][k], 0);
        memset(p[i], (int)i + 1, (i + 1) * 7);
    }
    for (size_t i = 0; i < 40; i++)
        for (size_t k = 0; k < (i + 1) * 7; k++)
            assert_int_equal(p[i][k], i + 1);
    arena_free(a);
}

static void test_arena_takes_objects_larger_than_a_block(void **state)
{
    arena *a = arena_new(256);
    char *big = arena_alloc(a, 1, 100000);

    (void)state;
    assert_non_null(big);
    big[99999] = 1;
    assert_true(arena_bytes(a) >= 100000);
    assert_null(arena_alloc(a, SIZE_MAX / 2, 4));
    assert_null(arena_alloc(a, SIZE_MAX, 1));
    arena_free(a);
}

static void test_arena_reset_reuses_its_blocks_zeroed(void **state)
{
    arena *a = arena_new(4096);
    uint64_t tries;
    size_t bytes;

    (void)state;
    for (int i = 0; i < 100; i++)
        memset(arena_alloc(a, 1, 100 + (size_t)i), 0xFF, 100 + (size_t)i);
    assert_non_null(arena_alloc(a, 1, 50000));
    tries = mem_n_tries();
    bytes = arena_bytes(a);
    for (int round = 0; round < 3; round++) {
        arena_reset(a);
        for (int i = 0; i < 100; i++) {
            const unsigned char *p = arena_alloc(a, 1, 100 + (size_t)i);

            for (int k = 0; k < 100 + i; k++)
                assert_int_equal(p[k], 0);
        }
        assert_non_null(arena_alloc(a, 1, 50000));
    }
    assert_int_equal(mem_n_tries(), tries);
    assert_int_equal(arena_bytes(a), bytes);
    arena_free(a);
}

static void test_arena_strings_are_copies(void **state)
{
    arena *a = arena_new(0);
    char text[] = "hello";
    char *s = arena_strdup(a, text), *t = arena_strndup(a, text, 2);

    (void)state;
    text[0] = 'j';
    assert_string_equal(s, "hello");
    assert_string_equal(t, "he");
    arena_free(a);
    arena_free(NULL);
}

static void test_arena_reports_no_memory(void **state)
{
    arena *a;

    (void)state;
    mem_fail_at(1);
    assert_null(arena_new(0));
    a = arena_new(64);
    mem_fail_at(1);
    assert_null(arena_alloc(a, 1, 1000));
    mem_fail_at(0);
    assert_non_null(arena_alloc(a, 1, 1000));
    arena_free(a);
}

static void test_map_finds_what_was_inserted_and_nothing_else(void **state)
{
    map *m = map_new(0);
    char key[32];
    uint32_t v = 0;

    (void)state;
    for (uint32_t i = 0; i < 20000; i++) { /* grows many times */
        int n = snprintf(key, sizeof key, "key %u", i);

        assert_int_equal(map_insert(m, key, (size_t)n, i * 3), 1);
    }
    assert_int_equal(map_count(m), 20000);
    for (uint32_t i = 0; i < 20000; i++) {
        int n = snprintf(key, sizeof key, "key %u", i);

        assert_true(map_find(m, key, (size_t)n, &v));
        assert_int_equal(v, i * 3);
        assert_false(map_find(m, key, (size_t)n - 1, &v) && v == i * 3);
    }
    assert_false(map_find(m, "key 20000", 9, &v));
    map_free(m);
}

static void test_map_refuses_a_key_twice_and_knows_bytes_of_zero(void **state)
{
    map *m = map_new(4);
    uint32_t v = 0;

    (void)state;
    assert_int_equal(map_insert(m, "a\0b", 3, 1), 1);
    assert_int_equal(map_insert(m, "a\0c", 3, 2), 1);
    assert_int_equal(map_insert(m, "", 0, 3), 1);
    assert_int_equal(map_insert(m, "a\0b", 3, 9), 0);
    assert_true(map_find(m, "a\0b", 3, &v));
    assert_int_equal(v, 1);
    assert_true(map_find(m, "", 0, &v));
    assert_int_equal(v, 3);
    assert_int_equal(map_count(m), 3);
    map_free(m);
    map_free(NULL);
}

static void test_map_reports_no_memory_at_every_try_and_stays_usable(void **state)
{
    (void)state;
    for (uint64_t at = 1; at <= 30; at++) {
        map *m;
        char key[8];
        uint32_t v;

        mem_fail_at(at);
        m = map_new(0);
        for (uint32_t i = 0; m && i < 200; i++) {
            int n = snprintf(key, sizeof key, "%u", i), rc = map_insert(m, key, (size_t)n, i);

            if (rc < 0) /* the try that failed: the key is absent, and goes in now */
                rc = map_find(m, key, (size_t)n, &v) ? 0 : map_insert(m, key, (size_t)n, i);
            assert_int_equal(rc, 1);
        }
        assert_true(m ? map_count(m) == 200 : at <= 3);
        mem_fail_at(0);
        map_free(m);
    }
}

static void test_str_appends_and_stays_terminated(void **state)
{
    str s = {0};

    (void)state;
    assert_string_equal(str_text(&s), "");
    str_puts(&s, "ab");
    str_putc(&s, 'c');
    str_append(&s, "\0d", 2);
    str_printf(&s, "%d-%s", 42, "x");
    assert_int_equal(s.len, 9);
    assert_memory_equal(s.data, "abc\0d42-x", 10);
    for (int i = 0; i < 1000; i++)
        str_printf(&s, "%04d", i);
    assert_int_equal(s.len, 4009);
    assert_string_equal(s.data + 4005, "0999");
    assert_true(str_ok(&s));
    str_clear(&s);
    assert_string_equal(str_text(&s), "");
    str_fini(&s);
    assert_string_equal(str_text(&s), "");
}

static void test_str_remembers_that_memory_ran_out(void **state)
{
    str s = {0};

    (void)state;
    str_puts(&s, "kept");
    mem_fail_at(1);
    str_printf(&s, "%0100d", 1);
    mem_fail_at(0);
    str_puts(&s, " not appended");
    assert_false(str_ok(&s));
    assert_string_equal(str_text(&s), "kept");
    str_clear(&s);
    str_puts(&s, "again");
    assert_true(str_ok(&s));
    assert_string_equal(str_text(&s), "again");
    str_fini(&s);
}

static void test_status_keeps_the_first_message_and_takes_context(void **state)
{
    di_status st = {0};

    (void)state;
    di_context(&st, "nothing failed");
    assert_string_equal(st.message, "");
    assert_int_equal(di_fail(&st, DI_E_FORMAT, "byte %d is wrong", 7), DI_E_FORMAT);
    assert_int_equal(di_fail(&st, DI_E_IO, "later"), DI_E_IO);
    di_context(&st, "file \"%s\"", "x");
    assert_int_equal(st.code, DI_E_FORMAT);
    assert_string_equal(st.message, "file \"x\": byte 7 is wrong");
    di_clear(&st);
    assert_int_equal(st.code, DI_OK);
    assert_int_equal(di_fail(&st, DI_E_IO, "new"), DI_E_IO);
    assert_string_equal(st.message, "new");
    assert_int_equal(di_fail(NULL, DI_E_BUSY, "nobody listens"), DI_E_BUSY);
}

static void test_status_cuts_what_is_too_long(void **state)
{
    di_status st = {0};
    char text[2000];

    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    di_fail(&st, DI_E_INVALID, "%s", text);
    di_context(&st, "context %s", text);
    assert_int_equal(strlen(st.message), sizeof st.message - 1);
}

static void test_codes_have_names_and_http_statuses(void **state)
{
    (void)state;
    assert_string_equal(di_code_name(DI_OK), "OK");
    assert_string_equal(di_code_name(DI_E_NOMEM), "NOMEM");
    assert_string_equal(di_code_name(DI_CODE_COUNT), "UNKNOWN");
    assert_int_equal(di_code_http(DI_OK), 200);
    assert_int_equal(di_code_http(DI_E_INVALID), 400);
    assert_int_equal(di_code_http(DI_CODE_COUNT), 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calloc_gives_zeroed_memory_and_refuses_overflow),
        cmocka_unit_test(test_realloc_keeps_the_content_and_a_failed_one_keeps_the_old_block),
        cmocka_unit_test(test_aligned_memory_is_aligned_zeroed_and_bounded),
        cmocka_unit_test(test_strndup_copies_n_bytes_and_ends_them),
        cmocka_unit_test(test_failing_allocator_fails_exactly_the_nth_try_and_counts_all),
        cmocka_unit_test(test_size_arithmetic_reports_overflow),
        cmocka_unit_test(test_large_blocks_end_with_a_whole_huge_page_where_that_costs_little),
        cmocka_unit_test(test_arena_objects_are_aligned_zeroed_and_apart),
        cmocka_unit_test(test_arena_takes_objects_larger_than_a_block),
        cmocka_unit_test(test_arena_reset_reuses_its_blocks_zeroed),
        cmocka_unit_test(test_arena_strings_are_copies),
        cmocka_unit_test(test_arena_reports_no_memory),
        cmocka_unit_test(test_map_finds_what_was_inserted_and_nothing_else),
        cmocka_unit_test(test_map_refuses_a_key_twice_and_knows_bytes_of_zero),
        cmocka_unit_test(test_map_reports_no_memory_at_every_try_and_stays_usable),
        cmocka_unit_test(test_str_appends_and_stays_terminated),
        cmocka_unit_test(test_str_remembers_that_memory_ran_out),
        cmocka_unit_test(test_status_keeps_the_first_message_and_takes_context),
        cmocka_unit_test(test_status_cuts_what_is_too_long),
        cmocka_unit_test(test_codes_have_names_and_http_statuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
