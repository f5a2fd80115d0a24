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

di_code model_forward(model *m, const seq_rows *seq, int n_seqs, float **logits, di_status *st)
{
    di_code rc = DI_OK;

    DI_TRY(layer_begin(m, seq, n_seqs, st));
    for (int l = 0; l < m->plan.n_layers && m->rows.s.n_rows > 0; l++)
        run_layer(m, l);
    if (m->rows.s.n_rows > 0) {
        layer_leave(m);
        if (m->plan.n_stages > 0)
            draft_feed(m);
        layer_head(m);
    }
    DI_TRY(m->k->ops->finish(m->k, st));
    *logits = m->b.logits;
done:
    return rc;
}
