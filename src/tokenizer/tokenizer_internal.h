/* What the files of the tokenizer share: the loaded tables and the functions between them. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/map.h"
#include "base/str.h"
#include "tokenizer/tokenizer.h"

/* Ids are below 2^20, ranks of merges below 2^24: a pair and its rank fit in 64 bits. */
#define TOK_MAX_IDS    ((int64_t)1 << 20)
#define TOK_MAX_MERGES ((int64_t)1 << 21)
#define TOK_NO_RANK    UINT32_MAX

typedef enum tok_flag {
    TOK_PRESENT = 1,
    TOK_ADDED = 2,
    TOK_SPECIAL = 4,
    TOK_NORMALIZED = 8, /* recognised in the second pass, see added.c */
    TOK_TEXT = 16,      /* its bytes are whole characters and do not end in U+FFFD */
} tok_flag;

/* Part of a blob. */
typedef struct tok_span {
    uint32_t at, n;
} tok_span;

/* What is known about an id as the encoding of its own bytes. Worked out on first use: threads may
 * do it twice, always with the same answer. */
typedef enum tok_whole { TOK_WHOLE_UNKNOWN, TOK_WHOLE_NO, TOK_WHOLE_YES } tok_whole;

/* Node of the trie of added tokens, over bytes. Node 0 is the root. */
typedef struct tok_node {
    int32_t child, sibling; /* 0 = none */
    int32_t id;             /* added token that ends here, -1 = none */
    uint8_t byte;
} tok_node;

struct tokenizer {
    int n_ids;
    /* by id */
    uint8_t *flags;
    tok_span *symbol, *bytes; /* in `symbols` and `blob` */
    _Atomic uint8_t *whole;   /* tok_whole; ids of the vocabulary only, n_vocab_ids of them */
    int n_vocab_ids;
    str symbols, blob;

    /* bytes -> id for the vocabulary: open addressing, (hash tag << 32) | (id + 1), 0 = empty */
    uint64_t *slots;
    unsigned slot_shift;  /* 64 - log2(slots) */
    uint32_t max_bytes;   /* longest entry of the table */
    int32_t byte_id[256]; /* id of each single byte */

    /* merges: left << 44 | right << 24 | rank, all ones = empty; and the id each rank makes */
    uint64_t *merges;
    unsigned merge_shift;
    int32_t *merged;
    uint32_t *byte_rank; /* [256 * 256] rank of a pair of single bytes, TOK_NO_RANK = none */

    /* added tokens */
    map *added; /* spelling -> id */
    tok_node *nodes;
    int n_nodes, cap_nodes;
    bool starts_plain[256], starts_normalized[256]; /* first bytes of the tokens of each pass */
};

/* ---- vocab.c ---- */

/* Byte that a character of a vocabulary string stands for, -1 = none (GPT-2's byte-level map). */
int tok_symbol_byte(uint32_t cp);

/* Write the bytes of a vocabulary string into out[n]: true and their number when every character is
 * a byte symbol. */
bool tok_symbol_bytes(const char *symbol, size_t n, char *out, size_t *n_bytes);

/* Set up the tables for n_entries ids below n_ids. */
di_code tok_vocab_init(tokenizer *t, int n_ids, size_t n_entries, di_status *st);

/* Make room for ids below n_ids. */
di_code tok_vocab_grow(tokenizer *t, int n_ids, di_status *st);

/* Enter an entry whose id is free and whose string, not empty, is the part `symbol` of t->symbols.
 * Strings that are no byte symbols are kept but cannot be found by their bytes (*is_bytes = false).
 * Returns 1 = entered, 0 = another entry has the same bytes, -1 = out of memory. */
int tok_vocab_enter(tokenizer *t, int32_t id, tok_span symbol, bool *is_bytes);

/* Id of the vocabulary with exactly these bytes, or -1. */
int32_t tok_vocab_find(const tokenizer *t, const char *bytes, size_t n);

/* Build the merge table for n merges; merges are entered in rank order. */
di_code tok_merges_init(tokenizer *t, size_t n, di_status *st);
/* False when the pair is there already. */
bool tok_merge_enter(tokenizer *t, int32_t left, int32_t right, uint32_t rank, int32_t id);
/* Rank of a pair, or TOK_NO_RANK. */
uint32_t tok_merge_rank(const tokenizer *t, int32_t left, int32_t right);
/* After the last merge: the table of byte pairs. */
di_code tok_merges_done(tokenizer *t, di_status *st);

/* ---- added.c ---- */

/* Enter an added token: its id has its spelling and flags already. */
di_code tok_added_enter(tokenizer *t, int32_t id, di_status *st);

/* First added token of one pass in text[0..n): its place, length and id; -1 when there is none. */
int32_t tok_added_find(const tokenizer *t, const char *text, size_t n, bool normalized, size_t *at,
                       size_t *len);

/* ---- bpe.c ---- */

/* Working memory of one encode call. */
typedef struct bpe_scratch {
    int32_t *id, *prev, *next; /* by place in the piece */
    uint32_t *rank;            /* of the pair that begins there */
    uint64_t *heap;
    size_t cap;
} bpe_scratch;
void bpe_scratch_fini(bpe_scratch *s);

/* Append the ids of one piece of n > 0 bytes. False when out of memory. */
bool bpe_encode(const tokenizer *t, bpe_scratch *s, const char *piece, size_t n, tok_ids *out);

/* Room for n more ids. False when out of memory. */
bool tok_ids_reserve(tok_ids *out, size_t n);

/* ---- decode.c ---- */

/* Set TOK_TEXT where it holds; all ids are there. */
void tok_mark_text(tokenizer *t);

/* Append bytes as text: ill-formed parts become U+FFFD. */
void tok_append_lossy(str *out, const char *bytes, size_t n);

/* ---- fold.c ---- */

/* Append the normal form N of spec model.md 6.1 to *out. */
void tok_fold(const char *text, size_t n, str *out);
