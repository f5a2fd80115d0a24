/* Text -> ids: ill-formed parts out, added tokens cut off, pieces, BPE. */
#include "base/utf8.h"
#include "tokenizer/pretok.h"
#include "tokenizer/tokenizer_internal.h"

/* One encode call. */
typedef struct encoder {
    const tokenizer *t;
    bpe_scratch scratch;
    tok_ids *out;
} encoder;

/* Plain text: no added tokens in it. */
static bool encode_plain(encoder *e, const char *text, size_t n)
{
    while (n > 0) {
        size_t len = pretok_next(text, n);

        if (!bpe_encode(e->t, &e->scratch, text, len, e->out))
            return false;
        text += len;
        n -= len;
    }
    return true;
}

/* Cut off the added tokens of one pass (added.c); what lies between goes to the next one. */
static bool encode_added(encoder *e, const char *text, size_t n, bool normalized)
{
    while (n > 0) {
        size_t at = n, len = 0;
        int32_t id = tok_added_find(e->t, text, n, normalized, &at, &len);
        bool ok = normalized ? encode_plain(e, text, at) : encode_added(e, text, at, true);

        if (!ok)
            return false;
        if (id < 0)
            break;
        if (!tok_ids_reserve(e->out, 1))
            return false;
        e->out->ids[e->out->n++] = id;
        text += at + len;
        n -= at + len;
    }
    return true;
}

di_code tokenizer_encode(const tokenizer *t, const char *text, size_t n, bool added, tok_ids *out,
                         di_status *st)
{
    encoder e = {.t = t, .out = out};
    str lossy = {0};
    bool ok = true;

    if (!utf8_valid(text, n)) {
        tok_append_lossy(&lossy, text, n);
        ok = str_ok(&lossy);
        text = lossy.data;
        n = lossy.len;
    }
    if (ok)
        ok = added && t->added ? encode_added(&e, text, n, false) : encode_plain(&e, text, n);
    bpe_scratch_fini(&e.scratch);
    str_fini(&lossy);
    return ok ? DI_OK : di_fail(st, DI_E_NOMEM, "no memory to encode %zu bytes of text", n);
}

di_code tokenizer_pieces(const tokenizer *t, const char *text, size_t n, tok_ids *out,
                         di_status *st)
{
    str lossy = {0};
    bool ok = true;

    (void)t; /* every tokenizer that loads has the same pre-tokenizer */
    if (!utf8_valid(text, n)) {
        tok_append_lossy(&lossy, text, n);
        ok = str_ok(&lossy);
        text = lossy.data;
        n = lossy.len;
    }
    while (ok && n > 0) {
        size_t len = pretok_next(text, n);

        ok = len <= INT32_MAX && tok_ids_reserve(out, 1);
        if (ok)
            out->ids[out->n++] = (int32_t)len;
        text += len;
        n -= len;
    }
    str_fini(&lossy);
    return ok ? DI_OK : di_fail(st, DI_E_NOMEM, "no memory to list the pieces of a text");
}
