/* Arguments in a wrapper: models that have seen odd arguments in the history, which are printed as
 * one parameter called "arguments" (spec recipe.md 1.5), sometimes answer in the same way. The
 * object inside is what the client wants, unless the tool really has a parameter of that name.
 *
 * Deltas are held while they are a start of {"arguments": and, when they are, until the call ends.
 */
#include <string.h>

#include "base/arena.h"
#include "recipe/stream_internal.h"

static const char wrapper[] = "{\"arguments\": ";

bool unwrap_may(const recipe_stream *s, const call_out *call)
{
    const jtree *properties;

    if (s->q->mode == RECIPE_STRICT || !call->tool || !call->tool->parameters)
        return false;
    properties = jtree_get(call->tool->parameters, "properties");
    return properties && !jtree_get(properties, "arguments");
}

/* The object inside, as text; false when this is no wrapper. */
static bool inner_object(const str *held, str *text)
{
    arena *mem = arena_new(0);
    const jtree *t = mem ? jtree_parse(str_text(held), held->len, mem, "arguments", NULL) : NULL;
    const jtree *inner = t && t->n == 1 ? jtree_get(t, "arguments") : NULL, *parsed = inner;
    bool ok;

    if (inner && inner->type == JSON_STRING)
        parsed = jtree_parse(inner->text, inner->n, mem, "arguments", NULL);
    ok = parsed && parsed->type == JSON_OBJECT;
    if (ok && inner->type == JSON_STRING)
        str_append(text, inner->text, inner->n);
    else if (ok)
        jtree_print(inner, JTREE_PYTHON, text);
    arena_free(mem);
    return ok;
}

bool unwrap_take(call_out *call, const char *more, size_t n, bool ends, str *text)
{
    size_t known;

    str_clear(text);
    str_append(&call->held, more, n);
    known = call->held.len < sizeof wrapper - 1 ? call->held.len : sizeof wrapper - 1;
    if (!ends && memcmp(str_text(&call->held), wrapper, known) == 0)
        return false;
    call->may_wrap = false;
    if (!ends || !inner_object(&call->held, text))
        str_append(text, str_text(&call->held), call->held.len);
    str_fini(&call->held);
    return text->len > 0;
}
