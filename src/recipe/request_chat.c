/* Chat Completions body -> request (spec recipe.md 2.2 and 2.3). */
#include <string.h>

#include "recipe/recipe_internal.h"

enum {
    F_MODEL,
    F_MESSAGES,
    F_THINKING,
    F_EFFORT,
    F_TOOLS,
    F_TOOL_CHOICE,
    F_FORMAT,
    F_TEMPERATURE,
    F_TOP_P,
    F_N,
    F_SEED,
    F_STOP,
    F_MAX_TOKENS,
    F_FREQUENCY,
    F_PRESENCE,
    F_LOGPROBS,
    F_TOP_LOGPROBS,
    F_STREAM,
    F_STREAM_OPTIONS,
    /* mode CLIENT */
    F_MAX_COMPLETION,
    F_TOP_K,
    F_MIN_P,
    F_REPETITION,
    F_BIAS,
    F_STOP_IDS,
    F_IGNORE_EOS,
    F_PARALLEL,
    F_USER,
    F_CACHE_KEY,
    F_TEMPLATE,
    F_STRUCTURED,
    F_REGEX,
    F_EBNF,
    N_FIELDS
};

static const field body_fields[N_FIELDS] = {
    [F_MODEL] = {"model", FIELD_STRING, FIELD_REQUIRED, 0, NULL},
    [F_MESSAGES] = {"messages", FIELD_ARRAY, FIELD_REQUIRED, 0, NULL},
    [F_THINKING] = {"thinking", FIELD_OBJECT, 0, 0, NULL},
    [F_EFFORT] = {"reasoning_effort", FIELD_WORD, 0, 0, effort_words},
    [F_TOOLS] = {"tools", FIELD_ARRAY, 0, 0, NULL},
    [F_TOOL_CHOICE] = {"tool_choice", FIELD_ANY, 0, 0, NULL},
    [F_FORMAT] = {"response_format", FIELD_OBJECT, 0, 0, NULL},
    [F_TEMPERATURE] = {"temperature", FIELD_REAL, 0, 0, NULL},
    [F_TOP_P] = {"top_p", FIELD_REAL, 0, 0, NULL},
    [F_N] = {"n", FIELD_UINT, 0, UINT32_MAX, NULL},
    [F_SEED] = {"seed", FIELD_UINT, 0, UINT64_MAX, NULL},
    [F_STOP] = {"stop", FIELD_ANY, 0, 0, NULL},
    [F_MAX_TOKENS] = {"max_tokens", FIELD_UINT, 0, UINT32_MAX, NULL},
    [F_FREQUENCY] = {"frequency_penalty", FIELD_REAL, 0, 0, NULL},
    [F_PRESENCE] = {"presence_penalty", FIELD_REAL, 0, 0, NULL},
    [F_LOGPROBS] = {"logprobs", FIELD_BOOL, 0, 0, NULL},
    [F_TOP_LOGPROBS] = {"top_logprobs", FIELD_UINT, 0, 255, NULL},
    [F_STREAM] = {"stream", FIELD_BOOL, 0, 0, NULL},
    [F_STREAM_OPTIONS] = {"stream_options", FIELD_OBJECT, 0, 0, NULL},
    [F_MAX_COMPLETION] = {"max_completion_tokens", FIELD_UINT, FIELD_CLIENT, UINT32_MAX, NULL},
    [F_TOP_K] = {"top_k", FIELD_ANY, FIELD_CLIENT, 0, NULL},
    [F_MIN_P] = {"min_p", FIELD_REAL, FIELD_CLIENT, 0, NULL},
    [F_REPETITION] = {"repetition_penalty", FIELD_REAL, FIELD_CLIENT, 0, NULL},
    [F_BIAS] = {"logit_bias", FIELD_OBJECT, FIELD_CLIENT, 0, NULL},
    [F_STOP_IDS] = {"stop_token_ids", FIELD_ARRAY, FIELD_CLIENT, 0, NULL},
    [F_IGNORE_EOS] = {"ignore_eos", FIELD_BOOL, FIELD_CLIENT, 0, NULL},
    [F_PARALLEL] = {"parallel_tool_calls", FIELD_BOOL, FIELD_CLIENT, 0, NULL},
    [F_USER] = {"user", FIELD_STRING, FIELD_CLIENT, 0, NULL},
    [F_CACHE_KEY] = {"prompt_cache_key", FIELD_STRING, FIELD_CLIENT, 0, NULL},
    [F_TEMPLATE] = {"chat_template_kwargs", FIELD_OBJECT, FIELD_CLIENT, 0, NULL},
    [F_STRUCTURED] = {"structured_outputs", FIELD_OBJECT, FIELD_CLIENT, 0, NULL},
    [F_REGEX] = {"regex", FIELD_STRING, FIELD_CLIENT, 0, NULL},
    [F_EBNF] = {"ebnf", FIELD_STRING, FIELD_CLIENT, 0, NULL},
};

/* ---- messages ---- */

enum { M_ROLE, M_CONTENT, M_REASONING, M_CALLS, M_PREFIX, M_CALL_ID, M_REASONING_NEW, N_MESSAGE };

static const char *const role_words[] = {"system",          "user",      "assistant", "tool",
                                         "latest_reminder", "developer", NULL};
static const recipe_role roles[] = {RECIPE_SYSTEM, RECIPE_USER,     RECIPE_ASSISTANT,
                                    RECIPE_TOOL,   RECIPE_REMINDER, RECIPE_SYSTEM};

static const field message_fields[N_MESSAGE] = {
    [M_ROLE] = {"role", FIELD_WORD, FIELD_REQUIRED, 0, role_words},
    [M_CONTENT] = {"content", FIELD_TEXT, 0, 0, NULL},
    [M_REASONING] = {"reasoning_content", FIELD_STRING, 0, 0, NULL},
    [M_CALLS] = {"tool_calls", FIELD_ARRAY, 0, 0, NULL},
    [M_PREFIX] = {"prefix", FIELD_BOOL, 0, 0, NULL},
    [M_CALL_ID] = {"tool_call_id", FIELD_STRING, 0, 0, NULL},
    [M_REASONING_NEW] = {"reasoning", FIELD_STRING, FIELD_CLIENT, 0, NULL},
};

enum { P_TYPE, P_TEXT, P_IMAGE, P_FILE_ID, P_FILE_DATA, P_REFUSAL, N_PART };

static const char *const part_words[] = {"text", "image_url", "file", "refusal", NULL};

static const field part_fields[N_PART] = {
    [P_TYPE] = {"type", FIELD_WORD, FIELD_REQUIRED, 0, part_words},
    [P_TEXT] = {"text", FIELD_STRING, 0, 0, NULL},
    [P_IMAGE] = {"image_url", FIELD_OBJECT, 0, 0, NULL},
    [P_FILE_ID] = {"file_id", FIELD_STRING, 0, 0, NULL},
    [P_FILE_DATA] = {"file_data", FIELD_STRING, 0, 0, NULL},
    [P_REFUSAL] = {"refusal", FIELD_STRING, FIELD_CLIENT, 0, NULL},
};

static bool read_image(reading *rd, const jtree *image, const place *at, content *c, size_t idx)
{
    enum { I_URL, I_DETAIL, N_IMAGE };
    static const field fields[N_IMAGE] = {{"url", FIELD_STRING, FIELD_REQUIRED, 0, NULL},
                                          {"detail", FIELD_WORD, 0, 0, detail_words}};
    const place here = {.text = "image_url", .in = at};
    const jtree *f[N_IMAGE];
    const char *path = take_printf(rd, ".messages[%zu]", idx);

    return path && fields_read(rd, image, &here, fields, N_IMAGE, f) &&
           content_image_url(rd, c, f[I_URL], f[I_DETAIL] ? f[I_DETAIL]->text : "high", path);
}

static bool read_file(reading *rd, const jtree *const *f, recipe_role role, content *c, size_t idx)
{
    const char *path = take_printf(rd, ".messages[%zu]", idx);

    if (!path)
        return false;
    if (f[P_FILE_ID])
        return convert_fail(rd,
                            "%s: file_id is not supported. Pass the image as a base64 data url "
                            "instead.",
                            path);
    if (!f[P_FILE_DATA])
        return convert_fail(rd, "%s: file must have a file_id or file_data", path);
    if (!content_file_data(rd, f[P_FILE_DATA], path))
        return false;
    if (role == RECIPE_ASSISTANT)
        return convert_fail(rd, "Image in assistant message is not supported");
    return content_image_url(rd, c, f[P_FILE_DATA], "high", path);
}

static bool read_part(reading *rd, const jtree *t, const place *at, recipe_role role, content *c,
                      size_t idx)
{
    const jtree *f[N_PART], *text;
    int kind;

    if (!fields_read(rd, t, at, part_fields, N_PART, f))
        return false;
    kind = word_index(f[P_TYPE], part_words);
    switch (kind) {
    case 0:
    case 3:
        text = kind == 0 ? f[P_TEXT] : f[P_REFUSAL];
        if (!text)
            return parse_fail(rd, at, "a text part has no text");
        content_text(c, text->text, text->n);
        return true;
    default:
        if (content_blind(rd, c))
            return true;
        if (kind == 2)
            return read_file(rd, f, role, c, idx);
        if (role == RECIPE_ASSISTANT)
            return convert_fail(rd, "Image in assistant message is not supported");
        if (!f[P_IMAGE])
            return parse_fail(rd, at, "image_url is missing");
        return read_image(rd, f[P_IMAGE], at, c, idx);
    }
}

static bool read_content(reading *rd, const jtree *t, const place *at, recipe_message *m,
                         size_t idx)
{
    content c = {0};
    bool ok = true;
    place part = {.text = "content", .has_idx = true, .in = at};

    if (t->type == JSON_STRING) {
        m->content = t->text;
        m->n_content = t->n;
        return true;
    }
    for (const jtree *v = t->child; ok && v; v = v->next, part.idx++)
        ok = read_part(rd, v, &part, m->role, &c, idx);
    if (ok)
        return content_take(rd, &c, m);
    content_fini(&c);
    return false;
}

static bool read_call(reading *rd, const jtree *t, const place *at, recipe_call *call)
{
    enum { C_ID, C_TYPE, C_FUNCTION, N_CALL };
    enum { C_NAME, C_ARGUMENTS, N_FUNCTION };
    static const char *const types[] = {"function", NULL};
    static const field fields[N_CALL] = {{"id", FIELD_STRING, FIELD_REQUIRED, 0, NULL},
                                         {"type", FIELD_WORD, 0, 0, types},
                                         {"function", FIELD_OBJECT, FIELD_REQUIRED, 0, NULL}};
    static const field parts[N_FUNCTION] = {{"name", FIELD_STRING, FIELD_REQUIRED, 0, NULL},
                                            {"arguments", FIELD_STRING, FIELD_REQUIRED, 0, NULL}};
    const place inner = {.text = "function", .in = at};
    const jtree *f[N_CALL], *g[N_FUNCTION];

    if (!fields_read(rd, t, at, fields, N_CALL, f) ||
        !fields_read(rd, f[C_FUNCTION], &inner, parts, N_FUNCTION, g))
        return false;
    return call_fill(rd, call, f[C_ID], g[C_NAME], g[C_ARGUMENTS]);
}

static bool read_calls(reading *rd, const jtree *t, const place *at, recipe_message *m, size_t idx)
{
    place here = {.text = "tool_calls", .has_idx = true, .in = at};
    recipe_call *calls;

    if (t->n == 0)
        return convert_fail(rd,
                            "Invalid 'messages[%zu].tool_calls': empty array. Expected an array "
                            "with minimum length 1, but got an empty array instead.",
                            idx);
    calls = take_memory(rd, t->n, sizeof *calls);
    if (!calls)
        return false;
    for (const jtree *v = t->child; v; v = v->next, here.idx++)
        if (!read_call(rd, v, &here, &calls[here.idx]))
            return false;
    m->call = calls;
    m->n_call = t->n;
    return true;
}

static bool read_assistant(reading *rd, const jtree *const *f, const place *at, recipe_message *m)
{
    const jtree *reasoning = f[M_REASONING] ? f[M_REASONING] : f[M_REASONING_NEW];

    if (!f[M_CONTENT] && !f[M_CALLS])
        return convert_fail(rd, "Invalid assistant message: content or tool_calls must be set");
    if (reasoning) {
        m->reasoning = reasoning->text;
        m->n_reasoning = reasoning->n;
    }
    if (f[M_CALLS] && !read_calls(rd, f[M_CALLS], at, m, at->idx))
        return false;
    if (m->n_call && !m->n_reasoning && rd->q->chat.thinking && rd->o->reject_missing_reasoning)
        return convert_fail(rd, "The `reasoning_content` in the thinking mode must be passed back "
                                "to the API.");
    return true;
}

static bool read_message(reading *rd, const jtree *t, const place *at, recipe_message *m,
                         bool *prefix)
{
    const jtree *f[N_MESSAGE];
    int role;

    if (!fields_read(rd, t, at, message_fields, N_MESSAGE, f))
        return false;
    role = word_index(f[M_ROLE], role_words);
    m->role = roles[role];
    if (!f[M_CONTENT] && m->role != RECIPE_ASSISTANT)
        return parse_fail(rd, at, "content must be a string or a list");
    if (m->role == RECIPE_ASSISTANT && !read_assistant(rd, f, at, m))
        return false;
    if (m->role == RECIPE_TOOL) {
        if (!f[M_CALL_ID])
            return parse_fail(rd, at, "tool_call_id is missing");
        m->call_id = f[M_CALL_ID]->text;
        m->n_call_id = f[M_CALL_ID]->n;
    }
    *prefix = m->role == RECIPE_ASSISTANT && is_true(f[M_PREFIX]);
    return !f[M_CONTENT] || read_content(rd, f[M_CONTENT], at, m, at->idx);
}

static bool check_prefix(reading *rd, size_t n_tools, recipe_format format)
{
    const recipe_chat *c = &rd->q->chat;
    bool calls = n_tools > 0;

    if (!c->prefix)
        return true;
    reading_item(rd, "messages", c->n - 1);
    for (size_t i = 0; i < c->n; i++)
        calls = calls || c->message[i].n_call || c->message[i].role == RECIPE_TOOL;
    if (calls)
        return convert_fail(rd, "Function call should not be used with prefix");
    if (format == RECIPE_FORMAT_JSON_OBJECT)
        return convert_fail(rd, "response_format json_object should not be used with prefix");
    return true;
}

/* The k-th message behind the calls of message[i]: a result of one of them. */
static bool check_result(reading *rd, size_t i, size_t k, id_set *calls)
{
    const recipe_chat *c = &rd->q->chat;
    const recipe_message *m = &c->message[i + k];
    const call_ref *ref;

    if (i + k >= c->n || m->role != RECIPE_TOOL)
        return convert_fail(rd, "An assistant message with 'tool_calls' must be followed by tool "
                                "messages responding to each 'tool_call_id'. (insufficient tool "
                                "messages following tool_calls message)");
    reading_item(rd, "messages", i + k);
    ref = id_set_find(calls, m->call_id, m->n_call_id);
    if (ref && ref->taken)
        return convert_fail(rd, "Duplicate value for 'tool_call_id' of %s in message[%zu]",
                            m->call_id, i + k);
    return id_set_take(calls, m->call_id, m->n_call_id) ||
           convert_fail(rd,
                        "An assistant message with 'tool_calls' must be followed by tool "
                        "messages responding to each 'tool_call_id', The following "
                        "tool_call_ids did not have response messages: %s",
                        m->call_id);
}

/* The results behind the calls of message[i]: as many as there are calls, each for one of them. */
static bool check_results(reading *rd, size_t i)
{
    const recipe_chat *c = &rd->q->chat;
    const recipe_message *m = &c->message[i];
    id_set set;
    bool ok = id_set_init(rd, &set, m->n_call);

    for (size_t k = 0; ok && k < m->n_call; k++)
        if (!id_set_add(&set, m->call[k].id, m->call[k].n_id))
            ok = convert_fail(rd, "Duplicate value for 'tool_call_id' of %s in message[%zu]",
                              m->call[k].id, i);
    for (size_t k = 1; ok && k <= m->n_call; k++)
        ok = check_result(rd, i, k, &set);
    id_set_fini(&set);
    return ok;
}

static bool check_calls(reading *rd)
{
    const recipe_chat *c = &rd->q->chat;

    for (size_t i = 0; i < c->n; i++) {
        reading_item(rd, "messages", i);
        if (c->message[i].role == RECIPE_TOOL)
            return convert_fail(rd, "Messages with role 'tool' must be a response to a preceding "
                                    "message with 'tool_calls'");
        if (c->message[i].n_call && !check_results(rd, i))
            return false;
        i += c->message[i].n_call;
    }
    return true;
}

static bool read_messages(reading *rd, const jtree *list)
{
    recipe_chat *c = &rd->q->chat;
    recipe_message *m = take_memory(rd, list->n, sizeof *m);
    place at = {.text = "messages", .has_idx = true};

    if (!m)
        return false;
    if (list->n == 0)
        return convert_fail(rd, "Empty input messages");
    c->message = m;
    for (const jtree *v = list->child; v; v = v->next, at.idx++) {
        reading_item(rd, "messages", at.idx);
        if (c->prefix)
            return convert_fail(rd, "Invalid completion message: prefix set true with message "
                                    "which is not final message or message role is not assistant");
        if (!read_message(rd, v, &at, &m[at.idx], &c->prefix))
            return false;
    }
    c->n = list->n;
    return check_calls(rd);
}

/* ---- tools ---- */

static bool read_tool(reading *rd, const jtree *t, const place *at, tool_list *l)
{
    enum { T_TYPE, T_FUNCTION, N_TOOL };
    enum { T_NAME, T_DESCRIPTION, T_PARAMETERS, T_STRICT, N_FUNCTION };
    static const char *const types[] = {"function", NULL};
    static const field fields[N_TOOL] = {{"type", FIELD_WORD, FIELD_REQUIRED, 0, types},
                                         {"function", FIELD_OBJECT, FIELD_REQUIRED, 0, NULL}};
    static const field parts[N_FUNCTION] = {{"name", FIELD_STRING, FIELD_REQUIRED, 0, NULL},
                                            {"description", FIELD_STRING, 0, 0, NULL},
                                            {"parameters", FIELD_ANY, 0, 0, NULL},
                                            {"strict", FIELD_BOOL, 0, 0, NULL}};
    const place inner = {.text = "function", .in = at};
    const jtree *f[N_TOOL], *g[N_FUNCTION];
    recipe_tool *tool;

    if (!fields_read(rd, t, at, fields, N_TOOL, f) ||
        !fields_read(rd, f[T_FUNCTION], &inner, parts, N_FUNCTION, g))
        return false;
    tool = tools_add(rd, l);
    if (tool)
        tool_fill(tool, g[T_NAME], g[T_DESCRIPTION], g[T_PARAMETERS], g[T_STRICT]);
    return tool != NULL;
}

static bool read_tools(reading *rd, const jtree *list, tool_list *l)
{
    place at = {.text = "tools", .has_idx = true};

    for (const jtree *v = list ? list->child : NULL; v; v = v->next, at.idx++)
        if (!read_tool(rd, v, &at, l))
            return false;
    return true;
}

static bool check_names(reading *rd, const tool_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const char *path = take_printf(rd, "tools[%zu].function.name", i);

        if (!path || !tool_check_name(rd, l->tool[i].name, l->tool[i].n_name, path))
            return false;
    }
    return true;
}

/* {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}} */
static bool read_allowed(reading *rd, const jtree *t, const place *at, tool_choice *c)
{
    const jtree *inner = jtree_get(t, "allowed_tools"), *list = jtree_get(inner, "tools");

    if (!list || list->type != JSON_ARRAY)
        return parse_fail(rd, at, "allowed_tools has no list of tools");
    c->allowed = list;
    c->choice = jtree_is(jtree_get(inner, "mode"), "required") ? RECIPE_CHOICE_REQUIRED
                                                               : RECIPE_CHOICE_AUTO;
    return true;
}

static bool read_choice(reading *rd, const jtree *t, tool_choice *c)
{
    static const char *const words[] = {"auto", "none", "required", NULL};
    static const field name[] = {{"name", FIELD_STRING, FIELD_REQUIRED, 0, NULL}};
    const place at = {.text = "tool_choice"}, inner = {.text = "function", .in = &at};
    const jtree *function;
    int word = word_index(t, words);

    if (!t)
        return true;
    if (word >= 0) {
        c->choice = (recipe_choice)word;
        return true;
    }
    if (!rd->strict && jtree_is(jtree_get(t, "type"), "allowed_tools"))
        return read_allowed(rd, t, &at, c);
    function = jtree_get(t, "function");
    if (!jtree_is(jtree_get(t, "type"), "function") || !function)
        return parse_fail(rd, &at, "must be none, auto, required or a tool");
    return fields_read(rd, function, &inner, name, 1, &c->name);
}

/* ---- response format ---- */

static bool read_schema(reading *rd, const jtree *t, const place *at, answer_format *f)
{
    enum { S_SCHEMA, S_STRICT, N_SCHEMA };
    static const field fields[N_SCHEMA] = {
        {"schema", FIELD_ANY, FIELD_REQUIRED | FIELD_NULL, 0, NULL},
        {"strict", FIELD_BOOL, 0, 0, NULL}};
    const place here = {.text = "json_schema", .in = at};
    const jtree *g[N_SCHEMA];

    if (!t)
        return parse_fail(rd, &here, "is missing");
    if (!fields_read(rd, t, &here, fields, N_SCHEMA, g))
        return false;
    f->format = RECIPE_FORMAT_JSON_SCHEMA;
    f->schema = g[S_SCHEMA];
    f->strict = is_true(g[S_STRICT]);
    return true;
}

static bool read_format(reading *rd, const jtree *t, answer_format *f)
{
    enum { R_TYPE, R_SCHEMA, R_REGEX, R_GRAMMAR, N_FORMAT };
    static const char *const types[] = {"text",  "json_object", "json_schema",
                                        "regex", "ebnf",        NULL};
    static const field fields[N_FORMAT] = {{"type", FIELD_WORD, FIELD_REQUIRED, 0, types},
                                           {"json_schema", FIELD_OBJECT, 0, 0, NULL},
                                           {"regex", FIELD_STRING, 0, 0, NULL},
                                           {"grammar", FIELD_STRING, FIELD_CLIENT, 0, NULL}};
    const place at = {.text = "response_format"};
    const jtree *g[N_FORMAT];

    if (!t)
        return true;
    if (!fields_read(rd, t, &at, fields, N_FORMAT, g))
        return false;
    f->format = (recipe_format)word_index(g[R_TYPE], types);
    switch (f->format) {
    case RECIPE_FORMAT_JSON_SCHEMA:
        return read_schema(rd, g[R_SCHEMA], &at, f);
    case RECIPE_FORMAT_REGEX:
        f->text = g[R_REGEX];
        return f->text || parse_fail(rd, &at, "regex is missing");
    case RECIPE_FORMAT_EBNF:
        f->text = g[R_GRAMMAR];
        return f->text || parse_fail(rd, &at, "grammar is missing");
    case RECIPE_FORMAT_TEXT:
    case RECIPE_FORMAT_JSON_OBJECT:
        break;
    }
    return true;
}

/* ---- the body ---- */

/* chat_template_kwargs of vLLM and SGLang: {"thinking": bool} or {"enable_thinking": bool}. */
static thinking_said template_thinking(const jtree *t)
{
    const jtree *v = jtree_get(t, "thinking");

    if (!v)
        v = jtree_get(t, "enable_thinking");
    if (!v || v->type != JSON_BOOL)
        return THINKING_UNSAID;
    return v->yes ? THINKING_ON : THINKING_OFF;
}

static bool read_thinking(reading *rd, const jtree *const *f)
{
    thinking_said said;

    if (!settings_thinking_type(rd, f[F_THINKING], &said))
        return false;
    if (said == THINKING_UNSAID)
        said = template_thinking(f[F_TEMPLATE]);
    settings_thinking(rd, said, f[F_EFFORT]);
    return true;
}

static bool check_stop_shape(reading *rd, const jtree *stop)
{
    const place at = {.text = "stop"};

    if (!stop || stop->type == JSON_STRING)
        return true;
    if (stop->type != JSON_ARRAY)
        return parse_fail(rd, &at, "must be a string or a list");
    for (const jtree *v = stop->child; v; v = v->next)
        if (v->type != JSON_STRING)
            return parse_fail(rd, &at, "must hold strings");
    return true;
}

static bool apply_settings(reading *rd, const jtree *const *f)
{
    const settings s = {
        .temperature = f[F_TEMPERATURE],
        .top_p = f[F_TOP_P],
        .presence = f[F_PRESENCE],
        .frequency = f[F_FREQUENCY],
        .repetition = f[F_REPETITION],
        .min_p = f[F_MIN_P],
        .top_k = f[F_TOP_K],
        .seed = f[F_SEED],
        .n = f[F_N],
        .logprobs = f[F_LOGPROBS],
        .top_logprobs = f[F_TOP_LOGPROBS],
        .max_tokens = f[F_MAX_COMPLETION] ? f[F_MAX_COMPLETION] : f[F_MAX_TOKENS],
        .logit_bias = f[F_BIAS],
        .stop_ids = f[F_STOP_IDS],
        .ignore_eos = f[F_IGNORE_EOS],
    };

    return settings_apply(rd, &s);
}

static bool read_streaming(reading *rd, const jtree *const *f)
{
    rd->q->stream = is_true(f[F_STREAM]);
    rd->q->include_usage = is_true(jtree_get(f[F_STREAM_OPTIONS], "include_usage"));
    reading_at(rd, "stream_options");
    if (f[F_STREAM_OPTIONS] && !rd->q->stream)
        return convert_fail(rd, "stream_options should be set along with stream = true");
    return true;
}

static bool check_json_word(reading *rd, const answer_format *f)
{
    if (f->format != RECIPE_FORMAT_JSON_OBJECT || settings_json_word(&rd->q->chat))
        return true;
    reading_at(rd, "messages");
    return convert_fail(rd, "Prompt must contain the word 'json' in some form to use "
                            "'response_format' of type 'json_object'.");
}

const field_list chat_fields = {body_fields, N_FIELDS};

/* The checks in the order in which the recipe reports faults (spec recipe.md 2.0). */
bool request_read_chat(reading *rd, const jtree *body)
{
    const jtree *f[N_FIELDS];
    tool_list tools = {0};
    tool_choice choice = {0};
    answer_format format = {.member = "response_format"};
    recipe_request *q = rd->q;

    if (!fields_read(rd, body, NULL, body_fields, N_FIELDS, f) || !read_thinking(rd, f) ||
        !reading_at(rd, "tools") || !read_tools(rd, f[F_TOOLS], &tools) ||
        !read_choice(rd, f[F_TOOL_CHOICE], &choice) || !read_format(rd, f[F_FORMAT], &format) ||
        !check_stop_shape(rd, f[F_STOP]) ||
        !format_extras(rd, f[F_STRUCTURED], f[F_REGEX], f[F_EBNF], &format))
        return false;
    if (!settings_model(rd, f[F_MODEL]) || !check_names(rd, &tools) ||
        !reading_at(rd, "messages") || !read_messages(rd, f[F_MESSAGES]) ||
        !check_json_word(rd, &format) || !tools_check(rd, &tools, choice.choice, true) ||
        !tools_choose(rd, &tools, &choice) || !check_prefix(rd, tools.n, format.format) ||
        !settings_stop(rd, f[F_STOP], true) || !read_streaming(rd, f) ||
        !settings_format(rd, &format) || !apply_settings(rd, f))
        return false;
    q->user = f[F_CACHE_KEY] ? f[F_CACHE_KEY]->text : f[F_USER] ? f[F_USER]->text : NULL;
    q->constraint.one_call = f[F_PARALLEL] && !f[F_PARALLEL]->yes;
    return settings_constraint(rd, &format);
}
