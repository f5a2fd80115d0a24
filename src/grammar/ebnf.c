/* EBNF -> Lark for the library, whose lexer always takes the longest text.
 *
 * A grammar without recursion is one regular expression. Of the others, the pieces without
 * recursion become terminals, as large as possible; that is exact as long as no terminal can go on
 * where another one should begin (ebnf_auto.c finds out). If one can, every terminal is one
 * character: slower, but exact whatever the grammar. */
#include <string.h>

#include "grammar/ebnf.h"

#define MAX_REGEX  20000.0  /* bytes of a terminal */
#define MAX_TERMS  512      /* beyond: single characters */
#define MAX_BUDGET 20000000 /* steps of the search for clashes */
#define MAX_LARK   ((size_t)4 << 20)

typedef struct terminal {
    const ebnf_node *v;
    bool nullable; /* the terminal is v without the empty text */
    ebnf_auto *a;
} terminal;

typedef struct bits {
    uint64_t w[MAX_TERMS / 64];
} bits;

typedef struct translation {
    ebnf_grammar *g;
    bool whole; /* pieces as large as possible, else single characters */
    terminal *term;
    int n_terms, cap_terms;
    bool too_many, failed; /* terminals; out of memory */
} translation;

/* ---- properties of rules ---- */

static bool productive(const ebnf_node *v)
{
    switch (v->type) {
    case EBNF_CLASS:
        return v->n_ranges > 0;
    case EBNF_REP:
        return v->lo == 0 || productive(v->child);
    case EBNF_REF:
        return v->rule->productive;
    case EBNF_ALT:
        for (const ebnf_node *c = v->child; c; c = c->next)
            if (productive(c))
                return true;
        return false;
    case EBNF_SEQ:
        for (const ebnf_node *c = v->child; c; c = c->next)
            if (!productive(c))
                return false;
        return true;
    case EBNF_TERM:
        break;
    }
    return true;
}

static void find_productive(ebnf_grammar *g)
{
    bool changed = true;

    while (changed) {
        changed = false;
        for (ebnf_rule *r = g->first; r; r = r->next)
            if (!r->productive && productive(r->body))
                r->productive = changed = true;
    }
}

static bool rule_pure(ebnf_rule *r);

/* Whether no recursion can be reached; adds up the size of the regular expression. */
static bool pure(const ebnf_node *v, double *size)
{
    double inner = 0;
    bool ok = true;

    switch (v->type) {
    case EBNF_CLASS:
        *size += 4 + 20.0 * v->n_ranges;
        return true;
    case EBNF_REF:
        ok = rule_pure(v->rule);
        *size += v->rule->size;
        return ok;
    case EBNF_TERM:
        return true;
    case EBNF_REP:
    case EBNF_SEQ:
    case EBNF_ALT:
        break;
    }
    for (const ebnf_node *c = v->child; c; c = c->next)
        ok = pure(c, &inner) && ok;
    /* The library unrolls counts. */
    if (v->type == EBNF_REP && v->child && v->child->type != EBNF_CLASS)
        inner *= v->hi == EBNF_MANY ? (v->lo > 1 ? v->lo : 1) : v->hi;
    *size += inner + 4;
    return ok;
}

static bool rule_pure(ebnf_rule *r)
{
    if (r->pure == 0) {
        r->pure = 1;
        r->pure = pure(r->body, &r->size) && r->size <= MAX_REGEX ? 2 : 3;
    }
    return r->pure == 2;
}

/* ---- pieces ---- */

static ebnf_node *new_term(translation *t, const ebnf_node *v, bool nullable, ebnf_auto *a)
{
    ebnf_node *node = ebnf_new(t->g->mem, EBNF_TERM), *rep;

    if (t->n_terms == t->cap_terms) {
        int cap = t->cap_terms ? 2 * t->cap_terms : 64;
        terminal *term = arena_alloc(t->g->mem, (size_t)cap, sizeof *term);

        if (term && t->n_terms)
            memcpy(term, t->term, (size_t)t->n_terms * sizeof *term);
        t->term = term;
        t->cap_terms = cap;
    }
    if (!node || !t->term) {
        t->failed = true;
        return NULL;
    }
    node->term = t->n_terms;
    t->term[t->n_terms++] = (terminal){v, nullable, a};
    if (!nullable)
        return node;
    rep = ebnf_new(t->g->mem, EBNF_REP);
    if (!rep) {
        t->failed = true;
        return NULL;
    }
    rep->hi = 1;
    rep->child = node;
    return rep;
}

/* A regular piece as a terminal; one that only has the empty text is an empty sequence. */
static ebnf_node *as_term(translation *t, const ebnf_node *v)
{
    ebnf_auto *a = NULL;

    if (v->type == EBNF_CLASS)
        return new_term(t, v, false, t->whole ? ebnf_auto_new(t->g->mem, v) : NULL);
    a = ebnf_auto_new(t->g->mem, v);
    if (!a) {
        t->too_many = true;
        return NULL;
    }
    if (ebnf_auto_empty(a))
        return ebnf_new(t->g->mem, EBNF_SEQ);
    return new_term(t, v, ebnf_auto_nullable(a), a);
}

static bool is_piece(const translation *t, const ebnf_node *v)
{
    double size = 0;

    if (!t->whole)
        return v->type == EBNF_CLASS;
    return pure(v, &size) && size <= MAX_REGEX;
}

static ebnf_node *reduce(translation *t, const ebnf_node *v);

/* Children from `first` up to (not including) `end`, under a node of their own. */
static ebnf_node *group(translation *t, ebnf_type type, const ebnf_node *first,
                        const ebnf_node *end)
{
    ebnf_node *node = ebnf_new(t->g->mem, type), **at = node ? &node->child : NULL;

    for (const ebnf_node *c = first; node && c != end; c = c->next) {
        *at = ebnf_new(t->g->mem, EBNF_SEQ);
        if (!*at)
            return NULL;
        **at = *c;
        (*at)->next = NULL;
        at = &(*at)->next;
    }
    return node;
}

/* Sequence or choice: neighbours without recursion together. */
static ebnf_node *reduce_list(translation *t, const ebnf_node *v)
{
    ebnf_node *out = ebnf_new(t->g->mem, v->type), **at = out ? &out->child : NULL;
    const ebnf_node *c = v->child, *end;

    while (out && c && !t->failed && !t->too_many) {
        for (end = c; t->whole && end && is_piece(t, end);)
            end = end->next;
        if (end == c) {
            *at = reduce(t, c);
            c = c->next;
        } else {
            ebnf_node *some = group(t, v->type, c, end);

            *at = some ? as_term(t, some) : NULL;
            c = end;
        }
        if (!*at)
            return NULL;
        at = &(*at)->next;
    }
    return out;
}

/* The tree with terminals in the place of what has no recursion. NULL: see the flags. */
static ebnf_node *reduce(translation *t, const ebnf_node *v)
{
    ebnf_node *out = NULL;

    if (is_piece(t, v)) {
        out = as_term(t, v);
    } else if (v->type == EBNF_SEQ || v->type == EBNF_ALT) {
        out = reduce_list(t, v);
    } else if ((out = ebnf_new(t->g->mem, v->type))) {
        *out = *v;
        out->next = NULL;
        if (v->type == EBNF_REP && !(out->child = reduce(t, v->child)))
            out = NULL;
    }
    if (!out && !t->too_many)
        t->failed = true;
    return out;
}

/* ---- clashes ---- */

static bool add_bits(bits *to, const bits *from)
{
    uint64_t new = 0;

    for (size_t i = 0; i < ARRAY_LEN(to->w); i++) {
        new |= from->w[i] & ~to->w[i];
        to->w[i] |= from->w[i];
    }
    return new != 0;
}

typedef struct flow {
    bits *first;    /* [rule] terminals that may begin it */
    bool *nullable; /* [rule] */
    bits *follow;   /* [terminal] terminals that may come behind */
    bool changed;
} flow;

/* First terminals of v are added to *out; true when v may be empty. */
static bool first_of(const flow *f, const ebnf_node *v, bits *out)
{
    bool empty = false, all = true;

    switch (v->type) {
    case EBNF_TERM:
        out->w[v->term / 64] |= 1ull << (v->term % 64);
        return false;
    case EBNF_REF:
        add_bits(out, &f->first[v->rule->id]);
        return f->nullable[v->rule->id];
    case EBNF_REP:
        return first_of(f, v->child, out) || v->lo == 0;
    case EBNF_ALT:
        for (const ebnf_node *c = v->child; c; c = c->next)
            empty = first_of(f, c, out) || empty;
        return empty;
    case EBNF_SEQ:
        for (const ebnf_node *c = v->child; c && all; c = c->next)
            all = first_of(f, c, out);
        return all;
    case EBNF_CLASS:
        break;
    }
    return true;
}

/* What may come behind v is `next`: give it to the terminals at the end of v. */
static void give_follow(flow *f, const ebnf_node *v, const bits *next, bits *after_rule)
{
    bits behind;

    switch (v->type) {
    case EBNF_TERM:
        f->changed = add_bits(&f->follow[v->term], next) || f->changed;
        return;
    case EBNF_REF:
        f->changed = add_bits(&after_rule[v->rule->id], next) || f->changed;
        return;
    case EBNF_REP:
        behind = *next;
        if (v->hi > 1)
            first_of(f, v->child, &behind);
        give_follow(f, v->child, &behind, after_rule);
        return;
    case EBNF_ALT:
        for (const ebnf_node *c = v->child; c; c = c->next)
            give_follow(f, c, next, after_rule);
        return;
    case EBNF_SEQ:
        for (const ebnf_node *c = v->child; c; c = c->next) {
            bool all = true;

            behind = (bits){{0}};
            for (const ebnf_node *d = c->next; d && all; d = d->next)
                all = first_of(f, d, &behind);
            if (all)
                add_bits(&behind, next);
            give_follow(f, c, &behind, after_rule);
        }
        return;
    case EBNF_CLASS:
        break;
    }
}

/* FIRST and FOLLOW as in textbooks, over terminals. */
static bool find_flow(const translation *t, ebnf_node *const *body, flow *f)
{
    size_t n = (size_t)t->g->n_rules;
    bits *after = arena_alloc(t->g->mem, n, sizeof *after);

    f->first = arena_alloc(t->g->mem, n, sizeof *f->first);
    f->nullable = arena_alloc(t->g->mem, n, sizeof *f->nullable);
    f->follow = arena_alloc(t->g->mem, (size_t)t->n_terms + 1, sizeof *f->follow);
    if (!after || !f->first || !f->nullable || !f->follow)
        return false;
    do {
        f->changed = false;
        for (size_t r = 0; r < n; r++) {
            bits first = {{0}};
            bool nullable;

            if (!body[r])
                continue;
            nullable = first_of(f, body[r], &first);
            f->changed = add_bits(&f->first[r], &first) || nullable != f->nullable[r] || f->changed;
            f->nullable[r] = nullable;
        }
    } while (f->changed);
    do {
        f->changed = false;
        for (size_t r = 0; r < n; r++)
            if (body[r])
                give_follow(f, body[r], &after[r], after);
    } while (f->changed);
    return true;
}

/* Whether the lexer could misread the grammar. */
static bool clashes(const translation *t, ebnf_node *const *body)
{
    flow f;
    ebnf_auto *next[MAX_TERMS];
    long budget = MAX_BUDGET;

    if (t->n_terms > MAX_TERMS || !find_flow(t, body, &f))
        return true;
    for (int a = 0; a < t->n_terms; a++) {
        int n = 0;

        for (int k = 0; k < t->n_terms; k++)
            if (f.follow[a].w[k / 64] >> (k % 64) & 1)
                next[n++] = t->term[k].a;
        for (int b = 0; b < t->n_terms && n; b++)
            if (!t->term[a].a || !t->term[b].a ||
                ebnf_auto_clash(t->g->mem, t->term[a].a, t->term[b].a, next, n, &budget))
                return true;
    }
    return false;
}

/* ---- Lark ---- */

static void put_char(str *s, uint32_t cp)
{
    str_printf(s, "\\x{%X}", (unsigned)cp);
}

static void put_class(str *s, const ebnf_node *v)
{
    str_putc(s, '[');
    for (int i = 0; i < v->n_ranges; i++) {
        put_char(s, v->range[i].lo);
        str_putc(s, '-');
        put_char(s, v->range[i].hi);
    }
    str_putc(s, ']');
}

static void put_count(str *s, const ebnf_node *v)
{
    if (v->hi == EBNF_MANY && v->lo <= 1)
        str_putc(s, v->lo ? '+' : '*');
    else if (v->lo == 0 && v->hi == 1)
        str_putc(s, '?');
    else if (v->hi == EBNF_MANY)
        str_printf(s, "{%d,}", v->lo);
    else
        str_printf(s, "{%d,%d}", v->lo, v->hi);
}

/* Regular expression of a piece. */
static void put_regex(str *s, const ebnf_node *v)
{
    if (s->len > MAX_LARK)
        return;
    switch (v->type) {
    case EBNF_CLASS:
        if (v->n_ranges == 1 && v->range[0].lo == v->range[0].hi)
            put_char(s, v->range[0].lo);
        else
            put_class(s, v);
        return;
    case EBNF_REF:
        put_regex(s, v->rule->body);
        return;
    case EBNF_REP:
        str_puts(s, "(?:");
        put_regex(s, v->child);
        str_putc(s, ')');
        put_count(s, v);
        return;
    case EBNF_SEQ:
    case EBNF_ALT:
        str_puts(s, "(?:");
        for (const ebnf_node *c = v->child; c; c = c->next) {
            put_regex(s, c);
            if (v->type == EBNF_ALT && c->next)
                str_putc(s, '|');
        }
        str_putc(s, ')');
        return;
    case EBNF_TERM:
        return;
    }
}

/* Body of a rule. */
static void put_body(str *s, const ebnf_node *v)
{
    switch (v->type) {
    case EBNF_TERM:
        str_printf(s, "T%d", v->term);
        return;
    case EBNF_REF:
        str_printf(s, "r%d", v->rule->id);
        return;
    case EBNF_REP:
        if (v->hi == 0) {
            str_puts(s, "\"\"");
            return;
        }
        str_putc(s, '(');
        put_body(s, v->child);
        str_putc(s, ')');
        put_count(s, v);
        return;
    case EBNF_SEQ:
    case EBNF_ALT:
        str_puts(s, v->child ? "(" : "\"\"");
        for (const ebnf_node *c = v->child; c; c = c->next) {
            put_body(s, c);
            str_puts(s, !c->next ? ")" : v->type == EBNF_ALT ? " | " : " ");
        }
        return;
    case EBNF_CLASS:
        return;
    }
}

static void put_lark(const translation *t, ebnf_node *const *body, str *out)
{
    str_printf(out, "start: r%d\n", t->g->root->id);
    for (const ebnf_rule *r = t->g->first; r; r = r->next) {
        if (!body[r->id])
            continue;
        str_printf(out, "r%d: ", r->id);
        put_body(out, body[r->id]);
        str_putc(out, '\n');
    }
    for (int i = 0; i < t->n_terms; i++) {
        str_printf(out, t->term[i].nullable ? "T%d: /(?s:.+)/ & /" : "T%d: /", i);
        put_regex(out, t->term[i].v);
        str_puts(out, "/\n");
    }
}

/* ---- the whole ---- */

/* Rules that a tree refers to, and theirs, get their reduced bodies. */
static bool reduce_rule(translation *t, ebnf_node **body, ebnf_rule *r);

static bool reduce_refs(translation *t, ebnf_node **body, const ebnf_node *v)
{
    if (v->type == EBNF_REF)
        return reduce_rule(t, body, v->rule);
    for (const ebnf_node *c = v->child; c; c = c->next)
        if (!reduce_refs(t, body, c))
            return false;
    return true;
}

static bool reduce_rule(translation *t, ebnf_node **body, ebnf_rule *r)
{
    if (body[r->id])
        return true;
    body[r->id] = reduce(t, r->body);
    return body[r->id] && reduce_refs(t, body, body[r->id]);
}

/* Terminals and rules with pieces of the given size. False when that is not possible. */
static bool translate(translation *t, ebnf_grammar *g, bool whole, ebnf_node **body)
{
    *t = (translation){.g = g, .whole = whole};
    memset(body, 0, (size_t)g->n_rules * sizeof *body);
    return reduce_rule(t, body, g->root);
}

di_code ebnf_to_lark(const char *text, size_t n, arena *mem, str *out, grammar_detail *d,
                     di_status *st)
{
    ebnf_grammar g;
    translation t;
    ebnf_node **body;
    di_code rc = ebnf_parse(text, n, mem, &g, d, st);

    if (rc != DI_OK)
        return rc;
    find_productive(&g);
    if (!g.root->productive)
        return fault(d, st, GRAMMAR_FAULT_UNSAT, NULL, NULL,
                     "grammar: the rule \"root\" has no finite text");
    body = arena_alloc(mem, (size_t)g.n_rules, sizeof(ebnf_node *));
    if (!body)
        return di_fail(st, DI_E_NOMEM, "no memory to compile a grammar");
    for (ebnf_rule *r = g.first; r; r = r->next)
        rule_pure(r);
    if ((!translate(&t, &g, true, body) || clashes(&t, body)) && !translate(&t, &g, false, body))
        return di_fail(st, DI_E_NOMEM, "no memory to compile a grammar");
    put_lark(&t, body, out);
    if (out->len > MAX_LARK)
        return fault(d, st, GRAMMAR_FAULT_LIMIT, NULL, NULL, "the grammar is too large");
    return DI_OK;
}
