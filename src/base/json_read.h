/* Pull reader for JSON: safetensors headers, config.json, tokenizer.json, input lines.
 *
 * Strict (RFC 8259): UTF-8 is checked, no trailing commas, no text behind the value, depth is
 * bounded, a duplicate key is the caller's to refuse. No tree is built: the caller asks for what it
 * expects and gets a located message when the text says something else.
 *
 *   json_read r;
 *   json_open(&r, text, n, "config.json");
 *   DI_TRY(json_object(&r, st));
 *   while (json_key(&r, &key, &key_len))           // false at the end of the object
 *       if (json_key_is(key, key_len, "vocab_size"))
 *           DI_TRY(json_int(&r, &v, st));
 *       else
 *           DI_TRY(json_skip(&r, st));
 *   DI_TRY(json_end(&r, st));
 *
 * A malformed document makes json_key and json_item return false; the next json_* call with a
 * status (json_end at the latest) reports it. Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

#define JSON_MAX_DEPTH 64

typedef enum json_type {
    JSON_NONE, /* nothing more, or malformed */
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
} json_type;

typedef struct json_read {
    const char *text, *end, *at; /* borrowed until json_close */
    const char *name;            /* for messages: file or request */
    const char *error;           /* NULL or what is malformed at `at` */
    str scratch;                 /* decoded strings */
    int depth;
    uint64_t is_object;  /* bit d: container at depth d+1 is an object */
    uint64_t has_member; /* bit d: it has had a member */
} json_read;

/* Start reading n bytes. `text` and `name` are borrowed. */
void json_open(json_read *r, const char *text, size_t n, const char *name);
void json_close(json_read *r);

/* Type of the value that comes next, without reading it. */
json_type json_peek(json_read *r);

/* Enter a container. Errors: FORMAT with name, line and column. */
di_code json_object(json_read *r, di_status *st);
di_code json_array(json_read *r, di_status *st);

/* Next member: true and the decoded key, valid until the next json_* call; false leaves the object.
 */
bool json_key(json_read *r, const char **key, size_t *n);
bool json_key_is(const char *key, size_t n, const char *want);

/* Next element: true when a value follows; false leaves the array. */
bool json_item(json_read *r);

/* Scalars. json_int refuses fractions, exponents and values outside int64; json_number gives the
 * nearest double and refuses overflow; json_string gives decoded UTF-8 (may hold a 0 byte), valid
 * until the next json_* call. A lone surrogate escape is refused. */
di_code json_int(json_read *r, int64_t *out, di_status *st);
di_code json_number(json_read *r, double *out, di_status *st);
di_code json_bool(json_read *r, bool *out, di_status *st);
di_code json_null(json_read *r, di_status *st);
di_code json_string(json_read *r, const char **out, size_t *n, di_status *st);

/* Read over the next value of any type. */
di_code json_skip(json_read *r, di_status *st);

/* Read over the next value and give its text (borrowed from the input). */
di_code json_raw(json_read *r, const char **out, size_t *n, di_status *st);

/* The document must end here: reports anything left over or malformed. */
di_code json_end(json_read *r, di_status *st);

/* Fail with "NAME:line:column: message" at the current place. Returns DI_E_FORMAT. */
di_code json_fail(json_read *r, di_status *st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
