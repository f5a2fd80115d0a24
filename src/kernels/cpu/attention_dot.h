/* The dot loops of sparse attention, per instruction set.
 *
 * Heads are lanes while scoring, so that maximum and sum over keys never cross lanes; channels are
 * lanes while values are summed. `hp` is the number of heads of a part, padded to 16.
 *            AVX-512 (vdpbf16ps)                      AVX2 (f32 FMA)
 *   queries  [dim/2][hp] pairs of channels            [dim][hp] f32
 *   tile     [ATTN_TILE][dim] bf16                    the same, and [ATTN_TILE][dim] f32
 *   values   [dim/32][cap/2][32] pairs of keys        [dim/32][cap][32] bf16
 *   probs    [cap/2][hp] pairs of keys, bf16          [cap][hp] f32 on the bf16 grid (over scores)
 *   scores   [cap][hp] f32                            the same
 * Every score is one chain over ascending channels, every output one chain over ascending keys. */
#pragma once

#include "kernels/cpu/rows.h"

#define ATTN_TILE  24 /* keys decoded at a time */
#define ATTN_STEP  6  /* keys scored at a time */
#define ATTN_HEADS 64 /* most heads of a part */

typedef struct attn_scratch {
    uint16_t *heads; /* [16][dim] rotated queries */
    uint16_t *tile;
    void *q, *values, *probs;
    float *tile_f32, *scores;
    const uint8_t **key;
    int cap; /* keys, a multiple of ATTN_TILE */
} attn_scratch;

#if defined(CPU_AVX512)

#define ATTN_Q_BYTES     2
#define ATTN_TILE_F32    0
#define ATTN_PROBS_BYTES 2

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

/* Rotated rows of 16 heads -> lanes group*16.. of the packed queries. */
static inline void attn_pack_queries(const attn_scratch *s, int dim, int hp, int group)
{
    uint32_t *q = (uint32_t *)s->q + group * 16;

    for (int d = 0; d < dim; d += 32) {
        __m512i r[16];

        for (int h = 0; h < 16; h++)
            r[h] = _mm512_loadu_si512(s->heads + h * dim + d);
        transpose16(r);
        for (int i = 0; i < 16; i++)
            _mm512_storeu_si512(q + (d / 2 + i) * hp, r[i]);
    }
}

/* The tile's keys, from key `first` (even) on, in pairs to the values. */
static inline void attn_put_values(const attn_scratch *s, int dim, int first, int n)
{
    static const uint16_t order[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                       37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                       11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    __m512i low = _mm512_loadu_si512(order);
    __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));

    for (int k = 0; k < n; k += 2)
        for (int d = 0; d < dim; d += 32) {
            uint32_t *to = (uint32_t *)s->values + (d / 32 * (s->cap / 2) + (first + k) / 2) * 32;
            __m512i a = _mm512_loadu_si512(s->tile + k * dim + d);
            __m512i b = _mm512_loadu_si512(s->tile + (k + 1) * dim + d);

            _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, low, b));
            _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(a, high, b));
        }
}

/* Scores of ATTN_STEP keys of the tile for nv vectors of heads. */
static inline __attribute__((always_inline)) void score_step(const attn_scratch *s, float *out,
                                                             const uint16_t *tile, int dim, int hp,
                                                             int nv, vf scale)
{
    const uint32_t *q = s->q, *key = (const uint32_t *)(const void *)tile;
    vf acc[ATTN_STEP][4];
    int pairs = dim / 2;

    for (int j = 0; j < ATTN_STEP; j++)
        for (int v = 0; v < nv; v++)
            acc[j][v] = vf_zero();
    for (int d = 0; d < pairs; d++) {
        __m512i qv[4];

        for (int v = 0; v < nv; v++)
            qv[v] = _mm512_loadu_si512(q + d * hp + 16 * v);
        for (int j = 0; j < ATTN_STEP; j++) {
            __m512bh kv = (__m512bh)_mm512_set1_epi32((int32_t)key[j * pairs + d]);

            for (int v = 0; v < nv; v++)
                acc[j][v] = _mm512_dpbf16_ps(acc[j][v], (__m512bh)qv[v], kv);
        }
    }
    for (int j = 0; j < ATTN_STEP; j++)
        for (int v = 0; v < nv; v++)
            vf_store(out + j * hp + 16 * v, vf_mul(acc[j][v], scale));
}

static inline void attn_score_tile(const attn_scratch *s, float *out, int n, int dim, int hp,
                                   float scale)
{
    for (int k = 0; k < n; k += ATTN_STEP) {
        const uint16_t *tile = s->tile + k * dim;

        switch (hp / 16) {
        case 1:
            score_step(s, out + k * hp, tile, dim, hp, 1, vf_set(scale));
            break;
        case 2:
            score_step(s, out + k * hp, tile, dim, hp, 2, vf_set(scale));
            break;
        case 3:
            score_step(s, out + k * hp, tile, dim, hp, 3, vf_set(scale));
            break;
        default:
            score_step(s, out + k * hp, tile, dim, hp, 4, vf_set(scale));
        }
    }
}

/* Probabilities of keys 2j and 2j+1 for VF heads from `h` on. */
static inline void attn_put_probs(const attn_scratch *s, int j, int hp, int h, vf p0, vf p1)
{
    vi low = vi_shr(vf_bits(vf_bf16(p0)), 16);

    vi_store((uint32_t *)s->probs + j * hp + h, vi_or(low, vf_bits(vf_bf16(p1))));
}

/* o[h][db*32..] = (sum over key pairs) * inverse[h], for 8 heads and 32 channels. */
static inline void attn_value_step(const attn_scratch *s, uint16_t *o, int dim, int hp, int h0,
                                   int n_heads, int db, int pairs, const float *inverse)
{
    const uint32_t *v = (const uint32_t *)s->values + db * (s->cap / 2) * 32;
    const uint32_t *p = (const uint32_t *)s->probs + h0;
    vf acc[8][2];

    for (int h = 0; h < 8; h++)
        acc[h][0] = acc[h][1] = vf_zero();
    for (int j = 0; j < pairs; j++) {
        __m512bh v0 = (__m512bh)_mm512_loadu_si512(v + j * 32);
        __m512bh v1 = (__m512bh)_mm512_loadu_si512(v + j * 32 + 16);

        for (int h = 0; h < 8; h++) {
            __m512bh ph = (__m512bh)_mm512_set1_epi32((int32_t)p[j * hp + h]);

            acc[h][0] = _mm512_dpbf16_ps(acc[h][0], ph, v0);
            acc[h][1] = _mm512_dpbf16_ps(acc[h][1], ph, v1);
        }
    }
    for (int h = 0; h < 8; h++) {
        vf scale = vf_set(inverse[h0 + h]);

        if (h0 + h >= n_heads)
            break;
        vf_store_bf16(o + (h0 + h) * dim + db * 32, vf_mul(acc[h][0], scale));
        vf_store_bf16(o + (h0 + h) * dim + db * 32 + 16, vf_mul(acc[h][1], scale));
    }
}

#define ATTN_VALUE_HEADS 8

#else /* CPU_AVX2 */

#define ATTN_Q_BYTES     4
#define ATTN_TILE_F32    4
#define ATTN_PROBS_BYTES 0

static inline void attn_pack_queries(const attn_scratch *s, int dim, int hp, int group)
{
    float *q = (float *)s->q + group * 16;

    for (int d = 0; d < dim; d++)
        for (int h = 0; h < 16; h++)
            q[d * hp + h] = bf16_to_f32(s->heads[h * dim + d]);
}

static inline void attn_put_values(const attn_scratch *s, int dim, int first, int n)
{
    for (int k = 0; k < n; k++)
        for (int d = 0; d < dim; d += 32)
            memcpy((uint16_t *)s->values + (d / 32 * s->cap + first + k) * 32,
                   s->tile + k * dim + d, 32 * sizeof(uint16_t));
}

static inline void score_step(const attn_scratch *s, float *out, const float *key, int dim, int hp,
                              int h0, vf scale)
{
    const float *q = (const float *)s->q + h0;
    vf acc[ATTN_STEP][2];

    for (int j = 0; j < ATTN_STEP; j++)
        acc[j][0] = acc[j][1] = vf_zero();
    for (int d = 0; d < dim; d++) {
        vf q0 = vf_load(q + d * hp), q1 = vf_load(q + d * hp + 8);

        for (int j = 0; j < ATTN_STEP; j++) {
            vf kv = vf_set(key[j * dim + d]);

            acc[j][0] = vf_fma(q0, kv, acc[j][0]);
            acc[j][1] = vf_fma(q1, kv, acc[j][1]);
        }
    }
    for (int j = 0; j < ATTN_STEP; j++) {
        vf_store(out + j * hp + h0, vf_mul(acc[j][0], scale));
        vf_store(out + j * hp + h0 + 8, vf_mul(acc[j][1], scale));
    }
}

static inline void attn_score_tile(const attn_scratch *s, float *out, int n, int dim, int hp,
                                   float scale)
{
    for (int i = 0; i < n * dim; i += VF)
        vf_store(s->tile_f32 + i, vf_load_bf16(s->tile + i));
    for (int k = 0; k < n; k += ATTN_STEP)
        for (int h = 0; h < hp; h += 16)
            score_step(s, out + k * hp, s->tile_f32 + k * dim, dim, hp, h, vf_set(scale));
}

static inline void attn_put_probs(const attn_scratch *s, int j, int hp, int h, vf p0, vf p1)
{
    vf_store(s->scores + 2 * j * hp + h, vf_bf16(p0));
    vf_store(s->scores + (2 * j + 1) * hp + h, vf_bf16(p1));
}

/* o[h][db*32..] for 4 heads and 32 channels, 16 at a time. */
static inline void attn_value_step(const attn_scratch *s, uint16_t *o, int dim, int hp, int h0,
                                   int n_heads, int db, int pairs, const float *inverse)
{
    const uint16_t *v = (const uint16_t *)s->values + db * s->cap * 32;
    const float *p = s->scores + h0;

    for (int c = 0; c < 32; c += 16) {
        vf acc[4][2];

        for (int h = 0; h < 4; h++)
            acc[h][0] = acc[h][1] = vf_zero();
        for (int j = 0; j < 2 * pairs; j++) {
            vf v0 = vf_load_bf16(v + j * 32 + c), v1 = vf_load_bf16(v + j * 32 + c + 8);

            for (int h = 0; h < 4; h++) {
                vf ph = vf_set(p[j * hp + h]);

                acc[h][0] = vf_fma(ph, v0, acc[h][0]);
                acc[h][1] = vf_fma(ph, v1, acc[h][1]);
            }
        }
        for (int h = 0; h < 4 && h0 + h < n_heads; h++) {
            uint16_t *to = o + (h0 + h) * dim + db * 32 + c;
            vf scale = vf_set(inverse[h0 + h]);

            vf_store_bf16(to, vf_mul(acc[h][0], scale));
            vf_store_bf16(to + 8, vf_mul(acc[h][1], scale));
        }
    }
}

#define ATTN_VALUE_HEADS 4

#endif
