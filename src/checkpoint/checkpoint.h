/* A checkpoint in the released layout: shards mapped read-only, every tensor checked against the
 * tensor table of spec section 2 before anything else happens.
 *
 * Any split over shards is accepted. Scale bytes (255 = NaN is refused) are checked when a tensor
 * is taken by checkpoint_scale_check, or all at once by checkpoint_verify. Thread: open and close
 * by one; a const checkpoint may be read by any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "checkpoint/config.h"
#include "formats/dtype.h"

typedef struct checkpoint checkpoint;

/* One stored tensor. `data` points into a mapped shard and lives as long as the checkpoint. */
typedef struct ckpt_tensor {
    const char *name;
    dtype type;
    int n_dims;
    int64_t shape[2]; /* shape[1] = 1 for vectors */
    const void *data; /* NULL when opened with headers_only */
    size_t bytes;
    int shard;     /* index of its file */
    size_t offset; /* of its first byte in that file */
} ckpt_tensor;

/* Open DIR: config.json, model.safetensors.index.json and all shards; check names, shapes, types,
 * offsets, overlaps, gaps and lengths. headers_only: payload is not mapped (inspect).
 * Errors: IO (absent file), FORMAT (names file and tensor), UNSUPPORTED, NOMEM. */
di_code checkpoint_open(checkpoint **out, const char *dir, bool headers_only, di_status *st);
void checkpoint_close(checkpoint *c); /* accepts NULL */

const model_config *checkpoint_config(const checkpoint *c);
const char *checkpoint_dir(const checkpoint *c);
int checkpoint_n_shards(const checkpoint *c);
const char *checkpoint_shard_name(const checkpoint *c, int shard);
size_t checkpoint_n_tensors(const checkpoint *c);
/* Tensor i in table order (0 .. n-1). */
const ckpt_tensor *checkpoint_tensor(const checkpoint *c, size_t i);

/* Look up by name; printf-style. NULL when the checkpoint has none of that name. A name in the
 * table of the configuration is always there: checkpoint_open has checked. */
const ckpt_tensor *checkpoint_find(const checkpoint *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Refuse a scale byte 255 (FORMAT; names file, tensor and block). */
di_code checkpoint_scale_check(const checkpoint *c, const ckpt_tensor *scale, di_status *st);

/* Check the scale bytes of every tensor; reads all scales. `progress` is called with bytes done. */
typedef void (*ckpt_progress)(void *arg, uint64_t done, uint64_t total);
di_code checkpoint_verify(const checkpoint *c, ckpt_progress progress, void *arg, di_status *st);

/* Copy `bytes` stored bytes to `to`: `from` is where they are, or would be, in the data of one
 * tensor. For whoever copies all of it: reads the file and leaves the map alone, and refuses a
 * scale byte 255 as above. Thread: any, several at once. Errors: IO, FORMAT. */
di_code checkpoint_read(const checkpoint *c, void *to, const void *from, size_t bytes,
                        di_status *st);

/* The pages of this tensor are not needed any more (it has been copied). */
void checkpoint_drop(const checkpoint *c, const ckpt_tensor *t);

/* Make the pages of this tensor resident: it is read all the time. */
void checkpoint_need(const checkpoint *c, const ckpt_tensor *t);
