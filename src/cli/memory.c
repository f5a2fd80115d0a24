/* The sum of what the parts say about themselves (model_memory_of, tokenizer_memory,
 * kv_store_start_bytes) and of what the process has already. */
#include "cli/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/pool.h"
#include "cli/session.h"
#include "kv/store.h"

/* Code that inspect does not run, stacks of the pool, lines that are being answered: measured. */
#define RUNNING_BYTES ((uint64_t)3 << 19)

/* As the engine has them: checkpoints of the prefix cache take a share of the pool, or a few. */
#define CACHE_SHARE 4
#define CACHE_LEAST 16

#define HUGE_BYTES ((uint64_t)2 << 20)
#define STEP_ROWS  512 /* the default of generate; the engine has room for logits of all */

/* Resident bytes of this process; 0 where the system does not say. */
static uint64_t resident_now(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    uint64_t all = 0, resident = 0;

    if (!f)
        return 0;
    if (fscanf(f, "%" SCNu64 " %" SCNu64, &all, &resident) != 2) /* NOLINT(cert-err34-c) */
        resident = 0;
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A missing or damaged tokenizer.json is no error here: headers and weights are what is asked for.
 */
static void size_tokenizer(memory_report *r, const checkpoint *c)
{
    tokenizer *t;
    di_status ignored = {.code = DI_OK};

    r->tokenizer_read = session_load_tokenizer(&t, checkpoint_dir(c), &ignored) == DI_OK;
    r->tokenizer = r->tokenizer_read ? tokenizer_memory(t)
                                     : tokenizer_memory_about(checkpoint_config(c)->vocab);
    tokenizer_free(t);
}

static int64_t blocks_of(int64_t tokens)
{
    return (tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

/* The first blocks of n_seqs sequences; a pool of 2 MiB or more lies in huge pages. */
static uint64_t first_blocks(const memory_report *r, uint64_t per_seq)
{
    uint64_t n = (uint64_t)r->opt.n_seqs * r->model.block;

    return n * per_seq < HUGE_BYTES ? n : (n + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
}

static void add_up(memory_report *r)
{
    const model_memory *m = &r->model;
    uint64_t n_seqs = (uint64_t)r->opt.n_seqs, per_seq = (uint64_t)blocks_of(r->opt.context);
    uint64_t all = n_seqs * per_seq * m->block;

    r->sequences = kv_store_start_bytes(m->sequence, (int64_t)(per_seq * n_seqs), r->opt.n_seqs);
    r->blocks = first_blocks(r, per_seq);
    r->total = m->weights + m->embedding + m->engram_used + m->step + m->scratch + r->tokenizer +
               r->process + r->sequences + r->blocks;
    r->full = r->total + (all > r->blocks ? all - r->blocks : 0);
    r->cache = all / CACHE_SHARE > CACHE_LEAST * m->sequence ? all / CACHE_SHARE
                                                             : CACHE_LEAST * m->sequence;
}

di_code memory_predict(memory_report *out, const checkpoint *c, const memory_options *o,
                       di_status *st)
{
    const kernels_options ko = {
        .backend = o->backend, .numerics = o->numerics, .n_threads = o->threads};
    const model_config *cfg = checkpoint_config(c);
    int64_t room = o->context + 4 * (1 + (int64_t)cfg->draft_block); /* as the engine */
    const model_options mo = {.max_rows = STEP_ROWS,
                              .max_logit_rows = STEP_ROWS,
                              .max_seqs = o->n_seqs,
                              .context = room < cfg->max_context ? room : cfg->max_context};
    kernels *k = NULL;
    di_code rc = DI_OK;

    *out = (memory_report){.opt = *o};
    DI_TRY(kernels_open(&k, &ko, st));
    out->backend = k->ops->name;
    out->opt.threads = pool_n_threads(k->pool);
    DI_TRY(model_memory_of(&out->model, c, k, &mo, st));
    mem_trim();
    out->process = resident_now() + RUNNING_BYTES;
    size_tokenizer(out, c);
    add_up(out);
done:
    if (k)
        kernels_close(k);
    return rc;
}

double memory_per_1000(const memory_report *r)
{
    return (double)r->model.block * 1000 / KV_BLOCK_TOKENS;
}
