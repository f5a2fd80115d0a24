/* Scalar formats: every code, every tie, and round-to-nearest-even by search over the code table.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/rng.h"
#include "base/status.h"
#include "formats/dtype.h"
#include "formats/scalar.h"

static bool same_bits(float a, float b)
{
    return f32_bits(a) == f32_bits(b);
}

/* Value of an E4M3 code by the definition of the format, in double. */
static double e4m3_value(unsigned code)
{
    int exponent = (int)(code >> 3 & 15), mantissa = (int)(code & 7);
    double v = exponent ? ldexp(1 + mantissa / 8.0, exponent - 7) : ldexp(mantissa / 8.0, -6);

    return code & 0x80 ? -v : v;
}

static double e2m1_value(unsigned code)
{
    int exponent = (int)(code >> 1 & 3), mantissa = (int)(code & 1);
    double v = exponent ? ldexp(1 + mantissa / 2.0, exponent - 1) : mantissa / 2.0;

    return code & 8 ? -v : v;
}

/* The code whose value is nearest to x, the even one of two equally near; saturating, and with the
 * sign of x. `n_magnitudes` finite magnitudes in ascending order; the sign bit lies above them. */
static unsigned nearest(double (*value)(unsigned), unsigned n_magnitudes, unsigned sign_bit,
                        float x)
{
    /* beyond twice the largest value distances would lose their bits */
    double a = fmin(fabs((double)x), 2 * value(n_magnitudes - 1)), best_distance = INFINITY;
    unsigned best = 0;

    for (unsigned c = 0; c < n_magnitudes; c++) {
        double distance = fabs(value(c) - a);

        if (distance < best_distance || (distance == best_distance && c % 2 == 0)) {
            best = c;
            best_distance = distance;
        }
    }
    return best | (signbit(x) ? sign_bit : 0);
}

static void check_e4m3(float x)
{
    unsigned got = e4m3_from_f32(x), want = nearest(e4m3_value, 127, 0x80, x);

    if (got != want)
        fail_msg("e4m3(%a) is %02x, nearest even is %02x", (double)x, got, want);
}

static void check_e2m1(float x)
{
    unsigned got = e2m1_from_f32(x), want = nearest(e2m1_value, 8, 8, x);

    if (got != want)
        fail_msg("e2m1(%a) is %x, nearest even is %x", (double)x, got, want);
}

/* x, its two neighbours, and all of them negated. */
static void around(void (*check)(float), float x)
{
    const float points[] = {x, nextafterf(x, INFINITY), nextafterf(x, 0)};

    for (int i = 0; i < 3; i++) {
        check(points[i]);
        check(-points[i]);
    }
}

static void test_e4m3_decodes_all_256_codes(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 256; c++) {
        float v = e4m3_to_f32((uint8_t)c);

        if ((c & 0x7F) == 0x7F) {
            assert_true(isnan(v));
            assert_int_equal(signbit(v) != 0, c >> 7);
        } else {
            assert_true(same_bits(v, (float)e4m3_value(c)));
            assert_int_equal(e4m3_from_f32(v), c);
        }
    }
    assert_true(e4m3_to_f32(0x7E) == 448.0f);
    assert_true(e4m3_to_f32(0x01) == 0x1p-9f);
}

static void test_e4m3_rounds_every_tie_to_even(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 126; c++) {
        double tie = (e4m3_value(c) + e4m3_value(c + 1)) / 2;

        assert_true((double)(float)tie == tie);
        assert_int_equal(e4m3_from_f32((float)tie), c % 2 ? c + 1 : c);
        around(check_e4m3, (float)tie);
        around(check_e4m3, (float)e4m3_value(c));
    }
}

static void test_e4m3_saturates_and_keeps_nan_and_signs(void **state)
{
    static const float large[] = {448, 449, 463.9f, 464, 465, 1e30f, INFINITY};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(large); i++) {
        assert_int_equal(e4m3_from_f32(large[i]), 0x7E);
        assert_int_equal(e4m3_from_f32(-large[i]), 0xFE);
    }
    assert_int_equal(e4m3_from_f32(NAN), 0x7F);
    assert_int_equal(e4m3_from_f32(f32_from_bits(0xFFC00001u)), 0xFF);
    assert_int_equal(e4m3_from_f32(f32_from_bits(0x7F800001u)), 0x7F);
    assert_int_equal(e4m3_from_f32(0.0f), 0x00);
    assert_int_equal(e4m3_from_f32(-0.0f), 0x80);
    assert_int_equal(e4m3_from_f32(0x1p-149f), 0x00);
    assert_int_equal(e4m3_from_f32(-0x1p-10f), 0x80);
}

static void test_e4m3_is_nearest_even_for_all_bf16_and_random_values(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 65536; b++) {
        float x = bf16_to_f32((uint16_t)b);

        if (!isnan(x))
            check_e4m3(x);
    }
    for (uint32_t i = 0; i < 50000; i++) { /* exponents around the range of the format */
        philox_block r = philox4x32((philox_block){{i, 0, 0, 0}}, 3, 4);

        check_e4m3(f32_from_bits((r.v[0] & 0x807FFFFFu) | (110 + r.v[1] % 30) << 23));
    }
}

static void test_e2m1_decodes_all_16_codes(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 16; c++) {
        assert_true(same_bits(e2m1_to_f32(c), (float)e2m1_value(c)));
        assert_int_equal(e2m1_from_f32(e2m1_to_f32(c)), c);
    }
}

static void test_e2m1_rounds_every_tie_to_even_and_saturates(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 7; c++) {
        float tie = (float)(e2m1_value(c) + e2m1_value(c + 1)) / 2;

        assert_int_equal(e2m1_from_f32(tie), c % 2 ? c + 1 : c);
        assert_int_equal(e2m1_from_f32(-tie), (c % 2 ? c + 1 : c) | 8);
        around(check_e2m1, tie);
        around(check_e2m1, (float)e2m1_value(c + 1));
    }
    assert_int_equal(e2m1_from_f32(7), 7);
    assert_int_equal(e2m1_from_f32(-INFINITY), 15);
    assert_int_equal(e2m1_from_f32(-0.0f), 8);
    assert_int_equal(e2m1_from_f32(-0.25f), 8);
}

static void test_e2m1_is_nearest_even_for_all_bf16_values(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 65536; b++) {
        float x = bf16_to_f32((uint16_t)b);

        if (!isnan(x))
            check_e2m1(x);
    }
}

static void test_ue8m0_decodes_all_bytes(void **state)
{
    (void)state;
    for (int b = 0; b < 255; b++)
        assert_true((double)ue8m0_to_f32((uint8_t)b) == ldexp(1, b - 127));
}

static void test_bf16_keeps_all_65536_codes(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 65536; b++) {
        float x = bf16_to_f32((uint16_t)b);
        bool nan = (b & 0x7FFF) > 0x7F80;

        assert_int_equal(f32_bits(x), b << 16);
        assert_int_equal(isnan(x) != 0, nan);
        assert_int_equal(bf16_from_f32(x), nan ? b | 0x40 : b); /* NaNs become quiet */
        if (!nan)
            assert_true(same_bits(bf16_round(x), x));
    }
}

static void test_bf16_rounds_to_nearest_even_between_all_neighbours(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 0x7F80; b++) { /* up to the step from the largest value to infinity */
        uint32_t even = b % 2 ? b + 1 : b;

        for (uint32_t sign = 0; sign <= 1; sign++) {
            uint32_t low = b << 16 | sign << 31, s = sign << 15;

            assert_int_equal(bf16_from_f32(f32_from_bits(low + 0x7FFF)), b | s);
            assert_int_equal(bf16_from_f32(f32_from_bits(low + 0x8000)), even | s);
            assert_int_equal(bf16_from_f32(f32_from_bits(low + 0x8001)), (b + 1) | s);
        }
    }
    assert_int_equal(bf16_from_f32(f32_from_bits(0x7F800001u)), 0x7FC0);
    assert_int_equal(bf16_from_f32(f32_from_bits(0xFFFFFFFFu)), 0xFFFF);
}

static void test_pow2_ceil_is_the_smallest_power_not_below(void **state)
{
    (void)state;
    for (int e = -126; e <= 126; e++) {
        float p = ldexpf(1, e);

        assert_true(same_bits(pow2_ceil(p), p));
        assert_true(same_bits(pow2_ceil(nextafterf(p, INFINITY)), 2 * p));
        assert_true(same_bits(pow2_ceil(1.5f * p), 2 * p));
        assert_true(same_bits(pow2_ceil(nextafterf(2 * p, 0)), 2 * p));
    }
}

static void test_dtypes_have_the_names_and_sizes_of_safetensors(void **state)
{
    static const struct {
        const char *name;
        dtype type;
        unsigned bytes;
    } cases[] = {{"F32", DTYPE_F32, 4},         {"BF16", DTYPE_BF16, 2},
                 {"F8_E4M3", DTYPE_F8_E4M3, 1}, {"F8_E8M0", DTYPE_F8_E8M0, 1},
                 {"I8", DTYPE_I8, 1},           {"I32", DTYPE_I32, 4},
                 {"I64", DTYPE_I64, 8},         {"BOOL", DTYPE_BOOL, 1}};

    (void)state;
    assert_int_equal(ARRAY_LEN(cases), DTYPE_COUNT);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        unsigned n = (unsigned)strlen(cases[i].name);

        assert_int_equal(dtype_from_name(cases[i].name, n), cases[i].type);
        assert_int_equal(dtype_from_name(cases[i].name, n - 1), DTYPE_COUNT);
        assert_string_equal(dtype_name(cases[i].type), cases[i].name);
        assert_int_equal(dtype_bytes(cases[i].type), cases[i].bytes);
    }
    assert_int_equal(dtype_from_name("F16", 3), DTYPE_COUNT);
    assert_string_equal(dtype_name(DTYPE_COUNT), "?");
    assert_int_equal(dtype_bytes(DTYPE_COUNT), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e4m3_decodes_all_256_codes),
        cmocka_unit_test(test_e4m3_rounds_every_tie_to_even),
        cmocka_unit_test(test_e4m3_saturates_and_keeps_nan_and_signs),
        cmocka_unit_test(test_e4m3_is_nearest_even_for_all_bf16_and_random_values),
        cmocka_unit_test(test_e2m1_decodes_all_16_codes),
        cmocka_unit_test(test_e2m1_rounds_every_tie_to_even_and_saturates),
        cmocka_unit_test(test_e2m1_is_nearest_even_for_all_bf16_values),
        cmocka_unit_test(test_ue8m0_decodes_all_bytes),
        cmocka_unit_test(test_bf16_keeps_all_65536_codes),
        cmocka_unit_test(test_bf16_rounds_to_nearest_even_between_all_neighbours),
        cmocka_unit_test(test_pow2_ceil_is_the_smallest_power_not_below),
        cmocka_unit_test(test_dtypes_have_the_names_and_sizes_of_safetensors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
