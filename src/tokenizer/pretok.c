/* Scanner of the pre-tokenizer (pretok.h).
 *
 * Numbers and CJK characters are cut off by stages 1 and 2 before the word pattern is tried, so
 * that both are an end of text for it. Only the white space rules ask whether the text ends; to the
 * runs of the other rules such a character is one of a class that they do not take. */
#include "tokenizer/pretok.h"

#include <stdbool.h>
#include <stdint.h>

#include "tokenizer/unicode_tables.h"

/* Class of the character at p < end and its length. */
static inline uc_class class_at(const uint8_t *p, size_t *len)
{
    uint32_t cp = *p;

    if (cp < 0x80) {
        *len = 1;
    } else if (cp < 0xE0) {
        cp = (cp & 0x1F) << 6 | (p[1] & 0x3Fu);
        *len = 2;
    } else if (cp < 0xF0) {
        cp = (cp & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        *len = 3;
    } else {
        cp = (cp & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
        *len = 4;
    }
    return uc_class_of(cp);
}

static inline bool is_ascii_letter(uint8_t c)
{
    return (uint8_t)((c | 0x20) - 'a') < 26;
}

/* The 32 punctuation characters and symbols of ASCII. */
static inline bool is_ascii_punct(uint8_t c)
{
    return c < 0x80 && uc_class_of(c) == UC_PUNCT;
}

static const uint8_t *skip_ascii_letters(const uint8_t *p, const uint8_t *end)
{
    while (p < end && is_ascii_letter(*p))
        p++;
    return p;
}

/* Behind a run of letters and marks. */
static const uint8_t *skip_word(const uint8_t *p, const uint8_t *end)
{
    size_t len;

    for (;;) {
        p = skip_ascii_letters(p, end);
        if (p == end || *p < 0x80) /* no ASCII character is a mark */
            return p;
        uc_class c = class_at(p, &len);
        if (c != UC_LETTER && c != UC_MARK)
            return p;
        p += len;
    }
}

/* Behind a run of one class. */
static const uint8_t *skip_class(const uint8_t *p, const uint8_t *end, uc_class c)
{
    size_t len;

    while (p < end && class_at(p, &len) == c)
        p += len;
    return p;
}

/* \p{N}{1,3} */
static const uint8_t *number_end(const uint8_t *p, const uint8_t *end)
{
    size_t len;

    for (int i = 0; i < 3 && p < end && class_at(p, &len) == UC_NUMBER; i++)
        p += len;
    return p;
}

/* [\p{P}\p{S}]+[\r\n]* */
static const uint8_t *punct_end(const uint8_t *p, const uint8_t *end)
{
    p = skip_class(p, end, UC_PUNCT);
    while (p < end && (*p == '\r' || *p == '\n'))
        p++;
    return p;
}

/* Characters that stages 1 and 2 have cut off. */
static inline bool ends_text(uc_class c)
{
    return c == UC_NUMBER || c >= UC_CJK_OTHER;
}

/* White space: \s*[\r\n]+ takes all up to the last newline of the run; else \s+(?!\S) takes the
 * whole run at the end of the text and all but its last character before anything else; else \s+
 * takes a single character. */
static const uint8_t *space_end(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *start = p, *last = p, *newline = NULL;
    uc_class c = UC_SPACE;
    size_t len;

    while (p < end) {
        c = class_at(p, &len);
        if (c != UC_SPACE && c != UC_NEWLINE)
            break;
        last = p;
        p += len;
        if (c == UC_NEWLINE)
            newline = p;
    }
    if (newline)
        return newline;
    if (p == end || ends_text(c) || last == start)
        return p;
    return last;
}

/* Characters that no alternative takes, all of class c. The last one before a word begins it. */
static const uint8_t *gap_end(const uint8_t *p, const uint8_t *end, uc_class c)
{
    const uint8_t *last = p;
    uc_class after = c;
    size_t len;

    while (p < end) {
        after = class_at(p, &len);
        if (after != c)
            break;
        last = p;
        p += len;
    }
    if (p == end)
        return p;
    return (c == UC_CJK_OTHER ? after == UC_CJK_LETTER : after == UC_LETTER || after == UC_MARK)
               ? last
               : p;
}

/* The word pattern inside a CJK run. */
static const uint8_t *cjk_pattern(const uint8_t *p, const uint8_t *end, uc_class c,
                                  const uint8_t *next)
{
    size_t len;

    if (c == UC_CJK_OTHER) {
        if (next == end || class_at(next, &len) != UC_CJK_LETTER)
            return gap_end(p, end, c);
        c = UC_CJK_LETTER;
    }
    return skip_class(next, end, c);
}

/* The word pattern at p; `c` and `next` are the class of its first character and what follows. */
static const uint8_t *word_pattern(const uint8_t *p, const uint8_t *end, uc_class c,
                                   const uint8_t *next)
{
    uc_class after = UC_OTHER;
    size_t len;

    if (next < end)
        after = class_at(next, &len);
    if (is_ascii_punct(*p) && next < end && is_ascii_letter(*next))
        return skip_ascii_letters(next, end);
    if (c == UC_LETTER || c == UC_MARK)
        return skip_word(next, end);
    if ((c == UC_SPACE || c == UC_OTHER) && (after == UC_LETTER || after == UC_MARK))
        return skip_word(next, end);
    if (c == UC_PUNCT || (*p == ' ' && after == UC_PUNCT))
        return punct_end(next, end);
    return c == UC_OTHER ? gap_end(p, end, c) : space_end(p, end);
}

size_t pretok_next(const char *text, size_t n)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + n, *stop;
    size_t len;
    uc_class c = class_at(p, &len);

    if (c == UC_NUMBER)
        stop = number_end(p, end);
    else if (c >= UC_CJK_OTHER)
        stop = cjk_pattern(p, end, c, p + len);
    else
        stop = word_pattern(p, end, c, p + len);
    return (size_t)(stop - p);
}
