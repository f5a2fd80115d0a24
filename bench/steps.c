/* Whole steps through the model: two layers of the real geometry (bench/layers.json: a window-only
 * one, and one that owns, scores and selects compressed keys; 64 of the 384 experts, an eighth of
 * the vocabulary) with generated weights. The checkpoint is written to a temporary folder, loaded
 * and removed. Run from the repository root; needs python3 for tools/make_skeleton.py. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench.h"
#include "checkpoint/checkpoint.h"
#include "formats/scalar.h"
#include "kv/seq.h"
#include "model/model.h"

#define READ_BYTES ((size_t)512 << 20)
#define CONTEXT    8192
#define CHUNK      512

typedef struct steps {
    kernels *k;
    model *m;
    const model_config *cfg;
    kv_pool *pool;
    kv_seq *seq;
    int32_t token[CONTEXT];
} steps;

static uint64_t random_state = 0x9E3779B97F4A7C15u;

static uint64_t random64(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Fill a tensor's bytes: weights of sensible size, so that activations stay finite. */
static void fill(uint8_t *out, const ckpt_tensor *t)
{
    bool norm = strstr(t->name, "norm") != NULL, expert = strstr(t->name, ".experts.") != NULL;

    for (size_t i = 0; i < t->bytes; i += 8) {
        uint64_t x = random64();

        memcpy(out + i, &x, t->bytes - i < 8 ? t->bytes - i : 8);
    }
    for (size_t i = 0; t->type == DTYPE_F8_E8M0 && i < t->bytes; i++)
        out[i] = (uint8_t)((expert ? 118 : 113) + out[i] % 3); /* weights of about hidden^-0.5 */
    for (size_t i = 0; t->type == DTYPE_F8_E4M3 && i < t->bytes; i++)
        out[i] = (out[i] & 0x7F) == 0x7F ? 0 : out[i];
    for (size_t i = 0; t->type == DTYPE_BF16 && i < t->bytes; i += 2) {
        uint16_t b =
            (uint16_t)(norm ? 0x3F80 : (out[i] << 8 & 0x8000) | 0x3C00 | (out[i + 1] & 0xFF));

        memcpy(out + i, &b, 2);
    }
    for (size_t i = 0; t->type == DTYPE_F32 && i < t->bytes; i += 4) {
        float f = t->n_dims > 1 ? ((float)out[i] - 127.5f) * 1e-4f : 0.5f;

        memcpy(out + i, &f, 4);
    }
}

static void write_weights(const checkpoint *c, const char *dir)
{
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const ckpt_tensor *t = checkpoint_tensor(c, i);
        uint8_t *data = bench_alloc(t->bytes + 8);
        char path[512];
        di_status st = {0};
        int fd;

        fill(data, t);
        snprintf(path, sizeof path, "%s/%s", dir, checkpoint_shard_name(c, t->shard));
        fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd < 0 || pwrite(fd, data, t->bytes, (off_t)t->offset) != (ssize_t)t->bytes)
            bench_check(
                di_fail(&st, DI_E_IO, "could not write \"%s\": %s", path, errno_text(errno)), &st);
        close(fd);
        mem_free(data);
    }
}

/* A loaded model with generated weights. The folder is gone when this returns. */
static void make_model(steps *s, checkpoint **ckpt, int n_threads)
{
    char dir[] = "/dev/shm/bench_steps.XXXXXX", command[256];
    kernels_options ko = {.backend = "auto", .numerics = NUMERICS_RELEASE, .n_threads = n_threads};
    model_options mo = {.max_rows = CHUNK, .max_logit_rows = 1, .max_seqs = 1, .context = CONTEXT};
    di_status st = {0};

    if (!mkdtemp(dir))
        bench_check(
            di_fail(&st, DI_E_IO, "could not make a folder in /dev/shm: %s", errno_text(errno)),
            &st);
    snprintf(command, sizeof command,
             "python3 tools/make_skeleton.py bench/layers.json %s --shards 1 >&2", dir);
    if (system(command) != 0)
        bench_check(
            di_fail(&st, DI_E_IO, "could not run \"%s\"; run from the repository root", command),
            &st);
    bench_check(checkpoint_open(ckpt, dir, true, &st), &st);
    write_weights(*ckpt, dir);
    checkpoint_close(*ckpt);
    bench_check(checkpoint_open(ckpt, dir, false, &st), &st);
    snprintf(command, sizeof command, "rm -r %s", dir);
    if (system(command) != 0) /* the map stays */
        fprintf(stderr, "could not remove %s\n", dir);
    bench_check(kernels_open(&s->k, &ko, &st), &st);
    bench_check(model_open(&s->m, *ckpt, s->k, NULL, &mo, &st), &st);
    s->cfg = model_cfg(s->m);
    bench_check(kv_pool_new_in(&s->pool, kernels_kv_memory(s->k), model_kv_layout(s->m),
                               CONTEXT / KV_BLOCK_TOKENS, 1, &st),
                &st);
    bench_check(kv_seq_new(s->pool, &s->seq, &st), &st);
    for (int i = 0; i < CONTEXT; i++)
        s->token[i] = (int32_t)(random64() % (uint64_t)s->cfg->vocab);
}

/* n more tokens; a full sequence begins again. */
static void step_rows(steps *s, int64_t from, int n)
{
    di_status st = {0};
    float *logits, first;
    seq_rows rows = {.n = n, .n_logits = 1, .token = s->token + from};

    kv_seq_set_len(s->seq, from);
    bench_check(kv_seq_reserve(s->seq, from + n, &st), &st);
    rows.view = kv_seq_view(s->seq);
    bench_check(model_forward(s->m, &rows, 1, &logits, &st), &st);
    kv_seq_set_len(s->seq, from + n);
    s->k->ops->get(s->k, &first, logits, sizeof first);
    if (!isfinite(first)) /* routing would collapse onto a few experts that the caches hold */
        bench_check(di_fail(&st, DI_E_INTERNAL, "the generated weights give %f", (double)first),
                    &st);
}

static void run_decode(void *arg)
{
    steps *s = arg;
    int64_t len = kv_seq_len(s->seq);

    step_rows(s, len < CHUNK || len >= CONTEXT ? CHUNK : len, 1);
}

static void run_prefill(void *arg)
{
    step_rows(arg, 0, CHUNK);
}

/* Bytes that one decoded token reads, and operations of a prompt row in its weights. */
static void work_of_row(const checkpoint *c, double *bytes, double *ops)
{
    const model_config *cfg = checkpoint_config(c);

    *bytes = *ops = 0;
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const ckpt_tensor *t = checkpoint_tensor(c, i);
        double share = 1, n = (double)t->shape[0] * (double)t->shape[1];

        if (strcmp(t->name, "embed.weight") == 0)
            continue;
        if (strstr(t->name, ".experts."))
            share = (double)cfg->n_active / cfg->n_experts;
        *bytes += share * (double)t->bytes;
        if (t->n_dims == 2 && t->type != DTYPE_F8_E8M0 && strcmp(t->name, "head.weight") != 0)
            *ops += share * 2 * n * (t->type == DTYPE_I8 ? 2 : 1);
    }
}

/* Products of queries with keys and of probabilities with values, all rows of the first chunk. */
static double attention_ops(const model_config *cfg)
{
    double keys = 0;

    for (int p = 1; p <= CHUNK; p++) {
        int window = p < cfg->window ? p : cfg->window;

        keys += cfg->n_layers * window;
        for (int l = 0; l < cfg->n_layers; l++)
            if (cfg->ratio[l] > 0)
                keys += p / cfg->ratio[l] < cfg->index_topk ? p / cfg->ratio[l] : cfg->index_topk;
    }
    return keys * cfg->n_heads * cfg->head_dim * 4;
}

int main(int argc, char **argv)
{
    bench *b = bench_open("steps", argc, argv, READ_BYTES);
    steps *s = bench_alloc(sizeof *s);
    checkpoint *ckpt = NULL;
    double bytes, ops;
    int rc;

    make_model(s, &ckpt, bench_threads(b));
    work_of_row(ckpt, &bytes, &ops);
    bench_rate(b, "prefill_step", "512 tokens through 2 layers", ops * CHUNK + attention_ops(s->cfg),
               CEILING_BF16, run_prefill, s);
    bench_rate(b, "decode_step", "1 token through 2 layers and the head", bytes, CEILING_READ, run_decode,
               s);
    rc = bench_run(b);
    kv_seq_free(s->seq);
    kv_pool_free(s->pool);
    model_close(s->m);
    kernels_close(s->k);
    checkpoint_close(ckpt);
    mem_free(s);
    return rc;
}
