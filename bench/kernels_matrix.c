/* Linear layers and experts: GEMV at one row, GEMM at many. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kernels_data.h"

#define HIDDEN    5120
#define INTER     2304
#define N_EXPERTS 64
#define N_ROWS    512

const kernel_limits data_limits = {
    .n_rows = N_ROWS,
    .n_logit_rows = 4,
    .hidden = HIDDEN,
    .hc = 4,
    .n_heads = 64,
    .head_dim = 512,
    .window = 128,
    .max_linear_cols = 8192,
    .moe_inter = INTER,
    .n_experts = 384,
    .n_active = 48,
    .index_heads = 32,
    .index_dim = 128,
    .index_topk = 512,
    .cand_blocks = 2048,
    .cand_block = 8,
    .context = 1 << 18,
    .vocab = 129280,
};

void data_bytes(void *out, size_t n, uint32_t seed)
{
    uint8_t *to = out;
    uint64_t x = 0x9E3779B97F4A7C15u * (seed + 1u);

    for (size_t i = 0; i < n; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(to + i, &x, n - i < 8 ? n - i : 8);
    }
}

/* E4M3 codes without NaN. */
static void data_e4m3(uint8_t *out, size_t n, uint32_t seed)
{
    data_bytes(out, n, seed);
    for (size_t i = 0; i < n; i++)
        out[i] = (out[i] & 0x7F) == 0x7F ? 0 : out[i];
}

/* Scale bytes around 2^-10. */
static void data_scales(uint8_t *out, size_t n, uint32_t seed)
{
    data_bytes(out, n, seed);
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(114 + out[i] % 6);
}

void data_act(kernels *k, void *act, size_t n, uint32_t seed)
{
    float *f = bench_alloc(n * sizeof *f);
    uint8_t *u = bench_alloc(4 * n);

    data_bytes(u, 4 * n, seed);
    for (size_t i = 0; i < n; i++)
        f[i] = (float)(u[4 * i] + u[4 * i + 1] + u[4 * i + 2] + u[4 * i + 3] - 510) / 128.0f;
    k->ops->put_act(k, act, f, n);
    mem_free(f);
    mem_free(u);
}

/* One linear over a set of equal weights, so that the caches do not hold them. */
typedef struct linear_case {
    kernels *k;
    weight **w;
    int n_weights;
    linear_args args;
    char text[64];
} linear_case;

static void run_linear(void *arg)
{
    linear_case *c = arg;

    for (int i = 0; i < c->n_weights; i++) {
        c->args.w = c->w[i];
        c->k->ops->linear(c->k, &c->args);
    }
}

static void add_linear(bench *b, kernels *k, const char *name, const char *what, weight **w,
                       int n_weights, int64_t rows, int64_t cols, int n, double bytes)
{
    linear_case *c = bench_alloc(sizeof *c);
    void *x = k->ops->buf_new(k, (size_t)(n * cols) * 2);
    void *y = k->ops->buf_new(k, (size_t)(n * rows) * 2);

    data_act(k, x, (size_t)(n * cols), 7);
    k->ops->quantize(k, &(quantize_args){.n = n, .cols = (int)cols, .x = x, .q8 = x});
    *c = (linear_case){.k = k,
                       .w = w,
                       .n_weights = n_weights,
                       .args = {.n = n, .out = LINEAR_ACT, .x = x, .y = y}};
    snprintf(c->text, sizeof c->text, "%s %lldx%lld %d row%s", what, (long long)rows,
             (long long)cols, n, n > 1 ? "s" : "");
    if (bytes > 0)
        bench_rate(b, name, c->text, bytes * n_weights, CEILING_READ, run_linear, c);
    else
        bench_rate(b, name, c->text, 2.0 * (double)(rows * cols) * n * n_weights, CEILING_BF16,
                   run_linear, c);
}

static weight **make_fp8(kernels *k, int n_weights, int64_t rows, int64_t cols)
{
    weight **w = bench_alloc((size_t)n_weights * sizeof(weight *));
    uint8_t *codes = bench_alloc((size_t)(rows * cols)), *scales;
    di_status st = {0};

    scales = bench_alloc((size_t)(rows * cols / 1024));
    for (int i = 0; i < n_weights; i++) {
        weight_src src = {.name = "fp8",
                          .kind = WEIGHT_FP8,
                          .cols = cols,
                          .n_parts = 1,
                          .part = {{.data = codes, .scale = scales, .rows = rows}}};

        data_e4m3(codes, (size_t)(rows * cols), (uint32_t)i);
        data_scales(scales, (size_t)(rows * cols / 1024), (uint32_t)i);
        bench_check(k->ops->load(k, &src, &w[i], &st), &st);
    }
    mem_free(codes);
    mem_free(scales);
    return w;
}

static void fp8_shape(bench *b, kernels *k, const char *what, int n_weights, int64_t rows,
                      int64_t cols)
{
    weight **w = make_fp8(k, n_weights, rows, cols);

    add_linear(b, k, "fp8_gemv", what, w, n_weights, rows, cols, 1, (double)(rows * cols));
    add_linear(b, k, "fp8_gemm", what, w, 1, rows, cols, 16, 0);
    add_linear(b, k, "fp8_gemm", what, w, 1, rows, cols, N_ROWS, 0);
}

void bench_linears(bench *b, kernels *k)
{
    if (bench_wants(b, "fp8_gemv") || bench_wants(b, "fp8_gemm")) {
        fp8_shape(b, k, "wq_b", 16, 32768, 1280);
        fp8_shape(b, k, "wo_b", 16, 5120, 8192);
        fp8_shape(b, k, "wq_a+wkv", 64, 1792, 5120);
    }
    if (bench_wants(b, "bf16_gemv") || bench_wants(b, "bf16_gemm")) {
        const int64_t rows = 129280, cols = HIDDEN;
        uint16_t *data = bench_alloc((size_t)(rows * cols) * 2);
        weight **w = bench_alloc(sizeof(weight *));
        di_status st = {0};

        data_bytes(data, (size_t)(rows * cols) * 2, 3);
        for (int64_t i = 0; i < rows * cols; i++) /* exponents of 2^-8 .. 2^-1 */
            data[i] = (uint16_t)((data[i] & 0x83FFu) | 0x3C00u);
        bench_check(k->ops->load(k,
                                 &(weight_src){.name = "head",
                                               .kind = WEIGHT_BF16,
                                               .cols = cols,
                                               .n_parts = 1,
                                               .part = {{.data = data, .rows = rows}}},
                                 &w[0], &st),
                    &st);
        mem_free(data);
        add_linear(b, k, "bf16_gemv", "head", w, 1, rows, cols, 1, (double)(rows * cols) * 2);
        add_linear(b, k, "bf16_gemm", "head", w, 1, rows, cols, 16, 0);
    }
}

typedef struct experts_case {
    kernels *k;
    experts_args args;
    int32_t *ids;
    int shift; /* the experts move on with every call */
    char text[64];
} experts_case;

static void run_experts(void *arg)
{
    experts_case *c = arg;
    int n = c->args.n * c->args.k;

    for (int i = 0; i < n; i++)
        c->ids[i] = (c->shift + i) % N_EXPERTS;
    c->shift = (c->shift + n) % N_EXPERTS;
    c->k->ops->experts(c->k, &c->args);
}

static void add_experts(bench *b, kernels *k, const weight *w, int n, int active)
{
    experts_case *c = bench_alloc(sizeof *c);
    size_t slots = (size_t)n * (size_t)active;
    void *x = k->ops->buf_new(k, (size_t)n * HIDDEN * 2);
    float *weights = bench_alloc(slots * sizeof(float));
    const double one = 3.0 * HIDDEN * INTER; /* parameters of an expert */

    data_act(k, x, (size_t)n * HIDDEN, 9);
    k->ops->quantize(k, &(quantize_args){.n = n, .cols = HIDDEN, .x = x, .q8 = x});
    for (size_t i = 0; i < slots; i++)
        weights[i] = 0.25f;
    *c = (experts_case){.k = k, .ids = bench_alloc(slots * sizeof(int32_t))};
    c->args = (experts_args){.w = w,
                             .n = n,
                             .k = active,
                             .limit = 10.0f,
                             .x_q8 = x,
                             .ids = c->ids,
                             .weights = weights,
                             .y = k->ops->buf_new(k, (size_t)n * HIDDEN * 2)};
    if (n == 1) {
        snprintf(c->text, sizeof c->text, "1 row, %d of %d experts and the shared", active,
                 N_EXPERTS);
        bench_rate(b, "fp4_gemv", c->text, one * (active * 17.0 / 32 + 1), CEILING_READ,
                   run_experts, c);
    } else {
        snprintf(c->text, sizeof c->text, "%d rows, %.0f per expert, and the shared", n,
                 (double)n * active / N_EXPERTS);
        bench_rate(b, "fp4_gemm", c->text, 2 * one * n * (active + 1), CEILING_BF16, run_experts,
                   c);
    }
}

/* The released routed experts of a layer, 64 of the 384. */
void bench_experts(bench *b, kernels *k)
{
    const size_t codes = (size_t)HIDDEN * INTER / 2, scales = (size_t)HIDDEN * INTER / 32;
    fp4_part part[3][N_EXPERTS];
    experts_src src = {.name = "experts",
                       .n_experts = N_EXPERTS,
                       .hidden = HIDDEN,
                       .inter = INTER,
                       .w1 = part[0],
                       .w3 = part[1],
                       .w2 = part[2]};
    weight_part *shared[3] = {&src.shared_w1, &src.shared_w3, &src.shared_w2};
    uint8_t *data, *tile;
    weight *w;
    di_status st = {0};

    if (!bench_wants(b, "fp4_gemv") && !bench_wants(b, "fp4_gemm"))
        return;
    data = bench_alloc((codes + scales) * N_EXPERTS * 3);
    for (size_t i = 0; i < (size_t)N_EXPERTS * 3; i++) {
        uint8_t *p = data + i * (codes + scales);

        data_bytes(p, codes, (uint32_t)i);
        data_scales(p + codes, scales, (uint32_t)i);
        part[i % 3][i / 3] = (fp4_part){.data = p, .scale = p + codes};
    }
    tile = bench_alloc(3 * (2 * codes + scales));
    for (size_t i = 0; i < 3; i++) {
        uint8_t *p = tile + i * (2 * codes + scales);

        data_e4m3(p, 2 * codes, (uint32_t)i);
        data_scales(p + 2 * codes, scales, (uint32_t)i);
        *shared[i] =
            (weight_part){.data = p, .scale = p + 2 * codes, .rows = i == 2 ? HIDDEN : INTER};
    }
    bench_check(k->ops->load_experts(k, &src, &w, &st), &st);
    mem_free(data);
    mem_free(tile);
    add_experts(b, k, w, 1, 6);
    add_experts(b, k, w, 1, 48);
    add_experts(b, k, w, 6, 6);
    add_experts(b, k, w, 171, 6);
    add_experts(b, k, w, N_ROWS, 6);
}
