/* Models and engines: opening, closing, submitting, statistics. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/dummy.h"
#include "engine/engine_internal.h"
#include "engine/memory.h"
#include "engine/model_parts.h"

/* ---- model ---- */

static numerics numerics_of(const char *name)
{
    return name && strcmp(name, "f32") == 0     ? NUMERICS_F32
           : name && strcmp(name, "cache") == 0 ? NUMERICS_CACHE
                                                : NUMERICS_RELEASE;
}

/* Engram needs the compressed ids of the tokenizer. */
static di_code load_compressed(di_model *m, di_status *st)
{
    const model_config *c = checkpoint_config(m->ckpt);
    di_code rc = DI_OK;
    int n;

    if (c->n_engram == 0)
        return DI_OK;
    m->compressed = mem_try_calloc((size_t)c->vocab, sizeof *m->compressed);
    if (!m->compressed)
        return di_fail(st, DI_E_NOMEM, "no memory for %d compressed ids", c->vocab);
    DI_TRY(tokenizer_compressed_ids(m->tok, m->compressed, c->vocab, &n, st));
    if (n != c->engram_compressed && checkpoint_is_dummy(m->ckpt))
        for (int i = 0; i < c->vocab; i++)
            m->compressed[i] = i % c->engram_compressed;
    else if (n != c->engram_compressed)
        rc = di_fail(st, DI_E_FORMAT,
                     "\"%s/tokenizer.json\" gives %d compressed ids, but config.json says %d: the "
                     "two files do not belong together",
                     checkpoint_dir(m->ckpt), n, c->engram_compressed);
done:
    return rc;
}

/* The scalar back end reads weights where they are, a device takes copies. */
static dummy_when dummy_when_of(const kernels *k)
{
    return k->ops->load_begin ? DUMMY_READ : k->ops == kernels_ref() ? DUMMY_KEPT : DUMMY_FOUND;
}

static di_code load_checkpoint(di_model *m, const char *dir, di_status *st)
{
    const di_model_options *o = &m->opt;
    const dummy_options dummy = {.n_layers = o->dummy_layers,
                                 .share = o->dummy_share,
                                 .n_shares = o->dummy_shares,
                                 .engram_rows = o->dummy_engram_rows};

    if (!o->load_format || strcmp(o->load_format, "auto") == 0)
        return checkpoint_open(&m->ckpt, dir, false, st);
    if (strcmp(o->load_format, "dummy") != 0)
        return di_fail(st, DI_E_INVALID, "load format \"%s\" is not one of auto, dummy",
                       o->load_format);
    return checkpoint_open_dummy(&m->ckpt, dir, &dummy, dummy_when_of(m->k), st);
}

/* tokenizer.json of the folder; where generated weights have none, a generated one. */
static di_code load_tokenizer(di_model *m, const char *dir, di_status *st)
{
    const model_config *c = checkpoint_config(m->ckpt);
    const tokenizer_ids ids = {.vocab = c->vocab, .bos = c->bos, .eos = c->eos, .pad = c->pad};
    char path[1024];
    di_code rc = DI_OK;

    DI_TRY(path_join(path, sizeof path, dir, "tokenizer.json", st));
    if (checkpoint_is_dummy(m->ckpt) && access(path, F_OK) != 0)
        return tokenizer_generate(&m->tok, &ids, st);
    rc = tokenizer_load(&m->tok, path, st);
done:
    return rc;
}

static di_code engram_place_of(const char *name, engram_place *out, di_status *st)
{
    *out = ENGRAM_AUTO;
    if (name && strcmp(name, "device") == 0)
        *out = ENGRAM_DEVICE;
    else if (name && strcmp(name, "host") == 0)
        *out = ENGRAM_HOST;
    else if (name && strcmp(name, "auto") != 0)
        return di_fail(st, DI_E_INVALID, "Engram tables at \"%s\": not one of auto, device, host",
                       name);
    return DI_OK;
}

di_code di_model_open(di_model **out, const char *dir, const di_model_options *opt, di_status *st)
{
    di_code rc = DI_OK;
    engram_place engram;
    di_model *m = mem_try_calloc(1, sizeof *m);

    *out = NULL;
    if (!m)
        return di_fail(st, DI_E_NOMEM, "no memory for a model");
    pthread_mutex_init(&m->running, NULL);
    if (opt)
        m->opt = *opt;
    if (m->opt.numerics && strcmp(m->opt.numerics, "release") != 0 &&
        numerics_of(m->opt.numerics) == NUMERICS_RELEASE) {
        rc = di_fail(st, DI_E_INVALID, "numerics \"%s\" is not one of release, cache, f32",
                     m->opt.numerics);
        goto done;
    }
    DI_TRY(engram_place_of(m->opt.engram, &engram, st));
    DI_TRY(kernels_open(&m->k,
                        &(kernels_options){.backend = m->opt.backend ? m->opt.backend : "auto",
                                           .numerics = numerics_of(m->opt.numerics),
                                           .n_threads = m->opt.n_threads,
                                           .engram = engram},
                        st));
    DI_TRY(load_checkpoint(m, dir, st));
    DI_TRY(load_tokenizer(m, dir, st));
    DI_TRY(load_compressed(m, st));
    *out = m;
    m = NULL;
done:
    di_model_close(m);
    return rc;
}

const tokenizer *model_parts_tokenizer(const di_model *m)
{
    return m->tok;
}

void di_model_close(di_model *m)
{
    if (!m)
        return;
    kernels_close(m->k);
    pthread_mutex_destroy(&m->running);
    mem_free(m->compressed);
    tokenizer_free(m->tok);
    checkpoint_close(m->ckpt);
    mem_free(m);
}

/* Hash of every tensor's name, type, shape and size: tells models apart, not damaged from sound. */
static uint64_t fingerprint(const checkpoint *c)
{
    uint64_t h = 0;

    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const ckpt_tensor *t = checkpoint_tensor(c, i);
        int64_t what[4] = {(int64_t)t->type, t->shape[0], t->shape[1], (int64_t)t->bytes};

        h = XXH3_64bits_withSeed(t->name, strlen(t->name), h);
        h = XXH3_64bits_withSeed(what, sizeof what, h);
    }
    return h;
}

di_model_info di_model_get_info(const di_model *m)
{
    const model_config *c = checkpoint_config(m->ckpt);

    return (di_model_info){.vocab = c->vocab,
                           .max_context = c->max_context,
                           .n_layers = c->n_layers,
                           .n_draft_stages = c->n_stages,
                           .draft_block = c->draft_block,
                           .bos = c->bos,
                           .eos = c->eos,
                           .pad = c->pad,
                           .fingerprint = fingerprint(m->ckpt),
                           .backend = m->k->ops->name,
                           .n_threads = pool_n_threads(m->k->pool)};
}

di_code di_tokenize(const di_model *m, const char *text, size_t n, bool added, int32_t **ids,
                    size_t *n_ids, di_status *st)
{
    tok_ids out = {0};
    di_code rc = tokenizer_encode(m->tok, text, n, added, &out, st);

    if (rc != DI_OK)
        tok_ids_fini(&out);
    *ids = out.ids;
    *n_ids = out.n;
    return rc;
}

di_code di_detokenize(const di_model *m, const int32_t *ids, size_t n, bool skip_special,
                      char **text, size_t *n_text, di_status *st)
{
    str out = {0};

    *text = NULL;
    *n_text = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= checkpoint_config(m->ckpt)->vocab)
            return di_fail(st, DI_E_INVALID, "token id %d, but ids run from 0 to %d", ids[i],
                           checkpoint_config(m->ckpt)->vocab - 1);
    str_append(&out, "", 0);
    tokenizer_decode(m->tok, ids, n, skip_special, &out);
    if (!str_ok(&out)) {
        str_fini(&out);
        return di_fail(st, DI_E_NOMEM, "no memory for the text of %zu tokens", n);
    }
    *text = out.data;
    *n_text = out.len;
    return DI_OK;
}

void di_free(void *p)
{
    mem_free(p);
}

/* ---- options ---- */

static di_code settle_options(di_engine *e, const di_engine_options *opt, di_status *st)
{
    di_code rc;

    if (opt)
        e->opt = *opt;
    rc = engine_settle(&e->opt, &e->max_draft, e->cfg, st);
    e->max_context = e->opt.max_context;
    e->vocab = e->cfg->vocab;
    e->mask_words = (e->cfg->vocab + 31) / 32;
    return rc;
}

/* ---- engine ---- */

static di_code open_store(di_engine *e, di_status *st)
{
    kv_store_options o = engine_store_options(&e->opt, e->max_draft, model_kv_layout(e->x.m),
                                              model_n_encoder_rings(e->x.m), e->model->k, 0);

    e->opt.kv_tokens = (int64_t)o.n_blocks * KV_BLOCK_TOKENS;
    if (e->opt.max_queued_tokens == 0)
        e->opt.max_queued_tokens = 4 * e->opt.kv_tokens;
    return kv_store_new(&e->kv, &o, st);
}

static double step_cost(void *engine, int rows)
{
    return cost_step(&((const di_engine *)engine)->cost, rows);
}

static di_code open_sched(di_engine *e, di_status *st)
{
    sched_options o = {.kv = e->kv,
                       .max_rows = e->opt.max_batched_tokens,
                       .max_logit_rows = ENGINE_PROMPT_LOGITS,
                       .max_seqs = e->opt.max_seqs,
                       .max_draft = e->max_draft,
                       .max_waiting = INT64_MAX, /* bounded where requests come in */
                       .max_waiting_tokens = INT64_MAX,
                       .spacing = e->opt.checkpoint_spacing,
                       .encoder_cost = model_encoder_share(e->x.m),
                       .step_budget_us = 1000.0 * e->opt.decode_latency_ms,
                       .step_cost_us = step_cost,
                       .cost_arg = e};
    di_code rc = DI_OK;

    DI_TRY(sched_new(&e->sched, &o, st));
    for (int i = 0; i < N_JOBS; i++) {
        job *j = &e->jobs[i];

        DI_TRY(sched_plan_init(&j->plan, e->sched, st));
        j->result = mem_try_aligned((size_t)e->opt.max_seqs * sizeof *j->result, CACHE_LINE);
        if (!j->result)
            return di_fail(st, DI_E_NOMEM, "no memory for steps");
        for (int s = 0; s < e->opt.max_seqs; s++) {
            j->result[s].value = mem_try_calloc(MAX_STEP, sizeof *j->result[s].value);
            if (!j->result[s].value)
                return di_fail(st, DI_E_NOMEM, "no memory for steps");
        }
    }
done:
    return rc;
}

/* The measured cost table: from the disk when it is there for exactly this setting, else measured.
 */
static di_code learn_costs(di_engine *e, di_status *st)
{
    char key[512];
    di_status lost = {0};
    bool found = false;
    di_code rc = DI_OK;

    if ((e->x.draft_block == 0 || e->opt.draft_fixed) && e->opt.decode_latency_ms == 0)
        return DI_OK;
    snprintf(key, sizeof key,
             "model %016" PRIx64 " %s %s %d threads of %s, %d seqs %d rows %d drafts",
             fingerprint(e->model->ckpt), e->model->k->ops->name,
             e->model->opt.numerics ? e->model->opt.numerics : "release",
             pool_n_threads(e->model->k->pool), cpu_name(), e->opt.max_seqs,
             e->opt.max_batched_tokens, e->x.draft_block);
    if (e->opt.cost_dir)
        DI_TRY(cost_load(&e->x.cost, e->opt.cost_dir, key, &found, st));
    if (!found)
        DI_TRY(exec_measure(e, st));
    if (!found && e->opt.cost_dir && cost_save(&e->x.cost, e->opt.cost_dir, key, &lost) != DI_OK)
        log_warn(LOG_MODEL, "%s: the next start will measure again", lost.message);
    cost_set_block(&e->x.cost, e->x.draft_block);
done:
    return rc;
}

static di_code start_threads(di_engine *e, di_status *st)
{
    if (!e->opt.no_async && pthread_create(&e->executor, NULL, executor_main, e) != 0)
        return di_fail(st, DI_E_IO, "could not start the executing thread");
    e->exec_started = !e->opt.no_async;
    if (pthread_create(&e->host, NULL, host_main, e) != 0)
        return di_fail(st, DI_E_IO, "could not start the host thread");
    e->host_started = true;
    return DI_OK;
}

static void init_locks(di_engine *e)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->to_host, &attr);
    pthread_cond_init(&e->to_exec, &attr);
    pthread_cond_init(&e->to_caller, &attr);
    pthread_cond_init(&e->crew.work, &attr);
    pthread_condattr_destroy(&attr);
}

/* Everything but the threads. */
static di_code build(di_engine *e, di_status *st)
{
    di_model *m = e->model;
    model_options mo = engine_model_options(&e->opt, e->max_draft, e->cfg);
    di_code rc = DI_OK;

    mo.progress = m->opt.progress;
    mo.progress_arg = m->opt.progress_arg;
    DI_TRY(model_open(&e->x.m, m->ckpt, m->k, m->compressed, &mo, st));
    e->x.k = m->k;
    e->x.draft_block = e->cfg->n_stages > 0 ? e->max_draft : 0;
    e->exact_tail = e->opt.replay == DI_REPLAY_OFF     ? -1
                    : e->opt.replay == DI_REPLAY_EXACT ? model_exact_tail(e->x.m)
                                                       : e->opt.replay_keep;
    DI_TRY(open_store(e, st));
    DI_TRY(open_sched(e, st));
    DI_TRY(exec_init(e, st));
    DI_TRY(learn_costs(e, st));
    e->cost = e->x.cost;
done:
    return rc;
}

di_code di_engine_start(di_engine **out, di_model *m, const di_engine_options *opt, di_status *st)
{
    di_code rc = DI_OK;
    di_engine *e = mem_try_calloc(1, sizeof *e);

    *out = NULL;
    if (!e)
        return di_fail(st, DI_E_NOMEM, "no memory for an engine");
    init_locks(e);
    e->model = m;
    e->deadline_ns = UINT64_MAX;
    e->cfg = checkpoint_config(m->ckpt);
    DI_TRY(settle_options(e, opt, st));
    pthread_mutex_lock(&m->running);
    rc = build(e, st);
    pthread_mutex_unlock(&m->running);
    if (rc != DI_OK)
        goto done;
    e->line_ns = clock_ns();
    DI_TRY(start_threads(e, st));
    *out = e;
    e = NULL;
done:
    di_engine_close(e);
    return rc;
}

void di_engine_drain(di_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->draining = true;
    while (e->n_open > 0)
        pthread_cond_wait(&e->to_caller, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void di_engine_close(di_engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->closing = e->draining = true;
    pthread_cond_broadcast(&e->to_host);
    pthread_mutex_unlock(&e->lock);
    if (e->host_started)
        pthread_join(e->host, NULL);
    masks_end(e);
    pthread_mutex_lock(&e->lock);
    e->exec_end = true;
    pthread_cond_broadcast(&e->to_exec);
    pthread_mutex_unlock(&e->lock);
    if (e->exec_started)
        pthread_join(e->executor, NULL);
    events_free(e);
    for (int i = 0; i < N_JOBS; i++) {
        job *j = &e->jobs[i];

        for (int s = 0; j->result && s < e->opt.max_seqs; s++)
            mem_free(j->result[s].value);
        mem_free(j->result);
        sched_plan_fini(&j->plan);
    }
    sched_free(e->sched);
    pthread_mutex_lock(&e->model->running); /* another engine's step may be under way */
    kv_store_free(e->kv);
    exec_fini(&e->x);
    pthread_mutex_unlock(&e->model->running);
    pthread_cond_destroy(&e->to_host);
    pthread_cond_destroy(&e->to_exec);
    pthread_cond_destroy(&e->to_caller);
    pthread_cond_destroy(&e->crew.work);
    pthread_mutex_destroy(&e->lock);
    mem_free(e);
}

/* ---- requests ---- */

/* Under the lock: may this request come in? */
static di_code admit_request(const di_engine *e, const di_request *r, di_status *st)
{
    if (e->draining)
        return di_fail(st, DI_E_CANCELLED, "the engine takes no more requests: it is closing");
    if (e->n_queued + r->n_choices > e->opt.max_queued && e->n_queued > 0)
        return di_fail(st, DI_E_BUSY,
                       "%lld requests are waiting, the limit is %lld; try again later",
                       (long long)e->n_queued, (long long)e->opt.max_queued);
    if (e->n_queued_tokens + r->n_prompt > e->opt.max_queued_tokens && e->n_queued > 0)
        return di_fail(st, DI_E_BUSY,
                       "%lld prompt tokens are waiting, the limit is %lld; try again later",
                       (long long)e->n_queued_tokens, (long long)e->opt.max_queued_tokens);
    return DI_OK;
}

di_code di_submit(di_engine *e, const di_request_params *p, di_request **out, di_status *st)
{
    di_code rc = DI_OK;
    di_request *r = NULL;

    if (out)
        *out = NULL;
    DI_TRY(request_new(e, p, &r, st));
    pthread_mutex_lock(&e->lock);
    rc = admit_request(e, r, st);
    if (rc == DI_OK) {
        r->queued = true;
        e->n_queued += r->n_choices;
        e->n_queued_tokens += r->n_prompt;
        e->n_open++;
        e->n_open_polled += !p->on_event;
        if (e->inbox_last)
            e->inbox_last->next = r;
        else
            e->inbox_first = r;
        e->inbox_last = r;
        if (out)
            *out = r;
        pthread_cond_signal(&e->to_host);
    }
    pthread_mutex_unlock(&e->lock);
done:
    if (rc != DI_OK)
        request_free_failed(r);
    return rc;
}

static void cancel(di_engine *e, atomic_bool *flag)
{
    /* release: pairs with the acquire in the host loop */
    atomic_store_explicit(flag, true, memory_order_release);
    pthread_mutex_lock(&e->lock);
    e->wake = true;
    pthread_cond_signal(&e->to_host);
    pthread_mutex_unlock(&e->lock);
}

void di_cancel(di_engine *e, di_request *r)
{
    cancel(e, &r->cancelled);
}

void di_cancel_choice(di_engine *e, di_request *r, int idx)
{
    if (idx >= 0 && idx < r->n_choices)
        cancel(e, &r->choice[idx].cancelled);
}

di_stats di_engine_stats(const di_engine *e)
{
    di_engine *mutable = (di_engine *)e; /* the lock is not part of the value */
    di_stats s;

    pthread_mutex_lock(&mutable->lock);
    s = e->stats;
    pthread_mutex_unlock(&mutable->lock);
    return s;
}
