/* Sampling and log-probabilities, in every back end: the noise, the filters, and the distribution
 * of what is drawn. Seeds are fixed, so a pass stays a pass. */
#include "kernels/hand.h"

#include <math.h>

#include "kernels/noise.h"

enum { DRAWS = 100000, BATCH = 250 };

static double exact_noise(uint32_t w)
{
    long double u = ((long double)w + 0.5L) * 0x1p-32L;

    return (double)-logl(
        -(w >= 0x80000000u ? log1pl(-((long double)(uint32_t)~w + 0.5L) * 0x1p-32L) : logl(u)));
}

static void test_noise_is_accurate(void **state)
{
    static const uint32_t special[] = {0,          1,          0x7FFFFFFF, 0x80000000, 0xBFFFFFFF,
                                       0xC0000000, 0xC0000001, 0xFFFFFFFE, 0xFFFFFFFF};
    double worst = 0;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(special); i++)
        assert_close((double)noise_of_word(special[i]), exact_noise(special[i]), 2e-6);
    for (uint64_t w = 0; w < 0x100000000u; w += 8191) {
        double want = exact_noise((uint32_t)w),
               off = fabs((double)noise_of_word((uint32_t)w) - want);

        off -= fabs(want) * 0x1p-24; /* half an ulp of the result */
        worst = off > worst ? off : worst;
    }
    assert_true(worst < 1e-6);
}

static void test_noise_depends_on_every_part_of_its_key(void **state)
{
    float base = noise_gumbel(1, 2, 3, 4);

    (void)state;
    assert_true(noise_gumbel(1, 2, 3, 4) == base);
    assert_true(noise_gumbel(0, 2, 3, 4) != base);
    assert_true(noise_gumbel(1 + (1ull << 32), 2, 3, 4) != base);
    assert_true(noise_gumbel(1, 3, 3, 4) != base);
    assert_true(noise_gumbel(1, 2, 4, 4) != base);
    assert_true(noise_gumbel(1, 2, 3 + (1ll << 32), 4) != base);
    assert_true(noise_gumbel(1, 2, 3, 5) != base);
}

/* Draw once for every position of `first`, `first` + 1, ...: tokens [n]. */
static void draw(bench *b, const float *logits, int vocab, sample_row row, int64_t first, int n,
                 int32_t *token)
{
    static sample_row rows[BATCH];
    float *copies = malloc((size_t)BATCH * (size_t)vocab * sizeof *copies);
    int n_bufs = b->n_bufs;
    sample_args a = {.vocab = vocab, .row = rows};

    assert_non_null(copies);
    for (int i = 0; i < BATCH; i++)
        memcpy(copies + i * vocab, logits, (size_t)vocab * sizeof *copies);
    a.logits = dev_copy(b, copies, (size_t)BATCH * (size_t)vocab * sizeof *copies);
    a.token = dev(b, BATCH * sizeof *token);
    for (int at = 0; at < n; at += BATCH) {
        a.n = n - at < BATCH ? n - at : BATCH;
        for (int i = 0; i < a.n; i++) {
            rows[i] = row;
            rows[i].position = first + at + i;
        }
        b->k->ops->sample(b->k, &a);
        get_bytes(b, token + at, a.token, (size_t)a.n * sizeof *token);
    }
    while (b->n_bufs > n_bufs)
        b->k->ops->buf_free(b->k, b->buf[--b->n_bufs]);
    free(copies);
}

static int32_t draw_one(bench *b, const float *logits, int vocab, sample_row row)
{
    int32_t token;

    draw(b, logits, vocab, row, row.position, 1, &token);
    return token;
}

/* Chi-square of counts against probabilities; the value that 1 in 10,000 fair ones exceeds, by the
 * approximation of Wilson and Hilferty. Tokens that expect fewer than 10 are pooled. */
static void assert_distribution(const int *count, const double *p, int n, int draws)
{
    double chi2 = 0, pooled_p = 0, pooled = 0, c;
    int df = -1;

    for (int t = 0; t < n; t++) {
        double want = p[t] * draws;

        if (p[t] == 0)
            assert_int_equal(count[t], 0);
        if (want < 10) {
            pooled_p += p[t];
            pooled += count[t];
            continue;
        }
        chi2 += (count[t] - want) * (count[t] - want) / want;
        df++;
    }
    if (pooled_p * draws >= 10) {
        chi2 += (pooled - pooled_p * draws) * (pooled - pooled_p * draws) / (pooled_p * draws);
        df++;
    }
    assert_true(df > 0);
    c = 1 - 2.0 / (9 * df) + 3.719 * sqrt(2.0 / (9 * df));
    if (chi2 > df * c * c * c)
        fail_msg("chi-square %.1f at %d degrees of freedom, limit %.1f", chi2, df, df * c * c * c);
}

/* The distribution that the parameters describe, worked out by sorting. */
static void exact_distribution(double *p, const float *logits, int vocab, const sample_row *r)
{
    int order[1024], kept = vocab;
    double total = 0, sum = 0, top;

    for (int t = 0; t < vocab; t++) {
        int at = t;

        for (; at > 0 && logits[t] > logits[order[at - 1]]; at--)
            order[at] = order[at - 1];
        order[at] = t;
    }
    top = (double)logits[order[0]];
    for (int t = 0; t < vocab; t++)
        p[t] = exp(((double)logits[t] - top) / (double)r->temperature);
    if (r->top_k > 0 && r->top_k < kept)
        kept = r->top_k;
    for (int i = 0; i < kept; i++)
        total += p[order[i]];
    for (int i = 0; i < kept; i++) {
        sum += p[order[i]];
        if (sum >= (double)r->top_p * total)
            kept = i + 1;
    }
    while (kept > 1 && p[order[kept - 1]] < (double)r->min_p)
        kept--;
    for (int i = kept; i < vocab; i++)
        p[order[i]] = 0;
    total = 0;
    for (int t = 0; t < vocab; t++)
        total += p[t];
    for (int t = 0; t < vocab; t++)
        p[t] /= total;
}

static void test_draws_follow_the_distribution(void **state)
{
    static const sample_row cases[] = {
        {.temperature = 1, .top_p = 1, .seed = 11},
        {.temperature = 0.7f, .top_p = 1, .seed = 12},
        {.temperature = 2, .top_p = 1, .seed = 13},
        {.temperature = 1, .top_p = 1, .top_k = 5, .seed = 14},
        {.temperature = 1, .top_p = 0.8f, .seed = 15},
        {.temperature = 1, .top_p = 1, .min_p = 0.1f, .seed = 16},
        {.temperature = 0.8f, .top_p = 0.9f, .top_k = 20, .min_p = 0.02f, .seed = 17},
    };
    enum { VOCAB = 67 };
    static int32_t token[DRAWS];
    float logits[VOCAB];
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    for (int t = 0; t < VOCAB; t++)
        logits[t] = 3.0f * sinf((float)(t * t)) - 0.02f * (float)t;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int count[VOCAB] = {0};
        double p[VOCAB];

        draw(&b, logits, VOCAB, cases[i], 0, DRAWS, token);
        for (int d = 0; d < DRAWS; d++)
            count[token[d]]++;
        exact_distribution(p, logits, VOCAB, &cases[i]);
        assert_distribution(count, p, VOCAB, DRAWS);
    }
    bench_close(&b);
}

/* Tokens of neighbouring positions, of neighbouring choices and of neighbouring seeds. */
static void test_draws_are_independent(void **state)
{
    enum { VOCAB = 6, N = 30000 };
    static int32_t a[N + 1], other[2][N];
    const float logits[VOCAB] = {0, 0.5f, 1, -1, 0.2f, 0};
    sample_row row = {.temperature = 1, .top_p = 1, .seed = 100};
    double p[VOCAB], pair[VOCAB * VOCAB];
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    exact_distribution(p, logits, VOCAB, &row);
    for (int i = 0; i < VOCAB * VOCAB; i++)
        pair[i] = p[i / VOCAB] * p[i % VOCAB];
    draw(&b, logits, VOCAB, row, 0, N + 1, a);
    row.choice = 1;
    draw(&b, logits, VOCAB, row, 0, N, other[0]);
    row.choice = 0;
    row.seed = 101;
    draw(&b, logits, VOCAB, row, 0, N, other[1]);
    for (int kind = 0; kind < 3; kind++) {
        int count[VOCAB * VOCAB] = {0};
        const int32_t *second = kind == 0 ? a + 1 : other[kind - 1];

        for (int d = 0; d < N; d++)
            count[a[d] * VOCAB + second[d]]++;
        assert_distribution(count, pair, VOCAB * VOCAB, N);
    }
    bench_close(&b);
}

static void test_greedy_takes_the_lowest_of_equal_logits(void **state)
{
    enum { VOCAB = 100 };
    float logits[VOCAB] = {0};
    uint32_t mask[4] = {0};
    logit_adjust adjust[2] = {{.id = 40, .rep = 1, .add = -2}, {.id = 71, .rep = 1, .add = 1}};
    sample_row row = {.temperature = 0, .top_p = 0.1f, .top_k = 1, .min_p = 1};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    assert_int_equal(draw_one(&b, logits, VOCAB, row), 0);
    logits[40] = logits[41] = logits[99] = 2;
    assert_int_equal(draw_one(&b, logits, VOCAB, row), 40);
    mask[1] = 1u << (41 - 32) | 1u;
    mask[3] = 1u << (99 - 96);
    row.mask = mask;
    assert_int_equal(draw_one(&b, logits, VOCAB, row), 41);
    mask[1] = 0;
    assert_int_equal(draw_one(&b, logits, VOCAB, row), 99);
    mask[3] = 0;
    assert_int_equal(draw_one(&b, logits, VOCAB, row), -1);
    row.temperature = 1;
    assert_int_equal(draw_one(&b, logits, VOCAB, row), -1);
    row = (sample_row){.top_p = 1, .adjust = adjust, .n_adjust = 2};
    assert_int_equal(draw_one(&b, logits, VOCAB, row), 41);
    adjust[1].add = 3;
    assert_int_equal(draw_one(&b, logits, VOCAB, row), 71);
    bench_close(&b);
}

/* An adjustment of minus infinity is a ban: where the largest logit is banned the next one counts,
 * at any temperature, and nothing is left when all are. */
static void test_a_banned_token_never_comes(void **state)
{
    enum { VOCAB = 70 };
    float logits[VOCAB] = {[3] = 50, [64] = 40, [69] = 60};
    logit_adjust ban[VOCAB];
    sample_row row = {.temperature = 0, .top_p = 0.5f, .adjust = ban};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    for (int i = 0; i < VOCAB; i++)
        ban[i] = (logit_adjust){.id = i, .rep = 1, .add = -INFINITY};
    for (int hot = 0; hot < 2; hot++) {
        row.temperature = (float)hot;
        row.adjust = &ban[69];
        row.n_adjust = 1;
        assert_int_equal(draw_one(&b, logits, VOCAB, row), 3);
        row.adjust = &ban[64];
        row.n_adjust = 6;
        assert_int_equal(draw_one(&b, logits, VOCAB, row), 3);
        row.adjust = ban;
        row.n_adjust = 64;
        assert_int_equal(draw_one(&b, logits, VOCAB, row), 69);
        row.n_adjust = VOCAB;
        assert_int_equal(draw_one(&b, logits, VOCAB, row), -1);
    }
    bench_close(&b);
}

/* A repetition penalty divides positive logits and multiplies the others. */
static void test_repetition_penalty_lowers_both_signs(void **state)
{
    float logits[4] = {2.0f, 1.9f, -5, -5};
    logit_adjust adjust[1] = {{.id = 0, .rep = 1.1f}};
    sample_row row = {.top_p = 1, .adjust = adjust, .n_adjust = 1};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    assert_int_equal(draw_one(&b, logits, 4, row), 1);
    logits[0] = -1;
    logits[1] = -1.05f;
    assert_int_equal(draw_one(&b, logits, 4, row), 1);
    adjust[0].rep = 1.04f;
    assert_int_equal(draw_one(&b, logits, 4, row), 0);
    bench_close(&b);
}

/* The tokens that come up in many draws. */
static void assert_support(bench *b, const float *logits, int vocab, sample_row row,
                           const char *want)
{
    int32_t token[3000];
    char seen[64] = {0};

    row.seed = 5;
    draw(b, logits, vocab, row, 0, (int)ARRAY_LEN(token), token);
    for (int t = 0; t < vocab; t++)
        seen[t] = '.';
    for (size_t d = 0; d < ARRAY_LEN(token); d++)
        seen[token[d]] = 'x';
    assert_string_equal(seen, want);
}

static void test_filters_keep_what_they_say(void **state)
{
    const float halves[6] = {logf(.25f), logf(.5f), logf(.125f), logf(.0625f), logf(.0625f), -40};
    const float ties[6] = {1, 2, 1, 2, 1, 1};
    const uint32_t odd = 0x2A;
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    assert_support(&b, halves, 6, (sample_row){.temperature = 1, .top_p = 1}, "xxxxx.");
    assert_support(&b, halves, 6, (sample_row){.temperature = 1, .top_p = .49f}, ".x....");
    assert_support(&b, halves, 6, (sample_row){.temperature = 1, .top_p = .51f}, "xx....");
    assert_support(&b, halves, 6, (sample_row){.temperature = 1, .top_p = .9f}, "xxxx..");
    assert_support(&b, halves, 6, (sample_row){.temperature = 1, .top_p = .95f}, "xxxxx.");
    assert_support(&b, halves, 6, (sample_row){.temperature = 1, .top_p = 1, .min_p = .24f},
                   "xxx...");
    assert_support(&b, halves, 6, (sample_row){.temperature = 1, .top_p = 1, .min_p = .26f},
                   "xx....");
    /* top-p counts what top-k left: 2/3 and 1/3 of the total */
    assert_support(&b, halves, 6, (sample_row){.temperature = 1, .top_p = .66f, .top_k = 2},
                   ".x....");
    assert_support(&b, halves, 6, (sample_row){.temperature = 1, .top_p = .67f, .top_k = 2},
                   "xx....");
    assert_support(&b, ties, 6, (sample_row){.temperature = 1, .top_p = 1, .top_k = 4}, "xxxx..");
    assert_support(&b, ties, 6, (sample_row){.temperature = 1, .top_p = 1, .top_k = 1}, ".x....");
    assert_support(&b, ties, 6, (sample_row){.temperature = 1, .top_p = 1, .mask = &odd}, ".x.x.x");
    bench_close(&b);
}

static void test_log_probabilities(void **state)
{
    enum { VOCAB = 50, TOP = 4 };
    float logits[2 * VOCAB], logprob[2], top_logprob[2 * TOP];
    const int32_t token[2] = {30, 7};
    int32_t rank[2], top_id[2 * TOP];
    double total = 0;
    logprobs_args a = {.n = 2, .vocab = VOCAB, .n_top = TOP};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    for (int t = 0; t < VOCAB; t++) {
        logits[t] = (float)(t % 10);
        logits[VOCAB + t] = 1000.0f - (float)t;
        total += exp((double)logits[t]);
    }
    a.logits = dev_copy(&b, logits, sizeof logits);
    a.token = dev_copy(&b, token, sizeof token);
    a.logprob = dev(&b, sizeof logprob);
    a.rank = dev(&b, sizeof rank);
    a.top_id = dev(&b, sizeof top_id);
    a.top_logprob = dev(&b, sizeof top_logprob);
    b.k->ops->logprobs(b.k, &a);
    get_bytes(&b, logprob, a.logprob, sizeof logprob);
    get_bytes(&b, rank, a.rank, sizeof rank);
    get_bytes(&b, top_id, a.top_id, sizeof top_id);
    get_bytes(&b, top_logprob, a.top_logprob, sizeof top_logprob);
    assert_close((double)logprob[0], -log(total), 1e-5);
    assert_int_equal(rank[0], 45 + 3); /* 0, 10 and 20 are as good and stand before */
    for (int i = 0; i < TOP; i++) {
        assert_int_equal(top_id[i], 9 + 10 * i);
        assert_close((double)top_logprob[i], 9 - log(total), 1e-5);
        assert_int_equal(top_id[TOP + i], i);
    }
    assert_int_equal(rank[1], 7);
    assert_close((double)logprob[1], -7 + log(1 - exp(-1)) - log(1 - exp(-50)), 1e-5);
    bench_close(&b);
}

int main(void)
{
    static const struct {
        const char *name;
        CMUnitTestFunction test;
    } all[] = {
        {"draws follow the distribution", test_draws_follow_the_distribution},
        {"draws are independent", test_draws_are_independent},
        {"greedy takes the lowest of equal logits", test_greedy_takes_the_lowest_of_equal_logits},
        {"a banned token never comes", test_a_banned_token_never_comes},
        {"repetition penalty lowers both signs", test_repetition_penalty_lowers_both_signs},
        {"filters keep what they say", test_filters_keep_what_they_say},
        {"log-probabilities", test_log_probabilities},
    };
    struct CMUnitTest tests[64] = {
        cmocka_unit_test(test_noise_is_accurate),
        cmocka_unit_test(test_noise_depends_on_every_part_of_its_key),
    };
    int n = 2;

    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        n = for_every_backend(tests, n, all[i].name, all[i].test);
    return _cmocka_run_group_tests("sampling", tests, (size_t)n, NULL, NULL);
}
