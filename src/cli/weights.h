/* Options that say where weights come from: a checkpoint, or a generator. Thread: main thread. */
#pragma once

#include "cli/options.h"
#include "deepinfer/deepinfer.h"

typedef struct weights_choice {
    const char *format; /* auto, dummy */
    const char *share;  /* "I/N" or NULL */
    int64_t layers, engram_rows;
} weights_choice;

extern const char *const weights_formats[];

#define WEIGHTS_DEFAULTS                                                                           \
    {                                                                                              \
        .format = "auto"                                                                           \
    }

/* Entries of an option table for a weights_choice named `o`. */
#define WEIGHTS_OPTIONS(o)                                                                         \
    {.name = "load-format",                                                                        \
     .kind = OPT_CHOICE,                                                                           \
     .to = &(o).format,                                                                            \
     .arg = "NAME",                                                                                \
     .help = "auto, or dummy: weights are generated, config.json is enough",                       \
     .choices = weights_formats},                                                                  \
        {.name = "layers",                                                                         \
         .kind = OPT_INT,                                                                          \
         .to = &(o).layers,                                                                        \
         .arg = "N",                                                                               \
         .help = "dummy: keep N layers, spread over the model",                                    \
         .min = 1,                                                                                 \
         .max = 256},                                                                              \
        {.name = "expert-share",                                                                   \
         .kind = OPT_STRING,                                                                       \
         .to = &(o).share,                                                                         \
         .arg = "I/N",                                                                             \
         .help = "dummy: the experts of rank I of N only (0/8, ...)"},                             \
    {                                                                                              \
        .name = "engram-rows", .kind = OPT_INT, .to = &(o).engram_rows, .arg = "N",                \
        .help = "dummy: rows of an Engram table, at most (default: 1048576)", .min = 1,            \
        .max = 1ll << 40                                                                           \
    }

/* Fill in the fields of a model's options. Errors: INVALID. */
di_code weights_apply(const weights_choice *o, di_model_options *mo, di_status *st);
