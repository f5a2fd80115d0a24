/* What is due next: a binary heap of entries that their owners embed, ordered by time, then by
 * `order`. Thread: the owner's, or under its lock. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct due_entry {
    uint64_t due_ns, order;
    size_t at; /* its place + 1; 0 = not in the heap */
} due_entry;

typedef struct due_heap {
    due_entry **entry;
    size_t n, cap;
} due_heap;

/* Room for n entries in all, so that due_push cannot fail. Errors: NOMEM. */
di_code due_reserve(due_heap *h, size_t n, di_status *st);
void due_fini(due_heap *h);

/* e is not in the heap, and room was reserved. Borrowed until it is popped. */
void due_push(due_heap *h, due_entry *e);
/* An entry of the heap is due earlier than before. */
void due_hasten(due_heap *h, due_entry *e, uint64_t due_ns);
/* The earliest entry; NULL when there is none. */
due_entry *due_first(const due_heap *h);
/* Takes the earliest entry out; the heap is not empty. */
due_entry *due_pop(due_heap *h);
