/* Answer format, constraint and parsing options of a request (spec recipe.md 2.3). */
#include <string.h>
#include <strings.h>

#include "recipe/recipe_internal.h"

bool recipe_has_tools(const recipe_chat *c)
{
    return c->n_tools > 0 && c->choice != RECIPE_CHOICE_NONE;
}

static bool has_word(const char *s, size_t n)
{
    for (size_t i = 0; i + 4 <= n; i++)
        if (strncasecmp(s + i, "json", 4) == 0)
            return true;
    return false;
}

bool settings_json_word(const recipe_chat *c)
{
    for (size_t i = 0; i < c->n; i++)
        if (has_word(c->message[i].content, c->message[i].n_content))
            return true;
    return false;
}

bool settings_format(reading *rd, answer_format *f)
{
    const char *why;

    reading_at(rd, f->member);
    rd->q->chat.format = f->format;
    rd->q->chat.schema = f->checked = f->schema;
    if (f->format != RECIPE_FORMAT_JSON_SCHEMA)
        return true;
    if (!(f->strict && rd->strict) && !schema_valid(rd, f->schema, &why))
        return convert_fail(rd, "Invalid json schema: %s", why ? why : "");
    if (f->strict)
        f->checked = schema_strict(rd, f->schema, "Invalid json schema",
                                   "The top level of the json schema must be an object.", false);
    return f->checked != NULL;
}

/* One entry of the list that constrains calls. */
static void put_tool(const recipe_tool *t, recipe_family family, str *out)
{
    str_puts(out, "{\"type\":\"function\",\"function\":{\"name\":");
    jtree_quote(t->name, t->n_name, out);
    str_puts(out, ",\"description\":");
    if (t->description)
        jtree_quote(t->description, t->n_description, out);
    else
        str_puts(out, "null");
    str_puts(out, ",\"parameters\":");
    if (t->parameters)
        jtree_print(t->parameters, JTREE_COMPACT, out);
    else
        str_puts(out, "{}");
    str_printf(out, ",\"strict\":%s}",
               t->strict == RECIPE_STRICT_UNSET ? "null"
               : t->strict == RECIPE_STRICT_YES ? "true"
                                                : "false");
    if (t->deferred && family == RECIPE_V41)
        str_puts(out, ",\"defer_loading\":true");
    str_putc(out, '}');
}

static bool constrain_calls(reading *rd)
{
    const recipe_chat *c = &rd->q->chat;
    recipe_constraint *k = &rd->q->constraint;
    str text = {0};

    k->kind = c->choice == RECIPE_CHOICE_REQUIRED ? RECIPE_CONSTRAINT_TOOL_CALL_REQUIRED
                                                  : RECIPE_CONSTRAINT_TOOL_CALL;
    str_putc(&text, '[');
    for (size_t i = 0; i < c->n_tools; i++) {
        if (i)
            str_putc(&text, ',');
        put_tool(&c->tool[i], c->family, &text);
    }
    str_putc(&text, ']');
    k->text = take_str(rd, &text, &k->n);
    return k->text != NULL;
}

static bool constrain_format(reading *rd, const answer_format *f)
{
    recipe_constraint *k = &rd->q->constraint;
    str text = {0};

    k->text = "";
    switch (f->format) {
    case RECIPE_FORMAT_TEXT:
        return true;
    case RECIPE_FORMAT_JSON_OBJECT:
        k->kind = rd->strict ? RECIPE_CONSTRAINT_JSON : RECIPE_CONSTRAINT_JSON_OBJECT;
        return true;
    case RECIPE_FORMAT_JSON_SCHEMA:
        k->kind = RECIPE_CONSTRAINT_JSON;
        k->strict = f->strict;
        jtree_print(f->checked, JTREE_COMPACT, &text);
        k->text = take_str(rd, &text, &k->n);
        return k->text != NULL;
    case RECIPE_FORMAT_REGEX:
    case RECIPE_FORMAT_EBNF:
        break;
    }
    k->kind = f->format == RECIPE_FORMAT_REGEX ? RECIPE_CONSTRAINT_REGEX : RECIPE_CONSTRAINT_EBNF;
    k->text = f->text->text;
    k->n = f->text->n;
    return true;
}

/* Where the answer begins (spec recipe.md 1.6). */
static recipe_stage stage_of(const recipe_chat *c)
{
    const recipe_message *last = c->prefix ? &c->message[c->n - 1] : NULL;

    if (!c->thinking)
        return RECIPE_STAGE_CONTENT;
    if (!last || (last->n_content == 0 && last->n_reasoning == 0))
        return RECIPE_STAGE_REASONING;
    return last->n_content ? RECIPE_STAGE_CONTENT_ON : RECIPE_STAGE_REASONING_ON;
}

bool settings_constraint(reading *rd, const answer_format *f)
{
    const recipe_chat *c = &rd->q->chat;
    recipe_parsing *p = &rd->q->parsing;

    p->tool_calls = recipe_has_tools(c);
    p->starts_in_tool_calls = p->tool_calls && c->choice == RECIPE_CHOICE_REQUIRED;
    p->json_output = f->format == RECIPE_FORMAT_JSON_OBJECT;
    p->stage = stage_of(c);
    rd->q->constraint.param = p->tool_calls ? "tools" : f->member;
    return p->tool_calls ? constrain_calls(rd) : constrain_format(rd, f);
}
