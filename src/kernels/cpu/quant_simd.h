/* Q8, Q4i and Q4c on bf16 rows; bit for bit what formats/quant.c gives.
 *
 * Rounding to a small float is done with one addition: adding 1.5 * 2^k makes the unit in the last
 * place of the sum 2^(k-23), and the processor rounds to nearest even. k follows the exponent of
 * the element, clamped at the smallest normal, below which the codes are equally spaced. Scales are
 * powers of two for Q8 and Q4i: multiplying by the inverse is the division. Inputs are finite.
 * Thread: any. */
#pragma once

#include "formats/scalar.h"

#include "kernels/cpu/simd.h"

/* Largest magnitude (bf16 bits) of 8 values: the minimum of the complements. */
static inline uint32_t amax8_bf16(__m128i magnitudes)
{
    __m128i min = _mm_minpos_epu16(_mm_xor_si128(magnitudes, _mm_set1_epi16(-1)));

    return 0xFFFFu & ~(uint32_t)_mm_cvtsi128_si32(min);
}

static inline __m128i abs8_bf16(const uint16_t *x)
{
    return _mm_and_si128(_mm_loadu_si128((const __m128i *)(const void *)x), _mm_set1_epi16(0x7FFF));
}

static inline float amax16_bf16(const uint16_t *x)
{
    return bf16_to_f32((uint16_t)amax8_bf16(_mm_max_epu16(abs8_bf16(x), abs8_bf16(x + 8))));
}

static inline float amax32_bf16(const uint16_t *x)
{
    __m128i a = _mm_max_epu16(abs8_bf16(x), abs8_bf16(x + 8));
    __m128i b = _mm_max_epu16(abs8_bf16(x + 16), abs8_bf16(x + 24));

    return bf16_to_f32((uint16_t)amax8_bf16(_mm_max_epu16(a, b)));
}

static inline float max_f32(float a, float b)
{
    return a > b ? a : b;
}

static inline float q8_scale(const uint16_t *x)
{
    return pow2_ceil(max_f32(amax32_bf16(x), 1e-4f) * (1.0f / 448.0f));
}

static inline float q4i_scale(const uint16_t *x)
{
    return pow2_ceil(max_f32(amax32_bf16(x), 6.0f * 0x1p-126f) * (1.0f / 6.0f));
}

/* 1/s of a normal power of two. */
static inline float pow2_inverse(float s)
{
    return f32_from_bits((254u << 23) - f32_bits(s));
}

/* Nearest value with `bits` mantissa bits (hidden one excluded), evenly spaced below min_normal. */
static inline vf round_small(vf y, int bits, float min_normal)
{
    vi e = vi_and(vf_bits(y), vi_set(0x7F800000));
    vf magic;

    e = vi_max(e, vi_set((int32_t)f32_bits(min_normal)));
    magic = vf_from_bits(vi_or(vi_add(e, vi_set((23 - bits) << 23)), vi_set(0x00400000)));
    return vf_or_sign(vf_abs(vf_sub(vf_add(y, magic), magic)), y);
}

/* E4M3 and E2M1 values nearest to y, clamped to the format's range. */
static inline vf round_e4m3(vf y)
{
    y = vf_max(vf_min(y, vf_set(448.0f)), vf_set(-448.0f));
    return round_small(y, 3, 0x1p-6f);
}

static inline vf round_e2m1(vf y)
{
    y = vf_max(vf_min(y, vf_set(6.0f)), vf_set(-6.0f));
    return round_small(y, 1, 1.0f);
}

/* Value of E4M3 codes 0..255 (no NaN codes). */
static inline vf vf_e4m3(vi code)
{
    vi mag = vi_and(code, vi_set(0x7F));
    vi normal = vi_add(vi_shl(mag, 20), vi_set(120 << 23));
    vf tiny = vf_mul(vi_to_float(mag), vf_set(0x1p-9f));
    vf v = vf_select_lt(tiny, vf_set(0x1p-6f), tiny, vf_from_bits(normal));

    return vf_or_sign(v, vf_from_bits(vi_shl(code, 24)));
}

/* Code of an E4M3 value. */
static inline vi code_e4m3(vf v)
{
    vf a = vf_abs(v);
    vi normal = vi_sub(vi_shr(vf_bits(a), 20), vi_set(120 << 3));
    vi tiny = vf_to_int(vf_mul(a, vf_set(0x1p9f)));
    vf code = vf_select_lt(a, vf_set(0x1p-6f), vf_from_bits(tiny), vf_from_bits(normal));

    return vi_or(vf_bits(code), vi_and(vi_shr(vf_bits(v), 24), vi_set(0x80)));
}

/* Code of an E2M1 value: 0 .5 1 1.5 are equally spaced, the rest follow exponent and mantissa. */
static inline vi code_e2m1(vf v)
{
    vf a = vf_abs(v);
    vi normal = vi_sub(vi_shr(vf_bits(a), 22), vi_set((127 << 1) - 2));
    vi tiny = vf_to_int(vf_mul(a, vf_set(2.0f)));
    vf code = vf_select_lt(a, vf_set(1.0f), vf_from_bits(tiny), vf_from_bits(normal));

    return vi_or(vf_bits(code), vi_and(vi_shr(vf_bits(v), 28), vi_set(8)));
}

/* Round trip y = bf(q * s) of a row; n a multiple of 32; y may be x. */
static inline void q8_row(uint16_t *y, const uint16_t *x, int n)
{
    for (int g = 0; g < n; g += 32) {
        float s = q8_scale(x + g);
        vf inverse = vf_set(pow2_inverse(s)), scale = vf_set(s);

        for (int i = g; i < g + 32; i += VF) {
            vf q = round_e4m3(vf_mul(vf_load_bf16(x + i), inverse));

            vf_store_bf16_exact(y + i, vf_mul(q, scale));
        }
    }
}

/* Q8 in code form: codes [n], scales [n/32]. */
static inline void q8_row_codes(uint8_t *codes, uint8_t *scales, const uint16_t *x, int n)
{
    for (int g = 0; g < n; g += 32) {
        float s = q8_scale(x + g);
        vf inverse = vf_set(pow2_inverse(s));

        scales[g / 32] = (uint8_t)(f32_bits(s) >> 23);
        for (int i = g; i < g + 32; i += VF)
            vi_store_u8(codes + i, code_e4m3(round_e4m3(vf_mul(vf_load_bf16(x + i), inverse))));
    }
}

/* Sixteen codes of 0..15 to eight bytes, the even element in the low nibble. */
static inline void pack_nibbles(uint8_t *out, const uint8_t *codes)
{
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)codes);
    __m128i w = _mm_maddubs_epi16(c, _mm_set1_epi16(0x1001));

    _mm_storel_epi64((__m128i *)(void *)out, _mm_packus_epi16(w, w));
}

/* Q4i in code form: codes [n/2], scales [n/32]. */
static inline void q4i_row_codes(uint8_t *codes, uint8_t *scales, const uint16_t *x, int n)
{
    uint8_t c[32];

    for (int g = 0; g < n; g += 32) {
        float s = q4i_scale(x + g);
        vf inverse = vf_set(pow2_inverse(s));

        scales[g / 32] = (uint8_t)(f32_bits(s) >> 23);
        for (int i = 0; i < 32; i += VF)
            vi_store_u8(c + i, code_e2m1(round_e2m1(vf_mul(vf_load_bf16(x + g + i), inverse))));
        pack_nibbles(codes + g / 2, c);
        pack_nibbles(codes + g / 2 + 8, c + 16);
    }
}

/* Q4c in code form: codes [n/2], scales [n/16]. The scale is no power of two: true divisions. */
static inline void q4c_row_codes(uint8_t *codes, uint8_t *scales, const uint16_t *x, int n)
{
    uint8_t c[16];

    for (int g = 0; g < n; g += 16) {
        uint8_t byte = e4m3_from_f32(max_f32(amax16_bf16(x + g), 6.0f * 0x1p-9f) / 6.0f);
        vf scale = vf_set(e4m3_to_f32(byte));

        scales[g / 16] = byte;
        for (int i = 0; i < 16; i += VF)
            vi_store_u8(c + i, code_e2m1(round_e2m1(vf_div(vf_load_bf16(x + g + i), scale))));
        pack_nibbles(codes + g / 2, c);
    }
}
