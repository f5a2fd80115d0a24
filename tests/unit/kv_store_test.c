/* The cache manager against a simple model of itself.
 *
 * "Computing" a position writes rows whose bytes are a hash of all tokens up to it, as a real
 * forward would: so a wrong block, ring row or open group shows at once. Random sequences, drafts
 * that are rolled back, checkpoints, evictions and hits; all invariants are checked after every
 * operation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "kv/store.h"

#define WINDOW    16
#define MAX_DRAFT 5
#define N_RINGS   5
#define N_ENCODER 3
#define CONTEXT   1024

static const int ratios[] = {2, 1};

static kv_layout small_layout(void)
{
    kv_layout l;

    kv_layout_init(&l, KV_PACKED, 32, 32, WINDOW, MAX_DRAFT, N_RINGS, ratios, 2);
    return l;
}

static kv_store *new_store(const kv_layout *l, int n_blocks, int max_seqs, size_t checkpoint_bytes)
{
    kv_store_options opt = {.layout = l,
                            .n_encoder_rings = N_ENCODER,
                            .n_blocks = n_blocks,
                            .max_seqs = max_seqs,
                            .max_context = CONTEXT,
                            .checkpoint_bytes = checkpoint_bytes};
    kv_store *s;

    assert_int_equal(kv_store_new(&s, &opt, NULL), DI_OK);
    return s;
}

static uint32_t rng_state;

static uint32_t draw(uint32_t n)
{
    return philox4x32((philox_block){{rng_state++, 0, 0, 0}}, 7, 9).v[0] % n;
}

/* ---- the simple model: a row is its hash repeated ---- */

static uint32_t chain(const int32_t *ids, int64_t n)
{
    uint32_t h = 2166136261u;

    for (int64_t i = 0; i < n; i++)
        h = (h ^ (uint32_t)ids[i]) * 16777619u;
    return h;
}

static void fill(void *row, size_t bytes, uint32_t h, uint32_t kind)
{
    memset(row, (int)((h * 2654435761u + kind * 40503u) >> 24), bytes);
}

static void expect(const void *row, size_t bytes, uint32_t h, uint32_t kind)
{
    unsigned char want[1024];

    assert_true(bytes <= sizeof want);
    fill(want, bytes, h, kind);
    assert_memory_equal(row, want, bytes);
}

/* Write what a forward of position p writes. */
static void compute(const kv_layout *l, const kv_lease *q, const int32_t *ids, int64_t p,
                    int n_rings)
{
    kv_view v = kv_lease_view(q, p);
    uint32_t h = chain(ids, p + 1);

    for (int r = 0; r < n_rings; r++)
        fill(kv_ring(l, &v, r, p), l->ring_row_bytes, h, (uint32_t)r);
    for (int o = 0; o < 2; o++) {
        if (ratios[o] > 1)
            fill(kv_open(l, &v, o, p), 2 * sizeof(float) * 32, h, 100);
        if ((p + 1) % ratios[o] == 0) {
            fill(kv_latent(l, &v, o, p / ratios[o]), l->latent_bytes, h, 200);
            fill(kv_key(l, &v, o, p / ratios[o]), l->key_bytes, h, 300);
        }
    }
}

/* All that a next token at position len may read is there. */
static void verify(const kv_layout *l, const kv_lease *q, const int32_t *ids, int64_t len,
                   int n_rings)
{
    kv_view v = kv_lease_view(q, len);

    for (int64_t p = len > WINDOW ? len - WINDOW : 0; p < len; p++)
        for (int r = 0; r < n_rings; r++)
            expect(kv_ring(l, &v, r, p), l->ring_row_bytes, chain(ids, p + 1), (uint32_t)r);
    for (int o = 0; o < 2; o++) {
        for (int64_t e = 0; e < len / ratios[o]; e++) {
            uint32_t h = chain(ids, (e + 1) * ratios[o]);

            expect(kv_latent(l, &v, o, e), l->latent_bytes, h, 200);
            expect(kv_key(l, &v, o, e), l->key_bytes, h, 300);
        }
        for (int64_t p = len - len % ratios[o]; p < len; p++)
            expect(kv_open(l, &v, o, p), 2 * sizeof(float) * 32, chain(ids, p + 1), 100);
    }
}

/* ---- a sequence of the test ---- */

typedef struct actor {
    kv_lease *q;
    int32_t ids[CONTEXT];
    int64_t len;
    kv_checkpoint *held;
} actor;

static kv_copy copies[64];

static void check(const kv_store *s)
{
    di_status st = {0};
    kv_counts c = kv_store_counts(s);

    if (kv_store_check(s, &st) != DI_OK)
        fail_msg("%s", st.message);
    assert_int_equal(c.blocks_total, c.blocks_used + c.blocks_cached + c.blocks_free);
}

/* Open on the given hit, or on the best start for a prompt of n tokens; verify what came back. */
static bool start(kv_store *s, const kv_layout *l, actor *a, int64_t n, const kv_hit *given)
{
    kv_hit hit = given ? *given : kv_match(s, a->ids, n, 1, 40, 0.5);
    int n_copies;

    if (kv_lease_open(s, &a->q, &hit, 1, copies, &n_copies, NULL) != DI_OK)
        return false;
    assert_true(n_copies <= kv_max_copies(s));
    kv_copy_run(copies, n_copies);
    a->len = hit.len;
    verify(l, a->q, a->ids, a->len, hit.kind == KV_CKPT_FULL ? N_RINGS : N_ENCODER);
    if (hit.kind == KV_CKPT_ENCODER && hit.len) { /* the tail will replay the decoder rings */
        kv_view v = kv_lease_view(a->q, a->len);

        assert_true(n - hit.len >= 40);
        for (int64_t p = hit.len > WINDOW ? hit.len - WINDOW : 0; p < hit.len; p++)
            for (int r = N_ENCODER; r < N_RINGS; r++)
                fill(kv_ring(l, &v, r, p), l->ring_row_bytes, chain(a->ids, p + 1), (uint32_t)r);
    }
    return true;
}

/* One step: compute some rows, of which the last ones are drafts that are rejected. */
static void step(const kv_layout *l, actor *a, int64_t limit)
{
    int64_t n = 1 + draw(30), wrong = draw(MAX_DRAFT + 1);
    int32_t keep[MAX_DRAFT];

    if (a->len + n > limit)
        n = limit - a->len;
    if (n < 1 || kv_lease_reserve(a->q, a->len + n + wrong, NULL) != DI_OK)
        return;
    for (int64_t i = 0; i < n; i++)
        compute(l, a->q, a->ids, a->len + i, N_RINGS);
    memcpy(keep, a->ids + a->len + n, sizeof keep);
    for (int64_t i = 0; i < wrong; i++) { /* drafts: other tokens at the following positions */
        a->ids[a->len + n + i] = 777;
        compute(l, a->q, a->ids, a->len + n + i, N_RINGS);
    }
    memcpy(a->ids + a->len + n, keep, sizeof keep);
    kv_lease_commit(a->q, a->ids + a->len, n);
    a->len += n;
    verify(l, a->q, a->ids, a->len, N_RINGS);
}

static void drop_held(actor *a)
{
    kv_checkpoint_unref(a->held);
    a->held = NULL;
}

static void take_checkpoint(actor *a)
{
    kv_ckpt_kind kind = draw(3) ? KV_CKPT_FULL : KV_CKPT_ENCODER;
    int n_copies;

    drop_held(a);
    if (kv_lease_checkpoint(a->q, a->len, kind, draw(2) ? &a->held : NULL, copies, &n_copies,
                            NULL) == DI_OK)
        kv_copy_run(copies, n_copies);
}

/* A new prompt that shares a random prefix with another actor's. */
static void new_prompt(actor *a, const actor *other)
{
    int64_t common = draw(700);

    for (int64_t p = 0; p < CONTEXT; p++)
        a->ids[p] = p < common ? other->ids[p] : (int32_t)(draw(2) + 10 * draw(2));
}

static void test_random_life_keeps_state_and_invariants(void **state)
{
    enum { N_ACTORS = 6, N_OPS = 6000 };
    static actor actors[N_ACTORS];
    kv_layout l = small_layout();
    kv_store *s = new_store(&l, 24, 4, (size_t)200 << 10);
    int n_resumed = 0;

    (void)state;
    rng_state = 1;
    for (int i = 0; i < N_OPS; i++) {
        actor *a = &actors[draw(N_ACTORS)];
        uint32_t what = draw(10);

        kv_store_step_planned(s);

        if (!a->q && a->held && draw(2)) { /* resume exactly there */
            kv_hit hit = kv_checkpoint_hit(a->held);

            if (hit.kind == KV_CKPT_FULL)
                n_resumed += start(s, &l, a, hit.len + 1, &hit);
        } else if (!a->q) {
            drop_held(a);
            new_prompt(a, &actors[draw(N_ACTORS)]);
            start(s, &l, a, 700, NULL);
        } else if (what < 7) {
            step(&l, a, 800);
        } else if (what < 9) {
            take_checkpoint(a);
        } else {
            kv_lease_close(a->q);
            a->q = NULL;
        }
        check(s);
    }
    assert_true(n_resumed > 10);
    assert_true(kv_store_counts(s).hits > 100);
    assert_true(kv_store_counts(s).evicted_blocks > 100);
    assert_true(kv_store_counts(s).evicted_checkpoints > 10);
    for (int i = 0; i < N_ACTORS; i++) {
        kv_lease_close(actors[i].q);
        drop_held(&actors[i]);
    }
    kv_store_step_planned(s); /* what was taken for the newest step stays until it is planned */
    kv_store_clear(s);
    check(s);
    assert_int_equal(kv_store_counts(s).blocks_free, 24);
    assert_int_equal(kv_store_counts(s).checkpoints, 0);
    kv_store_free(s);
}

/* Compute a prompt of n tokens in a sequence, take a checkpoint at its end, close. */
static void run_prompt(kv_store *s, const kv_layout *l, const int32_t *ids, int64_t n,
                       kv_ckpt_kind kind)
{
    int n_copies;
    kv_lease *q;

    assert_int_equal(kv_lease_open(s, &q, NULL, 1, copies, &n_copies, NULL), DI_OK);
    assert_int_equal(kv_lease_reserve(q, n, NULL), DI_OK);
    for (int64_t p = 0; p < n; p++)
        compute(l, q, ids, p, kind == KV_CKPT_FULL ? N_RINGS : N_ENCODER);
    kv_lease_commit(q, ids, n);
    assert_int_equal(kv_lease_checkpoint(q, n, kind, NULL, copies, &n_copies, NULL), DI_OK);
    kv_copy_run(copies, n_copies);
    kv_lease_close(q);
    kv_store_step_planned(s);
}

static void count_up(int32_t *ids, int n)
{
    for (int i = 0; i < n; i++)
        ids[i] = i * 7;
}

static void test_a_hit_ends_where_the_checkpoint_lies(void **state)
{
    kv_layout l = small_layout();
    kv_store *s = new_store(&l, 16, 2, (size_t)1 << 20);
    int32_t ids[600];

    (void)state;
    count_up(ids, 600);
    run_prompt(s, &l, ids, 301, KV_CKPT_FULL);
    assert_int_equal(kv_match(s, ids, 600, 1, -1, 1).len, 301);
    assert_int_equal(kv_match(s, ids, 302, 1, -1, 1).len, 301);
    assert_int_equal(kv_match(s, ids, 301, 1, -1, 1).len, 0); /* the last row is always computed */
    assert_int_equal(kv_match(s, ids, 600, 2, -1, 1).len, 0); /* another salt */
    ids[300]++;
    assert_int_equal(kv_match(s, ids, 600, 1, -1, 1).len, 0); /* differs inside the last block */
    check(s);
    kv_store_free(s);
}

static void test_an_encoder_checkpoint_needs_a_tail_behind_it(void **state)
{
    kv_layout l = small_layout();
    kv_store *s = new_store(&l, 16, 2, (size_t)1 << 20);
    int32_t ids[600];

    (void)state;
    count_up(ids, 600);
    run_prompt(s, &l, ids, 256, KV_CKPT_ENCODER);
    assert_int_equal(kv_match(s, ids, 600, 1, 100, 0.5).len, 256);
    assert_int_equal(kv_match(s, ids, 356, 1, 100, 0.5).len, 256);
    assert_int_equal(kv_match(s, ids, 355, 1, 100, 0.5).len, 0);
    assert_int_equal(kv_match(s, ids, 600, 1, -1, 0.5).len, 0);
    kv_store_free(s);
}

static void test_a_checkpoint_is_found_from_the_next_step_on(void **state)
{
    kv_layout l = small_layout();
    kv_store *s = new_store(&l, 16, 2, (size_t)1 << 20);
    int32_t ids[200];
    kv_lease *q;
    int n;

    (void)state;
    count_up(ids, 200);
    assert_int_equal(kv_lease_open(s, &q, NULL, 1, copies, &n, NULL), DI_OK);
    assert_int_equal(kv_lease_reserve(q, 130, NULL), DI_OK);
    kv_lease_commit(q, ids, 130);
    assert_int_equal(kv_lease_checkpoint(q, 130, KV_CKPT_FULL, NULL, copies, &n, NULL), DI_OK);
    assert_int_equal(kv_match(s, ids, 200, 1, -1, 1).len, 0); /* its copies run behind the step */
    kv_store_step_planned(s);
    assert_int_equal(kv_match(s, ids, 200, 1, -1, 1).len, 130);
    kv_lease_close(q);
    kv_store_free(s);
}

/* The state inside a replayed tail serves who took it, nobody else. */
static void test_an_own_checkpoint_is_never_matched(void **state)
{
    kv_layout l = small_layout();
    kv_store *s = new_store(&l, 16, 2, (size_t)1 << 20);
    kv_checkpoint *own;
    int32_t ids[200];
    kv_lease *q;
    kv_hit hit;
    int n;

    (void)state;
    count_up(ids, 200);
    assert_int_equal(kv_lease_open(s, &q, NULL, 1, copies, &n, NULL), DI_OK);
    assert_int_equal(kv_lease_reserve(q, 130, NULL), DI_OK);
    for (int64_t p = 0; p < 130; p++)
        compute(&l, q, ids, p, N_RINGS);
    kv_lease_commit(q, ids, 130);
    assert_int_equal(kv_lease_checkpoint(q, 130, KV_CKPT_OWN, &own, copies, &n, NULL), DI_OK);
    kv_copy_run(copies, n);
    kv_lease_close(q);
    kv_store_step_planned(s);
    assert_int_equal(kv_match(s, ids, 200, 1, 10, 0.5).len, 0);
    hit = kv_checkpoint_hit(own);
    assert_int_equal(kv_lease_open(s, &q, &hit, 1, copies, &n, NULL), DI_OK);
    kv_copy_run(copies, n);
    verify(&l, q, ids, 130, N_RINGS);
    kv_lease_close(q);
    kv_checkpoint_unref(own);
    check(s);
    kv_store_free(s);
}

/* Its copies run behind the step: another checkpoint in the same unit would be overwritten. */
static void test_a_checkpoint_is_not_evicted_in_its_own_step(void **state)
{
    kv_layout l = small_layout();
    kv_store *s = new_store(&l, 16, 2, (size_t)1 << 20);
    size_t bytes;
    int32_t ids[200];
    kv_lease *q;
    int n;

    (void)state;
    count_up(ids, 200);
    run_prompt(s, &l, ids, 100, KV_CKPT_FULL);
    bytes = kv_store_counts(s).checkpoint_bytes; /* of one full checkpoint */
    kv_store_free(s);
    s = new_store(&l, 16, 2, bytes);
    assert_int_equal(kv_lease_open(s, &q, NULL, 1, copies, &n, NULL), DI_OK);
    assert_int_equal(kv_lease_reserve(q, 200, NULL), DI_OK);
    kv_lease_commit(q, ids, 50);
    assert_int_equal(kv_lease_checkpoint(q, 50, KV_CKPT_FULL, NULL, copies, &n, NULL), DI_OK);
    kv_lease_commit(q, ids + 50, 50);
    assert_int_equal(kv_lease_checkpoint(q, 100, KV_CKPT_FULL, NULL, copies, &n, NULL), DI_E_BUSY);
    kv_store_step_planned(s);
    assert_int_equal(kv_lease_checkpoint(q, 100, KV_CKPT_FULL, NULL, copies, &n, NULL), DI_OK);
    assert_int_equal(kv_store_counts(s).evicted_checkpoints, 1);
    kv_lease_close(q);
    check(s);
    kv_store_free(s);
}

/* Two that compute the same block side by side. */
static void test_the_second_to_seal_a_block_keeps_a_twin(void **state)
{
    kv_layout l = small_layout();
    kv_store *s = new_store(&l, 16, 2, (size_t)1 << 20);
    int32_t ids[200];
    kv_lease *a, *b;
    int n;

    (void)state;
    count_up(ids, 200);
    assert_int_equal(kv_lease_open(s, &a, NULL, 1, copies, &n, NULL), DI_OK);
    assert_int_equal(kv_lease_open(s, &b, NULL, 1, copies, &n, NULL), DI_OK);
    assert_int_equal(kv_lease_reserve(a, 128, NULL), DI_OK);
    assert_int_equal(kv_lease_reserve(b, 128, NULL), DI_OK);
    kv_lease_commit(a, ids, 128);
    kv_lease_commit(b, ids, 128);
    assert_false(kv_lease_has_twins(a));
    assert_true(kv_lease_has_twins(b));
    kv_lease_close(a);
    assert_int_equal(kv_store_counts(s).blocks_used, 1);
    assert_int_equal(kv_store_counts(s).blocks_cached, 1);
    check(s);
    kv_lease_close(b);
    kv_store_free(s);
}

static void test_running_sequences_share_sealed_blocks(void **state)
{
    kv_layout l = small_layout();
    kv_store *s = new_store(&l, 16, 3, (size_t)1 << 20);
    int32_t ids[600];
    kv_lease *a, *b;
    kv_hit hit;
    int n;

    (void)state;
    count_up(ids, 600);
    run_prompt(s, &l, ids, 512, KV_CKPT_FULL);
    hit = kv_match(s, ids, 600, 1, -1, 1);
    assert_int_equal(kv_lease_open(s, &a, &hit, 1, copies, &n, NULL), DI_OK);
    assert_int_equal(kv_lease_open(s, &b, &hit, 1, copies, &n, NULL), DI_OK);
    assert_int_equal(kv_store_counts(s).blocks_used, 4);
    kv_lease_close(a);
    assert_int_equal(kv_store_counts(s).blocks_used, 4);
    kv_lease_close(b);
    assert_int_equal(kv_store_counts(s).blocks_used, 0);
    assert_int_equal(kv_store_counts(s).blocks_cached, 4);
    kv_store_free(s);
}

static void test_a_full_pool_says_busy_and_takes_nothing(void **state)
{
    kv_layout l = small_layout();
    kv_store *s = new_store(&l, 4, 2, (size_t)1 << 20);
    kv_lease *a, *b;
    int n;

    (void)state;
    assert_int_equal(kv_lease_open(s, &a, NULL, 1, copies, &n, NULL), DI_OK);
    assert_int_equal(kv_lease_open(s, &b, NULL, 1, copies, &n, NULL), DI_OK);
    assert_int_equal(kv_lease_reserve(a, 300, NULL), DI_OK);
    assert_int_equal(kv_lease_reserve(b, 256, NULL), DI_E_BUSY);
    assert_int_equal(kv_store_counts(s).blocks_free, 1);
    assert_int_equal(kv_lease_reserve(b, 128, NULL), DI_OK);
    check(s);
    kv_lease_close(a);
    kv_lease_close(b);
    kv_store_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_life_keeps_state_and_invariants),
        cmocka_unit_test(test_a_hit_ends_where_the_checkpoint_lies),
        cmocka_unit_test(test_an_encoder_checkpoint_needs_a_tail_behind_it),
        cmocka_unit_test(test_a_checkpoint_is_found_from_the_next_step_on),
        cmocka_unit_test(test_an_own_checkpoint_is_never_matched),
        cmocka_unit_test(test_a_checkpoint_is_not_evicted_in_its_own_step),
        cmocka_unit_test(test_the_second_to_seal_a_block_keeps_a_twin),
        cmocka_unit_test(test_running_sequences_share_sealed_blocks),
        cmocka_unit_test(test_a_full_pool_says_busy_and_takes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
