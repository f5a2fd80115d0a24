/* Options of generate and chat that set how a text is drawn. Thread: main thread. */
#pragma once

#include "cli/options.h"
#include "cli/request.h"

typedef struct sampling_options {
    int64_t max_tokens, top_k, seed;
    double temperature, top_p, min_p, repetition, presence, frequency;
    bool has_seed, ignore_eos;
    const char *thinking, *effort;
    opt_list stop;
} sampling_options;

#define SAMPLING_DEFAULTS                                                                          \
    {                                                                                              \
        .max_tokens = -1, .temperature = 1, .top_p = 1, .repetition = 1, .thinking = "on",         \
        .effort = "high"                                                                           \
    }

extern const char *const sampling_on_off[];
extern const char *const sampling_efforts[];

/* clang-format off */
#define SAMPLING_OPTIONS(o)                                                                        \
    {.name = "max-tokens", .letter = 'n', .kind = OPT_INT, .to = &(o).max_tokens, .arg = "N",      \
     .help = "longest answer (default: what the context allows)", .min = 0, .max = 1 << 24},       \
    {.name = "temperature", .kind = OPT_REAL, .to = &(o).temperature, .arg = "X",                  \
     .help = "0 = always the most likely token (default: 1)", .min = 0, .max = 100},               \
    {.name = "top-p", .kind = OPT_REAL, .to = &(o).top_p, .arg = "X",                              \
     .help = "keep the likeliest tokens up to this mass (default: 1)", .min = 1e-9, .max = 1},     \
    {.name = "top-k", .kind = OPT_INT, .to = &(o).top_k, .arg = "N",                               \
     .help = "keep the N likeliest tokens (default: 0, all)", .min = 0, .max = INT32_MAX},         \
    {.name = "min-p", .kind = OPT_REAL, .to = &(o).min_p, .arg = "X",                              \
     .help = "drop tokens below X times the best (default: 0)", .min = 0, .max = 1},               \
    {.name = "repetition-penalty", .kind = OPT_REAL, .to = &(o).repetition, .arg = "X",            \
     .help = "over prompt and answer (default: 1, none)", .min = 1e-6, .max = 100},                \
    {.name = "presence-penalty", .kind = OPT_REAL, .to = &(o).presence, .arg = "X",                \
     .help = "over the answer (default: 0)", .min = -2, .max = 2},                                 \
    {.name = "frequency-penalty", .kind = OPT_REAL, .to = &(o).frequency, .arg = "X",              \
     .help = "over the answer, times the count (default: 0)", .min = -2, .max = 2},                \
    {.name = "seed", .kind = OPT_INT, .to = &(o).seed, .arg = "N", .given = &(o).has_seed,         \
     .help = "same seed, same answer (default: random, reported)", .min = 0, .max = 9.2e18},       \
    {.name = "stop", .kind = OPT_LIST, .to = &(o).stop, .arg = "TEXT",                             \
     .help = "end the answer before TEXT; up to 16 times"},                                        \
    {.name = "ignore-eos", .kind = OPT_FLAG, .to = &(o).ignore_eos,                                \
     .help = "go on behind the end of sentence"},                                                  \
    {.name = "thinking", .kind = OPT_CHOICE, .to = &(o).thinking, .arg = "on|off",                 \
     .help = "reason before answering a chat (default: on)", .choices = sampling_on_off},          \
    {.name = "effort", .kind = OPT_CHOICE, .to = &(o).effort, .arg = "WORD",                       \
     .help = "of the reasoning: low, high or max (default: high)", .choices = sampling_efforts}
/* clang-format on */

/* Fill in what the options say. Errors: INVALID. */
di_code sampling_apply(const sampling_options *o, request_defaults *d, di_status *st);
