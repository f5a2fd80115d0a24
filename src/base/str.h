/* Growing byte string, always 0-terminated. Out of memory is remembered: appends after a failed one
 * do nothing, and str_ok tells at the end. Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct str {
    char *data; /* NULL until the first append */
    size_t len, cap;
    bool failed;
} str;

void str_append(str *s, const void *bytes, size_t n);
void str_puts(str *s, const char *text);
void str_putc(str *s, char c);
void str_printf(str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Empty again, memory kept. */
void str_clear(str *s);

/* Release the memory; the object may be used again. */
void str_fini(str *s);

/* The text; "" when nothing was appended. Valid until the next change. */
const char *str_text(const str *s);

/* False when an append ran out of memory. */
bool str_ok(const str *s);
