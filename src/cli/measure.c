/* See measure.h. */
#include "cli/measure.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double rank(const double *sorted, size_t n, double p)
{
    size_t at = (size_t)ceil(p * (double)n);

    return sorted[at > 0 ? at - 1 : 0];
}

spread spread_of(double *v, size_t n)
{
    if (n == 0)
        return (spread){0};
    qsort(v, n, sizeof *v, ascending);
    return (spread){rank(v, n, 0.5), rank(v, n, 0.9), rank(v, n, 0.99)};
}

/* At least as good in both, and better in one or before the other. */
static bool beats(double xa, double ya, double xb, double yb, bool less_x, bool before)
{
    bool x_good = less_x ? xa <= xb : xa >= xb;
    bool better = (less_x ? xa < xb : xa > xb) || ya > yb;

    return x_good && ya >= yb && (better || before);
}

void pareto_mark(const double *x, const double *y, int n, bool less_x, bool *front)
{
    for (int i = 0; i < n; i++) {
        front[i] = y[i] > 0;
        for (int j = 0; j < n && front[i]; j++)
            front[i] = j == i || !(y[j] > 0) || !beats(x[j], y[j], x[i], y[i], less_x, j < i);
    }
}
