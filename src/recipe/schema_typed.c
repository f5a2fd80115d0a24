/* The strict rewrite of a schema as the released recipe does it, mode STRICT (spec recipe.md 2.3).
 *
 * A schema is read as one of nine kinds; each keeps its own keywords in an order of its own and
 * drops all others, whatever they hold. Found by asking the package; the words of its errors are
 * those of its JSON reader and are not copied. */
#include <string.h>

#include "recipe/recipe_internal.h"

typedef enum value_kind {
    VALUE_STRING,
    VALUE_NUMBER,
    VALUE_INTEGER, /* of 64 bits */
    VALUE_FORMAT,
    VALUE_STRINGS
} value_kind;

typedef struct keyword {
    const char *key; /* NULL ends a table */
    value_kind kind;
} keyword;

static const keyword of_any[] = {{"description", VALUE_STRING}, {0}};
static const keyword of_string[] = {{"description", VALUE_STRING},
                                    {"pattern", VALUE_STRING},
                                    {"format", VALUE_FORMAT},
                                    {"enum", VALUE_STRINGS},
                                    {0}};
static const keyword of_number[] = {{"description", VALUE_STRING},
                                    {"const", VALUE_NUMBER},
                                    {"default", VALUE_NUMBER},
                                    {"minimum", VALUE_NUMBER},
                                    {"maximum", VALUE_NUMBER},
                                    {"exclusiveMinimum", VALUE_NUMBER},
                                    {"exclusiveMaximum", VALUE_NUMBER},
                                    {"multipleOf", VALUE_NUMBER},
                                    {0}};
static const keyword of_integer[] = {{"description", VALUE_STRING},
                                     {"const", VALUE_INTEGER},
                                     {"default", VALUE_INTEGER},
                                     {"minimum", VALUE_INTEGER},
                                     {"maximum", VALUE_INTEGER},
                                     {"exclusiveMinimum", VALUE_INTEGER},
                                     {"exclusiveMaximum", VALUE_INTEGER},
                                     {"multipleOf", VALUE_INTEGER},
                                     {0}};

/* A node while it is written. */
typedef struct writer {
    reading *rd;
    const char *what; /* begins a message */
    jtree *out;
    const jtree **at;
} writer;

static const jtree *typed(reading *rd, const jtree *t, const char *what, bool may_be_empty);

static bool wrong(writer *w, const char *key)
{
    return convert_fail(w->rd, "%s: `%s` has a value of another type", w->what, key);
}

/* Append a copy of v as the member `key`; v NULL: an error is set already. */
static bool put(writer *w, const char *key, const jtree *v)
{
    jtree *c = v ? take_memory(w->rd, 1, sizeof *c) : NULL;

    if (!c)
        return false;
    *c = *v;
    c->next = NULL;
    c->key = key;
    c->n_key = key ? strlen(key) : 0;
    *w->at = c;
    w->at = &c->next;
    w->out->n++;
    return true;
}

static bool begin(writer *w, json_type type)
{
    w->out = take_memory(w->rd, 1, sizeof *w->out);
    if (!w->out)
        return false;
    w->out->type = type;
    w->at = &w->out->child;
    return true;
}

static bool fits(const jtree *v, value_kind kind)
{
    static const char *const formats[] = {"email", "hostname", "ipv4", "ipv6", "uuid", NULL};

    switch (kind) {
    case VALUE_STRING:
        return v->type == JSON_STRING;
    case VALUE_NUMBER:
        return v->type == JSON_NUMBER;
    case VALUE_INTEGER:
        return v->type == JSON_NUMBER && v->kind == JTREE_I64;
    case VALUE_FORMAT:
        return word_index(v, formats) >= 0;
    case VALUE_STRINGS:
        break;
    }
    if (v->type != JSON_ARRAY)
        return false;
    for (const jtree *s = v->child; s; s = s->next)
        if (s->type != JSON_STRING)
            return false;
    return true;
}

/* The keywords of a kind, null aside. */
static bool put_keywords(writer *w, const jtree *t, const keyword *k)
{
    for (; k->key; k++) {
        const jtree *v = jtree_get(t, k->key);

        if (!v || v->type == JSON_NULL)
            continue;
        if (!fits(v, k->kind))
            return wrong(w, k->key);
        if (!put(w, k->key, v))
            return false;
    }
    return true;
}

/* A list or an object of schemas. */
static const jtree *typed_all(writer *w, const jtree *t, json_type type)
{
    writer all = {.rd = w->rd, .what = w->what};

    if (!begin(&all, type))
        return NULL;
    for (const jtree *v = t ? t->child : NULL; v; v = v->next)
        if (!put(&all, v->key, typed(w->rd, v, w->what, false)))
            return NULL;
    return all.out;
}

/* "required" names all properties, or is absent. */
static bool check_required(writer *w, const jtree *required, const jtree *properties)
{
    size_t n = properties ? properties->n : 0;

    if (!required)
        return true;
    if (!fits(required, VALUE_STRINGS))
        return wrong(w, "required");
    for (const jtree *v = required->child; v; v = v->next)
        if (!jtree_find(properties, v->text, v->n))
            return convert_fail(w->rd, "Required property '%s' not found in object", v->text);
    return required->n == n ||
           convert_fail(w->rd, "Required properties must match all properties in the object");
}

static const jtree *keys_of(writer *w, const jtree *properties)
{
    writer all = {.rd = w->rd, .what = w->what};

    if (!begin(&all, JSON_ARRAY))
        return NULL;
    for (const jtree *v = properties ? properties->child : NULL; v; v = v->next) {
        const jtree name = {.type = JSON_STRING, .text = v->key, .n = v->n_key};

        if (!put(&all, NULL, &name))
            return NULL;
    }
    return all.out;
}

/* The member, NULL when absent or null. */
static const jtree *given(const jtree *t, const char *key)
{
    const jtree *v = jtree_get(t, key);

    return v && v->type != JSON_NULL ? v : NULL;
}

static bool put_object(writer *w, const jtree *t, bool may_be_empty)
{
    static const jtree no = {.type = JSON_BOOL};
    const jtree *properties = given(t, "properties"), *open = given(t, "additionalProperties"),
                *all;

    if (properties && properties->type != JSON_OBJECT)
        return wrong(w, "properties");
    if (open && open->type != JSON_BOOL)
        return wrong(w, "additionalProperties");
    all = typed_all(w, properties, JSON_OBJECT);
    if (!all)
        return false;
    if (is_true(open))
        return convert_fail(w->rd, "additionalProperties should not be true");
    if (!may_be_empty && all->n == 0)
        return convert_fail(w->rd, "An object with no properties is not allowed.");
    return check_required(w, given(t, "required"), properties) && put(w, "properties", all) &&
           put(w, "additionalProperties", &no) && put(w, "required", keys_of(w, properties)) &&
           put_keywords(w, t, of_any);
}

static bool put_array(writer *w, const jtree *t)
{
    const jtree *items = jtree_get(t, "items");

    if (!items)
        return convert_fail(w->rd, "%s: missing field `items`", w->what);
    return put(w, "items", typed(w->rd, items, w->what, false)) && put_keywords(w, t, of_any);
}

static bool put_type(writer *w, const jtree *t, const jtree *type, bool may_be_empty)
{
    static const char *const words[] = {"object",  "string", "number", "integer",
                                        "boolean", "array",  "null",   NULL};
    static const char *const scalars[] = {"string", "number", "integer", "boolean", "null", NULL};

    if (type->type == JSON_ARRAY) {
        for (const jtree *v = type->child; v; v = v->next)
            if (word_index(v, scalars) < 0)
                return wrong(w, "type");
        return put(w, "type", type) && put_keywords(w, t, of_any);
    }
    switch (put(w, "type", type) ? word_index(type, words) : -2) {
    case -2:
        return false;
    case 0:
        return put_object(w, t, may_be_empty);
    case 1:
        return put_keywords(w, t, of_string);
    case 2:
        return put_keywords(w, t, of_number);
    case 3:
        return put_keywords(w, t, of_integer);
    case 5:
        return put_array(w, t);
    case 4:
    case 6:
        return put_keywords(w, t, of_any);
    default:
        return wrong(w, "type");
    }
}

/* The depth of trees is bounded, so is this recursion. */
static const jtree *typed(reading *rd, const jtree *t, const char *what, bool may_be_empty)
{
    writer w = {.rd = rd, .what = what};
    const jtree *type = jtree_get(t, "type"), *any = jtree_get(t, "anyOf"),
                *ref = jtree_get(t, "$ref");
    bool ok;

    if (!begin(&w, JSON_OBJECT))
        return NULL;
    if (type)
        ok = put_type(&w, t, type, may_be_empty);
    else if (any)
        ok = any->type == JSON_ARRAY
                 ? put(&w, "anyOf", typed_all(&w, any, JSON_ARRAY)) && put_keywords(&w, t, of_any)
                 : wrong(&w, "anyOf");
    else if (ref)
        ok = ref->type == JSON_STRING ? put(&w, "$ref", ref) : wrong(&w, "$ref");
    else
        ok = convert_fail(rd, "%s: one of `type`, `anyOf`, `$ref` field is required", what);
    return ok ? w.out : NULL;
}

const jtree *schema_typed(reading *rd, const jtree *t, const char *what, const char *top,
                          bool may_be_empty)
{
    const jtree *out = typed(rd, t, what, may_be_empty);

    if (out && !jtree_is(jtree_get(t, "type"), "object")) {
        convert_fail(rd, "%s", top);
        return NULL;
    }
    return out;
}
