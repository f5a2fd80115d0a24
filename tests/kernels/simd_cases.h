/* Entry points of simd_cases.c for each instruction set. */
#pragma once

typedef enum simd_quantiser { SIMD_Q8, SIMD_Q4I, SIMD_Q4C } simd_quantiser;

#define SIMD_CASES(isa)                                                                            \
    int simd_count_quantiser_differences_##isa(simd_quantiser which);                              \
    double simd_exp_error_ulps_##isa(void);                                                        \
    int simd_exp_saturates_##isa(void);                                                            \
    double simd_log1p_error_##isa(void);                                                           \
    int simd_count_lane_errors_##isa(void);

SIMD_CASES(avx512)
SIMD_CASES(avx2)
