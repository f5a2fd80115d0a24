/* What the operations on rows share: norms, rotations, key decoding, scratch layout.
 *
 * Sums over a row run in two vector chains (even and odd vectors) that are added before the lanes:
 * an order fixed by the row's length. Thread: any. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/quant_simd.h"

/* What a job gets: the operation's arguments with the back end. */
typedef struct cpu_job {
    const kernels *k;
    const void *args;
} cpu_job;

static inline void cpu_run(kernels *k, pool_fn fn, const void *args)
{
    cpu_job job = {.k = k, .args = args};

    pool_run(k->pool, fn, &job);
}

/* Work that one thread does before the others would have woken up, in bytes of rows touched. */
#define CPU_ALONE_BYTES 65536

/* Run a job on all threads, or on the caller alone when `bytes` are few. */
static inline void cpu_run_sized(kernels *k, pool_fn fn, const void *args, int64_t bytes)
{
    cpu_job job = {.k = k, .args = args};

    if (bytes <= CPU_ALONE_BYTES)
        fn(&job, 0, 1);
    else
        pool_run(k->pool, fn, &job);
}

static inline size_t pad64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static inline float sum_squares_bf16(const uint16_t *x, int n)
{
    vf even = vf_zero(), odd = vf_zero();

    for (int i = 0; i < n; i += 2 * VF) {
        vf a = vf_load_bf16(x + i), b = vf_load_bf16(x + i + VF);

        even = vf_fma(a, a, even);
        odd = vf_fma(b, b, odd);
    }
    return vf_sum(vf_add(even, odd));
}

static inline float rms_factor(float sum_squares, int n, float eps)
{
    return 1.0f / sqrtf(sum_squares / (float)n + eps);
}

/* out = bf(w * (x * r)); n a multiple of 32, out may be x. */
static inline void scale_row_bf16(uint16_t *out, const uint16_t *x, float r, const float *w, int n)
{
    vf factor = vf_set(r);

    for (int i = 0; i < n; i += VF)
        vf_store_bf16(out + i, vf_mul(vf_load(w + i), vf_mul(vf_load_bf16(x + i), factor)));
}

static inline void rms_row_bf16(uint16_t *out, const uint16_t *x, const float *w, int n, float eps)
{
    scale_row_bf16(out, x, rms_factor(sum_squares_bf16(x, n), n, eps), w, n);
}

/* Rotate the pairs of x [2*half] by cs [half][2]; result bf. sign -1 turns back. */
static inline void rope_bf16(uint16_t *x, const float *cs, int half, float sign)
{
    vi upper = vi_set((int32_t)0xFFFF0000u);
    vf turn = vf_set(sign);
    int i = 0;

    for (; i + VF <= half; i += VF) {
        vi pair = vi_load(x + 2 * i);
        vf a = vf_from_bits(vi_shl(pair, 16)), b = vf_from_bits(vi_and(pair, upper)), c, s;

        vf_deinterleave(vf_load(cs + 2 * i), vf_load(cs + 2 * i + VF), &c, &s);
        s = vf_mul(s, turn);
        pair = vi_shr(vf_bits(vf_bf16(vf_sub(vf_mul(a, c), vf_mul(b, s)))), 16);
        pair = vi_or(pair, vf_bits(vf_bf16(vf_add(vf_mul(a, s), vf_mul(b, c)))));
        vi_store(x + 2 * i, pair);
    }
    for (; i < half; i++) {
        float a = bf16_to_f32(x[2 * i]), b = bf16_to_f32(x[2 * i + 1]);
        float c = cs[2 * i], s = sign * cs[2 * i + 1];

        x[2 * i] = bf16_from_f32(a * c - b * s);
        x[2 * i + 1] = bf16_from_f32(a * s + b * c);
    }
}

/* Ring row (E4M3, a UE8M0 byte per 32) -> bf16, exact. */
static inline void ring_row_decode(uint16_t *out, const uint8_t *row, int dim)
{
    for (int g = 0; g < dim; g += 32) {
        vf scale = vf_set(ue8m0_to_f32(row[dim + g / 32]));

        for (int i = g; i < g + 32; i += VF)
            vf_store_bf16_exact(out + i, vf_mul(vf_e4m3(vi_load_u8(row + i)), scale));
    }
}

/* Latent row (E2M1 pairs, an E4M3 scale per 16) -> bf16, exact. */
static inline void latent_row_decode(uint16_t *out, const uint8_t *row, int dim)
{
#if defined(CPU_AVX512)
    /* A table of 2 x 16 products per 32 elements; lanes 16.. use its upper half. */
    const vf e2m1 = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                   -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    const __m512i nibbles = _mm512_set1_epi16(15);
    const __m512i half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    float scale[16];

    for (int g = 0; g < dim; g += 32) {
        __m512i code =
            _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(row + g / 2)));
        __m512i table;

        if (g % 256 == 0) { /* the next 16 scales, fewer at the end of a short row */
            int n = dim - g < 256 ? (dim - g) / 16 : 16;
            __m128i s = _mm_maskz_loadu_epi8((__mmask16)((1u << n) - 1u), row + (dim + g / 8) / 2);

            vf_store(scale, vf_e4m3(_mm512_cvtepu8_epi32(s)));
        }
        table = (__m512i)_mm512_cvtne2ps_pbh(vf_mul(e2m1, vf_set(scale[g / 16 % 16 + 1])),
                                             vf_mul(e2m1, vf_set(scale[g / 16 % 16])));
        code = vi_or(vi_and(vi_or(code, vi_shl(code, 12)), nibbles), half);
        vi_store(out + g, _mm512_permutexvar_epi16(code, table));
    }
#else
    /* Twice the value as a signed byte. */
    const __m128i doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i low = _mm_set1_epi8(15);

    for (int g = 0; g < dim; g += 16) {
        __m128i c = _mm_loadl_epi64((const __m128i *)(const void *)(row + g / 2));
        __m128i even = _mm_shuffle_epi8(doubled, _mm_and_si128(c, low));
        __m128i odd = _mm_shuffle_epi8(doubled, _mm_and_si128(_mm_srli_epi16(c, 4), low));
        __m128i v = _mm_unpacklo_epi8(even, odd);
        vf scale = vf_set(e4m3_to_f32(row[dim / 2 + g / 16]) * 0.5f);

        vf_store_bf16_exact(out + g, vf_mul(vi_to_float(_mm256_cvtepi8_epi32(v)), scale));
        vf_store_bf16_exact(out + g + 8,
                            vf_mul(vi_to_float(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))), scale));
    }
#endif
}

#if defined(CPU_AVX512)

/* 16x16 dwords. */
static inline void transpose16(__m512i r[16])
{
    __m512i t[16];

    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 16; i += 8)
        for (int j = i; j < i + 4; j++) {
            t[j] = _mm512_shuffle_i32x4(r[j], r[j + 4], 0x88);
            t[j + 4] = _mm512_shuffle_i32x4(r[j], r[j + 4], 0xDD);
        }
    for (int j = 0; j < 8; j++) {
        r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
        r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xDD);
    }
}

#endif

/* Scratch of the operations in these files (rows.c takes the largest). */
size_t CPU_FN(attention_thread_bytes)(const kernel_limits *l);
size_t CPU_FN(index_thread_bytes)(const kernel_limits *l);
size_t CPU_FN(select_thread_bytes)(const kernel_limits *l);
size_t CPU_FN(hc_thread_bytes)(const kernel_limits *l);
size_t CPU_FN(hc_shared_bytes)(const kernel_limits *l, int n_threads);
size_t CPU_FN(sample_thread_bytes)(const kernel_limits *l);

/* Indices of the k best of x [n], ascending; of equals the lower ones; returns how many (select.c).
 * `scratch` has select_thread_bytes. */
int32_t CPU_FN(select_best)(void *scratch, const float *x, int64_t n, int64_t k, int32_t *out);
