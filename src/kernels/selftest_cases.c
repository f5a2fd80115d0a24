/* What the selftest computes: operations on rows and on sequences, with data that depend on the
 * number of a row only. */
#include "kernels/selftest_internal.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "formats/quant.h"
#include "formats/scalar.h"

#define HIDDEN   256
#define WIDE     96
#define INTER    128
#define EXPERTS  8
#define ACTIVE   2
#define HC       4
#define VOCAB    1000
#define TOP      5
#define HEADS    4
#define HEAD_DIM 512
#define ROPE     64
#define IDX_DIM  128
#define TOPK     40
#define CONTEXT  512

/* ---- data ---- */

typedef struct stream {
    uint32_t key;
    uint32_t n;
} stream;

static stream stream_of(uint32_t field, int item)
{
    return (stream){.key = field * 1000003u + (uint32_t)item};
}

static uint32_t next_u32(stream *s)
{
    return philox4x32((philox_block){{s->n++, 0, 0, 0}}, s->key, 1).v[0];
}

/* Sum of four uniforms: near enough to a normal variable of variance 1. */
static float next_normal(stream *s)
{
    philox_block b = philox4x32((philox_block){{s->n++, 1, 0, 0}}, s->key, 1);
    float sum = 0;

    for (int i = 0; i < 4; i++)
        sum += (float)(b.v[i] >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.7320508f;
}

static void *host(selftest_env *e, size_t count, size_t size)
{
    void *p = arena_alloc(e->mem, count, size);

    if (!p)
        e->failed = true;
    return p;
}

static void *dev(selftest_env *e, size_t bytes)
{
    void *p;

    DI_CHECK(e->n_dev < (int)ARRAY_LEN(e->dev));
    p = e->k->ops->buf_new(e->k, bytes);
    if (!p)
        e->failed = true;
    e->dev[e->n_dev++] = p;
    return p;
}

static void *dev_copy(selftest_env *e, const void *data, size_t bytes)
{
    void *p = dev(e, bytes);

    if (p && data)
        e->k->ops->put(e->k, p, data, bytes);
    return p;
}

static float *rows(selftest_env *e, uint32_t field, int first, int n, int cols)
{
    float *x = host(e, (size_t)n * (size_t)cols, sizeof *x);

    for (int i = 0; x && i < n; i++) {
        stream s = stream_of(field, first + i);

        for (int j = 0; j < cols; j++)
            x[i * cols + j] = bf16_round(next_normal(&s));
    }
    return x;
}

static void *act(selftest_env *e, uint32_t field, int first, int n, int cols)
{
    float *x = rows(e, field, first, n, cols);
    void *p = dev(e, (size_t)n * (size_t)cols * sizeof(float));

    if (x && p)
        e->k->ops->put_act(e->k, p, x, (size_t)n * (size_t)cols);
    return p;
}

static void *f32(selftest_env *e, uint32_t field, int first, int n, int cols)
{
    float *x = rows(e, field, first, n, cols);

    return dev_copy(e, x, (size_t)n * (size_t)cols * sizeof *x);
}

static void *q8(selftest_env *e, uint32_t field, int first, int n, int cols)
{
    void *x = act(e, field, first, n, cols);
    void *y = dev(e, (size_t)n * e->k->ops->q8_row_bytes(e->k, cols));

    if (x && y)
        e->k->ops->quantize(e->k, &(quantize_args){.n = n, .cols = cols, .x = x, .q8 = y});
    return y;
}

/* ---- weights ---- */

static uint8_t *bytes(selftest_env *e, uint32_t field, size_t n, bool e4m3)
{
    uint8_t *b = host(e, n, 1);
    stream s = stream_of(field, 0);

    for (size_t i = 0; b && i < n; i++) {
        b[i] = (uint8_t)next_u32(&s);
        if (e4m3 && (b[i] & 0x7Fu) == 0x7Fu) /* NaN */
            b[i] = 0;
    }
    return b;
}

static uint8_t *scales(selftest_env *e, uint32_t field, size_t n, int base)
{
    uint8_t *b = host(e, n, 1);
    stream s = stream_of(field, 1);

    for (size_t i = 0; b && i < n; i++)
        b[i] = (uint8_t)(base + (int)(next_u32(&s) % 5) - 2);
    return b;
}

static weight_part fp8(selftest_env *e, uint32_t field, int n, int cols)
{
    return (weight_part){.data = bytes(e, field, (size_t)n * (size_t)cols, true),
                         .scale =
                             scales(e, field, (size_t)(n + 31) / 32 * (size_t)(cols / 32), 117),
                         .rows = n};
}

static void load(selftest_env *e, uint32_t field, weight_kind kind, int n, int cols)
{
    size_t count = (size_t)n * (size_t)cols;
    weight_src src = {.name = "selftest", .kind = kind, .cols = cols, .n_parts = 1};
    float *x = rows(e, field, 0, n, cols);
    uint16_t *b = host(e, count, sizeof *b);

    for (size_t i = 0; x && b && i < count; i++)
        b[i] = bf16_from_f32(x[i]);
    if (kind == WEIGHT_FP8)
        src.part[0] = fp8(e, field, n, cols);
    else if (kind == WEIGHT_F32 || kind == WEIGHT_VEC_F32)
        src.part[0] = (weight_part){.data = x, .rows = n};
    else
        src.part[0] = (weight_part){.data = b, .rows = n};
    if (e->failed || e->k->ops->load(e->k, &src, &e->w[e->n_weights], e->st) != DI_OK)
        e->failed = true;
    else
        e->n_weights++;
}

static void get_act(selftest_env *e, const void *from, int n, int cols, float *y)
{
    e->k->ops->get_act(e->k, y, from, (size_t)n * (size_t)cols);
}

static void get_f32(selftest_env *e, const void *from, int n, int cols, float *y)
{
    e->k->ops->get(e->k, y, from, (size_t)n * (size_t)cols * sizeof *y);
}

static void get_i32(selftest_env *e, const void *from, int n, int cols, float *y)
{
    int32_t *v = host(e, (size_t)n * (size_t)cols, sizeof *v);

    if (!v)
        return;
    e->k->ops->get(e->k, v, from, (size_t)n * (size_t)cols * sizeof *v);
    for (int i = 0; i < n * cols; i++)
        y[i] = (float)v[i];
}

/* ---- rows ---- */

static void fp8_setup(selftest_env *e)
{
    load(e, 1, WEIGHT_FP8, WIDE, HIDDEN);
}

static void linear(selftest_env *e, void *x, linear_out to, int n, float *y)
{
    void *out = dev(e, (size_t)n * WIDE * sizeof *y);

    if (e->failed)
        return;
    e->k->ops->linear(e->k, &(linear_args){.w = e->w[0], .n = n, .out = to, .x = x, .y = out});
    if (to == LINEAR_ACT)
        get_act(e, out, n, WIDE, y);
    else
        get_f32(e, out, n, WIDE, y);
}

static void fp8_run(selftest_env *e, int first, int n, float *y)
{
    linear(e, q8(e, 2, first, n, HIDDEN), LINEAR_ACT, n, y);
}

static void bf16_setup(selftest_env *e)
{
    load(e, 3, WEIGHT_BF16, WIDE, HIDDEN);
}

static void bf16_run(selftest_env *e, int first, int n, float *y)
{
    linear(e, act(e, 4, first, n, HIDDEN), LINEAR_F32, n, y);
}

static fp4_part fp4(selftest_env *e, uint32_t field, int n, int cols)
{
    return (fp4_part){.data = bytes(e, field, (size_t)n * (size_t)cols / 2, false),
                      .scale = scales(e, field, (size_t)n * (size_t)cols / 32, 121)};
}

static void experts_setup(selftest_env *e)
{
    fp4_part w1[EXPERTS], w3[EXPERTS], w2[EXPERTS];
    experts_src src = {.name = "selftest",
                       .n_experts = EXPERTS,
                       .hidden = HIDDEN,
                       .inter = INTER,
                       .w1 = w1,
                       .w3 = w3,
                       .w2 = w2,
                       .shared_w1 = fp8(e, 5, INTER, HIDDEN),
                       .shared_w3 = fp8(e, 6, INTER, HIDDEN),
                       .shared_w2 = fp8(e, 7, HIDDEN, INTER)};

    for (uint32_t i = 0; i < EXPERTS; i++) {
        w1[i] = fp4(e, 100 + i, INTER, HIDDEN);
        w3[i] = fp4(e, 200 + i, INTER, HIDDEN);
        w2[i] = fp4(e, 300 + i, HIDDEN, INTER);
    }
    if (e->failed || e->k->ops->load_experts(e->k, &src, &e->w[0], e->st) != DI_OK)
        e->failed = true;
    else
        e->n_weights = 1;
}

static void experts_run(selftest_env *e, int first, int n, float *y)
{
    int32_t *ids = host(e, (size_t)n * ACTIVE, sizeof *ids);
    float *weights = host(e, (size_t)n * ACTIVE, sizeof *weights);
    void *x = q8(e, 8, first, n, HIDDEN), *out = dev(e, (size_t)n * HIDDEN * sizeof *y);

    for (int i = 0; !e->failed && i < n; i++)
        for (int j = 0; j < ACTIVE; j++) {
            ids[i * ACTIVE + j] = (first + i + 3 * j) % EXPERTS;
            weights[i * ACTIVE + j] = 0.4f + 0.1f * (float)j;
        }
    ids = dev_copy(e, ids, (size_t)n * ACTIVE * sizeof *ids);
    weights = dev_copy(e, weights, (size_t)n * ACTIVE * sizeof *weights);
    if (e->failed)
        return;
    e->k->ops->experts(e->k, &(experts_args){.w = e->w[0],
                                             .n = n,
                                             .k = ACTIVE,
                                             .limit = 10.0f,
                                             .x_q8 = x,
                                             .ids = ids,
                                             .weights = weights,
                                             .y = out});
    get_act(e, out, n, HIDDEN, y);
}

static void hc_setup(selftest_env *e)
{
    load(e, 9, WEIGHT_F32, (2 + HC) * HC, HC * HIDDEN);
    load(e, 10, WEIGHT_VEC_F32, 1, (2 + HC) * HC);
    load(e, 11, WEIGHT_VEC_F32, 1, 3);
    load(e, 12, WEIGHT_VEC_BF16, 1, HIDDEN);
}

static void hc_run(selftest_env *e, int first, int n, float *y)
{
    hc_args a = {.n = n,
                 .hc = HC,
                 .dim = HIDDEN,
                 .eps = 1e-20f,
                 .hc_eps = 1e-6f,
                 .iters = 20,
                 .x = act(e, 13, first, n, HC * HIDDEN),
                 .y = act(e, 14, first, n, HIDDEN),
                 .post = f32(e, 15, first, n, HC),
                 .comb = f32(e, 16, first, n, HC * HC),
                 .pre_in = f32(e, 17, first, n, HC),
                 .pre_out = dev(e, (size_t)n * HC * sizeof *y),
                 .post_out = dev(e, (size_t)n * HC * sizeof *y),
                 .comb_out = dev(e, (size_t)n * HC * HC * sizeof *y),
                 .out = dev(e, (size_t)n * HIDDEN * sizeof *y)};

    if (e->failed)
        return;
    a.fn = e->w[0];
    a.base = e->w[1];
    a.scale = e->w[2];
    a.norm = e->w[3];
    e->k->ops->hc(e->k, &a);
    get_act(e, a.out, n, HIDDEN, y);
}

static void engram_setup(selftest_env *e)
{
    load(e, 18, WEIGHT_VEC_BF16, HC, HIDDEN);
    load(e, 19, WEIGHT_VEC_BF16, HC, HIDDEN);
}

static void engram_run(selftest_env *e, int first, int n, float *y)
{
    void *x = act(e, 20, first, n, HC * HIDDEN), *kv = act(e, 21, first, n, (HC + 1) * HIDDEN);

    if (e->failed)
        return;
    e->k->ops->engram_apply(e->k, &(engram_apply_args){.n = n,
                                                       .hc = HC,
                                                       .dim = HIDDEN,
                                                       .eps = 1e-20f,
                                                       .x = x,
                                                       .kv = kv,
                                                       .q_w = e->w[0],
                                                       .k_w = e->w[1]});
    get_act(e, x, n, HC * HIDDEN, y);
}

static void route_setup(selftest_env *e)
{
    load(e, 22, WEIGHT_VEC_F32, 1, EXPERTS);
}

static void route_run(selftest_env *e, int first, int n, float *y)
{
    void *logits = f32(e, 23, first, n, EXPERTS);
    int32_t *ids = dev(e, (size_t)n * ACTIVE * sizeof *ids);
    float *weights = dev(e, (size_t)n * ACTIVE * sizeof *weights);
    float part[2][SELFTEST_ROWS * ACTIVE];

    if (e->failed)
        return;
    e->k->ops->route(e->k, &(route_args){.n = n,
                                         .n_experts = EXPERTS,
                                         .k = ACTIVE,
                                         .normalize = true,
                                         .scale = 1.5f,
                                         .logits = logits,
                                         .bias = e->w[0],
                                         .ids = ids,
                                         .weights = weights});
    get_i32(e, ids, n, ACTIVE, part[0]);
    get_f32(e, weights, n, ACTIVE, part[1]);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < ACTIVE; j++) {
            y[i * 2 * ACTIVE + j] = part[0][i * ACTIVE + j];
            y[i * 2 * ACTIVE + ACTIVE + j] = part[1][i * ACTIVE + j];
        }
}

static void no_setup(selftest_env *e)
{
    (void)e;
}

static void sample_run(selftest_env *e, int first, int n, float *y)
{
    static const sample_row kinds[] = {
        {.temperature = 0, .top_p = 1},
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.7f, .top_p = 0.9f},
        {.temperature = 1.5f, .top_p = 1, .top_k = 40, .min_p = 0.02f},
    };
    sample_row row[SELFTEST_ROWS];
    void *logits = f32(e, 24, first, n, VOCAB);
    int32_t *token = dev(e, (size_t)n * sizeof *token);

    for (int i = 0; i < n; i++) {
        row[i] = kinds[(size_t)(first + i) % ARRAY_LEN(kinds)];
        row[i].seed = 77 + (uint64_t)(first + i);
        row[i].position = 1000 * (int64_t)(first + i);
    }
    if (e->failed)
        return;
    e->k->ops->sample(
        e->k, &(sample_args){.n = n, .vocab = VOCAB, .logits = logits, .row = row, .token = token});
    get_i32(e, token, n, 1, y);
}

static void logprobs_run(selftest_env *e, int first, int n, float *y)
{
    void *logits = f32(e, 25, first, n, VOCAB);
    int32_t *token = host(e, (size_t)n, sizeof *token);
    logprobs_args a = {.n = n,
                       .vocab = VOCAB,
                       .n_top = TOP,
                       .logits = logits,
                       .logprob = dev(e, (size_t)n * sizeof(float)),
                       .rank = dev(e, (size_t)n * sizeof(int32_t)),
                       .top_id = dev(e, (size_t)n * TOP * sizeof(int32_t)),
                       .top_logprob = dev(e, (size_t)n * TOP * sizeof(float))};

    for (int i = 0; token && i < n; i++)
        token[i] = (first + i) * 31 % VOCAB;
    a.token = dev_copy(e, token, (size_t)n * sizeof *token);
    if (e->failed)
        return;
    e->k->ops->logprobs(e->k, &a);
    get_f32(e, a.top_logprob, n, TOP, y);
}

/* ---- sequences: row i is the next token of sequence i ---- */

typedef struct seqs {
    step s;
    kv_layout layout;
    int n;
} seqs;

static int64_t seq_len(int item)
{
    return 150 + 17 * item;
}

/* The state of a sequence in its packed formats. */
static void fill_state(selftest_env *e, const kv_layout *l, const kv_view *v, int item)
{
    float *x = host(e, HEAD_DIM, sizeof *x);
    stream s = stream_of(30, item);
    int64_t first = v->len > l->ring_rows ? v->len - l->ring_rows : 0;

    for (int64_t p = first; x && p < v->len; p++) {
        for (int i = 0; i < HEAD_DIM; i++)
            x[i] = bf16_round(next_normal(&s));
        q8_encode(kv_ring(l, v, 0, p), kv_ring(l, v, 0, p) + HEAD_DIM, x, HEAD_DIM);
    }
    for (int64_t t = 0; x && t <= v->len; t++) {
        for (int i = 0; i < HEAD_DIM; i++)
            x[i] = bf16_round(next_normal(&s));
        q4c_encode(kv_latent(l, v, 0, t), kv_latent(l, v, 0, t) + HEAD_DIM / 2, x, HEAD_DIM);
        q4i_encode(kv_key(l, v, 0, t), kv_key(l, v, 0, t) + IDX_DIM / 2, x, IDX_DIM);
    }
}

static bool make_seqs(selftest_env *e, seqs *q, int first, int n)
{
    const int ratio = 1, n_blocks = CONTEXT / KV_BLOCK_TOKENS;
    size_t state;
    int32_t table[CONTEXT / KV_BLOCK_TOKENS], row0[SELFTEST_ROWS + 1], seq[SELFTEST_ROWS];
    int64_t pos[SELFTEST_ROWS];
    kv_view view[SELFTEST_ROWS];
    uint8_t *image, *all;
    void *tables;

    kv_layout_init(&q->layout, e->k->kv, HEAD_DIM, IDX_DIM, 128, 5, 1, &ratio, 1);
    state = q->layout.fixed_bytes + (size_t)n_blocks * q->layout.block_bytes;
    image = host(e, state, 1);
    all = dev(e, (size_t)n * state);
    for (int b = 0; b < n_blocks; b++)
        table[b] = n_blocks - 1 - b;
    tables = dev_copy(e, table, sizeof table);
    for (int i = 0; !e->failed && i < n; i++) {
        kv_view v = {.fixed = image,
                     .blocks = image + q->layout.fixed_bytes,
                     .table = table,
                     .len = seq_len(first + i)};
        uint8_t *to = all + (size_t)i * state;

        memset(image, 0, state);
        fill_state(e, &q->layout, &v, first + i);
        e->k->ops->put(e->k, to, image, state);
        view[i] = v;
        view[i].fixed = to;
        view[i].blocks = to + q->layout.fixed_bytes;
        view[i].table = tables;
        row0[i] = seq[i] = i;
        pos[i] = v.len;
    }
    row0[n] = n;
    if (e->failed)
        return false;
    q->n = n;
    q->s = (step){.n_rows = n,
                  .n_seqs = n,
                  .row0 = dev_copy(e, row0, ((size_t)n + 1) * sizeof *row0),
                  .seq = dev_copy(e, seq, (size_t)n * sizeof *seq),
                  .pos = dev_copy(e, pos, (size_t)n * sizeof *pos),
                  .view = dev_copy(e, view, (size_t)n * sizeof *view)};
    return !e->failed;
}

/* cos and sin of some angles: [n][ROPE] */
static float *angles(selftest_env *e, int first, int n)
{
    float *x = host(e, (size_t)n * ROPE, sizeof *x);

    for (int i = 0; x && i < n; i++)
        for (int j = 0; j < ROPE / 2; j++) {
            float angle = (float)(first + i) * 0.1f + (float)j * 0.3f;

            x[i * ROPE + 2 * j] = cosf(angle);
            x[i * ROPE + 2 * j + 1] = sinf(angle);
        }
    return dev_copy(e, x, (size_t)n * ROPE * sizeof *x);
}

static void attention_setup(selftest_env *e)
{
    load(e, 31, WEIGHT_VEC_F32, 1, HEADS);
}

static void attention_run(selftest_env *e, int first, int n, float *y)
{
    seqs q;
    int32_t sel[SELFTEST_ROWS * TOPK], n_sel[SELFTEST_ROWS];
    float *x = rows(e, 32, first, n, HEAD_DIM);
    uint8_t *kv;
    attention_args a;

    if (!make_seqs(e, &q, first, n) || !x)
        return;
    kv = host(e, (size_t)n, q.layout.ring_row_bytes);
    for (int i = 0; kv && i < n; i++) {
        uint8_t *row = kv + (size_t)i * q.layout.ring_row_bytes;

        q8_encode(row, row + HEAD_DIM, x + (size_t)i * HEAD_DIM, HEAD_DIM);
        n_sel[i] = TOPK - (first + i) % 8;
        for (int t = 0; t < n_sel[i]; t++)
            sel[i * TOPK + t] = 3 * t + (first + i) % 3;
    }
    a = (attention_args){.s = &q.s,
                         .layout = &q.layout,
                         .n_heads = HEADS,
                         .rope = ROPE,
                         .scale = 0.044194174f, /* 512^-0.5 */
                         .q = act(e, 33, first, n, HEADS * HEAD_DIM),
                         .cs = angles(e, first, n),
                         .kv_rows = dev_copy(e, kv, (size_t)n * q.layout.ring_row_bytes),
                         .sel = dev_copy(e, sel, (size_t)n * TOPK * sizeof *sel),
                         .n_sel = dev_copy(e, n_sel, (size_t)n * sizeof *n_sel),
                         .topk = TOPK,
                         .o = dev(e, (size_t)n * HEADS * HEAD_DIM * sizeof *y)};
    if (e->failed)
        return;
    a.sink = e->w[0];
    e->k->ops->attention(e->k, &a);
    get_act(e, a.o, n, HEADS * HEAD_DIM, y);
}

static void scores_run(selftest_env *e, int first, int n, float *y)
{
    seqs q;
    index_scores_args a;

    if (!make_seqs(e, &q, first, n))
        return;
    a = (index_scores_args){.s = &q.s,
                            .layout = &q.layout,
                            .heads = HEADS,
                            .rope = ROPE,
                            .n = n,
                            .topk = TOPK,
                            .iq = act(e, 34, first, n, HEADS * IDX_DIM),
                            .iw = act(e, 35, first, n, HEADS),
                            .cs = angles(e, first, n),
                            .scores = dev(e, (size_t)n * CONTEXT * sizeof *y),
                            .stride = CONTEXT};
    if (e->failed)
        return;
    e->k->ops->index_scores(e->k, &a);
    get_f32(e, a.scores, n, CONTEXT, y);
    for (int i = 0; i < n; i++) /* behind the visible entries nothing is defined */
        for (int64_t t = seq_len(first + i) + 1; t < CONTEXT; t++)
            y[(int64_t)i * CONTEXT + t] = 0;
}

/* Selection from given scores: equal scores go to the lower entry, so every back end agrees. */
static void select_run(selftest_env *e, int first, int n, float *y)
{
    seqs q;
    select_args a;
    float *x = rows(e, 36, first, n, CONTEXT);

    if (!make_seqs(e, &q, first, n) || !x)
        return;
    for (int i = 0; i < n * CONTEXT; i++)
        x[i] = floorf(x[i] * 8);
    a = (select_args){.s = &q.s,
                      .layout = &q.layout,
                      .n = n,
                      .topk = TOPK,
                      .scores = dev_copy(e, x, (size_t)n * CONTEXT * sizeof *x),
                      .stride = CONTEXT,
                      .sel = dev(e, (size_t)n * TOPK * sizeof(int32_t)),
                      .n_sel = dev(e, (size_t)n * sizeof(int32_t))};
    if (e->failed)
        return;
    e->k->ops->select(e->k, &a);
    get_i32(e, a.sel, n, TOPK, y);
}

/* Limits: a bf16 result may be off by a step of the largest element; f32 sums differ in their order
 * only; ids are equal. */
const selftest_case selftest_cases[] = {
    {"FP8 linear", WIDE, 3e-2, fp8_setup, fp8_run},
    {"BF16 linear", WIDE, 1e-4, bf16_setup, bf16_run},
    {"FP4 experts", HIDDEN, 5e-2, experts_setup, experts_run},
    {"hyper-connections", HIDDEN, 3e-2, hc_setup, hc_run},
    {"Engram", HC *HIDDEN, 3e-2, engram_setup, engram_run},
    {"router", 2 * ACTIVE, 1e-4, route_setup, route_run},
    {"index scores", CONTEXT, 1e-4, no_setup, scores_run},
    {"selection", TOPK, 0, no_setup, select_run},
    {"sparse attention", HEADS *HEAD_DIM, 5e-2, attention_setup, attention_run},
    {"sampling", 1, 0, no_setup, sample_run},
    {"log-probabilities", TOP, 1e-4, no_setup, logprobs_run},
};

const int selftest_n_cases = (int)ARRAY_LEN(selftest_cases);

kernel_limits selftest_limits(void)
{
    return (kernel_limits){.n_rows = SELFTEST_ROWS,
                           .n_logit_rows = SELFTEST_ROWS,
                           .hidden = HIDDEN,
                           .hc = HC,
                           .n_heads = HEADS,
                           .head_dim = HEAD_DIM,
                           .window = 128,
                           .max_linear_cols = SELFTEST_MAX_COLS,
                           .moe_inter = INTER,
                           .n_experts = EXPERTS,
                           .n_active = ACTIVE,
                           .index_heads = HEADS,
                           .index_dim = IDX_DIM,
                           .index_topk = TOPK,
                           .cand_blocks = 16,
                           .cand_block = 8,
                           .context = CONTEXT,
                           .vocab = VOCAB};
}
