/* Sequences that give way to others: the same answers, what the accounts say about them, and
 * constraints of choices that are computed again. */
#include "engine/rig.h"

#include <stdlib.h>
#include <string.h>

#define N_ASK    6
#define N_PROMPT 112
#define N_OUT    60

static reply plain[N_ASK], got[N_ASK];
static int32_t ids[N_ASK][N_PROMPT];

static void draw_prompts(uint32_t seed)
{
    rig_seed(seed);
    for (int i = 0; i < N_ASK; i++)
        rig_ids(ids[i], N_PROMPT);
}

/* A pool that the outputs outgrow: every prompt fits a block, every answer needs two. */
static di_engine *crowded(const char *dir, di_engine_options o)
{
    o.max_seqs = N_ASK;
    o.kv_tokens = 512;
    o.draft_fixed = true;
    return rig_start(dir, o);
}

/* ---- accounts ---- */

static void check_usage(const di_usage *u, int64_t n_prompt)
{
    assert_int_equal(u->prompt_tokens, n_prompt);
    assert_int_equal(u->cached_tokens + u->recomputed_tokens + u->computed_tokens, n_prompt);
}

static void preempt_some(const char *dir)
{
    di_engine *e;
    di_stats s;
    int64_t repeated = 0;

    for (int i = 0; i < N_ASK; i++)
        rig_plain(dir, rig_params(ids[i], N_PROMPT, N_OUT), &plain[i]);
    e = crowded(dir, (di_engine_options){.draft_tokens = -1});
    for (int i = 0; i < N_ASK; i++)
        rig_submit(e, rig_params(ids[i], N_PROMPT, N_OUT), &got[i]);
    rig_wait(e);
    s = di_engine_stats(e);
    assert_true(s.preempted > 0);
    assert_int_equal(s.prompt_tokens, N_ASK * N_PROMPT);
    assert_int_equal(s.computed_tokens, N_ASK * N_PROMPT); /* nobody shares: nothing was cached */
    for (int i = 0; i < N_ASK; i++) {
        rig_same(&plain[i], &got[i]);
        check_usage(&got[i].usage, N_PROMPT);
        repeated += got[i].usage.repeated_tokens;
    }
    assert_int_equal(s.repeated_tokens, repeated);
    rig_close(e);
}

static void test_a_preempted_prompt_is_counted_once(void **state)
{
    (void)state;
    draw_prompts(1);
    preempt_some(MINI_F);
    preempt_some(MINI_B);
}

/* Tokens whose blocks are there without a state to start from are recomputed ones. */
static void test_known_tokens_without_a_state_are_recomputed(void **state)
{
    static int32_t first[400], second[400];
    di_engine *e = rig_start(MINI_F, (di_engine_options){.draft_tokens = -1});

    (void)state;
    rig_seed(2);
    rig_ids(first, 400);
    memcpy(second, first, sizeof first);
    rig_ids(second + 300, 100);
    rig_ask(e, rig_params(first, 400, 2), &got[0]);
    check_usage(&got[0].usage, 400);
    assert_int_equal(got[0].usage.computed_tokens, 400);
    rig_ask(e, rig_params(second, 400, 2), &got[1]); /* two blocks alike, no checkpoint in them */
    check_usage(&got[1].usage, 400);
    assert_int_equal(got[1].usage.cached_tokens, 0);
    assert_int_equal(got[1].usage.recomputed_tokens, 256);
    rig_ask(e, rig_params(second, 400, 2), &got[2]);
    check_usage(&got[2].usage, 400);
    assert_int_equal(got[2].usage.cached_tokens, 399);
    assert_int_equal(got[2].usage.repeated_tokens, 0);
    rig_close(e);
}

/* ---- constraints ---- */

/* What is allowed depends on every token that was taken. */
typedef struct chain {
    uint32_t state[N_OUT + 2 * MAX_STEP];
    int n;
} chain;

static bool allowed(const chain *c, int32_t token)
{
    return (c->state[c->n] ^ ((uint32_t)token * 2654435761u)) % 3 != 0;
}

static bool chain_fill(void *ctx, uint32_t *mask, int vocab)
{
    memset(mask, 0, (size_t)((vocab + 31) / 32) * 4);
    for (int t = 0; t < vocab; t++)
        if (allowed(ctx, t))
            mask[t / 32] |= 1u << (t % 32);
    return true;
}

static bool chain_accept(void *ctx, int32_t token)
{
    chain *c = ctx;

    if (!allowed(c, token))
        return false;
    c->state[c->n + 1] = (c->state[c->n] ^ (uint32_t)token) * 16777619u + 1;
    c->n++;
    return true;
}

static void chain_rollback(void *ctx, int n)
{
    ((chain *)ctx)->n -= n;
}

static void *chain_fork(void *ctx)
{
    chain *c = malloc(sizeof *c);

    memcpy(c, ctx, sizeof *c);
    return c;
}

static const di_mask_provider chained = {.fill = chain_fill,
                                         .accept = chain_accept,
                                         .rollback = chain_rollback,
                                         .fork = chain_fork,
                                         .free = free};

static di_request_params constrained(int i)
{
    di_request_params p = rig_params(ids[i], N_PROMPT, N_OUT);

    p.temperature = 1;
    p.seed = (uint64_t)i;
    p.mask = &chained;
    p.mask_ctx = calloc(1, sizeof(chain));
    return p;
}

/* Drafts that differ with every proposal, often right. */
static int restless(void *arg, const int32_t *seq, int64_t n, int32_t *draft, int max)
{
    int *calls = arg;
    int64_t out = n - N_PROMPT;
    int i = 0;

    while (i < N_ASK && memcmp(seq, ids[i], sizeof ids[i]) != 0)
        i++;
    for (int k = 0; k < max; k++)
        draft[k] = i < N_ASK && out + k < N_OUT && rig_draw(4) ? plain[i].token[out + k]
                                                               : (int)rig_draw(500);
    ++*calls;
    return max;
}

/* Constrained choices are preempted, and some computed again from nothing, with masks at hand that
 * were filled for the drafts of before. */
static void test_masks_hold_for_a_choice_that_is_computed_again(void **state)
{
    int calls = 0;
    int64_t again = 0, preempted = 0, accepted = 0;

    (void)state;
    for (uint32_t round = 0; round < (RIG_SLOW ? 2 : 6); round++) {
        di_engine *e = crowded(MINI_F, (di_engine_options){.draft_tokens = 1 + (int)round % 5,
                                                           .no_prefix_cache = round % 2,
                                                           .no_async = round == 3});

        draw_prompts(10 + round);
        for (int i = 0; i < N_ASK; i++)
            rig_plain(MINI_F, constrained(i), &plain[i]);
        if (round < 4) { /* else the model's own drafts */
            e->x.script_arg = &calls;
            e->x.script = restless;
        }
        for (int i = 0; i < N_ASK; i++)
            rig_submit(e, constrained(i), &got[i]);
        rig_wait(e);
        for (int i = 0; i < N_ASK; i++) {
            if (got[i].finish == DI_FINISH_ERROR)
                fail_msg("round %u, request %d: %s", round, i, got[i].message);
            rig_same(&plain[i], &got[i]);
            again += got[i].usage.repeated_tokens;
            preempted += got[i].usage.preemptions;
            accepted += got[i].usage.accepted;
        }
        rig_close(e);
    }
    assert_true(preempted > (RIG_SLOW ? 1 : 6));
    assert_true(again > N_PROMPT);
    assert_true(accepted > (RIG_SLOW ? 10 : 50));
}

static int close_all(void **state)
{
    (void)state;
    rig_close_models();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_preempted_prompt_is_counted_once),
        cmocka_unit_test(test_known_tokens_without_a_state_are_recomputed),
        cmocka_unit_test(test_masks_hold_for_a_choice_that_is_computed_again),
    };

    return cmocka_run_group_tests(tests, NULL, close_all);
}
