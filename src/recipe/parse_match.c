/* Several KMP automata side by side over bytes that know whether they are control tokens. */
#include <string.h>

#include "base/mem.h"
#include "recipe/parse_internal.h"

static bool set_symbols(pattern *p, size_t control_begin, size_t control_end)
{
    p->symbol = mem_try_calloc(2 * p->n, sizeof *p->symbol);
    if (!p->symbol)
        return false;
    p->fail = p->symbol + p->n;
    for (size_t i = 0; i < p->n; i++) {
        unsigned c = (unsigned char)p->text[i];

        if (i >= control_begin && i < control_end)
            c |= SYMBOL_CONTROL;
        p->symbol[i] = (uint16_t)c;
    }
    for (size_t i = 1, k = 0; i < p->n; i++) {
        while (k && p->symbol[i] != p->symbol[k])
            k = p->fail[k - 1];
        k += p->symbol[i] == p->symbol[k];
        p->fail[i] = (uint16_t)k;
    }
    return true;
}

bool matcher_add(matcher *m, pattern p, size_t control_begin, size_t control_end)
{
    if (m->n == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 2;
        pattern *more = mem_try_realloc(m->pattern, cap, sizeof *more);

        if (!more)
            return false;
        m->pattern = more;
        m->cap = cap;
    }
    if (p.n == 0 || p.n > UINT16_MAX || !set_symbols(&p, control_begin, control_end))
        return false;
    m->pattern[m->n++] = p;
    return true;
}

void matcher_fini(matcher *m)
{
    for (size_t i = 0; i < m->n; i++)
        mem_free(m->pattern[i].symbol);
    mem_free(m->pattern);
    *m = (matcher){0};
}

/* One automaton takes one symbol; true when the pattern is complete. */
static bool step(const pattern *p, match_state *s, unsigned symbol, unsigned mask)
{
    size_t before = s->at;

    while (s->at && (p->symbol[s->at] & mask) != (symbol & mask))
        s->at = p->fail[s->at - 1];
    if ((p->symbol[s->at] & mask) == (symbol & mask))
        s->at++;
    if (p->newlines && s->at == 0) {
        /* Newlines count as long as nothing else stands between them and the marker. */
        s->newlines = symbol == '\n' ? (before ? 1 : s->newlines + 1) : 0;
    } else if (p->newlines && s->at <= before) {
        s->newlines = 0;
    }
    return s->at == p->n;
}

int matcher_step(const matcher *m, match_state *s, unsigned symbol, bool by_token, size_t *len)
{
    int found = -1;

    for (size_t i = 0; i < m->n; i++) {
        const pattern *p = &m->pattern[i];
        unsigned mask = by_token && !p->any_token ? 0xFF | SYMBOL_CONTROL : 0xFF;

        if (step(p, &s[i], symbol, mask) && found < 0) {
            found = (int)i;
            *len = s[i].at + s[i].newlines;
        }
        if (s[i].at == p->n) /* complete, but another one came first */
            s[i].at = p->fail[p->n - 1];
    }
    return found;
}

size_t matcher_pending(const matcher *m, const match_state *s)
{
    size_t most = 0;

    for (size_t i = 0; i < m->n; i++) {
        size_t n = (size_t)s[i].at + s[i].newlines;

        if (n > most)
            most = n;
    }
    return most;
}
