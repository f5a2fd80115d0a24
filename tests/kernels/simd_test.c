/* The vector layer of the CPU back end: conversions bit for bit, functions within their bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/cpu.h"

#include "kernels/simd_cases.h"

/* Run a case for each instruction set that this processor has. */
#define HAVE_AVX512 (cpu_get()->avx512 && cpu_get()->avx512_bf16 && cpu_get()->avx512_vnni)
#define FOR_EACH_ISA(check, fn, ...)                                                               \
    do {                                                                                           \
        if (cpu_get()->avx2)                                                                       \
            check(fn##_avx2(__VA_ARGS__));                                                         \
        if (HAVE_AVX512)                                                                           \
            check(fn##_avx512(__VA_ARGS__));                                                       \
    } while (0)

#define IS_ZERO(x)       assert_int_equal(x, 0)
#define IS_TRUE(x)       assert_true(x)
#define AT_MOST_2(x)     assert_true((x) <= 2.0)
#define AT_MOST_2P_22(x) assert_true((x) <= 0x1p-22)

static void test_quantisers_equal_the_scalar_ones_on_every_bf16(void **state)
{
    (void)state;
    FOR_EACH_ISA(IS_ZERO, simd_count_quantiser_differences, SIMD_Q8);
    FOR_EACH_ISA(IS_ZERO, simd_count_quantiser_differences, SIMD_Q4I);
    FOR_EACH_ISA(IS_ZERO, simd_count_quantiser_differences, SIMD_Q4C);
}

static void test_exp_is_within_two_ulps(void **state)
{
    (void)state;
    FOR_EACH_ISA(AT_MOST_2, simd_exp_error_ulps);
    FOR_EACH_ISA(IS_TRUE, simd_exp_saturates);
}

static void test_log1p_is_within_its_bound(void **state)
{
    (void)state;
    FOR_EACH_ISA(AT_MOST_2P_22, simd_log1p_error);
}

static void test_lanes_reduce_load_and_round_like_a_plain_loop(void **state)
{
    (void)state;
    FOR_EACH_ISA(IS_ZERO, simd_count_lane_errors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantisers_equal_the_scalar_ones_on_every_bf16),
        cmocka_unit_test(test_exp_is_within_two_ulps),
        cmocka_unit_test(test_log1p_is_within_its_bound),
        cmocka_unit_test(test_lanes_reduce_load_and_round_like_a_plain_loop),
    };

    if (!cpu_get()->avx2) {
        printf("skipped: this processor has no AVX2\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
