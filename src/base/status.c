/* Result codes, the first-message rule and context prefixes. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DI_CODE_NAME(name, http, text) #name,
static const char *const code_names[] = {"OK", DI_CODES(DI_CODE_NAME)};
#define DI_CODE_HTTP(name, http, text) http,
static const int code_http[] = {200, DI_CODES(DI_CODE_HTTP)};

const char *di_code_name(di_code code)
{
    return (unsigned)code < DI_CODE_COUNT ? code_names[code] : "UNKNOWN";
}

int di_code_http(di_code code)
{
    return (unsigned)code < DI_CODE_COUNT ? code_http[code] : 500;
}

di_code di_fail(di_status *st, di_code code, const char *fmt, ...)
{
    if (st && st->code == DI_OK) {
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(st->message, sizeof st->message, fmt, ap);
        va_end(ap);
        st->code = code;
    }
    return code;
}

void di_context(di_status *st, const char *fmt, ...)
{
    char old[sizeof st->message];
    va_list ap;
    int n;

    if (!st || st->code == DI_OK)
        return;
    memcpy(old, st->message, sizeof old);
    va_start(ap, fmt);
    n = vsnprintf(st->message, sizeof st->message, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof st->message)
        snprintf(st->message + n, sizeof st->message - (size_t)n, ": %s", old);
}

void di_clear(di_status *st)
{
    if (st) {
        st->code = DI_OK;
        st->message[0] = 0;
    }
}

void di_check_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "deepinfer: internal check failed at %s:%d: %s\n", file, line, cond);
    abort();
}

const char *errno_text(int err)
{
    static _Thread_local char buf[128];

    return strerror_r(err, buf, sizeof buf); /* the GNU form: may return a static string */
}
