/* The generation loop on the shipped model: company, kept states, cancelling, limits, allocations.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "cli/generator.h"
#include "cli/session.h"

#define MAX_SEQS 4
#define ROWS     32
#define CONTEXT  640
#define MAX_OUT  64

/* "Hello!" as a chat without thinking. */
static const int32_t hello[] = {0, 6384, 42, 524, 81, 3, 6385, 6388};

static session s;
static generator *g;

typedef struct answer_log {
    int32_t id[MAX_OUT];
    float logprob[MAX_OUT];
    int n, n_prompt_lp, stop_after, n_done;
    gen_finish why;
    bool stopped;
} answer_log;

static bool on_token(void *arg, const gen_token *t)
{
    answer_log *a = arg;

    assert_true(a->n < MAX_OUT);
    a->id[a->n] = t->id;
    a->logprob[a->n++] = t->logprob;
    a->stopped = t->stop;
    return a->n != a->stop_after;
}

static void on_prompt(void *arg, const gen_token *t)
{
    answer_log *a = arg;

    assert_true(t->logprob <= 0);
    a->n_prompt_lp++;
}

static void on_done(void *arg, gen_finish why, const di_status *st)
{
    answer_log *a = arg;

    (void)st;
    a->why = why;
    a->n_done++;
}

static gen_request request_of(const int32_t *prompt, int n, int max_tokens, answer_log *a)
{
    gen_request r = {.prompt = prompt,
                     .n_prompt = n,
                     .max_tokens = max_tokens,
                     .sampling = sampling_defaults(),
                     .on_prompt = on_prompt,
                     .on_token = on_token,
                     .on_done = on_done,
                     .arg = a};

    r.sampling.seed = 42;
    return r;
}

static void run_all(void)
{
    while (generator_n_running(g) > 0)
        assert_int_equal(generator_step(g, NULL), DI_OK);
}

static void submit(const gen_request *r)
{
    di_status st = {0};

    if (generator_submit(g, r, &st) != DI_OK)
        fail_msg("%s", st.message);
}

/* A prompt of n ids that differs from others in `salt`. */
static void make_prompt(int32_t *ids, int n, int salt)
{
    ids[0] = 0;
    for (int i = 1; i < n; i++)
        ids[i] = 3 + (i * 37 + salt * 101) % 6000;
}

static void test_tokens_do_not_depend_on_company(void **state)
{
    static const int lengths[MAX_SEQS] = {5, 130, 33, 70};
    int32_t prompt[MAX_SEQS][160];
    answer_log alone[MAX_SEQS] = {0}, together[MAX_SEQS] = {0};
    gen_request r;

    (void)state;
    for (int i = 0; i < MAX_SEQS; i++) {
        make_prompt(prompt[i], lengths[i], i);
        r = request_of(prompt[i], lengths[i], 20 + i, &alone[i]);
        submit(&r);
        run_all();
        assert_int_equal(alone[i].why, GEN_LENGTH);
        assert_int_equal(alone[i].n, 20 + i);
    }
    for (int i = 0; i < MAX_SEQS; i++) { /* they come in one after the other */
        r = request_of(prompt[i], lengths[i], 20 + i, &together[i]);
        r.logprobs = true;
        submit(&r);
        assert_int_equal(generator_step(g, NULL), DI_OK);
    }
    run_all();
    for (int i = 0; i < MAX_SEQS; i++) {
        assert_int_equal(together[i].n_done, 1);
        assert_memory_equal(together[i].id, alone[i].id, sizeof alone[i].id);
    }
}

static void test_stop_ids_and_callbacks_end_an_answer(void **state)
{
    const int32_t eos = s.cfg->eos;
    answer_log a = {0}, b = {.stop_after = 3};
    gen_request r = request_of(hello, ARRAY_LEN(hello), 40, &a);

    (void)state;
    r.sampling.temperature = 0;
    r.stop_id = &eos;
    r.n_stop_ids = 1;
    submit(&r);
    r.arg = &b;
    submit(&r);
    run_all();
    assert_int_equal(a.why, GEN_STOP);
    assert_int_equal(a.id[a.n - 1], eos);
    assert_true(a.stopped);
    assert_int_equal(b.n, 3);
    assert_int_equal(b.why, GEN_STOP);
    assert_memory_equal(a.id, b.id, 3 * sizeof *a.id);
}

static void test_kept_state_continues_with_the_same_bits(void **state)
{
    int32_t prompt[120];
    answer_log first = {0}, warm = {0}, cold = {0};
    gen_kept kept = {0};
    gen_request r;
    int64_t reused = generator_n_reused(g);

    (void)state;
    make_prompt(prompt, 80, 9);
    r = request_of(prompt, 80, 10, &first);
    r.keep = &kept;
    submit(&r);
    run_all();
    assert_true(kept.len == 89); /* all but the token that came last */
    memcpy(prompt + 80, first.id, 10 * sizeof *prompt);
    make_prompt(prompt + 90, 30, 10);
    r = request_of(prompt, 120, 20, &warm);
    r.keep = &kept;
    r.logprobs = true;
    submit(&r);
    run_all();
    assert_true(generator_n_reused(g) - reused == 89);
    gen_kept_drop(&kept);
    r = request_of(prompt, 120, 20, &cold);
    r.logprobs = true;
    submit(&r);
    run_all();
    assert_memory_equal(warm.id, cold.id, sizeof cold.id);
    assert_memory_equal(warm.logprob, cold.logprob, sizeof cold.logprob);
}

static void test_kept_state_of_another_prompt_is_not_used(void **state)
{
    int32_t prompt[40];
    answer_log a = {0}, b = {0}, cold = {0};
    gen_kept kept = {0};
    gen_request r;
    int64_t reused = generator_n_reused(g);

    (void)state;
    make_prompt(prompt, 20, 1);
    r = request_of(prompt, 20, 4, &a);
    r.keep = &kept;
    submit(&r);
    run_all();
    make_prompt(prompt, 40, 2);
    r = request_of(prompt, 40, 4, &b);
    r.keep = &kept;
    submit(&r);
    run_all();
    assert_true(generator_n_reused(g) == reused);
    gen_kept_drop(&kept);
    r = request_of(prompt, 40, 4, &cold);
    submit(&r);
    run_all();
    assert_memory_equal(b.id, cold.id, sizeof cold.id);
}

static void test_cancel_reaches_everyone_once_and_frees_the_sequences(void **state)
{
    answer_log a[MAX_SEQS] = {0};

    (void)state;
    for (int round = 0; round < 3; round++) {
        memset(a, 0, sizeof a);
        for (int i = 0; i < MAX_SEQS; i++) {
            gen_request r = request_of(hello, ARRAY_LEN(hello), 50, &a[i]);

            submit(&r);
        }
        assert_int_equal(generator_step(g, NULL), DI_OK);
        generator_cancel(g);
        for (int i = 0; i < MAX_SEQS; i++) {
            assert_int_equal(a[i].n_done, 1);
            assert_int_equal(a[i].why, GEN_CANCELLED);
        }
        assert_int_equal(generator_n_running(g), 0);
    }
}

static void test_no_room_for_one_more_is_busy(void **state)
{
    answer_log a = {0};
    gen_request r = request_of(hello, ARRAY_LEN(hello), 50, &a);

    (void)state;
    for (int i = 0; i < MAX_SEQS; i++)
        submit(&r);
    assert_int_equal(generator_submit(g, &r, NULL), DI_E_BUSY);
    generator_cancel(g);
    assert_int_equal(a.n_done, MAX_SEQS);
}

static void refuses(gen_request r, const char *words)
{
    di_status st = {0};
    answer_log *a = r.arg;

    assert_int_equal(generator_submit(g, &r, &st), DI_E_INVALID);
    assert_non_null(strstr(st.message, words));
    assert_int_equal(generator_n_running(g), 0);
    assert_int_equal(a->n_done, 0);
}

static void test_impossible_requests_are_refused(void **state)
{
    const int32_t bad[] = {0, 6400}, negative[] = {-1};
    int32_t filled[CONTEXT + 1] = {0};
    answer_log a = {0};
    gen_request r = request_of(hello, ARRAY_LEN(hello), 5, &a), t = r;

    (void)state;
    t.n_prompt = 0;
    refuses(t, "empty");
    refuses(request_of(bad, 2, 5, &a), "prompt_token_ids[1] is 6400");
    refuses(request_of(negative, 1, 5, &a), "is -1");
    refuses(request_of(filled, CONTEXT + 1, 1, &a), "641 tokens");
    refuses(request_of(hello, ARRAY_LEN(hello), CONTEXT - 7, &a), "room for 632");
    t = r;
    t.stop_id = bad;
    t.n_stop_ids = 2;
    refuses(t, "stop_token_ids[1]");
    t = r;
    t.n_top = GEN_MAX_TOP + 1;
    refuses(t, "top_logprobs");
    t = r;
    t.sampling.top_p = 0;
    refuses(t, "top_p");
}

static void test_prompt_that_fills_the_context_gives_one_token(void **state)
{
    int32_t prompt[CONTEXT];
    answer_log a = {0};
    gen_request r;

    (void)state;
    make_prompt(prompt, CONTEXT, 3);
    r = request_of(prompt, CONTEXT, 1, &a);
    submit(&r);
    run_all();
    assert_int_equal(a.n, 1);
    assert_int_equal(a.why, GEN_LENGTH);
}

static void test_prompt_logprobs_cover_the_prompt_and_nothing_more(void **state)
{
    int32_t prompt[150];
    answer_log a = {0}, none = {0};
    gen_request r;

    (void)state;
    make_prompt(prompt, 150, 4);
    r = request_of(prompt, 150, 2, &a);
    r.prompt_logprobs = true;
    submit(&r);
    r = request_of(prompt, 150, 0, &none);
    r.prompt_logprobs = true;
    submit(&r);
    run_all();
    assert_int_equal(a.n_prompt_lp, 149);
    assert_int_equal(a.n, 2);
    assert_int_equal(none.n_prompt_lp, 149);
    assert_int_equal(none.n, 0);
    assert_int_equal(none.why, GEN_LENGTH);
}

static void test_prompt_rows_that_stop_early_change_nothing(void **state)
{
    int32_t prompt[600];
    answer_log whole = {0}, early = {0}, again = {0};
    gen_kept kept = {0};
    gen_request r;

    (void)state;
    assert_in_range(model_exact_tail(s.m), 1, 500);
    make_prompt(prompt, 600, 6);
    r = request_of(prompt, 600, 20, &whole);
    r.logprobs = true;
    r.prompt_logprobs = true; /* all rows run every layer */
    submit(&r);
    r.arg = &early;
    r.prompt_logprobs = false;
    submit(&r);
    run_all();
    assert_memory_equal(early.id, whole.id, sizeof whole.id);
    assert_memory_equal(early.logprob, whole.logprob, sizeof whole.logprob);
    /* Half a prompt is not taken over. */
    r.arg = &again;
    r.keep = &kept;
    submit(&r);
    for (int i = 0; i < 3; i++)
        assert_int_equal(generator_step(g, NULL), DI_OK);
    generator_cancel(g);
    assert_null(kept.seq);
}

static void test_steps_allocate_nothing(void **state)
{
    int32_t prompt[100];
    answer_log a[MAX_SEQS] = {0};
    uint64_t before;

    (void)state;
    for (int i = 0; i < MAX_SEQS; i++) {
        gen_request r;

        make_prompt(prompt, 100, i);
        r = request_of(prompt, 100, 30, &a[i]);
        r.logprobs = true;
        r.n_top = 5;
        r.sampling.repetition_penalty = 1.1f;
        r.sampling.presence_penalty = 0.5f;
        submit(&r);
    }
    before = mem_n_tries();
    run_all();
    assert_true(mem_n_tries() == before);
    assert_int_equal(a[MAX_SEQS - 1].n, 30);
}

static int setup(void **state)
{
    const session_options o = {.model = "models/tiny",
                               .backend = "auto",
                               .numerics = "release",
                               .context = CONTEXT,
                               .quiet = true};
    const session_limits lim = {.rows = ROWS, .logit_rows = GEN_LOGIT_ROWS, .seqs = MAX_SEQS};
    di_status st = {0};

    (void)state;
    if (session_open(&s, &o, &lim, &st) == DI_OK &&
        generator_new(&g, s.m, s.k, MAX_SEQS, ROWS, s.context, &st) == DI_OK)
        return 0;
    print_error("%s\n", st.message);
    return -1;
}

static int teardown(void **state)
{
    (void)state;
    generator_free(g);
    session_close(&s);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_do_not_depend_on_company),
        cmocka_unit_test(test_stop_ids_and_callbacks_end_an_answer),
        cmocka_unit_test(test_kept_state_continues_with_the_same_bits),
        cmocka_unit_test(test_kept_state_of_another_prompt_is_not_used),
        cmocka_unit_test(test_cancel_reaches_everyone_once_and_frees_the_sequences),
        cmocka_unit_test(test_no_room_for_one_more_is_busy),
        cmocka_unit_test(test_impossible_requests_are_refused),
        cmocka_unit_test(test_prompt_that_fills_the_context_gives_one_token),
        cmocka_unit_test(test_prompt_logprobs_cover_the_prompt_and_nothing_more),
        cmocka_unit_test(test_prompt_rows_that_stop_early_change_nothing),
        cmocka_unit_test(test_steps_allocate_nothing),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
