/* Index scores: exact integer dots of FP4 queries and keys, scaled per group of 32 (spec 4.7).
 *
 * Twice an E2M1 value is an integer of -12..12. Keys are kept as that plus 12 (unsigned), queries
 * signed, so that a group's dot is the unsigned-by-signed product sum minus 12 times the sum of the
 * query's group, exact in 32 bits. Keys are lanes; a tile of keys is decoded once for up to
 * ROW_BLOCK rows of a sequence.
 *   score = sum over heads ascending of relu(sum over groups ascending of dot * sk * sq) * w
 * Order inside a group of 32, the same for keys and queries: per 8 elements 0 2 4 6 (the low
 * nibbles of a dword of codes), then 1 3 5 7. */
#include "kernels/cpu/rows.h"

#define ROW_BLOCK 4
#define HEADS     4 /* heads at a time */

#if defined(CPU_AVX512)
#define KEY_VECTORS 2
#else
#define KEY_VECTORS 1
#endif
#define TILE (KEY_VECTORS * VF)

/* Queries of ROW_BLOCK rows; heads padded to a multiple of HEADS with zero weights. */
typedef struct index_scratch {
    uint16_t *rotated; /* [dim] */
    uint8_t *tile;     /* [KEY_VECTORS][dim/4][VF] quads of keys + 12 */
    float *key_scale;  /* [KEY_VECTORS][groups][VF] */
    int8_t *q;         /* [ROW_BLOCK][heads][dim] */
    float *q_scale;    /* [ROW_BLOCK][heads][groups] with the 1/4 of the two doublings */
    int32_t *offset;   /* [ROW_BLOCK][heads][groups]: -12 * sum of the group */
    float *w;          /* [ROW_BLOCK][heads] */
} index_scratch;

static int padded_heads(int heads)
{
    return (heads + HEADS - 1) / HEADS * HEADS;
}

enum { PART_ROTATED, PART_TILE, PART_KEY_SCALE, PART_Q, PART_Q_SCALE, PART_OFFSET, PART_W, PARTS };

static void part_bytes(size_t part[PARTS], int heads, int dim)
{
    size_t d = (size_t)dim, rows = ROW_BLOCK * (size_t)padded_heads(heads);

    part[PART_ROTATED] = pad64(d * sizeof(uint16_t));
    part[PART_TILE] = pad64(d * TILE);
    part[PART_KEY_SCALE] = pad64(d / 32 * TILE * sizeof(float));
    part[PART_Q] = pad64(rows * d);
    part[PART_Q_SCALE] = pad64(rows * d / 32 * sizeof(float));
    part[PART_OFFSET] = pad64(rows * d / 32 * sizeof(int32_t));
    part[PART_W] = pad64(rows * sizeof(float));
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
                           .q = (void *)start[PART_Q],
                           .q_scale = (void *)start[PART_Q_SCALE],
                           .offset = (void *)start[PART_OFFSET],
                           .w = (void *)start[PART_W]};
}

size_t CPU_FN(index_thread_bytes)(const kernel_limits *l)
{
    size_t part[PARTS], sum = 0;

    part_bytes(part, l->index_heads, l->index_dim);
    for (int i = 0; i < PARTS; i++)
        sum += part[i];
    return sum;
}

/* Quantise one group of a rotated query into the order of the tile. */
static void query_group(int8_t *q, float *scale, int32_t *offset, const uint16_t *x)
{
    float s = q4i_scale(x);
    vf inverse = vf_set(pow2_inverse(s));
    int32_t twice[32], sum = 0;

    for (int i = 0; i < 32; i += VF) {
        vf v = round_e2m1(vf_mul(vf_load_bf16(x + i), inverse));

        vi_store(twice + i, vf_to_int(vf_add(v, v)));
    }
    for (int i = 0; i < 32; i += 8)
        for (int j = 0; j < 4; j++) {
            q[i + j] = (int8_t)twice[i + 2 * j];
            q[i + 4 + j] = (int8_t)twice[i + 2 * j + 1];
        }
    for (int i = 0; i < 32; i++)
        sum += twice[i];
    *scale = s * 0.25f;
    *offset = -12 * sum;
}

/* Queries and head weights of one row into place r of the block. */
static void load_row(const index_scores_args *a, const index_scratch *s, int r, int64_t row)
{
    int dim = a->layout->index_dim, groups = dim / 32, heads = padded_heads(a->heads);
    float norm = (float)(1.0 / sqrt((double)dim) / sqrt((double)a->heads));

    for (int h = 0; h < heads; h++) {
        int64_t at = (int64_t)r * heads + h;

        if (h >= a->heads) {
            memset(s->q + at * dim, 0, (size_t)dim);
            memset(s->q_scale + at * groups, 0, (size_t)groups * sizeof(float));
            memset(s->offset + at * groups, 0, (size_t)groups * sizeof(int32_t));
            s->w[at] = 0;
            continue;
        }
        memcpy(s->rotated, (const uint16_t *)a->iq + (row * a->heads + h) * dim,
               (size_t)dim * sizeof(uint16_t));
        rope_bf16(s->rotated + dim - a->rope, a->cs + row * a->rope, a->rope / 2, 1.0f);
        for (int g = 0; g < groups; g++)
            query_group(s->q + at * dim + g * 32, s->q_scale + at * groups + g,
                        s->offset + at * groups + g, s->rotated + g * 32);
        s->w[at] = bf16_round(bf16_to_f32(((const uint16_t *)a->iw)[row * a->heads + h]) * norm);
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

/* Codes of 16 keys as quads of bytes, keys in lanes. */
static void decode_keys(const uint8_t *const *key, int dim, uint8_t *tile, float *scale)
{
    const __m512i plus12 = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i low = _mm512_set1_epi8(15);
    __mmask16 words = (__mmask16)((1u << dim / 8) - 1u);
    uint32_t bytes[16] = {0};
    __m512i r[16];

    for (int i = 0; i < 16; i++) {
        r[i] = _mm512_maskz_loadu_epi32(words, key[i]);
        memcpy(&bytes[i], key[i] + dim / 2, (size_t)dim / 32);
    }
    transpose16(r);
    for (int j = 0; j < dim / 8; j++) {
        __m512i even = _mm512_and_si512(r[j], low);
        __m512i odd = _mm512_and_si512(_mm512_srli_epi16(r[j], 4), low);

        _mm512_storeu_si512(tile + j * 128, _mm512_shuffle_epi8(plus12, even));
        _mm512_storeu_si512(tile + j * 128 + 64, _mm512_shuffle_epi8(plus12, odd));
    }
    for (int g = 0; g < dim / 32; g++) {
        __m512i byte = _mm512_srl_epi32(vi_load(bytes), _mm_cvtsi32_si128(8 * g));

        byte = vi_shl(vi_and(byte, vi_set(255)), 23);
        vi_store(scale + g * VF, vi_max(byte, vi_set(0x00400000))); /* byte 0 is 2^-127 */
    }
}

static inline vi dot_begin(int32_t offset)
{
    return vi_set(offset);
}

static inline vi dot_add(vi acc, vi keys, int32_t quad)
{
    return _mm512_dpbusd_epi32(acc, keys, vi_set(quad));
}

static inline vi dot_end(vi acc, int32_t offset)
{
    (void)offset;
    return acc;
}

#else /* CPU_AVX2 */

static void decode_keys(const uint8_t *const *key, int dim, uint8_t *tile, float *scale)
{
    static const uint8_t plus12[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    const __m128i table = _mm_loadu_si128((const __m128i *)(const void *)plus12);
    const __m128i low = _mm_set1_epi8(15);

    for (int i = 0; i < VF; i++) {
        for (int b = 0; b < dim / 2; b += 16) {
            __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(key[i] + b));
            uint32_t even[4], odd[4];

            _mm_storeu_si128((__m128i *)(void *)even,
                             _mm_shuffle_epi8(table, _mm_and_si128(c, low)));
            _mm_storeu_si128((__m128i *)(void *)odd,
                             _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(c, 4), low)));
            for (int j = 0; j < 4; j++) {
                uint8_t *to = tile + ((size_t)(b / 4 + j) * 2 * VF + (size_t)i) * 4;

                memcpy(to, &even[j], 4);
                memcpy(to + 4 * VF, &odd[j], 4);
            }
        }
        for (int g = 0; g < dim / 32; g++)
            scale[g * VF + i] = ue8m0_to_f32(key[i][dim / 2 + g]);
    }
}

/* Sixteen-bit sums: a group adds 16 products of at most 24 * 12 to each. */
static inline vi dot_begin(int32_t offset)
{
    (void)offset;
    return _mm256_setzero_si256();
}

static inline vi dot_add(vi acc, vi keys, int32_t quad)
{
    return _mm256_add_epi16(acc, _mm256_maddubs_epi16(keys, vi_set(quad)));
}

static inline vi dot_end(vi acc, int32_t offset)
{
    return vi_add(_mm256_madd_epi16(acc, _mm256_set1_epi16(1)), vi_set(offset));
}

#endif

/* Scores of the tile for row r of the block. */
static void score_tile(const index_scratch *s, int r, int heads, int dim, float out[TILE])
{
    int groups = dim / 32;
    vf sum[KEY_VECTORS];

    for (int v = 0; v < KEY_VECTORS; v++)
        sum[v] = vf_zero();
    for (int h = 0; h < heads; h += HEADS) {
        int64_t at = (int64_t)r * heads + h;
        const uint8_t *q = (const uint8_t *)s->q + at * dim;
        const float *q_scale = s->q_scale + at * groups;
        const int32_t *offset = s->offset + at * groups;
        vf dot[HEADS][KEY_VECTORS];

        for (int i = 0; i < HEADS; i++)
            for (int v = 0; v < KEY_VECTORS; v++)
                dot[i][v] = vf_zero();
        for (int g = 0; g < groups; g++) {
            vi acc[HEADS][KEY_VECTORS];

            for (int i = 0; i < HEADS; i++)
                for (int v = 0; v < KEY_VECTORS; v++)
                    acc[i][v] = dot_begin(offset[i * groups + g]);
            for (int j = 0; j < 8; j++) {
                vi keys[KEY_VECTORS];

                for (int v = 0; v < KEY_VECTORS; v++)
                    keys[v] = vi_load(s->tile + ((size_t)(v * dim / 4 + g * 8 + j)) * 4 * VF);
                for (int i = 0; i < HEADS; i++) {
                    int32_t quad;

                    memcpy(&quad, q + i * dim + g * 32 + j * 4, 4);
                    for (int v = 0; v < KEY_VECTORS; v++)
                        acc[i][v] = dot_add(acc[i][v], keys[v], quad);
                }
            }
            for (int i = 0; i < HEADS; i++)
                for (int v = 0; v < KEY_VECTORS; v++) {
                    vf scale = vf_mul(vf_load(s->key_scale + (v * groups + g) * VF),
                                      vf_set(q_scale[i * groups + g]));
                    vi whole = dot_end(acc[i][v], offset[i * groups + g]);

                    dot[i][v] = vf_fma(vi_to_float(whole), scale, dot[i][v]);
                }
        }
        for (int i = 0; i < HEADS; i++)
            for (int v = 0; v < KEY_VECTORS; v++)
                sum[v] = vf_fma(vf_max(dot[i][v], vf_zero()), vf_set(s->w[at + i]), sum[v]);
    }
    for (int v = 0; v < KEY_VECTORS; v++)
        vf_store(out + v * VF, sum[v]);
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

        list_keys(a, a->row0 + i, e, end - e < TILE ? (int)(end - e) : TILE, key);
        for (int v = 0; v < KEY_VECTORS; v++)
            decode_keys(key + v * VF, dim, s->tile + (size_t)(v * dim * VF),
                        s->key_scale + v * (dim / 32) * VF);
        for (int r = 0; r < n; r++) {
            int64_t stop = entries[r] < end ? entries[r] : end;

            if (e >= stop)
                continue;
            score_tile(s, r, heads, dim, out);
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
