/* Opening a checkpoint: shards -> one list of tensors -> the index agrees -> the table agrees.
 *
 * The order matters for what a user is told: an absent file first, then a damaged one, then tensors
 * that are missing, different or unknown. */
#include "checkpoint/checkpoint.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/map.h"
#include "base/mem.h"
#include "checkpoint/checkpoint_internal.h"
#include "checkpoint/dummy.h"
#include "checkpoint/table.h"

#define INDEX_NAME      "model.safetensors.index.json"
#define SINGLE_NAME     "model.safetensors"
#define MAX_INDEX_BYTES ((size_t)256 << 20)
#define NOT_IN_TABLE    SIZE_MAX

/* A tensor of a shard, before it is known whether the configuration wants it. */
typedef struct found {
    const st_tensor *t;
    int shard;
    bool in_index;
    size_t table; /* its place in checkpoint.tensor, or NOT_IN_TABLE */
} found;

/* Tensors that are generated when they are looked up. */
typedef struct made {
    uint8_t *base; /* address space of all tensors; NULL with DUMMY_HEADERS */
    size_t bytes;
    uint64_t seed;
    dummy_when when;
    bool *there; /* [n_tensors] has been generated and not been dropped; under `lock` */
    pthread_mutex_t lock;
} made;

struct checkpoint {
    model_config config;
    char *dir;
    arena *mem;      /* names, and copies of tensors that are not aligned in their file */
    st_file **shard; /* [n_shards] */
    const char **shard_name;
    int n_shards;
    found *found; /* [n_found] in the order of shards and offsets */
    size_t n_found;
    map *by_name;                /* name -> index in found */
    ckpt_tensor *tensor;         /* [n_tensors] in table order */
    const ckpt_tensor **by_data; /* [n_tensors] by address; NULL when opened for headers only */
    size_t n_tensors;
    made *made; /* generated weights: no shards; else NULL */
};

static di_code no_memory(const checkpoint *c, di_status *st)
{
    return di_fail(st, DI_E_NOMEM, "no memory to open checkpoint \"%s\"", c->dir ? c->dir : "");
}

/* ---------------------------------------------------------------------------------- shards */

typedef struct share {
    map *names;
    size_t tensors;
    uint64_t bytes;
} share;

static di_code add_share(void *arg, const table_entry *e, di_status *st)
{
    share *s = arg;
    uint32_t value;

    (void)st;
    if (map_find(s->names, e->name, e->name_len, &value)) {
        s->tensors++;
        s->bytes += (uint64_t)e->shape[0] * (uint64_t)e->shape[1] * dtype_bytes(e->type);
    }
    return DI_OK;
}

/* A shard that is not there: say how much of the model is missing with it. */
static di_code shard_missing(const checkpoint *c, const shard_index *x, int shard, const char *path,
                             di_status *st)
{
    share s = {.names = map_new(0)};
    di_code rc = DI_OK;

    if (!s.names)
        return no_memory(c, st);
    for (size_t i = 0; i < x->n && rc == DI_OK; i++)
        if (x->entry[i].shard == shard &&
            map_insert(s.names, x->entry[i].name, strlen(x->entry[i].name), 0) < 0)
            rc = no_memory(c, st);
    if (rc == DI_OK)
        rc = table_walk(&c->config, add_share, &s, st);
    map_free(s.names);
    if (rc == DI_OK)
        rc = di_fail(st, DI_E_IO,
                     "\"%s\" is missing, and with it %zu tensors of %" PRIu64
                     " bytes; get the file again",
                     path, s.tensors, s.bytes);
    return rc;
}

/* Open shard i, whose name is known. x: the index, or NULL. */
static di_code open_shard(checkpoint *c, const shard_index *x, int i, bool headers_only,
                          di_status *st)
{
    char path[4096];
    di_code rc = DI_OK;

    DI_TRY(path_join(path, sizeof path, c->dir, c->shard_name[i], st));
    if (x && access(path, F_OK) != 0)
        return shard_missing(c, x, i, path, st);
    rc = st_file_open(&c->shard[i], path, headers_only, st);
    if (rc == DI_OK)
        c->n_found += st_file_n_tensors(c->shard[i]);
done:
    return rc;
}

/* Open the shards that the index names, or the single file of a checkpoint without index. */
static di_code open_shards(checkpoint *c, const shard_index *x, bool headers_only, di_status *st)
{
    di_code rc = DI_OK;

    c->n_shards = x ? x->n_shards : 1;
    c->shard = arena_alloc(c->mem, (size_t)c->n_shards, sizeof(st_file *));
    c->shard_name = arena_alloc(c->mem, (size_t)c->n_shards, sizeof(char *));
    if (!c->shard || !c->shard_name)
        return no_memory(c, st);
    for (int i = 0; i < c->n_shards; i++) {
        c->shard_name[i] = arena_strdup(c->mem, x ? x->shard[i] : SINGLE_NAME);
        if (!c->shard_name[i])
            return no_memory(c, st);
        DI_TRY(open_shard(c, x, i, headers_only, st));
    }
done:
    return rc;
}

/* One list of all tensors, and their names: a name may stand in one shard only. */
static di_code merge(checkpoint *c, di_status *st)
{
    size_t n = 0;

    c->found = mem_try_calloc(c->n_found, sizeof *c->found);
    c->by_name = map_new(c->n_found);
    if (!c->found || !c->by_name)
        return no_memory(c, st);
    for (int s = 0; s < c->n_shards; s++)
        for (size_t i = 0; i < st_file_n_tensors(c->shard[s]); i++) {
            const st_tensor *t = st_file_tensor(c->shard[s], i);
            size_t len = strlen(t->name);
            uint32_t first;
            int inserted = map_insert(c->by_name, t->name, len, (uint32_t)n);

            if (inserted < 0)
                return no_memory(c, st);
            if (inserted == 0) {
                map_find(c->by_name, t->name, len, &first);
                return di_fail(st, DI_E_FORMAT,
                               "tensor \"%s\" stands in \"%s\" and in \"%s\"; the shards belong to "
                               "different checkpoints, get them again",
                               t->name, st_file_path(c->shard[c->found[first].shard]),
                               st_file_path(c->shard[s]));
            }
            c->found[n++] = (found){.t = t, .shard = s, .table = NOT_IN_TABLE};
        }
    return DI_OK;
}

/* ----------------------------------------------------------------------------------- index */

/* Index and shards must tell the same story. */
static di_code check_index(checkpoint *c, const shard_index *x, const char *path, di_status *st)
{
    for (size_t i = 0; i < x->n; i++) {
        const index_entry *e = &x->entry[i];
        uint32_t at;
        found *f;

        if (!map_find(c->by_name, e->name, strlen(e->name), &at))
            return di_fail(
                st, DI_E_FORMAT,
                "\"%s\" puts tensor \"%s\" into \"%s\", which does not have it; get both "
                "files again",
                path, e->name, c->shard_name[e->shard]);
        f = &c->found[at];
        if (f->in_index)
            return di_fail(st, DI_E_FORMAT,
                           "\"%s\": tensor \"%s\" stands twice; get the file again", path, e->name);
        if (f->shard != e->shard)
            return di_fail(st, DI_E_FORMAT,
                           "\"%s\" puts tensor \"%s\" into \"%s\", but it is in \"%s\"; get the "
                           "index again",
                           path, e->name, c->shard_name[e->shard], c->shard_name[f->shard]);
        f->in_index = true;
    }
    for (size_t i = 0; i < c->n_found && x->n < c->n_found; i++)
        if (!c->found[i].in_index)
            return di_fail(st, DI_E_FORMAT,
                           "\"%s\" lacks tensor \"%s\" of \"%s\"; get the index again", path,
                           c->found[i].t->name, c->shard_name[c->found[i].shard]);
    return DI_OK;
}

static di_code read_index(shard_index *x, const char *path, di_status *st)
{
    char *text = NULL;
    size_t n;
    di_code rc = file_read(&text, &n, path, MAX_INDEX_BYTES, st);

    if (rc == DI_OK)
        rc = shard_index_parse(x, text, n, path, st);
    mem_free(text);
    return rc;
}

/* Shards, merged and compared with the index. */
static di_code open_files(checkpoint *c, bool headers_only, di_status *st)
{
    char path[4096], single[4096];
    shard_index x = {.mem = NULL};
    di_code rc = DI_OK;

    DI_TRY(path_join(path, sizeof path, c->dir, INDEX_NAME, st));
    DI_TRY(path_join(single, sizeof single, c->dir, SINGLE_NAME, st));
    if (access(path, F_OK) == 0) {
        DI_TRY(read_index(&x, path, st));
        DI_TRY(open_shards(c, &x, headers_only, st));
    } else if (access(single, F_OK) == 0) {
        DI_TRY(open_shards(c, NULL, headers_only, st));
    } else {
        return di_fail(st, DI_E_IO,
                       "\"%s\" has neither " INDEX_NAME " nor " SINGLE_NAME
                       "; give the folder of a complete checkpoint",
                       c->dir);
    }
    DI_TRY(merge(c, st));
    if (x.n > 0)
        rc = check_index(c, &x, path, st);
done:
    shard_index_fini(&x);
    return rc;
}

/* ----------------------------------------------------------------------------------- table */

static di_code check_tensor(const checkpoint *c, const found *f, const table_entry *e,
                            di_status *st)
{
    const st_tensor *t = f->t;
    const char *path = st_file_path(c->shard[f->shard]);
    char want[64], have[160];

    if (t->type != e->type)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": tensor \"%s\" is %s; this model stores it as %s; use the released "
                       "weights, not a conversion",
                       path, t->name, dtype_name(t->type), dtype_name(e->type));
    if (t->n_dims != e->n_dims || t->shape[0] != e->shape[0] || t->shape[1] != e->shape[1])
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": tensor \"%s\" has shape %s; config.json wants %s; use the "
                       "config.json that belongs to these weights",
                       path, t->name, st_shape_text(have, sizeof have, t->shape, t->n_dims),
                       st_shape_text(want, sizeof want, e->shape, e->n_dims));
    return DI_OK;
}

/* Where the data of a tensor is: in the map, or in a copy when the file does not align it. */
static di_code place(checkpoint *c, const found *f, ckpt_tensor *t, di_status *st)
{
    const void *data = st_file_data(c->shard[f->shard], f->t);
    void *copy;

    t->data = data;
    if (!data || (uintptr_t)data % dtype_bytes(t->type) == 0)
        return DI_OK;
    copy = arena_alloc(c->mem, t->bytes, 1);
    if (!copy)
        return no_memory(c, st);
    memcpy(copy, data, t->bytes);
    t->data = copy;
    return DI_OK;
}

static di_code bind(void *arg, const table_entry *e, di_status *st)
{
    checkpoint *c = arg;
    uint32_t at;
    found *f;
    ckpt_tensor *t;
    char want[64];
    di_code rc = DI_OK;

    if (!map_find(c->by_name, e->name, e->name_len, &at))
        return di_fail(
            st, DI_E_FORMAT,
            "\"%s\": tensor \"%s\" (%s %s) is in no shard; the checkpoint is incomplete, "
            "or its config.json belongs to another one",
            c->dir, e->name, dtype_name(e->type),
            st_shape_text(want, sizeof want, e->shape, e->n_dims));
    f = &c->found[at];
    DI_CHECK(f->table == NOT_IN_TABLE); /* the table has each name once */
    DI_TRY(check_tensor(c, f, e, st));
    t = &c->tensor[c->n_tensors];
    *t = (ckpt_tensor){.name = f->t->name,
                       .type = e->type,
                       .n_dims = e->n_dims,
                       .shape = {e->shape[0], e->shape[1]},
                       .bytes = f->t->bytes,
                       .shard = f->shard,
                       .offset = st_file_data_offset(c->shard[f->shard]) + f->t->offset};
    DI_TRY(place(c, f, t, st));
    f->table = c->n_tensors++;
done:
    return rc;
}

static di_code bind_table(checkpoint *c, di_status *st)
{
    di_code rc = DI_OK;

    c->tensor = mem_try_calloc(c->n_found, sizeof *c->tensor);
    if (!c->tensor)
        return no_memory(c, st);
    DI_TRY(table_walk(&c->config, bind, c, st));
    for (size_t i = 0; i < c->n_found && c->n_tensors < c->n_found; i++)
        if (c->found[i].table == NOT_IN_TABLE)
            return di_fail(
                st, DI_E_FORMAT,
                "\"%s\": tensor \"%s\" is not part of the model that config.json "
                "describes (%zu unknown tensors in all); use the config.json that belongs "
                "to these weights",
                st_file_path(c->shard[c->found[i].shard]), c->found[i].t->name,
                c->n_found - c->n_tensors);
done:
    return rc;
}

/* --------------------------------------------------------------------------------- reading */

static int compare_data(const void *a, const void *b)
{
    const ckpt_tensor *const *x = a, *const *y = b;

    return ((*x)->data > (*y)->data) - ((*x)->data < (*y)->data);
}

/* For checkpoint_read. Tensors of no bytes do not exist, so addresses differ. */
static di_code sort_by_data(checkpoint *c, di_status *st)
{
    c->by_data = mem_try_calloc(c->n_tensors, sizeof *c->by_data);
    if (!c->by_data)
        return no_memory(c, st);
    for (size_t i = 0; i < c->n_tensors; i++)
        c->by_data[i] = &c->tensor[i];
    qsort(c->by_data, c->n_tensors, sizeof *c->by_data, compare_data);
    return DI_OK;
}

/* The tensor whose data begins last at or before `p`. */
static const ckpt_tensor *tensor_at(const checkpoint *c, const void *p)
{
    size_t low = 0, high = c->n_tensors;

    while (high - low > 1) {
        size_t mid = (low + high) / 2;

        if (c->by_data[mid]->data <= p)
            low = mid;
        else
            high = mid;
    }
    return c->by_data[low];
}

di_code checkpoint_read(const checkpoint *c, void *to, const void *from, size_t bytes,
                        di_status *st)
{
    const ckpt_tensor *t = tensor_at(c, from);
    size_t at = (size_t)((const char *)from - (const char *)t->data);
    const st_file *f;
    di_code rc = DI_OK;

    DI_CHECK(at <= t->bytes && bytes <= t->bytes - at);
    if (c->made) {
        dummy_read(to, t, c->made->seed, at, bytes);
        return DI_OK;
    }
    f = c->shard[t->shard];
    DI_TRY(st_file_read(f, to, t->offset - st_file_data_offset(f) + at, bytes, st));
    if (t->type == DTYPE_F8_E8M0)
        rc = scale_check(c, t, to, at, bytes, st);
done:
    return rc;
}

/* ------------------------------------------------------------------------------- generated */

/* Each tensor begins on a page, so that it can be dropped; a large one on a huge page, which the
 * system provides sixteen times as fast. */
#define PAGE_BYTES ((size_t)4096)
#define HUGE_BYTES ((size_t)2 << 20)

static di_code count_tensor(void *arg, const table_entry *e, di_status *st)
{
    (void)e;
    (void)st;
    (*(size_t *)arg)++;
    return DI_OK;
}

/* Add a tensor of the table; its offset is its place in made.base. */
static di_code add_generated(void *arg, const table_entry *e, di_status *st)
{
    checkpoint *c = arg;
    ckpt_tensor *t = &c->tensor[c->n_tensors];
    size_t n = (size_t)e->shape[0] * (size_t)e->shape[1] * dtype_bytes(e->type), end;
    size_t unit = n >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES;

    if (!size_add(c->made->bytes, unit - 1, &c->made->bytes))
        return no_memory(c, st);
    c->made->bytes -= c->made->bytes % unit;
    *t = (ckpt_tensor){.name = arena_strdup(c->mem, e->name),
                       .type = e->type,
                       .n_dims = e->n_dims,
                       .shape = {e->shape[0], e->shape[1]},
                       .bytes = n,
                       .offset = c->made->bytes};
    if (!t->name || map_insert(c->by_name, e->name, e->name_len, (uint32_t)c->n_found) < 0)
        return no_memory(c, st);
    if (!size_add(c->made->bytes, (n + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES, &end))
        return no_memory(c, st);
    c->made->bytes = end;
    c->found[c->n_found++] = (found){.table = c->n_tensors++};
    return DI_OK;
}

static di_code make_table(checkpoint *c, dummy_when when, di_status *st)
{
    size_t n = 0;
    di_code rc = DI_OK;

    DI_TRY(table_walk(&c->config, count_tensor, &n, st));
    c->made = mem_try_calloc(1, sizeof *c->made);
    if (!c->made)
        return no_memory(c, st);
    pthread_mutex_init(&c->made->lock, NULL);
    c->made->there = mem_try_calloc(n, sizeof *c->made->there);
    c->found = mem_try_calloc(n, sizeof *c->found);
    c->tensor = mem_try_calloc(n, sizeof *c->tensor);
    c->by_name = map_new(n);
    if (!c->made->there || !c->found || !c->tensor || !c->by_name)
        return no_memory(c, st);
    DI_TRY(table_walk(&c->config, add_generated, c, st));
    c->made->when = when;
    if (when == DUMMY_HEADERS)
        return DI_OK;
    c->made->base = mem_try_reserve(c->made->bytes);
    if (!c->made->base)
        return di_fail(st, DI_E_NOMEM, "no address space for %zu bytes of generated weights",
                       c->made->bytes);
    for (size_t i = 0; i < n; i++)
        c->tensor[i].data = c->made->base + c->tensor[i].offset;
    rc = sort_by_data(c, st);
done:
    return rc;
}

static void free_made(made *m)
{
    if (!m)
        return;
    mem_unreserve(m->base, m->base ? m->bytes : 0);
    mem_free(m->there);
    pthread_mutex_destroy(&m->lock);
    mem_free(m);
}

static void generate(const checkpoint *c, size_t i)
{
    made *m = c->made;

    if (m->when == DUMMY_HEADERS || m->when == DUMMY_READ)
        return;
    pthread_mutex_lock(&m->lock);
    if (!m->there[i])
        dummy_fill((uint64_t *)(m->base + c->tensor[i].offset), &c->tensor[i], m->seed, 0,
                   (c->tensor[i].bytes + 7) / 8);
    m->there[i] = true;
    pthread_mutex_unlock(&m->lock);
}

/* Tables are read for as long as the model lives. */
static void drop_generated(const checkpoint *c, const ckpt_tensor *t)
{
    made *m = c->made;
    size_t i = (size_t)(t - c->tensor);

    if (m->when != DUMMY_FOUND || dummy_is_table(t->name))
        return;
    pthread_mutex_lock(&m->lock);
    if (m->there[i])
        mem_release_pages(m->base + t->offset, t->bytes);
    m->there[i] = false;
    pthread_mutex_unlock(&m->lock);
}

/* A checkpoint that knows its config.json only. NULL: *rc says why. */
static checkpoint *open_config(const char *dir, di_code *rc, di_status *st)
{
    checkpoint *c = mem_try_calloc(1, sizeof *c);

    if (!c) {
        *rc = di_fail(st, DI_E_NOMEM, "no memory to open checkpoint \"%s\"", dir);
        return NULL;
    }
    c->mem = arena_new(0);
    c->dir = mem_try_strdup(dir);
    *rc = c->mem && c->dir ? config_load(&c->config, dir, st) : no_memory(c, st);
    if (*rc == DI_OK)
        return c;
    checkpoint_close(c);
    return NULL;
}

di_code checkpoint_open_dummy(checkpoint **out, const char *dir, const dummy_options *o,
                              dummy_when when, di_status *st)
{
    di_code rc = DI_OK;
    checkpoint *c = open_config(dir, &rc, st);

    *out = NULL;
    if (!c)
        return rc;
    DI_TRY(dummy_config(&c->config, o, st));
    DI_TRY(make_table(c, when, st));
    c->made->seed = (uint64_t)o->share; /* every rank has experts of its own */
    *out = c;
    c = NULL; /* handed over */
done:
    checkpoint_close(c);
    return rc;
}

bool checkpoint_is_dummy(const checkpoint *c)
{
    return c->made != NULL;
}

/* --------------------------------------------------------------------------------- public */

di_code checkpoint_open(checkpoint **out, const char *dir, bool headers_only, di_status *st)
{
    di_code rc = DI_OK;
    checkpoint *c = open_config(dir, &rc, st);

    *out = NULL;
    if (!c)
        return rc;
    DI_TRY(open_files(c, headers_only, st));
    DI_TRY(bind_table(c, st));
    if (!headers_only)
        DI_TRY(sort_by_data(c, st));
    *out = c;
    c = NULL; /* handed over */
done:
    checkpoint_close(c);
    return rc;
}

void checkpoint_close(checkpoint *c)
{
    if (!c)
        return;
    for (int i = 0; c->shard && i < c->n_shards; i++)
        st_file_close(c->shard[i]);
    free_made(c->made);
    mem_free(c->by_data);
    mem_free(c->tensor);
    mem_free(c->found);
    map_free(c->by_name);
    arena_free(c->mem);
    mem_free(c->dir);
    mem_free(c);
}

const model_config *checkpoint_config(const checkpoint *c)
{
    return &c->config;
}

const char *checkpoint_dir(const checkpoint *c)
{
    return c->dir;
}

int checkpoint_n_shards(const checkpoint *c)
{
    return c->n_shards;
}

const char *checkpoint_shard_name(const checkpoint *c, int shard)
{
    return c->shard_name[shard];
}

size_t checkpoint_n_tensors(const checkpoint *c)
{
    return c->n_tensors;
}

const ckpt_tensor *checkpoint_tensor(const checkpoint *c, size_t i)
{
    return &c->tensor[i];
}

const ckpt_tensor *checkpoint_find(const checkpoint *c, const char *fmt, ...)
{
    char name[ST_MAX_NAME + 1];
    va_list ap;
    uint32_t at;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof name || !map_find(c->by_name, name, (size_t)n, &at))
        return NULL;
    if (c->made)
        generate(c, c->found[at].table);
    return &c->tensor[c->found[at].table];
}

void checkpoint_need(const checkpoint *c, const ckpt_tensor *t)
{
    const st_file *f = c->made ? NULL : c->shard[t->shard];

    if (f)
        st_file_need(f, t->offset - st_file_data_offset(f), t->bytes);
}

void checkpoint_drop(const checkpoint *c, const ckpt_tensor *t)
{
    const st_file *f = c->made ? NULL : c->shard[t->shard];

    if (f)
        st_file_drop(f, t->offset - st_file_data_offset(f), t->bytes);
    else if (c->made)
        drop_generated(c, t);
}
