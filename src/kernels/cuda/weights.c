/* Weights on the device: as they are stored, or packed for the matrix units (gemm.cuh) where their
 * shape allows it. The loader (loader.h) brings stored bytes up in chunks of whole row blocks;
 * packing runs on the device behind it.
 */
#include "base/mem.h"
#include "kernels/cuda/cuda_host.h"
#include "kernels/cuda/loader.h"

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
    if (s->on_host)
        return cuda_aligned(scale_bytes(s->kind, rows_of(s), s->cols));
    return pack ? packed_bytes(pack, s) : stored_bytes(s);
}

void cuda_unload(kernels *k, weight *w)
{
    cuda_impl *c = k->impl;

    if (!w)
        return;
    if (c)
        cuda_forget_graphs(c);
    cudaFreeHost(w->host);
    cudaFree(w->mem);
    mem_free(w->experts);
    mem_free(w);
}

di_code cuda_load_begin(kernels *k, const weight_reader *r, di_status *st)
{
    di_code rc = DI_OK;
    cuda_impl *c;

    DI_TRY(cuda_need_impl(k, st));
    c = k->impl;
    loader_free(c->loader);
    c->loader = NULL;
    rc = loader_new(&c->loader, c->stream, r, st);
done:
    return rc;
}

di_code cuda_load_end(kernels *k, di_status *st)
{
    cuda_impl *c = k->impl;
    di_code rc = DI_OK;

    if (!c)
        return DI_OK;
    CU_TRY(cudaDeviceSynchronize(), "loading weights");
done:
    loader_free(c->loader);
    c->loader = NULL;
    return rc;
}

/* The loader of a back end; without load_begin, one that takes bytes from where they lie. */
static di_code need_loader(kernels *k, loader **out, di_status *st)
{
    di_code rc = DI_OK;

    DI_TRY(cuda_need_impl(k, st));
    if (!((cuda_impl *)k->impl)->loader)
        DI_TRY(cuda_load_begin(k, NULL, st));
    *out = ((cuda_impl *)k->impl)->loader;
done:
    return rc;
}

/* What was enqueued for a weight that is given up must not write into memory that others get. */
static di_code give_up(const kernels *k, di_code rc)
{
    (void)k;
    cudaDeviceSynchronize();
    return rc;
}

/* Rows [r0, r0 + n) of a matrix in two parts, codes to `data` and their scales to `scale`. r0 is a
 * multiple of the tile of scales. */
static di_code add_rows(loader *l, const weight_src *s, int64_t r0, int64_t n, uint8_t *data,
                        uint8_t *scale, di_status *st)
{
    int64_t first = 0; /* row of the part */
    di_code rc = DI_OK;

    for (int i = 0; i < s->n_parts; first += s->part[i].rows, i++) {
        const weight_part *p = &s->part[i];
        int64_t from = r0 > first ? r0 - first : 0;
        int64_t to = r0 + n - first < p->rows ? r0 + n - first : p->rows;
        size_t bytes, before;

        if (from >= to)
            continue;
        bytes = data_bytes(s->kind, to - from, s->cols);
        before = data_bytes(s->kind, from, s->cols);
        DI_TRY(loader_add(l, (const uint8_t *)p->data + before, data, bytes, false, st));
        data += bytes;
        if (!p->scale)
            continue;
        bytes = scale_bytes(s->kind, to - from, s->cols);
        before = scale_bytes(s->kind, from, s->cols);
        DI_TRY(loader_add(l, p->scale + before, scale, bytes, true, st));
        scale += bytes;
    }
done:
    return rc;
}

/* The weight as it is stored, at w->mem. */
static di_code load_stored(loader *l, const weight_src *s, weight *w, di_status *st)
{
    uint8_t *scale = (uint8_t *)w->mem + cuda_aligned(data_bytes(s->kind, w->rows, w->cols));
    di_code rc = DI_OK;

    w->data = w->mem;
    w->scale = scale;
    DI_TRY(add_rows(l, s, 0, w->rows, w->mem, scale, st));
    DI_TRY(loader_run(l, NULL, st));
    rc = loader_ready(l, st);
done:
    return rc;
}

/* Whole row blocks that fit in half of the staging memory. */
static int64_t chunk_rows(const weight_src *s, int pack)
{
    size_t block = data_bytes(s->kind, Q8_COLS, s->cols) + scale_bytes(s->kind, Q8_COLS, s->cols);
    int64_t blocks = (int64_t)(LOADER_HALF / (4 * block));

    if (pack == PACK_MIX)
        return rows_of(s);
    return (blocks > 1 ? blocks : 1) * 4 * Q8_COLS;
}

/* Panels, chunk by chunk. *fits: false when the scales are too large for panels. */
static di_code load_packed(kernels *k, loader *l, const weight_src *s, weight *w, bool *fits,
                           di_status *st)
{
    cuda_impl *c = k->impl;
    int64_t step = chunk_rows(s, w->packed), n;
    di_code rc = DI_OK;

    *fits = true;
    for (int64_t r = 0; r < w->rows && *fits; r += n) {
        size_t data, scales;
        uint8_t most, *at;

        n = w->rows - r < step ? w->rows - r : step;
        data = cuda_aligned(data_bytes(s->kind, n, s->cols));
        scales = scale_bytes(s->kind, n, s->cols);
        at = loader_area(l, data + scales, st);
        if (!at)
            return DI_E_DEVICE;
        DI_TRY(add_rows(l, s, r, n, at, at + data, st));
        DI_TRY(loader_run(l, &most, st));
        DI_TRY(loader_ready(l, st));
        *fits = w->packed != PACK_FP8 || cuda_scale_fits(PACK_FP8, most);
        if (w->packed == PACK_MIX)
            cuda_pack_mix(c, (const float *)at, w->cols, w->mem);
        else if (*fits)
            cuda_pack(c, w->packed, at, at + data, NULL, NULL, n, w->cols,
                      (uint8_t *)w->mem + cuda_packed_bytes(w->packed, r, w->cols));
        DI_TRY(loader_used(l, st));
    }
    w->data = w->mem;
done:
    return rc;
}

/* Memory for a weight as it is stored. */
static di_code stored_memory(const weight_src *s, weight *w, di_status *st)
{
    di_code rc = DI_OK;

    CU_TRY(cudaMalloc(&w->mem, stored_bytes(s)), s->name);
done:
    return rc;
}

/* Codes in pinned host memory, scales on the device. */
static di_code load_on_host(loader *l, const weight_src *s, weight *w, di_status *st)
{
    size_t codes = data_bytes(s->kind, w->rows, w->cols);
    size_t scales = scale_bytes(s->kind, w->rows, w->cols);
    di_code rc = DI_OK;

    CU_TRY(cudaHostAlloc(&w->host, codes, cudaHostAllocDefault), s->name);
    CU_TRY(cudaMalloc(&w->mem, scales), s->name);
    w->data = w->host; /* the same address on the device */
    w->scale = w->mem;
    DI_TRY(loader_add_host(l, s->part[0].data, w->host, codes, st));
    DI_TRY(loader_add(l, s->part[0].scale, w->mem, scales, true, st));
    DI_TRY(loader_run(l, NULL, st));
    rc = loader_ready(l, st);
done:
    return rc;
}

di_code cuda_load(kernels *k, const weight_src *s, weight **out, di_status *st)
{
    di_code rc = DI_OK;
    weight *w = mem_try_calloc(1, sizeof *w);
    bool fits = false;
    loader *l = NULL;

    *out = NULL;
    if (!w)
        return di_fail(st, DI_E_NOMEM, "no memory for weight \"%s\"", s->name);
    DI_TRY(need_loader(k, &l, st));
    w->kind = s->kind;
    w->cols = s->cols;
    w->rows = rows_of(s);
    w->rows0 = s->part[0].rows;
    w->packed = shape_packs(s);
    if (w->packed) {
        CU_TRY(cudaMalloc(&w->mem, packed_bytes(w->packed, s)), s->name);
        DI_TRY(load_packed(k, l, s, w, &fits, st));
    }
    if (s->on_host) {
        DI_TRY(load_on_host(l, s, w, st));
    } else if (!fits) {
        cudaFree(w->mem); /* waits for what writes it */
        w->mem = NULL;
        w->packed = PACK_NONE;
        DI_TRY(stored_memory(s, w, st));
        DI_TRY(load_stored(l, s, w, st));
    }
    *out = w;
    w = NULL;
done:
    cuda_unload(k, w);
    return rc ? give_up(k, rc) : rc;
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

/* Bytes of the panels of one expert: w1 and w3, or w2. */
static size_t up_bytes(int pack, const experts_src *s)
{
    return cuda_packed_bytes(pack, 2 * s->inter, s->hidden);
}

static size_t down_bytes(int pack, const experts_src *s)
{
    return cuda_packed_bytes(pack, s->hidden, s->inter);
}

static size_t experts_memory(const experts_src *s, bool packed)
{
    expert_sizes z = expert_sizes_of(s);
    size_t n = (size_t)s->n_experts;

    if (packed)
        return n * (up_bytes(PACK_FP4, s) + down_bytes(PACK_FP4, s)) + up_bytes(PACK_FP8, s) +
               down_bytes(PACK_FP8, s);
    return 3 * (cuda_aligned(n * z.code) + cuda_aligned(n * z.scale) + cuda_aligned(2 * z.code) +
                cuda_aligned(z.shared_scale));
}

size_t cuda_experts_bytes(const kernels *k, const experts_src *s)
{
    (void)k;
    return experts_memory(s, experts_pack(s));
}

/* Bytes of one expert as stored: three matrices of codes, then their scales; experts of a run lie
 * behind each other. */
typedef struct stored_expert {
    const void *code[3];
    const uint8_t *scale[3];
    size_t code_bytes, scale_bytes;
    uint8_t *up, *down; /* its panels */
} stored_expert;

static size_t expert_bytes(const stored_expert *x)
{
    return cuda_aligned(3 * (x->code_bytes + x->scale_bytes));
}

static di_code add_expert(loader *l, const stored_expert *x, uint8_t *at, di_status *st)
{
    di_code rc = DI_OK;

    for (int m = 0; m < 3; m++, at += x->code_bytes)
        DI_TRY(loader_add(l, x->code[m], at, x->code_bytes, false, st));
    for (int m = 0; m < 3; m++, at += x->scale_bytes)
        DI_TRY(loader_add(l, x->scale[m], at, x->scale_bytes, true, st));
done:
    return rc;
}

static void pack_expert(cuda_impl *c, int pack, const experts_src *s, const stored_expert *x,
                        const uint8_t *at)
{
    const uint8_t *code[3], *scale[3];

    for (int m = 0; m < 3; m++, at += x->code_bytes)
        code[m] = at;
    for (int m = 0; m < 3; m++, at += x->scale_bytes)
        scale[m] = at;
    cuda_pack(c, pack, code[0], scale[0], code[1], scale[1], 2 * s->inter, s->hidden, x->up);
    cuda_pack(c, pack, code[2], scale[2], NULL, NULL, s->hidden, s->inter, x->down);
}

/* A few experts in one run. */
static di_code load_some(kernels *k, loader *l, int pack, const experts_src *s,
                         const stored_expert *x, int n, bool *fit, di_status *st)
{
    size_t each = expert_bytes(x);
    uint8_t most = 0, *at = loader_area(l, (size_t)n * each, st);
    di_code rc = DI_OK;

    if (!at)
        return DI_E_DEVICE;
    for (int i = 0; i < n; i++)
        DI_TRY(add_expert(l, &x[i], at + (size_t)i * each, st));
    DI_TRY(loader_run(l, &most, st));
    DI_TRY(loader_ready(l, st));
    *fit = cuda_scale_fits(pack, most);
    for (int i = 0; i < n && *fit; i++)
        pack_expert(k->impl, pack, s, &x[i], at + (size_t)i * each);
    rc = loader_used(l, st);
done:
    return rc;
}

static stored_expert routed_expert(const experts_src *s, int e, uint8_t *panels)
{
    expert_sizes z = expert_sizes_of(s);
    size_t up = up_bytes(PACK_FP4, s), down = down_bytes(PACK_FP4, s), n = (size_t)s->n_experts;

    return (stored_expert){.code = {s->w1[e].data, s->w3[e].data, s->w2[e].data},
                           .scale = {s->w1[e].scale, s->w3[e].scale, s->w2[e].scale},
                           .code_bytes = z.code,
                           .scale_bytes = z.scale,
                           .up = panels + (size_t)e * up,
                           .down = panels + n * up + (size_t)e * down};
}

#define MAX_TOGETHER 16 /* experts of a run */

static di_code load_experts_packed(kernels *k, loader *l, const experts_src *s, weight *w,
                                   bool *fit, di_status *st)
{
    cuda_experts *x = w->experts;
    expert_sizes z = expert_sizes_of(s);
    stored_expert some[MAX_TOGETHER];
    int most = (int)(LOADER_HALF / (3 * (z.code + z.scale))), n;
    size_t all = (size_t)s->n_experts * (up_bytes(PACK_FP4, s) + down_bytes(PACK_FP4, s));
    uint8_t *at = w->mem;
    di_code rc = DI_OK;

    most = most < 1 ? 1 : most > MAX_TOGETHER ? MAX_TOGETHER : most;
    *fit = true;
    for (int e = 0; e < s->n_experts && *fit; e += n) {
        n = s->n_experts - e < most ? s->n_experts - e : most;
        for (int i = 0; i < n; i++)
            some[i] = routed_expert(s, e + i, at);
        DI_TRY(load_some(k, l, PACK_FP4, s, some, n, fit, st));
    }
    x->up = at;
    x->down = at + (size_t)s->n_experts * up_bytes(PACK_FP4, s);
    x->shared_up = at + all;
    x->shared_down = x->shared_up + up_bytes(PACK_FP8, s);
    some[0] = (stored_expert){.code = {s->shared_w1.data, s->shared_w3.data, s->shared_w2.data},
                              .scale = {s->shared_w1.scale, s->shared_w3.scale, s->shared_w2.scale},
                              .code_bytes = 2 * z.code,
                              .scale_bytes = z.shared_scale,
                              .up = at + all,
                              .down = at + all + up_bytes(PACK_FP8, s)};
    if (*fit)
        DI_TRY(load_some(k, l, PACK_FP8, s, some, 1, fit, st));
done:
    return rc;
}

/* Matrix m of all routed experts and of the shared one, as stored. */
static di_code add_matrix(loader *l, const experts_src *s, cuda_experts *x, int m,
                          const fp4_part *part, const weight_part *shared, uint8_t **at,
                          di_status *st)
{
    expert_sizes z = expert_sizes_of(s);
    size_t n = (size_t)x->n_experts;
    uint8_t *code = *at, *scale = code + cuda_aligned(n * z.code);
    uint8_t *own = scale + cuda_aligned(n * z.scale), *own_scale = own + cuda_aligned(2 * z.code);
    int64_t cols = m == 2 ? x->inter : x->hidden;
    di_code rc = DI_OK;

    x->code[m] = code;
    x->scale[m] = scale;
    for (size_t i = 0; i < n; i++) {
        DI_TRY(loader_add(l, part[i].data, code + i * z.code, z.code, false, st));
        DI_TRY(loader_add(l, part[i].scale, scale + i * z.scale, z.scale, true, st));
    }
    x->shared[m] = (weight){.kind = WEIGHT_FP8,
                            .rows = shared->rows,
                            .rows0 = shared->rows,
                            .cols = cols,
                            .data = own,
                            .scale = own_scale};
    DI_TRY(loader_add(l, shared->data, own, 2 * z.code, false, st));
    DI_TRY(loader_add(l, shared->scale, own_scale, scale_bytes(WEIGHT_FP8, shared->rows, cols),
                      true, st));
    *at = own_scale + cuda_aligned(z.shared_scale);
done:
    return rc;
}

static di_code load_experts_stored(loader *l, const experts_src *s, weight *w, di_status *st)
{
    const fp4_part *part[3] = {s->w1, s->w3, s->w2};
    const weight_part *shared[3] = {&s->shared_w1, &s->shared_w3, &s->shared_w2};
    uint8_t *at = w->mem;
    di_code rc = DI_OK;

    for (int m = 0; m < 3; m++)
        DI_TRY(add_matrix(l, s, w->experts, m, part[m], shared[m], &at, st));
    DI_TRY(loader_run(l, NULL, st));
    rc = loader_ready(l, st);
done:
    return rc;
}

di_code cuda_load_experts(kernels *k, const experts_src *s, weight **out, di_status *st)
{
    di_code rc = DI_OK;
    weight *w = mem_try_calloc(1, sizeof *w);
    cuda_experts *x = mem_try_calloc(1, sizeof *x);
    loader *l = NULL;

    *out = NULL;
    if (!w || !x) {
        mem_free(w);
        mem_free(x);
        return di_fail(st, DI_E_NOMEM, "no memory for the experts \"%s\"", s->name);
    }
    w->experts = x;
    DI_TRY(need_loader(k, &l, st));
    *x = (cuda_experts){.n_experts = s->n_experts,
                        .hidden = s->hidden,
                        .inter = s->inter,
                        .packed = experts_pack(s)};
    CU_TRY(cudaMalloc(&w->mem, experts_memory(s, x->packed)), s->name);
    if (x->packed)
        DI_TRY(load_experts_packed(k, l, s, w, &x->packed, st));
    if (!x->packed && experts_pack(s)) { /* the scales do not fit */
        cudaFree(w->mem);
        w->mem = NULL;
        CU_TRY(cudaMalloc(&w->mem, experts_memory(s, false)), s->name);
    }
    if (!x->packed)
        DI_TRY(load_experts_stored(l, s, w, st));
    *out = w;
    w = NULL;
done:
    cuda_unload(k, w);
    return rc ? give_up(k, rc) : rc;
}
