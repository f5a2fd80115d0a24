/* Sequence state: accounting of blocks and sequences, views, failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kv/seq.h"

static const int ratio[2] = {2, 1};

static kv_layout layout(void)
{
    kv_layout l;

    kv_layout_init(&l, KV_PACKED, 512, 128, 128, 5, 3, ratio, 2);
    return l;
}

static void test_blocks_are_owned_by_one_sequence_or_free(void **state)
{
    kv_layout l = layout();
    kv_pool *p;
    kv_seq *a, *b, *c;
    kv_view va, vb;

    (void)state;
    assert_int_equal(kv_pool_new(&p, &l, 5, 2, NULL), DI_OK);
    assert_int_equal(kv_pool_bytes(p), 5 * l.block_bytes + 2 * l.fixed_bytes);
    assert_int_equal(kv_seq_new(p, &a, NULL), DI_OK);
    assert_int_equal(kv_seq_new(p, &b, NULL), DI_OK);
    assert_int_equal(kv_seq_new(p, &c, NULL), DI_E_BUSY);
    assert_int_equal(kv_seq_reserve(a, 128, NULL), DI_OK);
    assert_int_equal(kv_seq_reserve(b, 129, NULL), DI_OK);
    assert_int_equal(kv_seq_reserve(a, 129, NULL), DI_OK);
    assert_int_equal(kv_seq_reserve(a, 10, NULL), DI_OK); /* never gives back */
    assert_int_equal(kv_pool_n_free(p), 1);
    va = kv_seq_view(a);
    vb = kv_seq_view(b);
    assert_ptr_not_equal(va.fixed, vb.fixed);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            assert_int_not_equal(va.table[i], vb.table[j]);
    /* the last entry of the second block lies inside the reservation */
    assert_true(kv_key(&l, &va, 1, 255) + l.key_bytes <= va.blocks + 5 * l.block_bytes);
    kv_seq_free(a);
    assert_int_equal(kv_pool_n_free(p), 3);
    kv_seq_free(b);
    assert_int_equal(kv_pool_n_free(p), 5);
    kv_seq_free(NULL);
    kv_pool_free(p);
}

static void test_a_full_pool_says_so_and_changes_nothing(void **state)
{
    kv_layout l = layout();
    kv_pool *p;
    kv_seq *s;
    di_status st = {0};

    (void)state;
    assert_int_equal(kv_pool_new(&p, &l, 2, 1, NULL), DI_OK);
    assert_int_equal(kv_seq_new(p, &s, NULL), DI_OK);
    assert_int_equal(kv_seq_reserve(s, 257, &st), DI_E_BUSY);
    assert_string_equal(st.message, "3 more blocks of state are needed, 2 are free");
    assert_int_equal(kv_pool_n_free(p), 2);
    assert_int_equal(kv_seq_reserve(s, 256, NULL), DI_OK);
    kv_seq_free(s);
    kv_pool_free(p);
}

static void test_length_is_kept_and_starts_at_zero_again(void **state)
{
    kv_layout l = layout();
    kv_pool *p;
    kv_seq *s;

    (void)state;
    assert_int_equal(kv_pool_new(&p, &l, 1, 1, NULL), DI_OK);
    assert_int_equal(kv_seq_new(p, &s, NULL), DI_OK);
    kv_seq_set_len(s, 9);
    assert_int_equal(kv_seq_len(s), 9);
    assert_int_equal(kv_seq_view(s).len, 9);
    kv_seq_set_len(s, 7);
    assert_int_equal(kv_seq_view(s).len, 7);
    kv_seq_free(s);
    assert_int_equal(kv_seq_new(p, &s, NULL), DI_OK);
    assert_int_equal(kv_seq_len(s), 0);
    kv_seq_free(s);
    kv_pool_free(p);
}

static void test_impossible_pools_are_refused(void **state)
{
    kv_layout l = layout();
    kv_pool *p;

    (void)state;
    assert_int_equal(kv_pool_new(&p, &l, 0, 1, NULL), DI_E_INVALID);
    assert_int_equal(kv_pool_new(&p, &l, 1, 0, NULL), DI_E_INVALID);
    for (uint64_t n = 1; n <= 6; n++) {
        mem_fail_at(n);
        assert_int_equal(kv_pool_new(&p, &l, 2, 2, NULL), DI_E_NOMEM);
        assert_null(p);
    }
    mem_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_owned_by_one_sequence_or_free),
        cmocka_unit_test(test_a_full_pool_says_so_and_changes_nothing),
        cmocka_unit_test(test_length_is_kept_and_starts_at_zero_again),
        cmocka_unit_test(test_impossible_pools_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
