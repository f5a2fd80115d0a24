/* Cases that other engines got wrong (tests/README.md has the table), seen through the public API:
 * cache after long traffic, constraints that begin inside a run of drafts, forced tokens, late
 * cancellation, requests made inside callbacks, engines side by side, kept rows of replay. */
#include "engine/rig.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "engine/bench_pin.h"

#define DEPTH 5

static reply want, got, more[64];
static int32_t ids[700];

/* ---- a drafter that knows the answer ---- */

typedef struct teller {
    const reply *want;
    int n_prompt;
    int wrong; /* index of the draft that is wrong, -1 = none */
} teller;

static int tell(void *arg, const int32_t *seq, int64_t n, int32_t *draft, int max)
{
    const teller *t = arg;
    int64_t out = n - t->n_prompt;

    (void)seq;
    for (int i = 0; i < max; i++)
        draft[i] = out + i < t->want->n ? t->want->token[out + i] : 3;
    if (t->wrong >= 0 && t->wrong < max)
        draft[t->wrong] = draft[t->wrong] == 3 ? 4 : 3;
    return max;
}

static di_engine *start_telling(teller *t, int depth)
{
    di_engine *e =
        rig_start(MINI_F, (di_engine_options){.draft_tokens = depth, .draft_fixed = true});

    e->x.script_arg = t;
    e->x.script = tell;
    return e;
}

/* ---- cache ---- */

/* A5: at least all but a window and a block comes from the cache, after 50 other prompts. */
static void return_after_traffic(int draft_tokens)
{
    di_engine *e = rig_start(
        MINI_B,
        (di_engine_options){.kv_tokens = 16384, .draft_tokens = draft_tokens, .draft_fixed = true});
    di_request_params p = rig_params(ids, 600, 8);

    rig_seed(1);
    rig_ids(ids, 700);
    rig_ask(e, p, &want);
    for (int i = 0; i < 50; i++) {
        rig_seed(100 + (uint32_t)i);
        rig_ids(ids, 50);
        rig_submit(e, rig_params(ids, 50, 3), &more[i]);
    }
    rig_wait(e);
    rig_seed(1);
    rig_ids(ids, 700);
    rig_ask(e, p, &got);
    rig_same(&want, &got);
    assert_true(got.usage.cached_tokens >= 600 - 128 - 128);
    rig_close(e);
}

static void test_a_prompt_is_still_cached_after_fifty_others(void **state)
{
    (void)state;
    if (!RIG_SLOW)
        return_after_traffic(-1);
    return_after_traffic(3);
}

/* A28: the same prompt at the moment the first one ends, on the engine's own thread. */
static di_engine *again_engine;
static bool again_ok;
static atomic_bool again_asked;

static void ask_again(const di_event *ev)
{
    di_request_params p = rig_params(ids, 600, 8);

    if (ev->type != DI_EVENT_DONE)
        return;
    p.user = &got; /* polled */
    again_ok = di_submit(again_engine, &p, NULL, NULL) == DI_OK;
    /* release: pairs with the acquire of who waits */
    atomic_store_explicit(&again_asked, true, memory_order_release);
}

static void test_a_prompt_sent_in_the_callback_of_its_twin_hits(void **state)
{
    di_engine *e = rig_start(MINI_F, (di_engine_options){.draft_tokens = -1});
    di_request_params p = rig_params(ids, 600, 8);
    di_status st = {0};

    (void)state;
    rig_seed(2);
    rig_ids(ids, 600);
    rig_plain(MINI_F, p, &want);
    again_engine = e;
    memset(&got, 0, sizeof got);
    p.on_event = ask_again;
    assert_int_equal(di_submit(e, &p, NULL, &st), DI_OK);
    /* acquire: pairs with the release in ask_again */
    while (!atomic_load_explicit(&again_asked, memory_order_acquire))
        sched_yield();
    rig_wait(e);
    assert_true(again_ok);
    rig_same(&want, &got);
    assert_int_equal(got.usage.cached_tokens, 599);
    rig_close(e);
}

/* ---- ids that are banned ---- */

/* The likeliest token is banned, whatever bias it has: it never comes, also not as a draft that
 * stands, and drafts change nothing else. */
static void test_banned_ids_never_come(void **state)
{
    static const float heat[] = {0, 1};

    (void)state;
    for (int i = 0; i < 2; i++) {
        di_request_params p = rig_params(ids, 40, 24);
        di_logit_bias bias;
        int32_t id;
        teller t = {.want = &more[0], .n_prompt = 40, .wrong = -1};
        di_engine *e;

        rig_seed(3);
        rig_ids(ids, 40);
        p.temperature = heat[i];
        p.has_seed = true;
        p.seed = 5;
        rig_plain(MINI_F, p, &more[0]); /* what the drafts say */
        id = more[0].token[0];
        bias = (di_logit_bias){.id = id, .bias = 100};
        p.bias = &bias;
        p.n_bias = 1;
        rig_plain(MINI_F, p, &want);
        assert_int_equal(want.token[23], id); /* the bias alone writes nothing else */
        p.banned_ids = &id;
        p.n_banned_ids = 1;
        rig_plain(MINI_F, p, &want);
        e = start_telling(&t, DEPTH);
        rig_ask(e, p, &got);
        rig_same(&want, &got);
        assert_int_equal(got.n, 24);
        for (int k = 0; k < got.n; k++)
            assert_int_not_equal(got.token[k], id);
        rig_close(e);
    }
}

/* ---- a constraint that begins inside a run of drafts ---- */

#define OPEN 10

typedef struct gate {
    int32_t trigger;
    int after; /* tokens since the trigger, 0 = not seen */
} gate;

static bool gate_allows(const gate *g, int32_t token)
{
    return g->after == 0 || (g->after == 1 ? token == OPEN : token % 2 == 0 && token != OPEN);
}

static bool gate_fill(void *ctx, uint32_t *mask, int vocab)
{
    const gate *g = ctx;

    if (g->after == 0)
        return false;
    memset(mask, 0, (size_t)((vocab + 31) / 32) * 4);
    for (int t = 0; t < vocab; t++)
        if (gate_allows(g, t))
            mask[t / 32] |= 1u << (t % 32);
    return true;
}

static bool gate_accept(void *ctx, int32_t token)
{
    gate *g = ctx;

    if (!gate_allows(g, token))
        return false;
    if (g->after > 0 || token == g->trigger)
        g->after++;
    return true;
}

static void gate_rollback(void *ctx, int n)
{
    gate *g = ctx;

    g->after = g->after > n ? g->after - n : 0;
}

static void *gate_fork(void *ctx)
{
    gate *g = malloc(sizeof *g);

    *g = *(gate *)ctx;
    return g;
}

static const di_mask_provider gated = {.fill = gate_fill,
                                       .accept = gate_accept,
                                       .rollback = gate_rollback,
                                       .fork = gate_fork,
                                       .free = free};

static di_request_params behind_gate(int32_t trigger)
{
    di_request_params p = rig_params(ids, 20, 60);
    gate *g = calloc(1, sizeof *g);

    g->trigger = trigger;
    p.temperature = 1.2f;
    p.seed = 5;
    p.mask = &gated;
    p.mask_ctx = g;
    return p;
}

static void check_gate(const reply *r, int at)
{
    assert_int_equal(r->n, 60);
    assert_int_equal(r->token[at + 1], OPEN);
    for (int i = at + 2; i < r->n; i++)
        assert_true(r->token[i] % 2 == 0 && r->token[i] != OPEN);
}

/* A10: the token that starts the constraint stands at every offset of an accepted run; the drafts
 * behind it are right, or wrong in one place. */
static void test_a_constraint_may_begin_inside_a_run_of_drafts(void **state)
{
    static reply constrained, free_run;
    bool seen[DEPTH + 1] = {false};

    (void)state;
    rig_seed(3);
    rig_ids(ids, 20);
    rig_plain(MINI_F, behind_gate(-1), &free_run);
    for (int at = 6; at < 30; at++) {
        teller t = {.want = &constrained, .n_prompt = 20, .wrong = -1};
        bool first = true;

        for (int i = 0; i < at; i++)
            first = first && free_run.token[i] != free_run.token[at];
        if (!first || seen[at % (DEPTH + 1)])
            continue;
        seen[at % (DEPTH + 1)] = true;
        rig_plain(MINI_F, behind_gate(free_run.token[at]), &constrained);
        check_gate(&constrained, at);
        for (t.wrong = -1; t.wrong < DEPTH; t.wrong += RIG_SLOW ? 4 : 2) {
            di_engine *e = start_telling(&t, DEPTH);

            rig_ask(e, behind_gate(free_run.token[at]), &got);
            rig_same(&constrained, &got);
            assert_true(t.wrong == 0 || got.usage.accepted > 0);
            rig_close(e);
        }
    }
    for (int i = 0; i <= DEPTH; i++)
        assert_true(seen[i]);
}

/* ---- forced tokens ---- */

static void test_forced_tokens_stand_whatever_is_drafted(void **state)
{
    static int32_t forced[40];
    teller t = {.want = &want, .n_prompt = 30, .wrong = -1};
    di_request_params p = rig_params(ids, 30, 40);

    (void)state;
    rig_seed(4);
    rig_ids(ids, 30);
    rig_ids(forced, 40);
    for (int i = 0; i < 40; i += 3)
        forced[i] = -1; /* free */
    p.temperature = 1;
    p.forced = forced;
    p.n_forced = 40;
    p.logprobs = true;
    rig_plain(MINI_F, p, &want);
    for (int i = 0; i < 40; i++)
        assert_true(forced[i] < 0 || want.token[i] == forced[i]);
    for (t.wrong = -1; t.wrong < DEPTH; t.wrong++) {
        di_engine *e = start_telling(&t, DEPTH);

        rig_ask(e, p, &got);
        rig_same(&want, &got);
        rig_close(e);
    }
}

/* ---- pinned acceptance ---- */

#define N_PINNED 600

/* `n` times the same forced answer with acceptance p, by the model's stages or without them; the
 * statistics of the run. */
static di_stats pinned(const int32_t *forced, double p, int n, bool stages)
{
    di_engine *e = rig_start(
        MINI_F, (di_engine_options){.draft_tokens = 3, .draft_fixed = true, .kv_tokens = 16384});
    di_request_params q = rig_params(ids, 30, N_PINNED);
    di_stats s;

    q.forced = forced;
    q.n_forced = N_PINNED;
    q.seed = 9;
    if (!stages)
        e->x.draft_block = 0;
    engine_pin_acceptance(e, p);
    for (int i = 0; i < n; i++)
        rig_submit(e, q, &more[i]);
    rig_wait(e);
    for (int i = 0; i < n; i++) {
        assert_int_equal(more[i].n, N_PINNED);
        assert_memory_equal(more[i].token, forced, N_PINNED * sizeof *forced);
    }
    s = di_engine_stats(e);
    rig_close(e);
    return s;
}

/* Each draft stands with the pinned probability, whatever stands before it; which ones is a matter
 * of the place in the sequence, so company changes nothing. */
static void test_pinned_drafts_stand_as_often_as_told(void **state)
{
    static int32_t forced[N_PINNED];
    static const double chance[] = {0, 0.5, 0.8, 1};

    (void)state;
    rig_seed(10);
    rig_ids(ids, 30);
    rig_ids(forced, N_PINNED);
    for (int stages = 0; stages < 2; stages++)
        for (int i = 0; i < 4; i++) {
            di_stats a = pinned(forced, chance[i], 1, stages);

            assert_true(a.verified >= 3 * (N_PINNED - 4) / 4);
            for (int k = 0; k < 3 && a.verified_at[k] >= 100; k++) {
                double share = (double)a.accepted_at[k] / (double)a.verified_at[k];

                assert_true(share > chance[i] - 0.12 && share < chance[i] + 0.12);
                assert_true((chance[i] > 0 && chance[i] < 1) || share == chance[i]);
            }
            if (i == 1 && !RIG_SLOW) {
                di_stats two = pinned(forced, chance[i], 2, stages);

                assert_int_equal(two.verified, 2 * a.verified);
                assert_int_equal(two.accepted, 2 * a.accepted);
            }
        }
}

/* Where nothing is forced the drafts are the model's, and the answer is what it always is. */
static void test_pinned_acceptance_leaves_free_tokens_alone(void **state)
{
    di_engine *e = rig_start(MINI_F, (di_engine_options){.draft_tokens = 3, .draft_fixed = true});
    di_request_params p = rig_params(ids, 30, 40);

    (void)state;
    rig_seed(11);
    rig_ids(ids, 30);
    p.temperature = 1;
    rig_plain(MINI_F, p, &want);
    engine_pin_acceptance(e, 1);
    rig_ask(e, p, &got);
    rig_same(&want, &got);
    assert_true(got.usage.drafted > 0 && got.usage.accepted < got.usage.drafted);
    rig_close(e);
}

/* ---- steps ---- */

/* The step that ends the prompt proposes already: right drafts of depth 5 give 1, then 6 tokens. */
static void test_drafts_come_out_of_the_prompt(void **state)
{
    teller t = {.want = &want, .n_prompt = 30, .wrong = -1};
    di_request_params p = rig_params(ids, 30, 2 + DEPTH);
    di_engine *e;

    (void)state;
    rig_seed(5);
    rig_ids(ids, 30);
    rig_plain(MINI_F, p, &want);
    e = start_telling(&t, DEPTH);
    rig_ask(e, p, &got);
    rig_same(&want, &got);
    assert_int_equal(got.usage.accepted, DEPTH);
    assert_true(di_engine_stats(e).steps <= 3); /* the third is empty: planned before the end */
    rig_close(e);
}

/* A25: what is cancelled costs at most the steps that are on their way. */
static void test_cancelled_requests_stop_within_two_steps(void **state)
{
    di_engine *e = rig_start(
        MINI_F, (di_engine_options){.max_seqs = 64, .kv_tokens = 16384, .draft_tokens = -1});
    di_request *r[64];
    di_event ev;
    uint64_t before;
    int started = 0;

    (void)state;
    rig_seed(6);
    rig_ids(ids, 700);
    for (int i = 0; i < 64; i++)
        r[i] = rig_submit(e, rig_params(ids + i, 30, 900), &more[i]);
    while (started < 64 && di_poll(e, &ev, -1)) {
        started += ev.type == DI_EVENT_TOKENS && ((reply *)ev.user)->n == 0;
        rig_take(&ev);
    }
    for (int i = 0; i < 64; i++)
        di_cancel(e, r[i]);
    before = di_engine_stats(e).steps;
    di_engine_drain(e);
    /* the host may have been anywhere in its loop when the first cancellation came */
    assert_true(di_engine_stats(e).steps <= before + 4);
    assert_int_equal(di_engine_stats(e).cancelled, 64);
    assert_int_equal(di_engine_stats(e).running, 0);
    rig_wait(e);
    rig_close(e);
}

/* ---- engines side by side ---- */

static void test_two_engines_of_a_process_do_not_meet(void **state)
{
    di_engine *a = rig_start(MINI_F, (di_engine_options){.draft_tokens = -1});
    di_engine *b = rig_start(MINI_F, (di_engine_options){.draft_tokens = 3, .draft_fixed = true});
    di_request_params p = rig_params(ids, 200, 60);

    (void)state;
    rig_seed(7);
    rig_ids(ids, 200);
    p.temperature = 1;
    p.repetition_penalty = 1.2f;
    rig_plain(MINI_F, p, &want);
    rig_submit(a, p, &more[0]);
    rig_submit(b, p, &more[1]);
    rig_wait(b);
    rig_wait(a);
    rig_same(&want, &more[0]);
    rig_same(&want, &more[1]);
    assert_int_equal(di_engine_stats(a).requests + di_engine_stats(b).requests, 2);
    rig_close(b);
    rig_close(a);
}

/* ---- replay ---- */

/* Kept rows: with 127 for every layer behind and including the last KV source, and one more, the
 * last row sees what it sees in the whole computation; with fewer it does not. */
static void test_enough_kept_rows_give_the_bits_of_the_whole(void **state)
{
    const int whole = 127 * 3 + 1; /* layers 2, 3 and 4 of mini-f */

    (void)state;
    rig_seed(8);
    rig_ids(ids, 640);
    for (int rows = RIG_SLOW ? 256 : 64; rows <= (RIG_SLOW ? 256 : 1024); rows *= 4) {
        for (int keep = whole - 200; keep <= whole; keep += 200) {
            di_request_params p = rig_params(ids, 640, 1);
            di_engine *e = rig_start(MINI_F, (di_engine_options){.replay = DI_REPLAY_COMPACT,
                                                                 .replay_keep = keep,
                                                                 .max_batched_tokens = rows,
                                                                 .draft_tokens = -1});

            p.logprobs = true;
            p.top_logprobs = N_TOP;
            rig_plain(MINI_F, p, &want);
            rig_ask(e, p, &got);
            if (keep == whole)
                rig_same(&want, &got);
            else
                assert_memory_not_equal(want.top, got.top, sizeof want.top[0]);
            rig_close(e);
        }
    }
}

/* Exact replay: the last row, and the rows behind it, of prompts around and beyond the tail. */
static void test_exact_replay_gives_the_bits_of_the_whole(void **state)
{
    di_engine *e =
        rig_start(MINI_F, (di_engine_options){.replay = DI_REPLAY_EXACT, .draft_tokens = -1});
    int tail = (int)e->exact_tail;

    (void)state;
    assert_true(tail > 128);
    for (uint32_t i = 0; i < (RIG_SLOW ? 4u : 24u); i++) {
        di_request_params p = rig_params(ids, tail - 1 + (int)i * 13, 3);

        rig_seed(50 + i);
        rig_ids(ids, 700);
        p.logprobs = true;
        p.top_logprobs = N_TOP;
        rig_plain(MINI_F, p, &want);
        rig_ask(e, p, &got);
        rig_same(&want, &got);
    }
    rig_close(e);
}

static int close_all(void **state)
{
    (void)state;
    rig_close_models();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_prompt_is_still_cached_after_fifty_others),
        cmocka_unit_test(test_a_prompt_sent_in_the_callback_of_its_twin_hits),
        cmocka_unit_test(test_banned_ids_never_come),
        cmocka_unit_test(test_a_constraint_may_begin_inside_a_run_of_drafts),
        cmocka_unit_test(test_forced_tokens_stand_whatever_is_drafted),
        cmocka_unit_test(test_pinned_drafts_stand_as_often_as_told),
        cmocka_unit_test(test_pinned_acceptance_leaves_free_tokens_alone),
        cmocka_unit_test(test_drafts_come_out_of_the_prompt),
        cmocka_unit_test(test_cancelled_requests_stop_within_two_steps),
        cmocka_unit_test(test_two_engines_of_a_process_do_not_meet),
        cmocka_unit_test(test_enough_kept_rows_give_the_bits_of_the_whole),
        cmocka_unit_test(test_exact_replay_gives_the_bits_of_the_whole),
    };

    if (argc > 1) /* a pattern of names */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, close_all);
}
