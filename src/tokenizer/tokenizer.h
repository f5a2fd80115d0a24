/* Text <-> token ids: byte-level BPE as in the released tokenizer.json (spec recipe.md section 5).
 *
 * Thread: a loaded tokenizer is immutable and may be used by any number of threads; tok_decoder
 * objects belong to one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

typedef struct tokenizer tokenizer;

/* Growing list of ids. */
typedef struct tok_ids {
    int32_t *ids;
    size_t n, cap;
} tok_ids;
void tok_ids_fini(tok_ids *ids);
/* Append one id. Errors: NOMEM. */
di_code tok_ids_push(tok_ids *ids, int32_t id, di_status *st);

/* Load tokenizer.json. Errors: IO, FORMAT (names the file, the key and the entry), UNSUPPORTED (a
 * pre-tokenizer, normaliser or model of another kind: says which), NOMEM. */
di_code tokenizer_load(tokenizer **out, const char *path, di_status *st);
di_code tokenizer_parse(tokenizer **out, const char *json, size_t n, const char *name,
                        di_status *st);

/* A tokenizer without a file, for generated weights: bytes, the three ids below, the control tokens
 * of the recipe, " tN" for the rest. Errors: UNSUPPORTED (too few ids), NOMEM. */
typedef struct tokenizer_ids {
    int vocab, bos, eos, pad;
} tokenizer_ids;
di_code tokenizer_generate(tokenizer **out, const tokenizer_ids *ids, di_status *st);

void tokenizer_free(tokenizer *t);

/* Bytes that a loaded tokenizer holds, and about what one of n_ids ids will (measured on the
 * released one): for plans made without the file. */
size_t tokenizer_memory(const tokenizer *t);
size_t tokenizer_memory_about(int n_ids);

/* Number of ids, added tokens included (ids run from 0 to n-1; holes have no bytes). */
int tokenizer_n_ids(const tokenizer *t);

/* Encode n bytes and append the ids to *out. added: spellings of added tokens become their ids
 * (leftmost-longest); otherwise they are plain text. Ill-formed UTF-8 is read as U+FFFD.
 * Errors: NOMEM. */
di_code tokenizer_encode(const tokenizer *t, const char *text, size_t n, bool added, tok_ids *out,
                         di_status *st);

/* Lengths in bytes of the pieces that BPE sees (no added tokens), appended to *out. */
di_code tokenizer_pieces(const tokenizer *t, const char *text, size_t n, tok_ids *out,
                         di_status *st);

/* Bytes of one id (its UTF-8 spelling for added tokens); NULL and *n = 0 for a hole. Borrowed. */
const char *tokenizer_bytes(const tokenizer *t, int32_t id, size_t *n);
/* The vocabulary string of an id (byte symbols, as in the file); NULL for a hole. Borrowed. */
const char *tokenizer_symbol(const tokenizer *t, int32_t id, size_t *n);
/* True for added tokens that the file flags "special". */
bool tokenizer_is_special(const tokenizer *t, int32_t id);
/* True for all added tokens. */
bool tokenizer_is_added(const tokenizer *t, int32_t id);
/* Id of an added token with exactly this spelling, or -1. */
int32_t tokenizer_added_id(const tokenizer *t, const char *spelling);

/* Whole decode: bytes of the ids, ill-formed parts as U+FFFD, appended to *out. */
void tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      str *out);

/* Incremental decode: gives text out only when no character is cut. */
typedef struct tok_decoder {
    const tokenizer *t;
    str pending; /* bytes that are held */
} tok_decoder;
void tok_decoder_init(tok_decoder *d, const tokenizer *t);
void tok_decoder_fini(tok_decoder *d);
/* Take one id and append what can be shown to *out (decode.jsonl: "pieces"). */
void tok_decoder_push(tok_decoder *d, int32_t id, str *out);
/* Append what is still held, ill-formed parts as U+FFFD, and start again. */
void tok_decoder_flush(tok_decoder *d, str *out);

/* Compressed ids of the Engram hash: map [n_ids] from token id to an id in 0..*n_compressed-1
 * (spec model.md 6.1; Unicode rules of the Rust normalisers). Errors: NOMEM. */
di_code tokenizer_compressed_ids(const tokenizer *t, int32_t *map, int n_ids, int *n_compressed,
                                 di_status *st);
