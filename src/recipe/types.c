/* Mode STRICT: the types that the released recipe's parser demands, of a whole body and before any
 * of it is understood (spec recipe.md 2.0, layer "parse").
 *
 * One table per object. Members that no table names are not looked at, and neither are those of
 * other variants: "json_schema" beside {"type": "regex"} may be anything. Found by asking the
 * package about every field with values of every type. It also takes a list for an object and a
 * number for a word (the place in its declaration); that is refused here. */
#include <string.h>

#include "recipe/recipe_internal.h"

typedef enum want_kind {
    WANT_VALUE, /* anything, null too */
    WANT_STRING,
    WANT_BOOL,
    WANT_REAL,
    WANT_UINT,    /* an integer from 0 to max */
    WANT_WORD,    /* one of words */
    WANT_LIST,    /* of items */
    WANT_TEXT,    /* a string, or a list of items */
    WANT_CHOICE,  /* one of words, or an item */
    WANT_OBJECT,  /* with members */
    WANT_VARIANTS /* an object whose members depend on its tag */
} want_kind;

typedef enum need {
    OPTIONAL, /* absent or null */
    REQUIRED, /* null only where that is wanted */
    NOT_NULL  /* may be absent */
} need;

typedef struct want want;

typedef struct member {
    const char *key; /* NULL ends a table */
    const want *want;
    need need;
} member;

typedef struct variant {
    const char *word; /* NULL ends a table */
    const member *members;
} variant;

struct want {
    want_kind kind;
    uint64_t max;
    const char *const *words;
    const want *item;
    const member *members;
    const char *tag;
    const variant *variants;
    const member *untagged, *others; /* members without a tag, with another; NULL = refused */
};

static const want value = {.kind = WANT_VALUE}, string = {.kind = WANT_STRING},
                  boolean = {.kind = WANT_BOOL}, real = {.kind = WANT_REAL},
                  u8 = {.kind = WANT_UINT, .max = UINT8_MAX},
                  u32 = {.kind = WANT_UINT, .max = UINT32_MAX},
                  u64 = {.kind = WANT_UINT, .max = UINT64_MAX},
                  strings = {.kind = WANT_LIST, .item = &string};

static const member nothing[] = {{0}};
static const member one_text[] = {{"text", &string, REQUIRED}, {0}};
static const member one_name[] = {{"name", &string, REQUIRED}, {0}};
static const member one_url[] = {{"url", &string, REQUIRED}, {0}};

static const want effort = {.kind = WANT_WORD, .words = effort_words},
                  detail = {.kind = WANT_WORD, .words = detail_words};

static const char *const only_function[] = {"function", NULL};
static const want function_word = {.kind = WANT_WORD, .words = only_function};

static const char *const choice_words[] = {"none", "auto", "required", NULL};

static const want thinking_word = {.kind = WANT_WORD, .words = thinking_words};
static const member thinking_members[] = {
    {"type", &thinking_word, REQUIRED}, {"budget_tokens", &u64, OPTIONAL}, {0}};
static const want thinking = {.kind = WANT_OBJECT, .members = thinking_members};

/* ---- Chat Completions ---- */

static const member chat_image_members[] = {
    {"url", &string, REQUIRED}, {"detail", &detail, OPTIONAL}, {0}};
static const want chat_image = {.kind = WANT_OBJECT, .members = chat_image_members};
static const member chat_image_part[] = {{"image_url", &chat_image, REQUIRED}, {0}};
static const member chat_file_part[] = {{"file_id", &string, OPTIONAL},
                                        {"file_data", &string, OPTIONAL},
                                        {"filename", &string, OPTIONAL},
                                        {0}};
static const variant chat_parts[] = {
    {"text", one_text}, {"image_url", chat_image_part}, {"file", chat_file_part}, {0}};
static const want chat_part = {.kind = WANT_VARIANTS, .tag = "type", .variants = chat_parts};
static const want chat_content = {.kind = WANT_TEXT, .item = &chat_part};

static const member chat_call_function[] = {
    {"name", &string, REQUIRED}, {"arguments", &string, REQUIRED}, {0}};
static const want chat_called = {.kind = WANT_OBJECT, .members = chat_call_function};
static const member chat_call_members[] = {{"id", &string, REQUIRED},
                                           {"type", &function_word, REQUIRED},
                                           {"function", &chat_called, REQUIRED},
                                           {0}};
static const want chat_call = {.kind = WANT_OBJECT, .members = chat_call_members},
                  chat_calls = {.kind = WANT_LIST, .item = &chat_call};

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
static const want chat_message = {.kind = WANT_VARIANTS, .tag = "role", .variants = chat_roles},
                  chat_messages = {.kind = WANT_LIST, .item = &chat_message};

static const member function_members[] = {{"name", &string, REQUIRED},
                                          {"description", &string, OPTIONAL},
                                          {"strict", &boolean, OPTIONAL},
                                          {0}};
static const want chat_function = {.kind = WANT_OBJECT, .members = function_members};
static const member chat_tool_members[] = {
    {"type", &function_word, REQUIRED}, {"function", &chat_function, REQUIRED}, {0}};
static const want chat_tool = {.kind = WANT_OBJECT, .members = chat_tool_members},
                  chat_tools = {.kind = WANT_LIST, .item = &chat_tool};

static const want named = {.kind = WANT_OBJECT, .members = one_name};
static const member chat_named[] = {
    {"type", &function_word, REQUIRED}, {"function", &named, REQUIRED}, {0}};
static const want chat_named_tool = {.kind = WANT_OBJECT, .members = chat_named},
                  chat_choice = {
                      .kind = WANT_CHOICE, .words = choice_words, .item = &chat_named_tool};

static const member chat_schema_members[] = {
    {"schema", &value, REQUIRED}, {"name", &string, OPTIONAL}, {"strict", &boolean, OPTIONAL}, {0}};
static const want chat_schema = {.kind = WANT_OBJECT, .members = chat_schema_members};
static const member chat_schema_format[] = {{"json_schema", &chat_schema, REQUIRED}, {0}};
static const member chat_regex_format[] = {{"regex", &string, REQUIRED}, {0}};
static const variant chat_formats[] = {{"text", nothing},
                                       {"json_object", nothing},
                                       {"json_schema", chat_schema_format},
                                       {"regex", chat_regex_format},
                                       {0}};
static const want chat_format = {.kind = WANT_VARIANTS, .tag = "type", .variants = chat_formats};

static const want chat_stop = {.kind = WANT_TEXT, .item = &string};
static const member chat_stream_members[] = {{"include_usage", &boolean, OPTIONAL}, {0}};
static const want chat_stream = {.kind = WANT_OBJECT, .members = chat_stream_members};

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
static const want resp_part = {.kind = WANT_VARIANTS, .tag = "type", .variants = resp_parts},
                  resp_content = {.kind = WANT_TEXT, .item = &resp_part},
                  resp_output_part = {.kind = WANT_VARIANTS,
                                      .tag = "type",
                                      .variants = resp_output_parts},
                  resp_output = {.kind = WANT_TEXT, .item = &resp_output_part};

static const char *const resp_role_words[] = {"user", "assistant", "system", "developer", NULL};
static const want resp_role = {.kind = WANT_WORD, .words = resp_role_words};
static const member resp_message[] = {
    {"role", &resp_role, REQUIRED}, {"content", &resp_content, REQUIRED}, {0}};
static const want resp_reason = {.kind = WANT_OBJECT, .members = one_text},
                  resp_reasons = {.kind = WANT_LIST, .item = &resp_reason};
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
static const want resp_item = {.kind = WANT_VARIANTS,
                               .tag = "type",
                               .variants = resp_items,
                               .untagged = resp_message,
                               .others = nothing},
                  resp_input = {.kind = WANT_TEXT, .item = &resp_item};

static const char *const member_words[] = {"function", "custom", NULL};
static const want resp_member_word = {.kind = WANT_WORD, .words = member_words};
static const member resp_member[] = {{"type", &resp_member_word, REQUIRED},
                                     {"name", &string, REQUIRED},
                                     {"description", &string, OPTIONAL},
                                     {"strict", &boolean, OPTIONAL},
                                     {0}};
static const want resp_member_tool = {.kind = WANT_OBJECT, .members = resp_member},
                  resp_members = {.kind = WANT_LIST, .item = &resp_member_tool};
static const member resp_namespace[] = {{"name", &string, REQUIRED},
                                        {"description", &string, OPTIONAL},
                                        {"tools", &resp_members, REQUIRED},
                                        {0}};
static const char *const size_words[] = {"low", "medium", "high", NULL};
static const want size_word = {.kind = WANT_WORD, .words = size_words};
static const member resp_location[] = {{"city", &string, OPTIONAL},
                                       {"region", &string, OPTIONAL},
                                       {"country", &string, OPTIONAL},
                                       {"timezone", &string, OPTIONAL},
                                       {0}};
static const want resp_place = {.kind = WANT_OBJECT, .members = resp_location};
static const member resp_search[] = {
    {"search_context_size", &size_word, OPTIONAL}, {"user_location", &resp_place, OPTIONAL}, {0}};
static const variant resp_tool_kinds[] = {
    {"function", function_members},         {"custom", one_name},
    {"namespace", resp_namespace},          {"web_search", resp_search},
    {"web_search_2025_08_26", resp_search}, {0}};
static const want resp_tool = {.kind = WANT_VARIANTS,
                               .tag = "type",
                               .variants = resp_tool_kinds,
                               .others = nothing},
                  resp_tools = {.kind = WANT_LIST, .item = &resp_tool};

static const variant resp_named[] = {{"function", one_name},
                                     {"custom", one_name},
                                     {"web_search", nothing},
                                     {"web_search_2025_08_26", nothing},
                                     {0}};
static const want resp_named_tool = {.kind = WANT_VARIANTS, .tag = "type", .variants = resp_named},
                  resp_choice = {
                      .kind = WANT_CHOICE, .words = choice_words, .item = &resp_named_tool};

static const member resp_schema_format[] = {{"name", &string, REQUIRED},
                                            {"schema", &value, REQUIRED},
                                            {"description", &string, OPTIONAL},
                                            {"strict", &boolean, OPTIONAL},
                                            {0}};
static const variant resp_formats[] = {
    {"text", nothing}, {"json_object", nothing}, {"json_schema", resp_schema_format}, {0}};
static const want resp_format = {.kind = WANT_VARIANTS, .tag = "type", .variants = resp_formats};
static const member resp_text_members[] = {
    {"format", &resp_format, NOT_NULL}, {"verbosity", &size_word, OPTIONAL}, {0}};
static const want resp_text = {.kind = WANT_OBJECT, .members = resp_text_members};

static const char *const summary_words[] = {"auto", "concise", "detailed", NULL};
static const want summary = {.kind = WANT_WORD, .words = summary_words};
static const member resp_reasoning_members[] = {{"effort", &effort, OPTIONAL},
                                                {"summary", &summary, OPTIONAL},
                                                {"generate_summary", &summary, OPTIONAL},
                                                {0}};
static const want resp_reasoning = {.kind = WANT_OBJECT, .members = resp_reasoning_members};

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
static const want media = {.kind = WANT_WORD, .words = media_words};
static const member mess_base64[] = {
    {"media_type", &media, REQUIRED}, {"data", &string, REQUIRED}, {0}};
static const member mess_file[] = {{"file_id", &string, REQUIRED}, {0}};
static const variant mess_sources[] = {
    {"base64", mess_base64}, {"url", one_url}, {"file", mess_file}, {0}};
static const want mess_source = {.kind = WANT_VARIANTS, .tag = "type", .variants = mess_sources};
static const member mess_image[] = {{"source", &mess_source, REQUIRED}, {0}};
static const member mess_document_members[] = {{"media_type", &string, OPTIONAL}, {0}};
static const want mess_document_source = {.kind = WANT_OBJECT, .members = mess_document_members};
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
static const want mess_result_part = {.kind = WANT_VARIANTS,
                                      .tag = "type",
                                      .variants = mess_result_parts},
                  mess_result_content = {.kind = WANT_TEXT, .item = &mess_result_part};
static const member mess_result[] = {{"tool_use_id", &string, REQUIRED},
                                     {"content", &mess_result_content, OPTIONAL},
                                     {"is_error", &boolean, OPTIONAL},
                                     {0}};
static const variant mess_references[] = {{"tool_reference", one_name}, {0}};
static const want mess_reference = {
    .kind = WANT_VARIANTS, .tag = "type", .variants = mess_references};
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
static const want mess_block = {.kind = WANT_VARIANTS, .tag = "type", .variants = mess_blocks},
                  mess_content = {.kind = WANT_TEXT, .item = &mess_block};
static const char *const mess_role_words[] = {"user", "assistant", "system", NULL};
static const want mess_role = {.kind = WANT_WORD, .words = mess_role_words};
static const member mess_message_members[] = {
    {"role", &mess_role, REQUIRED}, {"content", &mess_content, REQUIRED}, {0}};
static const want mess_message = {.kind = WANT_OBJECT, .members = mess_message_members},
                  mess_messages = {.kind = WANT_LIST, .item = &mess_message};

static const variant mess_system_parts[] = {{"text", one_text}, {0}};
static const want mess_system_part = {.kind = WANT_VARIANTS,
                                      .tag = "type",
                                      .variants = mess_system_parts},
                  mess_system = {.kind = WANT_TEXT, .item = &mess_system_part};

static const member mess_function[] = {{"name", &string, REQUIRED},
                                       {"description", &string, OPTIONAL},
                                       {"defer_loading", &boolean, OPTIONAL},
                                       {0}};
static const member mess_server_tool[] = {{"name", &string, OPTIONAL}, {0}};
static const variant no_variants[] = {{0}};
static const want mess_tool = {.kind = WANT_VARIANTS,
                               .tag = "type",
                               .variants = no_variants,
                               .untagged = mess_function,
                               .others = mess_server_tool},
                  mess_tools = {.kind = WANT_LIST, .item = &mess_tool};

static const member mess_auto[] = {{"disable_parallel_tool_use", &boolean, OPTIONAL}, {0}};
static const member mess_named[] = {
    {"name", &string, REQUIRED}, {"disable_parallel_tool_use", &boolean, OPTIONAL}, {0}};
static const variant mess_choices[] = {
    {"auto", mess_auto}, {"any", mess_auto}, {"tool", mess_named}, {"none", nothing}, {0}};
static const want mess_choice = {.kind = WANT_VARIANTS, .tag = "type", .variants = mess_choices};

static const member mess_config_members[] = {{"effort", &effort, OPTIONAL}, {0}};
static const want mess_config = {.kind = WANT_OBJECT, .members = mess_config_members};
static const member mess_metadata_members[] = {{"user_id", &string, OPTIONAL}, {0}};
static const want mess_metadata = {.kind = WANT_OBJECT, .members = mess_metadata_members};

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

static bool check(reading *rd, const want *s, const jtree *t, const place *at);

static bool check_members(reading *rd, const member *m, const jtree *t, const place *at)
{
    for (; m->key; m++) {
        const jtree *v = jtree_get(t, m->key);
        const place here = {.text = m->key, .in = at};

        if (!v && m->need == REQUIRED)
            return parse_fail(rd, &here, "is missing");
        if (!v || (v->type == JSON_NULL && m->need == OPTIONAL))
            continue;
        if (!check(rd, m->want, v, &here))
            return false;
    }
    return true;
}

static bool check_items(reading *rd, const want *item, const jtree *t, const place *at)
{
    place here = *at;

    here.has_idx = true;
    for (const jtree *v = t->child; v; v = v->next, here.idx++)
        if (!check(rd, item, v, &here))
            return false;
    return true;
}

static bool check_variants(reading *rd, const want *s, const jtree *t, const place *at)
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

static bool check(reading *rd, const want *s, const jtree *t, const place *at)
{
    switch (s->kind) {
    case WANT_VALUE:
        return true;
    case WANT_STRING:
        return t->type == JSON_STRING || parse_fail(rd, at, "must be a string");
    case WANT_BOOL:
        return t->type == JSON_BOOL || parse_fail(rd, at, "must be true or false");
    case WANT_REAL:
        return t->type == JSON_NUMBER || parse_fail(rd, at, "must be a number");
    case WANT_UINT:
        return jtree_is_uint(t, s->max) ||
               parse_fail(rd, at, "must be a non-negative integer in its range");
    case WANT_WORD:
        return word_index(t, s->words) >= 0 || parse_fail(rd, at, "is not one of its words");
    case WANT_CHOICE:
        return word_index(t, s->words) >= 0 || check(rd, s->item, t, at);
    case WANT_LIST:
        if (t->type != JSON_ARRAY)
            return parse_fail(rd, at, "must be a list");
        return check_items(rd, s->item, t, at);
    case WANT_TEXT:
        if (t->type != JSON_STRING && t->type != JSON_ARRAY)
            return parse_fail(rd, at, "must be a string or a list");
        return t->type == JSON_STRING || check_items(rd, s->item, t, at);
    case WANT_OBJECT:
    case WANT_VARIANTS:
        break;
    }
    if (t->type != JSON_OBJECT)
        return parse_fail(rd, at, "must be an object");
    return s->kind == WANT_OBJECT ? check_members(rd, s->members, t, at)
                                  : check_variants(rd, s, t, at);
}

bool types_check(reading *rd, const jtree *body)
{
    static const member *const bodies[] = {[RECIPE_PROTOCOL_CHAT] = chat_body,
                                           [RECIPE_PROTOCOL_RESPONSES] = resp_body,
                                           [RECIPE_PROTOCOL_MESSAGES] = mess_body};
    const want s = {.kind = WANT_OBJECT, .members = bodies[rd->q->protocol]};

    return check(rd, &s, body, NULL);
}
