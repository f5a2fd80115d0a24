/* A whole checkpoint: sound ones open in any split, damaged ones are refused before anything else
 * happens, with a message that names file and tensor. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "unit/checkpoint_maker.h"

static void assert_opens(const maker *m, bool headers_only)
{
    di_status st = {.code = DI_OK};
    checkpoint *c;

    if (checkpoint_open(&c, m->dir, headers_only, &st) != DI_OK)
        fail_msg("%s", st.message);
    assert_int_equal(checkpoint_n_tensors(c), m->n);
    checkpoint_close(c);
}

/* Refused by a message that holds all the words, with and without the payload. */
static void assert_refused(const maker *m, di_code code, const char *a, const char *b)
{
    for (int headers_only = 0; headers_only < 2; headers_only++) {
        di_status st = {.code = DI_OK};
        checkpoint *c;

        if (checkpoint_open(&c, m->dir, headers_only, &st) == DI_OK)
            fail_msg("opened, but \"%s\" \"%s\" was expected", a, b);
        assert_null(c);
        if (st.code != code || !strstr(st.message, a) || !strstr(st.message, b))
            fail_msg("%s \"%s\" lacks \"%s\" or \"%s\"", di_code_name(st.code), st.message, a, b);
    }
}

static void test_any_split_opens(void **state)
{
    static const int splits[] = {1, 2, 3, 7, 48};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(splits); i++) {
        maker m;

        maker_init(&m, splits[i]);
        maker_write(&m);
        assert_opens(&m, false);
        assert_opens(&m, true);
        maker_fini(&m);
    }
}

static void test_single_file_needs_no_index(void **state)
{
    maker m;

    (void)state;
    maker_init(&m, 1);
    m.no_index = true;
    maker_write(&m);
    assert_opens(&m, false);
    assert_int_equal(remove(maker_path(&m, 0)), 0);
    assert_refused(&m, DI_E_IO, m.dir, "model.safetensors.index.json");
    maker_fini(&m);
}

static void test_several_files_need_an_index(void **state)
{
    maker m;

    (void)state;
    maker_init(&m, 3);
    maker_write(&m);
    assert_int_equal(remove(maker_file(&m, "model.safetensors.index.json")), 0);
    assert_refused(&m, DI_E_IO, m.dir, "model.safetensors.index.json");
    maker_fini(&m);
}

static void test_tensors_are_found_with_their_data(void **state)
{
    di_status st = {.code = DI_OK};
    const ckpt_tensor *t;
    checkpoint *c;
    maker m;

    (void)state;
    maker_init(&m, 3);
    maker_write(&m);
    assert_int_equal(checkpoint_open(&c, m.dir, false, &st), DI_OK);
    assert_int_equal(checkpoint_n_shards(c), 3);
    assert_string_equal(checkpoint_shard_name(c, 2), "model-00003-of-00003.safetensors");
    assert_string_equal(checkpoint_dir(c), m.dir);
    assert_int_equal(checkpoint_config(c)->hidden, 64);
    assert_null(checkpoint_find(c, "layers.%d.attn.wq_x.weight", 1));
    for (size_t i = 0; i < m.n; i++) {
        t = checkpoint_find(c, "%s", m.tensor[i].name);
        assert_non_null(t);
        assert_int_equal(t->bytes, m.tensor[i].bytes);
        assert_int_equal(t->shard, m.tensor[i].shard);
        for (size_t b = 0; b < t->bytes; b++)
            if (((const unsigned char *)t->data)[b] != 7 * b % 200)
                fail_msg("%s differs at byte %zu", t->name, b);
    }
    t = checkpoint_find(c, "layers.%d.ffn.experts.%d.w2.weight", 3, 2);
    assert_int_equal(t->type, DTYPE_I8);
    assert_int_equal(t->shape[0], 64);
    assert_int_equal(t->shape[1], 16);
    t = checkpoint_find(c, "norm.weight");
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->shape[1], 1);
    assert_string_equal(checkpoint_tensor(c, 0)->name, "embed.weight");
    checkpoint_close(c);
    maker_fini(&m);
}

/* A writer that puts a single byte first leaves the floats behind it at odd places. */
static void test_unaligned_tensors_are_copied(void **state)
{
    di_status st = {.code = DI_OK};
    made_tensor *one, first;
    checkpoint *c;
    maker m;
    size_t n_odd = 0;

    (void)state;
    maker_init(&m, 1);
    one = maker_find(&m, "layers.0.attn.wo_a.scale");
    assert_int_equal(one->bytes, 1);
    first = *one;
    memmove(m.tensor + 1, m.tensor, (size_t)(one - m.tensor) * sizeof first);
    m.tensor[0] = first;
    maker_layout(&m);
    maker_write(&m);
    assert_int_equal(checkpoint_open(&c, m.dir, false, &st), DI_OK);
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const ckpt_tensor *t = checkpoint_tensor(c, i);

        n_odd += t->offset % dtype_bytes(t->type) != 0;
        assert_int_equal((uintptr_t)t->data % dtype_bytes(t->type), 0);
        for (size_t b = 0; b < t->bytes; b++)
            assert_int_equal(((const unsigned char *)t->data)[b], 7 * b % 200);
    }
    assert_true(n_odd > 100); /* the case is really there */
    checkpoint_close(c);
    maker_fini(&m);
}

/* Public failure A2: shorter than the header says. */
static void test_truncated_shard_is_refused(void **state)
{
    static const long cuts[] = {1, 4096, 1 << 20};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cuts); i++) {
        maker m;
        made_tensor *t;
        char missing[64], *config;

        maker_init(&m, 3);
        /* a shard of more than 1 MiB, or the cut would take the header with it */
        config = json_edit(m.config, NULL, "vocab_size", "20000");
        mem_free(m.config);
        m.config = config;
        t = maker_find(&m, "head.weight");
        t->shape[0] = 20000;
        t->bytes = 20000 * 64 * 2;
        for (size_t k = 0; k < m.n; k++)
            if (strstr(m.tensor[k].name, "markov_head") ||
                !strcmp(m.tensor[k].name, "embed.weight")) {
                m.tensor[k].shape[0] = 20000;
                m.tensor[k].bytes = (size_t)(20000 * m.tensor[k].shape[1]) * 2;
            }
        maker_layout(&m);
        maker_write(&m);
        assert_opens(&m, false);
        assert_int_equal(
            truncate(maker_path(&m, t->shard), maker_file_size(maker_path(&m, t->shard)) - cuts[i]),
            0);
        snprintf(missing, sizeof missing, "%ld bytes are missing", cuts[i]);
        assert_refused(&m, DI_E_FORMAT, maker_path(&m, t->shard), missing);
        maker_fini(&m);
    }
}

static void test_missing_shard_is_refused(void **state)
{
    maker m;
    size_t n = 0, bytes = 0;
    char missing[100];

    (void)state;
    maker_init(&m, 3);
    maker_write(&m);
    for (size_t i = 0; i < m.n; i++)
        if (m.tensor[i].shard == 1) {
            n++;
            bytes += m.tensor[i].bytes;
        }
    snprintf(missing, sizeof missing, "%zu tensors of %zu bytes", n, bytes);
    assert_int_equal(remove(maker_path(&m, 1)), 0);
    assert_refused(&m, DI_E_IO, maker_path(&m, 1), missing);
    maker_fini(&m);
}

static void test_missing_folder_or_config_is_refused(void **state)
{
    maker m;
    di_status st = {.code = DI_OK};
    checkpoint *c;

    (void)state;
    maker_init(&m, 1);
    maker_write(&m);
    assert_int_equal(checkpoint_open(&c, maker_file(&m, "config.json"), false, &st), DI_E_IO);
    assert_non_null(strstr(st.message, "is not a folder"));
    di_clear(&st);
    assert_int_equal(checkpoint_open(&c, maker_file(&m, "absent"), false, &st), DI_E_IO);
    assert_non_null(strstr(st.message, "absent"));
    assert_int_equal(remove(maker_file(&m, "config.json")), 0);
    assert_refused(&m, DI_E_IO, m.dir, "config.json");
    maker_fini(&m);
}

/* Change one tensor of a sound checkpoint, then expect a refusal. */
typedef struct change {
    const char *tensor;
    void (*apply)(maker *m, made_tensor *t);
    const char *words;
} change;

static void wrong_type(maker *m, made_tensor *t)
{
    (void)m;
    t->dtype = strcmp(t->dtype, "F8_E8M0") == 0 || strcmp(t->dtype, "I8") == 0 ? "F8_E4M3" : "I8";
    t->shape[t->n_dims - 1] *= (int64_t)t->bytes / (t->shape[0] * t->shape[1]);
}

static void transposed(maker *m, made_tensor *t)
{
    int64_t rows = t->shape[0];

    (void)m;
    t->shape[0] = t->shape[1];
    t->shape[1] = rows;
}

static void extra_dimension(maker *m, made_tensor *t)
{
    (void)m;
    t->n_dims++;
}

static void one_row_more(maker *m, made_tensor *t)
{
    t->bytes += t->bytes / (size_t)t->shape[0];
    t->shape[0]++;
    maker_layout(m);
}

static void renamed(maker *m, made_tensor *t)
{
    (void)m;
    t->name[strlen(t->name) - 1] ^= 1;
}

static void absent(maker *m, made_tensor *t)
{
    t->shard = t->index_shard = -1;
    maker_layout(m);
}

static void in_wrong_shard_of_index(maker *m, made_tensor *t)
{
    t->index_shard = (t->shard + 1) % m->n_shards;
}

static void not_in_index(maker *m, made_tensor *t)
{
    (void)m;
    t->index_shard = -1;
}

static void in_index_only(maker *m, made_tensor *t)
{
    t->shard = -1;
    maker_layout(m);
}

/* The name of another tensor of another shard. */
static void second_copy(maker *m, made_tensor *t)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->tensor[i].shard != t->shard) {
            snprintf(t->name, sizeof t->name, "%s", m->tensor[i].name);
            return;
        }
}

static const change changes[] = {
    {"head.weight", wrong_type, "is I8; this model stores it as BF16"},
    {"layers.1.attn.wq_b.scale", wrong_type, "is F8_E4M3; this model stores it as F8_E8M0"},
    {"layers.3.ffn.experts.1.w1.weight", wrong_type, "is F8_E4M3; this model stores it as I8"},
    {"layers.0.hc_attn_base", wrong_type, "is I8; this model stores it as F32"},
    {"layers.1.attn.wq_b.weight", transposed, "has shape [32,64]; config.json wants [64,32]"},
    {"mtp.1.confidence_head.proj.weight", transposed, "has shape [96,1]"},
    {"norm.weight", extra_dimension, "has shape [64,1]; config.json wants [64]"},
    {"layers.2.engram.embed.weight", one_row_more, "has shape [49,32]; config.json wants [48,32]"},
    {"layers.2.engram.embed.weight", extra_dimension, "has shape [48,32,1]"},
    {"layers.2.attn.indexer.wk.weight", renamed,
     "indexer.wk.weight\" (BF16 [32,32]) is in no shard"},
    {"layers.0.ffn.gate.bias_vl", absent, "in no shard"},
    {"vision.norm.weight", absent, "in no shard"},
    {"mtp.0.main_norm.weight", absent, "(BF16 [64]) is in no shard"},
    {"layers.3.attn.indexer.weights_proj.weight", in_wrong_shard_of_index, "but it is in"},
    {"aligner.w1.bias", not_in_index, "lacks tensor"},
    {"image_newline", in_index_only, "which does not have it"},
    {"layers.1.attn.compressor.wgate.weight", second_copy, "stands in"},
};

static void test_changed_tensors_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
        maker m;
        made_tensor *t;

        maker_init(&m, 3);
        t = maker_find(&m, changes[i].tensor);
        changes[i].apply(&m, t);
        maker_write(&m);
        assert_refused(&m, DI_E_FORMAT, changes[i].apply == renamed ? m.dir : t->name,
                       changes[i].words);
        maker_fini(&m);
    }
}

static void test_unknown_tensors_are_refused(void **state)
{
    maker m;
    char *config;

    (void)state;
    maker_init(&m, 2);
    config = json_edit(m.config, "\"vision_config\"", "num_hidden_layers", "0");
    mem_free(m.config);
    m.config = config;
    maker_write(&m);
    assert_refused(&m, DI_E_FORMAT, "is not part of the model", "unknown tensors in all");
    maker_fini(&m);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void test_bad_index_is_refused(void **state)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "index.json"},
        {"{}", "weight_map is missing"},
        {"{\"weight_map\":{}}", "weight_map is missing"},
        {"{\"weight_map\":[]}", "index.json"},
        {"{\"weight_map\":{\"a\":1}}", "index.json"},
        {"{\"weight_map\":{\"a\":\"x\"},\"weight_map\":{}}", "twice"},
        {"{\"weight_map\":{\"a\":\"../model.safetensors\"}}", "plain name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "plain name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "plain name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "plain name"},
        {"{\"weight_map\":{\"a\":\"x\\u0000y\"}}", "plain name"},
        {"{\"weight_map\":{\"a\\nb\":\"x\"}}", "control character"},
        {"{\"weight_map\":{\"\":\"x\"}}", "tensor name"},
        {"{\"weight_map\":{\"a\":\"absent.safetensors\"}}", "absent.safetensors"},
    };
    maker m;

    (void)state;
    maker_init(&m, 2);
    maker_write(&m);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        write_text(maker_file(&m, "model.safetensors.index.json"), bad[i].text);
        assert_refused(&m, strstr(bad[i].words, "absent") ? DI_E_IO : DI_E_FORMAT, bad[i].words,
                       m.dir);
    }
    maker_fini(&m);
}

/* Public failure A1: every scale byte but 255 is a number. */
static void poke_scale(const maker *m, const char *name, size_t at, int byte)
{
    di_status st = {.code = DI_OK};
    checkpoint *c;
    const ckpt_tensor *t;
    FILE *f;

    assert_int_equal(checkpoint_open(&c, m->dir, true, &st), DI_OK);
    t = checkpoint_find(c, "%s", name);
    f = fopen(maker_path(m, t->shard), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)(t->offset + at), SEEK_SET), 0);
    putc(byte, f);
    assert_int_equal(fclose(f), 0);
    checkpoint_close(c);
}

static void test_scale_bytes_below_255_are_sound(void **state)
{
    di_status st = {.code = DI_OK};
    checkpoint *c;
    maker m;

    (void)state;
    maker_init(&m, 2);
    maker_write(&m);
    for (size_t i = 0; i < 64; i++) /* 64 rows, one block of 32 columns */
        poke_scale(&m, "layers.1.ffn.experts.0.w2.scale", i, i < 32 ? (int)i : 254 - (int)i + 32);
    assert_int_equal(checkpoint_open(&c, m.dir, false, &st), DI_OK);
    assert_int_equal(
        checkpoint_scale_check(c, checkpoint_find(c, "layers.1.ffn.experts.0.w2.scale"), &st),
        DI_OK);
    assert_int_equal(checkpoint_verify(c, NULL, NULL, &st), DI_OK);
    checkpoint_close(c);
    maker_fini(&m);
}

/* The bytes around `at` are fine, those with it are refused with the words of `want`. */
static void expect_read_refuses(const checkpoint *c, const ckpt_tensor *t, size_t at,
                                const di_status *want)
{
    di_status st = {.code = DI_OK};
    const char *data = t->data;
    char *copy = mem_try_calloc(t->bytes, 1);

    assert_non_null(copy);
    assert_int_equal(checkpoint_read(c, copy, data, at, &st), DI_OK);
    assert_int_equal(checkpoint_read(c, copy, data + at + 1, t->bytes - at - 1, &st), DI_OK);
    assert_int_equal(checkpoint_read(c, copy, data + at, 1, &st), DI_E_FORMAT);
    assert_string_equal(st.message, want->message);
    mem_free(copy);
}

static void test_scale_byte_255_is_named_with_its_block(void **state)
{
    static const struct {
        const char *name;
        size_t at;
        const char *block;
    } bad[] = {
        {"layers.2.ffn.experts.1.w1.scale", 9, "[4,1]"}, /* [32,2] */
        {"layers.0.engram.embed.scale", 39, "[39,0]"},   /* [40,1] */
        {"mtp.0.main_proj.scale", 7, "[1,3]"},           /* [2,4] */
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        di_status st = {.code = DI_OK}, all = {.code = DI_OK};
        checkpoint *c;
        maker m;

        maker_init(&m, 2);
        maker_write(&m);
        poke_scale(&m, bad[i].name, bad[i].at, 255);
        assert_int_equal(checkpoint_open(&c, m.dir, false, &st), DI_OK);
        assert_int_equal(checkpoint_scale_check(c, checkpoint_find(c, "%s", bad[i].name), &st),
                         DI_E_FORMAT);
        assert_non_null(strstr(st.message, bad[i].name));
        assert_non_null(strstr(st.message, bad[i].block));
        assert_non_null(strstr(st.message, ".safetensors"));
        assert_int_equal(checkpoint_verify(c, NULL, NULL, &all), DI_E_FORMAT);
        assert_string_equal(st.message, all.message);
        expect_read_refuses(c, checkpoint_find(c, "%s", bad[i].name), bad[i].at, &all);
        checkpoint_close(c);
        maker_fini(&m);
    }
}

/* Bytes are those of the data, from any place on, also of tensors that lie elsewhere as a copy. */
static void test_reading_gives_the_bytes_of_the_data(void **state)
{
    di_status st = {.code = DI_OK};
    made_tensor *one, first;
    checkpoint *c;
    maker m;

    (void)state;
    maker_init(&m, 3);
    one = maker_find(&m, "layers.0.attn.wo_a.scale");
    assert_int_equal(one->bytes, 1); /* in front of others, it puts them at odd places */
    first = *one;
    *one = m.tensor[0];
    m.tensor[0] = first;
    maker_layout(&m);
    maker_write(&m);
    assert_int_equal(checkpoint_open(&c, m.dir, false, &st), DI_OK);
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const ckpt_tensor *t = checkpoint_tensor(c, i);
        const char *data = t->data;
        size_t half = t->bytes / 2;
        char *copy = mem_try_calloc(t->bytes + 1, 1);

        assert_non_null(copy);
        copy[t->bytes] = 77;
        assert_int_equal(checkpoint_read(c, copy + half, data + half, t->bytes - half, &st), DI_OK);
        assert_int_equal(checkpoint_read(c, copy, data, half, &st), DI_OK);
        assert_memory_equal(copy, data, t->bytes);
        assert_int_equal(copy[t->bytes], 77);
        mem_free(copy);
    }
    checkpoint_close(c);
    maker_fini(&m);
}

static void note_progress(void *arg, uint64_t done, uint64_t total)
{
    uint64_t *last = arg;

    assert_true(done > last[0] && done <= total);
    last[0] = done;
    last[1] = total;
}

static void test_verify_reports_progress(void **state)
{
    di_status st = {.code = DI_OK};
    uint64_t last[2] = {0, 0}, scales = 0;
    checkpoint *c;
    maker m;

    (void)state;
    maker_init(&m, 2);
    maker_write(&m);
    for (size_t i = 0; i < m.n; i++)
        if (strstr(m.tensor[i].name, ".scale"))
            scales += m.tensor[i].bytes;
    assert_int_equal(checkpoint_open(&c, m.dir, false, &st), DI_OK);
    assert_int_equal(checkpoint_verify(c, note_progress, last, &st), DI_OK);
    assert_int_equal(last[0], scales);
    assert_int_equal(last[1], scales);
    checkpoint_close(c);
    assert_int_equal(checkpoint_open(&c, m.dir, true, &st), DI_OK);
    assert_int_equal(checkpoint_verify(c, NULL, NULL, &st), DI_E_INVALID); /* nothing is mapped */
    checkpoint_close(c);
    maker_fini(&m);
}

/* Every allocation of an open may fail; the leak checker of the sanitizer build looks on. */
static void fail_each_allocation(const maker *m, bool headers_only)
{
    di_status st = {.code = DI_OK};
    checkpoint *c = NULL;
    di_code rc = DI_E_NOMEM;
    uint64_t n = 0;

    while (rc != DI_OK) {
        di_clear(&st);
        mem_fail_at(++n);
        rc = checkpoint_open(&c, m->dir, headers_only, &st);
        mem_fail_at(0);
        if (rc != DI_OK && rc != DI_E_NOMEM)
            fail_msg("try %d: %s", (int)n, st.message);
        assert_true((rc == DI_OK) == (c != NULL));
    }
    assert_true(n > 20);
    checkpoint_close(c);
}

static void test_out_of_memory_is_reported(void **state)
{
    maker m;

    (void)state;
    maker_init(&m, 3);
    maker_write(&m);
    fail_each_allocation(&m, true);
    fail_each_allocation(&m, false);
    assert_int_equal(remove(maker_path(&m, 2)), 0); /* the message of a missing shard allocates */
    for (uint64_t n = 1;; n++) {
        di_status st = {.code = DI_OK};
        checkpoint *c;
        di_code rc;

        mem_fail_at(n);
        rc = checkpoint_open(&c, m.dir, true, &st);
        mem_fail_at(0);
        if (rc == DI_E_IO)
            break;
        assert_int_equal(rc, DI_E_NOMEM);
    }
    maker_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_split_opens),
        cmocka_unit_test(test_single_file_needs_no_index),
        cmocka_unit_test(test_several_files_need_an_index),
        cmocka_unit_test(test_tensors_are_found_with_their_data),
        cmocka_unit_test(test_unaligned_tensors_are_copied),
        cmocka_unit_test(test_truncated_shard_is_refused),
        cmocka_unit_test(test_missing_shard_is_refused),
        cmocka_unit_test(test_missing_folder_or_config_is_refused),
        cmocka_unit_test(test_changed_tensors_are_named),
        cmocka_unit_test(test_unknown_tensors_are_refused),
        cmocka_unit_test(test_bad_index_is_refused),
        cmocka_unit_test(test_scale_bytes_below_255_are_sound),
        cmocka_unit_test(test_scale_byte_255_is_named_with_its_block),
        cmocka_unit_test(test_reading_gives_the_bytes_of_the_data),
        cmocka_unit_test(test_verify_reports_progress),
        cmocka_unit_test(test_out_of_memory_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
