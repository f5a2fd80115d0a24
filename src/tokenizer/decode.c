/* Ids -> text, whole and incremental (spec recipe.md 5.5). */
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_internal.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

void tok_append_lossy(str *out, const char *bytes, size_t n)
{
    size_t from = 0, at = 0;

    if (utf8_valid(bytes, n)) { /* the usual case, many bytes at a time */
        str_append(out, bytes, n);
        return;
    }
    while (at < n) {
        uint32_t cp;
        size_t len = utf8_read(bytes + at, n - at, &cp);

        if (cp == UTF8_BAD) {
            str_append(out, bytes + from, at - from);
            str_append(out, replacement, 3);
            from = at + len;
        }
        at += len;
    }
    str_append(out, bytes + from, n - from);
}

const char *tokenizer_bytes(const tokenizer *t, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= t->n_ids || !(t->flags[id] & TOK_PRESENT))
        return NULL;
    *n = t->bytes[id].n;
    return t->blob.data + t->bytes[id].at;
}

const char *tokenizer_symbol(const tokenizer *t, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= t->n_ids || !(t->flags[id] & TOK_PRESENT))
        return NULL;
    *n = t->symbol[id].n;
    return t->symbols.data + t->symbol[id].at;
}

bool tokenizer_is_special(const tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && (t->flags[id] & TOK_SPECIAL) != 0;
}

bool tokenizer_is_added(const tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && (t->flags[id] & TOK_ADDED) != 0;
}

void tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool skip_special, str *out)
{
    str bytes = {0};

    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *part = tokenizer_bytes(t, ids[i], &len);

        if (part && !(skip_special && tokenizer_is_special(t, ids[i])))
            str_append(&bytes, part, len);
    }
    tok_append_lossy(out, bytes.data, bytes.len);
    out->failed = out->failed || !str_ok(&bytes);
    str_fini(&bytes);
}

void tok_decoder_init(tok_decoder *d, const tokenizer *t)
{
    *d = (tok_decoder){.t = t};
}

void tok_decoder_fini(tok_decoder *d)
{
    str_fini(&d->pending);
}

/* True when s[0..n), read lossily, ends in U+FFFD. A reader is in step at every byte that does not
 * continue a character, so that the last four bytes decide. */
static bool ends_ill(const char *s, size_t n)
{
    size_t at = n, back = n < 4 ? n : 4;
    uint32_t cp = UTF8_BAD;

    for (size_t i = 1; i <= back; i++)
        if (((uint8_t)s[n - i] & 0xC0) != 0x80) {
            at = n - i;
            break;
        }
    while (at < n)
        at += utf8_read(s + at, n - at, &cp);
    return cp == UTF8_BAD || cp == 0xFFFD;
}

void tok_mark_text(tokenizer *t)
{
    for (int32_t id = 0; id < t->n_ids; id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(t, id, &n);

        if (n > 0 && utf8_valid(bytes, n) && !ends_ill(bytes, n))
            t->flags[id] |= TOK_TEXT;
    }
}

void tok_decoder_push(tok_decoder *d, int32_t id, str *out)
{
    size_t n;
    const char *bytes = tokenizer_bytes(d->t, id, &n);

    if (d->pending.len == 0 && n > 0 && (d->t->flags[id] & TOK_TEXT)) { /* the usual case */
        str_append(out, bytes, n);
        return;
    }
    str_append(&d->pending, bytes, n);
    out->failed = out->failed || !str_ok(&d->pending);
    if (d->pending.len > 0 && !ends_ill(d->pending.data, d->pending.len))
        tok_decoder_flush(d, out);
}

void tok_decoder_flush(tok_decoder *d, str *out)
{
    tok_append_lossy(out, d->pending.data, d->pending.len);
    str_clear(&d->pending);
}
