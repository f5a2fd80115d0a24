/* A binary heap whose entries know their places. See due_heap.h. */
#include "server/due_heap.h"

#include "base/mem.h"

static bool before(const due_entry *a, const due_entry *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void put(due_heap *h, size_t i, due_entry *e)
{
    h->entry[i] = e;
    e->at = i + 1;
}

static void move_up(due_heap *h, size_t i, due_entry *e)
{
    for (; i > 0 && before(e, h->entry[(i - 1) / 2]); i = (i - 1) / 2)
        put(h, i, h->entry[(i - 1) / 2]);
    put(h, i, e);
}

static void move_down(due_heap *h, size_t i, due_entry *e)
{
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && before(h->entry[child + 1], h->entry[child]))
            child++;
        if (!before(h->entry[child], e))
            break;
        put(h, i, h->entry[child]);
    }
    put(h, i, e);
}

di_code due_reserve(due_heap *h, size_t n, di_status *st)
{
    size_t cap = h->cap ? h->cap : 64;
    due_entry **more;

    if (n <= h->cap)
        return DI_OK;
    while (cap < n)
        cap *= 2;
    more = mem_try_realloc(h->entry, cap, sizeof *more);
    if (!more)
        return di_fail(st, DI_E_NOMEM, "no memory for %zu requests", n);
    h->entry = more;
    h->cap = cap;
    return DI_OK;
}

void due_fini(due_heap *h)
{
    mem_free(h->entry);
    *h = (due_heap){0};
}

void due_push(due_heap *h, due_entry *e)
{
    DI_CHECK(h->n < h->cap && e->at == 0);
    move_up(h, h->n++, e);
}

void due_hasten(due_heap *h, due_entry *e, uint64_t due_ns)
{
    DI_CHECK(e->at && due_ns <= e->due_ns);
    e->due_ns = due_ns;
    move_up(h, e->at - 1, e);
}

due_entry *due_first(const due_heap *h)
{
    return h->n ? h->entry[0] : NULL;
}

due_entry *due_pop(due_heap *h)
{
    due_entry *first = h->entry[0], *last = h->entry[--h->n];

    if (h->n)
        move_down(h, 0, last);
    first->at = 0;
    return first;
}
