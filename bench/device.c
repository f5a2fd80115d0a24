/* Whole steps on the device at one rank's share of the released model: all layers, 1/N of the
 * experts with the rows of all N ranks, 1/N of the Engram rows, generated weights, state as a
 * prompt leaves it. Communication is left out.
 *
 *   bench_device [--config FILE] [--rank 8] [--context 32768] [--chunk 16384] [--seqs 256]
 *                [--engram auto|device|host] [--ops 1] [--sustain S]
 *   CSV: step,rows,context,ms,tokens/s,GB,TFLOP,TB/s,TFLOP/s,launches
 *        with --ops also op,step,name,calls,ms: every operation waited for, so their sum is longer;
 *        with --sustain the longest prefill and the widest decode again, for S seconds each
 *
 * prefill: rows of a prompt that stop behind the last KV owner, at the end of the context.
 * decode: one row of each of so many sequences, whose state is that of one prompt, copied. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/dummy.h"
#include "kernels/kernels.h"
#include "kv/seq.h"
#include "model/model_internal.h"
#include "model/work.h"

#define MAX_SEQS 256
#define TURNS    3 /* of a prefill step */
#define DECODES  16
#define MAX_OPS  64

typedef struct timed_op {
    const char *name;
    int calls;
    double ns;
} timed_op;

static kernels *k;
static model *m;
static kv_pool *blocks_of_all;
static kv_seq *seq[MAX_SEQS];
static seq_rows rows[MAX_SEQS];
static int32_t *token;
static int64_t context;
static int chunk;

static const kernel_ops *real_ops;
static timed_op op[MAX_OPS];
static int n_ops;
static double empty_ns;

static void check(di_code rc, const di_status *st)
{
    if (rc == DI_OK)
        return;
    fprintf(stderr, "%s\n", st->message);
    exit(2);
}

static void finish(void)
{
    di_status st = {0};

    check(real_ops->finish(k, &st), &st);
}

/* ---- operations one by one ---- */

static uint64_t op_begin(void)
{
    finish();
    return clock_ns();
}

static void op_end(const char *name, uint64_t since)
{
    int i = 0;

    finish();
    while (i < n_ops && strcmp(op[i].name, name) != 0)
        i++;
    if (i == n_ops)
        op[n_ops++] = (timed_op){.name = name};
    op[i].calls++;
    op[i].ns += (double)(clock_ns() - since) - empty_ns;
}

#define TIMED(fn)                                                                                  \
    static void timed_##fn(kernels *own, const fn##_args *a)                                       \
    {                                                                                              \
        uint64_t t = op_begin();                                                                   \
                                                                                                   \
        real_ops->fn(own, a);                                                                      \
        op_end(#fn, t);                                                                            \
    }
TIMED(gather)
TIMED(rope_rows)
TIMED(keep_rows)
TIMED(engram_gather)
TIMED(engram_apply)
TIMED(hc)
TIMED(tap)
TIMED(quantize)
TIMED(qkv)
TIMED(compress_pool)
TIMED(compress_store)
TIMED(index_scores)
TIMED(select)
TIMED(attention)
TIMED(ring_commit)
TIMED(route)
TIMED(experts)

/* Linears by the weight that they read. */
static const char *weight_name(const weight *w)
{
    for (int l = 0; l < m->plan.n_layers; l++) {
        const layer_weights *y = &m->w.layer[l];
        const struct {
            const weight *w;
            const char *name;
        } of[] = {{y->wqkv, "wq_a wkv"},
                  {y->wq_b, "wq_b"},
                  {y->wo_a, "wo_a"},
                  {y->wo_b, "wo_b"},
                  {y->compress, "compressor"},
                  {y->index_wk, "index wk"},
                  {y->index_wq_b, "index wq_b"},
                  {y->index_w, "index weights"},
                  {y->gate, "router"},
                  {y->engram_wkv, "engram wkv"}};

        for (size_t i = 0; i < ARRAY_LEN(of); i++)
            if (of[i].w == w)
                return of[i].name;
    }
    return w == m->w.head ? "head" : "draft";
}

static void timed_linear(kernels *own, const linear_args *a)
{
    uint64_t t = op_begin();

    real_ops->linear(own, a);
    op_end(weight_name(a->w), t);
}

static void print_ops(const char *of)
{
    for (int i = 0; i < n_ops; i++)
        printf("op,%s,%s,%d,%.3f\n", of, op[i].name, op[i].calls, op[i].ns * 1e-6);
    n_ops = 0;
}

static kernel_ops timed_ops(void)
{
    kernel_ops t = *real_ops;

    t.gather = timed_gather;
    t.rope_rows = timed_rope_rows;
    t.keep_rows = timed_keep_rows;
    t.engram_gather = timed_engram_gather;
    t.engram_apply = timed_engram_apply;
    t.hc = timed_hc;
    t.tap = timed_tap;
    t.quantize = timed_quantize;
    t.linear = timed_linear;
    t.qkv = timed_qkv;
    t.compress_pool = timed_compress_pool;
    t.compress_store = timed_compress_store;
    t.index_scores = timed_index_scores;
    t.select = timed_select;
    t.attention = timed_attention;
    t.ring_commit = timed_ring_commit;
    t.route = timed_route;
    t.experts = timed_experts;
    return t;
}

/* ---- steps ---- */

/* Rows of sequence i from position `from` on; all of them stop early when `lead`. */
static void put_rows(int i, int64_t from, int n, bool lead)
{
    di_status st = {0};
    int64_t look_back = from < 3 ? from : 3;

    kv_seq_set_len(seq[i], from);
    check(kv_seq_reserve(seq[i], from + n, &st), &st);
    rows[i] = (seq_rows){.view = kv_seq_view(seq[i]),
                         .n = n,
                         .token = token + from + 31 * (int64_t)i,
                         .history = token + from + 31 * (int64_t)i - look_back,
                         .n_history = (int)look_back,
                         .n_logits = lead ? 0 : 1,
                         .whole_from = lead ? from + n : 0};
}

static void run(int n_seqs)
{
    di_status st = {0};
    float *logits;

    check(model_forward(m, rows, n_seqs, &logits, &st), &st);
}

static void put_prefill(int n, int64_t at)
{
    put_rows(0, at, n, true);
}

static void put_decode(int n)
{
    for (int i = 0; i < n; i++)
        put_rows(i, context, 1, false);
}

/* A step of `n_rows` rows, `turns` times, after two that do not count. */
static double measure(const char *name, int n_seqs, int n_rows, int turns, bool ops)
{
    model_work w = {0};
    uint64_t t, launches;
    double s;

    model_work_forward(m, rows, n_seqs, &w);
    for (int i = 0; i < 2; i++) /* the second one may be a recording */
        run(n_seqs);
    finish();
    launches = real_ops->counters(k).launches;
    t = clock_ns();
    for (int i = 0; i < turns; i++)
        run(n_seqs);
    finish();
    s = (double)(clock_ns() - t) * 1e-9 / turns;
    printf("%s,%d,%lld,%.3f,%.0f,%.2f,%.3f,%.3f,%.1f,%.0f\n", name, n_rows, (long long)context,
           s * 1e3, n_rows / s, w.bytes * 1e-9, w.flops * 1e-12, w.bytes / s * 1e-12,
           w.flops / s * 1e-12, (double)(real_ops->counters(k).launches - launches) / turns);
    fflush(stdout);
    if (ops) {
        kernel_ops timed = timed_ops();
        char text[64];

        k->ops = &timed;
        m->records = false; /* one by one */
        run(n_seqs);
        finish();
        k->ops = real_ops;
        m->records = real_ops->replay != NULL;
        snprintf(text, sizeof text, "%s %d", name, n_rows);
        print_ops(text);
    }
    return s;
}

/* ---- what is measured ---- */

/* The loader wants a folder with a config.json. */
static void open_dummy(checkpoint **c, const char *config, int n_ranks)
{
    char dir[] = "/tmp/bench_device.XXXXXX", path[64], *text;
    dummy_options o = {.engram_rows = INT64_MAX, .n_shares = n_ranks};
    di_status st = {0};
    size_t n;
    FILE *f;

    check(file_read(&text, &n, config, (size_t)1 << 20, &st), &st);
    DI_CHECK(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    f = fopen(path, "we");
    DI_CHECK(f && fwrite(text, 1, n, f) == n && fclose(f) == 0);
    mem_free(text);
    check(checkpoint_open_dummy(c, dir, &o, DUMMY_HEADERS, &st), &st);
    if (checkpoint_config(*c)->n_engram > 0)
        o.engram_rows = checkpoint_config(*c)->engram_rows[0] / n_ranks;
    checkpoint_close(*c);
    check(checkpoint_open_dummy(c, dir, &o, DUMMY_READ, &st), &st);
    unlink(path);
    rmdir(dir);
}

static void open_all(checkpoint *c, int n_seqs)
{
    const model_config *cfg = checkpoint_config(c);
    model_options mo = {.max_rows = chunk > n_seqs ? chunk : n_seqs,
                        .max_logit_rows = n_seqs,
                        .max_seqs = n_seqs,
                        .max_draft = 1,
                        .context = context + 256};
    int blocks = (int)((context + 256) / KV_BLOCK_TOKENS) * n_seqs;
    int32_t *compressed = mem_try_calloc((size_t)cfg->vocab, sizeof *compressed);
    uint64_t t = clock_ns();
    di_status st = {0};

    token = mem_try_calloc((size_t)context + 65536, sizeof *token);
    DI_CHECK(compressed && token);
    for (int i = 0; i < cfg->vocab && cfg->n_engram > 0; i++)
        compressed[i] = i % cfg->engram_compressed;
    for (uint32_t i = 0; i < context + 65536; i++)
        token[i] = (int32_t)(i * 2654435761u % (uint32_t)cfg->vocab);
    check(model_open(&m, c, k, compressed, &mo, &st), &st);
    fprintf(stderr, "loaded in %.1f s\n", (double)(clock_ns() - t) * 1e-9);
    check(kv_pool_new_in(&blocks_of_all, kernels_kv_memory(k), model_kv_layout(m), blocks, n_seqs,
                         &st),
          &st);
    for (int i = 0; i < n_seqs; i++)
        check(kv_seq_new(blocks_of_all, &seq[i], &st), &st);
    mem_free(compressed);
}

/* The state of sequence 0 for all others. */
static void copy_state(int n_seqs)
{
    const kv_layout *l = model_kv_layout(m);
    kv_view from = kv_seq_view(seq[0]);
    kv_copy c[128];
    di_status st = {0};
    int n = 0;

    for (int i = 1; i < n_seqs; i++) {
        kv_view to;

        check(kv_seq_reserve(seq[i], context + 1, &st), &st);
        to = kv_seq_view(seq[i]);
        c[n++] = (kv_copy){.dst = to.fixed, .src = from.fixed, .bytes = l->fixed_bytes};
        for (int64_t b = 0; b * KV_BLOCK_TOKENS < context; b++) {
            if (n == 128) {
                k->ops->copy(k, c, n);
                n = 0;
            }
            c[n++] = (kv_copy){.dst = to.blocks + (size_t)to.table[b] * l->block_bytes,
                               .src = from.blocks + (size_t)from.table[b] * l->block_bytes,
                               .bytes = l->block_bytes};
        }
        k->ops->copy(k, c, n);
        n = 0;
    }
    finish();
}

static void measure_all(int n_seqs, bool ops, double sustain)
{
    uint64_t t;
    double s = 0;

    t = clock_ns();
    for (int i = 0; i < 100; i++)
        finish();
    empty_ns = (double)(clock_ns() - t) / 100;
    for (int64_t at = 0; at < context; at += chunk) { /* the last ones write every ring */
        put_rows(0, at, chunk, false);
        run(1);
    }
    finish();
    for (int n = 1024; n <= chunk; n *= 4) {
        put_prefill(n, context - n);
        s = measure("prefill", 1, n, TURNS, ops && n == chunk);
    }
    if (sustain > 0) {
        put_prefill(chunk, context - chunk);
        measure("prefill sustained", 1, chunk, (int)(sustain / s) + 1, false);
    }
    copy_state(n_seqs);
    for (int n = 1; n <= n_seqs; n *= n < 16 ? 16 : 4) {
        put_decode(n);
        s = measure("decode", n, n, DECODES, ops && (n == 1 || n == n_seqs));
    }
    if (sustain > 0) {
        put_decode(n_seqs);
        measure("decode sustained", n_seqs, n_seqs, (int)(sustain / s) + 1, false);
    }
}

int main(int argc, char **argv)
{
    const char *config = "tests/data/checkpoint/config.flash.json";
    kernels_options ko = {.backend = "cuda"};
    checkpoint *c = NULL;
    int n_ranks = 8, n_seqs = MAX_SEQS;
    bool ops = false;
    double sustain = 0;
    di_status st = {0};

    context = 32768;
    chunk = 16384;
    for (int i = 1; i + 1 < argc; i += 2) {
        long v = strtol(argv[i + 1], NULL, 10);

        if (!strcmp(argv[i], "--config"))
            config = argv[i + 1];
        else if (!strcmp(argv[i], "--backend"))
            ko.backend = argv[i + 1];
        else if (!strcmp(argv[i], "--engram"))
            ko.engram = !strcmp(argv[i + 1], "host") ? ENGRAM_HOST : ENGRAM_DEVICE;
        else if (!strcmp(argv[i], "--rank"))
            n_ranks = (int)v;
        else if (!strcmp(argv[i], "--context"))
            context = v;
        else if (!strcmp(argv[i], "--chunk"))
            chunk = (int)v;
        else if (!strcmp(argv[i], "--seqs"))
            n_seqs = v < MAX_SEQS ? (int)v : MAX_SEQS;
        else if (!strcmp(argv[i], "--ops"))
            ops = v != 0;
        else if (!strcmp(argv[i], "--sustain"))
            sustain = strtod(argv[i + 1], NULL);
    }
    check(kernels_open(&k, &ko, &st), &st);
    real_ops = k->ops;
    open_dummy(&c, config, n_ranks);
    open_all(c, n_seqs);
    printf("step,rows,context,ms,tokens/s,GB,TFLOP,TB/s,TFLOP/s,launches\n");
    measure_all(n_seqs, ops, sustain);
    for (int i = 0; i < n_seqs; i++)
        kv_seq_free(seq[i]);
    kv_pool_free(blocks_of_all);
    model_close(m);
    kernels_close(k);
    checkpoint_close(c);
    mem_free(token);
    return 0;
}
