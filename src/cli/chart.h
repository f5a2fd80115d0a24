/* A chart of a few curves: two axes with units, a legend, the Pareto front. Thread: the owner's. */
#pragma once

#include "base/status.h"
#include "cli/canvas.h"

#define CHART_MAX_SERIES 8
#define CHART_MAX_POINTS 64 /* of a series */

typedef struct chart_point {
    double x, y;
    char label[24]; /* beside points of the front; may be empty */
    bool front;     /* on the Pareto front */
} chart_point;

typedef struct chart_series {
    char name[48];
    int n;
    chart_point point[CHART_MAX_POINTS];
} chart_series;

typedef struct chart {
    const char *title, *subtitle, *note; /* borrowed; note stands below the axis */
    const char *x_label, *y_label;
    const char *legend; /* heading of the legend */
    bool x_log;         /* values must be above 0 */
    bool scatter;       /* no lines between points */
    int n;
    chart_series series[CHART_MAX_SERIES];
} chart;

/* Draw on a page of any kind. */
void chart_draw(const chart *ch, canvas *c);

/* Write DIR/NAME.svg and DIR/NAME.png. Errors: IO, NOMEM. */
di_code chart_write(const chart *ch, const char *dir, const char *name, di_status *st);

/* Round values for the marks of an axis that begins at 0 and reaches `top`: fills at most 12,
 * returns how many. */
int chart_ticks(double top, double *tick);
/* The same on a logarithmic axis: 1, 2, 5 times powers of ten from at most lo to at least hi. */
int chart_log_ticks(double lo, double hi, double *tick);
