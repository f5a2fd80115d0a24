/* The tables of the vocabulary: ids, bytes -> id, and the merges. Filled by load.c, read-only
 * after.
 *
 * Both hash tables have a power of two of slots of 8 bytes, at most half of them used, and linear
 * probing: a lookup that misses, by far the most frequent one of BPE, reads one cache line. */
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer_internal.h"

/* ---- byte symbols ---- */

/* The byte-level map of GPT-2: printable characters of Latin-1 stand for themselves, the 68 other
 * bytes, in ascending order, for U+0100 and following. */
static bool is_own_symbol(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

int tok_symbol_byte(uint32_t cp)
{
    if (cp < 0x100)
        return is_own_symbol(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100); /* 00..20 */
    if (cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F); /* 7F..A0 */
    return cp == 0x143 ? 0xAD : -1;
}

bool tok_symbol_bytes(const char *symbol, size_t n, char *out, size_t *n_bytes)
{
    size_t k = 0;

    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int byte;

        i += utf8_read(symbol + i, n - i, &cp);
        byte = tok_symbol_byte(cp);
        if (byte < 0)
            return false;
        out[k++] = (char)byte;
    }
    *n_bytes = k;
    return true;
}

/* ---- ids ---- */

di_code tok_vocab_grow(tokenizer *t, int n_ids, di_status *st)
{
    size_t n = (size_t)n_ids, old = (size_t)t->n_ids;
    uint8_t *flags;
    tok_span *symbol, *bytes;

    if (n_ids <= t->n_ids)
        return DI_OK;
    if ((flags = mem_try_realloc(t->flags, n, sizeof *flags)))
        t->flags = flags;
    if ((symbol = mem_try_realloc(t->symbol, n, sizeof *symbol)))
        t->symbol = symbol;
    if ((bytes = mem_try_realloc(t->bytes, n, sizeof *bytes)))
        t->bytes = bytes;
    if (!flags || !symbol || !bytes)
        return di_fail(st, DI_E_NOMEM, "no memory for a vocabulary of %d ids", n_ids);
    memset(flags + old, 0, n - old);
    memset(symbol + old, 0, (n - old) * sizeof *symbol);
    memset(bytes + old, 0, (n - old) * sizeof *bytes);
    t->n_ids = n_ids;
    return DI_OK;
}

/* log2 of the number of slots for n entries: at most half full. */
static unsigned slot_bits(size_t n)
{
    unsigned bits = 4;

    while (((size_t)1 << bits) < 2 * n)
        bits++;
    return bits;
}

di_code tok_vocab_init(tokenizer *t, int n_ids, size_t n_entries, di_status *st)
{
    unsigned bits = slot_bits(n_entries);
    di_code rc = tok_vocab_grow(t, n_ids, st);

    if (rc != DI_OK)
        return rc;
    t->slots = mem_try_aligned(sizeof *t->slots << bits, 64);
    t->whole = mem_try_calloc((size_t)n_ids, sizeof *t->whole);
    if (!t->slots || !t->whole)
        return di_fail(st, DI_E_NOMEM, "no memory for a vocabulary of %zu entries", n_entries);
    t->n_vocab_ids = n_ids;
    t->slot_shift = 64 - bits;
    memset(t->byte_id, 0xFF, sizeof t->byte_id);
    return DI_OK;
}

/* Hash of a short byte string, eight bytes a step. */
static uint64_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = n * 0x9E3779B97F4A7C15u, v;

    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&v, p, 8);
        h = (h ^ v) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    v = 0;
    if (n >= 4) { /* two overlapping halves cover 4..7 bytes */
        uint32_t a, b;

        memcpy(&a, p, 4);
        memcpy(&b, p + n - 4, 4);
        v = (uint64_t)b << 32 | a;
    } else if (n > 0) {
        v = (uint64_t)(uint8_t)p[0] | (uint64_t)(uint8_t)p[n / 2] << 8 |
            (uint64_t)(uint8_t)p[n - 1] << 16;
    }
    h = (h ^ v) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    return h * 0x9E3779B97F4A7C15u;
}

/* The slot of these bytes or the free one where they belong. */
static uint64_t *find_slot(const tokenizer *t, const char *bytes, size_t n, uint64_t hash)
{
    size_t mask = ((size_t)1 << (64 - t->slot_shift)) - 1;
    size_t i = (size_t)(hash >> t->slot_shift);

    for (;; i = (i + 1) & mask) {
        uint64_t slot = t->slots[i];

        if (slot == 0)
            return &t->slots[i];
        if ((uint32_t)(slot >> 32) == (uint32_t)hash) {
            tok_span span = t->bytes[(uint32_t)slot - 1];

            if (span.n == n && memcmp(t->blob.data + span.at, bytes, n) == 0)
                return &t->slots[i];
        }
    }
}

int tok_vocab_enter(tokenizer *t, int32_t id, tok_span symbol, bool *is_bytes)
{
    const char *text = t->symbols.data + symbol.at;
    size_t at = t->blob.len, n = symbol.n;
    uint64_t hash, *slot;
    char *bytes;

    str_append(&t->blob, text, symbol.n); /* at least as long as its bytes */
    if (!str_ok(&t->blob))
        return -1;
    bytes = t->blob.data + at;
    *is_bytes = tok_symbol_bytes(text, symbol.n, bytes, &n);
    if (!*is_bytes)
        memcpy(bytes, text, n = symbol.n);
    t->blob.len = at + n;
    t->symbol[id] = symbol;
    t->bytes[id] = (tok_span){(uint32_t)at, (uint32_t)n};
    t->flags[id] = TOK_PRESENT;
    if (!*is_bytes)
        return 1;
    hash = hash_bytes(bytes, n);
    slot = find_slot(t, bytes, n, hash);
    if (*slot)
        return 0;
    *slot = hash << 32 | (uint32_t)(id + 1);
    if (n > t->max_bytes)
        t->max_bytes = (uint32_t)n;
    if (n == 1)
        t->byte_id[(uint8_t)bytes[0]] = id;
    return 1;
}

int32_t tok_vocab_find(const tokenizer *t, const char *bytes, size_t n)
{
    if (n == 0 || n > t->max_bytes)
        return -1;
    return (int32_t)(uint32_t)*find_slot(t, bytes, n, hash_bytes(bytes, n)) - 1;
}

/* ---- merges ---- */

#define PAIR(left, right) ((uint64_t)(uint32_t)(left) << 44 | (uint64_t)(uint32_t)(right) << 24)
#define RANK_MASK         0xFFFFFFu

di_code tok_merges_init(tokenizer *t, size_t n, di_status *st)
{
    unsigned bits = slot_bits(n);
    size_t bytes = sizeof *t->merges << bits;

    t->merges = mem_try_aligned(bytes, 64);
    t->merged = mem_try_calloc(n, sizeof *t->merged);
    if (!t->merges || !t->merged)
        return di_fail(st, DI_E_NOMEM, "no memory for %zu merges", n);
    memset(t->merges, 0xFF, bytes);
    t->merge_shift = 64 - bits;
    return DI_OK;
}

/* The slot of a pair or the free one where it belongs. */
static uint64_t *find_merge(const tokenizer *t, uint64_t pair)
{
    size_t mask = ((size_t)1 << (64 - t->merge_shift)) - 1;
    uint64_t hash = (pair ^ pair >> 29) * 0x9E3779B97F4A7C15u;
    size_t i = (size_t)(hash >> t->merge_shift);

    while (t->merges[i] != UINT64_MAX && (t->merges[i] & ~(uint64_t)RANK_MASK) != pair)
        i = (i + 1) & mask;
    return &t->merges[i];
}

bool tok_merge_enter(tokenizer *t, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t pair = PAIR(left, right), *slot = find_merge(t, pair);

    if (*slot != UINT64_MAX)
        return false;
    *slot = pair | rank;
    t->merged[rank] = id;
    return true;
}

uint32_t tok_merge_rank(const tokenizer *t, int32_t left, int32_t right)
{
    uint64_t slot = *find_merge(t, PAIR(left, right));

    return slot == UINT64_MAX ? TOK_NO_RANK : (uint32_t)(slot & RANK_MASK);
}

di_code tok_merges_done(tokenizer *t, di_status *st)
{
    t->byte_rank = mem_try_calloc((size_t)256 * 256, sizeof *t->byte_rank);
    if (!t->byte_rank)
        return di_fail(st, DI_E_NOMEM, "no memory for the merges of bytes");
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++)
            t->byte_rank[a << 8 | b] = tok_merge_rank(t, t->byte_id[a], t->byte_id[b]);
    return DI_OK;
}
