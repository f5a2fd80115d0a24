/* Operations of the CUDA back end at the real geometry, on generated weights that rotate so that L2
 * does not hold them. Every case runs back to back for at least MIN_MS, in recorded steps of COPIES
 * calls; the time is wall clock over the calls of a run.
 *
 *   bench_cuda [--only TEXT [--once]]     CSV: name,case,us,GB/s,TFLOP/s  (weights' bytes; useful
 * products)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/kernels.h"

#define HIDDEN   5120
#define INTER    2304
#define EXPERTS  48 /* of one rank of eight */
#define ACTIVE   6
#define MAX_ROWS 16384
#define MIN_MS   60
#define COPIES   16

static kernels *k;
static const char *only = "";
static bool once; /* for a profiler: every case a single time */

static void check(di_code rc, const di_status *st)
{
    if (rc == DI_OK)
        return;
    fprintf(stderr, "%s\n", st->message);
    exit(2);
}

static void *host_bytes(size_t n, uint32_t seed)
{
    uint64_t *p = mem_try_calloc((n + 7) / 8, 8), x = 0x9E3779B97F4A7C15u * (seed + 1u);

    DI_CHECK(p);
    for (size_t i = 0; i < (n + 7) / 8; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        p[i] = x;
    }
    return p;
}

static uint8_t *scale_bytes(size_t n)
{
    uint8_t *p = host_bytes(n, 5);

    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(117 + p[i] % 5);
    return p;
}

static void *device(size_t bytes)
{
    void *p = k->ops->buf_new(k, bytes);

    if (!p) {
        fprintf(stderr, "no memory for %zu bytes on the device\n", bytes);
        exit(2);
    }
    return p;
}

/* bf16 numbers of about 1, as q8 rows. */
static void *rows_of(int n, int cols)
{
    size_t count = (size_t)n * (size_t)cols;
    void *x = device(count * 2);
    uint16_t *h = host_bytes(count * 2, 11);

    for (size_t i = 0; i < count; i++)
        h[i] = (uint16_t)((h[i] & 0x80FFu) | 0x3F00u);
    k->ops->put(k, x, h, count * 2);
    k->ops->quantize(k, &(quantize_args){.n = n, .cols = cols, .x = x, .q8 = x});
    mem_free(h);
    return x;
}

typedef struct run {
    void (*fn)(void *arg, int i);
    void *arg;
} run;

static bool wanted(const char *name)
{
    return strstr(name, only);
}

/* n calls, COPIES of them at a time as a recorded step. */
static void calls(const char *what, run r, int n)
{
    char key[64] = {0};

    snprintf(key, sizeof key, "%s", what);
    for (int i = 0; i < n; i += COPIES) {
        if (k->ops->replay(k, key, sizeof key))
            continue;
        for (int c = 0; c < COPIES; c++)
            r.fn(r.arg, c);
        k->ops->recorded(k);
    }
}

/* Seconds per call: the median of five batches. */
static void report(const char *name, const char *what, double bytes, double flop, run r)
{
    double t[5];
    int n = COPIES;
    di_status st = {0};
    char step_key[64];

    if (!wanted(name))
        return;
    snprintf(step_key, sizeof step_key, "%.20s %.40s", name, what);
    if (once) {
        r.fn(r.arg, 0);
        check(k->ops->finish(k, &st), &st);
        return;
    }
    calls(step_key, r, 5 * COPIES); /* the fifth is recorded */
    for (int round = -2; round < 5;) {
        uint64_t begin = clock_ns();
        double ms;

        calls(step_key, r, n);
        check(k->ops->finish(k, &st), &st);
        ms = (double)(clock_ns() - begin) * 1e-6;
        if (round >= 0)
            t[round] = ms / n * 1e-3;
        if (round < 0 && ms < MIN_MS / 5.0)
            n = (int)(n * MIN_MS / 5.0 / ms) / COPIES * COPIES + COPIES;
        else
            round++;
    }
    for (int i = 1; i < 5; i++)
        for (int j = i; j > 0 && t[j] < t[j - 1]; j--) {
            double swap = t[j];

            t[j] = t[j - 1];
            t[j - 1] = swap;
        }
    printf("%s,%s,%.1f,%.0f,%.1f\n", name, what, t[2] * 1e6, bytes / t[2] * 1e-9,
           flop / t[2] * 1e-12);
    fflush(stdout);
}

/* ---- linears ---- */

typedef struct linear_case {
    weight *w[COPIES];
    int n_weights;
    linear_args a;
} linear_case;

static void run_linear(void *arg, int i)
{
    linear_case *c = arg;

    c->a.w = c->w[i % c->n_weights];
    k->ops->linear(k, &c->a);
}

static void linear_shape(const char *name, weight_kind kind, int64_t rows, int64_t cols, int groups,
                         const int *n, int n_n)
{
    linear_case c = {0};
    size_t bytes = (size_t)(rows * cols) * (kind == WEIGHT_BF16 ? 2 : 1);
    uint8_t *codes, *scales;
    weight_src s = {.name = name, .kind = kind, .cols = cols, .n_parts = 1};
    di_status st = {0};

    if (!wanted(name))
        return;
    codes = host_bytes(bytes, 1);
    scales = scale_bytes((size_t)(rows * cols / 1024));
    for (size_t i = 0; i < bytes; i++) /* finite: no NaN of E4M3, small exponents of bf16 */
        if (kind == WEIGHT_FP8)
            codes[i] = (codes[i] & 0x7Fu) == 0x7Fu ? 0 : codes[i];
        else if (i % 2)
            codes[i] = (uint8_t)((codes[i] & 0x80u) | 0x3Cu);
    s.part[0] = (weight_part){.data = codes, .scale = scales, .rows = rows};
    c.n_weights = (int)(((size_t)400 << 20) / bytes) + 1;
    c.n_weights = c.n_weights > COPIES ? COPIES : c.n_weights;
    for (int i = 0; i < c.n_weights; i++)
        check(k->ops->load(k, &s, &c.w[i], &st), &st);
    c.a = (linear_args){.groups = groups,
                        .x_is_act = groups > 1,
                        .out = kind == WEIGHT_BF16 ? LINEAR_F32 : LINEAR_ACT,
                        .x = rows_of(n[n_n - 1], (int)cols * groups),
                        .y = device((size_t)n[n_n - 1] * (size_t)rows * 4)};
    for (int i = 0; i < n_n; i++) {
        char what[64];

        c.a.n = n[i];
        snprintf(what, sizeof what, "%lldx%lld %d rows", (long long)rows, (long long)cols, n[i]);
        report(name, what, (double)bytes, 2.0 * (double)(rows * cols) * n[i],
               (run){run_linear, &c});
    }
    for (int i = 0; i < c.n_weights; i++)
        k->ops->unload(k, c.w[i]);
    k->ops->buf_free(k, (void *)c.a.x);
    k->ops->buf_free(k, c.a.y);
    mem_free(codes);
    mem_free(scales);
}

/* ---- experts ---- */

static void run_experts(void *arg, int i)
{
    (void)i;
    k->ops->experts(k, arg);
}

/* Tokens go round robin over the experts, so that each gets the same number of rows. */
static void experts_all(void)
{
    const int n[] = {1, 4, 16, 64, 256, 1024, 4096};
    const double one = 3.0 * HIDDEN * INTER;
    fp4_part part[EXPERTS];
    experts_src s = {.name = "experts", .n_experts = EXPERTS, .hidden = HIDDEN, .inter = INTER};
    uint8_t *codes, *scales;
    int32_t *ids, *ids_dev;
    float *w;
    experts_args a = {.k = ACTIVE, .limit = 10};
    weight *experts;
    di_status st = {0};

    if (!wanted("experts"))
        return;
    codes = host_bytes((size_t)HIDDEN * INTER, 2);
    scales = scale_bytes((size_t)HIDDEN * INTER / 32);
    for (size_t i = 0; i < (size_t)HIDDEN * INTER; i++)
        codes[i] = (codes[i] & 0x7Fu) == 0x7Fu ? 0 : codes[i];
    for (int e = 0; e < EXPERTS; e++)
        part[e] = (fp4_part){.data = codes + (size_t)e * 4096, .scale = scales};
    s.w1 = s.w3 = s.w2 = part;
    s.shared_w1 = s.shared_w3 = (weight_part){.data = codes, .scale = scales, .rows = INTER};
    s.shared_w2 = (weight_part){.data = codes, .scale = scales, .rows = HIDDEN};
    check(k->ops->load_experts(k, &s, &experts, &st), &st);
    ids = mem_try_calloc((size_t)MAX_ROWS * ACTIVE, sizeof *ids);
    w = mem_try_calloc((size_t)MAX_ROWS * ACTIVE, sizeof *w);
    DI_CHECK(ids && w);
    for (int i = 0; i < MAX_ROWS * ACTIVE; i++) {
        ids[i] = (i / ACTIVE * 7 + i % ACTIVE * 8) % EXPERTS;
        w[i] = 0.25f;
    }
    a.w = experts;
    a.x_q8 = rows_of(MAX_ROWS, HIDDEN);
    a.ids = ids_dev = device((size_t)MAX_ROWS * ACTIVE * sizeof *ids);
    a.weights = device((size_t)MAX_ROWS * ACTIVE * sizeof *w);
    a.y = device((size_t)MAX_ROWS * HIDDEN * 2);
    k->ops->put(k, ids_dev, ids, (size_t)MAX_ROWS * ACTIVE * sizeof *ids);
    k->ops->put(k, (void *)a.weights, w, (size_t)MAX_ROWS * ACTIVE * sizeof *w);
    for (size_t i = 0; i < ARRAY_LEN(n); i++) {
        int used = n[i] * ACTIVE < EXPERTS ? n[i] * ACTIVE : EXPERTS;
        char what[64];

        a.n = n[i];
        snprintf(what, sizeof what, "%d rows; %.3g per expert; shared expert", n[i],
                 (double)n[i] * ACTIVE / EXPERTS);
        report("experts", what, one * (used * 17.0 / 32 + 1), 2 * one * n[i] * (ACTIVE + 1),
               (run){run_experts, &a});
    }
    k->ops->unload(k, experts);
}

/* ---- rows ---- */

static void run_hc(void *arg, int i)
{
    (void)i;
    k->ops->hc(k, arg);
}

static weight *plain_weight(weight_kind kind, int64_t rows, int64_t cols)
{
    size_t n = (size_t)(rows * cols) * (kind == WEIGHT_VEC_BF16 ? 2 : 4);
    uint8_t *p = host_bytes(n, 3);
    weight_src s = {
        .name = "w", .kind = kind, .cols = cols, .n_parts = 1, .part = {{.data = p, .rows = rows}}};
    weight *w;
    di_status st = {0};

    for (size_t i = 0; i < n; i++) /* numbers of about 2^-6 */
        if (kind == WEIGHT_VEC_BF16 ? i % 2 : i % 4 == 3)
            p[i] = (uint8_t)((p[i] & 0x80u) | 0x3Cu);
    check(k->ops->load(k, &s, &w, &st), &st);
    mem_free(p);
    return w;
}

static void hc_all(void)
{
    const int n[] = {1, 64, 256, 1024, 4096};
    hc_args a = {.hc = 4, .dim = HIDDEN, .eps = 1e-20f, .hc_eps = 1e-6f, .iters = 20};

    if (!wanted("hc"))
        return;
    a.x = rows_of(MAX_ROWS, 4 * HIDDEN);
    a.y = rows_of(MAX_ROWS, HIDDEN);
    a.post = a.post_out = device((size_t)MAX_ROWS * 16);
    a.comb = a.comb_out = device((size_t)MAX_ROWS * 64);
    a.pre_in = device((size_t)MAX_ROWS * 16);
    a.pre_out = device((size_t)MAX_ROWS * 16);
    a.fn = plain_weight(WEIGHT_F32, 24, (int64_t)4 * HIDDEN);
    a.base = plain_weight(WEIGHT_VEC_F32, 1, 24);
    a.scale = plain_weight(WEIGHT_VEC_F32, 1, 3);
    a.norm = plain_weight(WEIGHT_VEC_BF16, 1, HIDDEN);
    a.out = device((size_t)MAX_ROWS * HIDDEN * 2);
    a.out_q8 = device((size_t)MAX_ROWS * HIDDEN * 2);
    for (size_t i = 0; i < ARRAY_LEN(n); i++) {
        char what[64];

        a.n = n[i];
        snprintf(what, sizeof what, "%d rows", n[i]);
        report("hc", what, n[i] * 110e3, 0, (run){run_hc, &a});
    }
}

/* ---- attention and indexer, on one sequence ---- */

#define TOPK    512
#define KV_ROWS 4096

typedef struct seq_case {
    step s;
    kv_layout l;
    attention_args attention;
    index_scores_args scores;
    select_args select;
} seq_case;

static void run_attention(void *arg, int i)
{
    (void)i;
    k->ops->attention(k, &((seq_case *)arg)->attention);
}

static void run_scores(void *arg, int i)
{
    (void)i;
    k->ops->index_scores(k, &((seq_case *)arg)->scores);
}

static void run_select(void *arg, int i)
{
    (void)i;
    k->ops->select(k, &((seq_case *)arg)->select);
}

static void *put_new(const void *host, size_t bytes)
{
    void *p = device(bytes);

    k->ops->put(k, p, host, bytes);
    return p;
}

/* State whose bytes are random: E2M1 and E4M3 codes of any value, scales near 1. */
static void *state_of(const kv_layout *l, int64_t n_blocks)
{
    size_t bytes = (size_t)n_blocks * l->block_bytes;
    uint8_t *p = host_bytes(bytes, 21);
    void *dev;

    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(0x30 | (p[i] & 0x87)); /* E4M3 of 1/4 .. 2; as UE8M0: 2^-79 or 2^56 */
    dev = put_new(p, bytes);
    mem_free(p);
    return dev;
}

/* Index keys of any codes, with scales of 1/16 .. 1/2, into the blocks of the one owner of `l`. */
static void *with_keys(const kv_layout *l, void *blocks, int64_t n_blocks)
{
    size_t row = l->key_bytes, bytes = (size_t)n_blocks * KV_BLOCK_TOKENS * row;
    uint8_t *p = host_bytes(bytes, 22);

    for (size_t i = 0; i < bytes; i++)
        if (i % row >= row - 4)
            p[i] = (uint8_t)(123 + p[i] % 4);
    for (int64_t b = 0; b < n_blocks; b++)
        k->ops->put(k, (uint8_t *)blocks + (size_t)b * l->block_bytes + l->owner[0].key_off,
                    p + (size_t)b * KV_BLOCK_TOKENS * row, KV_BLOCK_TOKENS * row);
    mem_free(p);
    return blocks;
}

/* The last KV_ROWS tokens of a sequence of `len`, each with TOPK of its entries. */
static seq_case *sequence(int64_t len)
{
    static seq_case c;
    const int ratio = 1;
    int64_t n_blocks = len / KV_BLOCK_TOKENS + 1;
    int32_t row0[2] = {0, KV_ROWS}, *table, *seq, *sel, *n_sel;
    int64_t *pos;
    kv_view v = {.len = len - KV_ROWS};
    size_t n_noise = (size_t)256 * (size_t)(len + 16);
    float *noise;

    kv_layout_init(&c.l, KV_PACKED, 512, 128, 128, 5, 1, &ratio, 1);
    table = mem_try_calloc((size_t)n_blocks, sizeof *table);
    seq = mem_try_calloc(KV_ROWS, sizeof *seq);
    pos = mem_try_calloc(KV_ROWS, sizeof *pos);
    sel = mem_try_calloc((size_t)KV_ROWS * TOPK, sizeof *sel);
    n_sel = mem_try_calloc(KV_ROWS, sizeof *n_sel);
    DI_CHECK(table && seq && pos && sel && n_sel);
    for (int64_t b = 0; b < n_blocks; b++)
        table[b] = (int32_t)(n_blocks - 1 - b);
    for (int r = 0; r < KV_ROWS; r++) {
        pos[r] = len - KV_ROWS + r;
        n_sel[r] = TOPK;
        for (int i = 0; i < TOPK; i++)
            sel[r * TOPK + i] = (int32_t)((len - KV_ROWS) / TOPK * i + (r * 31 + i * 7) % 5);
    }
    v.fixed = state_of(&c.l, (int64_t)(c.l.fixed_bytes / c.l.block_bytes) + 1);
    v.blocks = with_keys(&c.l, state_of(&c.l, n_blocks), n_blocks);
    v.table = put_new(table, (size_t)n_blocks * sizeof *table);
    c.s = (step){.n_seqs = 1,
                 .row0 = put_new(row0, sizeof row0),
                 .seq = put_new(seq, KV_ROWS * sizeof *seq),
                 .pos = put_new(pos, KV_ROWS * sizeof *pos),
                 .view = put_new(&v, sizeof v)};
    c.attention = (attention_args){.s = &c.s,
                                   .layout = &c.l,
                                   .n_heads = 64,
                                   .rope = 64,
                                   .scale = 0.044f,
                                   .q = rows_of(KV_ROWS, 64 * 512),
                                   .cs = device((size_t)KV_ROWS * 64 * 4),
                                   .kv_rows = state_of(&c.l, KV_ROWS * 528 / 45568 + 1),
                                   .sink = plain_weight(WEIGHT_VEC_F32, 1, 64),
                                   .sel = put_new(sel, (size_t)KV_ROWS * TOPK * sizeof *sel),
                                   .n_sel = put_new(n_sel, KV_ROWS * sizeof *n_sel),
                                   .topk = TOPK,
                                   .o = device((size_t)KV_ROWS * 64 * 512 * 2)};
    noise = host_bytes(n_noise * sizeof *noise, 9);
    for (size_t i = 0; i < n_noise; i++) { /* about normal */
        const uint8_t *b = (const uint8_t *)&noise[i];

        noise[i] = (float)(b[0] + b[1] + b[2] + b[3] - 510) / 128.0f + (float)b[1] * 1e-3f;
    }
    c.scores = (index_scores_args){.s = &c.s,
                                   .layout = &c.l,
                                   .heads = 32,
                                   .rope = 64,
                                   .topk = TOPK,
                                   .iq = rows_of(KV_ROWS, 32 * 128),
                                   .iw = rows_of(KV_ROWS, 32),
                                   .cs = c.attention.cs,
                                   .scores = device((size_t)256 * (size_t)(len + 16) * 4),
                                   .stride = len + 16};
    c.select = (select_args){.s = &c.s,
                             .layout = &c.l,
                             .topk = TOPK,
                             .scores = put_new(noise, n_noise * sizeof *noise),
                             .stride = c.scores.stride,
                             .sel = device((size_t)KV_ROWS * TOPK * 4),
                             .n_sel = device((size_t)KV_ROWS * 4)};
    mem_free(noise);
    mem_free(table);
    mem_free(seq);
    mem_free(pos);
    mem_free(sel);
    mem_free(n_sel);
    return &c;
}

static void sequences(void)
{
    const int n[] = {1, 16, 256, KV_ROWS};
    const int64_t len[] = {16384, 131072};

    for (size_t j = 0; j < 2 && (wanted("attention") || wanted("index_scores") || wanted("select"));
         j++) {
        seq_case *c = sequence(len[j]);

        for (size_t i = 0; i < ARRAY_LEN(n); i++) {
            double rows = n[i], keys = (double)len[j];
            char what[64];

            snprintf(what, sizeof what, "%d rows; %lld tokens", n[i], (long long)len[j]);
            c->s.n_rows = n[i];
            if (j == 0)
                report("attention", what, rows * (512 * 288.0 + 128 * 528.0),
                       rows * 64 * 640 * 512 * 4.0, (run){run_attention, c});
            if (n[i] > 256)
                continue;
            c->scores.n = c->select.n = n[i];
            report("index_scores", what, keys * 68, rows * keys * 8192, (run){run_scores, c});
            report("select", what, rows * keys * 4, 0, (run){run_select, c});
        }
    }
}

int main(int argc, char **argv)
{
    const int few[] = {1, 4, 16, 64, 256, 1024, 4096, 16384}, head[] = {1, 16, 64, 256};
    kernels_options o = {.backend = "cuda"};
    kernel_limits lim = {.n_rows = MAX_ROWS,
                         .n_logit_rows = 16,
                         .hidden = HIDDEN,
                         .hc = 4,
                         .n_heads = 64,
                         .head_dim = 512,
                         .window = 128,
                         .max_linear_cols = 15360,
                         .moe_inter = INTER,
                         .n_experts = 384,
                         .n_active = ACTIVE,
                         .index_heads = 32,
                         .index_dim = 128,
                         .index_topk = 512,
                         .cand_blocks = 2048,
                         .cand_block = 8,
                         .context = 1 << 17,
                         .vocab = 129280};
    di_status st = {0};

    once = argc == 4 && strcmp(argv[3], "--once") == 0;
    if (argc >= 3 && strcmp(argv[1], "--only") == 0)
        only = argv[2];
    check(kernels_open(&k, &o, &st), &st);
    check(k->ops->reserve(k, &lim, &st), &st);
    printf("name,case,us,GB/s,TFLOP/s\n");
    experts_all();
    linear_shape("wqkv", WEIGHT_FP8, 1792, HIDDEN, 1, few, 8);
    linear_shape("wq_b", WEIGHT_FP8, 32768, 1280, 1, few, 7);
    linear_shape("wo_a", WEIGHT_FP8, 8192, 4096, 8, few, 7);
    linear_shape("wo_b", WEIGHT_FP8, HIDDEN, 8192, 1, few, 8);
    linear_shape("shared_up", WEIGHT_FP8, (int64_t)2 * INTER, HIDDEN, 1, few, 8);
    linear_shape("shared_down", WEIGHT_FP8, HIDDEN, INTER, 1, few, 8);
    linear_shape("engram_wkv", WEIGHT_FP8, 25600, 6144, 1, few, 7);
    linear_shape("router", WEIGHT_BF16, 384, HIDDEN, 1, few, 7);
    linear_shape("index_weights", WEIGHT_BF16, 64, HIDDEN, 1, few, 8);
    linear_shape("head", WEIGHT_BF16, 129280, HIDDEN, 1, head, 4);
    hc_all();
    sequences();
    kernels_close(k);
    return 0;
}
