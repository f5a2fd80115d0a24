/* What the files of the cache manager share: blocks.c, tree.c, checkpoint.c, store.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kv/store.h"

#define NONE (-1)

/* 128-bit key of a chain of full blocks. */
typedef struct chain_key {
    uint64_t lo, hi;
} chain_key;

/* A block. users: sequences that have it in their table. holds: the tree (1 when it is a node) and
 * checkpoints inside it. Free when both are 0; used when users > 0; else cached. */
typedef struct block {
    int32_t users, holds;
    int32_t next_free;
} block;

/* Tree node; node i belongs to block i. The root has the index n_blocks and no block.
 * refs: children, sequences whose deepest node it is, referenced checkpoints on it. A node with
 * refs 0 can be evicted and is in the heap. */
typedef struct node {
    chain_key key;
    int32_t parent, hash_next;
    int32_t refs;
    int32_t depth;      /* full blocks up to and including this one; root 0 */
    int32_t first_ckpt; /* list of checkpoints that hang here */
    int32_t heap_pos;   /* NONE = not evictable */
    uint64_t used_at;
    bool live;
} node;

/* Checkpoint slot. Unit `a` holds encoder rings and open groups, unit `b` the rings behind them. */
struct kv_checkpoint {
    kv_store *store;
    int64_t pos;
    uint64_t salt, used_at;
    int64_t saved;  /* tokens between it and the state that its sequence had kept before */
    uint64_t worth; /* the store's floor at its last use + saved */
    uint64_t step;  /* n_steps when it was taken */
    kv_ckpt_kind kind;
    int32_t refs;       /* holders outside the tree */
    int32_t node, next; /* where it hangs; next in that node's list, or in the free list */
    int32_t unit_a, unit_b;
    int32_t partial; /* block that holds positions behind the last full block, or NONE */
    int32_t tail[KV_BLOCK_TOKENS]; /* its tokens: pos % 128 of them */
    bool live;
};

struct kv_lease {
    kv_store *store;
    uint64_t salt;
    uint8_t *fixed;
    int32_t *table; /* [max_blocks] */
    int32_t n_blocks, node;
    int64_t committed, kept_at;    /* kept_at: where its newest checkpoint lies */
    int32_t tail[KV_BLOCK_TOKENS]; /* committed tokens behind the last sealed block */
    int32_t next_free;
    bool live;
};

struct kv_store {
    kv_layout layout;
    kv_store_options opt;
    kv_memory mem;    /* state_new is NULL in host memory */
    int max_blocks;   /* of one sequence */
    uint64_t clock;   /* for used_at */
    uint64_t floor;   /* worth of the last checkpoint that was evicted for room */
    uint64_t n_steps; /* planned so far */

    uint8_t *block_mem;
    block *blocks;
    int32_t first_free;
    int64_t n_used, n_cached, n_free;

    node *nodes;      /* [n_blocks + 1] */
    int32_t *buckets; /* [n_buckets] heads of hash chains */
    size_t n_buckets; /* power of two */
    int32_t *heap;    /* evictable nodes, least recently used first */
    int32_t n_heap;

    uint8_t *unit_mem;
    size_t unit_bytes, a_bytes, b_bytes;
    int32_t n_units, n_free_units;
    int32_t *free_units;
    kv_checkpoint *ckpts; /* [n_units] */
    int32_t first_free_ckpt;
    int64_t n_ckpts;

    uint8_t *seq_mem;
    int32_t *table_mem;
    kv_lease *seqs;
    int32_t first_free_seq;
    int64_t n_seqs;

    uint64_t evicted_blocks, evicted_ckpts, hits, misses;
};

/* blocks.c */
/* A free block with one user; evicts when none is free. NONE when all are in use. */
int32_t block_take(kv_store *s);
void block_use(kv_store *s, int32_t b);   /* one more user */
void block_unuse(kv_store *s, int32_t b); /* one user less */
void block_hold(kv_store *s, int32_t b);
void block_unhold(kv_store *s, int32_t b);

/* tree.c */
int32_t tree_root(const kv_store *s);
chain_key tree_key(chain_key parent, const int32_t *ids, uint64_t salt);
int32_t tree_find(const kv_store *s, chain_key key);
/* Block b becomes the node `key` under `parent`. */
void tree_insert(kv_store *s, int32_t b, chain_key key, int32_t parent);
void tree_ref(kv_store *s, int32_t n);
void tree_unref(kv_store *s, int32_t n);
/* Evict the least recently used node; false when none can go. */
bool tree_evict(kv_store *s);
chain_key tree_root_key(void);

/* checkpoint.c */
void ckpt_evict(kv_store *s, kv_checkpoint *c);
/* Evict the checkpoint without references that is worth least; false when there is none. */
bool ckpt_evict_least(kv_store *s);
/* It is used now. */
void ckpt_touch(kv_checkpoint *c);
/* The best checkpoint on node n for a prompt; see kv_match. */
void ckpt_best_on(kv_store *s, int32_t n, const int32_t *ids, int64_t n_ids, uint64_t salt,
                  int64_t tail, double encoder_cost, double *cost, kv_hit *hit);
/* Jobs that bring the state of c into sequence q. */
int ckpt_restore(const kv_checkpoint *c, kv_lease *q, kv_copy *copies);
