/* The tensor table: every tensor of a checkpoint of a given configuration (spec 2.1).
 *
 * Nothing is stored: the table is walked, so that a hostile configuration cannot ask for memory.
 * Thread: any. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "checkpoint/config.h"
#include "formats/dtype.h"

/* What a tensor belongs to; the rows of spec section 11. */
#define CKPT_PARTS(X)                                                                              \
    X(EXPERTS, "routed experts")                                                                   \
    X(ATTENTION, "attention")                                                                      \
    X(SHARED, "shared experts")                                                                    \
    X(EMBED, "embedding")                                                                          \
    X(HEAD, "head")                                                                                \
    X(ENGRAM, "Engram projections")                                                                \
    X(ROUTER, "router")                                                                            \
    X(MHC, "hyper-connections")                                                                    \
    X(INDEXER, "indexer")                                                                          \
    X(COMPRESSOR, "compressor")                                                                    \
    X(NORMS, "norms")                                                                              \
    X(ENGRAM_TABLES, "Engram tables")                                                              \
    X(DRAFT, "DSpark draft")                                                                       \
    X(VISION, "vision")

#define CKPT_PART_ENUM(name, text) CKPT_PART_##name,
typedef enum ckpt_part { CKPT_PARTS(CKPT_PART_ENUM) CKPT_PART_COUNT } ckpt_part;
#undef CKPT_PART_ENUM

/* "routed experts", ...; static storage. */
const char *ckpt_part_name(ckpt_part p);

typedef struct table_entry {
    const char *name; /* valid during the call only */
    size_t name_len;
    dtype type;
    int n_dims;       /* 1 or 2 */
    int64_t shape[2]; /* as stored: FP4 has two weights per byte; shape[1] = 1 for vectors */
    ckpt_part part;
    int layer; /* backbone layer, n_layers + stage for the draft, -1 for the rest */
} table_entry;

/* Called for each tensor; a failure ends the walk and is returned. */
typedef di_code (*table_visit)(void *arg, const table_entry *e, di_status *st);

di_code table_walk(const model_config *c, table_visit visit, void *arg, di_status *st);
