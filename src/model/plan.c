/* Layer roles and rope frequencies. */
#include "model/plan.h"

#include <math.h>

/* Index of `ratio` in the plan's list of distinct ratios, added when new; -1 when the list is full.
 */
static int ratio_idx(plan *p, int ratio)
{
    for (int i = 0; i < p->n_ratios; i++)
        if (p->group_ratio[i] == ratio)
            return i;
    if (p->n_ratios == PLAN_MAX_RATIOS)
        return -1;
    p->group_ratio[p->n_ratios] = ratio;
    return p->n_ratios++;
}

static di_code plan_owners(plan *p, const model_config *c, di_status *st)
{
    if (c->n_kv_sources > KV_MAX_OWNERS)
        return di_fail(st, DI_E_UNSUPPORTED, "%d KV source layers, at most %d are supported",
                       c->n_kv_sources, KV_MAX_OWNERS);
    for (int i = 0; i < c->n_kv_sources; i++) {
        int ratio = c->ratio[c->kv_source[i]];

        if (ratio < 1 || KV_BLOCK_TOKENS % ratio)
            return di_fail(st, DI_E_UNSUPPORTED,
                           "compression ratio %d of layer %d does not divide a block of %d tokens",
                           ratio, c->kv_source[i], KV_BLOCK_TOKENS);
        p->owner_ratio[p->n_owners++] = ratio;
        if (ratio_idx(p, ratio) < 0)
            return di_fail(st, DI_E_UNSUPPORTED, "more than %d different compression ratios",
                           PLAN_MAX_RATIOS);
    }
    return DI_OK;
}

static void plan_layer(plan *p, const model_config *c, int l)
{
    layer_plan *y = &p->layer[l];
    bool draft = l >= c->n_layers;

    *y = (layer_plan){.stage = draft ? l - c->n_layers : -1,
                      .owner = -1,
                      .groups = -1,
                      .engram = -1,
                      .tap = -1,
                      .n_experts = config_n_experts(c, l),
                      .n_active = config_n_active(c, l)};
    if (draft)
        return;
    y->ratio = c->ratio[l];
    y->engram = config_engram_idx(c, l);
    y->tap = config_tap_idx(c, l);
    if (y->ratio == 0)
        return;
    y->owner = config_kv_source_idx(c, config_kv_owner(c, l));
    y->groups = ratio_idx(p, y->ratio);
    y->kv_source = config_kv_source_idx(c, l) >= 0;
    y->index_source = config_is_index_source(c, l);
    if (c->cand_source >= 0 && y->index_source && l >= c->cand_source)
        y->cand = l == c->cand_source ? CAND_SOURCE : CAND_FILTERED;
}

/* The layer behind whose projections a prompt row may stop: nothing behind the last KV source owns
 * growing state (spec section 9). Engram and taps on the wrong side forbid it. */
static int find_split(const plan *p, const model_config *c)
{
    int split = c->n_kv_sources ? c->kv_source[c->n_kv_sources - 1] : -1;

    if (c->cand_source >= 0 && c->cand_source < split)
        return -1;
    for (int l = 0; l < p->n_layers; l++)
        if ((p->layer[l].engram >= 0 && l > split) || (p->layer[l].tap >= 0 && l < split))
            return -1;
    return split;
}

void plan_rope_freq(float *freq, const model_config *c, float theta, bool yarn)
{
    int dim = c->rope_dim, half = dim / 2;
    double turns_of = (double)c->yarn_original / (2 * 3.14159265358979323846);
    double per = dim / (2 * log((double)theta)); /* dims per factor e of the wavelength */
    double lo = fmax(floor(per * log(turns_of / c->yarn_beta_fast)), 0);
    double hi = fmin(ceil(per * log(turns_of / c->yarn_beta_slow)), dim - 1);
    float width = (float)fmax(hi - lo, 1e-3);

    for (int k = 0; k < half; k++) {
        float f = 1.0f / (float)pow(theta, (double)(2 * k) / dim);

        if (yarn) {
            float ramp = ((float)k - (float)lo) / width;

            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            f = f / c->yarn_factor * ramp + f * (1 - ramp);
        }
        freq[k] = f;
    }
}

di_code plan_init(plan *p, const model_config *c, di_status *st)
{
    di_code rc = DI_OK;

    *p = (plan){.n_layers = c->n_layers, .n_stages = c->n_stages, .half = c->rope_dim / 2};
    if (p->n_layers + p->n_stages > CFG_MAX_LAYERS || p->half > PLAN_MAX_HALF)
        return di_fail(st, DI_E_UNSUPPORTED, "%d layers with %d rope dims, at most %d and %d",
                       p->n_layers + p->n_stages, c->rope_dim, CFG_MAX_LAYERS, 2 * PLAN_MAX_HALF);
    DI_TRY(plan_owners(p, c, st));
    for (int l = 0; l < p->n_layers + p->n_stages; l++)
        plan_layer(p, c, l);
    p->split = find_split(p, c);
    plan_rope_freq(p->freq_window, c, c->rope_theta, false);
    plan_rope_freq(p->freq_comp, c, c->compress_theta, true);
done:
    return rc;
}
