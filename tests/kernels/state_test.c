/* Operations on the state of a sequence, in every back end: attention, compressors, indexer, rings;
 * against plain formulas, and the same bits however a sequence is cut into steps. */
#include "kernels/hand.h"

#include <math.h>

#include "formats/quant.h"
#include "formats/scalar.h"

enum { DIM = 64, IDIM = 32, ROPE = 16, HEADS = 2, IHEADS = 4, TOPK = 24, BLOCK = 4, BLOCKS = 8 };
enum { WINDOW = 128, MAX_DRAFT = 5, MAX_TOKENS = 640 };

static uint32_t random_bits(uint64_t *s)
{
    uint64_t z = (*s += 0x9E3779B97F4A7C15u);

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    return (uint32_t)((z ^ (z >> 27)) * 0x94D049BB133111EBu >> 32);
}

static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_round((float)(int32_t)random_bits(&seed) * 0x1p-30f);
}

/* A sequence with its state, on a back end; and the step metadata of some of its rows. */
typedef struct sequence {
    bench b;
    kv_layout l;
    kv_view view;
    step s;
    int32_t row0[2], seq[MAX_TOKENS];
    int64_t pos[MAX_TOKENS];
} sequence;

static void sequence_open(sequence *q, const char *backend, numerics num, int ratio)
{
    int32_t table[MAX_TOKENS / KV_BLOCK_TOKENS + 1];
    size_t n_blocks = ARRAY_LEN(table);

    *q = (sequence){0};
    bench_open(&q->b, backend, num);
    kv_layout_init(&q->l, q->b.k->kv, DIM, IDIM, WINDOW, MAX_DRAFT, 2, &ratio, 1);
    for (size_t i = 0; i < n_blocks; i++)
        table[i] = (int32_t)(n_blocks - 1 - i);
    q->view = (kv_view){.fixed = dev(&q->b, q->l.fixed_bytes),
                        .blocks = dev(&q->b, n_blocks * q->l.block_bytes),
                        .table = dev_copy(&q->b, table, sizeof table)};
}

/* A step of n rows behind len tokens. */
static void sequence_step(sequence *q, int64_t len, int n)
{
    q->view.len = len;
    q->row0[1] = n;
    for (int i = 0; i < n; i++)
        q->pos[i] = len + i;
    q->s = (step){
        .n_rows = n, .n_seqs = 1, .row0 = q->row0, .seq = q->seq, .pos = q->pos, .view = &q->view};
}

static float *angles(sequence *q, const int64_t *pos, int n)
{
    float *cs = calloc((size_t)n * ROPE + 1, sizeof *cs), *device;

    assert_non_null(cs);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < ROPE / 2; j++) {
            float angle = (float)pos[i] * ldexpf(1, -j);

            cs[i * ROPE + 2 * j] = cosf(angle);
            cs[i * ROPE + 2 * j + 1] = sinf(angle);
        }
    device = dev_copy(&q->b, cs, (size_t)n * ROPE * sizeof *cs);
    free(cs);
    return device;
}

static void ring_row(const sequence *q, uint8_t *row, const float *x)
{
    if (q->l.format == KV_F32)
        memcpy(row, x, DIM * sizeof *x);
    else
        q8_encode(row, row + DIM, x, DIM);
}

static void latent_row(const sequence *q, uint8_t *row, const float *x)
{
    if (q->l.format == KV_F32)
        memcpy(row, x, DIM * sizeof *x);
    else
        q4c_encode(row, row + DIM / 2, x, DIM);
}

/* x as it is read back from a row. */
static void through_ring(const sequence *q, double *y, const float *x)
{
    uint8_t code[DIM], scale[DIM / 32];
    float v[DIM];

    memcpy(v, x, sizeof v);
    if (q->l.format == KV_PACKED) {
        q8_encode(code, scale, x, DIM);
        q8_decode(v, code, scale, DIM);
    }
    for (int i = 0; i < DIM; i++)
        y[i] = (double)v[i];
}

static void through_latent(const sequence *q, double *y, const float *x)
{
    uint8_t code[DIM / 2], scale[DIM / 16];
    float v[DIM];

    memcpy(v, x, sizeof v);
    if (q->l.format == KV_PACKED) {
        q4c_encode(code, scale, x, DIM);
        q4c_decode(v, code, scale, DIM);
    }
    for (int i = 0; i < DIM; i++)
        y[i] = (double)v[i];
}

/* The formula, with nothing rotated (all angles 0). */
static void attend(const double (*key)[DIM], int n, const float *query, double sink, double *o)
{
    double p[1024], top = -1e30, den;

    for (int t = 0; t < n; t++) {
        p[t] = 0;
        for (int d = 0; d < DIM; d++)
            p[t] += (double)query[d] * key[t][d];
        p[t] *= 0.125;
        top = fmax(top, p[t]);
    }
    den = exp(sink - top);
    for (int d = 0; d < DIM; d++)
        o[d] = 0;
    for (int t = 0; t < n; t++) {
        p[t] = exp(p[t] - top);
        den += p[t];
        for (int d = 0; d < DIM; d++)
            o[d] += p[t] * key[t][d];
    }
    for (int d = 0; d < DIM; d++)
        o[d] /= den;
}

static void *unrotated(sequence *q, int n)
{
    float cs[MAX_TOKENS * ROPE];

    for (int i = 0; i < n * ROPE; i++)
        cs[i] = i % 2 ? 0.0f : 1.0f;
    return dev_copy(&q->b, cs, (size_t)(n * ROPE) * sizeof *cs);
}

/* Three rows behind 200 tokens. Every ring row and entry that no query may see is not a number. */
static void check_attention(const char *backend, numerics num, bool draft, int64_t ring_first,
                            double tolerance)
{
    enum { LEN = 200, N = 3, N_SEL = 5 };
    static const int32_t sel[N * TOPK] = {0, 3, 64, 150, 199, [TOPK] = 1, [2 * TOPK] = 7, 8, 9};
    static const int32_t n_sel[N] = {N_SEL, 1, 3};
    static const float sink[HEADS] = {0.5f, -2};
    static double key[1024][DIM];
    static sequence q;
    float x[DIM], query[N * HEADS * DIM], o[N * HEADS * DIM];
    uint8_t *kv_rows, row[DIM * 4 + 16];
    attention_args a = {
        .n_heads = HEADS, .rope = ROPE, .scale = 0.125f, .draft = draft, .ring = 1, .topk = TOPK};

    sequence_open(&q, backend, num, 1);
    sequence_step(&q, LEN, N);
    memset(q.view.fixed, q.l.format == KV_F32 ? 0xFF : 0x7F, q.l.fixed_bytes);
    memset(q.view.blocks, 0xFF, 2 * q.l.block_bytes);
    kv_rows = dev(&q.b, N * q.l.ring_row_bytes);
    for (int i = 0; i < N; i++) {
        fill(x, DIM, 5000 + (uint64_t)i);
        ring_row(&q, row, x);
        memcpy(kv_rows + (size_t)i * q.l.ring_row_bytes, row, q.l.ring_row_bytes);
    }
    q.view.ring_first = ring_first;
    for (int64_t p = LEN - (draft ? WINDOW : WINDOW - 1); p < LEN; p++) {
        if (p < ring_first)
            continue;
        fill(x, DIM, (uint64_t)p);
        ring_row(&q, kv_ring(&q.l, &q.view, 1, p), x);
    }
    for (int i = 0; i < N; i++)
        for (int t = 0; t < n_sel[i]; t++) {
            fill(x, DIM, 9000 + (uint64_t)sel[i * TOPK + t]);
            latent_row(&q, kv_latent(&q.l, &q.view, 0, sel[i * TOPK + t]), x);
        }
    fill(query, ARRAY_LEN(query), 77);
    a.s = &q.s;
    a.layout = &q.l;
    a.q = dev_act(&q.b, query, ARRAY_LEN(query));
    a.cs = unrotated(&q, N);
    a.kv_rows = kv_rows;
    a.sink = load_one(&q.b, WEIGHT_VEC_F32, sink, NULL, 1, HEADS);
    a.owner = draft ? -1 : 0;
    a.sel = dev_copy(&q.b, sel, sizeof sel);
    a.n_sel = dev_copy(&q.b, n_sel, sizeof n_sel);
    a.o = dev(&q.b, sizeof o);
    q.b.k->ops->attention(q.b.k, &a);
    get_act(&q.b, o, a.o, ARRAY_LEN(o));
    for (int i = 0; i < N; i++) {
        int64_t from = draft ? LEN - WINDOW : LEN + i - WINDOW + 1;
        int64_t to = draft ? LEN + N : LEN + i + 1;
        int n = 0;

        for (int64_t p = from > ring_first ? from : ring_first; p < to; p++) {
            fill(x, DIM, p < LEN ? (uint64_t)p : 5000 + (uint64_t)(p - LEN));
            through_ring(&q, key[n++], x);
        }
        for (int t = 0; !draft && t < n_sel[i]; t++) {
            fill(x, DIM, 9000 + (uint64_t)sel[i * TOPK + t]);
            through_latent(&q, key[n++], x);
        }
        for (int h = 0; h < HEADS; h++) {
            double want[DIM];

            attend(key, n, query + (i * HEADS + h) * DIM, (double)sink[h], want);
            for (int d = 0; d < DIM; d++)
                assert_close((double)o[(i * HEADS + h) * DIM + d], want[d], tolerance);
        }
    }
    bench_close(&q.b);
}

static void test_attention_reads_window_and_selection(void **state)
{
    check_attention(*state, NUMERICS_RELEASE, false, 0, 4e-3);
}

/* A replayed tail has no window keys before its start. */
static void test_attention_starts_at_the_first_key_of_the_ring(void **state)
{
    check_attention(*state, NUMERICS_RELEASE, false, 190, 8e-3);
    check_attention(*state, NUMERICS_RELEASE, false, 200, 8e-3);
}

static void test_draft_rows_attend_each_other(void **state)
{
    check_attention(*state, NUMERICS_RELEASE, true, 0, 4e-3);
}

static void test_attention_in_f32(void **state)
{
    (void)state;
    check_attention("ref", NUMERICS_F32, false, 0, 1e-6);
    check_attention("ref", NUMERICS_F32, true, 0, 1e-6);
    check_attention("ref", NUMERICS_CACHE, false, 0, 1e-6);
}

/* Rows that RMS leaves as they are and a rotation by a quarter turn: bytes are known exactly. */
static void test_qkv_writes_ring_rows(void **state)
{
    enum { RANK = 32 };
    static sequence q;
    float in[RANK + DIM], cs[ROPE], want[DIM];
    uint16_t one[DIM];
    uint8_t got[DIM + DIM / 32], code[DIM + DIM / 32];
    qkv_args a = {.n = 1, .q_rank = RANK, .dim = DIM, .rope = ROPE, .eps = 1e-20f};

    sequence_open(&q, *state, NUMERICS_RELEASE, 1);
    for (int i = 0; i < RANK + DIM; i++)
        in[i] = i % 3 ? 2.0f : -2.0f;
    for (int i = 0; i < DIM; i++) {
        one[i] = bf16_from_f32(i < DIM / 2 ? 1 : 3);
        want[i] = (in[RANK + i] < 0 ? -1.0f : 1.0f) * (i < DIM / 2 ? 1.0f : 3.0f);
    }
    for (int i = 0; i < ROPE; i++)
        cs[i] = i % 2 ? 1.0f : 0.0f;
    for (int i = DIM - ROPE; i < DIM; i += 2) { /* (a, b) -> (-b, a) */
        float first = want[i];

        want[i] = -want[i + 1];
        want[i + 1] = first;
    }
    q8_encode(code, code + DIM, want, DIM);
    a.qkv = dev_act(&q.b, in, RANK + DIM);
    a.q_norm = load_one(&q.b, WEIGHT_VEC_BF16, one, NULL, 1, RANK);
    a.kv_norm = load_one(&q.b, WEIGHT_VEC_BF16, one, NULL, 1, DIM);
    a.cs = dev_copy(&q.b, cs, sizeof cs);
    a.layout = &q.l;
    a.qr_q8 = dev(&q.b, q.b.k->ops->q8_row_bytes(q.b.k, RANK));
    a.kv_rows = dev(&q.b, sizeof got);
    q.b.k->ops->qkv(q.b.k, &a);
    get_bytes(&q.b, got, a.kv_rows, sizeof got);
    assert_memory_equal(got, code, sizeof code);
    bench_close(&q.b);
}

/* The first place of the list is none: its entry stays as it is. */
static void test_stored_entries_have_the_bytes_of_the_quantisers(void **state)
{
    static sequence q;
    float lats[2 * DIM], keys[2 * IDIM], *lat = lats + DIM, *key = keys + IDIM;
    uint16_t one[DIM];
    const int32_t last[] = {STEP_NO_GROUP, 1};
    const int64_t entry[] = {2, 3};
    step_groups g = {.n = 2, .ratio = 2};
    uint8_t want[DIM], empty[DIM];
    compress_store_args a = {.rope = ROPE, .eps = 1e-20f};

    sequence_open(&q, *state, NUMERICS_RELEASE, 2);
    sequence_step(&q, 6, 2);
    memcpy(empty, kv_latent(&q.l, &q.view, 0, 2), q.l.latent_bytes);
    fill(lats, 2 * DIM, 3);
    for (int i = 0; i < DIM; i++)
        one[i] = bf16_from_f32(1);
    for (int i = 0; i < 2 * IDIM; i++) /* mean square 1: the norm leaves it */
        keys[i] = i % 2 ? 1.0f : -1.0f;
    g.last_row = dev_copy(&q.b, last, sizeof last);
    g.entry = dev_copy(&q.b, entry, sizeof entry);
    a.s = &q.s;
    a.g = &g;
    a.layout = &q.l;
    a.lat = dev_act(&q.b, lats, ARRAY_LEN(lats));
    a.key_raw = dev_act(&q.b, keys, ARRAY_LEN(keys));
    a.k_norm = load_one(&q.b, WEIGHT_VEC_BF16, one, NULL, 1, IDIM);
    a.cs = unrotated(&q, 2);
    q.b.k->ops->compress_store(q.b.k, &a);
    assert_int_equal(q.b.k->ops->finish(q.b.k, NULL), DI_OK);
    q4c_encode(want, want + DIM / 2, lat, DIM);
    assert_memory_equal(kv_latent(&q.l, &q.view, 0, 3), want, q.l.latent_bytes);
    q4i_encode(want, want + IDIM / 2, key, IDIM);
    assert_memory_equal(kv_key(&q.l, &q.view, 0, 3), want, q.l.key_bytes);
    assert_memory_equal(kv_latent(&q.l, &q.view, 0, 2), empty, q.l.latent_bytes);
    bench_close(&q.b);
}

/* Equal gates give the mean; a gate far above gives its token; the first token of the group comes
 * from the open ring. */
static void test_pooling_weights_tokens_by_their_gates(void **state)
{
    static sequence q;
    float proj[2 * DIM], lat[DIM];
    uint16_t one[DIM];
    const int32_t last = 0;
    const int64_t entry = 4;
    step_groups g = {.n = 1, .ratio = 2};
    compress_pool_args a = {.eps = 1e-20f};

    sequence_open(&q, *state, NUMERICS_RELEASE, 2);
    sequence_step(&q, 9, 1);
    for (int i = 0; i < DIM; i++) {
        float *open = kv_open(&q.l, &q.view, 0, 8);

        one[i] = bf16_from_f32(1);
        open[i] = i % 2 ? 6 : 4;
        open[DIM + i] = i % 2 ? 100 : 0;
        proj[i] = i % 2 ? -1000 : 8;
        proj[DIM + i] = 0;
    }
    g.last_row = dev_copy(&q.b, &last, sizeof last);
    g.entry = dev_copy(&q.b, &entry, sizeof entry);
    a.s = &q.s;
    a.g = &g;
    a.layout = &q.l;
    a.proj = dev_copy(&q.b, proj, sizeof proj);
    a.norm = load_one(&q.b, WEIGHT_VEC_BF16, one, NULL, 1, DIM);
    a.lat = dev(&q.b, sizeof lat);
    q.b.k->ops->compress_pool(q.b.k, &a);
    get_act(&q.b, lat, a.lat, DIM);
    for (int i = 0; i < DIM; i++) /* (4 + 8) / 2 and 6: all equal, so 1 behind the norm */
        assert_close((double)lat[i], 1, 0);
    assert_memory_equal(kv_open(&q.l, &q.view, 0, 9), proj, sizeof proj);
    bench_close(&q.b);
}

/* Keys and queries on the grid; the sum over heads of relu(q.k) w with a negative weight. */
static void test_index_score_formula(void **state)
{
    enum { LEN = 40 };
    static sequence q;
    float key[IDIM], iq[IHEADS * IDIM], iw[IHEADS] = {2, -1, 1, 4}, score[64] = {0};
    index_scores_args a = {.heads = IHEADS, .rope = ROPE, .n = 1, .topk = 8, .stride = 64};

    sequence_open(&q, *state, NUMERICS_RELEASE, 2);
    sequence_step(&q, LEN, 1); /* row 40 sees 20 entries; the 21st is open */
    for (int e = 0; e < LEN / 2 + 1; e++) {
        uint8_t *row = kv_key(&q.l, &q.view, 0, e);

        for (int i = 0; i < IDIM; i++)
            key[i] = i == e % 4 ? 6.0f : i == 31 ? 1.0f : 0.0f;
        q4i_encode(row, row + IDIM / 2, key, IDIM);
    }
    for (int h = 0; h < IHEADS; h++)
        for (int i = 0; i < IDIM; i++)
            iq[h * IDIM + i] = i == h ? 3.0f : i == 31 ? -6.0f : 0.0f;
    a.s = &q.s;
    a.layout = &q.l;
    a.iq = dev_act(&q.b, iq, ARRAY_LEN(iq));
    a.iw = dev_act(&q.b, iw, IHEADS);
    a.cs = unrotated(&q, 1);
    a.scores = dev_copy(&q.b, score, sizeof score);
    q.b.k->ops->index_scores(q.b.k, &a);
    get_bytes(&q.b, score, a.scores, sizeof score);
    for (int e = 0; e < LEN / 2; e++) {
        /* head e % 4 has 3*6 - 6*1 = 12, the others -6, which relu drops */
        float w = bf16_round(iw[e % 4] * (float)(1 / sqrt(IDIM * IHEADS)));

        assert_close((double)score[e], 12 * (double)w, 1e-5);
    }
    bench_close(&q.b);
}

static bool better(const float *score, int a, int b)
{
    return score[a] > score[b] || (score[a] == score[b] && a < b);
}

/* Is e one of the k best of the n that count? */
static bool chosen(const float *score, const bool *counts, int n, int k, int e)
{
    int before = 0;

    for (int i = 0; i < n; i++)
        before += counts[i] && better(score, i, e);
    return counts[e] && before < k;
}

static void test_selection_equals_a_plain_search(void **state)
{
    enum { LEN = 200 };
    static sequence q;
    float score[LEN + 8], block_score[64];
    int32_t sel[TOPK], n_sel, ids[BLOCKS], count;
    bool all[LEN + 8], in_block[LEN + 8];
    candidates out = {.block = BLOCK, .max_blocks = BLOCKS};
    select_args a = {.n = 1, .topk = TOPK, .stride = LEN + 8};
    uint64_t rng = 5;

    sequence_open(&q, *state, NUMERICS_RELEASE, 1);
    a.s = &q.s;
    a.layout = &q.l;
    a.scores = dev(&q.b, sizeof score);
    a.sel = dev(&q.b, sizeof sel);
    a.n_sel = dev(&q.b, sizeof n_sel);
    out.ids = dev(&q.b, sizeof ids);
    out.count = dev(&q.b, sizeof count);
    for (int round = 0; round < 60; round++) {
        int len = round < 40 ? round * 5 : LEN - round, visible = len + 1;
        int n_blocks = (visible + BLOCK - 1) / BLOCK, n = 0, blocks = 0;

        sequence_step(&q, len, 1);
        for (int e = 0; e < visible; e++) {
            score[e] = (float)(int)(random_bits(&rng) % 16) - 8;
            if (round % 3 == 0) /* few values: many ties, both zeros */
                score[e] = (random_bits(&rng) & 1 ? -0.0f : 0.0f) + (float)(e % 7 == 3);
            all[e] = true;
        }
        q.b.k->ops->put(q.b.k, (void *)a.scores, score, sizeof score);
        a.out = &out;
        a.filter = NULL;
        q.b.k->ops->select(q.b.k, &a);
        get_bytes(&q.b, sel, a.sel, sizeof sel);
        get_bytes(&q.b, &n_sel, a.n_sel, sizeof n_sel);
        get_bytes(&q.b, ids, out.ids, sizeof ids);
        get_bytes(&q.b, &count, out.count, sizeof count);
        for (int e = 0; e < visible; e++)
            if (visible <= TOPK || chosen(score, all, visible, TOPK, e))
                assert_int_equal(sel[n++], e);
        assert_int_equal(n_sel, n);
        if (n_blocks <= BLOCKS) {
            assert_int_equal(count, -1);
            continue;
        }
        for (int blk = 0; blk < n_blocks; blk++) {
            block_score[blk] = -INFINITY;
            for (int e = blk * BLOCK; e < (blk + 1) * BLOCK && e < visible; e++)
                block_score[blk] = fmaxf(block_score[blk], score[e] + 0.0f);
        }
        block_score[n_blocks - 1] = INFINITY;
        for (int blk = 0; blk < n_blocks; blk++) {
            bool kept = chosen(block_score, all, n_blocks, BLOCKS, blk);

            if (kept)
                assert_int_equal(ids[blocks++], blk);
            for (int e = blk * BLOCK; e < (blk + 1) * BLOCK && e < visible; e++)
                in_block[e] = kept;
        }
        assert_int_equal(count, blocks);
        /* The layer behind scores the candidates only, as a compact list. */
        n = 0;
        for (int e = 0, c = 0; e < visible; e++)
            if (in_block[e])
                score[c++] = score[e];
        q.b.k->ops->put(q.b.k, (void *)a.scores, score, sizeof score);
        a.out = NULL;
        a.filter = &out;
        q.b.k->ops->select(q.b.k, &a);
        get_bytes(&q.b, sel, a.sel, sizeof sel);
        get_bytes(&q.b, &n_sel, a.n_sel, sizeof n_sel);
        for (int e = 0, c = 0, left = (int)index_eligible(visible, &out, 0); e < visible; e++) {
            if (!in_block[e])
                continue;
            if (left <= TOPK || chosen(score, all, left, TOPK, c))
                assert_int_equal(sel[n++], e);
            c++;
        }
        assert_int_equal(n_sel, n);
    }
    bench_close(&q.b);
}

static void test_ring_keeps_the_last_rows_of_a_long_chunk(void **state)
{
    enum { LEN = 50, N = 300 };
    static sequence q;
    uint8_t *rows;
    ring_commit_args a = {.ring = 1};

    sequence_open(&q, *state, NUMERICS_RELEASE, 1);
    sequence_step(&q, LEN, N);
    rows = calloc(N, q.l.ring_row_bytes);
    assert_non_null(rows);
    for (size_t i = 0; i < N * q.l.ring_row_bytes; i++)
        rows[i] = (uint8_t)(i / q.l.ring_row_bytes % 251);
    a.s = &q.s;
    a.layout = &q.l;
    a.kv_rows = dev_copy(&q.b, rows, N * q.l.ring_row_bytes);
    q.b.k->ops->ring_commit(q.b.k, &a);
    assert_int_equal(q.b.k->ops->finish(q.b.k, NULL), DI_OK);
    for (int i = N - q.l.ring_rows; i < N; i++)
        assert_memory_equal(kv_ring(&q.l, &q.view, 1, LEN + i),
                            rows + (size_t)i * q.l.ring_row_bytes, q.l.ring_row_bytes);
    assert_int_equal(kv_ring(&q.l, &q.view, 0, 0)[0], 0); /* the other ring is untouched */
    free(rows);
    bench_close(&q.b);
}

/* Drafts behind a full ring: the same state as from ring_commit. */
static void test_rows_may_go_into_the_ring_at_once(void **state)
{
    enum { LEN = 200, N = MAX_DRAFT + 1 };
    static sequence q;
    float in[N * DIM];
    uint16_t one[DIM];
    uint8_t *before, *after;
    qkv_args a = {.n = N, .dim = DIM, .rope = ROPE, .eps = 1e-20f, .ring = 1};

    sequence_open(&q, *state, NUMERICS_RELEASE, 1);
    sequence_step(&q, LEN, N);
    fill(in, N * DIM, 7);
    for (int i = 0; i < DIM; i++)
        one[i] = bf16_from_f32(1);
    a.qkv = dev_act(&q.b, in, N * DIM);
    a.kv_norm = load_one(&q.b, WEIGHT_VEC_BF16, one, NULL, 1, DIM);
    a.cs = angles(&q, q.pos, N);
    a.layout = &q.l;
    a.kv_rows = dev(&q.b, N * q.l.ring_row_bytes);
    before = malloc(2 * q.l.fixed_bytes);
    assert_non_null(before);
    after = before + q.l.fixed_bytes;
    q.b.k->ops->qkv(q.b.k, &a);
    get_bytes(&q.b, before, q.view.fixed, q.l.fixed_bytes);
    for (size_t i = 0; i < q.l.fixed_bytes; i++)
        assert_int_equal(before[i], 0);
    q.b.k->ops->ring_commit(q.b.k, &(ring_commit_args){&q.s, &q.l, 1, a.kv_rows});
    get_bytes(&q.b, before, q.view.fixed, q.l.fixed_bytes);
    memset(after, 0, q.l.fixed_bytes);
    q.b.k->ops->put(q.b.k, q.view.fixed, after, q.l.fixed_bytes);
    a.commit = &q.s;
    q.b.k->ops->qkv(q.b.k, &a);
    get_bytes(&q.b, after, q.view.fixed, q.l.fixed_bytes);
    assert_memory_equal(before, after, q.l.fixed_bytes);
    free(before);
    bench_close(&q.b);
}

/* --- the same bits however the tokens are cut into steps ------------------------------------- */

enum { TOKENS = 400 };

/* Inputs of all tokens, and what a run over them gives. */
typedef struct story {
    float proj[TOKENS * 2 * DIM], iq[TOKENS * IHEADS * IDIM], iw[TOKENS * IHEADS];
    float query[TOKENS * HEADS * DIM], key_raw[TOKENS * IDIM], kv[TOKENS * DIM];
} story;

typedef struct outcome {
    float o[TOKENS * HEADS * DIM];
    int32_t sel[TOKENS * TOPK], n_sel[TOKENS];
} outcome;

/* One attention layer's state operations on tokens len .. len+n-1, of which n_kept count. */
static void layer_step(sequence *q, const story *t, int64_t len, int n, int n_kept,
                       const weight *const *w, outcome *out)
{
    enum { RATIO = 2 };
    kernels *k = q->b.k;
    const kernel_ops *ops = k->ops;
    int n_bufs = q->b.n_bufs, n_groups = 0;
    int32_t last[TOKENS], *sel, *n_sel;
    int64_t entry[TOKENS], first[TOKENS];
    float key_raw[TOKENS / RATIO * IDIM];
    uint8_t row[4 * DIM + 16], *kv_rows;
    float *scores, *lat;
    step_groups g;

    sequence_step(q, len, n);
    for (int i = 0; i < n; i++) {
        if ((len + i + 1) % RATIO != 0)
            continue;
        last[n_groups] = i;
        entry[n_groups] = (len + i) / RATIO;
        first[n_groups] = entry[n_groups] * RATIO;
        memcpy(key_raw + n_groups * IDIM, t->key_raw + entry[n_groups] * IDIM,
               IDIM * sizeof *key_raw);
        n_groups++;
    }
    g = (step_groups){.n = n_groups, .ratio = RATIO, .last_row = last, .entry = entry};
    lat = dev(&q->b, (size_t)n_groups * DIM * sizeof *lat);
    ops->compress_pool(k,
                       &(compress_pool_args){.s = &q->s,
                                             .g = &g,
                                             .layout = &q->l,
                                             .eps = 1e-20f,
                                             .proj = dev_copy(&q->b, t->proj + len * 2 * DIM,
                                                              (size_t)n * 2 * DIM * sizeof(float)),
                                             .norm = w[0],
                                             .lat = lat});
    ops->compress_store(
        k, &(compress_store_args){.s = &q->s,
                                  .g = &g,
                                  .layout = &q->l,
                                  .rope = ROPE,
                                  .eps = 1e-20f,
                                  .lat = lat,
                                  .key_raw = dev_act(&q->b, key_raw, (size_t)n_groups * IDIM),
                                  .k_norm = w[1],
                                  .cs = angles(q, first, n_groups)});
    scores = dev(&q->b, (size_t)n * TOKENS * sizeof *scores);
    ops->index_scores(
        k, &(index_scores_args){
               .s = &q->s,
               .layout = &q->l,
               .heads = IHEADS,
               .rope = ROPE,
               .n = n,
               .topk = TOPK,
               .iq = dev_act(&q->b, t->iq + len * IHEADS * IDIM, (size_t)n * IHEADS * IDIM),
               .iw = dev_act(&q->b, t->iw + len * IHEADS, (size_t)n * IHEADS),
               .cs = angles(q, q->pos, n),
               .scores = scores,
               .stride = TOKENS});
    sel = dev(&q->b, (size_t)n * TOPK * sizeof *sel);
    n_sel = dev(&q->b, (size_t)n * sizeof *n_sel);
    ops->select(k, &(select_args){.s = &q->s,
                                  .layout = &q->l,
                                  .n = n,
                                  .topk = TOPK,
                                  .scores = scores,
                                  .stride = TOKENS,
                                  .sel = sel,
                                  .n_sel = n_sel});
    kv_rows = dev(&q->b, (size_t)n * q->l.ring_row_bytes);
    for (int i = 0; i < n; i++) {
        ring_row(q, row, t->kv + (len + i) * DIM);
        ops->put(k, kv_rows + (size_t)i * q->l.ring_row_bytes, row, q->l.ring_row_bytes);
    }
    lat = dev(&q->b, (size_t)n * HEADS * DIM * sizeof *lat);
    ops->attention(k, &(attention_args){.s = &q->s,
                                        .layout = &q->l,
                                        .n_heads = HEADS,
                                        .rope = ROPE,
                                        .scale = 0.125f,
                                        .ring = 1,
                                        .q = dev_act(&q->b, t->query + len * HEADS * DIM,
                                                     (size_t)n * HEADS * DIM),
                                        .cs = angles(q, q->pos, n),
                                        .kv_rows = kv_rows,
                                        .sink = w[2],
                                        .sel = sel,
                                        .n_sel = n_sel,
                                        .topk = TOPK,
                                        .o = lat});
    ops->ring_commit(
        k, &(ring_commit_args){.s = &q->s, .layout = &q->l, .ring = 1, .kv_rows = kv_rows});
    get_act(&q->b, out->o + len * HEADS * DIM, lat, (size_t)n_kept * HEADS * DIM);
    get_bytes(&q->b, out->n_sel + len, n_sel, (size_t)n_kept * sizeof *n_sel);
    for (int i = 0; i < n_kept; i++) /* entries behind n_sel are undefined */
        get_bytes(&q->b, out->sel + (len + i) * TOPK, sel + i * TOPK,
                  (size_t)out->n_sel[len + i] * sizeof *sel);
    while (q->b.n_bufs > n_bufs)
        ops->buf_free(k, q->b.buf[--q->b.n_bufs]);
}

/* Other tokens from `at` on. */
static void go_wrong(story *t, int at, int n)
{
    uint64_t seed = 1000 + (uint64_t)at;

    fill(t->proj + at * 2 * DIM, (size_t)n * 2 * DIM, seed);
    fill(t->iq + at * IHEADS * IDIM, (size_t)n * IHEADS * IDIM, seed);
    fill(t->iw + at * IHEADS, (size_t)n * IHEADS, seed);
    fill(t->query + at * HEADS * DIM, (size_t)n * HEADS * DIM, seed);
    fill(t->key_raw + at / 2 * IDIM, (size_t)(n / 2 + 1) * IDIM, seed);
    fill(t->kv + at * DIM, (size_t)n * DIM, seed);
}

/* Run over all tokens in the given chunks (0 ends the list: the last one repeats). With drafts,
 * every step has wrong rows behind its own, which are then forgotten. */
static void tell(const char *backend, numerics num, const story *t, const int *chunks, bool drafts,
                 outcome *out)
{
    static sequence q;
    static story draft;
    uint16_t one[DIM];
    const float sink[HEADS] = {0.1f, -1};
    const weight *w[3];

    sequence_open(&q, backend, num, 2);
    for (int i = 0; i < DIM; i++)
        one[i] = bf16_from_f32(0.5f + (float)(i % 5) * 0.25f);
    w[0] = load_one(&q.b, WEIGHT_VEC_BF16, one, NULL, 1, DIM);
    w[1] = load_one(&q.b, WEIGHT_VEC_BF16, one, NULL, 1, IDIM);
    w[2] = load_one(&q.b, WEIGHT_VEC_F32, sink, NULL, 1, HEADS);
    memset(out, 0, sizeof *out);
    for (int at = 0; at < TOKENS;) {
        int n = *chunks < TOKENS - at ? *chunks : TOKENS - at;
        int n_wrong = drafts && at + n + MAX_DRAFT <= TOKENS ? 1 + at % MAX_DRAFT : 0;

        if (n_wrong > 0) {
            draft = *t;
            go_wrong(&draft, at + n, n_wrong);
        }
        layer_step(&q, n_wrong ? &draft : t, at, n + n_wrong, n, w, out);
        at += n;
        if (chunks[1])
            chunks++;
    }
    bench_close(&q.b);
}

static void check_chunks(const char *backend, numerics num)
{
    static const int whole[] = {TOKENS, 0}, single[] = {1, 0}, pairs[] = {2, 0}, seven[] = {7, 0};
    static const int mixed[] = {1, 130, 3, 64, 1, 1, 6, 0};
    static const int *const cuts[] = {single, pairs, seven, mixed};
    static story t;
    static outcome want, got;

    fill((float *)&t, sizeof t / sizeof(float), 1);
    tell(backend, num, &t, whole, false, &want);
    for (size_t i = 0; i < ARRAY_LEN(cuts); i++) {
        tell(backend, num, &t, cuts[i], false, &got);
        assert_memory_equal(&got, &want, sizeof got);
        tell(backend, num, &t, cuts[i], true, &got);
        assert_memory_equal(&got, &want, sizeof got);
    }
}

static void test_steps_of_any_size_and_forgotten_drafts_give_the_same_bits(void **state)
{
    check_chunks(*state, NUMERICS_RELEASE);
}

static void test_steps_of_any_size_in_f32(void **state)
{
    (void)state;
    check_chunks("ref", NUMERICS_F32);
}

int main(void)
{
    static const struct {
        const char *name;
        CMUnitTestFunction test;
    } all[] = {
        {"attention reads window and selection", test_attention_reads_window_and_selection},
        {"attention starts at the first key of the ring",
         test_attention_starts_at_the_first_key_of_the_ring},
        {"draft rows attend each other", test_draft_rows_attend_each_other},
        {"qkv writes ring rows", test_qkv_writes_ring_rows},
        {"stored entries have the bytes of the quantisers",
         test_stored_entries_have_the_bytes_of_the_quantisers},
        {"pooling weights tokens by their gates", test_pooling_weights_tokens_by_their_gates},
        {"index score formula", test_index_score_formula},
        {"selection equals a plain search", test_selection_equals_a_plain_search},
        {"ring keeps the last rows of a long chunk", test_ring_keeps_the_last_rows_of_a_long_chunk},
        {"rows may go into the ring at once", test_rows_may_go_into_the_ring_at_once},
        {"steps of any size and forgotten drafts give the same bits",
         test_steps_of_any_size_and_forgotten_drafts_give_the_same_bits},
    };
    struct CMUnitTest tests[64];
    int n = 0;

    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        n = for_every_host_backend(tests, n, all[i].name, all[i].test);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_attention_in_f32);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_steps_of_any_size_in_f32);
    return _cmocka_run_group_tests("state", tests, (size_t)n, NULL, NULL);
}
