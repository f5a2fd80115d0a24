/* The promise of one answer at the level of the model (design "One answer"): the bits of a row
 * depend on its own sequence only. Every back end of this machine in release, and the scalar one in
 * f32, on the random checkpoints, whose prompts cross the window, the index top-k and the candidate
 * blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "model/rig.h"

#define N_TOKENS 151 /* not a multiple of any group, window or block */
#define N_SEQS   3

static const char *const models[] = {"tests/data/models/mini-b", "tests/data/models/mini-f"};

/* The case that runs: set by for_all. */
static rig lab;
static int32_t prompt[N_SEQS][N_TOKENS];
static uint8_t image[N_SEQS][N_TOKENS];

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void make_prompts(void)
{
    uint32_t seed = 7;

    for (int q = 0; q < N_SEQS; q++)
        for (int i = 0; i < N_TOKENS; i++) {
            prompt[q][i] = (int32_t)(3 + next_random(&seed) % (uint32_t)(lab.cfg->vocab - 30));
            /* a span like an image's, at another place in each sequence */
            image[q][i] = lab.cfg->vision.n_layers > 0 && i >= 40 + 31 * q && i < 61 + 31 * q;
        }
}

static void open_lab_with(rig_options o)
{
    di_status st = {0};

    o.max_rows = 256;
    o.n_seqs = N_SEQS;
    if (!rig_open(&lab, &o, &st))
        fail_msg("%s on %s: %s", o.dir, o.backend, st.message);
    make_prompts();
}

static void open_lab_threads(const char *dir, const char *backend, numerics how, int n_threads)
{
    open_lab_with(
        (rig_options){.dir = dir, .backend = backend, .numerics = how, .n_threads = n_threads});
}

static void open_lab(const char *dir, const char *backend, numerics how)
{
    open_lab_threads(dir, backend, how, 0);
}

/* Run a check for every model, back end and numerics. */
static void for_all(void (*check)(void))
{
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        for (const char *const *name = kernels_available(); *name; name++) {
            if (!rig_wants_backend(*name))
                continue;
            open_lab(models[i], *name, NUMERICS_RELEASE);
            check();
            rig_close(&lab);
        }
        if (!rig_wants_backend("ref"))
            continue;
        open_lab(models[i], "ref", NUMERICS_F32);
        check();
        rig_close(&lab);
    }
}

static rig_seq *new_seq(int q)
{
    rig_seq *s = calloc(1, sizeof *s);

    assert_non_null(s);
    assert_true(rig_seq_new(&lab, s, NULL));
    memcpy(s->image, image[q], sizeof image[q]);
    return s;
}

static void end_seq(rig_seq *s)
{
    rig_seq_free(s);
    free(s);
}

static size_t row_floats(void)
{
    return (size_t)lab.cfg->vocab;
}

static float *new_logits(void)
{
    float *p = calloc((size_t)N_TOKENS * row_floats(), sizeof *p);

    assert_non_null(p);
    return p;
}

static void feed(rig_seq *s, const int32_t *token, int n, float *logits)
{
    di_status st = {0};

    if (!rig_step(&lab, s, token, n, n, logits, &st))
        fail_msg("%s", st.message);
}

static void run_whole(int q, float *logits)
{
    rig_seq *s = new_seq(q);

    feed(s, prompt[q], N_TOKENS, logits);
    end_seq(s);
}

static void assert_same_rows(const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        if (memcmp(a + (size_t)i * row_floats(), b + (size_t)i * row_floats(),
                   row_floats() * sizeof *a) != 0)
            fail_msg("row %d differs on %s", i, lab.k->ops->name);
}

static void check_chunks(void)
{
    float *want = new_logits(), *got = new_logits();
    uint32_t seed = 1;

    run_whole(0, want);
    for (int round = 0; round < 3; round++) {
        rig_seq *s = new_seq(0);

        memset(got, 0, (size_t)N_TOKENS * row_floats() * sizeof *got);
        while (s->n < N_TOKENS) {
            int most = round == 0 ? 1 : round == 1 ? 7 : 70; /* round 0: token by token */
            int n = 1 + (int)(next_random(&seed) % (uint32_t)most);

            n = n < N_TOKENS - s->n ? n : N_TOKENS - s->n;
            feed(s, prompt[0] + s->n, n, got + (size_t)s->n * row_floats());
        }
        end_seq(s);
        assert_same_rows(want, got, N_TOKENS);
    }
    free(want);
    free(got);
}

static void test_any_chunks_give_the_same_bits(void **state)
{
    (void)state;
    for_all(check_chunks);
}

/* A device finds the rows of an Engram table in its own memory or in pinned host memory. */
static void check_tables(const char *dir, const char *backend)
{
    float *logits[2];

    for (int host = 0; host < 2; host++) {
        open_lab_with((rig_options){
            .dir = dir, .backend = backend, .engram = host ? ENGRAM_HOST : ENGRAM_DEVICE});
        assert_true(lab.cfg->n_engram > 0);
        logits[host] = new_logits();
        run_whole(0, logits[host]);
        if (host)
            assert_same_rows(logits[0], logits[1], N_TOKENS);
        rig_close(&lab);
    }
    free(logits[0]);
    free(logits[1]);
}

static void test_engram_tables_give_the_same_bits_at_any_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++)
        for (const char *const *name = kernels_available(); *name; name++)
            if (rig_wants_backend(*name))
                check_tables(models[i], *name);
}

/* Several sequences per step, each at its own place, with chunks of changing size; and state that
 * other sequences have used before. */
static void check_company(void)
{
    float *want[N_SEQS], *got[N_SEQS];
    rig_seq *s[N_SEQS];
    uint32_t seed = 2;
    int left = N_SEQS * N_TOKENS;

    for (int q = 0; q < N_SEQS; q++) {
        want[q] = new_logits();
        got[q] = new_logits();
        run_whole(q, want[q]);
    }
    for (int q = N_SEQS - 1; q >= 0; q--)
        s[q] = new_seq(q);
    while (left > 0) {
        seq_rows rows[N_SEQS];
        int who[N_SEQS], n_seqs = 0;
        float *dev;
        size_t at = 0;

        for (int q = 0; q < N_SEQS; q++) {
            int n = (int)(next_random(&seed) % 50u);

            n = n < N_TOKENS - s[q]->n ? n : N_TOKENS - s[q]->n;
            if (n == 0)
                continue;
            memcpy(s[q]->token + s[q]->n, prompt[q] + s[q]->n, (size_t)n * sizeof *prompt[q]);
            assert_true(rig_rows(s[q], n, n, &rows[n_seqs], NULL));
            who[n_seqs++] = q;
        }
        if (n_seqs == 0)
            continue;
        assert_int_equal(model_forward(lab.m, rows, n_seqs, &dev, NULL), DI_OK);
        for (int i = 0; i < n_seqs; i++) {
            size_t n = (size_t)rows[i].n * row_floats();
            rig_seq *q = s[who[i]];

            lab.k->ops->get(lab.k, got[who[i]] + (size_t)q->n * row_floats(), dev + at,
                            n * sizeof *dev);
            at += n;
            q->n += rows[i].n;
            kv_seq_set_len(q->kv, q->n);
            left -= rows[i].n;
        }
    }
    for (int q = 0; q < N_SEQS; q++) {
        assert_same_rows(want[q], got[q], N_TOKENS);
        end_seq(s[q]);
        free(want[q]);
        free(got[q]);
    }
}

static void test_company_in_a_step_changes_nothing(void **state)
{
    (void)state;
    for_all(check_company);
}

/* Verify drafts that are wrong from a random place on, commit what was right, go on: logits and
 * later proposals are those of a sequence that never saw a draft. */
static void check_roll_back(void)
{
    int block = lab.cfg->draft_block, start = 60;
    float *want = new_logits(), *got = new_logits();
    rig_seq *plain = new_seq(0), *drafted = new_seq(0);
    uint32_t seed = 3;

    run_whole(0, want);
    feed(plain, prompt[0], start, got);
    feed(drafted, prompt[0], start, got);
    while (drafted->n < N_TOKENS - block - 1) {
        int32_t chunk[32], a[32], b[32], right;
        float ca[32], cb[32];
        int at = drafted->n;

        right = (int32_t)(next_random(&seed) % (uint32_t)(block + 1));
        for (int k = 0; k <= block; k++)
            chunk[k] = k <= right ? prompt[0][at + k] : (prompt[0][at + k] + 1) % lab.cfg->vocab;
        feed(drafted, chunk, block + 1, got + (size_t)at * row_floats());
        rig_roll_back(drafted, at + 1 + right);
        while (plain->n < drafted->n)
            feed(plain, prompt[0] + plain->n, 1, got + (size_t)plain->n * row_floats());
        assert_true(rig_draft(&lab, plain, 5, 0, a, ca, NULL));
        assert_true(rig_draft(&lab, drafted, 5, 0, b, cb, NULL));
        assert_memory_equal(a, b, (size_t)block * sizeof *a);
        assert_memory_equal(ca, cb, (size_t)block * sizeof *ca);
    }
    assert_same_rows(want, got, drafted->n);
    /* what is behind the last roll-back comes out as if nothing had been there */
    feed(drafted, prompt[0] + drafted->n, N_TOKENS - drafted->n,
         got + (size_t)drafted->n * row_floats());
    assert_same_rows(want, got, N_TOKENS);
    end_seq(plain);
    end_seq(drafted);
    free(want);
    free(got);
}

static void test_rejected_drafts_leave_no_trace(void **state)
{
    (void)state;
    for_all(check_roll_back);
}

/* The Markov-corrected logits of the last draft. */
static float draft_logits[32 * 1024];

static void on_trace(void *arg, const char *name, const float *data, int64_t rows, int64_t cols)
{
    (void)arg;
    if (!strcmp(name, "draft.logits") && rows * cols <= (int64_t)ARRAY_LEN(draft_logits))
        memcpy(draft_logits, data, (size_t)(rows * cols) * sizeof *data);
}

/* Draft k of a sequence of `len` tokens (and the pending one behind them) is for position
 * len + 1 + k, and is drawn with the noise of that position. */
static void assert_drawn_at(const int32_t *draft, int block, int64_t len, sample_row row)
{
    kernels *k = lab.k;
    size_t bytes = row_floats() * sizeof *draft_logits;
    float *logits = k->ops->buf_new(k, bytes);
    int32_t *dev = k->ops->buf_new(k, sizeof *dev), token;

    assert_non_null(logits);
    assert_non_null(dev);
    for (int i = 0; i < block; i++) {
        row.position = len + 1 + i;
        k->ops->put(k, logits, draft_logits + (size_t)i * row_floats(), bytes);
        k->ops->sample(
            k, &(sample_args){
                   .n = 1, .vocab = lab.cfg->vocab, .logits = logits, .row = &row, .token = dev});
        k->ops->get(k, &token, dev, sizeof token);
        assert_int_equal(draft[i], token);
    }
    k->ops->buf_free(k, logits);
    k->ops->buf_free(k, dev);
}

/* Drafts for several sequences at once are those of each alone; a draft writes no state, so the
 * same call gives the same again. */
static void check_drafts(void)
{
    int block = lab.cfg->draft_block, lens[N_SEQS] = {3, 131, 77};
    rig_seq *s[N_SEQS];
    draft_rows rows[N_SEQS];
    sample_row noise = {.temperature = 1.0f, .top_p = 1.0f, .seed = 99};
    int32_t together[N_SEQS * 32], alone[32];
    float ct[N_SEQS * 32], ca[32];
    float *logits = new_logits();

    for (int q = 0; q < N_SEQS; q++) {
        s[q] = new_seq(q);
        feed(s[q], prompt[q], lens[q], logits);
        rows[q] =
            (draft_rows){.view = kv_seq_view(s[q]->kv), .token = prompt[q][lens[q]], .row = &noise};
    }
    assert_int_equal(model_draft(lab.m, rows, N_SEQS, 0, together, ct, NULL), DI_OK);
    model_set_trace(lab.m, on_trace, NULL);
    for (int q = 0; q < N_SEQS; q++) {
        assert_int_equal(model_draft(lab.m, rows + q, 1, 0, alone, ca, NULL), DI_OK);
        assert_memory_equal(together + q * block, alone, (size_t)block * sizeof *alone);
        assert_memory_equal(ct + q * block, ca, (size_t)block * sizeof *ca);
        assert_drawn_at(alone, block, lens[q], noise);
    }
    for (int q = 0; q < N_SEQS; q++)
        end_seq(s[q]);
    free(logits);
}

static void test_drafts_do_not_depend_on_company(void **state)
{
    (void)state;
    for_all(check_drafts);
}

static void test_threads_change_nothing(void **state)
{
    (void)state;
    for (const char *const *name = kernels_available(); *name; name++) {
        float *want = NULL, *got;
        int counts[] = {1, 2, 5};

        if (!rig_wants_backend(*name))
            continue;
        for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
            open_lab_threads(models[1], *name, NUMERICS_RELEASE, counts[i]);
            if (i == 0)
                want = new_logits();
            got = new_logits();
            run_whole(0, i == 0 ? want : got);
            if (i > 0)
                assert_same_rows(want, got, N_TOKENS);
            free(got);
            rig_close(&lab);
        }
        free(want);
    }
}

static void check_allocations(void)
{
    float *logits = new_logits();
    rig_seq *s = new_seq(0);
    int32_t draft[32];
    float conf[32];
    uint64_t before;

    feed(s, prompt[0], 1, logits); /* a first step may settle what the back end puts off */
    assert_int_equal(kv_seq_reserve(s->kv, N_TOKENS, NULL), DI_OK);
    before = mem_n_tries();
    feed(s, prompt[0] + 1, N_TOKENS - 3, logits);
    feed(s, prompt[0] + s->n, 1, logits);
    assert_true(rig_draft(&lab, s, 5, 0, draft, conf, NULL));
    assert_int_equal(mem_n_tries(), before);
    end_seq(s);
    free(logits);
}

static void test_a_step_allocates_nothing(void **state)
{
    (void)state;
    for_all(check_allocations);
}

static void test_limits_are_refused_with_the_number(void **state)
{
    di_status st = {0};
    seq_rows rows;
    rig_seq *s;
    float *dev;
    int32_t draft[32];
    float conf[32];
    draft_rows d;

    (void)state;
    open_lab(models[0], "ref", NUMERICS_RELEASE);
    s = new_seq(0);
    assert_true(rig_rows(s, 257, 1, &rows, NULL));
    assert_int_equal(model_forward(lab.m, &rows, 1, &dev, &st), DI_E_INVALID);
    assert_non_null(strstr(st.message, "257 rows"));
    di_clear(&st);
    rows.n = 2;
    rows.n_logits = 3;
    assert_int_equal(model_forward(lab.m, &rows, 1, &dev, &st), DI_E_INVALID);
    di_clear(&st);
    rows.n_logits = 1;
    rows.view.len = 4095;
    assert_int_equal(model_forward(lab.m, &rows, 1, &dev, &st), DI_E_INVALID);
    assert_non_null(strstr(st.message, "4097 tokens"));
    di_clear(&st);
    rows.view.len = 10; /* Engram needs the tokens before */
    rows.n_history = 1;
    assert_int_equal(model_forward(lab.m, &rows, 1, &dev, &st), DI_E_INVALID);
    assert_non_null(strstr(st.message, "history"));
    di_clear(&st);
    d = (draft_rows){.view = rows.view, .token = 1};
    assert_int_equal(model_draft(lab.m, &d, 1, 31, draft, conf, &st), DI_E_INVALID);
    end_seq(s);
    rig_close(&lab);
}

/* Opening with every allocation failing in turn: NOMEM, nothing leaked (the sanitizer build looks).
 */
static void test_open_reports_every_failed_allocation(void **state)
{
    kernels_options ko = {.backend = "ref", .numerics = NUMERICS_RELEASE, .n_threads = 1};
    model_options mo = {.max_rows = 16, .context = 512};
    checkpoint *c;
    kernels *k;
    model *m;
    int32_t *map;
    uint64_t n = 1, before;

    (void)state;
    open_lab(models[1], "ref", NUMERICS_RELEASE); /* for its map of compressed ids */
    map = malloc((size_t)lab.cfg->vocab * sizeof *map);
    assert_non_null(map);
    memcpy(map, lab.compressed, (size_t)lab.cfg->vocab * sizeof *map);
    rig_close(&lab);
    assert_int_equal(checkpoint_open(&c, models[1], false, NULL), DI_OK);
    assert_int_equal(kernels_open(&k, &ko, NULL), DI_OK);
    before = mem_n_tries();
    assert_int_equal(model_open(&m, c, k, map, &mo, NULL), DI_OK);
    before = mem_n_tries() - before;
    model_close(m);
    for (; n <= before; n += n < 150 ? 1 : 17) {
        mem_fail_at(n);
        assert_int_equal(model_open(&m, c, k, map, &mo, NULL), DI_E_NOMEM);
        assert_null(m);
    }
    mem_fail_at(0);
    kernels_close(k);
    checkpoint_close(c);
    free(map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_chunks_give_the_same_bits),
        cmocka_unit_test(test_engram_tables_give_the_same_bits_at_any_place),
        cmocka_unit_test(test_company_in_a_step_changes_nothing),
        cmocka_unit_test(test_rejected_drafts_leave_no_trace),
        cmocka_unit_test(test_drafts_do_not_depend_on_company),
        cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_a_step_allocates_nothing),
        cmocka_unit_test(test_limits_are_refused_with_the_number),
        cmocka_unit_test(test_open_reports_every_failed_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
