/* Files: read-only maps and whole reads, with messages that name the file. Thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* A read-only map of a whole file. */
typedef struct file_map {
    const unsigned char *data; /* NULL for an empty file */
    size_t bytes;
} file_map;

/* Errors: IO (absent, unreadable, not a regular file), NOMEM. Does not wait for a pipe's writer. */
di_code file_map_open(file_map *out, const char *path, di_status *st);
void file_map_close(file_map *m);

/* Tell the kernel that the pages of [offset, offset+bytes) are not needed any more. */
void file_map_drop(const file_map *m, size_t offset, size_t bytes);

/* Make the pages of [offset, offset+bytes) resident; advice, which may be ignored. */
void file_map_need(const file_map *m, size_t offset, size_t bytes);

/* Read a whole regular file of at most max_bytes; *out is 0-terminated and freed with mem_free.
 * Errors: IO (also a pipe or a device), FORMAT when it is larger, NOMEM. */
di_code file_read(char **out, size_t *n, const char *path, size_t max_bytes, di_status *st);

/* The same for a name that the user gave for input: a pipe or a device is read to its end, which
 * may wait. */
di_code file_read_stream(char **out, size_t *n, const char *path, size_t max_bytes, di_status *st);

/* Something that exists and is neither a regular file nor a directory. */
bool file_is_stream(const char *path);

/* "dir/name" into out; INVALID when it does not fit. */
di_code path_join(char *out, size_t cap, const char *dir, const char *name, di_status *st);
