/* A two-state machine over the bytes that are not certain yet. See think.h. */
#include "recipe/think.h"

#include <string.h>

#define MARKER     "</think>"
#define MARKER_LEN 8

void think_init(think_split *t, bool starts_in_reasoning)
{
    *t = (think_split){.in_reasoning = starts_in_reasoning, .leading = true};
}

void think_fini(think_split *t)
{
    str_fini(&t->held);
}

/* Length of the marker at s, newlines before it included when they go with it; 0 when there is
 * none. *partial: the text ends before that can be told. */
static size_t marker_at(const char *s, size_t n, bool newlines, bool *partial)
{
    size_t nl = 0, rest;

    while (newlines && nl < n && s[nl] == '\n')
        nl++;
    rest = n - nl < MARKER_LEN ? n - nl : MARKER_LEN;
    *partial = false;
    if (memcmp(s + nl, MARKER, rest) != 0)
        return 0;
    if (rest < MARKER_LEN) {
        *partial = true;
        return 0;
    }
    return nl + MARKER_LEN;
}

/* Handle the start of s; returns the bytes used, 0 when more text is needed first. */
static size_t consume(think_split *t, const char *s, size_t n, str *out)
{
    bool partial;
    size_t marker, run = 0;

    if (t->leading && s[0] == '\n')
        return 1;
    marker = marker_at(s, n, t->in_reasoning, &partial);
    if (partial)
        return 0;
    if (marker) {
        t->leading = t->in_reasoning;
        t->in_reasoning = false;
        return marker;
    }
    /* Newlines that turned out not to go with a marker come out together with what follows. */
    while (run < n && s[run] == '\n')
        run++;
    if (run == 0 || run == n)
        run = 1;
    while (run < n && s[run] != '<' && s[run] != '\n')
        run++;
    t->leading = false;
    str_append(out, s, run);
    return run;
}

void think_push(think_split *t, const char *text, size_t n, str *reasoning, str *content)
{
    size_t at = 0, left;

    str_append(&t->held, text, n);
    while (at < t->held.len) {
        size_t used =
            consume(t, t->held.data + at, t->held.len - at, t->in_reasoning ? reasoning : content);

        if (used == 0)
            break;
        at += used;
    }
    if (at == 0)
        return;
    left = t->held.len - at;
    memmove(t->held.data, t->held.data + at, left);
    t->held.len = left;
    t->held.data[left] = 0;
}

void think_flush(think_split *t, str *reasoning, str *content)
{
    str_append(t->in_reasoning ? reasoning : content, str_text(&t->held), t->held.len);
    str_clear(&t->held);
}
