/* The operation table of the CUDA back end: memory, weights, errors. Host C; the only exported name
 * is deepinfer_cuda_open. */
#include "kernels/cuda/cuda_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "formats/scalar.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/loader.h"

/* ---- errors ---- */

void cuda_note(cuda_impl *c, cudaError_t e, const char *what)
{
    if (e == cudaSuccess || c->error != cudaSuccess)
        return;
    c->error = e;
    c->where = what;
}

void cuda_launched(cuda_impl *c, const char *what)
{
    c->count.launches++;
    cuda_note(c, cudaGetLastError(), what);
}

di_code cuda_error(di_status *st, cudaError_t e, const char *what)
{
    cudaGetLastError(); /* forget it, unless it is one that stays */
    return di_fail(st, e == cudaErrorMemoryAllocation ? DI_E_NOMEM : DI_E_DEVICE,
                   "the GPU failed in %s: %s", what, cudaGetErrorString(e));
}

/* Busy time. Work that is asked for is between `begun` and `ended`; who reads the counters without
 * having waited for it (copies behind a step) ends the span, too, so that what the host does until
 * more is asked for does not count. How long it was shows later, when the device has passed its
 * end.
 *
 *   SPAN_NONE -begin-> SPAN_OPEN -counters-> SPAN_ENDED
 *   SPAN_OPEN, SPAN_ENDED -wait-> SPAN_NONE
 *   SPAN_ENDED -begin-> SPAN_OPEN: the same one while the device is still at it, else a new one */

static void add_span(cuda_impl *c)
{
    float ms = 0;

    if (c->span != SPAN_NONE && cudaEventElapsedTime(&ms, c->begun, c->ended) == cudaSuccess)
        c->count.busy_ns += (uint64_t)((double)ms * 1e6);
    c->span = SPAN_NONE;
}

static void end_span(cuda_impl *c, const char *what)
{
    if (c->span == SPAN_OPEN)
        cuda_note(c, cudaEventRecord(c->ended, c->stream), what);
}

/* Work is asked for. */
static void begin(cuda_impl *c)
{
    if (c->span == SPAN_ENDED) {
        if (cudaEventQuery(c->ended) == cudaSuccess)
            add_span(c);
        cudaGetLastError(); /* "not ready" is no error */
    }
    if (c->span == SPAN_NONE)
        cuda_note(c, cudaEventRecord(c->begun, c->stream), "an event");
    c->span = SPAN_OPEN;
}

/* Wait for all of it, and add up how long that was. */
static void wait_for_all(cuda_impl *c, const char *what)
{
    end_span(c, what);
    cuda_note(c, cudaStreamSynchronize(c->stream), what);
    add_span(c);
}

static di_code op_finish(kernels *k, di_status *st)
{
    cuda_impl *c = k->impl;
    di_code rc = DI_OK;

    wait_for_all(c, "an operation");
    if (c->error != cudaSuccess)
        rc = cuda_error(st, c->error, c->where);
    c->error = cudaSuccess;
    return rc;
}

/* ---- life ---- */

static int n_processors(void)
{
    int n = 0;

    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0);
    return n;
}

static void op_close(kernels *k)
{
    cuda_impl *c = k->impl;

    if (!c)
        return;
    loader_free(c->loader);
    if (c->stream)
        cudaStreamSynchronize(c->stream);
    cudaFree(c->mem);
    cudaFreeHost(c->s.stage_host);
    cuda_forget_graphs(c);
    for (int i = 0; i < 3; i++) {
        cudaEvent_t e = (cudaEvent_t[]){c->s.staged, c->begun, c->ended}[i];

        if (e)
            cudaEventDestroy(e);
    }
    if (c->stream)
        cudaStreamDestroy(c->stream);
    mem_free(c);
    k->impl = NULL;
}

/* The back end's state, made at the first need. */
di_code cuda_need_impl(kernels *k, di_status *st)
{
    di_code rc = DI_OK;
    cuda_impl *c;

    if (k->impl)
        return DI_OK;
    k->impl = c = mem_try_calloc(1, sizeof *c);
    if (!c)
        return di_fail(st, DI_E_NOMEM, "no memory for back end \"cuda\"");
    CU_TRY(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "making a stream");
    c->n_processors = n_processors();
    CU_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &c->encode, 12000,
                                            cudaEnableDefault, NULL),
           "looking for a function of the driver");
    CU_TRY(cudaEventCreateWithFlags(&c->s.staged, cudaEventDisableTiming), "making an event");
    CU_TRY(cudaEventCreate(&c->begun), "making an event");
    CU_TRY(cudaEventCreate(&c->ended), "making an event");
    c->no_graphs = getenv("DI_NO_GRAPHS") != NULL; /* NOLINT(concurrency-mt-unsafe) */
done:
    if (rc)
        op_close(k);
    return rc;
}

/* ---- scratch ---- */

typedef struct scratch_sizes {
    size_t tile, slot, slot_weight, query, query_w, query_n, group, tops, pos, part, first, h, ye,
        z, best, done, stage, meet;
} scratch_sizes;

/* What sample() points at: room for the worst row, and for plain rows with a mask each. */
static size_t stage_needed(const kernel_limits *l)
{
    size_t vocab = (size_t)l->vocab, mask = vocab / 8 + 16;

    return vocab * sizeof(logit_adjust) + mask + 1024 +
           (size_t)l->n_logit_rows * (sizeof(sample_row) + mask);
}

static scratch_sizes sizes_of(const kernel_limits *l)
{
    size_t rows = (size_t)l->n_rows, slots = rows * (size_t)(l->n_active + 1);
    size_t one_row = (size_t)l->context / 8 + 1024, many = (size_t)2 << 20; /* tops of scores */

    return (scratch_sizes){
        .tile = cuda_aligned((slots / 8 + (size_t)l->n_experts + 2) * 8),
        .slot = cuda_aligned(slots * sizeof(int32_t)),
        .slot_weight = cuda_aligned(slots * sizeof(float)),
        .pos = cuda_aligned(slots * sizeof(int32_t)),
        .query = cuda_aligned(rows * 32 * 128 * sizeof(uint16_t)),
        .query_w = cuda_aligned(rows * 32 * sizeof(float)),
        .query_n = cuda_aligned(rows * sizeof(int32_t)),
        .group = cuda_aligned((rows + 1) * 4 * sizeof(int32_t)),
        .tops = cuda_aligned((one_row > many ? one_row : many) * sizeof(float)),
        .meet = cuda_aligned(2 * sizeof(uint32_t)),
        .part = cuda_part_bytes(n_processors()),
        .first = cuda_aligned(((size_t)l->n_experts + 1) * sizeof(int32_t)),
        .h = cuda_aligned(slots * (size_t)l->moe_inter * sizeof(uint16_t)),
        .ye = cuda_aligned(slots * (size_t)l->hidden * sizeof(uint16_t)),
        .z = cuda_aligned((size_t)l->n_logit_rows * (size_t)l->vocab * sizeof(float)),
        .best = cuda_aligned(cuda_sample_bytes(l->n_logit_rows)),
        .done = cuda_aligned((size_t)l->n_logit_rows * sizeof(uint32_t)),
        .stage = cuda_aligned(stage_needed(l))};
}

static size_t total(const scratch_sizes *z)
{
    return z->tile + z->slot + z->slot_weight + z->query + z->query_w + z->query_n + z->group +
           z->tops + z->pos + z->meet + z->part + z->first + z->h + z->ye + z->z + z->best +
           z->done + z->stage;
}

static size_t op_scratch_bytes(const kernels *k, const kernel_limits *l)
{
    scratch_sizes z = sizes_of(l);

    (void)k;
    return total(&z);
}

static void *carve(uint8_t **at, size_t bytes)
{
    void *p = *at;

    *at += bytes;
    return p;
}

/* Scratch for these limits. A second call asks for all that the first did. */
static di_code op_reserve(kernels *k, const kernel_limits *l, di_status *st)
{
    scratch_sizes z = sizes_of(l);
    di_code rc = DI_OK;
    cuda_impl *c;
    uint8_t *at = NULL;

    DI_TRY(cuda_need_impl(k, st));
    c = k->impl;
    CU_TRY(cudaStreamSynchronize(c->stream), "an operation");
    cuda_forget_graphs(c);
    cudaFree(c->mem);
    cudaFreeHost(c->s.stage_host);
    c->mem = c->s.stage_host = NULL;
    CU_TRY(cudaMalloc(&c->mem, total(&z)), "reserving scratch");
    CU_TRY(cudaHostAlloc((void **)&c->s.stage_host, z.stage, cudaHostAllocDefault),
           "reserving pinned memory");
    at = c->mem;
    c->s.tile = carve(&at, z.tile);
    c->s.n_max_tiles = (int)(z.tile / 8) - 1;
    c->s.slot = carve(&at, z.slot);
    c->s.slot_weight = carve(&at, z.slot_weight);
    c->s.query = carve(&at, z.query);
    c->s.query_w = carve(&at, z.query_w);
    c->s.query_n = carve(&at, z.query_n);
    c->s.group = carve(&at, z.group);
    c->s.tops = carve(&at, z.tops);
    c->s.n_tops = z.tops / sizeof(float);
    c->s.pos = carve(&at, z.pos);
    c->s.meet = carve(&at, z.meet);
    CU_TRY(cudaMemsetAsync(c->s.meet, 0, z.meet, c->stream), "reserving scratch");
    c->s.part = carve(&at, z.part);
    c->s.first = carve(&at, z.first);
    c->s.h = carve(&at, z.h);
    c->s.ye = carve(&at, z.ye);
    c->s.z = carve(&at, z.z);
    c->s.sample_best = carve(&at, z.best);
    c->s.sample_done = carve(&at, z.done);
    CU_TRY(cudaMemsetAsync(c->s.sample_done, 0, z.done, c->stream), "reserving scratch");
    c->s.stage = carve(&at, z.stage);
    c->s.stage_bytes = z.stage;
    c->max_keys = l->window + (l->index_topk > l->window ? l->index_topk : l->window);
done:
    return rc;
}

static size_t op_q8_row_bytes(const kernels *k, int cols)
{
    (void)k;
    return (size_t)cols * sizeof(uint16_t);
}

/* ---- buffers ---- */

static void *op_buf_new(kernels *k, size_t bytes)
{
    cuda_impl *c;
    void *p = NULL;

    if (cuda_need_impl(k, NULL) || cudaMalloc(&p, bytes) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    c = k->impl;
    cuda_note(c, cudaMemsetAsync(p, 0, bytes, c->stream), "clearing a buffer");
    return p;
}

static void op_buf_free(kernels *k, void *p)
{
    cuda_impl *c = k->impl;

    if (c) {
        cudaStreamSynchronize(c->stream);
        cuda_forget_graphs(c);
    }
    cudaFree(p);
}

/* Pinned: the device reads it over the bus, at the same address. */
static void *op_shared_new(kernels *k, size_t bytes)
{
    void *p = NULL;

    if (cuda_need_impl(k, NULL) || cudaHostAlloc(&p, bytes, cudaHostAllocDefault) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    memset(p, 0, bytes);
    return p;
}

static void op_shared_free(kernels *k, void *p)
{
    cuda_impl *c = k->impl;

    if (c) {
        cudaStreamSynchronize(c->stream);
        cuda_forget_graphs(c);
    }
    cudaFreeHost(p);
}

/* Pageable bytes are taken before the call returns, those of shared_new when it is their turn. */
static void op_put(kernels *k, void *dst, const void *host, size_t bytes)
{
    cuda_impl *c = k->impl;

    begin(c);
    cuda_note(c, cudaMemcpyAsync(dst, host, bytes, cudaMemcpyHostToDevice, c->stream), "a copy");
}

static void op_get(kernels *k, void *host, const void *src, size_t bytes)
{
    cuda_impl *c = k->impl;

    cuda_note(c, cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, c->stream), "a copy");
    wait_for_all(c, "a copy");
}

#define CHUNK ((size_t)8192)

static void op_put_act(kernels *k, void *dst, const float *host, size_t n)
{
    uint16_t part[CHUNK];

    for (size_t i = 0; i < n; i += CHUNK) {
        size_t m = n - i < CHUNK ? n - i : CHUNK;

        for (size_t j = 0; j < m; j++)
            part[j] = bf16_from_f32(host[i + j]);
        op_put(k, (uint16_t *)dst + i, part, m * sizeof *part);
    }
}

static void op_get_act(kernels *k, float *host, const void *src, size_t n)
{
    uint16_t part[CHUNK];

    for (size_t i = 0; i < n; i += CHUNK) {
        size_t m = n - i < CHUNK ? n - i : CHUNK;

        op_get(k, part, (const uint16_t *)src + i, m * sizeof *part);
        for (size_t j = 0; j < m; j++)
            host[i + j] = bf16_to_f32(part[j]);
    }
}

static void op_copy(kernels *k, const kv_copy *copies, int n)
{
    if (n == 0)
        return;
    begin(k->impl);
    cuda_copy(k->impl, copies, n);
}

static bool op_sample_stage(kernels *k, const sample_row *row, int n, int vocab)
{
    begin(k->impl);
    return cuda_sample_stage(k->impl, row, n, vocab);
}

static di_code op_peak(kernels *k, kernel_peak *out, di_status *st)
{
    struct cudaDeviceProp p;
    di_code rc = DI_OK;

    *out = (kernel_peak){.bytes = 0};
    DI_TRY(cuda_need_impl(k, st));
    CU_TRY(cudaGetDeviceProperties(&p, 0), "looking at the GPU");
    snprintf(out->name, sizeof out->name, "%.63s", p.name);
    cuda_peak(k->impl, &out->bytes, &out->flops);
    rc = op_finish(k, st);
done:
    return rc;
}

static uint64_t op_memory_free(kernels *k)
{
    size_t free_bytes = 0, all;

    (void)k;
    cudaMemGetInfo(&free_bytes, &all);
    cudaGetLastError();
    return free_bytes;
}

/* ---- operations: nothing is launched for no rows ---- */

#define OP(name, fn, rows)                                                                         \
    static void op_##name(kernels *k, const name##_args *a)                                        \
    {                                                                                              \
        if ((rows) > 0)                                                                            \
            fn(k->impl, a);                                                                        \
    }
OP(tables, cuda_tables, a->n_seqs)
OP(gather, cuda_gather, a->n)
OP(rope_rows, cuda_rope_rows, a->n)
OP(keep_rows, cuda_keep_rows, a->n)
OP(engram_gather, cuda_engram_gather, a->n)
OP(engram_apply, cuda_engram_apply, a->n)
OP(hc, cuda_hc, a->n)
OP(tap, cuda_tap, a->n)
OP(quantize, cuda_quantize, a->n)
OP(linear, cuda_linear, a->n)
OP(qkv, cuda_qkv, a->n)
OP(compress_pool, cuda_compress_pool, a->s->n_rows)
OP(compress_store, cuda_compress_store, a->g->n)
OP(index_scores, cuda_index_scores, a->n)
OP(select, cuda_select, a->n)
OP(attention, cuda_attention, a->s->n_rows)
OP(ring_commit, cuda_ring_commit, a->s->n_rows)
OP(route, cuda_route, a->n)
OP(experts, cuda_moe, a->n)
OP(confidence, cuda_confidence, a->n)
OP(sample, cuda_sample, a->n)
OP(logprobs, cuda_logprobs, a->n)

static kernel_counters op_counters(const kernels *k)
{
    cuda_impl *c = k->impl;

    if (!c)
        return (kernel_counters){0};
    if (c->span == SPAN_OPEN) {
        end_span(c, "an event");
        c->span = SPAN_ENDED;
    }
    return c->count;
}

static const kernel_ops ops = {
    .name = "cuda",
    .load_begin = cuda_load_begin,
    .load_end = cuda_load_end,
    .load = cuda_load,
    .load_experts = cuda_load_experts,
    .unload = cuda_unload,
    .weight_bytes = cuda_weight_bytes,
    .experts_bytes = cuda_experts_bytes,
    .scratch_bytes = op_scratch_bytes,
    .reserve = op_reserve,
    .q8_row_bytes = op_q8_row_bytes,
    .buf_new = op_buf_new,
    .buf_free = op_buf_free,
    .shared_new = op_shared_new,
    .shared_free = op_shared_free,
    .put = op_put,
    .get = op_get,
    .put_act = op_put_act,
    .get_act = op_get_act,
    .copy = op_copy,
    .memory_free = op_memory_free,
    .replay = cuda_replay,
    .recorded = cuda_recorded,
    .tables = op_tables,
    .sample_stage = op_sample_stage,
    .peak = op_peak,
    .gather = op_gather,
    .rope_rows = op_rope_rows,
    .keep_rows = op_keep_rows,
    .engram_gather = op_engram_gather,
    .engram_apply = op_engram_apply,
    .hc = op_hc,
    .tap = op_tap,
    .quantize = op_quantize,
    .linear = op_linear,
    .qkv = op_qkv,
    .compress_pool = op_compress_pool,
    .compress_store = op_compress_store,
    .index_scores = op_index_scores,
    .select = op_select,
    .attention = op_attention,
    .ring_commit = op_ring_commit,
    .route = op_route,
    .experts = op_experts,
    .confidence = op_confidence,
    .sample = op_sample,
    .logprobs = op_logprobs,
    .finish = op_finish,
    .counters = op_counters,
    .close = op_close,
};

const kernel_ops *deepinfer_cuda_open(size_t table_bytes, char *why, size_t why_bytes)
{
    struct cudaDeviceProp p;
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);

    if (table_bytes != sizeof ops)
        snprintf(why, why_bytes, "it belongs to another version of this program");
    else if (e != cudaSuccess || n == 0)
        snprintf(why, why_bytes, "%s", e ? cudaGetErrorString(e) : "there is no GPU");
    else if ((e = cudaGetDeviceProperties(&p, 0)) != cudaSuccess)
        snprintf(why, why_bytes, "%s", cudaGetErrorString(e));
    else if (p.major != 9)
        snprintf(why, why_bytes, "%s has compute capability %d.%d; 9.0 (Hopper) is needed", p.name,
                 p.major, p.minor);
    else
        return &ops;
    return NULL;
}
