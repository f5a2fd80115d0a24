/* Masks that take long: they are filled several at once, beside the steps of others, and a request
 * may end meanwhile. The constraint of these tests allows everything; its `fill` is what is odd. */
#include "engine/rig.h"

#include "base/cpu.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PATIENCE_S 60 /* a machine may be busy; what is tested never takes this long */

static reply free_reply, slow_reply[8];
static int32_t ids[64];

/* What `fill` does from its second call on: the first one comes when the request starts. */
typedef struct slow {
    int calls;
    bool (*enough)(void); /* wait until this holds */
} slow;

static atomic_int inside, most_inside, n_free_tokens, n_waiting;
static atomic_bool out_of_patience, go;

static void wait_for(bool (*enough)(void))
{
    struct timespec now;
    time_t end;

    clock_gettime(CLOCK_MONOTONIC, &now);
    end = now.tv_sec + PATIENCE_S;
    while (!enough() && !atomic_load(&out_of_patience)) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > end)
            atomic_store(&out_of_patience, true);
        sched_yield();
    }
}

static bool slow_fill(void *ctx, uint32_t *mask, int vocab)
{
    slow *s = ctx;

    memset(mask, 0xFF, (size_t)((vocab + 31) / 32) * 4);
    if (s->calls++ > 0) {
        int n = atomic_fetch_add(&inside, 1) + 1;

        if (n > atomic_load(&most_inside))
            atomic_store(&most_inside, n);
        wait_for(s->enough);
        atomic_fetch_sub(&inside, 1);
    }
    return true;
}

static bool slow_accept(void *ctx, int32_t token)
{
    (void)ctx;
    (void)token;
    return true;
}

static void slow_rollback(void *ctx, int n)
{
    (void)ctx;
    (void)n;
}

static void *slow_fork(void *ctx)
{
    slow *s = malloc(sizeof *s);

    *s = *(slow *)ctx;
    return s;
}

static const di_mask_provider slowly = {.fill = slow_fill,
                                        .accept = slow_accept,
                                        .rollback = slow_rollback,
                                        .fork = slow_fork,
                                        .free = free};

static di_request_params slow_params(int max_tokens, bool (*enough)(void))
{
    di_request_params p = rig_params(ids, 20, max_tokens);
    slow *s = calloc(1, sizeof *s);

    s->enough = enough;
    p.mask = &slowly;
    p.mask_ctx = s;
    return p;
}

static di_engine *start(void)
{
    atomic_store(&inside, 0);
    atomic_store(&most_inside, 0);
    atomic_store(&n_free_tokens, 0);
    atomic_store(&n_waiting, 0);
    atomic_store(&out_of_patience, false);
    atomic_store(&go, false);
    rig_seed(1);
    rig_ids(ids, 20);
    return rig_start(MINI_F, (di_engine_options){.draft_tokens = -1});
}

/* ---- others go on ---- */

static void count_tokens(const di_event *ev)
{
    if (ev->type == DI_EVENT_TOKENS)
        atomic_fetch_add(&n_free_tokens, ev->n_tokens);
    rig_take(ev);
}

static int free_tokens_wanted;

static bool others_went_on(void)
{
    return atomic_load(&n_free_tokens) >= free_tokens_wanted;
}

static bool first_token(void)
{
    return atomic_load(&n_free_tokens) >= 1;
}

/* The mask is not there before the other request has made 40 tokens more. */
static void test_a_slow_mask_holds_up_no_other_request(void **state)
{
    di_engine *e = start();
    di_request_params p = rig_params(ids, 20, 300);

    (void)state;
    free_tokens_wanted = 100;
    p.on_event = count_tokens;
    p.user = &free_reply;
    memset(&free_reply, 0, sizeof free_reply);
    assert_int_equal(di_submit(e, &p, NULL, NULL), DI_OK);
    wait_for(first_token);
    rig_submit(e, slow_params(3, others_went_on), &slow_reply[0]);
    rig_wait(e);
    assert_false(atomic_load(&out_of_patience));
    assert_int_equal(slow_reply[0].n, 3);
    rig_close(e);
}

/* ---- several at once ---- */

static bool two_inside(void)
{
    return atomic_load(&most_inside) >= 2;
}

/* No mask is there before two are being filled. */
static void test_masks_of_a_step_are_filled_at_the_same_time(void **state)
{
    di_engine *e = start();
    di_request_params p = slow_params(40, two_inside);

    (void)state;
    p.n = cpu_count() > 1 ? 4 : 1;
    rig_submit(e, p, slow_reply);
    if (p.n == 1) /* one processor, one thread that fills */
        atomic_store(&most_inside, 2);
    rig_wait(e);
    assert_false(atomic_load(&out_of_patience));
    for (int i = 0; i < p.n; i++) { /* greedy: all the same */
        assert_int_equal(slow_reply[i].n, 40);
        assert_memory_equal(slow_reply[i].token, slow_reply[0].token, 40 * sizeof(int32_t));
    }
    rig_close(e);
}

/* ---- ends meanwhile ---- */

static bool released(void)
{
    return atomic_load(&go);
}

static bool somebody_fills(void)
{
    return atomic_load(&inside) > 0;
}

/* Cancelled while its mask is filled: it ends at once, and its memory stays until nobody fills. */
static void test_a_request_may_be_cancelled_while_its_mask_is_filled(void **state)
{
    di_engine *e = start();
    di_request_params p = rig_params(ids, 20, 300);
    di_request *r;

    (void)state;
    p.on_event = count_tokens; /* something else runs, so that the host is free to hear of it */
    p.user = &free_reply;
    memset(&free_reply, 0, sizeof free_reply);
    assert_int_equal(di_submit(e, &p, NULL, NULL), DI_OK);
    wait_for(first_token);
    r = rig_submit(e, slow_params(10, released), &slow_reply[0]);
    wait_for(somebody_fills);
    di_cancel(e, r);
    free_tokens_wanted = atomic_load(&n_free_tokens) + 20;
    wait_for(others_went_on);
    atomic_store(&go, true);
    rig_wait(e);
    assert_false(atomic_load(&out_of_patience));
    assert_int_equal(slow_reply[0].finish, DI_FINISH_CANCELLED);
    assert_true(slow_reply[0].done);
    rig_close(e);
}

/* Closing the engine waits for those who fill. */
static void test_an_engine_may_be_closed_while_masks_are_filled(void **state)
{
    di_engine *e = start();
    di_request_params p = slow_params(10, others_went_on);

    (void)state;
    free_tokens_wanted = 60;
    for (int i = 0; i < 2; i++) {
        p.on_event = rig_take;
        p.user = &slow_reply[i];
        memset(&slow_reply[i], 0, sizeof slow_reply[i]);
        assert_int_equal(di_submit(e, &p, NULL, NULL), DI_OK);
        p = slow_params(10, others_went_on);
    }
    free(p.mask_ctx);
    wait_for(somebody_fills);
    atomic_store(&n_free_tokens, free_tokens_wanted);
    di_engine_close(e);
    assert_true(slow_reply[0].done && slow_reply[1].done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slow_mask_holds_up_no_other_request),
        cmocka_unit_test(test_masks_of_a_step_are_filled_at_the_same_time),
        cmocka_unit_test(test_a_request_may_be_cancelled_while_its_mask_is_filled),
        cmocka_unit_test(test_an_engine_may_be_closed_while_masks_are_filled),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    rig_close_models();
    return failed;
}
