/* Sizes of the released model (spec section 11), from its configuration and from the skeleton that
 * tools/make_skeleton.py writes: argument 1 is the folder of the skeleton, argument 2 that of the
 * small configuration. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/sizes.h"

#define FLASH "tests/data/checkpoint/config.flash.json"

static const char *skeleton, *small_skeleton;

static model_sizes flash_sizes(void)
{
    model_config c;
    model_sizes s;
    char *text;
    size_t n;

    assert_int_equal(file_read(&text, &n, FLASH, 1 << 20, NULL), DI_OK);
    assert_int_equal(config_parse(&c, text, n, FLASH, NULL), DI_OK);
    sizes_of(&s, &c);
    mem_free(text);
    return s;
}

/* Equal in the digits that the table of section 11 prints. */
static void assert_rounds_to(uint64_t v, double unit, double want, double half)
{
    double got = (double)v / unit;

    if (got < want - half || got > want + half)
        fail_msg("%g is not %g", got, want);
}

static void test_parts_equal_the_table(void **state)
{
    model_sizes s = flash_sizes();
    const part_size *p = s.part;

    (void)state;
    assert_int_equal(s.total.tensors, 96085);
    assert_int_equal(s.total.bytes, 510286023000);
    assert_rounds_to(s.total.params, 1e9, 763.2, 0.05);
    assert_rounds_to(s.backbone.params, 1e9, 551.88, 0.005);
    assert_rounds_to(p[CKPT_PART_EXPERTS].params, 1e9, 543.58, 0.005);
    assert_int_equal(p[CKPT_PART_EXPERTS].bytes, 288777830400);
    assert_int_equal(p[CKPT_PART_EXPERTS].bytes, 18800640 * UINT64_C(15360));
    assert_rounds_to(p[CKPT_PART_ATTENTION].params, 1e9, 5.065, 0.0005);
    assert_rounds_to(p[CKPT_PART_ATTENTION].bytes, 1e9, 5.07, 0.005);
    assert_rounds_to(p[CKPT_PART_SHARED].params, 1e9, 1.416, 0.0005);
    assert_rounds_to(p[CKPT_PART_SHARED].bytes, 1e9, 1.417, 0.0005);
    assert_rounds_to(p[CKPT_PART_EMBED].bytes, 1e9, 1.324, 0.0005);
    assert_rounds_to(p[CKPT_PART_HEAD].bytes, 1e9, 1.324, 0.0005);
    assert_rounds_to(p[CKPT_PART_ENGRAM].bytes, 1e9, 0.315, 0.0005);
    assert_rounds_to(p[CKPT_PART_ROUTER].bytes, 1e9, 0.157, 0.0005);
    assert_rounds_to(p[CKPT_PART_MHC].bytes, 1e9, 0.157, 0.0005);
    assert_rounds_to(p[CKPT_PART_INDEXER].bytes, 1e9, 0.045, 0.0005);
    assert_rounds_to(p[CKPT_PART_COMPRESSOR].bytes, 1e9, 0.037, 0.0005);
    assert_rounds_to(p[CKPT_PART_NORMS].bytes, 1e9, 0.001, 0.0005);
    assert_rounds_to(p[CKPT_PART_ENGRAM_TABLES].params, 1e9, 196.61, 0.005);
    assert_int_equal(p[CKPT_PART_ENGRAM_TABLES].bytes, 202758032400);
    assert_int_equal(p[CKPT_PART_DRAFT].bytes, 7932874632);
    assert_int_equal(p[CKPT_PART_DRAFT].tensors, 2401);
    assert_int_equal(p[CKPT_PART_VISION].tensors, 266);
    assert_rounds_to(p[CKPT_PART_VISION].params, 1e9, 0.485, 0.0005);
}

static void test_costs_of_a_token(void **state)
{
    model_sizes s = flash_sizes();

    (void)state;
    assert_rounds_to(s.active_prompt, 1e9, 7.90, 0.005);
    assert_rounds_to(s.active_output, 1e9, 16.13, 0.005);
    assert_true(s.kv_token_bytes == 890);
    assert_int_equal(s.ring_bytes, 2703360);
    assert_int_equal(s.draft_ring_bytes, 202752);
    assert_int_equal(s.open_bytes, 12288);
    assert_rounds_to(sizes_sequence(&s, 131072) - s.fixed_bytes, 1 << 20, 111, 0.5);
    assert_rounds_to(sizes_sequence(&s, 1048576) - s.fixed_bytes, 1 << 20, 890, 0.5);
    assert_true(s.fixed_bytes > s.ring_bytes + s.draft_ring_bytes + s.open_bytes);
    assert_int_equal(s.loaded_bytes + s.mapped_bytes + s.part[CKPT_PART_VISION].bytes,
                     s.total.bytes);
}

static double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void test_skeleton_of_the_release_opens_in_two_seconds(void **state)
{
    di_status st = {.code = DI_OK};
    double start = seconds_now();
    uint64_t bytes = 0;
    checkpoint *c;
    model_sizes s;

    (void)state;
    if (checkpoint_open(&c, skeleton, true, &st) != DI_OK)
        fail_msg("%s", st.message);
    sizes_of(&s, checkpoint_config(c));
    printf("opened in %.3f s of processor time\n", seconds_now() - start);
    assert_true(seconds_now() - start < 2);
    assert_int_equal(checkpoint_n_shards(c), 48);
    assert_int_equal(checkpoint_n_tensors(c), 96085);
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++)
        bytes += checkpoint_tensor(c, i)->bytes;
    assert_int_equal(bytes, 510286023000);
    assert_int_equal(s.total.bytes, bytes);
    checkpoint_close(c);
}

/* Two lists of tensors, written down independently, for a configuration unlike the release. */
static void test_skeleton_of_the_small_configuration_opens(void **state)
{
    di_status st = {.code = DI_OK};
    checkpoint *c;

    (void)state;
    if (checkpoint_open(&c, small_skeleton, false, &st) != DI_OK)
        fail_msg("%s", st.message);
    assert_int_equal(checkpoint_n_shards(c), 5);
    assert_int_equal(checkpoint_config(c)->n_layers, 4);
    if (checkpoint_verify(c, NULL, NULL, &st) != DI_OK) /* holes read as zeros: 2^-127 */
        fail_msg("%s", st.message);
    checkpoint_close(c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_equal_the_table),
        cmocka_unit_test(test_costs_of_a_token),
        cmocka_unit_test(test_skeleton_of_the_release_opens_in_two_seconds),
        cmocka_unit_test(test_skeleton_of_the_small_configuration_opens),
    };

    if (argc != 3) {
        fprintf(stderr, "usage: %s RELEASE_DIR SMALL_DIR (written by tools/make_skeleton.py)\n",
                argv[0]);
        return 2;
    }
    skeleton = argv[1];
    small_skeleton = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
