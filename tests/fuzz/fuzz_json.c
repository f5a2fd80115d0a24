/* JSON reader and writer on any bytes. What must hold:
 *   - json_skip and a walk value by value accept the same texts (numbers beyond a double aside);
 *   - what is accepted is UTF-8, and json_raw gives exactly its text without the blanks around it;
 *   - writing what was read gives a text that is accepted and that is written the same again;
 *   - a refusal has a located message. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/json_read.h"
#include "base/json_write.h"
#include "base/status.h"
#include "base/utf8.h"

typedef enum outcome { ACCEPTED, REFUSED, TOO_LARGE } outcome;

static outcome copy_value(json_read *r, json_write *w);

static outcome copy_number(json_read *r, json_write *w)
{
    int64_t i;
    double d;
    bool minus = json_peek(r) == JSON_NUMBER && *r->at == '-';

    if (json_int(r, &i, NULL) == DI_OK) {
        if (i == 0 && minus)
            jw_number(w, -0.0); /* minus zero is a number of its own */
        else
            jw_int(w, i);
        return ACCEPTED;
    }
    if (json_number(r, &d, NULL) == DI_OK) {
        jw_number(w, d);
        return ACCEPTED;
    }
    return r->error ? REFUSED : TOO_LARGE;
}

static outcome copy_object(json_read *r, json_write *w)
{
    const char *key;
    size_t n;

    if (json_object(r, NULL) != DI_OK)
        return REFUSED;
    jw_array(w); /* pairs in an array: the writer's keys hold no 0 byte, the reader's may */
    while (json_key(r, &key, &n)) {
        outcome o;

        jw_string(w, key, n);
        o = copy_value(r, w);
        if (o != ACCEPTED)
            return o;
    }
    jw_end(w);
    return r->error ? REFUSED : ACCEPTED;
}

static outcome copy_array(json_read *r, json_write *w)
{
    if (json_array(r, NULL) != DI_OK)
        return REFUSED;
    jw_array(w);
    while (json_item(r)) {
        outcome o = copy_value(r, w);

        if (o != ACCEPTED)
            return o;
    }
    jw_end(w);
    return r->error ? REFUSED : ACCEPTED;
}

static outcome copy_value(json_read *r, json_write *w)
{
    const char *s;
    size_t n;
    bool b;

    switch (json_peek(r)) {
    case JSON_OBJECT:
        return copy_object(r, w);
    case JSON_ARRAY:
        return copy_array(r, w);
    case JSON_NUMBER:
        return copy_number(r, w);
    case JSON_STRING:
        if (json_string(r, &s, &n, NULL) != DI_OK)
            return REFUSED;
        DI_CHECK(utf8_valid(s, n));
        jw_string(w, s, n);
        return ACCEPTED;
    case JSON_BOOL:
        if (json_bool(r, &b, NULL) != DI_OK)
            return REFUSED;
        jw_bool(w, b);
        return ACCEPTED;
    case JSON_NULL:
        if (json_null(r, NULL) != DI_OK)
            return REFUSED;
        jw_null(w);
        return ACCEPTED;
    case JSON_NONE:
        break;
    }
    return REFUSED;
}

/* Read a text and write it again. */
static outcome rewrite(const char *text, size_t n, str *out)
{
    json_write w = {.out = out};
    json_read r;
    outcome o;

    json_open(&r, text, n, "fuzz");
    o = copy_value(&r, &w);
    if (o == ACCEPTED && json_end(&r, NULL) != DI_OK)
        o = REFUSED;
    json_close(&r);
    return o;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static void check_raw(const char *text, size_t n)
{
    const char *raw;
    size_t raw_n, from = 0;
    json_read r;

    json_open(&r, text, n, "fuzz");
    DI_CHECK(json_raw(&r, &raw, &raw_n, NULL) == DI_OK);
    while (is_blank(text[from]))
        from++;
    while (is_blank(text[n - 1]))
        n--;
    DI_CHECK(raw == text + from && raw_n == n - from);
    json_close(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data;
    str once = {0}, twice = {0};
    di_status st = {0};
    json_read r;
    bool accepted;
    outcome o;

    json_open(&r, text, n, "fuzz");
    accepted = json_skip(&r, &st) == DI_OK && json_end(&r, &st) == DI_OK;
    json_close(&r);
    o = rewrite(text, n, &once);
    DI_CHECK(o == TOO_LARGE || (o == ACCEPTED) == accepted);
    if (accepted) {
        DI_CHECK(utf8_valid(text, n));
        check_raw(text, n);
    } else {
        DI_CHECK(strncmp(st.message, "fuzz:", 5) == 0 && strlen(st.message) > 10);
    }
    if (o == ACCEPTED) {
        DI_CHECK(rewrite(str_text(&once), once.len, &twice) == ACCEPTED);
        DI_CHECK(once.len == twice.len && memcmp(once.data, twice.data, once.len) == 0);
    }
    str_fini(&once);
    str_fini(&twice);
    return 0;
}
