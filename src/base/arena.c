/* Arena of linked blocks; a reset keeps the blocks. */
#include "base/arena.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"

#define ARENA_ALIGN ((size_t)64)

typedef struct block {
    struct block *next;
    size_t cap, used;
    /* data follows at the next multiple of ARENA_ALIGN */
} block;

#define BLOCK_HEAD ((sizeof(block) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN)

struct arena {
    block *first, *current;
    size_t block_bytes, total;
};

arena *arena_new(size_t block_bytes)
{
    arena *a = mem_try_calloc(1, sizeof *a);

    if (a)
        a->block_bytes = block_bytes ? block_bytes : (size_t)64 << 10;
    return a;
}

void arena_free(arena *a)
{
    block *b = a ? a->first : NULL;

    while (b) {
        block *next = b->next;

        mem_free(b);
        b = next;
    }
    mem_free(a);
}

/* A block with room for `bytes` behind the current one: a kept one, else a new one. */
static block *next_block(arena *a, size_t bytes)
{
    block *b = a->current ? a->current->next : a->first;
    size_t cap = bytes > a->block_bytes ? bytes : a->block_bytes;

    while (b && b->cap < bytes)
        b = b->next;
    if (b)
        return b;
    b = mem_try_aligned(BLOCK_HEAD + cap, ARENA_ALIGN);
    if (!b)
        return NULL;
    b->cap = cap;
    a->total += BLOCK_HEAD + cap;
    if (!a->current) {
        b->next = a->first;
        a->first = b;
    } else {
        b->next = a->current->next;
        a->current->next = b;
    }
    return b;
}

/* `bytes` zeroed bytes at a multiple of `align`. */
static void *take(arena *a, size_t bytes, size_t align)
{
    block *b = a->current;
    size_t at = b ? (b->used + align - 1) / align * align : 0;
    void *p;

    if (!b || at > b->cap || b->cap - at < bytes) {
        b = next_block(a, bytes);
        if (!b)
            return NULL;
        a->current = b;
        at = 0;
    }
    p = (char *)b + BLOCK_HEAD + at;
    b->used = at + bytes;
    memset(p, 0, bytes);
    return p;
}

void *arena_alloc(arena *a, size_t count, size_t size)
{
    size_t bytes;

    if (!size_mul(count, size, &bytes) || bytes > SIZE_MAX / 2)
        return NULL;
    return take(a, bytes, ARENA_ALIGN);
}

char *arena_strndup(arena *a, const char *s, size_t n)
{
    char *p = take(a, n + 1, 1);

    if (p)
        memcpy(p, s, n);
    return p;
}

char *arena_strdup(arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

void arena_reset(arena *a)
{
    for (block *b = a->first; b; b = b->next)
        b->used = 0;
    a->current = NULL;
}

size_t arena_bytes(const arena *a)
{
    return a->total;
}
