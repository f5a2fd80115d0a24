/* Requests: checked, copied, with one choice per answer. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine_internal.h"

#define MAX_CHOICES 64

/* ---- checks ---- */

static di_code check_id(const char *field, int64_t id, int vocab, di_status *st)
{
    if (id < 0 || id >= vocab)
        return di_fail(st, DI_E_INVALID, "%s holds token id %lld, but ids run from 0 to %d", field,
                       (long long)id, vocab - 1);
    return DI_OK;
}

static di_code check_ids(const char *field, const int32_t *ids, size_t n, int vocab, di_status *st)
{
    di_code rc = DI_OK;

    for (size_t i = 0; i < n && rc == DI_OK; i++)
        rc = check_id(field, ids[i], vocab, st);
    return rc;
}

static di_code check_params(const di_engine *e, const di_request_params *p, di_status *st)
{
    di_code rc = DI_OK;

    if (p->n < 0 || p->n > MAX_CHOICES)
        return di_fail(st, DI_E_INVALID, "n is %d, but must be 1 to %d", p->n, MAX_CHOICES);
    if (p->max_tokens < -1)
        return di_fail(st, DI_E_INVALID, "max_tokens is %lld, but must be -1 (no limit) or more",
                       (long long)p->max_tokens);
    if (p->min_tokens < 0 || (p->max_tokens >= 0 && p->min_tokens > p->max_tokens))
        return di_fail(st, DI_E_INVALID, "min_tokens is %lld, but must be 0 to max_tokens",
                       (long long)p->min_tokens);
    if (p->top_logprobs < 0 || p->top_logprobs > MAX_TOP)
        return di_fail(st, DI_E_INVALID, "top_logprobs is %d, but must be 0 to %d", p->top_logprobs,
                       MAX_TOP);
    if (p->n_stop_ids < 0 || p->n_stop_ids >= N_STOP_IDS)
        return di_fail(st, DI_E_INVALID, "stop_ids has %d entries, but at most %d are allowed",
                       p->n_stop_ids, N_STOP_IDS - 1);
    DI_TRY(check_ids("stop_ids", p->stop_ids, (size_t)p->n_stop_ids, e->vocab, st));
    for (size_t i = 0; i < p->n_forced; i++)
        if (p->forced[i] != -1)
            DI_TRY(check_id("forced", p->forced[i], e->vocab, st));
done:
    return rc;
}

/* ---- copies ---- */

static void *copy_of(const void *p, size_t n, size_t size)
{
    void *c = mem_try_calloc(n, size);

    if (c && n)
        memcpy(c, p, n * size);
    return c;
}

/* The prompt as ids, whichever way it was given. */
static di_code prompt_ids(const di_engine *e, const di_request_params *p, tok_ids *out,
                          di_status *st)
{
    di_code rc = DI_OK;

    if (p->ids) {
        DI_TRY(check_ids("the prompt", p->ids, p->n_ids, e->vocab, st));
        out->ids = copy_of(p->ids, p->n_ids, sizeof *p->ids);
        if (!out->ids)
            return di_fail(st, DI_E_NOMEM, "no memory for a prompt of %zu tokens", p->n_ids);
        out->n = p->n_ids;
    } else if (p->text) {
        if (!e->model->tok)
            return di_fail(st, DI_E_INVALID, "this model has no tokenizer: give the prompt as ids");
        DI_TRY(tokenizer_encode(e->model->tok, p->text, p->n_text, true, out, st));
    }
    if (out->n == 0)
        rc = di_fail(st, DI_E_INVALID, "the prompt is empty: give it at least one token");
    else if ((int64_t)out->n > e->max_context)
        rc = di_fail(st, DI_E_INVALID, "the prompt has %zu tokens, but the context is %lld", out->n,
                     (long long)e->max_context);
done:
    return rc;
}

static di_code copy_stops(di_request *r, const di_request_params *p, di_status *st)
{
    const model_config *c = r->engine->cfg;

    if (!p->ignore_eos && c->eos >= 0 && c->eos < r->engine->vocab)
        r->stop_id[r->n_stop_ids++] = c->eos;
    for (int i = 0; i < p->n_stop_ids; i++)
        r->stop_id[r->n_stop_ids++] = p->stop_ids[i];
    if (p->min_tokens == 0)
        return DI_OK;
    r->ban = mem_try_calloc((size_t)r->engine->mask_words, sizeof *r->ban);
    if (!r->ban)
        return di_fail(st, DI_E_NOMEM, "no memory for a request");
    memset(r->ban, 0xFF, (size_t)r->engine->mask_words * sizeof *r->ban);
    for (int i = 0; i < r->n_stop_ids; i++)
        r->ban[r->stop_id[i] / 32] &= ~(1u << (r->stop_id[i] % 32));
    return DI_OK;
}

static uint64_t fresh_seed(void)
{
    uint64_t seed = 0;

    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = clock_ns(); /* early boot only */
    return seed >> 1;      /* below 2^63: what clients may send back */
}

static di_code sampling_of(di_request *r, const di_request_params *p, di_status *st)
{
    sampling_params *s = &r->sampling;

    *s = sampling_defaults();
    s->temperature = p->temperature < 0 ? 1.0f : p->temperature;
    s->top_p = p->top_p == 0 ? 1.0f : p->top_p;
    s->min_p = p->min_p;
    s->top_k = p->top_k;
    s->repetition_penalty = p->repetition_penalty == 0 ? 1.0f : p->repetition_penalty;
    s->presence_penalty = p->presence_penalty;
    s->frequency_penalty = p->frequency_penalty;
    s->seed = p->has_seed ? p->seed : fresh_seed();
    s->bias = (const logit_bias *)(const void *)p->bias; /* the same two fields */
    s->n_bias = p->n_bias;
    s->banned = p->banned_ids;
    s->n_banned = p->n_banned_ids;
    return sampling_check(s, r->engine->vocab, st);
}
_Static_assert(sizeof(logit_bias) == sizeof(di_logit_bias), "public and internal bias entries");

/* ---- choices ---- */

static di_code init_choice(di_request *r, int idx, const tok_ids *prompt, di_status *st)
{
    di_engine *e = r->engine;
    const di_request_params *p = &r->p;
    choice *c = &r->choice[idx];
    size_t lens[STOP_MAX] = {0}, cap = (size_t)(r->n_prompt + r->max_out) + MAX_STEP + 1;
    di_code rc = DI_OK;

    c->req = r;
    c->x.req = r;
    c->idx = idx;
    c->on_event = p->on_event;
    c->user = p->user;
    c->seed = r->sampling.seed;
    c->logprobs = p->logprobs;
    c->skip_special = p->skip_special;
    c->has_stops = p->n_stop > 0;
    c->constrained = p->mask != NULL;
    c->x.ids = mem_try_calloc(cap, sizeof *c->x.ids);
    if (!c->x.ids)
        return di_fail(st, DI_E_NOMEM, "no memory for %zu tokens", cap);
    DI_CHECK(prompt->ids); /* an empty prompt was refused */
    memcpy(c->x.ids, prompt->ids, prompt->n * sizeof *prompt->ids);
    r->sampling.choice = (uint32_t)idx;
    DI_TRY(sampler_new(&c->x.sampler, &r->sampling, e->vocab, prompt->ids, r->n_prompt, st));
    for (int i = 0; i < p->n_stop && i < STOP_MAX; i++)
        lens[i] = strlen(p->stop[i]);
    DI_TRY(stop_init(&c->stop, p->stop, lens, (size_t)(p->n_stop < 0 ? 0 : p->n_stop), st));
    if (e->model->tok)
        tok_decoder_init(&c->decoder, e->model->tok);
    c->n_known = r->n_prompt;
    c->item = (sched_item){.ids = c->x.ids,
                           .n_prompt = r->n_prompt,
                           .tail = p->prompt_logprobs ? -1 : e->exact_tail,
                           .frozen_tail = e->opt.replay == DI_REPLAY_COMPACT ||
                                          e->opt.replay == DI_REPLAY_MASK,
                           .salt = r->salt,
                           .priority = p->priority,
                           .max_len = r->n_prompt + r->max_out,
                           .no_match = p->prompt_logprobs || e->opt.no_prefix_cache,
                           .all_logits = p->prompt_logprobs,
                           .state = SCHED_OUT};
    if (p->mask) {
        c->mask = mem_try_calloc((size_t)MAX_STEP * (size_t)e->mask_words, sizeof *c->mask);
        c->mask_ctx = idx == 0 ? p->mask_ctx : p->mask->fork(p->mask_ctx);
        if (!c->mask || !c->mask_ctx)
            rc = di_fail(st, DI_E_NOMEM, "no memory for a constraint");
    }
done:
    return rc;
}

static void free_choice(choice *c, bool mask_too)
{
    tok_decoder_fini(&c->decoder);
    stop_fini(&c->stop);
    sampler_free(c->x.sampler);
    mem_free(c->x.ids);
    mem_free(c->mask);
    if (mask_too && c->mask_ctx && c->req->p.mask->free)
        c->req->p.mask->free(c->mask_ctx);
}

static void free_request(di_request *r, bool first_mask_too)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_choices; i++)
        if (r->choice[i].req)
            free_choice(&r->choice[i], i > 0 || first_mask_too);
    mem_free(r->choice);
    mem_free(r->ban);
    mem_free(r->prompt_value);
    mem_free(r->done_event);
    mem_free((void *)r->p.forced);
    mem_free((void *)r->p.mask);
    mem_free(r);
}

void request_free(di_request *r)
{
    free_request(r, true);
}

void request_free_failed(di_request *r)
{
    free_request(r, false);
}

/* Pointers of the caller that outlive di_submit become copies; the others are cleared. */
static di_code own_params(di_request *r, const di_request_params *p, di_status *st)
{
    r->p = *p;
    r->p.forced = NULL;
    r->p.mask = NULL;
    if (p->n_forced)
        r->p.forced = copy_of(p->forced, p->n_forced, sizeof *p->forced);
    if (p->mask)
        r->p.mask = copy_of(p->mask, 1, sizeof *p->mask);
    if (p->prompt_logprobs)
        r->prompt_value = mem_try_calloc((size_t)r->n_prompt, sizeof *r->prompt_value);
    if (!p->on_event)
        r->done_event = mem_try_calloc(1, sizeof *r->done_event);
    if ((!p->on_event && !r->done_event) || (p->n_forced && !r->p.forced) ||
        (p->mask && !r->p.mask) || (p->prompt_logprobs && !r->prompt_value))
        return di_fail(st, DI_E_NOMEM, "no memory for a request");
    return DI_OK;
}

static void forget_callers_pointers(di_request_params *p)
{
    p->ids = NULL;
    p->text = NULL;
    p->bias = NULL;
    p->banned_ids = NULL;
    p->stop_ids = NULL;
    p->stop = NULL;
}

di_code request_new(di_engine *e, const di_request_params *p, di_request **out, di_status *st)
{
    di_code rc = DI_OK;
    tok_ids prompt = {0};
    di_request *r = mem_try_calloc(1, sizeof *r);
    int64_t room;

    *out = NULL;
    if (!r)
        return di_fail(st, DI_E_NOMEM, "no memory for a request");
    r->engine = e;
    DI_TRY(check_params(e, p, st));
    DI_TRY(prompt_ids(e, p, &prompt, st));
    r->n_prompt = (int64_t)prompt.n;
    room = e->max_context - r->n_prompt;
    room = room < 1 ? 1 : room; /* the last token is not computed: there is room for one always */
    r->max_out = p->max_tokens < 0 || p->max_tokens > room ? room : p->max_tokens;
    DI_TRY(own_params(r, p, st));
    DI_TRY(sampling_of(r, p, st));
    DI_TRY(copy_stops(r, p, st));
    r->submit_ns = clock_ns();
    r->deadline_ns = p->deadline_us ? r->submit_ns + p->deadline_us * 1000 : 0;
    r->n_choices = p->n > 0 ? p->n : 1;
    r->choice = mem_try_aligned((size_t)r->n_choices * sizeof *r->choice, CACHE_LINE);
    if (!r->choice) {
        r->n_choices = 0;
        rc = di_fail(st, DI_E_NOMEM, "no memory for a request");
        goto done;
    }
    for (int i = 0; i < r->n_choices; i++)
        DI_TRY(init_choice(r, i, &prompt, st));
    forget_callers_pointers(&r->p);
    *out = r;
    r = NULL;
done:
    request_free_failed(r);
    tok_ids_fini(&prompt);
    return rc;
}
