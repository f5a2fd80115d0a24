/* See generator.h. */
#include "cli/generator.h"

#include <string.h>

#include "base/mem.h"
#include "grammar/grammar.h"

#define WAIT_MS      100
#define MAX_STOP_IDS 31

/* A request on its way; the engine's `user`. */
typedef struct gen_run {
    generator *g;
    struct gen_run *next;
    gen_request req; /* stop_id points below */
    int32_t stop_id[MAX_STOP_IDS];
    di_request *handle;
    bool stopped; /* on_token has had enough */
    gen_finish why;
    di_status st;
} gen_run;

struct generator {
    di_engine *e;
    gen_run *first;
    int n_running;
    int64_t n_reused;
};

di_code generator_new(generator **out, di_engine *e, di_status *st)
{
    *out = mem_try_calloc(1, sizeof **out);
    if (!*out)
        return di_fail(st, DI_E_NOMEM, "no memory for a generator");
    (*out)->e = e;
    return DI_OK;
}

void generator_free(generator *g)
{
    mem_free(g);
}

int generator_n_running(const generator *g)
{
    return g->n_running;
}

int64_t generator_n_reused(const generator *g)
{
    return g->n_reused;
}

di_code generator_submit(generator *g, const gen_request *r, di_status *st)
{
    const sampling_params *s = &r->sampling;
    gen_run *run;
    di_code rc;
    di_request_params p = {.ids = r->prompt,
                           .n_ids = (size_t)r->n_prompt,
                           .max_tokens = r->max_tokens,
                           .has_seed = true,
                           .seed = s->seed,
                           .temperature = s->temperature,
                           .top_p = s->top_p,
                           .min_p = s->min_p,
                           .top_k = s->top_k,
                           .repetition_penalty = s->repetition_penalty,
                           .presence_penalty = s->presence_penalty,
                           .frequency_penalty = s->frequency_penalty,
                           .bias = (const di_logit_bias *)(const void *)s->bias,
                           .n_bias = s->n_bias,
                           .banned_ids = s->banned,
                           .n_banned_ids = s->n_banned,
                           .ignore_eos = true, /* stop_id says which ids end an answer */
                           .logprobs = r->logprobs,
                           .prompt_logprobs = r->prompt_logprobs,
                           .mask = r->mask_ctx ? &grammar_provider : NULL,
                           .mask_ctx = r->mask_ctx,
                           .top_logprobs = r->n_top};

    if (r->n_stop_ids > MAX_STOP_IDS)
        return di_fail(st, DI_E_INVALID,
                       "stop_token_ids has %d entries, but at most %d are allowed", r->n_stop_ids,
                       MAX_STOP_IDS);
    run = mem_try_calloc(1, sizeof *run);
    if (!run)
        return di_fail(st, DI_E_NOMEM, "no memory for a request");
    run->g = g;
    run->req = *r;
    if (r->n_stop_ids)
        memcpy(run->stop_id, r->stop_id, (size_t)r->n_stop_ids * sizeof *r->stop_id);
    p.stop_ids = run->stop_id;
    p.n_stop_ids = r->n_stop_ids;
    p.user = run;
    rc = di_submit(g->e, &p, &run->handle, st);
    if (rc != DI_OK) {
        mem_free(run);
        return rc;
    }
    run->next = g->first;
    g->first = run;
    g->n_running++;
    return DI_OK;
}

static bool is_stop_id(const gen_run *run, int32_t id)
{
    for (int i = 0; i < run->req.n_stop_ids; i++)
        if (run->stop_id[i] == id)
            return true;
    return false;
}

static gen_token token_at(const di_event *ev, int i)
{
    gen_token t = {.id = ev->token[i]};

    if (!ev->logprob)
        return t;
    t.logprob = ev->logprob[i];
    t.rank = ev->rank[i];
    t.n_top = ev->n_top;
    t.top = ev->top + (size_t)i * (size_t)ev->n_top;
    return t;
}

static void give_tokens(gen_run *run, const di_event *ev)
{
    for (int i = 0; i < ev->n_tokens && !run->stopped; i++) {
        gen_token t = token_at(ev, i);

        t.stop = is_stop_id(run, t.id);
        if (!run->req.on_token(run->req.arg, &t)) {
            run->stopped = true;
            di_cancel(run->g->e, run->handle);
        }
    }
}

static void note_finish(gen_run *run, const di_event *ev)
{
    run->g->n_reused += ev->usage.cached_tokens;
    switch (ev->finish) {
    case DI_FINISH_LENGTH:
        run->why = GEN_LENGTH;
        break;
    case DI_FINISH_CANCELLED:
        run->why = GEN_CANCELLED;
        break;
    case DI_FINISH_ERROR:
        run->why = GEN_FAILED;
        di_fail(&run->st, ev->code, "%s", ev->message);
        break;
    default:
        run->why = GEN_STOP;
    }
    if (run->stopped)
        run->why = GEN_STOP;
}

static di_code conclude(gen_run *run, const di_event *ev, di_status *st)
{
    generator *g = run->g;
    gen_run **at = &g->first;
    di_code rc = DI_OK;

    if (ev->code != DI_OK && run->why != GEN_FAILED) { /* an event was lost */
        run->why = GEN_FAILED;
        di_fail(&run->st, ev->code, "%s", ev->message);
    }
    if (run->st.code == DI_E_DEVICE || run->st.code == DI_E_INTERNAL)
        rc = di_fail(st, run->st.code, "%s", run->st.message);
    while (*at != run)
        at = &(*at)->next;
    *at = run->next;
    g->n_running--;
    run->req.on_done(run->req.arg, run->why, &run->st);
    mem_free(run);
    return rc;
}

di_code generator_step(generator *g, di_status *st)
{
    di_event ev;
    gen_run *run;

    if (!di_poll(g->e, &ev, WAIT_MS))
        return DI_OK;
    run = ev.user;
    switch (ev.type) {
    case DI_EVENT_PROMPT:
        for (int i = 1; i < ev.n_tokens && run->req.on_prompt; i++) {
            gen_token t = token_at(&ev, i);

            run->req.on_prompt(run->req.arg, &t);
        }
        break;
    case DI_EVENT_TOKENS:
        give_tokens(run, &ev);
        break;
    case DI_EVENT_FINISH:
        note_finish(run, &ev);
        break;
    case DI_EVENT_DONE:
        return conclude(run, &ev, st);
    }
    return DI_OK;
}

void generator_cancel(generator *g)
{
    for (gen_run *run = g->first; run; run = run->next)
        di_cancel(g->e, run->handle);
    while (g->n_running > 0)
        (void)generator_step(g, NULL);
}
