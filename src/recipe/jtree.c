/* Trees are built by recursion (json_read bounds the depth) and live in the caller's arena. */
#include "recipe/jtree.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"

/* From this many members on, keys are found by a map. */
#define MANY_KEYS ((size_t)16)

typedef struct builder {
    json_read r;
    arena *mem;
    size_t left;         /* values that may still be read */
    jtree_wanted wanted; /* members of the outermost object; NULL = all */
    const void *ctx;
    di_status *st;
} builder;

static jtree *read_value(builder *b);

static jtree *new_node(builder *b, json_type type)
{
    jtree *t;

    if (b->left == 0) {
        json_fail(&b->r, b->st, "more than %d values", JTREE_MAX_VALUES);
        return NULL;
    }
    b->left--;
    t = arena_alloc(b->mem, 1, sizeof *t);
    if (!t)
        di_fail(b->st, DI_E_NOMEM, "no memory to read %s", b->r.name);
    else
        t->type = type;
    return t;
}

static char *copy(builder *b, const char *s, size_t n)
{
    char *c = arena_strndup(b->mem, s, n);

    if (!c)
        di_fail(b->st, DI_E_NOMEM, "no memory to read %s", b->r.name);
    return c;
}

static jtree *read_text(builder *b)
{
    const char *s;
    size_t n;
    jtree *t = new_node(b, JSON_STRING);

    if (!t || json_string(&b->r, &s, &n, b->st) != DI_OK)
        return NULL;
    t->text = copy(b, s, n);
    t->n = n;
    return t->text ? t : NULL;
}

/* An integer of s[0..n) that fits into 64 bits. "-0" is none: it becomes -0.0. */
static bool integer(const char *s, size_t n, jtree *t)
{
    bool minus = n > 0 && *s == '-';
    uint64_t v = 0;

    for (size_t i = minus; i < n; i++) {
        unsigned digit = (unsigned)(s[i] - '0');

        if (digit > 9 || v > (UINT64_MAX - digit) / 10)
            return false;
        v = v * 10 + digit;
    }
    if (minus && (v == 0 || v > (uint64_t)1 << 63))
        return false;
    t->kind = !minus && v > INT64_MAX ? JTREE_U64 : JTREE_I64;
    if (t->kind == JTREE_U64)
        t->u64 = v;
    else
        t->i64 = minus ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

static jtree *read_number(builder *b)
{
    const char *from = b->r.at;
    jtree *t = new_node(b, JSON_NUMBER);
    double v;

    if (!t || json_number(&b->r, &v, b->st) != DI_OK)
        return NULL;
    if (!integer(from, (size_t)(b->r.at - from), t)) {
        t->kind = JTREE_REAL;
        t->real = v;
    }
    return t;
}

static jtree *read_array(builder *b)
{
    jtree *t = new_node(b, JSON_ARRAY), *v;
    const jtree **at;

    if (!t || json_array(&b->r, b->st) != DI_OK)
        return NULL;
    for (at = &t->child; json_item(&b->r); at = &v->next, t->n++) {
        v = read_value(b);
        if (!v)
            return NULL;
        *at = v;
    }
    return t;
}

/* The keys of an object while it is read: few are searched, many are mapped to their place. */
typedef struct keys {
    map *index;
    jtree **node;
    size_t n, cap;
} keys;

static jtree *find_key(const keys *k, const char *key, size_t n)
{
    uint32_t at;

    if (k->index)
        return map_find(k->index, key, n, &at) ? k->node[at] : NULL;
    for (size_t i = 0; i < k->n; i++)
        if (k->node[i]->n_key == n && memcmp(k->node[i]->key, key, n) == 0)
            return k->node[i];
    return NULL;
}

static bool index_keys(keys *k)
{
    k->index = map_new(4 * MANY_KEYS);
    for (size_t i = 0; k->index && i < k->n; i++)
        if (map_insert(k->index, k->node[i]->key, k->node[i]->n_key, (uint32_t)i) < 0)
            return false;
    return k->index != NULL;
}

static bool add_key(keys *k, jtree *v)
{
    if (k->n == k->cap) {
        size_t cap = k->cap ? k->cap * 2 : MANY_KEYS;
        jtree **more = mem_try_realloc(k->node, cap, sizeof *more);

        if (!more)
            return false;
        k->node = more;
        k->cap = cap;
    }
    k->node[k->n++] = v;
    if (k->index)
        return map_insert(k->index, v->key, v->n_key, (uint32_t)(k->n - 1)) >= 0;
    return k->n < MANY_KEYS || index_keys(k);
}

/* The value of one member, whose key has been read: entered, or in the place of an earlier one. */
static bool read_member(builder *b, keys *k, const char *key, size_t n, const jtree ***at)
{
    char *name = copy(b, key, n);
    jtree *v = name ? read_value(b) : NULL, *old;

    if (!v)
        return false;
    v->key = name;
    v->n_key = n;
    old = find_key(k, name, n);
    if (old) {
        const jtree *next = old->next;

        *old = *v;
        old->next = next;
        return true;
    }
    if (!add_key(k, v)) {
        di_fail(b->st, DI_E_NOMEM, "no memory to read %s", b->r.name);
        return false;
    }
    **at = v;
    *at = &v->next;
    return true;
}

static jtree *read_object(builder *b)
{
    jtree *t = new_node(b, JSON_OBJECT);
    keys k = {0};
    const jtree **at = NULL;
    const char *key;
    size_t n;
    bool ok = t && json_object(&b->r, b->st) == DI_OK;

    if (ok)
        at = &t->child;
    while (ok && json_key(&b->r, &key, &n)) {
        if (b->wanted && b->r.depth == 1 && !b->wanted(b->ctx, key, n))
            ok = json_skip(&b->r, b->st) == DI_OK;
        else
            ok = read_member(b, &k, key, n, &at);
    }
    if (ok)
        t->n = k.n;
    map_free(k.index);
    mem_free(k.node);
    return ok ? t : NULL;
}

static jtree *read_value(builder *b)
{
    json_type type = json_peek(&b->r);
    jtree *t;

    switch (type) {
    case JSON_STRING:
        return read_text(b);
    case JSON_NUMBER:
        return read_number(b);
    case JSON_ARRAY:
        return read_array(b);
    case JSON_OBJECT:
        return read_object(b);
    case JSON_BOOL:
        t = new_node(b, type);
        return t && json_bool(&b->r, &t->yes, b->st) == DI_OK ? t : NULL;
    case JSON_NULL:
    case JSON_NONE:
        break;
    }
    t = new_node(b, JSON_NULL);
    return t && json_null(&b->r, b->st) == DI_OK ? t : NULL;
}

const jtree *jtree_parse_some(const char *text, size_t n, arena *mem, const char *name,
                              jtree_wanted wanted, const void *ctx, di_status *st)
{
    builder b = {.mem = mem, .left = JTREE_MAX_VALUES, .wanted = wanted, .ctx = ctx, .st = st};
    const jtree *t;

    json_open(&b.r, text, n, name);
    t = read_value(&b);
    if (t && json_end(&b.r, st) != DI_OK)
        t = NULL;
    json_close(&b.r);
    return t;
}

const jtree *jtree_parse(const char *text, size_t n, arena *mem, const char *name, di_status *st)
{
    return jtree_parse_some(text, n, mem, name, NULL, NULL, st);
}

const jtree *jtree_find(const jtree *t, const char *key, size_t n)
{
    if (!t || t->type != JSON_OBJECT)
        return NULL;
    for (const jtree *v = t->child; v; v = v->next)
        if (v->n_key == n && memcmp(v->key, key, n) == 0)
            return v;
    return NULL;
}

const jtree *jtree_get(const jtree *t, const char *key)
{
    return jtree_find(t, key, strlen(key));
}

bool jtree_is(const jtree *t, const char *want)
{
    return t && t->type == JSON_STRING && json_key_is(t->text, t->n, want);
}

double jtree_real(const jtree *t)
{
    switch (t->kind) {
    case JTREE_I64:
        return (double)t->i64;
    case JTREE_U64:
        return (double)t->u64;
    case JTREE_REAL:
        break;
    }
    return t->real;
}

bool jtree_is_uint(const jtree *t, uint64_t max)
{
    return t->type == JSON_NUMBER && t->kind != JTREE_REAL &&
           (t->kind == JTREE_U64 || t->i64 >= 0) && t->u64 <= max;
}

bool jtree_whole(const jtree *t, int64_t *out)
{
    const double exact = 9007199254740992; /* 2^53 */

    if (t->type != JSON_NUMBER || t->kind == JTREE_U64)
        return false;
    if (t->kind == JTREE_REAL) {
        if (!(fabs(t->real) <= exact) || t->real != floor(t->real))
            return false;
        *out = (int64_t)t->real;
        return true;
    }
    *out = t->i64;
    return true;
}

static bool same_members(const jtree *a, const jtree *b)
{
    const jtree *y = b->child;

    if (a->n != b->n)
        return false;
    for (const jtree *x = a->child; x; x = x->next) {
        if (a->type == JSON_OBJECT)
            y = jtree_find(b, x->key, x->n_key);
        if (!y || !jtree_equal(x, y))
            return false;
        y = y->next;
    }
    return true;
}

bool jtree_equal(const jtree *a, const jtree *b)
{
    if (a->type != b->type)
        return false;
    switch (a->type) {
    case JSON_BOOL:
        return a->yes == b->yes;
    case JSON_NUMBER:
        return a->kind == b->kind && a->u64 == b->u64;
    case JSON_STRING:
        return a->n == b->n && memcmp(a->text, b->text, a->n) == 0;
    case JSON_ARRAY:
    case JSON_OBJECT:
        return same_members(a, b);
    case JSON_NULL:
    case JSON_NONE:
        break;
    }
    return true;
}

/* ---- printing ---- */

void jtree_escape(const char *text, size_t n, str *out)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    size_t done = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        const char *found;

        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        str_append(out, text + done, i - done);
        done = i + 1;
        found = c ? strchr(from, c) : NULL;
        if (found)
            str_printf(out, "\\%c", to[found - from]);
        else
            str_printf(out, "\\u%04x", c);
    }
    str_append(out, text + done, n - done);
}

void jtree_quote(const char *text, size_t n, str *out)
{
    str_putc(out, '"');
    jtree_escape(text, n, out);
    str_putc(out, '"');
}

/* Shortest digits of v > 0 that read back, 0-terminated; returns the decimal exponent of the first.
 */
static int shortest(double v, char digits[20])
{
    char text[40];
    int prec = 1, n = 0, exp10;

    /* "%.*e" has a decimal point that depends on the locale: only digits are taken. */
    do
        snprintf(text, sizeof text, "%.*e", prec - 1, v);
    while (strtod(text, NULL) != v && ++prec <= 17);
    exp10 = atoi(strchr(text, 'e') + 1);
    for (const char *s = text; *s != 'e'; s++)
        if (*s >= '0' && *s <= '9')
            digits[n++] = *s;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = 0;
    return exp10;
}

/* A double with a point or an exponent always: Python's repr, or the compact style, which differs
 * in the exponent of small numbers. */
static void print_real(double v, jtree_style style, str *out)
{
    char digits[20];
    int exp10, n;

    if (signbit(v))
        str_putc(out, '-');
    v = fabs(v);
    exp10 = v == 0 ? (digits[0] = '0', digits[1] = 0, 0) : shortest(v, digits);
    n = (int)strlen(digits);
    if (exp10 >= 16 || exp10 < (style == JTREE_PYTHON ? -4 : -5)) {
        str_putc(out, digits[0]);
        if (n > 1)
            str_printf(out, ".%s", digits + 1);
        str_printf(out, style == JTREE_PYTHON ? "e%c%02d" : "e%c%d", exp10 < 0 ? '-' : '+',
                   exp10 < 0 ? -exp10 : exp10);
    } else if (exp10 < 0) {
        str_printf(out, "0.%.*s%s", -exp10 - 1, "0000", digits);
    } else if (n <= exp10 + 1) {
        str_printf(out, "%s%.*s.0", digits, exp10 + 1 - n, "0000000000000000");
    } else {
        str_printf(out, "%.*s.%s", exp10 + 1, digits, digits + exp10 + 1);
    }
}

static void print_number(const jtree *t, jtree_style style, str *out)
{
    switch (t->kind) {
    case JTREE_I64:
        str_printf(out, "%lld", (long long)t->i64);
        break;
    case JTREE_U64:
        str_printf(out, "%llu", (unsigned long long)t->u64);
        break;
    case JTREE_REAL:
        print_real(t->real, style, out);
        break;
    }
}

void jtree_print(const jtree *t, jtree_style style, str *out)
{
    bool object = t->type == JSON_OBJECT;

    switch (t->type) {
    case JSON_BOOL:
        str_puts(out, t->yes ? "true" : "false");
        break;
    case JSON_NUMBER:
        print_number(t, style, out);
        break;
    case JSON_STRING:
        jtree_quote(t->text, t->n, out);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        str_putc(out, object ? '{' : '[');
        for (const jtree *v = t->child; v; v = v->next) {
            if (object) {
                jtree_quote(v->key, v->n_key, out);
                str_puts(out, style == JTREE_COMPACT ? ":" : ": ");
            }
            jtree_print(v, style, out);
            if (v->next)
                str_puts(out, style == JTREE_COMPACT ? "," : ", ");
        }
        str_putc(out, object ? '}' : ']');
        break;
    case JSON_NULL:
    case JSON_NONE:
        str_puts(out, "null");
        break;
    }
}
