/* Weights: from the names of the checkpoint into the back end.
 *
 * Scale bytes are checked as they are taken; pages of the file are dropped behind, so that a back
 * end which re-orders its weights never holds two copies. Tables stay mapped. A back end that
 * copies everything reads through checkpoint_read, which checks scale bytes, too. */
#include "model/model_internal.h"

#include "base/mem.h"

#define MAX_NAME    128
#define STATE_SHARE 0.15

/* One load in progress. */
typedef struct binder {
    model *m;
    di_status *st;
    di_code rc;
    uint64_t done, total;
    bool copies;       /* the back end reads through checkpoint_read */
    bool on_host;      /* Engram tables stay in host memory */
    fp4_part *fp4;     /* [3][experts] */
    model_memory *mem; /* of sizing; else NULL */
} binder;

static bool keep(binder *b, weight *w)
{
    model_weights *mw = &b->m->w;

    if (mw->n_all == mw->cap_all) {
        int cap = mw->cap_all ? 2 * mw->cap_all : 256;
        weight **all = mem_try_realloc(mw->all, (size_t)cap, sizeof *all);

        if (!all)
            return false;
        mw->all = all;
        mw->cap_all = cap;
    }
    mw->all[mw->n_all++] = w;
    return true;
}

/* The tensor of this name; INTERNAL when absent, for checkpoint_open has checked all names. */
static const ckpt_tensor *find(binder *b, const char *name)
{
    const ckpt_tensor *t = b->rc ? NULL : checkpoint_find(b->m->ckpt, "%s", name);

    if (!t && !b->rc)
        b->rc = di_fail(b->st, DI_E_INTERNAL, "tensor \"%s\" is not in the checkpoint", name);
    return t;
}

/* `name` of a quantised matrix without ".weight": its codes and checked scales. */
static weight_part quantised(binder *b, const char *name)
{
    char full[MAX_NAME];
    const ckpt_tensor *t, *s;

    snprintf(full, sizeof full, "%s.weight", name);
    t = find(b, full);
    snprintf(full, sizeof full, "%s.scale", name);
    s = find(b, full);
    if (!b->rc && !b->mem && !b->copies)
        b->rc = checkpoint_scale_check(b->m->ckpt, s, b->st);
    if (b->rc)
        return (weight_part){0};
    return (weight_part){.data = t->data, .scale = s->data, .rows = t->shape[0]};
}

static void loaded(binder *b, const ckpt_tensor *t, bool drop)
{
    const model_options *o = &b->m->opt;

    if (!t || b->mem)
        return;
    b->done += t->bytes;
    if (drop && !b->copies)
        checkpoint_drop(b->m->ckpt, t);
    if (o->progress)
        o->progress(o->progress_arg, b->done, b->total);
}

static void loaded_quantised(binder *b, const char *name, bool drop)
{
    loaded(b, checkpoint_find(b->m->ckpt, "%s.weight", name), drop);
    loaded(b, checkpoint_find(b->m->ckpt, "%s.scale", name), drop);
}

/* What a weight takes: memory of the back end, or mapped rows. */
static void add_size(binder *b, const weight_src *src)
{
    size_t rows = (size_t)src->part[0].rows, cols = (size_t)src->cols;

    b->mem->weights += b->m->k->ops->weight_bytes(b->m->k, src);
    if (src->kind == WEIGHT_BF16_TABLE)
        b->mem->embedding += rows * cols * 2;
    else if (src->kind == WEIGHT_FP8_TABLE)
        b->mem->engram += rows * (cols + (cols + 31) / 32);
}

static weight *load(binder *b, const weight_src *src)
{
    weight *w = NULL;

    if (b->mem && !b->rc)
        add_size(b, src);
    if (b->mem)
        return NULL;
    if (!b->rc)
        b->rc = b->m->k->ops->load(b->m->k, src, &w, b->st);
    if (b->rc)
        return NULL;
    if (!keep(b, w)) {
        b->m->k->ops->unload(b->m->k, w);
        b->rc = di_fail(b->st, DI_E_NOMEM, "no memory for the list of weights");
        return NULL;
    }
    return w;
}

/* A tensor that is not quantised, by its whole name; `second` (or NULL) goes below it. */
static weight *plain2(binder *b, weight_kind kind, const char *name, const char *second)
{
    const ckpt_tensor *t = find(b, name), *u = second ? find(b, second) : NULL;
    weight_src src = {.name = name, .kind = kind, .n_parts = u ? 2 : 1};
    weight *w;

    if (b->rc)
        return NULL;
    src.cols = t->n_dims == 1 ? t->shape[0] : t->shape[1];
    src.part[0] = (weight_part){.data = t->data, .rows = t->n_dims == 1 ? 1 : t->shape[0]};
    if (u)
        src.part[1] = (weight_part){.data = u->data, .rows = u->shape[0]};
    w = load(b, &src);
    loaded(b, b->rc ? NULL : t, kind != WEIGHT_BF16_TABLE);
    loaded(b, b->rc ? NULL : u, true);
    return w;
}

static weight *plain(binder *b, weight_kind kind, const char *prefix, const char *name)
{
    char full[MAX_NAME];

    snprintf(full, sizeof full, "%s%s", prefix, name);
    return plain2(b, kind, full, NULL);
}

/* An FP8 matrix or table by its name without ".weight"; `second` (or NULL) goes below it. */
static weight *fp8(binder *b, weight_kind kind, const char *prefix, const char *name,
                   const char *second)
{
    char n1[MAX_NAME - 8], n2[MAX_NAME - 8];
    const ckpt_tensor *t;
    weight_src src = {.name = n1,
                      .kind = kind,
                      .n_parts = second ? 2 : 1,
                      .on_host = kind == WEIGHT_FP8_TABLE && b->on_host};
    weight *w;

    snprintf(n1, sizeof n1, "%s%s", prefix, name);
    snprintf(n2, sizeof n2, "%s%s", prefix, second ? second : "");
    src.part[0] = quantised(b, n1);
    if (second)
        src.part[1] = quantised(b, n2);
    if (b->rc)
        return NULL;
    t = checkpoint_find(b->m->ckpt, "%s.weight", n1);
    src.cols = t->shape[1];
    w = load(b, &src);
    if (!w)
        return NULL;
    loaded_quantised(b, n1, kind != WEIGHT_FP8_TABLE);
    if (second)
        loaded_quantised(b, n2, true);
    return w;
}

static hc_weights hyper(binder *b, const char *prefix, const char *which)
{
    char name[32];
    hc_weights w;

    snprintf(name, sizeof name, "hc_%s_fn", which);
    w.fn = plain(b, WEIGHT_F32, prefix, name);
    snprintf(name, sizeof name, "hc_%s_base", which);
    w.base = plain(b, WEIGHT_VEC_F32, prefix, name);
    snprintf(name, sizeof name, "hc_%s_scale", which);
    w.scale = plain(b, WEIGHT_VEC_F32, prefix, name);
    return w;
}

static void bind_attention(binder *b, int l, const char *p)
{
    const layer_plan *y = &b->m->plan.layer[l];
    layer_weights *w = &b->m->w.layer[l];

    w->hc_attn = hyper(b, p, "attn");
    w->attn_norm = plain(b, WEIGHT_VEC_BF16, p, "attn_norm.weight");
    w->wqkv = fp8(b, WEIGHT_FP8, p, "attn.wq_a", "attn.wkv");
    w->q_norm = plain(b, WEIGHT_VEC_BF16, p, "attn.q_norm.weight");
    w->kv_norm = plain(b, WEIGHT_VEC_BF16, p, "attn.kv_norm.weight");
    w->wq_b = fp8(b, WEIGHT_FP8, p, "attn.wq_b", NULL);
    w->sink = plain(b, WEIGHT_VEC_F32, p, "attn.attn_sink");
    w->wo_a = fp8(b, WEIGHT_FP8, p, "attn.wo_a", NULL);
    w->wo_b = fp8(b, WEIGHT_FP8, p, "attn.wo_b", NULL);
    if (y->kv_source) {
        char wkv[MAX_NAME], gate[MAX_NAME];

        snprintf(wkv, sizeof wkv, "%sattn.compressor.wkv.weight", p);
        snprintf(gate, sizeof gate, "%sattn.compressor.wgate.weight", p);
        w->compress = plain2(b, WEIGHT_BF16, wkv, y->ratio > 1 ? gate : NULL);
        w->compress_norm = plain(b, WEIGHT_VEC_BF16, p, "attn.compressor.norm.weight");
        w->index_wk = plain(b, WEIGHT_BF16, p, "attn.indexer.wk.weight");
        w->index_k_norm = plain(b, WEIGHT_VEC_BF16, p, "attn.indexer.k_norm.weight");
    }
    if (y->index_source) {
        w->index_wq_b = fp8(b, WEIGHT_FP8, p, "attn.indexer.wq_b", NULL);
        w->index_w = plain(b, WEIGHT_BF16, p, "attn.indexer.weights_proj.weight");
    }
    if (y->stage >= 0)
        w->stage_wkv = fp8(b, WEIGHT_FP8, p, "attn.wkv", NULL);
}

static void bind_experts(binder *b, int l, const char *p)
{
    static const char *const part[3] = {"w1", "w3", "w2"};
    const model_config *c = &b->m->cfg;
    int n = b->m->plan.layer[l].n_experts;
    char name[MAX_NAME - 8];
    weight *w = NULL;
    experts_src src = {.name = p, .n_experts = n, .hidden = c->hidden, .inter = c->inter};
    weight_part shared[3];

    for (int i = 0; i < 3; i++) {
        for (int e = 0; e < n; e++) {
            weight_part q;

            snprintf(name, sizeof name, "%sffn.experts.%d.%s", p, e, part[i]);
            q = quantised(b, name);
            b->fp4[i * n + e] = (fp4_part){.data = q.data, .scale = q.scale};
        }
        snprintf(name, sizeof name, "%sffn.shared_experts.%s", p, part[i]);
        shared[i] = quantised(b, name);
    }
    src.w1 = b->fp4;
    src.w3 = b->fp4 + n;
    src.w2 = b->fp4 + 2 * (size_t)n;
    src.shared_w1 = shared[0];
    src.shared_w3 = shared[1];
    src.shared_w2 = shared[2];
    if (b->mem && !b->rc)
        b->mem->weights += b->m->k->ops->experts_bytes(b->m->k, &src);
    if (b->mem)
        return;
    if (!b->rc)
        b->rc = b->m->k->ops->load_experts(b->m->k, &src, &w, b->st);
    if (b->rc)
        return;
    if (!keep(b, w)) {
        b->m->k->ops->unload(b->m->k, w);
        b->rc = di_fail(b->st, DI_E_NOMEM, "no memory for the list of weights");
        return;
    }
    b->m->w.layer[l].experts = w;
    for (int i = 0; i < 3; i++) {
        for (int e = 0; e < n; e++) {
            snprintf(name, sizeof name, "%sffn.experts.%d.%s", p, e, part[i]);
            loaded_quantised(b, name, true);
        }
        snprintf(name, sizeof name, "%sffn.shared_experts.%s", p, part[i]);
        loaded_quantised(b, name, true);
    }
}

static void bind_layer(binder *b, int l)
{
    const layer_plan *y = &b->m->plan.layer[l];
    layer_weights *w = &b->m->w.layer[l];
    char p[32];

    layer_prefix(b->m, l, p);
    bind_attention(b, l, p);
    w->hc_ffn = hyper(b, p, "ffn");
    w->ffn_norm = plain(b, WEIGHT_VEC_BF16, p, "ffn_norm.weight");
    w->gate = plain(b, WEIGHT_BF16, p, "ffn.gate.weight");
    w->bias = plain(b, WEIGHT_VEC_F32, p, "ffn.gate.bias");
    if (b->m->cfg.vision.n_layers > 0 && y->stage < 0) /* stored for stages too, never used there */
        w->bias_vl = plain(b, WEIGHT_VEC_F32, p, "ffn.gate.bias_vl");
    bind_experts(b, l, p);
    if (y->engram < 0)
        return;
    w->engram_table = fp8(b, WEIGHT_FP8_TABLE, p, "engram.embed", NULL);
    w->engram_wkv = fp8(b, WEIGHT_FP8, p, "engram.wkv", NULL);
    w->engram_q = plain(b, WEIGHT_VEC_BF16, p, "engram.q_weight");
    w->engram_k = plain(b, WEIGHT_VEC_BF16, p, "engram.k_weight");
}

static void bind_ends(binder *b)
{
    model_weights *w = &b->m->w;
    char last[32];

    w->embed = plain(b, WEIGHT_BF16_TABLE, "", "embed.weight");
    w->norm = plain(b, WEIGHT_VEC_BF16, "", "norm.weight");
    w->head = plain(b, WEIGHT_BF16, "", "head.weight");
    if (b->m->plan.n_stages == 0)
        return;
    w->main_proj = fp8(b, WEIGHT_FP8, "mtp.0.", "main_proj", NULL);
    w->main_norm = plain(b, WEIGHT_VEC_BF16, "mtp.0.", "main_norm.weight");
    snprintf(last, sizeof last, "mtp.%d.", b->m->plan.n_stages - 1);
    w->draft_norm = plain(b, WEIGHT_VEC_BF16, last, "norm.weight");
    w->markov_embed = plain(b, WEIGHT_BF16_TABLE, last, "markov_head.embed.weight");
    w->markov_head = plain(b, WEIGHT_BF16, last, "markov_head.head.weight");
    w->confidence = plain(b, WEIGHT_BF16, last, "confidence_head.proj.weight");
}

/* Tensors of the vision tower are checked by checkpoint_open and not loaded here. */
static bool is_vision(const char *name)
{
    return !strncmp(name, "vision.", 7) || !strncmp(name, "aligner.", 8) ||
           !strncmp(name, "image_", 6);
}

/* Reading around a fault has brought pages back that were dropped: now all go that are not tables,
 * and tables that every step reads are made resident. */
static void settle_pages(const binder *b)
{
    const checkpoint *c = b->m->ckpt;
    int n_stages = b->m->plan.n_stages;

    for (size_t i = 0; i < checkpoint_n_tensors(c); i++)
        checkpoint_drop(c, checkpoint_tensor(c, i));
    checkpoint_need(c, checkpoint_find(c, "embed.weight"));
    if (n_stages > 0)
        checkpoint_need(c, checkpoint_find(c, "mtp.%d.markov_head.embed.weight", n_stages - 1));
}

static di_code read_stored(void *owner, void *to, const void *from, size_t bytes, di_status *st)
{
    return checkpoint_read(owner, to, from, bytes, st);
}

static void bind_parts(binder *b)
{
    for (int l = 0; l < b->m->plan.n_layers + b->m->plan.n_stages && !b->rc; l++)
        bind_layer(b, l);
    bind_ends(b);
}

/* Do Engram tables stay in host memory? Where nothing is said: when a device has no room for them
 * beside everything else and STATE_SHARE of its memory for sequences. */
static bool tables_on_host(const binder *b)
{
    kernels *k = b->m->k;
    model_memory mem = {0};
    binder all = {.m = b->m, .mem = &mem, .fp4 = b->fp4};
    double taken;

    if (!k->ops->load_begin || b->m->cfg.n_engram == 0)
        return false;
    if (k->engram != ENGRAM_AUTO)
        return k->engram == ENGRAM_HOST;
    bind_parts(&all);
    taken = (double)mem.weights;
    if (b->mem) /* not reserved yet */
        taken += (double)b->m->step_bytes + (double)model_scratch_bytes(b->m);
    return taken > (1 - STATE_SHARE) * (double)k->ops->memory_free(k);
}

/* Everything, layer by layer. */
static void bind_all(binder *b)
{
    const kernel_ops *ops = b->m->k->ops;
    const weight_reader reader = {.read = read_stored, .owner = (void *)b->m->ckpt};
    di_code ended;

    b->on_host = tables_on_host(b);
    b->copies = ops->load_begin && !b->mem;
    if (b->copies)
        b->rc = ops->load_begin(b->m->k, &reader, b->st);
    bind_parts(b);
    if (!b->copies && !b->mem && !b->rc)
        settle_pages(b);
    ended = b->copies ? ops->load_end(b->m->k, b->rc ? NULL : b->st) : DI_OK;
    b->rc = b->rc ? b->rc : ended;
}

di_code model_bind(model *m, model_memory *mem, di_status *st)
{
    binder b = {.m = m, .mem = mem, .st = st};
    int most = m->cfg.n_experts > m->cfg.draft_experts ? m->cfg.n_experts : m->cfg.draft_experts;

    b.fp4 = mem_try_calloc(3 * (size_t)most, sizeof *b.fp4);
    if (!b.fp4)
        return di_fail(st, DI_E_NOMEM, "no memory to load the experts");
    for (size_t i = 0; i < checkpoint_n_tensors(m->ckpt); i++) {
        const ckpt_tensor *t = checkpoint_tensor(m->ckpt, i);

        b.total += is_vision(t->name) ? 0 : t->bytes;
    }
    bind_all(&b);
    if (!b.rc && m->opt.progress)
        m->opt.progress(m->opt.progress_arg, b.total, b.total);
    mem_free(b.fp4);
    return b.rc;
}

void model_unbind(model *m)
{
    for (int i = m->w.n_all - 1; i >= 0; i--)
        m->k->ops->unload(m->k, m->w.all[i]);
    mem_free(m->w.all);
}
