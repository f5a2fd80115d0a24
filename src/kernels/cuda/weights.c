/* Weights on the device: as they are stored, or packed for the matrix units (gemm.cuh) where their
 * shape allows it. Packing runs on the device, from a copy of the stored bytes that is then freed.
 */
#include "base/mem.h"
#include "kernels/cuda/cuda_host.h"

static int64_t rows_of(const weight_src *s)
{
    return s->part[0].rows + (s->n_parts > 1 ? s->part[1].rows : 0);
}

static size_t data_bytes(weight_kind kind, int64_t rows, int64_t cols)
{
    size_t n = (size_t)rows * (size_t)cols;

    if (kind == WEIGHT_FP8 || kind == WEIGHT_FP8_TABLE)
        return n;
    return kind == WEIGHT_VEC_F32 || kind == WEIGHT_F32 ? 4 * n : 2 * n;
}

static size_t scale_bytes(weight_kind kind, int64_t rows, int64_t cols)
{
    if (kind == WEIGHT_FP8)
        return (size_t)((rows + Q8_COLS - 1) / Q8_COLS) * (size_t)((cols + Q8_COLS - 1) / Q8_COLS);
    return kind == WEIGHT_FP8_TABLE ? (size_t)rows * (size_t)(cols / Q8_COLS) : 0;
}

/* Kind of panels that a weight can have by its shape. */
static int shape_packs(const weight_src *s)
{
    if (s->kind == WEIGHT_F32 && cuda_can_pack_mix(rows_of(s), s->cols) && s->n_parts == 1)
        return PACK_MIX;
    if (!cuda_can_pack(rows_of(s), s->cols) || (s->n_parts > 1 && s->part[0].rows % Q8_COLS))
        return PACK_NONE;
    return s->kind == WEIGHT_FP8 ? PACK_FP8 : s->kind == WEIGHT_BF16 ? PACK_BF16 : PACK_NONE;
}

static size_t stored_bytes(const weight_src *s)
{
    size_t n = cuda_aligned(data_bytes(s->kind, rows_of(s), s->cols));

    for (int i = 0; i < s->n_parts; i++)
        n += scale_bytes(s->kind, s->part[i].rows, s->cols);
    return cuda_aligned(n);
}

static size_t packed_bytes(int pack, const weight_src *s)
{
    return cuda_aligned(pack == PACK_MIX ? cuda_mix_bytes(s->cols)
                                         : cuda_packed_bytes(pack, rows_of(s), s->cols));
}

size_t cuda_weight_bytes(const kernels *k, const weight_src *s)
{
    int pack = shape_packs(s);

    (void)k;
    return pack ? packed_bytes(pack, s) : stored_bytes(s);
}

void cuda_unload(kernels *k, weight *w)
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

/* The weight as it is stored, at mem. */
static cudaError_t upload_stored(const kernels *k, const weight_src *s, weight *w, void *mem)
{
    cudaError_t e = cudaSuccess;
    uint8_t *at = mem;

    w->data = at;
    for (int i = 0; i < s->n_parts && !e; i++)
        e = upload(k, &at, s->part[i].data, data_bytes(s->kind, s->part[i].rows, s->cols));
    w->scale = at = (uint8_t *)mem + cuda_aligned(data_bytes(s->kind, w->rows, w->cols));
    for (int i = 0; i < s->n_parts && !e; i++)
        e = upload(k, &at, s->part[i].scale, scale_bytes(s->kind, s->part[i].rows, s->cols));
    return e;
}

static bool scales_fit(const weight_src *s)
{
    bool fit = true;

    for (int i = 0; i < s->n_parts && s->kind == WEIGHT_FP8; i++)
        fit = fit && cuda_scales_fit(PACK_FP8, s->part[i].scale,
                                     scale_bytes(s->kind, s->part[i].rows, s->cols));
    return fit;
}

/* Panels from a copy that lives as long as the packing. */
static di_code load_packed(kernels *k, const weight_src *s, weight *w, di_status *st)
{
    cuda_impl *c = k->impl;
    di_code rc = DI_OK;
    weight stored = *w;
    void *copy = NULL;

    CU_TRY(cudaMalloc(&w->mem, packed_bytes(w->packed, s)), s->name);
    CU_TRY(cudaMalloc(&copy, stored_bytes(s)), s->name);
    CU_TRY(upload_stored(k, s, &stored, copy), s->name);
    if (w->packed == PACK_MIX)
        cuda_pack_mix(c, stored.data, w->cols, w->mem);
    else
        cuda_pack(c, w->packed, stored.data, stored.scale, NULL, NULL, w->rows, w->cols, w->mem);
    w->data = w->mem;
    CU_TRY(cudaStreamSynchronize(c->stream), s->name);
done:
    cudaFree(copy);
    return rc;
}

di_code cuda_load(kernels *k, const weight_src *s, weight **out, di_status *st)
{
    di_code rc = DI_OK;
    weight *w = mem_try_calloc(1, sizeof *w);

    *out = NULL;
    if (!w)
        return di_fail(st, DI_E_NOMEM, "no memory for weight \"%s\"", s->name);
    DI_TRY(cuda_need_impl(k, st));
    w->kind = s->kind;
    w->cols = s->cols;
    w->rows = rows_of(s);
    w->rows0 = s->part[0].rows;
    w->packed = scales_fit(s) ? shape_packs(s) : PACK_NONE;
    if (w->packed) {
        DI_TRY(load_packed(k, s, w, st));
    } else {
        CU_TRY(cudaMalloc(&w->mem, stored_bytes(s)), s->name);
        CU_TRY(upload_stored(k, s, w, w->mem), s->name);
    }
    *out = w;
    w = NULL;
done:
    cuda_unload(k, w);
    return rc;
}

/* ---- experts ---- */

/* One expert's matrices as stored: codes of w1, w3, w2, then their scales. */
typedef struct expert_sizes {
    size_t code, scale, shared_scale;
} expert_sizes;

static expert_sizes expert_sizes_of(const experts_src *s)
{
    size_t one = (size_t)s->hidden * (size_t)s->inter;

    return (expert_sizes){.code = one / 2,
                          .scale = one / Q8_COLS,
                          .shared_scale = scale_bytes(WEIGHT_FP8, s->hidden, s->inter)};
}

static bool experts_pack(const experts_src *s)
{
    return cuda_can_pack(s->hidden, s->inter) && cuda_can_pack(s->inter, s->hidden);
}

static bool expert_scales_fit(const experts_src *s)
{
    const fp4_part *part[3] = {s->w1, s->w3, s->w2};
    const weight_part *shared[3] = {&s->shared_w1, &s->shared_w3, &s->shared_w2};
    expert_sizes z = expert_sizes_of(s);
    bool fit = true;

    for (int m = 0; m < 3; m++) {
        for (int e = 0; e < s->n_experts; e++)
            fit = fit && cuda_scales_fit(PACK_FP4, part[m][e].scale, z.scale);
        fit = fit && cuda_scales_fit(PACK_FP8, shared[m]->scale, z.shared_scale);
    }
    return fit;
}

/* Bytes of the panels of one expert: w1 and w3, or w2. */
static size_t up_bytes(int pack, const experts_src *s)
{
    return cuda_packed_bytes(pack, 2 * s->inter, s->hidden);
}

static size_t down_bytes(int pack, const experts_src *s)
{
    return cuda_packed_bytes(pack, s->hidden, s->inter);
}

size_t cuda_experts_bytes(const kernels *k, const experts_src *s)
{
    expert_sizes z = expert_sizes_of(s);
    size_t n = (size_t)s->n_experts;

    (void)k;
    if (experts_pack(s))
        return n * (up_bytes(PACK_FP4, s) + down_bytes(PACK_FP4, s)) + up_bytes(PACK_FP8, s) +
               down_bytes(PACK_FP8, s);
    return 3 * (cuda_aligned(n * z.code) + cuda_aligned(n * z.scale) + cuda_aligned(2 * z.code) +
                cuda_aligned(z.shared_scale));
}

/* w1, w3 and w2 of one expert (codes of `code` bytes, then scales) -> panels at up and down. */
static cudaError_t pack_expert(kernels *k, int pack, const experts_src *s, const void *const *code,
                               const uint8_t *const *scale, size_t code_bytes, size_t n_scales,
                               uint8_t *copy, uint8_t *up, uint8_t *down)
{
    uint8_t *at = copy, *c[3], *z[3];
    cudaError_t e = cudaSuccess;

    for (int m = 0; m < 3 && !e; m++) {
        c[m] = at;
        e = upload(k, &at, code[m], code_bytes);
    }
    for (int m = 0; m < 3 && !e; m++) {
        z[m] = at;
        e = upload(k, &at, scale[m], n_scales);
    }
    if (e)
        return e;
    cuda_pack(k->impl, pack, c[0], z[0], c[1], z[1], 2 * s->inter, s->hidden, up);
    cuda_pack(k->impl, pack, c[2], z[2], NULL, NULL, s->hidden, s->inter, down);
    return cudaSuccess;
}

static di_code load_experts_packed(kernels *k, const experts_src *s, weight *w, di_status *st)
{
    cuda_impl *c = k->impl;
    cuda_experts *x = w->experts;
    expert_sizes z = expert_sizes_of(s);
    size_t up = up_bytes(PACK_FP4, s), down = down_bytes(PACK_FP4, s), n = (size_t)s->n_experts;
    di_code rc = DI_OK;
    void *copy = NULL;
    uint8_t *at;

    CU_TRY(cudaMalloc(&w->mem, cuda_experts_bytes(k, s)), s->name);
    CU_TRY(cudaMalloc(&copy, 3 * (2 * z.code + z.scale + z.shared_scale)), s->name);
    at = w->mem;
    for (size_t e = 0; e < n; e++) {
        const void *code[3] = {s->w1[e].data, s->w3[e].data, s->w2[e].data};
        const uint8_t *scale[3] = {s->w1[e].scale, s->w3[e].scale, s->w2[e].scale};

        CU_TRY(pack_expert(k, PACK_FP4, s, code, scale, z.code, z.scale, copy, at + e * up,
                           at + n * up + e * down),
               s->name);
    }
    x->up = at;
    x->down = at + n * up;
    x->shared_up = at + n * (up + down);
    x->shared_down = x->shared_up + up_bytes(PACK_FP8, s);
    CU_TRY(pack_expert(
               k, PACK_FP8, s,
               (const void *[3]){s->shared_w1.data, s->shared_w3.data, s->shared_w2.data},
               (const uint8_t *[3]){s->shared_w1.scale, s->shared_w3.scale, s->shared_w2.scale},
               2 * z.code, z.shared_scale, copy, at + n * (up + down),
               at + n * (up + down) + up_bytes(PACK_FP8, s)),
           s->name);
    CU_TRY(cudaStreamSynchronize(c->stream), s->name);
done:
    cudaFree(copy);
    return rc;
}

/* Matrix m of all routed experts and of the shared one, as stored. */
static cudaError_t upload_matrix(const kernels *k, const experts_src *s, cuda_experts *x, int m,
                                 const fp4_part *part, const weight_part *shared, uint8_t **at)
{
    expert_sizes z = expert_sizes_of(s);
    size_t n = (size_t)x->n_experts;
    cudaError_t e = cudaSuccess;
    uint8_t *to = *at;

    x->code[m] = to;
    for (size_t i = 0; i < n && !e; i++)
        e = upload(k, &to, part[i].data, z.code);
    x->scale[m] = to = *at += cuda_aligned(n * z.code);
    for (size_t i = 0; i < n && !e; i++)
        e = upload(k, &to, part[i].scale, z.scale);
    to = *at += cuda_aligned(n * z.scale);
    x->shared[m] = (weight){.kind = WEIGHT_FP8,
                            .rows = shared->rows,
                            .rows0 = shared->rows,
                            .cols = m == 2 ? x->inter : x->hidden,
                            .data = to,
                            .scale = to + cuda_aligned(2 * z.code)};
    if (!e)
        e = upload(k, &to, shared->data, 2 * z.code);
    to = *at += cuda_aligned(2 * z.code);
    if (!e)
        e = upload(k, &to, shared->scale, scale_bytes(WEIGHT_FP8, shared->rows, x->shared[m].cols));
    *at += cuda_aligned(z.shared_scale);
    return e;
}

static di_code load_experts_stored(kernels *k, const experts_src *s, weight *w, di_status *st)
{
    const fp4_part *part[3] = {s->w1, s->w3, s->w2};
    const weight_part *shared[3] = {&s->shared_w1, &s->shared_w3, &s->shared_w2};
    di_code rc = DI_OK;
    uint8_t *at;

    CU_TRY(cudaMalloc(&w->mem, cuda_experts_bytes(k, s)), s->name);
    at = w->mem;
    for (int m = 0; m < 3; m++)
        CU_TRY(upload_matrix(k, s, w->experts, m, part[m], shared[m], &at), s->name);
done:
    return rc;
}

di_code cuda_load_experts(kernels *k, const experts_src *s, weight **out, di_status *st)
{
    di_code rc = DI_OK;
    weight *w = mem_try_calloc(1, sizeof *w);
    cuda_experts *x = mem_try_calloc(1, sizeof *x);

    *out = NULL;
    if (!w || !x) {
        mem_free(w);
        mem_free(x);
        return di_fail(st, DI_E_NOMEM, "no memory for the experts \"%s\"", s->name);
    }
    w->experts = x;
    DI_TRY(cuda_need_impl(k, st));
    *x = (cuda_experts){.n_experts = s->n_experts,
                        .hidden = s->hidden,
                        .inter = s->inter,
                        .packed = experts_pack(s) && expert_scales_fit(s)};
    if (x->packed)
        DI_TRY(load_experts_packed(k, s, w, st));
    else
        DI_TRY(load_experts_stored(k, s, w, st));
    *out = w;
    w = NULL;
done:
    cuda_unload(k, w);
    return rc;
}
