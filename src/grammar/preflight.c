/* Checks of a schema that the library leaves out, before it sees it (docs/constraints.md).
 *
 * Every schema that can be reached from the root is visited once: by its place or by a $ref. Then
 * those that no finite value fits are found: "productive" is the least set that contains what has a
 * scalar, an empty object or an empty array among its values, and what needs productive parts only.
 * The rest becomes false, so that a model never walks into a value without an end. */
#include <math.h>
#include <string.h>

#include "base/json_write.h"
#include "grammar/grammar_internal.h"

#define MAX_MIN 100000.0  /* a least count above is refused */
#define MAX_MAX 1000000.0 /* a largest count above is no bound */

typedef enum keyword_kind {
    KW_SCHEMA,
    KW_SCHEMAS,    /* a list that is not empty */
    KW_SCHEMA_MAP, /* name -> schema */
    KW_PATTERN_MAP,
    KW_ITEMS, /* a schema, or a list of the older drafts */
    KW_TYPE,
    KW_MIN,
    KW_MAX,
    KW_NUMBER,
    KW_FACTOR, /* a number, not 0 */
    KW_PATTERN,
    KW_FORMAT,
    KW_REF,
    KW_ENUM,
    KW_REQUIRED,
    KW_UNSUPPORTED
} keyword_kind;

static const struct keyword {
    const char *name;
    keyword_kind kind;
} keywords[] = {
    {"type", KW_TYPE},
    {"properties", KW_SCHEMA_MAP},
    {"required", KW_REQUIRED},
    {"items", KW_ITEMS},
    {"enum", KW_ENUM},
    {"$ref", KW_REF},
    {"additionalProperties", KW_SCHEMA},
    {"anyOf", KW_SCHEMAS},
    {"allOf", KW_SCHEMAS},
    {"oneOf", KW_SCHEMAS},
    {"$defs", KW_SCHEMA_MAP},
    {"definitions", KW_SCHEMA_MAP},
    {"prefixItems", KW_SCHEMAS},
    {"additionalItems", KW_SCHEMA},
    {"patternProperties", KW_PATTERN_MAP},
    {"pattern", KW_PATTERN},
    {"format", KW_FORMAT},
    {"minLength", KW_MIN},
    {"minItems", KW_MIN},
    {"minProperties", KW_MIN},
    {"maxLength", KW_MAX},
    {"maxItems", KW_MAX},
    {"maxProperties", KW_MAX},
    {"minimum", KW_NUMBER},
    {"maximum", KW_NUMBER},
    {"exclusiveMinimum", KW_NUMBER},
    {"exclusiveMaximum", KW_NUMBER},
    {"multipleOf", KW_FACTOR},
    {"not", KW_UNSUPPORTED},
    {"if", KW_UNSUPPORTED},
    {"then", KW_UNSUPPORTED},
    {"else", KW_UNSUPPORTED},
    {"contains", KW_UNSUPPORTED},
    {"minContains", KW_UNSUPPORTED},
    {"maxContains", KW_UNSUPPORTED},
    {"uniqueItems", KW_UNSUPPORTED},
    {"propertyNames", KW_UNSUPPORTED},
    {"dependentRequired", KW_UNSUPPORTED},
    {"dependentSchemas", KW_UNSUPPORTED},
    {"dependencies", KW_UNSUPPORTED},
    {"unevaluatedItems", KW_UNSUPPORTED},
    {"unevaluatedProperties", KW_UNSUPPORTED},
    {"$dynamicRef", KW_UNSUPPORTED},
    {"$recursiveRef", KW_UNSUPPORTED},
};

/* A schema to visit, and what it refers to. */
typedef struct unit {
    struct unit *next;
    snode *v, *ref;
    struct unit *referrers, *next_referrer; /* units with a $ref to this one */
    bool queued;
} unit;

typedef struct walk {
    const preflight *p;
    snode *root;
    unit *first, **end;
    int n_units;
    bool nested_ids; /* "$id" below the root: "#" may mean something else there */
} walk;

/* ---- small things ---- */

static di_code fault_at(const walk *w, const snode *v, grammar_fault kind, const char *keyword,
                        const char *what, di_status *st)
{
    char pointer[256];

    stree_pointer(v, pointer, sizeof pointer);
    return fault(w->p->detail, st, kind, pointer, keyword, "\"%s\" at \"%s\": %s", keyword, pointer,
                 what);
}

static void warn_at(const walk *w, const snode *v, const char *keyword)
{
    char pointer[256];

    stree_pointer(v, pointer, sizeof pointer);
    warning_add(w->p->warnings, pointer, keyword);
}

static double number_of(const snode *v)
{
    json_read r;
    double x = NAN;

    if (v->type != JSON_NUMBER)
        return NAN;
    json_open(&r, v->text, v->n_text, "number");
    if (json_number(&r, &x, NULL) != DI_OK)
        x = v->text[0] == '-' ? -INFINITY : INFINITY; /* beyond a double */
    json_close(&r);
    return x;
}

static bool is_schema(const snode *v)
{
    return v->type == JSON_OBJECT || v->type == JSON_BOOL;
}

static di_code add_unit(walk *w, snode *v, const char *keyword, di_status *st)
{
    unit *u;

    if (!is_schema(v))
        return fault_at(w, v, GRAMMAR_FAULT_SYNTAX, keyword, "a schema is an object or a boolean",
                        st);
    if (v->mark)
        return DI_OK;
    v->mark = 1;
    u = arena_alloc(w->p->mem, 1, sizeof *u);
    if (!u)
        return di_fail(st, DI_E_NOMEM, "no memory to check a schema");
    u->v = v;
    v->owner = u;
    *w->end = u;
    w->end = &u->next;
    w->n_units++;
    return DI_OK;
}

/* ---- keywords ---- */

static di_code check_type(const walk *w, const snode *v, di_status *st)
{
    static const char *const types[] = {"string", "object",  "array", "integer",
                                        "number", "boolean", "null"};
    const snode *t = v->type == JSON_ARRAY ? v->child : v;

    for (; t; t = v->type == JSON_ARRAY ? t->next : NULL) {
        size_t i = 0;

        while (i < ARRAY_LEN(types) && !stree_is(t, types[i]))
            i++;
        if (i == ARRAY_LEN(types))
            return fault_at(w, t, GRAMMAR_FAULT_SYNTAX, "type", "there is no such type", st);
    }
    return DI_OK;
}

static di_code check_count(const walk *w, snode *v, keyword_kind kind, di_status *st)
{
    double x = number_of(v);

    if (!(x >= 0) || (x < 1e15 && x != floor(x)))
        return fault_at(w, v, GRAMMAR_FAULT_SYNTAX, v->key, "a count is a whole number from 0 on",
                        st);
    if (kind == KW_MIN && x > MAX_MIN)
        return fault_at(w, v, GRAMMAR_FAULT_LIMIT, v->key, "at most 100,000 is possible", st);
    if (kind == KW_MAX && x > MAX_MAX) {
        warn_at(w, v, v->key);
        stree_remove(v);
    }
    return DI_OK;
}

static di_code check_pattern(const walk *w, const snode *at, const char *re, size_t n,
                             const char *keyword, di_status *st)
{
    grammar_fault kind;
    int64_t offset;
    const char *why;

    if (memchr(re, 0, n))
        return fault_at(w, at, GRAMMAR_FAULT_SYNTAX, keyword, "a zero byte in a pattern", st);
    if (pattern_check(re, n, &kind, &offset, &why) == DI_OK)
        return DI_OK;
    if (w->p->detail)
        w->p->detail->offset = offset;
    return fault_at(w, at, kind, keyword, why, st);
}

/* Whether the library takes a pattern, where that is tried (preflight.probe): it lacks features
 * that JavaScript has. What it refuses is an error, or taken out of the schema. */
static di_code try_pattern(const walk *w, snode *at, const char *re, size_t n, const char *keyword,
                           di_status *st)
{
    str schema = {0};
    json_write j = {.out = &schema};
    grammar_detail detail = {.offset = -1};
    di_status refused = {0};
    di_code rc = DI_OK;

    if (!w->p->probe)
        return DI_OK;
    jw_object(&j);
    jw_key(&j, "type");
    jw_cstr(&j, "string");
    jw_key(&j, "pattern");
    jw_string(&j, re, n);
    jw_end(&j);
    if (!str_ok(&schema)) {
        rc = di_fail(st, DI_E_NOMEM, "no memory to check a schema");
    } else if (w->p->probe(w->p->probe_arg, str_text(&schema), &detail, &refused) != DI_OK) {
        if (w->p->strict) {
            rc = fault_at(w, at, detail.fault, keyword, refused.message, st);
        } else {
            warn_at(w, at, keyword);
            stree_remove(at);
        }
    }
    str_fini(&schema);
    return rc;
}

/* Other formats are annotations by the standard. */
static di_code check_format(const walk *w, snode *v, di_status *st)
{
    static const char *const formats[] = {"date-time", "time", "date", "duration", "email",
                                          "hostname",  "ipv4", "ipv6", "uuid",     "uri"};

    if (v->type != JSON_STRING)
        return fault_at(w, v, GRAMMAR_FAULT_SYNTAX, "format", "a format is a string", st);
    for (size_t i = 0; i < ARRAY_LEN(formats); i++)
        if (stree_is(v, formats[i]))
            return DI_OK;
    warn_at(w, v, "format");
    stree_remove(v);
    return DI_OK;
}

static di_code check_ref(walk *w, unit *u, const snode *v, di_status *st)
{
    di_code rc;

    if (v->type != JSON_STRING)
        return fault_at(w, v, GRAMMAR_FAULT_SYNTAX, "$ref", "a reference is a string", st);
    if (v->text[0] != '#' || w->nested_ids)
        return DI_OK; /* inside the document or not: the library knows */
    if (v->text[1] && v->text[1] != '/')
        return DI_OK; /* an anchor */
    u->ref = stree_resolve(w->root, v->text + 1);
    if (!u->ref)
        return fault_at(w, v, GRAMMAR_FAULT_SYNTAX, "$ref", "there is nothing at this reference",
                        st);
    rc = add_unit(w, u->ref, "$ref", st);
    if (rc == DI_OK) {
        unit *to = u->ref->owner;

        u->next_referrer = to->referrers;
        to->referrers = u;
    }
    return rc;
}

static di_code check_required(const walk *w, const snode *v, di_status *st)
{
    bool ok = v->type == JSON_ARRAY;

    for (const snode *c = v->child; c && ok; c = c->next)
        ok = c->type == JSON_STRING && !memchr(c->text, 0, c->n_text);
    return ok ? DI_OK
              : fault_at(w, v, GRAMMAR_FAULT_SYNTAX, "required", "a list of names is needed", st);
}

static di_code add_children(walk *w, snode *v, di_status *st)
{
    for (snode *c = v->child; c; c = c->next) {
        di_code rc = add_unit(w, c, v->key, st);

        if (rc != DI_OK)
            return rc;
    }
    return DI_OK;
}

static di_code check_map(walk *w, snode *v, bool patterns, di_status *st)
{
    if (v->type != JSON_OBJECT)
        return fault_at(w, v, GRAMMAR_FAULT_SYNTAX, v->key, "an object of schemas is needed", st);
    for (snode *c = patterns ? v->child : NULL, *next; c; c = next) {
        di_code rc = check_pattern(w, c, c->key, c->n_key, v->key, st);

        next = c->next;
        if (rc == DI_OK)
            rc = try_pattern(w, c, c->key, c->n_key, v->key, st);
        if (rc != DI_OK)
            return rc;
    }
    return add_children(w, v, st);
}

/* A keyword that the library lacks but that says nothing here. */
static bool says_nothing(const snode *v)
{
    const snode *s = v->parent, *type = stree_get(v, "type");
    bool empty = (v->type == JSON_OBJECT && v->n_child == 0) || (v->type == JSON_BOOL && v->flag);

    if (strcmp(v->key, "uniqueItems") == 0)
        return v->type == JSON_BOOL && !v->flag;
    if (strcmp(v->key, "if") == 0)
        return !stree_get(s, "then") && !stree_get(s, "else");
    if (strcmp(v->key, "then") == 0 || strcmp(v->key, "else") == 0)
        return !stree_get(s, "if");
    if (strcmp(v->key, "minContains") == 0 || strcmp(v->key, "maxContains") == 0)
        return !stree_get(s, "contains");
    if (strcmp(v->key, "propertyNames") == 0)
        return empty || (v->n_child == 1 && stree_is(type, "string"));
    if (strncmp(v->key, "unevaluated", 11) == 0)
        return empty;
    if (strncmp(v->key, "depend", 6) == 0)
        return v->type == JSON_OBJECT && v->n_child == 0;
    return false;
}

static di_code check_unsupported(const walk *w, snode *v, di_status *st)
{
    if (!says_nothing(v)) {
        if (w->p->strict)
            return fault_at(w, v, GRAMMAR_FAULT_UNSUPPORTED, v->key,
                            "this keyword cannot be enforced", st);
        warn_at(w, v, v->key);
    }
    stree_remove(v);
    return DI_OK;
}

static di_code check_keyword(walk *w, unit *u, snode *v, keyword_kind kind, di_status *st)
{
    di_code rc;
    double x;

    switch (kind) {
    case KW_SCHEMA:
        return add_unit(w, v, v->key, st);
    case KW_SCHEMAS:
        if (v->type != JSON_ARRAY || (!v->child && strcmp(v->key, "prefixItems") != 0))
            return fault_at(w, v, GRAMMAR_FAULT_SYNTAX, v->key, "a list of schemas is needed", st);
        return add_children(w, v, st);
    case KW_SCHEMA_MAP:
    case KW_PATTERN_MAP:
        return check_map(w, v, kind == KW_PATTERN_MAP, st);
    case KW_ITEMS:
        return v->type == JSON_ARRAY ? add_children(w, v, st) : add_unit(w, v, v->key, st);
    case KW_TYPE:
        return check_type(w, v, st);
    case KW_MIN:
    case KW_MAX:
        return check_count(w, v, kind, st);
    case KW_NUMBER:
    case KW_FACTOR:
        x = number_of(v);
        if (isnan(x) || (kind == KW_FACTOR && x == 0))
            return fault_at(w, v, GRAMMAR_FAULT_SYNTAX, v->key, "a number is needed", st);
        return DI_OK;
    case KW_PATTERN:
        if (v->type != JSON_STRING)
            return fault_at(w, v, GRAMMAR_FAULT_SYNTAX, v->key, "a pattern is a string", st);
        rc = check_pattern(w, v, v->text, v->n_text, v->key, st);
        return rc == DI_OK ? try_pattern(w, v, v->text, v->n_text, v->key, st) : rc;
    case KW_FORMAT:
        return check_format(w, v, st);
    case KW_REF:
        return check_ref(w, u, v, st);
    case KW_ENUM:
        if (v->type != JSON_ARRAY || !v->child)
            return fault_at(w, v, GRAMMAR_FAULT_SYNTAX, v->key, "a list of values is needed", st);
        return DI_OK;
    case KW_REQUIRED:
        return check_required(w, v, st);
    case KW_UNSUPPORTED:
        break;
    }
    return check_unsupported(w, v, st);
}

static di_code visit(walk *w, unit *u, di_status *st)
{
    for (size_t i = 0; i < ARRAY_LEN(keywords); i++) {
        snode *v = stree_get(u->v, keywords[i].name);
        di_code rc = v ? check_keyword(w, u, v, keywords[i].kind, st) : DI_OK;

        if (rc != DI_OK)
            return rc;
    }
    return DI_OK;
}

/* ---- finite values ---- */

static bool has_type(const snode *types, const char *name)
{
    if (!types || stree_is(types, name))
        return true;
    for (const snode *t = types->child; t; t = t->next)
        if (stree_is(t, name))
            return true;
    return false;
}

static bool needs_none(const snode *v)
{
    return !v || v->mark2 || !v->mark;
}

static bool required_ok(const snode *s)
{
    const snode *required = stree_get(s, "required"), *props = stree_get(s, "properties");
    const snode *rest = stree_get(s, "additionalProperties"), *p;
    bool ok = true;

    for (const snode *r = required ? required->child : NULL; r && ok; r = r->next) {
        p = stree_get(props, r->text);
        ok = p ? p->mark2 : stree_get(s, "patternProperties") || needs_none(rest);
    }
    return ok;
}

static bool array_ok(const snode *s)
{
    const snode *min = stree_get(s, "minItems"), *first = stree_get(s, "prefixItems");
    const snode *items = stree_get(s, "items");
    double n = min ? number_of(min) : 0;

    if (!first && items && items->type == JSON_ARRAY)
        first = items;
    for (const snode *v = first ? first->child : NULL; v && n > 0; v = v->next, n--)
        if (!needs_none(v))
            return false;
    return n <= 0 || items == first || needs_none(items);
}

/* Whether some finite value fits, as far as what is known now tells. */
static bool is_productive(const unit *u)
{
    const snode *s = u->v, *types = stree_get(s, "type"), *any = NULL;
    static const char *const scalars[] = {"string", "number", "integer", "boolean", "null"};
    static const char *const choices[] = {"anyOf", "oneOf"};

    if (s->type == JSON_BOOL)
        return s->flag;
    if (u->ref && !u->ref->mark2)
        return false;
    for (const snode *v = (any = stree_get(s, "allOf")) ? any->child : NULL; v; v = v->next)
        if (!v->mark2)
            return false;
    for (size_t i = 0; i < ARRAY_LEN(choices); i++) {
        bool some = !(any = stree_get(s, choices[i]));

        for (const snode *v = any ? any->child : NULL; v && !some; v = v->next)
            some = v->mark2;
        if (!some)
            return false;
    }
    if (stree_get(s, "enum") || stree_get(s, "const"))
        return true;
    for (size_t i = 0; i < ARRAY_LEN(scalars); i++)
        if (has_type(types, scalars[i]))
            return true;
    return (has_type(types, "object") && required_ok(s)) ||
           (has_type(types, "array") && array_ok(s));
}

/* Units that are looked at again. */
typedef struct queue {
    unit **at; /* [n_units]: each stands in it once at most */
    int n;
} queue;

static void enqueue(queue *q, unit *u)
{
    if (!u || u->queued || u->v->mark2)
        return;
    u->queued = true;
    q->at[q->n++] = u;
}

/* Schema around a node. */
static unit *unit_around(const snode *v)
{
    do
        v = v->parent;
    while (v && !v->owner);
    return v ? v->owner : NULL;
}

/* Mark what is productive: everything is looked at once, inner schemas first, and again when
 * something that it needs has become productive. */
static di_code find_productive(walk *w, di_status *st)
{
    queue q = {.at = arena_alloc(w->p->mem, (size_t)w->n_units, sizeof(unit *))};

    if (!q.at)
        return di_fail(st, DI_E_NOMEM, "no memory to check a schema");
    for (unit *u = w->first; u; u = u->next)
        enqueue(&q, u);
    while (q.n > 0) {
        unit *u = q.at[--q.n];

        u->queued = false;
        if (!is_productive(u))
            continue;
        u->v->mark2 = 1;
        enqueue(&q, unit_around(u->v));
        for (unit *r = u->referrers; r; r = r->next_referrer)
            enqueue(&q, r);
    }
    return DI_OK;
}

/* ---- the whole ---- */

static bool has_nested_id(const snode *v, bool root)
{
    const snode *id = root ? NULL : stree_get(v, "$id");

    if (id && id->type == JSON_STRING)
        return true;
    for (const snode *c = v->child; c; c = c->next)
        if (has_nested_id(c, false))
            return true;
    return false;
}

di_code preflight_check(const preflight *p, snode *root, di_status *st)
{
    walk w = {.p = p, .root = root, .nested_ids = has_nested_id(root, true)};
    snode *own = stree_get(root, "x-guidance");
    di_code rc;

    w.end = &w.first;
    if (own)
        stree_remove(own);
    DI_TRY(add_unit(&w, root, "schema", st));
    for (unit *u = w.first; u; u = u->next)
        DI_TRY(visit(&w, u, st));
    DI_TRY(find_productive(&w, st));
    if (!root->mark2) {
        rc = fault_at(&w, root, GRAMMAR_FAULT_UNSAT, "schema", "no finite value fits", st);
        goto done;
    }
    for (unit *u = w.first; u; u = u->next)
        if (!u->v->mark2) {
            u->v->type = JSON_BOOL;
            u->v->flag = false;
            u->v->child = u->v->last = NULL;
            u->v->n_child = 0;
        }
done:
    return rc;
}

/* Our settings come last: the library takes the member out by moving the last one to its place, and
 * the order of members is the order of properties. */
void preflight_write(const preflight *p, const snode *root, bool lenient, str *out)
{
    str body = {0};

    if (root->type == JSON_OBJECT)
        stree_write(root, &body);
    else
        str_puts(&body, "{}");
    if (body.len)
        str_append(out, body.data, body.len - 1);
    str_puts(out, body.len > 2 ? ", \"x-guidance\": {" : "\"x-guidance\": {");
    if (lenient)
        str_puts(out, "\"lenient\": true, ");
    if (p->compact)
        str_puts(out, "\"whitespace_flexible\": false, \"item_separator\": \",\", "
                      "\"key_separator\": \":\"");
    else
        str_printf(out, "\"whitespace_pattern\": \"[\\\\x20\\\\x0A\\\\x0D\\\\x09]{1,%d}\"",
                   p->max_whitespace);
    str_puts(out, ", \"json_allow_general_unicode_escapes\": true}}");
    out->failed = out->failed || !str_ok(&body);
    str_fini(&body);
}

di_code preflight_schema(const preflight *p, const char *text, size_t n, bool lenient, str *out,
                         di_status *st)
{
    di_status read = {0};
    snode *root;
    di_code rc = stree_read(p->mem, text, n, "schema", &root, &read);

    if (rc == DI_E_NOMEM)
        return di_fail(st, rc, "%s", read.message);
    if (rc != DI_OK)
        return fault(p->detail, st, GRAMMAR_FAULT_SYNTAX, "", "", "%s", read.message);
    rc = preflight_check(p, root, st);
    if (rc == DI_OK)
        preflight_write(p, root, lenient, out);
    return rc;
}
