/* See order.h. */
#include "recipe/order.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"

/* A result and the place of its call. */
typedef struct ranked {
    const recipe_message *m;
    size_t rank, at;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static bool same_id(const recipe_call *c, const recipe_message *m)
{
    return c->n_id == m->n_call_id && memcmp(c->id, m->call_id, c->n_id) == 0;
}

/* Results that stand in the order of their calls already, as nearly all do. */
static bool in_order(const recipe_message *calls, const ranked *r, size_t n)
{
    if (n > calls->n_call)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!same_id(&calls->call[i], r[i].m))
            return false;
    return true;
}

static bool rank(const recipe_message *calls, ranked *r, size_t n)
{
    map *place = map_new(calls->n_call);
    bool ok = place != NULL;

    for (size_t i = 0; ok && i < calls->n_call; i++)
        ok = map_insert(place, calls->call[i].id, calls->call[i].n_id, (uint32_t)i) >= 0;
    for (size_t i = 0; ok && i < n; i++) {
        uint32_t at = UINT32_MAX;

        map_find(place, r[i].m->call_id, r[i].m->n_call_id, &at);
        r[i].rank = at;
    }
    map_free(place);
    return ok;
}

/* Sort the results of message[from..to), a run; users keep their slots. */
static bool sort_run(const recipe_message **message, size_t from, size_t to,
                     const recipe_message *calls, ranked *scratch)
{
    size_t n = 0;

    for (size_t i = from; i < to; i++)
        if (message[i]->role == RECIPE_TOOL) {
            scratch[n] = (ranked){.m = message[i], .at = n};
            n++;
        }
    if (n < 2 || in_order(calls, scratch, n))
        return true;
    if (!rank(calls, scratch, n))
        return false;
    qsort(scratch, n, sizeof *scratch, by_rank);
    n = 0;
    for (size_t i = from; i < to; i++)
        if (message[i]->role == RECIPE_TOOL)
            message[i] = scratch[n++].m;
    return true;
}

static bool sort_results(message_order *o)
{
    ranked *scratch = mem_try_calloc(o->n ? o->n : 1, sizeof *scratch);
    const recipe_message *calls = NULL;
    bool ok = scratch != NULL;

    for (size_t i = 0; ok && i < o->n;) {
        size_t to = i;

        if (o->message[i]->n_call)
            calls = o->message[i];
        while (to < o->n &&
               (o->message[to]->role == RECIPE_TOOL || o->message[to]->role == RECIPE_USER))
            to++;
        if (calls && to > i + 1)
            ok = sort_run(o->message, i, to, calls, scratch);
        i = to > i ? to : i + 1;
    }
    mem_free(scratch);
    return ok;
}

/* Of adjacent reminders V4.1 shows the first. */
static bool repeats_reminder(const message_order *o, const recipe_message *m)
{
    return m->role == RECIPE_REMINDER && o->n && o->message[o->n - 1]->role == RECIPE_REMINDER;
}

/* V4 joins users' messages without the empty ones: m, or the one before it, gives way. */
static bool joins_nothing(const message_order *o, const recipe_message *m)
{
    const recipe_message *before = o->n ? o->message[o->n - 1] : NULL;

    return before && before->role == RECIPE_USER && m->role == RECIPE_USER &&
           (before->n_content == 0 || m->n_content == 0);
}

di_code message_order_init(message_order *o, const recipe_chat *c, di_status *st)
{
    *o = (message_order){0};
    o->message = mem_try_calloc(c->n + 1, sizeof *o->message);
    o->head = mem_try_calloc(c->n + 1, sizeof *o->head);
    if (!o->message || !o->head)
        goto no_memory;
    for (size_t i = 0; i < c->n; i++) {
        const recipe_message *m = &c->message[i];

        if (m->role == RECIPE_SYSTEM && m->n_content == 0 && m->n_added == 0 &&
            !(m->keeps && c->family == RECIPE_V41))
            continue;
        if (m->role == RECIPE_SYSTEM && c->family == RECIPE_V4)
            o->head[o->n_head++] = m;
        else if (c->family == RECIPE_V41 && repeats_reminder(o, m))
            continue;
        else if (c->family == RECIPE_V4 && joins_nothing(o, m))
            o->message[o->n - 1] = m->n_content ? m : o->message[o->n - 1];
        else
            o->message[o->n++] = m;
    }
    if (sort_results(o))
        return DI_OK;
no_memory:
    message_order_fini(o);
    return di_fail(st, DI_E_NOMEM, "no memory to render a prompt of %zu messages", c->n);
}

void message_order_fini(message_order *o)
{
    mem_free(o->message);
    mem_free(o->head);
    *o = (message_order){0};
}
