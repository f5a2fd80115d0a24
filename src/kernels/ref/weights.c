/* Weights of the scalar back end: views of the mapped shards. */
#include "kernels/ref/ref.h"

#include "base/mem.h"

static void view(weight *w, weight_kind kind, int64_t cols, const weight_part *part, int n_parts)
{
    *w = (weight){.kind = kind, .cols = cols, .n_parts = n_parts};
    for (int i = 0; i < n_parts; i++) {
        w->part[i] = part[i];
        w->rows += part[i].rows;
    }
}

di_code ref_load(kernels *k, const weight_src *src, weight **out, di_status *st)
{
    (void)k;
    *out = mem_try_calloc(1, sizeof **out);
    if (!*out)
        return di_fail(st, DI_E_NOMEM, "no memory for weight \"%s\"", src->name);
    view(*out, src->kind, src->cols, src->part, src->n_parts);
    return DI_OK;
}

static void experts_free(ref_experts *e)
{
    if (!e)
        return;
    for (int m = 0; m < 3; m++)
        mem_free(e->routed[m]);
    mem_free(e);
}

di_code ref_load_experts(kernels *k, const experts_src *src, weight **out, di_status *st)
{
    const fp4_part *part[3] = {src->w1, src->w3, src->w2};
    const weight_part *shared[3] = {&src->shared_w1, &src->shared_w3, &src->shared_w2};
    const int cols[3] = {src->hidden, src->hidden, src->inter};
    size_t n = (size_t)src->n_experts;
    weight *w = mem_try_calloc(1, sizeof *w);
    ref_experts *e = mem_try_calloc(1, sizeof *e);

    (void)k;
    *out = NULL;
    if (!w || !e)
        goto no_memory;
    *e = (ref_experts){.n_experts = src->n_experts, .hidden = src->hidden, .inter = src->inter};
    for (int m = 0; m < 3; m++) {
        e->routed[m] = mem_try_calloc(n, sizeof(fp4_part));
        if (!e->routed[m])
            goto no_memory;
        memcpy(e->routed[m], part[m], n * sizeof(fp4_part));
        view(&e->shared[m], WEIGHT_FP8, cols[m], shared[m], 1);
    }
    w->experts = e;
    *out = w;
    return DI_OK;
no_memory:
    experts_free(e);
    mem_free(w);
    return di_fail(st, DI_E_NOMEM, "no memory for the experts \"%s\"", src->name);
}

void ref_unload(kernels *k, weight *w)
{
    (void)k;
    if (!w)
        return;
    experts_free(w->experts);
    mem_free(w);
}

/* Bytes of a part as it is stored; scales of matrices lie in 32x32 tiles. */
static size_t stored_bytes(weight_kind kind, int64_t rows, int64_t cols)
{
    int64_t n = rows * cols;

    if (kind == WEIGHT_FP8)
        return (size_t)(n + (rows + 31) / 32 * ((cols + 31) / 32));
    return (size_t)(kind == WEIGHT_VEC_F32 || kind == WEIGHT_F32 ? n * 4 : n * 2);
}

size_t ref_weight_bytes(const kernels *k, const weight_src *src)
{
    size_t n = sizeof(weight);

    (void)k;
    if (src->kind == WEIGHT_BF16_TABLE || src->kind == WEIGHT_FP8_TABLE)
        return n;
    for (int i = 0; i < src->n_parts; i++)
        n += stored_bytes(src->kind, src->part[i].rows, src->cols);
    return n;
}

size_t ref_experts_bytes(const kernels *k, const experts_src *src)
{
    size_t codes = (size_t)src->hidden * (size_t)src->inter / 2, n = (size_t)src->n_experts;

    (void)k;
    return sizeof(weight) + sizeof(ref_experts) + 3 * n * (sizeof(fp4_part) + codes + codes / 16) +
           3 * stored_bytes(WEIGHT_FP8, src->hidden, src->inter);
}

static void fp8_row(const ref_impl *impl, const weight *w, const weight_part *p, int64_t r,
                    double *out)
{
    const uint8_t *code = (const uint8_t *)p->data + r * w->cols;
    int64_t blocks = (w->cols + 31) / 32;
    /* A matrix has one scale per 32x32 tile, a table one per row and 32 columns. */
    const uint8_t *scale = p->scale + (w->kind == WEIGHT_FP8 ? r / 32 : r) * blocks;

    for (int64_t b = 0; b < blocks; b++) {
        double s = (double)ue8m0_to_f32(scale[b]);
        int64_t end = b * 32 + 32 < w->cols ? b * 32 + 32 : w->cols;

        for (int64_t c = b * 32; c < end; c++)
            out[c] = (double)impl->e4m3[code[c]] * s;
    }
}

void ref_weight_row(const ref_impl *impl, const weight *w, int64_t r, double *out)
{
    const weight_part *p = &w->part[0];

    if (r >= p->rows) {
        r -= p->rows;
        p++;
    }
    if (w->kind == WEIGHT_FP8 || w->kind == WEIGHT_FP8_TABLE) {
        fp8_row(impl, w, p, r, out);
    } else if (w->kind == WEIGHT_F32 || w->kind == WEIGHT_VEC_F32) {
        for (int64_t c = 0; c < w->cols; c++)
            out[c] = (double)load_f32(p->data, r * w->cols + c);
    } else {
        for (int64_t c = 0; c < w->cols; c++)
            out[c] = (double)load_bf16(p->data, r * w->cols + c);
    }
}

void ref_fp4_row(const fp4_part *m, int64_t r, int64_t cols, double *out)
{
    const uint8_t *code = m->data + r * cols / 2, *scale = m->scale + r * cols / 32;
    double value[16];

    for (unsigned i = 0; i < 16; i++)
        value[i] = (double)e2m1_to_f32(i);
    for (int64_t c = 0; c < cols; c += 2) {
        double s = (double)ue8m0_to_f32(scale[c / 32]);

        out[c] = value[code[c / 2] & 15u] * s;
        out[c + 1] = value[code[c / 2] >> 4] * s;
    }
}
