/* Hash map from byte strings to 32-bit values; keys are copied. Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct map map;

/* NULL when out of memory. `expected` keys fit without growing. */
map *map_new(size_t expected);
void map_free(map *m);

/* Insert a key that is not there yet. 1 = inserted, 0 = the key exists (value unchanged),
 * -1 = out of memory. */
int map_insert(map *m, const void *key, size_t n, uint32_t value);

/* True and *value set when the key is there. */
bool map_find(const map *m, const void *key, size_t n, uint32_t *value);

size_t map_count(const map *m);

/* Bytes held from the heap. */
size_t map_bytes(const map *m);
