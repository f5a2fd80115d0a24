/* A page to draw on: the same calls make an SVG file and a PNG file.
 *
 * Coordinates are points from the upper left corner; colours are 0xRRGGBB. Thread: the owner's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

typedef enum text_anchor { ANCHOR_START, ANCHOR_MIDDLE, ANCHOR_END } text_anchor;

typedef struct text_style {
    double size; /* of capitals about 0.7 of it */
    uint32_t color;
    text_anchor anchor;
    bool upwards; /* turned by a quarter: reads from bottom to top */
    bool bold;
} text_style;

typedef struct canvas canvas;

typedef struct canvas_ops {
    /* dash: length of strokes and gaps, 0 = solid */
    void (*line)(canvas *c, double x1, double y1, double x2, double y2, double width,
                 uint32_t color, double dash);
    void (*circle)(canvas *c, double x, double y, double r, uint32_t fill, uint32_t edge);
    void (*rect)(canvas *c, double x, double y, double w, double h, uint32_t fill);
    /* x, y: the anchor on the baseline. UTF-8; the PNG font knows ASCII only. */
    void (*text)(canvas *c, double x, double y, const char *text, const text_style *s);
} canvas_ops;

struct canvas {
    const canvas_ops *ops;
    double width, height;
    str out;      /* SVG text */
    uint8_t *rgb; /* PNG pixels */
    int px_w, px_h;
};

/* Errors: NOMEM. Close with canvas_fini. */
di_code canvas_init_svg(canvas *c, double width, double height, di_status *st);
di_code canvas_init_png(canvas *c, double width, double height, di_status *st);
/* The finished file's bytes, appended to *file. Errors: NOMEM. */
di_code canvas_finish(canvas *c, str *file, di_status *st);
void canvas_fini(canvas *c);

/* png.c: 8-bit RGB, rows from the top. Failure is remembered by `out`. */
void png_encode(str *out, const uint8_t *rgb, int width, int height);

/* font.c: strokes of an ASCII character as pairs of digits (x 0..4, y 0..8, baseline 6), a blank
 * between strokes; "" for a blank. Never NULL. */
const char *font_strokes(char c);
/* Columns that a character takes, without the gap behind it. */
int font_width(char c);
