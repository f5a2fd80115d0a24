/* Naive matching: a few short strings over a few held bytes. See stop.h. */
#include "recipe/stop.h"

#include <string.h>

#include "base/mem.h"

di_code stop_init(stop_match *m, const char *const *stop, const size_t *len, size_t n,
                  di_status *st)
{
    *m = (stop_match){.matched = -1};
    if (n > STOP_MAX)
        return di_fail(st, DI_E_INVALID, "Stop string array too long: %zu", n);
    for (size_t i = 0; i < n; i++) {
        if (len[i] == 0) {
            stop_fini(m);
            return di_fail(st, DI_E_INVALID,
                           "Invalid 'stop[%zu]': empty string. Expected a string with minimum "
                           "length 1, but got an empty string instead.",
                           i);
        }
        m->stop[i] = mem_try_strndup(stop[i], len[i]);
        if (!m->stop[i]) {
            stop_fini(m);
            return di_fail(st, DI_E_NOMEM, "no memory for stop strings");
        }
        m->len[i] = len[i];
        m->n++;
    }
    return DI_OK;
}

void stop_fini(stop_match *m)
{
    for (size_t i = 0; i < m->n; i++)
        mem_free(m->stop[i]);
    str_fini(&m->held);
    *m = (stop_match){.matched = -1};
}

/* Index of a stop string that ends at s + end, or -1. */
static int ends_at(const stop_match *m, const char *s, size_t end)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->len[i] <= end && memcmp(s + end - m->len[i], m->stop[i], m->len[i]) == 0)
            return (int)i;
    return -1;
}

/* True when the n bytes at s begin a stop string that is longer than them. */
static bool begins(const stop_match *m, const char *s, size_t n)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->len[i] > n && memcmp(s, m->stop[i], n) == 0)
            return true;
    return false;
}

bool stop_push(stop_match *m, const char *text, size_t n, str *out)
{
    str *h = &m->held;
    size_t old = h->len, keep;

    if (m->matched >= 0)
        return true;
    if (m->n == 0) {
        str_append(out, text, n);
        return false;
    }
    str_append(h, text, n);
    for (size_t end = old + 1; end <= h->len; end++) {
        m->matched = ends_at(m, h->data, end);
        if (m->matched >= 0) {
            str_append(out, h->data, end - m->len[m->matched]);
            str_clear(h);
            return true;
        }
    }
    for (keep = 0; keep < h->len && !begins(m, h->data + keep, h->len - keep); keep++)
        ;
    str_append(out, str_text(h), keep);
    if (keep > 0) {
        memmove(h->data, h->data + keep, h->len - keep);
        h->len -= keep;
        h->data[h->len] = 0;
    }
    return false;
}

void stop_flush(stop_match *m, str *out)
{
    if (m->matched < 0)
        str_append(out, str_text(&m->held), m->held.len);
    str_clear(&m->held);
}
