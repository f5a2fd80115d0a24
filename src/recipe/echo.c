/* What a Responses object repeats of its request (spec recipe.md 3.4): finished JSON values. */
#include "recipe/recipe_internal.h"

static const char *keep(reading *rd, str *s)
{
    size_t n;

    return take_str(rd, s, &n);
}

/* The member as it was sent, or `otherwise`. */
static const char *echo_raw(reading *rd, const jtree *body, const char *key, const char *otherwise)
{
    const jtree *t = jtree_get(body, key);
    str s = {0};

    if (!t || t->type == JSON_NULL)
        return otherwise;
    jtree_print(t, JTREE_PYTHON, &s);
    return keep(rd, &s);
}

static void put_member(const jtree *t, const char *key, str *out)
{
    const jtree *v = jtree_get(t, key);

    str_printf(out, "\"%s\": ", key);
    if (v)
        jtree_print(v, JTREE_PYTHON, out);
    else
        str_puts(out, "null");
}

static const char *echo_reasoning(reading *rd, const jtree *body)
{
    const jtree *t = jtree_get(body, "reasoning");
    str s = {0};

    str_putc(&s, '{');
    put_member(t, "effort", &s);
    str_puts(&s, ", ");
    put_member(t, "summary", &s);
    str_putc(&s, '}');
    return keep(rd, &s);
}

static const char *echo_text(reading *rd, const jtree *body)
{
    const jtree *t = jtree_get(body, "text"), *format = jtree_get(t, "format");
    str s = {0};

    str_puts(&s, "{\"format\": ");
    if (format && format->type == JSON_OBJECT)
        jtree_print(format, JTREE_PYTHON, &s);
    else
        str_puts(&s, "{\"type\": \"text\"}");
    str_puts(&s, ", ");
    put_member(t, "verbosity", &s);
    str_putc(&s, '}');
    return keep(rd, &s);
}

/* Functions with all their members, other tools as they were sent. */
static const char *echo_tools(reading *rd, const jtree *body)
{
    static const char *const members[] = {"name", "description", "parameters", "strict"};
    const jtree *list = jtree_get(body, "tools");
    str s = {0};

    str_putc(&s, '[');
    for (const jtree *v = list && list->type == JSON_ARRAY ? list->child : NULL; v; v = v->next) {
        if (jtree_is(jtree_get(v, "type"), "function")) {
            str_puts(&s, "{\"type\": \"function\"");
            for (size_t i = 0; i < ARRAY_LEN(members); i++) {
                str_puts(&s, ", ");
                put_member(v, members[i], &s);
            }
            str_putc(&s, '}');
        } else {
            jtree_print(v, JTREE_PYTHON, &s);
        }
        if (v->next)
            str_puts(&s, ", ");
    }
    str_putc(&s, ']');
    return keep(rd, &s);
}

bool echo_fill(reading *rd, const jtree *body)
{
    recipe_echo *e = &rd->q->echo;

    e->instructions = echo_raw(rd, body, "instructions", "null");
    e->max_output_tokens = echo_raw(rd, body, "max_output_tokens", "null");
    e->reasoning = echo_reasoning(rd, body);
    e->temperature = echo_raw(rd, body, "temperature", "1.0");
    e->top_p = echo_raw(rd, body, "top_p", "1.0");
    e->text = echo_text(rd, body);
    e->tool_choice = echo_raw(rd, body, "tool_choice", "\"auto\"");
    e->tools = echo_tools(rd, body);
    e->top_logprobs = echo_raw(rd, body, "top_logprobs", "0");
    e->user = echo_raw(rd, body, "user", "null");
    return rd->e->status == 0;
}
