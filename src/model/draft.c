/* The DSpark draft (spec section 7): stages over the main stream's taps, then a Markov chain of
 * tokens over one block of logits. */
#include "model/layer.h"
#include "model/model_internal.h"

/* Quantised taps of n rows from row `first` on, from place `to` on. */
static void quantise_rows(model *m, int first, int n, int to)
{
    int cols = m->cfg.n_taps * m->cfg.hidden;
    size_t q8 = m->k->ops->q8_row_bytes(m->k, cols);
    size_t act = (size_t)cols * dtype_bytes(m->k->act);

    m->k->ops->quantize(m->k, &(quantize_args){.n = n,
                                               .cols = cols,
                                               .x = (const char *)m->b.taps + (size_t)first * act,
                                               .q8 = (char *)m->b.taps_q8 + (size_t)to * q8});
}

/* Quantised taps of the tail rows, packed. Rows of one sequence are contiguous in both. */
static void quantise_tail(model *m)
{
    const int32_t *row0 = m->rows.row0.host, *tail0 = m->tail.row0.host;

    if (m->tail_is_all) {
        quantise_rows(m, 0, m->rows.s.n_rows, 0);
        return;
    }
    for (int i = 0; i < m->tail.s.n_seqs; i++) {
        int n = tail0[i + 1] - tail0[i];

        quantise_rows(m, row0[i + 1] - n, n, tail0[i]);
    }
}

void draft_feed(model *m)
{
    const model_config *c = &m->cfg;
    const step_rows *tail = m->tail_is_all ? &m->rows : &m->tail;
    kernels *k = m->k;
    int n = tail->s.n_rows;

    trace_act(m, -1, "main_hidden", m->b.taps, m->rows.s.n_rows, (int64_t)c->n_taps * c->hidden);
    quantise_tail(m);
    k->ops->linear(
        k, &(linear_args){
               .w = m->w.main_proj, .n = n, .out = LINEAR_ACT, .x = m->b.taps_q8, .y = m->b.main});
    /* A stream of one copy with weight 1: norm and quantisation alone. */
    k->ops->hc(k, &(hc_args){.n = n,
                             .hc = 1,
                             .dim = c->hidden,
                             .eps = c->rms_eps,
                             .x = m->b.main,
                             .norm = m->w.main_norm,
                             .out_q8 = m->b.main_q8});
    for (int s = 0; s < m->plan.n_stages; s++) {
        int layer = m->plan.n_layers + s;
        const layer_weights *w = &m->w.layer[layer];

        k->ops->linear(
            k, &(linear_args){
                   .w = w->stage_wkv, .n = n, .out = LINEAR_ACT, .x = m->b.main_q8, .y = m->b.qkv});
        k->ops->qkv(k, &(qkv_args){.n = n,
                                   .dim = c->head_dim,
                                   .rope = c->rope_dim,
                                   .eps = c->rms_eps,
                                   .qkv = m->b.qkv,
                                   .kv_norm = w->kv_norm,
                                   .cs = tail->cs_window,
                                   .layout = &m->layout,
                                   .kv_rows = m->b.kv_rows,
                                   .commit = &tail->s, /* nobody attends here */
                                   .ring = layer});
    }
}

/* Logits of all positions before the Markov correction, [block][n_seqs][vocab]. */
static void base_logits(model *m)
{
    kernels *k = m->k;

    k->ops->hc(k, &(hc_args){.n = m->n_head,
                             .hc = m->cfg.hc,
                             .dim = m->cfg.hidden,
                             .eps = m->cfg.rms_eps,
                             .x = m->b.x,
                             .rows = m->head_rows.dev,
                             .pre_in = m->pre,
                             .norm = m->w.draft_norm,
                             .collapsed = m->b.collapsed,
                             .out = m->b.head_in});
    trace_act(m, -1, "draft.hidden", m->b.collapsed, m->n_head, m->cfg.hidden);
    k->ops->linear(k, &(linear_args){.w = m->w.head,
                                     .n = m->n_head,
                                     .out = LINEAR_F32,
                                     .x = m->b.head_in,
                                     .y = m->b.draft_logits});
}

/* Position p of the block: add the bias of the token before, judge, choose. */
static void markov_step(model *m, int n_seqs, int block, int p)
{
    const model_config *c = &m->cfg;
    kernels *k = m->k;
    size_t first = (size_t)p * (size_t)n_seqs;
    float *logits = m->b.draft_logits + first * (size_t)c->vocab;
    int32_t *token = m->b.draft_tok + first;
    float *confidence = (float *)(void *)(token + (size_t)n_seqs * (size_t)block);

    k->ops->gather(k, &(gather_args){.table = m->w.markov_embed,
                                     .n = n_seqs,
                                     .copies = 1,
                                     .ids = p == 0 ? m->newest.dev : token - n_seqs,
                                     .out = m->b.markov});
    k->ops->linear(k, &(linear_args){.w = m->w.markov_head,
                                     .n = n_seqs,
                                     .accumulate = true,
                                     .out = LINEAR_F32,
                                     .x = m->b.markov,
                                     .y = logits});
    k->ops->confidence(k, &(confidence_args){.n = n_seqs,
                                             .dim = c->hidden,
                                             .rank = c->markov_rank,
                                             .h = (const char *)m->b.collapsed +
                                                  first * (size_t)c->hidden * dtype_bytes(k->act),
                                             .e = m->b.markov,
                                             .w = m->w.confidence,
                                             .out = confidence});
    k->ops->sample(k, &(sample_args){.n = n_seqs,
                                     .vocab = c->vocab,
                                     .logits = logits,
                                     .row = m->sample,
                                     .ahead = p,
                                     .staged = m->sample_staged,
                                     .token = token});
}

/* How the tokens of the block are drawn: to the back end at once where it can take all of it. */
static void put_samplers(model *m, const draft_rows *seq, int n_seqs)
{
    for (int i = 0; i < n_seqs; i++) {
        m->sample[i] = seq[i].row ? *seq[i].row : (sample_row){0};
        m->sample[i].position = seq[i].view.len + 1;
    }
    m->sample_staged = m->records && m->k->ops->sample_stage(m->k, m->sample, n_seqs, m->cfg.vocab);
}

static void markov_chain(model *m, int n_seqs, int block)
{
    base_logits(m);
    for (int p = 0; p < block; p++)
        markov_step(m, n_seqs, block, p);
    trace_f32(m, -1, "draft.logits", m->b.draft_logits, (int64_t)n_seqs * block, m->cfg.vocab);
}

/* Tokens and confidences, [block][n_seqs] on the device, [n_seqs][block] for the caller. */
static di_code fetch(model *m, int n_seqs, int block, int32_t *draft, float *confidence,
                     di_status *st)
{
    di_code rc = DI_OK;
    kernels *k = m->k;
    size_t n = (size_t)n_seqs * (size_t)block;
    const float *conf = (const float *)(const void *)(m->draft_host + n);

    k->ops->get(k, m->draft_host, m->b.draft_tok, 2 * n * sizeof *m->draft_host);
    DI_TRY(k->ops->finish(k, st));
    for (int p = 0; p < block; p++)
        for (int i = 0; i < n_seqs; i++) {
            draft[i * block + p] = m->draft_host[p * n_seqs + i];
            confidence[i * block + p] = conf[p * n_seqs + i];
        }
done:
    return rc;
}

di_code draft_propose(model *m, const draft_rows *seq, int n_seqs, int block, int32_t *draft,
                      float *confidence, di_status *st)
{
    put_samplers(m, seq, n_seqs);
    markov_chain(m, n_seqs, block);
    return fetch(m, n_seqs, block, draft, confidence, st);
}

static void run_stages(model *m)
{
    for (int l = m->plan.n_layers; l < m->plan.n_layers + m->plan.n_stages; l++) {
        layer_enter(m, l, HC_ATTN);
        layer_attention(m, l);
        layer_enter(m, l, HC_FFN);
        layer_ffn(m, l);
    }
    layer_leave(m);
}

di_code model_draft(model *m, const draft_rows *seq, int n_seqs, int block, int32_t *draft,
                    float *confidence, di_status *st)
{
    di_code rc = DI_OK;
    bool records;

    if (block == 0)
        block = m->cfg.draft_block < m->opt.max_draft ? m->cfg.draft_block : m->opt.max_draft;
    DI_TRY(step_begin_draft(m, seq, n_seqs, block, st));
    put_samplers(m, seq, n_seqs);
    records = m->sample_staged && !m->trace;
    if (!records || !step_replay(m, STEP_DRAFT)) {
        step_open_draft(m);
        run_stages(m);
        markov_chain(m, n_seqs, block);
        if (records)
            m->k->ops->recorded(m->k);
    }
    DI_TRY(fetch(m, n_seqs, block, draft, confidence, st));
done:
    return rc;
}
