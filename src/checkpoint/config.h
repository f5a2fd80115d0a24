/* config.json of a DeepSeek-V4.1 checkpoint, in its released nesting (spec section 1).
 *
 * Text fields stand in "text_config", quantisation and token ids at the root, vision in
 * "vision_config". Every value is range-checked; unknown keys are ignored; a key with the wrong
 * type, a missing key or an impossible combination is refused with the file, the key and the
 * remedy. Thread: any; immutable once loaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define CFG_MAX_LAYERS  256 /* backbone layers and draft stages together */
#define CFG_MAX_SOURCES 64
#define CFG_MAX_ENGRAM  16
#define CFG_MAX_TAPS    16

typedef struct vision_config {
    int n_layers; /* 0 = text only: no vision tensors, no bias_vl */
    int hidden, n_heads, inter, patch, downsample;
} vision_config;

typedef struct model_config {
    int vocab, hidden, inter, n_layers, n_heads, head_dim, rope_dim;
    int q_rank, o_rank, o_groups;
    float swiglu_limit, rms_eps;
    int64_t max_context;
    float rope_theta, compress_theta;
    float yarn_factor, yarn_beta_fast, yarn_beta_slow;
    int64_t yarn_original;
    int n_experts, n_active;
    bool norm_topk;
    float route_scale;
    int window;
    int ratio[CFG_MAX_LAYERS]; /* per layer, stages included: 0 = window only */
    int n_kv_sources, kv_source[CFG_MAX_SOURCES];
    int n_index_sources, index_source[CFG_MAX_SOURCES];
    int index_heads, index_dim, index_topk;
    int cand_source; /* -1 = none */
    int cand_blocks, cand_block;
    int hc, hc_iters;
    float hc_eps;
    int n_engram, engram_layer[CFG_MAX_ENGRAM];
    int64_t engram_rows[CFG_MAX_ENGRAM];
    int engram_ngram, engram_heads, engram_dim, engram_pad, engram_compressed;
    int64_t engram_vocab;
    int n_stages, draft_block, draft_noise;
    int n_taps, tap_layer[CFG_MAX_TAPS];
    int markov_rank, draft_experts, draft_active;
    int bos, eos, pad, image_token;
    vision_config vision;
} model_config;

/* Parse n bytes of JSON. `name` (a path) is for messages. Errors: FORMAT, UNSUPPORTED (another
 * architecture or quantisation), NOMEM. */
di_code config_parse(model_config *c, const char *text, size_t n, const char *name, di_status *st);

/* Read DIR/config.json. */
di_code config_load(model_config *c, const char *dir, di_status *st);

/* Layer whose compressed KV layer l reads: the nearest KV source at or before it; -1 = window only.
 */
int config_kv_owner(const model_config *c, int layer);
/* Layer whose selection layer l uses: the nearest index source at or before it; -1 = none. */
int config_index_owner(const model_config *c, int layer);
/* Index of the layer in kv_source / engram_layer / tap_layer, or -1. */
int config_kv_source_idx(const model_config *c, int layer);
int config_engram_idx(const model_config *c, int layer);
int config_tap_idx(const model_config *c, int layer);
bool config_is_index_source(const model_config *c, int layer);
/* Routed experts, and how many a token uses, of a layer (stages have their own bank). */
int config_n_experts(const model_config *c, int layer);
int config_n_active(const model_config *c, int layer);
/* Columns of an Engram read: (ngram - 1) * heads. */
int config_engram_cols(const model_config *c);
