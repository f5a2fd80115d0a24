/* Command lines: one table per subcommand drives getopt_long, the checks and --help.
 *
 * Thread: main thread (getopt keeps state). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum opt_kind {
    OPT_FLAG,   /* bool: set to true */
    OPT_STRING, /* const char *: borrowed from argv */
    OPT_INT,    /* int64_t in [min, max] */
    OPT_REAL,   /* double in [min, max] */
    OPT_CHOICE, /* const char *: one of `choices` */
    OPT_LIST    /* opt_list: may be given several times */
} opt_kind;

#define OPT_LIST_MAX 16
typedef struct opt_list {
    const char *item[OPT_LIST_MAX];
    size_t n;
} opt_list;

typedef struct opt {
    const char *name; /* long name */
    char letter;      /* short name or 0 */
    opt_kind kind;
    void *to;         /* where the value goes; keeps its default when the option is absent */
    const char *arg;  /* name of the argument in the help */
    const char *help; /* one line; defaults are written out */
    double min, max;  /* exact for the integers that are used */
    const char *const *choices; /* NULL-terminated */
    bool *given;                /* NULL, or set to true when the option is there */
} opt;

typedef struct opt_program {
    const char *name;    /* "generate" */
    const char *usage;   /* behind "deepinfer NAME" */
    const char *summary; /* what it does: lines, no final newline */
    const opt *options;
    size_t n;
    const char *notes; /* lines below the options; may be NULL */
} opt_program;

/* The option of this name, or NULL. */
const opt *opt_find(const opt_program *p, const char *name);
/* Set an option from text (flags: NULL). Errors: INVALID. */
di_code opt_set(const opt *o, const char *text, di_status *st);

typedef enum opt_result { OPT_RUN, OPT_HELP_SHOWN, OPT_WRONG } opt_result;

/* Read argv, after the environment (names.h). OPT_HELP_SHOWN: --help was asked for and printed to
 * standard output. OPT_WRONG: *st has the message. *first: index of the first operand, or argc;
 * operands are refused when it is NULL. */
opt_result opt_parse(const opt_program *p, int argc, char **argv, int *first, di_status *st);

/* The FILE of "--config FILE" or "--config=FILE" in argv, or NULL: read before opt_parse, whose
 * values then come on top. */
const char *opt_config_file(int argc, char **argv);

/* Read a file of "name = value" lines (a flag: "name = true"; # starts a comment; a value may stand
 * in double quotes; lists: several lines). *text keeps what string options point to: mem_free it
 * when they are not needed any more. The environment (names.h) is read before, so that the file
 * comes on top. Errors: IO, FORMAT and INVALID (name the line). */
di_code opt_read_file(const opt_program *p, const char *path, char **text, di_status *st);
