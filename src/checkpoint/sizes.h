/* How large a model of a configuration is and what it costs to run (spec section 11).
 *
 * Everything follows from the configuration: no weight is read. Thread: any. */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "checkpoint/config.h"
#include "checkpoint/table.h"

typedef struct part_size {
    uint64_t tensors;
    uint64_t params; /* weights; FP4 counts two per byte, scale bytes do not count */
    uint64_t bytes;  /* in the checkpoint, scales included */
} part_size;

typedef struct model_sizes {
    part_size part[CKPT_PART_COUNT];
    part_size backbone; /* text layers, embedding and head; without tables, draft, vision */
    part_size total;
    /* Parameters that one token uses. Embedding and table rows are looked up and do not count.
     * A prompt token in front of the replayed tail needs the layers before the last KV source and
     * that layer's KV and index-key projections (spec section 9). */
    uint64_t active_prompt, active_output;
    /* Weights that are held in memory, as stored; model_memory_of (model/model.h) says what a back
     * end makes of them and what else a run takes. */
    uint64_t loaded_bytes;
    uint64_t mapped_bytes; /* tables that are read row by row from the files: embedding, Engram */
    /* State of a sequence (spec 4.9) */
    double kv_token_bytes;     /* growing, per token: 890 for the release */
    uint64_t kv_block_bytes;   /* growing, per block of 128 tokens */
    uint64_t ring_bytes;       /* fixed: window rings of the layers */
    uint64_t draft_ring_bytes; /* fixed: window rings of the draft stages */
    uint64_t open_bytes;       /* fixed: open compression groups */
    uint64_t fixed_bytes;      /* all of the fixed part in memory, with room to roll drafts back */
} model_sizes;

/* Fill in *s. The configuration has been checked by config_parse. */
void sizes_of(model_sizes *s, const model_config *c);

/* State of one sequence of `tokens` tokens, whole blocks. */
uint64_t sizes_sequence(const model_sizes *s, int64_t tokens);
