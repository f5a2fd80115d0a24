/* A model with a running engine, opened from the options that generate and chat share.
 * Thread: main thread. */
#pragma once

#include "cli/options.h"
#include "cli/request.h"
#include "cli/session.h"
#include "cli/weights.h"
#include "deepinfer/deepinfer.h"

/* Options of the engine as they stand on the command line. */
typedef struct engine_choice {
    int64_t drafts;      /* -1 = the trained block */
    int64_t kv_tokens;   /* 0 = a share of the free memory */
    int64_t step_tokens; /* rows of a step */
    int64_t replay_keep;
    const char *replay; /* exact, off, compact, mask */
    const char *cost_dir;
    int64_t stats_interval; /* steps; 0 = none */
    int64_t spacing;        /* tokens between checkpoints of a prompt; 0 = the default */
    int64_t latency_ms;     /* of steps with decode rows; 0 = no limit */
    bool fixed, no_cache, no_async, stats;
} engine_choice;

extern const char *const service_replays[];

#define ENGINE_DEFAULTS                                                                            \
    {                                                                                              \
        .drafts = -1, .step_tokens = 512, .replay = "exact"                                        \
    }

/* Entries of an option table for an engine_choice named `o`. */
#define ENGINE_OPTIONS(o)                                                                          \
    {.name = "draft-tokens",                                                                       \
     .kind = OPT_INT,                                                                              \
     .to = &(o).drafts,                                                                            \
     .arg = "N",                                                                                   \
     .help = "drafts per step, 0 = none (default: as trained)",                                    \
     .min = 0,                                                                                     \
     .max = 16},                                                                                   \
        {.name = "draft-fixed",                                                                    \
         .kind = OPT_FLAG,                                                                         \
         .to = &(o).fixed,                                                                         \
         .help = "verify every draft, not just those that pay"},                                   \
        {.name = "replay",                                                                         \
         .kind = OPT_CHOICE,                                                                       \
         .to = &(o).replay,                                                                        \
         .arg = "MODE",                                                                            \
         .help = "prompt rows that skip layers: exact, off, compact, mask",                        \
         .choices = service_replays},                                                              \
        {.name = "replay-keep",                                                                    \
         .kind = OPT_INT,                                                                          \
         .to = &(o).replay_keep,                                                                   \
         .arg = "N",                                                                               \
         .help = "prompt rows that run all layers in compact and mask",                            \
         .min = 1,                                                                                 \
         .max = 1 << 24},                                                                          \
        {.name = "kv-tokens",                                                                      \
         .kind = OPT_INT,                                                                          \
         .to = &(o).kv_tokens,                                                                     \
         .arg = "N",                                                                               \
         .help = "tokens that the KV pool holds (default: by free memory)",                        \
         .min = 128,                                                                               \
         .max = 1ll << 40},                                                                        \
        {.name = "max-batched-tokens",                                                             \
         .kind = OPT_INT,                                                                          \
         .to = &(o).step_tokens,                                                                   \
         .arg = "N",                                                                               \
         .help = "rows of a step (default: 512)",                                                  \
         .min = 1,                                                                                 \
         .max = 1 << 20},                                                                          \
        {.name = "cost-dir",                                                                       \
         .kind = OPT_STRING,                                                                       \
         .to = &(o).cost_dir,                                                                      \
         .arg = "DIR",                                                                             \
         .help = "keep the measured times of steps in DIR"},                                       \
        {.name = "stats-interval",                                                                 \
         .kind = OPT_INT,                                                                          \
         .to = &(o).stats_interval,                                                                \
         .arg = "N",                                                                               \
         .help = "the engine's statistics line every N steps",                                     \
         .min = 1,                                                                                 \
         .max = 1 << 30},                                                                          \
        {.name = "decode-latency-ms",                                                              \
         .kind = OPT_INT,                                                                          \
         .to = &(o).latency_ms,                                                                    \
         .arg = "N",                                                                               \
         .help = "cut prompt rows from steps that would take longer (default: 0, no)",             \
         .min = 0,                                                                                 \
         .max = 1 << 20},                                                                          \
        {.name = "checkpoint-spacing",                                                             \
         .kind = OPT_INT,                                                                          \
         .to = &(o).spacing,                                                                       \
         .arg = "N",                                                                               \
         .help = "prompt tokens per kept state, a multiple of 128 (default: 4096)",                \
         .min = 128,                                                                               \
         .max = 1 << 24},                                                                          \
        {.name = "no-prefix-cache",                                                                \
         .kind = OPT_FLAG,                                                                         \
         .to = &(o).no_cache,                                                                      \
         .help = "compute every prompt from its start"},                                           \
        {.name = "no-async",                                                                       \
         .kind = OPT_FLAG,                                                                         \
         .to = &(o).no_async,                                                                      \
         .help = "finish a step before the next is prepared"},                                     \
    {                                                                                              \
        .name = "stats", .kind = OPT_FLAG, .to = &(o).stats,                                       \
        .help = "the engine's statistics line at the end"                                          \
    }

typedef struct service {
    di_model *model;
    di_engine *engine;
    di_model_info info;
    int64_t context; /* longest sequence */
} service;

/* Open everything for max_seqs sequences at once; w may be NULL: a checkpoint. Errors: INVALID (no
 * --model, context beyond the checkpoint's), IO, FORMAT, UNSUPPORTED, NOMEM; *s is closed again. */
di_code service_open(service *s, const session_options *o, const weights_choice *w,
                     const engine_choice *e, int max_seqs, di_status *st);
void service_close(service *s);

/* Fill in what requests are checked against. */
void service_bind(const service *s, request_defaults *d);

/* The statistics line to standard error, when asked for. */
void service_report(const service *s, const engine_choice *e);
