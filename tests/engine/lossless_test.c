/* Speculation does not change the law of what is sampled, seen by statistics: chains of N+1 tokens
 * over many seeds, with drafts (right, wrong, of all lengths) and without; fixed and adaptive
 * lengths, top-k, top-p, a constraint.
 *
 * The two runs of one seed are even equal token for token (one answer); here the seeds of the two
 * runs differ, and the laws of their first 1, 2, ... tokens are compared by chi-square. Seeds are
 * fixed: the test does not flicker. */
#include "engine/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_DRAFT  5
#define N_CHAIN  (N_DRAFT + 1)
#define N_CHOICE 64
#define N_ASK    12
#define N_CELLS  8

/* The chains of the run without drafts: what they say is what drafts propose in the other run. */
static int32_t said[N_ASK * N_CHOICE][N_CHAIN];
static uint32_t guess_at;

/* The continuation of the first chain that began alike, cut at a varying length. Always that one:
 * drafts drawn from the law itself could stand unseen. */
static int guess(void *arg, const int32_t *seq, int64_t n, int32_t *draft, int max)
{
    const int *n_prompt = arg;
    int64_t out = n - *n_prompt;
    int k = (int)(guess_at++ % (uint32_t)(max + 1));

    for (int i = 0; i < N_ASK * N_CHOICE; i++) {
        const int32_t *chain = said[i];

        if (memcmp(chain, seq + *n_prompt, (size_t)out * sizeof *seq) != 0)
            continue;
        for (int d = 0; d < k; d++)
            draft[d] = out + d < N_CHAIN ? chain[out + d] : 0;
        return k;
    }
    return 0;
}

/* ---- a constraint: even tokens ---- */

static bool even_fill(void *ctx, uint32_t *mask, int vocab)
{
    (void)ctx;
    memset(mask, 0x55, (size_t)((vocab + 31) / 32) * 4);
    return true;
}

static bool even_accept(void *ctx, int32_t token)
{
    (void)ctx;
    return token % 2 == 0;
}

static void even_rollback(void *ctx, int n)
{
    (void)ctx;
    (void)n;
}

static void *even_fork(void *ctx)
{
    (void)ctx;
    return malloc(1);
}

static const di_mask_provider even = {.fill = even_fill,
                                      .accept = even_accept,
                                      .rollback = even_rollback,
                                      .fork = even_fork,
                                      .free = free};

/* ---- samples ---- */

/* How tokens are drawn; few likely chains each, so that guesses are often right. */
typedef struct setting {
    const char *name;
    float temperature, top_p;
    int top_k;
    bool masked, adaptive;
} setting;

/* A machine on which a row costs a fifth of a step: lengths then differ from step to step. */
static void invent_costs(di_engine *e)
{
    int rows[COST_MAX_POINTS], n = cost_points(e->opt.max_batched_tokens, rows);

    cost_init(&e->x.cost, n, rows);
    for (int i = 0; i < n; i++)
        cost_set(&e->x.cost, i, 100 + 20 * rows[i], 10);
    e->cost = e->x.cost;
    e->opt.draft_fixed = false;
}

typedef struct chains {
    double count[N_CHAIN][N_CELLS]; /* the first 1, 2, ... tokens by cell */
    uint64_t accepted, skipped;
} chains;

/* Chains of N_ASK x N_CHOICE seeds. */
static void sample_chains(const setting *how, int drafts, uint64_t first_seed, chains *out)
{
    static reply r[N_CHOICE];
    di_engine *e = rig_start(MINI_B, (di_engine_options){.max_seqs = 16,
                                                         .kv_tokens = 16384,
                                                         .draft_tokens = drafts,
                                                         .draft_fixed = true});
    int n_prompt = 30;
    int32_t ids[30];

    memset(out, 0, sizeof *out);
    rig_seed(20);
    rig_ids(ids, n_prompt);
    if (drafts > 0) {
        e->x.script_arg = &n_prompt;
        e->x.script = guess;
    }
    if (how->adaptive)
        invent_costs(e);
    for (int ask = 0; ask < N_ASK; ask++) {
        di_request_params p = rig_params(ids, n_prompt, N_CHAIN);

        p.n = N_CHOICE;
        p.seed = first_seed + (uint64_t)ask;
        p.temperature = how->temperature;
        p.top_k = how->top_k;
        p.top_p = how->top_p;
        if (how->masked) {
            p.mask = &even;
            p.mask_ctx = malloc(1);
        }
        rig_ask(e, p, r);
        for (int c = 0; c < N_CHOICE; c++) {
            uint32_t h = 0;

            assert_int_equal(r[c].n, N_CHAIN);
            out->accepted += (uint64_t)r[c].usage.accepted;
            for (int i = 0; i < N_CHAIN; i++) {
                h = (h ^ (uint32_t)r[c].token[i]) * 2654435761u;
                out->count[i][(h >> 20) % N_CELLS]++;
            }
            if (drafts < 0)
                memcpy(said[ask * N_CHOICE + c], r[c].token, sizeof said[0]);
        }
    }
    out->skipped = di_engine_stats(e).skipped;
    rig_close(e);
}

/* Two samples of one law: sum (a-b)^2 / (a+b) is chi-square with at most N_CELLS-1 degrees. */
static double chi_square(const double *a, const double *b)
{
    double sum = 0;

    for (int i = 0; i < N_CELLS; i++)
        if (a[i] + b[i] > 0)
            sum += (a[i] - b[i]) * (a[i] - b[i]) / (a[i] + b[i]);
    return sum;
}

static void test_chains_have_the_same_law_with_and_without_drafts(void **state)
{
    static const setting settings[] = {
        {"top-k", .temperature = 1, .top_k = 2},
        {"top-p", .temperature = 0.6f, .top_p = 0.1f},
        {"a constraint", .temperature = 1, .top_k = 2, .masked = true},
        {"adaptive lengths", .temperature = 1, .top_k = 2, .adaptive = true},
    };
    static chains plain, drafted;

    (void)state;
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s += RIG_SLOW ? 3 : 1) {
        const setting *how = &settings[s];

        sample_chains(how, -1, 1000, &plain);
        sample_chains(how, N_DRAFT, 5000, &drafted);
        if (drafted.accepted < 200 || (how->adaptive && drafted.skipped == 0))
            fail_msg("%s: %d drafts accepted, %d skipped", how->name, (int)drafted.accepted,
                     (int)drafted.skipped);
        for (int i = 0; i < N_CHAIN; i++) {
            double x = chi_square(plain.count[i], drafted.count[i]);

            if (x > 24.3) /* 0.1 % at 7 degrees */
                fail_msg("%s, %d tokens: chi-square %.1f", how->name, i + 1, x);
        }
    }
}

/* The comparison can tell laws apart. */
static void test_another_law_is_seen(void **state)
{
    double a[N_CELLS] = {100, 200, 300, 168}, b[N_CELLS] = {150, 150, 300, 168};

    (void)state;
    assert_true(chi_square(a, a) < 1e-9);
    assert_true(chi_square(a, b) > 16);
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
        cmocka_unit_test(test_chains_have_the_same_law_with_and_without_drafts),
        cmocka_unit_test(test_another_law_is_seen),
    };

    return cmocka_run_group_tests(tests, NULL, close_all);
}
