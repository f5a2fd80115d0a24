/* Programs by their specification, and the threads that compile in the background.
 *
 *   entry:  COMPILING -> READY -> gone (least recently used first, when the bytes exceed the bound)
 *                    \-> FAILED -> gone (after a minute)
 *
 * One thread compiles an entry, outside the lock; others that want it wait on `changed`. An entry
 * is found by a hash and then compared in full, so a collision costs time only. Thread: any. */
#include <string.h>
#include <time.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "grammar/grammar_internal.h"

#define N_BUCKETS    1024
#define MAX_ENTRIES  4096
#define MAX_QUEUED   4096
#define FAILED_NS    60000000000ull
#define FAILED_BYTES 4096

typedef enum entry_state { COMPILING, READY, FAILED } entry_state;

typedef struct entry {
    struct entry *next;          /* of the bucket */
    struct entry *newer, *older; /* by use */
    char *key;                   /* key_of */
    size_t n_key;
    uint64_t hash;
    entry_state state;
    int n_waiting;
    grammar_prog *prog;
    grammar_detail detail;
    di_status failure;
    uint64_t failed_ns;
} entry;

typedef struct job {
    struct job *next;
    uint64_t ticket;
    grammar_spec spec; /* text and tool behind the job */
    grammar_done done;
    void *arg;
    bool running, cancelled;
} job;

struct cache {
    grammar *g;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* an entry is no longer COMPILING */
    entry *bucket[N_BUCKETS];
    entry *newest, *oldest;
    grammar_cache_counts n;

    pthread_cond_t work; /* a job, or the end */
    job *first, *last;   /* waiting and running */
    uint64_t last_ticket;
    int n_jobs, n_threads;
    bool closing;
    pthread_t thread[];
};

/* ---- keys ---- */

/* All that the program depends on: the settings in front, then the tool's name, then the text. */
static char *key_of(const grammar_spec *spec, size_t *n)
{
    const char *tool = spec->tool ? spec->tool : "";
    int32_t head[] = {(int32_t)spec->kind, spec->strict,         (int32_t)spec->policy,
                      spec->compact,       spec->max_whitespace, spec->single_call,
                      spec->tool != NULL,  (int32_t)strlen(tool)};
    str key = {0};

    str_append(&key, head, sizeof head);
    str_puts(&key, tool);
    if (spec->n)
        str_append(&key, spec->text, spec->n);
    *n = key.len;
    if (!str_ok(&key))
        str_fini(&key);
    return key.data;
}

/* ---- entries, under the lock ---- */

static entry *find_locked(cache *c, const char *key, size_t n, uint64_t hash)
{
    for (entry *e = c->bucket[hash % N_BUCKETS]; e; e = e->next)
        if (e->hash == hash && e->n_key == n && memcmp(e->key, key, n) == 0)
            return e;
    return NULL;
}

static void unlink_use(cache *c, entry *e)
{
    *(e->newer ? &e->newer->older : &c->newest) = e->older;
    *(e->older ? &e->older->newer : &c->oldest) = e->newer;
}

static void link_newest(cache *c, entry *e)
{
    e->newer = NULL;
    e->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = e;
    c->newest = e;
}

static void touch_locked(cache *c, entry *e)
{
    unlink_use(c, e);
    link_newest(c, e);
}

static size_t entry_bytes(const entry *e)
{
    return (e->prog ? e->prog->bytes : FAILED_BYTES) + e->n_key;
}

static void remove_locked(cache *c, entry *e)
{
    entry **at = &c->bucket[e->hash % N_BUCKETS];

    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    unlink_use(c, e);
    c->n.n_progs--;
    if (e->state != COMPILING)
        c->n.bytes -= entry_bytes(e);
    grammar_prog_unref(e->prog);
    mem_free(e->key);
    mem_free(e);
}

/* Oldest first, none that somebody is at. Programs that states still use live on until those end.
 */
static void evict_locked(cache *c)
{
    for (entry *e = c->oldest, *newer; e; e = newer) {
        newer = e->newer;
        if (c->n.bytes <= c->g->opt.cache_bytes && c->n.n_progs <= MAX_ENTRIES)
            return;
        if (e->state == COMPILING || e->n_waiting)
            continue;
        remove_locked(c, e);
        c->n.evicted++;
    }
}

/* New entry in COMPILING; takes the key over. NULL when out of memory. */
static entry *add_locked(cache *c, char *key, size_t n, uint64_t hash)
{
    entry *e = mem_try_calloc(1, sizeof *e);

    if (!e)
        return NULL;
    e->key = key;
    e->n_key = n;
    e->hash = hash;
    e->next = c->bucket[hash % N_BUCKETS];
    c->bucket[hash % N_BUCKETS] = e;
    link_newest(c, e);
    c->n.n_progs++;
    return e;
}

/* Result of an entry that is not COMPILING. */
static di_code result_locked(cache *c, entry *e, grammar_prog **out, grammar_detail *d,
                             di_status *st)
{
    touch_locked(c, e);
    if (e->state == READY) {
        *out = grammar_prog_ref(e->prog);
        return DI_OK;
    }
    if (d)
        *d = e->detail;
    return di_fail(st, e->failure.code, "%s", e->failure.message);
}

/* Faults of the specification stay; lack of memory or of the library may pass. */
static bool is_lasting(const entry *e)
{
    return e->failure.code == DI_E_INVALID;
}

/* Compile entry `e`, which this thread has made. */
static di_code fill_entry(cache *c, entry *e, const grammar_spec *spec, grammar_prog **out,
                          grammar_detail *d, di_status *st)
{
    grammar_prog *prog;
    di_code rc;

    e->detail = (grammar_detail){.offset = -1};
    rc = prog_compile(c->g, spec, &prog, &e->detail, &e->failure);
    pthread_mutex_lock(&c->lock);
    e->prog = prog;
    e->state = rc == DI_OK ? READY : FAILED;
    e->failed_ns = clock_ns();
    c->n.bytes += entry_bytes(e);
    pthread_cond_broadcast(&c->changed);
    rc = result_locked(c, e, out, d, st);
    if (rc != DI_OK && !is_lasting(e) && !e->n_waiting)
        remove_locked(c, e);
    evict_locked(c);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

di_code grammar_compile(grammar *g, const grammar_spec *spec, grammar_prog **out,
                        grammar_detail *detail, di_status *st)
{
    cache *c = g->cache;
    size_t n;
    char *key = key_of(spec, &n);
    uint64_t hash = key ? XXH3_64bits(key, n) : 0;
    entry *e;
    di_code rc;

    *out = NULL;
    if (detail)
        *detail = (grammar_detail){.offset = -1};
    if (!key)
        return di_fail(st, DI_E_NOMEM, "no memory to compile a constraint");
    pthread_mutex_lock(&c->lock);
    e = find_locked(c, key, n, hash);
    if (e && e->state == FAILED && !e->n_waiting &&
        (!is_lasting(e) || clock_ns() - e->failed_ns > FAILED_NS)) {
        remove_locked(c, e);
        e = NULL;
    }
    if (e) {
        mem_free(key);
        c->n.hits++;
        e->n_waiting++;
        while (e->state == COMPILING)
            pthread_cond_wait(&c->changed, &c->lock);
        e->n_waiting--;
        rc = result_locked(c, e, out, detail, st);
        pthread_mutex_unlock(&c->lock);
        return rc;
    }
    c->n.misses++;
    e = add_locked(c, key, n, hash);
    pthread_mutex_unlock(&c->lock);
    if (!e) {
        mem_free(key);
        return di_fail(st, DI_E_NOMEM, "no memory to compile a constraint");
    }
    return fill_entry(c, e, spec, out, detail, st);
}

grammar_cache_counts grammar_get_counts(grammar *g)
{
    grammar_cache_counts n;

    pthread_mutex_lock(&g->cache->lock);
    n = g->cache->n;
    pthread_mutex_unlock(&g->cache->lock);
    return n;
}

/* ---- the background ---- */

static job *new_job(const grammar_spec *spec, grammar_done done, void *arg)
{
    size_t n_tool = spec->tool ? strlen(spec->tool) + 1 : 0;
    job *j = mem_try_calloc(1, sizeof *j + spec->n + n_tool);
    char *at;

    if (!j)
        return NULL;
    at = (char *)(j + 1);
    j->spec = *spec;
    j->spec.text = at;
    if (spec->n)
        memcpy(at, spec->text, spec->n);
    if (spec->tool)
        j->spec.tool = memcpy(at + spec->n, spec->tool, n_tool);
    j->done = done;
    j->arg = arg;
    return j;
}

/* Take a job out of the list. */
static void unlink_job(cache *c, job *j)
{
    job **at = &c->first;
    job *before = NULL;

    while (*at != j) {
        before = *at;
        at = &before->next;
    }
    *at = j->next;
    if (c->last == j)
        c->last = before;
    c->n_jobs--;
}

static void report_cancelled(grammar_done done, void *arg)
{
    grammar_detail d = {.fault = GRAMMAR_FAULT_CANCELLED, .offset = -1};
    di_status st = {0};

    di_fail(&st, DI_E_CANCELLED, "nobody waits for the constraint any more");
    done(arg, NULL, &d, &st);
}

static job *next_job(cache *c)
{
    for (job *j = c->first; j; j = j->next)
        if (!j->running)
            return j;
    return NULL;
}

static void run_job(cache *c, job *j)
{
    grammar_detail d;
    di_status st = {0};
    grammar_prog *prog;
    bool cancelled;

    grammar_compile(c->g, &j->spec, &prog, &d, &st);
    pthread_mutex_lock(&c->lock);
    cancelled = j->cancelled;
    unlink_job(c, j);
    pthread_mutex_unlock(&c->lock);
    if (cancelled)
        grammar_prog_unref(prog);
    else
        j->done(j->arg, prog, &d, &st);
    mem_free(j);
}

static void *work(void *arg)
{
    cache *c = arg;

    pthread_mutex_lock(&c->lock);
    for (;;) {
        job *j = next_job(c);

        if (j) {
            j->running = true;
            pthread_mutex_unlock(&c->lock);
            run_job(c, j);
            pthread_mutex_lock(&c->lock);
        } else if (c->closing) {
            break;
        } else {
            pthread_cond_wait(&c->work, &c->lock);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* The threads start with the first job. */
static di_code start_threads_locked(cache *c, di_status *st)
{
    while (c->n_threads < c->g->opt.n_threads) {
        int err = pthread_create(&c->thread[c->n_threads], NULL, work, c);

        if (err && c->n_threads == 0)
            return di_fail(st, DI_E_NOMEM, "no thread to compile constraints: %s", errno_text(err));
        if (err)
            break;
        c->n_threads++;
    }
    return DI_OK;
}

di_code grammar_compile_start(grammar *g, const grammar_spec *spec, grammar_done done, void *arg,
                              uint64_t *ticket, di_status *st)
{
    cache *c = g->cache;
    job *j = new_job(spec, done, arg);
    di_code rc = DI_OK;

    if (!j)
        return di_fail(st, DI_E_NOMEM, "no memory to compile a constraint");
    pthread_mutex_lock(&c->lock);
    if (c->n_jobs >= MAX_QUEUED)
        rc = di_fail(st, DI_E_BUSY, "%d constraints wait to be compiled", c->n_jobs);
    else
        rc = start_threads_locked(c, st);
    if (rc == DI_OK) {
        *ticket = j->ticket = ++c->last_ticket;
        *(c->last ? &c->last->next : &c->first) = j;
        c->last = j;
        c->n_jobs++;
        pthread_cond_signal(&c->work);
    }
    pthread_mutex_unlock(&c->lock);
    if (rc != DI_OK)
        mem_free(j);
    return rc;
}

void grammar_cancel(grammar *g, uint64_t ticket)
{
    cache *c = g->cache;
    job *j, *waiting = NULL;
    grammar_done done = NULL;
    void *arg = NULL;

    pthread_mutex_lock(&c->lock);
    for (j = c->first; j && j->ticket != ticket; j = j->next)
        ;
    if (j && !j->cancelled) {
        done = j->done;
        arg = j->arg;
        j->cancelled = true;
        if (!j->running) {
            unlink_job(c, j);
            waiting = j;
        }
    }
    pthread_mutex_unlock(&c->lock);
    if (done)
        report_cancelled(done, arg);
    mem_free(waiting);
}

/* ---- life ---- */

di_code cache_new(cache **out, grammar *g, di_status *st)
{
    cache *c = mem_try_calloc(1, sizeof *c + (size_t)g->opt.n_threads * sizeof c->thread[0]);

    *out = c;
    if (!c)
        return di_fail(st, DI_E_NOMEM, "no memory for constraints");
    c->g = g;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    pthread_cond_init(&c->work, NULL);
    return DI_OK;
}

void cache_free(cache *c)
{
    job *j;

    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    while ((j = next_job(c))) {
        unlink_job(c, j);
        pthread_mutex_unlock(&c->lock);
        report_cancelled(j->done, j->arg);
        mem_free(j);
        pthread_mutex_lock(&c->lock);
    }
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->n_threads; i++)
        pthread_join(c->thread[i], NULL);
    while (c->oldest)
        remove_locked(c, c->oldest);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}
