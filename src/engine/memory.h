/* Sizes of an engine: from its options to the limits of its parts and to the bytes that these take.
 * di_engine_start and the prediction use the same functions. Not installed. Thread: any. */
#pragma once

#include "checkpoint/checkpoint.h"
#include "deepinfer/deepinfer.h"
#include "kv/store.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

/* Rows of a step whose logits are prompt log-probabilities, at most: what a step reserves for them.
 */
#define ENGINE_PROMPT_LOGITS 512

/* Fill in what `o` leaves at 0 (kv_tokens aside) and check it against the configuration; *max_draft
 * is the longest draft that can be verified. Errors: INVALID. */
di_code engine_settle(di_engine_options *o, int *max_draft, const model_config *c, di_status *st);

/* Limits of the model of an engine with settled options. */
model_options engine_model_options(const di_engine_options *o, int max_draft,
                                   const model_config *c);

/* The KV store of an engine with settled options. Without kv_tokens: what max_seqs sequences of the
 * longest context need, at most a quarter of the memory that is free now (checkpoints come on top)
 * and stays free when `to_take` bytes more are taken (of a device's: nearly all, checkpoints
 * included), at least one sequence. `l` is borrowed. */
kv_store_options engine_store_options(const di_engine_options *o, int max_draft, const kv_layout *l,
                                      int n_encoder_rings, kernels *k, uint64_t to_take);

typedef struct engine_memory {
    model_memory model;
    kv_store_memory store;
    uint64_t tokenizer;
    int64_t context, kv_tokens; /* longest sequence; size of the pool */
    uint64_t first_blocks;      /* of max_seqs sequences, one each */
    uint64_t device;            /* of the next three, what lies in a device's memory; 0: none */
    uint64_t start;             /* resident with max_seqs sequences of one block each */
    uint64_t full;              /* ... and of `context` tokens each, or with the pool used up */
    uint64_t peak;              /* the most: with a prefix cache, every block and checkpoint used */
} engine_memory;

/* What an engine with these options (NULL: defaults) takes, without the process around it: nothing
 * is loaded, and `c` may have been opened for its headers only. `tok` may be NULL: estimated.
 * Errors: as di_engine_start, without FORMAT. */
di_code engine_memory_of(engine_memory *out, const checkpoint *c, kernels *k, const tokenizer *tok,
                         const di_engine_options *opt, di_status *st);
