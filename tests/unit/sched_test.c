/* The scheduler without a model: random arrivals, lengths, priorities, pools.
 *
 * A plan is "run" by counting: prompt parts advance, decode parts gain a random number of tokens.
 * Results reach the scheduler up to two plans later, as in the engine. After every plan: budgets
 * and order of service hold, the KV store is sound, and something moves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "sched/sched.h"

#define MAX_DRAFT 5
#define CONTEXT   1200
#define N_ACTORS  12 /* alive at once */
#define DEPTH     2
#define MAX_SEQS  8

static const int ratios[] = {2, 1};

static uint32_t rng_state, rng_round;

static uint32_t draw(uint32_t n)
{
    return philox4x32((philox_block){{rng_state++, rng_round, 0, 0}}, 11, 12).v[0] % n;
}

/* ---- what runs ---- */

typedef struct actor {
    sched_item item; /* first */
    int32_t ids[CONTEXT];
    int64_t max_out, n_out, len; /* as the executing side knows them */
    bool alive, pending, done, ended;
    int in_front; /* blocks of the items that arrived earlier or came in front while it lived */
} actor;

typedef struct result {
    int64_t len;
    bool done;
} result;

typedef struct world {
    kv_store *kv;
    sched *s;
    sched_options opt;
    actor actors[N_ACTORS];
    sched_plan plan[DEPTH];
    result result[DEPTH][MAX_SEQS];
    uint64_t n_planned, n_processed;
    int n_started, n_ended, n_cached;
} world;

static double step_us(void *arg, int rows)
{
    (void)arg;
    return 10.0 * rows;
}

static void open_world(world *w, int n_blocks, int max_seqs, int max_rows, int64_t spacing,
                       bool no_cache)
{
    kv_layout l;
    kv_store_options k = {.layout = &l,
                          .n_encoder_rings = 2,
                          .n_blocks = n_blocks,
                          .max_seqs = max_seqs,
                          .max_context = CONTEXT + 4 * (1 + MAX_DRAFT),
                          .checkpoint_bytes = (size_t)100 << 10,
                          .no_cache = no_cache};

    memset(w, 0, sizeof *w);
    kv_layout_init(&l, KV_PACKED, 32, 32, 16, MAX_DRAFT, 3, ratios, 2);
    assert_int_equal(kv_store_new(&w->kv, &k, NULL), DI_OK);
    w->opt = (sched_options){.kv = w->kv,
                             .max_rows = max_rows,
                             .max_logit_rows = 1 + max_rows / 3,
                             .max_seqs = max_seqs,
                             .max_draft = MAX_DRAFT,
                             .max_waiting = N_ACTORS,
                             .max_waiting_tokens = 4000,
                             .spacing = spacing,
                             .encoder_cost = 0.5,
                             .step_cost_us = step_us};
    assert_int_equal(sched_new(&w->s, &w->opt, NULL), DI_OK);
    for (int i = 0; i < DEPTH; i++)
        assert_int_equal(sched_plan_init(&w->plan[i], w->s, NULL), DI_OK);
}

static void check(const world *w)
{
    di_status st = {0};

    if (kv_store_check(w->kv, &st) != DI_OK)
        fail_msg("%s", st.message);
}

/* Everything has ended: nothing is held any more. */
static void close_world(world *w)
{
    sched_counts c = sched_get_counts(w->s);

    assert_int_equal(c.running, 0);
    assert_int_equal(c.waiting, 0);
    assert_int_equal(c.waiting_tokens, 0);
    for (int i = 0; i < DEPTH; i++) {
        sched_next(w->s, &w->plan[0]);
        assert_int_equal(w->plan[0].n_parts, 0);
        assert_true(i == 0 || w->plan[0].n_loads + w->plan[0].n_saves == 0);
    }
    assert_int_equal(kv_store_counts(w->kv).blocks_used, 0);
    assert_int_equal(kv_store_counts(w->kv).seqs_used, 0);
    kv_store_clear(w->kv);
    assert_int_equal(kv_store_counts(w->kv).blocks_free, kv_store_counts(w->kv).blocks_total);
    assert_int_equal(kv_store_counts(w->kv).checkpoints, 0);
    check(w);
    for (int i = 0; i < DEPTH; i++)
        sched_plan_fini(&w->plan[i]);
    sched_free(w->s);
    kv_store_free(w->kv);
}

static bool before(const sched_item *a, const sched_item *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

/* ---- one step ---- */

/* Every item at most once, within the budget of rows; prompt parts go on where the last one ended.
 */
static void check_plan(const world *w, const sched_plan *p)
{
    int rows = 0, logits = 0;

    assert_true(p->n_parts <= w->opt.max_seqs);
    for (int i = 0; i < p->n_parts; i++) {
        const sched_part *a = &p->part[i];

        rows += a->n_rows;
        logits += !a->decode && a->item->all_logits ? a->n_rows : 0;
        assert_true(a->n_rows >= 1);
        assert_false(a->item->stopped || (a->decode && a->item->blocked));
        assert_true(a->decode || a->pos + a->n_rows == a->item->n_done);
        assert_true(kv_lease_capacity(a->item->lease) >=
                    (a->decode ? a->item->known_len + a->n_rows : a->pos + a->n_rows));
        for (int k = 0; k < i; k++)
            assert_ptr_not_equal(p->part[k].item, a->item);
    }
    assert_int_equal(rows, p->n_rows);
    assert_true(rows <= w->opt.max_rows && logits <= w->opt.max_logit_rows);
    assert_true(p->n_loads <= p->cap_loads && p->n_saves <= p->cap_saves);
}

/* Nobody waits in front of one that was let in. */
static void check_order(const world *w, const bool *was_waiting)
{
    for (int i = 0; i < N_ACTORS; i++) {
        const sched_item *in = &w->actors[i].item;

        if (!was_waiting[i] || in->state == SCHED_WAITING || in->state == SCHED_OUT)
            continue;
        for (int k = 0; k < N_ACTORS; k++)
            if (was_waiting[k] && w->actors[k].item.state == SCHED_WAITING)
                assert_false(before(&w->actors[k].item, in));
    }
}

static void execute(const sched_plan *p, result *r)
{
    kv_copy_run(p->load, p->n_loads);
    for (int i = 0; i < p->n_parts; i++) {
        const sched_part *part = &p->part[i];
        actor *a = (actor *)(void *)part->item;
        int64_t gained = 0;

        if (!a->done && part->decode && a->pending)
            gained = 1 + draw((uint32_t)part->n_rows);
        else if (!a->done && part->sample)
            a->len = part->pos + part->n_rows;
        if (!a->done && part->sample) {
            a->pending = true;
            a->n_out++;
        }
        if (gained > a->max_out - a->n_out)
            gained = a->max_out - a->n_out;
        a->n_out += gained;
        a->len += gained;
        a->done = a->done || (a->pending && a->n_out == a->max_out);
        r[i] = (result){.len = a->len, .done = a->done};
    }
    kv_copy_run(p->save, p->n_saves);
}

static void leave(world *w, actor *a)
{
    if (!a->ended || a->item.in_flight > 0)
        return;
    /* the first of all may take it again for every block that it comes to need */
    assert_true(a->item.n_preempted <= 3 + a->in_front);
    if (a->done)
        sched_finish(w->s, &a->item);
    else
        sched_remove(w->s, &a->item);
    a->alive = false;
    w->n_ended++;
}

static void process(world *w)
{
    const sched_plan *p = &w->plan[w->n_processed % DEPTH];
    const result *r = w->result[w->n_processed % DEPTH];

    w->n_processed++;
    for (int i = 0; i < p->n_parts; i++) {
        const sched_part *part = &p->part[i];
        actor *a = (actor *)(void *)part->item;

        a->item.in_flight--;
        if (part->decode && r[i].len > a->item.known_len)
            sched_advance(&a->item, r[i].len);
        if (r[i].done)
            a->ended = a->item.stopped = true;
        if (a->ended)
            leave(w, a);
        else
            sched_settle(w->s, &a->item);
    }
}

/* Plan and run a step; it must move something when nothing is on its way. */
static void plan(world *w)
{
    sched_plan *p = &w->plan[w->n_planned % DEPTH];
    bool waiting[N_ACTORS], any = false;

    for (int i = 0; i < N_ACTORS; i++) {
        waiting[i] = w->actors[i].alive && w->actors[i].item.state == SCHED_WAITING;
        any = any || w->actors[i].alive;
    }
    sched_next(w->s, p);
    check_plan(w, p);
    check_order(w, waiting);
    check(w);
    if (any && w->n_planned == w->n_processed)
        assert_true(p->n_parts > 0 || p->n_loads > 0);
    if (p->n_parts == 0 && p->n_loads == 0)
        return;
    for (int i = 0; i < p->n_parts; i++)
        w->n_cached +=
            !p->part[i].decode && p->part[i].pos > 0 && p->part[i].pos == p->part[i].item->n_cached;
    execute(p, w->result[w->n_planned % DEPTH]);
    w->n_planned++;
}

/* ---- arrivals and departures ---- */

static int blocks_of(const actor *a)
{
    return (int)((a->item.max_len + 2 * (1 + MAX_DRAFT)) / KV_BLOCK_TOKENS) + 1;
}

/* Prompts of one family share prefixes. */
static void arrive(world *w, int64_t most, int64_t tail, bool frozen)
{
    actor *a = w->actors;
    int64_t n = 1 + draw((uint32_t)most), family = draw(3),
            own = draw(2) ? CONTEXT : draw((uint32_t)n + 1);
    bool all_logits = draw(4) == 0;
    int priority = (int)draw(3);

    while (a < w->actors + N_ACTORS && a->alive)
        a++;
    if (a == w->actors + N_ACTORS)
        return;
    *a = (actor){.max_out = 1 + draw(200), .alive = true};
    for (int64_t i = 0; i < CONTEXT; i++)
        a->ids[i] = (int32_t)(i < own ? family * 2000 + i : draw(1000));
    if (draw(2)) /* just below a border, to cross it soon */
        n = 128 * (1 + (n - 1) / 128) - draw(20);
    n = n < most ? n : most;
    if (n + a->max_out > most + 100)
        a->max_out = most + 100 - n;
    a->item = (sched_item){.ids = a->ids,
                           .n_prompt = n,
                           .tail = tail,
                           .frozen_tail = frozen,
                           .salt = 1,
                           .all_logits = all_logits,
                           .priority = priority,
                           .max_len = n + a->max_out,
                           .state = SCHED_OUT};
    if (sched_add(w->s, &a->item, NULL) != DI_OK) {
        a->alive = false;
        return;
    }
    w->n_started++;
    for (int i = 0; i < N_ACTORS; i++) {
        actor *o = &w->actors[i];

        if (o == a || !o->alive)
            continue;
        if (before(&o->item, &a->item))
            a->in_front += blocks_of(o);
        else
            o->in_front += blocks_of(a);
    }
}

static void cancel_one(world *w)
{
    actor *a = &w->actors[draw(N_ACTORS)];

    if (!a->alive || a->ended)
        return;
    a->ended = a->item.stopped = true;
    leave(w, a);
}

static int n_preempted_in_all, n_cached_in_all;

static void live(uint32_t round)
{
    static world w;
    int blocks = 6 + (int)draw(8), seqs = 1 + (int)draw(MAX_SEQS);
    int64_t most = 128 * (blocks < 9 ? blocks : 9) - 2 * (1 + MAX_DRAFT) - 100;
    int64_t tail = (int64_t[]){-1, 20, 300}[draw(3)];
    bool frozen = tail > 0 && draw(3) == 0;
    int n_arrivals = 40, rows = seqs + (int[]){0, 5, 60, 400}[draw(4)];
    int spacing = draw(2) ? 128 : 256;

    open_world(&w, blocks, seqs, rows, spacing, draw(5) == 0);
    w.opt.step_budget_us = 0;
    for (int i = 0; n_arrivals > 0 || w.n_ended < w.n_started; i++) {
        if (i > 200000)
            fail_msg("round %u: %d of %d items have ended", round, w.n_ended, w.n_started);
        if (n_arrivals > 0 && draw(3) == 0) {
            arrive(&w, most, tail, frozen);
            n_arrivals--;
        }
        if (draw(60) == 0)
            cancel_one(&w);
        if (w.n_planned - w.n_processed < DEPTH)
            plan(&w);
        if (w.n_planned > w.n_processed && (draw(2) || w.n_planned - w.n_processed == DEPTH))
            process(&w);
    }
    while (w.n_planned > w.n_processed)
        process(&w);
    n_preempted_in_all += (int)sched_get_counts(w.s).preempted;
    n_cached_in_all += w.n_cached;
    close_world(&w);
}

static void test_every_item_ends_in_order_and_within_budgets(void **state)
{
    (void)state;
    for (rng_round = 0; rng_round < 150; rng_round++) {
        rng_state = 0;
        live(rng_round);
    }
    assert_true(n_preempted_in_all > 100);
    assert_true(n_cached_in_all > 100);
}

/* ---- single cases ---- */

static actor *add(world *w, int i, int64_t n, int64_t max_out, int priority, di_code want)
{
    actor *a = &w->actors[i];

    *a = (actor){.max_out = max_out, .alive = true};
    for (int64_t p = 0; p < CONTEXT; p++)
        a->ids[p] = (int32_t)p;
    a->item = (sched_item){.ids = a->ids,
                           .n_prompt = n,
                           .tail = -1,
                           .salt = 1,
                           .priority = priority,
                           .max_len = n + max_out,
                           .state = SCHED_OUT};
    assert_int_equal(sched_add(w->s, &a->item, NULL), want);
    a->alive = want == DI_OK;
    return a;
}

static void run_to_the_end(world *w)
{
    for (bool any = true; any;) {
        plan(w);
        while (w->n_planned > w->n_processed)
            process(w);
        any = false;
        for (int i = 0; i < N_ACTORS; i++)
            any = any || w->actors[i].alive;
    }
}

static void test_the_queue_is_bounded(void **state)
{
    static world w;

    (void)state;
    open_world(&w, 12, 1, 64, 128, false);
    add(&w, 0, 1600, 10, 0, DI_E_INVALID); /* can never fit */
    for (int i = 0; i < 4; i++)
        add(&w, i, 1000, 10, 0, DI_OK);
    add(&w, 4, 1000, 10, 0, DI_E_BUSY); /* tokens */
    for (int i = 0; i < 4; i++)
        sched_remove(w.s, &w.actors[i].item);
    for (int i = 0; i < N_ACTORS; i++)
        add(&w, i, 10, 1, 0, DI_OK);
    assert_int_equal(sched_add(w.s, &(sched_item){.ids = w.actors[0].ids, .n_prompt = 1}, NULL),
                     DI_E_BUSY); /* items */
    run_to_the_end(&w);
    close_world(&w);
}

static void test_higher_priority_is_served_first_then_arrival(void **state)
{
    static world w;

    (void)state;
    open_world(&w, 12, 1, 64, 128, false);
    add(&w, 0, 10, 3, 0, DI_OK);
    add(&w, 1, 10, 3, 0, DI_OK);
    add(&w, 2, 10, 3, 5, DI_OK);
    plan(&w);
    assert_ptr_equal(w.plan[0].part[0].item, &w.actors[2].item);
    for (int i = 0; w.actors[2].alive && i < 10; i++) {
        process(&w);
        plan(&w);
    }
    assert_ptr_equal(w.plan[(w.n_planned - 1) % DEPTH].part[0].item, &w.actors[0].item);
    while (w.n_planned > w.n_processed)
        process(&w);
    run_to_the_end(&w);
    close_world(&w);
}

static void test_a_repeated_prompt_computes_one_row(void **state)
{
    static world w;

    (void)state;
    open_world(&w, 12, 2, 400, 128, false);
    add(&w, 0, 300, 3, 0, DI_OK);
    run_to_the_end(&w);
    add(&w, 0, 300, 3, 0, DI_OK);
    plan(&w);
    assert_int_equal(w.plan[(w.n_planned - 1) % DEPTH].n_rows, 1);
    assert_int_equal(w.actors[0].item.n_cached, 299);
    process(&w);
    run_to_the_end(&w);
    close_world(&w);
}

/* The saved state of a long sequence and the copy that starts from it need more blocks than there
 * are. */
static void test_a_sequence_as_large_as_the_pool_can_be_repeated(void **state)
{
    static world w;

    (void)state;
    open_world(&w, 6, 2, 400, 128, false);
    for (int i = 0; i < 3; i++) {
        add(&w, 0, 700, 40, 0, DI_OK);
        run_to_the_end(&w);
    }
    close_world(&w);
}

/* Two that compute the same blocks side by side: one seals them, the other keeps twins, which must
 * not keep it from growing to the size of the pool. */
static void test_twins_do_not_block_a_sequence_as_large_as_the_pool(void **state)
{
    static world w;

    (void)state;
    open_world(&w, 6, 2, 800, 256, false);
    add(&w, 0, 260, 2, 1, DI_OK);
    add(&w, 1, 280, 460, 0, DI_OK);
    run_to_the_end(&w);
    close_world(&w);
}

/* Three that share nothing; the first grows into another block. Returns who was preempted. */
static void outgrow(world *w, int n_blocks, int *preempted)
{
    static const int prompt[] = {112, 300, 60};

    open_world(w, n_blocks, 3, 600, 128, true);
    for (int i = 0; i < 3; i++) {
        actor *a = add(w, i, prompt[i], 40, 0, DI_OK);

        for (int64_t p = 0; p < CONTEXT; p++)
            a->ids[p] += 5000 * i;
    }
    for (int step = 0; w->actors[0].alive && step < 100; step++) {
        plan(w);
        process(w);
        for (int i = 0; i < 3; i++)
            preempted[i] = w->actors[i].item.n_preempted;
    }
    run_to_the_end(w);
    close_world(w);
}

static void test_the_least_to_restore_gives_way_and_only_when_it_must(void **state)
{
    static world w;
    int preempted[3] = {0};

    (void)state;
    outgrow(&w, 6, preempted); /* room for all */
    assert_int_equal(preempted[0] + preempted[1] + preempted[2], 0);
    outgrow(&w, 5, preempted);
    assert_int_equal(preempted[0], 0);
    assert_int_equal(preempted[1], 0);
    assert_true(preempted[2] > 0);
}

static void test_prompt_rows_keep_to_the_time_of_a_step_with_decode_rows(void **state)
{
    static world w;

    (void)state;
    open_world(&w, 12, 2, 400, 128, false);
    sched_free(w.s);
    w.opt.step_budget_us = 500; /* 50 rows */
    assert_int_equal(sched_new(&w.s, &w.opt, NULL), DI_OK);
    add(&w, 0, 10, 100, 0, DI_OK);
    plan(&w);
    process(&w);
    add(&w, 1, 800, 5, 0, DI_OK);
    for (int i = 0; i < 5; i++) {
        plan(&w);
        assert_true(w.plan[(w.n_planned - 1) % DEPTH].n_rows <= 50);
        process(&w);
    }
    assert_true(w.actors[1].item.n_done > 0);
    run_to_the_end(&w);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_ends_in_order_and_within_budgets),
        cmocka_unit_test(test_the_queue_is_bounded),
        cmocka_unit_test(test_higher_priority_is_served_first_then_arrival),
        cmocka_unit_test(test_a_repeated_prompt_computes_one_row),
        cmocka_unit_test(test_a_sequence_as_large_as_the_pool_can_be_repeated),
        cmocka_unit_test(test_twins_do_not_block_a_sequence_as_large_as_the_pool),
        cmocka_unit_test(test_the_least_to_restore_gives_way_and_only_when_it_must),
        cmocka_unit_test(test_prompt_rows_keep_to_the_time_of_a_step_with_decode_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
