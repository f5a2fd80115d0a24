/* Index scores: exact integer dots of FP4 queries and keys (spec 4.7).
 *
 * Twice an E2M1 value is an integer of -12..12. Keys are signed bytes, queries are offset by BIAS
 * to be unsigned, and the products' sum less BIAS times the sum of the keys is exact in 32 bits.
 * Keys are lanes; a tile of keys is decoded once for up to ROW_BLOCK rows of a sequence. score =
 * sum over heads ascending of relu(sum over groups ascending of dot * sk * sq) * w All scales are
 * powers of two. Where those of a head's (a key's) groups differ by 8 at most, they go into the
 * bytes relative to the smallest, the four groups become one integer sum, and the one scale left is
 * applied behind: the same bits, because every step is exact until the sum over heads. AVX2 has
 * 16-bit sums and keeps the groups apart. Order inside a group of 32, the same for keys and
 * queries: per 8 elements 0 2 4 6 (the low nibbles of a dword of codes), then 1 3 5 7. */
#include "kernels/cpu/rows.h"

#include <assert.h>

#define ROW_BLOCK 4
#define HEADS     8  /* heads at a time, groups together ... */
#define SPLIT     4  /* ... or apart */
#define BIAS      96 /* 12 * 8 */
#define MAX_SHIFT 3

#if defined(CPU_AVX512)
#define KEY_VECTORS 2
#else
#define KEY_VECTORS 1
#endif
#define TILE (KEY_VECTORS * VF)

/* Queries of ROW_BLOCK rows; heads padded to a multiple of HEADS with zero weights. */
typedef struct index_scratch {
    uint16_t *rotated; /* [dim] */
    uint8_t *tile;     /* [KEY_VECTORS][dim/4][VF] quads of signed bytes */
    float *key_scale;  /* [KEY_VECTORS][groups][VF] */
    int32_t *key_sum;  /* [KEY_VECTORS][groups][VF]: -BIAS * sum of the group */
    uint8_t *q;        /* [ROW_BLOCK][heads][dim], + BIAS */
    float *q_scale;    /* [ROW_BLOCK][heads][groups] with the 1/4 of the two doublings */
    float *w;          /* [ROW_BLOCK][heads] */
    uint8_t *joined;   /* [ROW_BLOCK][heads]: the head's scale is in w, q_scale is 1 */
} index_scratch;

static int padded_heads(int heads)
{
    return (heads + HEADS - 1) / HEADS * HEADS;
}

enum {
    PART_ROTATED,
    PART_TILE,
    PART_KEY_SCALE,
    PART_KEY_SUM,
    PART_Q,
    PART_Q_SCALE,
    PART_W,
    PART_JOINED,
    PARTS
};

static void part_bytes(size_t part[PARTS], int heads, int dim)
{
    size_t d = (size_t)dim, rows = ROW_BLOCK * (size_t)padded_heads(heads);

    part[PART_ROTATED] = pad64(d * sizeof(uint16_t));
    part[PART_TILE] = pad64(d * TILE);
    part[PART_KEY_SCALE] = pad64(d / 32 * TILE * sizeof(float));
    part[PART_KEY_SUM] = pad64(d / 32 * TILE * sizeof(int32_t));
    part[PART_Q] = pad64(rows * d);
    part[PART_Q_SCALE] = pad64(rows * d / 32 * sizeof(float));
    part[PART_W] = pad64(rows * sizeof(float));
    part[PART_JOINED] = pad64(rows);
}

static index_scratch lay_out(uint8_t *at, int heads, int dim)
{
    size_t part[PARTS];
    uint8_t *start[PARTS];

    part_bytes(part, heads, dim);
    for (int i = 0; i < PARTS; at += part[i++])
        start[i] = at;
    return (index_scratch){.rotated = (void *)start[PART_ROTATED],
                           .tile = start[PART_TILE],
                           .key_scale = (void *)start[PART_KEY_SCALE],
                           .key_sum = (void *)start[PART_KEY_SUM],
                           .q = start[PART_Q],
                           .q_scale = (void *)start[PART_Q_SCALE],
                           .w = (void *)start[PART_W],
                           .joined = start[PART_JOINED]};
}

size_t CPU_FN(index_thread_bytes)(const kernel_limits *l)
{
    size_t part[PARTS], sum = 0;

    part_bytes(part, l->index_heads, l->index_dim);
    for (int i = 0; i < PARTS; i++)
        sum += part[i];
    return sum;
}

/* Twice the values of a group of a rotated query on its grid, in order; returns the scale. */
static float query_group(int32_t twice[32], const uint16_t *x)
{
    float s = q4i_scale(x);
    vf inverse = vf_set(pow2_inverse(s));

    for (int i = 0; i < 32; i += VF) {
        vf v = round_e2m1(vf_mul(vf_load_bf16(x + i), inverse));

        vi_store(twice + i, vf_to_int(vf_add(v, v)));
    }
    return s;
}

/* Bytes of a group in the order of the tile, times `factor`. */
static void put_query_group(uint8_t *q, const int32_t twice[32], int32_t factor)
{
    for (int i = 0; i < 32; i += 8)
        for (int j = 0; j < 4; j++) {
            q[i + j] = (uint8_t)(twice[i + 2 * j] * factor + BIAS);
            q[i + 4 + j] = (uint8_t)(twice[i + 2 * j + 1] * factor + BIAS);
        }
}

static bool all_zero(const int32_t *x, int n)
{
    int32_t any = 0;

    for (int i = 0; i < n; i++)
        any |= x[i];
    return any == 0;
}

/* One head: its groups' scales go into the bytes and the weight when they are close. */
static void load_head(const index_scratch *s, int64_t at, int groups, float w)
{
    int32_t twice[4][32];
    float scale[4], low = INFINITY, high = 0;
    bool join = KEY_VECTORS > 1;

    for (int g = 0; g < groups; g++) {
        scale[g] = query_group(twice[g], s->rotated + g * 32);
        if (all_zero(twice[g], 32)) /* any scale will do */
            continue;
        low = scale[g] < low ? scale[g] : low;
        high = max_f32(high, scale[g]);
    }
    if (high == 0)
        low = high = 1.0f;
    join = join && high <= low * (1 << MAX_SHIFT);
    for (int g = 0; g < groups; g++) {
        bool shift = join && scale[g] > low && scale[g] <= high;

        put_query_group(s->q + (at * groups + g) * 32, twice[g],
                        shift ? (int32_t)(scale[g] / low) : 1);
        s->q_scale[at * groups + g] = join ? 1.0f : scale[g] * 0.25f;
    }
    s->w[at] = join ? w * (low * 0.25f) : w;
    s->joined[at] = join;
}

/* Queries and head weights of one row into place r of the block. */
static void load_row(const index_scores_args *a, const index_scratch *s, int r, int64_t row)
{
    int dim = a->layout->index_dim, groups = dim / 32, heads = padded_heads(a->heads);
    float norm = (float)(1.0 / sqrt((double)dim) / sqrt((double)a->heads));

    for (int h = 0; h < heads; h++) {
        int64_t at = (int64_t)r * heads + h;
        float w = 0;

        memset(s->rotated, 0, (size_t)dim * sizeof(uint16_t));
        if (h < a->heads) {
            memcpy(s->rotated, (const uint16_t *)a->iq + (row * a->heads + h) * dim,
                   (size_t)dim * sizeof(uint16_t));
            rope_bf16(s->rotated + dim - a->rope, a->cs + row * a->rope, a->rope / 2, 1.0f);
            w = bf16_round(bf16_to_f32(((const uint16_t *)a->iw)[row * a->heads + h]) * norm);
        }
        load_head(s, at, groups, w);
    }
}

/* Walks the key rows of a sequence without a division per entry. */
typedef struct key_cursor {
    const kv_layout *l;
    const kv_view *v;
    int owner;
    int64_t left; /* entries left in this block */
    int64_t entry;
    const uint8_t *row;
} key_cursor;

static void cursor_seek(key_cursor *c, int64_t entry)
{
    int64_t per_block = KV_BLOCK_TOKENS / c->l->owner[c->owner].ratio;

    c->entry = entry;
    c->left = per_block - entry % per_block;
    c->row = kv_key(c->l, c->v, c->owner, entry);
}

static const uint8_t *cursor_next(key_cursor *c)
{
    const uint8_t *row;

    if (c->left == 0)
        cursor_seek(c, c->entry);
    row = c->row;
    c->entry++;
    c->left--;
    c->row += c->l->key_bytes;
    return row;
}

/* Rows of the eligible entries e .. e+n-1; the places behind repeat the first. */
static void list_keys(const index_scores_args *a, int64_t row, int64_t e, int n,
                      const uint8_t *key[TILE])
{
    const candidates *f = a->filter;
    bool filtered = f && f->count[row] >= 0;
    key_cursor c = {.l = a->layout, .v = &a->s->view[a->s->seq[row]], .owner = a->owner};

    assert(n > 0);
    if (!filtered)
        cursor_seek(&c, e);
    for (int i = 0; i < n; i++, e++) {
        if (filtered && (i == 0 || e % f->block == 0))
            cursor_seek(&c, (int64_t)f->ids[row * f->max_blocks + e / f->block] * f->block +
                                e % f->block);
        key[i] = cursor_next(&c);
    }
    for (int i = n; i < TILE; i++)
        key[i] = key[0];
}

#if defined(CPU_AVX512)

/* Smallest exponent byte of a key's groups, and whether all are within MAX_SHIFT of it. */
static bool close_scales(__m512i bytes, int groups, vi *low)
{
    vi min = vi_set(255), max = vi_set(0);

    for (int g = 0; g < groups; g++) {
        vi e = vi_and(_mm512_srl_epi32(bytes, _mm_cvtsi32_si128(8 * g)), vi_set(255));

        min = _mm512_min_epi32(min, e);
        max = vi_max(max, e);
    }
    *low = min;
    return _mm512_cmpgt_epi32_mask(vi_sub(max, min), vi_set(MAX_SHIFT)) == 0;
}

static inline vf scale_of_bytes(vi e)
{
    return vf_from_bits(vi_max(vi_shl(e, 23), vi_set(0x00400000))); /* byte 0 is 2^-127 */
}

/* Codes of 16 keys as quads of bytes, keys in lanes. Joined keys have their groups' scales in the
 * bytes and 1 in `scale`. Returns what multiplies their scores; clears *all_joined when any key's
 * scales are too far apart. */
static vf decode_keys(const uint8_t *const *key, int dim, uint8_t *tile, float *scale,
                      int32_t *sums, bool *all_joined)
{
    /* Byte 16 r + code: twice the value times 2^r. */
    const __m512i once = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m512i power =
        _mm512_setr_epi64(0, 0, 0x0001000100010001, 0x0001000100010001, 0x0002000200020002,
                          0x0002000200020002, 0x0003000300030003, 0x0003000300030003);
    const __m512i high_bits = _mm512_set1_epi16((int16_t)0xFF00);
    /* Shifting words spills the lower byte's sign into the upper one: take the upper apart. */
    const __m512i table =
        _mm512_or_si512(_mm512_andnot_si512(high_bits, _mm512_sllv_epi16(once, power)),
                        _mm512_sllv_epi16(_mm512_and_si512(once, high_bits), power));
    const __m512i low_nibbles = _mm512_set1_epi8(15);
    __mmask16 words = (__mmask16)((1u << dim / 8) - 1u),
              n_scales = (__mmask16)((1u << dim / 32) - 1u);
    int groups = dim / 32;
    uint32_t bytes[16];
    __m512i r[16];
    vi low;
    bool joined;

    for (int i = 0; i < 16; i++) {
        r[i] = _mm512_maskz_loadu_epi32(words, key[i]);
        bytes[i] = (uint32_t)_mm_cvtsi128_si32(_mm_maskz_loadu_epi8(n_scales, key[i] + dim / 2));
    }
    transpose16(r);
    joined = close_scales(vi_load(bytes), groups, &low);
    for (int g = 0; g < groups; g++) {
        vi e = vi_and(_mm512_srl_epi32(vi_load(bytes), _mm_cvtsi32_si128(8 * g)), vi_set(255));
        vi sum = vi_set(0), row = vi_set(0);

        if (joined) /* 16 * (e - low) in every byte of the lane */
            row = _mm512_shuffle_epi8(vi_shl(vi_sub(e, low), 4),
                                      _mm512_broadcast_i32x4(_mm_setr_epi8(
                                          0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12)));
        for (int j = 4 * g; j < 4 * g + 4; j++) {
            vi even = vi_or(vi_and(r[j], low_nibbles), row);
            vi odd = vi_or(vi_and(_mm512_srli_epi16(r[j], 4), low_nibbles), row);

            even = _mm512_permutexvar_epi8(even, table);
            odd = _mm512_permutexvar_epi8(odd, table);
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(BIAS), even);
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(BIAS), odd);
            vi_store(tile + j * 128, even);
            vi_store(tile + j * 128 + 64, odd);
        }
        vi_store(sums + g * VF, vi_sub(vi_set(0), sum));
        vf_store(scale + g * VF, joined ? vf_set(1.0f) : scale_of_bytes(e));
    }
    *all_joined = *all_joined && joined;
    return joined ? scale_of_bytes(low) : vf_set(1.0f);
}

static inline vi dot_begin(vi sum)
{
    return sum;
}

/* In assembly: with the intrinsic gcc 12 copies every sum to another register and back. */
static inline vi dot_add(vi acc, vi keys, vi quad)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(quad), "v"(keys));
    return acc;
}

static inline vi dot_end(vi acc, vi sum)
{
    (void)sum;
    return acc;
}

#else /* CPU_AVX2 */

static vf decode_keys(const uint8_t *const *key, int dim, uint8_t *tile, float *scale,
                      int32_t *sums, bool *all_joined)
{
    const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i low = _mm_set1_epi8(15);

    for (int i = 0; i < VF; i++)
        for (int g = 0; g < dim / 32; g++) {
            __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(key[i] + g * 16));
            __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(c, low));
            __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(c, 4), low));
            __m128i sum = _mm_madd_epi16(_mm_add_epi16(_mm_maddubs_epi16(_mm_set1_epi8(1), even),
                                                       _mm_maddubs_epi16(_mm_set1_epi8(1), odd)),
                                         _mm_set1_epi16(-BIAS));
            uint8_t quads[32];

            _mm_storeu_si128((__m128i *)(void *)quads, even);
            _mm_storeu_si128((__m128i *)(void *)(quads + 16), odd);
            for (int j = 0; j < 4; j++) {
                uint8_t *to = tile + ((size_t)(g * 4 + j) * 2 * VF + (size_t)i) * 4;

                memcpy(to, quads + 4 * j, 4);
                memcpy(to + 4 * VF, quads + 16 + 4 * j, 4);
            }
            sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
            sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
            sums[g * VF + i] = _mm_cvtsi128_si32(sum);
            scale[g * VF + i] = ue8m0_to_f32(key[i][dim / 2 + g]);
        }
    *all_joined = false;
    return vf_set(1.0f);
}

/* Sixteen-bit sums: a group adds 16 products of at most (12 + BIAS) * 12 to each. */
static inline vi dot_begin(vi sum)
{
    (void)sum;
    return _mm256_setzero_si256();
}

static inline vi dot_add(vi acc, vi keys, vi quad)
{
    return _mm256_add_epi16(acc, _mm256_maddubs_epi16(quad, keys));
}

static inline vi dot_end(vi acc, vi sum)
{
    return vi_add(_mm256_madd_epi16(acc, _mm256_set1_epi16(1)), sum);
}

#endif

static inline vi load_quad(const uint8_t *q)
{
    int32_t quad;

    memcpy(&quad, q, 4);
    return vi_set(quad);
}

/* sum += relu(dot) * w of SPLIT heads from `at` on, group by group. */
static __attribute__((noinline)) void split_heads(const index_scratch *s, int64_t at, int dim,
                                                  vf sum[KEY_VECTORS])
{
    int groups = dim / 32;
    vf dot[SPLIT][KEY_VECTORS];

    SIMD_UNROLL
    for (int i = 0; i < SPLIT; i++)
        SIMD_UNROLL
    for (int v = 0; v < KEY_VECTORS; v++)
        dot[i][v] = vf_zero();
    for (int g = 0; g < groups; g++) {
        const uint8_t *q = s->q + at * dim + g * 32;
        vi acc[SPLIT][KEY_VECTORS];

        SIMD_UNROLL
        for (int i = 0; i < SPLIT; i++)
            SIMD_UNROLL
        for (int v = 0; v < KEY_VECTORS; v++)
            acc[i][v] = dot_begin(vi_load(s->key_sum + (v * groups + g) * VF));
        for (int j = 0; j < 8; j++)
            SIMD_UNROLL
        for (int v = 0; v < KEY_VECTORS; v++) {
            vi keys = vi_load(s->tile + ((size_t)(v * dim / 4 + g * 8 + j)) * 4 * VF);

            SIMD_UNROLL
            for (int i = 0; i < SPLIT; i++)
                acc[i][v] = dot_add(acc[i][v], keys, load_quad(q + i * dim + j * 4));
        }
        SIMD_UNROLL
        for (int i = 0; i < SPLIT; i++)
            SIMD_UNROLL
        for (int v = 0; v < KEY_VECTORS; v++) {
            vf scale = vf_mul(vf_load(s->key_scale + (v * groups + g) * VF),
                              vf_set(s->q_scale[(at + i) * groups + g]));
            vi whole = dot_end(acc[i][v], vi_load(s->key_sum + (v * groups + g) * VF));

            dot[i][v] = vf_fma(vi_to_float(whole), scale, dot[i][v]);
        }
    }
    SIMD_UNROLL
    for (int i = 0; i < SPLIT; i++)
        SIMD_UNROLL
    for (int v = 0; v < KEY_VECTORS; v++)
        sum[v] = vf_fma(vf_max(dot[i][v], vf_zero()), vf_set(s->w[at + i]), sum[v]);
}

/* The same for HEADS joined heads and joined keys: one integer sum per head and key. */
static __attribute__((noinline)) void joined_heads(const index_scratch *s, int64_t at, int dim,
                                                   vf sum[KEY_VECTORS])
{
    const uint8_t *q = s->q + at * dim;
    int groups = dim / 32;
    vi acc[HEADS][KEY_VECTORS], start[KEY_VECTORS];

    SIMD_UNROLL
    for (int v = 0; v < KEY_VECTORS; v++) {
        start[v] = vi_load(s->key_sum + v * groups * VF);
        for (int g = 1; g < groups; g++)
            start[v] = vi_add(start[v], vi_load(s->key_sum + (v * groups + g) * VF));
    }
    SIMD_UNROLL
    for (int i = 0; i < HEADS; i++)
        SIMD_UNROLL
    for (int v = 0; v < KEY_VECTORS; v++)
        acc[i][v] = start[v];
    for (int j = 0; j < dim / 4; j++) {
        vi keys[KEY_VECTORS];

        SIMD_UNROLL
        for (int v = 0; v < KEY_VECTORS; v++)
            keys[v] = vi_load(s->tile + ((size_t)(v * dim / 4 + j)) * 4 * VF);
        SIMD_UNROLL
        for (int i = 0; i < HEADS; i++) {
            vi quad = load_quad(q + i * dim + j * 4);

            SIMD_UNROLL
            for (int v = 0; v < KEY_VECTORS; v++)
                acc[i][v] = dot_add(acc[i][v], keys[v], quad);
        }
    }
    SIMD_UNROLL
    for (int i = 0; i < HEADS; i++) {
        vf w = vf_set(s->w[at + i]);

        SIMD_UNROLL
        for (int v = 0; v < KEY_VECTORS; v++)
            sum[v] = vf_fma(vf_max(vi_to_float(acc[i][v]), vf_zero()), w, sum[v]);
    }
}

/* Scores of the tile for row r of the block; behind[] multiplies them, joined: of all keys. */
static void score_tile(const index_scratch *s, int r, int heads, int dim, bool joined,
                       const vf behind[KEY_VECTORS], float out[TILE])
{
    vf sum[KEY_VECTORS];

    for (int v = 0; v < KEY_VECTORS; v++)
        sum[v] = vf_zero();
    for (int h = 0; h < heads; h += HEADS) {
        int64_t at = (int64_t)r * heads + h;
        bool join = joined;

        for (int i = 0; i < HEADS; i++)
            join = join && s->joined[at + i];
        if (join)
            joined_heads(s, at, dim, sum);
        else
            for (int i = 0; i < HEADS; i += SPLIT)
                split_heads(s, at + i, dim, sum);
    }
    for (int v = 0; v < KEY_VECTORS; v++)
        vf_store(out + v * VF, vf_mul(sum[v], behind[v]));
}

/* Eligible entries of row row0 + i, 0 when it needs no scores. */
static int64_t entries_to_score(const index_scores_args *a, int i)
{
    int row = a->row0 + i;
    int64_t visible = (a->s->pos[row] + 1) / a->layout->owner[a->owner].ratio;
    int64_t eligible = index_eligible(visible, a->filter, row);
    bool blocks = a->source_blocks > 0 && (visible + a->block - 1) / a->block > a->source_blocks;

    return eligible > a->topk || blocks ? eligible : 0;
}

/* Rows i .. i+n-1 (one sequence, no filter unless n is 1), a part of their entries. */
static void score_block(const index_scores_args *a, const index_scratch *s, int i, int n,
                        const int64_t *entries, int64_t begin, int64_t end)
{
    int dim = a->layout->index_dim, heads = padded_heads(a->heads);
    float out[TILE];

    for (int r = 0; r < n; r++)
        load_row(a, s, r, a->row0 + i + r);
    for (int64_t e = begin; e < end; e += TILE) {
        const uint8_t *key[TILE];
        vf behind[KEY_VECTORS];
        bool joined = KEY_VECTORS > 1;

        list_keys(a, a->row0 + i, e, end - e < TILE ? (int)(end - e) : TILE, key);
        for (int v = 0; v < KEY_VECTORS; v++)
            behind[v] = decode_keys(key + v * VF, dim, s->tile + (size_t)(v * dim * VF),
                                    s->key_scale + v * (dim / 32) * VF,
                                    s->key_sum + v * (dim / 32) * VF, &joined);
        for (int r = 0; r < n; r++) {
            int64_t stop = entries[r] < end ? entries[r] : end;

            if (e >= stop)
                continue;
            score_tile(s, r, heads, dim, joined, behind, out);
            memcpy(a->scores + (i + r) * a->stride + e, out,
                   (size_t)(stop - e < TILE ? stop - e : TILE) * sizeof(float));
        }
    }
}

/* How many rows from i on can share key tiles, and their entries. */
static int block_rows(const index_scores_args *a, int i, int end, int64_t *entries)
{
    int n = 0;

    while (n < ROW_BLOCK && i + n < end && a->s->seq[a->row0 + i + n] == a->s->seq[a->row0 + i] &&
           (n == 0 || !a->filter)) {
        entries[n] = entries_to_score(a, i + n);
        if (entries[n] == 0)
            break;
        n++;
    }
    return n;
}

static void scores_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const index_scores_args *a = job->args;
    index_scratch s = lay_out(cpu_thread_scratch(job->k, thread), a->heads, a->layout->index_dim);
    int64_t row_begin = 0, row_end = a->n, begin, end, entries[ROW_BLOCK];
    bool split_rows = a->n >= 4 * ROW_BLOCK * n_threads;

    if (split_rows)
        pool_split(a->n, ROW_BLOCK, thread, n_threads, &row_begin, &row_end);
    for (int i = (int)row_begin; i < row_end;) {
        int n = block_rows(a, i, (int)row_end, entries);

        if (n == 0) {
            i++;
            continue;
        }
        begin = 0;
        end = entries[n - 1]; /* rows of a sequence ascend */
        if (!split_rows)
            pool_split(end, TILE, thread, n_threads, &begin, &end);
        if (begin < end)
            score_block(a, &s, i, n, entries, begin, end);
        i += n;
    }
}

void CPU_FN(cpu_index_scores)(kernels *k, const index_scores_args *a)
{
    cpu_run(k, scores_job, a);
}
