/* Quantisers Q8, Q4i and Q4c: the vectors of the specification, idempotence where it holds, the
 * place where it does not, error bounds, and groups that do not touch each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "base/status.h"
#include "formats/quant.h"
#include "formats/scalar.h"

#define N 32

typedef struct quantiser {
    const char *name;
    void (*encode)(uint8_t *codes, uint8_t *scales, const float *x, size_t n);
    void (*decode)(float *y, const uint8_t *codes, const uint8_t *scales, size_t n);
    size_t group, codes_per_byte;
    float least_amax; /* below this the group maximum counts as this */
    float step;       /* |y - x| <= step * max(amax, least_amax) */
} quantiser;

static const quantiser q8 = {"Q8", q8_encode, q8_decode, 32, 1, 1e-4f, 1.0f / 14};
static const quantiser q4i = {"Q4i", q4i_encode, q4i_decode, 32, 2, 6 * 0x1p-126f, 1.0f / 3};
static const quantiser q4c = {"Q4c", q4c_encode, q4c_decode, 16, 2, 6 * 0x1p-9f, 1.0f / 2};

/* x[k] of the specification's vectors (section 13). */
static void spec_values(float *x)
{
    for (int k = 0; k < N; k++)
        x[k] = bf16_round((float)((((37 * k) % 61) - 30) * 0.013));
}

/* One group of bf16 values whose maximum magnitude has exponent about `e`. */
static void random_values(float *x, size_t n, uint32_t seed, int e)
{
    for (size_t i = 0; i < n; i++) {
        philox_block r = philox4x32((philox_block){{(uint32_t)i, 0, 0, 0}}, seed, 5);
        float u = (float)(int32_t)r.v[0] * 0x1p-31f;

        if (r.v[1] % 8 == 0)
            u = 0; /* exact zeros, with the sign of chance */
        x[i] = bf16_round(ldexpf(r.v[2] % 2 ? u : -u, e));
    }
}

static void test_q8_gives_the_vectors_of_the_specification(void **state)
{
    static const uint8_t codes_want[] = {252, 108, 246, 120, 229, 252, 111, 244};
    static const float values_want[] = {-.375f,      .09375f, -.21875f,  .25f,
                                        -.05078125f, -.375f,  .1171875f, -.1875f};
    uint8_t codes[N], scale;
    float x[N], y[N];

    (void)state;
    spec_values(x);
    assert_true(x[0] == -.390625f);
    q8_encode(codes, &scale, x, N);
    assert_int_equal(scale, 127 - 10);
    assert_memory_equal(codes, codes_want, sizeof codes_want);
    q8_decode(y, codes, &scale, N);
    assert_memory_equal(y, values_want, sizeof values_want);
}

static void test_q4c_gives_the_vectors_of_the_specification(void **state)
{
    static const uint8_t want[] = {15, 3, 14, 6, 10, 15, 4, 13, 6, 9, 15, 4, 13, 6, 0, 14};
    uint8_t codes[N / 2], scales[2];
    float x[N];

    (void)state;
    spec_values(x);
    q4c_encode(codes, scales, x, N);
    assert_int_equal(scales[0], 24);
    for (int k = 0; k < 16; k++)
        assert_int_equal(codes[k / 2] >> (k % 2 * 4) & 15, want[k]);
}

static void test_q4i_gives_the_vectors_of_the_specification(void **state)
{
    static const uint8_t want[] = {13, 1,  12, 4, 9,  13, 2,  11, 4, 8,  13, 2, 11, 4, 0,  12,
                                   3,  10, 5,  0, 12, 3,  10, 5,  1, 12, 4,  9, 5,  1, 12, 4};
    uint8_t codes[N / 2], scale;
    float x[N];

    (void)state;
    spec_values(x);
    q4i_encode(codes, &scale, x, N);
    assert_int_equal(scale, 124);
    for (int k = 0; k < N; k++)
        assert_int_equal(codes[k / 2] >> (k % 2 * 4) & 15, want[k]);
}

static void test_zeros_stay_zeros_with_their_sign(void **state)
{
    static const quantiser *const all[] = {&q8, &q4i, &q4c};

    (void)state;
    for (int q = 0; q < 3; q++) {
        float x[N], y[N];
        uint8_t codes[N], scales[2];

        for (int i = 0; i < N; i++)
            x[i] = i % 3 ? 0.0f : -0.0f;
        all[q]->encode(codes, scales, x, N);
        all[q]->decode(y, codes, scales, N);
        assert_memory_equal(y, x, sizeof x);
    }
}

static float amax_of(const float *x, size_t n)
{
    float amax = 0;

    for (size_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    return amax;
}

static void check_close(const quantiser *q, const float *x, const float *y)
{
    for (size_t g = 0; g < N; g += q->group) {
        float bound = q->step * fmaxf(amax_of(x + g, q->group), q->least_amax);

        for (size_t i = g; i < g + q->group; i++) {
            assert_true(fabsf(y[i] - x[i]) <= bound);
            assert_true(y[i] == bf16_round(y[i])); /* exact in bf16 */
            assert_true(y[i] == 0 || signbit(y[i]) == signbit(x[i]));
        }
    }
}

static void test_decoded_values_are_near_and_exact_in_bf16(void **state)
{
    static const quantiser *const all[] = {&q8, &q4i, &q4c};

    (void)state;
    for (int q = 0; q < 3; q++)
        for (uint32_t seed = 0; seed < 4000; seed++) {
            float x[N], y[N];
            uint8_t codes[N], scales[2];

            /* Q4c scales end at 448: group maxima up to 2688 */
            random_values(x, N, seed, (int)(seed % 26) - 15);
            all[q]->encode(codes, scales, x, N);
            all[q]->decode(y, codes, scales, N);
            check_close(all[q], x, y);
        }
}

/* Quantising decoded values again gives the same values. */
static void check_idempotent(const quantiser *q, const float *x, uint32_t seed)
{
    float y[N], z[N];
    uint8_t codes[N], scales[2];

    q->encode(codes, scales, x, N);
    q->decode(y, codes, scales, N);
    q->encode(codes, scales, y, N);
    q->decode(z, codes, scales, N);
    if (memcmp(y, z, sizeof y) != 0)
        fail_msg("%s is not idempotent on group %u", q->name, seed);
}

static void test_q8_and_q4i_are_idempotent(void **state)
{
    float x[N];

    (void)state;
    for (uint32_t seed = 0; seed < 20000; seed++) {
        random_values(x, N, seed, (int)(seed % 60) - 30);
        check_idempotent(&q8, x, seed);
        random_values(x, N, seed, (int)(seed % 200) - 110);
        check_idempotent(&q4i, x, seed);
    }
    /* every bf16 magnitude as the group maximum, in front of a small value */
    for (uint32_t b = 0; b < 0x7E00; b++) {
        memset(x, 0, sizeof x);
        x[0] = bf16_to_f32((uint16_t)b);
        x[1] = -x[0] / 3;
        check_idempotent(&q8, x, b);
        check_idempotent(&q4i, x, b);
    }
}

/* In [9*2^-9, 10*2^-9] the scale is 2*2^-9 and the maximum rounds to code 4 (value 2 on ties to
 * even: 4.5 and 5 become 4): decoded 8*2^-9, whose own scale is smaller, and which it clamps. */
static void test_q4c_is_not_idempotent_where_the_specification_says(void **state)
{
    (void)state;
    for (int k = 0; k <= 8; k++) {
        float x[N] = {0}, y[N], z[N];
        uint8_t codes[N], scales[2];

        x[0] = (9 + (float)k / 8) * 0x1p-9f;
        q4c_encode(codes, scales, x, N);
        assert_int_equal(scales[0], 2);
        assert_int_equal(codes[0] & 15, 6);
        q4c_decode(y, codes, scales, N);
        assert_true(y[0] == 8 * 0x1p-9f);
        q4c_encode(codes, scales, y, N);
        assert_int_equal(scales[0], 1);
        q4c_decode(z, codes, scales, N);
        assert_true(z[0] == 6 * 0x1p-9f);
    }
}

static void test_q4c_clamps_where_its_scale_rounds_down(void **state)
{
    float x[N] = {0};
    uint8_t codes[N / 2], scales[2];

    (void)state;
    x[0] = 6 * 17.0f; /* 17 is a tie between 16 and 18: the even code is 16 */
    x[1] = -6 * 17.0f;
    q4c_encode(codes, scales, x, N);
    assert_true(e4m3_to_f32(scales[0]) == 16.0f);
    assert_int_equal(codes[0], 0xF7);
    x[0] = 1e6f; /* beyond every scale */
    x[1] = 0;
    q4c_encode(codes, scales, x, N);
    assert_int_equal(scales[0], 0x7E);
    assert_int_equal(codes[0], 0x07);
}

static void test_scales_at_the_edges(void **state)
{
    float x[N] = {0};
    uint8_t codes[N], scale;

    (void)state;
    x[0] = 448; /* 448 * f32(1/448) is 1: no step up */
    q8_encode(codes, &scale, x, N);
    assert_int_equal(scale, 127);
    assert_int_equal(codes[0], 0x7E);
    x[0] = 450;
    q8_encode(codes, &scale, x, N);
    assert_int_equal(scale, 128);
    x[0] = 0x1p-126f; /* far below the least maximum of Q8: 1e-4 / 448 rounds up to 2^-22 */
    q8_encode(codes, &scale, x, N);
    assert_int_equal(scale, 127 - 22);
    assert_int_equal(codes[0], 0);
    q4i_encode(codes, &scale, x, N);
    assert_int_equal(scale, 1);
    assert_int_equal(codes[0] & 15, 2); /* 1.0 */
}

static void test_groups_do_not_touch_each_other(void **state)
{
    static const quantiser *const all[] = {&q8, &q4i, &q4c};
    float x[4 * N];

    (void)state;
    for (size_t g = 0; g < 4; g++)
        random_values(x + g * N, N, (uint32_t)g, (int)g * 3 - 6);
    for (int i = 0; i < 3; i++) {
        const quantiser *q = all[i];
        size_t group_codes = q->group / q->codes_per_byte;
        uint8_t codes[4 * N], scales[8], alone[N], scale;

        q->encode(codes, scales, x, 4 * N);
        for (size_t g = 0; g < 4 * N / q->group; g++) {
            q->encode(alone, &scale, x + g * q->group, q->group);
            assert_int_equal(scale, scales[g]);
            assert_memory_equal(alone, codes + g * group_codes, group_codes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_q8_gives_the_vectors_of_the_specification),
        cmocka_unit_test(test_q4c_gives_the_vectors_of_the_specification),
        cmocka_unit_test(test_q4i_gives_the_vectors_of_the_specification),
        cmocka_unit_test(test_zeros_stay_zeros_with_their_sign),
        cmocka_unit_test(test_decoded_values_are_near_and_exact_in_bf16),
        cmocka_unit_test(test_q8_and_q4i_are_idempotent),
        cmocka_unit_test(test_q4c_is_not_idempotent_where_the_specification_says),
        cmocka_unit_test(test_q4c_clamps_where_its_scale_rounds_down),
        cmocka_unit_test(test_scales_at_the_edges),
        cmocka_unit_test(test_groups_do_not_touch_each_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
