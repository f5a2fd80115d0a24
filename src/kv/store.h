/* The KV cache manager of one engine: blocks, sequences, prefix tree, checkpoints (design section
 * 5).
 *
 *   block        FREE -alloc-> PRIVATE (one writer) -seal-> SHARED (in the tree, refs > 0)
 *                SHARED -last unref-> CACHED (in the tree, refs = 0) -evict-> FREE
 *                PRIVATE -unref-> FREE
 *   checkpoint   taken at a position of a sequence; hangs on the tree node of the last full block
 *                before it; evicted with that node or earlier
 *
 * A block of the tree is found by the hash chain XXH3-128(parent key, its 128 token ids, salt).
 * Blocks are append-only and immutable once sealed. A checkpoint inside a block holds a reference
 * to that partly filled block: entries before the checkpoint never change, and who continues from
 * it copies the block first.
 *
 * A lease is a sequence's hold on the store: its blocks and its fixed state.
 * The store does the bookkeeping at once; copies of state (rings, partial blocks) are returned as
 * kv_copy jobs, because they must run where and when the state is: on the executing side, between
 * the steps that the caller orders them between, and in their order. Keys of different salts never
 * match. On a device the store itself never looks into state: its memory is only given out.
 * Thread: the engine's host thread only; the jobs run on the executing side. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/kv_view.h"

typedef struct kv_store kv_store;
typedef struct kv_lease kv_lease;
typedef struct kv_checkpoint kv_checkpoint; /* counted; immutable once its copy has run */

typedef enum kv_ckpt_kind {
    KV_CKPT_ENCODER, /* rings up to the last KV owner's layer, open groups: the decoder layers of
                      * the tokens behind it are replayed */
    KV_CKPT_FULL,    /* all rings: decoding goes on at once */
    KV_CKPT_OWN      /* all rings, of which those of the decoder layers hold what this sequence's
                      * replay has run so far: only for who took it, never matched */
} kv_ckpt_kind;

typedef struct kv_store_options {
    const kv_layout *layout; /* copied */
    const kv_memory *memory; /* where state and tables lie; copied; NULL: host memory */
    int n_encoder_rings;     /* rings 0 .. n-1 belong to an encoder checkpoint */
    int n_blocks;            /* of 128 tokens */
    int max_seqs;            /* sequences that hold fixed state at once */
    int64_t max_context;     /* longest sequence */
    size_t checkpoint_bytes; /* budget of all checkpoints together */
    bool no_cache;           /* nothing is kept or matched */
} kv_store_options;

/* All memory is taken here. Errors: INVALID, NOMEM (says how many bytes). */
di_code kv_store_new(kv_store **out, const kv_store_options *opt, di_status *st);

/* What a store takes, in bytes. */
typedef struct kv_store_memory {
    size_t start;       /* at once: fixed state of sequences, lists */
    size_t lists;       /* of that, what lies in host memory in any case */
    size_t blocks;      /* of all blocks, as they are used; on a device at once */
    size_t checkpoints; /* of all checkpoints, as they are used; on a device at once */
} kv_store_memory;
kv_store_memory kv_store_memory_of(const kv_store_options *opt);

void kv_store_free(kv_store *s); /* all sequences closed before */

/* What a prompt can start from. */
typedef struct kv_hit {
    int64_t len;   /* tokens whose blocks are shared */
    int64_t found; /* kv_match: tokens in blocks that the tree has, with or without a checkpoint */
    kv_checkpoint *from; /* state at position len; NULL: len = 0 */
    kv_ckpt_kind kind;
} kv_hit;

/* Deepest usable start for a prompt of n ids (under `salt`): a full checkpoint at a position <=
 * n-1, or an encoder checkpoint at a position <= n - tail (tail < 0: encoder checkpoints are not
 * usable); the deeper of the two counts as deeper only by what remains to be computed: cost of a
 * token behind an encoder checkpoint and before the tail is encoder_cost of a whole one (0..1).
 * Takes no reference: use the hit before any other call. */
kv_hit kv_match(kv_store *s, const int32_t *ids, int64_t n, uint64_t salt, int64_t tail,
                double encoder_cost);

/* New sequence that starts from `hit` (NULL or len 0: empty). At most *n_copies (in: room, at least
 * kv_max_copies) jobs are written that must run before its first step.
 * Errors: BUSY when no sequence slot or no block is free (nothing is taken). */
di_code kv_lease_open(kv_store *s, kv_lease **out, const kv_hit *hit, uint64_t salt,
                      kv_copy *copies, int *n_copies, di_status *st);
int kv_max_copies(const kv_store *s);

/* The copies of all checkpoints taken so far lie before whatever is planned from now on: kv_match
 * may find them. Called between the plans of two steps: a checkpoint taken in a plan is filled only
 * behind that plan's step. */
void kv_store_step_planned(kv_store *s);

/* Give everything back: sealed blocks stay cached. Accepts NULL. */
void kv_lease_close(kv_lease *q);

/* Room for positions up to tokens-1; evicts cached blocks when needed. BUSY when impossible:
 * nothing is taken. */
di_code kv_lease_reserve(kv_lease *q, int64_t tokens, di_status *st);

/* View of the sequence with `len` tokens committed; the table stays valid until kv_lease_close, new
 * blocks are only added behind. */
kv_view kv_lease_view(const kv_lease *q, int64_t len);
int64_t kv_lease_capacity(const kv_lease *q); /* positions with room */

/* Does the tree hold blocks of this sequence twice, because another one has sealed them first? Who
 * takes a checkpoint, closes and starts again from it shares them. */
bool kv_lease_has_twins(const kv_lease *q);

/* ids[0..n) were computed and will never be rolled back: full blocks are sealed into the tree. When
 * another sequence has sealed the same block first, the tree keeps that one and this sequence its
 * own. */
void kv_lease_commit(kv_lease *q, const int32_t *ids, int64_t n);

/* Take a checkpoint of the committed state at position `pos` (= the last commit; at most max_draft
 * behind what was computed). The copies must run before the sequence's next step. *out (may be
 * NULL) gets a reference, released by kv_checkpoint_unref. Errors: BUSY when the budget is full of
 * referenced checkpoints: nothing is taken, the caller goes on without. */
di_code kv_lease_checkpoint(kv_lease *q, int64_t pos, kv_ckpt_kind kind, kv_checkpoint **out,
                            kv_copy *copies, int *n_copies, di_status *st);
void kv_checkpoint_unref(kv_checkpoint *c);

/* A hit for exactly this checkpoint, e.g. to resume a preempted sequence; keeps working after
 * eviction because the checkpoint holds its chain. */
kv_hit kv_checkpoint_hit(kv_checkpoint *c);

/* blocks: total = used + cached + free at all times. */
typedef struct kv_counts {
    int64_t blocks_total, blocks_used, blocks_cached, blocks_free;
    int64_t seqs_used, seqs_total;
    int64_t checkpoints;
    size_t checkpoint_bytes, checkpoint_budget;
    uint64_t evicted_blocks, evicted_checkpoints, hits, misses;
} kv_counts;
kv_counts kv_store_counts(const kv_store *s);

/* Drop everything that is cached and not in use. */
void kv_store_clear(kv_store *s);

/* Check every invariant (tests): reference counts against holders, tree links, identities.
 * Errors: INTERNAL with the first violation. */
di_code kv_store_check(const kv_store *s, di_status *st);
