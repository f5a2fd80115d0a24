/* The operation table of the CUDA back end: memory, weights, errors. Host C; the only exported name
 * is deepinfer_cuda_open. */
#include "kernels/cuda/cuda_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "formats/scalar.h"
#include "kernels/cuda/library.h"
#include "kernels/kernels.h"

#define ALIGN 256

static size_t aligned(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

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
    c->n_launches++;
    cuda_note(c, cudaGetLastError(), what);
}

static di_code device_error(di_status *st, cudaError_t e, const char *what)
{
    cudaGetLastError(); /* forget it, unless it is one that stays */
    return di_fail(st, e == cudaErrorMemoryAllocation ? DI_E_NOMEM : DI_E_DEVICE,
                   "the GPU failed in %s: %s", what, cudaGetErrorString(e));
}

#define CU_TRY(call, what)                                                                         \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            rc = device_error(st, e_, what);                                                       \
            goto done;                                                                             \
        }                                                                                          \
    } while (0)

static di_code op_finish(kernels *k, di_status *st)
{
    cuda_impl *c = k->impl;
    di_code rc = DI_OK;

    cuda_note(c, cudaStreamSynchronize(c->stream), "an operation");
    if (c->error != cudaSuccess)
        rc = device_error(st, c->error, c->where);
    c->error = cudaSuccess;
    return rc;
}

/* ---- life ---- */

static void op_close(kernels *k)
{
    cuda_impl *c = k->impl;

    if (!c)
        return;
    if (c->stream)
        cudaStreamSynchronize(c->stream);
    cudaFree(c->mem);
    cudaFreeHost(c->s.stage_host);
    if (c->s.staged)
        cudaEventDestroy(c->s.staged);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    mem_free(c);
    k->impl = NULL;
}

/* The back end's state, made at the first need. */
static di_code need_impl(kernels *k, di_status *st)
{
    di_code rc = DI_OK;
    cuda_impl *c;

    if (k->impl)
        return DI_OK;
    k->impl = c = mem_try_calloc(1, sizeof *c);
    if (!c)
        return di_fail(st, DI_E_NOMEM, "no memory for back end \"cuda\"");
    CU_TRY(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "making a stream");
    CU_TRY(cudaEventCreateWithFlags(&c->s.staged, cudaEventDisableTiming), "making an event");
done:
    if (rc)
        op_close(k);
    return rc;
}

/* ---- scratch ---- */

typedef struct scratch_sizes {
    size_t slot, first, h, ye, z, stage;
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

    return (scratch_sizes){.slot = aligned(slots * sizeof(int32_t)),
                           .first = aligned(((size_t)l->n_experts + 1) * sizeof(int32_t)),
                           .h = aligned(slots * (size_t)l->moe_inter * sizeof(uint16_t)),
                           .ye = aligned(slots * (size_t)l->hidden * sizeof(uint16_t)),
                           .z = aligned((size_t)l->n_logit_rows * (size_t)l->vocab * sizeof(float)),
                           .stage = aligned(stage_needed(l))};
}

static size_t total(const scratch_sizes *z)
{
    return z->slot + z->first + z->h + z->ye + z->z + z->stage;
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

    DI_TRY(need_impl(k, st));
    c = k->impl;
    CU_TRY(cudaStreamSynchronize(c->stream), "an operation");
    cudaFree(c->mem);
    cudaFreeHost(c->s.stage_host);
    c->mem = c->s.stage_host = NULL;
    CU_TRY(cudaMalloc(&c->mem, total(&z)), "reserving scratch");
    CU_TRY(cudaHostAlloc((void **)&c->s.stage_host, z.stage, cudaHostAllocDefault),
           "reserving pinned memory");
    at = c->mem;
    c->s.slot = carve(&at, z.slot);
    c->s.first = carve(&at, z.first);
    c->s.h = carve(&at, z.h);
    c->s.ye = carve(&at, z.ye);
    c->s.z = carve(&at, z.z);
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

/* ---- weights ---- */

static int64_t rows_of(const weight_src *s)
{
    return s->part[0].rows + (s->n_parts > 1 ? s->part[1].rows : 0);
}

static size_t element_bytes(weight_kind kind)
{
    if (kind == WEIGHT_FP8 || kind == WEIGHT_FP8_TABLE)
        return 1;
    return kind == WEIGHT_VEC_F32 || kind == WEIGHT_F32 ? 4 : 2;
}

static size_t data_bytes(weight_kind kind, int64_t rows, int64_t cols)
{
    return (size_t)rows * (size_t)cols * element_bytes(kind);
}

static size_t scale_bytes(weight_kind kind, int64_t rows, int64_t cols)
{
    if (kind == WEIGHT_FP8)
        return (size_t)((rows + Q8_COLS - 1) / Q8_COLS) * (size_t)((cols + Q8_COLS - 1) / Q8_COLS);
    return kind == WEIGHT_FP8_TABLE ? (size_t)rows * (size_t)(cols / Q8_COLS) : 0;
}

static size_t op_weight_bytes(const kernels *k, const weight_src *s)
{
    size_t n = aligned(data_bytes(s->kind, rows_of(s), s->cols));

    (void)k;
    for (int i = 0; i < s->n_parts; i++)
        n += scale_bytes(s->kind, s->part[i].rows, s->cols);
    return aligned(n);
}

static void op_unload(kernels *k, weight *w)
{
    (void)k;
    if (!w)
        return;
    cudaFree(w->mem);
    mem_free(w->experts);
    mem_free(w);
}

/* Copy what the file holds to *at, and move on. The file's pages may be dropped afterwards. */
static cudaError_t upload(const kernels *k, uint8_t **at, const void *from, size_t bytes)
{
    const cuda_impl *c = k->impl;
    cudaError_t e = cudaMemcpyAsync(*at, from, bytes, cudaMemcpyHostToDevice, c->stream);

    *at += bytes;
    return e;
}

static di_code op_load(kernels *k, const weight_src *s, weight **out, di_status *st)
{
    di_code rc = DI_OK;
    weight *w = mem_try_calloc(1, sizeof *w);
    uint8_t *at;

    *out = NULL;
    if (!w)
        return di_fail(st, DI_E_NOMEM, "no memory for weight \"%s\"", s->name);
    DI_TRY(need_impl(k, st));
    w->kind = s->kind;
    w->cols = s->cols;
    w->rows = rows_of(s);
    w->rows0 = s->part[0].rows;
    CU_TRY(cudaMalloc(&w->mem, op_weight_bytes(k, s)), s->name);
    w->data = at = w->mem;
    for (int i = 0; i < s->n_parts; i++)
        CU_TRY(upload(k, &at, s->part[i].data, data_bytes(s->kind, s->part[i].rows, s->cols)),
               s->name);
    w->scale = at = (uint8_t *)w->mem + aligned(data_bytes(s->kind, w->rows, w->cols));
    for (int i = 0; i < s->n_parts; i++)
        CU_TRY(upload(k, &at, s->part[i].scale, scale_bytes(s->kind, s->part[i].rows, s->cols)),
               s->name);
    *out = w;
    w = NULL;
done:
    op_unload(k, w);
    return rc;
}

static size_t op_experts_bytes(const kernels *k, const experts_src *s)
{
    size_t one = (size_t)s->hidden * (size_t)s->inter, n = (size_t)s->n_experts;

    (void)k;
    return 3 * (aligned(n * one / 2) + aligned(n * one / Q8_COLS) + aligned(one) +
                aligned(scale_bytes(WEIGHT_FP8, s->hidden, s->inter)));
}

/* Matrix m of all routed experts and of the shared one. */
static cudaError_t upload_matrix(const kernels *k, cuda_experts *x, int m, const fp4_part *part,
                                 const weight_part *shared, uint8_t **at)
{
    size_t one = (size_t)x->hidden * (size_t)x->inter;
    int64_t cols = m == 2 ? x->inter : x->hidden;
    cudaError_t e = cudaSuccess;
    uint8_t *to = *at;

    x->code[m] = to;
    for (int i = 0; i < x->n_experts && !e; i++)
        e = upload(k, &to, part[i].data, one / 2);
    x->scale[m] = to = *at += aligned((size_t)x->n_experts * one / 2);
    for (int i = 0; i < x->n_experts && !e; i++)
        e = upload(k, &to, part[i].scale, one / Q8_COLS);
    to = *at += aligned((size_t)x->n_experts * one / Q8_COLS);
    x->shared[m] = (weight){.kind = WEIGHT_FP8,
                            .rows = shared->rows,
                            .rows0 = shared->rows,
                            .cols = cols,
                            .data = to,
                            .scale = to + aligned(one)};
    if (!e)
        e = upload(k, &to, shared->data, one);
    to = *at += aligned(one);
    if (!e)
        e = upload(k, &to, shared->scale, scale_bytes(WEIGHT_FP8, shared->rows, cols));
    *at += aligned(scale_bytes(WEIGHT_FP8, x->hidden, x->inter));
    return e;
}

static di_code op_load_experts(kernels *k, const experts_src *s, weight **out, di_status *st)
{
    const fp4_part *part[3] = {s->w1, s->w3, s->w2};
    const weight_part *shared[3] = {&s->shared_w1, &s->shared_w3, &s->shared_w2};
    di_code rc = DI_OK;
    weight *w = mem_try_calloc(1, sizeof *w);
    cuda_experts *x = mem_try_calloc(1, sizeof *x);
    uint8_t *at;

    *out = NULL;
    if (!w || !x) {
        mem_free(w);
        mem_free(x);
        return di_fail(st, DI_E_NOMEM, "no memory for the experts \"%s\"", s->name);
    }
    w->experts = x;
    DI_TRY(need_impl(k, st));
    *x = (cuda_experts){.n_experts = s->n_experts, .hidden = s->hidden, .inter = s->inter};
    CU_TRY(cudaMalloc(&w->mem, op_experts_bytes(k, s)), s->name);
    at = w->mem;
    for (int m = 0; m < 3; m++)
        CU_TRY(upload_matrix(k, x, m, part[m], shared[m], &at), s->name);
    *out = w;
    w = NULL;
done:
    op_unload(k, w);
    return rc;
}

/* ---- buffers ---- */

static void *op_buf_new(kernels *k, size_t bytes)
{
    cuda_impl *c;
    void *p = NULL;

    if (need_impl(k, NULL) || cudaMalloc(&p, bytes) != cudaSuccess) {
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

    if (c)
        cudaStreamSynchronize(c->stream);
    cudaFree(p);
}

/* Pinned: the device reads it over the bus, at the same address. */
static void *op_shared_new(kernels *k, size_t bytes)
{
    void *p = NULL;

    if (need_impl(k, NULL) || cudaHostAlloc(&p, bytes, cudaHostAllocDefault) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    memset(p, 0, bytes);
    return p;
}

static void op_shared_free(kernels *k, void *p)
{
    cuda_impl *c = k->impl;

    if (c)
        cudaStreamSynchronize(c->stream);
    cudaFreeHost(p);
}

/* The host's bytes are taken before the call returns: they are pageable memory. */
static void op_put(kernels *k, void *dst, const void *host, size_t bytes)
{
    cuda_impl *c = k->impl;

    cuda_note(c, cudaMemcpyAsync(dst, host, bytes, cudaMemcpyHostToDevice, c->stream), "a copy");
}

static void op_get(kernels *k, void *host, const void *src, size_t bytes)
{
    cuda_impl *c = k->impl;

    cuda_note(c, cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, c->stream), "a copy");
    cuda_note(c, cudaStreamSynchronize(c->stream), "a copy");
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

/* ---- operations: nothing is launched for no rows ---- */

#define OP(name, fn, rows)                                                                         \
    static void op_##name(kernels *k, const name##_args *a)                                        \
    {                                                                                              \
        if ((rows) > 0)                                                                            \
            fn(k->impl, a);                                                                        \
    }
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

static uint64_t op_n_launches(const kernels *k)
{
    const cuda_impl *c = k->impl;

    return c ? c->n_launches : 0;
}

static const kernel_ops ops = {
    .name = "cuda",
    .load = op_load,
    .load_experts = op_load_experts,
    .unload = op_unload,
    .weight_bytes = op_weight_bytes,
    .experts_bytes = op_experts_bytes,
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
    .n_launches = op_n_launches,
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
