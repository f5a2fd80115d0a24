/* The tensor table of spec 2.1, written as a walk in the order of the forward pass. */
#include "checkpoint/table.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/status.h"

#define TILE                                                                                       \
    32 /* one UE8M0 scale per 32 x 32 weights (FP8) or per row and 32 columns (FP4, tables) */

#define CKPT_PART_TEXT(name, text) text,
static const char *const part_names[CKPT_PART_COUNT] = {CKPT_PARTS(CKPT_PART_TEXT)};
#undef CKPT_PART_TEXT

typedef struct walk {
    const model_config *c;
    table_visit visit;
    void *arg;
    di_status *st;
    di_code rc;   /* first failure of visit: everything after it does nothing */
    int layer;    /* of the tensors that follow */
    bool draft;   /* all of them count as part of the draft */
    char pre[32]; /* "layers.7." */
} walk;

const char *ckpt_part_name(ckpt_part p)
{
    return (unsigned)p < CKPT_PART_COUNT ? part_names[p] : "?";
}

/* Visit prefix + base + suffix. cols = 0: a vector. */
static void emit(walk *w, ckpt_part part, dtype type, int64_t rows, int64_t cols, const char *base,
                 const char *suffix)
{
    char name[128];
    table_entry e = {.name = name,
                     .type = type,
                     .n_dims = cols ? 2 : 1,
                     .shape = {rows, cols ? cols : 1},
                     .part = w->draft ? CKPT_PART_DRAFT : part,
                     .layer = w->layer};

    if (w->rc != DI_OK)
        return;
    e.name_len = (size_t)snprintf(name, sizeof name, "%s%s%s", w->pre, base, suffix);
    w->rc = w->visit(w->arg, &e, w->st);
}

/* Stored forms. Names are given without ".weight". */
static void bf16(walk *w, ckpt_part part, int64_t rows, int64_t cols, const char *base)
{
    emit(w, part, DTYPE_BF16, rows, cols, base, ".weight");
}

static void fp8(walk *w, ckpt_part part, int64_t rows, int64_t cols, const char *base)
{
    emit(w, part, DTYPE_F8_E4M3, rows, cols, base, ".weight");
    emit(w, part, DTYPE_F8_E8M0, rows / TILE, cols / TILE, base, ".scale");
}

static void fp4(walk *w, ckpt_part part, int64_t rows, int64_t cols, const char *base)
{
    emit(w, part, DTYPE_I8, rows, cols / 2, base, ".weight");
    emit(w, part, DTYPE_F8_E8M0, rows, cols / TILE, base, ".scale");
}

static void begin_layer(walk *w, int layer)
{
    int n = w->c->n_layers;

    w->layer = layer;
    w->draft = layer >= n;
    if (layer < n)
        snprintf(w->pre, sizeof w->pre, "layers.%d.", layer);
    else
        snprintf(w->pre, sizeof w->pre, "mtp.%d.", layer - n);
}

static void end_layers(walk *w)
{
    w->layer = -1;
    w->draft = false;
    w->pre[0] = 0;
}

static void walk_mhc(walk *w, const char *fn, const char *base, const char *scale)
{
    int hc = w->c->hc, mix = (2 + hc) * hc;

    emit(w, CKPT_PART_MHC, DTYPE_F32, mix, (int64_t)hc * w->c->hidden, fn, "");
    emit(w, CKPT_PART_MHC, DTYPE_F32, mix, 0, base, "");
    emit(w, CKPT_PART_MHC, DTYPE_F32, 3, 0, scale, "");
}

static void walk_attention(walk *w)
{
    const model_config *c = w->c;
    int64_t q = (int64_t)c->n_heads * c->head_dim, o = (int64_t)c->o_groups * c->o_rank;

    emit(w, CKPT_PART_ATTENTION, DTYPE_F32, c->n_heads, 0, "attn.attn_sink", "");
    fp8(w, CKPT_PART_ATTENTION, c->q_rank, c->hidden, "attn.wq_a");
    bf16(w, CKPT_PART_NORMS, c->q_rank, 0, "attn.q_norm");
    fp8(w, CKPT_PART_ATTENTION, q, c->q_rank, "attn.wq_b");
    fp8(w, CKPT_PART_ATTENTION, c->head_dim, c->hidden, "attn.wkv");
    bf16(w, CKPT_PART_NORMS, c->head_dim, 0, "attn.kv_norm");
    fp8(w, CKPT_PART_ATTENTION, o, q / c->o_groups, "attn.wo_a");
    fp8(w, CKPT_PART_ATTENTION, c->hidden, o, "attn.wo_b");
}

/* Compressor and indexer of a backbone layer: sources only. */
static void walk_sources(walk *w, int layer)
{
    const model_config *c = w->c;
    bool kv = config_kv_source_idx(c, layer) >= 0;

    if (kv) {
        bf16(w, CKPT_PART_COMPRESSOR, c->head_dim, c->hidden, "attn.compressor.wkv");
        if (c->ratio[layer] > 1)
            bf16(w, CKPT_PART_COMPRESSOR, c->head_dim, c->hidden, "attn.compressor.wgate");
        bf16(w, CKPT_PART_COMPRESSOR, c->head_dim, 0, "attn.compressor.norm");
        bf16(w, CKPT_PART_INDEXER, c->index_dim, c->head_dim, "attn.indexer.wk");
        bf16(w, CKPT_PART_INDEXER, c->index_dim, 0, "attn.indexer.k_norm");
    }
    if (config_is_index_source(c, layer)) {
        fp8(w, CKPT_PART_INDEXER, (int64_t)c->index_heads * c->index_dim, c->q_rank,
            "attn.indexer.wq_b");
        bf16(w, CKPT_PART_INDEXER, c->index_heads, c->hidden, "attn.indexer.weights_proj");
    }
}

static void walk_experts(walk *w, int layer)
{
    const model_config *c = w->c;
    int n = config_n_experts(c, layer);
    char base[48];

    bf16(w, CKPT_PART_ROUTER, n, c->hidden, "ffn.gate");
    emit(w, CKPT_PART_ROUTER, DTYPE_F32, n, 0, "ffn.gate.bias", "");
    if (c->vision.n_layers > 0)
        emit(w, CKPT_PART_ROUTER, DTYPE_F32, n, 0, "ffn.gate.bias_vl", "");
    for (int e = 0; e < n && w->rc == DI_OK; e++) {
        snprintf(base, sizeof base, "ffn.experts.%d.w1", e);
        fp4(w, CKPT_PART_EXPERTS, c->inter, c->hidden, base);
        snprintf(base, sizeof base, "ffn.experts.%d.w3", e);
        fp4(w, CKPT_PART_EXPERTS, c->inter, c->hidden, base);
        snprintf(base, sizeof base, "ffn.experts.%d.w2", e);
        fp4(w, CKPT_PART_EXPERTS, c->hidden, c->inter, base);
    }
    fp8(w, CKPT_PART_SHARED, c->inter, c->hidden, "ffn.shared_experts.w1");
    fp8(w, CKPT_PART_SHARED, c->inter, c->hidden, "ffn.shared_experts.w3");
    fp8(w, CKPT_PART_SHARED, c->hidden, c->inter, "ffn.shared_experts.w2");
}

static void walk_engram(walk *w, int layer)
{
    const model_config *c = w->c;
    int i = config_engram_idx(c, layer);

    if (i < 0)
        return;
    emit(w, CKPT_PART_ENGRAM_TABLES, DTYPE_F8_E4M3, c->engram_rows[i], c->engram_dim,
         "engram.embed", ".weight");
    emit(w, CKPT_PART_ENGRAM_TABLES, DTYPE_F8_E8M0, c->engram_rows[i], c->engram_dim / TILE,
         "engram.embed", ".scale");
    fp8(w, CKPT_PART_ENGRAM, (int64_t)c->hidden * (c->hc + 1),
        (int64_t)config_engram_cols(c) * c->engram_dim, "engram.wkv");
    emit(w, CKPT_PART_ENGRAM, DTYPE_BF16, c->hc, c->hidden, "engram.q_weight", "");
    emit(w, CKPT_PART_ENGRAM, DTYPE_BF16, c->hc, c->hidden, "engram.k_weight", "");
}

static void walk_block(walk *w, int layer)
{
    begin_layer(w, layer);
    bf16(w, CKPT_PART_NORMS, w->c->hidden, 0, "attn_norm");
    bf16(w, CKPT_PART_NORMS, w->c->hidden, 0, "ffn_norm");
    walk_mhc(w, "hc_attn_fn", "hc_attn_base", "hc_attn_scale");
    walk_mhc(w, "hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale");
    walk_attention(w);
    if (layer < w->c->n_layers) {
        walk_sources(w, layer);
        walk_engram(w, layer);
    }
    walk_experts(w, layer);
}

/* The parts of the draft that are no block: input of the first stage, heads of the last one. */
static void walk_draft_ends(walk *w)
{
    const model_config *c = w->c;

    if (c->n_stages == 0)
        return;
    begin_layer(w, c->n_layers);
    fp8(w, CKPT_PART_DRAFT, c->hidden, (int64_t)c->hidden * c->n_taps, "main_proj");
    bf16(w, CKPT_PART_DRAFT, c->hidden, 0, "main_norm");
    begin_layer(w, c->n_layers + c->n_stages - 1);
    bf16(w, CKPT_PART_DRAFT, c->hidden, 0, "norm");
    bf16(w, CKPT_PART_DRAFT, c->vocab, c->markov_rank, "markov_head.embed");
    bf16(w, CKPT_PART_DRAFT, c->vocab, c->markov_rank, "markov_head.head");
    bf16(w, CKPT_PART_DRAFT, 1, (int64_t)c->hidden + c->markov_rank, "confidence_head.proj");
}

/* Matrix and bias of a vision linear layer. */
static void biased(walk *w, int64_t rows, int64_t cols, const char *base)
{
    bf16(w, CKPT_PART_VISION, rows, cols, base);
    emit(w, CKPT_PART_VISION, DTYPE_BF16, rows, 0, base, ".bias");
}

static void walk_vision_block(walk *w, int block)
{
    const vision_config *v = &w->c->vision;

    snprintf(w->pre, sizeof w->pre, "vision.blocks.%d.", block);
    bf16(w, CKPT_PART_VISION, v->hidden, 0, "norm1");
    biased(w, 3 * (int64_t)v->hidden, v->hidden, "attn.wqkv");
    biased(w, v->hidden, v->hidden, "attn.wo");
    bf16(w, CKPT_PART_VISION, v->hidden, 0, "norm2");
    bf16(w, CKPT_PART_VISION, 2 * (int64_t)v->inter, v->hidden, "mlp.w1");
    bf16(w, CKPT_PART_VISION, v->hidden, v->inter, "mlp.w2");
    w->pre[0] = 0;
}

static void walk_vision(walk *w)
{
    const vision_config *v = &w->c->vision;
    int64_t hidden = w->c->hidden;

    if (v->n_layers == 0)
        return;
    biased(w, v->hidden, 3 * (int64_t)v->patch * v->patch, "vision.patch_embed.proj");
    for (int b = 0; b < v->n_layers; b++)
        walk_vision_block(w, b);
    bf16(w, CKPT_PART_VISION, v->hidden, 0, "vision.norm");
    biased(w, hidden, (int64_t)v->hidden * v->downsample * v->downsample, "aligner.w1");
    biased(w, hidden, hidden, "aligner.w2");
    emit(w, CKPT_PART_VISION, DTYPE_BF16, hidden, 0, "image_start", "");
    emit(w, CKPT_PART_VISION, DTYPE_BF16, hidden, 0, "image_end", "");
    emit(w, CKPT_PART_VISION, DTYPE_BF16, hidden, 0, "image_newline", "");
}

di_code table_walk(const model_config *c, table_visit visit, void *arg, di_status *st)
{
    walk w = {.c = c, .visit = visit, .arg = arg, .st = st, .rc = DI_OK, .layer = -1};

    bf16(&w, CKPT_PART_EMBED, c->vocab, c->hidden, "embed");
    for (int l = 0; l < c->n_layers; l++)
        walk_block(&w, l);
    end_layers(&w);
    bf16(&w, CKPT_PART_NORMS, c->hidden, 0, "norm");
    bf16(&w, CKPT_PART_HEAD, c->vocab, c->hidden, "head");
    for (int s = 0; s < c->n_stages; s++)
        walk_block(&w, c->n_layers + s);
    walk_draft_ends(&w);
    end_layers(&w);
    walk_vision(&w);
    return w.rc;
}
