/* Request ids, trace context, the request's line. See request_log.h. */
#include "server/request_log.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/keys.h"
#include "server/server_internal.h"

static void random_hex(char *out, size_t digits)
{
    unsigned char b[16];

    if (getrandom(b, sizeof b, 0) != (ssize_t)sizeof b)
        memset(b, 0, sizeof b); /* early boot only */
    for (size_t i = 0; i < digits; i++)
        out[i] = "0123456789abcdef"[i & 1 ? b[i / 2] & 15 : b[i / 2] >> 4];
    out[digits] = 0;
}

static bool is_sane_id(const char *s, size_t n)
{
    if (n == 0 || n > 64)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '-' && s[i] != '_' && s[i] != '.')
            return false;
    return true;
}

/* "00-<32 hex>-<16 hex>-<2 hex>", lower case, ids not zero (W3C Trace Context, level 1). */
static bool is_traceparent(const char *s, size_t n)
{
    if (n != 55 || strncmp(s, "00-", 3) != 0)
        return false;
    for (size_t i = 3; i < n; i++) {
        bool dash = i == 35 || i == 52;

        if (dash ? s[i] != '-' : !(isdigit((unsigned char)s[i]) || (s[i] >= 'a' && s[i] <= 'f')))
            return false;
    }
    return strspn(s + 3, "0") < 32 && strspn(s + 36, "0") < 16;
}

void request_ids(conn *c)
{
    size_t n;
    const char *v = http_field(&c->req, "x-request-id", &n);
    char span[17];

    if (v && is_sane_id(v, n))
        snprintf(c->id, sizeof c->id, "%.*s", (int)n, v);
    else
        random_hex(c->id, 32);
    v = http_field(&c->req, "traceparent", &n);
    if (v && is_traceparent(v, n)) {
        random_hex(span, 16);
        snprintf(c->trace, sizeof c->trace, "%.36s%s%.3s", v, span, v + 52);
    }
}

void request_log(conn *c, call *k)
{
    const server *s = c->loop->srv;
    bool quiet = c->status < 400 && c->ep && !(c->ep->flags & EP_WORK);
    static const char *const methods[] = {"GET", "HEAD", "POST", "OPTIONS", "other"};
    uint64_t now = clock_ns();
    const log_field f[] = {
        {"method", LOG_FIELD_TEXT, methods[c->req.method], 0},
        {"path", LOG_FIELD_TEXT, *c->req.path ? c->req.path : NULL, 0},
        {"status", LOG_FIELD_INT, NULL, c->status},
        {"ms", LOG_FIELD_MS, NULL, (int64_t)(now - c->begin_ns)},
        {"peer", LOG_FIELD_TEXT, c->peer, 0},
        {"key", LOG_FIELD_TEXT, keys_name(c->key), 0},
        {"id", LOG_FIELD_TEXT, c->id, 0},
        {"trace", LOG_FIELD_TEXT, *c->trace ? c->trace : NULL, 0},
        /* From here on: requests that reached the back end. */
        {"prompt", LOG_FIELD_INT, NULL, k ? k->n_prompt : 0},
        {"cached", LOG_FIELD_INT, NULL, k ? k->n_cached : 0},
        {"output", LOG_FIELD_INT, NULL, k ? k->n_out : 0},
        {"first_ms", LOG_FIELD_MS, NULL,
         k && k->first_ns ? (int64_t)(k->first_ns - k->begin_ns) : 0},
        {"finish", LOG_FIELD_TEXT, k ? k->finish : NULL, 0},
        {"error", LOG_FIELD_TEXT, k && *k->message ? k->message : NULL, 0},
    };

    if (!s->opt.log_off)
        log_fields(quiet ? LOG_DEBUG : LOG_INFO, LOG_SERVER, "request", f,
                   k ? ARRAY_LEN(f) : ARRAY_LEN(f) - 6);
}
