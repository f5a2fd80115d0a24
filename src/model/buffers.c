/* Buffers of a step, sized once from the limits: nothing is allocated afterwards.
 *
 * With m->sizing the same walk only adds up the sizes, so that a prediction cannot differ from what
 * is taken. */
#include "model/model_internal.h"

#include "base/mem.h"

/* Index scores are computed in tiles of rows of at most this many floats (or one row): a host's
 * caches hold little, a device loses time with every launch. */
#define SCORE_TILE        ((size_t)4 << 20)
#define DEVICE_SCORE_TILE ((size_t)32 << 20)

#define MAX_BUFFERS 128

/* A device buffer of count * size bytes that model_release frees. */
static di_code new_buf(model *m, void *out, size_t count, size_t size, di_status *st)
{
    size_t bytes;
    void *p = NULL;

    if (size_mul(count, size, &bytes)) {
        m->step_bytes += mem_aligned_bytes(bytes);
        if (m->sizing)
            return DI_OK;
        if (m->n_bufs < m->cap_bufs)
            p = m->k->ops->buf_new(m->k, bytes ? bytes : 1);
    }
    if (!p)
        return di_fail(st, DI_E_NOMEM,
                       "no memory for %zu x %zu bytes of step buffers; lower the rows of a step",
                       count, size);
    m->bufs[m->n_bufs++] = p;
    memcpy(out, &p, sizeof p);
    return DI_OK;
}

/* Zeroed host memory that model_release frees. */
static di_code new_host(model *m, void *out, size_t count, size_t size, di_status *st)
{
    void *p = NULL;

    m->step_bytes += mem_aligned_bytes(count * size);
    if (m->sizing)
        return DI_OK;
    if (m->n_hosts < m->cap_hosts)
        p = mem_try_calloc(count ? count : 1, size);
    if (!p)
        return di_fail(st, DI_E_NOMEM, "no memory for %zu x %zu bytes of step metadata", count,
                       size);
    m->hosts[m->n_hosts++] = p;
    memcpy(out, &p, sizeof p);
    return DI_OK;
}

/* The region of all duals, host memory that copies are fast from, and its device half. */
static di_code reserve_arena(model *m, di_status *st)
{
    step_arena *a = &m->arena;
    di_code rc = DI_OK;

    step_lay(m, (size_t)m->cap_rows, (size_t)m->opt.max_seqs, (size_t)m->cap_head);
    a->cap = a->used;
    m->step_bytes += mem_aligned_bytes(a->cap);
    if (!m->sizing && !(a->host = m->k->ops->shared_new(m->k, a->cap)))
        return di_fail(st, DI_E_NOMEM, "no memory for %zu bytes of step metadata", a->cap);
    DI_TRY(new_buf(m, &a->dev, a->cap, 1, st));
done:
    return rc;
}

static di_code reserve_metadata(model *m, di_status *st)
{
    di_code rc = DI_OK;
    step_rows *rows[] = {&m->rows, &m->tail, &m->kept};
    size_t n = (size_t)m->cap_rows, half = (size_t)m->plan.half, cs = half * 2 * sizeof(float);
    size_t n_seqs = (size_t)m->opt.max_seqs, drafts = n_seqs * (size_t)m->opt.max_draft;
    size_t blocks = (size_t)(m->opt.context / KV_BLOCK_TOKENS) + 1;

    DI_TRY(reserve_arena(m, st));
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        DI_TRY(new_buf(m, &rows[i]->cs_window, n, cs, st));
        DI_TRY(new_buf(m, &rows[i]->cs_comp, n, cs, st));
    }
    for (int i = 0; i < m->plan.n_ratios; i++)
        DI_TRY(new_buf(m, &m->comp[i].cs, n, cs, st));
    if (m->records) {
        DI_TRY(new_buf(m, &m->tables, n_seqs * blocks, sizeof *m->tables, st));
        DI_TRY(new_buf(m, &m->kept_tables, n_seqs * blocks, sizeof *m->tables, st));
    }
    DI_TRY(new_buf(m, &m->freq_window, half, sizeof(float), st));
    DI_TRY(new_buf(m, &m->freq_comp, half, sizeof(float), st));
    DI_TRY(new_host(m, &m->sample, n_seqs, sizeof *m->sample, st));
    DI_TRY(new_host(m, &m->draft_host, 2 * drafts, sizeof *m->draft_host, st));
    DI_TRY(new_host(m, &m->lead_row, n_seqs, sizeof *m->lead_row, st));
done:
    return rc;
}

/* Stream, sublayer inputs and outputs, window attention. */
static di_code reserve_layers(model *m, di_status *st)
{
    di_code rc = DI_OK;
    const model_config *c = &m->cfg;
    kernels *k = m->k;
    model_buffers *b = &m->b;
    size_t n = (size_t)m->cap_rows, a = dtype_bytes(k->act), d = (size_t)c->hidden;
    size_t hc = (size_t)c->hc, heads = (size_t)c->n_heads * (size_t)c->head_dim;
    size_t experts = (size_t)(c->n_experts > c->draft_experts ? c->n_experts : c->draft_experts);
    size_t active = (size_t)(c->n_active > c->draft_active ? c->n_active : c->draft_active);

    DI_TRY(new_buf(m, &b->x, n * hc, d * a, st));
    DI_TRY(new_buf(m, &b->in, n, d * a, st));
    DI_TRY(new_buf(m, &b->in_q8, n, k->ops->q8_row_bytes(k, c->hidden), st));
    DI_TRY(new_buf(m, &b->y, n, d * a, st));
    DI_TRY(new_buf(m, &b->pre[0], n, hc * sizeof(float), st));
    DI_TRY(new_buf(m, &b->pre[1], n, hc * sizeof(float), st));
    DI_TRY(new_buf(m, &b->post, n, hc * sizeof(float), st));
    DI_TRY(new_buf(m, &b->comb, n, hc * hc * sizeof(float), st));
    DI_TRY(new_buf(m, &b->qkv, n, (size_t)(c->q_rank + c->head_dim) * a, st));
    DI_TRY(new_buf(m, &b->qr_q8, n, k->ops->q8_row_bytes(k, c->q_rank), st));
    DI_TRY(new_buf(m, &b->kv_rows, n, m->layout.ring_row_bytes, st));
    DI_TRY(new_buf(m, &b->q, n, heads * a, st));
    DI_TRY(new_buf(m, &b->o, n, heads * a, st));
    DI_TRY(new_buf(m, &b->low_q8, n, k->ops->q8_row_bytes(k, c->o_groups * c->o_rank), st));
    DI_TRY(new_buf(m, &b->gate_logits, n, experts * sizeof(float), st));
    DI_TRY(new_buf(m, &b->expert_ids, n, active * sizeof(int32_t), st));
    DI_TRY(new_buf(m, &b->expert_w, n, active * sizeof(float), st));
done:
    return rc;
}

/* Compressors and indexer. */
static di_code reserve_compressed(model *m, di_status *st)
{
    di_code rc = DI_OK;
    const model_config *c = &m->cfg;
    model_buffers *b = &m->b;
    size_t n = (size_t)m->cap_rows, a = dtype_bytes(m->k->act), dim = (size_t)c->head_dim;
    size_t entries = 16, tile = m->records ? DEVICE_SCORE_TILE : SCORE_TILE;

    for (int i = 0; i < m->plan.n_ratios; i++) {
        size_t e = (size_t)(m->opt.context / m->plan.group_ratio[i]) + 16;

        entries = e > entries ? e : entries;
    }
    m->score_cap = n * entries < tile ? n * entries : tile;
    m->score_cap = m->score_cap < entries ? entries : m->score_cap;
    DI_TRY(new_buf(m, &b->proj, n, 2 * dim * sizeof(float), st));
    DI_TRY(new_buf(m, &b->lat, n, dim * a, st));
    DI_TRY(new_buf(m, &b->key_raw, n, (size_t)c->index_dim * a, st));
    DI_TRY(new_buf(m, &b->iq, n, (size_t)c->index_heads * (size_t)c->index_dim * a, st));
    DI_TRY(new_buf(m, &b->iw, n, (size_t)c->index_heads * a, st));
    DI_TRY(new_buf(m, &b->scores, m->score_cap, sizeof(float), st));
    DI_TRY(new_buf(m, &b->sel, n, (size_t)c->index_topk * sizeof(int32_t), st));
    DI_TRY(new_buf(m, &b->n_sel, n, sizeof(int32_t), st));
    m->cand.block = c->cand_block;
    m->cand.max_blocks = c->cand_blocks;
    DI_TRY(new_buf(m, &m->cand.ids, n, (size_t)c->cand_blocks * sizeof(int32_t), st));
    DI_TRY(new_buf(m, &m->cand.count, n, sizeof(int32_t), st));
done:
    return rc;
}

/* Engram, head and draft. */
static di_code reserve_ends(model *m, di_status *st)
{
    di_code rc = DI_OK;
    const model_config *c = &m->cfg;
    kernels *k = m->k;
    model_buffers *b = &m->b;
    size_t n = (size_t)m->cap_rows, a = dtype_bytes(k->act), d = (size_t)c->hidden;
    size_t hc = (size_t)c->hc, vocab = (size_t)c->vocab, n_seqs = (size_t)m->opt.max_seqs;
    size_t drafts = (size_t)m->opt.max_draft;

    if (c->n_engram > 0) {
        int cols = config_engram_cols(c) * c->engram_dim;

        DI_TRY(new_buf(m, &b->mem_q8, n, k->ops->q8_row_bytes(k, cols), st));
        DI_TRY(new_buf(m, &b->mem_kv, n, (hc + 1) * d * a, st));
        DI_TRY(new_buf(m, &b->mem_gate, n, hc * sizeof(float), st));
    }
    DI_TRY(new_buf(m, &b->head_in, (size_t)m->cap_head, d * a, st));
    DI_TRY(new_buf(m, &b->collapsed, (size_t)m->cap_head, d * a, st));
    DI_TRY(new_buf(m, &b->logits, (size_t)m->opt.max_logit_rows * vocab, sizeof(float), st));
    if (c->n_stages == 0)
        goto done;
    DI_TRY(new_buf(m, &b->taps, n, (size_t)c->n_taps * d * a, st));
    DI_TRY(new_buf(m, &b->taps_q8, n, k->ops->q8_row_bytes(k, c->n_taps * c->hidden), st));
    DI_TRY(new_buf(m, &b->main, n, d * a, st));
    DI_TRY(new_buf(m, &b->main_q8, n, k->ops->q8_row_bytes(k, c->hidden), st));
    DI_TRY(new_buf(m, &b->draft_logits, n_seqs * drafts * vocab, sizeof(float), st));
    DI_TRY(new_buf(m, &b->draft_tok, 2 * n_seqs * drafts, sizeof(int32_t), st));
    DI_TRY(new_buf(m, &b->markov, n_seqs, (size_t)c->markov_rank * a, st));
done:
    return rc;
}

/* What the operations may set scratch aside for. */
static kernel_limits limits(const model *m)
{
    const model_config *c = &m->cfg;
    kernel_limits lim = {.n_rows = m->cap_rows,
                         .n_logit_rows = m->cap_head,
                         .hidden = c->hidden,
                         .hc = c->hc,
                         .n_heads = c->n_heads,
                         .head_dim = c->head_dim,
                         .window = c->window,
                         .moe_inter = c->inter,
                         .n_experts = c->n_experts,
                         .n_active = c->n_active,
                         .index_heads = c->index_heads,
                         .index_dim = c->index_dim,
                         .index_topk = c->index_topk,
                         .cand_blocks = c->cand_blocks,
                         .cand_block = c->cand_block,
                         .context = m->opt.context,
                         .vocab = c->vocab};
    int widths[] = {
        c->hidden,     c->q_rank,   c->o_groups * c->o_rank, c->n_heads * c->head_dim,
        c->inter,      c->head_dim, c->n_taps * c->hidden,   config_engram_cols(c) * c->engram_dim,
        c->markov_rank};

    for (size_t i = 0; i < ARRAY_LEN(widths); i++)
        if (widths[i] > lim.max_linear_cols)
            lim.max_linear_cols = widths[i];
    if (c->n_stages > 0 && c->draft_experts > lim.n_experts)
        lim.n_experts = c->draft_experts;
    if (c->n_stages > 0 && c->draft_active > lim.n_active)
        lim.n_active = c->draft_active;
    return lim;
}

size_t model_scratch_bytes(const model *m)
{
    kernel_limits lim = limits(m);

    return m->k->ops->scratch_bytes(m->k, &lim);
}

/* What comes before the buffers: their lists, and the scratch of the operations. */
static di_code reserve_begin(model *m, di_status *st)
{
    kernel_limits lim = limits(m);

    if (m->sizing)
        return DI_OK;
    m->cap_bufs = m->cap_hosts = MAX_BUFFERS;
    m->bufs = mem_try_calloc(MAX_BUFFERS, sizeof *m->bufs);
    m->hosts = mem_try_calloc(MAX_BUFFERS, sizeof *m->hosts);
    if (!m->bufs || !m->hosts)
        return di_fail(st, DI_E_NOMEM, "no memory for the step's buffers");
    return m->k->ops->reserve(m->k, &lim, st);
}

static void put_frequencies(model *m)
{
    size_t bytes = (size_t)m->plan.half * sizeof(float);

    if (m->sizing)
        return;
    m->k->ops->put(m->k, m->freq_window, m->plan.freq_window, bytes);
    m->k->ops->put(m->k, m->freq_comp, m->plan.freq_comp, bytes);
}

di_code model_reserve(model *m, di_status *st)
{
    di_code rc = DI_OK;

    DI_TRY(reserve_begin(m, st));
    DI_TRY(reserve_metadata(m, st));
    put_frequencies(m);
    DI_TRY(reserve_layers(m, st));
    DI_TRY(reserve_compressed(m, st));
    DI_TRY(reserve_ends(m, st));
done:
    return rc;
}

void model_release(model *m)
{
    for (int i = 0; i < m->n_bufs; i++)
        m->k->ops->buf_free(m->k, m->bufs[i]);
    if (m->arena.host)
        m->k->ops->shared_free(m->k, m->arena.host);
    for (int i = 0; i < m->n_hosts; i++)
        mem_free(m->hosts[i]);
    mem_free(m->bufs);
    mem_free(m->hosts);
    mem_free(m->trace_buf);
}
