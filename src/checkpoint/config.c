/* config.json -> model_config, driven by tables: one line per key with its type, range and place.
 *
 * What stands in one key only is checked here, what takes several in config_check.c. */
#include "checkpoint/config.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/mem.h"
#include "checkpoint/checkpoint_internal.h"

#define MAX_CONFIG_BYTES ((size_t)4 << 20)

/* The configuration, and the keys whose only allowed value is the released one. */
typedef struct document {
    model_config c;
    int n_ratio, n_engram_rows;
    int n_kv_heads, n_shared;
    float gate_temp;
    bool attention_bias, tied, text_tied;
    int tile[2], n_tile;
} document;

typedef enum field_type {
    FIELD_INT,
    FIELD_INT64,
    FIELD_FLOAT,
    FIELD_BOOL,
    FIELD_TEXT,   /* must be `want` */
    FIELD_INTS,   /* array into int[cap], its length into count_off */
    FIELD_INT64S, /* the same into int64_t[cap] */
    FIELD_SECTION /* object described by `sub` */
} field_type;

typedef enum presence {
    REQUIRED,
    OPTIONAL, /* may be missing or null: the value set before stays */
    NULLABLE  /* must be there, may be null */
} presence;

typedef struct field {
    const char *key;
    field_type type;
    presence presence;
    size_t off, count_off;
    double min, max; /* of the value, or of each element; integers below 2^53 */
    int step;        /* the value must be a multiple; 0 = any */
    int cap;
    const char *want;
    const struct section *sub;
} field;

typedef struct section {
    const char *prefix; /* "text_config." for messages */
    const field *fields;
    int n;
} section;

/* Upper limits are far above any model of this kind; they keep every product of dimensions inside
 * 63 bits, and those that are used as int inside 31. */
#define MAX_VOCAB  (1 << 24)
#define MAX_WIDTH  65536
#define MAX_LAYERS CFG_MAX_LAYERS
#define MAX_OWNERS 16 /* KV owners that a sequence's state can have */

#define AT(m)            .off = offsetof(document, m)
#define RANGE(lo, hi)    .min = (lo), .max = (hi)
#define INT(m, lo, hi)   .type = FIELD_INT, AT(m), RANGE(lo, hi)
#define INT64(m, lo, hi) .type = FIELD_INT64, AT(m), RANGE(lo, hi)
#define FLOAT(m, lo, hi) .type = FIELD_FLOAT, AT(m), RANGE(lo, hi)
#define MULT32(m, hi)    INT(m, 32, hi), .step = 32
#define BOOL(m)          .type = FIELD_BOOL, AT(m)
#define TEXT(w)          .type = FIELD_TEXT, .want = (w)
#define LIST(m, n, k)    AT(m), .count_off = offsetof(document, n), .cap = (k)
#define INTS(m, n, k)    .type = FIELD_INTS, LIST(m, n, k)
#define INT64S(m, n, k)  .type = FIELD_INT64S, LIST(m, n, k)
#define SUB(s)           .type = FIELD_SECTION, .sub = &(s)
#define OPT              .presence = OPTIONAL
#define SECTION(p, table)                                                                          \
    {                                                                                              \
        .prefix = (p), .fields = (table), .n = (int)ARRAY_LEN(table)                               \
    }

static const field rope_fields[] = {
    {"rope_type", TEXT("yarn")},
    {"factor", FLOAT(c.yarn_factor, 1, 1e6)},
    {"beta_fast", FLOAT(c.yarn_beta_fast, 1e-3, 1e6)},
    {"beta_slow", FLOAT(c.yarn_beta_slow, 1e-3, 1e6)},
    {"original_max_position_embeddings", INT64(c.yarn_original, 1, 1 << 30)},
};
static const section rope_section = SECTION("text_config.rope_scaling.", rope_fields);

static const field text_fields[] = {
    {"model_type", TEXT("deepseek_v41_text"), OPT},
    {"vocab_size", INT(c.vocab, 1, MAX_VOCAB)},
    {"hidden_size", MULT32(c.hidden, MAX_WIDTH)},
    {"moe_intermediate_size", MULT32(c.inter, MAX_WIDTH)},
    {"num_hidden_layers", INT(c.n_layers, 1, MAX_LAYERS)},
    {"num_attention_heads", INT(c.n_heads, 1, 1024)},
    {"num_key_value_heads", INT(n_kv_heads, 1, 1), OPT},
    {"head_dim", MULT32(c.head_dim, 4096)},
    {"qk_rope_head_dim", INT(c.rope_dim, 2, 4096), .step = 2},
    {"q_lora_rank", MULT32(c.q_rank, MAX_WIDTH)},
    {"o_lora_rank", INT(c.o_rank, 1, MAX_WIDTH)},
    {"o_groups", INT(c.o_groups, 1, 1024)},
    {"hidden_act", TEXT("silu"), OPT},
    {"swiglu_limit", FLOAT(c.swiglu_limit, 1e-3, 1e6)},
    {"rms_norm_eps", FLOAT(c.rms_eps, 1e-30, 1)},
    {"attention_bias", BOOL(attention_bias), OPT},
    {"tie_word_embeddings", BOOL(text_tied), OPT},
    {"max_position_embeddings", INT64(c.max_context, 1, 1 << 30)},
    {"rope_theta", FLOAT(c.rope_theta, 1.001, 1e12)},
    {"rope_scaling", SUB(rope_section)},
    {"n_routed_experts", INT(c.n_experts, 1, 4096)},
    {"n_shared_experts", INT(n_shared, 1, 1), OPT},
    {"num_experts_per_tok", INT(c.n_active, 1, 256)},
    {"scoring_func", TEXT("sqrtsoftplus")},
    {"topk_method", TEXT("noaux_tc"), OPT},
    {"norm_topk_prob", BOOL(c.norm_topk), OPT},
    {"routed_scaling_factor", FLOAT(c.route_scale, 1e-6, 1e6)},
    {"gate_temp", FLOAT(gate_temp, 1, 1), OPT},
    {"sliding_window", INT(c.window, 1, 65536)},
    {"compress_ratios", INTS(c.ratio, n_ratio, CFG_MAX_LAYERS), RANGE(0, 2)},
    {"compress_rope_theta", FLOAT(c.compress_theta, 1.001, 1e12)},
    {"kv_source_layer_ids", INTS(c.kv_source, c.n_kv_sources, MAX_OWNERS),
     RANGE(0, MAX_LAYERS - 1)},
    {"index_source_layer_ids", INTS(c.index_source, c.n_index_sources, CFG_MAX_SOURCES),
     RANGE(0, MAX_LAYERS - 1)},
    {"index_n_heads", INT(c.index_heads, 1, 1024)},
    {"index_head_dim", MULT32(c.index_dim, 4096)},
    {"index_topk", INT(c.index_topk, 1, 65536)},
    {"candidate_source_layer_id", INT(c.cand_source, -1, MAX_LAYERS - 1), .presence = NULLABLE},
    {"candidate_topk_blocks", INT(c.cand_blocks, 0, 1 << 24)},
    {"candidate_block_size", INT(c.cand_block, 0, 65536)},
    {"hc_mult", INT(c.hc, 1, 8)},
    {"hc_sinkhorn_iters", INT(c.hc_iters, 1, 1000)},
    {"hc_eps", FLOAT(c.hc_eps, 0, 1)},
    {"engram_layer_ids", INTS(c.engram_layer, c.n_engram, CFG_MAX_ENGRAM),
     RANGE(0, MAX_LAYERS - 1)},
    {"engram_num_embeddings", INT64S(c.engram_rows, n_engram_rows, CFG_MAX_ENGRAM),
     RANGE(1, (double)((int64_t)1 << 40))},
    {"engram_max_ngram_size", INT(c.engram_ngram, 0, 8)},
    {"engram_vocab_size", INT64(c.engram_vocab, 0, 1 << 30)},
    {"engram_n_heads", INT(c.engram_heads, 0, 64)},
    {"engram_head_dim", INT(c.engram_dim, 0, 4096), .step = 32},
    {"engram_pad_token_id", INT(c.engram_pad, 0, MAX_VOCAB - 1)},
    {"engram_compressed_vocab_size", INT(c.engram_compressed, 0, MAX_VOCAB)},
    {"num_nextn_predict_layers", INT(c.n_stages, 0, 16)},
    {"dspark_block_size", INT(c.draft_block, 0, 64)},
    {"dspark_noise_token_id", INT(c.draft_noise, 0, MAX_VOCAB - 1)},
    {"dspark_target_layer_ids", INTS(c.tap_layer, c.n_taps, CFG_MAX_TAPS),
     RANGE(0, MAX_LAYERS - 1)},
    {"dspark_markov_rank", INT(c.markov_rank, 0, MAX_WIDTH)},
    {"dspark_n_routed_experts", INT(c.draft_experts, 0, 4096)},
    {"dspark_num_experts_per_tok", INT(c.draft_active, 0, 256)},
};
static const section text_section = SECTION("text_config.", text_fields);

/* A text-only checkpoint has num_hidden_layers 0 and may leave the rest out. */
static const field vision_fields[] = {
    {"num_hidden_layers", INT(c.vision.n_layers, 0, 256)},
    {"hidden_size", INT(c.vision.hidden, 1, MAX_WIDTH), OPT},
    {"num_attention_heads", INT(c.vision.n_heads, 1, 1024), OPT},
    {"intermediate_size", INT(c.vision.inter, 1, MAX_WIDTH), OPT},
    {"patch_size", INT(c.vision.patch, 1, 256), OPT},
    {"downsample_ratio", INT(c.vision.downsample, 1, 16), OPT},
};
static const section vision_section = SECTION("vision_config.", vision_fields);

static const field quant_fields[] = {
    {"quant_method", TEXT("fp8")},
    {"activation_scheme", TEXT("dynamic"), OPT},
    {"weight_block_size", INTS(tile, n_tile, 2), RANGE(32, 32)},
    {"scale_fmt", TEXT("ue8m0")},
    {"expert_dtype", TEXT("fp4")},
};
static const section quant_section = SECTION("quantization_config.", quant_fields);

static const field root_fields[] = {
    {"model_type", TEXT("deepseek_v41")},
    {"dtype", TEXT("bfloat16"), OPT},
    {"tie_word_embeddings", BOOL(tied), OPT},
    {"bos_token_id", INT(c.bos, 0, MAX_VOCAB - 1)},
    {"eos_token_id", INT(c.eos, 0, MAX_VOCAB - 1)},
    {"pad_token_id", INT(c.pad, 0, MAX_VOCAB - 1)},
    {"image_token_id", INT(c.image_token, 0, MAX_VOCAB - 1), OPT},
    {"quantization_config", SUB(quant_section)},
    {"text_config", SUB(text_section)},
    {"vision_config", SUB(vision_section), OPT},
};
static const section root_section = SECTION("", root_fields);

#define MAX_FIELDS 64 /* bits of the set of keys seen */
_Static_assert(ARRAY_LEN(text_fields) <= MAX_FIELDS, "the set of keys is one word");

/* -------------------------------------------------------------------------------- reading */

static di_code read_section(json_read *r, document *d, const section *s, di_status *st);

/* Range of an integer, in the words of the key's table line. */
static di_code check_int(json_read *r, const section *s, const field *f, int64_t v, di_status *st)
{
    int64_t lo = (int64_t)f->min, hi = (int64_t)f->max;

    if (v >= lo && v <= hi && (!f->step || v % f->step == 0))
        return DI_OK;
    if (lo == hi)
        return json_fail(r, st, "%s%s is %" PRId64 "; only %" PRId64 " is supported", s->prefix,
                         f->key, v, lo);
    if (f->step)
        return json_fail(
            r, st, "%s%s is %" PRId64 "; it must be a multiple of %d from %" PRId64 " to %" PRId64,
            s->prefix, f->key, v, f->step, lo, hi);
    return json_fail(r, st, "%s%s is %" PRId64 "; it must be from %" PRId64 " to %" PRId64,
                     s->prefix, f->key, v, lo, hi);
}

static di_code read_float(json_read *r, document *d, const section *s, const field *f,
                          di_status *st)
{
    double v;
    di_code rc = json_number(r, &v, st);

    if (rc != DI_OK)
        return rc;
    if (!(v >= f->min && v <= f->max))
        return json_fail(r, st, "%s%s is %g; it must be from %g to %g", s->prefix, f->key, v,
                         f->min, f->max);
    *(float *)(void *)((char *)d + f->off) = (float)v;
    return DI_OK;
}

static di_code read_text(json_read *r, const section *s, const field *f, di_status *st)
{
    const char *text;
    size_t n;
    di_code rc = json_string(r, &text, &n, st);

    if (rc == DI_OK && !json_key_is(text, n, f->want))
        rc = di_fail(st, DI_E_UNSUPPORTED,
                     "\"%s\": %s%s is not \"%s\"; only checkpoints of the DeepSeek-V4.1 release "
                     "format are supported",
                     r->name, s->prefix, f->key, f->want);
    return rc;
}

static di_code read_list(json_read *r, document *d, const section *s, const field *f, di_status *st)
{
    char *out = (char *)d + f->off;
    int n = 0;
    di_code rc = DI_OK;

    DI_TRY(json_array(r, st));
    while (json_item(r)) {
        int64_t v;

        if (n == f->cap)
            return json_fail(r, st, "%s%s has more than %d entries", s->prefix, f->key, f->cap);
        DI_TRY(json_int(r, &v, st));
        DI_TRY(check_int(r, s, f, v, st));
        if (f->type == FIELD_INTS)
            ((int *)(void *)out)[n++] = (int)v;
        else
            ((int64_t *)(void *)out)[n++] = v;
    }
    *(int *)(void *)((char *)d + f->count_off) = n;
done:
    return rc;
}

static di_code read_int(json_read *r, document *d, const section *s, const field *f, di_status *st)
{
    int64_t v;
    di_code rc = json_int(r, &v, st);

    if (rc == DI_OK)
        rc = check_int(r, s, f, v, st);
    if (rc != DI_OK)
        return rc;
    if (f->type == FIELD_INT)
        *(int *)(void *)((char *)d + f->off) = (int)v;
    else
        *(int64_t *)(void *)((char *)d + f->off) = v;
    return DI_OK;
}

static di_code read_field(json_read *r, document *d, const section *s, const field *f,
                          di_status *st)
{
    if (f->presence != REQUIRED && json_peek(r) == JSON_NULL)
        return json_null(r, st);
    switch (f->type) {
    case FIELD_INT:
    case FIELD_INT64:
        return read_int(r, d, s, f, st);
    case FIELD_FLOAT:
        return read_float(r, d, s, f, st);
    case FIELD_BOOL:
        return json_bool(r, (bool *)(void *)((char *)d + f->off), st);
    case FIELD_TEXT:
        return read_text(r, s, f, st);
    case FIELD_INTS:
    case FIELD_INT64S:
        return read_list(r, d, s, f, st);
    case FIELD_SECTION:
        break;
    }
    return read_section(r, d, f->sub, st);
}

/* Read the value of field i: once, and with the key in front of what json_* has to say. */
static di_code read_once(json_read *r, document *d, const section *s, int i, uint64_t *seen,
                         di_status *st)
{
    const field *f = &s->fields[i];
    di_code rc;

    if (*seen >> i & 1)
        return json_fail(r, st, "%s%s stands twice", s->prefix, f->key);
    *seen |= (uint64_t)1 << i;
    rc = read_field(r, d, s, f, st);
    if (rc != DI_OK && f->type != FIELD_SECTION && st && !strstr(st->message, f->key))
        di_context(st, "%s%s", s->prefix, f->key);
    return rc;
}

static di_code read_section(json_read *r, document *d, const section *s, di_status *st)
{
    uint64_t seen = 0;
    const char *key;
    size_t n;
    di_code rc = DI_OK;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        int i = 0;

        while (i < s->n && !json_key_is(key, n, s->fields[i].key))
            i++;
        DI_TRY(i < s->n ? read_once(r, d, s, i, &seen, st) : json_skip(r, st));
    }
    if (r->error)
        return json_end(r, st);
    for (int i = 0; i < s->n; i++)
        if (s->fields[i].presence != OPTIONAL && !(seen >> i & 1))
            return di_fail(st, DI_E_FORMAT,
                           "\"%s\": %s%s is missing; use the config.json of the released "
                           "checkpoint's top folder",
                           r->name, s->prefix, s->fields[i].key);
done:
    return rc;
}

/* What the tables cannot say: values that must be the released ones, counts, and defaults. */
static di_code finish(document *d, const char *name, di_status *st)
{
    model_config *c = &d->c;

    if (d->n_tile != 2)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": quantization_config.weight_block_size must be [32, 32]", name);
    if (d->attention_bias || d->tied || d->text_tied)
        return di_fail(
            st, DI_E_UNSUPPORTED,
            "\"%s\": %s is true; only false is supported, as in the DeepSeek-V4.1 release", name,
            d->attention_bias ? "text_config.attention_bias" : "tie_word_embeddings");
    if (d->n_engram_rows != c->n_engram)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.engram_num_embeddings has %d entries for the %d layers "
                       "of engram_layer_ids",
                       name, d->n_engram_rows, c->n_engram);
    if (d->n_ratio != c->n_layers + c->n_stages)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": text_config.compress_ratios has %d entries; %d layers and %d draft "
                       "stages need %d",
                       name, d->n_ratio, c->n_layers, c->n_stages, c->n_layers + c->n_stages);
    if (c->n_stages == 0)
        c->draft_block = c->n_taps = 0;
    if (c->draft_experts == 0)
        c->draft_experts = c->n_experts;
    if (c->draft_active == 0)
        c->draft_active = c->n_active;
    return config_check(c, name, st);
}

di_code config_parse(model_config *c, const char *text, size_t n, const char *name, di_status *st)
{
    document d = {.c = {.norm_topk = true, .cand_source = -1, .image_token = -1}};
    json_read r;
    di_code rc;

    json_open(&r, text, n, name);
    rc = read_section(&r, &d, &root_section, st);
    if (rc == DI_OK)
        rc = json_end(&r, st);
    json_close(&r);
    if (rc == DI_OK)
        rc = finish(&d, name, st);
    if (rc == DI_OK)
        *c = d.c;
    return rc;
}

di_code config_load(model_config *c, const char *dir, di_status *st)
{
    char path[4096];
    char *text = NULL;
    size_t n;
    struct stat sb;
    di_code rc = DI_OK;

    if (stat(dir, &sb) != 0)
        return di_fail(st, DI_E_IO,
                       "could not open \"%s\": %s; give the folder that holds config.json and the "
                       "safetensors files",
                       dir, errno_text(errno));
    if (!S_ISDIR(sb.st_mode))
        return di_fail(st, DI_E_IO,
                       "\"%s\" is not a folder; give the folder that holds config.json and the "
                       "safetensors files",
                       dir);
    DI_TRY(path_join(path, sizeof path, dir, "config.json", st));
    if (access(path, F_OK) != 0)
        return di_fail(st, DI_E_IO,
                       "could not open \"%s\": %s; give the folder of a complete checkpoint", path,
                       errno_text(errno));
    DI_TRY(file_read(&text, &n, path, MAX_CONFIG_BYTES, st));
    rc = config_parse(c, text, n, path, st);
done:
    mem_free(text);
    return rc;
}

/* ------------------------------------------------------------------------------- questions */

/* Last entry of a sorted list at or below the layer, or -1. */
static int last_at_or_before(const int *list, int n, int layer)
{
    int found = -1;

    for (int i = 0; i < n && list[i] <= layer; i++)
        found = list[i];
    return found;
}

static int position(const int *list, int n, int layer)
{
    for (int i = 0; i < n; i++)
        if (list[i] == layer)
            return i;
    return -1;
}

int config_kv_owner(const model_config *c, int layer)
{
    return c->ratio[layer] ? last_at_or_before(c->kv_source, c->n_kv_sources, layer) : -1;
}

int config_index_owner(const model_config *c, int layer)
{
    return c->ratio[layer] ? last_at_or_before(c->index_source, c->n_index_sources, layer) : -1;
}

int config_kv_source_idx(const model_config *c, int layer)
{
    return position(c->kv_source, c->n_kv_sources, layer);
}

int config_engram_idx(const model_config *c, int layer)
{
    return position(c->engram_layer, c->n_engram, layer);
}

int config_tap_idx(const model_config *c, int layer)
{
    return position(c->tap_layer, c->n_taps, layer);
}

bool config_is_index_source(const model_config *c, int layer)
{
    return position(c->index_source, c->n_index_sources, layer) >= 0;
}

int config_n_experts(const model_config *c, int layer)
{
    return layer < c->n_layers ? c->n_experts : c->draft_experts;
}

int config_n_active(const model_config *c, int layer)
{
    return layer < c->n_layers ? c->n_active : c->draft_active;
}

int config_engram_cols(const model_config *c)
{
    return (c->engram_ngram - 1) * c->engram_heads;
}
