/* The operation table of the scalar back end, its scratch and its buffers.
 *
 * Scratch is reserved once for kernel_limits and only grows: reserve() may be called again. */
#include "kernels/ref/ref.h"

#include "base/mem.h"
#include "kernels/host.h"

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* What one thread needs of its float scratch: the largest user. */
static size_t floats_needed(const kernel_limits *l, size_t max_keys)
{
    size_t head_dim = (size_t)l->head_dim, heads = (size_t)l->index_heads;
    size_t idim = (size_t)l->index_dim, n;

    n = max_keys * (head_dim + 1);                /* attention: keys, probabilities */
    n = max_size(n, heads * idim + heads + idim); /* index: queries, head weights, one key */
    n = max_size(n, (size_t)l->hidden);           /* hc: a collapsed row */
    n = max_size(n, max_size(head_dim, idim));    /* qkv, compress: one row */
    n = max_size(n, (size_t)l->vocab);            /* sample: filtered logits */
    if (l->cand_block > 0)                        /* select: scores of blocks */
        n = max_size(n, (size_t)(l->context / l->cand_block) + 1);
    return (n + 15) / 16 * 16;
}

static size_t row_doubles_needed(const kernel_limits *l)
{
    size_t n = max_size((size_t)l->max_linear_cols, (size_t)l->hidden * (size_t)(l->hc + 1));

    n = max_size(n, max_size((size_t)l->moe_inter, (size_t)l->head_dim));
    return (max_size(n, (size_t)l->index_dim) + 7) / 8 * 8;
}

static void free_scratch(ref_impl *impl)
{
    mem_free(impl->thread);
    mem_free(impl->rows);
    mem_free(impl->floats);
    mem_free(impl->ids);
    mem_free(impl->slot);
    mem_free(impl->first);
    mem_free(impl->h);
}

static size_t slots_needed(const kernel_limits *l)
{
    return (size_t)l->n_rows * (size_t)(l->n_active + 1);
}

static size_t keys_needed(const kernel_limits *l)
{
    return (size_t)l->window + max_size((size_t)l->index_topk, (size_t)l->n_rows);
}

static size_t ref_scratch_bytes(const kernels *k, const kernel_limits *l)
{
    size_t slots = slots_needed(l), per_thread;

    per_thread = sizeof(ref_scratch) + 2 * row_doubles_needed(l) * sizeof(double) +
                 floats_needed(l, keys_needed(l)) * sizeof(float) +
                 (size_t)l->vocab * sizeof(int32_t);
    return (size_t)(k->pool ? pool_n_threads(k->pool) : 1) * per_thread +
           slots * (sizeof(int32_t) + (size_t)l->moe_inter * sizeof(float)) +
           (size_t)l->n_experts * sizeof(int32_t);
}

static di_code alloc_scratch(ref_impl *impl, const kernel_limits *l)
{
    size_t n = (size_t)impl->n_threads, slots = slots_needed(l), vocab = (size_t)l->vocab;

    impl->max_keys = keys_needed(l);
    impl->thread_floats = floats_needed(l, impl->max_keys);
    impl->row_doubles = row_doubles_needed(l);
    impl->thread = mem_try_calloc(n, sizeof *impl->thread);
    impl->rows = mem_try_calloc(n * 2 * impl->row_doubles, sizeof *impl->rows);
    impl->floats = mem_try_calloc(n * impl->thread_floats, sizeof *impl->floats);
    impl->ids = mem_try_calloc(n * vocab + 1, sizeof *impl->ids);
    impl->slot = mem_try_calloc(slots + 1, sizeof *impl->slot);
    impl->first = mem_try_calloc((size_t)l->n_experts + 1, sizeof *impl->first);
    impl->h = mem_try_calloc(slots * (size_t)l->moe_inter + 1, sizeof *impl->h);
    if (!impl->thread || !impl->rows || !impl->floats || !impl->ids || !impl->slot ||
        !impl->first || !impl->h)
        return DI_E_NOMEM;
    for (size_t t = 0; t < n; t++) {
        impl->thread[t].row[0] = impl->rows + 2 * t * impl->row_doubles;
        impl->thread[t].row[1] = impl->thread[t].row[0] + impl->row_doubles;
        impl->thread[t].f = impl->floats + t * impl->thread_floats;
        impl->thread[t].id = impl->ids + t * vocab;
    }
    return DI_OK;
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* The larger of each: what was reserved stays enough. */
static void merge_limits(kernel_limits *a, const kernel_limits *b)
{
    a->n_rows = max_int(a->n_rows, b->n_rows);
    a->n_logit_rows = max_int(a->n_logit_rows, b->n_logit_rows);
    a->hidden = max_int(a->hidden, b->hidden);
    a->hc = max_int(a->hc, b->hc);
    a->n_heads = max_int(a->n_heads, b->n_heads);
    a->head_dim = max_int(a->head_dim, b->head_dim);
    a->window = max_int(a->window, b->window);
    a->max_linear_cols = max_int(a->max_linear_cols, b->max_linear_cols);
    a->moe_inter = max_int(a->moe_inter, b->moe_inter);
    a->n_experts = max_int(a->n_experts, b->n_experts);
    a->n_active = max_int(a->n_active, b->n_active);
    a->index_heads = max_int(a->index_heads, b->index_heads);
    a->index_dim = max_int(a->index_dim, b->index_dim);
    a->index_topk = max_int(a->index_topk, b->index_topk);
    if (b->cand_block > 0) /* smaller blocks are more blocks */
        a->cand_block =
            a->cand_block > 0 && a->cand_block < b->cand_block ? a->cand_block : b->cand_block;
    a->context = a->context > b->context ? a->context : b->context;
    a->vocab = max_int(a->vocab, b->vocab);
}

static di_code ref_reserve(kernels *k, const kernel_limits *lim, di_status *st)
{
    ref_impl *impl = k->impl;

    if (!impl) {
        k->impl = impl = mem_try_calloc(1, sizeof *impl);
        if (!impl)
            return di_fail(st, DI_E_NOMEM, "no memory for back end \"ref\"");
        impl->n_threads = k->pool ? pool_n_threads(k->pool) : 1;
        for (unsigned i = 0; i < 256; i++)
            impl->e4m3[i] = e4m3_to_f32((uint8_t)i);
    }
    merge_limits(&impl->limits, lim);
    free_scratch(impl);
    if (alloc_scratch(impl, &impl->limits) != DI_OK)
        return di_fail(st, DI_E_NOMEM, "no memory for the scratch of back end \"ref\"");
    return DI_OK;
}

static size_t ref_q8_row_bytes(const kernels *k, int cols)
{
    (void)k;
    return (size_t)cols * sizeof(float);
}

static void *ref_buf_new(kernels *k, size_t bytes)
{
    (void)k;
    return mem_try_resident(bytes, 64);
}

static void ref_buf_free(kernels *k, void *buf)
{
    (void)k;
    mem_free(buf);
}

static void ref_put(kernels *k, void *dst, const void *host, size_t bytes)
{
    (void)k;
    memcpy(dst, host, bytes);
}

static void ref_get(kernels *k, void *host, const void *src, size_t bytes)
{
    (void)k;
    memcpy(host, src, bytes);
}

static void ref_put_act(kernels *k, void *dst, const float *host, size_t n)
{
    float *act = dst;

    for (size_t i = 0; i < n; i++)
        act[i] = ref_round(k, host[i]);
}

static void ref_get_act(kernels *k, float *host, const void *src, size_t n)
{
    (void)k;
    memcpy(host, src, n * sizeof *host);
}

static di_code ref_finish(kernels *k, di_status *st)
{
    (void)k; /* every operation is done when it returns */
    (void)st;
    return DI_OK;
}

static void ref_close(kernels *k)
{
    ref_impl *impl = k->impl;

    if (!impl)
        return;
    free_scratch(impl);
    mem_free(impl);
    k->impl = NULL;
}

const kernel_ops *kernels_ref(void)
{
    static const kernel_ops ops = {
        .name = "ref",
        .load = ref_load,
        .load_experts = ref_load_experts,
        .unload = ref_unload,
        .weight_bytes = ref_weight_bytes,
        .experts_bytes = ref_experts_bytes,
        .scratch_bytes = ref_scratch_bytes,
        .reserve = ref_reserve,
        .q8_row_bytes = ref_q8_row_bytes,
        .buf_new = ref_buf_new,
        .buf_free = ref_buf_free,
        .shared_new = host_shared_new,
        .shared_free = host_shared_free,
        .put = ref_put,
        .get = ref_get,
        .put_act = ref_put_act,
        .get_act = ref_get_act,
        .gather = ref_gather,
        .rope_rows = ref_rope_rows,
        .keep_rows = host_keep_rows,
        .engram_gather = ref_engram_gather,
        .engram_apply = ref_engram_apply,
        .hc = ref_hc,
        .tap = ref_tap,
        .quantize = ref_quantize,
        .linear = ref_linear,
        .qkv = ref_qkv,
        .compress_pool = ref_compress_pool,
        .compress_store = ref_compress_store,
        .index_scores = ref_index_scores,
        .select = ref_select,
        .attention = ref_attention,
        .ring_commit = ref_ring_commit,
        .route = ref_route,
        .experts = ref_moe,
        .confidence = ref_confidence,
        .sample = ref_sample,
        .logprobs = ref_logprobs,
        .finish = ref_finish,
        .copy = host_copy,
        .memory_free = host_memory_free,
        .counters = host_counters,
        .close = ref_close,
    };

    return &ops;
}
