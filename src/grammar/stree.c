/* See stree.h. */
#include "grammar/stree.h"

#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/json_write.h"

/* Objects of more members than this have an index. */
#define FEW 16

static di_code no_memory(di_status *st)
{
    return di_fail(st, DI_E_NOMEM, "no memory to read a constraint");
}

static bool has_key(const snode *v, const char *key, size_t n)
{
    return v->n_key == n && memcmp(v->key, key, n) == 0;
}

void stree_attach(snode *parent, snode *child)
{
    parent->slot = NULL; /* from now on members are looked through */
    child->parent = parent;
    child->next = NULL;
    if (parent->last)
        parent->last->next = child;
    else
        parent->child = child;
    parent->last = child;
    parent->n_child++;
}

snode *stree_add(arena *mem, snode *parent, json_type type, const char *key, const char *text)
{
    snode *v = arena_alloc(mem, 1, sizeof *v);

    if (!v)
        return NULL;
    v->type = type;
    v->key = key;
    v->n_key = key ? strlen(key) : 0;
    v->text = text;
    v->n_text = text ? strlen(text) : 0;
    if (parent)
        stree_attach(parent, v);
    return v;
}

/* ---- reading ---- */

typedef struct reader {
    arena *mem;
    json_read in;
} reader;

/* Members of a large object by their keys; NULL in *twice when every key stands once. */
static di_code index_members(arena *mem, snode *object, const snode **twice, di_status *st)
{
    size_t n = 64;

    while (n < 2 * (size_t)object->n_child)
        n *= 2;
    object->slot = arena_alloc(mem, n, sizeof(snode *));
    if (!object->slot)
        return no_memory(st);
    object->n_slots = n;
    for (snode *c = object->child; c && !*twice; c = c->next) {
        size_t at = XXH3_64bits(c->key, c->n_key) & (n - 1);

        for (; object->slot[at]; at = (at + 1) & (n - 1))
            if (has_key(object->slot[at], c->key, c->n_key))
                *twice = c;
        object->slot[at] = c;
    }
    return DI_OK;
}

static di_code check_twice(arena *mem, snode *object, di_status *st)
{
    const snode *twice = NULL;
    di_code rc = DI_OK;

    if (object->n_child > FEW)
        DI_TRY(index_members(mem, object, &twice, st));
    for (const snode *a = object->slot ? NULL : object->child; a && !twice; a = a->next)
        for (const snode *b = object->child; b != a && !twice; b = b->next)
            if (has_key(b, a->key, a->n_key))
                twice = a;
    if (twice)
        rc = di_fail(st, DI_E_INVALID, "the key \"%.80s\" stands twice in an object", twice->key);
done:
    return rc;
}

static di_code read_value(reader *r, snode *v, di_status *st);

static di_code read_member(reader *r, snode *parent, const char *key, size_t n, di_status *st)
{
    snode *v = stree_add(r->mem, parent, JSON_NONE, NULL, NULL);

    if (v && key) {
        v->key = arena_strndup(r->mem, key, n);
        v->n_key = n;
    }
    if (!v || (key && !v->key))
        return no_memory(st);
    if (key && memchr(key, 0, n))
        return di_fail(st, DI_E_INVALID, "a key with a zero character cannot be used");
    return read_value(r, v, st);
}

static di_code read_container(reader *r, snode *v, di_status *st)
{
    const char *key;
    size_t n;
    di_code rc;

    if (v->type == JSON_ARRAY) {
        DI_TRY(json_array(&r->in, st));
        while (json_item(&r->in))
            DI_TRY(read_member(r, v, NULL, 0, st));
        goto done;
    }
    DI_TRY(json_object(&r->in, st));
    while (json_key(&r->in, &key, &n))
        DI_TRY(read_member(r, v, key, n, st));
    DI_TRY(check_twice(r->mem, v, st));
done:
    return rc;
}

static di_code read_value(reader *r, snode *v, di_status *st)
{
    const char *s = NULL;
    size_t n = 0;
    di_code rc;

    v->type = json_peek(&r->in);
    switch (v->type) {
    case JSON_ARRAY:
    case JSON_OBJECT:
        return read_container(r, v, st);
    case JSON_BOOL:
        return json_bool(&r->in, &v->flag, st);
    case JSON_STRING:
        rc = json_string(&r->in, &s, &n, st);
        break;
    case JSON_NUMBER:
        rc = json_raw(&r->in, &s, &n, st);
        break;
    default:
        return json_null(&r->in, st);
    }
    if (rc != DI_OK)
        return rc;
    v->text = arena_strndup(r->mem, s, n);
    v->n_text = n;
    return v->text ? DI_OK : no_memory(st);
}

di_code stree_read(arena *mem, const char *text, size_t n, const char *name, snode **out,
                   di_status *st)
{
    reader r = {.mem = mem};
    snode *v = stree_add(mem, NULL, JSON_NONE, NULL, NULL);
    di_code rc;

    *out = NULL;
    if (!v)
        return no_memory(st);
    json_open(&r.in, text, n, name);
    rc = read_value(&r, v, st);
    if (rc == DI_OK)
        rc = json_end(&r.in, st);
    json_close(&r.in);
    if (rc == DI_OK)
        *out = v;
    return rc;
}

/* ---- writing ---- */

static void write_value(const snode *v, json_write *w)
{
    switch (v->type) {
    case JSON_OBJECT:
        jw_object(w);
        for (const snode *c = v->child; c; c = c->next) {
            jw_key(w, c->key);
            write_value(c, w);
        }
        jw_end(w);
        break;
    case JSON_ARRAY:
        jw_array(w);
        for (const snode *c = v->child; c; c = c->next)
            write_value(c, w);
        jw_end(w);
        break;
    case JSON_STRING:
        jw_string(w, v->text, v->n_text);
        break;
    case JSON_NUMBER:
        jw_raw(w, v->text, v->n_text);
        break;
    case JSON_BOOL:
        jw_bool(w, v->flag);
        break;
    default:
        jw_null(w);
        break;
    }
}

void stree_write(const snode *v, str *out)
{
    json_write w = {.out = out};

    write_value(v, &w);
}

/* ---- members ---- */

/* What was removed is still in the index, but has lost its parent. */
static snode *find_member(const snode *v, const char *key, size_t n)
{
    if (v->slot) {
        for (size_t at = XXH3_64bits(key, n) & (v->n_slots - 1); v->slot[at];
             at = (at + 1) & (v->n_slots - 1))
            if (v->slot[at]->parent == v && has_key(v->slot[at], key, n))
                return v->slot[at];
        return NULL;
    }
    for (snode *c = v->child; c; c = c->next)
        if (has_key(c, key, n))
            return c;
    return NULL;
}

snode *stree_get(const snode *v, const char *key)
{
    return v && v->type == JSON_OBJECT ? find_member(v, key, strlen(key)) : NULL;
}

bool stree_is(const snode *v, const char *string)
{
    return v && v->type == JSON_STRING && v->n_text == strlen(string) &&
           memcmp(v->text, string, v->n_text) == 0;
}

void stree_remove(snode *child)
{
    snode *p = child->parent, *before = NULL;

    for (snode *c = p->child; c != child; c = c->next)
        before = c;
    *(before ? &before->next : &p->child) = child->next;
    if (p->last == child)
        p->last = before;
    p->n_child--;
    child->parent = NULL;
    child->next = NULL;
}

snode *stree_copy(arena *mem, const snode *v)
{
    snode *copy = arena_alloc(mem, 1, sizeof *copy);

    if (!copy)
        return NULL;
    *copy = *v;
    copy->parent = copy->next = copy->child = copy->last = NULL;
    copy->n_child = 0;
    copy->slot = NULL;
    copy->owner = NULL;
    for (const snode *c = v->child; c; c = c->next) {
        snode *k = stree_copy(mem, c);

        if (!k)
            return NULL;
        stree_attach(copy, k);
    }
    return copy;
}

/* ---- pointers ---- */

static size_t put_token(const snode *v, char *out, size_t cap)
{
    size_t n = 0, idx = 0;

    if (!v->key) {
        for (const snode *c = v->parent->child; c != v; c = c->next)
            idx++;
        return (size_t)snprintf(out, cap, "/%zu", idx);
    }
    for (size_t i = 0; i <= v->n_key && n + 3 < cap; i++) {
        char ch = i ? v->key[i - 1] : 0;

        if (ch == '~' || ch == '/') {
            out[n++] = '~';
            out[n++] = ch == '~' ? '0' : '1';
        } else {
            out[n++] = i ? ch : '/';
        }
    }
    out[n] = 0;
    return n;
}

void stree_pointer(const snode *v, char *out, size_t cap)
{
    const snode *path[JSON_MAX_DEPTH + 1];
    int depth = 0;
    size_t at = 0;

    out[0] = 0;
    for (; v->parent && depth <= JSON_MAX_DEPTH; v = v->parent)
        path[depth++] = v;
    while (depth > 0 && at + 4 < cap) {
        size_t n = put_token(path[--depth], out + at, cap - at);

        at += n < cap - at ? n : 0;
    }
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One step of a pointer, unescaped into out; false when it is too long. */
static bool next_token(const char **at, char *out, size_t cap, size_t *n)
{
    const char *s = *at + 1;

    for (*n = 0; *s && *s != '/'; (*n)++) {
        char c = *s++;

        if (*n + 1 >= cap)
            return false;
        if (c == '%' && hex_digit(s[0]) >= 0 && hex_digit(s[1]) >= 0) {
            c = (char)(hex_digit(s[0]) << 4 | hex_digit(s[1]));
            s += 2;
        }
        if (c == '~' && (*s == '0' || *s == '1'))
            c = *s++ == '0' ? '~' : '/';
        out[*n] = c;
    }
    out[*n] = 0;
    *at = s;
    return true;
}

static snode *child_named(const snode *v, const char *token, size_t n)
{
    size_t idx = 0;

    if (v->type == JSON_ARRAY) {
        for (size_t i = 0; i < n; i++) {
            if (token[i] < '0' || token[i] > '9' || n > 6)
                return NULL;
            idx = idx * 10 + (size_t)(token[i] - '0');
        }
        snode *c = n ? v->child : NULL;

        while (c && idx--)
            c = c->next;
        return c;
    }
    return v->type == JSON_OBJECT ? find_member(v, token, n) : NULL;
}

snode *stree_resolve(snode *root, const char *pointer)
{
    char token[512];
    size_t n;
    snode *v = root;

    while (v && *pointer) {
        if (*pointer != '/' || !next_token(&pointer, token, sizeof token, &n))
            return NULL;
        v = child_named(v, token, n);
    }
    return v;
}
