/* The parts of a forward pass (spec sections 3 to 6). */
#include "model/layer.h"

#include <assert.h>

#include "model/model_internal.h"

static int rows(const model *m)
{
    return m->rows.s.n_rows;
}

/* ---- hyper-connections ---------------------------------------------------------------------- */

static hc_args hc_base(model *m)
{
    return (hc_args){.n = rows(m),
                     .hc = m->cfg.hc,
                     .dim = m->cfg.hidden,
                     .eps = m->cfg.rms_eps,
                     .hc_eps = m->cfg.hc_eps,
                     .iters = m->cfg.hc_iters,
                     .x = m->b.x,
                     .post = m->b.post,
                     .comb = m->b.comb};
}

void layer_leave(model *m)
{
    hc_args a = hc_base(m);

    if (!m->pending)
        return;
    a.y = m->b.y;
    m->k->ops->hc(m->k, &a);
    m->pending = false;
}

void layer_enter(model *m, int layer, hc_place place)
{
    const layer_weights *w = &m->w.layer[layer];
    const hc_weights *h = place == HC_ATTN ? &w->hc_attn : &w->hc_ffn;
    hc_args a = hc_base(m);

    a.y = m->pending ? m->b.y : NULL;
    a.fn = h->fn;
    a.base = h->base;
    a.scale = h->scale;
    a.pre_out = m->b.pre[m->pre_idx];
    a.post_out = m->b.post;
    a.comb_out = m->b.comb;
    a.pre_in = m->pre;
    a.norm = place == HC_ATTN ? w->attn_norm : w->ffn_norm;
    a.out = m->b.in;
    a.out_q8 = m->b.in_q8;
    m->k->ops->hc(m->k, &a);
    m->pending = false;
    if (place == HC_ATTN) {
        trace_act(m, layer, "in", m->b.x, rows(m), (int64_t)m->cfg.hc * m->cfg.hidden);
        if (m->pre)
            trace_f32(m, layer, "pre_mix", m->pre, rows(m), m->cfg.hc);
    }
    trace_act(m, layer, place == HC_ATTN ? "attn_in" : "ffn_in", m->b.in, rows(m), m->cfg.hidden);
    m->pre = a.pre_out; /* for the sublayer behind this one (spec section 3: lagged) */
    m->pre_idx ^= 1;
}

void layer_tap(model *m, int layer)
{
    int tap = m->plan.layer[layer].tap;
    size_t off = (size_t)tap * (size_t)m->cfg.hidden * dtype_bytes(m->k->act);

    m->k->ops->tap(m->k, &(tap_args){.n = rows(m),
                                     .hc = m->cfg.hc,
                                     .dim = m->cfg.hidden,
                                     .x = m->b.x,
                                     .out = (char *)m->b.taps + off,
                                     .out_stride = (int64_t)m->cfg.n_taps * m->cfg.hidden});
}

/* ---- Engram --------------------------------------------------------------------------------- */

void layer_engram(model *m, int layer)
{
    const layer_weights *w = &m->w.layer[layer];
    const model_config *c = &m->cfg;
    int e = m->plan.layer[layer].engram, cols = config_engram_cols(c);
    kernels *k = m->k;

    layer_leave(m);
    k->ops->engram_gather(k,
                          &(engram_gather_args){.table = w->engram_table,
                                                .n = rows(m),
                                                .n_cols = cols,
                                                .ids = (const int64_t *)m->engram_ids.dev +
                                                       (size_t)e * (size_t)rows(m) * (size_t)cols,
                                                .out_q8 = m->b.mem_q8});
    k->ops->linear(k, &(linear_args){.w = w->engram_wkv,
                                     .n = rows(m),
                                     .out = LINEAR_ACT,
                                     .x = m->b.mem_q8,
                                     .y = m->b.mem_kv});
    k->ops->engram_apply(k, &(engram_apply_args){.n = rows(m),
                                                 .hc = c->hc,
                                                 .dim = c->hidden,
                                                 .eps = c->rms_eps,
                                                 .x = m->b.x,
                                                 .kv = m->b.mem_kv,
                                                 .q_w = w->engram_q,
                                                 .k_w = w->engram_k,
                                                 .image = m->rows.s.image,
                                                 .gate = m->b.mem_gate});
    trace_f32(m, layer, "engram.gate", m->b.mem_gate, rows(m), c->hc);
}

/* ---- attention ------------------------------------------------------------------------------ */

/* Latents and index keys of the groups that this step completes. The key is made from the latent
 * before rope (spec 4.6), so the order of the calls matters. */
static void compress(model *m, int layer)
{
    const layer_weights *w = &m->w.layer[layer];
    const layer_plan *p = &m->plan.layer[layer];
    const step_comp *c = &m->comp[p->groups];
    kernels *k = m->k;

    k->ops->linear(k, &(linear_args){.w = w->compress,
                                     .n = rows(m),
                                     .out = p->ratio > 1 ? LINEAR_F32 : LINEAR_ACT,
                                     .x = m->b.in,
                                     .y = m->b.proj});
    k->ops->compress_pool(k, &(compress_pool_args){.s = &m->rows.s,
                                                   .g = &c->g,
                                                   .layout = &m->layout,
                                                   .owner = p->owner,
                                                   .few = m->rings_at_once,
                                                   .eps = m->cfg.rms_eps,
                                                   .proj = m->b.proj,
                                                   .norm = w->compress_norm,
                                                   .lat = m->b.lat});
    if (c->g.n == 0)
        return;
    k->ops->linear(
        k, &(linear_args){
               .w = w->index_wk, .n = c->g.n, .out = LINEAR_ACT, .x = m->b.lat, .y = m->b.key_raw});
    k->ops->compress_store(k, &(compress_store_args){.s = &m->rows.s,
                                                     .g = &c->g,
                                                     .layout = &m->layout,
                                                     .owner = p->owner,
                                                     .rope = m->cfg.rope_dim,
                                                     .eps = m->cfg.rms_eps,
                                                     .lat = m->b.lat,
                                                     .key_raw = m->b.key_raw,
                                                     .k_norm = w->index_k_norm,
                                                     .cs = c->cs});
}

/* Whether any row of the step has more entries than it may take, so that scores decide. */
static bool needs_scores(const model *m, const layer_plan *p)
{
    int64_t visible;

    assert(p->ratio > 0); /* index sources have a ratio */
    visible = (m->max_pos + 1) / p->ratio;
    return visible > m->cfg.index_topk ||
           (p->cand == CAND_SOURCE && visible > (int64_t)m->cfg.cand_blocks * m->cfg.cand_block);
}

/* Queries and weights of the indexer. */
static void index_project(model *m, int layer)
{
    const layer_weights *w = &m->w.layer[layer];
    kernels *k = m->k;

    k->ops->linear(
        k, &(linear_args){
               .w = w->index_wq_b, .n = rows(m), .out = LINEAR_ACT, .x = m->b.qr_q8, .y = m->b.iq});
    k->ops->linear(
        k, &(linear_args){
               .w = w->index_w, .n = rows(m), .out = LINEAR_ACT, .x = m->b.in, .y = m->b.iw});
}

/* Selection of an index source: scores a tile of rows at a time, then the best entries (spec 4.7).
 */
static void index_select(model *m, int layer)
{
    const layer_plan *p = &m->plan.layer[layer];
    const candidates *filter = p->cand == CAND_FILTERED ? &m->cand : NULL;
    bool scored = needs_scores(m, p);
    int64_t stride = ((m->max_pos + 1) / p->ratio + 16) / 16 * 16;
    int tile = (int)((int64_t)m->score_cap / stride);
    index_scores_args a = {.s = &m->rows.s,
                           .layout = &m->layout,
                           .owner = p->owner,
                           .heads = m->cfg.index_heads,
                           .rope = m->cfg.rope_dim,
                           .topk = m->cfg.index_topk,
                           .source_blocks = p->cand == CAND_SOURCE ? m->cfg.cand_blocks : 0,
                           .block = m->cfg.cand_block,
                           .filter = filter,
                           .iq = m->b.iq,
                           .iw = m->b.iw,
                           .cs = m->rows.cs_comp,
                           .scores = m->b.scores,
                           .stride = stride};
    select_args b = {.s = &m->rows.s,
                     .layout = &m->layout,
                     .owner = p->owner,
                     .topk = m->cfg.index_topk,
                     .filter = filter,
                     .out = p->cand == CAND_SOURCE ? &m->cand : NULL,
                     .scores = m->b.scores,
                     .stride = stride,
                     .sel = m->b.sel,
                     .n_sel = m->b.n_sel};

    if (scored)
        index_project(m, layer);
    for (int row = 0; row < rows(m); row += tile) {
        a.row0 = b.row0 = row;
        a.n = b.n = rows(m) - row < tile ? rows(m) - row : tile;
        if (scored)
            m->k->ops->index_scores(m->k, &a);
        m->k->ops->select(m->k, &b);
        if (scored)
            trace_margins(m, layer, row, a.n, stride);
    }
    trace_selection(m, layer);
    if (p->cand == CAND_SOURCE)
        trace_candidates(m, layer);
}

/* Whether a layer's window keys go into its rings as soon as they are there: not those of drafts,
 * which are never kept. */
static bool commits_at_once(const model *m, int layer)
{
    return m->rings_at_once && m->plan.layer[layer].stage < 0;
}

/* Latent query and window keys. */
static void project_in(model *m, int layer, const float *cs)
{
    const layer_weights *w = &m->w.layer[layer];
    const model_config *c = &m->cfg;
    kernels *k = m->k;

    k->ops->linear(
        k, &(linear_args){
               .w = w->wqkv, .n = rows(m), .out = LINEAR_ACT, .x = m->b.in_q8, .y = m->b.qkv});
    k->ops->qkv(k, &(qkv_args){.n = rows(m),
                               .q_rank = c->q_rank,
                               .dim = c->head_dim,
                               .rope = c->rope_dim,
                               .eps = c->rms_eps,
                               .qkv = m->b.qkv,
                               .q_norm = w->q_norm,
                               .kv_norm = w->kv_norm,
                               .cs = cs,
                               .layout = &m->layout,
                               .qr_q8 = m->b.qr_q8,
                               .kv_rows = m->b.kv_rows,
                               .commit = commits_at_once(m, layer) ? &m->rows.s : NULL,
                               .ring = layer});
}

/* Grouped low-rank output projection; its first half reads o unquantised (spec 4.5). */
static void project_out(model *m, int layer)
{
    const layer_weights *w = &m->w.layer[layer];
    kernels *k = m->k;

    k->ops->linear(k, &(linear_args){.w = w->wo_a,
                                     .n = rows(m),
                                     .groups = m->cfg.o_groups,
                                     .x_is_act = true,
                                     .out = LINEAR_Q8,
                                     .x = m->b.o,
                                     .y = m->b.low_q8});
    k->ops->linear(
        k, &(linear_args){
               .w = w->wo_b, .n = rows(m), .out = LINEAR_ACT, .x = m->b.low_q8, .y = m->b.y});
}

void layer_attention(model *m, int layer)
{
    const layer_weights *w = &m->w.layer[layer];
    const layer_plan *p = &m->plan.layer[layer];
    const model_config *c = &m->cfg;
    const float *cs = p->ratio ? m->rows.cs_comp : m->rows.cs_window;
    kernels *k = m->k;

    project_in(m, layer, cs);
    if (p->kv_source)
        compress(m, layer);
    if (m->cut && layer == m->plan.split) {
        step_cut(m);
        cs = p->ratio ? m->rows.cs_comp : m->rows.cs_window;
        if (rows(m) == 0)
            return;
    }
    k->ops->linear(
        k, &(linear_args){
               .w = w->wq_b, .n = rows(m), .out = LINEAR_ACT, .x = m->b.qr_q8, .y = m->b.q});
    if (p->index_source)
        index_select(m, layer);
    k->ops->attention(k, &(attention_args){.s = &m->rows.s,
                                           .layout = &m->layout,
                                           .n_heads = c->n_heads,
                                           .rope = c->rope_dim,
                                           .scale = 1.0f / sqrtf((float)c->head_dim),
                                           .draft = p->stage >= 0,
                                           .ring = layer,
                                           .q = m->b.q,
                                           .cs = cs,
                                           .kv_rows = m->b.kv_rows,
                                           .sink = w->sink,
                                           .owner = p->owner,
                                           .sel = m->b.sel,
                                           .n_sel = m->b.n_sel,
                                           .topk = c->index_topk,
                                           .o = m->b.o});
    if (p->stage < 0 && !m->rings_at_once)
        k->ops->ring_commit(
            k, &(ring_commit_args){
                   .s = &m->rows.s, .layout = &m->layout, .ring = layer, .kv_rows = m->b.kv_rows});
    project_out(m, layer);
    m->pending = true;
    trace_act(m, layer, "attn_out", m->b.y, rows(m), c->hidden);
}

/* ---- experts -------------------------------------------------------------------------------- */

void layer_ffn(model *m, int layer)
{
    const layer_weights *w = &m->w.layer[layer];
    const layer_plan *p = &m->plan.layer[layer];
    const model_config *c = &m->cfg;
    kernels *k = m->k;
    const route_args route = {.n = rows(m),
                              .n_experts = p->n_experts,
                              .k = p->n_active,
                              .normalize = c->norm_topk,
                              .scale = c->route_scale,
                              .logits = m->b.gate_logits,
                              .bias = w->bias,
                              .bias_vl = w->bias_vl,
                              .image = m->rows.s.image,
                              .ids = m->b.expert_ids,
                              .weights = m->b.expert_w};

    k->ops->linear(
        k, &(linear_args){
               .w = w->gate, .n = rows(m), .out = LINEAR_F32, .x = m->b.in, .y = m->b.gate_logits});
    k->ops->experts(k, &(experts_args){.w = w->experts,
                                       .route = &route,
                                       .n = rows(m),
                                       .k = p->n_active,
                                       .limit = c->swiglu_limit,
                                       .x_q8 = m->b.in_q8,
                                       .ids = m->b.expert_ids,
                                       .weights = m->b.expert_w,
                                       .y = m->b.y});
    trace_i32(m, layer, "ffn.expert_ids", m->b.expert_ids, rows(m), p->n_active);
    trace_f32(m, layer, "ffn.expert_weights", m->b.expert_w, rows(m), p->n_active);
    m->pending = true;
    trace_act(m, layer, "ffn_out", m->b.y, rows(m), c->hidden);
}

/* ---- head --------------------------------------------------------------------------------- */

void layer_head(model *m)
{
    kernels *k = m->k;

    if (m->n_head == 0)
        return;
    k->ops->hc(k, &(hc_args){.n = m->n_head,
                             .hc = m->cfg.hc,
                             .dim = m->cfg.hidden,
                             .eps = m->cfg.rms_eps,
                             .x = m->b.x,
                             .rows = m->head_rows.dev,
                             .pre_in = m->pre,
                             .norm = m->w.norm,
                             .collapsed = m->b.collapsed,
                             .out = m->b.head_in});
    trace_act(m, -1, "final", m->b.collapsed, m->n_head, m->cfg.hidden);
    k->ops->linear(k, &(linear_args){.w = m->w.head,
                                     .n = m->n_head,
                                     .out = LINEAR_F32,
                                     .x = m->b.head_in,
                                     .y = m->b.logits});
}

/* ---- tests ---------------------------------------------------------------------------------- */

di_code layer_begin(model *m, const seq_rows *seq, int n_seqs, di_status *st)
{
    di_code rc = step_begin(m, seq, n_seqs, st);

    if (rc == DI_OK)
        step_open(m);
    return rc;
}

di_code layer_begin_draft(model *m, const draft_rows *seq, int n_seqs, int block, di_status *st)
{
    di_code rc = step_begin_draft(m, seq, n_seqs, block, st);

    if (rc == DI_OK)
        step_open_draft(m);
    return rc;
}

void layer_set_stream(model *m, const float *x)
{
    m->k->ops->put_act(m->k, m->b.x, x,
                       (size_t)rows(m) * (size_t)m->cfg.hc * (size_t)m->cfg.hidden);
    m->pending = false;
}

void layer_set_pre(model *m, const float *pre)
{
    m->k->ops->put(m->k, m->b.pre[m->pre_idx], pre,
                   (size_t)rows(m) * (size_t)m->cfg.hc * sizeof(float));
    m->pre = m->b.pre[m->pre_idx];
    m->pre_idx ^= 1;
}

void layer_set_input(model *m, const float *in)
{
    m->k->ops->put_act(m->k, m->b.in, in, (size_t)rows(m) * (size_t)m->cfg.hidden);
    m->k->ops->quantize(
        m->k,
        &(quantize_args){.n = rows(m), .cols = m->cfg.hidden, .x = m->b.in, .q8 = m->b.in_q8});
}

void layer_set_output(model *m, const float *y)
{
    m->k->ops->put_act(m->k, m->b.y, y, (size_t)rows(m) * (size_t)m->cfg.hidden);
    m->pending = true;
}

void layer_get_stream(model *m, float *x)
{
    m->k->ops->get_act(m->k, x, m->b.x,
                       (size_t)rows(m) * (size_t)m->cfg.hc * (size_t)m->cfg.hidden);
}

void layer_get_input(model *m, float *in)
{
    m->k->ops->get_act(m->k, in, m->b.in, (size_t)rows(m) * (size_t)m->cfg.hidden);
}
