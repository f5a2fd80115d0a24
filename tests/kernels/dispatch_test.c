/* Which back end a name opens, and what is refused. */
#include "kernels/hand.h"

#include "base/cpu.h"
#include "base/mem.h"

static di_code try_open(const char *name, numerics num, char *got, di_status *st)
{
    kernels *k = NULL;
    kernels_options opt = {.backend = name, .numerics = num, .n_threads = 1};
    di_code rc = kernels_open(&k, &opt, st);

    if (rc == DI_OK)
        snprintf(got, 32, "%s", k->ops->name);
    else
        assert_null(k);
    kernels_close(k);
    return rc;
}

static void test_auto_opens_the_best_back_end(void **state)
{
    char got[32];
    di_status st = {0};

    (void)state;
    assert_int_equal(try_open("auto", NUMERICS_RELEASE, got, &st), DI_OK);
    assert_string_equal(got, kernels_available()[0]);
}

static void test_auto_with_other_numerics_opens_ref(void **state)
{
    char got[32];
    di_status st = {0};

    (void)state;
    assert_int_equal(try_open("auto", NUMERICS_F32, got, &st), DI_OK);
    assert_string_equal(got, "ref");
    assert_int_equal(try_open("auto", NUMERICS_CACHE, got, &st), DI_OK);
    assert_string_equal(got, "ref");
}

static void test_available_back_ends_open_and_the_others_say_what_they_need(void **state)
{
    const char *const names[] = {"avx512", "avx2", "ref"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char got[32];
        di_status st = {0};
        bool available = false;

        for (const char *const *b = kernels_available(); *b; b++)
            available |= strcmp(*b, names[i]) == 0;
        if (available) {
            assert_int_equal(try_open(names[i], NUMERICS_RELEASE, got, &st), DI_OK);
            assert_string_equal(got, names[i]);
        } else {
            assert_int_equal(try_open(names[i], NUMERICS_RELEASE, got, &st), DI_E_UNSUPPORTED);
            assert_non_null(strstr(st.message, "needs AVX"));
        }
    }
}

static void test_unknown_name_is_refused(void **state)
{
    char got[32];
    di_status st = {0};

    (void)state;
    assert_int_equal(try_open("mmx", NUMERICS_RELEASE, got, &st), DI_E_INVALID);
    assert_non_null(strstr(st.message, "\"mmx\""));
}

static void test_fast_back_ends_refuse_other_numerics(void **state)
{
    char got[32];
    di_status st = {0};

    (void)state;
    assert_int_equal(try_open("avx512", NUMERICS_F32, got, &st), DI_E_INVALID);
    di_clear(&st);
    assert_int_equal(try_open("avx2", NUMERICS_CACHE, got, &st), DI_E_INVALID);
    assert_non_null(strstr(st.message, "\"ref\""));
}

static void test_every_operation_is_there(void **state)
{
    (void)state;
    for (const char *const *b = kernels_available(); *b; b++) {
        kernels_options opt = {.backend = *b, .n_threads = 1};
        kernels *k = NULL;

        assert_int_equal(kernels_open(&k, &opt, NULL), DI_OK);
        assert_non_null(k->ops->gather);
        assert_non_null(k->ops->rope_rows);
        assert_non_null(k->ops->keep_rows);
        assert_non_null(k->ops->engram_gather);
        assert_non_null(k->ops->engram_apply);
        assert_non_null(k->ops->hc);
        assert_non_null(k->ops->tap);
        assert_non_null(k->ops->quantize);
        assert_non_null(k->ops->linear);
        assert_non_null(k->ops->qkv);
        assert_non_null(k->ops->compress_pool);
        assert_non_null(k->ops->compress_store);
        assert_non_null(k->ops->index_scores);
        assert_non_null(k->ops->select);
        assert_non_null(k->ops->attention);
        assert_non_null(k->ops->ring_commit);
        assert_non_null(k->ops->route);
        assert_non_null(k->ops->experts);
        assert_non_null(k->ops->confidence);
        assert_non_null(k->ops->sample);
        assert_non_null(k->ops->logprobs);
        kernels_close(k);
    }
}

static di_code open_and_reserve(const char *name)
{
    kernels_options opt = {.backend = name, .n_threads = 1};
    kernel_limits lim = {.n_rows = 4, .hidden = 64, .hc = 4, .head_dim = 32, .vocab = 100};
    kernels *k = NULL;
    di_status st = {0};
    di_code rc = kernels_open(&k, &opt, &st);

    if (rc == DI_OK)
        rc = k->ops->reserve(k, &lim, &st);
    if (rc == DI_OK) {
        lim.hidden = 128;
        rc = k->ops->reserve(k, &lim, &st);
    }
    kernels_close(k);
    return rc;
}

/* Fail every allocation in turn: NOMEM each time, and nothing leaks (asan). */
static void test_out_of_memory_is_reported(void **state)
{
    int n = 0;

    (void)state;
    for (const char *const *b = kernels_available(); *b; b++) {
        di_code rc = DI_E_NOMEM;

        for (n = 1; n < 200 && rc != DI_OK; n++) {
            mem_fail_at((uint64_t)n);
            rc = open_and_reserve(*b);
            mem_fail_at(0);
            assert_true(rc == DI_OK || rc == DI_E_NOMEM);
        }
        assert_int_equal(rc, DI_OK);
        assert_in_range(n, 3, 199);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_opens_the_best_back_end),
        cmocka_unit_test(test_auto_with_other_numerics_opens_ref),
        cmocka_unit_test(test_available_back_ends_open_and_the_others_say_what_they_need),
        cmocka_unit_test(test_unknown_name_is_refused),
        cmocka_unit_test(test_fast_back_ends_refuse_other_numerics),
        cmocka_unit_test(test_every_operation_is_there),
        cmocka_unit_test(test_out_of_memory_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
