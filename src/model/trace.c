/* Recorded activations for tests: host copies as f32 under the names of the golden files. */
#include "model/model_internal.h"

#include "base/mem.h"

void model_set_trace(model *m, model_trace fn, void *arg)
{
    m->trace = fn;
    m->trace_arg = arg;
}

/* Room for n floats; NULL without a hook or without memory (tests would miss the record). */
static float *room(model *m, int64_t n)
{
    if (!m->trace)
        return NULL;
    if ((size_t)n > m->trace_cap) {
        float *p = mem_try_realloc(m->trace_buf, (size_t)n, sizeof *p);

        if (!p)
            return NULL;
        m->trace_buf = p;
        m->trace_cap = (size_t)n;
    }
    return m->trace_buf;
}

static void emit(model *m, int layer, const char *name, const float *data, int64_t rows,
                 int64_t cols)
{
    char full[96], prefix[32] = "";

    if (layer >= 0)
        layer_prefix(m, layer, prefix);
    snprintf(full, sizeof full, "%s%s", prefix, name);
    m->trace(m->trace_arg, full, data, rows, cols);
}

void trace_act(model *m, int layer, const char *name, const void *act, int64_t rows, int64_t cols)
{
    float *p = room(m, rows * cols);

    if (!p)
        return;
    m->k->ops->get_act(m->k, p, act, (size_t)(rows * cols));
    emit(m, layer, name, p, rows, cols);
}

void trace_f32(model *m, int layer, const char *name, const float *data, int64_t rows, int64_t cols)
{
    float *p = room(m, rows * cols);

    if (!p)
        return;
    m->k->ops->get(m->k, p, data, (size_t)(rows * cols) * sizeof(float));
    emit(m, layer, name, p, rows, cols);
}

void trace_i32(model *m, int layer, const char *name, const int32_t *data, int64_t rows,
               int64_t cols)
{
    float *p = room(m, rows * cols);

    if (!p)
        return;
    m->k->ops->get(m->k, p, data, (size_t)(rows * cols) * sizeof(float));
    for (int64_t i = 0; i < rows * cols; i++)
        p[i] = (float)(int32_t)f32_bits(p[i]);
    emit(m, layer, name, p, rows, cols);
}

void trace_selection(model *m, int layer)
{
    int64_t rows = m->rows.s.n_rows, topk = m->cfg.index_topk;
    int64_t cols = (m->last_pos + 1) / m->plan.layer[layer].ratio;
    float *p = room(m, rows * (cols + topk + 1));
    int32_t *sel, *n_sel;

    if (!p)
        return;
    sel = (int32_t *)(void *)(p + rows * cols);
    n_sel = sel + rows * topk;
    m->k->ops->get(m->k, sel, m->b.sel, (size_t)(rows * topk) * sizeof *sel);
    m->k->ops->get(m->k, n_sel, m->b.n_sel, (size_t)rows * sizeof *n_sel);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t e = 0; e < cols; e++)
            p[r * cols + e] = 0;
        for (int i = 0; i < n_sel[r]; i++)
            p[r * cols + sel[r * topk + i]] = 1;
    }
    emit(m, layer, "attn.indexer.selected", p, rows, cols);
}

void trace_candidates(model *m, int layer)
{
    int64_t rows = m->rows.s.n_rows, most = m->cand.max_blocks, block = m->cand.block;
    int64_t cols = (m->last_pos + 1) / m->plan.layer[layer].ratio;
    float *p = room(m, rows * (cols + most + 1));
    int32_t *ids, *count;

    if (!p)
        return;
    ids = (int32_t *)(void *)(p + rows * cols);
    count = ids + rows * most;
    m->k->ops->get(m->k, ids, m->cand.ids, (size_t)(rows * most) * sizeof *ids);
    m->k->ops->get(m->k, count, m->cand.count, (size_t)rows * sizeof *count);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t e = 0; e < cols; e++)
            p[r * cols + e] = count[r] < 0;
        for (int64_t b = 0; b < count[r]; b++)
            for (int64_t e = ids[r * most + b] * block;
                 e < cols && e < (ids[r * most + b] + 1) * block; e++)
                p[r * cols + e] = 1;
    }
    emit(m, layer, "attn.indexer.candidates", p, rows, cols);
}

static int falling(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

/* How far the k-th best of n values is above the next one; INFINITY when all are taken. Sorts. */
static float gap(float *v, int64_t n, int64_t k)
{
    if (n <= k)
        return INFINITY;
    qsort(v, (size_t)n, sizeof *v, falling);
    return v[k - 1] - v[k];
}

/* Gap of a candidate source's block scores, the newest block aside (it is always in). */
static float block_gap(model *m, const float *score, int64_t visible, float *work)
{
    int64_t block = m->cand.block, n = (visible + block - 1) / block;

    if (n <= m->cand.max_blocks)
        return INFINITY;
    for (int64_t b = 0; b < n - 1; b++) {
        work[b] = -INFINITY;
        for (int64_t e = b * block; e < (b + 1) * block; e++)
            work[b] = fmaxf(work[b], score[e]);
    }
    return gap(work, n - 1, m->cand.max_blocks - 1);
}

void trace_margins(model *m, int layer, int row0, int n, int64_t stride)
{
    const layer_plan *y = &m->plan.layer[layer];
    int64_t most = m->cand.max_blocks;
    float *p = room(m, n + (n + 1) * stride + n * (most + 1)), *score, *work;
    candidates cand = m->cand, *filter = NULL; /* in host memory */

    if (!p)
        return;
    score = p + n;
    work = score + n * stride;
    if (y->cand == CAND_FILTERED) {
        filter = &cand;
        cand.ids = (int32_t *)(void *)(work + stride);
        cand.count = cand.ids + n * most;
        m->k->ops->get(m->k, cand.ids, m->cand.ids + row0 * most,
                       (size_t)(n * most) * sizeof *cand.ids);
        m->k->ops->get(m->k, cand.count, m->cand.count + row0, (size_t)n * sizeof *cand.count);
    }
    m->k->ops->get(m->k, score, m->b.scores, (size_t)(n * stride) * sizeof(float));
    for (int i = 0; i < n; i++) {
        float *s = score + i * stride;
        int64_t visible = (((const int64_t *)m->rows.pos.host)[row0 + i] + 1) / y->ratio;
        int64_t eligible = index_eligible(visible, filter, i);

        p[i] = y->cand == CAND_SOURCE ? block_gap(m, s, visible, work) : INFINITY;
        p[i] = fminf(p[i], gap(s, eligible, m->cfg.index_topk));
    }
    emit(m, layer, "attn.indexer.margin", p, n, 1);
}
