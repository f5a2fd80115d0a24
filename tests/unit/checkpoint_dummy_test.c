/* Generated weights: the same bytes in every run, sensible values, and configurations that stay
 * sound when they are made smaller. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/dummy.h"
#include "checkpoint/engram_rows.h"
#include "formats/scalar.h"

#define FLASH "tests/data/checkpoint/config.flash.json"

static char dir[] = "/tmp/dummy_test.XXXXXX";

/* A folder with the config.json of the shipped model and nothing else. */
static int make_folder(void **state)
{
    char path[64], *text;
    size_t n;
    FILE *f;

    (void)state;
    if (!mkdtemp(dir) || file_read(&text, &n, "models/tiny/config.json", 1 << 20, NULL) != DI_OK)
        return -1;
    snprintf(path, sizeof path, "%s/config.json", dir);
    f = fopen(path, "we");
    if (!f || fwrite(text, 1, n, f) != n || fclose(f) != 0)
        return -1;
    mem_free(text);
    return 0;
}

static int remove_folder(void **state)
{
    char path[64];

    (void)state;
    snprintf(path, sizeof path, "%s/config.json", dir);
    return unlink(path) != 0 || rmdir(dir) != 0;
}

static checkpoint *open_tiny(const dummy_options *o)
{
    checkpoint *c;
    di_status st = {0};

    if (checkpoint_open_dummy(&c, dir, o, DUMMY_FOUND, &st) != DI_OK)
        fail_msg("%s", st.message);
    return c;
}

static model_config flash(void)
{
    model_config c;
    char *text;
    size_t n;

    assert_int_equal(file_read(&text, &n, FLASH, 1 << 20, NULL), DI_OK);
    assert_int_equal(config_parse(&c, text, n, FLASH, NULL), DI_OK);
    mem_free(text);
    return c;
}

static void test_two_openings_have_the_same_bytes_and_shares_differ(void **state)
{
    checkpoint *a = open_tiny(&(dummy_options){.n_shares = 4, .share = 1});
    checkpoint *b = open_tiny(&(dummy_options){.n_shares = 4, .share = 1});
    checkpoint *other = open_tiny(&(dummy_options){.n_shares = 4, .share = 2});
    size_t n_differ = 0;

    (void)state;
    assert_int_equal(checkpoint_config(a)->n_experts, 4);
    for (size_t i = 0; i < checkpoint_n_tensors(a); i++) {
        const char *name = checkpoint_tensor(a, i)->name;
        const ckpt_tensor *x = checkpoint_find(a, "%s", name), *y = checkpoint_find(b, "%s", name);

        assert_memory_equal(x->data, y->data, x->bytes);
        n_differ += memcmp(x->data, checkpoint_find(other, "%s", name)->data, x->bytes) != 0;
    }
    assert_true(n_differ > checkpoint_n_tensors(a) * 9 / 10);
    checkpoint_close(a);
    checkpoint_close(b);
    checkpoint_close(other);
}

static void test_a_dropped_tensor_comes_back_and_a_table_stays(void **state)
{
    checkpoint *c = open_tiny(&(dummy_options){0});
    const ckpt_tensor *t = checkpoint_find(c, "layers.0.attn.wq_a.weight");
    const ckpt_tensor *table = checkpoint_find(c, "embed.weight");
    uint8_t *copy = mem_try_calloc(t->bytes, 1), *rows = mem_try_calloc(table->bytes, 1);

    (void)state;
    assert_non_null(copy);
    assert_non_null(rows);
    memcpy(copy, t->data, t->bytes);
    memcpy(rows, table->data, table->bytes);
    checkpoint_drop(c, t);
    checkpoint_drop(c, table);
    assert_memory_equal(rows, table->data, table->bytes);
    assert_memory_not_equal(copy, t->data, t->bytes); /* the memory is empty again */
    assert_ptr_equal(checkpoint_find(c, "layers.0.attn.wq_a.weight"), t);
    assert_memory_equal(copy, t->data, t->bytes);
    mem_free(copy);
    mem_free(rows);
    checkpoint_close(c);
}

/* The scale of element i of a quantised tensor, `per_byte` of whose columns share a byte. */
static double scale_of(const checkpoint *c, const ckpt_tensor *t, size_t i, size_t per_byte)
{
    size_t n = strlen(t->name) - strlen(".weight"), cols = (size_t)t->shape[1];
    const ckpt_tensor *s = checkpoint_find(c, "%.*s.scale", (int)n, t->name);
    size_t rows_each, at;

    assert_non_null(s);
    rows_each = s->shape[0] == t->shape[0] ? 1 : 32;
    at = i / cols / rows_each * (size_t)s->shape[1] + i % cols * per_byte / 32;
    return exp2(((const uint8_t *)s->data)[at] - 127.0);
}

static double element(const checkpoint *c, const ckpt_tensor *t, size_t i)
{
    static const double e2m1[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6};
    const uint8_t *bytes = t->data;
    float f;
    uint16_t h;

    if (t->type == DTYPE_F32) {
        memcpy(&f, bytes + 4 * i, 4);
        return (double)f;
    }
    if (t->type == DTYPE_BF16) {
        memcpy(&h, bytes + 2 * i, 2);
        return (double)bf16_to_f32(h);
    }
    if (t->type == DTYPE_I8)
        return e2m1[bytes[i] & 15] * scale_of(c, t, i, 2);
    return (double)e4m3_to_f32(bytes[i]) * scale_of(c, t, i, 1);
}

/* Rows of matrices have a length of about one, whatever the stored form. */
static void test_matrices_keep_the_size_of_what_they_multiply(void **state)
{
    checkpoint *c = open_tiny(&(dummy_options){.n_layers = 5});
    int n[DTYPE_COUNT] = {0};

    (void)state;
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const ckpt_tensor *t = checkpoint_find(c, "%s", checkpoint_tensor(c, i)->name);
        size_t count = t->bytes / dtype_bytes(t->type);
        double sum = 0, cols = (double)t->shape[1] * (t->type == DTYPE_I8 ? 2 : 1);

        if (t->n_dims != 2 || t->type == DTYPE_F8_E8M0 || strstr(t->name, "_weight"))
            continue;
        for (size_t k = 0; k < count; k++) {
            double v = element(c, t, k);

            assert_true(isfinite(v));
            sum += v * v;
        }
        if (sqrt(sum / (double)count * cols) < 0.5 || sqrt(sum / (double)count * cols) > 2)
            fail_msg("%s: rows have length %g", t->name, sqrt(sum / (double)count * cols));
        n[t->type]++;
    }
    assert_true(n[DTYPE_F32] > 0 && n[DTYPE_BF16] > 0 && n[DTYPE_F8_E4M3] > 0 && n[DTYPE_I8] > 0);
    checkpoint_close(c);
}

static void test_every_number_of_layers_is_a_sound_configuration(void **state)
{
    (void)state;
    for (int n = 1; n <= 40; n++) {
        model_config c = flash();
        di_status st = {0};
        int64_t prime[CFG_MAX_ENGRAM * 64], sum = 0;

        if (dummy_config(&c, &(dummy_options){.n_layers = n, .n_shares = 8}, &st) != DI_OK)
            fail_msg("%d layers: %s", n, st.message);
        assert_int_equal(c.n_layers, n);
        assert_int_equal(c.n_experts, 48);
        assert_int_equal(c.draft_experts, 16);
        assert_true(c.n_kv_sources <= 4 && c.n_index_sources <= 8);
        if (n >= 7) /* no source's layers are skipped */
            assert_int_equal(c.n_kv_sources, 4);
        engram_primes(&c, prime);
        for (int i = 0; c.n_engram && i < config_engram_cols(&c); i++)
            sum += prime[i];
        assert_int_equal(c.n_engram ? c.engram_rows[0] : 0, sum);
        assert_true(sum < (1 << 20) + (1 << 17));
    }
}

static void test_four_layers_of_the_release_have_each_kind(void **state)
{
    model_config c = flash();

    (void)state;
    assert_int_equal(dummy_config(&c, &(dummy_options){.n_layers = 4}, NULL), DI_OK);
    assert_int_equal(c.ratio[0], 0);
    assert_int_equal(c.ratio[1], 2);
    assert_int_equal(c.ratio[2], 1);
    assert_int_equal(c.kv_source[0], 1);
    assert_int_equal(c.kv_source[1], 2);
    assert_int_equal(c.n_index_sources, 3); /* layer 30 reads the selection of 28 */
    assert_int_equal(c.cand_source, 2);
    assert_int_equal(c.engram_layer[0], 1);
    assert_int_equal(c.tap_layer[0], 2);
}

static void test_impossible_options_are_refused_with_their_limits(void **state)
{
    static const struct {
        dummy_options o;
        const char *want;
    } bad[] = {{{.n_layers = 41}, "41 layers to keep, but config.json has 40"},
               {{.n_shares = 7}, "cannot be divided by 7"},
               {{.n_shares = 8, .share = 8}, "run from 0 to n-1"},
               {{.n_shares = 128}, "more than a share holds"},
               {{.engram_rows = 100}, "at least 1536"}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        model_config c = flash();
        di_status st = {0};

        assert_int_equal(dummy_config(&c, &bad[i].o, &st), DI_E_INVALID);
        if (!strstr(st.message, bad[i].want))
            fail_msg("\"%s\" lacks \"%s\"", st.message, bad[i].want);
    }
}

/* Any piece of a tensor that is only read has the bytes that the whole one has when it is found. */
static void test_pieces_that_are_read_are_those_of_the_whole(void **state)
{
    const size_t cut[][2] = {{0, 8}, {0, 1}, {3, 4}, {5, 3}, {7, 2}, {1, 30}, {8, 17}, {16, 64}};
    checkpoint *whole = open_tiny(&(dummy_options){0}), *pieces;
    uint64_t copy[16];

    (void)state;
    assert_int_equal(checkpoint_open_dummy(&pieces, dir, &(dummy_options){0}, DUMMY_READ, NULL),
                     DI_OK);
    for (size_t i = 0; i < checkpoint_n_tensors(whole); i++) {
        const ckpt_tensor *t = checkpoint_find(whole, "%s", checkpoint_tensor(whole, i)->name);
        const ckpt_tensor *p = checkpoint_tensor(pieces, i);

        for (size_t j = 0; j < ARRAY_LEN(cut); j++) {
            size_t at = cut[j][0] % t->bytes;
            size_t n = cut[j][1] < t->bytes - at ? cut[j][1] : t->bytes - at;
            char *to = (char *)copy + j % 3;

            to[n] = 77;
            assert_int_equal(checkpoint_read(pieces, to, (const char *)p->data + at, n, NULL), 0);
            assert_memory_equal(to, (const char *)t->data + at, n);
            assert_int_equal(to[n], 77);
        }
    }
    checkpoint_close(whole);
    checkpoint_close(pieces);
}

static void test_without_memory_nothing_is_opened(void **state)
{
    checkpoint *c;

    (void)state;
    for (uint64_t n = 1;; n++) {
        di_code rc;

        mem_fail_at(n);
        rc = checkpoint_open_dummy(&c, dir, &(dummy_options){.n_layers = 2}, DUMMY_FOUND, NULL);
        mem_fail_at(0);
        if (rc == DI_OK)
            break;
        assert_int_equal(rc, DI_E_NOMEM);
        assert_null(c);
        assert_true(n < 10000);
    }
    checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_openings_have_the_same_bytes_and_shares_differ),
        cmocka_unit_test(test_a_dropped_tensor_comes_back_and_a_table_stays),
        cmocka_unit_test(test_matrices_keep_the_size_of_what_they_multiply),
        cmocka_unit_test(test_every_number_of_layers_is_a_sound_configuration),
        cmocka_unit_test(test_four_layers_of_the_release_have_each_kind),
        cmocka_unit_test(test_impossible_options_are_refused_with_their_limits),
        cmocka_unit_test(test_pieces_that_are_read_are_those_of_the_whole),
        cmocka_unit_test(test_without_memory_nothing_is_opened),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
