/* The forward pass (spec section 3): written once, over the operation table. */
#include "model/layer.h"
#include "model/model_internal.h"

/* One block on the stream. The sublayers' outputs are expanded by the call behind them. */
static void run_layer(model *m, int layer)
{
    const layer_plan *p = &m->plan.layer[layer];

    if (p->engram >= 0)
        layer_engram(m, layer);
    layer_enter(m, layer, HC_ATTN);
    if (p->tap >= 0 && m->plan.n_stages > 0)
        layer_tap(m, layer);
    layer_attention(m, layer);
    if (m->rows.s.n_rows == 0)
        return;
    layer_enter(m, layer, HC_FFN);
    layer_ffn(m, layer);
}

/* A step that is only what its shape says, so that it may be recorded. */
static bool is_plain(const model *m)
{
    return m->records && !m->trace && !m->cut && !m->has_vectors && m->tail_is_all;
}

static void run_step(model *m)
{
    step_open(m);
    for (int l = 0; l < m->plan.n_layers && m->rows.s.n_rows > 0; l++)
        run_layer(m, l);
    if (m->rows.s.n_rows > 0) {
        layer_leave(m);
        if (m->plan.n_stages > 0)
            draft_feed(m);
        layer_head(m);
    }
}

di_code model_launch(model *m, const seq_rows *seq, int n_seqs, float **logits, di_status *st)
{
    di_code rc = DI_OK;

    DI_TRY(step_begin(m, seq, n_seqs, st));
    if (!is_plain(m)) {
        run_step(m);
    } else if (!step_replay(m, STEP_FORWARD)) {
        run_step(m);
        m->k->ops->recorded(m->k);
    }
    *logits = m->b.logits;
done:
    return rc;
}

di_code model_forward(model *m, const seq_rows *seq, int n_seqs, float **logits, di_status *st)
{
    di_code rc = model_launch(m, seq, n_seqs, logits, st);

    return rc == DI_OK ? m->k->ops->finish(m->k, st) : rc;
}
