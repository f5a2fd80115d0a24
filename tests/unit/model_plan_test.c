/* Layer plan, rope frequencies, numpy's generator and the Engram hash against spec section 13. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "model/engram.h"
#include "model/numpy_rng.h"
#include "model/plan.h"

/* The released configuration, as far as plan and hash read it. */
static model_config released(void)
{
    static const int kv[] = {2, 8, 14, 20}, index[] = {2, 8, 14, 20, 24, 28, 32, 36};
    model_config c = {.vocab = 129280,
                      .n_layers = 40,
                      .rope_dim = 64,
                      .rope_theta = 10000,
                      .compress_theta = 160000,
                      .yarn_factor = 16,
                      .yarn_beta_fast = 32,
                      .yarn_beta_slow = 1,
                      .yarn_original = 65536,
                      .n_experts = 384,
                      .n_active = 6,
                      .n_kv_sources = 4,
                      .n_index_sources = 8,
                      .cand_source = 20,
                      .n_engram = 2,
                      .engram_layer = {1, 14},
                      .engram_rows = {384006168, 384016682},
                      .engram_ngram = 4,
                      .engram_heads = 8,
                      .engram_dim = 256,
                      .engram_pad = 2,
                      .engram_compressed = 99092,
                      .engram_vocab = 16000000,
                      .n_stages = 3,
                      .n_taps = 3,
                      .tap_layer = {37, 38, 39},
                      .draft_experts = 128,
                      .draft_active = 3};

    for (int l = 2; l < 40; l++)
        c.ratio[l] = l < 20 ? 2 : 1;
    for (int i = 0; i < 4; i++)
        c.kv_source[i] = kv[i];
    for (int i = 0; i < 8; i++)
        c.index_source[i] = index[i];
    return c;
}

static void test_layer_roles_of_the_release(void **state)
{
    model_config c = released();
    plan *p = calloc(1, sizeof *p);

    (void)state;
    assert_non_null(p);
    assert_int_equal(plan_init(p, &c, NULL), DI_OK);
    assert_int_equal(p->n_owners, 4);
    assert_int_equal(p->n_ratios, 2);
    for (int l = 0; l < 43; l++) {
        const layer_plan *y = &p->layer[l];
        bool window = l < 2 || l >= 40;

        assert_int_equal(y->stage, l >= 40 ? l - 40 : -1);
        assert_int_equal(y->owner, window ? -1 : l < 8 ? 0 : l < 14 ? 1 : l < 20 ? 2 : 3);
        assert_int_equal(y->kv_source, l == 2 || l == 8 || l == 14 || l == 20);
        assert_int_equal(y->index_source, y->kv_source || (l > 20 && l < 40 && l % 4 == 0));
        assert_int_equal(y->cand, l == 20                          ? CAND_SOURCE
                                  : l > 20 && l < 40 && l % 4 == 0 ? CAND_FILTERED
                                                                   : CAND_NONE);
        assert_int_equal(y->engram, l == 1 ? 0 : l == 14 ? 1 : -1);
        assert_int_equal(y->tap, l >= 37 && l < 40 ? l - 37 : -1);
        assert_int_equal(y->n_experts, l < 40 ? 384 : 128);
        assert_int_equal(y->n_active, l < 40 ? 6 : 3);
    }
    free(p);
}

static void test_ratio_that_does_not_divide_a_block_is_refused(void **state)
{
    model_config c = released();
    plan *p = calloc(1, sizeof *p);
    di_status st = {0};

    (void)state;
    assert_non_null(p);
    for (int l = 2; l < 20; l++)
        c.ratio[l] = 3;
    assert_int_equal(plan_init(p, &c, &st), DI_E_UNSUPPORTED);
    assert_non_null(strstr(st.message, "ratio 3"));
    free(p);
}

static void test_rope_frequencies_equal_the_vectors(void **state)
{
    static const struct {
        int k;
        float f;
    } comp[] = {{0, 1},
                {1, .687656045f},
                {8, .0500000007f},
                {15, .00363553851f},
                {16, .00226562493f},
                {17, .00139680132f},
                {20, 2.96977785e-4f},
                {24, 1.95312532e-5f},
                {25, 5.37231244e-6f},
                {31, 5.6805294e-7f}},
      window[] = {{0, 1}, {1, .749894202f}, {8, .1f}, {16, .01f}, {31, 1.3335215e-4f}};
    model_config c = released();
    float f[32];

    (void)state;
    plan_rope_freq(f, &c, c.compress_theta, true);
    for (size_t i = 0; i < ARRAY_LEN(comp); i++)
        assert_true(f[comp[i].k] == comp[i].f);
    plan_rope_freq(f, &c, c.rope_theta, false);
    for (size_t i = 0; i < ARRAY_LEN(window); i++)
        assert_true(f[window[i].k] == window[i].f);
}

/* Known answers of numpy.random.default_rng(seed).integers(0, bound, 4, dtype=int64). */
static void test_numpy_integers_are_reproduced(void **state)
{
    static const struct {
        uint32_t seed;
        uint64_t compressed;
        uint64_t want[4]; /* doubled plus 1 */
    } cases[] = {
        {0, 417, {14088572219157163, 5967249955982315, 906268716845319, 365564823427249}},
        {30021, 417, {6541254461940911, 19404742284054957, 2584930354031559, 16704711646019409}},
        {10007, 99092, {76632096046245, 4839876093313, 35959672319349, 73987337458391}},
        {140098, 99092, {67716810739261, 51510806800915, 30921347202721, 82619226485591}},
        {10007, 5000, {1518725532282925, 95918600367725, 712663169893793, 1466310648685405}}};
    numpy_rng r;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        numpy_rng_init(&r, cases[i].seed);
        for (int j = 0; j < 4; j++)
            assert_int_equal(
                numpy_rng_below(&r, (uint64_t)INT64_MAX / cases[i].compressed / 2) * 2 + 1,
                cases[i].want[j]);
    }
}

/* A bound where every fourth draw is rejected. */
static void test_numpy_integers_reject_as_numpy_does(void **state)
{
    static const uint64_t want[] = {5568631092344618224, 5588953865617465521, 3564779527194450433,
                                    1977039342899605364, 373067199206181106,  2651965361128100722,
                                    337282879276512861,  6911829779688289636, 4512782266146337749,
                                    1622231127328974871, 3008762318018861344, 6738961270198076161};
    numpy_rng r;

    (void)state;
    numpy_rng_init(&r, 5);
    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        assert_int_equal(numpy_rng_below(&r, ((uint64_t)1 << 62) + ((uint64_t)1 << 61) + 12345),
                         want[i]);
}

/* A map onto 0..99091 that keeps the small ids. */
static int32_t *some_map(const model_config *c)
{
    int32_t *map = malloc((size_t)c->vocab * sizeof *map);

    assert_non_null(map);
    for (int i = 0; i < c->vocab; i++)
        map[i] = i % c->engram_compressed;
    return map;
}

static void test_engram_rows_equal_the_vectors(void **state)
{
    static const int column[4] = {0, 8, 16, 23};
    static const int32_t id[5] = {5, 17, 99091, ENGRAM_DEAD, 42};
    static const int64_t want[5][2][4] = {
        {{5412672, 143494632, 256353435, 372009279}, {6939818, 131576092, 268363546, 382274687}},
        {{4465417, 129505115, 269486139, 371977877}, {14916957, 137631961, 261903157, 369044835}},
        {{379248, 141971515, 256931896, 373952454}, {4638160, 128337784, 267442687, 381418250}},
        {{4299726, 129401291, 264341430, 370096053}, {6788701, 131862336, 261869729, 381853422}},
        {{5873501, 140595404, 271646719, 382017429}, {10351927, 133745174, 262965089, 380843614}}};
    model_config c = released();
    int32_t *map = some_map(&c);
    engram_hash *h;

    (void)state;
    assert_int_equal(engram_hash_new(&h, &c, map, NULL), DI_OK);
    assert_int_equal(engram_compress(h, 99092), 0);
    for (int p = 0; p < 5; p++) {
        int32_t t[4];
        int64_t rows[24];

        for (int back = 0; back < 4; back++)
            t[back] = p >= back ? id[p - back] : ENGRAM_DEAD;
        for (int layer = 0; layer < 2; layer++) {
            engram_rows(h, layer, t, rows);
            for (int i = 0; i < 4; i++)
                assert_int_equal(rows[column[i]], want[p][layer][i]);
        }
    }
    engram_hash_free(h);
    free(map);
}

static void test_engram_refuses_another_tokenizer_or_table(void **state)
{
    model_config c = released();
    int32_t *map = some_map(&c);
    engram_hash *h;
    di_status st = {0};

    (void)state;
    c.engram_rows[1]++;
    assert_int_equal(engram_hash_new(&h, &c, map, &st), DI_E_FORMAT);
    assert_non_null(strstr(st.message, "layer 14"));
    di_clear(&st);
    c.engram_rows[1]--;
    c.engram_compressed++;
    assert_int_equal(engram_hash_new(&h, &c, map, &st), DI_E_FORMAT);
    assert_non_null(strstr(st.message, "99092 compressed ids"));
    free(map);
}

static void test_engram_reports_every_failed_allocation(void **state)
{
    model_config c = released();
    int32_t *map = some_map(&c);
    engram_hash *h;

    (void)state;
    for (uint64_t n = 1; n <= 4; n++) {
        mem_fail_at(n);
        assert_int_equal(engram_hash_new(&h, &c, map, NULL), DI_E_NOMEM);
    }
    mem_fail_at(0);
    free(map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_roles_of_the_release),
        cmocka_unit_test(test_ratio_that_does_not_divide_a_block_is_refused),
        cmocka_unit_test(test_rope_frequencies_equal_the_vectors),
        cmocka_unit_test(test_numpy_integers_are_reproduced),
        cmocka_unit_test(test_numpy_integers_reject_as_numpy_does),
        cmocka_unit_test(test_engram_rows_equal_the_vectors),
        cmocka_unit_test(test_engram_refuses_another_tokenizer_or_table),
        cmocka_unit_test(test_engram_reports_every_failed_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
