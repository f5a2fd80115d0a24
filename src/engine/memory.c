/* See memory.h. */
#include "engine/memory.h"

#include "dspark/lengths.h"

#define DEFAULT_CONTEXT  65536
#define CHECKPOINT_SHARE 2    /* checkpoints get 1/2 of the blocks (docs/performance.md), */
#define CHECKPOINT_LEAST 16   /* but at least so many */
#define FREE_SHARE       4    /* of a host's free memory, which is not all for us */
#define DEVICE_RESERVE   0.94 /* of a GPU's, for blocks and checkpoints: all at once */
#define HUGE_BYTES       ((uint64_t)2 << 20)

di_code engine_settle(di_engine_options *o, int *max_draft, const model_config *c, di_status *st)
{
    int drafts;

    o->max_seqs = o->max_seqs ? o->max_seqs : 64;
    o->max_batched_tokens = o->max_batched_tokens ? o->max_batched_tokens : 512;
    o->max_queued = o->max_queued ? o->max_queued : 1024;
    o->checkpoint_spacing = o->checkpoint_spacing ? o->checkpoint_spacing : 4096;
    if (o->max_context == 0)
        o->max_context = c->max_context < DEFAULT_CONTEXT ? c->max_context : DEFAULT_CONTEXT;
    drafts = o->draft_tokens < 0 ? 0 : o->draft_tokens ? o->draft_tokens : c->draft_block;
    if (c->n_stages == 0)
        drafts = o->draft_tokens > 0 ? o->draft_tokens : 0;
    *max_draft = drafts;
    if (o->max_seqs < 1 || o->max_seqs > 65536 || o->max_batched_tokens < o->max_seqs ||
        o->max_context < 1 || o->max_context > c->max_context || o->checkpoint_spacing < 128 ||
        o->checkpoint_spacing % 128 || drafts > DSPARK_MAX_DRAFT)
        return di_fail(st, DI_E_INVALID,
                       "impossible engine options: %d sequences, %d tokens in a step (at least one "
                       "per sequence), context %lld of %lld, checkpoints every %lld tokens (a "
                       "multiple of 128), %d drafts (at most %d)",
                       o->max_seqs, o->max_batched_tokens, (long long)o->max_context,
                       (long long)c->max_context, (long long)o->checkpoint_spacing, drafts,
                       DSPARK_MAX_DRAFT);
    if ((o->replay == DI_REPLAY_COMPACT || o->replay == DI_REPLAY_MASK) &&
        o->replay_keep < c->window + drafts + 1)
        return di_fail(st, DI_E_INVALID,
                       "replay_keep is %lld, but must be at least %d (window and drafts)",
                       (long long)o->replay_keep, c->window + drafts + 1);
    return DI_OK;
}

/* Positions of a sequence: drafts may reach behind its longest context. */
static int64_t positions(const di_engine_options *o, int max_draft)
{
    return o->max_context + 4 * (1 + (int64_t)max_draft);
}

/* Rows with logits in a step: newest tokens with their drafts and ends of prompts, and a chunk of
 * prompts whose log-probabilities are asked for. */
static int logit_rows(const di_engine_options *o, int max_draft)
{
    int64_t n = (int64_t)o->max_seqs * (1 + max_draft) + ENGINE_PROMPT_LOGITS;

    return n < o->max_batched_tokens ? (int)n : o->max_batched_tokens;
}

model_options engine_model_options(const di_engine_options *o, int max_draft, const model_config *c)
{
    int64_t n = positions(o, max_draft);

    return (model_options){.max_rows = o->max_batched_tokens,
                           .max_logit_rows = logit_rows(o, max_draft),
                           .max_seqs = o->max_seqs,
                           .max_draft = max_draft,
                           .context = n < c->max_context ? n : c->max_context};
}

static int64_t default_kv_tokens(const di_engine_options *o, int max_draft, const kv_layout *l,
                                 kernels *k, uint64_t to_take)
{
    double per_token = kv_bytes_per_token(l), bytes = (double)k->ops->memory_free(k);
    int64_t most = o->max_context * o->max_seqs, least = positions(o, max_draft), tokens;

    if (bytes == 0) /* nobody knows */
        bytes = (double)HUGE_BYTES * 512 + (double)to_take;
    bytes -= (double)to_take;
    if (kernels_kv_memory(k))
        bytes = (bytes * DEVICE_RESERVE - (double)o->max_seqs * (double)l->fixed_bytes) *
                CHECKPOINT_SHARE / (CHECKPOINT_SHARE + 1);
    else
        bytes /= FREE_SHARE;
    bytes = bytes > 0 ? bytes : 0;
    tokens = per_token > 0 ? (int64_t)(bytes / per_token) : most;
    tokens = tokens < most ? tokens : most;
    return tokens > least ? tokens : least;
}

kv_store_options engine_store_options(const di_engine_options *o, int max_draft, const kv_layout *l,
                                      int n_encoder_rings, kernels *k, uint64_t to_take)
{
    int64_t tokens = o->kv_tokens ? o->kv_tokens : default_kv_tokens(o, max_draft, l, k, to_take);
    size_t ring = (size_t)l->n_rings * (size_t)l->window * l->ring_row_bytes, bytes;
    kv_store_options s = {.layout = l,
                          .memory = kernels_kv_memory(k),
                          .n_encoder_rings = n_encoder_rings,
                          .n_blocks = (int)((tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS),
                          .max_seqs = o->max_seqs,
                          .max_context = positions(o, max_draft),
                          .no_cache = o->no_prefix_cache};

    bytes = (size_t)s.n_blocks * l->block_bytes / CHECKPOINT_SHARE;
    s.checkpoint_bytes = bytes > CHECKPOINT_LEAST * ring ? bytes : CHECKPOINT_LEAST * ring;
    return s;
}

/* A pool of 2 MiB or more lies in huge pages, of which a part that is used counts whole. */
static uint64_t in_pages(uint64_t bytes)
{
    return bytes < HUGE_BYTES ? bytes : (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* On a device nothing grows: pools are there at once, tables are uploaded whole. */
static void add_up_device(engine_memory *m)
{
    const model_memory *p = &m->model;

    m->device = p->weights + p->step + p->scratch + m->store.start - m->store.lists +
                m->store.blocks + m->store.checkpoints;
    m->first_blocks = 0;
    m->start = m->full = m->peak = m->device + m->tokenizer + m->store.lists;
}

static void add_up(engine_memory *m, const di_engine_options *o)
{
    const model_memory *p = &m->model;
    uint64_t n = (uint64_t)o->max_seqs, blocks = m->store.blocks, all;
    uint64_t each = (uint64_t)((m->context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS);

    all = least_of(blocks, n * each * p->block);
    m->first_blocks = least_of(blocks, in_pages(n * p->block));
    m->start = p->weights + p->embedding + p->engram_used + p->step + p->scratch + m->tokenizer +
               m->store.start + m->first_blocks;
    m->full = m->start + (all > m->first_blocks ? all - m->first_blocks : 0);
    m->peak =
        o->no_prefix_cache ? m->full : m->start - m->first_blocks + blocks + m->store.checkpoints;
}

di_code engine_memory_of(engine_memory *out, const checkpoint *c, kernels *k, const tokenizer *tok,
                         const di_engine_options *opt, di_status *st)
{
    const model_config *cfg = checkpoint_config(c);
    di_engine_options o = opt ? *opt : (di_engine_options){0};
    model_memory *p = &out->model;
    model_options mo;
    kv_store_options so;
    int max_draft;
    di_code rc = DI_OK;

    *out = (engine_memory){0};
    DI_TRY(engine_settle(&o, &max_draft, cfg, st));
    mo = engine_model_options(&o, max_draft, cfg);
    DI_TRY(model_memory_of(p, c, k, &mo, st));
    so = engine_store_options(&o, max_draft, &p->layout, p->n_encoder_rings, k,
                              p->weights + p->step + p->scratch);
    out->store = kv_store_memory_of(&so);
    out->tokenizer = tok ? tokenizer_memory(tok) : tokenizer_memory_about(cfg->vocab);
    out->context = o.max_context;
    out->kv_tokens = (int64_t)so.n_blocks * KV_BLOCK_TOKENS;
    if (kernels_kv_memory(k))
        add_up_device(out);
    else
        add_up(out, &o);
done:
    return rc;
}
