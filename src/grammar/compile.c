/* A request's constraint -> a program: checks of our own, the library's compiler, the first mask.
 *
 * Strict specifications are compiled as they are or refused. The others drop what cannot be
 * honoured: first the keywords that preflight.c knows, then, when the library still refuses, what
 * its lenient mode drops; both leave warnings. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json_write.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "grammar/grammar_internal.h"

/* Measured: a compiled schema takes 3 MB at the median, 6 MB at most; large ones grow with their
 * text. */
#define PROG_BYTES          ((size_t)3 << 20)
#define PROG_BYTES_PER_BYTE 32

/* Address space of the stack that a compilation has. */
#define STACK_BYTES ((size_t)512 << 20)

/* What goes to the library. */
typedef struct source {
    const char *kind; /* its name for the kind of text */
    str text;
} source;

void warning_add(warning_list *w, const char *pointer, const char *keyword)
{
    json_write j = {.out = &w->json};

    if (w->json.len)
        str_puts(&w->json, ", ");
    jw_object(&j);
    if (w->tool) {
        jw_key(&j, "tool");
        jw_cstr(&j, w->tool);
    }
    jw_key(&j, "pointer");
    jw_cstr(&j, pointer);
    jw_key(&j, "keyword");
    jw_cstr(&j, keyword);
    jw_end(&j);
}

/* ---- messages of the library ---- */

/* First quoted word behind `mark` in a message. */
static void quoted_after(const char *message, const char *mark, char *out, size_t cap)
{
    const char *s = strstr(message, mark), *end;

    out[0] = 0;
    s = s ? strchr(s + strlen(mark), '"') : NULL;
    end = s ? strchr(s + 1, '"') : NULL;
    if (end)
        snprintf(out, cap, "%.*s", (int)(end - s - 1), s + 1);
}

/* What parts of the library's messages mean; the first that is found counts. */
static const struct meaning {
    const char *part;
    grammar_fault fault;
    const char *keyword;
} meanings[] = {
    {"panic", GRAMMAR_FAULT_INTERNAL, NULL},
    {"Unsatisfiable schema", GRAMMAR_FAULT_UNSAT, NULL},
    {"oneOf constraints are not supported", GRAMMAR_FAULT_UNSUPPORTED, "oneOf"},
    {"min/maxProperties only supported", GRAMMAR_FAULT_UNSUPPORTED, "minProperties"},
    {"are not disjoint", GRAMMAR_FAULT_UNSUPPORTED, "patternProperties"},
    {"is not present in a registry", GRAMMAR_FAULT_UNSUPPORTED, "$ref"},
    {"Unknown format", GRAMMAR_FAULT_UNSUPPORTED, "format"},
    {"look-around", GRAMMAR_FAULT_UNSUPPORTED, "pattern"},
    {"lookaround", GRAMMAR_FAULT_UNSUPPORTED, "pattern"},
    {"backreferences are not", GRAMMAR_FAULT_UNSUPPORTED, "pattern"},
    {"regex parse error", GRAMMAR_FAULT_SYNTAX, "pattern"},
    {"does not exist", GRAMMAR_FAULT_SYNTAX, "$ref"},
    {"too big", GRAMMAR_FAULT_LIMIT, NULL},
    {"too large", GRAMMAR_FAULT_LIMIT, NULL},
    {"Too many", GRAMMAR_FAULT_LIMIT, NULL},
    {"too many", GRAMMAR_FAULT_LIMIT, NULL},
    {"exceed", GRAMMAR_FAULT_LIMIT, NULL},
    {"fuel", GRAMMAR_FAULT_LIMIT, NULL},
    {"limit", GRAMMAR_FAULT_LIMIT, NULL},
};

/* Fail with the library's message, in our terms. */
static di_code library_fault(grammar_detail *d, di_status *st, const char *message)
{
    const struct meaning *m = NULL;
    char keyword[64] = "", line[400];
    size_t n = strcspn(message, "\n");

    if (strstr(message, "regex parse error")) /* of several lines: the last one says what */
        for (const char *s = message; (s = strstr(s, "error: ")); s += 7)
            n = strlen(message = s);
    snprintf(line, sizeof line, "%.*s", n < sizeof line ? (int)n : (int)sizeof line - 1, message);
    for (size_t i = strcspn(line, "\n"); line[i]; i++)
        line[i] = line[i] == '\n' ? ' ' : line[i];
    if (strstr(message, "Unimplemented keys")) {
        quoted_after(message, "Unimplemented keys", keyword, sizeof keyword);
        return fault(d, st, GRAMMAR_FAULT_UNSUPPORTED, NULL, keyword, "\"%s\" cannot be enforced",
                     keyword);
    }
    for (size_t i = 0; i < ARRAY_LEN(meanings) && !m; i++)
        if (strstr(message, meanings[i].part))
            m = &meanings[i];
    return fault(d, st, m ? m->fault : GRAMMAR_FAULT_SYNTAX, NULL, m ? m->keyword : NULL,
                 "the constraint was refused: %s", line);
}

/* ---- sources ---- */

static di_code regex_source(const grammar_spec *spec, source *src, grammar_detail *d, di_status *st)
{
    grammar_fault kind;
    int64_t offset;
    const char *why;

    src->kind = "regex";
    str_append(&src->text, spec->text, spec->n);
    if (pattern_check(spec->text, spec->n, &kind, &offset, &why) == DI_OK)
        return DI_OK;
    if (d)
        d->offset = offset;
    return fault(d, st, kind, NULL, NULL, "regex, byte %lld: %s", (long long)offset, why);
}

static di_code make_source(const preflight *p, const grammar *g, const grammar_spec *spec,
                           bool lenient, source *src, di_status *st)
{
    static const char object[] = "{\"type\":\"object\"}";

    src->kind = "json_schema";
    switch (spec->kind) {
    case GRAMMAR_JSON:
        return preflight_schema(p, spec->n ? spec->text : "{}", spec->n ? spec->n : 2, lenient,
                                &src->text, st);
    case GRAMMAR_JSON_OBJECT:
        return preflight_schema(p, object, sizeof object - 1, lenient, &src->text, st);
    case GRAMMAR_REGEX:
        return regex_source(spec, src, p->detail, st);
    case GRAMMAR_EBNF:
        src->kind = "lark";
        return ebnf_to_lark(spec->text, spec->n, p->mem, &src->text, p->detail, st);
    case GRAMMAR_TOOL_CALL:
    case GRAMMAR_TOOL_CALL_REQUIRED:
        src->kind = "lark";
        if (g->dsml < 0)
            return fault(p->detail, st, GRAMMAR_FAULT_SYNTAX, NULL, "tools",
                         "this model's vocabulary has no token for tool calls");
        return dsml_to_lark(p, spec, g->dsml, &src->text, st);
    }
    return DI_OK;
}

/* ---- the library's part ---- */

/* The first mask shows what no text fits. */
static di_code first_mask(const grammar *g, llg_matcher *m, grammar_detail *d, di_status *st)
{
    const llg_api *llg = g->llg;
    uint32_t *row = mem_try_calloc(g->n_words, sizeof *row), any = 0;
    bool accepting = llg->matcher_is_accepting(m);
    const char *error;
    int32_t rc;

    if (!row)
        return di_fail(st, DI_E_NOMEM, "no memory for a constraint");
    rc = llg->matcher_compute_mask_into(m, row, g->n_words * sizeof *row);
    for (size_t w = 0; w < g->n_words; w++)
        any |= row[w];
    for (int i = 0; i < g->n_eos && !accepting; i++) /* the only way out, and it is closed */
        if (rc == 0 && any == row[g->eos[i] / 32] && any == 1u << (g->eos[i] % 32))
            any = 0;
    mem_free(row);
    if (rc == 0 && any)
        return DI_OK;
    error = llg->matcher_get_error(m);
    if (error && (strstr(error, "panic") || strstr(error, "oo many") || strstr(error, "limit")))
        return library_fault(d, st, error);
    return fault(d, st, GRAMMAR_FAULT_UNSAT, NULL, NULL, "no text fits the constraint");
}

static di_code build(const grammar *g, const source *src, llg_matcher **out, grammar_detail *d,
                     di_status *st)
{
    const llg_api *llg = g->llg;
    llg_init init;
    llg_matcher *m;
    const char *error;
    di_code rc;

    *out = NULL;
    llg_settings(g, &init);
    m = llg->new_matcher(&init, src->kind, str_text(&src->text));
    if (!m)
        return fault(d, st, GRAMMAR_FAULT_INTERNAL, NULL, NULL, "the library gave no matcher");
    error = llg->matcher_get_error(m);
    rc = error ? library_fault(d, st, error) : first_mask(g, m, d, st);
    if (rc == DI_OK)
        *out = m;
    else
        llg->free_matcher(m);
    return rc;
}

/* Warnings of the library's lenient mode: one a line. */
static void library_warnings(const grammar *g, const source *src, warning_list *w)
{
    char text[2000] = "", keyword[64];
    llg_init init;
    char *save = NULL;

    llg_settings(g, &init);
    if (g->llg->validate_grammar(&init, src->kind, str_text(&src->text), text, sizeof text) != 1)
        return;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        quoted_after(line, "Unimplemented keys", keyword, sizeof keyword);
        if (strstr(line, "oneOf"))
            strcpy(keyword, "oneOf");
        else if (strstr(line, "maxProperties"))
            strcpy(keyword, "minProperties");
        else if (strstr(line, "format"))
            strcpy(keyword, "format");
        warning_add(w, "", *keyword ? keyword : line);
    }
}

static bool is_json(const grammar_spec *spec)
{
    return spec->kind == GRAMMAR_JSON || spec->kind == GRAMMAR_JSON_OBJECT;
}

static di_code probe(const void *arg, const char *schema, grammar_detail *d, di_status *st)
{
    const grammar *g = arg;
    llg_init init;
    char message[1000];

    llg_settings(g, &init);
    if (g->llg->validate_grammar(&init, "json_schema", schema, message, sizeof message) >= 0)
        return DI_OK;
    return library_fault(d, st, message);
}

/* A schema again, each of its patterns tried by itself. Strict: says which one is refused. Else it
 * is compiled without those, and with the library's lenient mode switched on. */
static di_code build_carefully(const preflight *p, const grammar *g, const grammar_spec *spec,
                               llg_matcher **out, di_status *st)
{
    preflight careful = *p;
    source src = {0};
    di_code rc;

    careful.probe = probe;
    careful.probe_arg = g;
    str_clear(&p->warnings->json);
    rc = make_source(&careful, g, spec, !p->strict, &src, st);
    if (rc == DI_OK && !p->strict) {
        rc = str_ok(&src.text) ? build(g, &src, out, NULL, NULL) : DI_E_NOMEM;
        if (rc == DI_OK)
            library_warnings(g, &src, p->warnings);
    }
    str_fini(&src.text);
    return rc;
}

/* All tools again, each schema tried by itself. */
static di_code build_tools(const preflight *p, const grammar *g, const grammar_spec *spec,
                           llg_matcher **out, di_status *st)
{
    preflight careful = *p;
    source src = {.kind = "lark"};
    di_code rc;

    careful.probe = probe;
    careful.probe_arg = g;
    str_clear(&p->warnings->json);
    rc = dsml_to_lark(&careful, spec, g->dsml, &src.text, st);
    if (rc == DI_OK)
        rc = build(g, &src, out, p->detail, st);
    str_fini(&src.text);
    return rc;
}

/* Compile; what the library cannot do is dropped when the specification allows it. */
static di_code build_leniently(const preflight *p, const grammar *g, const grammar_spec *spec,
                               source *src, llg_matcher **out, di_status *st)
{
    di_status first = {0};
    grammar_detail d = {.offset = -1};
    di_code rc = build(g, src, out, &d, &first);

    if (rc == DI_OK)
        return rc;
    if (spec->kind == GRAMMAR_TOOL_CALL || spec->kind == GRAMMAR_TOOL_CALL_REQUIRED)
        return build_tools(p, g, spec, out, st);
    if (is_json(spec) &&
        (d.fault == GRAMMAR_FAULT_UNSUPPORTED || strcmp(d.keyword, "pattern") == 0)) {
        di_code again = build_carefully(p, g, spec, out, st);

        if (again != DI_OK ? p->strict : *out != NULL)
            return again;
    }
    if (p->detail && p->detail->fault == GRAMMAR_FAULT_NONE)
        *p->detail = d;
    return di_fail(st, rc, "%s", first.message);
}

/* ---- the whole ---- */

static uint64_t thread_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static di_code check_text(const grammar_spec *spec, grammar_detail *d, di_status *st)
{
    if (spec->n > MAX_SPEC_BYTES)
        return fault(d, st, GRAMMAR_FAULT_LIMIT, NULL, NULL,
                     "the constraint has %zu bytes, but at most %zu are allowed", spec->n,
                     MAX_SPEC_BYTES);
    if (!utf8_valid(spec->text, spec->n) || memchr(spec->text, 0, spec->n))
        return fault(d, st, GRAMMAR_FAULT_SYNTAX, NULL, NULL,
                     "the constraint is not text in UTF-8 without zero bytes");
    return DI_OK;
}

static grammar_prog *new_prog(grammar *g, const grammar_spec *spec)
{
    grammar_prog *p = mem_try_calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->g = env_ref(g);
    atomic_init(&p->refs, 1);
    p->kind = spec->kind;
    p->calls = spec->kind == GRAMMAR_TOOL_CALL || spec->kind == GRAMMAR_TOOL_CALL_REQUIRED;
    p->bytes = PROG_BYTES + PROG_BYTES_PER_BYTE * spec->n;
    pthread_mutex_init(&p->lock, NULL);
    return p;
}

static di_code compile_into(grammar_prog *p, const preflight *pre, const grammar_spec *spec,
                            di_status *st)
{
    grammar *g = p->g;
    source src = {0};
    uint64_t began = thread_ms(), took;
    di_code rc;

    DI_TRY(check_text(spec, pre->detail, st));
    if (grammar_prepare(g, st) != DI_OK) {
        rc = fault(pre->detail, st, GRAMMAR_FAULT_UNAVAILABLE, NULL, NULL, "no library");
        goto done;
    }
    DI_TRY(make_source(pre, g, spec, false, &src, st));
    if (!str_ok(&src.text)) {
        rc = di_fail(st, DI_E_NOMEM, "no memory to compile a constraint");
        goto done;
    }
    DI_TRY(build_leniently(pre, g, spec, &src, &p->base, st));
    took = thread_ms() - began;
    if (took > (uint64_t)g->opt.compile_ms)
        rc = fault(pre->detail, st, GRAMMAR_FAULT_LIMIT, NULL, NULL,
                   "compiling took %llu ms of processor time, the limit is %d",
                   (unsigned long long)took, g->opt.compile_ms);
done:
    str_fini(&src.text);
    return rc;
}

/* A compilation in a thread of its own. */
typedef struct deep {
    grammar *g;
    const grammar_spec *spec;
    grammar_prog **out;
    grammar_detail *detail;
    di_status *st;
    di_code rc;
} deep;

static di_code compile_here(grammar *g, const grammar_spec *spec, grammar_prog **out,
                            grammar_detail *detail, di_status *st)
{
    warning_list w = {0};
    str list = {0};
    arena *mem = arena_new(0);
    grammar_prog *p = new_prog(g, spec);
    preflight pre = {.mem = mem,
                     .detail = detail,
                     .warnings = &w,
                     .strict = is_strict(spec, spec->strict),
                     .compact = spec->compact,
                     .max_whitespace = spec->max_whitespace > 0 ? spec->max_whitespace : 32};
    di_code rc = DI_OK;

    *out = NULL;
    if (!mem || !p) {
        rc = di_fail(st, DI_E_NOMEM, "no memory to compile a constraint");
        goto done;
    }
    DI_TRY(compile_into(p, &pre, spec, st));
    str_append(&list, "[", 1);
    str_append(&list, w.json.data, w.json.len);
    str_puts(&list, "]");
    p->warnings = mem_try_strndup(str_text(&list), list.len);
    if (!p->warnings || !str_ok(&w.json) || !str_ok(&list)) {
        rc = di_fail(st, DI_E_NOMEM, "no memory to compile a constraint");
        goto done;
    }
    *out = p;
    p = NULL;
done:
    grammar_prog_unref(p);
    arena_free(mem);
    str_fini(&w.json);
    str_fini(&list);
    return rc;
}

static void *compile_deep(void *arg)
{
    deep *d = arg;

    d->rc = compile_here(d->g, d->spec, d->out, d->detail, d->st);
    return NULL;
}

/* The library recurses along references and rules: a schema of 1 MiB can be a chain of thousands.
 * A deep stack, of which only what is used costs memory, keeps that from ending the process. */
di_code prog_compile(grammar *g, const grammar_spec *spec, grammar_prog **out,
                     grammar_detail *detail, di_status *st)
{
    deep d = {.g = g, .spec = spec, .out = out, .detail = detail, .st = st};
    pthread_attr_t attr;
    pthread_t thread;
    int err;

    *out = NULL;
    pthread_attr_init(&attr);
    err = pthread_attr_setstacksize(&attr, STACK_BYTES);
    if (!err)
        err = pthread_create(&thread, &attr, compile_deep, &d);
    pthread_attr_destroy(&attr);
    if (err)
        return di_fail(st, DI_E_NOMEM, "no thread to compile a constraint: %s", errno_text(err));
    pthread_join(thread, NULL);
    return d.rc;
}

grammar_prog *grammar_prog_ref(grammar_prog *p)
{
    /* relaxed: whoever holds a reference may make another */
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void grammar_prog_unref(grammar_prog *p)
{
    grammar *g;

    /* acq_rel: the last one sees all that the others did with it */
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) > 1)
        return;
    g = p->g;
    for (int i = 0; i < p->n_spares; i++)
        g->llg->free_matcher(p->spare[i]);
    if (p->base)
        g->llg->free_matcher(p->base);
    pthread_mutex_destroy(&p->lock);
    mem_free(p->warnings);
    mem_free(p);
    env_unref(g);
}

const char *grammar_prog_warnings(const grammar_prog *p)
{
    return p->warnings;
}
