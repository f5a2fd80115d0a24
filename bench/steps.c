/* Whole steps through the model: two layers of the real geometry (bench/layers.json: a window-only
 * one, and one that owns, scores and selects compressed keys; 64 of the 384 experts, an eighth of
 * the vocabulary) with generated weights, 1.6 GB. Run from the repository root. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "bench.h"
#include "checkpoint/dummy.h"
#include "kv/seq.h"
#include "model/model.h"
#include "model/work.h"

#define READ_BYTES ((size_t)512 << 20)
#define CONTEXT    8192
#define CHUNK      512
#define MAX_SEQS   64
#define ROOM       1024 /* tokens of a sequence of the wider batches */
#define CONFIG     "bench/layers.json"

typedef struct steps {
    kernels *k;
    model *m;
    const model_config *cfg;
    kv_pool *pool;
    kv_seq *seq[MAX_SEQS];
    seq_rows rows[MAX_SEQS];
    int32_t token[CONTEXT];
} steps;

/* A decode step of `n` sequences that have CHUNK tokens or more. */
typedef struct batch {
    steps *s;
    int n;
    char name[32], text[64];
} batch;

/* The loader wants a folder with a config.json. */
static void open_config(checkpoint **ckpt)
{
    char dir[] = "/tmp/bench_steps.XXXXXX", path[64], *text;
    di_status st = {0};
    size_t n;
    FILE *f;

    bench_check(file_read(&text, &n, CONFIG, (size_t)1 << 20, &st), &st);
    if (!mkdtemp(dir))
        bench_check(di_fail(&st, DI_E_IO, "could not make \"%s\": %s", dir, errno_text(errno)),
                    &st);
    snprintf(path, sizeof path, "%s/config.json", dir);
    f = fopen(path, "we");
    if (!f || fwrite(text, 1, n, f) != n || fclose(f) != 0)
        bench_check(di_fail(&st, DI_E_IO, "could not write \"%s\": %s", path, errno_text(errno)),
                    &st);
    mem_free(text);
    bench_check(checkpoint_open_dummy(ckpt, dir, &(dummy_options){0}, DUMMY_FOUND, &st), &st);
    unlink(path);
    rmdir(dir);
}

static void make_model(steps *s, checkpoint **ckpt, int n_threads)
{
    kernels_options ko = {.backend = "auto", .numerics = NUMERICS_RELEASE, .n_threads = n_threads};
    model_options mo = {
        .max_rows = CHUNK, .max_logit_rows = MAX_SEQS, .max_seqs = MAX_SEQS, .context = CONTEXT};
    int blocks = (CONTEXT + (MAX_SEQS - 1) * ROOM) / KV_BLOCK_TOKENS;
    di_status st = {0};

    open_config(ckpt);
    bench_check(kernels_open(&s->k, &ko, &st), &st);
    bench_check(model_open(&s->m, *ckpt, s->k, NULL, &mo, &st), &st);
    s->cfg = model_cfg(s->m);
    bench_check(kv_pool_new_in(&s->pool, kernels_kv_memory(s->k), model_kv_layout(s->m), blocks,
                               MAX_SEQS, &st),
                &st);
    for (int i = 0; i < MAX_SEQS; i++)
        bench_check(kv_seq_new(s->pool, &s->seq[i], &st), &st);
    for (uint32_t i = 0; i < CONTEXT; i++)
        s->token[i] = (int32_t)(i * 2654435761u % (uint32_t)s->cfg->vocab);
}

/* n rows more of sequence i, from `from` on; the caller runs them. */
static void put_rows(steps *s, int i, int64_t from, int n)
{
    di_status st = {0};

    kv_seq_set_len(s->seq[i], from);
    bench_check(kv_seq_reserve(s->seq[i], from + n, &st), &st);
    s->rows[i] = (seq_rows){.view = kv_seq_view(s->seq[i]),
                            .n = n,
                            .n_logits = 1,
                            .token = s->token + (from + (int64_t)37 * i) % (CONTEXT - n)};
}

static void run_rows(steps *s, int n_seqs)
{
    di_status st = {0};
    float *logits, first;

    bench_check(model_forward(s->m, s->rows, n_seqs, &logits, &st), &st);
    for (int i = 0; i < n_seqs; i++)
        kv_seq_set_len(s->seq[i], s->rows[i].view.len + s->rows[i].n);
    s->k->ops->get(s->k, &first, logits, sizeof first);
    if (!isfinite(first)) /* routing would collapse onto a few experts that the caches hold */
        bench_check(di_fail(&st, DI_E_INTERNAL, "the generated weights give %f", (double)first),
                    &st);
}

/* The next row of every sequence; full ones begin again. */
static void put_batch(const batch *b)
{
    int64_t room = b->n == 1 ? CONTEXT : ROOM;

    for (int i = 0; i < b->n; i++) {
        int64_t len = kv_seq_len(b->s->seq[i]);

        put_rows(b->s, i, len < CHUNK || len >= room ? CHUNK : len, 1);
    }
}

static void run_decode(void *arg)
{
    put_batch(arg);
    run_rows(((batch *)arg)->s, ((batch *)arg)->n);
}

static void run_prefill(void *arg)
{
    put_rows(arg, 0, 0, CHUNK);
    run_rows(arg, 1);
}

/* A decode step against both ceilings: the larger share is that of the roofline. */
static void decode_case(bench *b, batch *one)
{
    model_work w = {0};

    put_batch(one);
    model_work_forward(one->s->m, one->s->rows, one->n, &w);
    snprintf(one->text, sizeof one->text, "%d token%s through 2 layers and the head", one->n,
             one->n > 1 ? "s" : "");
    if (one->n > 1)
        snprintf(one->name, sizeof one->name, "decode_step_%d", one->n);
    else
        snprintf(one->name, sizeof one->name, "decode_step");
    bench_rate(b, one->name, one->text, w.bytes, CEILING_READ, run_decode, one);
    if (one->n > 1)
        bench_rate(b, one->name, one->text, w.flops, CEILING_FMA, run_decode, one);
}

int main(int argc, char **argv)
{
    bench *b = bench_open("steps", argc, argv, READ_BYTES);
    steps *s = bench_alloc(sizeof *s);
    batch batches[3] = {{.s = s, .n = 1}, {.s = s, .n = 16}, {.s = s, .n = MAX_SEQS}};
    checkpoint *ckpt = NULL;
    model_work w = {0};
    int rc;

    make_model(s, &ckpt, bench_threads(b));
    put_rows(s, 0, 0, CHUNK);
    model_work_forward(s->m, s->rows, 1, &w);
    bench_rate(b, "prefill_step", "512 tokens through 2 layers", w.flops, CEILING_BF16, run_prefill,
               s);
    for (int i = 0; i < 3; i++)
        decode_case(b, &batches[i]);
    rc = bench_run(b);
    for (int i = 0; i < MAX_SEQS; i++)
        kv_seq_free(s->seq[i]);
    kv_pool_free(s->pool);
    model_close(s->m);
    kernels_close(s->k);
    checkpoint_close(ckpt);
    mem_free(s);
    return rc;
}
