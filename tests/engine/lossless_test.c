/* Speculation does not change the law of what is sampled, seen by statistics: chains of N+1 tokens
 * at temperature 1 over many seeds, with drafts (right, wrong, of all lengths) and without.
 *
 * The two runs of one seed are even equal token for token (one answer); here the seeds of the two
 * runs differ, and the laws of their first 1, 2, ... tokens are compared by chi-square. Seeds are
 * fixed: the test does not flicker. */
#include "engine/rig.h"

#include <math.h>
#include <string.h>

#define N_DRAFT  5
#define N_CHAIN  (N_DRAFT + 1)
#define N_CHOICE 64
#define N_ASK    12
#define N_CELLS  8

/* The chains of the run without drafts: what they say is what drafts propose in the other run. */
static int32_t said[N_ASK * N_CHOICE][N_CHAIN];
static uint32_t guess_at;

/* The continuation of one of the chains that began alike, cut at a varying length. */
static int guess(void *arg, const int32_t *seq, int64_t n, int32_t *draft, int max)
{
    const int *n_prompt = arg;
    int64_t out = n - *n_prompt;
    int k = (int)(guess_at++ % (uint32_t)(max + 1));

    for (int i = 0; i < N_ASK * N_CHOICE; i++) {
        const int32_t *chain = said[(guess_at * 37 + (uint32_t)i) % (N_ASK * N_CHOICE)];

        if (memcmp(chain, seq + *n_prompt, (size_t)out * sizeof *seq) != 0)
            continue;
        for (int d = 0; d < k; d++)
            draft[d] = out + d < N_CHAIN ? chain[out + d] : 0;
        return k;
    }
    return 0;
}

/* Count the first 1, 2, ... tokens of chains by cell, over N_ASK x N_CHOICE seeds. */
static uint64_t sample_chains(int drafts, uint64_t first_seed, double count[N_CHAIN][N_CELLS])
{
    static reply r[N_CHOICE];
    di_engine *e = rig_start(MINI_B, (di_engine_options){.max_seqs = 16,
                                                         .kv_tokens = 16384,
                                                         .draft_tokens = drafts,
                                                         .draft_fixed = true});
    int n_prompt = 30;
    int32_t ids[30];
    uint64_t accepted = 0;

    rig_seed(20);
    rig_ids(ids, n_prompt);
    if (drafts > 0) {
        e->x.script_arg = &n_prompt;
        e->x.script = guess;
    }
    for (int ask = 0; ask < N_ASK; ask++) {
        di_request_params p = rig_params(ids, n_prompt, N_CHAIN);

        p.n = N_CHOICE;
        p.seed = first_seed + (uint64_t)ask;
        p.temperature = 1;
        p.top_k = 2; /* few different chains, so that guesses are often right */
        rig_ask(e, p, r);
        for (int c = 0; c < N_CHOICE; c++) {
            uint32_t h = 0;

            accepted += (uint64_t)r[c].usage.accepted;
            for (int i = 0; i < N_CHAIN; i++) {
                h = (h ^ (uint32_t)r[c].token[i]) * 2654435761u;
                count[i][(h >> 20) % N_CELLS]++;
            }
            if (drafts < 0)
                memcpy(said[ask * N_CHOICE + c], r[c].token, sizeof said[0]);
        }
    }
    rig_close(e);
    return accepted;
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
    static double plain[N_CHAIN][N_CELLS], drafted[N_CHAIN][N_CELLS];

    (void)state;
    sample_chains(-1, 1000, plain);
    assert_true(sample_chains(N_DRAFT, 5000, drafted) > 200);
    for (int i = 0; i < N_CHAIN; i++)
        assert_true(chi_square(plain[i], drafted[i]) < 24.3); /* 0.1 % at 7 degrees */
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
