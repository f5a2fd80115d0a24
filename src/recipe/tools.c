/* Tools of a request: names, schemas, choice (spec recipe.md 2.3). See recipe_internal.h. */
#include <string.h>

#include "base/map.h"
#include "recipe/recipe_internal.h"

recipe_tool *tools_add(reading *rd, tool_list *l)
{
    if (l->n == RECIPE_MAX_TOOLS) {
        convert_fail(rd, "Too many tools: at most %d are supported", RECIPE_MAX_TOOLS);
        return NULL;
    }
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 16;
        recipe_tool *more = take_memory(rd, cap, sizeof *more);

        if (!more)
            return NULL;
        if (l->n)
            memcpy(more, l->tool, l->n * sizeof *more);
        l->tool = more;
        l->cap = cap;
    }
    return &l->tool[l->n++];
}

void tool_fill(recipe_tool *t, const jtree *name, const jtree *description, const jtree *parameters,
               const jtree *strict)
{
    t->name = name->text;
    t->n_name = name->n;
    if (description) {
        t->description = description->text;
        t->n_description = description->n;
    }
    t->parameters = parameters;
    if (strict)
        t->strict = strict->yes ? RECIPE_STRICT_YES : RECIPE_STRICT_NO;
}

bool tool_check_name(reading *rd, const char *name, size_t n, const char *path)
{
    if (n == 0)
        return convert_fail(rd,
                            "Invalid '%s': empty string. Expected a string with minimum length 1, "
                            "but got an empty string instead.",
                            path);
    for (size_t i = 0; i < n; i++) {
        char c = name[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-'))
            return convert_fail(rd,
                                "Invalid '%s': string does not match pattern. Expected a string "
                                "that matches the pattern '^[a-zA-Z0-9_-]+$'.",
                                path);
    }
    return true;
}

/* "type" must be "object"; what else it is goes into the message. */
static bool check_type(reading *rd, const recipe_tool *t)
{
    const jtree *type = jtree_get(t->parameters, "type");
    str text = {0};

    if (jtree_is(type, "object"))
        return true;
    if (type)
        jtree_print(type, JTREE_COMPACT, &text);
    else
        str_puts(&text, "null");
    convert_fail(rd,
                 "Invalid schema for function '%s': schema must be a JSON Schema of 'type: "
                 "\"object\"', got 'type: %.*s'.",
                 t->name, text.len > 200 ? 200 : (int)text.len, str_text(&text));
    str_fini(&text);
    return false;
}

static bool check_schema(reading *rd, recipe_tool *t, bool check_strict)
{
    static const char none[] = "{\"type\": \"object\", \"properties\": {}}";
    const bool strict = check_strict && t->strict == RECIPE_STRICT_YES;
    const char *why;

    if (!t->parameters && strict)
        t->parameters = jtree_parse(none, sizeof none - 1, rd->mem, "parameters", NULL);
    if (!t->parameters)
        return !strict || out_of_memory(rd);
    if (!(strict && rd->strict) && !schema_valid(rd, t->parameters, &why))
        return convert_fail(rd, "Invalid schema for function '%s': %s", t->name, why ? why : "");
    if (strict) {
        t->parameters = schema_strict(
            rd, t->parameters, "Invalid tool parameters schema ",
            "The top level of the function parameters schema must be an object.", true);
        return t->parameters != NULL;
    }
    return check_type(rd, t);
}

/* One tool after the other: its name, then its schema. */
static bool check_each(reading *rd, tool_list *l, bool check_strict, map *seen)
{
    for (size_t i = 0; i < l->n; i++) {
        int got = map_insert(seen, l->tool[i].name, l->tool[i].n_name, 0);

        reading_item(rd, "tools", i);
        if (got < 0)
            return out_of_memory(rd);
        if (got == 0)
            return convert_fail(rd, "Tool names must be unique.");
        if (!check_schema(rd, &l->tool[i], check_strict))
            return false;
    }
    return true;
}

bool tools_check(reading *rd, tool_list *l, recipe_choice choice, bool check_strict)
{
    map *seen = map_new(l->n + 1);
    size_t n_strict = 0;
    bool ok;

    if (!seen)
        return out_of_memory(rd);
    ok = choice == RECIPE_CHOICE_NONE || check_each(rd, l, check_strict, seen);
    map_free(seen);
    reading_at(rd, "tools");
    for (size_t i = 0; i < l->n; i++)
        n_strict += l->tool[i].strict == RECIPE_STRICT_YES;
    if (ok && choice != RECIPE_CHOICE_NONE && rd->strict && check_strict && n_strict > 0 &&
        n_strict < l->n)
        return convert_fail(rd, "Cannot use strict tool with non-strict tool in the same request");
    return ok;
}

const recipe_tool *tools_find(const tool_list *l, const char *name, size_t n)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->tool[i].n_name == n && memcmp(l->tool[i].name, name, n) == 0)
            return &l->tool[i];
    return NULL;
}

/* Keep only the tools that a list of allowed ones names. */
static bool allow(reading *rd, const tool_list *l, const jtree *allowed)
{
    recipe_chat *c = &rd->q->chat;
    recipe_tool *left = take_memory(rd, allowed->n, sizeof *left);
    size_t n = 0;

    if (!left)
        return false;
    for (const jtree *v = allowed->child; v; v = v->next) {
        const jtree *f = jtree_get(v, "function"), *name = jtree_get(f ? f : v, "name");
        const recipe_tool *t =
            name && name->type == JSON_STRING ? tools_find(l, name->text, name->n) : NULL;

        if (t)
            left[n++] = *t;
    }
    c->tool = left;
    c->n_tools = n;
    return n > 0 || convert_fail(rd, "tool_choice allows none of the tools that are declared.");
}

bool tools_choose(reading *rd, const tool_list *l, const tool_choice *choice)
{
    recipe_chat *c = &rd->q->chat;

    c->tool = l->tool;
    c->n_tools = l->n;
    reading_at(rd, "tool_choice");
    if (l->n == 0 && !rd->strict && rd->q->protocol != RECIPE_PROTOCOL_MESSAGES &&
        (choice->name || choice->choice == RECIPE_CHOICE_REQUIRED))
        return convert_fail(rd, "tool_choice demands a call, but there are no tools");
    if (l->n == 0) {
        if (choice->choice == RECIPE_CHOICE_NONE)
            c->choice = RECIPE_CHOICE_NONE;
        return true;
    }
    c->choice = choice->choice;
    if (choice->name) {
        const jtree *name = choice->name;
        const recipe_tool *t = tools_find(l, name->text, name->n);

        if (!t)
            return convert_fail(rd,
                                "Invalid value for 'tool_call': no function named '%s' was "
                                "specified in the 'tools' parameter.",
                                name->text);
        c->tool = t;
        c->n_tools = 1;
        c->choice = RECIPE_CHOICE_REQUIRED;
    } else if (choice->allowed && !allow(rd, l, choice->allowed)) {
        return false;
    }
    if (c->choice == RECIPE_CHOICE_REQUIRED && c->thinking)
        return convert_fail(rd, "Thinking mode does not support this tool_choice");
    return true;
}
