/* Instances of the row-wise operations. Sizes of a case, beside what its comment in op_cases.h
 * says: gather             cols of the table, k copies rope_rows          rope keep_rows cols of a
 * row of f32 engram_gather      dim of a table row, k rows side by side engram_apply       hc, dim
 *   hc, tap            hc, dim
 *   quantize           cols
 *   qkv                cols = q rank, dim, rope
 *   route              n_experts, k
 *   experts            n_experts, k, dim = hidden, inter
 *   confidence         dim, cols = rank
 *   sample, logprobs   out = vocabulary, k = n_top */
#include "kernels/op_internal.h"

#include <stdio.h>
#include <string.h>

#include "formats/scalar.h"

#define TABLE_ROWS 101

/* The case's copies of a weight, before any other weight of it; returns the first. */
static weight *op_weights(op_inst *o, const char *field, weight_kind kind, int64_t rows,
                          int64_t cols)
{
    weight *first =
        op_weight(o, field, kind, rows, cols, o->c->op == OP_LINEAR && o->c->flags & OP_TWO_PARTS);
    char name[32];

    DI_CHECK(o->n_weights == 1);
    for (int i = 1; i < o->c->copies; i++) {
        snprintf(name, sizeof name, "%s %d", field, i);
        op_weight(o, name, kind, rows, cols, o->c->op == OP_LINEAR && o->c->flags & OP_TWO_PARTS);
    }
    return first;
}

/* out act [n][cols] of which row i is item i. */
static void *output_rows(op_inst *o, const char *name, op_out_kind kind, int64_t cols)
{
    size_t bytes = kind == OUT_Q8          ? o->k->ops->q8_row_bytes(o->k, (int)cols)
                   : kind == OUT_RING_ROWS ? o->layout.ring_row_bytes
                                           : (size_t)cols * 4;
    void *data = op_dev(o, (size_t)o->n * bytes);

    op_add_output(o, (op_output){.name = name, .kind = kind, .data = data, .cols = cols});
    return data;
}

static void *act_rows(op_inst *o, const char *field, int64_t cols, float scale)
{
    return op_dev_act(o, op_host_rows(o, field, o->item, o->n, cols, scale), o->n * cols);
}

static void *q8_rows(op_inst *o, const char *field, int64_t cols)
{
    return op_dev_q8(o, op_host_rows(o, field, o->item, o->n, cols, 1.0f), o->n, cols);
}

static float *f32_rows(op_inst *o, const char *field, int64_t cols, float mean, float spread)
{
    float *x = op_host(o, (size_t)o->n * (size_t)cols, sizeof *x);

    for (int i = 0; i < o->n; i++) {
        op_rng rng = op_rng_of(o->c, field, o->item[i]);

        for (int64_t j = 0; j < cols; j++)
            x[i * cols + j] = mean + spread * op_normal(&rng);
    }
    return op_dev_copy(o, x, (size_t)o->n * (size_t)cols * sizeof *x);
}

/* Every fifth item lies in an image. */
static uint8_t *image_flags(op_inst *o)
{
    uint8_t *image = op_host(o, (size_t)o->n, 1);

    for (int i = 0; i < o->n; i++)
        image[i] = o->item[i] % 5 == 3;
    return op_dev_copy(o, image, (size_t)o->n);
}

static void build_gather(op_inst *o)
{
    const op_case *c = o->c;
    int32_t *ids = op_host(o, (size_t)o->n, sizeof *ids);
    const uint16_t **vectors = op_host(o, (size_t)o->n, sizeof *vectors);
    size_t bytes = (size_t)o->n * (size_t)c->cols * sizeof(uint16_t);
    uint16_t *own = op_host(o, bytes, 1), *device;

    for (int i = 0; i < o->n; i++) {
        op_rng rng = op_rng_of(c, "id", o->item[i]);

        ids[i] = op_below(&rng, TABLE_ROWS);
        for (int64_t j = 0; j < c->cols; j++)
            own[(int64_t)i * c->cols + j] = bf16_from_f32(op_normal(&rng));
    }
    device = op_dev_copy(o, own, bytes);
    for (int i = 0; i < o->n; i++)
        vectors[i] = o->item[i] % 5 == 3 ? device + (int64_t)i * c->cols : NULL;
    o->args.gather = (gather_args){
        .table = op_weight(o, "table", WEIGHT_BF16_TABLE, TABLE_ROWS, c->cols, false),
        .n = o->n,
        .copies = c->k,
        .ids = op_dev_copy(o, ids, (size_t)o->n * sizeof *ids),
        .vectors = op_dev_copy(o, vectors, (size_t)o->n * sizeof *vectors),
        .out = output_rows(o, "out", OUT_ACT, (int64_t)c->k * c->cols),
    };
}

static void build_rope_rows(op_inst *o)
{
    int half = o->c->rope / 2;
    int64_t *pos = op_host(o, (size_t)o->n, sizeof *pos);
    float *freq = op_host(o, (size_t)half, sizeof *freq), f = 1.0f;

    for (int i = 0; i < half; i++, f *= 0.7f)
        freq[i] = f;
    for (int i = 0; i < o->n; i++) {
        op_rng rng = op_rng_of(o->c, "pos", o->item[i]);

        pos[i] = o->item[i] == 0 ? 0 : op_below(&rng, 1 << 20);
    }
    o->args.rope_rows = (rope_rows_args){
        .n = o->n,
        .half = half,
        .pos = op_dev_copy(o, pos, (size_t)o->n * sizeof *pos),
        .freq = op_dev_copy(o, freq, (size_t)half * sizeof *freq),
        .cs = output_rows(o, "cs", OUT_F32, o->c->rope),
    };
}

/* Item i is row 2i + 1 of twice as many. */
static void build_keep_rows(op_inst *o)
{
    size_t n = (size_t)o->n, cols = (size_t)o->c->cols;
    float *want = op_host_rows(o, "row", o->item, o->n, o->c->cols, 1.0f);
    float *all = op_host(o, 2 * n * cols, sizeof *all);
    int32_t *rows = op_host(o, n, sizeof *rows);

    for (size_t i = 0; i < n; i++) {
        rows[i] = (int32_t)(2 * i + 1);
        memset(all + 2 * i * cols, 0x55, cols * sizeof *all);
        memcpy(all + (2 * i + 1) * cols, want + i * cols, cols * sizeof *all);
    }
    o->args.keep_rows = (keep_rows_args){.n = o->n,
                                         .row_bytes = cols * sizeof *all,
                                         .rows = op_dev_copy(o, rows, n * sizeof *rows),
                                         .buf = op_dev_copy(o, all, 2 * n * cols * sizeof *all)};
    op_add_output(
        o, (op_output){
               .name = "rows", .kind = OUT_F32, .data = o->args.keep_rows.buf, .cols = o->c->cols});
}

static void build_engram_gather(op_inst *o)
{
    const op_case *c = o->c;
    int64_t *ids = op_host(o, (size_t)o->n * (size_t)c->k, sizeof *ids);

    for (int i = 0; i < o->n; i++) {
        op_rng rng = op_rng_of(c, "id", o->item[i]);

        for (int j = 0; j < c->k; j++)
            ids[i * c->k + j] = op_below(&rng, TABLE_ROWS);
    }
    o->args.engram_gather = (engram_gather_args){
        .table = op_weight(o, "table", WEIGHT_FP8_TABLE, TABLE_ROWS, c->dim, false),
        .n = o->n,
        .n_cols = c->k,
        .ids = op_dev_copy(o, ids, (size_t)o->n * (size_t)c->k * sizeof *ids),
        .out_q8 = output_rows(o, "out_q8", OUT_Q8, (int64_t)c->k * c->dim),
    };
}

static void build_engram_apply(op_inst *o)
{
    int64_t hc = o->c->hc, dim = o->c->dim;
    float *x = act_rows(o, "x", hc * dim, 1.0f);

    op_add_output(o, (op_output){.name = "x", .kind = OUT_ACT, .data = x, .cols = hc * dim});
    o->args.engram_apply = (engram_apply_args){
        .n = o->n,
        .hc = (int)hc,
        .dim = (int)dim,
        .eps = 1e-20f,
        .x = x,
        .kv = act_rows(o, "kv", (hc + 1) * dim, 1.0f),
        .q_w = op_weight(o, "q_weight", WEIGHT_VEC_BF16, hc, dim, false),
        .k_w = op_weight(o, "k_weight", WEIGHT_VEC_BF16, hc, dim, false),
        .image = image_flags(o),
        .gate = output_rows(o, "gate", OUT_F32, hc),
    };
}

/* Stream rows in falling order of the instance's items: row i of the output reads row n-1-i. */
static int32_t *reversed(op_inst *o)
{
    int32_t *rows = op_host(o, (size_t)o->n, sizeof *rows);

    for (int i = 0; i < o->n / 2; i++) {
        int t = o->item[i];

        o->item[i] = o->item[o->n - 1 - i];
        o->item[o->n - 1 - i] = t;
    }
    for (int i = 0; i < o->n; i++)
        rows[i] = o->n - 1 - i;
    return op_dev_copy(o, rows, (size_t)o->n * sizeof *rows);
}

static void build_hc(op_inst *o)
{
    const op_case *c = o->c;
    int64_t hc = c->hc, dim = c->dim, n_mix = (2 + hc) * hc;
    hc_args *a = &o->args.hc;

    *a = (hc_args){
        .n = o->n, .hc = c->hc, .dim = c->dim, .eps = 1e-20f, .hc_eps = 1e-6f, .iters = 20};
    if (c->flags & OP_HC_MIX)
        a->fn = op_weights(o, "fn", WEIGHT_F32, n_mix, hc * dim);
    if (c->flags & OP_HC_ROWS)
        a->rows = reversed(o);
    a->x = act_rows(o, "x", hc * dim, 1.0f);
    a->post = f32_rows(o, "post", hc, 1.0f, 0.3f);
    a->comb = f32_rows(o, "comb", hc * hc, 0.25f, 0.1f);
    a->pre_in = f32_rows(o, "pre", hc, 0.5f, 0.2f);
    if (c->flags & OP_HC_EXPAND) {
        a->y = act_rows(o, "y", dim, 1.0f);
        op_add_output(o, (op_output){.name = "x", .kind = OUT_ACT, .data = a->x, .cols = hc * dim});
    }
    if (c->flags & OP_HC_MIX) {
        a->base = op_weight(o, "base", WEIGHT_VEC_F32, 1, n_mix, false);
        a->scale = op_weight(o, "scale", WEIGHT_VEC_F32, 1, 3, false);
        a->pre_out = output_rows(o, "pre", OUT_F32, hc);
        a->post_out = output_rows(o, "post", OUT_F32, hc);
        a->comb_out = (float *)a->comb; /* the same memory is allowed */
        op_add_output(
            o, (op_output){.name = "comb", .kind = OUT_F32, .data = a->comb, .cols = hc * hc});
    }
    if (c->flags & OP_HC_COLLAPSE) {
        a->norm = op_weight(o, "norm", WEIGHT_VEC_BF16, 1, dim, false);
        a->collapsed = output_rows(o, "collapsed", OUT_ACT, dim);
        a->out = output_rows(o, "out", OUT_ACT, dim);
        a->out_q8 = output_rows(o, "out_q8", OUT_Q8, dim);
    }
    if (a->rows)
        reversed(o); /* item[i] is again the item of output row i */
}

static void build_tap(op_inst *o)
{
    const op_case *c = o->c;
    int64_t stride = 3 * (int64_t)c->dim;

    o->args.tap = (tap_args){
        .n = o->n,
        .hc = c->hc,
        .dim = c->dim,
        .x = act_rows(o, "x", (int64_t)c->hc * c->dim, 1.0f),
        .out = output_rows(o, "out", OUT_ACT, stride),
        .out_stride = stride,
    };
}

static void build_quantize(op_inst *o)
{
    o->args.quantize = (quantize_args){
        .n = o->n,
        .cols = o->c->cols,
        .x = act_rows(o, "x", o->c->cols, 1.0f),
        .q8 = output_rows(o, "q8", OUT_Q8, o->c->cols),
    };
}

static void build_linear(op_inst *o)
{
    const op_case *c = o->c;
    int64_t groups = c->groups > 1 ? c->groups : 1;
    bool q8 = c->kind == WEIGHT_FP8 && !(c->flags & OP_X_IS_ACT);
    op_out_kind kind = c->to == LINEAR_ACT ? OUT_ACT : c->to == LINEAR_F32 ? OUT_F32 : OUT_Q8;

    o->args.linear = (linear_args){
        .w = op_weights(o, "w", c->kind, c->out, c->cols),
        .n = o->n,
        .groups = c->groups,
        .x_is_act = c->flags & OP_X_IS_ACT,
        .accumulate = c->flags & OP_ACCUMULATE,
        .out = c->to,
        .x = q8 ? q8_rows(o, "x", groups * c->cols) : act_rows(o, "x", groups * c->cols, 1.0f),
        .y = output_rows(o, "y", kind, c->out),
    };
    if (c->flags & OP_ACCUMULATE) {
        float *before = op_host_rows(o, "y", o->item, o->n, c->out, 1.0f);

        o->k->ops->put(o->k, o->args.linear.y, before,
                       (size_t)o->n * (size_t)c->out * sizeof *before);
    }
}

static void build_qkv(op_inst *o)
{
    const op_case *c = o->c;
    const int ratio = 1;

    kv_layout_init(&o->layout, o->k->kv, c->dim, 32, 128, 5, 1, &ratio, 1);
    o->args.qkv = (qkv_args){
        .n = o->n,
        .q_rank = c->cols,
        .dim = c->dim,
        .rope = c->rope,
        .eps = 1e-20f,
        .qkv = act_rows(o, "qkv", c->cols + c->dim, 1.0f),
        .q_norm = c->cols ? op_weight(o, "q_norm", WEIGHT_VEC_BF16, 1, c->cols, false) : NULL,
        .kv_norm = op_weight(o, "kv_norm", WEIGHT_VEC_BF16, 1, c->dim, false),
        .cs = op_cs(o, o->item, o->n, c->rope),
        .layout = &o->layout,
        .qr_q8 = c->cols ? output_rows(o, "qr_q8", OUT_Q8, c->cols) : NULL,
        .kv_rows = output_rows(o, "kv_rows", OUT_RING_ROWS, c->dim),
    };
}

static void build_route(op_inst *o)
{
    const op_case *c = o->c;

    o->args.route = (route_args){
        .n = o->n,
        .n_experts = c->n_experts,
        .k = c->k,
        .normalize = !(c->flags & OP_HC_ROWS),
        .scale = 1.5f,
        .logits = f32_rows(o, "logits", c->n_experts, 0.0f, 3.0f),
        .bias = op_weight(o, "bias", WEIGHT_VEC_F32, 1, c->n_experts, false),
        .bias_vl = op_weight(o, "bias_vl", WEIGHT_VEC_F32, 1, c->n_experts, false),
        .image = image_flags(o),
        .ids = output_rows(o, "ids", OUT_I32, c->k),
        .weights = output_rows(o, "weights", OUT_F32, c->k),
    };
}

/* k distinct experts per row; items that are even prefer the first few, so that groups differ. In
 * the benchmark one row after the other takes the next k. */
static int32_t *expert_ids(op_inst *o)
{
    const op_case *c = o->c;
    int32_t *ids = op_host(o, (size_t)o->n * (size_t)c->k, sizeof *ids);

    for (int i = 0; i < o->n; i++) {
        op_rng rng = op_rng_of(c, "ids", o->item[i]);
        int range = o->item[i] % 2 == 0 && c->n_experts > 2 * c->k ? 2 * c->k : c->n_experts;

        for (int j = 0; j < c->k; j++) {
            bool taken = !(c->flags & OP_BENCH);

            ids[i * c->k + j] = (i * c->k + j) % c->n_experts;

            while (taken) {
                ids[i * c->k + j] = op_below(&rng, range);
                taken = false;
                for (int t = 0; t < j; t++)
                    taken |= ids[i * c->k + t] == ids[i * c->k + j];
            }
        }
    }
    o->ids = ids;
    return op_dev_copy(o, ids, (size_t)o->n * (size_t)c->k * sizeof *ids);
}

static weight *load_experts(op_inst *o)
{
    const op_case *c = o->c;
    size_t n = (size_t)c->n_experts;
    fp4_part *w1 = op_source(o, n, sizeof *w1), *w3 = op_source(o, n, sizeof *w3);
    fp4_part *w2 = op_source(o, n, sizeof *w2);
    experts_src src = {.name = c->name,
                       .n_experts = c->n_experts,
                       .hidden = c->dim,
                       .inter = c->inter,
                       .w1 = w1,
                       .w3 = w3,
                       .w2 = w2,
                       .shared_w1 = op_fp8_part(o, "shared w1", c->inter, c->dim),
                       .shared_w3 = op_fp8_part(o, "shared w3", c->inter, c->dim),
                       .shared_w2 = op_fp8_part(o, "shared w2", c->dim, c->inter)};
    weight *w = NULL;

    for (int e = 0; e < c->n_experts; e++) {
        w1[e] = op_fp4_part(o, "w1", e, c->inter, c->dim);
        w3[e] = op_fp4_part(o, "w3", e, c->inter, c->dim);
        w2[e] = op_fp4_part(o, "w2", e, c->dim, c->inter);
    }
    DI_CHECK(o->k->ops->load_experts(o->k, &src, &w, NULL) == DI_OK);
    return op_take_weight(o, w);
}

static void build_experts(op_inst *o)
{
    const op_case *c = o->c;
    weight *w = op_borrowed(o);
    route_args *route = NULL;

    if (!w)
        w = load_experts(o);
    if (c->flags & OP_AT_ONCE) {
        route = op_host(o, 1, sizeof *route);
        build_route(o);
        *route = o->args.route;
    }
    o->args.experts = (experts_args){
        .w = w,
        .n = o->n,
        .k = c->k,
        .limit = 10.0f,
        .x_q8 = q8_rows(o, "x", c->dim),
        .ids = route ? route->ids : expert_ids(o),
        .weights = route ? route->weights : f32_rows(o, "weights", c->k, 0.4f, 0.1f),
        .route = route,
        .y = output_rows(o, "y", OUT_ACT, c->dim),
    };
}

static void build_confidence(op_inst *o)
{
    const op_case *c = o->c;

    o->args.confidence = (confidence_args){
        .n = o->n,
        .dim = c->dim,
        .rank = c->cols,
        .h = act_rows(o, "h", c->dim, 1.0f),
        .e = act_rows(o, "e", c->cols, 1.0f),
        .w = op_weight(o, "w", WEIGHT_BF16, 1, c->dim + c->cols, false),
        .out = output_rows(o, "out", OUT_F32, 1),
    };
}

/* Items walk through the kinds of sampling; the last few have equal logits somewhere. */
static sample_row sampling(op_inst *o, int item)
{
    static const sample_row kinds[] = {
        {.temperature = 0, .top_p = 1},
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.7f, .top_p = 0.9f},
        {.temperature = 1, .top_p = 1, .top_k = 40},
        {.temperature = 1.5f, .top_p = 1, .min_p = 0.05f},
        {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20, .min_p = 0.01f},
        {.temperature = 1, .top_p = 0.5f, .top_k = 1},
        {.temperature = 100, .top_p = 0.3f},
    };
    sample_row r = kinds[(size_t)item % ARRAY_LEN(kinds)];
    int vocab = o->c->out;
    op_rng rng = op_rng_of(o->c, "sampling", item);

    r.seed = 77 + (uint64_t)item;
    r.choice = (uint32_t)item % 3;
    r.position = (int64_t)item * 1000003;
    if (item % 3 == 1) {
        uint32_t *mask = op_host(o, (size_t)vocab / 32 + 1, sizeof *mask);

        for (int i = 0; i <= vocab / 32; i++)
            mask[i] = op_u32(&rng) & op_u32(&rng);
        mask[vocab / 64] |= 1;
        if (item % 24 == 22) /* nothing is allowed */
            memset(mask, 0, ((size_t)vocab / 32 + 1) * sizeof *mask);
        r.mask = mask;
    }
    if (item % 4 == 2) {
        logit_adjust *adj = op_host(o, 4, sizeof *adj);

        r.adjust = adj;
        for (int id = item % 5; r.n_adjust < 4 && id < vocab; id += 1 + vocab / 7)
            adj[r.n_adjust++] = (logit_adjust){.id = id, .rep = 1.2f, .add = op_normal(&rng) * 2};
    }
    return r;
}

/* Logits with a few large ones; every fourth item is coarse, so that there are ties. Where all rows
 * sample alike they have the spread of a language model's: most far below a few. */
static float *logits(op_inst *o)
{
    int vocab = o->c->out, rare = o->c->row ? 8191 : 50;
    float *x = op_host(o, (size_t)o->n * (size_t)vocab, sizeof *x), up = o->c->row ? 10 : 5;

    for (int i = 0; i < o->n; i++) {
        op_rng rng = op_rng_of(o->c, "logits", o->item[i]);

        for (int t = 0; t < vocab; t++) {
            float l = op_normal(&rng) * 3;

            if (op_below(&rng, rare) == 0)
                l += up;
            x[(int64_t)i * vocab + t] = o->item[i] % 4 == 3 && !o->c->row ? (float)(int)l : l;
        }
    }
    return op_dev_copy(o, x, (size_t)o->n * (size_t)vocab * sizeof *x);
}

static void build_sample(op_inst *o)
{
    sample_row *row = op_host(o, (size_t)o->n, sizeof *row);

    for (int i = 0; i < o->n; i++) {
        row[i] = o->c->row ? *o->c->row : sampling(o, o->item[i]);
        if (o->c->row)
            row[i].seed = (uint64_t)o->item[i];
    }
    o->args.sample = (sample_args){
        .n = o->n,
        .vocab = o->c->out,
        .logits = logits(o),
        .row = row,
        .token = output_rows(o, "token", OUT_I32, 1),
    };
}

static void build_logprobs(op_inst *o)
{
    const op_case *c = o->c;
    int32_t *token = op_host(o, (size_t)o->n, sizeof *token);

    for (int i = 0; i < o->n; i++) {
        op_rng rng = op_rng_of(c, "token", o->item[i]);

        token[i] = op_below(&rng, c->out);
    }
    o->args.logprobs = (logprobs_args){
        .n = o->n,
        .vocab = c->out,
        .n_top = c->k,
        .logits = logits(o),
        .token = op_dev_copy(o, token, (size_t)o->n * sizeof *token),
        .logprob = output_rows(o, "logprob", OUT_F32, 1),
        .rank = output_rows(o, "rank", OUT_I32, 1),
        .top_id = output_rows(o, "top_id", OUT_I32, c->k),
        .top_logprob = output_rows(o, "top_logprob", OUT_F32, c->k),
    };
}

void op_build_rows(op_inst *o)
{
    static void (*const build[OP_COUNT])(op_inst *) = {
        [OP_GATHER] = build_gather,
        [OP_ROPE_ROWS] = build_rope_rows,
        [OP_KEEP_ROWS] = build_keep_rows,
        [OP_ENGRAM_GATHER] = build_engram_gather,
        [OP_ENGRAM_APPLY] = build_engram_apply,
        [OP_HC] = build_hc,
        [OP_TAP] = build_tap,
        [OP_QUANTIZE] = build_quantize,
        [OP_LINEAR] = build_linear,
        [OP_QKV] = build_qkv,
        [OP_ROUTE] = build_route,
        [OP_EXPERTS] = build_experts,
        [OP_CONFIDENCE] = build_confidence,
        [OP_SAMPLE] = build_sample,
        [OP_LOGPROBS] = build_logprobs,
    };

    DI_CHECK(build[o->c->op]);
    build[o->c->op](o);
}
