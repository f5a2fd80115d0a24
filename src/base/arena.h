/* Arena: many allocations with one lifetime, released at once.
 *
 * Thread: the owner's only. Memory is zeroed and, strings aside, aligned to 64 bytes. */
#pragma once

#include <stddef.h>

typedef struct arena arena;

/* New arena that grows in blocks of at least `block_bytes` (0: 64 KiB). NULL when out of memory. */
arena *arena_new(size_t block_bytes);

/* Frees everything. Accepts NULL. */
void arena_free(arena *a);

/* `count` zeroed objects of `size` bytes, owned by the arena; NULL when out of memory. */
void *arena_alloc(arena *a, size_t count, size_t size);

/* Copies of strings, owned by the arena; NULL when out of memory. */
char *arena_strdup(arena *a, const char *s);
char *arena_strndup(arena *a, const char *s, size_t n);

/* Give back all allocations but keep the blocks for reuse: no system call in the steady state. */
void arena_reset(arena *a);

/* Bytes held from the heap. */
size_t arena_bytes(const arena *a);
