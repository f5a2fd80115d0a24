/* Prefix tree over full blocks: nodes found by the hash of their chain, evicted leaf by leaf in the
 * order of last use. A node stays while it has children, a sequence that stands on it, or a
 * referenced checkpoint. */
#include "kv/store_internal.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

int32_t tree_root(const kv_store *s)
{
    return s->opt.n_blocks;
}

chain_key tree_root_key(void)
{
    return (chain_key){0, 0};
}

chain_key tree_key(chain_key parent, const int32_t *ids, uint64_t salt)
{
    struct {
        chain_key parent;
        int32_t ids[KV_BLOCK_TOKENS];
    } chain = {.parent = parent};
    XXH128_hash_t h;

    memcpy(chain.ids, ids, sizeof chain.ids);
    h = XXH3_128bits_withSeed(&chain, sizeof chain, salt);
    return (chain_key){h.low64, h.high64};
}

static int32_t *bucket(const kv_store *s, chain_key key)
{
    return &s->buckets[key.lo & (s->n_buckets - 1)];
}

int32_t tree_find(const kv_store *s, chain_key key)
{
    int32_t n = *bucket(s, key);

    while (n != NONE && (s->nodes[n].key.lo != key.lo || s->nodes[n].key.hi != key.hi))
        n = s->nodes[n].hash_next;
    return n;
}

/* ---- heap of evictable nodes, least recently used on top ---- */

static bool older(const kv_store *s, int32_t a, int32_t b)
{
    return s->nodes[s->heap[a]].used_at < s->nodes[s->heap[b]].used_at;
}

static void swap(kv_store *s, int32_t a, int32_t b)
{
    int32_t t = s->heap[a];

    s->heap[a] = s->heap[b];
    s->heap[b] = t;
    s->nodes[s->heap[a]].heap_pos = a;
    s->nodes[s->heap[b]].heap_pos = b;
}

static void sift(kv_store *s, int32_t at)
{
    while (at > 0 && older(s, at, (at - 1) / 2)) {
        swap(s, at, (at - 1) / 2);
        at = (at - 1) / 2;
    }
    for (;;) {
        int32_t least = at;

        for (int32_t child = 2 * at + 1; child <= 2 * at + 2 && child < s->n_heap; child++)
            if (older(s, child, least))
                least = child;
        if (least == at)
            return;
        swap(s, at, least);
        at = least;
    }
}

static void heap_add(kv_store *s, int32_t n)
{
    s->nodes[n].heap_pos = s->n_heap;
    s->heap[s->n_heap++] = n;
    sift(s, s->n_heap - 1);
}

static void heap_remove(kv_store *s, int32_t n)
{
    int32_t at = s->nodes[n].heap_pos;

    s->n_heap--;
    if (at != s->n_heap) {
        swap(s, at, s->n_heap);
        sift(s, at);
    }
    s->nodes[n].heap_pos = NONE;
}

/* ---- life of a node ---- */

void tree_ref(kv_store *s, int32_t n)
{
    node *t = &s->nodes[n];

    t->used_at = ++s->clock;
    if (t->refs++ == 0 && t->heap_pos != NONE)
        heap_remove(s, n);
}

void tree_unref(kv_store *s, int32_t n)
{
    node *t = &s->nodes[n];

    if (--t->refs == 0 && n != tree_root(s))
        heap_add(s, n);
}

void tree_insert(kv_store *s, int32_t b, chain_key key, int32_t parent)
{
    node *t = &s->nodes[b];
    int32_t *head = bucket(s, key);

    *t = (node){.key = key,
                .parent = parent,
                .hash_next = *head,
                .depth = s->nodes[parent].depth + 1,
                .first_ckpt = NONE,
                .heap_pos = NONE,
                .used_at = ++s->clock,
                .live = true};
    *head = b;
    block_hold(s, b);
    tree_ref(s, parent);
    heap_add(s, b);
}

static void unlink_hash(kv_store *s, int32_t n)
{
    int32_t *at = bucket(s, s->nodes[n].key);

    while (*at != n)
        at = &s->nodes[*at].hash_next;
    *at = s->nodes[n].hash_next;
}

bool tree_evict(kv_store *s)
{
    int32_t n, parent;

    if (s->n_heap == 0)
        return false;
    n = s->heap[0];
    parent = s->nodes[n].parent;
    while (s->nodes[n].first_ckpt != NONE)
        ckpt_evict(s, &s->ckpts[s->nodes[n].first_ckpt]);
    heap_remove(s, n);
    unlink_hash(s, n);
    s->nodes[n].live = false;
    s->evicted_blocks++;
    block_unhold(s, n);
    tree_unref(s, parent);
    return true;
}
