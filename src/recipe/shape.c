/* Mode STRICT: the types that the released recipe's parser demands, of a whole body and before any
 * of it is understood (spec recipe.md 2.0, layer "parse").
 *
 * One table per object. Members that no table names are not looked at, and neither are those of
 * other variants: "json_schema" beside {"type": "regex"} may be anything. Found by asking the
 * package about every field with values of every type. It also takes a list for an object and a
 * number for a word (the place in its declaration); that is refused here. */
#include <string.h>

#include "recipe/recipe_internal.h"

typedef enum shape_kind {
    SHAPE_VALUE, /* anything, null too */
    SHAPE_STRING,
    SHAPE_BOOL,
    SHAPE_REAL,
    SHAPE_UINT,    /* an integer from 0 to max */
    SHAPE_WORD,    /* one of words */
    SHAPE_LIST,    /* of items */
    SHAPE_TEXT,    /* a string, or a list of items */
    SHAPE_CHOICE,  /* one of words, or an item */
    SHAPE_OBJECT,  /* with members */
    SHAPE_VARIANTS /* an object whose members depend on its tag */
} shape_kind;

typedef enum need {
    OPTIONAL, /* absent or null */
    REQUIRED, /* null only where the shape takes it */
    NOT_NULL  /* may be absent */
} need;

typedef struct shape shape;

typedef struct member {
    const char *key; /* NULL ends a table */
    const shape *shape;
    need need;
} member;

typedef struct variant {
    const char *word; /* NULL ends a table */
    const member *members;
} variant;

struct shape {
    shape_kind kind;
    uint64_t max;
    const char *const *words;
    const shape *item;
    const member *members;
    const char *tag;
    const variant *variants;
    const member *untagged, *others; /* members without a tag, with another; NULL = refused */
};

static const shape value = {.kind = SHAPE_VALUE}, string = {.kind = SHAPE_STRING},
                   boolean = {.kind = SHAPE_BOOL}, real = {.kind = SHAPE_REAL},
                   u8 = {.kind = SHAPE_UINT, .max = UINT8_MAX},
                   u32 = {.kind = SHAPE_UINT, .max = UINT32_MAX},
                   u64 = {.kind = SHAPE_UINT, .max = UINT64_MAX},
                   strings = {.kind = SHAPE_LIST, .item = &string};

static const member nothing[] = {{0}};
static const member one_text[] = {{"text", &string, REQUIRED}, {0}};
static const member one_name[] = {{"name", &string, REQUIRED}, {0}};
static const member one_url[] = {{"url", &string, REQUIRED}, {0}};

static const shape effort = {.kind = SHAPE_WORD, .words = effort_words},
                   detail = {.kind = SHAPE_WORD, .words = detail_words};

static const char *const only_function[] = {"function", NULL};
static const shape function_word = {.kind = SHAPE_WORD, .words = only_function};

static const char *const choice_words[] = {"none", "auto", "required", NULL};

static const shape thinking_word = {.kind = SHAPE_WORD, .words = thinking_words};
static const member thinking_members[] = {
    {"type", &thinking_word, REQUIRED}, {"budget_tokens", &u64, OPTIONAL}, {0}};
static const shape thinking = {.kind = SHAPE_OBJECT, .members = thinking_members};

/* ---- Chat Completions ---- */

static const member chat_image_members[] = {
    {"url", &string, REQUIRED}, {"detail", &detail, OPTIONAL}, {0}};
static const shape chat_image = {.kind = SHAPE_OBJECT, .members = chat_image_members};
static const member chat_image_part[] = {{"image_url", &chat_image, REQUIRED}, {0}};
static const member chat_file_part[] = {{"file_id", &string, OPTIONAL},
                                        {"file_data", &string, OPTIONAL},
                                        {"filename", &string, OPTIONAL},
                                        {0}};
static const variant chat_parts[] = {
    {"text", one_text}, {"image_url", chat_image_part}, {"file", chat_file_part}, {0}};
static const shape chat_part = {.kind = SHAPE_VARIANTS, .tag = "type", .variants = chat_parts};
static const shape chat_content = {.kind = SHAPE_TEXT, .item = &chat_part};

static const member chat_call_function[] = {
    {"name", &string, REQUIRED}, {"arguments", &string, REQUIRED}, {0}};
static const shape chat_called = {.kind = SHAPE_OBJECT, .members = chat_call_function};
static const member chat_call_members[] = {{"id", &string, REQUIRED},
                                           {"type", &function_word, REQUIRED},
                                           {"function", &chat_called, REQUIRED},
                                           {0}};
static const shape chat_call = {.kind = SHAPE_OBJECT, .members = chat_call_members},
                   chat_calls = {.kind = SHAPE_LIST, .item = &chat_call};

static const member chat_user[] = {
    {"content", &chat_content, REQUIRED}, {"name", &string, OPTIONAL}, {0}};
static const member chat_assistant[] = {
    {"content", &chat_content, OPTIONAL},     {"name", &string, OPTIONAL},
    {"reasoning_content", &string, OPTIONAL}, {"prefix", &boolean, OPTIONAL},
    {"tool_calls", &chat_calls, OPTIONAL},    {0}};
static const member chat_result[] = {
    {"content", &chat_content, REQUIRED}, {"tool_call_id", &string, REQUIRED}, {0}};
static const member chat_reminder[] = {{"content", &string, REQUIRED}, {0}};
static const variant chat_roles[] = {{"system", chat_user},
                                     {"user", chat_user},
                                     {"assistant", chat_assistant},
                                     {"tool", chat_result},
                                     {"latest_reminder", chat_reminder},
                                     {0}};
static const shape chat_message = {.kind = SHAPE_VARIANTS, .tag = "role", .variants = chat_roles},
                   chat_messages = {.kind = SHAPE_LIST, .item = &chat_message};

static const member function_members[] = {{"name", &string, REQUIRED},
                                          {"description", &string, OPTIONAL},
                                          {"strict", &boolean, OPTIONAL},
                                          {0}};
static const shape chat_function = {.kind = SHAPE_OBJECT, .members = function_members};
static const member chat_tool_members[] = {
    {"type", &function_word, REQUIRED}, {"function", &chat_function, REQUIRED}, {0}};
static const shape chat_tool = {.kind = SHAPE_OBJECT, .members = chat_tool_members},
                   chat_tools = {.kind = SHAPE_LIST, .item = &chat_tool};

static const shape named = {.kind = SHAPE_OBJECT, .members = one_name};
static const member chat_named[] = {
    {"type", &function_word, REQUIRED}, {"function", &named, REQUIRED}, {0}};
static const shape chat_named_tool = {.kind = SHAPE_OBJECT, .members = chat_named},
                   chat_choice = {
                       .kind = SHAPE_CHOICE, .words = choice_words, .item = &chat_named_tool};

static const member chat_schema_members[] = {
    {"schema", &value, REQUIRED}, {"name", &string, OPTIONAL}, {"strict", &boolean, OPTIONAL}, {0}};
static const shape chat_schema = {.kind = SHAPE_OBJECT, .members = chat_schema_members};
static const member chat_schema_format[] = {{"json_schema", &chat_schema, REQUIRED}, {0}};
static const member chat_regex_format[] = {{"regex", &string, REQUIRED}, {0}};
static const variant chat_formats[] = {{"text", nothing},
                                       {"json_object", nothing},
                                       {"json_schema", chat_schema_format},
                                       {"regex", chat_regex_format},
                                       {0}};
static const shape chat_format = {.kind = SHAPE_VARIANTS, .tag = "type", .variants = chat_formats};

static const shape chat_stop = {.kind = SHAPE_TEXT, .item = &string};
static const member chat_stream_members[] = {{"include_usage", &boolean, OPTIONAL}, {0}};
static const shape chat_stream = {.kind = SHAPE_OBJECT, .members = chat_stream_members};

static const member chat_body[] = {{"model", &string, REQUIRED},
                                   {"messages", &chat_messages, REQUIRED},
                                   {"thinking", &thinking, OPTIONAL},
                                   {"reasoning_effort", &effort, OPTIONAL},
                                   {"tools", &chat_tools, OPTIONAL},
                                   {"tool_choice", &chat_choice, OPTIONAL},
                                   {"parallel_tool_calls", &boolean, OPTIONAL},
                                   {"response_format", &chat_format, OPTIONAL},
                                   {"temperature", &real, OPTIONAL},
                                   {"top_p", &real, OPTIONAL},
                                   {"frequency_penalty", &real, OPTIONAL},
                                   {"presence_penalty", &real, OPTIONAL},
                                   {"n", &u8, OPTIONAL},
                                   {"seed", &u64, OPTIONAL},
                                   {"stop", &chat_stop, OPTIONAL},
                                   {"max_tokens", &u32, OPTIONAL},
                                   {"logprobs", &boolean, OPTIONAL},
                                   {"top_logprobs", &u8, OPTIONAL},
                                   {"stream", &boolean, OPTIONAL},
                                   {"stream_options", &chat_stream, OPTIONAL},
                                   {0}};

/* ---- Responses ---- */

static const member resp_image_part[] = {{"image_url", &string, OPTIONAL},
                                         {"file_id", &string, OPTIONAL},
                                         {"detail", &detail, OPTIONAL},
                                         {0}};
static const variant resp_parts[] = {{"input_text", one_text},
                                     {"output_text", one_text},
                                     {"input_image", resp_image_part},
                                     {"input_file", nothing},
                                     {0}};
static const variant resp_output_parts[] = {
    {"input_text", one_text}, {"input_image", resp_image_part}, {"input_file", nothing}, {0}};
static const shape resp_part = {.kind = SHAPE_VARIANTS, .tag = "type", .variants = resp_parts},
                   resp_content = {.kind = SHAPE_TEXT, .item = &resp_part},
                   resp_output_part = {.kind = SHAPE_VARIANTS,
                                       .tag = "type",
                                       .variants = resp_output_parts},
                   resp_output = {.kind = SHAPE_TEXT, .item = &resp_output_part};

static const char *const resp_role_words[] = {"user", "assistant", "system", "developer", NULL};
static const shape resp_role = {.kind = SHAPE_WORD, .words = resp_role_words};
static const member resp_message[] = {
    {"role", &resp_role, REQUIRED}, {"content", &resp_content, REQUIRED}, {0}};
static const shape resp_reason = {.kind = SHAPE_OBJECT, .members = one_text},
                   resp_reasons = {.kind = SHAPE_LIST, .item = &resp_reason};
static const member resp_reasoning_item[] = {
    {"content", &resp_reasons, OPTIONAL}, {"encrypted_content", &string, OPTIONAL}, {0}};
static const member resp_call[] = {{"call_id", &string, REQUIRED},
                                   {"name", &string, REQUIRED},
                                   {"arguments", &string, REQUIRED},
                                   {"namespace", &string, OPTIONAL},
                                   {0}};
static const member resp_call_output[] = {
    {"call_id", &string, OPTIONAL}, {"output", &resp_output, REQUIRED}, {0}};
static const member resp_custom_call[] = {
    {"call_id", &string, REQUIRED}, {"name", &string, REQUIRED}, {"input", &string, REQUIRED}, {0}};
static const member resp_custom_output[] = {
    {"call_id", &string, REQUIRED}, {"output", &resp_output, OPTIONAL}, {0}};
static const variant resp_items[] = {{"message", resp_message},
                                     {"reasoning", resp_reasoning_item},
                                     {"function_call", resp_call},
                                     {"function_call_output", resp_call_output},
                                     {"custom_tool_call", resp_custom_call},
                                     {"custom_tool_call_output", resp_custom_output},
                                     {0}};
static const shape resp_item = {.kind = SHAPE_VARIANTS,
                                .tag = "type",
                                .variants = resp_items,
                                .untagged = resp_message,
                                .others = nothing},
                   resp_input = {.kind = SHAPE_TEXT, .item = &resp_item};

static const char *const member_words[] = {"function", "custom", NULL};
static const shape resp_member_word = {.kind = SHAPE_WORD, .words = member_words};
static const member resp_member[] = {{"type", &resp_member_word, REQUIRED},
                                     {"name", &string, REQUIRED},
                                     {"description", &string, OPTIONAL},
                                     {"strict", &boolean, OPTIONAL},
                                     {0}};
static const shape resp_member_tool = {.kind = SHAPE_OBJECT, .members = resp_member},
                   resp_members = {.kind = SHAPE_LIST, .item = &resp_member_tool};
static const member resp_namespace[] = {{"name", &string, REQUIRED},
                                        {"description", &string, OPTIONAL},
                                        {"tools", &resp_members, REQUIRED},
                                        {0}};
static const char *const size_words[] = {"low", "medium", "high", NULL};
static const shape size_word = {.kind = SHAPE_WORD, .words = size_words};
static const member resp_location[] = {{"city", &string, OPTIONAL},
                                       {"region", &string, OPTIONAL},
                                       {"country", &string, OPTIONAL},
                                       {"timezone", &string, OPTIONAL},
                                       {0}};
static const shape resp_place = {.kind = SHAPE_OBJECT, .members = resp_location};
static const member resp_search[] = {
    {"search_context_size", &size_word, OPTIONAL}, {"user_location", &resp_place, OPTIONAL}, {0}};
static const variant resp_tool_kinds[] = {
    {"function", function_members},         {"custom", one_name},
    {"namespace", resp_namespace},          {"web_search", resp_search},
    {"web_search_2025_08_26", resp_search}, {0}};
static const shape resp_tool = {.kind = SHAPE_VARIANTS,
                                .tag = "type",
                                .variants = resp_tool_kinds,
                                .others = nothing},
                   resp_tools = {.kind = SHAPE_LIST, .item = &resp_tool};

static const variant resp_named[] = {{"function", one_name},
                                     {"custom", one_name},
                                     {"web_search", nothing},
                                     {"web_search_2025_08_26", nothing},
                                     {0}};
static const shape resp_named_tool = {.kind = SHAPE_VARIANTS,
                                      .tag = "type",
                                      .variants = resp_named},
                   resp_choice = {
                       .kind = SHAPE_CHOICE, .words = choice_words, .item = &resp_named_tool};

static const member resp_schema_format[] = {{"name", &string, REQUIRED},
                                            {"schema", &value, REQUIRED},
                                            {"description", &string, OPTIONAL},
                                            {"strict", &boolean, OPTIONAL},
                                            {0}};
static const variant resp_formats[] = {
    {"text", nothing}, {"json_object", nothing}, {"json_schema", resp_schema_format}, {0}};
static const shape resp_format = {.kind = SHAPE_VARIANTS, .tag = "type", .variants = resp_formats};
static const member resp_text_members[] = {
    {"format", &resp_format, NOT_NULL}, {"verbosity", &size_word, OPTIONAL}, {0}};
static const shape resp_text = {.kind = SHAPE_OBJECT, .members = resp_text_members};

static const char *const summary_words[] = {"auto", "concise", "detailed", NULL};
static const shape summary = {.kind = SHAPE_WORD, .words = summary_words};
static const member resp_reasoning_members[] = {{"effort", &effort, OPTIONAL},
                                                {"summary", &summary, OPTIONAL},
                                                {"generate_summary", &summary, OPTIONAL},
                                                {0}};
static const shape resp_reasoning = {.kind = SHAPE_OBJECT, .members = resp_reasoning_members};

static const member resp_body[] = {{"model", &string, REQUIRED},
                                   {"input", &resp_input, OPTIONAL},
                                   {"instructions", &string, OPTIONAL},
                                   {"reasoning", &resp_reasoning, OPTIONAL},
                                   {"tools", &resp_tools, OPTIONAL},
                                   {"tool_choice", &resp_choice, OPTIONAL},
                                   {"text", &resp_text, OPTIONAL},
                                   {"temperature", &real, OPTIONAL},
                                   {"top_p", &real, OPTIONAL},
                                   {"top_logprobs", &u8, OPTIONAL},
                                   {"max_output_tokens", &u32, OPTIONAL},
                                   {"stream", &boolean, OPTIONAL},
                                   {"user", &string, OPTIONAL},
                                   {0}};

/* ---- Messages ---- */

static const char *const media_words[] = {"image/jpeg", "image/jpg",  "image/png",
                                          "image/gif",  "image/webp", NULL};
static const shape media = {.kind = SHAPE_WORD, .words = media_words};
static const member mess_base64[] = {
    {"media_type", &media, REQUIRED}, {"data", &string, REQUIRED}, {0}};
static const member mess_file[] = {{"file_id", &string, REQUIRED}, {0}};
static const variant mess_sources[] = {
    {"base64", mess_base64}, {"url", one_url}, {"file", mess_file}, {0}};
static const shape mess_source = {.kind = SHAPE_VARIANTS, .tag = "type", .variants = mess_sources};
static const member mess_image[] = {{"source", &mess_source, REQUIRED}, {0}};
static const member mess_document_members[] = {{"media_type", &string, OPTIONAL}, {0}};
static const shape mess_document_source = {.kind = SHAPE_OBJECT, .members = mess_document_members};
static const member mess_document[] = {{"source", &mess_document_source, REQUIRED}, {0}};
static const member mess_thinking[] = {
    {"thinking", &string, REQUIRED}, {"signature", &string, OPTIONAL}, {0}};
static const member mess_use[] = {
    {"id", &string, REQUIRED}, {"name", &string, REQUIRED}, {"input", &value, REQUIRED}, {0}};
static const member mess_search_result[] = {
    {"tool_use_id", &string, REQUIRED}, {"content", &value, REQUIRED}, {0}};
static const member mess_loaded[] = {{"tool_name", &string, REQUIRED}, {0}};
static const variant mess_result_parts[] = {{"text", one_text},
                                            {"image", mess_image},
                                            {"document", mess_document},
                                            {"tool_reference", mess_loaded},
                                            {0}};
static const shape mess_result_part = {.kind = SHAPE_VARIANTS,
                                       .tag = "type",
                                       .variants = mess_result_parts},
                   mess_result_content = {.kind = SHAPE_TEXT, .item = &mess_result_part};
static const member mess_result[] = {{"tool_use_id", &string, REQUIRED},
                                     {"content", &mess_result_content, OPTIONAL},
                                     {"is_error", &boolean, OPTIONAL},
                                     {0}};
static const variant mess_references[] = {{"tool_reference", one_name}, {0}};
static const shape mess_reference = {
    .kind = SHAPE_VARIANTS, .tag = "type", .variants = mess_references};
static const member mess_addition[] = {{"tool", &mess_reference, REQUIRED}, {0}};
static const variant mess_blocks[] = {{"text", one_text},
                                      {"image", mess_image},
                                      {"document", mess_document},
                                      {"thinking", mess_thinking},
                                      {"server_tool_use", mess_use},
                                      {"tool_use", mess_use},
                                      {"tool_result", mess_result},
                                      {"web_search_tool_result", mess_search_result},
                                      {"tool_addition", mess_addition},
                                      {0}};
static const shape mess_block = {.kind = SHAPE_VARIANTS, .tag = "type", .variants = mess_blocks},
                   mess_content = {.kind = SHAPE_TEXT, .item = &mess_block};
static const char *const mess_role_words[] = {"user", "assistant", "system", NULL};
static const shape mess_role = {.kind = SHAPE_WORD, .words = mess_role_words};
static const member mess_message_members[] = {
    {"role", &mess_role, REQUIRED}, {"content", &mess_content, REQUIRED}, {0}};
static const shape mess_message = {.kind = SHAPE_OBJECT, .members = mess_message_members},
                   mess_messages = {.kind = SHAPE_LIST, .item = &mess_message};

static const variant mess_system_parts[] = {{"text", one_text}, {0}};
static const shape mess_system_part = {.kind = SHAPE_VARIANTS,
                                       .tag = "type",
                                       .variants = mess_system_parts},
                   mess_system = {.kind = SHAPE_TEXT, .item = &mess_system_part};

static const member mess_function[] = {{"name", &string, REQUIRED},
                                       {"description", &string, OPTIONAL},
                                       {"defer_loading", &boolean, OPTIONAL},
                                       {0}};
static const member mess_server_tool[] = {{"name", &string, OPTIONAL}, {0}};
static const variant no_variants[] = {{0}};
static const shape mess_tool = {.kind = SHAPE_VARIANTS,
                                .tag = "type",
                                .variants = no_variants,
                                .untagged = mess_function,
                                .others = mess_server_tool},
                   mess_tools = {.kind = SHAPE_LIST, .item = &mess_tool};

static const member mess_auto[] = {{"disable_parallel_tool_use", &boolean, OPTIONAL}, {0}};
static const member mess_named[] = {
    {"name", &string, REQUIRED}, {"disable_parallel_tool_use", &boolean, OPTIONAL}, {0}};
static const variant mess_choices[] = {
    {"auto", mess_auto}, {"any", mess_auto}, {"tool", mess_named}, {"none", nothing}, {0}};
static const shape mess_choice = {.kind = SHAPE_VARIANTS, .tag = "type", .variants = mess_choices};

static const member mess_config_members[] = {{"effort", &effort, OPTIONAL}, {0}};
static const shape mess_config = {.kind = SHAPE_OBJECT, .members = mess_config_members};
static const member mess_metadata_members[] = {{"user_id", &string, OPTIONAL}, {0}};
static const shape mess_metadata = {.kind = SHAPE_OBJECT, .members = mess_metadata_members};

static const member mess_body[] = {{"model", &string, REQUIRED},
                                   {"messages", &mess_messages, REQUIRED},
                                   {"max_tokens", &u32, OPTIONAL},
                                   {"system", &mess_system, OPTIONAL},
                                   {"thinking", &thinking, OPTIONAL},
                                   {"output_config", &mess_config, OPTIONAL},
                                   {"tools", &mess_tools, OPTIONAL},
                                   {"tool_choice", &mess_choice, OPTIONAL},
                                   {"stop_sequences", &strings, OPTIONAL},
                                   {"temperature", &real, OPTIONAL},
                                   {"top_p", &real, OPTIONAL},
                                   {"stream", &boolean, OPTIONAL},
                                   {"metadata", &mess_metadata, OPTIONAL},
                                   {0}};

/* ---- the check ---- */

static bool check(reading *rd, const shape *s, const jtree *t, const place *at);

static bool check_members(reading *rd, const member *m, const jtree *t, const place *at)
{
    for (; m->key; m++) {
        const jtree *v = jtree_get(t, m->key);
        const place here = {.text = m->key, .in = at};

        if (!v && m->need == REQUIRED)
            return parse_fail(rd, &here, "is missing");
        if (!v || (v->type == JSON_NULL && m->need == OPTIONAL))
            continue;
        if (!check(rd, m->shape, v, &here))
            return false;
    }
    return true;
}

static bool check_items(reading *rd, const shape *item, const jtree *t, const place *at)
{
    place here = *at;

    here.has_idx = true;
    for (const jtree *v = t->child; v; v = v->next, here.idx++)
        if (!check(rd, item, v, &here))
            return false;
    return true;
}

static bool check_variants(reading *rd, const shape *s, const jtree *t, const place *at)
{
    const jtree *tag = jtree_get(t, s->tag);
    const place here = {.text = s->tag, .in = at};
    const member *m = tag ? s->others : s->untagged;

    if (tag && tag->type != JSON_STRING)
        return parse_fail(rd, &here, "must be a string");
    for (const variant *v = s->variants; tag && v->word; v++)
        if (jtree_is(tag, v->word))
            m = v->members;
    if (!m)
        return parse_fail(rd, &here, tag ? "has an unknown value" : "is missing");
    return check_members(rd, m, t, at);
}

static bool check(reading *rd, const shape *s, const jtree *t, const place *at)
{
    switch (s->kind) {
    case SHAPE_VALUE:
        return true;
    case SHAPE_STRING:
        return t->type == JSON_STRING || parse_fail(rd, at, "must be a string");
    case SHAPE_BOOL:
        return t->type == JSON_BOOL || parse_fail(rd, at, "must be true or false");
    case SHAPE_REAL:
        return t->type == JSON_NUMBER || parse_fail(rd, at, "must be a number");
    case SHAPE_UINT:
        return jtree_is_uint(t, s->max) ||
               parse_fail(rd, at, "must be a non-negative integer in its range");
    case SHAPE_WORD:
        return word_index(t, s->words) >= 0 || parse_fail(rd, at, "is not one of its words");
    case SHAPE_CHOICE:
        return word_index(t, s->words) >= 0 || check(rd, s->item, t, at);
    case SHAPE_LIST:
        if (t->type != JSON_ARRAY)
            return parse_fail(rd, at, "must be a list");
        return check_items(rd, s->item, t, at);
    case SHAPE_TEXT:
        if (t->type != JSON_STRING && t->type != JSON_ARRAY)
            return parse_fail(rd, at, "must be a string or a list");
        return t->type == JSON_STRING || check_items(rd, s->item, t, at);
    case SHAPE_OBJECT:
    case SHAPE_VARIANTS:
        break;
    }
    if (t->type != JSON_OBJECT)
        return parse_fail(rd, at, "must be an object");
    return s->kind == SHAPE_OBJECT ? check_members(rd, s->members, t, at)
                                   : check_variants(rd, s, t, at);
}

bool shape_check(reading *rd, const jtree *body)
{
    static const member *const bodies[] = {[RECIPE_PROTOCOL_CHAT] = chat_body,
                                           [RECIPE_PROTOCOL_RESPONSES] = resp_body,
                                           [RECIPE_PROTOCOL_MESSAGES] = mess_body};
    const shape s = {.kind = SHAPE_OBJECT, .members = bodies[rd->q->protocol]};

    return check(rd, &s, body, NULL);
}
