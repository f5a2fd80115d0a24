/* UTF-8 by the table of well-formed byte sequences (Unicode 3.9, table 3-7). */
#include "base/utf8.h"

#include <string.h>

/* Length that a lead byte announces and the range of the byte behind it; 0 = never a lead byte. */
static unsigned lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (c < 0x80)
        return 1;
    if (c < 0xC2)
        return 0;
    if (c < 0xE0)
        return 2;
    if (c < 0xF0) {
        if (c == 0xE0)
            *lo = 0xA0; /* no overlong forms */
        if (c == 0xED)
            *hi = 0x9F; /* no surrogates */
        return 3;
    }
    if (c > 0xF4)
        return 0;
    if (c == 0xF0)
        *lo = 0x90;
    if (c == 0xF4)
        *hi = 0x8F; /* up to U+10FFFF */
    return 4;
}

/* Bytes of s[0..n) that continue the character its lead byte announces (lead byte included), and
 * that announced length in *want (0: s[0] cannot start a character). */
static size_t well_formed(const unsigned char *s, size_t n, size_t *want)
{
    unsigned char lo, hi;
    size_t i = 1;

    *want = lead(s[0], &lo, &hi);
    while (i < *want && i < n && s[i] >= lo && s[i] <= hi) {
        lo = 0x80;
        hi = 0xBF;
        i++;
    }
    return i;
}

size_t utf8_read(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t want, got;
    uint32_t v;

    if (u[0] < 0x80) {
        *cp = u[0];
        return 1;
    }
    got = well_formed(u, n, &want);
    if (got != want) {
        *cp = UTF8_BAD;
        return got;
    }
    v = u[0] & (0xFFu >> (want + 1));
    for (size_t i = 1; i < want; i++)
        v = v << 6 | (u[i] & 0x3Fu);
    *cp = v;
    return want;
}

bool utf8_is_partial(const char *s, size_t n)
{
    size_t want;

    return n > 0 && n < 4 && well_formed((const unsigned char *)s, n, &want) == n && want > n;
}

bool utf8_valid(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        uint64_t eight;
        uint32_t cp;

        if (n - i >= sizeof eight) {
            memcpy(&eight, s + i, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                i += sizeof eight;
                continue;
            }
        }
        i += utf8_read(s + i, n - i, &cp);
        if (cp == UTF8_BAD)
            return false;
    }
    return true;
}

size_t utf8_write(uint32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0u | cp >> 6);
        out[1] = (char)(0x80u | (cp & 0x3Fu));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0u | cp >> 12);
        out[1] = (char)(0x80u | (cp >> 6 & 0x3Fu));
        out[2] = (char)(0x80u | (cp & 0x3Fu));
        return 3;
    }
    out[0] = (char)(0xF0u | cp >> 18);
    out[1] = (char)(0x80u | (cp >> 12 & 0x3Fu));
    out[2] = (char)(0x80u | (cp >> 6 & 0x3Fu));
    out[3] = (char)(0x80u | (cp & 0x3Fu));
    return 4;
}

void utf8_mend(char *s)
{
    size_t n = strlen(s), len, to = 0;
    uint32_t cp;

    for (size_t at = 0; at < n; at += len) {
        len = utf8_read(s + at, n - at, &cp);
        if (cp == UTF8_BAD)
            continue;
        memmove(s + to, s + at, len);
        to += len;
    }
    s[to] = 0;
}
