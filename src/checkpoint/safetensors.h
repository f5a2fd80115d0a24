/* One safetensors file: 8 bytes header length (little endian), a JSON header, then the data.
 *
 * Nothing in the file is trusted: names, types, shapes and offsets are checked so that every tensor
 * lies inside the file, occupies exactly the bytes of its shape and type, and the tensors cover the
 * data without overlap or gap. Thread: open and close by one; a const file may be read by any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/map.h"
#include "base/status.h"
#include "formats/dtype.h"

#define ST_MAX_DIMS   8
#define ST_MAX_NAME   255                 /* bytes of a tensor name */
#define ST_MAX_HEADER ((size_t)100 << 20) /* bytes; the limit of the format's own library */

typedef struct st_tensor {
    const char *name; /* UTF-8 without control characters; lives as long as its header */
    dtype type;
    int n_dims;
    int64_t shape[ST_MAX_DIMS]; /* last dimension fastest; unused ones are 1 */
    size_t offset;              /* of its first byte in the data part */
    size_t bytes;
} st_tensor;

/* A parsed header: tensors in the order of their offsets. */
typedef struct st_header {
    arena *mem;
    st_tensor *tensor;
    size_t n_tensors, cap_tensors;
    map *by_name; /* name -> index in reading order; used while reading only */
} st_header;

/* Parse the n bytes of a header whose data part has data_bytes bytes. `name` (a path) is for
 * messages. Errors: FORMAT (names file and tensor), NOMEM; after an error *h holds nothing. */
di_code st_header_parse(st_header *h, const char *text, size_t n, uint64_t data_bytes,
                        const char *name, di_status *st);
void st_header_fini(st_header *h);

typedef struct st_file st_file;

/* Open PATH. headers_only: the data is not mapped. Errors: IO, FORMAT, NOMEM. */
di_code st_file_open(st_file **out, const char *path, bool headers_only, di_status *st);
void st_file_close(st_file *f); /* accepts NULL */

const char *st_file_path(const st_file *f);
size_t st_file_bytes(const st_file *f);
/* First byte of the data part in the file. */
size_t st_file_data_offset(const st_file *f);
size_t st_file_n_tensors(const st_file *f);
/* Tensor i in the order of the offsets. */
const st_tensor *st_file_tensor(const st_file *f, size_t i);
/* NULL when the file has none of that name; reads through the list. */
const st_tensor *st_file_find(const st_file *f, const char *name);
/* First byte of a tensor of this file, NULL when opened with headers_only. Aligned only if the
 * writer of the file aligned it. */
const void *st_file_data(const st_file *f, const st_tensor *t);
/* Copy bytes [from, from + bytes) of the data part, from any thread: faster than the map where each
 * byte is needed once. Not for files opened with headers_only. Errors: IO. */
di_code st_file_read(const st_file *f, void *to, size_t from, size_t bytes, di_status *st);
/* The pages of bytes [from, from + bytes) of the data part are not needed any more. */
void st_file_drop(const st_file *f, size_t from, size_t bytes);
/* ... are read all the time: make them resident. */
void st_file_need(const st_file *f, size_t from, size_t bytes);

/* "[3,4]" into out, for messages; cut when it does not fit. Returns out. */
const char *st_shape_text(char *out, size_t cap, const int64_t *shape, int n_dims);
