/* Block pool: free list, users and holds, and the identity used + cached + free = total. */
#include "kv/store_internal.h"

/* Count a block in or out of the class that its users and holds put it in. */
static void count(kv_store *s, const block *b, int64_t by)
{
    if (b->users)
        s->n_used += by;
    else if (b->holds)
        s->n_cached += by;
    else
        s->n_free += by;
}

static void change(kv_store *s, int32_t id, int32_t users, int32_t holds)
{
    block *b = &s->blocks[id];

    count(s, b, -1);
    b->users += users;
    b->holds += holds;
    count(s, b, 1);
    if (!b->users && !b->holds) {
        b->next_free = s->first_free;
        s->first_free = id;
    }
}

int32_t block_take(kv_store *s)
{
    int32_t id;

    /* An evicted node frees its block unless a checkpoint inside it still holds it. */
    while (s->first_free == NONE)
        if (!tree_evict(s) && !ckpt_evict_least(s))
            return NONE;
    id = s->first_free;
    s->first_free = s->blocks[id].next_free;
    change(s, id, 1, 0);
    return id;
}

void block_use(kv_store *s, int32_t b)
{
    change(s, b, 1, 0);
}

void block_unuse(kv_store *s, int32_t b)
{
    change(s, b, -1, 0);
}

void block_hold(kv_store *s, int32_t b)
{
    change(s, b, 0, 1);
}

void block_unhold(kv_store *s, int32_t b)
{
    change(s, b, 0, -1);
}
