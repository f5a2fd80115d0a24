/* Calls of the history and the bookkeeping of their ids. See recipe_internal.h. */
#include <string.h>

#include "recipe/recipe_internal.h"

/* From this many ids on they are found by a map. */
#define MANY_IDS 16

bool call_fill(reading *rd, recipe_call *call, const jtree *id, const jtree *name,
               const jtree *arguments)
{
    const jtree *t;
    di_status st = {0};

    *call = (recipe_call){.id = id->text,
                          .n_id = id->n,
                          .name = name->text,
                          .n_name = name->n,
                          .arguments = arguments->text,
                          .n_arguments = arguments->n};
    t = jtree_parse(arguments->text, arguments->n, rd->mem, "arguments", &st);
    if (st.code == DI_E_NOMEM)
        return out_of_memory(rd);
    call->object = t && t->type == JSON_OBJECT ? t : NULL;
    return true;
}

bool id_set_init(reading *rd, id_set *s, size_t cap)
{
    *s = (id_set){.ref = take_memory(rd, cap, sizeof *s->ref), .cap = cap};
    if (cap > MANY_IDS)
        s->index = map_new(cap);
    if (s->ref && (cap <= MANY_IDS || s->index))
        return true;
    return out_of_memory(rd);
}

void id_set_fini(id_set *s)
{
    map_free(s->index);
    *s = (id_set){0};
}

call_ref *id_set_find(const id_set *s, const char *id, size_t n)
{
    uint32_t at;

    if (s->index)
        return map_find(s->index, id, n, &at) ? &s->ref[at] : NULL;
    for (size_t i = 0; i < s->n; i++)
        if (s->ref[i].n == n && memcmp(s->ref[i].id, id, n) == 0)
            return &s->ref[i];
    return NULL;
}

bool id_set_add(id_set *s, const char *id, size_t n)
{
    if (s->n == s->cap || id_set_find(s, id, n) ||
        (s->index && map_insert(s->index, id, n, (uint32_t)s->n) != 1))
        return false;
    s->ref[s->n++] = (call_ref){.id = id, .n = n};
    return true;
}

bool id_set_take(id_set *s, const char *id, size_t n)
{
    call_ref *r = id_set_find(s, id, n);

    if (!r || r->taken)
        return false;
    r->taken = true;
    return true;
}
