/* Prefix cache, speculation and numerics seen from outside: one test per public failure of other
 * engines (spec bugs.md; the names of its rows stand at the tests). */
#include "engine/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static reply want, got, more[8];
static int32_t ids[1024];

/* ---- prefix cache ---- */

/* A4, A5, A28: another prompt in between; the hit computes one token and answers with the same
 * bits, whether or not drafts are on. */
static void repeat_prompt(const char *dir, int draft_tokens)
{
    di_engine *e =
        rig_start(dir, (di_engine_options){.draft_tokens = draft_tokens, .draft_fixed = true});
    di_request_params p = rig_params(ids, 600, 48);
    int32_t other[640];

    rig_seed(1);
    rig_ids(ids, 650);
    rig_ids(other, 640);
    p.logprobs = true;
    p.top_logprobs = N_TOP;
    rig_plain(dir, p, &want);
    rig_ask(e, p, &got);
    rig_same(&want, &got);
    assert_int_equal(got.usage.cached_tokens, 0);
    for (int i = 0; i < 3; i++)
        rig_ask(e, rig_params(other + i, 300, 3), &more[0]);
    rig_ask(e, p, &got);
    rig_same(&want, &got);
    assert_int_equal(got.usage.cached_tokens, 599);
    p.n_ids = 650; /* with a suffix */
    rig_plain(dir, p, &want);
    rig_ask(e, p, &got);
    rig_same(&want, &got);
    assert_true(got.usage.cached_tokens >= 512);
    assert_int_equal(di_engine_stats(e).prompt_tokens, 600 + 3 * 300 + 600 + 650);
    assert_int_equal(di_engine_stats(e).recomputed_tokens, 0);
    rig_close(e);
}

static void test_a_repeated_prompt_computes_one_token_and_answers_the_same_bits(void **state)
{
    (void)state;
    repeat_prompt(MINI_F, -1);
    repeat_prompt(MINI_F, 5);
    repeat_prompt(MINI_B, 3);
}

/* A28: the state is shared before the first request has ended. */
static void test_a_prompt_hits_while_the_first_is_still_decoding(void **state)
{
    di_engine *e = rig_start(MINI_F, (di_engine_options){.draft_tokens = -1});
    di_request_params p = rig_params(ids, 600, 200);
    di_event ev;

    (void)state;
    rig_seed(2);
    rig_ids(ids, 600);
    rig_plain(MINI_F, p, &want);
    rig_submit(e, p, &more[0]);
    while (more[0].n == 0 && di_poll(e, &ev, -1))
        rig_take(&ev);
    rig_submit(e, p, &more[1]);
    rig_wait(e);
    rig_same(&want, &more[0]);
    rig_same(&want, &more[1]);
    assert_int_equal(more[1].usage.cached_tokens, 599);
    rig_close(e);
}

/* ---- numerics ---- */

/* A6, A7: prompts of every residue, computed in chunks of any size. */
static void test_chunks_of_any_size_give_the_same_bits(void **state)
{
    static const int chunk[] = {1, 7, 15, 16, 17, 64, 1024};

    (void)state;
    rig_seed(3);
    rig_ids(ids, 200);
    for (int n = 129; n < 135; n++) {
        di_request_params p = rig_params(ids, n, 4);

        p.logprobs = true;
        p.top_logprobs = N_TOP;
        rig_plain(n % 2 ? MINI_B : MINI_F, p, &want);
        for (int c = n % 3; c < 7; c += 2) {
            di_engine *e =
                rig_start(n % 2 ? MINI_B : MINI_F,
                          (di_engine_options){
                              .max_seqs = 1, .max_batched_tokens = chunk[c], .draft_tokens = -1});

            rig_ask(e, p, &got);
            rig_same(&want, &got);
            rig_close(e);
        }
    }
}

/* A8: the log-probability of a token is the same from a decode row and from a prompt row. */
static void teacher_force(const char *dir)
{
    di_request_params p = rig_params(ids, 100, 200);

    rig_seed(4);
    rig_ids(ids, 300);
    p.forced = ids + 100;
    p.n_forced = 200;
    p.logprobs = true;
    rig_plain(dir, p, &got);
    assert_memory_equal(got.token, ids + 100, sizeof(int32_t) * 200);
    p = rig_params(ids, 300, 0);
    p.prompt_logprobs = true;
    rig_plain(dir, p, &want);
    assert_true(isnan(want.prompt[0]));
    assert_memory_equal(got.logprob, want.prompt + 100, sizeof(float) * 200);
}

static void test_decode_and_prefill_give_the_same_log_probabilities(void **state)
{
    (void)state;
    teacher_force(MINI_F);
    teacher_force(MINI_B);
}

/* A step reserves rows of logits for a part of such prompts; a third prompt shares the steps. */
static void test_log_probabilities_of_long_prompts_come_in_parts(void **state)
{
    di_engine *e = rig_start(
        MINI_F, (di_engine_options){.max_seqs = 4, .max_batched_tokens = 4096, .draft_tokens = -1});
    di_request_params p = rig_params(ids, 780, 4), q = rig_params(ids + 200, 700, 4);

    (void)state;
    rig_seed(6);
    rig_ids(ids, 1000);
    p.prompt_logprobs = q.prompt_logprobs = true;
    rig_submit(e, p, &more[0]);
    rig_submit(e, q, &more[1]);
    rig_submit(e, rig_params(ids + 100, 600, 4), &more[2]);
    rig_wait(e);
    for (int i = 0; i < 3; i++) {
        di_engine *small = rig_start(
            MINI_F,
            (di_engine_options){.max_seqs = 1, .max_batched_tokens = 100, .draft_tokens = -1});

        rig_ask(small, i == 0 ? p : i == 1 ? q : rig_params(ids + 100, 600, 4), &want);
        rig_same(&want, &more[i]);
        rig_close(small);
    }
    rig_close(e);
}

/* A26: neighbours and caches change nothing; choices differ from one another. */
static void test_a_seeded_request_does_not_see_its_neighbours(void **state)
{
    di_engine *e = rig_start(MINI_F, (di_engine_options){.draft_tokens = -1});
    di_request_params p = rig_params(ids, 60, 24), q = p;

    (void)state;
    rig_seed(5);
    rig_ids(ids, 60);
    p.temperature = 1;
    p.seed = 42;
    rig_plain(MINI_F, p, &want);
    q.temperature = 1;
    q.has_seed = false;
    rig_submit(e, q, &more[0]);
    rig_submit(e, p, &got);
    q.has_seed = true;
    q.seed = 43;
    rig_submit(e, q, &more[1]);
    p.n = 3;
    rig_submit(e, p, &more[2]);
    rig_wait(e);
    rig_same(&want, &got);
    rig_same(&want, &more[2]);
    assert_memory_not_equal(more[2].token, more[3].token, sizeof(int32_t) * 24);
    assert_memory_not_equal(more[3].token, more[4].token, sizeof(int32_t) * 24);
    assert_memory_not_equal(want.token, more[1].token, sizeof(int32_t) * 24);
    p.n = 1;
    p.seed = more[0].seed; /* the seed that the answer reports gives the answer again */
    rig_ask(e, p, &got);
    rig_same(&more[0], &got);
    rig_close(e);
}

/* ---- speculation ---- */

#define N_DRAFT 5
#define PHASES  (128 + N_DRAFT + 1)
#define N_SEQS  4

/* Proposes what will be said up to a chosen token, which is wrong: at every ring phase every number
 * of accepted drafts gets its turn. */
typedef struct plan_of_drafts {
    const reply *want; /* [N_SEQS] */
    int n_prompt, depth;
    bool all_right;
    bool seen[PHASES][N_DRAFT + 1];
} plan_of_drafts;

static int planned_drafts(void *arg, const int32_t *seq, int64_t n, int32_t *draft, int max)
{
    plan_of_drafts *d = arg;
    int64_t out = n - d->n_prompt;
    int phase = (int)(n % PHASES), k = 0;
    const reply *r = d->want;

    max = d->depth < max ? d->depth : max;
    while (r->token[0] != seq[d->n_prompt] || r->token[1] != seq[d->n_prompt + 1])
        if (out < 2 || ++r == d->want + N_SEQS)
            return 0;
    if (max == N_DRAFT) {
        while (k < N_DRAFT && d->seen[phase][k])
            k++;
        if (d->seen[phase][k])
            k = (int)(out % (N_DRAFT + 1));
        if (r->n - out > max)
            d->seen[phase][k] = true;
    } else {
        k = (int)(out % (max + 1));
    }
    for (int i = 0; i < max; i++)
        draft[i] = out + i < r->n ? r->token[out + i] : 3;
    if (k < max && !d->all_right)
        draft[k] = draft[k] == 3 ? 4 : 3;
    return max;
}

/* With log-probabilities: a single lost row of a window changes their bits, seldom a token. */
static di_request_params rolled_back(const plan_of_drafts *d, int i, int n_out)
{
    di_request_params p = rig_params(ids + i, d->n_prompt, n_out);

    p.logprobs = true;
    return p;
}

/* A9, rollback. */
static void roll_back(const char *dir, plan_of_drafts *d, const reply *plain, int n_seqs, int n_out)
{
    di_engine *e = rig_start(
        dir,
        (di_engine_options){.max_seqs = N_SEQS, .draft_tokens = d->depth, .draft_fixed = true});

    e->x.script_arg = d;
    e->x.script = planned_drafts;
    for (int i = 0; i < n_seqs; i++)
        rig_submit(e, rolled_back(d, i, n_out), &more[i]);
    rig_wait(e);
    for (int i = 0; i < n_seqs; i++) {
        assert_int_equal(more[i].n, n_out);
        assert_memory_equal(more[i].token, plain[i].token, (size_t)n_out * sizeof(int32_t));
        assert_memory_equal(more[i].logprob, plain[i].logprob, (size_t)n_out * sizeof(float));
        assert_true(more[i].usage.accepted > 0);
    }
    rig_close(e);
}

static void test_any_number_of_drafts_rolls_back_at_any_phase_of_the_rings(void **state)
{
    static reply plain[N_SEQS];
    static plan_of_drafts d;
    int n_seen = 0;

    (void)state;
    rig_seed(6);
    rig_ids(ids, 40);
    d = (plan_of_drafts){.want = plain, .n_prompt = 20};
    for (int i = 0; i < N_SEQS; i++)
        rig_plain(MINI_F, rolled_back(&d, i, 700), &plain[i]);
    d.depth = N_DRAFT;
    roll_back(MINI_F, &d, plain, N_SEQS, 700);
    for (int i = 0; i < PHASES; i++)
        for (int k = 0; k <= N_DRAFT; k++)
            n_seen += d.seen[i][k];
    assert_true(n_seen >= PHASES * (N_DRAFT + 1) * 95 / 100);
    for (d.depth = 1; d.depth <= 7; d.depth++)
        if (d.depth != N_DRAFT)
            roll_back(MINI_F, &d, plain, 1, 400); /* beyond three windows */
}

/* An engine whose drafts are all right. */
static di_engine *prophet(plan_of_drafts *d, reply *plain, int depth)
{
    di_engine *e =
        rig_start(MINI_F, (di_engine_options){.draft_tokens = depth, .draft_fixed = true});

    *d = (plan_of_drafts){.want = plain, .n_prompt = 20, .depth = depth, .all_right = true};
    e->x.script_arg = d;
    e->x.script = planned_drafts;
    return e;
}

static void test_an_end_inside_an_accepted_run_cuts_it_there(void **state)
{
    static plan_of_drafts d;
    static reply plain[N_SEQS];
    di_request_params p = rig_params(ids, 20, 60);
    di_engine *e;

    (void)state;
    rig_seed(7);
    rig_ids(ids, 20);
    p.temperature = 1.2f;
    rig_plain(MINI_F, p, &plain[0]);
    e = prophet(&d, plain, 7);
    for (int at = 4; at < 24; at++) {
        int first = 0;

        while (plain[0].token[first] != plain[0].token[at])
            first++;
        p.stop_ids = &plain[0].token[at];
        p.n_stop_ids = 1;
        rig_ask(e, p, &got);
        assert_int_equal(got.finish, DI_FINISH_STOP);
        assert_int_equal(got.n, first + 1);
        assert_memory_equal(got.token, plain[0].token, sizeof(int32_t) * (size_t)got.n);
    }
    p.min_tokens = 40; /* not sampled before, with and without drafts */
    rig_plain(MINI_F, p, &want);
    rig_ask(e, p, &got);
    rig_same(&want, &got);
    for (int i = 0; i < 40; i++)
        assert_int_not_equal(got.token[i], *p.stop_ids);
    rig_close(e);
}

static void test_a_stop_string_across_tokens_is_never_shown(void **state)
{
    static plan_of_drafts d;
    static reply plain[N_SEQS];
    di_request_params p = rig_params(ids, 20, 60);
    di_engine *e;
    int n_tried = 0;

    (void)state;
    rig_seed(8);
    rig_ids(ids, 20);
    p.temperature = 1.2f;
    rig_plain(MINI_F, p, &plain[0]);
    e = prophet(&d, plain, 7);
    for (size_t at = 3; at + 6 < plain[0].n_text; at += 9) {
        char stop[6] = {0};
        const char *const stops[] = {"never there at all", stop};
        size_t before;

        memcpy(stop, plain[0].text + at, 5);
        if (strlen(stop) < 5)
            continue;
        before = (size_t)(strstr(plain[0].text, stop) - plain[0].text);
        p.stop = stops;
        p.n_stop = 2;
        rig_ask(e, p, &got);
        assert_int_equal(got.finish, DI_FINISH_STOP);
        assert_int_equal(got.stop_index, 1);
        assert_int_equal(got.n_text, before);
        assert_memory_equal(got.text, plain[0].text, before);
        n_tried++;
    }
    assert_true(n_tried >= 5);
    rig_close(e);
}

/* A24 */
static void test_log_probabilities_do_not_depend_on_speculation(void **state)
{
    static plan_of_drafts d;
    static reply plain[N_SEQS];
    di_engine *e;

    (void)state;
    rig_seed(9);
    rig_ids(ids, 20);
    for (int seeded = 0; seeded < 2; seeded++) {
        di_request_params p = rig_params(ids, 20, 60);

        p.logprobs = true;
        p.top_logprobs = N_TOP;
        p.temperature = seeded ? 1 : 0;
        rig_plain(MINI_F, p, &plain[0]);
        e = prophet(&d, plain, 5);
        rig_submit(e, p, &more[0]); /* in company: every row's own logits */
        rig_submit(e, p, &got);
        rig_wait(e);
        rig_same(&plain[0], &more[0]);
        rig_same(&plain[0], &got);
        assert_true(got.usage.accepted > 30);
        for (int i = 0; i < got.n; i++) {
            for (int t = 1; t < N_TOP; t++)
                assert_true(got.top[i][t].logprob <= got.top[i][t - 1].logprob);
            if (got.rank[i] < N_TOP)
                assert_int_equal(got.top[i][got.rank[i]].token, got.token[i]);
            assert_true(seeded || got.rank[i] == 0);
        }
        rig_close(e);
    }
}

/* ---- constraints ---- */

static bool even_fill(void *ctx, uint32_t *mask, int vocab)
{
    (void)ctx;
    memset(mask, 0x55, (size_t)((vocab + 31) / 32) * 4);
    return true;
}

static bool even_accept(void *ctx, int32_t token)
{
    *(int *)ctx += token % 2 == 0;
    return token % 2 == 0;
}

static void even_rollback(void *ctx, int n)
{
    *(int *)ctx -= n;
}

static void *even_fork(void *ctx)
{
    int *copy = malloc(sizeof *copy);

    *copy = *(int *)ctx;
    return copy;
}

static int even_freed, even_count;

static void even_free(void *ctx)
{
    even_freed++;
    even_count += *(int *)ctx;
    free(ctx);
}

static void test_a_constraint_holds_with_and_without_drafts(void **state)
{
    static const di_mask_provider even = {.fill = even_fill,
                                          .accept = even_accept,
                                          .rollback = even_rollback,
                                          .fork = even_fork,
                                          .free = even_free};
    static plan_of_drafts d;
    static reply plain[N_SEQS];
    di_request_params p = rig_params(ids, 20, 60);
    di_engine *e;

    (void)state;
    rig_seed(10);
    rig_ids(ids, 20);
    p.temperature = 1;
    p.mask = &even;
    p.mask_ctx = calloc(1, sizeof(int));
    rig_plain(MINI_F, p, &plain[0]);
    e = prophet(&d, plain, 5);
    p.mask_ctx = calloc(1, sizeof(int));
    p.n = 2;
    rig_ask(e, p, &more[0]);
    rig_same(&plain[0], &more[0]);
    for (int i = 0; i < 60; i++)
        assert_int_equal(more[0].token[i] % 2 + more[1].token[i] % 2, 0);
    assert_true(more[0].usage.accepted > 0);
    rig_close(e);
    assert_int_equal(even_freed, 3);
    assert_int_equal(even_count, 180); /* told of every token once, drafts taken back */
}

/* ---- replay ---- */

static void replayed(di_replay replay, int64_t keep, int n, bool warm, reply *r)
{
    di_engine *e = rig_start(MINI_F, (di_engine_options){.replay = replay,
                                                         .replay_keep = keep,
                                                         .checkpoint_spacing = 128,
                                                         .draft_tokens = -1});
    di_request_params p = rig_params(ids, n, 30);

    p.logprobs = true;
    if (warm) /* a prefix of the prompt, then the prompt itself */
        rig_ask(e, rig_params(ids, n - 20, 10), r);
    if (warm)
        rig_ask(e, p, r);
    rig_ask(e, p, r);
    rig_close(e);
}

static void test_approximate_replay_is_a_function_of_the_prompt(void **state)
{
    di_request_params p = rig_params(ids, 640, 30);

    (void)state;
    rig_seed(11);
    rig_ids(ids, 640);
    p.logprobs = true;
    rig_plain(MINI_F, p, &want);
    replayed(DI_REPLAY_EXACT, 0, 640, true, &got);
    rig_same(&want, &got);
    replayed(DI_REPLAY_COMPACT, 640, 640, true, &got); /* nothing is left out */
    rig_same(&want, &got);
    replayed(DI_REPLAY_MASK, 640, 640, false, &got);
    rig_same(&want, &got);
    replayed(DI_REPLAY_COMPACT, 140, 640, false, &want);
    replayed(DI_REPLAY_MASK, 140, 640, false, &got);
    rig_same(&want, &got);
    replayed(DI_REPLAY_COMPACT, 140, 640, true, &got);
    rig_same(&want, &got);
    replayed(DI_REPLAY_MASK, 140, 640, true, &got);
    rig_same(&want, &got);
}

/* Steps of more rows than the sequences can hold are not measured. */
static void test_costs_are_measured_within_a_short_context(void **state)
{
    di_engine *e = rig_start(
        MINI_F, (di_engine_options){.max_seqs = 3, .max_context = 60, .max_batched_tokens = 512});
    di_request_params p = rig_params(ids, 50, 10);

    (void)state;
    rig_seed(40);
    rig_ids(ids, 50);
    rig_plain(MINI_F, p, &want);
    rig_ask(e, p, &got);
    rig_same(&want, &got);
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
        cmocka_unit_test(test_a_repeated_prompt_computes_one_token_and_answers_the_same_bits),
        cmocka_unit_test(test_a_prompt_hits_while_the_first_is_still_decoding),
        cmocka_unit_test(test_chunks_of_any_size_give_the_same_bits),
        cmocka_unit_test(test_decode_and_prefill_give_the_same_log_probabilities),
        cmocka_unit_test(test_log_probabilities_of_long_prompts_come_in_parts),
        cmocka_unit_test(test_a_seeded_request_does_not_see_its_neighbours),
        cmocka_unit_test(test_any_number_of_drafts_rolls_back_at_any_phase_of_the_rings),
        cmocka_unit_test(test_an_end_inside_an_accepted_run_cuts_it_there),
        cmocka_unit_test(test_a_stop_string_across_tokens_is_never_shown),
        cmocka_unit_test(test_log_probabilities_do_not_depend_on_speculation),
        cmocka_unit_test(test_a_constraint_holds_with_and_without_drafts),
        cmocka_unit_test(test_approximate_replay_is_a_function_of_the_prompt),
        cmocka_unit_test(test_costs_are_measured_within_a_short_context),
    };

    if (argc > 1) /* a pattern of names */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, close_all);
}
