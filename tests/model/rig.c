#include "model/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tokenizer/tokenizer.h"

/* Compressed ids of the model's own tokenizer, for the Engram hash. */
static bool load_compressed(rig *r, const char *dir, di_status *st)
{
    char path[1024];
    tokenizer *t = NULL;
    int n = 0;
    bool ok;

    if (r->cfg->n_engram == 0)
        return true;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    r->compressed = mem_try_calloc((size_t)r->cfg->vocab, sizeof *r->compressed);
    ok = r->compressed && tokenizer_load(&t, path, st) == DI_OK &&
         tokenizer_compressed_ids(t, r->compressed, r->cfg->vocab, &n, st) == DI_OK;
    tokenizer_free(t);
    return ok;
}

bool rig_open(rig *r, const rig_options *o, di_status *st)
{
    kernels_options ko = {.backend = o->backend,
                          .numerics = o->numerics,
                          .n_threads = o->n_threads,
                          .engram = o->engram};
    model_options mo = {.max_seqs = o->n_seqs ? o->n_seqs : 4, .context = RIG_MAX_TOKENS};
    int blocks = mo.max_seqs * (RIG_MAX_TOKENS / KV_BLOCK_TOKENS);

    *r = (rig){.max_rows = o->max_rows ? o->max_rows : 320};
    mo.max_rows = mo.max_logit_rows = r->max_rows;
    if (checkpoint_open(&r->ckpt, o->dir, false, st) || kernels_open(&r->k, &ko, st))
        goto failed;
    r->cfg = checkpoint_config(r->ckpt);
    if (mo.context > r->cfg->max_context)
        mo.context = r->cfg->max_context;
    if (!load_compressed(r, o->dir, st) ||
        model_open(&r->m, r->ckpt, r->k, r->compressed, &mo, st) ||
        kv_pool_new_in(&r->pool, kernels_kv_memory(r->k), model_kv_layout(r->m), blocks,
                       mo.max_seqs, st))
        goto failed;
    return true;
failed:
    rig_close(r);
    return false;
}

void rig_close(rig *r)
{
    kv_pool_free(r->pool);
    model_close(r->m);
    kernels_close(r->k);
    checkpoint_close(r->ckpt);
    mem_free(r->compressed);
    *r = (rig){0};
}

bool rig_seq_new(rig *r, rig_seq *s, di_status *st)
{
    s->n = 0;
    memset(s->image, 0, sizeof s->image);
    return kv_seq_new(r->pool, &s->kv, st) == DI_OK;
}

void rig_seq_free(rig_seq *s)
{
    kv_seq_free(s->kv);
    s->kv = NULL;
}

bool rig_rows(rig_seq *s, int n, int n_logits, seq_rows *out, di_status *st)
{
    int history = s->n < 16 ? s->n : 16;

    if (s->n + n > RIG_MAX_TOKENS) {
        di_fail(st, DI_E_INVALID, "more than %d tokens", RIG_MAX_TOKENS);
        return false;
    }
    if (kv_seq_reserve(s->kv, s->n + n, st))
        return false;
    *out = (seq_rows){.view = kv_seq_view(s->kv),
                      .n = n,
                      .token = s->token + s->n,
                      .history = s->token + s->n - history,
                      .n_history = history,
                      .image = s->image + s->n,
                      .history_image = s->image + s->n - history,
                      .n_logits = n_logits};
    return true;
}

bool rig_step(rig *r, rig_seq *s, const int32_t *token, int n, int n_logits, float *logits,
              di_status *st)
{
    seq_rows rows;
    float *dev;

    if (s->n + n <= RIG_MAX_TOKENS)
        memmove(s->token + s->n, token, (size_t)n * sizeof *token);
    if (!rig_rows(s, n, n_logits, &rows, st) || model_forward(r->m, &rows, 1, &dev, st))
        return false;
    if (n_logits > 0)
        r->k->ops->get(r->k, logits, dev, (size_t)n_logits * (size_t)r->cfg->vocab * sizeof *dev);
    s->n += n;
    kv_seq_set_len(s->kv, s->n);
    return true;
}

bool rig_draft(rig *r, const rig_seq *s, int32_t token, int block, int32_t *draft,
               float *confidence, di_status *st)
{
    draft_rows rows = {.view = kv_seq_view(s->kv), .token = token};

    return model_draft(r->m, &rows, 1, block, draft, confidence, st) == DI_OK;
}

void rig_roll_back(rig_seq *s, int n)
{
    s->n = n;
    kv_seq_set_len(s->kv, n);
}

bool rig_wants_backend(const char *name)
{
    const char *only = getenv("DI_BACKEND");

    return !only || strcmp(only, name) == 0;
}

int rig_argmax(const float *x, int n)
{
    int best = 0;

    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}
