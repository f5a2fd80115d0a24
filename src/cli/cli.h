/* The programs behind `deepinfer SUBCOMMAND`: one file each.
 *
 * A program gets its own name as argv[0], checks everything it was given before it writes anything,
 * and returns an exit status. Thread: main thread. */
#pragma once

#include "base/status.h"

/* Exit statuses of every subcommand; docs/operations.md and --help list them. */
typedef enum cli_status {
    CLI_OK = 0,
    CLI_FOUND = 1, /* it ran, but a line failed, a check found something */
    CLI_BAD = 2    /* wrong usage, bad input or model, or the system failed */
} cli_status;

#define CLI_EXIT_HELP                                                                              \
    "Exit status: 0 all is well, 1 it ran but something failed, 2 bad usage, input or model."

int cli_generate(int argc, char **argv);
int cli_chat(int argc, char **argv);
int cli_serve(int argc, char **argv);
int cli_tokenize(int argc, char **argv);
int cli_recipe(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_logits(int argc, char **argv);
int cli_inspect(int argc, char **argv);
int cli_selftest(int argc, char **argv);

/* Print "deepinfer NAME: MESSAGE" to standard error and return CLI_BAD. */
int cli_fail(const char *name, const di_status *st);
