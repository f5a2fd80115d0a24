/* Loading weights: re-ordered once into strips of 32 rows (cpu_internal.h), tables left mapped.
 * All threads of the pool re-order; the source may be unaligned. */
#include "kernels/cpu/cpu_internal.h"

#include <string.h>

#include "base/mem.h"
#include "formats/scalar.h"

static const size_t block_bytes[] = {
    [STRIP_BF16] = 2048, [STRIP_FP8] = 1024, [STRIP_FP4] = 512 + STRIP};

/* Place of row r, column k of a block of FP8 codes. */
static inline int fp8_place(int r, int k)
{
#if defined(CPU_AVX512)
    /* Byte pairs (k, k+1) so that unpacking low and high table bytes gives dwords of rows 0..15
     * (low halves of the 128-bit lanes) and 16..31. */
    return k / 2 * 64 + r % 16 / 4 * 16 + r / 16 * 8 + r % 4 * 2 + k % 2;
#else
    return k * STRIP + r;
#endif
}

/* A matrix to re-order: up to two parts concatenated along the rows. */
typedef struct reorder {
    matrix *m;
    uint8_t *data, *scale; /* of m, writable */
    const weight_part *part;
    const weight_part *end;
} reorder;

/* Row r of the concatenation: its part, and the row inside it. */
static const weight_part *find_part(const reorder *job, int64_t *r)
{
    const weight_part *p = job->part;

    while (p + 1 < job->end && *r >= p->rows) {
        *r -= p->rows;
        p++;
    }
    return p;
}

static void put_row(uint8_t *strip_data, strip_format format, const uint8_t *from, int r,
                    int64_t cols)
{
    for (int64_t c = 0; c < cols; c++) {
        int k = (int)(c % BLOCK);
        uint8_t *block = strip_data + (size_t)(c / BLOCK) * block_bytes[format];

        if (format == STRIP_FP8)
            block[fp8_place(r, k)] = from[c];
        else
            memcpy(block + (k / 2 * STRIP + r) * 4 + k % 2 * 2, from + 2 * c, 2);
    }
}

static void reorder_job(void *arg, int thread, int n_threads)
{
    const reorder *job = arg;
    const matrix *m = job->m;
    size_t element = m->format == STRIP_FP8 ? 1 : 2;
    int64_t begin, end;

    pool_split(m->n_strips, 1, thread, n_threads, &begin, &end);
    for (int64_t s = begin; s < end; s++) {
        for (int r = 0; r < STRIP && s * STRIP + r < m->rows; r++) {
            int64_t row = s * STRIP + r;
            const weight_part *p = find_part(job, &row);

            put_row(job->data + (size_t)s * m->strip_bytes, m->format,
                    (const uint8_t *)p->data + (size_t)(row * m->cols) * element, r, m->cols);
            if (job->scale && r == 0)
                memcpy(job->scale + s * m->n_blocks, p->scale + row / STRIP * m->n_blocks,
                       (size_t)m->n_blocks);
        }
    }
}

/* Set up the shape of m from parts; returns the bytes of its codes, scales behind them. */
static size_t shape_matrix(matrix *m, strip_format format, int64_t cols, const weight_part *part,
                           int n_parts, size_t *scale_bytes)
{
    *m = (matrix){.format = format, .cols = cols, .n_blocks = (cols + BLOCK - 1) / BLOCK};
    for (int i = 0; i < n_parts; i++)
        m->rows += part[i].rows;
    m->n_strips = (m->rows + STRIP - 1) / STRIP;
    m->strip_bytes = (size_t)m->n_blocks * block_bytes[format];
    *scale_bytes = format == STRIP_FP8 ? (size_t)(m->n_strips * m->n_blocks) : 0;
    return (size_t)m->n_strips * m->strip_bytes;
}

static size_t matrix_bytes(strip_format format, int64_t cols, const weight_part *part, int n_parts)
{
    matrix m;
    size_t scales, codes = shape_matrix(&m, format, cols, part, n_parts, &scales);

    return mem_aligned_bytes(codes + scales);
}

/* Fill in m from parts; the memory goes to *own, which the weight gives back. */
static di_code load_matrix(kernels *k, matrix *m, strip_format format, int64_t cols,
                           const weight_part *part, int n_parts, const char *name, void **own,
                           di_status *st)
{
    reorder job = {.m = m, .part = part, .end = part + n_parts};
    size_t scales, bytes = shape_matrix(m, format, cols, part, n_parts, &scales);

    if (format == STRIP_FP8 && n_parts > 1 && part[0].rows % STRIP != 0)
        return di_fail(st, DI_E_UNSUPPORTED,
                       "weight \"%s\": its first part has %lld rows, which must be a multiple of "
                       "%d to share strips with the second",
                       name, (long long)part[0].rows, STRIP);
    job.data = mem_try_aligned(bytes + scales, 64);
    if (!job.data)
        return di_fail(st, DI_E_NOMEM, "no memory for weight \"%s\" (%zu bytes)", name, bytes);
    job.scale = format == STRIP_FP8 ? job.data + bytes : NULL;
    m->data = job.data;
    m->scale = job.scale;
    *own = job.data;
    pool_run(k->pool, reorder_job, &job);
    return DI_OK;
}

/* Vectors and small matrices as f32. */
static di_code load_f32(weight *w, const weight_src *src, di_status *st)
{
    bool is_f32 = src->kind == WEIGHT_VEC_F32 || src->kind == WEIGHT_F32;
    size_t at = 0, n = (size_t)(w->rows * w->cols);

    w->own[2] = w->f32 = mem_try_aligned(n * sizeof(float), 64);
    if (!w->f32)
        return di_fail(st, DI_E_NOMEM, "no memory for weight \"%s\"", src->name);
    for (int i = 0; i < src->n_parts; i++) {
        const uint8_t *from = src->part[i].data;

        n = (size_t)(src->part[i].rows * src->cols);
        for (size_t j = 0; j < n; j++, at++) {
            uint16_t b;

            if (is_f32) {
                memcpy(&w->f32[at], from + 4 * j, 4);
            } else {
                memcpy(&b, from + 2 * j, 2);
                w->f32[at] = bf16_to_f32(b);
            }
        }
    }
    return DI_OK;
}

di_code CPU_FN(cpu_load)(kernels *k, const weight_src *src, weight **out, di_status *st)
{
    di_code rc = DI_OK;
    weight *w = mem_try_calloc(1, sizeof *w);

    *out = NULL;
    if (!w)
        return di_fail(st, DI_E_NOMEM, "no memory for weight \"%s\"", src->name);
    w->kind = src->kind;
    w->cols = src->cols;
    for (int i = 0; i < src->n_parts; i++)
        w->rows += src->part[i].rows;
    switch (src->kind) {
    case WEIGHT_BF16_TABLE:
    case WEIGHT_FP8_TABLE:
        w->table = src->part[0].data;
        w->table_scale = src->part[0].scale;
        break;
    case WEIGHT_BF16:
    case WEIGHT_FP8:
        DI_TRY(load_matrix(k, &w->m, src->kind == WEIGHT_FP8 ? STRIP_FP8 : STRIP_BF16, src->cols,
                           src->part, src->n_parts, src->name, &w->own[0], st));
        if (src->kind == WEIGHT_BF16 && w->rows == 1)
            DI_TRY(load_f32(w, src, st));
        break;
    default:
        DI_TRY(load_f32(w, src, st));
    }
    *out = w;
    w = NULL;
done:
    CPU_FN(cpu_unload)(k, w);
    return rc;
}

size_t CPU_FN(cpu_weight_bytes)(const kernels *k, const weight_src *src)
{
    size_t rows = 0;

    (void)k;
    for (int i = 0; i < src->n_parts; i++)
        rows += (size_t)src->part[i].rows;
    switch (src->kind) {
    case WEIGHT_BF16_TABLE:
    case WEIGHT_FP8_TABLE:
        return sizeof(weight);
    case WEIGHT_BF16:
    case WEIGHT_FP8:
        return sizeof(weight) + matrix_bytes(src->kind == WEIGHT_FP8 ? STRIP_FP8 : STRIP_BF16,
                                             src->cols, src->part, src->n_parts);
    default:
        return sizeof(weight) + mem_aligned_bytes(rows * (size_t)src->cols * sizeof(float));
    }
}

/* One FP4 matrix of every expert. */
typedef struct reorder_fp4 {
    const fp4_part *part;
    uint8_t *data;
    int64_t n_experts, rows, cols;
} reorder_fp4;

/* Nibbles of columns 0..7 of 32 bits to bytes j: column j low, column 4+j high. */
static inline uint32_t interleave_nibbles(uint32_t x)
{
    return _pdep_u32(x, 0x0F0F0F0Fu) | _pdep_u32(x >> 16, 0xF0F0F0F0u);
}

static void reorder_fp4_job(void *arg, int thread, int n_threads)
{
    const reorder_fp4 *job = arg;
    int64_t n_blocks = job->cols / BLOCK, n_strips = job->rows / STRIP, begin, end;

    pool_split(job->n_experts * n_strips, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const fp4_part *p = &job->part[i / n_strips];
        uint8_t *block = job->data + (size_t)(i * n_blocks) * block_bytes[STRIP_FP4];

        for (int r = 0; r < STRIP; r++) {
            int64_t row = i % n_strips * STRIP + r;
            const uint8_t *code = p->data + row * job->cols / 2;
            const uint8_t *scale = p->scale + row * n_blocks;
            uint8_t *to = block;

            for (int64_t b = 0; b < n_blocks; b++, to += block_bytes[STRIP_FP4]) {
                for (int d = 0; d < BLOCK / 8; d++) {
                    uint32_t x;

                    memcpy(&x, code + b * 16 + d * 4, 4);
                    x = interleave_nibbles(x);
                    memcpy(to + (d * STRIP + r) * 4, &x, 4);
                }
                to[512 + r] = scale[b];
            }
        }
    }
}

/* One matrix of one routed expert. */
static size_t routed_bytes(const experts_src *src)
{
    return (size_t)src->inter / STRIP * ((size_t)src->hidden / BLOCK) * block_bytes[STRIP_FP4];
}

static di_code load_routed(kernels *k, weight *w, const experts_src *src, di_status *st)
{
    const fp4_part *part[3] = {src->w1, src->w3, src->w2};
    size_t one = routed_bytes(src), all = 0, total = 0;

    if (src->hidden % BLOCK != 0 || src->inter % BLOCK != 0)
        return di_fail(st, DI_E_UNSUPPORTED,
                       "experts \"%s\": hidden %d and inner size %d must be multiples of %d",
                       src->name, src->hidden, src->inter, BLOCK);
    if (size_mul(one, (size_t)src->n_experts, &all) && size_mul(all, 3, &total))
        w->own[0] = mem_try_aligned(total, 64);
    if (!w->own[0])
        return di_fail(st, DI_E_NOMEM, "no memory for the experts \"%s\" (%zu bytes)", src->name,
                       total);
    for (int m = 0; m < 3; m++) {
        reorder_fp4 job = {.part = part[m],
                           .data = (uint8_t *)w->own[0] + (size_t)m * all,
                           .n_experts = src->n_experts,
                           .rows = m == 2 ? src->hidden : src->inter,
                           .cols = m == 2 ? src->inter : src->hidden};

        w->e.data[m] = job.data;
        w->e.bytes[m] = one;
        pool_run(k->pool, reorder_fp4_job, &job);
    }
    return DI_OK;
}

di_code CPU_FN(cpu_load_experts)(kernels *k, const experts_src *src, weight **out, di_status *st)
{
    di_code rc = DI_OK;
    const weight_part *shared[3] = {&src->shared_w1, &src->shared_w3, &src->shared_w2};
    weight *w = mem_try_calloc(1, sizeof *w);
    experts *e;

    *out = NULL;
    if (!w)
        return di_fail(st, DI_E_NOMEM, "no memory for the experts \"%s\"", src->name);
    e = &w->e;
    e->n_experts = src->n_experts;
    e->hidden = src->hidden;
    e->inter = src->inter;
    DI_TRY(load_routed(k, w, src, st));
    for (int m = 0; m < 3; m++)
        DI_TRY(load_matrix(k, &e->shared[m], STRIP_FP8, m == 2 ? src->inter : src->hidden,
                           shared[m], 1, src->name, &w->own[1 + m], st));
    *out = w;
    w = NULL;
done:
    CPU_FN(cpu_unload)(k, w);
    return rc;
}

size_t CPU_FN(cpu_experts_bytes)(const kernels *k, const experts_src *src)
{
    const weight_part *shared[3] = {&src->shared_w1, &src->shared_w3, &src->shared_w2};
    size_t n = sizeof(weight) + mem_aligned_bytes(3 * (size_t)src->n_experts * routed_bytes(src));

    (void)k;
    for (int m = 0; m < 3; m++)
        n += matrix_bytes(STRIP_FP8, m == 2 ? src->inter : src->hidden, shared[m], 1);
    return n;
}

void CPU_FN(cpu_unload)(kernels *k, weight *w)
{
    (void)k;
    if (!w)
        return;
    for (size_t i = 0; i < ARRAY_LEN(w->own); i++)
        mem_free(w->own[i]);
    mem_free(w);
}
