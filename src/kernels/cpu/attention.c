/* Sparse attention: gather and decode the keys of a row, score, softmax, sum values.
 *
 * An item of work is a row and a part of its heads (16 to 64 of them, lanes are heads). Parts share
 * nothing, so a part decodes the row's keys itself: about a twelfth of the work for 64 heads. How
 * many parts a row has depends on rows and threads; the bits do not.
 * Where a row has few heads, neighbouring rows of a sequence share the lanes and the decoded keys:
 * they visit the union of their keys, in the same order, and a key that a row does not have gets
 * probability 0 there, which changes no sum.
 * The softmax uses the final maximum; probabilities are rounded to bf16 for the value sum, the
 * denominator adds the unrounded ones in the order of the keys (spec 4.4). */
#include "kernels/cpu/attention_dot.h"

/* Draft blocks longer than this and all selections do not occur. */
#define MAX_DRAFT_BLOCK 512

/* Rows that share the lanes, at most, and the heads of a row up to which they do. */
#define MAX_GROUP   8
#define GROUP_HEADS 16

static int max_keys(const kernel_limits *l)
{
    int block = l->n_rows < MAX_DRAFT_BLOCK ? l->n_rows : MAX_DRAFT_BLOCK;
    int n = l->window + (l->index_topk > block ? l->index_topk : block);

    if (l->n_heads <= GROUP_HEADS)
        n += MAX_GROUP + l->index_topk;
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
    PART_KEY,
    PART_MEMBER,
    N_PARTS
};

static void part_bytes(size_t part[N_PARTS], int cap, int dim)
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
    part[PART_MEMBER] = pad64(n);
}

static attn_scratch lay_out(uint8_t *at, int cap, int dim, bool bf16)
{
    size_t part[N_PARTS];
    uint8_t *start[N_PARTS];

    part_bytes(part, cap, dim);
    for (int i = 0; i < N_PARTS; at += part[i++])
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
                          .member = start[PART_MEMBER],
                          .cap = cap,
                          .bf16 = bf16};
}

size_t CPU_FN(attention_thread_bytes)(const kernel_limits *l)
{
    size_t part[N_PARTS], sum = 0;

    part_bytes(part, max_keys(l), l->head_dim);
    for (int i = 0; i < N_PARTS; i++)
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

/* Positions [*lo, *hi) of the window keys of a row. */
static void window_span(const attention_args *a, int row, int64_t *lo, int64_t *hi)
{
    int seq = a->s->seq[row], window = a->layout->window;
    const kv_view *v = &a->s->view[seq];

    if (a->draft) {
        *lo = v->len > window ? v->len - window : 0;
        *hi = v->len + a->s->row0[seq + 1] - a->s->row0[seq];
    } else {
        *hi = a->s->pos[row] + 1;
        *lo = *hi > window ? *hi - window : 0;
        *lo = *lo > v->ring_first ? *lo : v->ring_first;
    }
}

/* Window keys of n_rows rows of a sequence; bit r of member: row r has the key. */
static int list_window(const attention_args *a, const attn_scratch *s, int row, int n_rows)
{
    int64_t lo[MAX_GROUP] = {0}, hi[MAX_GROUP] = {0}, p;
    int n = 0, seq = a->s->seq[row];

    for (int r = 0; r < n_rows; r++)
        window_span(a, row + r, &lo[r], &hi[r]);
    for (p = lo[0]; p < hi[n_rows - 1]; p++, n++) {
        unsigned member = 0;

        for (int r = 0; r < n_rows; r++)
            member |= (unsigned)(p >= lo[r] && p < hi[r]) << r;
        s->key[n] = window_key(a, seq, p);
        s->member[n] = (uint8_t)member;
    }
    return n;
}

/* Selected entries of the rows, merged, behind the n keys that are there; -1 = too many. */
static int list_selected(const attention_args *a, const attn_scratch *s, int row, int n_rows, int n)
{
    const kv_view *v = &a->s->view[a->s->seq[row]];
    int at[MAX_GROUP] = {0};

    for (;; n++) {
        int32_t next = INT32_MAX;
        unsigned member = 0;

        for (int r = 0; r < n_rows; r++) {
            const int32_t *sel = a->sel + (int64_t)(row + r) * a->topk;
            int32_t entry = at[r] < a->n_sel[row + r] ? sel[at[r]] : INT32_MAX;

            if (entry < next)
                member = 0;
            next = entry < next ? entry : next;
            member |= (unsigned)(entry == next) << r;
        }
        if (next == INT32_MAX)
            return n;
        if (n == s->cap)
            return -1;
        for (int r = 0; r < n_rows; r++)
            at[r] += (int)(member >> r & 1);
        s->key[n] = kv_latent(a->layout, v, a->owner, next);
        s->member[n] = (uint8_t)member;
    }
}

/* The keys of a group of rows in their order; *n_window of them are ring rows, the rest latents.
 * -1: more than the scratch holds (not of one row). */
static int list_keys(const attention_args *a, const attn_scratch *s, int row, int n_rows,
                     int *n_window)
{
    *n_window = list_window(a, s, row, n_rows);
    if (a->owner < 0 || a->draft)
        return *n_window;
    return list_selected(a, s, row, n_rows, *n_window);
}

/* Rope angles of the row that lane i of an item belongs to. */
static const float *lane_angles(const attention_args *a, const attn_item *it, int i)
{
    return a->cs + (int64_t)(it->row + (it->n_rows > 1 ? i / a->n_heads : 0)) * a->rope;
}

/* Rotated queries of the lanes of an item, packed; lanes without a head are zero. */
static void load_queries(const attention_args *a, const attn_scratch *s, const attn_item *it, int n,
                         int hp)
{
    int dim = a->layout->head_dim;

    for (int g = 0; g < hp / 16; g++) {
        for (int h = 0; h < 16; h++) {
            uint16_t *to = s->heads + h * dim;
            int64_t head = (int64_t)it->row * a->n_heads + it->head + g * 16 + h;

            if (g * 16 + h >= n) {
                memset(to, 0, (size_t)dim * sizeof *to);
                continue;
            }
            memcpy(to, (const uint16_t *)a->q + head * dim, (size_t)dim * sizeof *to);
            rope_bf16(to + dim - a->rope, lane_angles(a, it, g * 16 + h), a->rope / 2, 1.0f);
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

/* A row does not see the keys of a group that it does not have. */
static void hide_keys(const attention_args *a, const attn_scratch *s, const attn_item *it,
                      int n_keys, int hp)
{
    unsigned all = (1u << it->n_rows) - 1;

    for (int k = 0; k < n_keys; k++)
        for (int r = 0; s->member[k] != all && r < it->n_rows; r++)
            for (int h = 0; !(s->member[k] >> r & 1) && h < a->n_heads; h++)
                s->scores[k * hp + r * a->n_heads + h] = -INFINITY;
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

/* False: the keys of the group do not fit the scratch. */
static bool attend(const attention_args *a, const attn_scratch *s, const attn_item *it)
{
    int dim = a->layout->head_dim, n = it->n_rows * it->n_heads, hp = (n + 15) / 16 * 16;
    int n_window, n_keys = list_keys(a, s, it->row, it->n_rows, &n_window);
    uint16_t *o = (uint16_t *)a->o + ((int64_t)it->row * a->n_heads + it->head) * dim;
    float sink[ATTN_HEADS] = {0}, inverse[ATTN_HEADS];

    if (n_keys < 0)
        return false;
    load_queries(a, s, it, n, hp);
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
    if (it->n_rows > 1)
        hide_keys(a, s, it, n_keys, hp);
    for (int r = 0; r < it->n_rows; r++)
        memcpy(sink + r * it->n_heads, a->sink->f32 + it->head, (size_t)it->n_heads * sizeof *sink);
    softmax(s, n_keys, hp, sink, inverse);
    ATTN_CALL(s, values, o, dim, n, n_keys, inverse);
    for (int h = 0; h < n; h++)
        rope_bf16(o + (h + 1) * dim - a->rope, lane_angles(a, it, h), a->rope / 2, -1.0f);
    return true;
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

/* Rows [begin, end), neighbours of a sequence together: `most` of them, or fewer when they have
 * little in common. */
static void attend_groups(const attention_args *a, const attn_scratch *s, int begin, int end,
                          int most)
{
    while (begin < end) {
        int left = a->s->row0[a->s->seq[begin] + 1] - begin;
        attn_item it = {.row = begin, .n_rows = most, .n_heads = a->n_heads};

        left = left < end - begin ? left : end - begin;
        it.n_rows = it.n_rows < left ? it.n_rows : left;
        while (!attend(a, s, &it))
            it.n_rows = (it.n_rows + 1) / 2;
        begin += it.n_rows;
    }
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

    if (a->n_heads <= GROUP_HEADS && !s.bf16) { /* pairs of keys would change with the company */
        int most = ATTN_HEADS / a->n_heads < MAX_GROUP ? ATTN_HEADS / a->n_heads : MAX_GROUP;

        pool_split(a->s->n_rows, 1, thread, n_threads, &begin, &end);
        attend_groups(a, &s, (int)begin, (int)end, most);
        return;
    }
    pool_split((int64_t)a->s->n_rows * parts, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int head = (int)(i % parts) * size;

        attend(a, &s,
               &(attn_item){.row = (int)(i / parts),
                            .n_rows = 1,
                            .head = head,
                            .n_heads = a->n_heads - head < size ? a->n_heads - head : size});
    }
}

void CPU_FN(cpu_attention)(kernels *k, const attention_args *a)
{
    cpu_run(k, attention_job, a);
}
