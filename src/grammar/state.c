/* A constrained sequence: the gate in front of the grammar, and the matcher behind it.
 *
 *   THINK --"</think>"--> ACTIVE --end of sequence--> DONE
 *         <--rollback--          <--rollback--
 *
 * THINK: the answer begins with reasoning. The grammar does not move; every token of the vocabulary
 * may come, no control token but "</think>", which is not fed to the grammar either.
 * ACTIVE: every token is fed. Control tokens may not come, whatever the grammar says, but the end
 * of sequence and, for tools, ｜DSML｜. A state that begins behind "</think>" starts in ACTIVE.
 *
 * All that changes is three positions in the sequence of accepted tokens, so taking tokens back is
 * arithmetic; the matcher takes back its own bytes. */
#include <string.h>

#include "base/mem.h"
#include "grammar/grammar_internal.h"

struct grammar_state {
    grammar_prog *prog;
    llg_matcher *m;
    int64_t len;          /* accepted tokens */
    int64_t active_at;    /* accepted tokens when the grammar started; -1 = in THINK */
    int64_t calls_at;     /* index of the first ｜DSML｜, -1 = none */
    bool started_active;  /* THINK never was */
    bool done;            /* the last token was the end of sequence */
    int64_t think_budget; /* 0 = none */
    int64_t row_at;       /* `row` belongs to this length, -1 = none */
    uint32_t *row;        /* [words] */
};

static bool get_bit(const uint32_t *row, int32_t id)
{
    return row[id / 32] >> (id % 32) & 1;
}

static void set_bit(uint32_t *row, int32_t id)
{
    row[id / 32] |= 1u << (id % 32);
}

static bool is_eos(const grammar *g, int32_t id)
{
    for (int i = 0; i < g->n_eos; i++)
        if (g->eos[i] == id)
            return true;
    return false;
}

size_t grammar_mask_words(const grammar_prog *p)
{
    return p->g->n_words;
}

/* ---- life ---- */

/* A matcher at its beginning, NULL when out of memory: a spare that has seen much, or a copy. The
 * last spare is copied and stays, so that what it knows is not lost. */
static llg_matcher *take_matcher(grammar_prog *p)
{
    const llg_api *llg = p->g->llg;
    llg_matcher *m;

    pthread_mutex_lock(&p->lock);
    if (p->n_spares > 1)
        m = p->spare[--p->n_spares];
    else
        m = llg->clone_matcher(p->n_spares ? p->spare[0] : p->base);
    pthread_mutex_unlock(&p->lock);
    return m;
}

static void give_matcher(grammar_prog *p, llg_matcher *m)
{
    const llg_api *llg = p->g->llg;

    if (!llg->matcher_get_error(m) && llg->matcher_reset(m) == 0) {
        pthread_mutex_lock(&p->lock);
        if (p->n_spares < MAX_SPARES) {
            p->spare[p->n_spares++] = m;
            m = NULL;
        }
        pthread_mutex_unlock(&p->lock);
    }
    if (m)
        llg->free_matcher(m);
}

di_code grammar_state_new(grammar_prog *p, const grammar_start *start, grammar_state **out,
                          di_status *st)
{
    const grammar *g = p->g;
    grammar_state *s = mem_try_calloc(1, sizeof *s);
    bool thinks =
        start && g->think_end >= 0 &&
        (start->in_reasoning || (g->think_begin >= 0 && start->last_token == g->think_begin));

    *out = NULL;
    if (!s || !(s->row = mem_try_calloc(g->n_words, sizeof *s->row)) || !(s->m = take_matcher(p))) {
        if (s)
            mem_free(s->row);
        mem_free(s);
        return di_fail(st, DI_E_NOMEM, "no memory for a constraint");
    }
    s->prog = grammar_prog_ref(p);
    s->started_active = !thinks;
    s->active_at = thinks ? -1 : 0;
    s->calls_at = -1;
    s->row_at = -1;
    s->think_budget = start ? start->think_budget : 0;
    *out = s;
    return DI_OK;
}

grammar_state *grammar_state_clone(const grammar_state *s)
{
    size_t n = s->prog->g->n_words;
    grammar_state *c = mem_try_calloc(1, sizeof *c);
    uint32_t *row = mem_try_calloc(n, sizeof *row);
    llg_matcher *m = c && row ? s->prog->g->llg->clone_matcher(s->m) : NULL;

    if (!m) {
        mem_free(c);
        mem_free(row);
        return NULL;
    }
    *c = *s;
    c->row = row;
    memcpy(row, s->row, n * sizeof *row);
    c->m = m;
    grammar_prog_ref(c->prog);
    return c;
}

void grammar_state_free(grammar_state *s)
{
    if (!s)
        return;
    give_matcher(s->prog, s->m);
    grammar_prog_unref(s->prog);
    mem_free(s->row);
    mem_free(s);
}

const char *grammar_state_error(grammar_state *s)
{
    return s->prog->g->llg->matcher_get_error(s->m);
}

/* ---- rows ---- */

static void fill_think(const grammar_state *s, uint32_t *row)
{
    const grammar *g = s->prog->g;

    if (s->think_budget > 0 && s->len >= s->think_budget)
        memset(row, 0, g->n_words * sizeof *row);
    else
        memcpy(row, g->plain_row, g->n_words * sizeof *row);
    set_bit(row, g->think_end);
}

static void fill_eos(const grammar *g, uint32_t *row)
{
    memset(row, 0, g->n_words * sizeof *row);
    for (int i = 0; i < g->n_eos; i++)
        set_bit(row, g->eos[i]);
}

/* The grammar's row without control tokens; false when nothing is left. */
static bool fill_active(grammar_state *s, uint32_t *row)
{
    const grammar *g = s->prog->g;
    size_t bytes = g->n_words * sizeof *row;
    bool end, call;
    uint32_t any = 0;

    if (g->llg->matcher_compute_mask_into(s->m, row, bytes) != 0) {
        memset(row, 0, bytes);
        return false;
    }
    end = get_bit(row, g->eos[0]);
    call = s->prog->calls && get_bit(row, g->dsml);
    for (size_t w = 0; w < g->n_words; w++)
        any |= row[w] &= g->plain_row[w];
    if (call)
        set_bit(row, g->dsml);
    for (int i = 0; end && i < g->n_eos; i++)
        set_bit(row, g->eos[i]);
    return any || call || end;
}

/* The row of the current length, computed at most once. */
static bool own_row(grammar_state *s)
{
    bool some = true;

    if (s->row_at == s->len)
        return true;
    if (s->active_at < 0)
        fill_think(s, s->row);
    else if (s->done)
        fill_eos(s->prog->g, s->row);
    else
        some = fill_active(s, s->row);
    s->row_at = some ? s->len : -1;
    return some;
}

bool grammar_fill(grammar_state *s, uint32_t *row)
{
    bool some = own_row(s);

    memcpy(row, s->row, s->prog->g->n_words * sizeof *row);
    return some;
}

/* ---- tokens ---- */

/* Tokens of the vocabulary and, for tools, ｜DSML｜. */
static bool may_write(const grammar_state *s, int32_t token)
{
    const grammar *g = s->prog->g;

    return get_bit(g->plain_row, token) || (s->prog->calls && token == g->dsml);
}

/* Whether the grammar takes a token. */
static bool takes(grammar_state *s, int32_t token)
{
    const grammar *g = s->prog->g;
    uint32_t id = (uint32_t)token;

    if (!may_write(s, token))
        return false;
    if (s->row_at == s->len && get_bit(s->row, token))
        return true;
    return g->llg->matcher_validate_tokens(s->m, &id, 1) == 1;
}

static bool accept_active(grammar_state *s, int32_t token)
{
    const grammar *g = s->prog->g;

    if (s->done)
        return false;
    if (is_eos(g, token)) {
        if (!grammar_can_stop(s))
            return false;
        s->done = true;
    } else if (!takes(s, token) || g->llg->matcher_consume_token(s->m, (uint32_t)token) != 0) {
        return false;
    }
    if (token == g->dsml && s->calls_at < 0)
        s->calls_at = s->len;
    return true;
}

bool grammar_accept(grammar_state *s, int32_t token)
{
    const grammar *g = s->prog->g;

    if (token < 0 || token >= g->vocab)
        return false;
    if (s->active_at >= 0) {
        if (!accept_active(s, token))
            return false;
    } else if (token == g->think_end) {
        s->active_at = s->len + 1;
    } else if (!get_bit(g->plain_row, token)) {
        return false;
    }
    s->len++;
    s->row_at = -1;
    return true;
}

void grammar_rollback(grammar_state *s, int n)
{
    int64_t len = s->len - n, fed = s->active_at < 0 ? 0 : s->len - s->active_at - s->done;
    int64_t keep = s->active_at < 0 || len < s->active_at ? 0 : len - s->active_at;

    DI_CHECK(n >= 0 && len >= 0);
    if (n == 0)
        return;
    /* A failure is the matcher's for good: the next row says so. */
    if (fed > keep)
        (void)s->prog->g->llg->matcher_rollback(s->m, (size_t)(fed - keep));
    s->done = false;
    s->len = len;
    s->row_at = -1;
    if (!s->started_active && len < s->active_at)
        s->active_at = -1;
    if (s->calls_at >= len)
        s->calls_at = -1;
}

int grammar_valid_prefix(grammar_state *s, const int32_t *token, int n)
{
    int m = 0;

    while (m < n && grammar_accept(s, token[m]))
        m++;
    grammar_rollback(s, m);
    return m;
}

int grammar_fill_draft(grammar_state *s, const int32_t *draft, int k, uint32_t *rows)
{
    size_t words = s->prog->g->n_words;
    int m = 0;

    while (grammar_fill(s, rows + (size_t)m * words) && m < k && grammar_accept(s, draft[m]))
        m++;
    grammar_rollback(s, m);
    return m;
}

int grammar_forced(grammar_state *s, int32_t *token, int cap)
{
    const grammar *g = s->prog->g;
    int n;

    if (s->active_at < 0 || s->done || cap <= 0 || g->llg->matcher_is_stopped(s->m))
        return 0;
    /* Ids are below 2^31: the same bits either way. */
    n = g->llg->matcher_compute_ff_tokens(s->m, (uint32_t *)token, (size_t)cap);
    for (int i = 0; i < n; i++)
        if (token[i] < 0 || token[i] >= g->vocab || !may_write(s, token[i]))
            return i;
    return n > 0 ? n : 0;
}

/* ---- ends ---- */

bool grammar_can_stop(grammar_state *s)
{
    if (s->active_at < 0)
        return false;
    return s->done || s->prog->g->llg->matcher_is_accepting(s->m);
}

bool grammar_must_stop(grammar_state *s)
{
    const llg_api *llg = s->prog->g->llg;

    if (s->active_at < 0)
        return false;
    return s->done || (llg->matcher_is_stopped(s->m) && !llg->matcher_get_error(s->m));
}

bool grammar_in_calls(const grammar_state *s)
{
    return s->calls_at >= 0;
}
