/* Values of JSON bodies. See fields.h. */
#include "server/fields.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

di_code field_invalid(di_status *st, const char *name, const char *want)
{
    return di_fail(st, DI_E_INVALID, "%s must be %s", name, want);
}

di_code field_real(json_read *r, const char *name, double min, double max, float *out,
                   di_status *st)
{
    double v;
    char want[80];

    if (json_peek(r) != JSON_NUMBER)
        return field_invalid(st, name, "a number");
    if (json_number(r, &v, st) != DI_OK)
        return st->code;
    snprintf(want, sizeof want, "%g to %g, but is %.9g", min, max, v);
    if (!(v >= min && v <= max))
        return field_invalid(st, name, want);
    *out = (float)v;
    return DI_OK;
}

di_code field_int(json_read *r, const char *name, int64_t min, int64_t max, int64_t *out,
                  di_status *st)
{
    char want[120];
    const char *raw;
    size_t n;
    int64_t v = 0;
    bool ok = json_peek(r) == JSON_NUMBER;

    if (json_raw(r, &raw, &n, st) != DI_OK)
        return st->code;
    if (ok) {
        char word[64], *end; /* the text may end with the number */
        double d;

        snprintf(word, sizeof word, "%.*s", n < sizeof word ? (int)n : (int)sizeof word - 1, raw);
        d = strtod(word, &end);
        errno = 0;
        v = strtoll(word, &end, 10);
        if (errno || *end || n >= sizeof word)
            ok = n < sizeof word && d == floor(d) && fabs(d) < 9e15 && (v = (int64_t)d, true);
    }
    snprintf(want, sizeof want, "an integer from %lld to %lld, but is %.*s", (long long)min,
             (long long)max, n > 40 ? 40 : (int)n, raw);
    if (!ok || v < min || v > max)
        return field_invalid(st, name, want);
    *out = v;
    return DI_OK;
}

di_code field_bool(json_read *r, const char *name, bool *out, di_status *st)
{
    if (json_peek(r) != JSON_BOOL)
        return field_invalid(st, name, "true or false");
    return json_bool(r, out, st);
}

di_code field_text(json_read *r, const char *name, arena *mem, const char **out, size_t *n,
                   di_status *st)
{
    const char *text;

    if (json_peek(r) != JSON_STRING)
        return field_invalid(st, name, "a string");
    if (json_string(r, &text, n, st) != DI_OK)
        return st->code;
    *out = arena_strndup(mem, text, *n);
    return *out ? DI_OK : di_fail(st, DI_E_NOMEM, "no memory for a request");
}

di_code field_id(json_read *r, const char *name, int vocab, int32_t *out, di_status *st)
{
    int64_t v = 0;
    di_code rc = field_int(r, name, 0, vocab - 1, &v, st);

    if (rc == DI_OK)
        *out = (int32_t)v;
    return rc;
}
