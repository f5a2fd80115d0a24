/* Sparse attention on AVX-512 has two ways to form its dots, chosen by the processor: both are
 * tested here, on any processor that has the instructions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention_dots.h"
#include "kernels/op_cases.h"

static kernels *open_backend(const char *name)
{
    kernels *k = NULL;
    di_status st = {0};
    kernels_options opt = {.backend = name, .numerics = NUMERICS_RELEASE, .n_threads = 2};
    op_case attention[64];
    kernel_limits lim;
    int n = 0;

    for (int i = 0; i < n_op_cases && n < 64; i++)
        if (op_cases[i].op == OP_ATTENTION && !(op_cases[i].flags & OP_BIG))
            attention[n++] = op_cases[i];
    lim = op_limits(attention, n);
    if (kernels_open(&k, &opt, &st) != DI_OK || k->ops->reserve(k, &lim, &st) != DI_OK)
        fail_msg("%s", st.message);
    return k;
}

/* The output of some items of a case. */
static float *run(kernels *k, const op_case *c, const int *item, int n, int64_t *width)
{
    op_inst *o = op_new(k, c, item, n);
    float *y;

    op_run(o);
    y = op_fetch(o, 0, width);
    op_free(o);
    return y;
}

static void check_against_ref(kernels *fast, kernels *ref, const op_case *c)
{
    int64_t width, own_width;
    float *want = run(ref, c, NULL, c->items, &width);
    float *got = run(fast, c, NULL, c->items, &width), *alone;
    int last = c->items - 1;
    double off = 0, size = 0;

    for (int64_t i = 0; i < c->items * width; i++) {
        off += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    if (!(off <= 1e-6 * size))
        fail_msg("\"%s\": off by %.2e of the rms", c->name, sqrt(off / size));
    alone = run(fast, c, &last, 1, &own_width); /* at most `width`: the longest item's */
    assert_memory_equal(alone, got + last * width, (size_t)own_width * sizeof *alone);
    free(want);
    free(got);
    free(alone);
}

static void check_all(bool bf16_dots)
{
    kernels *ref = open_backend("ref"), *fast = open_backend("avx512");

    attention_use_bf16_dots(fast, bf16_dots);
    for (int i = 0; i < n_op_cases; i++)
        if (op_cases[i].op == OP_ATTENTION && !(op_cases[i].flags & OP_BIG))
            check_against_ref(fast, ref, &op_cases[i]);
    kernels_close(ref);
    kernels_close(fast);
}

static void test_f32_dots_equal_ref_alone_and_in_a_batch(void **state)
{
    (void)state;
    check_all(false);
}

static void test_bf16_dots_equal_ref_alone_and_in_a_batch(void **state)
{
    (void)state;
    check_all(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32_dots_equal_ref_alone_and_in_a_batch),
        cmocka_unit_test(test_bf16_dots_equal_ref_alone_and_in_a_batch),
    };

    if (!kernels_avx512()) {
        printf("skipped: this processor lacks AVX-512 with BF16 and VNNI\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
