/* Hyper-connections: one pass over the stream for expand, mix and collapse (kernels/hc.h).
 *
 * The row is cut into chunks of HC_CHUNK channels (all copies of them), a constant of the shape.
 * For a chunk every sum of the row (the mix outputs, both sums of squares) is a vector; the vectors
 * of the chunks are added in ascending order and only then their lanes. Two schedules, the same
 * bits: many rows   threads split rows; up to HC_ROWS rows go through a chunk together, so that its
 * part of the mix matrix is read from the cache few rows    threads split chunks and leave their
 * vectors in shared scratch; after a barrier they are added, and the channels of the norm are split
 * the same way */
#include "kernels/cpu/rows.h"

#define HC_CHUNK 256
#define HC_ROWS  32 /* rows that pass a chunk together */
#define HC_TILE  4  /* rows of one product tile */
#define MAX_HC   16

/* Vectors of a row: mix outputs, then the sums of squares of stream and collapsed row. */
static int n_mix(int hc)
{
    return (2 + hc) * hc;
}

static int row_floats(int hc)
{
    return (n_mix(hc) + 2) * VF;
}

static int n_chunks(int dim)
{
    return (dim + HC_CHUNK - 1) / HC_CHUNK;
}

/* Below this many rows the chunks are split. */
static int few_rows(int n_threads)
{
    return 4 * n_threads;
}

size_t CPU_FN(hc_thread_bytes)(const kernel_limits *l)
{
    return ((size_t)HC_TILE * (size_t)l->hc * HC_CHUNK +
            (size_t)HC_ROWS * (size_t)row_floats(l->hc)) *
           sizeof(float);
}

size_t CPU_FN(hc_shared_bytes)(const kernel_limits *l, int n_threads)
{
    int rows = l->n_rows < few_rows(n_threads) ? l->n_rows : few_rows(n_threads);

    return (size_t)rows * (size_t)n_chunks(l->hidden) * (size_t)row_floats(l->hc) * sizeof(float);
}

/* x[j] = bf(post[j] * y + sum_i comb[i][j] * x[i]) for channels d0 .. d0+n-1. */
static void expand(const hc_args *a, int64_t row, int d0, int n)
{
    int hc = a->hc;
    uint16_t *x = (uint16_t *)a->x + row * hc * a->dim + d0;
    const uint16_t *y = (const uint16_t *)a->y + row * a->dim + d0;
    const float *post = a->post + row * hc, *comb = a->comb + row * hc * hc;

    for (int d = 0; d < n; d += VF) {
        vf in[MAX_HC], yv = vf_load_bf16(y + d);

        for (int i = 0; i < hc; i++)
            in[i] = vf_load_bf16(x + (int64_t)i * a->dim + d);
        for (int j = 0; j < hc; j++) {
            vf out = vf_mul(vf_set(post[j]), yv);

            for (int i = 0; i < hc; i++)
                out = vf_fma(vf_set(comb[i * hc + j]), in[i], out);
            vf_store_bf16(x + (int64_t)j * a->dim + d, out);
        }
    }
}

/* The chunk as f32 [hc][HC_CHUNK]; returns its squares. */
static vf load_chunk(const hc_args *a, float *xf, int64_t row, int d0, int n)
{
    vf squares = vf_zero();

    for (int i = 0; i < a->hc; i++) {
        const uint16_t *x = (const uint16_t *)a->x + (row * a->hc + i) * a->dim + d0;

        for (int d = 0; d < n; d += VF) {
            vf v = vf_load_bf16(x + d);

            squares = vf_fma(v, v, squares);
            vf_store(xf + i * HC_CHUNK + d, v);
        }
    }
    return squares;
}

/* Where the collapsed row lies until the norm: the last of its outputs. */
static uint16_t *collapsed_row(const hc_args *a, int64_t row)
{
    void *to = a->collapsed ? a->collapsed : a->out ? a->out : a->out_q8;

    return (uint16_t *)to + row * a->dim;
}

/* c = bf(sum_i pre[i] * x[i]) of the chunk; returns its squares. */
static vf collapse(const hc_args *a, int64_t row, int d0, int n)
{
    int64_t from = a->rows ? a->rows[row] : row;
    const float *pre = a->pre_in ? a->pre_in + from * a->hc : NULL;
    const uint16_t *x = (const uint16_t *)a->x + from * a->hc * a->dim + d0;
    uint16_t *to = collapsed_row(a, row) + d0;
    vf squares = vf_zero();

    for (int d = 0; d < n; d += VF) {
        vf c = vf_load_bf16(x + d);

        if (pre) {
            c = vf_mul(vf_set(pre[0]), c);
            for (int i = 1; i < a->hc; i++)
                c = vf_fma(vf_set(pre[i]), vf_load_bf16(x + (int64_t)i * a->dim + d), c);
        }
        c = vf_bf16(c);
        squares = vf_fma(c, c, squares);
        vf_store_bf16_exact(to + d, c);
    }
    return squares;
}

/* Add v to the row's vector `which`, or begin it. */
static inline void put_sum(float *sums, int which, vf v, bool first)
{
    float *to = sums + which * VF;

    vf_store(to, first ? v : vf_add(vf_load(to), v));
}

/* Products of nr rows with no outputs of the mix over a chunk. */
static inline __attribute__((always_inline)) void mix_tile(const hc_args *a, const float *xf,
                                                           float *const *sums, int nr, int o0,
                                                           int no, int d0, int n, bool first)
{
    int64_t cols = (int64_t)a->hc * a->dim;
    const float *fn = a->fn->f32 + o0 * cols + d0;
    vf acc[HC_TILE][12];

    for (int r = 0; r < nr; r++)
        for (int o = 0; o < no; o++)
            acc[r][o] = vf_zero();
    for (int i = 0; i < a->hc; i++)
        for (int d = 0; d < n; d += VF) {
            vf x[HC_TILE];

            for (int r = 0; r < nr; r++)
                x[r] = vf_load(xf + (r * a->hc + i) * HC_CHUNK + d);
            for (int o = 0; o < no; o++) {
                vf w = vf_load(fn + o * cols + (int64_t)i * a->dim + d);

                for (int r = 0; r < nr; r++)
                    acc[r][o] = vf_fma(w, x[r], acc[r][o]);
            }
        }
    for (int r = 0; r < nr; r++)
        for (int o = 0; o < no; o++)
            put_sum(sums[r], o0 + o, acc[r][o], first);
}

static void mix_chunk(const hc_args *a, const float *xf, float *const *sums, int nr, int d0, int n,
                      bool first)
{
    int total = n_mix(a->hc), o = 0;

    if (nr == HC_TILE)
        for (; o + 6 <= total; o += 6)
            mix_tile(a, xf, sums, HC_TILE, o, 6, d0, n, first);
    if (nr == 1)
        for (; o + 12 <= total; o += 12)
            mix_tile(a, xf, sums, 1, o, 12, d0, n, first);
    for (int r = 0; r < nr && o < total; r++)
        for (int p = o; p < total; p++)
            mix_tile(a, xf + r * a->hc * HC_CHUNK, sums + r, 1, p, 1, d0, n, first);
}

/* Chunk `c` of rows row .. row+nr-1 (at most HC_TILE); sums[r] takes the vectors of row r. */
static void pass_chunk(const hc_args *a, float *xf, int64_t row, int nr, int c, float *const *sums,
                       bool first)
{
    int d0 = c * HC_CHUNK, n = a->dim - d0 < HC_CHUNK ? a->dim - d0 : HC_CHUNK;

    for (int r = 0; r < nr; r++) {
        if (a->y)
            expand(a, row + r, d0, n);
        if (a->fn)
            put_sum(sums[r], n_mix(a->hc), load_chunk(a, xf + r * a->hc * HC_CHUNK, row + r, d0, n),
                    first);
        if (a->norm || a->collapsed)
            put_sum(sums[r], n_mix(a->hc) + 1, collapse(a, row + r, d0, n), first);
    }
    if (a->fn)
        mix_chunk(a, xf, sums, nr, d0, n, first);
}

/* Row softmax plus eps, then divide by column sums and row sums in turn, ending on columns. */
static void sinkhorn(float *c, int hc, int iters, float eps)
{
    for (int i = 0; i < hc; i++) {
        float *row = c + i * hc, top = row[0], sum = 0;

        for (int j = 1; j < hc; j++)
            top = max_f32(top, row[j]);
        for (int j = 0; j < hc; j++)
            sum += row[j] = expf(row[j] - top);
        for (int j = 0; j < hc; j++)
            row[j] = row[j] / sum + eps;
    }
    for (int pass = 0; pass < iters; pass++) {
        for (int i = 0; pass > 0 && i < hc; i++) {
            float sum = 0;

            for (int j = 0; j < hc; j++)
                sum += c[i * hc + j];
            for (int j = 0; j < hc; j++)
                c[i * hc + j] /= sum + eps;
        }
        for (int j = 0; j < hc; j++) {
            float sum = 0;

            for (int i = 0; i < hc; i++)
                sum += c[i * hc + j];
            for (int i = 0; i < hc; i++)
                c[i * hc + j] /= sum + eps;
        }
    }
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The mix of a row from its summed vectors. */
static void finish_mix(const hc_args *a, int64_t row, const float *sums)
{
    int hc = a->hc;
    const float *scale = a->scale->f32, *base = a->base->f32;
    float r = rms_factor(vf_sum(vf_load(sums + n_mix(hc) * VF)), hc * a->dim, a->eps);
    float *comb = a->comb_out + row * hc * hc;

    for (int o = 0; o < n_mix(hc); o++) {
        float m = vf_sum(vf_load(sums + o * VF)) * r;

        if (o < hc)
            a->pre_out[row * hc + o] = sigmoid(m * scale[0] + base[o]) + a->hc_eps;
        else if (o < 2 * hc)
            a->post_out[row * hc + o - hc] = 2.0f * sigmoid(m * scale[1] + base[o]);
        else
            comb[o - 2 * hc] = m * scale[2] + base[o];
    }
    sinkhorn(comb, hc, a->iters, a->hc_eps);
}

/* Norm and Q8 of channels d0 .. d0+n-1 of a collapsed row, given its sum of squares. */
static void finish_norm(const hc_args *a, int64_t row, float squares, int d0, int n)
{
    float r = rms_factor(squares, a->dim, a->eps);
    void *to = a->out ? a->out : a->out_q8;
    uint16_t *out = (uint16_t *)to + row * a->dim + d0;

    if (!to)
        return;
    scale_row_bf16(out, collapsed_row(a, row) + d0, r, a->norm->f32 + d0, n);
    if (a->out_q8)
        q8_row((uint16_t *)a->out_q8 + row * a->dim + d0, out, n);
}

/* Rows row .. row+n-1 (at most HC_ROWS) by one thread. */
static void pass_rows(const hc_args *a, float *scratch, int64_t row, int n)
{
    float *xf = scratch, *all = scratch + HC_TILE * a->hc * HC_CHUNK;
    int floats = row_floats(a->hc);

    for (int c = 0; c < n_chunks(a->dim); c++)
        for (int r = 0; r < n; r += HC_TILE) {
            int nr = n - r < HC_TILE ? n - r : HC_TILE;
            float *sums[HC_TILE];

            for (int i = 0; i < nr; i++)
                sums[i] = all + (r + i) * floats;
            pass_chunk(a, xf, row + r, nr, c, sums, c == 0);
        }
    for (int r = 0; r < n; r++) {
        const float *sums = all + r * floats;

        if (a->fn)
            finish_mix(a, row + r, sums);
        if (a->norm)
            finish_norm(a, row + r, vf_sum(vf_load(sums + (n_mix(a->hc) + 1) * VF)), 0, a->dim);
    }
}

/* Vector `which` of a row, the chunks added in ascending order. */
static vf add_chunks(const hc_args *a, const float *part, int which)
{
    vf sum = vf_load(part + which * VF);

    for (int c = 1; c < n_chunks(a->dim); c++)
        sum = vf_add(sum, vf_load(part + c * row_floats(a->hc) + which * VF));
    return sum;
}

/* Few rows: this thread's chunks of all of them. */
static void pass_chunks(const cpu_job *job, const hc_args *a, int thread, int n_threads)
{
    float *xf = cpu_thread_scratch(job->k, thread), *sums = xf + HC_TILE * a->hc * HC_CHUNK;
    float *shared = cpu_shared_scratch(job->k);
    int floats = row_floats(a->hc), chunks = n_chunks(a->dim);
    int64_t begin, end;

    pool_split(chunks, 1, thread, n_threads, &begin, &end);
    for (int c = (int)begin; c < end; c++)
        for (int r = 0; r < a->n; r += HC_TILE) {
            int nr = a->n - r < HC_TILE ? a->n - r : HC_TILE;
            float *part[HC_TILE];

            for (int i = 0; i < nr; i++)
                part[i] = shared + ((int64_t)(r + i) * chunks + c) * floats;
            pass_chunk(a, xf, r, nr, c, part, true);
        }
    pool_barrier(job->k->pool);
    for (int r = 0; r < a->n; r++) {
        const float *part = shared + (int64_t)r * chunks * floats;
        int d0 = (int)begin * HC_CHUNK, d1 = (int)end * HC_CHUNK;

        if (a->norm && begin < end)
            finish_norm(a, r, vf_sum(add_chunks(a, part, n_mix(a->hc) + 1)), d0,
                        (d1 < a->dim ? d1 : a->dim) - d0);
        if (!a->fn || r % n_threads != n_threads - 1 - thread)
            continue;
        for (int o = 0; o <= n_mix(a->hc); o++)
            vf_store(sums + o * VF, add_chunks(a, part, o));
        finish_mix(a, r, sums);
    }
}

static void hc_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const hc_args *a = job->args;
    float *scratch = cpu_thread_scratch(job->k, thread);
    int64_t begin, end;

    if (n_threads > 1 && a->n < few_rows(n_threads)) {
        pass_chunks(job, a, thread, n_threads);
        return;
    }
    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t row = begin; row < end; row += HC_ROWS)
        pass_rows(a, scratch, row, end - row < HC_ROWS ? (int)(end - row) : HC_ROWS);
}

void CPU_FN(cpu_hc)(kernels *k, const hc_args *a)
{
    int64_t row = (int64_t)a->hc * a->dim * 2;

    /* The mix matrix alone is worth all threads. */
    cpu_run_sized(k, hc_job, a, a->n * row + (a->fn ? row * 2 * n_mix(a->hc) : 0));
}

static void tap_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const tap_args *a = job->args;
    vf copies = vf_set((float)a->hc);
    int64_t begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const uint16_t *x = (const uint16_t *)a->x + row * a->hc * a->dim;
        uint16_t *out = (uint16_t *)a->out + row * a->out_stride;

        for (int d = 0; d < a->dim; d += VF) {
            vf sum = vf_load_bf16(x + d);

            for (int i = 1; i < a->hc; i++)
                sum = vf_add(sum, vf_load_bf16(x + (int64_t)i * a->dim + d));
            vf_store_bf16(out + d, vf_div(sum, copies));
        }
    }
}

void CPU_FN(cpu_tap)(kernels *k, const tap_args *a)
{
    cpu_run_sized(k, tap_job, a, (int64_t)a->n * a->hc * a->dim * 2);
}
