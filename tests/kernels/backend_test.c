/* Every back end of this machine on the case table: against ref, and batch invariance.
 * With the argument "real" only the cases of real size, against ref. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/op_cases.h"

static int wanted; /* OP_BIG or 0 */

static bool is_wanted(const op_case *c)
{
    return (c->flags & (OP_BIG | OP_BENCH)) == wanted;
}

typedef struct fixture {
    const char *backend;
    numerics numerics;
} fixture;

static kernels *open_backend(const char *name, numerics num, int n_threads)
{
    kernels *k = NULL;
    di_status st = {0};
    kernels_options opt = {.backend = name, .numerics = num, .n_threads = n_threads};
    static op_case chosen[256];
    kernel_limits lim;
    int n = 0;

    for (int i = 0; i < n_op_cases && n < 256; i++)
        if (is_wanted(&op_cases[i]))
            chosen[n++] = op_cases[i];
    lim = op_limits(chosen, n);
    if (kernels_open(&k, &opt, &st) != DI_OK || k->ops->reserve(k, &lim, &st) != DI_OK)
        fail_msg("%s", st.message);
    return k;
}

/* The largest step between neighbouring values of a format, relative to the value. */
static double step_of(const op_case *c, op_out_kind kind)
{
    switch (kind) {
    case OUT_ACT:
        return 0x1p-7;
    case OUT_F32:
        return c->rel;
    case OUT_Q8:
    case OUT_RING_ROWS:
        return 0.1251; /* E4M3 */
    case OUT_STATE:
        return 1.0; /* E2M1: 0.5 to 1 */
    case OUT_I32:
        break;
    }
    return 0;
}

static double rms(const float *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return n ? sqrt(sum / (double)n) : 0;
}

/* Of rows whose values were rounded elsewhere on the way. */
static void compare_rms(const op_case *c, const char *output, const float *got, const float *want,
                        int item, int64_t width)
{
    double size = rms(want, width), sum = 0, allowed = c->device_rms * size + 1e-30;

    for (int64_t i = 0; i < width; i++) {
        double off = fabs((double)got[i] - (double)want[i]);

        if (!(off <= 16 * allowed + step_of(c, OUT_ACT) * fabs((double)want[i])))
            fail_msg("%s \"%s\" %s: item %d element %lld is %.9g, ref has %.9g (rms %.3g)",
                     op_name(c->op), c->name, output, item, (long long)i, (double)got[i],
                     (double)want[i], size);
        sum += off * off;
    }
    if (sqrt(sum / (double)width) > allowed)
        fail_msg("%s \"%s\" %s: item %d is off by %.3g rms, ref has %.3g", op_name(c->op), c->name,
                 output, item, sqrt(sum / (double)width), size);
}

static void compare(const op_case *c, bool device, op_inst *got_inst, op_inst *want_inst,
                    int output)
{
    op_out_kind kind = op_output_kind(want_inst, output);
    int64_t width, width_got, differ = 0;
    float *want = op_fetch(want_inst, output, &width);
    float *got = op_fetch(got_inst, output, &width_got);
    bool exact = kind == OUT_I32 || c->flips == 0;

    assert_int_equal(width, width_got);
    for (int item = 0; item < c->items; item++) {
        const float *w = want + item * width, *g = got + item * width;
        double size = rms(w, width);

        if (device && c->device_rms > 0) {
            compare_rms(c, op_output_name(want_inst, output), g, w, item, width);
            continue;
        }
        for (int64_t i = 0; i < width; i++) {
            double off = fabs((double)g[i] - (double)w[i]);
            double allowed =
                exact ? 0 : step_of(c, kind) * fabs((double)w[i]) * 1.001 + c->abs * size;

            if (!(off <= allowed))
                fail_msg("%s \"%s\" %s: item %d element %lld is %.9g, ref has %.9g (rms %.3g)",
                         op_name(c->op), c->name, op_output_name(want_inst, output), item,
                         (long long)i, (double)g[i], (double)w[i], size);
            differ += g[i] != w[i];
        }
    }
    if (kind != OUT_F32 && (double)differ > c->flips * (double)(c->items * width) + 2)
        fail_msg("%s \"%s\" %s: %lld of %lld elements differ from ref", op_name(c->op), c->name,
                 op_output_name(want_inst, output), (long long)differ,
                 (long long)(c->items * width));
    free(want);
    free(got);
}

static void run_without_allocating(op_inst *o)
{
    uint64_t before = mem_n_tries();

    op_run(o);
    assert_int_equal(mem_n_tries(), before);
}

static void test_equals_ref(void **state)
{
    const fixture *f = *state;
    kernels *ref = open_backend("ref", f->numerics, 1);
    kernels *fast = open_backend(f->backend, f->numerics, 2);
    bool device = !fast->pool;

    for (int i = 0; i < n_op_cases; i++) {
        const op_case *c = &op_cases[i];
        op_inst *want, *got;

        if (!is_wanted(c))
            continue;
        want = op_new(ref, c, NULL, c->items);
        got = op_new(fast, c, NULL, c->items);
        run_without_allocating(want);
        run_without_allocating(got);
        for (int out = 0; out < op_n_outputs(want); out++)
            compare(c, device, got, want, out);
        op_free(want);
        op_free(got);
    }
    if (device) /* the work was done there */
        assert_true(fast->ops->counters(fast).launches > 0);
    kernels_close(ref);
    kernels_close(fast);
}

/* The outputs of a selection of items have the bits that those items have among all. */
static void check_selection(kernels *k, const op_case *c, float *const *all, const int64_t *widths,
                            const int *item, int n)
{
    op_inst *o = op_new(k, c, item, n);

    op_run(o);
    for (int out = 0; out < op_n_outputs(o); out++) {
        int64_t width;
        float *y = op_fetch(o, out, &width);

        DI_CHECK(all[out]);
        for (int i = 0; i < n; i++) {
            int64_t both = width < widths[out] ? width : widths[out];
            const float *a = y + i * width, *b = all[out] + item[i] * widths[out];

            if (memcmp(a, b, (size_t)both * sizeof *a) != 0)
                fail_msg("%s \"%s\" %s: item %d has other bits as row %d of %d", op_name(c->op),
                         c->name, op_output_name(o, out), item[i], i, n);
        }
        free(y);
    }
    op_free(o);
}

/* Alone; some in another order and place; all in reverse; on one thread and on two. */
static void check_invariance(kernels *one, kernels *two, const op_case *c)
{
    op_inst *o = op_new(one, c, NULL, c->items);
    float *all[16] = {0};
    int64_t widths[16] = {0};
    int n_outputs = op_n_outputs(o), *item = malloc((size_t)c->items * sizeof *item);

    assert_non_null(item);
    op_run(o);
    for (int out = 0; out < n_outputs; out++)
        all[out] = op_fetch(o, out, &widths[out]);
    op_free(o);
    for (int i = 0; i < c->items; i += 1 + c->items / 5) {
        check_selection(one, c, all, widths, &i, 1);
        check_selection(two, c, all, widths, &i, 1);
    }
    for (int n = 2; n < c->items; n = n * 2 + 1) {
        for (int i = 0; i < n; i++)
            item[i] = (i * 7 + n) % c->items;
        check_selection(n % 2 ? one : two, c, all, widths, item, n);
    }
    for (int i = 0; i < c->items; i++)
        item[i] = c->items - 1 - i;
    check_selection(two, c, all, widths, item, c->items);
    for (int out = 0; out < n_outputs; out++)
        free(all[out]);
    free(item);
}

static void test_bits_of_a_row_do_not_depend_on_the_batch(void **state)
{
    const fixture *f = *state;
    kernels *one = open_backend(f->backend, f->numerics, 1);
    kernels *two = open_backend(f->backend, f->numerics, 2);

    for (int i = 0; i < n_op_cases; i++)
        if (is_wanted(&op_cases[i]))
            check_invariance(one, two, &op_cases[i]);
    kernels_close(one);
    kernels_close(two);
}

#define MAX_TESTS 16

static int add(struct CMUnitTest *tests, int n, const char *behaviour, CMUnitTestFunction test,
               const char *backend, numerics num)
{
    static fixture fixtures[MAX_TESTS];
    static char names[MAX_TESTS][96];

    fixtures[n] = (fixture){.backend = backend, .numerics = num};
    snprintf(names[n], sizeof names[n], "%s: %s", behaviour, backend);
    tests[n] =
        (struct CMUnitTest){.name = names[n], .test_func = test, .initial_state = &fixtures[n]};
    return n + 1;
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[MAX_TESTS];
    const char *only = getenv("DI_BACKEND"); /* one back end alone */
    int n = 0;

    wanted = argc > 1 && strcmp(argv[1], "real") == 0 ? OP_BIG : 0;
    for (const char *const *b = kernels_available(); *b && n + 3 < MAX_TESTS; b++) {
        if (only && strcmp(only, *b) != 0)
            continue;
        if (strcmp(*b, "ref") != 0)
            n = add(tests, n, "equals ref", test_equals_ref, *b, NUMERICS_RELEASE);
        if (!wanted)
            n = add(tests, n, "bits of a row do not depend on the batch",
                    test_bits_of_a_row_do_not_depend_on_the_batch, *b, NUMERICS_RELEASE);
    }
    if (!wanted && !only)
        n = add(tests, n, "bits of a row do not depend on the batch, numerics f32",
                test_bits_of_a_row_do_not_depend_on_the_batch, "ref", NUMERICS_F32);
    return n ? _cmocka_run_group_tests("kernels", tests, (size_t)n, NULL, NULL) : 77;
}
