/* Tools -> Lark: the shape of DSML calls, V4.1 (docs/constraints.md).
 *
 *   start: "\n\n<" block                              required
 *   start: TEXT | TEXT_LT block                       auto: any text, and one block at its end
 *   block: D " calls>\n" ("<" call)+ "</" D " calls>"     D is the control token
 *   call:  D " invoke name=\"T\">\n" parameters "</" D " invoke>\n"
 *
 * Parameters stand in the order of the schema. A value that is a string is raw text and ends at
 * "</" and the control token only; every other value is JSON and a schema of the library. A
 * parameter of several types has one alternative for each of the two forms. */
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "grammar/grammar_internal.h"

#define MAX_TOOLS    1024
#define MAX_REF_HOPS 32

/* What a parameter may be: raw text (any, of some words, or matching terminals) and JSON values. */
typedef struct forms {
    bool any_string; /* free raw text */
    str words;       /* raw alternatives, as Lark strings with | between */
    str terminals;   /* raw terminals, with | between */
    str json;        /* JSON schemas, with | between, as Lark rules */
} forms;

typedef struct dsml {
    const preflight *p;
    str *out;
    str rules;      /* of tools and parameters */
    str values;     /* rules of JSON values; parameters with the same schema share one */
    map *known;     /* schema -> its rule */
    int32_t id;     /* of the control token */
    int n_terminal; /* names of terminals */
    int tool;       /* index */
    const char *name;
    snode *root; /* parameters of the tool */
} dsml;

/* ---- Lark text ---- */

/* A string literal. */
static void put_literal(str *s, const char *text, size_t n)
{
    str_putc(s, '"');
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c == '"' || c == '\\')
            str_printf(s, "\\%c", c);
        else if (c == '\n')
            str_puts(s, "\\n");
        else if (c < 0x20 || c == 0x7F)
            str_printf(s, "\\u%04x", c);
        else
            str_putc(s, (char)c);
    }
    str_putc(s, '"');
}

/* The inside of a regular expression between slashes. */
static void put_regex(str *s, const char *re, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (re[i] == '\\' && i + 1 < n) {
            str_putc(s, re[i++]);
            str_putc(s, re[i]);
        } else if (re[i] == '/') {
            str_puts(s, "\\/");
        } else if (re[i] == '\n') {
            str_puts(s, "\\n");
        } else {
            str_putc(s, re[i]);
        }
    }
}

static void put_alternative(str *s)
{
    if (s->len)
        str_puts(s, " | ");
}

/* ---- forms of a parameter ---- */

static void warn(dsml *d, const snode *v, const char *keyword)
{
    char pointer[256];

    stree_pointer(v, pointer, sizeof pointer);
    warning_add(d->p->warnings, pointer, keyword);
}

static di_code cannot(dsml *d, const snode *v, const char *keyword, di_status *st)
{
    char pointer[256];

    if (!d->p->strict) {
        warn(d, v, keyword);
        return DI_OK;
    }
    stree_pointer(v, pointer, sizeof pointer);
    return fault(d->p->detail, st, GRAMMAR_FAULT_UNSUPPORTED, pointer, keyword,
                 "tool \"%s\", \"%s\" at \"%s\": this cannot be enforced in the raw text of a "
                 "parameter",
                 d->name, keyword, pointer);
}

/* Raw text in one of the formats of the subset; NULL = none of them. */
static const char *format_regex(const snode *format)
{
#define DATE "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define HOST  "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    static const struct {
        const char *name, *regex;
    } formats[] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE "[tT]" TIME},
        {"ipv4", OCTET "(\\." OCTET "){3}"},
        {"uuid", "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"},
        {"hostname", HOST "(\\." HOST ")*"},
        {"email", "[a-zA-Z0-9._%+-]+@" HOST "(\\." HOST ")+"},
    };

    for (size_t i = 0; i < ARRAY_LEN(formats); i++)
        if (stree_is(format, formats[i].name))
            return formats[i].regex;
    return NULL;
}

/* The full-match form of a pattern, which is a search: only anchors at its ends are understood. */
static bool put_search(str *s, const char *re, size_t n)
{
    bool front = n > 0 && re[0] == '^', back = n > front && re[n - 1] == '$', in_class = false;
    int depth = 0;
    size_t end = back ? n - 1 : n;

    if (back && n > 1 && re[n - 2] == '\\')
        return false; /* an escaped dollar, or worse */
    for (size_t i = front; i < end; i++) {
        if (re[i] == '\\') {
            if (i + 1 < end && (re[i + 1] == 'b' || re[i + 1] == 'B'))
                return false;
            i++;
        } else if (in_class) {
            in_class = re[i] != ']';
        } else if (re[i] == '[') {
            in_class = true;
        } else if (re[i] == '(' || re[i] == ')') {
            depth += re[i] == '(' ? 1 : -1;
        } else if (re[i] == '^' || re[i] == '$' ||
                   (re[i] == '|' && depth == 0 && (front || back))) {
            return false;
        }
    }
    if (!front)
        str_puts(s, "(.|\\n)*");
    str_putc(s, '(');
    put_regex(s, re + front, end - front);
    str_putc(s, ')');
    if (!back)
        str_puts(s, "(.|\\n)*");
    return true;
}

static void put_part(str *s, const str *regex)
{
    str_puts(s, s->len ? " & /" : "/");
    str_append(s, regex->data, regex->len);
    str_putc(s, '/');
}

/* Terminal of a string schema: the text and the "</" behind it. */
static di_code add_string(dsml *d, const snode *s, forms *f, di_status *st)
{
    const snode *pattern = stree_get(s, "pattern"), *format = stree_get(s, "format");
    const snode *lo = stree_get(s, "minLength"), *hi = stree_get(s, "maxLength");
    str body = {0}, part = {0};
    di_code rc = DI_OK;

    if (lo || hi) {
        str_printf(&part, "(.|\\n){%s,%s}", lo ? lo->text : "0", hi ? hi->text : "");
        put_part(&body, &part);
    }
    str_clear(&part);
    if (pattern && put_search(&part, pattern->text, pattern->n_text))
        put_part(&body, &part);
    else if (pattern)
        DI_TRY(cannot(d, s, "pattern", st));
    str_clear(&part);
    if (format && format_regex(format)) {
        str_puts(&part, format_regex(format));
        put_part(&body, &part);
    } else if (format) {
        warn(d, s, "format");
    }
    if (!body.len) {
        f->any_string = true;
        goto done;
    }
    str_printf(&d->rules, "S%d: (%s) \"</\"\n", d->n_terminal, str_text(&body));
    put_alternative(&f->terminals);
    str_printf(&f->terminals, "S%d", d->n_terminal++);
done:
    str_fini(&body);
    str_fini(&part);
    return rc;
}

static bool refers(const snode *v)
{
    if (stree_get(v, "$ref"))
        return true;
    for (const snode *c = v->child; c; c = c->next)
        if (refers(c))
            return true;
    return false;
}

/* A schema that the library refuses: with its lenient mode, then as any value. */
static di_code fit_library(dsml *d, const snode *at, const snode *schema, str *text, di_status *st)
{
    const snode any = {.type = JSON_BOOL, .flag = true};
    grammar_detail detail = {.offset = -1};
    di_status refused = {0};
    di_code rc = d->p->probe(d->p->probe_arg, str_text(text), &detail, &refused);
    char pointer[256];

    if (rc == DI_OK)
        return rc;
    stree_pointer(at, pointer, sizeof pointer);
    if (d->p->strict || rc != DI_E_INVALID)
        return fault(d->p->detail, st, detail.fault, pointer, detail.keyword, "\"%s\": %s", pointer,
                     refused.message);
    warn(d, at, *detail.keyword ? detail.keyword : "schema");
    str_clear(text);
    preflight_write(d->p, schema, true, text);
    if (str_ok(text) && d->p->probe(d->p->probe_arg, str_text(text), NULL, NULL) == DI_OK)
        return DI_OK;
    str_clear(text);
    preflight_write(d->p, &any, false, text);
    return DI_OK;
}

/* A JSON value: the schema with the definitions that its references need. A reference to the root
 * finds a copy of it there. */
static di_code add_json(dsml *d, const snode *s, forms *f, di_status *st)
{
    static const char *const homes[] = {"$defs", "definitions"};
    static const char *const notes[] = {"title", "description", "default", "examples", "$comment"};
    snode *copy = stree_copy(d->p->mem, s), *home, *note;
    str text = {0};
    uint32_t rule;
    di_code rc;

    for (size_t i = 0; copy && refers(s) && i < ARRAY_LEN(homes); i++) {
        const snode *defs = stree_get(d->root, homes[i]);

        if (!defs || stree_get(copy, homes[i]))
            continue;
        home = stree_copy(d->p->mem, defs);
        if (!home)
            copy = NULL;
        else
            stree_attach(copy, home);
    }
    if (!copy)
        return di_fail(st, DI_E_NOMEM, "no memory to compile a tool");
    for (size_t i = 0; i < ARRAY_LEN(notes); i++)
        if ((note = stree_get(copy, notes[i])))
            stree_remove(note);
    preflight_write(d->p, copy, false, &text);
    rc = d->p->probe ? fit_library(d, s, copy, &text, st) : DI_OK;
    put_alternative(&f->json);
    if (!map_find(d->known, str_text(&text), text.len, &rule)) {
        rule = (uint32_t)d->n_terminal++;
        if (map_insert(d->known, str_text(&text), text.len, rule) < 0 && rc == DI_OK)
            rc = di_fail(st, DI_E_NOMEM, "no memory to compile a tool");
        str_printf(&d->values, "j%u: %%json %s\n", rule, str_text(&text));
    }
    str_printf(&f->json, "j%u", rule);
    d->values.failed = d->values.failed || !str_ok(&text);
    str_fini(&text);
    return rc;
}

/* Keywords beside which others say nothing about values. */
static bool is_annotation(const char *key)
{
    static const char *const names[] = {
        "title",     "description", "default",     "examples", "$comment", "deprecated", "readOnly",
        "writeOnly", "$defs",       "definitions", "$schema",  "$id",      "x-guidance"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(key, names[i]) == 0)
            return true;
    return false;
}

/* The only keyword of a schema that says something, or NULL. */
static const snode *only_keyword(const snode *s)
{
    const snode *only = NULL;

    for (const snode *c = s->child; c; c = c->next) {
        if (is_annotation(c->key))
            continue;
        if (only)
            return NULL;
        only = c;
    }
    return only;
}

static di_code add_forms(dsml *d, snode *s, forms *f, int hops, di_status *st);

/* Values of an enum or a const: strings are raw words. */
static di_code add_values(dsml *d, const snode *list, const snode *types, forms *f, di_status *st)
{
    snode *rest = stree_add(d->p->mem, NULL, JSON_OBJECT, NULL, NULL), *e, *copy;

    e = rest ? stree_add(d->p->mem, rest, JSON_ARRAY, "enum", NULL) : NULL;
    if (e && types) {
        copy = stree_copy(d->p->mem, types);
        if (!copy)
            return di_fail(st, DI_E_NOMEM, "no memory to compile a tool");
        stree_attach(rest, copy);
    }
    for (const snode *v = list; e && v; v = v->parent->type == JSON_ARRAY ? v->next : NULL) {
        if (v->type == JSON_STRING && (!types || stree_is(types, "string") || types->child)) {
            put_alternative(&f->words);
            put_literal(&f->words, v->text, v->n_text);
        } else if (v->type != JSON_STRING) {
            copy = stree_copy(d->p->mem, v);
            if (!copy)
                return di_fail(st, DI_E_NOMEM, "no memory to compile a tool");
            copy->key = NULL;
            stree_attach(e, copy);
        }
    }
    if (!e)
        return di_fail(st, DI_E_NOMEM, "no memory to compile a tool");
    return e->child ? add_json(d, rest, f, st) : DI_OK;
}

static const char *const other_types[] = {"object",  "array",   "number",
                                          "integer", "boolean", "null"};

static bool names_type(const snode *types, const char *name)
{
    bool found = !types || stree_is(types, name);

    for (const snode *t = types ? types->child : NULL; t && !found; t = t->next)
        found = stree_is(t, name);
    return found;
}

/* By "type": a string is raw text, what remains is JSON. */
static di_code add_typed(dsml *d, snode *s, forms *f, di_status *st)
{
    const snode *types = stree_get(s, "type");
    snode *rest, *list;
    di_code rc = DI_OK;

    if (!names_type(types, "string"))
        return add_json(d, s, f, st);
    rc = add_string(d, s, f, st);
    if (rc != DI_OK || (types && !types->child))
        return rc;
    rest = stree_copy(d->p->mem, s);
    list = rest ? stree_get(rest, "type") : NULL;
    if (list)
        stree_remove(list);
    list = rest ? stree_add(d->p->mem, rest, JSON_ARRAY, "type", NULL) : NULL;
    for (size_t i = 0; list && i < ARRAY_LEN(other_types); i++)
        if (names_type(types, other_types[i]) &&
            !stree_add(d->p->mem, list, JSON_STRING, NULL, other_types[i]))
            list = NULL;
    if (!list)
        return di_fail(st, DI_E_NOMEM, "no memory to compile a tool");
    return list->child ? add_json(d, rest, f, st) : DI_OK;
}

/* Whether a string may fit: if not, the whole schema is the library's. */
static bool may_be_string(dsml *d, const snode *s, int hops)
{
    static const char *const choices[] = {"anyOf", "oneOf"};
    const snode *v = stree_get(s, "const"), *ref = stree_get(s, "$ref");
    bool some;

    if (s->type == JSON_BOOL || hops == 0)
        return s->type != JSON_BOOL || s->flag;
    if (!names_type(stree_get(s, "type"), "string"))
        return false;
    if (v)
        return v->type == JSON_STRING;
    if ((v = stree_get(s, "enum"))) {
        for (v = v->child; v && v->type != JSON_STRING; v = v->next)
            ;
        return v != NULL;
    }
    if (ref && ref->type == JSON_STRING && ref->text[0] == '#') {
        const snode *to = stree_resolve(d->root, ref->text + 1);

        if (to && !may_be_string(d, to, hops - 1))
            return false;
    }
    if ((v = stree_get(s, "allOf")))
        for (v = v->child; v; v = v->next)
            if (!may_be_string(d, v, hops - 1))
                return false;
    for (size_t i = 0; i < ARRAY_LEN(choices); i++) {
        if (!(v = stree_get(s, choices[i])))
            continue;
        for (some = false, v = v->child; v && !some; v = v->next)
            some = may_be_string(d, v, hops - 1);
        if (!some)
            return false;
    }
    return true;
}

/* Several keywords together, and a string may fit: the text is free, other values are the
 * library's. */
static di_code add_mixed(dsml *d, snode *s, forms *f, di_status *st)
{
    snode *both = stree_add(d->p->mem, NULL, JSON_OBJECT, NULL, NULL), *list, *copy, *only;
    di_code rc = cannot(d, s, "allOf", st);

    if (rc != DI_OK)
        return rc;
    f->any_string = true;
    list = both ? stree_add(d->p->mem, both, JSON_ARRAY, "allOf", NULL) : NULL;
    copy = list ? stree_copy(d->p->mem, s) : NULL;
    only = copy ? stree_add(d->p->mem, NULL, JSON_OBJECT, NULL, NULL) : NULL;
    if (!only)
        return di_fail(st, DI_E_NOMEM, "no memory to compile a tool");
    copy->key = NULL;
    stree_attach(list, copy);
    stree_attach(list, only);
    list = stree_add(d->p->mem, only, JSON_ARRAY, "type", NULL);
    for (size_t i = 0; list && i < ARRAY_LEN(other_types); i++)
        if (!stree_add(d->p->mem, list, JSON_STRING, NULL, other_types[i]))
            list = NULL;
    return list ? add_json(d, both, f, st) : di_fail(st, DI_E_NOMEM, "no memory to compile a tool");
}

static di_code add_forms(dsml *d, snode *s, forms *f, int hops, di_status *st)
{
    const snode *only = only_keyword(s), *types = stree_get(s, "type"), *v;
    snode *to;
    di_code rc = DI_OK;

    if (s->type == JSON_BOOL && !s->flag)
        return DI_OK; /* no value fits */
    if (s->type == JSON_BOOL) {
        to = stree_add(d->p->mem, NULL, JSON_OBJECT, NULL, NULL);
        return to ? add_typed(d, to, f, st)
                  : di_fail(st, DI_E_NOMEM, "no memory to compile a tool");
    }
    if (!may_be_string(d, s, MAX_REF_HOPS))
        return add_json(d, s, f, st);
    if ((v = stree_get(s, "const")))
        return add_values(d, v, NULL, f, st);
    if ((v = stree_get(s, "enum")))
        return add_values(d, v->child, types, f, st);
    if (only && strcmp(only->key, "$ref") == 0 && hops > 0) {
        to = only->text[0] == '#' ? stree_resolve(d->root, only->text + 1) : NULL;
        if (to)
            return add_forms(d, to, f, hops - 1, st);
    }
    if (only && hops > 0 &&
        (strcmp(only->key, "anyOf") == 0 || strcmp(only->key, "oneOf") == 0 ||
         (strcmp(only->key, "allOf") == 0 && only->n_child == 1))) {
        for (to = only->child; to && rc == DI_OK; to = to->next)
            rc = add_forms(d, to, f, hops - 1, st);
        return rc;
    }
    if (stree_get(s, "$ref") || stree_get(s, "anyOf") || stree_get(s, "oneOf") ||
        stree_get(s, "allOf"))
        return add_mixed(d, s, f, st);
    return add_typed(d, s, f, st);
}

/* ---- parameters ---- */

/* Rule of one parameter; `name` is its Lark text, a literal or a terminal. */
static void put_parameter(dsml *d, const char *rule, const str *name, const forms *f)
{
    str *s = &d->rules;
    bool words = f->words.len > 0, text = f->any_string, own = f->terminals.len > 0;

    str_printf(s, "%s: \"<\" <[%d]> \" parameter name=\\\"\" %s (", rule, d->id, str_text(name));
    if (words || text || own) {
        str_puts(s, "\"\\\" string=\\\"true\\\">\" (");
        if (text) /* it covers the others */
            str_puts(s, "RAW");
        else if (own)
            str_puts(s, str_text(&f->terminals));
        if (words && !text)
            str_printf(s, "%s(%s) \"</\"", own ? " | " : "", str_text(&f->words));
        str_puts(s, ")");
    }
    if (f->json.len)
        str_printf(s, "%s\"\\\" string=\\\"false\\\">\" (%s) \"</\"",
                   words || text || own ? " | " : "", str_text(&f->json));
    str_printf(s, ") <[%d]> \" parameter>\\n\"\n", d->id);
}

static void forms_fini(forms *f)
{
    str_fini(&f->words);
    str_fini(&f->terminals);
    str_fini(&f->json);
}

/* One declared parameter; *empty: no value fits, there is no rule. */
static di_code declared(dsml *d, snode *schema, const char *rule, bool *empty, di_status *st)
{
    forms f = {0};
    str name = {0};
    di_code rc = add_forms(d, schema, &f, MAX_REF_HOPS, st);

    *empty = !f.any_string && !f.words.len && !f.terminals.len && !f.json.len;
    if (rc == DI_OK && !*empty) {
        put_literal(&name, schema->key, schema->n_key);
        put_parameter(d, rule, &name, &f);
    }
    str_fini(&name);
    forms_fini(&f);
    return rc;
}

/* Any name that is not declared. */
static void put_other_names(dsml *d, const snode *props)
{
    str_printf(&d->rules, "N%d: /[^\"<>\\n]{1,64}/", d->tool);
    for (const snode *p = props ? props->child : NULL; p; p = p->next) {
        str_puts(&d->rules, " & ~");
        put_literal(&d->rules, p->key, p->n_key);
    }
    str_putc(&d->rules, '\n');
}

static di_code other_parameters(dsml *d, const snode *props, snode *schema, const char *rule,
                                di_status *st)
{
    forms f = {0};
    str name = {0};
    di_code rc = add_forms(d, schema, &f, MAX_REF_HOPS, st);

    if (rc == DI_OK) {
        put_other_names(d, props);
        str_printf(&name, "N%d", d->tool);
        put_parameter(d, rule, &name, &f);
    }
    str_fini(&name);
    forms_fini(&f);
    return rc;
}

/* Mark what is required; names that are not declared become parameters of any value. */
static di_code declare_required(dsml *d, snode **props, di_status *st)
{
    const snode *list = stree_get(d->root, "required");
    const snode *rest = stree_get(d->root, "additionalProperties");

    for (const snode *r = list ? list->child : NULL; r; r = r->next) {
        snode *v = stree_get(*props, r->text);

        if (v) {
            v->needed = true;
            continue;
        }
        if (!*props)
            *props = stree_add(d->p->mem, d->root, JSON_OBJECT, "properties", NULL);
        v = rest ? stree_copy(d->p->mem, rest) : stree_add(d->p->mem, NULL, JSON_BOOL, NULL, NULL);
        if (!*props || !v)
            return di_fail(st, DI_E_NOMEM, "no memory to compile a tool");
        if (!rest)
            v->flag = true;
        v->needed = true;
        v->key = r->text;
        v->n_key = r->n_text;
        stree_attach(*props, v);
    }
    return DI_OK;
}

/* Rule "a<tool>": the parameters of a call. */
static di_code put_parameters(dsml *d, di_status *st)
{
    snode *props = stree_get(d->root, "properties"), *rest;
    bool declares = props != NULL, empty, some = false;
    str body = {0};
    char rule[40];
    int i = 0;
    di_code rc;

    DI_TRY(declare_required(d, &props, st));
    for (snode *p = props ? props->child : NULL; p; p = p->next, i++) {
        snprintf(rule, sizeof rule, "p%d_%d", d->tool, i);
        DI_TRY(declared(d, p, rule, &empty, st));
        if (!empty)
            str_printf(&body, p->needed ? " %s" : " (%s)?", rule);
        some = some || (p->needed && !empty);
    }
    rest = stree_get(d->root, "additionalProperties");
    if (!rest && !declares && (rest = stree_add(d->p->mem, NULL, JSON_BOOL, NULL, NULL)))
        rest->flag = true; /* an object that says nothing about its members */
    if (rest && (rest->type != JSON_BOOL || rest->flag)) {
        snprintf(rule, sizeof rule, "q%d", d->tool);
        DI_TRY(other_parameters(d, props, rest, rule, st));
        str_printf(&body, " (%s)*", rule);
    }
    /* without arguments there may be an empty line */
    str_printf(&d->rules, "a%d:%s%s\n", d->tool, body.len ? str_text(&body) : "",
               some       ? ""
               : body.len ? " | \"\\n\""
                          : " \"\\n\"?");
done:
    str_fini(&body);
    return rc;
}

/* ---- tools ---- */

static bool good_name(const snode *name)
{
    if (!name || name->type != JSON_STRING || name->n_text == 0 || name->n_text > 64)
        return false;
    for (size_t i = 0; i < name->n_text; i++) {
        char c = name->text[i];

        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
            !(c && strchr("_.:-", c)))
            return false;
    }
    return true;
}

static void put_call(dsml *d)
{
    str_printf(&d->rules,
               "t%d: <[%d]> \" invoke name=\\\"%s\\\">\\n\" a%d \"</\" <[%d]> \" "
               "invoke>\\n\"\n",
               d->tool, d->id, d->name, d->tool, d->id);
}

/* Parameters of a tool that cannot be compiled: any names, any values. */
static di_code free_parameters(dsml *d, const char *keyword, di_status *st)
{
    warning_add(d->p->warnings, "", *keyword ? keyword : "parameters");
    d->root = stree_add(d->p->mem, NULL, JSON_OBJECT, NULL, NULL);
    if (!d->root)
        return di_fail(st, DI_E_NOMEM, "no memory to compile a tool");
    return put_parameters(d, st);
}

/* Rules of one tool. */
static di_code put_tool(dsml *d, const snode *function, bool strict, di_status *st)
{
    snode *params = stree_get(function, "parameters");
    size_t before = d->rules.len;
    grammar_detail detail = {.offset = -1};
    preflight p = *d->p;
    const preflight *outer = d->p;
    di_status first = {0};
    di_code rc;

    p.strict = strict;
    p.detail = &detail;
    d->p = &p;
    put_call(d);
    d->root = params && params->type != JSON_NULL ? params
                                                  : stree_add(p.mem, NULL, JSON_OBJECT, NULL, NULL);
    if (d->root && d->root != params)
        stree_add(p.mem, d->root, JSON_OBJECT, "properties", NULL);
    if (!d->root) {
        rc = di_fail(st, DI_E_NOMEM, "no memory to compile a tool");
        goto done;
    }
    d->root->parent = NULL; /* pointers count from the parameters */
    rc = preflight_check(&p, d->root, &first);
    if (rc == DI_OK)
        rc = put_parameters(d, &first);
    if (rc == DI_E_INVALID && !strict) {
        d->rules.len = before;
        put_call(d);
        rc = free_parameters(d, detail.keyword, st);
    } else if (rc != DI_OK) {
        if (outer->detail && outer->detail->fault == GRAMMAR_FAULT_NONE) {
            *outer->detail = detail;
            snprintf(outer->detail->tool, sizeof outer->detail->tool, "%s", d->name);
        }
        di_context(&first, "tool \"%s\"", d->name);
        di_fail(st, rc, "%s", first.message);
    }
done:
    d->p = outer;
    return rc;
}

/* ---- the whole ---- */

static void put_start(dsml *d, const grammar_spec *spec, const str *calls)
{
    str *s = d->out;

    if (spec->kind == GRAMMAR_TOOL_CALL_REQUIRED)
        str_puts(s, "start: \"\\n\\n<\" block\n");
    else
        str_puts(s, "start: TEXT | TEXT_LT block\n"
                    "TEXT: /(.|\\n)*/\n"
                    "TEXT_LT: /(.|\\n)*</\n");
    str_printf(s, "block: <[%d]> \" calls>\\n\" (\"<\" call)%s \"</\" <[%d]> \" calls>\"\n", d->id,
               spec->single_call ? "" : "+", d->id);
    str_printf(s, "call: %s\n", str_text(calls));
    str_puts(s, "RAW: /((.|\\n)*)<\\//\n");
    str_append(s, d->rules.data, d->rules.len);
    str_append(s, d->values.data, d->values.len);
}

static di_code bad_tools(const preflight *p, const char *tool, const char *what, di_status *st)
{
    if (p->detail && tool)
        snprintf(p->detail->tool, sizeof p->detail->tool, "%s", tool);
    return fault(p->detail, st, GRAMMAR_FAULT_SYNTAX, "", "tools", "tools: %s", what);
}

static di_code put_tools(dsml *d, const grammar_spec *spec, const snode *list, str *calls,
                         di_status *st)
{
    bool strict;
    di_code rc = DI_OK;

    for (const snode *t = list->child; t; t = t->next, d->tool++) {
        const snode *function = stree_get(t, "function"), *name;
        const snode *flag;

        function = function ? function : t;
        name = stree_get(function, "name");
        flag = stree_get(function, "strict");
        if (!good_name(name))
            return bad_tools(d->p, name && name->type == JSON_STRING ? name->text : NULL,
                             "a name has 1 to 64 of the characters A-Z a-z 0-9 _ . : -", st);
        if (spec->tool && !stree_is(name, spec->tool))
            continue;
        d->name = name->text;
        d->p->warnings->tool = d->name;
        strict = spec->strict || (flag && flag->type == JSON_BOOL && flag->flag);
        rc = put_tool(d, function, is_strict(spec, strict), st);
        d->p->warnings->tool = NULL;
        if (rc != DI_OK)
            return rc;
        str_printf(calls, calls->len ? " | t%d" : "t%d", d->tool);
    }
    if (!calls->len)
        return bad_tools(d->p, spec->tool, "there is none that may be called", st);
    return rc;
}

di_code dsml_to_lark(const preflight *p, const grammar_spec *spec, int32_t id, str *out,
                     di_status *st)
{
    dsml d = {.p = p, .out = out, .id = id};
    di_status read = {0};
    str calls = {0};
    snode *list;
    di_code rc = stree_read(p->mem, spec->text, spec->n, "tools", &list, &read);

    if (rc == DI_E_NOMEM)
        return di_fail(st, rc, "%s", read.message);
    if (rc != DI_OK)
        return fault(p->detail, st, GRAMMAR_FAULT_SYNTAX, "", "", "%s", read.message);
    if (list->type != JSON_ARRAY || list->n_child > MAX_TOOLS)
        return bad_tools(p, NULL, "a list of at most 1,024 tools is needed", st);
    d.known = map_new(64);
    rc = d.known ? put_tools(&d, spec, list, &calls, st)
                 : di_fail(st, DI_E_NOMEM, "no memory to compile tools");
    if (rc == DI_OK)
        put_start(&d, spec, &calls);
    out->failed = out->failed || !str_ok(&d.rules) || !str_ok(&d.values) || !str_ok(&calls);
    map_free(d.known);
    str_fini(&d.rules);
    str_fini(&d.values);
    str_fini(&calls);
    return rc;
}
