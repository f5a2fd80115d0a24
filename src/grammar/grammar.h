/* Constraints on what a model writes: JSON Schema, regex, EBNF, DSML tool calls -> token masks.
 *
 *   grammar_new(&g, tok, vocab, &eos, 1, NULL, &st);
 *   grammar_compile(g, &(grammar_spec){.kind = GRAMMAR_JSON, .text = schema, .n = n}, &prog, &d,
 * &st); grammar_state_new(prog, &(grammar_start){.last_token = last}, &state, &st); params.mask =
 * &grammar_provider;  params.mask_ctx = state;  di_submit(...);
 *
 * The mask of a state is a pure function of its program and of the tokens it has accepted: not of
 * other states, threads, drafts or time. One layer owns reasoning: while a state is in thinking its
 * grammar does not move (state.c). The engine behind is the llguidance library,
 * opened at run time (grammar_llg.c); where it is absent every compile call fails with
 * DI_E_UNSUPPORTED.
 *
 * Thread: a grammar and its programs may be used by any number of threads; a state by one at a
 * time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "deepinfer/deepinfer.h"
#include "tokenizer/tokenizer.h"

typedef struct grammar grammar;             /* of one tokenizer: cache, compile threads */
typedef struct grammar_prog grammar_prog;   /* a compiled constraint; immutable, counted */
typedef struct grammar_state grammar_state; /* of one sequence */

typedef enum grammar_kind {
    GRAMMAR_JSON,              /* text: a JSON Schema; empty = any JSON value */
    GRAMMAR_JSON_OBJECT,       /* any JSON object */
    GRAMMAR_REGEX,             /* text: a regular expression; the whole answer matches */
    GRAMMAR_EBNF,              /* text: a grammar, start rule "root" (docs/constraints.md) */
    GRAMMAR_TOOL_CALL,         /* text: JSON list of tools; free text, calls are well formed */
    GRAMMAR_TOOL_CALL_REQUIRED /* text: the same; the answer is one block of calls */
} grammar_kind;

/* What is wrong, in the terms of docs/constraints.md. */
typedef enum grammar_fault {
    GRAMMAR_FAULT_NONE,
    GRAMMAR_FAULT_SYNTAX,      /* not a schema, regex or grammar */
    GRAMMAR_FAULT_UNSUPPORTED, /* a keyword that cannot be honoured */
    GRAMMAR_FAULT_UNSAT,       /* no finite text fits */
    GRAMMAR_FAULT_LIMIT,       /* too large */
    GRAMMAR_FAULT_CANCELLED,
    GRAMMAR_FAULT_INTERNAL,   /* the library failed */
    GRAMMAR_FAULT_UNAVAILABLE /* the library is absent */
} grammar_fault;

/* The offender, as far as it is known; strings may be empty. */
typedef struct grammar_detail {
    grammar_fault fault;
    char pointer[256]; /* JSON pointer into the schema */
    char keyword[64];
    char tool[65];  /* name of the tool whose schema it is */
    int64_t offset; /* byte of a regex or grammar, -1 = none */
} grammar_detail;

/* Error code for clients: "invalid_schema", "unsupported_keyword", ... Static storage. */
const char *grammar_fault_code(grammar_fault fault, grammar_kind kind);

/* Zero-initialise and set what matters. */
typedef struct grammar_options {
    const char *library; /* path of the library; NULL = DI_LLGUIDANCE, then beside the program */
    size_t cache_bytes;  /* of programs that nothing uses; 0 = 512 MiB */
    int n_threads;       /* that compile; 0 = 2 */
    int compile_ms;      /* processor time of a compilation; 0 = 2,000 */
} grammar_options;

/* Set up for a tokenizer (borrowed until grammar_free) and logits of `vocab` entries. `eos`: ids
 * that end a sequence, the first one is the usual one. The library is opened at the first use.
 * Errors: INVALID (no eos, or ids outside), NOMEM, IO (threads). */
di_code grammar_new(grammar **out, const tokenizer *tok, int vocab, const int32_t *eos, int n_eos,
                    const grammar_options *opt, di_status *st);
/* Compilations in the background get CANCELLED. Programs and states that are left may only be
 * freed, also after the tokenizer is gone. NULL is fine. */
void grammar_free(grammar *g);

/* Open the library and build its tables for this tokenizer now (0.3 s and 60 MB for 129,280 ids)
 * instead of at the first constraint. Errors: UNSUPPORTED (absent, or another version: says where
 * it was looked for), NOMEM. */
di_code grammar_prepare(grammar *g, di_status *st);

/* What becomes of a keyword that cannot be honoured: refused where the schema or tool says strict
 * and dropped with a warning elsewhere; always refused; always dropped. */
typedef enum grammar_policy {
    GRAMMAR_POLICY_FOLLOW,
    GRAMMAR_POLICY_STRICT,
    GRAMMAR_POLICY_LENIENT
} grammar_policy;

typedef struct grammar_spec {
    grammar_kind kind;
    const char *text; /* n bytes; copied */
    size_t n;
    bool strict; /* of a schema; of tools: of all, else each one's own "strict" counts */
    grammar_policy policy;
    bool compact;       /* JSON without white space between tokens */
    int max_whitespace; /* white space characters in a row in JSON; 0 = 32 */
    const char *tool;   /* tool kinds: the only tool that may be called, or NULL */
    bool single_call;   /* tool kinds: one call at most */
} grammar_spec;

/* Compile, or find in the cache. One thread compiles a given text, others wait for it; failures are
 * remembered for a minute. *detail may be NULL. Release with grammar_prog_unref.
 * Errors: INVALID (the text: *detail says what), UNSUPPORTED (library), CANCELLED (processor time),
 * NOMEM, INTERNAL. */
di_code grammar_compile(grammar *g, const grammar_spec *spec, grammar_prog **out,
                        grammar_detail *detail, di_status *st);

/* Called once on a compile thread; prog is the callee's to release, NULL on failure. */
typedef void (*grammar_done)(void *arg, grammar_prog *prog, const grammar_detail *detail,
                             const di_status *st);

/* Compile in the background. *ticket (not 0) is for grammar_cancel. Errors: NOMEM; then `done` is
 * not called. */
di_code grammar_compile_start(grammar *g, const grammar_spec *spec, grammar_done done, void *arg,
                              uint64_t *ticket, di_status *st);
/* Nobody wants the result any more: `done` is called with CANCELLED before this returns, unless it
 * has been called, or is being called. */
void grammar_cancel(grammar *g, uint64_t ticket);

grammar_prog *grammar_prog_ref(grammar_prog *p);
void grammar_prog_unref(grammar_prog *p); /* accepts NULL */
/* What was dropped: a JSON list of {"pointer", "keyword"} and, for tools, "tool"; "[]" when
 * nothing. */
const char *grammar_prog_warnings(const grammar_prog *p);

typedef struct grammar_cache_counts {
    uint64_t hits, misses, evicted;
    size_t n_progs, bytes;
} grammar_cache_counts;
grammar_cache_counts grammar_get_counts(grammar *g);

/* ---- states ---------------------------------------------------------------------------------- */

typedef struct grammar_start {
    int32_t last_token;   /* of the prompt: "<think>" = the answer begins with reasoning; -1 */
    bool in_reasoning;    /* the prompt ends inside reasoning, whatever its last token */
    int64_t think_budget; /* reasoning tokens after which "</think>" is forced; 0 = no limit */
} grammar_start;

/* Errors: NOMEM, INTERNAL. */
di_code grammar_state_new(grammar_prog *p, const grammar_start *start, grammar_state **out,
                          di_status *st);
grammar_state *grammar_state_clone(const grammar_state *s); /* NULL when out of memory */
void grammar_state_free(grammar_state *s);                  /* accepts NULL */

/* Words of a mask: ceil(vocab / 32); bit t % 32 of word t / 32 allows token t. */
size_t grammar_mask_words(const grammar_prog *p);

/* Fill row[grammar_mask_words]: the tokens that may come next. False = dead end: nothing may (the
 * row is zero; grammar_state_error says why). */
bool grammar_fill(grammar_state *s, uint32_t *row);
/* Take a token. False = not allowed here; the state is as it was. */
bool grammar_accept(grammar_state *s, int32_t token);
/* How many of these tokens could be taken; the state is as it was. */
int grammar_valid_prefix(grammar_state *s, const int32_t *token, int n);
/* Take back the last n accepted tokens (n <= all of them), also over the end of the text and over
 * the end of reasoning. */
void grammar_rollback(grammar_state *s, int n);
/* Rows for a draft of k tokens: rows[m + 1][words] behind the m tokens that may be taken; returns m
 * <= k. The state is as it was. */
int grammar_fill_draft(grammar_state *s, const int32_t *draft, int k, uint32_t *rows);
/* Tokens that must come next, at most cap; the state is as it was. */
int grammar_forced(grammar_state *s, int32_t *token, int cap);

bool grammar_can_stop(grammar_state *s);  /* the text may end here */
bool grammar_must_stop(grammar_state *s); /* ... and nothing else may come */
/* Inside a block of tool calls: stop strings do not count there. */
bool grammar_in_calls(const grammar_state *s);
/* Why the state is of no use any more; NULL = it is fine. Valid until the state goes. */
const char *grammar_state_error(grammar_state *s);

/* A state as a constraint of the engine: mask_ctx is a grammar_state, which di_submit takes over.
 */
extern const di_mask_provider grammar_provider;
