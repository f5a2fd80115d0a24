/* DeepInfer's names: its command-line options and DEEPINFER_* variables, and which of ours they
 * mean (spec deepinfer.md section 11). Thread: main thread, before there are others. */
#pragma once

#include "cli/options.h"

typedef enum name_kind {
    NAME_SAME, /* the value goes to our option */
    NAME_OFF,  /* a boolean: our flag when false */
    NAME_ONLY, /* what it says is how it is here: no other value is possible */
    NAME_NONE  /* a variable without meaning here */
} name_kind;

typedef struct known_name {
    const char *option;   /* without "--"; NULL: there is only the variable */
    const char *variable; /* without "DEEPINFER_"; NULL: there is only the option */
    name_kind kind;
    const char *ours[2]; /* our options that mean it, the first that a program has */
    const char *only;    /* NAME_ONLY: the value; "bool" = any boolean */
} known_name;

/* The names; *n of them. */
const known_name *names_all(size_t *n);

/* Whether the program understands the option of this name: it has one of ours, or runs an engine in
 * which it is always so. */
bool names_fit(const opt_program *p, const known_name *k);

/* A boolean may stand without a value. */
bool names_boolean(const known_name *k);

/* Set what `value` (NULL: given without one) means. Errors: INVALID. */
di_code names_set(const opt_program *p, const known_name *k, const char *value, di_status *st);

/* Take what DEEPINFER_* variables say, for programs that run an engine; one line on standard error
 * for each that has no meaning here. Errors: INVALID (names the variable). */
di_code names_environment(const opt_program *p, di_status *st);

/* The table, as it stands in docs/options.md. */
void names_print(void);
