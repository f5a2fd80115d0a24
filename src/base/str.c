/* Growing byte string. */
#include "base/str.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Room for n more bytes and the 0. */
static bool reserve(str *s, size_t n)
{
    size_t need, cap = s->cap ? s->cap : 64;
    char *p;

    if (s->failed || !size_add(s->len, n, &need) || !size_add(need, 1, &need)) {
        s->failed = true;
        return false;
    }
    if (need <= s->cap)
        return true;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    p = mem_try_realloc(s->data, cap, 1);
    if (!p) {
        s->failed = true;
        return false;
    }
    s->data = p;
    s->cap = cap;
    return true;
}

void str_append(str *s, const void *bytes, size_t n)
{
    if (!reserve(s, n))
        return;
    if (n)
        memcpy(s->data + s->len, bytes, n);
    s->len += n;
    s->data[s->len] = 0;
}

void str_puts(str *s, const char *text)
{
    str_append(s, text, strlen(text));
}

void str_putc(str *s, char c)
{
    str_append(s, &c, 1);
}

void str_printf(str *s, const char *fmt, ...)
{
    va_list ap, again;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0 && reserve(s, (size_t)n)) {
        vsnprintf(s->data + s->len, (size_t)n + 1, fmt, again);
        s->len += (size_t)n;
    }
    va_end(again);
}

void str_clear(str *s)
{
    s->len = 0;
    s->failed = false;
    if (s->data)
        s->data[0] = 0;
}

void str_fini(str *s)
{
    mem_free(s->data);
    *s = (str){0};
}

const char *str_text(const str *s)
{
    return s->data ? s->data : "";
}

bool str_ok(const str *s)
{
    return !s->failed;
}
