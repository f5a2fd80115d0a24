/* How kernels and model see the state of a sequence: rows in packed formats at known places.
 *
 * State of one sequence (spec 4.9, design section 5):
 *   blocks   128 tokens each, growing: per KV owner 128/ratio latent rows and index-key rows
 *   fixed    one window ring per layer and draft stage, one open-group ring per owner of ratio > 1
 * Who owns and frees the memory is the business of kv/; kernels only follow the addresses.
 *
 * Row formats
 *            KV_PACKED (the release)                          KV_F32 (numerics f32 of the scalar
 *                                                              back end: nothing is rounded)
 *   latent   d/2 bytes E2M1 + d/16 E4M3 scales (288 for 512)   d f32
 *   key      k/2 bytes E2M1 + k/32 UE8M0 scales (68 for 128)   k f32
 *   ring     d bytes E4M3 + d/32 UE8M0 scales (528 for 512)    d f32
 *   open     2*d f32: the projected token a, then its gate z   the same
 * Thread: a view is valid for the step it was made for. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/device.h"

#define KV_BLOCK_TOKENS 128
#define KV_MAX_OWNERS   16

typedef enum kv_format { KV_PACKED, KV_F32 } kv_format;

/* One KV owner: a layer that compresses its tokens ratio : 1 (spec section 1, "Layer roles"). */
typedef struct kv_owner {
    int ratio;
    size_t latent_off, key_off; /* inside a block */
    int open_rows;              /* rows of the open ring: ratio + longest draft; 0 for ratio 1 */
    size_t open_off;            /* inside the fixed part */
} kv_owner;

typedef struct kv_layout {
    kv_format format;
    int head_dim, index_dim;
    int window;    /* 128 */
    int max_draft; /* longest draft that may be rolled back */
    int ring_rows; /* window + max_draft + 1: a rejected row never costs a needed one */
    int n_rings;   /* layers, then draft stages */
    int n_owners;
    kv_owner owner[KV_MAX_OWNERS];
    size_t latent_bytes, key_bytes, ring_row_bytes; /* of one row */
    size_t block_bytes;                             /* of one block, all owners */
    size_t fixed_bytes;                             /* rings, then open rings */
} kv_layout;

/* One sequence in a step. */
typedef struct kv_view {
    uint8_t *fixed;       /* kv_layout.fixed_bytes */
    uint8_t *blocks;      /* base of the block pool */
    const int32_t *table; /* block ids: tokens 128i.. live at blocks + table[i] * block_bytes */
    int64_t len;          /* tokens committed before this step */
    int64_t ring_first;   /* window keys before this position are not there (bounded replay) */
} kv_view;

/* Where state lies: memory that operations reach (device memory on a GPU), and memory for block
 * tables, which the host writes and operations read. Both zeroed; NULL when there is none left. */
typedef struct kv_memory {
    void *owner;
    void *(*state_new)(void *owner, size_t bytes);
    void (*state_free)(void *owner, void *p);
    void *(*table_new)(void *owner, size_t bytes);
    void (*table_free)(void *owner, void *p);
} kv_memory;

/* A copy of state between two places in that memory. */
typedef struct kv_copy {
    void *dst;
    const void *src;
    size_t bytes;
} kv_copy;

/* In host memory, one after the other; on a device copies are an operation (kernels.h). */
void kv_copy_run(const kv_copy *c, int n);

/* Fill in sizes and offsets from dims, ratios and the longest draft. `ratio` [n_owners]. */
void kv_layout_init(kv_layout *l, kv_format format, int head_dim, int index_dim, int window,
                    int max_draft, int n_rings, const int *ratio, int n_owners);

/* Bytes of growing state per token: 890 for the release. */
double kv_bytes_per_token(const kv_layout *l);

DI_FN uint8_t *kv_entry_(const kv_layout *l, const kv_view *v, int owner, int64_t entry, size_t off,
                         size_t row_bytes)
{
    int64_t per_block = KV_BLOCK_TOKENS / l->owner[owner].ratio;

    return v->blocks + (size_t)v->table[entry / per_block] * l->block_bytes + off +
           (size_t)(entry % per_block) * row_bytes;
}

/* Row of compressed entry `entry` (it covers tokens entry*ratio .. entry*ratio + ratio - 1). */
DI_FN uint8_t *kv_latent(const kv_layout *l, const kv_view *v, int owner, int64_t entry)
{
    return kv_entry_(l, v, owner, entry, l->owner[owner].latent_off, l->latent_bytes);
}

DI_FN uint8_t *kv_key(const kv_layout *l, const kv_view *v, int owner, int64_t entry)
{
    return kv_entry_(l, v, owner, entry, l->owner[owner].key_off, l->key_bytes);
}

/* Ring row of absolute position `pos` in ring `ring`. */
DI_FN uint8_t *kv_ring(const kv_layout *l, const kv_view *v, int ring, int64_t pos)
{
    return v->fixed +
           ((size_t)ring * (size_t)l->ring_rows + (size_t)(pos % l->ring_rows)) * l->ring_row_bytes;
}

/* Open-group row (a, then z) of absolute position `pos`; owners of ratio > 1 only. */
DI_FN float *kv_open(const kv_layout *l, const kv_view *v, int owner, int64_t pos)
{
    const kv_owner *o = &l->owner[owner];

    return (float *)(void *)(v->fixed + o->open_off) +
           (size_t)(pos % o->open_rows) * 2 * (size_t)l->head_dim;
}
