/* See chart.h. */
#include "cli/chart.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

#define WIDTH      880.0
#define HEIGHT     540.0
#define LEFT       92.0
#define TOP        78.0
#define RIGHT      690.0
#define BOTTOM     448.0
#define MAX_TICKS  24
#define INK        0x24292Fu
#define GREY       0x6B737Cu
#define GRID       0xE4E7EBu
#define FRONT      0x9AA2ABu
#define PAPER      0xFFFFFFu
#define FRONT_DASH 5.0

/* Told apart without colour vision too (after Okabe and Ito). */
static const uint32_t palette[CHART_MAX_SERIES] = {0x0072B2, 0xD55E00, 0x009E73, 0xCC79A7,
                                                   0xE69F00, 0x56B4E9, 0x7A5195, 0x333333};

typedef struct axis {
    double lo, hi;
    bool log;
    double from, to; /* on the page */
    double tick[MAX_TICKS];
    int n;
} axis;

int chart_ticks(double top, double *tick)
{
    double raw = top > 0 ? top / 8 : 1, unit = pow(10, floor(log10(raw)));
    double step = raw / unit > 5   ? 10 * unit
                  : raw / unit > 2 ? 5 * unit
                  : raw / unit > 1 ? 2 * unit
                                   : unit;
    int n = 0;

    while (n < 11 && (n == 0 || (n - 1) * step < top * (1 - 1e-9))) {
        tick[n] = n * step;
        n++;
    }
    return n;
}

int chart_log_ticks(double lo, double hi, double *tick)
{
    static const double of[3] = {1, 2, 5};
    double decade = pow(10, floor(log10(lo)));
    int n = 0;

    for (int i = 0; n < MAX_TICKS; i++) {
        double v = decade * pow(10, floor(i / 3.0)) * of[i % 3];
        double next = decade * pow(10, floor((i + 1) / 3.0)) * of[(i + 1) % 3];

        if (next <= lo)
            continue;
        tick[n++] = v;
        if (v >= hi)
            break;
    }
    return n;
}

static axis make_axis(const chart *ch, bool is_x)
{
    axis a = {.log = is_x && ch->x_log,
              .lo = INFINITY,
              .from = is_x ? LEFT : BOTTOM,
              .to = is_x ? RIGHT : TOP};

    for (int s = 0; s < ch->n; s++)
        for (int i = 0; i < ch->series[s].n; i++) {
            double v = is_x ? ch->series[s].point[i].x : ch->series[s].point[i].y;

            a.lo = v < a.lo ? v : a.lo;
            a.hi = v > a.hi ? v : a.hi;
        }
    if (a.log && a.lo > 0 && isfinite(a.lo)) {
        a.n = chart_log_ticks(a.lo, a.hi, a.tick);
    } else {
        a.log = false;
        a.n = chart_ticks(a.hi, a.tick);
    }
    a.lo = a.tick[0];
    a.hi = a.tick[a.n - 1];
    return a;
}

static double place(const axis *a, double v)
{
    double t = a->log ? log(v / a->lo) / log(a->hi / a->lo) : (v - a->lo) / (a->hi - a->lo);

    return a->from + (a->to - a->from) * t;
}

/* 12500 -> "12.5k" */
static void format_value(char buf[24], double v)
{
    if (v >= 1e6)
        snprintf(buf, 24, "%gM", v / 1e6);
    else if (v >= 1e4)
        snprintf(buf, 24, "%gk", v / 1e3);
    else
        snprintf(buf, 24, "%g", v);
}

static void draw_axes(const chart *ch, canvas *c, const axis *x, const axis *y)
{
    const text_style mark = {.size = 12, .color = GREY, .anchor = ANCHOR_MIDDLE};
    const text_style side = {.size = 12, .color = GREY, .anchor = ANCHOR_END};
    const text_style name = {.size = 13, .color = INK, .anchor = ANCHOR_MIDDLE};
    const text_style turned = {.size = 13, .color = INK, .anchor = ANCHOR_MIDDLE, .upwards = true};
    char buf[24];

    for (int i = 0; i < x->n; i++) {
        double at = place(x, x->tick[i]);

        c->ops->line(c, at, TOP, at, BOTTOM, 1, GRID, 0);
        format_value(buf, x->tick[i]);
        c->ops->text(c, at, BOTTOM + 19, buf, &mark);
    }
    for (int i = 0; i < y->n; i++) {
        double at = place(y, y->tick[i]);

        c->ops->line(c, LEFT, at, RIGHT, at, 1, GRID, 0);
        format_value(buf, y->tick[i]);
        c->ops->text(c, LEFT - 9, at + 4, buf, &side);
    }
    c->ops->line(c, LEFT, BOTTOM, RIGHT, BOTTOM, 1.4, INK, 0);
    c->ops->line(c, LEFT, TOP, LEFT, BOTTOM, 1.4, INK, 0);
    c->ops->text(c, (LEFT + RIGHT) / 2, BOTTOM + 44, ch->x_label, &name);
    c->ops->text(c, 28, (TOP + BOTTOM) / 2, ch->y_label, &turned);
}

/* Points of the front in the order of x, joined by a dashed line. */
static void draw_front(const chart *ch, canvas *c, const axis *x, const axis *y)
{
    const chart_point *last = NULL;

    for (;;) {
        const chart_point *next = NULL;

        for (int s = 0; s < ch->n; s++)
            for (int i = 0; i < ch->series[s].n; i++) {
                const chart_point *p = &ch->series[s].point[i];

                if (p->front && (!last || p->x > last->x) && (!next || p->x < next->x))
                    next = p;
            }
        if (!next)
            return;
        if (last)
            c->ops->line(c, place(x, last->x), place(y, last->y), place(x, next->x),
                         place(y, next->y), 4, FRONT, 0);
        last = next;
    }
}

static void draw_series(const chart *ch, canvas *c, const axis *x, const axis *y, int s)
{
    const chart_series *r = &ch->series[s];
    const text_style small = {.size = 11, .color = GREY};

    for (int i = 1; i < r->n && !ch->scatter; i++)
        c->ops->line(c, place(x, r->point[i - 1].x), place(y, r->point[i - 1].y),
                     place(x, r->point[i].x), place(y, r->point[i].y), 2, palette[s], 0);
    for (int i = 0; i < r->n; i++) {
        const chart_point *p = &r->point[i];
        double px = place(x, p->x), py = place(y, p->y);

        c->ops->circle(c, px, py, ch->scatter ? 2.5 : 4, p->front ? palette[s] : PAPER, palette[s]);
        if (p->front && p->label[0])
            c->ops->text(c, px + 8, py - 7, p->label, &small);
    }
}

static void draw_legend(const chart *ch, canvas *c)
{
    const text_style head = {.size = 12, .color = GREY};
    const text_style entry = {.size = 12, .color = INK};
    double x = RIGHT + 24, y = TOP + 8;
    bool front = false;

    if (ch->legend)
        c->ops->text(c, x, y, ch->legend, &head);
    for (int s = 0; s < ch->n; s++) {
        y += 22;
        if (!ch->scatter)
            c->ops->line(c, x, y - 4, x + 24, y - 4, 2, palette[s], 0);
        c->ops->circle(c, x + 12, y - 4, 4, PAPER, palette[s]);
        c->ops->text(c, x + 34, y, ch->series[s].name, &entry);
        for (int i = 0; i < ch->series[s].n; i++)
            front = front || ch->series[s].point[i].front;
    }
    if (!front)
        return;
    y += 30;
    c->ops->line(c, x, y - 4, x + 24, y - 4, 4, FRONT, 0);
    c->ops->circle(c, x + 12, y - 4, 4, GREY, GREY);
    c->ops->text(c, x + 34, y, "Pareto front", &entry);
}

void chart_draw(const chart *ch, canvas *c)
{
    const text_style title = {.size = 17, .color = INK, .bold = true};
    const text_style sub = {.size = 12, .color = GREY};
    axis x = make_axis(ch, true), y = make_axis(ch, false);

    c->ops->text(c, LEFT, 32, ch->title, &title);
    c->ops->text(c, LEFT, 54, ch->subtitle, &sub);
    draw_axes(ch, c, &x, &y);
    draw_front(ch, c, &x, &y);
    for (int s = 0; s < ch->n; s++)
        draw_series(ch, c, &x, &y, s);
    draw_legend(ch, c);
    c->ops->text(c, LEFT, HEIGHT - 18, ch->note, &sub);
}

static di_code write_page(const chart *ch, canvas *c, const char *path, di_status *st)
{
    str file = {0};
    FILE *f;
    di_code rc;

    chart_draw(ch, c);
    rc = canvas_finish(c, &file, st);
    if (rc == DI_OK) {
        f = fopen(path, "we");
        if (!f || fwrite(file.data, 1, file.len, f) != file.len)
            rc = di_fail(st, DI_E_IO, "could not write \"%s\": %s", path, errno_text(errno));
        if (f && fclose(f) != 0 && rc == DI_OK)
            rc = di_fail(st, DI_E_IO, "could not write \"%s\": %s", path, errno_text(errno));
    }
    str_fini(&file);
    return rc;
}

di_code chart_write(const chart *ch, const char *dir, const char *name, di_status *st)
{
    char path[4096], file[64];
    canvas c = {0};
    di_code rc = DI_OK;

    snprintf(file, sizeof file, "%s.svg", name);
    DI_TRY(path_join(path, sizeof path, dir, file, st));
    DI_TRY(canvas_init_svg(&c, WIDTH, HEIGHT, st));
    DI_TRY(write_page(ch, &c, path, st));
    canvas_fini(&c);
    snprintf(file, sizeof file, "%s.png", name);
    DI_TRY(path_join(path, sizeof path, dir, file, st));
    DI_TRY(canvas_init_png(&c, WIDTH, HEIGHT, st));
    rc = write_page(ch, &c, path, st);
done:
    canvas_fini(&c);
    return rc;
}
