/* What the engine says that it takes (engine_memory_of), and what the process has already. */
#include "cli/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/pool.h"
#include "cli/session.h"

/* Code that inspect does not run, stacks of the pool, lines that are being answered: measured. */
#define RUNNING_BYTES ((uint64_t)3 << 19)

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

di_code memory_predict(memory_report *out, const checkpoint *c, const memory_options *o,
                       di_status *st)
{
    const kernels_options ko = {
        .backend = o->backend, .numerics = o->numerics, .n_threads = o->threads};
    kernels *k = NULL;
    tokenizer *tok = NULL;
    di_status ignored = {.code = DI_OK};
    di_code rc = DI_OK;

    *out = (memory_report){.opt = *o};
    DI_TRY(kernels_open(&k, &ko, st));
    out->backend = k->ops->name;
    out->opt.threads = pool_n_threads(k->pool);
    mem_trim();
    out->process = resident_now() + RUNNING_BYTES;
    /* A missing or damaged tokenizer.json is no error here: headers and weights are asked for. */
    out->tokenizer_read = session_load_tokenizer(&tok, checkpoint_dir(c), &ignored) == DI_OK;
    DI_TRY(engine_memory_of(&out->engine, c, k, tok, &o->engine, st));
    out->total = out->engine.start + out->process;
    out->full = out->engine.full + out->process;
    out->peak = out->engine.peak + out->process;
done:
    tokenizer_free(tok);
    if (k)
        kernels_close(k);
    return rc;
}

double memory_per_1000(const memory_report *r)
{
    return (double)r->engine.model.block * 1000 / KV_BLOCK_TOKENS;
}
