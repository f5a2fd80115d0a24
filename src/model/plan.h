/* The plan of a model: what each layer and draft stage does, worked out once from the
 * configuration.
 *
 * Layers 0 .. n_layers-1 are the backbone, n_layers .. n_layers+n_stages-1 the draft stages.
 * Source of the roles: spec section 1, "Layer roles". Thread: immutable once made. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "checkpoint/config.h"
#include "tensor/kv_view.h"

#define PLAN_MAX_RATIOS 8   /* distinct compression ratios: powers of two that divide a block */
#define PLAN_MAX_HALF   256 /* rope frequencies */

/* How an index source takes part in the two-level selection (spec 4.7). */
typedef enum cand_role { CAND_NONE, CAND_SOURCE, CAND_FILTERED } cand_role;

typedef struct layer_plan {
    int stage;         /* draft stage, or -1 for the backbone */
    int ratio;         /* 0 = window only */
    int owner;         /* index of the KV owner in kv_layout, or -1 */
    int groups;        /* index of the ratio in plan.group_ratio, or -1 */
    bool kv_source;    /* owns a compressor */
    bool index_source; /* makes its own selection; the layers behind it reuse that */
    cand_role cand;
    int engram; /* index of its Engram table, or -1 */
    int tap;    /* index of its draft tap, or -1 */
    int n_experts, n_active;
} layer_plan;

typedef struct plan {
    int n_layers, n_stages;
    layer_plan layer[CFG_MAX_LAYERS];
    int n_owners, owner_ratio[KV_MAX_OWNERS];
    int n_ratios, group_ratio[PLAN_MAX_RATIOS];
    int split; /* last KV source: rows may stop behind its projections (bounded replay); -1 = cannot
                */
    int half;  /* rope dims / 2 */
    float freq_window[PLAN_MAX_HALF]; /* layers without compression and draft stages */
    float freq_comp[PLAN_MAX_HALF];   /* everything in a layer with compression */
} plan;

/* Errors: UNSUPPORTED when the configuration exceeds what state and kernels can hold. */
di_code plan_init(plan *p, const model_config *c, di_status *st);

/* freq [half] of a rope table (spec 4.2): theta^(-2k/dim), slowed down by YaRN when `yarn`. */
void plan_rope_freq(float *freq, const model_config *c, float theta, bool yarn);
