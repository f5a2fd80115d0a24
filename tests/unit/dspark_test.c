/* Calibration, cost curve and verification lengths. */
#include <math.h>
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/rng.h"
#include "dspark/lengths.h"

static void assert_near(double got, double want, double eps)
{
    if (!(fabs(got - want) <= eps))
        fail_msg("%.9g is not %.9g within %g", got, want, eps);
}

static uint32_t rng_state;

static double uniform(void)
{
    return philox4x32((philox_block){{rng_state++, 0, 0, 0}}, 3, 4).v[0] * 0x1p-32;
}

static void test_calibration_starts_with_the_sigmoid(void **state)
{
    calibration c;

    (void)state;
    calibration_init(&c);
    assert_near(calibration_chance(&c, 0, 0), 0.5, 1e-6);
    assert_near(calibration_chance(&c, 3, 2), 0.8807971, 1e-6);
    assert_near(calibration_chance(&c, 0, __builtin_nanf("")), 0, 1e-6);
}

static void test_calibration_learns_an_overconfident_head(void **state)
{
    calibration c;

    (void)state;
    calibration_init(&c);
    rng_state = 1;
    for (int i = 0; i < 5000; i++)
        calibration_observe(&c, 1, 3.0f, uniform() < 0.3);
    assert_near(calibration_chance(&c, 1, 3.0f), 0.3, 0.06);
    assert_near(calibration_chance(&c, 0, 3.0f), 0.9525741, 1e-6); /* others untouched */
}

static cost_table linear_cost(double fixed, double per_row)
{
    int rows[COST_MAX_POINTS], n = cost_points(256, rows);
    cost_table t;

    cost_init(&t, n, rows);
    for (int i = 0; i < n; i++)
        cost_set(&t, i, fixed + per_row * rows[i], 10);
    return t;
}

static void test_cost_is_linear_between_points(void **state)
{
    cost_table t = linear_cost(100, 7);

    (void)state;
    for (int r = 1; r <= 256; r++)
        assert_near(cost_step(&t, r), 100 + 7.0 * r, 1e-9);
    assert_near(cost_step(&t, 512), 2 * (100 + 7.0 * 256), 1e-6);
    assert_near(cost_draft(&t, 5, 3), 10, 1e-9);
    assert_near(cost_draft(&t, 0, 3), 0, 1e-9);
}

static void test_cost_points_cover_the_range(void **state)
{
    int rows[COST_MAX_POINTS];

    (void)state;
    for (int max = 1; max < 3000; max++) {
        int n = cost_points(max, rows);

        assert_true(n >= 1 && n <= COST_MAX_POINTS);
        assert_int_equal(rows[0], 1);
        assert_int_equal(rows[n - 1], max);
        for (int i = 1; i < n; i++)
            assert_true(rows[i] > rows[i - 1]);
    }
}

static void test_cost_follows_what_is_observed(void **state)
{
    cost_table t = linear_cost(100, 1);

    (void)state;
    for (int i = 0; i < 200; i++)
        cost_observe(&t, 8, 2 * (100 + 8));
    assert_near(cost_step(&t, 64), 2 * 164, 2); /* not observed: goes along */
    for (int i = 0; i < 200; i++)
        cost_observe(&t, 64, 164);
    for (int i = 0; i < 200; i++)
        cost_observe(&t, 8, 2 * (100 + 8));
    assert_near(cost_step(&t, 8), 216, 1);
    assert_near(cost_step(&t, 64), 164, 1);
}

static void test_cost_survives_a_round_trip_and_refuses_other_keys(void **state)
{
    char dir[] = "/tmp/cost-XXXXXX", path[64];
    cost_table t = linear_cost(50, 3), u;
    bool found;

    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(cost_save(&t, dir, "model a, 2 threads", NULL), DI_OK);
    assert_int_equal(cost_load(&u, dir, "model a, 2 threads", &found, NULL), DI_OK);
    assert_true(found);
    for (int r = 1; r < 300; r++)
        assert_near(cost_step(&t, r), cost_step(&u, r), 1e-2);
    assert_int_equal(cost_load(&u, dir, "model a, 4 threads", &found, NULL), DI_OK);
    assert_false(found);
    snprintf(path, sizeof path, "rm -r %s", dir);
    assert_int_equal(system(path), 0);
}

static void test_a_damaged_cost_file_counts_as_absent(void **state)
{
    char dir[] = "/tmp/cost-XXXXXX", text[4096], command[64], path[320];
    cost_table t = linear_cost(50, 3), u;
    struct dirent *entry = NULL;
    size_t n;
    bool found;
    FILE *f;
    DIR *d;

    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(cost_save(&t, dir, "a model", NULL), DI_OK);
    d = opendir(dir);
    assert_non_null(d);
    while ((entry = readdir(d)) && entry->d_name[0] == '.')
        ;
    assert_non_null(entry);
    snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
    closedir(d);
    f = fopen(path, "r");
    n = fread(text, 1, sizeof text, f);
    fclose(f);
    for (size_t cut = 0; cut < n; cut += cut < n - 8 ? 7 : 1) { /* cut off anywhere */
        f = fopen(path, "w");
        fwrite(text, 1, cut, f);
        fclose(f);
        assert_int_equal(cost_load(&u, dir, "a model", &found, NULL), DI_OK);
        assert_false(found);
    }
    text[strlen("deepinfer-cost ")]++; /* of another version */
    f = fopen(path, "w");
    fwrite(text, 1, n, f);
    fclose(f);
    assert_int_equal(cost_load(&u, dir, "a model", &found, NULL), DI_OK);
    assert_false(found);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

static void test_cost_of_short_draft_rounds_follows_what_is_observed(void **state)
{
    cost_table t = linear_cost(100, 1);

    (void)state;
    cost_set_block(&t, 5);
    assert_near(cost_draft(&t, 3, 5), 10, 1e-9);
    assert_true(cost_draft(&t, 3, 1) < cost_draft(&t, 3, 2));
    for (int i = 0; i < 400; i++)
        cost_observe_draft(&t, 3, 2, 7);
    assert_near(cost_draft(&t, 3, 2), 7, 0.1);
    assert_true(cost_draft(&t, 3, 5) > cost_draft(&t, 3, 2)); /* not observed: goes along */
    for (int i = 0; i < 400; i++)
        cost_observe_draft(&t, 3, 5, 9);
    assert_near(cost_draft(&t, 3, 5), 9, 0.1);
    assert_near(cost_draft(&t, 3, 2), 7, 0.1);
    assert_near(cost_draft(&t, 3, 0), 0, 1e-9);
}

/* The best of all length vectors, by trying them. */
static double best_rate(const cost_table *t, const draft_offer *o, int n, int at, int rows,
                        double expected)
{
    double best = 0;

    if (at >= n || at >= 4)
        return expected / cost_step(t, rows);
    for (int len = 0; len <= o[at].n; len++) {
        double gain = 0, rate;

        for (int j = 0; j < len; j++)
            gain += o[at].survival[j];
        rate = best_rate(t, o, n, at + 1, rows + 1 + len, expected + 1 + gain);
        best = rate > best ? rate : best;
    }
    return best;
}

static void test_lengths_reach_the_best_rate(void **state)
{
    int length[4], scratch[4 * (DSPARK_MAX_DRAFT + 1)];

    (void)state;
    rng_state = 5;
    for (int round = 0; round < 300; round++) {
        cost_table t = linear_cost(200 * uniform(), 30 * uniform() + 1);
        int n = 1 + (int)(uniform() * 3.99), rows = 0;
        double expected = 0;
        draft_offer o[4] = {0};

        for (int i = 0; i < n; i++) {
            o[i].n = (int)(uniform() * 5.99);
            for (int j = 0; j < o[i].n; j++)
                o[i].survival[j] = (float)((j ? o[i].survival[j - 1] : 1) * uniform());
        }
        draft_lengths(&t, o, n, 0, 256, 0, length, scratch);
        for (int i = 0; i < n; i++) {
            assert_in_range(length[i], 0, o[i].n);
            rows += 1 + length[i];
            expected += 1;
            for (int j = 0; j < length[i]; j++)
                expected += o[i].survival[j];
        }
        assert_near(expected / cost_step(&t, rows), best_rate(&t, o, n, 0, 0, 0), 1e-9);
    }
}

static void test_lengths_respect_the_row_limit(void **state)
{
    cost_table t = linear_cost(1000, 0.01);
    draft_offer o[3] = {
        {.n = 2, .survival = {0.9f, 0.8f}}, {.n = 2, .survival = {0.9f, 0.85f}}, {.n = 0}};
    int length[3], scratch[3 * (DSPARK_MAX_DRAFT + 1)];

    (void)state;
    assert_int_equal(draft_lengths(&t, o, 3, 4, 10, 0, length, scratch), 3);
    assert_int_equal(length[0], 1);
    assert_int_equal(length[1], 2);
    assert_int_equal(length[2], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calibration_starts_with_the_sigmoid),
        cmocka_unit_test(test_calibration_learns_an_overconfident_head),
        cmocka_unit_test(test_cost_is_linear_between_points),
        cmocka_unit_test(test_cost_points_cover_the_range),
        cmocka_unit_test(test_cost_follows_what_is_observed),
        cmocka_unit_test(test_cost_survives_a_round_trip_and_refuses_other_keys),
        cmocka_unit_test(test_a_damaged_cost_file_counts_as_absent),
        cmocka_unit_test(test_cost_of_short_draft_rounds_follows_what_is_observed),
        cmocka_unit_test(test_lengths_reach_the_best_rate),
        cmocka_unit_test(test_lengths_respect_the_row_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
