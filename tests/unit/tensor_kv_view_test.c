/* Layout of sequence state: the sizes of the release, and rows that do not overlap. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "tensor/kv_view.h"

static void test_release_needs_890_bytes_per_token(void **state)
{
    static const int ratio[] = {1, 2, 2, 2};
    kv_layout l;

    (void)state;
    kv_layout_init(&l, KV_PACKED, 512, 128, 128, 5, 43, ratio, 4);
    assert_int_equal(l.latent_bytes, 288);
    assert_int_equal(l.key_bytes, 68);
    assert_int_equal(l.ring_row_bytes, 528);
    assert_int_equal(l.ring_rows, 134);
    assert_true(kv_bytes_per_token(&l) == 890);
    assert_int_equal(l.block_bytes % 64, 0);
    assert_true(l.block_bytes - 890 * 128 < 64);
    assert_int_equal(l.owner[0].open_rows, 0);
    assert_int_equal(l.owner[1].open_rows, 7);
    assert_int_equal(l.owner[1].open_off % 64, 0);
}

static void test_f32_rows_are_plain_floats(void **state)
{
    static const int ratio[] = {2};
    kv_layout l;

    (void)state;
    kv_layout_init(&l, KV_F32, 64, 32, 16, 3, 5, ratio, 1);
    assert_int_equal(l.latent_bytes, 64 * 4);
    assert_int_equal(l.key_bytes, 32 * 4);
    assert_int_equal(l.ring_row_bytes, 64 * 4);
    assert_true(kv_bytes_per_token(&l) == (64 + 32) * 4 / 2.0);
}

/* Mark n bytes of a row, which nobody may have marked before. */
static void mark(uint8_t *memory, size_t size, const void *row, size_t n)
{
    size_t at = (size_t)((const uint8_t *)row - memory);

    assert_true(at + n <= size);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(memory[at + i]++, 0);
}

static void test_rows_do_not_overlap_and_stay_inside(void **state)
{
    static const int ratio[] = {2, 1};
    static const int32_t table[] = {2, 0};
    kv_layout l;
    kv_view v;

    (void)state;
    kv_layout_init(&l, KV_PACKED, 64, 32, 16, 3, 4, ratio, 2);
    v = (kv_view){
        .fixed = calloc(1, l.fixed_bytes), .blocks = calloc(3, l.block_bytes), .table = table};
    for (int owner = 0; owner < 2; owner++)
        for (int64_t e = 0; e < 2 * KV_BLOCK_TOKENS / ratio[owner]; e++) {
            mark(v.blocks, 3 * l.block_bytes, kv_latent(&l, &v, owner, e), l.latent_bytes);
            mark(v.blocks, 3 * l.block_bytes, kv_key(&l, &v, owner, e), l.key_bytes);
        }
    for (size_t i = 0; i < l.block_bytes; i++) /* block 1 is not in the table */
        assert_int_equal(v.blocks[l.block_bytes + i], 0);
    for (int ring = 0; ring < 4; ring++)
        for (int64_t pos = 1000; pos < 1000 + l.ring_rows; pos++)
            mark(v.fixed, l.fixed_bytes, kv_ring(&l, &v, ring, pos), l.ring_row_bytes);
    for (int64_t pos = 1000; pos < 1000 + l.owner[0].open_rows; pos++)
        mark(v.fixed, l.fixed_bytes, kv_open(&l, &v, 0, pos), 2 * 64 * sizeof(float));
    assert_ptr_equal(kv_ring(&l, &v, 1, 7), kv_ring(&l, &v, 1, 7 + l.ring_rows));
    free(v.fixed);
    free(v.blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_release_needs_890_bytes_per_token),
        cmocka_unit_test(test_f32_rows_are_plain_floats),
        cmocka_unit_test(test_rows_do_not_overlap_and_stay_inside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
