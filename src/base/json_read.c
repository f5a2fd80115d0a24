/* Pull reader: a cursor, a stack of one bit per level, and the first malformation found.
 *
 * Strings without escapes are handed out as they lie in the input; the others are decoded into
 * r->scratch. `error` is sticky: once set, every call fails with it. */
#include "base/json_read.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json_number.h"
#include "base/utf8.h"

static const char no_memory[] = "out of memory";

void json_open(json_read *r, const char *text, size_t n, const char *name)
{
    *r = (json_read){.text = text, .end = text + n, .at = text, .name = name};
}

void json_close(json_read *r)
{
    str_fini(&r->scratch);
    *r = (json_read){0};
}

/* Lines and columns count from 1; a column is a character. */
static void locate(const json_read *r, size_t *line, size_t *column)
{
    *line = 1;
    *column = 1;
    for (const char *s = r->text; s < r->at; s++) {
        if (*s == '\n') {
            ++*line;
            *column = 1;
        } else if (((unsigned char)*s & 0xC0u) != 0x80u) {
            ++*column;
        }
    }
}

di_code json_fail(json_read *r, di_status *st, const char *fmt, ...)
{
    char message[400];
    size_t line, column;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    locate(r, &line, &column);
    return di_fail(st, DI_E_FORMAT, "%s:%zu:%zu: %s", r->name, line, column, message);
}

/* Report the malformation that was found. */
static di_code report(json_read *r, di_status *st)
{
    if (r->error == no_memory)
        return di_fail(st, DI_E_NOMEM, "no memory to read %s", r->name);
    return json_fail(r, st, "%s", r->error);
}

/* Note a malformation at `at`; false for the convenience of callers. */
static bool bad(json_read *r, const char *at, const char *error)
{
    r->at = at;
    r->error = error;
    return false;
}

static void skip_blanks(json_read *r)
{
    const char *s = r->at;

    while (s < r->end && (*s == ' ' || *s == '\n' || *s == '\r' || *s == '\t'))
        s++;
    r->at = s;
}

/* The character that comes next, blanks skipped; 0 at the end (a 0 byte is never valid there). */
static char next_char(json_read *r)
{
    skip_blanks(r);
    return r->at < r->end ? *r->at : 0;
}

static json_type type_of(char c)
{
    switch (c) {
    case 'n':
        return JSON_NULL;
    case 't':
    case 'f':
        return JSON_BOOL;
    case '"':
        return JSON_STRING;
    case '[':
        return JSON_ARRAY;
    case '{':
        return JSON_OBJECT;
    default:
        return c == '-' || (c >= '0' && c <= '9') ? JSON_NUMBER : JSON_NONE;
    }
}

json_type json_peek(json_read *r)
{
    return r->error ? JSON_NONE : type_of(next_char(r));
}

/* Fail unless a value of the wanted type comes next. */
static di_code expect(json_read *r, json_type want, di_status *st)
{
    static const char *const names[] = {"nothing",  "null",     "true or false", "a number",
                                        "a string", "an array", "an object"};
    json_type got = json_peek(r);

    if (got == want && !r->error)
        return DI_OK;
    if (!r->error && got == JSON_NONE)
        r->error = r->at < r->end ? "a value is expected here" : "the text ends too early";
    if (r->error)
        return report(r, st);
    return json_fail(r, st, "%s is expected, not %s", names[want], names[got]);
}

/* ---- containers ---- */

static uint64_t level_bit(const json_read *r)
{
    return (uint64_t)1 << (r->depth - 1);
}

static di_code enter(json_read *r, json_type type, di_status *st)
{
    di_code rc = expect(r, type, st);

    if (rc != DI_OK)
        return rc;
    if (r->depth == JSON_MAX_DEPTH) {
        r->error = "nested too deeply";
        return report(r, st);
    }
    r->at++;
    r->depth++;
    r->has_member &= ~level_bit(r);
    if (type == JSON_OBJECT)
        r->is_object |= level_bit(r);
    else
        r->is_object &= ~level_bit(r);
    return DI_OK;
}

di_code json_object(json_read *r, di_status *st)
{
    return enter(r, JSON_OBJECT, st);
}

di_code json_array(json_read *r, di_status *st)
{
    return enter(r, JSON_ARRAY, st);
}

/* Step to the next member or element; false at the end of the container (left) or on an error. */
static bool advance(json_read *r, bool object)
{
    char c;

    if (r->error)
        return false;
    DI_CHECK(r->depth > 0 && object == ((r->is_object & level_bit(r)) != 0));
    c = next_char(r);
    if (c == (object ? '}' : ']')) {
        r->at++;
        r->depth--;
        return false;
    }
    if (r->has_member & level_bit(r)) {
        if (c != ',')
            return bad(r, r->at,
                       r->at == r->end ? "the text ends too early"
                       : object        ? "\",\" or \"}\" is expected here"
                                       : "\",\" or \"]\" is expected here");
        r->at++;
        c = next_char(r);
    }
    r->has_member |= level_bit(r);
    if (object ? c != '"' : type_of(c) == JSON_NONE)
        return bad(r, r->at,
                   r->at == r->end ? "the text ends too early"
                   : object        ? "a key in double quotes is expected here"
                                   : "a value is expected here");
    return true;
}

bool json_item(json_read *r)
{
    return advance(r, false);
}

/* ---- strings ---- */

/* Bytes at the start of s[0..n) that may stand in a string as they are: ASCII without controls,
 * quote and backslash. Eight at a time: the high bit of a lane marks a byte that may not. */
static size_t plain_ascii(const char *s, size_t n)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    size_t i = 0;

    for (; n - i >= 8; i += 8) {
        uint64_t v, quote, slash, stop;

        memcpy(&v, s + i, 8);
        quote = v ^ (ones * '"');
        slash = v ^ (ones * '\\');
        /* A borrow can mark lanes above a marked one only, so "none" is exact. */
        stop = ((v - ones * 0x20) | (quote - ones) | (slash - ones) | v) & high;
        if (stop)
            break;
    }
    while (i < n && (unsigned char)s[i] >= 0x20 && (unsigned char)s[i] < 0x80 && s[i] != '"' &&
           s[i] != '\\')
        i++;
    return i;
}

/* Read over characters that need no decoding, up to a quote, a backslash or the end. */
static bool plain_run(json_read *r, const char **end)
{
    const char *s = r->at;

    for (;;) {
        uint32_t cp;
        size_t n;

        s += plain_ascii(s, (size_t)(r->end - s));
        if (s == r->end)
            return bad(r, s, "the text ends inside a string");
        if (*s == '"' || *s == '\\')
            break;
        if ((unsigned char)*s < 0x20)
            return bad(r, s, "a control character in a string must be escaped");
        n = utf8_read(s, (size_t)(r->end - s), &cp);
        if (cp == UTF8_BAD)
            return bad(r, s, "ill-formed UTF-8");
        s += n;
    }
    *end = s;
    return true;
}

/* Four hexadecimal digits at s; -1 when they are not there. */
static int32_t hex4(const json_read *r, const char *s)
{
    int32_t v = 0;

    if (r->end - s < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;

        if (digit < 0)
            return -1;
        v = v << 4 | digit;
    }
    return v;
}

/* Decode \uXXXX or a surrogate pair; r->at is at the backslash. */
static bool unicode_escape(json_read *r)
{
    const char *s = r->at;
    int32_t v = hex4(r, s + 2), low;
    char utf8[4];

    if (v < 0)
        return bad(r, s, "\\u needs four hexadecimal digits");
    s += 6;
    if (v >= 0xDC00 && v <= 0xDFFF)
        return bad(r, r->at, "a low surrogate without its high one");
    if (v >= 0xD800 && v <= 0xDBFF) {
        low = r->end - s >= 6 && s[0] == '\\' && s[1] == 'u' ? hex4(r, s + 2) : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return bad(r, r->at, "a high surrogate without its low one");
        v = 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
        s += 6;
    }
    str_append(&r->scratch, utf8, utf8_write((uint32_t)v, utf8));
    r->at = s;
    return true;
}

/* Decode one escape; r->at is at the backslash. */
static bool escape(json_read *r)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = r->end - r->at >= 2 ? r->at[1] : 0;
    const char *found = c ? strchr(from, c) : NULL;

    if (c == 'u')
        return unicode_escape(r);
    if (!found)
        return bad(r, r->at, "unknown escape in a string");
    str_putc(&r->scratch, to[found - from]);
    r->at += 2;
    return true;
}

/* Read a string; r->at is at the opening quote. */
static bool read_string(json_read *r, const char **out, size_t *n)
{
    const char *end;

    r->at++;
    if (!plain_run(r, &end))
        return false;
    if (*end == '"') {
        *out = r->at;
        *n = (size_t)(end - r->at);
        r->at = end + 1;
        return true;
    }
    str_clear(&r->scratch);
    while (*end == '\\') {
        str_append(&r->scratch, r->at, (size_t)(end - r->at));
        r->at = end;
        if (!escape(r) || !plain_run(r, &end))
            return false;
    }
    str_append(&r->scratch, r->at, (size_t)(end - r->at));
    if (!str_ok(&r->scratch))
        return bad(r, end, no_memory);
    r->at = end + 1;
    *out = str_text(&r->scratch);
    *n = r->scratch.len;
    return true;
}

bool json_key(json_read *r, const char **key, size_t *n)
{
    if (!advance(r, true) || !read_string(r, key, n))
        return false;
    if (next_char(r) != ':')
        return bad(r, r->at, "\":\" is expected here");
    r->at++;
    return true;
}

bool json_key_is(const char *key, size_t n, const char *want)
{
    return strlen(want) == n && memcmp(key, want, n) == 0;
}

di_code json_string(json_read *r, const char **out, size_t *n, di_status *st)
{
    di_code rc = expect(r, JSON_STRING, st);

    if (rc == DI_OK && !read_string(r, out, n))
        rc = report(r, st);
    return rc;
}

/* ---- numbers and words ---- */

static const char *digits(const json_read *r, const char *s)
{
    while (s < r->end && *s >= '0' && *s <= '9')
        s++;
    return s;
}

/* Find the end of the number at r->at, which stays there. */
static bool scan_number(json_read *r, const char **end, bool *integer)
{
    const char *s = r->at, *from;

    *integer = true;
    if (*s == '-')
        s++;
    from = s;
    s = digits(r, s);
    if (s == from)
        return bad(r, s, "a digit is expected here");
    if (*from == '0' && s > from + 1)
        return bad(r, from, "a number must not begin with 0");
    if (s < r->end && *s == '.') {
        *integer = false;
        from = ++s;
        s = digits(r, s);
        if (s == from)
            return bad(r, s, "a digit is expected behind the point");
    }
    if (s < r->end && (*s == 'e' || *s == 'E')) {
        *integer = false;
        s++;
        if (s < r->end && (*s == '+' || *s == '-'))
            s++;
        from = s;
        s = digits(r, s);
        if (s == from)
            return bad(r, s, "a digit is expected in the exponent");
    }
    *end = s;
    return true;
}

di_code json_int(json_read *r, int64_t *out, di_status *st)
{
    const char *end, *s;
    bool integer, negative, fits = true;
    int64_t v = 0;
    di_code rc = expect(r, JSON_NUMBER, st);

    if (rc != DI_OK)
        return rc;
    if (!scan_number(r, &end, &integer))
        return report(r, st);
    negative = *r->at == '-';
    /* Downwards, because -2^63 has no positive counterpart. */
    for (s = r->at + negative; integer && s < end && fits; s++)
        fits = !__builtin_mul_overflow(v, 10, &v) && !__builtin_sub_overflow(v, *s - '0', &v);
    if (!integer || !fits || (!negative && v == INT64_MIN))
        return json_fail(r, st, "%.*s is not a whole number of 64 bits",
                         (int)(end - r->at < 40 ? end - r->at : 40), r->at);
    *out = negative ? v : -v;
    r->at = end;
    return DI_OK;
}

di_code json_number(json_read *r, double *out, di_status *st)
{
    const char *end;
    bool integer;
    double v;
    di_code rc = expect(r, JSON_NUMBER, st);

    if (rc != DI_OK)
        return rc;
    if (!scan_number(r, &end, &integer))
        return report(r, st);
    str_clear(&r->scratch);
    str_append(&r->scratch, r->at, (size_t)(end - r->at));
    if (!str_ok(&r->scratch)) {
        r->error = no_memory;
        return report(r, st);
    }
    v = json_number_parse(str_text(&r->scratch));
    if (isinf(v))
        return json_fail(r, st, "the number is too large for a double");
    *out = v;
    r->at = end;
    return DI_OK;
}

/* Read over a literal name. */
static bool word(json_read *r, const char *want)
{
    size_t n = strlen(want);

    if ((size_t)(r->end - r->at) < n || memcmp(r->at, want, n) != 0)
        return bad(r, r->at, "true, false or null is expected here");
    r->at += n;
    return true;
}

di_code json_bool(json_read *r, bool *out, di_status *st)
{
    bool value;
    di_code rc = expect(r, JSON_BOOL, st);

    if (rc != DI_OK)
        return rc;
    value = *r->at == 't';
    if (!word(r, value ? "true" : "false"))
        return report(r, st);
    *out = value;
    return DI_OK;
}

di_code json_null(json_read *r, di_status *st)
{
    di_code rc = expect(r, JSON_NULL, st);

    if (rc == DI_OK && !word(r, "null"))
        rc = report(r, st);
    return rc;
}

/* ---- whole values ---- */

/* Read over a value that is not a container. */
static bool skip_scalar(json_read *r)
{
    const char *s;
    size_t n;
    bool integer;

    switch (json_peek(r)) {
    case JSON_STRING:
        return read_string(r, &s, &n);
    case JSON_NUMBER:
        if (!scan_number(r, &s, &integer))
            return false;
        r->at = s;
        return true;
    case JSON_BOOL:
        return word(r, *r->at == 't' ? "true" : "false");
    case JSON_NULL:
        return word(r, "null");
    default:
        return bad(r, r->at,
                   r->at < r->end ? "a value is expected here" : "the text ends too early");
    }
}

/* Step to the next value of the container that is being read over. */
static bool next_value(json_read *r)
{
    const char *key;
    size_t n;

    return r->is_object & level_bit(r) ? json_key(r, &key, &n) : json_item(r);
}

di_code json_skip(json_read *r, di_status *st)
{
    int depth = r->depth;

    do {
        json_type type;

        if (r->error)
            return report(r, st);
        if (r->depth > depth && !next_value(r))
            continue; /* the container ended, or an error that the check above reports */
        type = json_peek(r);
        if (type == JSON_OBJECT || type == JSON_ARRAY) {
            di_code rc = enter(r, type, st);

            if (rc != DI_OK)
                return rc;
        } else if (!skip_scalar(r)) {
            return report(r, st);
        }
    } while (r->depth > depth);
    return DI_OK;
}

di_code json_raw(json_read *r, const char **out, size_t *n, di_status *st)
{
    const char *from;
    di_code rc;

    skip_blanks(r);
    from = r->at;
    rc = json_skip(r, st);
    if (rc == DI_OK) {
        *out = from;
        *n = (size_t)(r->at - from);
    }
    return rc;
}

di_code json_end(json_read *r, di_status *st)
{
    if (!r->error)
        skip_blanks(r);
    if (!r->error && (r->depth > 0 || r->at < r->end))
        r->error = r->depth > 0 ? "an object or array is not closed" : "text behind the value";
    return r->error ? report(r, st) : DI_OK;
}
