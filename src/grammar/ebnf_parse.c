/* Text of a grammar -> rules as trees (docs/constraints.md has the dialect).
 *
 *   rule:  NAME "::=" alt         until the next NAME "::="
 *   alt:   seq ("|" seq)*
 *   seq:   (atom [*+?{m,n}])*
 *   atom:  NAME | "text" | [class] | . | ( alt )
 */
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/utf8.h"
#include "grammar/ebnf.h"

#define MAX_DEPTH   200
#define MAX_STACKED 16 /* counts behind one atom */
#define MAX_RULES   2000
#define MAX_NODES   200000
#define MAX_CP      0x10FFFFu

typedef struct parser {
    const char *text, *end, *at;
    ebnf_grammar *g;
    ebnf_rule **end_rule;
    map *names;        /* name -> index in `rules` */
    ebnf_rule **rules; /* [MAX_RULES] by index */
    grammar_detail *d;
    di_status *st;
    int depth, n_nodes;
} parser;

/* ---- failing ---- */

static di_code bad_at(parser *p, const char *at, grammar_fault kind, const char *what)
{
    if (p->d)
        p->d->offset = at - p->text;
    fault(p->d, p->st, kind, NULL, NULL, "grammar, byte %lld: %s", (long long)(at - p->text), what);
    return DI_E_INVALID;
}

static di_code bad(parser *p, const char *what)
{
    return bad_at(p, p->at, GRAMMAR_FAULT_SYNTAX, what);
}

static di_code no_memory(parser *p)
{
    di_fail(p->st, DI_E_NOMEM, "no memory to read a grammar");
    return DI_E_NOMEM;
}

ebnf_node *ebnf_new(arena *mem, ebnf_type type)
{
    ebnf_node *v = arena_alloc(mem, 1, sizeof *v);

    if (v)
        v->type = type;
    return v;
}

static di_code new_node(parser *p, ebnf_type type, ebnf_node **out)
{
    if (++p->n_nodes > MAX_NODES)
        return bad_at(p, p->at, GRAMMAR_FAULT_LIMIT, "the grammar is too large");
    *out = ebnf_new(p->g->mem, type);
    return *out ? DI_OK : no_memory(p);
}

/* ---- white space and names ---- */

static void skip_blanks(parser *p)
{
    while (p->at < p->end) {
        if (*p->at == '#') {
            while (p->at < p->end && *p->at != '\n')
                p->at++;
        } else if (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r') {
            p->at++;
        } else {
            break;
        }
    }
}

static bool is_name_char(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && ((c >= '0' && c <= '9') || c == '-'));
}

/* Length of a name at s, 0 = none. */
static size_t name_length(const parser *p, const char *s)
{
    size_t n = 0;

    while (s + n < p->end && is_name_char(s[n], n == 0))
        n++;
    return n;
}

/* A name and "::=" stand here: the next rule begins. */
static bool at_rule(parser *p)
{
    parser ahead = *p;
    size_t n = name_length(p, p->at);

    if (!n)
        return false;
    ahead.at += n;
    skip_blanks(&ahead);
    return ahead.end - ahead.at >= 3 && memcmp(ahead.at, "::=", 3) == 0;
}

/* The rule of a name, made when it is new. */
static di_code rule_named(parser *p, const char *name, size_t n, ebnf_rule **out)
{
    uint32_t idx;
    ebnf_rule *r;

    if (map_find(p->names, name, n, &idx)) {
        *out = p->rules[idx];
        return DI_OK;
    }
    if (p->g->n_rules == MAX_RULES)
        return bad_at(p, name, GRAMMAR_FAULT_LIMIT, "more than 2,000 rules");
    r = arena_alloc(p->g->mem, 1, sizeof *r);
    if (!r || map_insert(p->names, name, n, (uint32_t)p->g->n_rules) < 0)
        return no_memory(p);
    r->name = name;
    r->n_name = n;
    r->at = name - p->text;
    r->id = p->g->n_rules;
    p->rules[p->g->n_rules++] = r;
    *p->end_rule = r;
    p->end_rule = &r->next;
    *out = r;
    return DI_OK;
}

/* ---- characters ---- */

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static di_code read_hex(parser *p, int digits, uint32_t *cp)
{
    *cp = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        int v = p->at < p->end ? hex_value(*p->at) : -1;

        if (v < 0)
            return bad(p, "hexadecimal digits are missing");
        *cp = *cp << 4 | (uint32_t)v;
    }
    if (*cp > MAX_CP || (*cp >= 0xD800 && *cp <= 0xDFFF))
        return bad(p, "there is no such character");
    return DI_OK;
}

/* A character of a literal or a class, escapes resolved. */
static di_code read_char(parser *p, uint32_t *cp)
{
    static const char from[] = "nrt\\\"'[]-^/.", to[] = "\n\r\t\\\"'[]-^/.";
    const char *f;

    if (p->at == p->end || *p->at == '\n')
        return bad(p, "the text is not closed");
    if (*p->at != '\\') {
        p->at += utf8_read(p->at, (size_t)(p->end - p->at), cp);
        return DI_OK;
    }
    p->at++;
    if (p->at == p->end)
        return bad(p, "the text is not closed");
    switch (*p->at) {
    case 'x':
        p->at++;
        return read_hex(p, 2, cp);
    case 'u':
        p->at++;
        return read_hex(p, 4, cp);
    case 'U':
        p->at++;
        return read_hex(p, 8, cp);
    default:
        f = *p->at ? strchr(from, *p->at) : NULL;
        if (!f)
            return bad(p, "there is no such escape");
        *cp = (unsigned char)to[f - from];
        p->at++;
        return DI_OK;
    }
}

static di_code add_char(parser *p, ebnf_node ***end, uint32_t cp)
{
    ebnf_node *v;
    di_code rc = new_node(p, EBNF_CLASS, &v);

    if (rc != DI_OK)
        return rc;
    v->range = arena_alloc(p->g->mem, 1, sizeof *v->range);
    if (!v->range)
        return no_memory(p);
    v->range[0] = (ebnf_range){cp, cp};
    v->n_ranges = 1;
    **end = v;
    *end = &v->next;
    return DI_OK;
}

static di_code parse_literal(parser *p, ebnf_node **out)
{
    ebnf_node *seq, **end;
    uint32_t cp = 0;
    di_code rc;

    p->at++;
    DI_TRY(new_node(p, EBNF_SEQ, &seq));
    end = &seq->child;
    while (p->at == p->end || *p->at != '"') {
        DI_TRY(read_char(p, &cp));
        DI_TRY(add_char(p, &end, cp));
    }
    p->at++;
    *out = seq;
done:
    return rc;
}

static int by_lo(const void *a, const void *b)
{
    const ebnf_range *x = a, *y = b;

    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Sort and join; then the complement when asked for. */
static void normalise(ebnf_node *v, bool negated)
{
    int n = 0;
    uint32_t next = 0;

    qsort(v->range, (size_t)v->n_ranges, sizeof *v->range, by_lo);
    for (int i = 0; i < v->n_ranges; i++) {
        ebnf_range r = v->range[i];

        if (n && r.lo <= v->range[n - 1].hi + 1) {
            if (r.hi > v->range[n - 1].hi)
                v->range[n - 1].hi = r.hi;
        } else {
            v->range[n++] = r;
        }
    }
    v->n_ranges = n;
    if (!negated)
        return;
    for (int i = n = 0; i < v->n_ranges; i++) {
        ebnf_range r = v->range[i];

        if (r.lo > next)
            v->range[n++] = (ebnf_range){next, r.lo - 1};
        next = r.hi + 1;
    }
    if (next <= MAX_CP) /* there is room for one more than were read */
        v->range[n++] = (ebnf_range){next, MAX_CP};
    v->n_ranges = n;
}

static di_code parse_class(parser *p, ebnf_node **out)
{
    size_t room = 1, cap;
    ebnf_node *v;
    bool negated;
    di_code rc;

    p->at++;
    negated = p->at < p->end && *p->at == '^';
    p->at += negated;
    for (const char *s = p->at; s < p->end && *s != ']' && *s != '\n'; s += *s == '\\' ? 2 : 1)
        room++;
    cap = room + 1;
    DI_TRY(new_node(p, EBNF_CLASS, &v));
    v->range = arena_alloc(p->g->mem, cap, sizeof *v->range);
    if (!v->range)
        return no_memory(p);
    while (p->at == p->end || *p->at != ']') {
        ebnf_range r = {0};

        DI_TRY(read_char(p, &r.lo));
        r.hi = r.lo;
        if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            DI_TRY(read_char(p, &r.hi));
        }
        if (r.hi < r.lo) {
            rc = bad(p, "a range of a class runs backwards");
            goto done;
        }
        if ((size_t)v->n_ranges == room) {
            rc = bad(p, "a class is malformed");
            goto done;
        }
        v->range[v->n_ranges++] = r;
    }
    p->at++;
    if (v->n_ranges == 0 && !negated) {
        rc = bad(p, "a class is empty");
        goto done;
    }
    normalise(v, negated);
    *out = v;
done:
    return rc;
}

/* ---- structure ---- */

static di_code parse_alt(parser *p, ebnf_node **out);

static di_code parse_atom(parser *p, ebnf_node **out)
{
    size_t n;
    di_code rc = DI_OK;

    switch (*p->at) {
    case '"':
        return parse_literal(p, out);
    case '[':
        return parse_class(p, out);
    case '.':
        DI_TRY(new_node(p, EBNF_CLASS, out));
        p->at++;
        (*out)->range = arena_alloc(p->g->mem, 1, sizeof *(*out)->range);
        if (!(*out)->range)
            return no_memory(p);
        (*out)->range[0] = (ebnf_range){0, MAX_CP};
        (*out)->n_ranges = 1;
        return DI_OK;
    case '(':
        if (p->depth == MAX_DEPTH)
            return bad_at(p, p->at, GRAMMAR_FAULT_LIMIT, "parentheses are nested too deep");
        p->at++;
        p->depth++;
        DI_TRY(parse_alt(p, out));
        p->depth--;
        if (p->at == p->end || *p->at != ')')
            return bad(p, "a parenthesis is not closed");
        p->at++;
        return DI_OK;
    default:
        break;
    }
    n = name_length(p, p->at);
    if (!n)
        return bad(p, "a name, a text, a class or a parenthesis is missing");
    DI_TRY(new_node(p, EBNF_REF, out));
    DI_TRY(rule_named(p, p->at, n, &(*out)->rule));
    p->at += n;
done:
    return rc;
}

static int32_t read_number(parser *p)
{
    int32_t v = 0;

    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') {
        if (v <= EBNF_MAX_COUNT)
            v = v * 10 + (*p->at - '0');
        p->at++;
    }
    return v;
}

/* {m}, {m,} or {m,n} */
static di_code parse_braces(parser *p, int32_t *lo, int32_t *hi)
{
    const char *start = p->at++, *digits;

    skip_blanks(p);
    digits = p->at;
    *lo = read_number(p);
    if (p->at == digits)
        return bad(p, "a count is missing");
    *hi = *lo;
    skip_blanks(p);
    if (p->at < p->end && *p->at == ',') {
        p->at++;
        skip_blanks(p);
        digits = p->at;
        *hi = read_number(p);
        if (p->at == digits)
            *hi = EBNF_MANY;
        skip_blanks(p);
    }
    if (p->at == p->end || *p->at != '}')
        return bad(p, "a brace is not closed");
    p->at++;
    if (*lo > *hi)
        return bad_at(p, start, GRAMMAR_FAULT_SYNTAX, "the least count is above the largest");
    if (*lo > EBNF_MAX_COUNT || (*hi > EBNF_MAX_COUNT && *hi != EBNF_MANY))
        return bad_at(p, start, GRAMMAR_FAULT_LIMIT, "a count above 100,000");
    return DI_OK;
}

/* *, +, ? and counts behind an atom, any number of them. */
static di_code parse_counts(parser *p, ebnf_node **v)
{
    di_code rc = DI_OK;

    for (int n = 0;; n++) {
        int32_t lo = 0, hi = EBNF_MANY;
        ebnf_node *rep;

        skip_blanks(p);
        if (p->at == p->end || !strchr("*+?{", *p->at))
            return rc;
        if (n == MAX_STACKED)
            return bad_at(p, p->at, GRAMMAR_FAULT_LIMIT, "too many counts in a row");
        if (*p->at == '{') {
            DI_TRY(parse_braces(p, &lo, &hi));
        } else {
            lo = *p->at == '+';
            hi = *p->at == '?' ? 1 : EBNF_MANY;
            p->at++;
        }
        DI_TRY(new_node(p, EBNF_REP, &rep));
        rep->child = *v;
        rep->lo = lo;
        rep->hi = hi;
        *v = rep;
    }
done:
    return rc;
}

static di_code parse_seq(parser *p, ebnf_node **out)
{
    ebnf_node *first = NULL, *last = NULL, *v = NULL;
    di_code rc = DI_OK;

    for (;;) {
        skip_blanks(p);
        if (p->at == p->end || *p->at == '|' || *p->at == ')' || at_rule(p))
            break;
        DI_TRY(parse_atom(p, &v));
        DI_TRY(parse_counts(p, &v));
        if (last)
            last->next = v;
        else
            first = v;
        last = v;
    }
    DI_TRY(new_node(p, EBNF_SEQ, &v));
    DI_CHECK(v);
    v->child = first;
    *out = v;
done:
    return rc;
}

static di_code parse_alt(parser *p, ebnf_node **out)
{
    ebnf_node *alt, **end, *seq = NULL;
    di_code rc;

    DI_TRY(new_node(p, EBNF_ALT, &alt));
    end = &alt->child;
    for (;;) {
        DI_TRY(parse_seq(p, &seq));
        *end = seq;
        end = &seq->next;
        if (p->at == p->end || *p->at != '|')
            break;
        p->at++;
    }
    *out = alt;
done:
    return rc;
}

static di_code parse_rules(parser *p)
{
    ebnf_rule *r = NULL;
    di_code rc = DI_OK;

    for (skip_blanks(p); p->at < p->end; skip_blanks(p)) {
        if (!at_rule(p))
            return bad(p, "a rule begins with a name and \"::=\"");
        DI_TRY(rule_named(p, p->at, name_length(p, p->at), &r));
        if (r->body)
            return bad(p, "this rule is defined twice");
        p->at += r->n_name;
        skip_blanks(p);
        p->at += 3;
        DI_TRY(parse_alt(p, &r->body));
        if (p->at < p->end && *p->at == ')')
            return bad(p, "a parenthesis is closed that was not open");
    }
done:
    return rc;
}

di_code ebnf_parse(const char *text, size_t n, arena *mem, ebnf_grammar *out, grammar_detail *d,
                   di_status *st)
{
    parser p = {.text = text, .at = text, .end = text + n, .g = out, .d = d, .st = st};
    di_code rc;

    *out = (ebnf_grammar){.mem = mem};
    p.end_rule = &out->first;
    p.rules = arena_alloc(mem, MAX_RULES, sizeof(ebnf_rule *));
    p.names = p.rules ? map_new(64) : NULL;
    if (!p.names)
        return no_memory(&p);
    rc = parse_rules(&p);
    map_free(p.names);
    if (rc != DI_OK)
        return rc;
    for (ebnf_rule *r = out->first; r; r = r->next) {
        if (!r->body)
            return bad_at(&p, text + r->at, GRAMMAR_FAULT_SYNTAX, "this rule is not defined");
        if (r->n_name == 4 && memcmp(r->name, "root", 4) == 0)
            out->root = r;
    }
    p.at = text;
    return out->root ? DI_OK : bad(&p, "there is no rule \"root\"");
}
