/* Thread pool: splits, every thread once, barriers, reuse, and the same bits for any count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/pool.h"

static void test_split_covers_every_item_once_in_whole_units(void **state)
{
    static const int64_t units[] = {1, 2, 16, 100};

    (void)state;
    for (int64_t n = 0; n <= 200; n++)
        for (size_t u = 0; u < ARRAY_LEN(units); u++)
            for (int n_threads = 1; n_threads <= 9; n_threads++) {
                int64_t unit = units[u], at = 0, least = INT64_MAX, most = 0, begin, end;

                for (int t = 0; t < n_threads; t++) {
                    int64_t n_units;

                    pool_split(n, unit, t, n_threads, &begin, &end);
                    n_units = (end - begin + unit - 1) / unit;
                    assert_int_equal(begin, at);
                    assert_true(begin % unit == 0 || begin == n);
                    assert_true(end >= begin);
                    least = n_units < least ? n_units : least;
                    most = n_units > most ? n_units : most;
                    at = end;
                }
                assert_int_equal(at, n);
                assert_true(most - least <= 1);
            }
}

typedef struct job {
    atomic_int calls[8];
    atomic_int n_threads;
} job;

static void count_call(void *arg, int thread, int n_threads)
{
    job *j = arg;

    atomic_fetch_add(&j->calls[thread], 1);
    atomic_store(&j->n_threads, n_threads);
}

static void test_run_calls_every_thread_once_and_waits_for_all(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n++) {
        di_status st = {0};
        pool *p;

        assert_int_equal(pool_new(&p, n, &st), DI_OK);
        assert_int_equal(pool_n_threads(p), n);
        for (int round = 1; round <= 300; round++) {
            static job j;

            memset(&j, 0, sizeof j);
            pool_run(p, count_call, &j);
            assert_int_equal(atomic_load(&j.n_threads), n);
            for (int t = 0; t < 8; t++)
                assert_int_equal(atomic_load(&j.calls[t]), t < n);
        }
        pool_free(p);
    }
}

static void test_a_null_pool_runs_on_the_caller(void **state)
{
    job j = {0};

    (void)state;
    pool_run(NULL, count_call, &j);
    assert_int_equal(atomic_load(&j.calls[0]), 1);
    assert_int_equal(atomic_load(&j.n_threads), 1);
    assert_int_equal(pool_n_threads(NULL), 1);
    pool_barrier(NULL);
    pool_free(NULL);
}

typedef struct relay {
    pool *pool;
    int value[8]; /* plain: the barrier alone orders them */
    int wrong[8];
} relay;

/* In every round a thread reads what its neighbour wrote in the round before. */
static void relay_rounds(void *arg, int thread, int n_threads)
{
    relay *r = arg;

    for (int round = 1; round <= 500; round++) {
        int next = (thread + 1) % n_threads;

        r->value[thread] = round;
        pool_barrier(r->pool);
        if (r->value[next] != round)
            r->wrong[thread]++;
        pool_barrier(r->pool);
    }
}

static void test_barrier_orders_what_threads_wrote(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n++) {
        relay r = {0};

        assert_int_equal(pool_new(&r.pool, n, NULL), DI_OK);
        pool_run(r.pool, relay_rounds, &r);
        for (int t = 0; t < n; t++) {
            assert_int_equal(r.wrong[t], 0);
            assert_int_equal(r.value[t], 500);
        }
        pool_free(r.pool);
    }
}

#define ROWS 777
#define COLS 33

static float input[ROWS][COLS], sums[ROWS];

static void sum_rows(void *arg, int thread, int n_threads)
{
    int64_t begin, end;

    (void)arg;
    pool_split(ROWS, 16, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float sum = 0;

        for (int c = 0; c < COLS; c++)
            sum += input[r][c];
        sums[r] = sum;
    }
}

static void test_results_do_not_depend_on_the_number_of_threads(void **state)
{
    static float want[ROWS];

    (void)state;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            input[r][c] = (float)((r * 7919 + c * 104729) % 1000003) / 997.0f;
    pool_run(NULL, sum_rows, NULL);
    memcpy(want, sums, sizeof sums);
    for (int n = 1; n <= 8; n++) {
        pool *p;

        assert_int_equal(pool_new(&p, n, NULL), DI_OK);
        memset(sums, 0, sizeof sums);
        pool_run(p, sum_rows, NULL);
        assert_memory_equal(sums, want, sizeof sums);
        pool_free(p);
    }
}

static void test_workers_that_fell_asleep_wake_up(void **state)
{
    const struct timespec pause = {.tv_nsec = 2000000}; /* well past the spinning */
    pool *p;

    (void)state;
    assert_int_equal(pool_new(&p, 3, NULL), DI_OK);
    for (int round = 0; round < 20; round++) {
        job j = {0};

        nanosleep(&pause, NULL);
        pool_run(p, count_call, &j);
        for (int t = 0; t < 3; t++)
            assert_int_equal(atomic_load(&j.calls[t]), 1);
    }
    pool_free(p);
}

static void test_zero_threads_means_one_per_processor(void **state)
{
    pool *p;

    (void)state;
    assert_int_equal(pool_new(&p, 0, NULL), DI_OK);
    assert_int_equal(pool_n_threads(p), cpu_count() < 256 ? cpu_count() : 256);
    pool_free(p);
}

static void test_impossible_counts_are_refused_with_the_limits(void **state)
{
    static const int counts[] = {-1, 257, 1000000};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        di_status st = {0};
        pool *p;

        assert_int_equal(pool_new(&p, counts[i], &st), DI_E_INVALID);
        assert_null(p);
        assert_non_null(strstr(st.message, "1 to 256"));
    }
}

static void test_no_memory_for_the_pool_is_reported(void **state)
{
    pool *p;

    (void)state;
    mem_fail_at(1);
    assert_int_equal(pool_new(&p, 4, NULL), DI_E_NOMEM);
    mem_fail_at(0);
    assert_null(p);
}

static void test_a_run_allocates_nothing(void **state)
{
    job j = {0};
    uint64_t before;
    pool *p;

    (void)state;
    assert_int_equal(pool_new(&p, 4, NULL), DI_OK);
    before = mem_n_tries();
    pool_run(p, count_call, &j);
    assert_int_equal(mem_n_tries(), before);
    pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_covers_every_item_once_in_whole_units),
        cmocka_unit_test(test_run_calls_every_thread_once_and_waits_for_all),
        cmocka_unit_test(test_a_null_pool_runs_on_the_caller),
        cmocka_unit_test(test_barrier_orders_what_threads_wrote),
        cmocka_unit_test(test_results_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(test_workers_that_fell_asleep_wake_up),
        cmocka_unit_test(test_zero_threads_means_one_per_processor),
        cmocka_unit_test(test_impossible_counts_are_refused_with_the_limits),
        cmocka_unit_test(test_no_memory_for_the_pool_is_reported),
        cmocka_unit_test(test_a_run_allocates_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
