/* Vectors of f32 for the sources that are compiled once per instruction set.
 *
 * CPU_AVX512: 16 lanes, with BF16, VNNI and VBMI. CPU_AVX2: 8 lanes, with FMA. A source written
 * over this header reads the same for both; only the hottest dot loops go below it. Sums over lanes
 * are a fixed tree, so a result depends on the shape of the work and the instruction set only. vf =
 * f32 lanes, vi = i32 lanes of the same count, VF = lanes. Loads and stores are unaligned. Thread:
 * any. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

/* Before a loop over an array of sums that must stay in registers. */
#if defined(__clang__)
#define SIMD_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SIMD_UNROLL _Pragma("GCC unroll 32")
#endif

#if defined(CPU_AVX512)
#define VF         16
#define CPU_FN(fn) fn##_avx512
typedef __m512 vf;
typedef __m512i vi;
#elif defined(CPU_AVX2)
#define VF         8
#define CPU_FN(fn) fn##_avx2
typedef __m256 vf;
typedef __m256i vi;
#else
#error "compile with CPU_AVX512 or CPU_AVX2"
#endif

#if defined(CPU_AVX512)

static inline vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}

/* The first n (0..VF) elements of p, `fill` in the other lanes. */
static inline vf vf_load_part(const float *p, int n, float fill)
{
    return _mm512_mask_loadu_ps(vf_set(fill), (__mmask16)((1u << n) - 1u), p);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c, one rounding. */
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* c - a * b, one rounding. */
static inline vf vf_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}

/* Nearest integer, ties to even. */
static inline vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Bit mask of the lanes with a > b, a >= b. */
static inline uint32_t vf_gt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

static inline uint32_t vf_ge(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

/* x where x >= limit, else 0. */
static inline vf vf_keep_ge(vf x, vf limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_GE_OQ), x);
}

/* a where x < limit, else b. */
static inline vf vf_select_lt(vf x, vf limit, vf a, vf b)
{
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), a);
}

static inline vi vf_bits(vf x)
{
    return _mm512_castps_si512(x);
}

static inline vf vf_from_bits(vi x)
{
    return _mm512_castsi512_ps(x);
}

static inline vi vf_to_int(vf x)
{
    return _mm512_cvtps_epi32(x);
}

static inline vf vi_to_float(vi x)
{
    return _mm512_cvtepi32_ps(x);
}

static inline vi vi_set(int32_t x)
{
    return _mm512_set1_epi32(x);
}

static inline vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

static inline void vi_store(void *p, vi x)
{
    _mm512_storeu_si512(p, x);
}

static inline vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

static inline vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}

static inline vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

static inline vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}

static inline vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}

static inline vi vi_max(vi a, vi b)
{
    return _mm512_max_epi32(a, b);
}

/* Shifts by a constant. */
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
#define vi_shr(a, n) _mm512_srli_epi32(a, n)
#define vi_sar(a, n) _mm512_srai_epi32(a, n)

/* Low byte of every lane. */
static inline void vi_store_u8(uint8_t *p, vi x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(x));
}

static inline vf vf_load_bf16(const uint16_t *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static inline vi vi_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Even and odd elements of the 2*VF floats lo, hi. */
static inline void vf_deinterleave(vf lo, vf hi, vf *even, vf *odd)
{
    const vi e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);

    *even = _mm512_permutex2var_ps(lo, e, hi);
    *odd = _mm512_permutex2var_ps(lo, vi_add(e, vi_set(1)), hi);
}

/* Halves of a vector, for reductions. */
static inline __m256 vf_low(vf x)
{
    return _mm512_castps512_ps256(x);
}

static inline __m256 vf_high(vf x)
{
    return _mm512_extractf32x8_ps(x, 1);
}

static inline float vf_sum(vf x)
{
    __m256 a = _mm256_add_ps(vf_low(x), vf_high(x));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static inline float vf_max_lane(vf x)
{
    __m256 a = _mm256_max_ps(vf_low(x), vf_high(x));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

#else /* CPU_AVX2 */

static inline vf vf_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}

/* The first n (0..VF) elements of p, `fill` in the other lanes. */
static inline vf vf_load_part(const float *p, int n, float fill)
{
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i use = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);

    return _mm256_blendv_ps(vf_set(fill), _mm256_maskload_ps(p, use), _mm256_castsi256_ps(use));
}

static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

/* a * b + c, one rounding. */
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* c - a * b, one rounding. */
static inline vf vf_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

static inline vf vf_sqrt(vf a)
{
    return _mm256_sqrt_ps(a);
}

/* Nearest integer, ties to even. */
static inline vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Bit mask of the lanes with a > b, a >= b. */
static inline uint32_t vf_gt(vf a, vf b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}

static inline uint32_t vf_ge(vf a, vf b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}

/* x where x >= limit, else 0. */
static inline vf vf_keep_ge(vf x, vf limit)
{
    return _mm256_and_ps(x, _mm256_cmp_ps(x, limit, _CMP_GE_OQ));
}

/* a where x < limit, else b. */
static inline vf vf_select_lt(vf x, vf limit, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, limit, _CMP_LT_OQ));
}

static inline vi vf_bits(vf x)
{
    return _mm256_castps_si256(x);
}

static inline vf vf_from_bits(vi x)
{
    return _mm256_castsi256_ps(x);
}

static inline vi vf_to_int(vf x)
{
    return _mm256_cvtps_epi32(x);
}

static inline vf vi_to_float(vi x)
{
    return _mm256_cvtepi32_ps(x);
}

static inline vi vi_set(int32_t x)
{
    return _mm256_set1_epi32(x);
}

static inline vi vi_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline void vi_store(void *p, vi x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}

static inline vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}

static inline vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}

static inline vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}

static inline vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}

static inline vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}

static inline vi vi_max(vi a, vi b)
{
    return _mm256_max_epi32(a, b);
}

/* Shifts by a constant. */
#define vi_shl(a, n) _mm256_slli_epi32(a, n)
#define vi_shr(a, n) _mm256_srli_epi32(a, n)
#define vi_sar(a, n) _mm256_srai_epi32(a, n)

/* Low byte of every lane; the lanes must hold 0..255. */
static inline void vi_store_u8(uint8_t *p, vi x)
{
    __m128i w = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));

    _mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(w, w));
}

static inline vf vf_load_bf16(const uint16_t *p)
{
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);

    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline vi vi_load_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

/* Even and odd elements of the 2*VF floats lo, hi. */
static inline void vf_deinterleave(vf lo, vf hi, vf *even, vf *odd)
{
    vf e = _mm256_shuffle_ps(lo, hi, 0x88), o = _mm256_shuffle_ps(lo, hi, 0xDD);

    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(e), 0xD8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(o), 0xD8));
}

static inline float vf_sum(vf x)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static inline float vf_max_lane(vf x)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

#endif

static inline vf vf_abs(vf x)
{
    return vf_from_bits(vi_and(vf_bits(x), vi_set(0x7FFFFFFF)));
}

/* The sign of `sign` on the magnitude bits of x (x must have none of its own). */
static inline vf vf_or_sign(vf x, vf sign)
{
    return vf_from_bits(vi_or(vf_bits(x), vi_and(vf_bits(sign), vi_set(INT32_MIN))));
}

/* Round to bf16, nearest even, kept as f32: bf() of the specification. Finite x; exact for
 * subnormals too, unlike vcvtneps2bf16. */
static inline vf vf_bf16(vf x)
{
    vi u = vf_bits(x), odd = vi_and(vi_shr(u, 16), vi_set(1));

    u = vi_add(vi_add(u, vi_set(0x7FFF)), odd);
    return vf_from_bits(vi_and(u, vi_set((int32_t)0xFFFF0000u)));
}

/* Store the upper halves of lanes that hold bf16 values. */
static inline void vf_store_bf16_exact(uint16_t *p, vf x)
{
#if defined(CPU_AVX512)
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(vi_shr(vf_bits(x), 16)));
#else
    vi u = vi_shr(vf_bits(x), 16);

    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1)));
#endif
}

/* Round to bf16 and store. */
static inline void vf_store_bf16(uint16_t *p, vf x)
{
    vf_store_bf16_exact(p, vf_bf16(x));
}

/* e^x within 2 units in the last place for x in [-87.33, 88.37]; 0 below, e^88.37 above.
 * Cody-Waite reduction to |r| <= ln2/2; e^r = 1 + r + r^2 q(r), q minimax of degree 4. */
static inline vf vf_exp(vf x)
{
    vf y = vf_max(vf_min(x, vf_set(88.37f)), vf_set(-87.33f));
    vf n = vf_round(vf_mul(y, vf_set(0x1.715476p+0f)));
    vf r = vf_fnma(n, vf_set(0x1.7f7d1cp-20f), vf_fnma(n, vf_set(0x1.62e4p-1f), y));
    vf q = vf_fma(vf_set(0x1.6a2434p-10f), r, vf_set(0x1.1239e2p-7f));

    q = vf_fma(q, r, vf_set(0x1.5558f2p-5f));
    q = vf_fma(q, r, vf_set(0x1.555492p-3f));
    q = vf_fma(q, r, vf_set(0x1.fffffcp-2f));
    r = vf_add(vf_fma(vf_mul(r, r), q, r), vf_set(1.0f));
    r = vf_from_bits(vi_add(vf_bits(r), vi_shl(vf_to_int(n), 23)));
    return vf_select_lt(x, vf_set(-87.33f), vf_zero(), r);
}

/* log(1 + u) for u in [0, 1], relative error below 2^-22: 2 atanh(z), z = u / (2 + u). */
static inline vf vf_log1p_unit(vf u)
{
    vf z = vf_div(u, vf_add(u, vf_set(2.0f))), t = vf_mul(z, z);
    vf p = vf_fma(vf_set(0.122128323f), t, vf_set(0.106948853f));

    p = vf_fma(p, t, vf_set(0.143105298f));
    p = vf_fma(p, t, vf_set(0.199993387f));
    p = vf_fma(p, t, vf_set(0.333333403f));
    p = vf_fma(p, t, vf_set(1.0f));
    return vf_mul(vf_add(z, z), p);
}

static inline vf vf_sigmoid(vf x)
{
    return vf_div(vf_set(1.0f), vf_add(vf_set(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}
