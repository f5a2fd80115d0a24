/* Runs the cases on a back end, on ref, alone and in company, and compares. */
#include "kernels/selftest.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "formats/scalar.h"
#include "kernels/selftest_internal.h"

static di_code open_env(selftest_env *e, const char *backend, int n_threads, di_status *st)
{
    const kernels_options opt = {.backend = backend, .n_threads = n_threads};
    const kernel_limits lim = selftest_limits();
    di_code rc = kernels_open(&e->k, &opt, st);

    if (rc != DI_OK)
        return rc;
    e->st = st;
    e->mem = arena_new((size_t)1 << 20);
    if (!e->mem)
        return di_fail(st, DI_E_NOMEM, "no memory for the selftest");
    return e->k->ops->reserve(e->k, &lim, st);
}

static void close_env(selftest_env *e)
{
    if (e->k)
        kernels_close(e->k);
    arena_free(e->mem);
}

static di_code run_rows(selftest_env *e, const selftest_case *c, int first, int n, float *y)
{
    di_code rc;

    c->run(e, first, n, y);
    rc = e->k->ops->finish(e->k, e->st);
    while (e->n_dev > 0)
        e->k->ops->buf_free(e->k, e->dev[--e->n_dev]);
    if (e->failed && rc == DI_OK)
        rc = di_fail(e->st, DI_E_NOMEM, "no memory for the selftest of %s", c->name);
    return rc;
}

static void unload(selftest_env *e)
{
    while (e->n_weights > 0)
        e->k->ops->unload(e->k, e->w[--e->n_weights]);
    arena_reset(e->mem);
}

/* Largest difference of an element over the rms of its row of `want`; infinite when a row is
 * nothing but zeros, for then nothing was tested. */
static double worst_difference(const float *got, const float *want, int cols)
{
    double worst = 0;

    for (int i = 0; i < SELFTEST_ROWS; i++) {
        double sum = 0, most = 0;

        for (int j = 0; j < cols; j++) {
            double w = (double)want[i * cols + j], off = fabs((double)got[i * cols + j] - w);

            sum += w * w;
            if (!(off <= most)) /* NaN counts */
                most = off;
        }
        most = sum > 0 ? most / sqrt(sum / cols) : INFINITY;
        if (!(most <= worst))
            worst = most;
    }
    return worst;
}

/* Results of one check: all rows by ref, by the back end on one thread and on all. */
typedef struct buffers {
    float want[SELFTEST_ROWS * SELFTEST_MAX_COLS], one[SELFTEST_ROWS * SELFTEST_MAX_COLS],
        many[SELFTEST_ROWS * SELFTEST_MAX_COLS], part[SELFTEST_ROWS * SELFTEST_MAX_COLS];
} buffers;

/* The same rows alone and in other company. */
static di_code run_parts(selftest_env *e, const selftest_case *c, buffers *b, bool *same,
                         di_status *st)
{
    static const int parts[][2] = {{0, 1}, {7, 1}, {SELFTEST_ROWS - 1, 1}, {3, 5}, {1, 16}};

    (void)st;
    *same = true;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        int first = parts[i][0], n = parts[i][1];
        size_t row = (size_t)c->cols;
        di_code rc = run_rows(e, c, first, n, b->part);

        if (rc != DI_OK)
            return rc;
        if (memcmp(b->part, b->many + (size_t)first * row, (size_t)n * row * sizeof(float)) != 0)
            *same = false;
    }
    return DI_OK;
}

static di_code run_check(selftest_env *ref, selftest_env *one, selftest_env *many,
                         const selftest_case *c, buffers *b, selftest_result *r, di_status *st)
{
    size_t bytes_all = SELFTEST_ROWS * (size_t)c->cols * sizeof(float);
    di_code rc;

    *r = (selftest_result){.name = c->name, .limit = c->limit};
    c->setup(ref);
    c->setup(one);
    c->setup(many);
    DI_TRY(run_rows(ref, c, 0, SELFTEST_ROWS, b->want));
    DI_TRY(run_rows(one, c, 0, SELFTEST_ROWS, b->one));
    DI_TRY(run_rows(many, c, 0, SELFTEST_ROWS, b->many));
    r->worst = worst_difference(b->many, b->want, c->cols);
    r->same_threads = memcmp(b->one, b->many, bytes_all) == 0;
    DI_TRY(run_parts(many, c, b, &r->same_alone, st));
    r->ok = r->worst <= c->limit && r->same_threads && r->same_alone;
done:
    unload(ref);
    unload(one);
    unload(many);
    return rc;
}

di_code selftest_backend(const char *backend, int n_threads, selftest_report report, void *arg,
                         int *n_failed, di_status *st)
{
    selftest_env ref = {0}, one = {0}, many = {0};
    buffers *b = mem_try_calloc(1, sizeof *b);
    di_code rc = DI_OK;

    *n_failed = 0;
    if (!b)
        return di_fail(st, DI_E_NOMEM, "no memory for the selftest");
    DI_TRY(open_env(&ref, "ref", 1, st));
    DI_TRY(open_env(&one, backend, 1, st));
    DI_TRY(open_env(&many, backend, n_threads, st));
    for (size_t i = 0; i < (size_t)selftest_n_cases; i++) {
        selftest_result r;

        DI_TRY(run_check(&ref, &one, &many, &selftest_cases[i], b, &r, st));
        *n_failed += !r.ok;
        report(arg, &r);
    }
done:
    close_env(&ref);
    close_env(&one);
    close_env(&many);
    mem_free(b);
    return rc;
}

/* ---- formats ---- */

static bool e4m3_ok(void)
{
    for (unsigned i = 0; i < 256; i++) {
        float x = e4m3_to_f32((uint8_t)i);
        unsigned m = i & 7u, exp = (i >> 3) & 15u;
        double want = exp ? ldexp(1.0 + m / 8.0, (int)exp - 7) : ldexp(m / 8.0, -6);

        if ((i & 0x7Fu) == 0x7Fu) {
            if (x == x)
                return false;
            continue;
        }
        if ((double)x != (i & 0x80u ? -want : want) || e4m3_from_f32(x) != i)
            return false;
    }
    /* Halfway between 1 and 1.125 goes to the even code; far out saturates. */
    return e4m3_from_f32(1.0625f) == 0x38 && e4m3_from_f32(1.1875f) == 0x3A &&
           e4m3_from_f32(1e9f) == 0x7E;
}

static bool e2m1_ok(void)
{
    static const float value[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

    for (unsigned i = 0; i < 16; i++) {
        float want = i & 8u ? -value[i & 7u] : value[i & 7u];

        if (e2m1_to_f32(i) != want || e2m1_from_f32(want) != i)
            return false;
    }
    return e2m1_from_f32(2.5f) == 4 && e2m1_from_f32(5.0f) == 6 && e2m1_from_f32(100.0f) == 7;
}

static bool bf16_ok(void)
{
    for (uint32_t i = 0; i < 65536; i++) {
        float x = bf16_to_f32((uint16_t)i);

        if (x == x && bf16_from_f32(x) != i)
            return false;
    }
    return bf16_from_f32(f32_from_bits(0x3F808000u)) == 0x3F80 &&
           bf16_from_f32(f32_from_bits(0x3F818000u)) == 0x3F82;
}

bool selftest_formats(void)
{
    for (int i = 1; i < 255; i++)
        if ((double)ue8m0_to_f32((uint8_t)i) != ldexp(1.0, i - 127))
            return false;
    return e4m3_ok() && e2m1_ok() && bf16_ok();
}
