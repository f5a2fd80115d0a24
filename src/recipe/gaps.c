/* A chained hash table under one lock, with a list in the order of arrival. See gaps.h. */
#include "recipe/gaps.h"

#include <pthread.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/mem.h"

#define N_BUCKETS 16384
#define MIN_BYTES 64 /* shorter texts are encoded faster than they are found */

typedef struct gap gap;
struct gap {
    gap *chain, *newer;
    uint64_t hash;
    size_t n_text, n_ids;
    int32_t ids[]; /* then the text */
};

struct recipe_gaps {
    pthread_mutex_t lock;
    gap *bucket[N_BUCKETS];
    gap *oldest, *newest;
    size_t bytes, max_bytes;
    uint64_t found, encoded;
};

recipe_gaps *recipe_gaps_new(size_t max_bytes)
{
    recipe_gaps *g = mem_try_calloc(1, sizeof *g);

    if (!g)
        return NULL;
    g->max_bytes = max_bytes;
    pthread_mutex_init(&g->lock, NULL);
    return g;
}

void recipe_gaps_free(recipe_gaps *g)
{
    if (!g)
        return;
    for (gap *e = g->oldest, *next; e; e = next) {
        next = e->newer;
        mem_free(e);
    }
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

static char *text_of(gap *e)
{
    return (char *)(e->ids + e->n_ids);
}

static size_t bytes_of(size_t n_text, size_t n_ids)
{
    return sizeof(gap) + n_ids * sizeof(int32_t) + n_text;
}

static gap *find(recipe_gaps *g, uint64_t hash, const char *text, size_t n)
{
    gap *e = g->bucket[hash % N_BUCKETS];

    while (e && (e->hash != hash || e->n_text != n || memcmp(text_of(e), text, n) != 0))
        e = e->chain;
    return e;
}

static void forget_oldest(recipe_gaps *g)
{
    gap *e = g->oldest, **at = &g->bucket[e->hash % N_BUCKETS];

    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    g->oldest = e->newer;
    if (!g->oldest)
        g->newest = NULL;
    g->bytes -= bytes_of(e->n_text, e->n_ids);
    mem_free(e);
}

/* Append the ids of a known text; false when it is not known. */
static di_code look_up(recipe_gaps *g, uint64_t hash, const char *text, size_t n, tok_ids *out,
                       bool *known, di_status *st)
{
    di_code rc = DI_OK;
    gap *e;

    pthread_mutex_lock(&g->lock);
    e = find(g, hash, text, n);
    *known = e != NULL;
    if (e) {
        g->found += n;
        for (size_t i = 0; rc == DI_OK && i < e->n_ids; i++)
            rc = tok_ids_push(out, e->ids[i], st);
    } else {
        g->encoded += n;
    }
    pthread_mutex_unlock(&g->lock);
    return rc;
}

/* Remember a text. Running out of memory is no error here. */
static void remember(recipe_gaps *g, uint64_t hash, const char *text, size_t n, const int32_t *ids,
                     size_t n_ids)
{
    size_t bytes = bytes_of(n, n_ids);
    gap *e = bytes <= g->max_bytes ? mem_try_calloc(1, bytes) : NULL;

    if (!e)
        return;
    e->hash = hash;
    e->n_text = n;
    e->n_ids = n_ids;
    memcpy(e->ids, ids, n_ids * sizeof *ids);
    memcpy(text_of(e), text, n);
    pthread_mutex_lock(&g->lock);
    if (find(g, hash, text, n)) { /* another thread was faster */
        pthread_mutex_unlock(&g->lock);
        mem_free(e);
        return;
    }
    while (g->oldest && g->bytes + bytes > g->max_bytes)
        forget_oldest(g);
    e->chain = g->bucket[hash % N_BUCKETS];
    g->bucket[hash % N_BUCKETS] = e;
    if (g->newest)
        g->newest->newer = e;
    else
        g->oldest = e;
    g->newest = e;
    g->bytes += bytes;
    pthread_mutex_unlock(&g->lock);
}

di_code recipe_gaps_encode(recipe_gaps *g, const tokenizer *t, const char *text, size_t n,
                           tok_ids *out, di_status *st)
{
    size_t before = out->n;
    bool known = false;
    uint64_t hash;
    di_code rc;

    if (!g || n < MIN_BYTES)
        return tokenizer_encode(t, text, n, false, out, st);
    hash = XXH3_64bits(text, n);
    rc = look_up(g, hash, text, n, out, &known, st);
    if (rc != DI_OK || known)
        return rc;
    rc = tokenizer_encode(t, text, n, false, out, st);
    if (rc == DI_OK)
        remember(g, hash, text, n, out->ids + before, out->n - before);
    return rc;
}

void recipe_gaps_stats(recipe_gaps *g, uint64_t *found, uint64_t *encoded)
{
    pthread_mutex_lock(&g->lock);
    *found = g->found;
    *encoded = g->encoded;
    pthread_mutex_unlock(&g->lock);
}
