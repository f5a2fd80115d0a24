/* The two kinds of page. SVG is written as text; PNG is rasterised at two pixels per point, edges
 * smoothed by how much of a pixel a shape covers. */
#include "cli/canvas.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

#define SCALE 2.0 /* pixels per point */

/* ---- SVG ---- */

static void svg_text(str *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '&')
            str_puts(out, "&amp;");
        else if (*s == '<')
            str_puts(out, "&lt;");
        else if (*s == '>')
            str_puts(out, "&gt;");
        else
            str_putc(out, (unsigned char)*s < ' ' ? ' ' : *s);
    }
}

static void svg_line(canvas *c, double x1, double y1, double x2, double y2, double width,
                     uint32_t color, double dash)
{
    str_printf(&c->out,
               "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#%06x\" "
               "stroke-width=\"%.1f\" stroke-linecap=\"round\"",
               x1, y1, x2, y2, color, width);
    if (dash > 0)
        str_printf(&c->out, " stroke-dasharray=\"%.1f\"", dash);
    str_puts(&c->out, "/>\n");
}

static void svg_circle(canvas *c, double x, double y, double r, uint32_t fill, uint32_t edge)
{
    str_printf(&c->out,
               "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"#%06x\" stroke=\"#%06x\" "
               "stroke-width=\"1.5\"/>\n",
               x, y, r, fill, edge);
}

static void svg_rect(canvas *c, double x, double y, double w, double h, uint32_t fill)
{
    str_printf(&c->out,
               "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#%06x\"/>\n", x,
               y, w, h, fill);
}

static void svg_put_text(canvas *c, double x, double y, const char *text, const text_style *s)
{
    static const char *const anchors[] = {"start", "middle", "end"};

    str_printf(&c->out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.1f\" fill=\"#%06x\"", x, y,
               s->size, s->color);
    if (s->anchor != ANCHOR_START)
        str_printf(&c->out, " text-anchor=\"%s\"", anchors[s->anchor]);
    if (s->bold)
        str_puts(&c->out, " font-weight=\"600\"");
    if (s->upwards)
        str_printf(&c->out, " transform=\"rotate(-90 %.1f %.1f)\"", x, y);
    str_putc(&c->out, '>');
    svg_text(&c->out, text);
    str_puts(&c->out, "</text>\n");
}

static const canvas_ops svg_ops = {svg_line, svg_circle, svg_rect, svg_put_text};

di_code canvas_init_svg(canvas *c, double width, double height, di_status *st)
{
    *c = (canvas){.ops = &svg_ops, .width = width, .height = height};
    str_printf(&c->out,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
               "viewBox=\"0 0 %.0f %.0f\" font-family=\"Helvetica, Arial, sans-serif\">\n",
               width, height, width, height);
    svg_rect(c, 0, 0, width, height, 0xFFFFFF);
    return str_ok(&c->out) ? DI_OK : di_fail(st, DI_E_NOMEM, "no memory for a chart");
}

/* ---- PNG ---- */

static void blend(canvas *c, int x, int y, uint32_t color, double cover)
{
    uint8_t *p = c->rgb + ((size_t)y * (size_t)c->px_w + (size_t)x) * 3;

    for (int i = 0; i < 3; i++) {
        double to = color >> (16 - 8 * i) & 0xFF;

        p[i] = (uint8_t)lround(p[i] + (to - p[i]) * cover);
    }
}

static int clip(double v, int limit)
{
    return v < 0 ? 0 : v > limit ? limit : (int)v;
}

/* Pixels within r of the segment, all in pixels. */
static void capsule(canvas *c, double x1, double y1, double x2, double y2, double r, uint32_t color)
{
    double dx = x2 - x1, dy = y2 - y1, len2 = dx * dx + dy * dy;
    int left = clip(fmin(x1, x2) - r - 1, c->px_w), right = clip(fmax(x1, x2) + r + 2, c->px_w);
    int top = clip(fmin(y1, y2) - r - 1, c->px_h), bottom = clip(fmax(y1, y2) + r + 2, c->px_h);

    for (int y = top; y < bottom; y++)
        for (int x = left; x < right; x++) {
            double px = x + 0.5 - x1, py = y + 0.5 - y1;
            double t = len2 > 0 ? (px * dx + py * dy) / len2 : 0, d, cover;

            t = t < 0 ? 0 : t > 1 ? 1 : t;
            d = hypot(px - t * dx, py - t * dy);
            cover = r + 0.5 - d;
            if (cover > 0)
                blend(c, x, y, color, cover > 1 ? 1 : cover);
        }
}

static void png_line(canvas *c, double x1, double y1, double x2, double y2, double width,
                     uint32_t color, double dash)
{
    double len = hypot(x2 - x1, y2 - y1), r = width * SCALE / 2;
    double ux = len > 0 ? (x2 - x1) / len : 0, uy = len > 0 ? (y2 - y1) / len : 0;

    if (dash <= 0) {
        capsule(c, x1 * SCALE, y1 * SCALE, x2 * SCALE, y2 * SCALE, r, color);
        return;
    }
    for (int i = 0; 2 * dash * i < len; i++) {
        double at = 2 * dash * i, end = at + dash < len ? at + dash : len;

        capsule(c, (x1 + ux * at) * SCALE, (y1 + uy * at) * SCALE, (x1 + ux * end) * SCALE,
                (y1 + uy * end) * SCALE, r, color);
    }
}

static void png_circle(canvas *c, double x, double y, double r, uint32_t fill, uint32_t edge)
{
    capsule(c, x * SCALE, y * SCALE, x * SCALE, y * SCALE, (r + 0.75) * SCALE, edge);
    capsule(c, x * SCALE, y * SCALE, x * SCALE, y * SCALE, (r - 0.75) * SCALE, fill);
}

static void png_rect(canvas *c, double x, double y, double w, double h, uint32_t fill)
{
    int right = clip((x + w) * SCALE, c->px_w), bottom = clip((y + h) * SCALE, c->px_h);

    for (int py = clip(y * SCALE, c->px_h); py < bottom; py++)
        for (int px = clip(x * SCALE, c->px_w); px < right; px++)
            blend(c, px, py, fill, 1);
}

/* Where a text is drawn: its origin, the size of a grid unit, and its direction. */
typedef struct pen {
    double x, y, unit, ux, uy;
} pen;

static void to_page(const pen *p, double gx, double gy, double *x, double *y)
{
    double along = gx * p->unit, down = (gy - 6) * p->unit;

    *x = p->x + along * p->ux - down * p->uy;
    *y = p->y + along * p->uy + down * p->ux;
}

static void draw_glyph(canvas *c, const pen *p, double at, char ch, const text_style *s)
{
    const char *k = font_strokes(ch);
    double x1 = 0, y1 = 0, x2, y2, width = s->size * (s->bold ? 0.125 : 0.09);
    bool down = false;

    for (; *k; k += *k == ' ' ? 1 : 2) {
        if (*k == ' ') {
            down = false;
            continue;
        }
        to_page(p, at + k[0] - '0', k[1] - '0', &x2, &y2);
        if (down)
            png_line(c, x1, y1, x2, y2, width, s->color, 0);
        down = true;
        x1 = x2;
        y1 = y2;
    }
}

#define GLYPH_GAP 1.9 /* grid units between two characters */

static void png_text(canvas *c, double x, double y, const char *text, const text_style *s)
{
    pen p = {.x = x, .y = y, .unit = s->size * 0.7 / 6, .ux = s->upwards ? 0 : 1};
    double units = 0, at;

    p.uy = s->upwards ? -1 : 0;
    for (const char *t = text; *t; t++)
        units += font_width(*t) + GLYPH_GAP;
    units -= units > 0 ? GLYPH_GAP : 0;
    at = s->anchor == ANCHOR_START ? 0 : s->anchor == ANCHOR_END ? -units : -units / 2;
    for (const char *t = text; *t; t++) {
        if ((*t & 0xC0) == 0x80)
            continue; /* the rest of a character that is a box already */
        draw_glyph(c, &p, at, *t, s);
        at += font_width(*t) + GLYPH_GAP;
    }
}

static const canvas_ops png_ops = {png_line, png_circle, png_rect, png_text};

di_code canvas_init_png(canvas *c, double width, double height, di_status *st)
{
    *c = (canvas){.ops = &png_ops,
                  .width = width,
                  .height = height,
                  .px_w = (int)(width * SCALE),
                  .px_h = (int)(height * SCALE)};
    c->rgb = mem_try_calloc((size_t)c->px_w * (size_t)c->px_h, 3);
    if (!c->rgb)
        return di_fail(st, DI_E_NOMEM, "no memory for a chart");
    memset(c->rgb, 0xFF, (size_t)c->px_w * (size_t)c->px_h * 3);
    return DI_OK;
}

di_code canvas_finish(canvas *c, str *file, di_status *st)
{
    if (c->rgb) {
        png_encode(file, c->rgb, c->px_w, c->px_h);
    } else {
        str_puts(&c->out, "</svg>\n");
        str_append(file, str_text(&c->out), c->out.len);
        file->failed = file->failed || !str_ok(&c->out);
    }
    return str_ok(file) ? DI_OK : di_fail(st, DI_E_NOMEM, "no memory for a chart");
}

void canvas_fini(canvas *c)
{
    str_fini(&c->out);
    mem_free(c->rgb);
    *c = (canvas){0};
}
