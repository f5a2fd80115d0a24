/* Messages body -> request (spec recipe.md 2.5); its turns are read in messages_turns.c. */
#include <string.h>

#include "recipe/recipe_internal.h"

enum {
    F_MODEL,
    F_MESSAGES,
    F_MAX_TOKENS,
    F_SYSTEM,
    F_THINKING,
    F_CONFIG,
    F_TOOLS,
    F_TOOL_CHOICE,
    F_STOP,
    F_TEMPERATURE,
    F_TOP_P,
    F_STREAM,
    F_METADATA,
    F_TOP_K, /* mode CLIENT */
    N_FIELDS
};

static const field body_fields[N_FIELDS] = {
    [F_MODEL] = {"model", FIELD_STRING, FIELD_REQUIRED, 0, NULL},
    [F_MESSAGES] = {"messages", FIELD_ARRAY, FIELD_REQUIRED, 0, NULL},
    [F_MAX_TOKENS] = {"max_tokens", FIELD_UINT, 0, UINT32_MAX, NULL},
    [F_SYSTEM] = {"system", FIELD_TEXT, 0, 0, NULL},
    [F_THINKING] = {"thinking", FIELD_OBJECT, 0, 0, NULL},
    [F_CONFIG] = {"output_config", FIELD_OBJECT, 0, 0, NULL},
    [F_TOOLS] = {"tools", FIELD_ARRAY, 0, 0, NULL},
    [F_TOOL_CHOICE] = {"tool_choice", FIELD_OBJECT, 0, 0, NULL},
    [F_STOP] = {"stop_sequences", FIELD_STRINGS, 0, 0, NULL},
    [F_TEMPERATURE] = {"temperature", FIELD_REAL, 0, 0, NULL},
    [F_TOP_P] = {"top_p", FIELD_REAL, 0, 0, NULL},
    [F_STREAM] = {"stream", FIELD_BOOL, 0, 0, NULL},
    [F_METADATA] = {"metadata", FIELD_OBJECT, 0, 0, NULL},
    [F_TOP_K] = {"top_k", FIELD_ANY, FIELD_CLIENT, 0, NULL},
};

/* ---- tools ---- */

static bool read_tool(reading *rd, const jtree *v, const place *at, tool_list *l)
{
    enum { T_NAME, T_DESCRIPTION, T_SCHEMA, T_DEFER, T_TYPE, N_TOOL };
    static const field fields[N_TOOL] = {{"name", FIELD_STRING, 0, 0, NULL},
                                         {"description", FIELD_STRING, 0, 0, NULL},
                                         {"input_schema", FIELD_ANY, FIELD_NULL, 0, NULL},
                                         {"defer_loading", FIELD_BOOL, 0, 0, NULL},
                                         {"type", FIELD_STRING, 0, 0, NULL}};
    static const jtree null = {.type = JSON_NULL};
    const jtree *f[N_TOOL];
    recipe_tool *tool;
    const char *path;

    if (!fields_read(rd, v, at, fields, N_TOOL, f))
        return false;
    if (f[T_TYPE]) {
        if (rd->strict &&
            !(rd->o->messages_drop_web_search && strncmp(f[T_TYPE]->text, "web_search", 10) == 0))
            return convert_fail(rd, "tools[%zu]: server tools are not supported", at->idx);
        if (!jtree_is(f[T_TYPE], "custom"))
            return true; /* a tool of the server that we do not have: left out */
    }
    if (!f[T_NAME])
        return parse_fail(rd, at, "name is missing");
    path = take_printf(rd, "tools[%zu].name", at->idx);
    if (!path || !tool_check_name(rd, f[T_NAME]->text, f[T_NAME]->n, path))
        return false;
    tool = tools_add(rd, l);
    if (!tool)
        return false;
    tool_fill(tool, f[T_NAME], f[T_DESCRIPTION], f[T_SCHEMA] ? f[T_SCHEMA] : &null, NULL);
    tool->deferred = is_true(f[T_DEFER]);
    return true;
}

static bool read_tools(reading *rd, const jtree *list, tool_list *l)
{
    place at = {.text = "tools", .has_idx = true};
    size_t n_deferred = 0;

    for (const jtree *v = list ? list->child : NULL; v; v = v->next, at.idx++)
        if (!read_tool(rd, v, &at, l))
            return false;
    for (size_t i = 0; i < l->n; i++)
        n_deferred += l->tool[i].deferred;
    if (l->n && n_deferred == l->n && rd->q->chat.family == RECIPE_V41)
        return convert_fail(rd, "tools: at least one tool must have defer_loading=false. All "
                                "tools cannot be deferred.");
    return true;
}

static bool read_choice(reading *rd, const jtree *t, tool_choice *c)
{
    enum { C_TYPE, C_NAME, C_SERIAL, N_CHOICE };
    static const char *const words[] = {"auto", "any", "tool", "none", NULL};
    static const field fields[N_CHOICE] = {
        {"type", FIELD_WORD, FIELD_REQUIRED, 0, words},
        {"name", FIELD_STRING, 0, 0, NULL},
        {"disable_parallel_tool_use", FIELD_BOOL, FIELD_CLIENT, 0, NULL}};
    const place at = {.text = "tool_choice"};
    const jtree *f[N_CHOICE];

    if (!t)
        return true;
    if (!fields_read(rd, t, &at, fields, N_CHOICE, f))
        return false;
    rd->q->constraint.one_call = is_true(f[C_SERIAL]);
    switch (word_index(f[C_TYPE], words)) {
    case 1: /* the recipe reads it as auto; with thinking on there is no other way */
        if (!rd->strict && !rd->q->chat.thinking)
            c->choice = RECIPE_CHOICE_REQUIRED;
        return true;
    case 2:
        c->name = f[C_NAME];
        return c->name || parse_fail(rd, &at, "name is missing");
    case 3:
        c->choice = RECIPE_CHOICE_NONE;
        return true;
    default:
        return true;
    }
}

/* ---- the rest of the body ---- */

/* output_config: {"effort"}, and in mode CLIENT {"format": {"type": "json_schema", "schema"}}. */
static bool read_config(reading *rd, const jtree *t, const jtree **effort, answer_format *f)
{
    enum { C_EFFORT, C_FORMAT, N_CONFIG };
    static const field fields[N_CONFIG] = {{"effort", FIELD_WORD, 0, 0, effort_words},
                                           {"format", FIELD_OBJECT, FIELD_CLIENT, 0, NULL}};
    const place at = {.text = "output_config"};
    const jtree *g[N_CONFIG];

    *effort = NULL;
    if (!t)
        return true;
    if (!fields_read(rd, t, &at, fields, N_CONFIG, g))
        return false;
    *effort = g[C_EFFORT];
    if (!g[C_FORMAT])
        return true;
    f->format = RECIPE_FORMAT_JSON_SCHEMA;
    f->schema = jtree_get(g[C_FORMAT], "schema");
    if (!jtree_is(jtree_get(g[C_FORMAT], "type"), "json_schema") || !f->schema)
        return parse_fail(rd, &at, "format must have type json_schema and a schema");
    return true;
}

static bool read_metadata(reading *rd, const jtree *t)
{
    static const field fields[] = {{"user_id", FIELD_STRING, 0, 0, NULL}};
    const place at = {.text = "metadata"};
    const jtree *user;

    if (!t)
        return true;
    if (!fields_read(rd, t, &at, fields, 1, &user))
        return false;
    rd->q->user = user ? user->text : NULL;
    return true;
}

static bool apply_settings(reading *rd, const jtree *const *f)
{
    const settings s = {.temperature = f[F_TEMPERATURE],
                        .top_p = f[F_TOP_P],
                        .top_k = f[F_TOP_K],
                        .max_tokens = f[F_MAX_TOKENS],
                        .clamp_max_tokens = true};

    return settings_apply(rd, &s);
}

const field_list messages_fields = {body_fields, N_FIELDS};

/* The checks in the order in which the recipe reports faults (spec recipe.md 2.0). */
bool request_read_messages(reading *rd, const jtree *body)
{
    const jtree *f[N_FIELDS], *effort;
    tool_list tools = {0};
    tool_choice choice = {0};
    answer_format format = {.member = "output_config.format"};
    thinking_said said;

    if (!fields_read(rd, body, NULL, body_fields, N_FIELDS, f) ||
        !settings_thinking_type(rd, f[F_THINKING], &said) ||
        !read_config(rd, f[F_CONFIG], &effort, &format) || !read_metadata(rd, f[F_METADATA]))
        return false;
    settings_thinking(rd, said, effort);
    if (!read_choice(rd, f[F_TOOL_CHOICE], &choice) || !settings_model(rd, f[F_MODEL]) ||
        !read_tools(rd, f[F_TOOLS], &tools) ||
        !messages_read_turns(rd, f[F_SYSTEM], f[F_MESSAGES], &tools) ||
        !tools_check(rd, &tools, choice.choice, false) || !tools_choose(rd, &tools, &choice) ||
        !settings_stop(rd, f[F_STOP], false) || !settings_format(rd, &format) ||
        !apply_settings(rd, f))
        return false;
    rd->q->stream = is_true(f[F_STREAM]);
    return settings_constraint(rd, &format);
}
