/* strtod and printf with the C locale held for the call: JSON always has a decimal point. */
#include "base/json_number.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t c_locale; /* kept for the life of the process; 0 = could not be made */

static void make_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* Switch this thread to the C locale; returns what to switch back to (0 = nothing). */
static locale_t enter(void)
{
    pthread_once(&once, make_locale);
    return c_locale ? uselocale(c_locale) : (locale_t)0;
}

static void leave(locale_t before)
{
    if (before)
        uselocale(before);
}

double json_number_parse(const char *text)
{
    locale_t before = enter();
    double v = strtod(text, NULL);

    leave(before);
    return v;
}

size_t json_number_print(char out[JSON_NUMBER_CAP], double v)
{
    locale_t before = enter();
    /* Up to DBL_DIG digits survive text -> double -> text, so %.15g already finds the shortest
     * text of a normal number that has one of at most 15 digits. */
    int digits = fabs(v) < DBL_MIN && v != 0 ? 1 : DBL_DIG, n;

    do
        n = snprintf(out, JSON_NUMBER_CAP, "%.*g", digits, v);
    while (strtod(out, NULL) != v && ++digits <= 17);
    leave(before);
    return (size_t)n;
}
