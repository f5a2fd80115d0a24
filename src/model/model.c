/* Opening and closing a model. */
#include "model/model_internal.h"

#include "base/mem.h"

#define DEFAULT_CONTEXT 65536
#define ENGRAM_TOKENS   ((size_t)1000) /* of a working set */
#define PAGE_BYTES      ((size_t)4096)

/* Options with the defaults filled in and checked against the configuration. */
static di_code settle(model *m, const model_options *opt, di_status *st)
{
    const model_config *c = &m->cfg;
    model_options *o = &m->opt;

    *o = opt ? *opt : (model_options){0};
    o->max_rows = o->max_rows ? o->max_rows : 512;
    o->max_logit_rows = o->max_logit_rows ? o->max_logit_rows : 16;
    o->max_seqs = o->max_seqs ? o->max_seqs : 16;
    if (o->max_draft == 0 && c->n_stages > 0)
        o->max_draft = c->draft_block;
    if (o->context == 0)
        o->context = c->max_context < DEFAULT_CONTEXT ? c->max_context : DEFAULT_CONTEXT;
    if (o->max_rows < 1 || o->max_logit_rows < 1 || o->max_seqs < 1 || o->max_draft < 0 ||
        o->context < 1 || o->max_rows > 1 << 20 || o->max_draft > c->window)
        return di_fail(st, DI_E_INVALID,
                       "impossible limits: %d rows, %d rows of logits, %d sequences, drafts of %d, "
                       "context %lld",
                       o->max_rows, o->max_logit_rows, o->max_seqs, o->max_draft,
                       (long long)o->context);
    if (o->context > c->max_context)
        return di_fail(st, DI_E_INVALID, "context %lld, the model's is %lld", (long long)o->context,
                       (long long)c->max_context);
    m->records = m->k->ops->replay != NULL;
    m->cap_rows = o->max_rows;
    m->cap_head = o->max_logit_rows;
    if (o->max_seqs * o->max_draft > m->cap_rows)
        m->cap_rows = o->max_seqs * o->max_draft;
    if (o->max_seqs * o->max_draft > m->cap_head)
        m->cap_head = o->max_seqs * o->max_draft;
    return DI_OK;
}

/* Everything that follows from configuration and options. */
static di_code init(model *m, const checkpoint *c, kernels *k, const model_options *opt,
                    di_status *st)
{
    di_code rc = DI_OK;

    m->k = k;
    m->ckpt = c;
    m->cfg = *checkpoint_config(c);
    DI_TRY(settle(m, opt, st));
    DI_TRY(plan_init(&m->plan, &m->cfg, st));
    kv_layout_init(&m->layout, k->kv, m->cfg.head_dim, m->cfg.index_dim, m->cfg.window,
                   m->opt.max_draft, m->plan.n_layers + m->plan.n_stages, m->plan.owner_ratio,
                   m->plan.n_owners);
done:
    return rc;
}

/* Pages that the Engram rows of ENGRAM_TOKENS tokens lie on, at most the tables. */
static size_t engram_used(const model_config *c, size_t tables)
{
    size_t rows = (size_t)c->n_engram * (size_t)config_engram_cols(c);
    size_t bytes = rows * ENGRAM_TOKENS * PAGE_BYTES;

    return bytes < tables ? bytes : tables;
}

di_code model_memory_of(model_memory *out, const checkpoint *c, kernels *k,
                        const model_options *opt, di_status *st)
{
    di_code rc = DI_OK;
    model *m = mem_try_calloc(1, sizeof *m);

    *out = (model_memory){0};
    if (!m)
        return di_fail(st, DI_E_NOMEM, "no memory for a model");
    m->sizing = true;
    DI_TRY(init(m, c, k, opt, st));
    DI_TRY(model_reserve(m, st));
    DI_TRY(model_bind(m, out, st));
    out->weights += sizeof *m + (m->cfg.n_engram > 0 ? engram_hash_bytes(&m->cfg) : 0);
    out->engram_used = m->cfg.n_engram > 0 ? engram_used(&m->cfg, out->engram) : 0;
    out->step = m->step_bytes;
    out->scratch = model_scratch_bytes(m);
    out->sequence = m->layout.fixed_bytes;
    out->block = m->layout.block_bytes;
    out->layout = m->layout;
    out->n_encoder_rings = model_n_encoder_rings(m);
done:
    model_close(m);
    return rc;
}

di_code model_open(model **out, const checkpoint *c, kernels *k, const int32_t *compressed,
                   const model_options *opt, di_status *st)
{
    di_code rc = DI_OK;
    model *m = mem_try_calloc(1, sizeof *m);

    *out = NULL;
    if (!m)
        return di_fail(st, DI_E_NOMEM, "no memory for a model");
    DI_TRY(init(m, c, k, opt, st));
    DI_TRY(model_work_init(m, st));
    if (m->cfg.n_engram > 0) {
        if (!compressed) {
            rc = di_fail(st, DI_E_INVALID,
                         "this model has Engram layers and needs the compressed "
                         "ids of its tokenizer");
            goto done;
        }
        DI_TRY(engram_hash_new(&m->hash, &m->cfg, compressed, st));
    }
    DI_TRY(model_reserve(m, st));
    DI_TRY(model_bind(m, NULL, st));
    *out = m;
    m = NULL;
done:
    if (rc)
        di_context(st, "%s", checkpoint_dir(c));
    model_close(m);
    return rc;
}

void model_close(model *m)
{
    if (!m)
        return;
    model_unbind(m);
    model_release(m);
    engram_hash_free(m->hash);
    mem_free(m);
}

const model_config *model_cfg(const model *m)
{
    return &m->cfg;
}

int64_t model_exact_tail(const model *m)
{
    if (m->plan.split < 0)
        return -1;
    return (int64_t)(m->cfg.window - 1) * (m->plan.n_layers - 1 - m->plan.split) + 2;
}

int model_n_encoder_rings(const model *m)
{
    return m->plan.split < 0 ? m->plan.n_layers : m->plan.split + 1;
}

double model_encoder_share(const model *m)
{
    return m->plan.split < 0 ? 1 : (m->plan.split + 0.05) / m->plan.n_layers;
}

const kv_layout *model_kv_layout(const model *m)
{
    return &m->layout;
}
