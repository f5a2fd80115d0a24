/* model.safetensors.index.json: {"metadata": {...}, "weight_map": {tensor: file, ...}}. */
#include "base/json_read.h"
#include "base/map.h"
#include "base/mem.h"
#include "checkpoint/checkpoint_internal.h"

#define MAX_SHARDS    10000
#define MAX_FILE_NAME 255

/* Grow an array by doubling; false when out of memory. */
static bool reserve(void **p, size_t *cap, size_t n, size_t size)
{
    size_t want = *cap ? *cap * 2 : 64;
    void *grown;

    if (n < *cap)
        return true;
    grown = mem_try_realloc(*p, want, size);
    if (!grown)
        return false;
    *p = grown;
    *cap = want;
    return true;
}

/* A shard is a plain file beside the index: no folders, nothing hidden. */
static bool good_file_name(const char *s, size_t n)
{
    if (n == 0 || n > MAX_FILE_NAME || s[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7F || s[i] == '/' || s[i] == '\\')
            return false;
    return true;
}

/* Number of the shard with this file name, new or known. */
static di_code find_shard(shard_index *x, map *shards, json_read *r, const char *file, size_t n,
                          int *out, di_status *st)
{
    uint32_t known;
    char *copy;
    size_t cap = (size_t)x->cap_shards;

    if (!good_file_name(file, n))
        return json_fail(r, st, "the file name of a shard must be a plain name in the same folder");
    if (map_find(shards, file, n, &known)) {
        *out = (int)known;
        return DI_OK;
    }
    if (x->n_shards == MAX_SHARDS)
        return json_fail(r, st, "more than %d shards", MAX_SHARDS);
    copy = arena_strndup(x->mem, file, n);
    if (!copy || !reserve((void **)&x->shard, &cap, (size_t)x->n_shards, sizeof *x->shard) ||
        map_insert(shards, file, n, (uint32_t)x->n_shards) < 0)
        return di_fail(st, DI_E_NOMEM, "no memory for \"%s\"", r->name);
    x->cap_shards = (int)cap;
    x->shard[x->n_shards] = copy;
    *out = x->n_shards++;
    return DI_OK;
}

static di_code read_weight_map(shard_index *x, map *shards, json_read *r, di_status *st)
{
    const char *text;
    size_t n;
    di_code rc = DI_OK;

    DI_TRY(json_object(r, st));
    while (json_key(r, &text, &n)) {
        index_entry e;

        DI_TRY(st_name_check(r, text, n, st));
        e.name = arena_strndup(x->mem, text, n);
        if (!e.name || !reserve((void **)&x->entry, &x->cap, x->n, sizeof *x->entry))
            return di_fail(st, DI_E_NOMEM, "no memory for \"%s\"", r->name);
        DI_TRY(json_string(r, &text, &n, st));
        DI_TRY(find_shard(x, shards, r, text, n, &e.shard, st));
        x->entry[x->n++] = e;
    }
done:
    return rc;
}

static di_code read_index(shard_index *x, map *shards, json_read *r, di_status *st)
{
    const char *key;
    size_t n;
    bool seen = false;
    di_code rc = DI_OK;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        if (!json_key_is(key, n, "weight_map")) {
            DI_TRY(json_skip(r, st));
            continue;
        }
        if (seen)
            return json_fail(r, st, "weight_map stands twice");
        seen = true;
        DI_TRY(read_weight_map(x, shards, r, st));
    }
    DI_TRY(json_end(r, st));
    if (x->n == 0)
        rc = di_fail(st, DI_E_FORMAT, "\"%s\": weight_map is missing or empty; get the file again",
                     r->name);
done:
    return rc;
}

di_code shard_index_parse(shard_index *x, const char *text, size_t n, const char *name,
                          di_status *st)
{
    map *shards = map_new(0);
    json_read r;
    di_code rc;

    *x = (shard_index){.mem = arena_new((size_t)1 << 20)};
    json_open(&r, text, n, name);
    if (shards && x->mem)
        rc = read_index(x, shards, &r, st);
    else
        rc = di_fail(st, DI_E_NOMEM, "no memory for \"%s\"", name);
    json_close(&r);
    map_free(shards);
    if (rc != DI_OK)
        shard_index_fini(x);
    return rc;
}

void shard_index_fini(shard_index *x)
{
    mem_free(x->shard);
    mem_free(x->entry);
    arena_free(x->mem);
    *x = (shard_index){.mem = NULL};
}
