/* What the library's regex compiler lets pass and should not: counts and a trailing backslash. */
#include "grammar/grammar_internal.h"

#define MAX_COUNT 100000

/* Reads digits; a number above MAX_COUNT stays above it. */
static const char *read_count(const char *s, const char *end, long *out)
{
    for (*out = 0; s < end && *s >= '0' && *s <= '9'; s++)
        if (*out <= MAX_COUNT)
            *out = *out * 10 + (*s - '0');
    return s;
}

/* {m}, {m,} or {m,n} at s: the reason to refuse it, or NULL; what is no count is text. */
static const char *check_count(const char *s, const char *end, grammar_fault *kind)
{
    long lo, hi;
    const char *t = read_count(s + 1, end, &lo);

    if (t == s + 1)
        return NULL;
    hi = lo;
    if (t < end && *t == ',') {
        const char *u = read_count(t + 1, end, &hi);

        if (u == t + 1)
            hi = lo;
        t = u;
    }
    if (t == end || *t != '}')
        return NULL;
    *kind = GRAMMAR_FAULT_SYNTAX;
    if (lo > hi)
        return "the least count is above the largest";
    *kind = GRAMMAR_FAULT_LIMIT;
    return hi > MAX_COUNT ? "a count above 100,000" : NULL;
}

di_code pattern_check(const char *re, size_t n, grammar_fault *kind, int64_t *offset,
                      const char **why)
{
    const char *end = re + n;
    bool in_class = false;

    *why = NULL;
    for (const char *s = re; s < end; s++) {
        *offset = s - re;
        if (*s == '\\') {
            *kind = GRAMMAR_FAULT_SYNTAX;
            *why = s + 1 == end ? "a backslash at the end" : NULL;
            /* \p{..}, \x{..}: what follows in braces is no count */
            if (s + 2 < end && (s[1] == 'p' || s[1] == 'P' || s[1] == 'x' || s[1] == 'u') &&
                s[2] == '{')
                s++;
            s++;
        } else if (in_class) {
            in_class = *s != ']';
        } else if (*s == '[') {
            in_class = true;
            if (s + 1 < end && s[1] == '^')
                s++;
            if (s + 1 < end && s[1] == ']')
                s++;
        } else if (*s == '{') {
            *why = check_count(s, end, kind);
        }
        if (*why)
            return DI_E_INVALID;
    }
    return DI_OK;
}
