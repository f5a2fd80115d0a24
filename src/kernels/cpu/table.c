/* The operation table of one instruction set, and what is not an operation: scratch, buffers,
 * copies. Device memory is host memory. */
#include "kernels/cpu/cpu_internal.h"

#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "formats/scalar.h"
#include "kernels/host.h"

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t round_up(size_t n)
{
    return (n + 4095) / 4096 * 4096;
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* The larger of each: what was reserved stays enough. */
static kernel_limits merge_limits(const kernel_limits *a, const kernel_limits *b)
{
    return (kernel_limits){
        .n_rows = max_int(a->n_rows, b->n_rows),
        .n_logit_rows = max_int(a->n_logit_rows, b->n_logit_rows),
        .hidden = max_int(a->hidden, b->hidden),
        .hc = max_int(a->hc, b->hc),
        .n_heads = max_int(a->n_heads, b->n_heads),
        .head_dim = max_int(a->head_dim, b->head_dim),
        .window = max_int(a->window, b->window),
        .max_linear_cols = max_int(a->max_linear_cols, b->max_linear_cols),
        .moe_inter = max_int(a->moe_inter, b->moe_inter),
        .n_experts = max_int(a->n_experts, b->n_experts),
        .n_active = max_int(a->n_active, b->n_active),
        .index_heads = max_int(a->index_heads, b->index_heads),
        .index_dim = max_int(a->index_dim, b->index_dim),
        .index_topk = max_int(a->index_topk, b->index_topk),
        .cand_blocks = max_int(a->cand_blocks, b->cand_blocks),
        .cand_block = max_int(a->cand_block, b->cand_block),
        .context = a->context > b->context ? a->context : b->context,
        .vocab = max_int(a->vocab, b->vocab),
    };
}

static size_t thread_bytes(const kernel_limits *lim)
{
    size_t n = max_size(CPU_FN(linear_thread_bytes)(lim), CPU_FN(experts_thread_bytes)(lim));

    return round_up(max_size(n, CPU_FN(rows_thread_bytes)(lim)));
}

static size_t shared_bytes(const kernel_limits *lim, int n_threads)
{
    return round_up(
        max_size(CPU_FN(experts_shared_bytes)(lim), CPU_FN(rows_shared_bytes)(lim, n_threads)));
}

static size_t all_bytes(size_t thread, size_t shared, int n_threads)
{
    size_t bytes;

    return size_mul(thread, (size_t)n_threads, &bytes) && size_add(bytes, shared, &bytes)
               ? mem_aligned_bytes(bytes)
               : SIZE_MAX;
}

static size_t scratch_bytes(const kernels *k, const kernel_limits *lim)
{
    int n = cpu_threads(k);

    return all_bytes(thread_bytes(lim), shared_bytes(lim, n), n);
}

static di_code reserve(kernels *k, const kernel_limits *asked, di_status *st)
{
    cpu_impl *c = k->impl;
    kernel_limits all = c ? merge_limits(&c->lim, asked) : *asked;
    const kernel_limits *lim = &all;
    int n_threads = cpu_threads(k);
    size_t thread = thread_bytes(lim), shared = shared_bytes(lim, n_threads);
    uint8_t *scratch = NULL;

    if (!c)
        c = mem_try_calloc(1, sizeof *c);
    if (c)
        scratch = mem_try_resident(all_bytes(thread, shared, n_threads), 64);
    k->impl = c;
    if (!scratch)
        return di_fail(st, DI_E_NOMEM, "no memory for the scratch of %d rows a step", lim->n_rows);
    mem_free(c->scratch);
    *c = (cpu_impl){.lim = *lim,
                    .n_threads = n_threads,
                    .scratch = scratch,
                    .thread_bytes = thread,
                    .shared_bytes = shared,
                    .bf16_attention = cpu_get()->avx512_bf16_fast};
    return DI_OK;
}

static size_t q8_row_bytes(const kernels *k, int cols)
{
    (void)k;
    return (size_t)cols * sizeof(uint16_t);
}

static void *buf_new(kernels *k, size_t bytes)
{
    (void)k;
    return mem_try_resident(bytes, 64);
}

static void buf_free(kernels *k, void *buf)
{
    (void)k;
    mem_free(buf);
}

static void put(kernels *k, void *dst, const void *host, size_t bytes)
{
    (void)k;
    memcpy(dst, host, bytes);
}

static void get(kernels *k, void *host, const void *src, size_t bytes)
{
    (void)k;
    memcpy(host, src, bytes);
}

static void put_act(kernels *k, void *dst, const float *host, size_t n)
{
    uint16_t *to = dst;

    (void)k;
    for (size_t i = 0; i < n; i++)
        to[i] = bf16_from_f32(host[i]);
}

static void get_act(kernels *k, float *host, const void *src, size_t n)
{
    const uint16_t *from = src;

    (void)k;
    for (size_t i = 0; i < n; i++)
        host[i] = bf16_to_f32(from[i]);
}

static di_code finish(kernels *k, di_status *st)
{
    (void)k;
    (void)st;
    return DI_OK;
}

static void close_impl(kernels *k)
{
    cpu_impl *c = k->impl;

    if (c)
        mem_free(c->scratch);
    mem_free(c);
    k->impl = NULL;
}

static const kernel_ops ops = {
#if defined(CPU_AVX512)
    .name = "avx512",
#else
    .name = "avx2",
#endif
    .load = CPU_FN(cpu_load),
    .load_experts = CPU_FN(cpu_load_experts),
    .unload = CPU_FN(cpu_unload),
    .weight_bytes = CPU_FN(cpu_weight_bytes),
    .experts_bytes = CPU_FN(cpu_experts_bytes),
    .scratch_bytes = scratch_bytes,
    .reserve = reserve,
    .q8_row_bytes = q8_row_bytes,
    .buf_new = buf_new,
    .buf_free = buf_free,
    .shared_new = host_shared_new,
    .shared_free = host_shared_free,
    .put = put,
    .get = get,
    .put_act = put_act,
    .get_act = get_act,
    .gather = CPU_FN(cpu_gather),
    .rope_rows = CPU_FN(cpu_rope_rows),
    .keep_rows = host_keep_rows,
    .engram_gather = CPU_FN(cpu_engram_gather),
    .engram_apply = CPU_FN(cpu_engram_apply),
    .hc = CPU_FN(cpu_hc),
    .tap = CPU_FN(cpu_tap),
    .quantize = CPU_FN(cpu_quantize),
    .linear = CPU_FN(cpu_linear),
    .qkv = CPU_FN(cpu_qkv),
    .compress_pool = CPU_FN(cpu_compress_pool),
    .compress_store = CPU_FN(cpu_compress_store),
    .index_scores = CPU_FN(cpu_index_scores),
    .select = CPU_FN(cpu_select),
    .attention = CPU_FN(cpu_attention),
    .ring_commit = CPU_FN(cpu_ring_commit),
    .route = CPU_FN(cpu_route),
    .experts = CPU_FN(cpu_experts),
    .confidence = CPU_FN(cpu_confidence),
    .sample = CPU_FN(cpu_sample),
    .logprobs = CPU_FN(cpu_logprobs),
    .finish = finish,
    .copy = host_copy,
    .memory_free = host_memory_free,
    .counters = host_counters,
    .close = close_impl,
};

#if defined(CPU_AVX512)
const kernel_ops *kernels_avx512(void)
{
    const cpu_features *f = cpu_get();

    return f->avx512 && f->avx512_bf16 && f->avx512_vnni ? &ops : NULL;
}
#else
const kernel_ops *kernels_avx2(void)
{
    return cpu_get()->avx2 ? &ops : NULL;
}
#endif
