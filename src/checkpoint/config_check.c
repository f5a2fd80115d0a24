/* Combinations of configuration values that no checkpoint of this kind can have (spec sections 1
 * and 13). Ranges of single values have been checked before. */
#include <inttypes.h>

#include "checkpoint/checkpoint_internal.h"

#define MAX_QUERY_DIM (1 << 22) /* heads * head_dim: rows of wq_b, used as int */

/* Lists of layers ascend strictly and name backbone layers only. */
static di_code check_list(const char *key, const int *list, int n, int n_layers, const char *name,
                          di_status *st)
{
    for (int i = 0; i < n; i++) {
        if (list[i] >= n_layers)
            return di_fail(st, DI_E_FORMAT,
                           "\"%s\": text_config.%s names layer %d of a model with %d layers", name,
                           key, list[i], n_layers);
        if (i > 0 && list[i] <= list[i - 1])
            return di_fail(st, DI_E_FORMAT,
                           "\"%s\": text_config.%s must ascend: %d stands behind %d", name, key,
                           list[i], list[i - 1]);
    }
    return DI_OK;
}

static di_code check_attention(const model_config *c, const char *name, di_status *st)
{
    int64_t q = (int64_t)c->n_heads * c->head_dim;

    if (q > MAX_QUERY_DIM)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.num_attention_heads * head_dim is %" PRId64
                       "; at most %d are supported",
                       name, q, MAX_QUERY_DIM);
    if (c->rope_dim > c->head_dim || c->rope_dim > c->index_dim)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.qk_rope_head_dim %d is larger than head_dim %d or "
                       "index_head_dim %d",
                       name, c->rope_dim, c->head_dim, c->index_dim);
    if (c->n_heads % c->o_groups != 0)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.num_attention_heads %d is no multiple of o_groups %d",
                       name, c->n_heads, c->o_groups);
    if ((int64_t)c->o_groups * c->o_rank % 32 != 0 ||
        (int64_t)c->o_groups * c->o_rank > MAX_QUERY_DIM)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.o_groups * o_lora_rank is %" PRId64
                       "; it must be a multiple of 32 up to %d",
                       name, (int64_t)c->o_groups * c->o_rank, MAX_QUERY_DIM);
    if (c->yarn_beta_fast <= c->yarn_beta_slow)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.rope_scaling.beta_fast %g is not above beta_slow %g",
                       name, (double)c->yarn_beta_fast, (double)c->yarn_beta_slow);
    if (c->n_active > c->n_experts)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.num_experts_per_tok %d is above n_routed_experts %d",
                       name, c->n_active, c->n_experts);
    return DI_OK;
}

/* Every layer with a ratio reads a cache that somebody before it makes at that ratio. */
static di_code check_ratios(const model_config *c, const char *name, di_status *st)
{
    for (int l = 0; l < c->n_layers; l++) {
        int owner = config_kv_owner(c, l);

        if (c->ratio[l] == 0 && (config_kv_source_idx(c, l) >= 0 || config_is_index_source(c, l)))
            return di_fail(st, DI_E_FORMAT,
                           "\"%s\": text_config.compress_ratios is 0 for layer %d, which is a "
                           "source in kv_source_layer_ids or index_source_layer_ids",
                           name, l);
        if (c->ratio[l] > 0 && owner < 0)
            return di_fail(
                st, DI_E_FORMAT,
                "\"%s\": text_config.compress_ratios is %d for layer %d, but no layer of "
                "kv_source_layer_ids stands at or before it",
                name, c->ratio[l], l);
        if (c->ratio[l] > 0 && c->ratio[l] != c->ratio[owner])
            return di_fail(
                st, DI_E_FORMAT,
                "\"%s\": text_config.compress_ratios is %d for layer %d and %d for layer "
                "%d, whose cache it reads",
                name, c->ratio[l], l, c->ratio[owner], owner);
    }
    for (int l = c->n_layers; l < c->n_layers + c->n_stages; l++)
        if (c->ratio[l] != 0)
            return di_fail(st, DI_E_FORMAT,
                           "\"%s\": text_config.compress_ratios is %d for draft stage %d; draft "
                           "stages have a window only (0)",
                           name, c->ratio[l], l - c->n_layers);
    return DI_OK;
}

/* The candidate source filters the index sources behind it, which must score the same keys. */
static di_code check_candidates(const model_config *c, const char *name, di_status *st)
{
    if (c->cand_source < 0)
        return DI_OK;
    if (!(c->cand_source < c->n_layers && config_is_index_source(c, c->cand_source)))
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.candidate_source_layer_id %d is not in "
                       "index_source_layer_ids",
                       name, c->cand_source);
    if (c->cand_blocks < 1 || c->cand_block < 1)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.%s must be at least 1 when there is a candidate source",
                       name, c->cand_blocks < 1 ? "candidate_topk_blocks" : "candidate_block_size");
    for (int i = 0; i < c->n_kv_sources; i++)
        if (c->kv_source[i] > c->cand_source)
            return di_fail(
                st, DI_E_FORMAT,
                "\"%s\": text_config.candidate_source_layer_id %d stands before KV source "
                "%d, whose entries it knows nothing of",
                name, c->cand_source, c->kv_source[i]);
    return DI_OK;
}

static di_code check_sources(const model_config *c, const char *name, di_status *st)
{
    di_code rc = DI_OK;

    DI_TRY(check_list("kv_source_layer_ids", c->kv_source, c->n_kv_sources, c->n_layers, name, st));
    DI_TRY(check_list("index_source_layer_ids", c->index_source, c->n_index_sources, c->n_layers,
                      name, st));
    for (int i = 0; i < c->n_kv_sources; i++)
        if (!config_is_index_source(c, c->kv_source[i]))
            return di_fail(st, DI_E_FORMAT,
                           "\"%s\": layer %d of text_config.kv_source_layer_ids is missing from "
                           "index_source_layer_ids",
                           name, c->kv_source[i]);
    DI_TRY(check_ratios(c, name, st));
    rc = check_candidates(c, name, st);
done:
    return rc;
}

static di_code check_engram(const model_config *c, const char *name, di_status *st)
{
    di_code rc = DI_OK;

    DI_TRY(check_list("engram_layer_ids", c->engram_layer, c->n_engram, c->n_layers, name, st));
    if (c->n_engram == 0)
        return DI_OK;
    if (c->engram_ngram < 2 || c->engram_heads < 1 || c->engram_dim < 1 || c->engram_vocab < 1)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.%s is too small for a model with Engram layers", name,
                       c->engram_ngram < 2   ? "engram_max_ngram_size"
                       : c->engram_heads < 1 ? "engram_n_heads"
                       : c->engram_dim < 1   ? "engram_head_dim"
                                             : "engram_vocab_size");
    if (c->engram_compressed < 1 || c->engram_compressed > c->vocab)
        return di_fail(
            st, DI_E_FORMAT,
            "\"%s\": text_config.engram_compressed_vocab_size is %d; it must be from 1 to "
            "vocab_size %d",
            name, c->engram_compressed, c->vocab);
    if (c->engram_pad >= c->engram_compressed)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.engram_pad_token_id %d is outside the compressed "
                       "vocabulary of %d ids",
                       name, c->engram_pad, c->engram_compressed);
done:
    return rc;
}

static di_code check_draft(const model_config *c, const char *name, di_status *st)
{
    di_code rc = DI_OK;

    if (c->n_stages == 0)
        return DI_OK;
    DI_TRY(check_list("dspark_target_layer_ids", c->tap_layer, c->n_taps, c->n_layers, name, st));
    if (c->draft_block < 1 || c->n_taps < 1 || c->markov_rank < 1)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.%s is empty in a model with %d draft stages", name,
                       c->draft_block < 1 ? "dspark_block_size"
                       : c->n_taps < 1    ? "dspark_target_layer_ids"
                                          : "dspark_markov_rank",
                       c->n_stages);
    if (c->draft_active > c->draft_experts)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.dspark_num_experts_per_tok %d is above "
                       "dspark_n_routed_experts %d",
                       name, c->draft_active, c->draft_experts);
    if (c->draft_noise >= c->vocab)
        return di_fail(
            st, DI_E_FORMAT,
            "\"%s\": text_config.dspark_noise_token_id %d is outside the vocabulary of %d", name,
            c->draft_noise, c->vocab);
done:
    return rc;
}

static di_code check_vision(const model_config *c, const char *name, di_status *st)
{
    const vision_config *v = &c->vision;

    if (v->n_layers == 0)
        return DI_OK;
    if (!v->hidden || !v->n_heads || !v->inter || !v->patch || !v->downsample)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": vision_config.%s is missing in a model with %d vision layers", name,
                       !v->hidden    ? "hidden_size"
                       : !v->n_heads ? "num_attention_heads"
                       : !v->inter   ? "intermediate_size"
                       : !v->patch   ? "patch_size"
                                     : "downsample_ratio",
                       v->n_layers);
    if (v->hidden % v->n_heads != 0 || v->hidden / v->n_heads % 4 != 0)
        return di_fail(
            st, DI_E_FORMAT,
            "\"%s\": vision_config.hidden_size %d must be num_attention_heads %d times a "
            "multiple of 4",
            name, v->hidden, v->n_heads);
    if (c->image_token < 0)
        return di_fail(st, DI_E_FORMAT, "\"%s\": image_token_id is missing in a model with vision",
                       name);
    return DI_OK;
}

static di_code check_tokens(const model_config *c, const char *name, di_status *st)
{
    const struct {
        const char *key;
        int id;
    } token[] = {{"bos_token_id", c->bos},
                 {"eos_token_id", c->eos},
                 {"pad_token_id", c->pad},
                 {"image_token_id", c->image_token}};

    for (size_t i = 0; i < ARRAY_LEN(token); i++)
        if (token[i].id >= c->vocab)
            return di_fail(st, DI_E_FORMAT, "\"%s\": %s %d is outside the vocabulary of %d", name,
                           token[i].key, token[i].id, c->vocab);
    return DI_OK;
}

di_code config_check(const model_config *c, const char *name, di_status *st)
{
    di_code rc = DI_OK;

    DI_TRY(check_attention(c, name, st));
    DI_TRY(check_sources(c, name, st));
    DI_TRY(check_engram(c, name, st));
    DI_TRY(check_draft(c, name, st));
    DI_TRY(check_vision(c, name, st));
    rc = check_tokens(c, name, st);
done:
    return rc;
}
