/* JSON writer: separators come from one bit per open container. */
#include "base/json_write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json_number.h"
#include "base/json_read.h"
#include "base/utf8.h"

static uint64_t level_bit(const json_write *w)
{
    return (uint64_t)1 << (w->depth - 1);
}

static void new_line(json_write *w)
{
    str_putc(w->out, '\n');
    for (int i = 0; i < w->depth * w->indent; i++)
        str_putc(w->out, ' ');
}

/* What stands between the member before and this one. */
static void separate(json_write *w)
{
    bool more;

    if (w->depth == 0)
        return;
    more = (w->has_member & level_bit(w)) != 0;
    w->has_member |= level_bit(w);
    if (more)
        str_puts(w->out, w->indent ? "," : ", ");
    if (w->indent)
        new_line(w);
}

/* Before any value: members of an object have had their key, elements of an array need a comma. */
static void begin_value(json_write *w)
{
    bool in_object = w->depth > 0 && (w->is_object & level_bit(w));

    DI_CHECK(in_object == w->after_key);
    w->after_key = false;
    if (!in_object)
        separate(w);
}

static void open_container(json_write *w, bool object)
{
    begin_value(w);
    DI_CHECK(w->depth < JSON_MAX_DEPTH);
    w->depth++;
    w->has_member &= ~level_bit(w);
    if (object)
        w->is_object |= level_bit(w);
    else
        w->is_object &= ~level_bit(w);
    str_putc(w->out, object ? '{' : '[');
}

void jw_object(json_write *w)
{
    open_container(w, true);
}

void jw_array(json_write *w)
{
    open_container(w, false);
}

void jw_end(json_write *w)
{
    bool object, filled;

    DI_CHECK(w->depth > 0 && !w->after_key);
    object = (w->is_object & level_bit(w)) != 0;
    filled = (w->has_member & level_bit(w)) != 0;
    w->depth--;
    if (filled && w->indent)
        new_line(w);
    str_putc(w->out, object ? '}' : ']');
}

/* One character that cannot stand in a string as it is. */
static void put_escaped(str *out, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *found = strchr(from, c);

    if (c && found)
        str_printf(out, "\\%c", to[found - from]);
    else
        str_printf(out, "\\u%04x", c);
}

/* A quoted string; runs of characters that need no change are copied at once. */
static void put_string(str *out, const char *s, size_t n)
{
    size_t from = 0, i = 0;

    str_putc(out, '"');
    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        uint32_t cp = c;
        size_t len = c < 0x80 ? 1 : utf8_read(s + i, n - i, &cp);

        if (cp != UTF8_BAD && c >= 0x20 && c != '"' && c != '\\') {
            i += len;
            continue;
        }
        str_append(out, s + from, i - from);
        if (cp == UTF8_BAD)
            str_puts(out, "\xEF\xBF\xBD");
        else
            put_escaped(out, c);
        i += len;
        from = i;
    }
    str_append(out, s + from, n - from);
    str_putc(out, '"');
}

void jw_key(json_write *w, const char *key)
{
    DI_CHECK(w->depth > 0 && (w->is_object & level_bit(w)) && !w->after_key);
    separate(w);
    put_string(w->out, key, strlen(key));
    str_puts(w->out, ": ");
    w->after_key = true;
}

void jw_string(json_write *w, const char *text, size_t n)
{
    begin_value(w);
    put_string(w->out, text, n);
}

void jw_cstr(json_write *w, const char *text)
{
    jw_string(w, text, strlen(text));
}

static void put_digits(str *out, uint64_t v)
{
    char text[20], *p = text + sizeof text;

    do
        *--p = (char)('0' + v % 10);
    while (v /= 10);
    str_append(out, p, (size_t)(text + sizeof text - p));
}

void jw_int(json_write *w, int64_t v)
{
    begin_value(w);
    if (v < 0)
        str_putc(w->out, '-');
    put_digits(w->out, v < 0 ? -(uint64_t)v : (uint64_t)v);
}

void jw_uint(json_write *w, uint64_t v)
{
    begin_value(w);
    put_digits(w->out, v);
}

void jw_number(json_write *w, double v)
{
    char text[JSON_NUMBER_CAP];

    if (!isfinite(v)) {
        jw_null(w);
        return;
    }
    begin_value(w);
    str_append(w->out, text, json_number_print(text, v));
}

void jw_bool(json_write *w, bool v)
{
    begin_value(w);
    str_puts(w->out, v ? "true" : "false");
}

void jw_null(json_write *w)
{
    begin_value(w);
    str_puts(w->out, "null");
}

void jw_raw(json_write *w, const char *json, size_t n)
{
    begin_value(w);
    str_append(w->out, json, n);
}
