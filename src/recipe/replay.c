/* A chained hash table of calls under one lock, with a list in the order of arrival. See replay.h.
 */
#include "recipe/replay.h"

#include <pthread.h>
#include <string.h>

#include "base/arena.h"
#include "base/mem.h"
#include "recipe/jtree.h"

#define N_BUCKETS 4096

typedef struct entry entry;
struct entry {
    entry *chain; /* same bucket */
    entry *newer; /* order of arrival */
    recipe_marked markup;
    char *id, *name, *arguments; /* one allocation, at `id` */
    size_t n_id, n_name, n_arguments;
};

struct recipe_replay {
    pthread_mutex_t lock;
    entry *bucket[N_BUCKETS];
    entry *oldest, *newest;
    size_t bytes, max_bytes;
};

recipe_replay *recipe_replay_new(size_t max_bytes)
{
    recipe_replay *r = mem_try_calloc(1, sizeof *r);

    if (!r)
        return NULL;
    r->max_bytes = max_bytes;
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

static size_t entry_bytes(const entry *e)
{
    return sizeof *e + e->markup.text.cap + e->markup.cap_special * sizeof(recipe_span) + e->n_id +
           e->n_name + e->n_arguments + 3;
}

static void entry_free(entry *e)
{
    recipe_marked_fini(&e->markup);
    mem_free(e->id);
    mem_free(e);
}

void recipe_replay_free(recipe_replay *r)
{
    if (!r)
        return;
    for (entry *e = r->oldest, *next; e; e = next) {
        next = e->newer;
        entry_free(e);
    }
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

/* FNV-1a: ids are ours, or do not match anything. */
static entry **bucket_of(recipe_replay *r, const char *id, size_t n)
{
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)id[i]) * 16777619u;
    return &r->bucket[h % N_BUCKETS];
}

static void forget_oldest(recipe_replay *r)
{
    entry *e = r->oldest, **at = bucket_of(r, e->id, e->n_id);

    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    r->oldest = e->newer;
    if (!r->oldest)
        r->newest = NULL;
    r->bytes -= entry_bytes(e);
    entry_free(e);
}

static entry *entry_new(const char *id, const char *name, const char *arguments, size_t n_arguments,
                        const recipe_marked *markup)
{
    entry *e = mem_try_calloc(1, sizeof *e);

    if (!e)
        return NULL;
    e->n_id = strlen(id);
    e->n_name = strlen(name);
    e->n_arguments = n_arguments;
    e->id = mem_try_calloc(e->n_id + e->n_name + n_arguments + 3, 1);
    if (e->id) {
        e->name = e->id + e->n_id + 1;
        e->arguments = e->name + e->n_name + 1;
        memcpy(e->id, id, e->n_id);
        memcpy(e->name, name, e->n_name);
        memcpy(e->arguments, arguments, n_arguments);
        recipe_marked_append(&e->markup, str_text(&markup->text), markup->text.len, markup->special,
                             markup->n_special);
    }
    if (!e->id || !str_ok(&e->markup.text)) {
        entry_free(e);
        return NULL;
    }
    return e;
}

void recipe_replay_put(recipe_replay *r, const char *id, const char *name, const char *arguments,
                       size_t n_arguments, const recipe_marked *markup)
{
    entry *e = entry_new(id, name, arguments, n_arguments, markup);
    size_t bytes = e ? entry_bytes(e) : 0;

    if (!e)
        return;
    if (bytes > r->max_bytes) {
        entry_free(e);
        return;
    }
    pthread_mutex_lock(&r->lock);
    while (r->oldest && r->bytes + bytes > r->max_bytes)
        forget_oldest(r);
    e->chain = *bucket_of(r, id, e->n_id);
    *bucket_of(r, id, e->n_id) = e;
    if (r->newest)
        r->newest->newer = e;
    else
        r->oldest = e;
    r->newest = e;
    r->bytes += bytes;
    pthread_mutex_unlock(&r->lock);
}

/* The same text, or the same JSON value written in another way. */
static bool same_arguments(const entry *e, const recipe_call *call)
{
    arena *mem;
    const jtree *t;
    bool same;

    if (e->n_arguments == call->n_arguments &&
        memcmp(e->arguments, call->arguments, e->n_arguments) == 0)
        return true;
    mem = call->object ? arena_new(0) : NULL;
    if (!mem)
        return false;
    t = jtree_parse(e->arguments, e->n_arguments, mem, "arguments", NULL);
    same = t && jtree_equal(t, call->object);
    arena_free(mem);
    return same;
}

bool recipe_replay_get(recipe_replay *r, const recipe_call *call, recipe_marked *out)
{
    entry *e;

    if (!r || call->n_id == 0)
        return false;
    pthread_mutex_lock(&r->lock);
    e = *bucket_of(r, call->id, call->n_id);
    while (e && (e->n_id != call->n_id || memcmp(e->id, call->id, e->n_id) != 0))
        e = e->chain;
    if (e && (e->n_name != call->n_name || memcmp(e->name, call->name, e->n_name) != 0 ||
              !same_arguments(e, call)))
        e = NULL;
    if (e)
        recipe_marked_append(out, str_text(&e->markup.text), e->markup.text.len, e->markup.special,
                             e->markup.n_special);
    pthread_mutex_unlock(&r->lock);
    return e != NULL;
}
