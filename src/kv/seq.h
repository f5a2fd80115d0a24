/* State of one sequence in host memory, and a pool that hands it out (design.md section 5).
 *
 * This is the plain form: every sequence holds its blocks for itself. The prefix tree, checkpoints
 * and tiers of the engine sit on the same blocks and views.
 * Thread: engine thread only. */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "tensor/kv_view.h"

typedef struct kv_pool kv_pool;
typedef struct kv_seq kv_seq;

/* A pool of n_blocks blocks of 128 tokens and n_seqs sequences, reserved at once.
 * Errors: INVALID, NOMEM (says how many bytes were asked for). */
di_code kv_pool_new(kv_pool **out, const kv_layout *l, int n_blocks, int n_seqs, di_status *st);
/* The same in other memory (NULL: the host's), whose owner must outlive the pool. */
di_code kv_pool_new_in(kv_pool **out, const kv_memory *mem, const kv_layout *l, int n_blocks,
                       int n_seqs, di_status *st);
void kv_pool_free(kv_pool *p);
size_t kv_pool_bytes(const kv_pool *p);
int kv_pool_n_free(const kv_pool *p);

/* A new empty sequence. Errors: BUSY when all are in use. */
di_code kv_seq_new(kv_pool *p, kv_seq **out, di_status *st);
void kv_seq_free(kv_seq *s); /* gives its blocks back; accepts NULL */

/* Make room for tokens up to position `tokens`-1. Errors: BUSY when no block is free. */
di_code kv_seq_reserve(kv_seq *s, int64_t tokens, di_status *st);

/* View for a step; valid until the sequence is reserved again or freed. */
kv_view kv_seq_view(const kv_seq *s);

/* Commit tokens: the sequence is now n tokens long (n may be smaller: roll back up to max_draft).
 */
void kv_seq_set_len(kv_seq *s, int64_t n);
int64_t kv_seq_len(const kv_seq *s);
