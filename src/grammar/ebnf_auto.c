/* Position automata (Glushkov) of regular pieces of a grammar, to find out where a lexer that
 * always prefers the longest text would misread a grammar.
 *
 * A state is the class that was read last, so there are no empty transitions; every state lies on a
 * way to the end, because every class is one. */
#include <string.h>

#include "grammar/ebnf.h"

#define MAX_POSITIONS 1500
#define MAX_EDGES     200000

typedef struct position {
    const ebnf_node *cls;
    int *next; /* positions that may follow */
    int n_next;
    bool last; /* a text may end here */
} position;

struct ebnf_auto {
    position *pos;
    int n;
    int *first;
    int n_first;
    bool nullable;
};

/* ---- construction ---- */

/* Set of positions of a piece, ascending. */
typedef struct set {
    int *at;
    int n;
} set;

typedef struct piece {
    bool nullable;
    set first, last;
} piece;

typedef struct builder {
    arena *mem;
    ebnf_auto *a;
    int cap;
    long n_edges;
    bool failed;
} builder;

static set join(builder *b, set x, set y)
{
    set out = {.at = arena_alloc(b->mem, (size_t)(x.n + y.n) + 1, sizeof(int))};
    int i = 0, j = 0;

    if (!out.at) {
        b->failed = true;
        return out;
    }
    while (i < x.n || j < y.n) {
        int v = j == y.n || (i < x.n && x.at[i] <= y.at[j]) ? x.at[i] : y.at[j];

        i += i < x.n && x.at[i] == v;
        j += j < y.n && y.at[j] == v;
        out.at[out.n++] = v;
    }
    return out;
}

/* What ends with a position of `from` may go on with one of `to`. */
static void connect(builder *b, set from, set to)
{
    for (int i = 0; i < from.n && !b->failed; i++) {
        position *p = &b->a->pos[from.at[i]];
        set all = join(b, (set){p->next, p->n_next}, to);

        b->n_edges += all.n;
        if (b->n_edges > MAX_EDGES)
            b->failed = true;
        p->next = all.at;
        p->n_next = all.n;
    }
}

static piece build(builder *b, const ebnf_node *v);

static piece concat(builder *b, piece x, piece y)
{
    piece out = {.nullable = x.nullable && y.nullable};

    connect(b, x.last, y.first);
    out.first = x.nullable ? join(b, x.first, y.first) : x.first;
    out.last = y.nullable ? join(b, x.last, y.last) : y.last;
    return out;
}

static piece build_class(builder *b, const ebnf_node *v)
{
    piece out = {0};
    int *at = arena_alloc(b->mem, 1, sizeof *at);

    if (!at || b->a->n == b->cap) {
        b->failed = true;
        return out;
    }
    *at = b->a->n;
    b->a->pos[b->a->n++].cls = v;
    out.first = out.last = (set){at, 1};
    return out;
}

/* lo copies in a row, then hi - lo that may be absent, or a loop over the last one. */
static piece build_rep(builder *b, const ebnf_node *v)
{
    piece out = {.nullable = true}, one;
    int32_t n = v->hi == EBNF_MANY ? (v->lo > 0 ? v->lo : 1) : v->hi;

    for (int32_t i = 0; i < n && !b->failed; i++) {
        one = build(b, v->child);
        if (v->hi == EBNF_MANY && i == n - 1)
            connect(b, one.last, one.first);
        if (i >= v->lo)
            one.nullable = true;
        out = i ? concat(b, out, one) : one;
        if (one.first.n == 0)
            break; /* the empty text, however often */
    }
    if (v->lo == 0)
        out.nullable = true;
    return out;
}

static piece build(builder *b, const ebnf_node *v)
{
    piece out = {0}, one;

    if (b->failed)
        return out;
    switch (v->type) {
    case EBNF_CLASS:
        return build_class(b, v);
    case EBNF_SEQ:
        out.nullable = true;
        for (const ebnf_node *c = v->child; c && !b->failed; c = c->next)
            out = concat(b, out, build(b, c));
        return out;
    case EBNF_ALT:
        for (const ebnf_node *c = v->child; c && !b->failed; c = c->next) {
            one = build(b, c);
            out.nullable = out.nullable || one.nullable;
            out.first = join(b, out.first, one.first);
            out.last = join(b, out.last, one.last);
        }
        return out;
    case EBNF_REP:
        return build_rep(b, v);
    case EBNF_REF:
        return build(b, v->rule->body);
    case EBNF_TERM:
        break;
    }
    b->failed = true;
    return out;
}

ebnf_auto *ebnf_auto_new(arena *mem, const ebnf_node *v)
{
    ebnf_auto *a = arena_alloc(mem, 1, sizeof *a);
    builder b = {.mem = mem, .a = a, .cap = MAX_POSITIONS};
    piece all;

    if (!a || !(a->pos = arena_alloc(mem, MAX_POSITIONS, sizeof *a->pos)))
        return NULL;
    all = build(&b, v);
    if (b.failed)
        return NULL;
    a->nullable = all.nullable;
    a->first = all.first.at;
    a->n_first = all.first.n;
    for (int i = 0; i < all.last.n; i++)
        a->pos[all.last.at[i]].last = true;
    return a;
}

bool ebnf_auto_nullable(const ebnf_auto *a)
{
    return a->nullable;
}

bool ebnf_auto_empty(const ebnf_auto *a)
{
    return a->n_first == 0;
}

/* ---- clashes ---- */

static bool overlap(const ebnf_node *x, const ebnf_node *y)
{
    for (int i = 0, j = 0; i < x->n_ranges && j < y->n_ranges;) {
        if (x->range[i].hi < y->range[j].lo)
            i++;
        else if (y->range[j].hi < x->range[i].lo)
            j++;
        else
            return true;
    }
    return false;
}

/* Pairs of positions that one text leads to, each looked at once. */
typedef struct pairs {
    const ebnf_auto *a, *b;
    uint8_t *seen; /* [a->n][b->n] */
    int *stack;
    int n;
    long *budget;
} pairs;

static void push_common(pairs *p, const int *x, int nx, const int *y, int ny)
{
    *p->budget -= (long)nx * ny;
    for (int i = 0; i<nx && * p->budget> 0; i++)
        for (int j = 0; j < ny; j++) {
            int at = x[i] * p->b->n + y[j];

            if (p->seen[at] || !overlap(p->a->pos[x[i]].cls, p->b->pos[y[j]].cls))
                continue;
            p->seen[at] = 1;
            p->stack[p->n++] = at;
        }
}

/* A text of a ends here, and b can go on with what begins a text of `next`. */
static bool goes_on(const pairs *p, int bi, ebnf_auto *const *next, int n_next)
{
    const position *b = &p->b->pos[bi];

    for (int i = 0; i < b->n_next; i++)
        for (int k = 0; k < n_next; k++)
            for (int f = 0; f < next[k]->n_first; f++)
                if (--*p->budget <= 0 ||
                    overlap(p->b->pos[b->next[i]].cls, next[k]->pos[next[k]->first[f]].cls))
                    return true;
    return false;
}

bool ebnf_auto_clash(arena *mem, const ebnf_auto *a, const ebnf_auto *b, ebnf_auto *const *next,
                     int n_next, long *budget)
{
    size_t n = (size_t)a->n * (size_t)b->n;
    pairs p = {.a = a, .b = b, .budget = budget};

    *budget -= (long)n / 16; /* memory costs too */
    if (*budget <= 0)
        return true;
    p.seen = arena_alloc(mem, n + 1, 1);
    p.stack = arena_alloc(mem, n + 1, sizeof *p.stack);
    if (!p.seen || !p.stack)
        return true;
    push_common(&p, a->first, a->n_first, b->first, b->n_first);
    while (p.n > 0) {
        int at = p.stack[--p.n], ai = at / b->n, bi = at % b->n;

        if (a->pos[ai].last && goes_on(&p, bi, next, n_next))
            return true;
        push_common(&p, a->pos[ai].next, a->pos[ai].n_next, b->pos[bi].next, b->pos[bi].n_next);
        if (*budget <= 0)
            return true;
    }
    return false;
}
