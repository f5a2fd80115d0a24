/* JSON Schema as the request side needs it: is it one, and the strict rewrite (spec recipe.md 2.3).
 *
 * Validity is that of the 2020-12 meta-schema, by a table of keywords and the shape of their
 * values; unknown keywords are allowed. What a schema means is the business of grammar. */
#include <math.h>
#include <string.h>

#include "recipe/recipe_internal.h"

typedef enum shape {
    SHAPE_SCHEMA,
    SHAPE_SCHEMAS,    /* a list of at least one */
    SHAPE_SCHEMA_MAP, /* an object of schemas */
    SHAPE_TYPE,
    SHAPE_STRINGS, /* a list of different strings */
    SHAPE_STRINGS_MAP,
    SHAPE_ARRAY,
    SHAPE_STRING,
    SHAPE_BOOL,
    SHAPE_NUMBER,
    SHAPE_POSITIVE,
    SHAPE_COUNT /* an integer from 0 */
} shape;

static const struct {
    const char *key;
    shape shape;
} keywords[] = {
    {"type", SHAPE_TYPE},
    {"properties", SHAPE_SCHEMA_MAP},
    {"patternProperties", SHAPE_SCHEMA_MAP},
    {"$defs", SHAPE_SCHEMA_MAP},
    {"definitions", SHAPE_SCHEMA_MAP},
    {"dependentSchemas", SHAPE_SCHEMA_MAP},
    {"items", SHAPE_SCHEMA},
    {"additionalProperties", SHAPE_SCHEMA},
    {"unevaluatedProperties", SHAPE_SCHEMA},
    {"unevaluatedItems", SHAPE_SCHEMA},
    {"propertyNames", SHAPE_SCHEMA},
    {"contains", SHAPE_SCHEMA},
    {"not", SHAPE_SCHEMA},
    {"if", SHAPE_SCHEMA},
    {"then", SHAPE_SCHEMA},
    {"else", SHAPE_SCHEMA},
    {"allOf", SHAPE_SCHEMAS},
    {"anyOf", SHAPE_SCHEMAS},
    {"oneOf", SHAPE_SCHEMAS},
    {"prefixItems", SHAPE_SCHEMAS},
    {"required", SHAPE_STRINGS},
    {"dependentRequired", SHAPE_STRINGS_MAP},
    {"enum", SHAPE_ARRAY},
    {"examples", SHAPE_ARRAY},
    {"title", SHAPE_STRING},
    {"description", SHAPE_STRING},
    {"pattern", SHAPE_STRING},
    {"format", SHAPE_STRING},
    {"$id", SHAPE_STRING},
    {"$ref", SHAPE_STRING},
    {"$schema", SHAPE_STRING},
    {"$comment", SHAPE_STRING},
    {"uniqueItems", SHAPE_BOOL},
    {"deprecated", SHAPE_BOOL},
    {"readOnly", SHAPE_BOOL},
    {"writeOnly", SHAPE_BOOL},
    {"minimum", SHAPE_NUMBER},
    {"maximum", SHAPE_NUMBER},
    {"exclusiveMinimum", SHAPE_NUMBER},
    {"exclusiveMaximum", SHAPE_NUMBER},
    {"multipleOf", SHAPE_POSITIVE},
    {"minLength", SHAPE_COUNT},
    {"maxLength", SHAPE_COUNT},
    {"minItems", SHAPE_COUNT},
    {"maxItems", SHAPE_COUNT},
    {"minProperties", SHAPE_COUNT},
    {"maxProperties", SHAPE_COUNT},
    {"minContains", SHAPE_COUNT},
    {"maxContains", SHAPE_COUNT},
};

/* "VALUE is not ...", VALUE as compact JSON, cut when long. Returns false. */
static bool wrong(reading *rd, const jtree *t, const char *what, const char **why)
{
    str text = {0};

    jtree_print(t, JTREE_COMPACT, &text);
    *why = take_printf(rd, "%.*s %s", text.len > 200 ? 200 : (int)text.len, str_text(&text), what);
    str_fini(&text);
    return false;
}

static bool valid(reading *rd, const jtree *t, const char **why);

static bool each_valid(reading *rd, const jtree *t, json_type type, const char **why)
{
    if (t->type != type)
        return wrong(rd, t,
                     type == JSON_ARRAY ? "is not of type \"array\"" : "is not of type \"object\"",
                     why);
    for (const jtree *v = t->child; v; v = v->next)
        if (!valid(rd, v, why))
            return false;
    return true;
}

static bool type_word(const jtree *t)
{
    static const char *const words[] = {"string", "number", "integer", "boolean",
                                        "object", "array",  "null",    NULL};

    return word_index(t, words) >= 0;
}

static bool type_valid(reading *rd, const jtree *t, const char **why)
{
    bool ok = type_word(t);

    if (t->type == JSON_ARRAY && t->n > 0) {
        ok = true;
        for (const jtree *v = t->child; v; v = v->next)
            ok = ok && type_word(v);
    }
    return ok ||
           wrong(rd, t, "is not valid under any of the schemas listed in the 'anyOf' keyword", why);
}

static bool strings_valid(reading *rd, const jtree *t, const char **why)
{
    if (t->type != JSON_ARRAY)
        return wrong(rd, t, "is not of type \"array\"", why);
    for (const jtree *v = t->child; v; v = v->next)
        if (v->type != JSON_STRING)
            return wrong(rd, v, "is not of type \"string\"", why);
    return true;
}

static bool strings_map_valid(reading *rd, const jtree *t, const char **why)
{
    if (t->type != JSON_OBJECT)
        return wrong(rd, t, "is not of type \"object\"", why);
    for (const jtree *v = t->child; v; v = v->next)
        if (!strings_valid(rd, v, why))
            return false;
    return true;
}

static bool number_valid(reading *rd, const jtree *t, shape s, const char **why)
{
    double v;

    if (t->type != JSON_NUMBER)
        return wrong(rd, t,
                     s == SHAPE_COUNT ? "is not of type \"integer\"" : "is not of type \"number\"",
                     why);
    v = jtree_real(t);
    if (s == SHAPE_POSITIVE && v <= 0)
        return wrong(rd, t, "is less than or equal to the minimum of 0", why);
    if (s == SHAPE_COUNT && v != floor(v))
        return wrong(rd, t, "is not of type \"integer\"", why);
    if (s == SHAPE_COUNT && v < 0)
        return wrong(rd, t, "is less than the minimum of 0", why);
    return true;
}

static bool value_valid(reading *rd, const jtree *t, shape s, const char **why)
{
    switch (s) {
    case SHAPE_SCHEMA:
        return valid(rd, t, why);
    case SHAPE_SCHEMAS:
        if (t->type == JSON_ARRAY && t->n == 0)
            return wrong(rd, t, "has less than 1 item", why);
        return each_valid(rd, t, JSON_ARRAY, why);
    case SHAPE_SCHEMA_MAP:
        return each_valid(rd, t, JSON_OBJECT, why);
    case SHAPE_TYPE:
        return type_valid(rd, t, why);
    case SHAPE_STRINGS:
        return strings_valid(rd, t, why);
    case SHAPE_STRINGS_MAP:
        return strings_map_valid(rd, t, why);
    case SHAPE_ARRAY:
        return t->type == JSON_ARRAY || wrong(rd, t, "is not of type \"array\"", why);
    case SHAPE_STRING:
        return t->type == JSON_STRING || wrong(rd, t, "is not of type \"string\"", why);
    case SHAPE_BOOL:
        return t->type == JSON_BOOL || wrong(rd, t, "is not of type \"boolean\"", why);
    case SHAPE_NUMBER:
    case SHAPE_POSITIVE:
    case SHAPE_COUNT:
        break;
    }
    return number_valid(rd, t, s, why);
}

/* The depth of trees is bounded, so is this recursion. */
static bool valid(reading *rd, const jtree *t, const char **why)
{
    if (t->type == JSON_BOOL)
        return true;
    if (t->type != JSON_OBJECT)
        return wrong(rd, t, "is not of types \"boolean\", \"object\"", why);
    for (const jtree *v = t->child; v; v = v->next) {
        size_t i = 0;

        while (i < ARRAY_LEN(keywords) && !json_key_is(v->key, v->n_key, keywords[i].key))
            i++;
        /* Lists of schemas under "items" are those of drafts before 2020-12. */
        if (i < ARRAY_LEN(keywords) && keywords[i].shape == SHAPE_SCHEMA && v->type == JSON_ARRAY &&
            json_key_is(v->key, v->n_key, "items") && !rd->strict)
            continue;
        if (i < ARRAY_LEN(keywords) && !value_valid(rd, v, keywords[i].shape, why))
            return false;
    }
    return true;
}

bool schema_valid(reading *rd, const jtree *t, const char **why)
{
    *why = NULL;
    return valid(rd, t, why);
}

/* ---- strict ---- */

typedef struct rewrite {
    reading *rd;
    const char *what;
} rewrite;

/* A copy of v, as a member of a new container. */
static jtree *clone(rewrite *w, const jtree *v)
{
    jtree *c = take_memory(w->rd, 1, sizeof *c);

    if (c) {
        *c = *v;
        c->next = NULL;
    }
    return c;
}

static const jtree *node(rewrite *w, const jtree *t, bool top);

/* Rewrite every member of a list or an object of schemas. */
static const jtree *nodes(rewrite *w, const jtree *t)
{
    jtree *out = clone(w, t);
    const jtree **at;

    if (!out)
        return NULL;
    out->child = NULL;
    at = &out->child;
    for (const jtree *v = t->child; v; v = v->next) {
        const jtree *schema = node(w, v, false);
        jtree *c = schema ? clone(w, schema) : NULL;

        if (!c)
            return NULL;
        c->key = v->key;
        c->n_key = v->n_key;
        *at = c;
        at = &c->next;
    }
    return out;
}

static bool type_has(const jtree *type, const char *want)
{
    if (jtree_is(type, want))
        return true;
    if (type && type->type == JSON_ARRAY)
        for (const jtree *v = type->child; v; v = v->next)
            if (jtree_is(v, want))
                return true;
    return false;
}

static bool check_required(rewrite *w, const jtree *required, const jtree *properties)
{
    size_t n = properties ? properties->n : 0;

    if (!required)
        return true;
    for (const jtree *v = required->child; v; v = v->next)
        if (!jtree_find(properties, v->text, v->n))
            return convert_fail(w->rd, "Required property '%s' not found in object", v->text);
    return required->n == n ||
           convert_fail(w->rd, "Required properties must match all properties in the object");
}

static bool check_object(rewrite *w, const jtree *t, bool top)
{
    const jtree *properties = jtree_get(t, "properties");

    if (is_true(jtree_get(t, "additionalProperties")))
        return convert_fail(w->rd, "additionalProperties should not be true");
    if (!top && (!properties || properties->n == 0))
        return convert_fail(w->rd, "An object with no properties is not allowed.");
    return check_required(w, jtree_get(t, "required"), properties);
}

/* All keys of the properties as a list. */
static const jtree *all_keys(rewrite *w, const jtree *properties)
{
    jtree *list = take_memory(w->rd, 1, sizeof *list);
    const jtree **at;

    if (!list)
        return NULL;
    list->type = JSON_ARRAY;
    at = &list->child;
    for (const jtree *v = properties ? properties->child : NULL; v; v = v->next, list->n++) {
        jtree *name = take_memory(w->rd, 1, sizeof *name);

        if (!name)
            return NULL;
        name->type = JSON_STRING;
        name->text = v->key;
        name->n = v->n_key;
        *at = name;
        at = &name->next;
    }
    return list;
}

static const jtree *no(rewrite *w)
{
    jtree *f = take_memory(w->rd, 1, sizeof *f);

    if (f)
        f->type = JSON_BOOL;
    return f;
}

/* What becomes of one keyword: copied, rewritten, or (*drop) left out. */
static const jtree *keyword(rewrite *w, const jtree *v, bool *drop)
{
    static const char *const kept[] = {
        "type",       "$ref",    "enum",    "const",  "default",          "description",
        "pattern",    "minimum", "maximum", "format", "exclusiveMinimum", "exclusiveMaximum",
        "multipleOf", NULL};
    static const char *const formats[] = {"email", "hostname", "ipv4", "ipv6", "uuid", NULL};
    bool defs =
        json_key_is(v->key, v->n_key, "$defs") || json_key_is(v->key, v->n_key, "definitions");

    *drop = false;
    if (json_key_is(v->key, v->n_key, "properties") || json_key_is(v->key, v->n_key, "anyOf"))
        return nodes(w, v);
    if (json_key_is(v->key, v->n_key, "items"))
        return v->type == JSON_ARRAY ? nodes(w, v) : node(w, v, false);
    /* The recipe drops definitions and with them what $ref means: nested models of real clients. */
    if (defs)
        return nodes(w, v);
    if (json_key_is(v->key, v->n_key, "format") && word_index(v, formats) < 0) {
        convert_fail(w->rd, "%s: unsupported format '%.*s'", w->what, v->n > 60 ? 60 : (int)v->n,
                     v->text);
        return NULL;
    }
    for (int i = 0; kept[i]; i++)
        if (json_key_is(v->key, v->n_key, kept[i]))
            return v;
    *drop = true;
    return v;
}

static bool put(rewrite *w, jtree *out, const jtree ***at, const char *key, size_t n_key,
                const jtree *value)
{
    jtree *c = value ? clone(w, value) : NULL;

    if (!c)
        return false;
    c->key = key;
    c->n_key = n_key;
    **at = c;
    *at = &c->next;
    out->n++;
    return true;
}

/* Closed objects with all properties required; other nodes keep their known keywords. */
static const jtree *node(rewrite *w, const jtree *t, bool top)
{
    bool object = type_has(jtree_get(t, "type"), "object"), closed = false, required = false;
    const jtree *properties = jtree_get(t, "properties");
    jtree *out = take_memory(w->rd, 1, sizeof *out);
    const jtree **at;

    if (!out)
        return NULL;
    if (!jtree_get(t, "type") && !jtree_get(t, "anyOf") && !jtree_get(t, "$ref")) {
        convert_fail(w->rd, "%s: one of `type`, `anyOf`, `$ref` field is required", w->what);
        return NULL;
    }
    if (object && !check_object(w, t, top))
        return NULL;
    out->type = JSON_OBJECT;
    at = &out->child;
    for (const jtree *v = t->child; v; v = v->next) {
        const jtree *value;
        bool drop = false;

        if (object && json_key_is(v->key, v->n_key, "additionalProperties")) {
            value = no(w);
            closed = true;
        } else if (object && json_key_is(v->key, v->n_key, "required")) {
            value = all_keys(w, properties);
            required = true;
        } else {
            value = keyword(w, v, &drop);
        }
        if (!value || (!drop && !put(w, out, &at, v->key, v->n_key, value)))
            return NULL;
    }
    if (object && !closed && !put(w, out, &at, "additionalProperties", 20, no(w)))
        return NULL;
    if (object && !required && !put(w, out, &at, "required", 8, all_keys(w, properties)))
        return NULL;
    return out;
}

const jtree *schema_strict(reading *rd, const jtree *t, const char *what, const char *top,
                           bool may_be_empty)
{
    rewrite w = {.rd = rd, .what = what};

    if (rd->strict)
        return schema_typed(rd, t, what, top, may_be_empty);
    if (jtree_get(t, "type") && !type_has(jtree_get(t, "type"), "object")) {
        convert_fail(rd, "%s", top);
        return NULL;
    }
    return node(&w, t, true);
}
