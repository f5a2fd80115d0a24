/* Operations beside the matrix products: attention, index, selection, hyper-connections, sampling.
 * Those on sequences come from the case table of the tests (tests/kernels/cases.c). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/op_cases.h"
#include "kernels_data.h"

#define HC_WEIGHTS  80 /* mixes of 2 MB: more than the last cache usually holds */
#define HC_ROWS     512
#define SAMPLE_ROWS 8

static void run_instance(void *arg)
{
    op_run(arg);
}

/* An instance of a big case on a back end of its own, whose scratch is that of the case. */
static op_inst *instance(bench *b, op_kind op, const char *name)
{
    kernels_options opt = {
        .backend = "auto", .numerics = NUMERICS_RELEASE, .n_threads = bench_threads(b)};
    kernels *k = NULL;
    di_status st = {0};
    kernel_limits lim;

    for (int i = 0; i < n_op_cases; i++) {
        const op_case *c = &op_cases[i];

        if (c->op != op || strcmp(c->name, name) != 0)
            continue;
        lim = op_limits(c, 1);
        bench_check(kernels_open(&k, &opt, &st), &st);
        bench_check(k->ops->reserve(k, &lim, &st), &st);
        return op_new(k, c, NULL, c->items);
    }
    bench_check(di_fail(&st, DI_E_INTERNAL, "the case \"%s\" is gone", name), &st);
    return NULL;
}

static void bench_sequences(bench *b)
{
    op_inst *o;

    if (bench_wants(b, "attention")) {
        o = instance(b, OP_ATTENTION, "640 keys");
        bench_rate(b, "attention", "64 heads x 512, 128 + 512 keys, 8 rows",
                   op_n_rows(o) * 4.0 * 64 * 512 * 640, CEILING_BF16, run_instance, o);
    }
    if (bench_wants(b, "index_scores")) {
        o = instance(b, OP_INDEX_SCORES, "131072 entries");
        bench_rate(b, "index_scores", "32 heads x 128, 131072 entries, 1 row",
                   2.0 * 32 * 128 * 131072, CEILING_VNNI, run_instance, o);
        o = instance(b, OP_INDEX_SCORES, "16384 entries, chunks");
        bench_rate(b, "index_scores", "32 heads x 128, 16384 entries, chunks",
                   op_n_rows(o) * 2.0 * 32 * 128 * 16384, CEILING_VNNI, run_instance, o);
    }
    if (bench_wants(b, "select"))
        bench_time(b, "select", "512 of 131072, 1 row", 1, 0.15, run_instance,
                   instance(b, OP_SELECT, "512 of 131072"));
}

typedef struct hc_case {
    kernels *k;
    weight **fn;
    int n_fn;
    hc_args args;
} hc_case;

static void run_hc(void *arg)
{
    hc_case *c = arg;

    for (int i = 0; i < c->n_fn; i++) {
        c->args.fn = c->fn[i];
        c->k->ops->hc(c->k, &c->args);
    }
}

static weight *load_f32(kernels *k, weight_kind kind, int64_t rows, int64_t cols)
{
    float *data = bench_alloc((size_t)(rows * cols) * sizeof *data);
    uint8_t *u = bench_alloc((size_t)(rows * cols));
    di_status st = {0};
    weight *w = NULL;

    data_bytes(u, (size_t)(rows * cols), 5);
    for (int64_t i = 0; i < rows * cols; i++)
        data[i] = (float)(u[i] - 128) / 8192.0f;
    bench_check(k->ops->load(k,
                             &(weight_src){.name = "mix",
                                           .kind = kind,
                                           .cols = cols,
                                           .n_parts = 1,
                                           .part = {{.data = data, .rows = rows}}},
                             &w, &st),
                &st);
    return w; /* its data stay, like all data of a case */
}

static void add_hc(bench *b, kernels *k, weight **fn, int n_fn, int n)
{
    const int hidden = data_limits.hidden, hc = data_limits.hc, n_mix = (2 + hc) * hc;
    size_t rows = (size_t)n, copies = (size_t)hc;
    hc_case *c = bench_alloc(sizeof *c);
    float *mix = bench_alloc(rows * (size_t)(n_mix + hc) * sizeof *mix);
    float *post = mix + rows * copies, *comb = post + rows * copies;
    float *pre_in = comb + rows * copies * copies;
    void *y = bench_alloc(rows * (size_t)hidden * 2);
    static uint16_t one[1 << 16];
    weight *norm = NULL;
    di_status st = {0};

    for (int i = 0; i < n * (n_mix + hc); i++)
        mix[i] = 0.25f;
    for (int i = 0; i < hidden; i++)
        one[i] = 0x3F80;
    bench_check(k->ops->load(k,
                             &(weight_src){.name = "norm",
                                           .kind = WEIGHT_VEC_BF16,
                                           .cols = hidden,
                                           .n_parts = 1,
                                           .part = {{.data = one, .rows = 1}}},
                             &norm, &st),
                &st);
    *c = (hc_case){.k = k,
                   .fn = fn,
                   .n_fn = n_fn,
                   .args = {.n = n,
                            .hc = hc,
                            .dim = hidden,
                            .eps = 1e-20f,
                            .hc_eps = 1e-6f,
                            .iters = 20,
                            .x = bench_alloc(rows * (size_t)(hc * hidden) * 2),
                            .y = y,
                            .post = post,
                            .comb = comb,
                            .base = load_f32(k, WEIGHT_VEC_F32, 1, n_mix),
                            .scale = load_f32(k, WEIGHT_VEC_F32, 1, 3),
                            .pre_out = mix,
                            .post_out = post,
                            .comb_out = comb,
                            .pre_in = pre_in,
                            .norm = norm,
                            .out_q8 = bench_alloc(rows * (size_t)hidden * 2)}};
    data_act(k, c->args.x, rows * (size_t)(hc * hidden), 1);
    data_act(k, y, rows * (size_t)hidden, 2);
    if (n == 1)
        bench_rate(b, "hc", "expand, mix, collapse, norm: 1 row", n_fn * 4.0 * n_mix * hc * hidden,
                   CEILING_READ, run_hc, c);
    else
        bench_rate(b, "hc", "expand, mix, collapse, norm: 512 rows", 2.0 * n * n_mix * hc * hidden,
                   CEILING_FMA, run_hc, c);
}

static void bench_hc(bench *b, kernels *k)
{
    int n_mix = (2 + data_limits.hc) * data_limits.hc;
    weight **fn;

    if (!bench_wants(b, "hc"))
        return;
    fn = bench_alloc(HC_WEIGHTS * sizeof(weight *));
    for (int i = 0; i < HC_WEIGHTS; i++)
        fn[i] = load_f32(k, WEIGHT_F32, n_mix, (int64_t)data_limits.hc * data_limits.hidden);
    add_hc(b, k, fn, HC_WEIGHTS, 1);
    add_hc(b, k, fn, 1, HC_ROWS);
}

typedef struct sample_case {
    kernels *k;
    sample_args args;
} sample_case;

static void run_sample(void *arg)
{
    sample_case *c = arg;

    c->k->ops->sample(c->k, &c->args);
}

/* Logits with the spread of a language model's: most far below a few. */
static void fill_logits(float *logit, int64_t n)
{
    uint32_t *u = bench_alloc((size_t)n * sizeof *u);

    data_bytes(u, (size_t)n * sizeof *u, 11);
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;

        for (int j = 0; j < 4; j++)
            sum += (float)(u[i] >> (8 * j) & 255u) / 128.0f - 1.0f;
        logit[i] = 2.0f * sum + (u[i] % 8191 == 0 ? 10.0f : 0.0f);
    }
}

static void add_sample(bench *b, kernels *k, const char *text, sample_row row)
{
    int vocab = data_limits.vocab;
    sample_case *c = bench_alloc(sizeof *c);
    sample_row *rows = bench_alloc(SAMPLE_ROWS * sizeof *rows);
    float *logits = bench_alloc((size_t)vocab * SAMPLE_ROWS * sizeof *logits);

    fill_logits(logits, (int64_t)vocab * SAMPLE_ROWS);
    for (int i = 0; i < SAMPLE_ROWS; i++) {
        rows[i] = row;
        rows[i].seed = (uint64_t)i;
    }
    *c = (sample_case){.k = k,
                       .args = {.n = SAMPLE_ROWS,
                                .vocab = vocab,
                                .logits = logits,
                                .row = rows,
                                .token = bench_alloc(SAMPLE_ROWS * sizeof(int32_t))}};
    /* The time of a row on one core: every thread has its share of the rows. */
    bench_time(b, "sample", text, (double)SAMPLE_ROWS / bench_threads(b), 0.3, run_sample, c);
}

void bench_rows(bench *b, kernels *k)
{
    bench_sequences(b);
    bench_hc(b, k);
    if (bench_wants(b, "sample")) {
        add_sample(b, k, "129280 tokens, greedy", (sample_row){.top_p = 1});
        add_sample(b, k, "129280 tokens, temperature 1",
                   (sample_row){.temperature = 1, .top_p = 1});
        add_sample(b, k, "129280 tokens, temperature 1, top-p 0.95",
                   (sample_row){.temperature = 1, .top_p = 0.95f});
        add_sample(b, k, "129280 tokens, temperature 0.6, top-k 50",
                   (sample_row){.temperature = 0.6f, .top_p = 1, .top_k = 50});
    }
}
