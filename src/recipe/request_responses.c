/* Responses body -> request (spec recipe.md 2.4). */
#include <string.h>

#include "recipe/recipe_internal.h"

enum {
    F_MODEL,
    F_INPUT,
    F_INSTRUCTIONS,
    F_REASONING,
    F_TOOLS,
    F_TOOL_CHOICE,
    F_TEXT,
    F_TEMPERATURE,
    F_TOP_P,
    F_TOP_LOGPROBS,
    F_MAX_TOKENS,
    F_STREAM,
    F_USER,
    /* mode CLIENT */
    F_PARALLEL,
    F_CACHE_KEY,
    F_PREVIOUS,
    F_INCLUDE,
    N_FIELDS
};

static const field body_fields[N_FIELDS] = {
    [F_MODEL] = {"model", FIELD_STRING, FIELD_REQUIRED, 0, NULL},
    [F_INPUT] = {"input", FIELD_TEXT, 0, 0, NULL},
    [F_INSTRUCTIONS] = {"instructions", FIELD_STRING, 0, 0, NULL},
    [F_REASONING] = {"reasoning", FIELD_OBJECT, 0, 0, NULL},
    [F_TOOLS] = {"tools", FIELD_ARRAY, 0, 0, NULL},
    [F_TOOL_CHOICE] = {"tool_choice", FIELD_ANY, 0, 0, NULL},
    [F_TEXT] = {"text", FIELD_OBJECT, 0, 0, NULL},
    [F_TEMPERATURE] = {"temperature", FIELD_REAL, 0, 0, NULL},
    [F_TOP_P] = {"top_p", FIELD_REAL, 0, 0, NULL},
    [F_TOP_LOGPROBS] = {"top_logprobs", FIELD_UINT, 0, 255, NULL},
    [F_MAX_TOKENS] = {"max_output_tokens", FIELD_UINT, 0, UINT32_MAX, NULL},
    [F_STREAM] = {"stream", FIELD_BOOL, 0, 0, NULL},
    [F_USER] = {"user", FIELD_STRING, 0, 0, NULL},
    [F_PARALLEL] = {"parallel_tool_calls", FIELD_BOOL, FIELD_CLIENT, 0, NULL},
    [F_CACHE_KEY] = {"prompt_cache_key", FIELD_STRING, FIELD_CLIENT, 0, NULL},
    [F_PREVIOUS] = {"previous_response_id", FIELD_STRING, FIELD_CLIENT, 0, NULL},
    [F_INCLUDE] = {"include", FIELD_STRINGS, FIELD_CLIENT, 0, NULL},
};

/* ---- content parts ---- */

enum { P_TYPE, P_TEXT, P_IMAGE, P_FILE_ID, P_DETAIL, P_REFUSAL, N_PART };

static const char *const part_words[] = {"input_text", "output_text", "input_image", "input_file",
                                         "text",       "refusal",     NULL};

static const field part_fields[N_PART] = {
    [P_TYPE] = {"type", FIELD_WORD, FIELD_REQUIRED, 0, part_words},
    [P_TEXT] = {"text", FIELD_STRING, 0, 0, NULL},
    [P_IMAGE] = {"image_url", FIELD_STRING, 0, 0, NULL},
    [P_FILE_ID] = {"file_id", FIELD_STRING, 0, 0, NULL},
    [P_DETAIL] = {"detail", FIELD_WORD, 0, 0, detail_words},
    [P_REFUSAL] = {"refusal", FIELD_STRING, FIELD_CLIENT, 0, NULL},
};

/* An image_url that is empty counts as absent. */
static bool read_image(reading *rd, const jtree *const *f, const place *at, bool assistant,
                       content *c)
{
    const char *path = take_printf(rd, "input[%zu]", at->in->idx);

    if (!path)
        return false;
    if (content_blind(rd, c))
        return true;
    if (assistant)
        return convert_fail(rd, "%s: Image in assistant message is unsupported", path);
    if (f[P_IMAGE] && f[P_IMAGE]->n)
        return content_image_url(rd, c, f[P_IMAGE], f[P_DETAIL] ? f[P_DETAIL]->text : "high", path);
    if (f[P_FILE_ID])
        return convert_fail(rd,
                            "%s.%s[%zu]: file_id is not supported. Pass the image as a base64 "
                            "data url instead.",
                            path, at->text, at->idx);
    return convert_fail(rd, "%s.%s[%zu]: input_image must have image_url or file_id", path,
                        at->text, at->idx);
}

static bool read_part(reading *rd, const jtree *t, const place *at, bool assistant, content *c)
{
    static const char unsupported[] = "[Unsupported Document]";
    const jtree *f[N_PART], *text;
    int kind;

    if (!fields_read(rd, t, at, part_fields, N_PART, f))
        return false;
    kind = word_index(f[P_TYPE], part_words);
    if (kind == 2)
        return read_image(rd, f, at, assistant, c);
    if (kind == 3) {
        content_text(c, unsupported, sizeof unsupported - 1);
        return true;
    }
    text = kind == 5 ? f[P_REFUSAL] : f[P_TEXT];
    if (!text)
        return parse_fail(rd, at, "a text part has no text");
    content_text(c, text->text, text->n);
    return true;
}

/* A string, or a list of parts whose texts are joined, as one more text of c. */
static bool read_content(reading *rd, const jtree *t, const place *item, const char *name,
                         bool assistant, content *c)
{
    place part = {.text = name, .has_idx = true, .in = item};

    if (t->type == JSON_STRING) {
        content_text(c, t->text, t->n);
        return true;
    }
    for (const jtree *v = t->child; v; v = v->next, part.idx++)
        if (!read_part(rd, v, &part, assistant, c))
            return false;
    return true;
}

/* ---- items ---- */

typedef enum item_kind {
    ITEM_MESSAGE,
    ITEM_REASONING,
    ITEM_CALL,
    ITEM_CALL_OUTPUT,
    ITEM_CUSTOM_CALL,
    ITEM_CUSTOM_OUTPUT,
    ITEM_OTHER /* skipped */
} item_kind;

static const char *const item_words[] = {"message",
                                         "reasoning",
                                         "function_call",
                                         "function_call_output",
                                         "custom_tool_call",
                                         "custom_tool_call_output",
                                         NULL};

/* The list of items while it is read: the assistant's turn that is open, the calls that wait. */
typedef struct items {
    reading *rd;
    recipe_message *message;
    size_t n;
    bool open; /* an assistant's turn: reasoning, texts, calls */
    str reasoning;
    size_t n_reasoning;
    content text;
    recipe_call *call;
    size_t n_call;
    id_set waiting;
    size_t n_waiting;
} items;

static item_kind kind_of(const jtree *t)
{
    const jtree *type = jtree_get(t, "type");
    int i = word_index(type, item_words);

    if (!type || type->type == JSON_NULL)
        return ITEM_MESSAGE;
    return i < 0 ? ITEM_OTHER : (item_kind)i;
}

/* The first call without an output. */
static bool missing_output(const items *l)
{
    for (size_t i = 0; i < l->waiting.n; i++)
        if (!l->waiting.ref[i].taken)
            return convert_fail(l->rd, "No tool output found for tool call %s.",
                                l->waiting.ref[i].id);
    return true;
}

static bool close_turn(items *l)
{
    recipe_message *m = &l->message[l->n];

    if (!l->open)
        return true;
    m->role = RECIPE_ASSISTANT;
    m->call = l->call;
    m->n_call = l->n_call;
    if (l->n_reasoning) {
        m->reasoning = take_str(l->rd, &l->reasoning, &m->n_reasoning);
        if (!m->reasoning)
            return false;
    }
    if (!content_take(l->rd, &l->text, m))
        return false;
    if (m->n_call && !m->n_reasoning && l->rd->q->chat.thinking &&
        l->rd->o->reject_missing_reasoning)
        return convert_fail(l->rd, "The `reasoning_text` in the thinking mode must be passed back "
                                   "to the API.");
    l->n++;
    l->open = false;
    l->n_call = l->n_reasoning = 0;
    l->call = NULL;
    return true;
}

static bool read_user_message(items *l, const jtree *body, recipe_role role, const place *at)
{
    recipe_message *m;
    content c = {0};

    if (!missing_output(l) || !close_turn(l))
        return false;
    m = &l->message[l->n++];
    m->role = role;
    m->keeps = true;
    if (!read_content(l->rd, body, at, "content", false, &c)) {
        content_fini(&c);
        return false;
    }
    return content_take(l->rd, &c, m);
}

static bool read_message(items *l, const jtree *t, const place *at)
{
    enum { M_ROLE, M_CONTENT, N_MESSAGE };
    static const char *const roles[] = {"user", "assistant", "system", "developer", NULL};
    static const field fields[N_MESSAGE] = {{"role", FIELD_WORD, FIELD_REQUIRED, 0, roles},
                                            {"content", FIELD_TEXT, FIELD_REQUIRED, 0, NULL}};
    const jtree *f[N_MESSAGE];
    bool v4 = l->rd->q->chat.family == RECIPE_V4;

    if (!fields_read(l->rd, t, at, fields, N_MESSAGE, f))
        return false;
    switch (word_index(f[M_ROLE], roles)) {
    case 1:
        if (!missing_output(l))
            return false;
        l->open = true;
        return read_content(l->rd, f[M_CONTENT], at, "content", true, &l->text);
    case 2:
        return read_user_message(l, f[M_CONTENT], RECIPE_SYSTEM, at);
    case 3:
        return read_user_message(l, f[M_CONTENT], v4 ? RECIPE_USER : RECIPE_SYSTEM, at);
    default:
        return read_user_message(l, f[M_CONTENT], RECIPE_USER, at);
    }
}

static bool read_reasoning(items *l, const jtree *t, const place *at)
{
    static const field fields[] = {{"content", FIELD_ARRAY, 0, 0, NULL}};
    static const field part[] = {{"text", FIELD_STRING, FIELD_REQUIRED, 0, NULL}};
    place here = {.text = "content", .has_idx = true, .in = at};
    const jtree *list, *text;

    if (!missing_output(l) || !fields_read(l->rd, t, at, fields, 1, &list))
        return false;
    for (const jtree *v = list ? list->child : NULL; v; v = v->next, here.idx++) {
        l->open = true; /* an item without texts, a mere summary say, is nothing */
        if (!fields_read(l->rd, v, &here, part, 1, &text))
            return false;
        if (l->n_reasoning++)
            str_putc(&l->reasoning, '\n');
        str_append(&l->reasoning, text->text, text->n);
    }
    return true;
}

/* How many calls can follow `t` before their outputs. */
static size_t count_calls(const jtree *t)
{
    size_t n = 0;

    for (; t; t = t->next) {
        item_kind kind = kind_of(t);

        if (kind == ITEM_CALL || kind == ITEM_CUSTOM_CALL)
            n++;
        else if (kind != ITEM_OTHER)
            break;
    }
    return n;
}

/* {"input": TEXT} as the arguments of a custom tool's call. */
static const jtree *custom_arguments(reading *rd, const jtree *input)
{
    jtree *t = take_memory(rd, 1, sizeof *t);
    str text = {0};

    if (!t)
        return NULL;
    str_puts(&text, "{\"input\": ");
    jtree_quote(input->text, input->n, &text);
    str_putc(&text, '}');
    t->type = JSON_STRING;
    t->text = take_str(rd, &text, &t->n);
    return t->text ? t : NULL;
}

/* A member of a namespace is called "ns::name"; in V4 "ns__name". */
static const char *member_glue(const reading *rd)
{
    return rd->q->chat.family == RECIPE_V4 ? "__" : "::";
}

static const jtree *full_name(reading *rd, const jtree *ns, const jtree *name)
{
    jtree *t;
    str text = {0};

    if (!ns)
        return name;
    t = take_memory(rd, 1, sizeof *t);
    if (!t)
        return NULL;
    t->type = JSON_STRING;
    str_printf(&text, "%s%s%s", ns->text, member_glue(rd), name->text);
    t->text = take_str(rd, &text, &t->n);
    return t->text ? t : NULL;
}

static bool check_call_id(reading *rd, const jtree *id, const place *at)
{
    return id->n > 0 ||
           convert_fail(rd,
                        "Invalid 'input[%zu].call_id': empty string. Expected a string with "
                        "minimum length 1, but got an empty string instead.",
                        at->idx);
}

static bool read_call(items *l, const jtree *t, const place *at, bool custom)
{
    enum { C_ID, C_NAME, C_ARGUMENTS, C_NAMESPACE, N_CALL };
    const field fields[N_CALL] = {
        {"call_id", FIELD_STRING, FIELD_REQUIRED, 0, NULL},
        {"name", FIELD_STRING, FIELD_REQUIRED, 0, NULL},
        {custom ? "input" : "arguments", FIELD_STRING, FIELD_REQUIRED, 0, NULL},
        {"namespace", FIELD_STRING, 0, 0, NULL}};
    const jtree *f[N_CALL], *arguments, *name;

    if (!fields_read(l->rd, t, at, fields, N_CALL, f) || !check_call_id(l->rd, f[C_ID], at))
        return false;
    if (l->n_call == 0) { /* the first of its turn */
        size_t cap = count_calls(t);

        if (!missing_output(l))
            return false;
        id_set_fini(&l->waiting);
        l->call = take_memory(l->rd, cap, sizeof *l->call);
        if (!l->call || !id_set_init(l->rd, &l->waiting, cap))
            return false;
        l->open = true;
    }
    if (!id_set_add(&l->waiting, f[C_ID]->text, f[C_ID]->n))
        return convert_fail(l->rd, "Duplicate 'call_id': %s.", f[C_ID]->text);
    arguments = custom ? custom_arguments(l->rd, f[C_ARGUMENTS]) : f[C_ARGUMENTS];
    name = full_name(l->rd, f[C_NAMESPACE], f[C_NAME]);
    return arguments && name && call_fill(l->rd, &l->call[l->n_call++], f[C_ID], name, arguments);
}

/* An output is of a call that waits for it. The released recipe takes one without an id as well,
 * when no call waits; that of a custom tool may have no text: it is empty then. */
static bool read_output(items *l, const jtree *t, const place *at, bool custom)
{
    enum { O_ID, O_OUTPUT, N_OUTPUT };
    const bool needs_id = custom || !l->rd->strict;
    const field fields[N_OUTPUT] = {
        {"call_id", FIELD_STRING, needs_id ? FIELD_REQUIRED : 0, 0, NULL},
        {"output", FIELD_TEXT, custom ? 0 : FIELD_REQUIRED, 0, NULL}};
    const jtree *f[N_OUTPUT];
    recipe_message *m;
    content c = {0};

    if (!fields_read(l->rd, t, at, fields, N_OUTPUT, f) || !close_turn(l))
        return false;
    if (f[O_ID] && !check_call_id(l->rd, f[O_ID], at))
        return false;
    if (!f[O_ID] && !missing_output(l))
        return false;
    if (f[O_ID] && !id_set_take(&l->waiting, f[O_ID]->text, f[O_ID]->n))
        return convert_fail(l->rd,
                            id_set_find(&l->waiting, f[O_ID]->text, f[O_ID]->n)
                                ? "Duplicate tool output for call_id: %s."
                                : "No tool call found for tool output with call_id %s.",
                            f[O_ID]->text);
    m = &l->message[l->n++];
    m->role = RECIPE_TOOL;
    if (f[O_ID]) {
        m->call_id = f[O_ID]->text;
        m->n_call_id = f[O_ID]->n;
    }
    if (f[O_OUTPUT] && !read_content(l->rd, f[O_OUTPUT], at, "output", false, &c)) {
        content_fini(&c);
        return false;
    }
    return content_take(l->rd, &c, m);
}

static bool read_item(items *l, const jtree *t, const place *at)
{
    if (t->type != JSON_OBJECT)
        return parse_fail(l->rd, at, "must be an object");
    switch (kind_of(t)) {
    case ITEM_MESSAGE:
        return read_message(l, t, at);
    case ITEM_REASONING:
        return read_reasoning(l, t, at);
    case ITEM_CALL:
        return read_call(l, t, at, false);
    case ITEM_CUSTOM_CALL:
        return read_call(l, t, at, true);
    case ITEM_CALL_OUTPUT:
        return read_output(l, t, at, false);
    case ITEM_CUSTOM_OUTPUT:
        return read_output(l, t, at, true);
    case ITEM_OTHER:
        break;
    }
    return true;
}

static bool read_items(reading *rd, const jtree *list, recipe_message *m, size_t n)
{
    items l = {.rd = rd, .message = m, .n = n};
    place at = {.text = "input", .has_idx = true};
    bool ok = true;

    for (const jtree *v = list->child; ok && v; v = v->next, at.idx++)
        ok = reading_item(rd, "input", at.idx) && read_item(&l, v, &at);
    ok = ok && missing_output(&l) && close_turn(&l);
    if (ok && l.n == 0 && !rd->strict) /* items that are skipped, and no instructions */
        ok = convert_fail(rd, "Empty input messages");
    str_fini(&l.reasoning);
    content_fini(&l.text);
    id_set_fini(&l.waiting);
    rd->q->chat.n = l.n;
    return ok;
}

static bool read_input(reading *rd, const jtree *input, const jtree *instructions)
{
    size_t cap = 2 + (input && input->type == JSON_ARRAY ? input->n : 0), n = 0;
    recipe_message *m = take_memory(rd, cap, sizeof *m);

    if (!m)
        return false;
    reading_at(rd, "input");
    if (!input && !instructions)
        return convert_fail(rd, "Either input or instructions must be provided");
    rd->q->chat.message = m;
    if (instructions)
        m[n++] = (recipe_message){
            .role = RECIPE_SYSTEM, .content = instructions->text, .n_content = instructions->n};
    if (input && input->type == JSON_ARRAY) {
        if (input->n == 0)
            return convert_fail(rd, "Input items array must not be empty");
        return read_items(rd, input, m, n);
    }
    if (input)
        m[n++] =
            (recipe_message){.role = RECIPE_USER, .content = input->text, .n_content = input->n};
    rd->q->chat.n = n;
    return true;
}

/* ---- tools ---- */

enum { T_TYPE, T_NAME, T_DESCRIPTION, T_PARAMETERS, T_STRICT, T_TOOLS, N_TOOL };

static const field tool_fields[N_TOOL] = {
    {"type", FIELD_STRING, 0, 0, NULL},        {"name", FIELD_STRING, FIELD_REQUIRED, 0, NULL},
    {"description", FIELD_STRING, 0, 0, NULL}, {"parameters", FIELD_ANY, 0, 0, NULL},
    {"strict", FIELD_BOOL, 0, 0, NULL},        {"tools", FIELD_ARRAY, 0, 0, NULL}};

static bool check_name(reading *rd, const jtree *name, const place *at)
{
    const char *path = at->in ? take_printf(rd, "tools[%zu].tools[%zu].name", at->in->idx, at->idx)
                              : take_printf(rd, "tools[%zu].name", at->idx);

    return path && tool_check_name(rd, name->text, name->n, path);
}

static bool read_function(reading *rd, const jtree *t, const place *at, tool_list *l)
{
    const jtree *f[N_TOOL];
    recipe_tool *tool;

    if (!fields_read(rd, t, at, tool_fields, N_TOOL, f) || !check_name(rd, f[T_NAME], at))
        return false;
    tool = tools_add(rd, l);
    if (tool)
        tool_fill(tool, f[T_NAME], f[T_DESCRIPTION], f[T_PARAMETERS], f[T_STRICT]);
    return tool != NULL;
}

static bool read_custom(reading *rd, const jtree *t, const place *at, tool_list *l)
{
    const jtree *f[N_TOOL];
    recipe_tool *tool;

    if (!fields_read(rd, t, at, tool_fields, N_TOOL, f))
        return false;
    if (rd->strict && !jtree_is(f[T_NAME], "apply_patch"))
        return convert_fail(rd, "Unsupported custom tool: '%s'. Only 'apply_patch' is supported.",
                            f[T_NAME]->text);
    tool = check_name(rd, f[T_NAME], at) ? tools_add(rd, l) : NULL;
    if (!tool)
        return false;
    return tool_fill_custom(rd, tool, f[T_NAME], f[T_DESCRIPTION]);
}

/* The last tool of the list against those of its namespace before it. */
static bool check_unique(reading *rd, const tool_list *l)
{
    const recipe_tool *t = &l->tool[l->n - 1];

    for (size_t k = l->n - 1; k-- > 0 && l->tool[k].ns == t->ns;)
        if (l->tool[k].n_name == t->n_name && memcmp(l->tool[k].name, t->name, t->n_name) == 0)
            return convert_fail(rd, "Tool names within a namespace must be unique.");
    return true;
}

/* The description of a member begins with that of the namespace, but in V4. */
static bool describe_member(reading *rd, recipe_tool *tool, const jtree *ns, const jtree *own)
{
    str text = {0};

    if (rd->q->chat.family == RECIPE_V4)
        return true;
    str_printf(&text, "%s\n", ns ? ns->text : "");
    if (own)
        str_append(&text, own->text, own->n);
    tool->description = take_str(rd, &text, &tool->n_description);
    return tool->description != NULL;
}

/* A tool of the namespace f as a tool of the list. */
static bool read_member(reading *rd, const jtree *const *f, const jtree *v, const place *at,
                        tool_list *l)
{
    const jtree *g[N_TOOL];
    recipe_tool *tool;
    str text = {0};
    bool custom;

    if (!fields_read(rd, v, at, tool_fields, N_TOOL, g))
        return false;
    custom = jtree_is(g[T_TYPE], "custom");
    if (custom && rd->strict)
        return convert_fail(rd,
                            "Currently custom tools are not allowed inside a namespace. Found "
                            "custom tool '%s' in tools[%zu].tools[%zu].",
                            g[T_NAME]->text, at->in->idx, at->idx);
    tool = check_name(rd, g[T_NAME], at) ? tools_add(rd, l) : NULL;
    if (!tool)
        return false;
    if (!custom)
        tool_fill(tool, g[T_NAME], g[T_DESCRIPTION], g[T_PARAMETERS], g[T_STRICT]);
    else if (!tool_fill_custom(rd, tool, g[T_NAME], g[T_DESCRIPTION]))
        return false;
    tool->ns = f[T_NAME]->text;
    tool->n_ns = f[T_NAME]->n;
    tool->member = g[T_NAME]->text;
    tool->n_member = g[T_NAME]->n;
    str_printf(&text, "%s%s%s", tool->ns, member_glue(rd), tool->member);
    tool->name = take_str(rd, &text, &tool->n_name);
    return tool->name && describe_member(rd, tool, f[T_DESCRIPTION], g[T_DESCRIPTION]) &&
           check_unique(rd, l);
}

static bool read_namespace(reading *rd, const jtree *t, const place *at, tool_list *l)
{
    const jtree *f[N_TOOL];
    place member = {.text = "tools", .has_idx = true, .in = at};

    if (!fields_read(rd, t, at, tool_fields, N_TOOL, f) || !check_name(rd, f[T_NAME], at))
        return false;
    for (const jtree *v = f[T_TOOLS] ? f[T_TOOLS]->child : NULL; v; v = v->next, member.idx++)
        if (!read_member(rd, f, v, &member, l))
            return false;
    return true;
}

static bool read_tools(reading *rd, const jtree *list, tool_list *l)
{
    place at = {.text = "tools", .has_idx = true};

    for (const jtree *v = list ? list->child : NULL; v; v = v->next, at.idx++) {
        const jtree *type = jtree_get(v, "type");
        bool ok = reading_item(rd, "tools", at.idx);

        if (!type || type->type != JSON_STRING)
            return parse_fail(rd, &at, "has no type");
        if (jtree_is(type, "function"))
            ok = read_function(rd, v, &at, l);
        else if (jtree_is(type, "custom"))
            ok = read_custom(rd, v, &at, l);
        else if (jtree_is(type, "namespace"))
            ok = read_namespace(rd, v, &at, l);
        else if (rd->o->responses_reject_web_search && strncmp(type->text, "web_search", 10) == 0)
            ok = convert_fail(rd, "Server tools are not supported");
        if (!ok)
            return false;
    }
    return true;
}

static bool read_choice(reading *rd, const jtree *t, tool_choice *c)
{
    enum { C_TYPE, C_NAME, C_TOOLS, C_MODE, N_CHOICE };
    static const char *const words[] = {"auto", "none", "required", NULL};
    static const char *const types[] = {"function", "custom", "web_search_2025_08_26", "web_search",
                                        NULL};
    static const field fields[N_CHOICE] = {{"type", FIELD_STRING, FIELD_REQUIRED, 0, NULL},
                                           {"name", FIELD_STRING, 0, 0, NULL},
                                           {"tools", FIELD_ARRAY, FIELD_CLIENT, 0, NULL},
                                           {"mode", FIELD_STRING, FIELD_CLIENT, 0, NULL}};
    const place at = {.text = "tool_choice"};
    const jtree *f[N_CHOICE];
    int word = word_index(t, words), type;

    if (!t)
        return true;
    if (word >= 0) {
        c->choice = (recipe_choice)word;
        return true;
    }
    if (!fields_read(rd, t, &at, fields, N_CHOICE, f))
        return false;
    type = word_index(f[C_TYPE], types);
    if (type == 0 || type == 1) {
        c->name = f[C_NAME];
        return c->name || parse_fail(rd, &at, "name is missing");
    }
    if (!rd->strict && jtree_is(f[C_TYPE], "allowed_tools") && f[C_TOOLS]) {
        c->allowed = f[C_TOOLS];
        if (jtree_is(f[C_MODE], "required"))
            c->choice = RECIPE_CHOICE_REQUIRED;
        return true;
    }
    return type >= 0 || !rd->strict || parse_fail(rd, &at, "unknown type");
}

/* ---- the rest of the body ---- */

static bool read_format(reading *rd, const jtree *text, answer_format *f)
{
    enum { R_TYPE, R_SCHEMA, R_STRICT, N_FORMAT };
    static const char *const types[] = {"text", "json_object", "json_schema", NULL};
    static const field outer[] = {{"format", FIELD_OBJECT, 0, 0, NULL}};
    static const field fields[N_FORMAT] = {{"type", FIELD_WORD, FIELD_REQUIRED, 0, types},
                                           {"schema", FIELD_ANY, FIELD_NULL, 0, NULL},
                                           {"strict", FIELD_BOOL, 0, 0, NULL}};
    const place at = {.text = "text"}, inner = {.text = "format", .in = &at};
    const jtree *format, *g[N_FORMAT];

    if (!text)
        return true;
    if (!fields_read(rd, text, &at, outer, 1, &format))
        return false;
    if (!format)
        return true;
    if (!fields_read(rd, format, &inner, fields, N_FORMAT, g))
        return false;
    f->format = (recipe_format)word_index(g[R_TYPE], types);
    f->schema = g[R_SCHEMA];
    f->strict = is_true(g[R_STRICT]);
    return f->format != RECIPE_FORMAT_JSON_SCHEMA || f->schema ||
           parse_fail(rd, &inner, "schema is missing");
}

static bool read_reasoning_effort(reading *rd, const jtree *t)
{
    static const field fields[] = {{"effort", FIELD_WORD, 0, 0, effort_words}};
    const place at = {.text = "reasoning"};
    const jtree *effort = NULL;

    if (t && !fields_read(rd, t, &at, fields, 1, &effort))
        return false;
    settings_thinking(rd, THINKING_UNSAID, effort);
    return true;
}

static bool check_json_word(reading *rd, const answer_format *f)
{
    if (f->format != RECIPE_FORMAT_JSON_OBJECT || settings_json_word(&rd->q->chat))
        return true;
    reading_at(rd, "input");
    return convert_fail(rd, "Response input messages must contain the word 'json' in some form to "
                            "use 'text.format' of type 'json_object'.");
}

/* Earlier answers are not kept: a body that builds on one would be answered without it. */
static bool check_previous(reading *rd, const jtree *previous)
{
    if (!previous)
        return true;
    rd->e->code = "previous_response_not_found";
    rd->e->param = "previous_response_id";
    return convert_fail(rd,
                        "Previous response with id '%s' not found: responses are not stored, "
                        "send the whole conversation in input",
                        previous->text);
}

static bool apply_settings(reading *rd, const jtree *const *f)
{
    const settings s = {.temperature = f[F_TEMPERATURE],
                        .top_p = f[F_TOP_P],
                        .top_logprobs = f[F_TOP_LOGPROBS],
                        .top_logprobs_alone = true,
                        .max_tokens = f[F_MAX_TOKENS]};

    if (!settings_apply(rd, &s))
        return false;
    for (const jtree *v = f[F_INCLUDE] ? f[F_INCLUDE]->child : NULL; v; v = v->next)
        if (jtree_is(v, "message.output_text.logprobs"))
            rd->q->sampling.logprobs = true;
    return true;
}

const field_list responses_fields = {body_fields, N_FIELDS};

/* The checks in the order in which the recipe reports faults (spec recipe.md 2.0). */
bool request_read_responses(reading *rd, const jtree *body)
{
    const jtree *f[N_FIELDS];
    tool_list tools = {0};
    tool_choice choice = {0};
    answer_format format = {.member = "text.format"};
    recipe_request *q = rd->q;

    if (!fields_read(rd, body, NULL, body_fields, N_FIELDS, f) ||
        !read_reasoning_effort(rd, f[F_REASONING]) || !read_choice(rd, f[F_TOOL_CHOICE], &choice) ||
        !read_format(rd, f[F_TEXT], &format) || !settings_model(rd, f[F_MODEL]) ||
        !read_tools(rd, f[F_TOOLS], &tools) || !check_previous(rd, f[F_PREVIOUS]) ||
        !read_input(rd, f[F_INPUT], f[F_INSTRUCTIONS]) ||
        !tools_check(rd, &tools, choice.choice, true) || !tools_choose(rd, &tools, &choice) ||
        !check_json_word(rd, &format) || !settings_format(rd, &format) || !apply_settings(rd, f))
        return false;
    q->stream = is_true(f[F_STREAM]);
    q->user = f[F_CACHE_KEY] ? f[F_CACHE_KEY]->text : f[F_USER] ? f[F_USER]->text : NULL;
    q->constraint.one_call = f[F_PARALLEL] && !f[F_PARALLEL]->yes;
    return echo_fill(rd, body) && settings_constraint(rd, &format);
}
