/* Instances of cases: data, device memory, running and fetching. */
#include "kernels/op_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "formats/quant.h"
#include "formats/scalar.h"

const char *op_name(op_kind op)
{
    static const char *const name[OP_COUNT] = {
        "gather",       "rope_rows", "keep_rows",     "engram_gather",
        "engram_apply", "hc",        "tap",           "quantize",
        "linear",       "qkv",       "compress_pool", "compress_store",
        "index_scores", "select",    "attention",     "ring_commit",
        "route",        "experts",   "confidence",    "sample",
        "logprobs",
    };

    return name[op];
}

op_rng op_rng_of(const op_case *c, const char *field, int item)
{
    op_rng r = {.key = c->seed * 0x9E3779B97F4A7C15u + (uint64_t)item};

    for (; *field; field++)
        r.key = (r.key ^ (uint8_t)*field) * 0x100000001B3u;
    return r;
}

/* splitmix64 */
uint32_t op_u32(op_rng *r)
{
    uint64_t z = r->key + ++r->n * 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

int op_below(op_rng *r, int n)
{
    return (int)((uint64_t)op_u32(r) * (uint64_t)n >> 32);
}

/* Sum of four uniforms, scaled to variance 1: close enough to normal. */
float op_normal(op_rng *r)
{
    float sum = 0;

    for (int i = 0; i < 4; i++)
        sum += (float)(op_u32(r) >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.7320508f;
}

void *op_host(op_inst *o, size_t count, size_t size)
{
    void *p = arena_alloc(o->host, count + 1, size);

    DI_CHECK(p);
    return p;
}

void *op_source(op_inst *o, size_t count, size_t size)
{
    void *p = arena_alloc(o->source, count + 1, size);

    DI_CHECK(p);
    return p;
}

void *op_dev(op_inst *o, size_t bytes)
{
    void *zero = calloc(1, bytes + 64), *p = o->k->ops->buf_new(o->k, bytes + 64);

    DI_CHECK(zero && p && o->n_bufs < OP_MAX_BUFS);
    o->buf[o->n_bufs++] = p;
    o->k->ops->put(o->k, p, zero, bytes + 64);
    free(zero);
    return p;
}

void *op_dev_copy(op_inst *o, const void *host, size_t bytes)
{
    void *p = op_dev(o, bytes);

    o->k->ops->put(o->k, p, host, bytes);
    return p;
}

/* Items 4..7 of every 8 are unusual in cases with OP_EXTREMES. */
static float extreme(float x, int item, int64_t column)
{
    switch (item % 8) {
    case 4:
        return column % 37 == 5 ? x * 300.0f : x;
    case 5:
        return 0.0f;
    case 6:
        return x * 1000.0f;
    case 7:
        return x * 1e-5f;
    default:
        return x;
    }
}

float *op_host_rows(op_inst *o, const char *field, const int *item, int64_t n, int64_t cols,
                    float scale)
{
    float *x = op_host(o, (size_t)(n * cols), sizeof *x);

    for (int64_t r = 0; r < n; r++) {
        op_rng rng = op_rng_of(o->c, field, item[r]);

        for (int64_t i = 0; i < cols; i++) {
            float v = op_normal(&rng) * scale;

            x[r * cols + i] = bf16_round(o->c->flags & OP_EXTREMES ? extreme(v, item[r], i) : v);
        }
    }
    return x;
}

void *op_dev_act(op_inst *o, const float *host, int64_t n)
{
    void *p = op_dev(o, (size_t)n * 4);

    o->k->ops->put_act(o->k, p, host, (size_t)n);
    return p;
}

void *op_dev_q8(op_inst *o, const float *host, int64_t n, int64_t cols)
{
    void *x = op_dev_act(o, host, n * cols);
    void *q8 = op_dev(o, (size_t)n * o->k->ops->q8_row_bytes(o->k, (int)cols));
    quantize_args a = {.n = (int)n, .cols = (int)cols, .x = x, .q8 = q8};

    o->k->ops->quantize(o->k, &a);
    return q8;
}

weight *op_borrowed(op_inst *o)
{
    weight *w;

    if (!o->donor)
        return NULL;
    DI_CHECK(o->n_weights < o->donor->n_weights);
    w = o->donor->weight[o->n_weights];
    o->weight[o->n_weights++] = w;
    return w;
}

weight *op_take_weight(op_inst *o, weight *w)
{
    DI_CHECK(o->n_weights < OP_MAX_WEIGHTS);
    o->weight[o->n_weights++] = w;
    return w;
}

static void fill_bytes(op_rng *rng, uint8_t *byte, int64_t n)
{
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t u = op_u32(rng);

        memcpy(byte + i, &u, n - i < 4 ? (size_t)(n - i) : 4);
    }
}

/* E4M3 codes of all kinds but NaN; scales so that products with rows of size 1 stay near 1, and now
 * and then the smallest scale there is. */
weight_part op_fp8_part(op_inst *o, const char *field, int64_t rows, int64_t cols)
{
    op_rng rng = op_rng_of(o->c, field, 0);
    int64_t n_scales = (rows + 31) / 32 * ((cols + 31) / 32);
    uint8_t *code = op_source(o, (size_t)(rows * cols), 1),
            *scale = op_source(o, (size_t)n_scales, 1);
    int base = 127 - 6 - (int)lround(log2((double)cols) / 2);

    fill_bytes(&rng, code, rows * cols);
    for (int64_t i = 0; i < rows * cols; i++)
        if ((code[i] & 0x7Fu) == 0x7Fu) /* NaN */
            code[i] = 0;
    for (int64_t i = 0; i < n_scales; i++)
        scale[i] = (uint8_t)(base + op_below(&rng, 5) - 2);
    if (o->c->flags & OP_EXTREMES)
        scale[n_scales / 2] = 0;
    return (weight_part){.data = code, .scale = scale, .rows = rows};
}

fp4_part op_fp4_part(op_inst *o, const char *field, int e, int64_t rows, int64_t cols)
{
    op_rng rng = op_rng_of(o->c, field, e);
    uint8_t *code = op_source(o, (size_t)(rows * cols / 2), 1);
    uint8_t *scale = op_source(o, (size_t)(rows * cols / 32), 1);
    int base = 127 - 2 - (int)lround(log2((double)cols) / 2);

    fill_bytes(&rng, code, rows * cols / 2);
    for (int64_t i = 0; i < rows * cols / 32; i++)
        scale[i] = (uint8_t)(base + op_below(&rng, 5) - 2);
    return (fp4_part){.data = code, .scale = scale};
}

/* In hundreds of millions: random bits, with exponents of 2^-8 .. 2^-1. */
static void fill_bf16(op_rng *rng, uint16_t *x, int64_t n)
{
    fill_bytes(rng, (uint8_t *)x, 2 * n);
    for (int64_t i = 0; i < n; i++)
        x[i] = (uint16_t)((x[i] & 0x83FFu) | 0x3C00u);
}

static weight_part bf16_part(op_inst *o, const char *field, int64_t rows, int64_t cols, float mean,
                             float spread)
{
    op_rng rng = op_rng_of(o->c, field, 0);
    uint16_t *x = op_source(o, (size_t)(rows * cols), sizeof *x);

    if (o->c->flags & OP_BENCH && rows > 1)
        fill_bf16(&rng, x, rows * cols);
    else
        for (int64_t i = 0; i < rows * cols; i++)
            x[i] = bf16_from_f32(mean + spread * op_normal(&rng));
    return (weight_part){.data = x, .rows = rows};
}

static weight_part f32_part(op_inst *o, const char *field, int64_t rows, int64_t cols, float spread)
{
    op_rng rng = op_rng_of(o->c, field, 0);
    float *x = op_source(o, (size_t)(rows * cols), sizeof *x);

    for (int64_t i = 0; i < rows * cols; i++)
        x[i] = spread * op_normal(&rng);
    return (weight_part){.data = x, .rows = rows};
}

static weight_part table_part(op_inst *o, const char *field, int64_t rows, int64_t cols)
{
    op_rng rng = op_rng_of(o->c, field, 0);
    weight_part p = op_fp8_part(o, field, rows, cols);
    uint8_t *scale = op_source(o, (size_t)(rows * cols / 32), 1);

    for (int64_t i = 0; i < rows * cols / 32; i++)
        scale[i] = (uint8_t)(119 + op_below(&rng, 9));
    p.scale = scale;
    return p;
}

static weight_part part_of(op_inst *o, const char *field, weight_kind kind, int64_t rows,
                           int64_t cols)
{
    float spread = 1.0f / sqrtf((float)cols);

    switch (kind) {
    case WEIGHT_VEC_BF16:
        return bf16_part(o, field, rows, cols, 1.0f, 0.3f);
    case WEIGHT_VEC_F32:
        return f32_part(o, field, rows, cols, 0.5f);
    case WEIGHT_F32:
        return f32_part(o, field, rows, cols, spread);
    case WEIGHT_BF16:
        return bf16_part(o, field, rows, cols, 0.0f, spread);
    case WEIGHT_BF16_TABLE:
        return bf16_part(o, field, rows, cols, 0.0f, 1.0f);
    case WEIGHT_FP8:
        return op_fp8_part(o, field, rows, cols);
    case WEIGHT_FP8_TABLE:
        return table_part(o, field, rows, cols);
    }
    return (weight_part){0};
}

weight *op_weight(op_inst *o, const char *field, weight_kind kind, int64_t rows, int64_t cols,
                  bool two_parts)
{
    int64_t first = two_parts ? rows / 64 * 32 : rows;
    weight_src src = {.name = field, .kind = kind, .cols = cols, .n_parts = 1 + two_parts};
    weight *w = op_borrowed(o);

    if (w)
        return w;
    src.part[0] = part_of(o, field, kind, first, cols);
    if (two_parts)
        src.part[1] = part_of(o, "second part", kind, rows - first, cols);
    DI_CHECK(o->k->ops->load(o->k, &src, &w, NULL) == DI_OK);
    return op_take_weight(o, w);
}

float *op_cs(op_inst *o, const int *item, int64_t n, int rope)
{
    float *cs = op_host(o, (size_t)(n * rope), sizeof *cs);

    for (int64_t r = 0; r < n; r++) {
        op_rng rng = op_rng_of(o->c, "angle", item[r]);

        for (int i = 0; i < rope / 2; i++) {
            float angle = (float)op_below(&rng, 6283) * 0.001f;

            cs[r * rope + 2 * i] = cosf(angle);
            cs[r * rope + 2 * i + 1] = sinf(angle);
        }
    }
    return op_dev_copy(o, cs, (size_t)(n * rope) * sizeof *cs);
}

void op_add_output(op_inst *o, op_output out)
{
    DI_CHECK(o->n_outputs < OP_MAX_OUTPUTS);
    o->output[o->n_outputs++] = out;
}

bool op_is_sequence(op_kind op)
{
    return op == OP_COMPRESS_POOL || op == OP_COMPRESS_STORE || op == OP_INDEX_SCORES ||
           op == OP_SELECT || op == OP_ATTENTION || op == OP_RING_COMMIT;
}

static op_inst *build(kernels *k, const op_case *c, const int *item, int n, op_inst *donor)
{
    op_inst *o = calloc(1, sizeof *o);

    DI_CHECK(o);
    *o = (op_inst){
        .k = k, .c = c, .n = n, .donor = donor, .host = arena_new(0), .source = arena_new(0)};
    DI_CHECK(o->host && o->source);
    o->item = op_host(o, (size_t)n, sizeof *o->item);
    for (int i = 0; i < n; i++)
        o->item[i] = item ? item[i] : i;
    if (op_is_sequence(c->op))
        op_build_sequences(o);
    else
        op_build_rows(o);
    DI_CHECK(k->ops->finish(k, NULL) == DI_OK);
    return o;
}

op_inst *op_new(kernels *k, const op_case *c, const int *item, int n)
{
    return build(k, c, item, n, NULL);
}

op_inst *op_new_sharing(kernels *k, const op_case *c, op_inst *donor)
{
    DI_CHECK(!donor || op_same_weights(donor->c, c));
    return build(k, c, NULL, c->items, donor);
}

bool op_same_weights(const op_case *donor, const op_case *c)
{
    const int parts = OP_TWO_PARTS | OP_EXTREMES;

    return (c->op == OP_LINEAR || c->op == OP_EXPERTS) && donor->op == c->op &&
           donor->kind == c->kind && donor->seed == c->seed && donor->cols == c->cols &&
           donor->out == c->out && donor->dim == c->dim && donor->inter == c->inter &&
           donor->n_experts == c->n_experts && donor->copies >= c->copies &&
           (donor->flags & parts) == (c->flags & parts);
}

void op_drop_sources(op_inst *o)
{
    arena_free(o->source);
    o->source = NULL;
}

void op_free(op_inst *o)
{
    if (!o)
        return;
    for (int i = 0; i < o->n_weights && !o->donor; i++)
        o->k->ops->unload(o->k, o->weight[i]);
    for (int i = 0; i < o->n_bufs; i++)
        o->k->ops->buf_free(o->k, o->buf[i]);
    arena_free(o->source);
    arena_free(o->host);
    free(o);
}

/* Every row's experts move on by as many as the rows use. */
static void next_experts(op_inst *o)
{
    int n = o->n * o->c->k;

    for (int i = 0; i < n; i++)
        o->ids[i] = (o->ids[i] + n) % o->c->n_experts;
    o->k->ops->put(o->k, (void *)o->args.experts.ids, o->ids, (size_t)n * sizeof *o->ids);
}

void op_next(op_inst *o)
{
    o->turn = o->c->copies > 1 ? (o->turn + 1) % o->c->copies : 0;
    if (o->c->op == OP_LINEAR)
        o->args.linear.w = o->weight[o->turn];
    else if (o->c->op == OP_HC)
        o->args.hc.fn = o->weight[o->turn];
    else if (o->c->op == OP_EXPERTS)
        next_experts(o);
}

int op_n_rows(const op_inst *o)
{
    return op_is_sequence(o->c->op) ? o->s.n_rows : o->n;
}

/* index_scores and select run as two tiles of rows, as a long prompt chunk does. */
static void run_tiles(op_inst *o)
{
    int half = o->s.n_rows / 2;

    for (int tile = 0; tile < 2; tile++) {
        int row0 = tile ? half : 0, n = tile ? o->s.n_rows - half : half;

        if (n == 0)
            continue;
        if (o->c->op == OP_INDEX_SCORES) {
            index_scores_args a = o->args.index_scores;

            a.row0 = row0;
            a.n = n;
            a.scores += row0 * a.stride;
            o->k->ops->index_scores(o->k, &a);
        } else {
            select_args a = o->args.select;

            a.row0 = row0;
            a.n = n;
            a.scores += row0 * a.stride;
            o->k->ops->select(o->k, &a);
        }
    }
}

static void run_once(op_inst *o)
{
    const kernel_ops *ops = o->k->ops;
    kernels *k = o->k;
    op_args *a = &o->args;

    switch (o->c->op) {
    case OP_GATHER:
        ops->gather(k, &a->gather);
        break;
    case OP_ROPE_ROWS:
        ops->rope_rows(k, &a->rope_rows);
        break;
    case OP_KEEP_ROWS:
        ops->keep_rows(k, &a->keep_rows);
        break;
    case OP_ENGRAM_GATHER:
        ops->engram_gather(k, &a->engram_gather);
        break;
    case OP_ENGRAM_APPLY:
        ops->engram_apply(k, &a->engram_apply);
        break;
    case OP_HC:
        ops->hc(k, &a->hc);
        break;
    case OP_TAP:
        ops->tap(k, &a->tap);
        break;
    case OP_QUANTIZE:
        ops->quantize(k, &a->quantize);
        break;
    case OP_LINEAR:
        ops->linear(k, &a->linear);
        break;
    case OP_QKV:
        ops->qkv(k, &a->qkv);
        break;
    case OP_COMPRESS_POOL:
        ops->compress_pool(k, &a->compress_pool);
        break;
    case OP_COMPRESS_STORE:
        ops->compress_store(k, &a->compress_store);
        break;
    case OP_INDEX_SCORES:
    case OP_SELECT:
        run_tiles(o);
        break;
    case OP_ATTENTION:
        ops->attention(k, &a->attention);
        break;
    case OP_RING_COMMIT:
        if (o->c->flags & OP_AT_ONCE)
            ops->qkv(k, &a->qkv);
        else
            ops->ring_commit(k, &a->ring_commit);
        break;
    case OP_ROUTE:
        ops->route(k, &a->route);
        break;
    case OP_EXPERTS:
        ops->experts(k, &a->experts);
        break;
    case OP_CONFIDENCE:
        ops->confidence(k, &a->confidence);
        break;
    case OP_SAMPLE:
        ops->sample(k, &a->sample);
        break;
    case OP_LOGPROBS:
        ops->logprobs(k, &a->logprobs);
        break;
    case OP_COUNT:
        break;
    }
}

void op_run(op_inst *o)
{
    run_once(o);
    DI_CHECK(o->k->ops->finish(o->k, NULL) == DI_OK);
}

int op_n_outputs(const op_inst *o)
{
    return o->n_outputs;
}

op_out_kind op_output_kind(const op_inst *o, int output)
{
    return o->output[output].kind;
}

const char *op_output_name(const op_inst *o, int output)
{
    return o->output[output].name;
}

/* q8 rows as f32: y = x I^T in f32 is the decoded row, exactly. */
static void fetch_q8(op_inst *o, float *y, const void *q8, int64_t n, int64_t cols)
{
    uint8_t *code = calloc((size_t)(cols * cols), 1), *scale = malloc((size_t)(cols * cols / 1024));
    weight_src src = {.name = "identity", .kind = WEIGHT_FP8, .cols = cols, .n_parts = 1};
    float *dev = o->k->ops->buf_new(o->k, (size_t)(n * cols) * sizeof *dev);
    weight *w = NULL;
    linear_args a = {.n = (int)n, .out = LINEAR_F32, .x = q8, .y = dev};

    DI_CHECK(code && scale && dev);
    for (int64_t i = 0; i < cols; i++)
        code[i * cols + i] = 0x38; /* 1.0 */
    memset(scale, 127, (size_t)(cols * cols / 1024));
    src.part[0] = (weight_part){.data = code, .scale = scale, .rows = cols};
    DI_CHECK(o->k->ops->load(o->k, &src, &w, NULL) == DI_OK);
    a.w = w;
    o->k->ops->linear(o->k, &a);
    DI_CHECK(o->k->ops->finish(o->k, NULL) == DI_OK);
    o->k->ops->get(o->k, y, dev, (size_t)(n * cols) * sizeof *y);
    o->k->ops->unload(o->k, w);
    o->k->ops->buf_free(o->k, dev);
    free(code);
    free(scale);
}

/* All rows of an output as f32 [n][cols]. */
static void fetch_rows(op_inst *o, const op_output *out, float *y, int64_t n)
{
    const kernel_ops *ops = o->k->ops;
    size_t count = (size_t)(n * out->cols);

    if (out->kind == OUT_ACT) {
        ops->get_act(o->k, y, out->data, count);
    } else if (out->kind == OUT_F32) {
        ops->get(o->k, y, out->data, count * sizeof *y);
    } else if (out->kind == OUT_Q8) {
        fetch_q8(o, y, out->data, n, out->cols);
    } else if (out->kind == OUT_I32) {
        int32_t *id = malloc(count * sizeof *id + 1);

        DI_CHECK(id);
        ops->get(o->k, id, out->data, count * sizeof *id);
        for (size_t i = 0; i < count; i++)
            y[i] = (float)id[i];
        free(id);
    } else {
        uint8_t *row = malloc((size_t)n * o->layout.ring_row_bytes + 1);
        size_t d = (size_t)out->cols;

        DI_CHECK(row);
        ops->get(o->k, row, out->data, (size_t)n * o->layout.ring_row_bytes);
        for (int64_t i = 0; i < n; i++) {
            const uint8_t *from = row + (size_t)i * o->layout.ring_row_bytes;

            if (o->layout.format == KV_F32)
                memcpy(y + (size_t)i * d, from, d * sizeof *y);
            else
                q8_decode(y + (size_t)i * d, from, from + d, d);
        }
        free(row);
    }
}

/* What lies behind the defined elements reads as 0. */
static void clear_undefined(op_inst *o, const op_output *out, float *y, int64_t n)
{
    int32_t *defined = malloc((size_t)n * sizeof *defined + 1);

    DI_CHECK(defined);
    o->k->ops->get(o->k, defined, out->defined, (size_t)n * sizeof *defined);
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = defined[r] > 0 ? defined[r] : 0; i < out->cols; i++)
            y[r * out->cols + i] = 0;
    free(defined);
}

float *op_fetch(op_inst *o, int output, int64_t *width)
{
    const op_output *out = &o->output[output];
    int64_t n_rows = out->first ? out->first[o->n] : o->n, most = 1;
    float *rows, *y;

    if (out->kind == OUT_STATE)
        return op_fetch_state(o, width);
    rows = calloc((size_t)(n_rows * out->cols) + 1, sizeof *rows);
    DI_CHECK(rows);
    fetch_rows(o, out, rows, n_rows);
    if (out->defined)
        clear_undefined(o, out, rows, n_rows);
    for (int i = 0; out->first && i < o->n; i++)
        if (out->first[i + 1] - out->first[i] > most)
            most = out->first[i + 1] - out->first[i];
    *width = most * out->cols;
    y = calloc((size_t)(o->n * *width) + 1, sizeof *y);
    DI_CHECK(y);
    for (int i = 0; i < o->n; i++) {
        int64_t begin = out->first ? out->first[i] : i,
                end = out->first ? out->first[i + 1] : i + 1;

        memcpy(y + i * *width, rows + begin * out->cols,
               (size_t)((end - begin) * out->cols) * sizeof *y);
    }
    free(rows);
    return y;
}
