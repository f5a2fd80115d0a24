/* Set-up of constraints for one tokenizer. See grammar.h. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/grammar_internal.h"

const char *grammar_fault_code(grammar_fault f, grammar_kind kind)
{
    switch (f) {
    case GRAMMAR_FAULT_SYNTAX:
        return kind == GRAMMAR_REGEX  ? "invalid_regex"
               : kind == GRAMMAR_EBNF ? "invalid_grammar"
                                      : "invalid_schema";
    case GRAMMAR_FAULT_UNSUPPORTED:
        return "unsupported_keyword";
    case GRAMMAR_FAULT_UNSAT:
        return "unsatisfiable";
    case GRAMMAR_FAULT_LIMIT:
        return "too_complex";
    case GRAMMAR_FAULT_CANCELLED:
        return "cancelled";
    case GRAMMAR_FAULT_UNAVAILABLE:
        return "constrained_output_unavailable";
    case GRAMMAR_FAULT_NONE:
    case GRAMMAR_FAULT_INTERNAL:
        break;
    }
    return "internal_error";
}

di_code fault(grammar_detail *d, di_status *st, grammar_fault kind, const char *pointer,
              const char *keyword, const char *fmt, ...)
{
    static const di_code codes[] = {
        [GRAMMAR_FAULT_NONE] = DI_E_NOMEM,          [GRAMMAR_FAULT_SYNTAX] = DI_E_INVALID,
        [GRAMMAR_FAULT_UNSUPPORTED] = DI_E_INVALID, [GRAMMAR_FAULT_UNSAT] = DI_E_INVALID,
        [GRAMMAR_FAULT_LIMIT] = DI_E_INVALID,       [GRAMMAR_FAULT_CANCELLED] = DI_E_CANCELLED,
        [GRAMMAR_FAULT_INTERNAL] = DI_E_INTERNAL,   [GRAMMAR_FAULT_UNAVAILABLE] = DI_E_UNSUPPORTED,
    };
    char message[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    if (d && d->fault == GRAMMAR_FAULT_NONE) {
        d->fault = kind;
        snprintf(d->pointer, sizeof d->pointer, "%s", pointer ? pointer : "");
        snprintf(d->keyword, sizeof d->keyword, "%s", keyword ? keyword : "");
    }
    return di_fail(st, codes[kind], "%s", message);
}

/* Tokens of the vocabulary: text that a model may write anywhere. */
static void mark_plain(grammar *g)
{
    int n = tokenizer_n_ids(g->tok);

    for (int id = 0; id < g->vocab && id < n; id++) {
        size_t len;
        const char *s = tokenizer_bytes(g->tok, id, &len);

        if (s && len > 0 && !tokenizer_is_added(g->tok, id))
            g->plain_row[id / 32] |= 1u << (id % 32);
    }
}

/* Id of a control token that logits have, or -1. */
static int32_t control_id(const grammar *g, const char *spelling)
{
    int32_t id = tokenizer_added_id(g->tok, spelling);

    return id < g->vocab ? id : -1;
}

static di_code check_eos(int vocab, const int32_t *eos, int n_eos, di_status *st)
{
    if (n_eos < 1 || n_eos > MAX_EOS)
        return di_fail(st, DI_E_INVALID, "constraints need 1 to %d ids that end a sequence, not %d",
                       MAX_EOS, n_eos);
    for (int i = 0; i < n_eos; i++)
        if (eos[i] < 0 || eos[i] >= vocab)
            return di_fail(st, DI_E_INVALID,
                           "id %d, which ends a sequence, is outside the vocabulary of %d", eos[i],
                           vocab);
    return DI_OK;
}

di_code grammar_new(grammar **out, const tokenizer *tok, int vocab, const int32_t *eos, int n_eos,
                    const grammar_options *opt, di_status *st)
{
    grammar *g;
    di_code rc = check_eos(vocab, eos, n_eos, st);

    *out = NULL;
    if (rc != DI_OK)
        return rc;
    g = mem_try_calloc(1, sizeof *g);
    if (!g)
        return di_fail(st, DI_E_NOMEM, "no memory for constraints");
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    g->tok = tok;
    g->vocab = vocab;
    g->n_words = ((size_t)vocab + 31) / 32;
    memcpy(g->eos, eos, (size_t)n_eos * sizeof *eos);
    g->n_eos = n_eos;
    g->opt = opt ? *opt : (grammar_options){0};
    g->library = g->opt.library ? mem_try_strdup(g->opt.library) : NULL;
    g->plain_row = mem_try_calloc(g->n_words, sizeof *g->plain_row);
    if (!g->plain_row || (g->opt.library && !g->library)) {
        rc = di_fail(st, DI_E_NOMEM, "no memory for constraints");
        goto done;
    }
    g->opt.cache_bytes = g->opt.cache_bytes ? g->opt.cache_bytes : (size_t)512 << 20;
    g->opt.n_threads = g->opt.n_threads > 0 ? g->opt.n_threads : 2;
    g->opt.compile_ms = g->opt.compile_ms > 0 ? g->opt.compile_ms : 2000;
    mark_plain(g);
    g->think_begin = control_id(g, "<think>");
    g->think_end = control_id(g, "</think>");
    g->dsml = control_id(g, "｜DSML｜");
    DI_TRY(cache_new(&g->cache, g, st));
    *out = g;
    g = NULL;
done:
    grammar_free(g);
    return rc;
}

grammar *env_ref(grammar *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void env_unref(grammar *g)
{
    /* acq_rel: the last one sees all that the others did with it */
    if (atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) > 1)
        return;
    if (g->llg_tok)
        g->llg->free_tokenizer(g->llg_tok);
    pthread_mutex_destroy(&g->lock);
    mem_free(g->plain_row);
    mem_free(g->library);
    mem_free(g);
}

void grammar_free(grammar *g)
{
    if (!g)
        return;
    cache_free(g->cache);
    env_unref(g);
}

di_code grammar_prepare(grammar *g, di_status *st)
{
    const llg_api *api;
    di_code rc;

    pthread_mutex_lock(&g->lock);
    if (!g->tried) {
        g->tried = true;
        rc = llg_open(g->library, &api, &g->failure);
        if (rc == DI_OK)
            rc = llg_make_tokenizer(api, g, &g->llg_tok, &g->failure);
        if (rc == DI_OK)
            g->llg = api;
        g->tried = rc != DI_E_NOMEM;
    }
    rc = g->llg ? DI_OK : di_fail(st, g->failure.code, "%s", g->failure.message);
    if (!g->tried)
        di_clear(&g->failure);
    pthread_mutex_unlock(&g->lock);
    return rc;
}
