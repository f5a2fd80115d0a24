/* The dot loops of sparse attention.
 *
 * Heads are lanes while scoring, so that maximum and sum over keys never cross lanes; channels are
 * lanes while values are summed. Every score is one chain over ascending channels, every output one
 * chain over ascending keys. Two ways, chosen by the processor once (attention.c):
 *            f32 FMA                                  bf16 pairs (AVX-512, vdpbf16ps)
 *   queries  [dim][hp] f32                            [dim/2][hp] pairs of channels
 *   keys     [cap][dim] bf16                          tile [ATTN_TILE][dim] bf16
 *   values   the keys, made f32 block by block        [dim/32][cap/2][32] pairs of keys
 *   probs    [hp/8][cap][8] f32 on the bf16 grid      [hp/8][cap/2][8] pairs of keys
 *   scores   [cap][hp] f32                            the same
 * `hp` is the number of heads of a part, padded to 16. */
#pragma once

#include "kernels/cpu/rows.h"

#define ATTN_TILE  24 /* keys decoded at a time */
#define ATTN_STEP  6  /* keys scored at a time */
#define ATTN_HEADS 64 /* most heads of a part */

/* Values are summed in blocks of keys and channels that stay in L1 as f32. */
#define VALUE_KEYS     64
#define VALUE_CHANNELS 128
#define SCORE_CHANNELS 64

typedef struct attn_scratch {
    bool bf16;
    int cap;         /* keys, a multiple of ATTN_TILE */
    uint16_t *heads; /* [16][dim] rotated queries */
    uint16_t *tile;  /* bf16 pairs: one tile */
    float *tile_f32; /* [ATTN_TILE][dim] */
    float *scores;
    float *block; /* [VALUE_KEYS][VALUE_CHANNELS] */
    float *sums;  /* [hp][dim] */
    void *q, *values, *probs;
    const uint8_t **key;
    uint8_t *member; /* [cap] which rows of a group have the key */
} attn_scratch;

/* Heads head .. head+n_heads-1 of a row, or all heads of n_rows rows of a sequence. */
typedef struct attn_item {
    int row, n_rows, head, n_heads;
} attn_item;

#if defined(CPU_AVX512)
#define VALUE_HEADS 8
#define SCORE_NV    4
#else
#define VALUE_HEADS 4
#define SCORE_NV    2
#endif

/* Rotated rows of 16 heads -> lanes group*16.. of the packed queries. */
static inline void f32_pack_queries(const attn_scratch *s, int dim, int hp, int group)
{
    float *q = (float *)s->q + group * 16;

#if defined(CPU_AVX512)
    for (int d = 0; d < dim; d += 16) {
        __m512i r[16];

        for (int h = 0; h < 16; h++)
            r[h] = vf_bits(vf_load_bf16(s->heads + h * dim + d));
        transpose16(r);
        for (int i = 0; i < 16; i++)
            vi_store(q + (d + i) * hp, r[i]);
    }
#else
    for (int d = 0; d < dim; d++)
        for (int h = 0; h < 16; h++)
            q[d * hp + h] = bf16_to_f32(s->heads[h * dim + d]);
#endif
}

/* Sums of ATTN_STEP keys for nv vectors of heads over n channels: from `out` (none at first) and
 * back; q and key begin at the first channel. */
static inline __attribute__((always_inline)) void f32_score_step(const float *q, float *out,
                                                                 const float *key, int n, int dim,
                                                                 int hp, int nv, bool first)
{
    vf acc[ATTN_STEP][SCORE_NV];

    for (int j = 0; j < ATTN_STEP; j++)
        for (int v = 0; v < nv; v++)
            acc[j][v] = first ? vf_zero() : vf_load(out + j * hp + v * VF);
    for (int d = 0; d < n; d++) {
        vf qv[SCORE_NV];

        for (int v = 0; v < nv; v++)
            qv[v] = vf_load(q + d * hp + v * VF);
        for (int j = 0; j < ATTN_STEP; j++) {
            vf kv = vf_set(key[j * dim + d]);

            for (int v = 0; v < nv; v++)
                acc[j][v] = vf_fma(qv[v], kv, acc[j][v]);
        }
    }
    for (int j = 0; j < ATTN_STEP; j++)
        for (int v = 0; v < nv; v++)
            vf_store(out + j * hp + v * VF, acc[j][v]);
}

/* Scores of the n keys of a tile, SCORE_CHANNELS at a time so that their queries stay in L1. */
static inline void f32_score_tile(const attn_scratch *s, float *out, const uint16_t *tile, int n,
                                  int dim, int hp, float scale)
{
    for (int i = 0; i < n * dim; i += VF)
        vf_store(s->tile_f32 + i, vf_load_bf16(tile + i));
    for (int d = 0; d < dim; d += SCORE_CHANNELS) {
        const float *q = (const float *)s->q + d * hp;
        int nd = dim - d < SCORE_CHANNELS ? dim - d : SCORE_CHANNELS;

        for (int k = 0; k < n; k += ATTN_STEP) {
            const float *key = s->tile_f32 + k * dim + d;
            float *to = out + k * hp;
            int h = 0;

            for (; h + SCORE_NV * VF <= hp; h += SCORE_NV * VF)
                f32_score_step(q + h, to + h, key, nd, dim, hp, SCORE_NV, d == 0);
            for (; h + 2 * VF <= hp; h += 2 * VF)
                f32_score_step(q + h, to + h, key, nd, dim, hp, 2, d == 0);
            for (; h < hp; h += VF)
                f32_score_step(q + h, to + h, key, nd, dim, hp, 1, d == 0);
        }
    }
    for (int i = 0; i < n * hp; i += VF)
        vf_store(out + i, vf_mul(vf_load(out + i), vf_set(scale)));
}

/* Store VF heads from h on of element j of the probabilities, `n` elements in all per head. */
static inline void put_prob_lanes(void *probs, int n, int j, int h, vi p)
{
    uint32_t *to = (uint32_t *)probs + ((int64_t)(h / 8) * n + j) * 8;

#if defined(CPU_AVX512)
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_castsi512_si256(p));
    _mm256_storeu_si256((__m256i *)(void *)(to + (int64_t)n * 8), _mm512_extracti64x4_epi64(p, 1));
#else
    vi_store(to, p);
#endif
}

/* Probabilities of keys 2j and 2j+1 for VF heads from `h` on. */
static inline void f32_put_probs(const attn_scratch *s, int j, int h, vf p0, vf p1)
{
    put_prob_lanes(s->probs, s->cap, 2 * j, h, vf_bits(vf_bf16(p0)));
    put_prob_lanes(s->probs, s->cap, 2 * j + 1, h, vf_bits(vf_bf16(p1)));
}

/* Sums of VALUE_HEADS heads and 2*VF channels over the nk keys of a block: from `sums` (none in the
 * first block) and back, or after the last block times inverse[h] to the output. */
typedef struct value_block {
    int k0, nk, d0, nd;
    bool first, last;
} value_block;

static inline void f32_value_step(const attn_scratch *s, const value_block *b, uint16_t *o, int dim,
                                  int h0, int n_heads, int d, const float *inverse)
{
    const float *v = s->block + d;
    const float *p = (const float *)s->probs + ((int64_t)(h0 / 8) * s->cap + b->k0) * 8 + h0 % 8;
    float *sums = s->sums + h0 * dim + b->d0 + d;
    vf acc[VALUE_HEADS][2];

    for (int h = 0; h < VALUE_HEADS; h++) {
        acc[h][0] = b->first ? vf_zero() : vf_load(sums + h * dim);
        acc[h][1] = b->first ? vf_zero() : vf_load(sums + h * dim + VF);
    }
    for (int j = 0; j < b->nk; j++) {
        vf v0 = vf_load(v + j * VALUE_CHANNELS), v1 = vf_load(v + j * VALUE_CHANNELS + VF);

        for (int h = 0; h < VALUE_HEADS; h++) {
            vf ph = vf_set(p[j * 8 + h]);

            acc[h][0] = vf_fma(ph, v0, acc[h][0]);
            acc[h][1] = vf_fma(ph, v1, acc[h][1]);
        }
    }
    for (int h = 0; h < VALUE_HEADS; h++) {
        uint16_t *to = o + (h0 + h) * dim + b->d0 + d;

        if (!b->last) {
            vf_store(sums + h * dim, acc[h][0]);
            vf_store(sums + h * dim + VF, acc[h][1]);
        } else if (h0 + h < n_heads) {
            vf_store_bf16(to, vf_mul(acc[h][0], vf_set(inverse[h0 + h])));
            vf_store_bf16(to + VF, vf_mul(acc[h][1], vf_set(inverse[h0 + h])));
        }
    }
}

static inline void f32_values(const attn_scratch *s, uint16_t *o, int dim, int n_heads, int n_keys,
                              const float *inverse)
{
    for (int k0 = 0; k0 < n_keys; k0 += VALUE_KEYS)
        for (int d0 = 0; d0 < dim; d0 += VALUE_CHANNELS) {
            value_block b = {.k0 = k0,
                             .nk = n_keys - k0 < VALUE_KEYS ? n_keys - k0 : VALUE_KEYS,
                             .d0 = d0,
                             .nd = dim - d0 < VALUE_CHANNELS ? dim - d0 : VALUE_CHANNELS,
                             .first = k0 == 0,
                             .last = k0 + VALUE_KEYS >= n_keys};

            for (int j = 0; j < b.nk; j++)
                for (int d = 0; d < b.nd; d += VF)
                    vf_store(s->block + j * VALUE_CHANNELS + d,
                             vf_load_bf16((const uint16_t *)s->values + (k0 + j) * dim + d0 + d));
            for (int h = 0; h < n_heads; h += VALUE_HEADS)
                for (int d = 0; d < b.nd; d += 2 * VF)
                    f32_value_step(s, &b, o, dim, h, n_heads, d, inverse);
        }
}

#if defined(CPU_AVX512)
/* Rotated rows of 16 heads -> lanes group*16.. of the packed queries. */
static inline void bf16_pack_queries(const attn_scratch *s, int dim, int hp, int group)
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
static inline void bf16_put_values(const attn_scratch *s, int dim, int first, int n)
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
static inline __attribute__((always_inline)) void bf16_score_step(const attn_scratch *s, float *out,
                                                                  const uint16_t *tile, int dim,
                                                                  int hp, int nv, vf scale)
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

static inline void bf16_score_tile(const attn_scratch *s, float *out, const uint16_t *keys, int n,
                                   int dim, int hp, float scale)
{
    for (int k = 0; k < n; k += ATTN_STEP) {
        const uint16_t *tile = keys + k * dim;

        switch (hp / 16) {
        case 1:
            bf16_score_step(s, out + k * hp, tile, dim, hp, 1, vf_set(scale));
            break;
        case 2:
            bf16_score_step(s, out + k * hp, tile, dim, hp, 2, vf_set(scale));
            break;
        case 3:
            bf16_score_step(s, out + k * hp, tile, dim, hp, 3, vf_set(scale));
            break;
        default:
            bf16_score_step(s, out + k * hp, tile, dim, hp, 4, vf_set(scale));
        }
    }
}

static inline void bf16_put_probs(const attn_scratch *s, int j, int h, vf p0, vf p1)
{
    vi low = vi_shr(vf_bits(vf_bf16(p0)), 16);

    put_prob_lanes(s->probs, s->cap / 2, j, h, vi_or(low, vf_bits(vf_bf16(p1))));
}

/* o[h][d..] = (sum over key pairs) * inverse[h] for 8 heads and 32 channels. */
static inline void bf16_value_step(const attn_scratch *s, uint16_t *o, int dim, int h0, int n_heads,
                                   int d, int pairs, const float *inverse)
{
    const uint32_t *v = (const uint32_t *)s->values + d / 32 * (s->cap / 2) * 32;
    const uint32_t *p = (const uint32_t *)s->probs + (int64_t)(h0 / 8) * (s->cap / 2) * 8;
    vf acc[8][2];

    for (int h = 0; h < 8; h++)
        acc[h][0] = acc[h][1] = vf_zero();
    for (int j = 0; j < pairs; j++) {
        __m512bh v0 = (__m512bh)_mm512_loadu_si512(v + j * 32);
        __m512bh v1 = (__m512bh)_mm512_loadu_si512(v + j * 32 + 16);

        for (int h = 0; h < 8; h++) {
            __m512bh ph = (__m512bh)_mm512_set1_epi32((int32_t)p[j * 8 + h]);

            acc[h][0] = _mm512_dpbf16_ps(acc[h][0], ph, v0);
            acc[h][1] = _mm512_dpbf16_ps(acc[h][1], ph, v1);
        }
    }
    for (int h = 0; h < 8 && h0 + h < n_heads; h++) {
        uint16_t *to = o + (h0 + h) * dim + d;
        vf scale = vf_set(inverse[h0 + h]);

        vf_store_bf16(to, vf_mul(acc[h][0], scale));
        vf_store_bf16(to + 16, vf_mul(acc[h][1], scale));
    }
}

static inline void bf16_values(const attn_scratch *s, uint16_t *o, int dim, int n_heads, int n_keys,
                               const float *inverse)
{
    for (int h = 0; h < n_heads; h += 8)
        for (int d = 0; d < dim; d += 32)
            bf16_value_step(s, o, dim, h, n_heads, d, (n_keys + 1) / 2, inverse);
}

/* One of the two ways. */
#define ATTN_CALL(s, fn, ...) ((s)->bf16 ? bf16_##fn(s, __VA_ARGS__) : f32_##fn(s, __VA_ARGS__))

#else

#define ATTN_CALL(s, fn, ...) f32_##fn(s, __VA_ARGS__)

#endif

/* Where the tile of keys first .. is decoded to. */
static inline uint16_t *attn_tile(const attn_scratch *s, int dim, int first)
{
    return s->bf16 ? s->tile : (uint16_t *)s->values + first * dim;
}
