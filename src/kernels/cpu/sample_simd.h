/* Vectors for sampling: Gumbel noise and e^x in double.
 *
 * The noise has the bits of kernels/noise.h: the same operations in the same order, none fused.
 * Philox runs on 64-bit lanes (two vectors per VF tokens): the low half of a lane is the word, the
 * upper half is whatever is left there, which no product reads. Thread: any. */
#pragma once

#include "kernels/cpu/rows.h"
#include "kernels/noise.h"

#if defined(CPU_AVX512)

typedef __m512d vd;
#define VD 8

static inline vi mul_low_halves(vi a, uint32_t b)
{
    return _mm512_mul_epu32(a, vi_set((int32_t)b));
}

/* Upper words moved down; a shuffle, because shifts would compete with the products. */
static inline vi upper_halves(vi a)
{
    return _mm512_shuffle_epi32(a, _MM_PERM_DDBB);
}

static inline vi xor3(vi a, vi b, vi c)
{
    return _mm512_ternarylogic_epi32(a, b, c, 0x96);
}

/* Words of VF ids as 64-bit lanes, and back. */
static inline void widen(vi ids, vi out[2])
{
    out[0] = _mm512_cvtepu32_epi64(_mm512_castsi512_si256(ids));
    out[1] = _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(ids, 1));
}

static inline vi narrow(const vi in[2])
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(in[0])),
                              _mm512_cvtepi64_epi32(in[1]), 1);
}

/* Unsigned words to the nearest f32. */
static inline vf words_to_float(vi w)
{
    return _mm512_cvtepu32_ps(w);
}

/* a where w >= limit (unsigned), else b. */
static inline vf select_word_ge(vi w, uint32_t limit, vf a, vf b)
{
    return _mm512_mask_mov_ps(b, _mm512_cmpge_epu32_mask(w, vi_set((int32_t)limit)), a);
}

/* e^x for x <= 0, error below 3e-13 of the value, 3e-308 at least (tiny results are slow); e^0 is
 * exactly 1. 2^(n/16) from a table, e^r by its series, |r| <= ln2/32. */
static inline vd vd_exp(vd x)
{
    const vd t0 = _mm512_setr_pd(0x1p0, 0x1.0b5586cf9890fp0, 0x1.172b83c7d517bp0,
                                 0x1.2387a6e756238p0, 0x1.306fe0a31b715p0, 0x1.3dea64c123422p0,
                                 0x1.4bfdad5362a27p0, 0x1.5ab07dd485429p0);
    const vd t1 = _mm512_setr_pd(0x1.6a09e667f3bcdp0, 0x1.7a11473eb0187p0, 0x1.8ace5422aa0dbp0,
                                 0x1.9c49182a3f090p0, 0x1.ae89f995ad3adp0, 0x1.c199bdd85529cp0,
                                 0x1.d5818dcfba487p0, 0x1.ea4afa2a490dap0);
    const vd magic = _mm512_set1_pd(0x1.8p52);
    vd y = _mm512_max_pd(x, _mm512_set1_pd(-708.0));
    vd k = _mm512_fmadd_pd(y, _mm512_set1_pd(0x1.71547652b82fep4), magic);
    vd n = _mm512_sub_pd(k, magic);
    vd r = _mm512_fnmadd_pd(n, _mm512_set1_pd(0x1.62e42fefa39efp-5), y);
    vd p = _mm512_fmadd_pd(_mm512_set1_pd(1.0 / 120), r, _mm512_set1_pd(1.0 / 24)), t;

    p = _mm512_fmadd_pd(p, r, _mm512_set1_pd(1.0 / 6));
    p = _mm512_fmadd_pd(p, r, _mm512_set1_pd(0.5));
    p = _mm512_fmadd_pd(p, r, _mm512_set1_pd(1.0));
    t = _mm512_permutex2var_pd(t0, _mm512_castpd_si512(k), t1);
    p = _mm512_fmadd_pd(_mm512_mul_pd(p, r), t, t);
    return _mm512_scalef_pd(p, _mm512_mul_pd(n, _mm512_set1_pd(0.0625)));
}

static inline vd vd_set(double x)
{
    return _mm512_set1_pd(x);
}

static inline vd vd_load_f32(const float *p)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps(p));
}

static inline vd vd_load(const double *p)
{
    return _mm512_loadu_pd(p);
}

static inline void vd_store(double *p, vd x)
{
    _mm512_storeu_pd(p, x);
}

/* As f32, 0 below 2^-100. */
static inline void vd_store_f32(float *p, vd x)
{
    __mmask8 m = _mm512_cmp_pd_mask(x, _mm512_set1_pd(0x1p-100), _CMP_GE_OQ);

    _mm256_storeu_ps(p, _mm512_maskz_cvtpd_ps(m, x));
}

static inline vd vd_add(vd a, vd b)
{
    return _mm512_add_pd(a, b);
}

static inline vd vd_sub(vd a, vd b)
{
    return _mm512_sub_pd(a, b);
}

/* x where f >= limit, else 0. */
static inline vd vd_keep_ge(vd x, const float *f, float limit)
{
    __mmask8 m = _mm256_cmp_ps_mask(_mm256_loadu_ps(f), _mm256_set1_ps(limit), _CMP_GE_OQ);

    return _mm512_maskz_mov_pd(m, x);
}

#else /* CPU_AVX2 */

typedef __m256d vd;
#define VD 4

static inline vi mul_low_halves(vi a, uint32_t b)
{
    return _mm256_mul_epu32(a, vi_set((int32_t)b));
}

/* Upper words moved down. */
static inline vi upper_halves(vi a)
{
    return _mm256_shuffle_epi32(a, 0xF5);
}

static inline vi xor3(vi a, vi b, vi c)
{
    return vi_xor(vi_xor(a, b), c);
}

/* Words of VF ids as 64-bit lanes, and back. */
static inline void widen(vi ids, vi out[2])
{
    out[0] = _mm256_cvtepu32_epi64(_mm256_castsi256_si128(ids));
    out[1] = _mm256_cvtepu32_epi64(_mm256_extracti128_si256(ids, 1));
}

static inline vi narrow(const vi in[2])
{
    __m256 pairs = _mm256_shuffle_ps(vf_from_bits(in[0]), vf_from_bits(in[1]), 0x88);

    return _mm256_permute4x64_epi64(vf_bits(pairs), 0xD8);
}

/* Unsigned words to the nearest f32: both halves are exact, their sum is rounded once. */
static inline vf words_to_float(vi w)
{
    vf high = vf_mul(vi_to_float(vi_shr(w, 16)), vf_set(65536.0f));

    return vf_add(high, vi_to_float(vi_and(w, vi_set(0xFFFF))));
}

/* a where w >= limit (unsigned), else b. */
static inline vf select_word_ge(vi w, uint32_t limit, vf a, vf b)
{
    vi less =
        _mm256_cmpgt_epi32(vi_set((int32_t)(limit ^ 0x80000000u)), vi_xor(w, vi_set(INT32_MIN)));

    return _mm256_blendv_ps(a, b, vf_from_bits(less));
}

/* e^x for x <= 0, error below 1e-15 of the value, 0 below -708; e^0 is exactly 1. */
static inline vd vd_exp(vd x)
{
    static const double c[] = {
        1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
        1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5};
    const vd magic = _mm256_set1_pd(0x1.8p52), low = _mm256_set1_pd(-708.0);
    vd y = _mm256_max_pd(x, low);
    vd k = _mm256_add_pd(_mm256_mul_pd(y, _mm256_set1_pd(0x1.71547652b82fep0)), magic);
    vd n = _mm256_sub_pd(k, magic);
    vd r = _mm256_fnmadd_pd(n, _mm256_set1_pd(0x1.62e42fefap-1), y);
    vd p = _mm256_set1_pd(c[0]);

    r = _mm256_fnmadd_pd(n, _mm256_set1_pd(0x1.cf79abc9e3b39p-40), r);
    for (int i = 1; i < 11; i++)
        p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(c[i]));
    p = _mm256_add_pd(_mm256_fmadd_pd(_mm256_mul_pd(r, r), p, r), _mm256_set1_pd(1.0));
    p = _mm256_castsi256_pd(
        _mm256_add_epi64(_mm256_castpd_si256(p), _mm256_slli_epi64(_mm256_castpd_si256(k), 52)));
    return _mm256_and_pd(p, _mm256_cmp_pd(x, low, _CMP_GE_OQ));
}

static inline vd vd_set(double x)
{
    return _mm256_set1_pd(x);
}

static inline vd vd_load_f32(const float *p)
{
    return _mm256_cvtps_pd(_mm_loadu_ps(p));
}

static inline vd vd_load(const double *p)
{
    return _mm256_loadu_pd(p);
}

static inline void vd_store(double *p, vd x)
{
    _mm256_storeu_pd(p, x);
}

/* As f32, 0 below 2^-100. */
static inline void vd_store_f32(float *p, vd x)
{
    vd m = _mm256_cmp_pd(x, _mm256_set1_pd(0x1p-100), _CMP_GE_OQ);

    _mm_storeu_ps(p, _mm256_cvtpd_ps(_mm256_and_pd(x, m)));
}

static inline vd vd_add(vd a, vd b)
{
    return _mm256_add_pd(a, b);
}

static inline vd vd_sub(vd a, vd b)
{
    return _mm256_sub_pd(a, b);
}

/* x where f >= limit, else 0. */
static inline vd vd_keep_ge(vd x, const float *f, float limit)
{
    __m128 m = _mm_cmpge_ps(_mm_loadu_ps(f), _mm_set1_ps(limit));

    return _mm256_and_pd(x, _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm_castps_si128(m))));
}

#endif

static inline double vd_sum(vd x)
{
    double lane[VD], sum = 0;

    vd_store(lane, x);
    for (int i = 0; i < VD; i++)
        sum += lane[i];
    return sum;
}

/* What the rounds of Philox 4x32-10 add for one (seed, choice, position). */
typedef struct philox_lanes {
    vi c1, c2, c3, k0[10], k1[10];
} philox_lanes;

static inline philox_lanes philox_begin(uint64_t seed, uint32_t choice, int64_t position)
{
    philox_lanes p = {.c1 = vi_set((int32_t)choice),
                      .c2 = vi_set((int32_t)position),
                      .c3 = vi_set((int32_t)(position >> 32))};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < 10; round++) {
        p.k0[round] = vi_set((int32_t)k0);
        p.k1[round] = vi_set((int32_t)k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return p;
}

/* First words for VF token ids. */
static inline vi philox_words(const philox_lanes *p, vi ids)
{
    vi c0[2], c1[2] = {p->c1, p->c1}, c2[2] = {p->c2, p->c2}, c3[2] = {p->c3, p->c3};

    widen(ids, c0);
    for (int round = 0; round < 10; round++)
        for (int h = 0; h < 2; h++) {
            vi p0 = mul_low_halves(c0[h], 0xD2511F53u), p1 = mul_low_halves(c2[h], 0xCD9E8D57u);

            c0[h] = xor3(upper_halves(p1), c1[h], p->k0[round]);
            c2[h] = xor3(upper_halves(p0), c3[h], p->k1[round]);
            c1[h] = p1;
            c3[h] = p0;
        }
    return narrow(c0);
}

/* noise_log_of and noise_log in lanes. */
static inline vf noise_log_of_lanes(vf f, vf e)
{
    vf p = vf_set(NOISE_LOG_C7);

    p = vf_add(vf_mul(p, f), vf_set(NOISE_LOG_C6));
    p = vf_add(vf_mul(p, f), vf_set(NOISE_LOG_C5));
    p = vf_add(vf_mul(p, f), vf_set(NOISE_LOG_C4));
    p = vf_add(vf_mul(p, f), vf_set(NOISE_LOG_C3));
    p = vf_add(vf_mul(p, f), vf_set(NOISE_LOG_C2));
    p = vf_add(vf_mul(p, f), vf_set(NOISE_LOG_C1));
    p = vf_add(vf_mul(p, f), vf_set(NOISE_LOG_C0));
    p = vf_add(vf_mul(vf_mul(f, f), p), vf_mul(e, vf_set(NOISE_LN2_LOW)));
    return vf_add(vf_add(p, f), vf_mul(e, vf_set(NOISE_LN2_HIGH)));
}

static inline vf noise_log_lanes(vf x)
{
    vi shifted = vi_sub(vf_bits(x), vi_set(0x3F3504F3));
    vf e = vi_to_float(vi_sar(shifted, 23));
    vi m = vi_add(vi_and(shifted, vi_set(0x007FFFFF)), vi_set(0x3F3504F3));

    return noise_log_of_lanes(vf_add(vf_from_bits(m), vf_set(-1.0f)), e);
}

/* noise_of_word in lanes. */
static inline vf noise_lanes(vi w)
{
    vf minus = vf_set(-0.0f);
    vf near_one = noise_log_of_lanes(
        vf_mul(vf_add(words_to_float(vi_xor(w, vi_set(-1))), vf_set(0.5f)), vf_set(-0x1p-32f)),
        vf_zero());
    vf other = noise_log_lanes(vf_mul(vf_add(words_to_float(w), vf_set(0.5f)), vf_set(0x1p-32f)));
    vf log = select_word_ge(w, 0xC0000000u, near_one, other);
    vf minus_log = vf_from_bits(vi_xor(vf_bits(log), vf_bits(minus)));

    return vf_from_bits(vi_xor(vf_bits(noise_log_lanes(minus_log)), vf_bits(minus)));
}

/* At least noise_lanes(w), cheaply: noise <= -log(1-u), and log2 of a float is at least what its
 * bits say when read as a fixed-point number. */
static inline vf noise_bound(vi w)
{
    vf rest = vf_add(words_to_float(vi_xor(w, vi_set(-1))), vf_set(0.5f)); /* (1-u) * 2^32 */
    vf log2 = vf_fma(vi_to_float(vf_bits(rest)), vf_set(0x1p-23f), vf_set(-127.0f));

    return vf_fma(vf_sub(vf_set(32.0f), log2), vf_set(0.69315f), vf_set(1e-4f));
}
