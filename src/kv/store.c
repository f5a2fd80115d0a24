/* The cache manager: memory, sequences, matching, and the check of every invariant. */
#include "kv/store.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kv/store_internal.h"

#define ALIGN64(n) (((n) + 63) / 64 * 64)

/* ---- memory ---- */

/* Zeroed memory for state. `used`: all of it will be, so that a host pays for its pages now. */
static void *state_new(const kv_store *s, size_t bytes, bool used)
{
    if (s->mem.state_new)
        return s->mem.state_new(s->mem.owner, bytes ? bytes : 1);
    return used ? mem_try_resident(bytes, 64) : mem_try_aligned(bytes, 64);
}

static void state_free(const kv_store *s, void *p)
{
    if (s->mem.state_free && p)
        s->mem.state_free(s->mem.owner, p);
    else
        mem_free(p);
}

static int32_t *table_new(const kv_store *s, size_t n)
{
    return s->mem.table_new ? s->mem.table_new(s->mem.owner, n * sizeof(int32_t))
                            : mem_try_calloc(n, sizeof(int32_t));
}

static void table_free(const kv_store *s, int32_t *p)
{
    if (s->mem.table_free && p)
        s->mem.table_free(s->mem.owner, p);
    else
        mem_free(p);
}

static void unit_sizes(kv_store *s)
{
    const kv_layout *l = &s->layout;
    size_t ring = (size_t)l->window * l->ring_row_bytes, open = 0;

    for (int o = 0; o < l->n_owners; o++)
        open += (size_t)(l->owner[o].ratio - 1) * 2 * (size_t)l->head_dim * sizeof(float);
    s->a_bytes = (size_t)s->opt.n_encoder_rings * ring + open;
    s->b_bytes = (size_t)(l->n_rings - s->opt.n_encoder_rings) * ring;
    s->unit_bytes = ALIGN64(s->a_bytes > s->b_bytes ? s->a_bytes : s->b_bytes);
    s->n_units = s->opt.no_cache ? 0 : (int32_t)(s->opt.checkpoint_bytes / s->unit_bytes);
}

static void link_free_lists(kv_store *s)
{
    for (int32_t i = 0; i < s->opt.n_blocks; i++)
        s->blocks[i].next_free = i + 1 < s->opt.n_blocks ? i + 1 : NONE;
    for (int32_t i = 0; i < s->n_units; i++) {
        s->free_units[i] = i;
        s->ckpts[i].next = i + 1 < s->n_units ? i + 1 : NONE;
    }
    for (int32_t i = 0; i < s->opt.max_seqs; i++) {
        kv_lease *q = &s->seqs[i];

        q->store = s;
        q->fixed = s->seq_mem + (size_t)i * ALIGN64(s->layout.fixed_bytes);
        q->table = s->table_mem + (size_t)i * (size_t)s->max_blocks;
        q->next_free = i + 1 < s->opt.max_seqs ? i + 1 : NONE;
    }
    s->first_free = s->first_free_seq = 0;
    s->first_free_ckpt = s->n_units ? 0 : NONE;
    s->n_free = s->opt.n_blocks;
    s->n_free_units = s->n_units;
    for (size_t i = 0; i < s->n_buckets; i++)
        s->buckets[i] = NONE;
    s->nodes[tree_root(s)] = (node){.key = tree_root_key(),
                                    .parent = NONE,
                                    .hash_next = NONE,
                                    .first_ckpt = NONE,
                                    .heap_pos = NONE,
                                    .live = true};
}

di_code kv_store_new(kv_store **out, const kv_store_options *opt, di_status *st)
{
    const kv_layout *l = opt->layout;
    kv_store *s;
    size_t n = (size_t)opt->n_blocks, m = (size_t)opt->max_seqs, units;

    *out = NULL;
    if (opt->n_blocks < 1 || opt->max_seqs < 1 || opt->max_context < 1)
        return di_fail(st, DI_E_INVALID,
                       "a KV store needs blocks (%d), sequences (%d) and a context (%lld)",
                       opt->n_blocks, opt->max_seqs, (long long)opt->max_context);
    s = mem_try_calloc(1, sizeof *s);
    if (!s)
        return di_fail(st, DI_E_NOMEM, "no memory for a KV store");
    s->opt = *opt;
    s->layout = *l;
    s->opt.layout = &s->layout;
    if (opt->memory)
        s->mem = *opt->memory;
    s->opt.memory = NULL;
    s->max_blocks = (int)((opt->max_context + l->max_draft) / KV_BLOCK_TOKENS + 1);
    unit_sizes(s);
    units = (size_t)s->n_units;
    for (s->n_buckets = 16; s->n_buckets < 2 * n;)
        s->n_buckets *= 2;
    s->block_mem = state_new(s, n * l->block_bytes, false);
    s->blocks = mem_try_calloc(n, sizeof *s->blocks);
    s->nodes = mem_try_calloc(n + 1, sizeof *s->nodes);
    s->buckets = mem_try_calloc(s->n_buckets, sizeof *s->buckets);
    s->heap = mem_try_calloc(n, sizeof *s->heap);
    s->unit_mem = state_new(s, units * s->unit_bytes, false);
    s->free_units = mem_try_calloc(units, sizeof *s->free_units);
    s->ckpts = mem_try_calloc(units, sizeof *s->ckpts);
    s->seq_mem = state_new(s, m * ALIGN64(l->fixed_bytes), true);
    s->table_mem = table_new(s, m * (size_t)s->max_blocks);
    s->seqs = mem_try_calloc(m, sizeof *s->seqs);
    if (!s->block_mem || !s->blocks || !s->nodes || !s->buckets || !s->heap || !s->unit_mem ||
        !s->free_units || !s->ckpts || !s->seq_mem || !s->table_mem || !s->seqs) {
        size_t seq_bytes = m * ALIGN64(l->fixed_bytes), ckpt_bytes = units * s->unit_bytes;

        kv_store_free(s);
        return di_fail(st, DI_E_NOMEM,
                       "no memory for the KV store: %.1f MiB of blocks, %.1f MiB of checkpoints, "
                       "%.1f MiB of sequences; ask for fewer tokens or sequences",
                       (double)(n * l->block_bytes) / 0x1p20, (double)ckpt_bytes / 0x1p20,
                       (double)seq_bytes / 0x1p20);
    }
    link_free_lists(s);
    *out = s;
    return DI_OK;
}

kv_store_memory kv_store_memory_of(const kv_store_options *opt)
{
    kv_store s = {.opt = *opt, .layout = *opt->layout};
    size_t n = (size_t)opt->n_blocks, lists = n * (sizeof *s.blocks + sizeof *s.nodes);

    unit_sizes(&s);
    return (kv_store_memory){
        .start = mem_aligned_bytes((size_t)opt->max_seqs * ALIGN64(s.layout.fixed_bytes)) + lists,
        .lists = lists,
        .blocks = mem_aligned_bytes(n * s.layout.block_bytes),
        .checkpoints = mem_aligned_bytes((size_t)s.n_units * s.unit_bytes) +
                       (size_t)s.n_units * sizeof *s.ckpts};
}

void kv_store_free(kv_store *s)
{
    if (!s)
        return;
    state_free(s, s->block_mem);
    mem_free(s->blocks);
    mem_free(s->nodes);
    mem_free(s->buckets);
    mem_free(s->heap);
    state_free(s, s->unit_mem);
    mem_free(s->free_units);
    mem_free(s->ckpts);
    state_free(s, s->seq_mem);
    table_free(s, s->table_mem);
    mem_free(s->seqs);
    mem_free(s);
}

int kv_max_copies(const kv_store *s)
{
    int open = 0;

    for (int o = 0; o < s->layout.n_owners; o++)
        open += s->layout.owner[o].ratio - 1;
    return 2 * s->layout.n_rings + open + 1;
}

/* ---- matching ---- */

kv_hit kv_match(kv_store *s, const int32_t *ids, int64_t n, uint64_t salt, int64_t tail,
                double encoder_cost)
{
    kv_hit hit = {0};
    double cost = (double)n; /* of a cold start: every token whole, or the encoder and a tail */
    int32_t at = tree_root(s);
    int64_t found = 0;

    if (tail >= 0 && n > tail)
        cost = (double)tail + (double)(n - tail) * encoder_cost;
    while (at != NONE) {
        int64_t base = (int64_t)s->nodes[at].depth * KV_BLOCK_TOKENS;

        found = base;
        ckpt_best_on(s, at, ids, n, salt, tail, encoder_cost, &cost, &hit);
        if (n - base < KV_BLOCK_TOKENS)
            break;
        at = tree_find(s, tree_key(s->nodes[at].key, ids + base, salt));
    }
    hit.found = found;
    if (hit.from)
        s->hits++;
    else
        s->misses++;
    return hit;
}

void kv_store_step_planned(kv_store *s)
{
    s->n_steps++;
}

/* ---- sequences ---- */

/* Give back the blocks of a table from index `from` on. */
static void drop_blocks(kv_lease *q, int32_t from)
{
    while (q->n_blocks > from)
        block_unuse(q->store, q->table[--q->n_blocks]);
}

/* The chain of node n as the first blocks of the table. */
static void share_chain(kv_lease *q, int32_t n)
{
    kv_store *s = q->store;

    q->n_blocks = s->nodes[n].depth;
    for (int32_t at = n; at != tree_root(s); at = s->nodes[at].parent) {
        q->table[s->nodes[at].depth - 1] = at;
        block_use(s, at);
    }
}

di_code kv_lease_open(kv_store *s, kv_lease **out, const kv_hit *hit, uint64_t salt,
                      kv_copy *copies, int *n_copies, di_status *st)
{
    kv_checkpoint *c = hit && hit->len ? hit->from : NULL;
    int32_t id = s->first_free_seq;
    kv_lease *q;

    *out = NULL;
    *n_copies = 0;
    if (id == NONE)
        return di_fail(st, DI_E_BUSY, "all %d sequences are in use", s->opt.max_seqs);
    q = &s->seqs[id];
    q->salt = salt;
    q->node = c ? c->node : tree_root(s);
    q->n_blocks = 0;
    q->committed = q->kept_at = c ? c->pos : 0;
    tree_ref(s, q->node);
    share_chain(q, q->node);
    if (c) {
        /* held while a block is taken: eviction must not take the source of the copy */
        ckpt_touch(c);
        c->refs++;
        if (c->partial != NONE) {
            int32_t b = block_take(s);

            if (b == NONE) {
                c->refs--;
                drop_blocks(q, 0);
                tree_unref(s, q->node);
                return di_fail(st, DI_E_BUSY, "all %d blocks are in use", s->opt.n_blocks);
            }
            q->table[q->n_blocks++] = b;
        }
        c->refs--;
        memcpy(q->tail, c->tail, sizeof q->tail);
        *n_copies = ckpt_restore(c, q, copies);
    }
    s->first_free_seq = q->next_free;
    q->live = true;
    s->n_seqs++;
    *out = q;
    return DI_OK;
}

void kv_lease_close(kv_lease *q)
{
    kv_store *s;

    if (!q)
        return;
    s = q->store;
    drop_blocks(q, 0);
    tree_unref(s, q->node);
    q->live = false;
    q->next_free = s->first_free_seq;
    s->first_free_seq = (int32_t)(q - s->seqs);
    s->n_seqs--;
}

di_code kv_lease_reserve(kv_lease *q, int64_t tokens, di_status *st)
{
    kv_store *s = q->store;
    int64_t need = (tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    int32_t before = q->n_blocks;

    if (need > s->max_blocks)
        return di_fail(st, DI_E_INVALID, "%lld tokens asked for, a sequence has at most %lld",
                       (long long)tokens, (long long)s->opt.max_context);
    while (q->n_blocks < need) {
        int32_t b = block_take(s);

        if (b == NONE) {
            drop_blocks(q, before);
            return di_fail(st, DI_E_BUSY, "all %d blocks are in use", s->opt.n_blocks);
        }
        q->table[q->n_blocks++] = b;
    }
    return DI_OK;
}

kv_view kv_lease_view(const kv_lease *q, int64_t len)
{
    return (kv_view){
        .fixed = q->fixed, .blocks = q->store->block_mem, .table = q->table, .len = len};
}

int64_t kv_lease_capacity(const kv_lease *q)
{
    return (int64_t)q->n_blocks * KV_BLOCK_TOKENS;
}

bool kv_lease_has_twins(const kv_lease *q)
{
    const node *nodes = q->store->nodes;

    for (int32_t at = q->node; at != tree_root(q->store); at = nodes[at].parent)
        if (q->table[nodes[at].depth - 1] != at)
            return true;
    return false;
}

/* The last full block of the sequence goes into the tree. */
static void seal(kv_lease *q)
{
    kv_store *s = q->store;
    chain_key key = tree_key(s->nodes[q->node].key, q->tail, q->salt);
    int32_t n = tree_find(s, key), old = q->node;

    if (n == NONE) {
        n = q->table[q->committed / KV_BLOCK_TOKENS - 1];
        tree_insert(s, n, key, old);
    }
    tree_ref(s, n);
    tree_unref(s, old);
    q->node = n;
}

void kv_lease_commit(kv_lease *q, const int32_t *ids, int64_t n)
{
    while (n > 0) {
        int64_t at = q->committed % KV_BLOCK_TOKENS;
        int64_t part = n < KV_BLOCK_TOKENS - at ? n : KV_BLOCK_TOKENS - at;

        memcpy(q->tail + at, ids, (size_t)part * sizeof *ids);
        q->committed += part;
        if (at + part == KV_BLOCK_TOKENS && !q->store->opt.no_cache)
            seal(q);
        ids += part;
        n -= part;
    }
}

/* ---- accounting ---- */

kv_counts kv_store_counts(const kv_store *s)
{
    size_t used_units = (size_t)(s->n_units - s->n_free_units);

    return (kv_counts){.blocks_total = s->opt.n_blocks,
                       .blocks_used = s->n_used,
                       .blocks_cached = s->n_cached,
                       .blocks_free = s->n_free,
                       .seqs_used = s->n_seqs,
                       .seqs_total = s->opt.max_seqs,
                       .checkpoints = s->n_ckpts,
                       .checkpoint_bytes = used_units * s->unit_bytes,
                       .checkpoint_budget = (size_t)s->n_units * s->unit_bytes,
                       .evicted_blocks = s->evicted_blocks,
                       .evicted_checkpoints = s->evicted_ckpts,
                       .hits = s->hits,
                       .misses = s->misses};
}

void kv_store_clear(kv_store *s)
{
    while (tree_evict(s) || ckpt_evict_least(s))
        ;
}

/* Users and holds of every block, counted from those who have them. */
static di_code check_blocks(const kv_store *s, int32_t *users, int32_t *holds, di_status *st)
{
    int64_t used = 0, cached = 0;

    for (int32_t i = 0; i < s->opt.max_seqs; i++)
        for (int32_t b = 0; s->seqs[i].live && b < s->seqs[i].n_blocks; b++)
            users[s->seqs[i].table[b]]++;
    for (int32_t i = 0; i < s->opt.n_blocks; i++)
        holds[i] += s->nodes[i].live;
    for (int32_t i = 0; i < s->n_units; i++)
        if (s->ckpts[i].live && s->ckpts[i].partial != NONE)
            holds[s->ckpts[i].partial]++;
    for (int32_t i = 0; i < s->opt.n_blocks; i++) {
        if (users[i] != s->blocks[i].users || holds[i] != s->blocks[i].holds)
            return di_fail(st, DI_E_INTERNAL, "block %d: %d users and %d holds, counted %d and %d",
                           i, s->blocks[i].users, s->blocks[i].holds, users[i], holds[i]);
        used += users[i] > 0;
        cached += users[i] == 0 && holds[i] > 0;
    }
    if (used != s->n_used || cached != s->n_cached || used + cached + s->n_free != s->opt.n_blocks)
        return di_fail(st, DI_E_INTERNAL, "used %lld, cached %lld, free %lld of %d blocks",
                       (long long)s->n_used, (long long)s->n_cached, (long long)s->n_free,
                       s->opt.n_blocks);
    return DI_OK;
}

/* References of every node, counted from children, sequences and referenced checkpoints. */
static di_code check_nodes(const kv_store *s, int32_t *refs, di_status *st)
{
    for (int32_t i = 0; i < s->opt.n_blocks; i++)
        if (s->nodes[i].live)
            refs[s->nodes[i].parent]++;
    for (int32_t i = 0; i < s->opt.max_seqs; i++)
        if (s->seqs[i].live)
            refs[s->seqs[i].node]++;
    for (int32_t i = 0; i < s->n_units; i++)
        if (s->ckpts[i].live && s->ckpts[i].refs > 0)
            refs[s->ckpts[i].node]++;
    for (int32_t i = 0; i <= s->opt.n_blocks; i++) {
        const node *t = &s->nodes[i];
        bool in_heap = t->live && i != tree_root(s) && t->refs == 0;

        if (!t->live)
            continue;
        if (t->refs != refs[i] || (t->heap_pos != NONE) != in_heap)
            return di_fail(st, DI_E_INTERNAL, "node %d: %d references, counted %d, heap place %d",
                           i, t->refs, refs[i], t->heap_pos);
        if (i != tree_root(s) &&
            (!s->nodes[t->parent].live || t->depth != s->nodes[t->parent].depth + 1))
            return di_fail(st, DI_E_INTERNAL, "node %d hangs on %d at depth %d", i, t->parent,
                           t->depth);
    }
    return DI_OK;
}

di_code kv_store_check(const kv_store *s, di_status *st)
{
    size_t n = (size_t)s->opt.n_blocks + 1;
    int32_t *counts = mem_try_calloc(3 * n, sizeof *counts);
    di_code rc = DI_OK;

    if (!counts)
        return di_fail(st, DI_E_NOMEM, "no memory to check the KV store");
    DI_TRY(check_blocks(s, counts, counts + n, st));
    DI_TRY(check_nodes(s, counts + 2 * n, st));
done:
    mem_free(counts);
    return rc;
}
