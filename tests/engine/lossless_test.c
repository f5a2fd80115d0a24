/* Speculation does not change the law of what is sampled, seen by statistics: chains of N+1 tokens
 * over many seeds, with drafts (right, wrong, of all lengths) and without; fixed and adaptive
 * lengths, top-k, top-p, a constraint.
 *
 * The two runs of one seed are even equal token for token (one answer); here the seeds of the two
 * runs differ. The laws of their first 1, 2, ... tokens are compared by chi-square; and, behind
 * every beginning, how often the token follows that is drafted there. Drafts that stand wrongly add
 * up in this one number, where chi-square loses them among all chains (if one wrong draft in eight
 * stood, it would be off by five standard deviations). Seeds are fixed: the test does not flicker.
 */
#include "engine/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_DRAFT  5
#define N_CHAIN  (N_DRAFT + 1)
#define N_CHOICE 64
#define N_ASK    24
#define N_CELLS  8
#define N_CHAINS (N_ASK * N_CHOICE)
#define N_SAID   (N_CHAINS / 4)

/* ---- drafts ---- */

/* Chains without drafts that say what is drafted; no count has them, or drafts would seem likelier
 * than they are. */
static int32_t said[N_SAID][N_CHAIN];
static int32_t next[N_SAID][N_CHAIN]; /* the draft behind the first 0, 1, ... tokens of a chain */
static uint32_t guess_at;

/* The first chain that begins with these n tokens, or -1. */
static int first_like(const int32_t *token, int n)
{
    for (int i = 0; i < N_SAID; i++)
        if (memcmp(said[i], token, (size_t)n * sizeof *token) == 0)
            return i;
    return -1;
}

/* How many chains that begin like chain i go on like it behind n tokens. */
static int as_many(int i, int n)
{
    int same = 0;

    for (int j = 0; j < N_SAID; j++)
        same += memcmp(said[j], said[i], (size_t)(n + 1) * sizeof said[0][0]) == 0;
    return same;
}

/* Behind every beginning always the same draft, for drafts drawn from the law itself could stand
 * unseen: the rarest token behind an odd number of tokens, which shows soonest if it stands
 * wrongly, else the first chain's, which often stands. */
static void choose_drafts(const int32_t (*token)[N_CHAIN])
{
    memcpy(said, token, sizeof said);
    for (int n = 0; n < N_CHAIN; n++) {
        int count[N_SAID], best[N_SAID];

        for (int i = 0; i < N_SAID; i++) {
            int first = first_like(said[i], n);

            count[i] = as_many(i, n);
            best[i] = i;
            if (n % 2 == 1 && count[i] < count[best[first]])
                best[first] = i;
        }
        for (int i = 0; i < N_SAID; i++)
            next[i][n] = said[best[first_like(said[i], n)]][n];
    }
}

/* The draft behind these n tokens, or -1. */
static int32_t draft_behind(const int32_t *token, int n)
{
    int i = n < N_CHAIN ? first_like(token, n) : -1;

    return i < 0 ? -1 : next[i][n];
}

/* Drafts of a varying number. */
static int guess(void *arg, const int32_t *seq, int64_t n, int32_t *draft, int max)
{
    const int *n_prompt = arg;
    int out = (int)n - *n_prompt, k = (int)(guess_at++ % (uint32_t)(max + 1));
    int32_t chain[N_CHAIN + N_DRAFT];

    memcpy(chain, seq + *n_prompt, (size_t)out * sizeof *seq);
    for (int d = 0; d < k; d++) {
        draft[d] = chain[out + d] = draft_behind(chain, out + d);
        if (draft[d] < 0)
            return d;
    }
    return k;
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
    int32_t token[N_CHAINS][N_CHAIN];
    double count[N_CHAIN][N_CELLS]; /* the first 1, 2, ... tokens by cell */
    uint64_t accepted, skipped;
} chains;

/* Chains of N_ASK x N_CHOICE seeds. */
static void sample_chains(const setting *how, int drafts, uint64_t first_seed, chains *out)
{
    static reply r[N_CHOICE];
    di_engine *e = rig_start(MINI_B, (di_engine_options){.max_seqs = 64,
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
            memcpy(out->token[ask * N_CHOICE + c], r[c].token, sizeof out->token[0]);
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

/* Of the chains behind one beginning, how many there are, and in how many the drafted token
 * follows: of those without drafts, and with. */
typedef struct follows {
    double n[2], hits[2];
} follows;

/* By how much the hits of the second run exceed what those of the first say. */
typedef struct excess {
    double sum, variance;
} excess;

/* Within each beginning the hits of both runs are drawn like balls from an urn if the laws are the
 * same (Mantel and Haenszel). */
static void add_excess(excess *e, const follows *f, int n)
{
    for (int i = 0; i < n; i++) {
        double a = f[i].n[0], b = f[i].n[1], all = a + b, hits = f[i].hits[0] + f[i].hits[1];

        if (a == 0 || b == 0)
            continue;
        e->sum += f[i].hits[1] - b * hits / all;
        e->variance += a * b * hits * (all - hits) / (all * all * (all - 1));
    }
}

static double deviations(const excess *e)
{
    return e->variance > 0 ? e->sum / sqrt(e->variance) : 0;
}

static void count_followed(const chains *plain, const chains *drafted, excess *e)
{
    static follows f[N_SAID * N_CHAIN];

    memset(f, 0, sizeof f);
    for (int run = 0; run < 2; run++) {
        for (int c = run ? 0 : N_SAID; c < N_CHAINS; c++) {
            const int32_t *token = run ? drafted->token[c] : plain->token[c];

            for (int n = 0, i; n < N_CHAIN && (i = first_like(token, n)) >= 0; n++) {
                f[i * N_CHAIN + n].n[run]++;
                f[i * N_CHAIN + n].hits[run] += token[n] == next[i][n];
            }
        }
    }
    add_excess(e, f, N_SAID * N_CHAIN);
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
    excess followed = {0};

    (void)state;
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s += RIG_SLOW ? 3 : 1) {
        const setting *how = &settings[s];

        sample_chains(how, -1, 1000 * (2 * s + 1), &plain);
        choose_drafts(plain.token);
        sample_chains(how, N_DRAFT, 1000 * (2 * s + 2), &drafted);
        if (drafted.accepted < 200 || (how->adaptive && drafted.skipped == 0))
            fail_msg("%s: %d drafts accepted, %d skipped", how->name, (int)drafted.accepted,
                     (int)drafted.skipped);
        for (int i = 0; i < N_CHAIN; i++) {
            double x = chi_square(plain.count[i], drafted.count[i]);

            if (x > 24.3) /* 0.1 % at 7 degrees */
                fail_msg("%s, %d tokens: chi-square %.1f", how->name, i + 1, x);
        }
        count_followed(&plain, &drafted, &followed);
    }
    if (fabs(deviations(&followed)) > 3.3) /* 0.1 % */
        fail_msg("drafts are followed %.1f deviations too often", deviations(&followed));
}

/* The comparison can tell laws apart. */
static void test_another_law_is_seen(void **state)
{
    double a[N_CELLS] = {100, 200, 300, 168}, b[N_CELLS] = {150, 150, 300, 168};
    follows alike[] = {{{100, 200}, {40, 80}}, {{10, 20}, {9, 18}}};
    follows more[] = {{{500, 500}, {200, 250}}, {{500, 500}, {400, 450}}};
    excess none = {0}, some = {0};

    (void)state;
    assert_true(chi_square(a, a) < 1e-9);
    assert_true(chi_square(a, b) > 16);
    add_excess(&none, alike, 2);
    assert_true(fabs(deviations(&none)) < 1e-9);
    add_excess(&some, more, 2);
    assert_true(deviations(&some) > 4);
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
