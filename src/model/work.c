/* See work.h. Weights of a layer are summed once, from the tensor table. */
#include "model/work.h"

#include <math.h>
#include <string.h>

#include "checkpoint/table.h"
#include "model/model_internal.h"

/* Rows of a step at one kind of layer, and what they see. */
typedef struct reach {
    double rows;
    double window_keys, entries; /* seen by the rows, summed: what is computed */
    double visible;              /* entries in front of the rows, summed: what an index scores */
    double ring_reads, reads, scans; /* the same, each once per sequence: what is read */
} reach;

static void count_weight(work_sums *s, const table_entry *e)
{
    double n = (double)e->shape[0] * (double)e->shape[1], bytes = n * dtype_bytes(e->type);
    bool expert = strstr(e->name, ".experts.") != NULL;

    n *= e->type == DTYPE_I8 ? 2 : 1;
    n = e->n_dims == 1 || e->type == DTYPE_F8_E8M0 ? 0 : n;
    *(expert ? &s->expert_bytes : &s->bytes) += bytes;
    *(expert ? &s->expert_weights : &s->weights) += n;
}

static di_code visit(void *arg, const table_entry *e, di_status *st)
{
    model *m = arg;

    (void)st;
    if (e->part == CKPT_PART_VISION || e->part == CKPT_PART_ENGRAM_TABLES ||
        e->part == CKPT_PART_EMBED || strstr(e->name, "markov_head.embed"))
        return DI_OK;
    if (strstr(e->name, "markov_head"))
        count_weight(&m->work_markov, e);
    else if (strstr(e->name, "main_proj"))
        count_weight(&m->work_main, e);
    else
        count_weight(e->layer < 0 ? &m->work_head : &m->work_layer[e->layer], e);
    return DI_OK;
}

di_code model_work_init(model *m, di_status *st)
{
    return table_walk(&m->cfg, visit, m, st);
}

/* Products of `rows` rows with the weights of a layer of n experts, `active` of them per row. */
static void add_layer(const work_sums *s, double rows, int n, int active, model_work *w)
{
    double touched = 1 - pow(1 - (double)active / n, rows);

    if (rows <= 0)
        return;
    w->bytes += s->bytes + touched * s->expert_bytes;
    w->flops += 2 * rows * (s->weights + s->expert_weights * active / n);
}

static double at_most(double a, double b)
{
    return a < b ? a : b;
}

/* Compressed entries of so many tokens. */
static int64_t entries_at(int64_t tokens, int ratio)
{
    return ratio ? tokens / ratio : 0;
}

/* Rows from position `from` on of each sequence, at layers of this ratio. */
static reach reach_of(const model *m, const seq_rows *seq, int n_seqs, bool whole, int ratio)
{
    reach r = {0};
    double window = m->cfg.window, topk = m->cfg.index_topk;

    for (int i = 0; i < n_seqs; i++) {
        int64_t first = seq[i].view.len, end = first + seq[i].n;
        double seen, n;

        if (whole && seq[i].whole_from > first)
            first = seq[i].whole_from < end ? seq[i].whole_from : end;
        n = (double)(end - first);
        if (n <= 0)
            continue;
        seen = (double)entries_at(end, ratio);
        r.rows += n;
        r.ring_reads += at_most((double)first, window) + n;
        r.reads += at_most(n * topk, seen);
        r.scans += seen;
        for (int64_t p = first; p < end; p++) {
            double visible = (double)entries_at(p + 1, ratio);

            r.window_keys += at_most((double)(p + 1), window);
            r.entries += at_most(visible, topk);
            r.visible += visible;
        }
    }
    return r;
}

/* Attention over what the rows see, and the scores of an index source. */
static void add_state(const model *m, const layer_plan *y, const reach *r, model_work *w)
{
    const model_config *c = &m->cfg;
    double scored = r->visible, scans = r->scans;

    w->bytes += r->ring_reads * (double)m->layout.ring_row_bytes +
                r->reads * (double)m->layout.latent_bytes;
    w->flops += 4.0 * c->n_heads * c->head_dim * (r->window_keys + r->entries);
    if (!y->index_source)
        return;
    if (y->cand == CAND_FILTERED) {
        double most = (double)c->cand_blocks * c->cand_block;

        scored = at_most(scored, r->rows * most);
        scans = at_most(scans, r->rows * most);
    }
    w->bytes += scans * (double)m->layout.key_bytes;
    w->flops += 2.0 * c->index_heads * c->index_dim * scored;
}

void model_work_forward(const model *m, const seq_rows *seq, int n_seqs, model_work *w)
{
    const model_config *c = &m->cfg;
    reach seen[2][PLAN_MAX_RATIOS + 1] = {{{0}}};
    bool known[2][PLAN_MAX_RATIOS + 1] = {{false}};
    double logits = 0;

    for (int l = 0; l < c->n_layers; l++) {
        const layer_plan *y = &m->plan.layer[l];
        int whole = m->plan.split >= 0 && l > m->plan.split, group = y->ratio ? y->groups + 1 : 0;
        reach *r = &seen[whole][group];

        if (!known[whole][group])
            *r = reach_of(m, seq, n_seqs, whole, y->ratio);
        known[whole][group] = true;
        add_layer(&m->work_layer[l], r->rows, y->n_experts, y->n_active, w);
        add_state(m, y, r, w);
        if (y->engram >= 0)
            w->bytes += r->rows * config_engram_cols(c) * c->engram_dim * 33.0 / 32;
    }
    for (int i = 0; i < n_seqs; i++)
        logits += seq[i].n_logits;
    add_layer(&m->work_head, logits, 1, 1, w);
    if (c->n_stages > 0)
        add_layer(&m->work_main, n_seqs, 1, 1, w);
}

void model_work_draft(const model *m, int n_seqs, int block, model_work *w)
{
    const model_config *c = &m->cfg;
    double rows = (double)n_seqs * block, keys = c->window + block;

    for (int l = c->n_layers; l < c->n_layers + c->n_stages; l++) {
        add_layer(&m->work_layer[l], rows, m->plan.layer[l].n_experts, m->plan.layer[l].n_active,
                  w);
        w->bytes += n_seqs * keys * (double)m->layout.ring_row_bytes;
        w->flops += 4.0 * c->n_heads * c->head_dim * rows * keys;
    }
    add_layer(&m->work_head, rows, 1, 1, w);
    w->bytes += block * m->work_markov.bytes; /* token after token */
    w->flops += 2 * rows * m->work_markov.weights;
}
