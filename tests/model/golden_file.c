#include "model/golden_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/mem.h"
#include "formats/scalar.h"

const char *const golden_precision[GOLDEN_PRECISIONS] = {"f32", "cache", "release"};

#define MAX_JSON ((size_t)256 << 20)

/* Elements of the array text [n], at most: one more than its commas. */
static size_t count_items(const char *text, size_t n)
{
    size_t items = 1;

    for (size_t i = 0; i < n; i++)
        items += text[i] == ',';
    return items;
}

static di_code read_ints(json_read *r, arena *mem, golden_list *out, di_status *st)
{
    di_code rc = DI_OK;
    const char *text;
    size_t n;
    json_read a = {0};

    DI_TRY(json_raw(r, &text, &n, st));
    out->v = arena_alloc(mem, count_items(text, n), sizeof *out->v);
    if (!out->v)
        return di_fail(st, DI_E_NOMEM, "no memory for golden data");
    out->n = 0;
    json_open(&a, text, n, "golden.json");
    DI_TRY(json_array(&a, st));
    while (json_item(&a))
        DI_TRY(json_int(&a, &out->v[out->n++], st));
    DI_TRY(json_end(&a, st));
done:
    json_close(&a);
    return rc;
}

static di_code read_reals(json_read *r, arena *mem, golden_reals *out, di_status *st)
{
    di_code rc = DI_OK;
    const char *text;
    size_t n;
    json_read a = {0};

    DI_TRY(json_raw(r, &text, &n, st));
    out->v = arena_alloc(mem, count_items(text, n), sizeof *out->v);
    if (!out->v)
        return di_fail(st, DI_E_NOMEM, "no memory for golden data");
    out->n = 0;
    json_open(&a, text, n, "golden.json");
    DI_TRY(json_array(&a, st));
    while (json_item(&a))
        DI_TRY(json_number(&a, &out->v[out->n++], st));
    DI_TRY(json_end(&a, st));
done:
    json_close(&a);
    return rc;
}

static di_code read_round(json_read *r, arena *mem, golden_round *out, di_status *st)
{
    di_code rc = DI_OK;
    const char *key;
    size_t n;

    *out = (golden_round){.pos = -1, .token = -1, .accepted = -1};
    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        if (json_key_is(key, n, "pos"))
            DI_TRY(json_int(r, &out->pos, st));
        else if (json_key_is(key, n, "token"))
            DI_TRY(json_int(r, &out->token, st));
        else if (json_key_is(key, n, "accepted"))
            DI_TRY(json_int(r, &out->accepted, st));
        else if (json_key_is(key, n, "draft"))
            DI_TRY(read_ints(r, mem, &out->draft, st));
        else if (json_key_is(key, n, "confidence"))
            DI_TRY(read_reals(r, mem, &out->confidence, st));
        else
            DI_TRY(json_skip(r, st));
    }
done:
    return rc;
}

static di_code read_rounds(json_read *r, arena *mem, golden_run *run, di_status *st)
{
    di_code rc = DI_OK;
    const char *text;
    size_t n;
    json_read a = {0};

    DI_TRY(json_raw(r, &text, &n, st));
    run->round = arena_alloc(mem, count_items(text, n), sizeof *run->round);
    if (!run->round)
        return di_fail(st, DI_E_NOMEM, "no memory for golden data");
    json_open(&a, text, n, "golden.json");
    DI_TRY(json_array(&a, st));
    while (json_item(&a))
        DI_TRY(read_round(&a, mem, &run->round[run->n_rounds++], st));
    DI_TRY(json_end(&a, st));
done:
    json_close(&a);
    return rc;
}

static di_code read_run(json_read *r, arena *mem, golden_run *run, di_status *st)
{
    di_code rc = DI_OK;
    const char *key;
    size_t n;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        if (json_key_is(key, n, "greedy"))
            DI_TRY(read_ints(r, mem, &run->greedy, st));
        else if (json_key_is(key, n, "greedy_margin"))
            DI_TRY(read_reals(r, mem, &run->margin, st));
        else if (json_key_is(key, n, "draft_rounds"))
            DI_TRY(read_rounds(r, mem, run, st));
        else
            DI_TRY(json_skip(r, st));
    }
done:
    return rc;
}

/* The prompt of this name, added when new. */
static golden_prompt *prompt_named(golden *g, const char *name, size_t n)
{
    golden_prompt *p;

    for (int i = 0; i < g->n_prompts; i++)
        if (strlen(g->prompt[i].name) == n && !memcmp(g->prompt[i].name, name, n))
            return &g->prompt[i];
    p = arena_alloc(g->mem, (size_t)g->n_prompts + 1, sizeof *p);
    if (!p)
        return NULL;
    if (g->n_prompts > 0)
        memcpy(p, g->prompt, (size_t)g->n_prompts * sizeof *p);
    g->prompt = p;
    p += g->n_prompts++;
    p->name = arena_strndup(g->mem, name, n);
    return p->name ? p : NULL;
}

static di_code read_prompts(json_read *r, golden *g, di_status *st)
{
    di_code rc = DI_OK;
    const char *key;
    size_t n;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        golden_prompt *p = prompt_named(g, key, n);

        if (!p)
            return di_fail(st, DI_E_NOMEM, "no memory for golden data");
        DI_TRY(read_ints(r, g->mem, &p->ids, st));
    }
done:
    return rc;
}

static di_code read_precisions(json_read *r, golden *g, di_status *st)
{
    di_code rc = DI_OK;
    const char *key;
    size_t n;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        int which = -1;

        for (int i = 0; i < GOLDEN_PRECISIONS; i++)
            if (json_key_is(key, n, golden_precision[i]))
                which = i;
        if (which < 0) {
            DI_TRY(json_skip(r, st));
            continue;
        }
        DI_TRY(json_object(r, st));
        while (json_key(r, &key, &n)) {
            golden_prompt *p = prompt_named(g, key, n);

            if (!p)
                return di_fail(st, DI_E_NOMEM, "no memory for golden data");
            DI_TRY(read_run(r, g->mem, &p->run[which], st));
        }
    }
done:
    return rc;
}

static di_code read_document(json_read *r, golden *g, di_status *st)
{
    di_code rc = DI_OK;
    const char *key, *text;
    size_t n, len;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        if (json_key_is(key, n, "model")) {
            DI_TRY(json_string(r, &text, &len, st));
            g->model = arena_strndup(g->mem, text, len);
        } else if (json_key_is(key, n, "prompts")) {
            DI_TRY(read_prompts(r, g, st));
        } else if (json_key_is(key, n, "precision")) {
            DI_TRY(read_precisions(r, g, st));
        } else if (json_key_is(key, n, "trace_prompt")) {
            DI_TRY(read_ints(r, g->mem, &g->trace_prompt, st));
        } else if (json_key_is(key, n, "texts")) {
            DI_TRY(json_raw(r, &text, &len, st));
            g->has_texts = memchr(text, ':', len) != NULL;
        } else {
            DI_TRY(json_skip(r, st));
        }
    }
    DI_TRY(json_end(r, st));
done:
    return rc;
}

di_code golden_open(golden *g, const char *dir, di_status *st)
{
    di_code rc = DI_OK;
    char path[1024], *text = NULL;
    size_t n;
    json_read r = {0};

    *g = (golden){.mem = arena_new(0)};
    if (!g->mem)
        return di_fail(st, DI_E_NOMEM, "no memory for golden data");
    DI_TRY(path_join(path, sizeof path, dir, "golden.json", st));
    DI_TRY(file_read(&text, &n, path, MAX_JSON, st));
    json_open(&r, text, n, path);
    DI_TRY(read_document(&r, g, st));
done:
    json_close(&r);
    mem_free(text);
    if (rc)
        golden_close(g);
    return rc;
}

void golden_close(golden *g)
{
    arena_free(g->mem);
    *g = (golden){0};
}

di_code golden_tensors(st_file **out, const char *dir, const char *file, di_status *st)
{
    char path[1024];

    *out = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return access(path, F_OK) ? DI_OK : st_file_open(out, path, false, st);
}

const st_tensor *golden_find(const st_file *f, const char *fmt, ...)
{
    char name[256];
    va_list ap;

    if (!f)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return st_file_find(f, name);
}

int64_t golden_count(const st_tensor *t)
{
    return (int64_t)(t->bytes / dtype_bytes(t->type));
}

double golden_at(const st_file *f, const st_tensor *t, int64_t i)
{
    const unsigned char *p =
        (const unsigned char *)st_file_data(f, t) + (size_t)i * dtype_bytes(t->type);
    union {
        float f32;
        uint16_t bf16;
        int32_t i32;
        int64_t i64;
        uint8_t boolean;
    } u = {0};

    memcpy(&u, p, dtype_bytes(t->type));
    switch (t->type) {
    case DTYPE_F32:
        return (double)u.f32;
    case DTYPE_BF16:
        return (double)bf16_to_f32(u.bf16);
    case DTYPE_I32:
        return u.i32;
    case DTYPE_I64:
        return (double)u.i64;
    default:
        return u.boolean;
    }
}

void golden_get(const st_file *f, const st_tensor *t, int64_t first, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)golden_at(f, t, first + i);
}
