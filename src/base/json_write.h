/* JSON text written straight into a str: commas and escapes are taken care of.
 *
 *   json_write w = {.out = &s};
 *   jw_object(&w); jw_key(&w, "text"); jw_string(&w, text, n); jw_end(&w);
 *
 * Invalid UTF-8 becomes U+FFFD, one per maximal ill-formed subpart. Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

typedef struct json_write {
    str *out;
    int indent; /* blanks per level; 0 = one line, ", " and ": " separators */
    int depth;
    uint64_t is_object;  /* bit d: container at depth d+1 is an object */
    uint64_t has_member; /* bit d: it has had a member */
    bool after_key;
} json_write;

void jw_object(json_write *w);
void jw_array(json_write *w);
void jw_end(json_write *w); /* closes the innermost container */
void jw_key(json_write *w, const char *key);
void jw_string(json_write *w, const char *text, size_t n);
void jw_cstr(json_write *w, const char *text);
void jw_int(json_write *w, int64_t v);
void jw_uint(json_write *w, uint64_t v);
void jw_number(json_write *w, double v); /* shortest text that reads back; null when not finite */
void jw_bool(json_write *w, bool v);
void jw_null(json_write *w);
void jw_raw(json_write *w, const char *json, size_t n); /* a finished value */
