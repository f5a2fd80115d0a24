/* What the files of the module share. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"
#include "grammar/grammar.h"
#include "grammar/stree.h"
#include "grammar/llg_abi.h"

#define MAX_SPEC_BYTES ((size_t)1 << 20)
#define MAX_SPARES     8
#define MAX_EOS        32

typedef struct cache cache;

struct grammar {
    atomic_int refs; /* the owner's, and one of each program */
    const tokenizer *tok;
    int vocab;
    size_t n_words;
    int32_t eos[MAX_EOS];
    int n_eos;
    int32_t think_begin, think_end, dsml; /* -1 = the tokenizer has none */
    uint32_t *plain_row;                  /* tokens of the vocabulary: no added ones, no holes */
    grammar_options opt;
    char *library; /* copy of opt.library, or NULL */

    pthread_mutex_t lock; /* of the next three */
    bool tried;
    di_status failure; /* of the attempt, when it failed */
    llg_tokenizer *llg_tok;
    const llg_api *llg; /* NULL until prepared */

    cache *cache;
};

struct grammar_prog {
    grammar *g;
    atomic_int refs;
    grammar_kind kind;
    bool calls;     /* ｜DSML｜ may be written */
    char *warnings; /* JSON list */
    size_t bytes;   /* estimate, for the bound of the cache */

    pthread_mutex_t lock; /* of the matchers */
    llg_matcher *base;
    llg_matcher *spare[MAX_SPARES];
    int n_spares;
};

/* ---- grammar.c ---- */

/* The last one to let go frees what programs and states need in order to end. */
grammar *env_ref(grammar *g);
void env_unref(grammar *g);

/* ---- llg.c: the only file that knows where the library comes from ---- */

/* The functions of the library at `path` (NULL: searched for), opened once per process.
 * Errors: UNSUPPORTED. Thread: any. */
di_code llg_open(const char *path, const llg_api **out, di_status *st);
/* Tables of the library for a tokenizer. Errors: NOMEM, UNSUPPORTED. */
di_code llg_make_tokenizer(const llg_api *api, const grammar *g, llg_tokenizer **out,
                           di_status *st);
/* Settings for a matcher. */
void llg_settings(const grammar *g, llg_init *init);

/* ---- compile.c ---- */

/* A new program with one reference, past any cache. Errors as grammar_compile. */
di_code prog_compile(grammar *g, const grammar_spec *spec, grammar_prog **out,
                     grammar_detail *detail, di_status *st);

/* Fail with a detail: code by fault, pointer and keyword may be NULL. */
di_code fault(grammar_detail *d, di_status *st, grammar_fault kind, const char *pointer,
              const char *keyword, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* ---- cache.c ---- */

di_code cache_new(cache **out, grammar *g, di_status *st);
void cache_free(cache *c); /* accepts NULL */

/* ---- preflight.c, pattern.c, ebnf.c, dsml.c ---- */

/* List of {"pointer", "keyword"} that was dropped, as JSON elements. */
typedef struct warning_list {
    str json; /* elements, comma between */
    const char *tool;
} warning_list;
void warning_add(warning_list *w, const char *pointer, const char *keyword);

typedef struct preflight {
    arena *mem;
    grammar_detail *detail;
    warning_list *warnings;
    bool strict, compact;
    int max_whitespace;
    /* Tools: whether the library takes a schema, tried for each when all together were refused;
     * NULL = not tried. */
    di_code (*probe)(const void *arg, const char *schema, grammar_detail *d, di_status *st);
    const void *probe_arg;
} preflight;

/* Whether a schema or tool is compiled strictly that says so itself (`own`) or does not. */
static inline bool is_strict(const grammar_spec *spec, bool own)
{
    return spec->policy == GRAMMAR_POLICY_STRICT || (spec->policy == GRAMMAR_POLICY_FOLLOW && own);
}

/* Check a schema, which is changed: keywords that cannot be honoured go, or are refused; nodes that
 * no finite value fits become false. Errors: INVALID with detail, NOMEM. */
di_code preflight_check(const preflight *p, snode *root, di_status *st);
/* Write a checked schema for the library, with our settings in it. lenient: it drops what it cannot
 * do. */
void preflight_write(const preflight *p, const snode *root, bool lenient, str *out);
/* Both, from text. */
di_code preflight_schema(const preflight *p, const char *text, size_t n, bool lenient, str *out,
                         di_status *st);

/* Check a regular expression (ECMA or Rust) for what the library does not: counts and a trailing
 * backslash. INVALID: *offset is the place, *why the reason. */
di_code pattern_check(const char *re, size_t n, grammar_fault *kind, int64_t *offset,
                      const char **why);

/* EBNF -> Lark. Errors: INVALID with detail, NOMEM. */
di_code ebnf_to_lark(const char *text, size_t n, arena *mem, str *out, grammar_detail *d,
                     di_status *st);

/* List of tools -> Lark; `dsml` is the id of the control token. Errors: INVALID, NOMEM. */
di_code dsml_to_lark(const preflight *p, const grammar_spec *spec, int32_t dsml, str *out,
                     di_status *st);
