/* Sparse attention: gather and decode the keys of a row, score, softmax, sum values.
 *
 * An item of work is a row and a part of its heads (16 to 64 of them, lanes are heads). Parts share
 * nothing, so a part decodes the row's keys itself: about a twelfth of the work for 64 heads. How
 * many parts a row has depends on rows and threads; the bits do not.
 * The softmax uses the final maximum; probabilities are rounded to bf16 for the value sum, the
 * denominator adds the unrounded ones in the order of the keys (spec 4.4). */
#include "kernels/cpu/attention_dot.h"

/* Draft blocks longer than this and all selections do not occur. */
#define MAX_DRAFT_BLOCK 512

static int max_keys(const kernel_limits *l)
{
    int block = l->n_rows < MAX_DRAFT_BLOCK ? l->n_rows : MAX_DRAFT_BLOCK;
    int n = l->window + (l->index_topk > block ? l->index_topk : block);

    return (n + ATTN_TILE - 1) / ATTN_TILE * ATTN_TILE;
}

/* Sizes of the parts of the scratch, in the order of attn_scratch. */
enum {
    PART_HEADS,
    PART_TILE,
    PART_TILE_F32,
    PART_Q,
    PART_VALUES,
    PART_SCORES,
    PART_BLOCK,
    PART_SUMS,
    PART_PROBS,
    PART_KEY
};

static void part_bytes(size_t part[PART_KEY + 1], int cap, int dim)
{
    size_t d = (size_t)dim, n = (size_t)cap, hp = ATTN_HEADS;

    part[PART_HEADS] = pad64(16 * d * sizeof(uint16_t));
    part[PART_TILE] = pad64(ATTN_TILE * d * sizeof(uint16_t));
    part[PART_TILE_F32] = pad64(ATTN_TILE * d * sizeof(float));
    part[PART_Q] = pad64(d * hp * sizeof(float));
    part[PART_VALUES] = pad64(d * n * sizeof(uint16_t));
    part[PART_BLOCK] = pad64(VALUE_KEYS * VALUE_CHANNELS * sizeof(float));
    part[PART_SUMS] = pad64(hp * d * sizeof(float));
    part[PART_SCORES] = pad64(n * hp * sizeof(float));
    part[PART_PROBS] = pad64(n * hp * sizeof(float));
    part[PART_KEY] = pad64(n * sizeof(uint8_t *));
}

static attn_scratch lay_out(uint8_t *at, int cap, int dim, bool bf16)
{
    size_t part[PART_KEY + 1];
    uint8_t *start[PART_KEY + 1];

    part_bytes(part, cap, dim);
    for (int i = 0; i <= PART_KEY; at += part[i++])
        start[i] = at;
    return (attn_scratch){.heads = (void *)start[PART_HEADS],
                          .tile = (void *)start[PART_TILE],
                          .tile_f32 = (void *)start[PART_TILE_F32],
                          .q = start[PART_Q],
                          .values = start[PART_VALUES],
                          .scores = (void *)start[PART_SCORES],
                          .block = (void *)start[PART_BLOCK],
                          .sums = (void *)start[PART_SUMS],
                          .probs = start[PART_PROBS],
                          .key = (void *)start[PART_KEY],
                          .cap = cap,
                          .bf16 = bf16};
}

size_t CPU_FN(attention_thread_bytes)(const kernel_limits *l)
{
    size_t part[PART_KEY + 1], sum = 0;

    part_bytes(part, max_keys(l), l->head_dim);
    for (int i = 0; i <= PART_KEY; i++)
        sum += part[i];
    return sum;
}

/* Row of the window key at position p of a sequence. */
static const uint8_t *window_key(const attention_args *a, int seq, int64_t p)
{
    const kv_view *v = &a->s->view[seq];

    if (p < v->len)
        return kv_ring(a->layout, v, a->ring, p);
    return a->kv_rows + (size_t)(a->s->row0[seq] + p - v->len) * a->layout->ring_row_bytes;
}

/* The keys of a row in their order; *n_window of them are ring rows, the rest latents. */
static int list_keys(const attention_args *a, int row, const uint8_t **key, int *n_window)
{
    const kv_layout *l = a->layout;
    int seq = a->s->seq[row], n = 0;
    const kv_view *v = &a->s->view[seq];
    int64_t lo, hi;

    if (a->draft) {
        lo = v->len > l->window ? v->len - l->window : 0;
        hi = v->len + a->s->row0[seq + 1] - a->s->row0[seq];
    } else {
        hi = a->s->pos[row] + 1;
        lo = hi > l->window ? hi - l->window : 0;
        lo = lo > v->ring_first ? lo : v->ring_first;
    }
    for (int64_t p = lo; p < hi; p++)
        key[n++] = window_key(a, seq, p);
    *n_window = n;
    if (a->owner >= 0 && !a->draft)
        for (int t = 0; t < a->n_sel[row]; t++)
            key[n++] = kv_latent(l, v, a->owner, a->sel[(int64_t)row * a->topk + t]);
    return n;
}

/* Rotated queries of the heads of a part, packed; lanes without a head are zero. */
static void load_queries(const attention_args *a, const attn_scratch *s, int row, int head0, int n,
                         int hp)
{
    int dim = a->layout->head_dim;
    const float *cs = a->cs + (int64_t)row * a->rope;

    for (int g = 0; g < hp / 16; g++) {
        for (int h = 0; h < 16; h++) {
            uint16_t *to = s->heads + h * dim;
            int64_t head = (int64_t)row * a->n_heads + head0 + g * 16 + h;

            if (g * 16 + h >= n) {
                memset(to, 0, (size_t)dim * sizeof *to);
                continue;
            }
            memcpy(to, (const uint16_t *)a->q + head * dim, (size_t)dim * sizeof *to);
            rope_bf16(to + dim - a->rope, cs, a->rope / 2, 1.0f);
        }
        ATTN_CALL(s, pack_queries, dim, hp, g);
    }
}

static void prefetch_row(const uint8_t *row, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(row + i);
}

/* Decode keys first .. first+n-1; zero rows up to a whole number of steps. Returns their number. */
static int decode_tile(const attention_args *a, const attn_scratch *s, int first, int n, int n_keys,
                       int n_window)
{
    int dim = a->layout->head_dim, padded = (n + ATTN_STEP - 1) / ATTN_STEP * ATTN_STEP;
    uint16_t *tile = attn_tile(s, dim, first);

    for (int k = 0; k < n; k++) {
        const uint8_t *row = s->key[first + k];

        if (first + k + 8 < n_keys)
            prefetch_row(s->key[first + k + 8], a->layout->latent_bytes);
        if (first + k < n_window)
            ring_row_decode(tile + k * dim, row, dim);
        else
            latent_row_decode(tile + k * dim, row, dim);
    }
    memset(tile + n * dim, 0, (size_t)((padded - n) * dim) * sizeof *tile);
    return padded;
}

/* Scores to probabilities; inverse[h] = 1 / denominator. */
static void softmax(const attn_scratch *s, int n_keys, int hp, const float *sink, float *inverse)
{
    for (int h = 0; h < hp; h += VF) {
        const float *score = s->scores + h;
        vf top = vf_set(-1e30f), den = vf_zero();

        for (int k = 0; k < n_keys; k++)
            top = vf_max(top, vf_load(score + k * hp));
        for (int k = 0; k < n_keys; k += 2) {
            vf p0 = vf_exp(vf_sub(vf_load(score + k * hp), top)), p1 = vf_zero();

            if (k + 1 < n_keys)
                p1 = vf_exp(vf_sub(vf_load(score + (k + 1) * hp), top));
            den = vf_add(vf_add(den, p0), p1);
            ATTN_CALL(s, put_probs, k / 2, h, p0, p1);
        }
        den = vf_add(den, vf_exp(vf_sub(vf_load(sink + h), top)));
        vf_store(inverse + h, vf_div(vf_set(1.0f), den));
    }
}

/* Heads head0 .. head0+n-1 of a row. */
static void attend(const attention_args *a, const attn_scratch *s, int row, int head0, int n)
{
    int dim = a->layout->head_dim, hp = (n + 15) / 16 * 16, n_window, n_keys;
    uint16_t *o = (uint16_t *)a->o + ((int64_t)row * a->n_heads + head0) * dim;
    float sink[ATTN_HEADS] = {0}, inverse[ATTN_HEADS];

    load_queries(a, s, row, head0, n, hp);
    n_keys = list_keys(a, row, s->key, &n_window);
    for (int k = 0; k < n_keys; k += ATTN_TILE) {
        int in_tile = n_keys - k < ATTN_TILE ? n_keys - k : ATTN_TILE;
        int padded = decode_tile(a, s, k, in_tile, n_keys, n_window);

#if defined(CPU_AVX512)
        if (s->bf16)
            bf16_put_values(s, dim, k, padded);
#endif
        ATTN_CALL(s, score_tile, s->scores + k * hp, attn_tile(s, dim, k), padded, dim, hp,
                  a->scale);
    }
    memcpy(sink, a->sink->f32 + head0, (size_t)n * sizeof *sink);
    softmax(s, n_keys, hp, sink, inverse);
    ATTN_CALL(s, values, o, dim, n, n_keys, inverse);
    for (int h = 0; h < n; h++)
        rope_bf16(o + (h + 1) * dim - a->rope, a->cs + (int64_t)row * a->rope, a->rope / 2, -1.0f);
}

/* Heads per part: as many as evens out the load, counting what decoding twice costs. */
static int part_heads(int n_rows, int n_heads, int n_threads)
{
    int best = ATTN_HEADS;
    int64_t best_cost = INT64_MAX;

    for (int size = ATTN_HEADS; size >= 16; size /= 2) {
        int64_t items = (int64_t)n_rows * ((n_heads + size - 1) / size);
        int64_t cost = (items + n_threads - 1) / n_threads * (size + 5);

        if (cost < best_cost) {
            best = size;
            best_cost = cost;
        }
    }
    return best;
}

static void attention_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const attention_args *a = job->args;
    const cpu_impl *impl = job->k->impl;
    attn_scratch s = lay_out(cpu_thread_scratch(job->k, thread), max_keys(&impl->lim),
                             a->layout->head_dim, impl->bf16_attention);
    int size = part_heads(a->s->n_rows, a->n_heads, n_threads);
    int parts = (a->n_heads + size - 1) / size;
    int64_t begin, end;

    pool_split((int64_t)a->s->n_rows * parts, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int head0 = (int)(i % parts) * size;

        attend(a, &s, (int)(i / parts), head0,
               a->n_heads - head0 < size ? a->n_heads - head0 : size);
    }
}

void CPU_FN(cpu_attention)(kernels *k, const attention_args *a)
{
    cpu_run(k, attention_job, a);
}
