/* The JSON header of a safetensors file: reading it and the checks that need no file. */
#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/mem.h"
#include "checkpoint/checkpoint_internal.h"

/* What the header says about one tensor, before it is believed. */
typedef struct entry {
    char name[ST_MAX_NAME + 1];
    size_t name_len;
    dtype type;
    int n_dims;
    int64_t shape[ST_MAX_DIMS];
    int64_t begin, end;
    bool has_type, has_shape, has_offsets;
} entry;

const char *st_shape_text(char *out, size_t cap, const int64_t *shape, int n_dims)
{
    size_t at = 0;

    for (int i = 0; i < n_dims && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%" PRId64, i ? "," : "[", shape[i]);
    if (at < cap)
        snprintf(out + at, cap - at, "%s", n_dims ? "]" : "[]");
    return out;
}

di_code st_name_check(json_read *r, const char *name, size_t n, di_status *st)
{
    if (n == 0 || n > ST_MAX_NAME)
        return json_fail(r, st, "a tensor name of %zu bytes; 1 to %d are allowed", n, ST_MAX_NAME);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F)
            return json_fail(r, st, "a tensor name holds a control character");
    return DI_OK;
}

static di_code read_dtype(json_read *r, entry *e, di_status *st)
{
    const char *text;
    size_t n;
    di_code rc = DI_OK;

    DI_TRY(json_string(r, &text, &n, st));
    e->type = n < 16 ? dtype_from_name(text, (unsigned)n) : DTYPE_COUNT;
    if (e->type == DTYPE_COUNT)
        rc = json_fail(r, st,
                       "the dtype is unknown; F32, BF16, F8_E4M3, F8_E8M0, I8, I32, I64 and "
                       "BOOL are known");
done:
    return rc;
}

static di_code read_shape(json_read *r, entry *e, di_status *st)
{
    di_code rc = DI_OK;

    for (int i = 0; i < ST_MAX_DIMS; i++)
        e->shape[i] = 1;
    DI_TRY(json_array(r, st));
    while (json_item(r)) {
        int64_t v;

        DI_TRY(json_int(r, &v, st));
        if (v < 0)
            return json_fail(r, st, "dimension %" PRId64 " is negative", v);
        if (e->n_dims == ST_MAX_DIMS)
            return json_fail(r, st, "more than %d dimensions", ST_MAX_DIMS);
        e->shape[e->n_dims++] = v;
    }
done:
    return rc;
}

static di_code read_offsets(json_read *r, entry *e, di_status *st)
{
    int64_t v[2];
    int n = 0;
    di_code rc = DI_OK;

    DI_TRY(json_array(r, st));
    while (json_item(r)) {
        if (n == 2)
            return json_fail(r, st, "data_offsets has more than two numbers");
        DI_TRY(json_int(r, &v[n], st));
        if (v[n] < 0)
            return json_fail(r, st, "data offset %" PRId64 " is negative", v[n]);
        n++;
    }
    if (n != 2)
        return json_fail(r, st, "data_offsets must be [begin, end]");
    if (v[0] > v[1])
        return json_fail(r, st, "data_offsets begin at %" PRId64 " and end before it at %" PRId64,
                         v[0], v[1]);
    e->begin = v[0];
    e->end = v[1];
done:
    return rc;
}

/* The offsets must span what shape and type need, in numbers that cannot overflow. */
static di_code check_extent(json_read *r, const entry *e, di_status *st)
{
    char shape[160];
    size_t bytes = dtype_bytes(e->type);

    st_shape_text(shape, sizeof shape, e->shape, e->n_dims);
    for (int i = 0; i < e->n_dims; i++)
        if (!size_mul(bytes, (size_t)e->shape[i], &bytes))
            return json_fail(r, st, "shape %s is too large: its size does not fit 64 bits", shape);
    if (bytes != (size_t)(e->end - e->begin))
        return json_fail(r, st,
                         "shape %s of %s needs %zu bytes, data_offsets [%" PRId64 ",%" PRId64
                         "] span %" PRId64,
                         shape, dtype_name(e->type), bytes, e->begin, e->end, e->end - e->begin);
    return DI_OK;
}

static di_code read_fields(json_read *r, entry *e, di_status *st)
{
    const char *key;
    size_t n;
    di_code rc = DI_OK;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        bool *seen = json_key_is(key, n, "dtype")          ? &e->has_type
                     : json_key_is(key, n, "shape")        ? &e->has_shape
                     : json_key_is(key, n, "data_offsets") ? &e->has_offsets
                                                           : NULL;

        if (seen && *seen)
            return json_fail(r, st, "\"%.*s\" stands twice", (int)n, key);
        if (seen)
            *seen = true;
        DI_TRY(seen == &e->has_type      ? read_dtype(r, e, st)
               : seen == &e->has_shape   ? read_shape(r, e, st)
               : seen == &e->has_offsets ? read_offsets(r, e, st)
                                         : json_skip(r, st));
    }
    if (r->error)
        return json_end(r, st);
    if (!e->has_type || !e->has_shape || !e->has_offsets)
        return json_fail(r, st, "dtype, shape or data_offsets is missing");
    rc = check_extent(r, e, st);
done:
    return rc;
}

/* "__metadata__" is an object of strings that nobody here needs. */
static di_code read_metadata(json_read *r, di_status *st)
{
    const char *text;
    size_t n;
    di_code rc = DI_OK;

    DI_TRY(json_object(r, st));
    while (json_key(r, &text, &n))
        DI_TRY(json_string(r, &text, &n, st));
done:
    return rc;
}

static di_code add_tensor(st_header *h, json_read *r, const entry *e, di_status *st)
{
    st_tensor *t;
    int inserted = map_insert(h->by_name, e->name, e->name_len, (uint32_t)h->n_tensors);

    if (inserted == 0)
        return json_fail(r, st, "the name stands twice in the header");
    if (inserted > 0 && h->n_tensors == h->cap_tensors) {
        size_t cap = h->cap_tensors ? h->cap_tensors * 2 : 256;

        t = mem_try_realloc(h->tensor, cap, sizeof *t);
        if (t) {
            h->tensor = t;
            h->cap_tensors = cap;
        }
    }
    if (inserted < 0 || h->n_tensors == h->cap_tensors)
        return di_fail(st, DI_E_NOMEM, "no memory for the header of \"%s\"", r->name);
    t = &h->tensor[h->n_tensors];
    *t = (st_tensor){.name = arena_strndup(h->mem, e->name, e->name_len),
                     .type = e->type,
                     .n_dims = e->n_dims,
                     .offset = (size_t)e->begin,
                     .bytes = (size_t)(e->end - e->begin)};
    if (!t->name)
        return di_fail(st, DI_E_NOMEM, "no memory for the header of \"%s\"", r->name);
    memcpy(t->shape, e->shape, sizeof t->shape);
    h->n_tensors++;
    return DI_OK;
}

static di_code read_header(st_header *h, json_read *r, di_status *st)
{
    const char *key;
    size_t n;
    bool has_metadata = false;
    di_code rc = DI_OK;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        entry e = {.n_dims = 0};

        if (json_key_is(key, n, "__metadata__")) {
            if (has_metadata)
                return json_fail(r, st, "\"__metadata__\" stands twice in the header");
            has_metadata = true;
            DI_TRY(read_metadata(r, st));
            continue;
        }
        DI_TRY(st_name_check(r, key, n, st));
        memcpy(e.name, key, n);
        e.name_len = n;
        rc = read_fields(r, &e, st);
        if (rc == DI_OK)
            rc = add_tensor(h, r, &e, st);
        if (rc != DI_OK) {
            di_context(st, "tensor \"%s\"", e.name);
            return rc;
        }
    }
    rc = json_end(r, st);
done:
    return rc;
}

static int by_offset(const void *a, const void *b)
{
    const st_tensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void sort_by_offset(st_header *h)
{
    for (size_t i = 1; i < h->n_tensors; i++)
        if (by_offset(&h->tensor[i - 1], &h->tensor[i]) > 0) {
            qsort(h->tensor, h->n_tensors, sizeof *h->tensor, by_offset);
            return;
        }
}

/* Sorted tensors must cover the data part exactly. */
static di_code check_cover(const st_header *h, uint64_t data_bytes, const char *name, di_status *st)
{
    uint64_t at = 0;

    for (size_t i = 0; i < h->n_tensors; i++) {
        const st_tensor *t = &h->tensor[i];

        if (t->offset < at)
            return di_fail(st, DI_E_FORMAT,
                           "\"%s\": tensor \"%s\" begins at byte %zu of the data, inside \"%s\" "
                           "which ends at %" PRIu64 "; the file is damaged, get it again",
                           name, t->name, t->offset, h->tensor[i - 1].name, at);
        if (t->offset > at)
            return di_fail(st, DI_E_FORMAT,
                           "\"%s\": bytes %" PRIu64 " to %zu of the data, in front of tensor "
                           "\"%s\", belong to no tensor; the file is damaged, get it again",
                           name, at, t->offset, t->name);
        at = t->offset + t->bytes;
    }
    if (at > data_bytes)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\" is cut off: tensor \"%s\" ends at byte %" PRIu64
                       " of the data and the file holds %" PRIu64 ", %" PRIu64
                       " bytes are missing; get the file again",
                       name, h->tensor[h->n_tensors - 1].name, at, data_bytes, at - data_bytes);
    if (at < data_bytes)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": the last %" PRIu64 " bytes belong to no tensor; the file is "
                       "damaged, get it again",
                       name, data_bytes - at);
    return DI_OK;
}

di_code st_header_parse(st_header *h, const char *text, size_t n, uint64_t data_bytes,
                        const char *name, di_status *st)
{
    json_read r;
    di_code rc;

    *h = (st_header){.mem = arena_new(0), .by_name = map_new(n / 128 + 16)};
    json_open(&r, text, n, name);
    if (h->mem && h->by_name)
        rc = read_header(h, &r, st);
    else
        rc = di_fail(st, DI_E_NOMEM, "no memory for the header of \"%s\"", name);
    json_close(&r);
    map_free(h->by_name);
    h->by_name = NULL;
    if (rc == DI_OK) {
        sort_by_offset(h);
        rc = check_cover(h, data_bytes, name, st);
    }
    if (rc != DI_OK)
        st_header_fini(h);
    return rc;
}

void st_header_fini(st_header *h)
{
    mem_free(h->tensor);
    map_free(h->by_name);
    arena_free(h->mem);
    *h = (st_header){.mem = NULL};
}
