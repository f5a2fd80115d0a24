/* The state behind penalties and bias, and the checks of sampling parameters. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "sampler/sampler.h"

#define VOCAB 5000

static sampler *make(const sampling_params *p, const int32_t *prompt, int64_t n)
{
    sampler *s = NULL;
    di_status st = {0};

    assert_int_equal(sampler_new(&s, p, VOCAB, prompt, n, &st), DI_OK);
    return s;
}

static void accept(sampler *s, int32_t id)
{
    assert_int_equal(sampler_accept(s, id, NULL), DI_OK);
}

static const logit_adjust *find(const sampler *s, int32_t id)
{
    sample_row row = sampler_row(s, 0);

    for (int32_t i = 0; i < row.n_adjust; i++)
        if (row.adjust[i].id == id)
            return &row.adjust[i];
    return NULL;
}

static void refuses(const sampling_params *p, const char *field, const char *limit)
{
    di_status st = {0};

    assert_int_equal(sampling_check(p, VOCAB, &st), DI_E_INVALID);
    assert_non_null(strstr(st.message, field));
    assert_non_null(strstr(st.message, limit));
}

static void test_check_takes_the_defaults_and_the_ends_of_every_range(void **state)
{
    sampling_params p = sampling_defaults();

    (void)state;
    assert_int_equal(sampling_check(&p, VOCAB, NULL), DI_OK);
    p.temperature = 0;
    p.min_p = 1;
    p.presence_penalty = -2;
    p.frequency_penalty = 2;
    assert_int_equal(sampling_check(&p, VOCAB, NULL), DI_OK);
    p.temperature = 100;
    p.top_k = INT32_MAX;
    p.repetition_penalty = 100;
    assert_int_equal(sampling_check(&p, VOCAB, NULL), DI_OK);
}

static void test_check_names_the_field_and_its_limit(void **state)
{
    const sampling_params ok = sampling_defaults();
    sampling_params p = ok;

    (void)state;
    p.temperature = -0.5f;
    refuses(&p, "temperature is -0.5", "at least 0");
    p.temperature = NAN;
    refuses(&p, "temperature", "at most 100");
    p = ok;
    p.top_p = 0;
    refuses(&p, "top_p", "above 0");
    p.top_p = 1.5f;
    refuses(&p, "top_p", "at most 1");
    p = ok;
    p.min_p = -1;
    refuses(&p, "min_p", "at least 0");
    p = ok;
    p.top_k = -1;
    refuses(&p, "top_k", "at least 0");
    p = ok;
    p.repetition_penalty = 0;
    refuses(&p, "repetition_penalty", "above 0");
    p = ok;
    p.presence_penalty = 2.5f;
    refuses(&p, "presence_penalty", "at most 2");
    p = ok;
    p.frequency_penalty = -INFINITY;
    refuses(&p, "frequency_penalty", "at least -2");
}

static void test_check_refuses_bias_on_ids_that_do_not_exist(void **state)
{
    const logit_bias bad[] = {{VOCAB, 1}, {-1, 1}, {INT32_MAX, 1}, {3, 101}, {3, NAN}};
    sampling_params p = sampling_defaults();

    (void)state;
    p.n_bias = 1;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        p.bias = &bad[i];
        refuses(&p, "logit_bias", i < 3 ? "ids run from 0 to 4999" : "at most 100");
    }
    p.n_bias = SAMPLER_MAX_BIAS + 1;
    refuses(&p, "logit_bias has 1025 entries", "at most 1024");
}

static void test_check_refuses_bans_of_ids_that_do_not_exist(void **state)
{
    const int32_t bad[] = {VOCAB, -1};
    sampling_params p = sampling_defaults();

    (void)state;
    p.n_banned = 1;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        p.banned = &bad[i];
        refuses(&p, "banned_ids holds token id", "ids run from 0 to 4999");
    }
    p.n_banned = SAMPLER_MAX_BANNED + 1;
    refuses(&p, "banned_ids has 65 entries", "at most 64");
}

static void test_a_ban_outweighs_bias_and_penalties_and_outlasts_rollback(void **state)
{
    const int32_t banned[] = {9, 4, 9};
    const logit_bias bias[] = {{9, 100}, {5, 2}};
    sampling_params p = sampling_defaults();
    sampler *s;

    (void)state;
    p.banned = banned;
    p.n_banned = 3;
    p.bias = bias;
    p.n_bias = 2;
    p.frequency_penalty = -2;
    s = make(&p, NULL, 0);
    assert_int_equal(sampler_row(s, 0).n_adjust, 3);
    assert_true(find(s, 4)->add == -INFINITY && find(s, 9)->add == -INFINITY);
    assert_true(find(s, 5)->add == 2);
    accept(s, 4); /* forced, say */
    assert_true(find(s, 4)->add == -INFINITY);
    sampler_rollback(s, 1);
    assert_true(find(s, 4)->add == -INFINITY);
    sampler_free(s);
}

static void test_new_refuses_a_bias_given_twice(void **state)
{
    const logit_bias twice[] = {{7, 1}, {3, 1}, {7, 2}};
    sampling_params p = sampling_defaults();
    sampler *s;
    di_status st = {0};

    (void)state;
    p.bias = twice;
    p.n_bias = 3;
    assert_int_equal(sampler_new(&s, &p, VOCAB, NULL, 0, &st), DI_E_INVALID);
    assert_non_null(strstr(st.message, "token id 7 twice"));
    assert_null(s);
}

static void test_row_carries_the_parameters(void **state)
{
    sampling_params p = {.temperature = 0.7f,
                         .top_p = 0.9f,
                         .min_p = 0.1f,
                         .top_k = 40,
                         .repetition_penalty = 1,
                         .seed = UINT64_MAX,
                         .choice = 3};
    sampler *s = make(&p, NULL, 0);
    sample_row row = sampler_row(s, INT64_C(1) << 40);

    (void)state;
    assert_true(row.temperature == 0.7f && row.top_p == 0.9f && row.min_p == 0.1f);
    assert_int_equal(row.top_k, 40);
    assert_true(row.seed == UINT64_MAX);
    assert_int_equal(row.choice, 3);
    assert_true(row.position == INT64_C(1) << 40);
    assert_int_equal(row.n_adjust, 0);
    assert_null(row.mask);
    sampler_free(s);
}

static void test_without_penalties_nothing_is_remembered_or_allocated(void **state)
{
    sampling_params p = sampling_defaults();
    sampler *s = make(&p, (int32_t[]){1, 2, 3}, 3);
    uint64_t before = mem_n_tries();

    (void)state;
    for (int i = 0; i < 100000; i++)
        accept(s, i % VOCAB);
    assert_true(mem_n_tries() == before);
    assert_int_equal(sampler_row(s, 0).n_adjust, 0);
    sampler_rollback(s, 5);
    sampler_free(s);
}

static void test_repetition_penalty_sees_prompt_and_output(void **state)
{
    sampling_params p = sampling_defaults();
    sampler *s;

    (void)state;
    p.repetition_penalty = 1.3f;
    s = make(&p, (int32_t[]){9, 4, 9}, 3);
    accept(s, 6);
    assert_int_equal(sampler_row(s, 0).n_adjust, 3);
    assert_true(find(s, 4)->rep == 1.3f && find(s, 4)->add == 0);
    assert_true(find(s, 9)->rep == 1.3f);
    assert_true(find(s, 6)->rep == 1.3f);
    sampler_free(s);
}

static void test_presence_and_frequency_see_the_output_only(void **state)
{
    sampling_params p = sampling_defaults();
    sampler *s;

    (void)state;
    p.presence_penalty = 0.5f;
    p.frequency_penalty = 0.25f;
    s = make(&p, (int32_t[]){9, 9, 9}, 3);
    assert_int_equal(sampler_row(s, 0).n_adjust, 0);
    accept(s, 9);
    assert_true(find(s, 9)->add == -0.75f);
    accept(s, 9);
    assert_true(find(s, 9)->add == -1.0f && find(s, 9)->rep == 1.0f);
    sampler_free(s);
}

static void test_bias_adds_to_the_penalties(void **state)
{
    const logit_bias bias[] = {{20, 5}, {10, -100}};
    sampling_params p = sampling_defaults();
    sampler *s;

    (void)state;
    p.bias = bias;
    p.n_bias = 2;
    p.presence_penalty = 1;
    s = make(&p, NULL, 0);
    assert_true(find(s, 10)->add == -100 && find(s, 20)->add == 5);
    accept(s, 20);
    assert_true(find(s, 20)->add == 4);
    sampler_rollback(s, 1);
    assert_true(find(s, 20)->add == 5);
    sampler_free(s);
}

static void test_rollback_restores_the_same_bytes(void **state)
{
    sampling_params p = sampling_defaults();
    logit_adjust *want;
    sample_row row;
    sampler *s;

    (void)state;
    p.repetition_penalty = 1.1f;
    p.presence_penalty = 0.3f;
    p.frequency_penalty = 0.7f;
    s = make(&p, (int32_t[]){5, 500, 50}, 3);
    srand(1);
    for (int i = 0; i < 200; i++)
        accept(s, rand() % 64);
    row = sampler_row(s, 0);
    want = malloc((size_t)row.n_adjust * sizeof *want);
    memcpy(want, row.adjust, (size_t)row.n_adjust * sizeof *want);
    for (int i = 0; i < 6; i++)
        accept(s, rand() % VOCAB);
    sampler_rollback(s, 6);
    assert_int_equal(sampler_row(s, 0).n_adjust, row.n_adjust);
    assert_memory_equal(sampler_row(s, 0).adjust, want, (size_t)row.n_adjust * sizeof *want);
    sampler_rollback(s, 1000); /* more than there are: back to the prompt */
    assert_int_equal(sampler_row(s, 0).n_adjust, 3);
    free(want);
    sampler_free(s);
}

static void test_entries_ascend_whatever_the_order_of_tokens(void **state)
{
    sampling_params p = sampling_defaults();
    sample_row row;
    sampler *s;

    (void)state;
    p.presence_penalty = 1;
    s = make(&p, NULL, 0);
    srand(2);
    for (int i = 0; i < 20000; i++)
        accept(s, rand() % VOCAB);
    row = sampler_row(s, 0);
    assert_in_range(row.n_adjust, 4000, VOCAB);
    for (int32_t i = 1; i < row.n_adjust; i++)
        assert_true(row.adjust[i - 1].id < row.adjust[i].id);
    sampler_free(s);
}

static void test_allocations_grow_with_the_logarithm_only(void **state)
{
    sampling_params p = sampling_defaults();
    uint64_t before;
    sampler *s;

    (void)state;
    p.presence_penalty = 1;
    s = make(&p, NULL, 0);
    before = mem_n_tries();
    for (int i = 0; i < 1000000; i++)
        accept(s, i % VOCAB);
    assert_true(mem_n_tries() - before <= 3 * 10);
    sampler_free(s);
}

static void test_out_of_memory_is_reported_and_leaves_the_state_usable(void **state)
{
    const logit_bias bias = {1, 1};
    sampling_params p = sampling_defaults();
    sampler *s;
    int n = 0;

    (void)state;
    p.bias = &bias;
    p.n_bias = 1;
    p.presence_penalty = 1;
    for (;; n++) {
        mem_fail_at((uint64_t)n + 1);
        if (sampler_new(&s, &p, VOCAB, NULL, 0, NULL) == DI_OK)
            break;
        assert_null(s);
    }
    mem_fail_at(0);
    assert_int_equal(n, 4);
    for (int i = 0; i < 1024; i++)
        accept(s, i % 100);
    mem_fail_at(1);
    assert_int_equal(sampler_accept(s, 7, NULL), DI_E_NOMEM);
    mem_fail_at(0);
    assert_true(find(s, 7)->add == -1.0f);
    accept(s, 7);
    sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_takes_the_defaults_and_the_ends_of_every_range),
        cmocka_unit_test(test_check_names_the_field_and_its_limit),
        cmocka_unit_test(test_check_refuses_bias_on_ids_that_do_not_exist),
        cmocka_unit_test(test_check_refuses_bans_of_ids_that_do_not_exist),
        cmocka_unit_test(test_a_ban_outweighs_bias_and_penalties_and_outlasts_rollback),
        cmocka_unit_test(test_new_refuses_a_bias_given_twice),
        cmocka_unit_test(test_row_carries_the_parameters),
        cmocka_unit_test(test_without_penalties_nothing_is_remembered_or_allocated),
        cmocka_unit_test(test_repetition_penalty_sees_prompt_and_output),
        cmocka_unit_test(test_presence_and_frequency_see_the_output_only),
        cmocka_unit_test(test_bias_adds_to_the_penalties),
        cmocka_unit_test(test_rollback_restores_the_same_bytes),
        cmocka_unit_test(test_entries_ascend_whatever_the_order_of_tokens),
        cmocka_unit_test(test_allocations_grow_with_the_logarithm_only),
        cmocka_unit_test(test_out_of_memory_is_reported_and_leaves_the_state_usable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
