/* Percentiles, Pareto fronts, marks of axes, and PNG files. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/mem.h"
#include "cli/chart.h"
#include "cli/measure.h"

static void assert_near(double got, double want)
{
    if (fabs(got - want) > 1e-9 * fabs(want))
        fail_msg("%.12g is not %.12g", got, want);
}

static void test_percentiles_are_nearest_ranks_of_any_order(void **state)
{
    double v[100], one[1] = {7};
    spread s;

    (void)state;
    for (int i = 0; i < 100; i++)
        v[i] = (double)((i * 37) % 100 + 1);
    s = spread_of(v, 100);
    assert_near(s.p50, 50);
    assert_near(s.p90, 90);
    assert_near(s.p99, 99);
    s = spread_of(one, 1);
    assert_near(s.p50, 7);
    assert_near(s.p99, 7);
    s = spread_of(v, 0);
    assert_true(s.p50 == 0 && s.p99 == 0);
}

/* By the definition: on the front exactly when no other point is as good in both and better in one.
 */
static void test_the_front_is_what_nothing_beats(void **state)
{
    (void)state;
    srand(5);
    for (int round = 0; round < 300; round++) {
        double x[12], y[12];
        bool front[12], less = round % 2;
        int n = 1 + round % 12;

        for (int i = 0; i < n; i++) {
            x[i] = rand() % 6; /* NOLINT(cert-msc30-c,cert-msc50-cpp) */
            y[i] = rand() % 6; /* NOLINT(cert-msc30-c,cert-msc50-cpp) */
        }
        pareto_mark(x, y, n, less, front);
        for (int i = 0; i < n; i++) {
            bool beaten = y[i] == 0, twin = false;

            for (int j = 0; j < n; j++) {
                double dx = less ? x[i] - x[j] : x[j] - x[i], dy = y[j] - y[i];

                beaten = beaten || (y[j] > 0 && dx >= 0 && dy >= 0 && (dx > 0 || dy > 0));
                twin = twin || (j < i && dx == 0 && dy == 0);
            }
            assert_int_equal(front[i], !beaten && !twin);
        }
    }
}

static void test_axis_marks_are_round_and_reach_the_top(void **state)
{
    (void)state;
    for (int i = 0; i < 70; i++) {
        double tick[12], top = 0.003 * pow(1.37, i);
        int n = chart_ticks(top, tick);

        assert_in_range(n, 4, 12);
        assert_true(tick[0] == 0);
        assert_true(tick[n - 1] >= top * (1 - 1e-6) && tick[n - 2] < top);
    }
}

static void test_logarithmic_marks_enclose_the_values(void **state)
{
    double tick[24];
    int n = chart_log_ticks(130, 6600, tick);

    (void)state;
    assert_int_equal(n, 7);
    assert_near(tick[0], 100);
    assert_near(tick[1], 200);
    assert_near(tick[6], 10000);
    for (int i = 0; i < 30; i++) {
        double lo = 0.02 * pow(1.7, i);

        n = chart_log_ticks(lo, lo * 40, tick);
        assert_true(tick[0] <= lo && tick[1] > lo && tick[n - 1] >= lo * 40);
    }
}

/* A decoder of what png.c writes: stored bits back into bytes. */
typedef struct reader {
    const uint8_t *p;
    size_t at; /* bit */
} reader;

static uint32_t bits(reader *r, int n)
{
    uint32_t v = 0;

    for (int i = 0; i < n; i++, r->at++)
        v |= (uint32_t)(r->p[r->at / 8] >> (r->at % 8) & 1) << i;
    return v;
}

static uint32_t code(reader *r, int n)
{
    uint32_t v = 0;

    while (n-- > 0)
        v = v << 1 | bits(r, 1);
    return v;
}

static uint32_t symbol(reader *r)
{
    uint32_t v = code(r, 7);

    if (v < 24)
        return 256 + v;
    v = v << 1 | bits(r, 1);
    if (v < 0xC0)
        return v - 0x30;
    if (v < 0xC8)
        return v - 0xC0 + 280;
    return (v << 1 | bits(r, 1)) - 0x190 + 144;
}

/* Inflate a block of the fixed code with distance 1; returns the bytes written. */
static size_t inflate_runs(const uint8_t *p, uint8_t *out, size_t cap)
{
    static const int base[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                               31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    reader r = {.p = p};
    size_t n = 0;

    assert_int_equal(bits(&r, 3), 3);
    for (;;) {
        uint32_t s = symbol(&r), len;

        if (s == 256)
            return n;
        if (s < 256) {
            assert_true(n < cap);
            out[n++] = (uint8_t)s;
            continue;
        }
        s -= 257;
        len = (uint32_t)base[s] + (s < 8 || s == 28 ? 0 : bits(&r, (int)s / 4 - 1));
        assert_int_equal(code(&r, 5), 0);
        assert_true(n > 0 && n + len <= cap);
        for (; len > 0; len--, n++)
            out[n] = out[n - 1];
    }
}

static void test_a_png_holds_its_pixels(void **state)
{
    enum { W = 301, H = 7 };
    uint8_t rgb[W * H * 3], rows[(W * 3 + 1) * H];
    size_t row = W * 3;
    str file = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rgb; i++) /* runs of every length, and noise */
        rgb[i] = (uint8_t)(i % 613 < 400 ? 200 : i * i * 31 >> 3);
    png_encode(&file, rgb, W, H);
    assert_true(str_ok(&file));
    assert_memory_equal(file.data, "\x89PNG\r\n\x1A\n", 8);
    assert_memory_equal(file.data + 12, "IHDR", 4);
    assert_memory_equal(file.data + 37, "IDAT", 4);
    assert_int_equal(inflate_runs((uint8_t *)file.data + 43, rows, sizeof rows), sizeof rows);
    for (size_t y = 0; y < H; y++) {
        assert_int_equal(rows[y * (row + 1)], 2);
        for (size_t i = 0; i < row; i++) {
            uint8_t up = y ? rgb[(y - 1) * row + i] : 0;

            assert_int_equal((uint8_t)(rows[y * (row + 1) + 1 + i] + up), rgb[y * row + i]);
        }
    }
    assert_memory_equal(file.data + file.len - 12, "\0\0\0\0IEND\xAE\x42\x60\x82", 12);
    str_fini(&file);
}

/* Strokes stay on the grid, and come in whole points. */
static void test_every_character_of_the_font_is_well_formed(void **state)
{
    (void)state;
    for (int c = 1; c < 128; c++) {
        const char *s = font_strokes((char)c);

        assert_non_null(s);
        for (; *s; s += *s == ' ' ? 1 : 2)
            if (*s != ' ' && !(s[0] >= '0' && s[0] <= '4' && s[1] >= '0' && s[1] <= '8'))
                fail_msg("character %d: \"%s\"", c, s);
    }
}

static void test_without_memory_a_chart_is_an_error(void **state)
{
    canvas c;
    str file = {0};

    (void)state;
    mem_fail_at(1);
    assert_int_equal(canvas_init_png(&c, 20, 20, NULL), DI_E_NOMEM);
    canvas_fini(&c);
    mem_fail_at(0);
    assert_int_equal(canvas_init_png(&c, 20, 20, NULL), DI_OK);
    mem_fail_at(1);
    assert_int_equal(canvas_finish(&c, &file, NULL), DI_E_NOMEM);
    mem_fail_at(0);
    canvas_fini(&c);
    str_fini(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles_are_nearest_ranks_of_any_order),
        cmocka_unit_test(test_the_front_is_what_nothing_beats),
        cmocka_unit_test(test_axis_marks_are_round_and_reach_the_top),
        cmocka_unit_test(test_logarithmic_marks_enclose_the_values),
        cmocka_unit_test(test_a_png_holds_its_pixels),
        cmocka_unit_test(test_every_character_of_the_font_is_well_formed),
        cmocka_unit_test(test_without_memory_a_chart_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
