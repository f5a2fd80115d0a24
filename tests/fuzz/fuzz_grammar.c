/* The input is a constraint: a digit for its kind, one for strict, compact and single call, then
 * the text. Our front end runs on all of it, the library behind where it is installed. What
 * compiles must let a walk of some tokens go on; what does not must say why. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "grammar/grammar_internal.h"

#define N_STEPS 12

static grammar *g;
static uint32_t *row;

static void set_up(void)
{
    tokenizer *tok;
    int32_t eos;
    di_status st = {0};

    if (tokenizer_load(&tok, "models/tiny/tokenizer.json", &st) != DI_OK) {
        fprintf(stderr, "fuzz_grammar: %s\n", st.message);
        abort();
    }
    eos = tokenizer_added_id(tok, "<｜end▁of▁sentence｜>");
    DI_CHECK(grammar_new(&g, tok, tokenizer_n_ids(tok), &eos, 1, NULL, &st) == DI_OK);
    row = mem_try_calloc(g->n_words, sizeof *row);
    DI_CHECK(row);
    if (grammar_prepare(g, &st) != DI_OK)
        fprintf(stderr, "fuzz_grammar: front end only: %s\n", st.message);
}

/* The first allowed token behind a place that depends on the step. */
static int32_t some_token(int step)
{
    for (int i = 0, id = step * 977 % g->vocab; i < g->vocab; i++, id = (id + 1) % g->vocab)
        if (row[id / 32] >> (id % 32) & 1)
            return id;
    return -1;
}

static void walk(grammar_prog *p)
{
    grammar_state *s;

    DI_CHECK(grammar_state_new(p, NULL, &s, NULL) == DI_OK);
    for (int i = 0; i < N_STEPS; i++) {
        int32_t id;

        if (!grammar_fill(s, row)) { /* a limit of the library: it says so */
            DI_CHECK(grammar_state_error(s));
            break;
        }
        id = some_token(i);
        DI_CHECK(id >= 0);
        if (!grammar_accept(s, id)) {
            DI_CHECK(grammar_state_error(s));
            break;
        }
        if (id == g->eos[0])
            break;
        if (i % 5 == 4 && !grammar_state_error(s))
            grammar_rollback(s, 3);
    }
    grammar_state_free(s);
}

/* What runs in front of the library. */
static void front_end(const grammar_spec *spec)
{
    warning_list w = {0};
    grammar_detail d = {.offset = -1};
    arena *mem = arena_new(0);
    const preflight p = {.mem = mem,
                         .detail = &d,
                         .warnings = &w,
                         .strict = spec->strict,
                         .compact = spec->compact,
                         .max_whitespace = 32};
    str out = {0};
    di_status st = {0};
    di_code rc = DI_OK;

    if (spec->kind == GRAMMAR_JSON)
        rc = preflight_schema(&p, spec->text, spec->n, false, &out, &st);
    else if (spec->kind == GRAMMAR_EBNF)
        rc = ebnf_to_lark(spec->text, spec->n, mem, &out, &d, &st);
    else if (spec->kind >= GRAMMAR_TOOL_CALL)
        rc = dsml_to_lark(&p, spec, g->dsml, &out, &st);
    DI_CHECK(rc == DI_OK || (st.message[0] && rc == st.code));
    str_fini(&out);
    str_fini(&w.json);
    arena_free(mem);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    grammar_spec spec;
    grammar_detail d = {.offset = -1};
    grammar_prog *p;
    di_status st = {0};
    di_code rc;

    if (!g)
        set_up();
    if (n < 2)
        return 0;
    spec = (grammar_spec){.kind = (grammar_kind)(data[0] % 7),
                          .text = (const char *)data + 2,
                          .n = n - 2,
                          .strict = data[1] & 1,
                          .compact = data[1] & 2,
                          .single_call = data[1] & 4};
    rc = prog_compile(g, &spec, &p, &d, &st);
    if (rc == DI_E_UNSUPPORTED)
        front_end(&spec);
    else if (rc == DI_OK)
        walk(p);
    else
        DI_CHECK(st.message[0] && d.fault != GRAMMAR_FAULT_NONE);
    grammar_prog_unref(p);
    return 0;
}
