/* Complete small checkpoints for tests, written into a temporary folder, and ways to damage them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/config.h"
#include "formats/dtype.h"

#define MAKER_SMALL_CONFIG "tests/data/checkpoint/config.small.json"

/* One tensor as it will be written; tests change these before maker_write. */
typedef struct made_tensor {
    char name[128];
    const char *dtype;
    int n_dims;
    int64_t shape[3];
    int64_t begin, end; /* data_offsets */
    size_t bytes;       /* written to the file, whatever the offsets say */
    int shard;          /* file; -1 = none */
    int index_shard;    /* what the index says; -1 = left out */
} made_tensor;

typedef struct maker {
    char dir[64];
    char *config; /* text of config.json */
    made_tensor *tensor;
    size_t n;
    int n_shards;
    bool no_index; /* one file model.safetensors and no index */
} maker;

/* Tensors of MAKER_SMALL_CONFIG in n_shards files of nearly equal size; nothing is written yet. */
void maker_init(maker *m, int n_shards);
/* Removes the folder. */
void maker_fini(maker *m);

/* Write all files. Payload bytes are (7 * position) % 200: no scale byte is 255. */
void maker_write(const maker *m);
made_tensor *maker_find(const maker *m, const char *name);
/* Give every tensor of every shard consecutive offsets again. */
void maker_layout(maker *m);
/* "DIR/model-00001-of-00003.safetensors" of shard i (from 0), or of a file by name. */
const char *maker_path(const maker *m, int shard);
const char *maker_file(const maker *m, const char *name);
long maker_file_size(const char *path);

/* Replace the value of "key" (one line of the text), looking behind the text `after` (NULL = from
 * the start); NULL value removes the line. Returns new text to be freed, asserts that the key is
 * there. */
char *json_edit(const char *text, const char *after, const char *key, const char *value);
