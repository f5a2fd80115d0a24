/* A model that is ready to run: checkpoint, tokenizer, kernels and model, opened from the options
 * that all subcommands share. Thread: main thread. */
#pragma once

#include "checkpoint/checkpoint.h"
#include "cli/options.h"
#include "cli/request.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

typedef struct session_options {
    const char *model, *backend, *numerics, *engram;
    int64_t threads, context;
    bool quiet;
} session_options;

/* Sizes of a step that the program will use; 0 = the model's own defaults. */
typedef struct session_limits {
    int rows, logit_rows, seqs;
} session_limits;

typedef struct session {
    checkpoint *ckpt;
    const model_config *cfg;
    tokenizer *tok;
    kernels *k;
    model *m;
    int64_t context; /* longest sequence: --context, or what the checkpoint allows up to 65,536 */
} session;

extern const char *const session_numerics[], *const session_devices[], *const session_engrams[];
#define SESSION_DEFAULTS                                                                           \
    {                                                                                              \
        .backend = "auto", .numerics = "release", .engram = "auto"                                 \
    }

/* Entries of an option table for a session_options named `o`. */
#define SESSION_OPTIONS(o)                                                                         \
    {.name = "model",                                                                              \
     .letter = 'm',                                                                                \
     .kind = OPT_STRING,                                                                           \
     .to = &(o).model,                                                                             \
     .arg = "DIR",                                                                                 \
     .help = "checkpoint: config.json, tokenizer.json, *.safetensors"},                            \
        {.name = "threads",                                                                        \
         .letter = 't',                                                                            \
         .kind = OPT_INT,                                                                          \
         .to = &(o).threads,                                                                       \
         .arg = "N",                                                                               \
         .help = "threads (default: one per processor)",                                           \
         .min = 1,                                                                                 \
         .max = 256},                                                                              \
        {.name = "backend",                                                                        \
         .kind = OPT_STRING,                                                                       \
         .to = &(o).backend,                                                                       \
         .arg = "NAME",                                                                            \
         .help = "auto (the CPU's fastest), avx512, avx2, ref or cuda (default: auto)"},           \
        {.name = "device",                                                                         \
         .kind = OPT_CHOICE,                                                                       \
         .to = &(o).backend,                                                                       \
         .arg = "NAME",                                                                            \
         .help = "cpu, or cuda (nvidia): the same as --backend auto or cuda",                      \
         .choices = session_devices},                                                              \
        {.name = "numerics",                                                                       \
         .kind = OPT_CHOICE,                                                                       \
         .to = &(o).numerics,                                                                      \
         .arg = "NAME",                                                                            \
         .help = "release, cache or f32; the last two need --backend ref",                         \
         .choices = session_numerics},                                                             \
        {.name = "engram",                                                                         \
         .kind = OPT_CHOICE,                                                                       \
         .to = &(o).engram,                                                                        \
         .arg = "PLACE",                                                                           \
         .help = "Engram tables with a GPU: auto (by its memory), device, host (pinned)",          \
         .choices = session_engrams},                                                              \
        {.name = "context",                                                                        \
         .kind = OPT_INT,                                                                          \
         .to = &(o).context,                                                                       \
         .arg = "N",                                                                               \
         .help = "longest sequence in tokens (default: the model's, up to 65536)",                 \
         .min = 1,                                                                                 \
         .max = 1 << 24},                                                                          \
    {                                                                                              \
        .name = "quiet", .letter = 'q', .kind = OPT_FLAG, .to = &(o).quiet,                        \
        .help = "no progress and no statistics on standard error"                                  \
    }

/* Open everything. Errors: INVALID (no --model, context beyond the checkpoint's), IO, FORMAT,
 * UNSUPPORTED, NOMEM; *s is closed again. */
di_code session_open(session *s, const session_options *o, const session_limits *lim,
                     di_status *st);
void session_close(session *s);

/* Fill in what requests are checked against: tokenizer, vocabulary, end of sentence, context. */
void session_bind(const session *s, request_defaults *d);

/* What a name of session_numerics means. */
numerics session_numerics_of(const char *name);
/* ... and one of session_engrams. */
engram_place session_engram_of(const char *name);

/* DIR/tokenizer.json alone. */
di_code session_load_tokenizer(tokenizer **out, const char *dir, di_status *st);
