/* The part of the C interface of llguidance 1.9 that we call: layouts and signatures, written from
 * its documentation. The tokenizer's structure carries its own size; the other one is filled by the
 * library itself before we set fields. Thread: see llg.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LLG_VERSION "llguidance@1.9."

typedef struct llg_tokenizer llg_tokenizer;
typedef struct llg_matcher llg_matcher;

/* Writes at most cap ids and returns how many there are. Any thread. */
typedef size_t (*llg_tokenize_fn)(const void *user, const uint8_t *bytes, size_t n, uint32_t *ids,
                                  size_t cap);

typedef struct llg_tokenizer_init {
    size_t struct_size;
    uint32_t vocab_size, tok_eos;
    const uint32_t *token_lens; /* [vocab_size] */
    const uint8_t *token_bytes; /* of all tokens, one behind the other */
    const char *tokenizer_json;
    bool tokenize_assumes_string; /* tokenize_fn is called with well-formed UTF-8 only */
    llg_tokenize_fn tokenize_fn;
    bool use_approximate_greedy_tokenize_fn;
    const void *tokenize_user_data;
    const char *const *slices; /* NULL = the library's choice */
    const uint32_t *tok_eos_extra;
    uint32_t tok_eos_extra_count;
} llg_tokenizer_init;

/* Counts, so that results do not depend on the speed of the machine. */
typedef struct llg_limits {
    size_t max_items_in_row;
    uint64_t initial_lexer_fuel, step_lexer_fuel;
    size_t step_max_items, max_lexer_states, max_grammar_size;
    bool precompute_large_lexemes, verbose_errors;
} llg_limits;

typedef struct llg_init {
    const llg_tokenizer *tokenizer;
    uint32_t log_buffer_level, log_stderr_level;
    bool ff_tokens_ok, backtrack_ok;
    llg_limits limits;
    uint64_t reserved[32]; /* room for what later versions of the library may fill */
} llg_init;

/* X(result, name, arguments): the functions, by their names without "llg_". */
#define LLG_FUNCTIONS(X)                                                                           \
    X(const char *, get_version, (void))                                                           \
    X(llg_tokenizer *, new_tokenizer_v2,                                                           \
      (const llg_tokenizer_init *init, char *error, size_t cap))                                   \
    X(void, free_tokenizer, (llg_tokenizer * t))                                                   \
    X(void, constraint_init_set_defaults, (llg_init * init, const llg_tokenizer *t))               \
    X(llg_matcher *, new_matcher, (const llg_init *init, const char *kind, const char *data))      \
    X(int32_t, validate_grammar,                                                                   \
      (const llg_init *init, const char *kind, const char *data, char *message, size_t cap))       \
    X(llg_matcher *, clone_matcher, (const llg_matcher *m))                                        \
    X(void, free_matcher, (llg_matcher * m))                                                       \
    X(const char *, matcher_get_error, (llg_matcher * m))                                          \
    X(int32_t, matcher_compute_mask_into, (llg_matcher * m, uint32_t * row, size_t bytes))         \
    X(int32_t, matcher_consume_token, (llg_matcher * m, uint32_t token))                           \
    X(int32_t, matcher_validate_tokens, (llg_matcher * m, const uint32_t *ids, size_t n))          \
    X(int32_t, matcher_rollback, (llg_matcher * m, size_t n))                                      \
    X(int32_t, matcher_reset, (llg_matcher * m))                                                   \
    X(bool, matcher_is_accepting, (llg_matcher * m))                                               \
    X(bool, matcher_is_stopped, (const llg_matcher *m))                                            \
    X(int32_t, matcher_compute_ff_tokens, (llg_matcher * m, uint32_t * ids, size_t cap))

#define LLG_POINTER(result, name, arguments) result(*name) arguments;
typedef struct llg_api {
    LLG_FUNCTIONS(LLG_POINTER)
} llg_api;
#undef LLG_POINTER
