/* Metadata of a step: rows, positions, compression groups, Engram rows. Written on the host into
 * one region, which goes to the device in one copy; its layout depends on the step's shape alone.
 */
#include "model/model_internal.h"

/* ---- where it lies ---- */

/* Without a region only its size is added up. */
static void lay(step_arena *a, dual *d, size_t count, size_t size)
{
    if (a->host)
        *d = (dual){.host = a->host + a->used, .dev = a->dev + a->used};
    a->used += (count * size + 15) / 16 * 16;
}

static void lay_rows(step_arena *a, step_rows *r, size_t n, size_t n_seqs)
{
    lay(a, &r->row0, n_seqs + 1, sizeof(int32_t));
    lay(a, &r->seq, n, sizeof(int32_t));
    lay(a, &r->pos, n, sizeof(int64_t));
    lay(a, &r->image, n, 1);
    lay(a, &r->view, n_seqs, sizeof(kv_view));
}

void step_lay(model *m, size_t n, size_t n_seqs, size_t n_head)
{
    step_arena *a = &m->arena;
    size_t cols = m->cfg.n_engram > 0 ? (size_t)config_engram_cols(&m->cfg) : 0;

    a->used = 0;
    lay_rows(a, &m->rows, n, n_seqs);
    lay(a, &m->token, n, sizeof(int32_t));
    lay(a, &m->newest, n_seqs, sizeof(int32_t));
    lay(a, &m->head_rows, n_head, sizeof(int32_t));
    a->draft = a->used;
    lay(a, &m->engram_ids, (size_t)m->cfg.n_engram * n * cols, sizeof(int64_t));
    for (int i = 0; i < m->plan.n_ratios; i++) {
        lay(a, &m->comp[i].last_row, n, sizeof(int32_t));
        lay(a, &m->comp[i].entry, n, sizeof(int64_t));
        lay(a, &m->comp[i].first_pos, n, sizeof(int64_t));
    }
    a->always = a->used;
    lay_rows(a, &m->tail, n, n_seqs);
    lay_rows(a, &m->kept, n, n_seqs);
    lay(a, &m->lead, 2 * n_seqs, sizeof(int32_t));
    lay(a, &m->lead_view, n_seqs, sizeof(kv_view));
    lay(a, &m->keep, n, sizeof(int32_t));
    lay(a, &m->vectors, n, sizeof(uint16_t *));
}

/* The first bytes of it to the device. */
static void upload(model *m, size_t bytes)
{
    m->k->ops->put(m->k, m->arena.dev, m->arena.host, bytes);
}

/* ---- rows ---- */

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

/* The view of the rows that operations get. */
static void close_rows(step_rows *r)
{
    r->s.row0 = r->row0.dev;
    r->s.seq = r->seq.dev;
    r->s.pos = r->pos.dev;
    r->s.view = r->view.dev;
    r->s.image = memchr(r->image.host, 1, (size_t)r->s.n_rows) ? r->image.dev : NULL;
}

/* Rope angles of the rows, and block tables within the operations' reach. */
static void open_rows(model *m, const step_rows *r, int32_t *tables)
{
    rope_rows_args rope = {.n = r->s.n_rows, .half = m->plan.half, .pos = r->pos.dev};

    if (tables)
        m->k->ops->tables(m->k, &(tables_args){.n_seqs = r->s.n_seqs,
                                               .row0 = r->row0.dev,
                                               .view = r->view.dev,
                                               .to = tables,
                                               .stride = m->max_pos / KV_BLOCK_TOKENS + 1});
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

/* The most groups that so many rows of so many sequences can complete. */
static int most_groups(const step *s, int ratio)
{
    int64_t n = ((int64_t)s->n_rows + (int64_t)s->n_seqs * (ratio - 1)) / ratio;

    return n < s->n_rows ? (int)n : s->n_rows;
}

/* The groups that the rows complete, per ratio. Where steps are recorded, entries that are none
 * fill up, so that the number depends on the shape alone. */
static void find_groups(model *m)
{
    const int64_t *pos = m->rows.pos.host;

    for (int i = 0; i < m->plan.n_ratios; i++) {
        step_comp *c = &m->comp[i];
        int32_t *last = c->last_row.host;
        int64_t *entry = c->entry.host, *first = c->first_pos.host;
        int ratio = m->plan.group_ratio[i], n = 0;

        for (int row = 0; row < m->rows.s.n_rows; row++) {
            if ((pos[row] + 1) % ratio)
                continue;
            last[n] = row;
            entry[n] = pos[row] / ratio;
            first[n++] = pos[row] / ratio * ratio;
        }
        for (; m->records && n < most_groups(&m->rows.s, ratio); n++) {
            last[n] = STEP_NO_GROUP;
            entry[n] = first[n] = 0;
        }
        c->g = (step_groups){
            .n = n, .ratio = ratio, .last_row = c->last_row.dev, .entry = c->entry.dev};
    }
}

/* Rope angles at the first positions of the groups. */
static void open_groups(model *m)
{
    for (int i = 0; i < m->plan.n_ratios; i++) {
        const step_comp *c = &m->comp[i];

        if (c->g.n > 0)
            m->k->ops->rope_rows(m->k, &(rope_rows_args){.n = c->g.n,
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
static void embed(model *m)
{
    m->k->ops->gather(m->k, &(gather_args){.table = m->w.embed,
                                           .n = m->rows.s.n_rows,
                                           .copies = m->cfg.hc,
                                           .ids = m->token.dev,
                                           .vectors = m->has_vectors ? m->vectors.dev : NULL,
                                           .out = m->b.x});
}

static void start(model *m, int n_rows, int n_seqs, int n_head)
{
    m->rows.s = m->tail.s = m->kept.s = (step){0};
    step_lay(m, (size_t)n_rows, (size_t)n_seqs, (size_t)n_head);
    m->cut = m->has_vectors = false;
    m->tail_is_all = m->rings_at_once = true;
    m->n_leads = 0;
    m->n_head = 0;
    m->last_pos = m->max_pos = 0;
    m->pre = NULL;
    m->pre_idx = 0;
    m->pending = false;
}

/* The rows of a sequence. */
static void take_rows(model *m, const seq_rows *q)
{
    int whole = q->n - lead_rows(q);
    int tail = whole < m->layout.ring_rows ? whole : m->layout.ring_rows;
    int64_t last = q->view.len + q->n - 1;

    m->has_vectors = add_tokens(m, q, m->rows.s.n_rows) || m->has_vectors;
    add_kept(m, q, m->rows.s.n_rows);
    add_seq(&m->rows, q->view, q->view.len, q->n, q->image);
    if (tail > 0)
        add_seq(&m->tail, q->view, last + 1 - tail, tail, NULL);
    m->tail_is_all = m->tail_is_all && tail == q->n;
    m->rings_at_once =
        m->rings_at_once && !m->cut && q->n <= m->layout.ring_rows - m->layout.window;
    for (int j = q->n_logits; j > 0; j--) /* numbered as they are behind the split */
        ((int32_t *)m->head_rows.host)[m->n_head++] = m->kept.s.n_rows - j;
    m->last_pos = last > m->last_pos ? last : m->last_pos;
}

/* Where steps are recorded, the largest position counts in steps of an eighth: sizes that follow it
 * may be larger than needed. */
static int64_t rounded_pos(const model *m)
{
    int64_t unit = KV_BLOCK_TOKENS, up;

    while (16 * unit <= m->last_pos)
        unit *= 2;
    up = (m->last_pos / unit + 1) * unit - 1;
    return up < m->opt.context ? up : m->opt.context - 1;
}

di_code step_begin(model *m, const seq_rows *seq, int n_seqs, di_status *st)
{
    di_code rc = DI_OK;
    int n_rows = 0, n_head = 0;

    DI_TRY(check_limits(m, seq, n_seqs, st));
    for (int i = 0; i < n_seqs; i++) {
        n_rows += seq[i].n;
        n_head += seq[i].n_logits;
    }
    start(m, n_rows, n_seqs, n_head);
    for (int i = 0; i < n_seqs; i++)
        take_rows(m, &seq[i]);
    m->max_pos = m->records ? rounded_pos(m) : m->last_pos;
    find_groups(m);
    if (m->cfg.n_engram > 0)
        find_engram_rows(m, seq, n_seqs);
    close_rows(&m->rows);
    close_rows(&m->tail);
    close_rows(&m->kept);
    upload(m, m->cut || m->has_vectors || !m->tail_is_all ? m->arena.used : m->arena.always);
done:
    return rc;
}

void step_open(model *m)
{
    open_rows(m, &m->rows, m->tables);
    if (m->cut)
        open_rows(m, &m->kept, m->kept_tables);
    if (m->plan.n_stages > 0 && !m->tail_is_all)
        open_rows(m, &m->tail, NULL);
    open_groups(m);
    embed(m);
}

di_code step_begin_draft(model *m, const draft_rows *seq, int n_seqs, int block, di_status *st)
{
    int32_t *token;

    if (m->plan.n_stages == 0)
        return di_fail(st, DI_E_INVALID, "this model has no draft stages");
    if (n_seqs < 1 || n_seqs > m->opt.max_seqs || block < 1 || block > m->opt.max_draft)
        return di_fail(st, DI_E_INVALID, "%d drafts of %d tokens, the limits are %d and %d", n_seqs,
                       block, m->opt.max_seqs, m->opt.max_draft);
    start(m, n_seqs * block, n_seqs, n_seqs * block);
    token = m->token.host;
    for (int i = 0; i < n_seqs; i++) {
        add_seq(&m->rows, seq[i].view, seq[i].view.len, block, NULL);
        ((int32_t *)m->newest.host)[i] = seq[i].token;
        for (int k = 0; k < block; k++)
            token[i * block + k] = k == 0 ? seq[i].token : m->cfg.draft_noise;
    }
    /* Logits position by position, so that the Markov loop finds a position's rows together. */
    for (int k = 0; k < block; k++)
        for (int i = 0; i < n_seqs; i++)
            ((int32_t *)m->head_rows.host)[m->n_head++] = i * block + k;
    close_rows(&m->rows);
    upload(m, m->arena.draft);
    return DI_OK;
}

void step_open_draft(model *m)
{
    open_rows(m, &m->rows, NULL);
    embed(m);
}

/* What the launches of a step depend on: two steps of the same key are the same operations with the
 * same arguments. */
typedef struct step_key {
    const model *m;
    int64_t max_pos;
    int32_t kind, n_rows, n_seqs, n_head, image, rings_at_once;
} step_key;

bool step_replay(model *m, step_kind kind)
{
    step_key key;

    memset(&key, 0, sizeof key); /* compared as bytes */
    key.m = m;
    key.max_pos = m->max_pos;
    key.kind = (int32_t)kind;
    key.n_rows = m->rows.s.n_rows;
    key.n_seqs = m->rows.s.n_seqs;
    key.n_head = m->n_head;
    key.image = m->rows.s.image != NULL;
    key.rings_at_once = m->rings_at_once;
    return m->k->ops->replay(m->k, &key, sizeof key);
}
