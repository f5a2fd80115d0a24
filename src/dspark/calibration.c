/* Histogram calibration of draft confidences. */
#include "dspark/calibration.h"

#include <math.h>
#include <string.h>

#define LOGIT_RANGE 6.0f   /* bins cover -6 .. 6; the outer ones take the rest */
#define PRIOR       8.0f   /* the sigmoid counts as this many tests */
#define MEMORY      512.0f /* tests of a bin after which older ones fade */

static int bin_of(float logit)
{
    float at = (logit + LOGIT_RANGE) / (2 * LOGIT_RANGE) * CALIBRATION_BINS;

    if (!(at > 0)) /* NaN too */
        return 0;
    return at < CALIBRATION_BINS ? (int)at : CALIBRATION_BINS - 1;
}

void calibration_init(calibration *c)
{
    memset(c, 0, sizeof *c);
}

float calibration_chance(const calibration *c, int position, float logit)
{
    int p = position < DSPARK_MAX_DRAFT ? position : DSPARK_MAX_DRAFT - 1, b = bin_of(logit);
    float prior = 1.0f / (1.0f + expf(-logit));

    if (!isfinite(logit))
        prior = 0;
    return (c->accepted[p][b] + PRIOR * prior) / (c->tested[p][b] + PRIOR);
}

void calibration_observe(calibration *c, int position, float logit, bool accepted)
{
    int p = position < DSPARK_MAX_DRAFT ? position : DSPARK_MAX_DRAFT - 1, b = bin_of(logit);

    if (c->tested[p][b] >= MEMORY) {
        c->tested[p][b] /= 2;
        c->accepted[p][b] /= 2;
    }
    c->tested[p][b] += 1;
    c->accepted[p][b] += accepted;
}
