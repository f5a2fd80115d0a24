/* Metadata of a step: rows, positions, compression groups, Engram rows; written on the host, then
 * put where the operations read it. */
#include "model/model_internal.h"

static void publish(model *m, const dual *d, size_t bytes)
{
    m->k->ops->put(m->k, d->dev, d->host, bytes);
}

/* Append a sequence's rows. */
static void add_seq(step_rows *r, kv_view view, int64_t pos0, int n, const uint8_t *image)
{
    int32_t *row0 = r->row0.host;
    int first = r->s.n_rows, i = r->s.n_seqs;

    for (int j = 0; j < n; j++) {
        ((int32_t *)r->seq.host)[first + j] = i;
        ((int64_t *)r->pos.host)[first + j] = pos0 + j;
        ((uint8_t *)r->image.host)[first + j] = image ? image[j] : 0;
    }
    row0[i] = first;
    row0[i + 1] = first + n;
    view.len = pos0;
    ((kv_view *)r->view.host)[i] = view;
    r->s.n_seqs++;
    r->s.n_rows += n;
}

/* Rope angles of the rows and everything to the device. */
static void publish_rows(model *m, step_rows *r)
{
    size_t n = (size_t)r->s.n_rows, n_seqs = (size_t)r->s.n_seqs;
    rope_rows_args rope = {.n = r->s.n_rows, .half = m->plan.half, .pos = r->pos.dev};

    publish(m, &r->row0, (n_seqs + 1) * sizeof(int32_t));
    publish(m, &r->seq, n * sizeof(int32_t));
    publish(m, &r->pos, n * sizeof(int64_t));
    publish(m, &r->image, n);
    publish(m, &r->view, n_seqs * sizeof(kv_view));
    r->s.row0 = r->row0.dev;
    r->s.seq = r->seq.dev;
    r->s.pos = r->pos.dev;
    r->s.view = r->view.dev;
    r->s.image = memchr(r->image.host, 1, n) ? r->image.dev : NULL;
    rope.freq = m->freq_window;
    rope.cs = r->cs_window;
    m->k->ops->rope_rows(m->k, &rope);
    rope.freq = m->freq_comp;
    rope.cs = r->cs_comp;
    m->k->ops->rope_rows(m->k, &rope);
}

/* Rows of a sequence that stop behind the split. */
static int lead_rows(const seq_rows *q)
{
    int64_t n = q->whole_from - q->view.len;

    return n <= 0 ? 0 : n < q->n ? (int)n : q->n;
}

/* Split the rows of a sequence, whose first row is `first`, into those that stop and those that go
 * on. */
static void add_kept(model *m, const seq_rows *q, int first)
{
    int lead = lead_rows(q), at = m->kept.s.n_rows;
    kv_view view = q->view;

    if (lead > 0) {
        int32_t *span = (int32_t *)m->lead.host + 2 * (size_t)m->n_leads;

        span[0] = 0;
        span[1] = lead;
        ((kv_view *)m->lead_view.host)[m->n_leads] = view;
        m->lead_row[m->n_leads++] = first;
    }
    view.ring_first = q->ring_first;
    for (int j = lead; j < q->n; j++)
        ((int32_t *)m->keep.host)[at + j - lead] = first + j;
    if (lead < q->n)
        add_seq(&m->kept, view, q->view.len + lead, q->n - lead, q->image ? q->image + lead : NULL);
    m->cut = m->cut || lead > 0 || q->ring_first > 0;
}

static void keep_rows(model *m, void *buf, size_t row_bytes)
{
    if (m->kept.s.n_rows < m->rows.s.n_rows)
        m->k->ops->keep_rows(m->k, &(keep_rows_args){.n = m->kept.s.n_rows,
                                                     .row_bytes = row_bytes,
                                                     .rows = m->keep.dev,
                                                     .buf = buf});
}

/* Window keys of the rows that stop go into the rings of the split's layer: the rows behind them
 * read them there. */
static void commit_leads(model *m)
{
    for (int i = 0; i < m->n_leads; i++) {
        size_t first = (size_t)m->lead_row[i];
        step s = {.n_rows = ((int32_t *)m->lead.host)[2 * i + 1],
                  .n_seqs = 1,
                  .row0 = (const int32_t *)m->lead.dev + 2 * (size_t)i,
                  .pos = m->rows.s.pos + first,
                  .view = (const kv_view *)m->lead_view.dev + i};

        m->k->ops->ring_commit(
            m->k, &(ring_commit_args){.s = &s,
                                      .layout = &m->layout,
                                      .ring = m->plan.split,
                                      .kv_rows = m->b.kv_rows + first * m->layout.ring_row_bytes});
    }
}

void step_cut(model *m)
{
    const model_config *c = &m->cfg;
    model_buffers *b = &m->b;
    size_t d = (size_t)c->hidden * dtype_bytes(m->k->act), hc = (size_t)c->hc;
    step_rows whole = m->rows;

    commit_leads(m);
    keep_rows(m, b->x, hc * d);
    keep_rows(m, b->in, d);
    keep_rows(m, b->qr_q8, m->k->ops->q8_row_bytes(m->k, c->q_rank));
    keep_rows(m, b->kv_rows, m->layout.ring_row_bytes);
    keep_rows(m, b->pre[m->pre_idx ^ 1], hc * sizeof(float)); /* what the next collapse uses */
    keep_rows(m, b->post, hc * sizeof(float));
    keep_rows(m, b->comb, hc * hc * sizeof(float));
    if (b->taps)
        keep_rows(m, b->taps, (size_t)c->n_taps * d);
    m->rows = m->kept;
    m->kept = whole;
}

/* The groups that the rows complete, per ratio. */
static void find_groups(model *m)
{
    const int64_t *pos = m->rows.pos.host;

    for (int i = 0; i < m->plan.n_ratios; i++) {
        step_comp *c = &m->comp[i];
        int ratio = m->plan.group_ratio[i], n = 0;

        for (int row = 0; row < m->rows.s.n_rows; row++) {
            if ((pos[row] + 1) % ratio)
                continue;
            ((int32_t *)c->last_row.host)[n] = row;
            ((int64_t *)c->entry.host)[n] = pos[row] / ratio;
            ((int64_t *)c->first_pos.host)[n++] = pos[row] / ratio * ratio;
        }
        publish(m, &c->last_row, (size_t)n * sizeof(int32_t));
        publish(m, &c->entry, (size_t)n * sizeof(int64_t));
        publish(m, &c->first_pos, (size_t)n * sizeof(int64_t));
        c->g = (step_groups){
            .n = n, .ratio = ratio, .last_row = c->last_row.dev, .entry = c->entry.dev};
        if (n > 0)
            m->k->ops->rope_rows(m->k, &(rope_rows_args){.n = n,
                                                         .half = m->plan.half,
                                                         .pos = c->first_pos.dev,
                                                         .freq = m->freq_comp,
                                                         .cs = c->cs});
    }
}

/* Compressed id of the token `idx` rows behind the first row of the step; negative: history. */
static int32_t engram_id(const model *m, const seq_rows *q, int idx)
{
    int h = q->n_history + idx;

    if (idx >= 0)
        return q->image && q->image[idx] ? ENGRAM_DEAD : engram_compress(m->hash, q->token[idx]);
    if (h < 0 || (q->history_image && q->history_image[h]))
        return ENGRAM_DEAD;
    return engram_compress(m->hash, q->history[h]);
}

static void find_engram_rows(model *m, const seq_rows *seq, int n_seqs)
{
    const model_config *c = &m->cfg;
    size_t cols = (size_t)config_engram_cols(c), n = (size_t)m->rows.s.n_rows;
    int64_t *ids = m->engram_ids.host;
    int32_t t[CFG_MAX_ENGRAM + 1];

    for (int i = 0, row = 0; i < n_seqs; i++)
        for (int j = 0; j < seq[i].n; j++, row++) {
            for (int back = 0; back < c->engram_ngram; back++)
                t[back] = engram_id(m, &seq[i], j - back);
            for (int e = 0; e < c->n_engram; e++)
                engram_rows(m->hash, e, t, ids + ((size_t)e * n + (size_t)row) * cols);
        }
    publish(m, &m->engram_ids, (size_t)c->n_engram * n * cols * sizeof(int64_t));
}

static di_code check_limits(const model *m, const seq_rows *seq, int n_seqs, di_status *st)
{
    const model_config *c = &m->cfg;
    int64_t rows = 0, logits = 0;

    if (n_seqs < 1 || n_seqs > m->opt.max_seqs)
        return di_fail(st, DI_E_INVALID, "%d sequences in a step, the limit is %d", n_seqs,
                       m->opt.max_seqs);
    for (int i = 0; i < n_seqs; i++) {
        const seq_rows *q = &seq[i];
        int64_t look_back = q->view.len < c->engram_ngram - 1 ? q->view.len : c->engram_ngram - 1;

        if (q->n < 1 || q->n_logits < 0 || q->n_logits > q->n - lead_rows(q))
            return di_fail(st, DI_E_INVALID,
                           "%d rows of a sequence, of which %d stop early, with %d rows of logits",
                           q->n, lead_rows(q), q->n_logits);
        if (m->plan.split < 0 && (q->whole_from > 0 || q->ring_first > 0))
            return di_fail(st, DI_E_UNSUPPORTED, "rows of this model cannot skip its last layers");
        if (q->view.len + q->n > m->opt.context)
            return di_fail(st, DI_E_INVALID, "sequence of %lld tokens, the context is %lld",
                           (long long)q->view.len + q->n, (long long)m->opt.context);
        if (c->n_engram > 0 && q->n_history < look_back)
            return di_fail(st, DI_E_INVALID, "%d tokens of history for Engram, %lld are needed",
                           q->n_history, (long long)look_back);
        rows += q->n;
        logits += q->n_logits;
    }
    if (rows > m->opt.max_rows)
        return di_fail(st, DI_E_INVALID, "%lld rows in a step, the limit is %d", (long long)rows,
                       m->opt.max_rows);
    if (logits > m->opt.max_logit_rows)
        return di_fail(st, DI_E_INVALID, "%lld rows of logits in a step, the limit is %d",
                       (long long)logits, m->opt.max_logit_rows);
    return DI_OK;
}

/* Tokens and embedding vectors of a sequence whose rows begin at `first`. Returns whether any row
 * brings its own vector. */
static bool add_tokens(model *m, const seq_rows *q, int first)
{
    const uint16_t **vectors = m->vectors.host;
    bool any = false;

    memcpy((int32_t *)m->token.host + first, q->token, (size_t)q->n * sizeof(int32_t));
    for (int j = 0; j < q->n; j++) {
        vectors[first + j] = q->embedding ? q->embedding[j] : NULL;
        any = any || vectors[first + j];
    }
    return any;
}

/* x = copies of the embeddings of the rows. */
static void embed(model *m, bool vectors)
{
    size_t n = (size_t)m->rows.s.n_rows;

    publish(m, &m->token, n * sizeof(int32_t));
    if (vectors)
        publish(m, &m->vectors, n * sizeof(uint16_t *));
    publish(m, &m->head_rows, (size_t)m->n_head * sizeof(int32_t));
    m->k->ops->gather(m->k, &(gather_args){.table = m->w.embed,
                                           .n = (int)n,
                                           .copies = m->cfg.hc,
                                           .ids = m->token.dev,
                                           .vectors = vectors ? m->vectors.dev : NULL,
                                           .out = m->b.x});
}

static void start(model *m)
{
    m->rows.s = m->tail.s = m->kept.s = (step){0};
    m->cut = false;
    m->n_leads = 0;
    m->n_head = 0;
    m->max_pos = 0;
    m->pre = NULL;
    m->pre_idx = 0;
    m->pending = false;
}

di_code step_begin(model *m, const seq_rows *seq, int n_seqs, di_status *st)
{
    di_code rc = DI_OK;
    bool vectors = false;

    DI_TRY(check_limits(m, seq, n_seqs, st));
    start(m);
    for (int i = 0; i < n_seqs; i++) {
        const seq_rows *q = &seq[i];
        int whole = q->n - lead_rows(q);
        int tail = whole < m->layout.ring_rows ? whole : m->layout.ring_rows;
        int64_t last = q->view.len + q->n - 1;

        vectors = add_tokens(m, q, m->rows.s.n_rows) || vectors;
        add_kept(m, q, m->rows.s.n_rows);
        add_seq(&m->rows, q->view, q->view.len, q->n, q->image);
        if (tail > 0)
            add_seq(&m->tail, q->view, last + 1 - tail, tail, NULL);
        for (int j = q->n_logits; j > 0; j--) /* numbered as they are behind the split */
            ((int32_t *)m->head_rows.host)[m->n_head++] = m->kept.s.n_rows - j;
        m->max_pos = last > m->max_pos ? last : m->max_pos;
    }
    publish_rows(m, &m->rows);
    if (m->cut) {
        publish(m, &m->lead, 2 * (size_t)m->n_leads * sizeof(int32_t));
        publish(m, &m->lead_view, (size_t)m->n_leads * sizeof(kv_view));
        publish(m, &m->keep, (size_t)m->kept.s.n_rows * sizeof(int32_t));
        publish_rows(m, &m->kept);
    }
    if (m->plan.n_stages > 0)
        publish_rows(m, &m->tail);
    find_groups(m);
    if (m->cfg.n_engram > 0)
        find_engram_rows(m, seq, n_seqs);
    embed(m, vectors);
done:
    return rc;
}

di_code step_begin_draft(model *m, const draft_rows *seq, int n_seqs, int block, di_status *st)
{
    int32_t *token = m->token.host;

    if (m->plan.n_stages == 0)
        return di_fail(st, DI_E_INVALID, "this model has no draft stages");
    if (n_seqs < 1 || n_seqs > m->opt.max_seqs || block < 1 || block > m->opt.max_draft)
        return di_fail(st, DI_E_INVALID, "%d drafts of %d tokens, the limits are %d and %d", n_seqs,
                       block, m->opt.max_seqs, m->opt.max_draft);
    start(m);
    for (int i = 0; i < n_seqs; i++) {
        add_seq(&m->rows, seq[i].view, seq[i].view.len, block, NULL);
        for (int k = 0; k < block; k++)
            token[i * block + k] = k == 0 ? seq[i].token : m->cfg.draft_noise;
    }
    /* Logits position by position, so that the Markov loop finds a position's rows together. */
    for (int k = 0; k < block; k++)
        for (int i = 0; i < n_seqs; i++)
            ((int32_t *)m->head_rows.host)[m->n_head++] = i * block + k;
    publish_rows(m, &m->rows);
    embed(m, false);
    return DI_OK;
}
