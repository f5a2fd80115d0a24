/* Compressed ids of the Engram hash: tokens that read alike share one id (spec model.md 6.1).
 *
 * The normal form is that of the Rust normalisers NFKC, NFD, StripAccents, Lowercase, which work
 * character by character once put in this order (tools/make_unicode.py checks it), then some rules
 * for white space. */
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/unicode_tables.h"

#define LONE_SPACE 0xE000u /* keeps a text that is exactly one space through the strip */

static void put(str *out, uint32_t cp)
{
    char utf8[4];

    str_append(out, utf8, utf8_write(cp, utf8));
}

/* Hangul syllables decompose by arithmetic (Unicode 3.12). */
static void put_hangul(str *out, uint32_t syllable)
{
    uint32_t i = syllable - 0xAC00, tail = i % 28;

    put(out, 0x1100 + i / 588);
    put(out, 0x1161 + i % 588 / 28);
    if (tail)
        put(out, 0x11A7 + tail);
}

/* NFKC, NFD, strip accents, lowercase. */
static void fold_characters(const char *text, size_t n, str *out)
{
    while (n > 0) {
        uint32_t cp, fold;
        size_t len = utf8_read(text, n, &cp);

        if (cp >= 0xAC00 && cp <= 0xD7A3) {
            put_hangul(out, cp);
        } else if ((fold = uc_fold_of(cp)) == 0) {
            str_append(out, text, len);
        } else if (fold > 1) {
            for (uint32_t i = 1; i <= uc_fold_pool[fold]; i++)
                put(out, uc_fold_pool[fold + i]);
        }
        text += len;
        n -= len;
    }
}

/* Runs of blank, tab, CR and LF become one blank, in place. */
static void collapse_blanks(str *s)
{
    size_t to = 0;

    for (size_t i = 0; i < s->len; i++) {
        char c = s->data[i];

        if (c == '\t' || c == '\r' || c == '\n')
            c = ' ';
        if (c != ' ' || to == 0 || s->data[to - 1] != ' ')
            s->data[to++] = c;
    }
    s->len = to;
    s->data[to] = 0;
}

static bool is_space(uint32_t cp)
{
    uc_class c = uc_class_of(cp);

    return c == UC_SPACE || c == UC_NEWLINE;
}

/* Without white space at both ends, and every LONE_SPACE a blank. */
static void put_stripped(const char *s, size_t n, str *out)
{
    bool begun = false;
    size_t keep = out->len;

    for (size_t at = 0; at < n;) {
        uint32_t cp;
        size_t len = utf8_read(s + at, n - at, &cp);
        bool space = is_space(cp);

        if (!space || begun)
            put(out, cp == LONE_SPACE ? ' ' : cp);
        if (!space) {
            begun = true;
            keep = out->len;
        }
        at += len;
    }
    out->len = keep;
    if (out->data)
        out->data[keep] = 0;
}

void tok_fold(const char *text, size_t n, str *out)
{
    str s = {0};

    fold_characters(text, n, &s);
    if (str_ok(&s) && s.len > 0) {
        collapse_blanks(&s);
        if (s.len == 1 && s.data[0] == ' ')
            str_putc(out, ' ');
        else
            put_stripped(s.data, s.len, out);
    }
    out->failed = out->failed || !str_ok(&s);
    str_fini(&s);
}

/* The key under which an id is counted: its vocabulary string when its text holds U+FFFD, else the
 * normal form of the text, else the text. */
static void key_of(const tokenizer *t, int32_t id, str *text, str *key)
{
    str_clear(text);
    str_clear(key);
    tokenizer_decode(t, &id, 1, false, text);
    if (!str_ok(text))
        return;
    if (text->len > 0 && memmem(text->data, text->len, "\xEF\xBF\xBD", 3)) {
        size_t n;
        const char *symbol = tokenizer_symbol(t, id, &n);

        str_append(key, symbol, n);
        return;
    }
    if (text->len > 0)
        tok_fold(text->data, text->len, key);
    if (key->len == 0)
        str_append(key, text->data, text->len);
}

di_code tokenizer_compressed_ids(const tokenizer *t, int32_t *map_out, int n_ids, int *n_compressed,
                                 di_status *st)
{
    map *keys = map_new((size_t)n_ids);
    str text = {0}, key = {0};
    bool ok = keys != NULL;

    for (int32_t id = 0; ok && id < n_ids; id++) {
        uint32_t value;

        key_of(t, id, &text, &key);
        ok = str_ok(&text) && str_ok(&key);
        if (!ok)
            break;
        if (!map_find(keys, str_text(&key), key.len, &value)) {
            value = (uint32_t)map_count(keys);
            ok = map_insert(keys, str_text(&key), key.len, value) == 1;
        }
        map_out[id] = (int32_t)value;
    }
    if (ok)
        *n_compressed = (int)map_count(keys);
    map_free(keys);
    str_fini(&text);
    str_fini(&key);
    return ok ? DI_OK : di_fail(st, DI_E_NOMEM, "no memory for the compressed ids");
}
