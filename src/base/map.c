/* Open addressing with linear probing; keys live in one arena. */
#include "base/map.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/arena.h"
#include "base/mem.h"

typedef struct entry {
    const char *key; /* NULL = empty */
    size_t n;
    uint64_t hash;
    uint32_t value;
} entry;

struct map {
    entry *slots;
    size_t cap, count; /* cap is a power of two */
    arena *keys;
};

map *map_new(size_t expected)
{
    map *m = mem_try_calloc(1, sizeof *m);
    size_t cap = 16;

    if (!m)
        return NULL;
    while (cap < expected * 2)
        cap *= 2;
    m->cap = cap;
    m->slots = mem_try_calloc(cap, sizeof *m->slots);
    m->keys = arena_new(0);
    if (!m->slots || !m->keys) {
        map_free(m);
        return NULL;
    }
    return m;
}

void map_free(map *m)
{
    if (!m)
        return;
    arena_free(m->keys);
    mem_free(m->slots);
    mem_free(m);
}

/* The slot of a key, or the empty slot where it belongs. */
static entry *probe(entry *slots, size_t cap, const void *key, size_t n, uint64_t hash)
{
    size_t i = (size_t)hash & (cap - 1);

    while (slots[i].key &&
           (slots[i].hash != hash || slots[i].n != n || memcmp(slots[i].key, key, n) != 0))
        i = (i + 1) & (cap - 1);
    return &slots[i];
}

static bool grow(map *m)
{
    size_t cap = m->cap * 2;
    entry *slots = mem_try_calloc(cap, sizeof *slots);

    if (!slots)
        return false;
    for (size_t i = 0; i < m->cap; i++) {
        const entry *e = &m->slots[i];

        if (e->key)
            *probe(slots, cap, e->key, e->n, e->hash) = *e;
    }
    mem_free(m->slots);
    m->slots = slots;
    m->cap = cap;
    return true;
}

int map_insert(map *m, const void *key, size_t n, uint32_t value)
{
    uint64_t hash = XXH3_64bits(key, n);
    entry *e;
    char *copy;

    if (m->count * 2 >= m->cap && !grow(m))
        return -1;
    e = probe(m->slots, m->cap, key, n, hash);
    if (e->key)
        return 0;
    copy = arena_strndup(m->keys, key, n);
    if (!copy)
        return -1;
    *e = (entry){.key = copy, .n = n, .hash = hash, .value = value};
    m->count++;
    return 1;
}

bool map_find(const map *m, const void *key, size_t n, uint32_t *value)
{
    const entry *e = probe(m->slots, m->cap, key, n, XXH3_64bits(key, n));

    if (!e->key)
        return false;
    *value = e->value;
    return true;
}

size_t map_count(const map *m)
{
    return m->count;
}

size_t map_bytes(const map *m)
{
    return sizeof *m + m->cap * sizeof *m->slots + arena_bytes(m->keys);
}
