/* Files: read-only maps and whole reads, with messages that name the file. Thread: any. */
#pragma once

#include <stddef.h>

#include "base/status.h"

/* A read-only map of a whole file. */
typedef struct file_map {
    const unsigned char *data; /* NULL for an empty file */
    size_t bytes;
} file_map;

/* Errors: IO (absent, unreadable, a directory), NOMEM. */
di_code file_map_open(file_map *out, const char *path, di_status *st);
void file_map_close(file_map *m);

/* Tell the kernel that the pages of [offset, offset+bytes) are not needed any more. */
void file_map_drop(const file_map *m, size_t offset, size_t bytes);

/* Make the pages of [offset, offset+bytes) resident; advice, which may be ignored. */
void file_map_need(const file_map *m, size_t offset, size_t bytes);

/* Read a whole file of at most max_bytes; *out is 0-terminated and freed with mem_free.
 * Errors: IO, FORMAT when it is larger, NOMEM. */
di_code file_read(char **out, size_t *n, const char *path, size_t max_bytes, di_status *st);

/* "dir/name" into out; INVALID when it does not fit. */
di_code path_join(char *out, size_t cap, const char *dir, const char *name, di_status *st);
