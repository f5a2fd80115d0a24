/* Shapes of JSON objects by table. See recipe_internal.h. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "recipe/recipe_internal.h"

const char *const thinking_words[] = {"adaptive", "enabled", "disabled", NULL};
const char *const effort_words[] = {"none",  "minimal", "low", "medium", "high",
                                    "xhigh", "ultra",   "max", NULL};
const char *const detail_words[] = {"low", "high", "original", "auto", NULL};

bool out_of_memory(reading *rd)
{
    return recipe_fail(rd->e, 503, "no memory for a request");
}

void *take_memory(reading *rd, size_t count, size_t size)
{
    void *p = arena_alloc(rd->mem, count ? count : 1, size);

    if (!p)
        out_of_memory(rd);
    return p;
}

const char *take_str(reading *rd, str *s, size_t *n)
{
    char *copy = str_ok(s) ? arena_strndup(rd->mem, str_text(s), s->len) : NULL;

    *n = s->len;
    str_fini(s);
    if (!copy)
        out_of_memory(rd);
    return copy;
}

const char *take_printf(reading *rd, const char *fmt, ...)
{
    char text[400], *copy;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    copy = arena_strdup(rd->mem, text);
    if (!copy)
        out_of_memory(rd);
    return copy;
}

bool is_true(const jtree *t)
{
    return t && t->type == JSON_BOOL && t->yes;
}

static void put_place(const place *at, str *out)
{
    if (!at)
        return;
    put_place(at->in, out);
    if (at->text && *at->text)
        str_printf(out, "%s%s", out->len ? "." : "", at->text);
    if (at->has_idx)
        str_printf(out, "[%zu]", at->idx);
}

static void note_place(recipe_error *e, const str *where)
{
    if (!e->status && where->len < sizeof e->place)
        snprintf(e->place, sizeof e->place, "%s", str_text(where));
}

bool parse_fail(reading *rd, const place *at, const char *fmt, ...)
{
    char text[300];
    str where = {0};
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    put_place(at, &where);
    note_place(rd->e, &where);
    recipe_fail(rd->e, 400, "%s: %s", where.len ? str_text(&where) : "request body", text);
    rd->e->parse = true;
    str_fini(&where);
    return false;
}

/* Some of the recipe's texts name the place; others are of the member that is being read. */
static void note_field(reading *rd, const char *text)
{
    char name[sizeof rd->e->place];
    str where = {0};
    int n = 0;

    if (sscanf(text, "Invalid '%63[^']'%n", name, &n) == 1 && n > 0)
        str_puts(&where, name);
    else
        put_place(&rd->at, &where);
    note_place(rd->e, &where);
    str_fini(&where);
}

bool reading_at(reading *rd, const char *member)
{
    rd->at = (place){.text = member};
    return true;
}

bool reading_item(reading *rd, const char *member, size_t idx)
{
    rd->at = (place){.text = member, .idx = idx, .has_idx = true};
    return true;
}

bool convert_fail(reading *rd, const char *fmt, ...)
{
    char text[sizeof rd->e->message];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    note_field(rd, text);
    return recipe_fail(rd->e, 400, "%s", text);
}

int word_index(const jtree *t, const char *const *words)
{
    for (int i = 0; t && words[i]; i++)
        if (jtree_is(t, words[i]))
            return i;
    return -1;
}

static bool unknown_word(reading *rd, const place *at, const jtree *t, const char *const *words)
{
    str list = {0};

    for (int i = 0; words[i]; i++)
        str_printf(&list, "%s%s", i ? ", " : "", words[i]);
    parse_fail(rd, at, "\"%.*s\" is not one of %s", t->n > 40 ? 40 : (int)t->n, t->text,
               str_text(&list));
    str_fini(&list);
    return false;
}

static bool all_strings(const jtree *t)
{
    for (const jtree *v = t->child; v; v = v->next)
        if (v->type != JSON_STRING)
            return false;
    return true;
}

/* Is t of the kind? NULL or what it must be. */
static const char *wrong_kind(const field *f, const jtree *t)
{
    switch (f->kind) {
    case FIELD_STRING:
    case FIELD_WORD:
        return t->type == JSON_STRING ? NULL : "must be a string";
    case FIELD_BOOL:
        return t->type == JSON_BOOL ? NULL : "must be true or false";
    case FIELD_REAL:
        return t->type == JSON_NUMBER ? NULL : "must be a number";
    case FIELD_UINT:
        return jtree_is_uint(t, f->max) ? NULL : "must be a non-negative integer in its range";
    case FIELD_ARRAY:
        return t->type == JSON_ARRAY ? NULL : "must be a list";
    case FIELD_OBJECT:
        return t->type == JSON_OBJECT ? NULL : "must be an object";
    case FIELD_STRINGS:
        return t->type == JSON_ARRAY && all_strings(t) ? NULL : "must be a list of strings";
    case FIELD_TEXT:
        return t->type == JSON_STRING || t->type == JSON_ARRAY ? NULL
                                                               : "must be a string or a list";
    case FIELD_ANY:
        break;
    }
    return NULL;
}

/* 1.0 and 1e3 are integers to many clients' languages: such a number as an integer, else t. */
static const jtree *as_integer(reading *rd, const jtree *t)
{
    jtree *n;
    int64_t v;

    if (t->type != JSON_NUMBER || t->kind != JTREE_REAL || !jtree_whole(t, &v))
        return t;
    n = take_memory(rd, 1, sizeof *n);
    if (!n)
        return NULL;
    *n = *t;
    n->kind = JTREE_I64;
    n->i64 = v;
    return n;
}

/* In mode STRICT the types have been checked (types.c): what is of the wrong kind here belongs to
 * another variant of its object, and is as good as absent. */
static bool check_field(reading *rd, const field *f, const place *at, const jtree **t)
{
    const place here = {.text = f->key, .in = at};
    const char *wrong;

    if (f->kind == FIELD_UINT && !rd->strict) {
        *t = as_integer(rd, *t);
        if (!*t)
            return false;
    }
    wrong = wrong_kind(f, *t);
    if (rd->strict && (wrong || (f->kind == FIELD_WORD && word_index(*t, f->words) < 0))) {
        *t = NULL;
        return true;
    }
    if (wrong)
        return parse_fail(rd, &here, "%s", wrong);
    if (f->kind == FIELD_WORD && word_index(*t, f->words) < 0)
        return unknown_word(rd, &here, *t, f->words);
    return true;
}

bool fields_read(reading *rd, const jtree *t, const place *at, const field *fields, size_t n,
                 const jtree **out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = NULL;
    if (t->type != JSON_OBJECT)
        return parse_fail(rd, at, "must be an object");
    for (const jtree *v = t->child; v; v = v->next) {
        size_t i = 0;

        while (i < n && !json_key_is(v->key, v->n_key, fields[i].key))
            i++;
        if (i == n || (rd->strict && (fields[i].flags & FIELD_CLIENT)))
            continue;
        if (v->type != JSON_NULL || (fields[i].flags & FIELD_NULL))
            out[i] = v;
    }
    for (size_t i = 0; i < n; i++) {
        const place here = {.text = fields[i].key, .in = at};

        if (out[i] && out[i]->type != JSON_NULL && !check_field(rd, &fields[i], at, &out[i]))
            return false;
        if (!out[i] && (fields[i].flags & FIELD_REQUIRED))
            return parse_fail(rd, &here, "is missing");
    }
    return true;
}
