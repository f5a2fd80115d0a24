/* See constraint.h. */
#include "cli/constraint.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"

#define MAX_FILE ((size_t)1 << 20)

/* ---- response_format ---- */

/* A format while its fields come in. */
typedef struct format {
    const char *type, *schema, *regex, *grammar; /* in the arena; NULL = not given */
    size_t n_type, n_schema, n_regex, n_grammar;
    bool strict;
} format;

static di_code copy_string(json_read *in, arena *mem, const char **out, size_t *n, di_status *st)
{
    const char *s;
    di_code rc = json_string(in, &s, n, st);

    if (rc != DI_OK)
        return rc;
    *out = arena_strndup(mem, s, *n);
    return *out ? DI_OK : di_fail(st, DI_E_NOMEM, "no memory for a request");
}

static di_code read_schema(format *f, json_read *in, arena *mem, di_status *st)
{
    const char *key, *raw;
    size_t n;
    di_code rc;

    DI_TRY(json_object(in, st));
    while (json_key(in, &key, &n)) {
        if (json_key_is(key, n, "schema") && json_peek(in) != JSON_NULL) {
            DI_TRY(json_raw(in, &raw, &f->n_schema, st));
            f->schema = arena_strndup(mem, raw, f->n_schema);
            if (!f->schema)
                return di_fail(st, DI_E_NOMEM, "no memory for a request");
        } else if (json_key_is(key, n, "strict") && json_peek(in) != JSON_NULL) {
            DI_TRY(json_bool(in, &f->strict, st));
        } else {
            DI_TRY(json_skip(in, st));
        }
    }
done:
    return rc;
}

static di_code read_fields(format *f, json_read *in, arena *mem, di_status *st)
{
    const char *key;
    size_t n;
    di_code rc;

    DI_TRY(json_object(in, st));
    while (json_key(in, &key, &n)) {
        bool null = json_peek(in) == JSON_NULL;

        if (!null && json_key_is(key, n, "type"))
            DI_TRY(copy_string(in, mem, &f->type, &f->n_type, st));
        else if (!null && json_key_is(key, n, "json_schema"))
            DI_TRY(read_schema(f, in, mem, st));
        else if (!null && json_key_is(key, n, "regex"))
            DI_TRY(copy_string(in, mem, &f->regex, &f->n_regex, st));
        else if (!null && json_key_is(key, n, "grammar"))
            DI_TRY(copy_string(in, mem, &f->grammar, &f->n_grammar, st));
        else
            DI_TRY(json_skip(in, st));
    }
done:
    return rc;
}

static di_code set(constraint *c, grammar_kind kind, const char *text, size_t n, bool strict,
                   const char *field, di_status *st)
{
    if (!text)
        return di_fail(st, DI_E_INVALID, "response_format has no \"%s\"", field);
    *c = (constraint){.on = true, .spec = {.kind = kind, .text = text, .n = n, .strict = strict}};
    return DI_OK;
}

di_code constraint_read(constraint *c, json_read *in, arena *mem, di_status *st)
{
    format f = {0};
    di_code rc = read_fields(&f, in, mem, st);

    if (rc != DI_OK)
        return rc;
    if (!f.type)
        return di_fail(st, DI_E_INVALID, "response_format has no \"type\"");
    if (json_key_is(f.type, f.n_type, "text")) {
        *c = (constraint){0};
        return DI_OK;
    }
    if (json_key_is(f.type, f.n_type, "json_object"))
        return set(c, GRAMMAR_JSON_OBJECT, "", 0, true, "type", st);
    if (json_key_is(f.type, f.n_type, "json_schema"))
        return set(c, GRAMMAR_JSON, f.schema, f.n_schema, f.strict, "json_schema.schema", st);
    if (json_key_is(f.type, f.n_type, "regex"))
        return set(c, GRAMMAR_REGEX, f.regex, f.n_regex, true, "regex", st);
    if (json_key_is(f.type, f.n_type, "ebnf"))
        return set(c, GRAMMAR_EBNF, f.grammar, f.n_grammar, true, "grammar", st);
    return di_fail(st, DI_E_INVALID,
                   "response_format.type is \"%.40s\", but must be text, json_object, json_schema, "
                   "regex or ebnf",
                   f.type);
}

/* ---- options ---- */

di_code constraint_apply(constraint_options *o, constraint *c, di_status *st)
{
    const char *file = o->json_schema ? o->json_schema : o->ebnf;
    size_t n = 0;
    di_code rc;

    *c = (constraint){0};
    if ((o->json_schema != NULL) + (o->regex != NULL) + (o->ebnf != NULL) > 1)
        return di_fail(st, DI_E_INVALID, "--json-schema, --regex and --ebnf exclude each other");
    if (o->regex)
        return set(c, GRAMMAR_REGEX, o->regex, strlen(o->regex), true, "regex", st);
    if (!file)
        return DI_OK;
    rc = file_read(&o->text, &n, file, MAX_FILE, st);
    if (rc != DI_OK)
        return rc;
    return set(c, o->json_schema ? GRAMMAR_JSON : GRAMMAR_EBNF, o->text, n, true, "text", st);
}

void constraint_options_fini(constraint_options *o)
{
    mem_free(o->text);
    o->text = NULL;
}
