/* Events between threads: nothing is lost, doubled or reordered, and a cancelled request ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "server/relay.h"

#define N_REQUESTS 200
#define N_EVENTS   300

/* A back end whose thread sends numbered events to all requests in turn, as fast as it can. */
typedef struct toy {
    pthread_t thread;
    di_request_params p[N_REQUESTS];
    atomic_bool cancelled[N_REQUESTS];
    int n;
} toy;

static di_code toy_submit(void *self, const di_request_params *p, void **handle, di_status *st)
{
    toy *t = self;

    if (t->n == N_REQUESTS)
        return di_fail(st, DI_E_BUSY, "full");
    t->p[t->n] = *p;
    *handle = &t->cancelled[t->n++];
    return DI_OK;
}

static void toy_cancel(void *self, void *handle)
{
    (void)self;
    atomic_store((atomic_bool *)handle, true);
}

static void *toy_main(void *arg)
{
    toy *t = arg;
    bool done[N_REQUESTS] = {false};

    for (int e = 0; e <= N_EVENTS; e++)
        for (int i = 0; i < t->n; i++) {
            int32_t token = e;
            float lp = (float)e;
            di_token_logprob top[2] = {{e, lp}, {e + 1, lp - 1}};
            bool last = e == N_EVENTS || atomic_load(&t->cancelled[i]);
            di_event ev = {.user = t->p[i].user,
                           .type = last ? DI_EVENT_DONE : DI_EVENT_TOKENS,
                           .choice = i,
                           .n_tokens = last ? 0 : 1,
                           .token = &token,
                           .text = last ? "" : "xyz",
                           .n_text = last ? 0 : (size_t)(e % 4),
                           .usage.output_tokens = e};

            if (done[i])
                continue;
            if (e % 2 && !last) {
                ev.logprob = &lp;
                ev.rank = &token;
                ev.top = top;
                ev.n_top = 2;
            }
            t->p[i].on_event(&ev);
            done[i] = last;
        }
    return NULL;
}

static const backend_ops toy_ops = {.submit = toy_submit, .cancel = toy_cancel};

/* What the loop has seen of a request. */
typedef struct seen {
    int n_tokens, n_done, n_turns;
    relay *relay;
} seen;

static int n_left;

static void take(void *owner, int index, const di_event *ev)
{
    seen *s = owner;

    assert_int_equal(s->n_done, 0);
    assert_int_equal(ev->choice, index);
    if (ev->type == DI_EVENT_DONE) {
        s->n_done++;
        assert_int_equal(ev->usage.output_tokens, s->n_tokens);
        return;
    }
    assert_int_equal(ev->token[0], s->n_tokens);
    assert_int_equal(ev->n_text, s->n_tokens % 4);
    assert_memory_equal(ev->text, "xyz", ev->n_text);
    assert_int_equal(ev->logprob != NULL, s->n_tokens % 2);
    if (ev->logprob) {
        assert_true(ev->logprob[0] == (float)s->n_tokens);
        assert_int_equal(ev->top[1].token, s->n_tokens + 1);
    }
    s->n_tokens++;
}

static void turn(void *owner, relay *r, bool done)
{
    seen *s = owner;

    s->n_turns++;
    assert_int_equal(done, s->n_done);
    assert_ptr_equal(r, s->relay);
    n_left -= done;
}

static void run(bool cancel)
{
    toy *t = mem_try_calloc(1, sizeof *t);
    seen *s = mem_try_calloc(N_REQUESTS, sizeof *s);
    relay_ring *ring = mem_try_aligned(sizeof *ring, 64);
    backend be = {.ops = &toy_ops, .self = t};
    str scratch = {0};
    di_status st = {0};
    struct epoll_event ready = {.events = EPOLLIN | EPOLLET};
    int ep = epoll_create1(0);

    assert_int_equal(relay_ring_init(ring, &st), DI_OK);
    for (int i = 0; i < N_REQUESTS; i++)
        assert_int_equal(
            relay_submit(&s[i].relay, ring, &be, &s[i], i, &(di_request_params){.n = 1}, &st),
            DI_OK);
    n_left = N_REQUESTS;
    epoll_ctl(ep, EPOLL_CTL_ADD, ring->eventfd, &ready);
    pthread_create(&t->thread, NULL, toy_main, t);
    while (n_left > 0) {
        assert_int_equal(epoll_wait(ep, &ready, 1, 10000), 1); /* a lost wake-up would end here */
        relay_drain(ring, &scratch, take, turn);
        for (int i = 0; cancel && i < N_REQUESTS; i += 2)
            if (!s[i].n_done)
                relay_cancel(s[i].relay);
    }
    pthread_join(t->thread, NULL);
    for (int i = 0; i < N_REQUESTS; i++) {
        assert_int_equal(s[i].n_done, 1);
        if (!cancel || i % 2)
            assert_int_equal(s[i].n_tokens, N_EVENTS);
    }
    assert_int_equal(ring->n_relays, 0);
    close(ep);
    relay_ring_fini(ring);
    str_fini(&scratch);
    mem_free(ring);
    mem_free(s);
    mem_free(t);
}

static void test_events_arrive_complete_and_in_order(void **state)
{
    (void)state;
    run(false);
}

static void test_cancelling_at_any_time_is_safe_and_done_comes_once(void **state)
{
    (void)state;
    run(true);
}

static void test_a_refused_request_leaves_nothing(void **state)
{
    toy *t = mem_try_calloc(1, sizeof *t);
    relay_ring *ring = mem_try_aligned(sizeof *ring, 64);
    backend be = {.ops = &toy_ops, .self = t};
    di_status st = {0};
    relay *r;

    (void)state;
    t->n = N_REQUESTS;
    assert_int_equal(relay_ring_init(ring, &st), DI_OK);
    assert_int_equal(relay_submit(&r, ring, &be, NULL, 0, &(di_request_params){.n = 1}, &st),
                     DI_E_BUSY);
    assert_null(r);
    assert_int_equal(ring->n_relays, 0);
    relay_ring_fini(ring);
    mem_free(ring);
    mem_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_arrive_complete_and_in_order),
        cmocka_unit_test(test_cancelling_at_any_time_is_safe_and_done_comes_once),
        cmocka_unit_test(test_a_refused_request_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
