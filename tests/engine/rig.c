#include "engine/rig.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

static uint32_t rng_key, rng_at;

void rig_seed(uint32_t key)
{
    rng_key = key;
    rng_at = 0;
}

uint32_t rig_draw(uint32_t n)
{
    return philox4x32((philox_block){{rng_at++, 0, 0, 0}}, rng_key, 77).v[0] % n;
}

void rig_ids(int32_t *ids, int n)
{
    for (int i = 0; i < n; i++)
        ids[i] = 3 + (int32_t)rig_draw(500);
}

static struct {
    const char *dir;
    di_model *m;
} models[2];

di_model *rig_model(const char *dir)
{
    const di_model_options o = {.n_threads = 1, .backend = getenv("DI_BACKEND")};
    di_status st = {0};
    int i = 0;

    while (models[i].m && strcmp(models[i].dir, dir) != 0)
        i++;
    if (!models[i].m && di_model_open(&models[i].m, dir, &o, &st) != DI_OK)
        fail_msg("%s", st.message);
    models[i].dir = dir;
    return models[i].m;
}

void rig_close_models(void)
{
    for (int i = 0; i < 2; i++) {
        di_model_close(models[i].m);
        models[i].m = NULL;
    }
}

di_engine *rig_start(const char *dir, di_engine_options o)
{
    di_status st = {0};
    di_engine *e;

    o.max_seqs = o.max_seqs ? o.max_seqs : 4;
    o.max_context = o.max_context ? o.max_context : 1024;
    o.kv_tokens = o.kv_tokens ? o.kv_tokens : 8192;
    if (di_engine_start(&e, rig_model(dir), &o, &st) != DI_OK)
        fail_msg("%s", st.message);
    return e;
}

void rig_close(di_engine *e)
{
    di_stats s;

    di_engine_drain(e);
    s = di_engine_stats(e);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(s.waiting_tokens, 0);
    assert_int_equal(s.blocks_used, 0);
    assert_int_equal(s.blocks_cached + s.blocks_free, s.blocks_total);
    assert_int_equal(s.drafted, s.verified + s.skipped);
    assert_int_equal(s.prompt_tokens, s.cached_tokens + s.recomputed_tokens + s.computed_tokens);
    assert_int_equal(e->n_deadlocks, 0);
    di_engine_close(e);
}

di_request_params rig_params(const int32_t *ids, int n, int max_tokens)
{
    return (di_request_params){.ids = ids,
                               .n_ids = (size_t)n,
                               .max_tokens = max_tokens,
                               .has_seed = true,
                               .ignore_eos = true};
}

di_request *rig_submit(di_engine *e, di_request_params p, reply *r)
{
    di_status st = {0};
    di_request *q;

    memset(r, 0, (size_t)(p.n > 1 ? p.n : 1) * sizeof *r);
    p.user = r;
    if (di_submit(e, &p, &q, &st) != DI_OK)
        fail_msg("%s", st.message);
    return q;
}

static void take_tokens(reply *r, const di_event *ev)
{
    assert_true(r->n + ev->n_tokens <= MAX_REPLY);
    assert_true(r->n_text + ev->n_text < sizeof r->text);
    for (int i = 0; i < ev->n_tokens; i++, r->n++) {
        r->token[r->n] = ev->token[i];
        if (!ev->logprob)
            continue;
        r->logprob[r->n] = ev->logprob[i];
        r->rank[r->n] = ev->rank[i];
        for (int t = 0; t < ev->n_top && t < N_TOP; t++)
            r->top[r->n][t] = ev->top[i * ev->n_top + t];
    }
    memcpy(r->text + r->n_text, ev->text, ev->n_text);
    r->n_text += ev->n_text;
}

void rig_take(const di_event *ev)
{
    reply *r = (reply *)ev->user + ev->choice;

    assert_false(r->done);
    r->n_events++;
    if (ev->type == DI_EVENT_TOKENS)
        take_tokens(r, ev);
    if (ev->type == DI_EVENT_PROMPT) {
        memcpy(r->prompt, ev->logprob, (size_t)ev->n_tokens * sizeof *r->prompt);
        strncpy(r->note, ev->message ? ev->message : "", sizeof r->note - 1);
    }
    if (ev->type == DI_EVENT_FINISH) {
        assert_false(r->finished);
        r->finished = true;
        r->finish = ev->finish;
        r->code = ev->code;
        r->stop_index = ev->stop_index;
        r->usage = ev->usage;
        r->seed = ev->seed;
        strncpy(r->message, ev->message ? ev->message : "", sizeof r->message - 1);
    }
    r->done = ev->type == DI_EVENT_DONE;
}

void rig_wait(di_engine *e)
{
    di_event ev;

    while (di_poll(e, &ev, -1))
        rig_take(&ev);
}

void rig_ask(di_engine *e, di_request_params p, reply *r)
{
    rig_submit(e, p, r);
    rig_wait(e);
    assert_true(r->done);
}

void rig_plain(const char *dir, di_request_params p, reply *r)
{
    di_engine *e = rig_start(dir, (di_engine_options){.max_seqs = 1,
                                                      .max_batched_tokens = 1024,
                                                      .no_prefix_cache = true,
                                                      .replay = DI_REPLAY_OFF,
                                                      .draft_tokens = -1,
                                                      .no_async = true});

    rig_ask(e, p, r);
    rig_close(e);
}

void rig_same(const reply *a, const reply *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->token, b->token, (size_t)a->n * sizeof *a->token);
    assert_memory_equal(a->logprob, b->logprob, (size_t)a->n * sizeof *a->logprob);
    assert_memory_equal(a->top, b->top, (size_t)a->n * sizeof *a->top);
    assert_memory_equal(a->prompt, b->prompt, sizeof a->prompt);
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, a->n_text);
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->stop_index, b->stop_index);
}
