/* Errors of the request side, with the body that each protocol's clients expect (spec
 * recipe.md 2.0, api.md section 3). Thread: any. */
#pragma once

#include <stdbool.h>

#include "base/status.h"
#include "base/str.h"

typedef enum recipe_protocol {
    RECIPE_PROTOCOL_CHAT,
    RECIPE_PROTOCOL_RESPONSES,
    RECIPE_PROTOCOL_MESSAGES
} recipe_protocol;

/* CLIENT: what real clients send works. STRICT: the released recipe to the letter. */
typedef enum recipe_mode { RECIPE_CLIENT, RECIPE_STRICT } recipe_mode;

typedef struct recipe_error {
    int status;        /* HTTP */
    bool parse;        /* bad JSON or a wrong type; otherwise a semantic check */
    const char *type;  /* OpenAI's word; NULL = the one of the status */
    const char *code;  /* static; NULL = the type */
    const char *param; /* static; NULL = `place` */
    char place[64];    /* of a wrong field; "" = unknown, null in the body */
    char message[1024];
} recipe_error;

/* Set *e unless it holds an error already; returns false for the convenience of callers. */
bool recipe_fail(recipe_error *e, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The error that a failed status is. */
void recipe_error_from(recipe_error *e, const di_status *st);

/* Append the JSON body: {"error": {message, type, param, code}}; in mode CLIENT Messages gets
 * {"type": "error", "error": {type, message}}. */
void recipe_error_body(recipe_protocol protocol, recipe_mode mode, const recipe_error *e, str *out);
