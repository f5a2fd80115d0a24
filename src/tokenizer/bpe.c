/* Byte-pair encoding of one piece: merge the adjacent pair of lowest rank, leftmost first, until
 * none is left.
 *
 * Three ways, chosen by what the piece is: a piece that is a token of the vocabulary and known to
 * encode to itself is looked up; a short one scans its pairs for the minimum; a long one keeps the
 * pairs in a heap, so that thousands of letters without a blank cost n log n. */
#include <string.h>

#include "base/mem.h"
#include "tokenizer/tokenizer_internal.h"

#define SHORT_PIECE 48 /* bytes up to which scanning is faster than the heap */

bool tok_ids_reserve(tok_ids *out, size_t n)
{
    size_t cap = out->cap ? out->cap : 64;
    int32_t *ids;

    if (out->cap - out->n >= n)
        return true;
    while (cap - out->n < n) {
        if (cap > SIZE_MAX / 2)
            return false;
        cap *= 2;
    }
    ids = mem_try_realloc(out->ids, cap, sizeof *ids);
    if (!ids)
        return false;
    out->ids = ids;
    out->cap = cap;
    return true;
}

di_code tok_ids_push(tok_ids *ids, int32_t id, di_status *st)
{
    if (!tok_ids_reserve(ids, 1))
        return di_fail(st, DI_E_NOMEM, "no memory for token ids");
    ids->ids[ids->n++] = id;
    return DI_OK;
}

void tok_ids_fini(tok_ids *ids)
{
    mem_free(ids->ids);
    *ids = (tok_ids){0};
}

/* ---- short pieces ---- */

/* Encode n <= SHORT_PIECE bytes into out[n]; returns the number of ids. */
static size_t merge_short(const tokenizer *t, const uint8_t *piece, size_t n, int32_t *id)
{
    uint32_t rank[SHORT_PIECE];

    for (size_t i = 0; i < n; i++)
        id[i] = t->byte_id[piece[i]];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = t->byte_rank[piece[i] << 8 | piece[i + 1]];
    while (n > 1) {
        uint32_t best = TOK_NO_RANK;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++)
            if (rank[i] < best) {
                best = rank[i];
                at = i;
            }
        if (best == TOK_NO_RANK)
            break;
        id[at] = t->merged[best];
        n--;
        memmove(id + at + 1, id + at + 2, (n - at - 1) * sizeof *id);
        memmove(rank + at, rank + at + 1, (n - at) * sizeof *rank);
        if (at + 1 < n)
            rank[at] = tok_merge_rank(t, id[at], id[at + 1]);
        if (at > 0)
            rank[at - 1] = tok_merge_rank(t, id[at - 1], id[at]);
    }
    return n;
}

/* ---- long pieces ---- */

void bpe_scratch_fini(bpe_scratch *s)
{
    mem_free(s->id);
    mem_free(s->prev);
    mem_free(s->next);
    mem_free(s->rank);
    mem_free(s->heap);
    *s = (bpe_scratch){0};
}

/* Room for a piece of n bytes: each merge adds at most two heap entries to the n-1 of the start. */
static bool scratch_reserve(bpe_scratch *s, size_t n)
{
    if (n <= s->cap)
        return true;
    bpe_scratch_fini(s);
    s->id = mem_try_calloc(n, sizeof *s->id);
    s->prev = mem_try_calloc(n, sizeof *s->prev);
    s->next = mem_try_calloc(n, sizeof *s->next);
    s->rank = mem_try_calloc(n, sizeof *s->rank);
    s->heap = mem_try_calloc(n, 3 * sizeof *s->heap);
    if (!s->id || !s->prev || !s->next || !s->rank || !s->heap)
        return false;
    s->cap = n;
    return true;
}

/* Heap entries are rank << 32 | place: the smallest is the leftmost pair of lowest rank. */
static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t v = heap[i];

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= v)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = v;
}

static void heap_push(uint64_t *heap, size_t n, uint64_t v)
{
    size_t i = n;

    while (i > 0 && heap[(i - 1) / 2] > v) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = v;
}

/* Work out the rank of the pair that begins at `at` and put it into the heap; returns its size. */
static size_t push_pair(const tokenizer *t, bpe_scratch *s, size_t n_heap, int32_t at)
{
    uint32_t rank = tok_merge_rank(t, s->id[at], s->id[s->next[at]]);

    s->rank[at] = rank;
    if (rank == TOK_NO_RANK)
        return n_heap;
    heap_push(s->heap, n_heap, (uint64_t)rank << 32 | (uint32_t)at);
    return n_heap + 1;
}

/* Encode n bytes; the ids are the list that begins at s->id[0] and follows s->next (-1 = end). An
 * entry of the heap is stale when its pair has another rank by now: it is passed over. */
static void merge_long(const tokenizer *t, bpe_scratch *s, const uint8_t *piece, size_t n)
{
    size_t n_heap = 0;

    for (size_t i = 0; i < n; i++) {
        s->id[i] = t->byte_id[piece[i]];
        s->prev[i] = (int32_t)i - 1;
        s->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
        s->rank[i] = i + 1 < n ? t->byte_rank[piece[i] << 8 | piece[i + 1]] : TOK_NO_RANK;
        if (s->rank[i] != TOK_NO_RANK)
            s->heap[n_heap++] = (uint64_t)s->rank[i] << 32 | (uint32_t)i;
    }
    for (size_t i = n_heap / 2; i-- > 0;)
        sift_down(s->heap, n_heap, i);
    while (n_heap > 0) {
        uint32_t rank = (uint32_t)(s->heap[0] >> 32);
        int32_t at = (int32_t)(uint32_t)s->heap[0], gone;

        s->heap[0] = s->heap[--n_heap];
        if (n_heap > 0)
            sift_down(s->heap, n_heap, 0);
        if (s->rank[at] != rank)
            continue;
        gone = s->next[at];
        s->id[at] = t->merged[rank];
        s->next[at] = s->next[gone];
        s->rank[gone] = TOK_NO_RANK;
        s->rank[at] = TOK_NO_RANK;
        if (s->next[at] >= 0) {
            s->prev[s->next[at]] = at;
            n_heap = push_pair(t, s, n_heap, at);
        }
        if (s->prev[at] >= 0)
            n_heap = push_pair(t, s, n_heap, s->prev[at]);
    }
}

/* ---- a piece ---- */

/* BPE proper; out has room for n ids. */
static bool merge_piece(const tokenizer *t, bpe_scratch *s, const char *piece, size_t n,
                        tok_ids *out)
{
    const uint8_t *p = (const uint8_t *)piece;

    if (n <= SHORT_PIECE) {
        out->n += merge_short(t, p, n, out->ids + out->n);
        return true;
    }
    if (n > INT32_MAX || !scratch_reserve(s, n))
        return false;
    merge_long(t, s, p, n);
    for (int32_t i = 0; i >= 0; i = s->next[i])
        out->ids[out->n++] = s->id[i];
    return true;
}

bool bpe_encode(const tokenizer *t, bpe_scratch *s, const char *piece, size_t n, tok_ids *out)
{
    size_t from = out->n;
    int32_t id;

    if (!tok_ids_reserve(out, n))
        return false;
    id = n == 1 ? t->byte_id[(uint8_t)piece[0]] : tok_vocab_find(t, piece, n);
    /* relaxed: the flag says something about read-only tables, it guards no other data */
    if (id >= 0 &&
        (n == 1 || atomic_load_explicit(&t->whole[id], memory_order_relaxed) == TOK_WHOLE_YES)) {
        out->ids[out->n++] = id;
        return true;
    }
    if (!merge_piece(t, s, piece, n, out))
        return false;
    if (id >= 0)
        atomic_store_explicit(&t->whole[id],
                              out->n == from + 1 && out->ids[from] == id ? TOK_WHOLE_YES
                                                                         : TOK_WHOLE_NO,
                              memory_order_relaxed);
    return true;
}
