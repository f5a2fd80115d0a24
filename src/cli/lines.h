/* Lines of a batch file: an input that is walked through, and an output that can be taken up again.
 *
 * The output holds one line per input line, in the same order, each written with one call. A run
 * that was interrupted leaves whole lines and at most one part of a line; lines_resume checks that
 * the whole ones belong to this input and cuts the part off.
 * Thread: main thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "base/str.h"

typedef struct lines_in {
    const char *path; /* for messages; borrowed */
    file_map map;     /* of a file */
    str text;         /* of standard input ("-"), a pipe or a device */
    const char *at, *end;
    int64_t n_lines, next_idx; /* lines that are not blank; index of the next one */
    int64_t number;            /* 1-based line number of the last one, blank ones counted */
} lines_in;

/* Open a file or pipe, or "-" for standard input. Errors: IO, NOMEM. */
di_code lines_open(lines_in *l, const char *path, di_status *st);
void lines_close(lines_in *l);

/* The next line that is not blank, without its newline; false at the end. Borrowed. */
bool lines_next(lines_in *l, const char **line, size_t *n);

typedef struct lines_out {
    const char *path; /* borrowed */
    int fd;
    int64_t n_done, n_failed; /* lines that were there already, and those among them with errors */
} lines_out;

/* Open the output ("-": standard output) and take up what is there: on return `in` stands behind
 * the finished lines. `fresh`: start again instead. Errors: IO; INVALID when it is the input
 * itself, or when a finished line does not belong to this input (names the line and the remedy):
 * then the file is unchanged. */
di_code lines_resume(lines_out *o, const char *path, bool fresh, lines_in *in, di_status *st);

/* Write a whole line. Errors: IO. */
di_code lines_write(lines_out *o, const str *line, di_status *st);

/* Errors: IO when the system reports a write that failed late. */
di_code lines_out_close(lines_out *o, di_status *st);
