/* UTF-8, strict (no surrogates, no overlong forms, up to U+10FFFF). Thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Read one character of s[0..n), n > 0. Returns its length in bytes and sets *cp. Ill-formed input
 * gives the length of the maximal ill-formed subpart (1..3) and *cp = UTF8_BAD (the convention of
 * Unicode 3.9, Rust's from_utf8_lossy and Python's "replace"). A truncated but so far well-formed
 * character at the end is ill-formed too; utf8_is_partial tells it apart. */
#define UTF8_BAD 0xFFFFFFFFu
size_t utf8_read(const char *s, size_t n, uint32_t *cp);

/* True when s[0..n) is a proper prefix of a well-formed character (1..3 bytes). */
bool utf8_is_partial(const char *s, size_t n);

bool utf8_valid(const char *s, size_t n);

/* Take the ill-formed parts out of a 0-terminated text, in place: what is left of a character that
 * was cut. */
void utf8_mend(char *s);

/* Write cp (a scalar value) to out[4]; returns 1..4. */
size_t utf8_write(uint32_t cp, char *out);
