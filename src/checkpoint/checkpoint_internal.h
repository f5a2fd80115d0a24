/* Names that the files of checkpoint/ share. */
#pragma once

#include "base/arena.h"
#include "base/json_read.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

/* Cross checks of a parsed configuration (config_check.c). `name` is for messages. */
di_code config_check(const model_config *c, const char *name, di_status *st);

/* Refuse a tensor name that could not be printed in a message or kept as a C string (header.c). */
di_code st_name_check(json_read *r, const char *name, size_t n, di_status *st);

/* model.safetensors.index.json: which shard holds which tensor (index.c). */
typedef struct index_entry {
    const char *name;
    int shard;
} index_entry;

typedef struct shard_index {
    arena *mem;
    const char **shard; /* file names, in the order of their first mention */
    int n_shards, cap_shards;
    index_entry *entry;
    size_t n, cap;
} shard_index;

/* Parse the n bytes of an index file. `name` is for messages. Errors: FORMAT, NOMEM; after an
 * error *x holds nothing. */
di_code shard_index_parse(shard_index *x, const char *text, size_t n, const char *name,
                          di_status *st);
void shard_index_fini(shard_index *x);

/* Generated tensors (dummy.c): is this one a table, of which rows are gathered? Fill in words
 * first .. first + n - 1 of eight bytes (the last one may reach behind the tensor); any bytes. */
bool dummy_is_table(const char *name);
void dummy_fill(uint64_t *out, const ckpt_tensor *t, uint64_t seed, size_t first, size_t n);
void dummy_read(void *to, const ckpt_tensor *t, uint64_t seed, size_t from, size_t bytes);

/* Refuse a scale byte 255 among n bytes of tensor t, of which the first is byte `at` (scale.c). */
di_code scale_check(const checkpoint *c, const ckpt_tensor *t, const void *bytes, size_t at,
                    size_t n, di_status *st);
