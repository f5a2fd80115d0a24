/* Pool and sequences: blocks in one reservation, a free list of ids, a table per sequence.
 *
 * Block: FREE -kv_seq_reserve-> owned by one sequence -kv_seq_free-> FREE. */
#include "kv/seq.h"

#include "base/mem.h"

#define ALIGN 64

struct kv_seq {
    kv_pool *pool;
    kv_seq *next_free;
    uint8_t *fixed;
    int32_t *table; /* [pool.n_blocks]: a sequence may own them all */
    int n_blocks;
    int64_t len;
};

struct kv_pool {
    kv_layout layout;
    int n_blocks, n_seqs, n_free;
    uint8_t *blocks, *fixed; /* at multiples of ALIGN inside the next two */
    void *blocks_mem, *fixed_mem;
    kv_memory mem;
    int32_t *tables;
    int32_t *free; /* stack of free block ids */
    kv_seq *seqs, *free_seqs;
    size_t bytes;
};

/* Plain zeroed memory: what no sequence ever reaches is never touched, so a pool for long sequences
 * costs only what is used. */
static void *host_new(void *owner, size_t bytes)
{
    (void)owner;
    return mem_try_calloc(bytes, 1);
}

static void host_free(void *owner, void *p)
{
    (void)owner;
    mem_free(p);
}

static const kv_memory host_memory = {
    .state_new = host_new, .state_free = host_free, .table_new = host_new, .table_free = host_free};

/* Room for `bytes` at a multiple of ALIGN. */
static uint8_t *state(const kv_pool *p, size_t bytes, void **mem)
{
    size_t room;

    *mem = size_add(bytes, ALIGN, &room) ? p->mem.state_new(p->mem.owner, room) : NULL;
    return *mem ? (uint8_t *)*mem + (ALIGN - (uintptr_t)*mem % ALIGN) % ALIGN : NULL;
}

static di_code reserve_all(kv_pool *p, di_status *st)
{
    size_t blocks, fixed, tables, n_seqs = (size_t)p->n_seqs, n_blocks = (size_t)p->n_blocks;

    if (!size_mul(n_blocks, p->layout.block_bytes, &blocks) ||
        !size_mul(n_seqs, p->layout.fixed_bytes, &fixed) || !size_mul(n_seqs, n_blocks, &tables))
        return di_fail(st, DI_E_INVALID, "%d sequences and %d blocks of state exceed all memory",
                       p->n_seqs, p->n_blocks);
    p->bytes = blocks + fixed;
    p->blocks = state(p, blocks, &p->blocks_mem);
    p->fixed = state(p, fixed, &p->fixed_mem);
    p->tables = size_mul(tables, sizeof *p->tables, &tables)
                    ? p->mem.table_new(p->mem.owner, tables)
                    : NULL;
    p->free = mem_try_calloc(n_blocks, sizeof *p->free);
    p->seqs = mem_try_calloc(n_seqs, sizeof *p->seqs);
    if (!p->blocks || !p->fixed || !p->tables || !p->free || !p->seqs)
        return di_fail(st, DI_E_NOMEM,
                       "no memory for %zu bytes of sequence state; use a shorter context",
                       p->bytes);
    return DI_OK;
}

di_code kv_pool_new(kv_pool **out, const kv_layout *l, int n_blocks, int n_seqs, di_status *st)
{
    return kv_pool_new_in(out, NULL, l, n_blocks, n_seqs, st);
}

di_code kv_pool_new_in(kv_pool **out, const kv_memory *mem, const kv_layout *l, int n_blocks,
                       int n_seqs, di_status *st)
{
    di_code rc = DI_OK;
    kv_pool *p;

    *out = NULL;
    if (n_blocks < 1 || n_seqs < 1)
        return di_fail(st, DI_E_INVALID, "a state pool needs at least one block and one sequence");
    p = mem_try_calloc(1, sizeof *p);
    if (!p)
        return di_fail(st, DI_E_NOMEM, "no memory for a state pool");
    p->mem = mem ? *mem : host_memory;
    p->layout = *l;
    p->n_blocks = p->n_free = n_blocks;
    p->n_seqs = n_seqs;
    DI_TRY(reserve_all(p, st));
    for (int i = 0; i < n_blocks; i++)
        p->free[i] = n_blocks - 1 - i; /* handed out from 0 up */
    for (int i = n_seqs - 1; i >= 0; i--) {
        kv_seq *s = &p->seqs[i];

        s->pool = p;
        s->fixed = p->fixed + (size_t)i * l->fixed_bytes;
        s->table = p->tables + (size_t)i * (size_t)n_blocks;
        s->next_free = p->free_seqs;
        p->free_seqs = s;
    }
    *out = p;
    p = NULL;
done:
    kv_pool_free(p);
    return rc;
}

void kv_pool_free(kv_pool *p)
{
    if (!p)
        return;
    p->mem.state_free(p->mem.owner, p->blocks_mem);
    p->mem.state_free(p->mem.owner, p->fixed_mem);
    p->mem.table_free(p->mem.owner, p->tables);
    mem_free(p->free);
    mem_free(p->seqs);
    mem_free(p);
}

size_t kv_pool_bytes(const kv_pool *p)
{
    return p->bytes;
}

int kv_pool_n_free(const kv_pool *p)
{
    return p->n_free;
}

di_code kv_seq_new(kv_pool *p, kv_seq **out, di_status *st)
{
    kv_seq *s = p->free_seqs;

    *out = NULL;
    if (!s)
        return di_fail(st, DI_E_BUSY, "all %d sequences are in use", p->n_seqs);
    p->free_seqs = s->next_free;
    s->next_free = NULL;
    s->len = 0;
    *out = s;
    return DI_OK;
}

void kv_seq_free(kv_seq *s)
{
    if (!s)
        return;
    while (s->n_blocks > 0)
        s->pool->free[s->pool->n_free++] = s->table[--s->n_blocks];
    s->next_free = s->pool->free_seqs;
    s->pool->free_seqs = s;
}

di_code kv_seq_reserve(kv_seq *s, int64_t tokens, di_status *st)
{
    kv_pool *p = s->pool;
    int64_t need = (tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS - s->n_blocks;

    if (need > p->n_free)
        return di_fail(st, DI_E_BUSY, "%lld more blocks of state are needed, %d are free",
                       (long long)need, p->n_free);
    for (; need > 0; need--)
        s->table[s->n_blocks++] = p->free[--p->n_free];
    return DI_OK;
}

kv_view kv_seq_view(const kv_seq *s)
{
    return (kv_view){
        .fixed = s->fixed, .blocks = s->pool->blocks, .table = s->table, .len = s->len};
}

void kv_seq_set_len(kv_seq *s, int64_t n)
{
    s->len = n;
}

int64_t kv_seq_len(const kv_seq *s)
{
    return s->len;
}
