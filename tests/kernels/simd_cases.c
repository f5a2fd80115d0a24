/* Cases of kernels/cpu/simd.h and quant_simd.h, compiled once per instruction set. */
#include "kernels/cpu/quant_simd.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "formats/quant.h"

#include "kernels/simd_cases.h"

#define N_FINITE (2 * 0x7F80) /* bf16 codes with an exponent below 255, both signs */

/* Deterministic values: every finite bf16 code in order, then mixtures over a moderate range. */
static uint16_t value(int round, int i)
{
    uint32_t h = (uint32_t)i * 0x9E3779B1u ^ (uint32_t)round * 0x85EBCA77u;

    if (round == 0)
        return (uint16_t)(i < 0x7F80 ? i : i - 0x7F80 + 0x8000);
    h ^= h >> 15;
    h *= 0xC2B2AE3Du;
    h ^= h >> 13;
    /* exponents 2^-20 .. 2^11, all mantissas */
    return (uint16_t)((h & 0x8000u) | ((107u + (h >> 20 & 31u)) << 7) | (h & 0x7Fu));
}

/* Number of rounds x positions where a quantiser differs from formats/quant.c. */
int CPU_FN(simd_count_quantiser_differences)(simd_quantiser which)
{
    enum { N = N_FINITE / 32 * 32 };
    static uint16_t x[N], y[N];
    static float xf[N], want_f[N];
    static uint8_t codes[N], scales[N / 16], want_codes[N], want_scales[N / 16];
    int bad = 0;

    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < N; i++) {
            x[i] = value(round, i);
            xf[i] = bf16_to_f32(x[i]);
        }
        switch (which) {
        case SIMD_Q8:
            q8_encode(want_codes, want_scales, xf, N);
            q8_row_codes(codes, scales, x, N);
            q8_decode(want_f, want_codes, want_scales, N);
            q8_row(y, x, N);
            for (int i = 0; i < N; i++)
                bad += codes[i] != want_codes[i] || y[i] != bf16_from_f32(want_f[i]);
            for (int i = 0; i < N / 32; i++)
                bad += scales[i] != want_scales[i];
            break;
        case SIMD_Q4I:
            q4i_encode(want_codes, want_scales, xf, N);
            q4i_row_codes(codes, scales, x, N);
            for (int i = 0; i < N / 2; i++)
                bad += codes[i] != want_codes[i];
            for (int i = 0; i < N / 32; i++)
                bad += scales[i] != want_scales[i];
            break;
        case SIMD_Q4C:
            q4c_encode(want_codes, want_scales, xf, N);
            q4c_row_codes(codes, scales, x, N);
            for (int i = 0; i < N / 2; i++)
                bad += codes[i] != want_codes[i];
            for (int i = 0; i < N / 16; i++)
                bad += scales[i] != want_scales[i];
            break;
        }
    }
    return bad;
}

static double ulps(double got, double want)
{
    int e;

    frexp(want, &e);
    return fabs(got - want) / ldexp(1.0, e - 24);
}

double CPU_FN(simd_exp_error_ulps)(void)
{
    double worst = 0;
    float in[VF], out[VF];

    for (int64_t i = 0; i < 4000000; i += VF) {
        for (int l = 0; l < VF; l++)
            in[l] = -87.32f + (float)((double)(i + l) * (175.68 / 4000000.0));
        vf_store(out, vf_exp(vf_load(in)));
        for (int l = 0; l < VF; l++)
            worst = fmax(worst, ulps((double)out[l], exp((double)in[l])));
    }
    return worst;
}

/* vf_exp outside its range: 0 below, finite and above 2^127 on top. */
int CPU_FN(simd_exp_saturates)(void)
{
    float out[VF];

    vf_store(out, vf_exp(vf_set(-INFINITY)));
    if (out[0] != 0.0f || out[VF - 1] != 0.0f)
        return 0;
    vf_store(out, vf_exp(vf_set(-87.4f)));
    if (out[0] != 0.0f)
        return 0;
    vf_store(out, vf_exp(vf_set(1e30f)));
    return isfinite(out[0]) && out[0] > 0x1p127f;
}

double CPU_FN(simd_log1p_error)(void)
{
    double worst = 0;
    float in[VF], out[VF];

    for (int i = 1; i < 2000000; i += VF) {
        for (int l = 0; l < VF; l++) {
            float u = (float)(i + l) / 2000000.0f;

            in[l] = u > 1.0f ? 1.0f : l % 2 ? u : u * u * u * u;
        }
        vf_store(out, vf_log1p_unit(vf_load(in)));
        for (int l = 0; l < VF; l++)
            worst = fmax(worst, fabs((double)out[l] / log1p((double)in[l]) - 1.0));
    }
    return worst;
}

/* Reductions and partial loads against plain loops; rounding to bf16 against formats/scalar.h. */
int CPU_FN(simd_count_lane_errors)(void)
{
    float x[VF];
    uint16_t b[VF];
    int bad = 0;

    for (int round = 0; round < 1000; round++) {
        double sum = 0;
        float max = -INFINITY;

        for (int l = 0; l < VF; l++) {
            x[l] = bf16_to_f32(value(1, round * VF + l)) * 1.0009765f;
            sum += (double)x[l];
            max = x[l] > max ? x[l] : max;
        }
        bad += fabs((double)vf_sum(vf_load(x)) - sum) > 1e-2;
        bad += vf_max_lane(vf_load(x)) != max;
        vf_store_bf16(b, vf_load(x));
        for (int l = 0; l < VF; l++)
            bad += b[l] != bf16_from_f32(x[l]);
        for (int n = 0; n <= VF; n++) {
            float y[VF];

            vf_store(y, vf_load_part(x, n, 7.0f));
            for (int l = 0; l < VF; l++)
                bad += y[l] != (l < n ? x[l] : 7.0f);
        }
    }
    return bad;
}
