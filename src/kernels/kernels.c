/* Opening a back end: names, dispatch by processor, the thread pool. */
#include "kernels/kernels.h"

#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "kernels/cuda.h"

/* Not compiled for this target: the same answer as for a processor without the instructions. */
#ifndef DI_HAVE_AVX512
const kernel_ops *kernels_avx512(void)
{
    return NULL;
}
#endif
#ifndef DI_HAVE_AVX2
const kernel_ops *kernels_avx2(void)
{
    return NULL;
}
#endif

typedef struct backend {
    const char *name;
    const kernel_ops *(*ops)(void);
    const char *needs; /* instructions */
    bool device;       /* asked for by name only: "auto" stays in host memory */
} backend;

/* Best first, then those of devices. */
static const backend backends[] = {
    {"avx512", kernels_avx512, "AVX-512 with VBMI, BF16 and VNNI", false},
    {"avx2", kernels_avx2, "AVX2 with FMA and F16C", false},
    {"ref", kernels_ref, "", false},
    {"cuda", kernels_cuda, "libdeepinfer_cuda.so and a Hopper GPU", true},
};

const char *const *kernels_available(void)
{
    static const char *names[ARRAY_LEN(backends) + 1];
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_LEN(backends); i++)
        if (backends[i].ops())
            names[n++] = backends[i].name;
    return names;
}

static bool knows(const backend *b, numerics num)
{
    return num == NUMERICS_RELEASE || b->ops == kernels_ref;
}

/* A GPU's back end has the name of its device, too. */
static bool is_named(const backend *b, const char *name)
{
    return strcmp(name, b->name) == 0 || (b->device && strcmp(name, "nvidia") == 0);
}

/* The first back end with that name; "auto" or "cpu" is the best one of the CPU's that runs here
 * with the numerics. */
static const backend *find(const kernels_options *opt)
{
    bool any = strcmp(opt->backend, "auto") == 0 || strcmp(opt->backend, "cpu") == 0;

    for (const backend *b = backends; b < backends + ARRAY_LEN(backends); b++)
        if (any ? !b->device && knows(b, opt->numerics) && b->ops() : is_named(b, opt->backend))
            return b;
    return NULL;
}

static void *state_new(void *owner, size_t bytes)
{
    kernels *k = owner;

    return k->ops->buf_new(k, bytes);
}

static void state_free(void *owner, void *p)
{
    kernels *k = owner;

    k->ops->buf_free(k, p);
}

static void *table_new(void *owner, size_t bytes)
{
    kernels *k = owner;

    return k->ops->shared_new(k, bytes);
}

static void table_free(void *owner, void *p)
{
    kernels *k = owner;

    k->ops->shared_free(k, p);
}

di_code kernels_open(kernels **out, const kernels_options *opt, di_status *st)
{
    di_code rc = DI_OK;
    const backend *b = find(opt);
    const kernel_ops *ops;
    kernels *k;

    *out = NULL;
    if (!b)
        return di_fail(st, DI_E_INVALID,
                       "there is no back end \"%s\"; use auto, avx512, avx2, ref or cuda",
                       opt->backend);
    if (!knows(b, opt->numerics))
        return di_fail(st, DI_E_INVALID,
                       "back end \"%s\" computes with the release's numerics only; "
                       "use back end \"ref\" for the others",
                       b->name);
    ops = b->ops();
    if (!ops && b->device)
        return di_fail(st, DI_E_UNSUPPORTED, "back end \"%s\" needs %s: %s", b->name, b->needs,
                       kernels_cuda_reason());
    if (!ops)
        return di_fail(st, DI_E_UNSUPPORTED,
                       "back end \"%s\" needs %s, which this build or this processor (%s) lacks; "
                       "use \"auto\"",
                       b->name, b->needs, cpu_name());
    k = mem_try_calloc(1, sizeof *k);
    if (!k)
        return di_fail(st, DI_E_NOMEM, "no memory for back end \"%s\"", b->name);
    *k = (kernels){
        .ops = ops,
        .act = ops == kernels_ref() ? DTYPE_F32 : DTYPE_BF16,
        .kv = opt->numerics == NUMERICS_F32 ? KV_F32 : KV_PACKED,
        .numerics = opt->numerics,
        .engram = opt->engram,
    };
    if (b->device)
        k->kv_memory = (kv_memory){.owner = k,
                                   .state_new = state_new,
                                   .state_free = state_free,
                                   .table_new = table_new,
                                   .table_free = table_free};
    else
        DI_TRY(pool_new(&k->pool, opt->n_threads, st));
    *out = k;
    k = NULL;
done:
    kernels_close(k);
    return rc;
}

const kv_memory *kernels_kv_memory(const kernels *k)
{
    return k->kv_memory.owner ? &k->kv_memory : NULL;
}

void kernels_close(kernels *k)
{
    if (!k)
        return;
    k->ops->close(k);
    pool_free(k->pool);
    mem_free(k);
}
