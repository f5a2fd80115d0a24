/* Mode CLIENT: what real clients send is accepted, and what a body sets is honoured (docs/api.md
 * has a line for each difference from mode STRICT). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "recipe/prompt.h"
#include "recipe/stream.h"

#define MODEL    "\"model\": \"DeepSeek-V4.1-Flash\""
#define MESSAGES "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"
#define TOOL     "{\"type\": \"function\", \"function\": {\"name\": \"f\"}}"
#define OFF      "\"thinking\": {\"type\": \"disabled\"}"

static tokenizer *tok;
static recipe_request q;
static recipe_error e;

static bool parse_as(recipe_protocol protocol, recipe_mode mode, const char *body)
{
    const recipe_options o = {.mode = mode};

    recipe_request_fini(&q);
    return recipe_request_parse(&q, protocol, &o, body, strlen(body), &e);
}

/* Accepted by mode CLIENT; q has it. */
static void accepts(recipe_protocol protocol, const char *body)
{
    if (!parse_as(protocol, RECIPE_CLIENT, body))
        fail_msg("refused: %s", e.message);
}

/* Accepted by mode CLIENT, and no error of mode STRICT. */
static void refuses_strictly(recipe_protocol protocol, const char *body)
{
    assert_false(parse_as(protocol, RECIPE_STRICT, body));
    accepts(protocol, body);
}

static void refuses(recipe_protocol protocol, const char *body, int status, const char *message)
{
    assert_false(parse_as(protocol, RECIPE_CLIENT, body));
    assert_int_equal(e.status, status);
    assert_non_null(strstr(e.message, message));
}

static void test_developer_is_system(void **state)
{
    (void)state;
    refuses_strictly(RECIPE_PROTOCOL_CHAT,
                     "{" MODEL ", \"messages\": [{\"role\": \"developer\", \"content\": \"D\"}]}");
    assert_int_equal(q.chat.message[0].role, RECIPE_SYSTEM);
}

static void test_max_completion_tokens_counts(void **state)
{
    (void)state;
    accepts(RECIPE_PROTOCOL_CHAT,
            "{" MODEL ", " MESSAGES ", \"max_tokens\": 9, \"max_completion_tokens\": 7}");
    assert_int_equal(q.sampling.max_tokens, 7);
    assert_true(parse_as(RECIPE_PROTOCOL_CHAT, RECIPE_STRICT,
                         "{" MODEL ", " MESSAGES ", \"max_completion_tokens\": 7}"));
    assert_int_equal(q.sampling.max_tokens, -1);
}

static void test_explicit_sampling_is_honoured(void **state)
{
    (void)state;
    accepts(RECIPE_PROTOCOL_CHAT,
            "{" MODEL ", " MESSAGES ", \"temperature\": 0, \"top_p\": 0.25, \"top_k\": 5, "
            "\"min_p\": 0.125, \"presence_penalty\": 0, \"frequency_penalty\": 1.5, "
            "\"repetition_penalty\": 1.25, \"logit_bias\": {\"17\": -100}, \"n\": 3, "
            "\"stop_token_ids\": [4, 5], \"ignore_eos\": true}");
    assert_true(q.sampling.temperature == 0 && q.sampling.top_p == 0.25f);
    assert_int_equal(q.sampling.top_k, 5);
    assert_true(q.sampling.min_p == 0.125f && q.sampling.frequency_penalty == 1.5f);
    assert_true(q.sampling.repetition_penalty == 1.25f && q.sampling.presence_penalty == 0);
    assert_true(q.sampling.set & RECIPE_SET_PRESENCE);
    assert_int_equal(q.sampling.n_bias, 1);
    assert_int_equal(q.sampling.bias[0].id, 17);
    assert_int_equal(q.sampling.n, 3);
    assert_int_equal(q.sampling.n_stop_ids, 2);
    assert_true(q.sampling.ignore_eos);
    accepts(RECIPE_PROTOCOL_CHAT, "{" MODEL ", " MESSAGES "}");
    assert_true(q.sampling.temperature == 1 && q.sampling.top_p == 1);
    assert_int_equal(q.sampling.set, 0);
}

static void test_ranges_are_checked(void **state)
{
    (void)state;
    refuses(RECIPE_PROTOCOL_CHAT, "{" MODEL ", " MESSAGES ", \"n\": 129}", 400, "n value");
    refuses(RECIPE_PROTOCOL_CHAT, "{" MODEL ", " MESSAGES ", \"min_p\": 2}", 400, "min_p");
    refuses(RECIPE_PROTOCOL_CHAT, "{" MODEL ", " MESSAGES ", \"top_k\": -2}", 400, "top_k");
    refuses(RECIPE_PROTOCOL_CHAT, "{" MODEL ", " MESSAGES ", \"logit_bias\": {\"x\": 1}}", 400,
            "token id");
    refuses(RECIPE_PROTOCOL_CHAT, "{" MODEL ", " MESSAGES ", \"repetition_penalty\": 0}", 400,
            "repetition_penalty");
}

static void test_unknown_model_is_404(void **state)
{
    const recipe_alias alias[] = {{"deepseek-flash", RECIPE_V41}, {"claude-*", RECIPE_V41}};
    const recipe_options o = {.alias = alias, .n_alias = 2};
    const char body[] = "{\"model\": \"claude-haiku\", " MESSAGES "}";

    (void)state;
    refuses(RECIPE_PROTOCOL_CHAT, "{\"model\": \"gpt\", " MESSAGES "}", 404, "gpt");
    assert_string_equal(e.code, "model_not_found");
    recipe_request_fini(&q);
    assert_true(recipe_request_parse(&q, RECIPE_PROTOCOL_CHAT, &o, body, sizeof body - 1, &e));
}

static void test_formats_of_other_servers(void **state)
{
    static const struct {
        const char *field;
        recipe_constraint_kind kind;
        const char *text;
    } cases[] = {
        {"\"response_format\": {\"type\": \"ebnf\", \"grammar\": \"root ::= 'a'\"}",
         RECIPE_CONSTRAINT_EBNF, "root ::= 'a'"},
        {"\"structured_outputs\": {\"choice\": [\"yes\", \"n.o\"]}", RECIPE_CONSTRAINT_REGEX,
         "yes|n\\.o"},
        {"\"structured_outputs\": {\"json\": {\"type\": \"object\"}}", RECIPE_CONSTRAINT_JSON,
         "{\"type\":\"object\"}"},
        {"\"structured_outputs\": {\"json\": \"{}\"}", RECIPE_CONSTRAINT_JSON, "{}"},
        {"\"structured_outputs\": {\"grammar\": \"g\"}", RECIPE_CONSTRAINT_EBNF, "g"},
        {"\"regex\": \"a+\"", RECIPE_CONSTRAINT_REGEX, "a+"},
        {"\"ebnf\": \"e\"", RECIPE_CONSTRAINT_EBNF, "e"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        str body = {0};

        str_printf(&body, "{" MODEL ", " MESSAGES ", %s}", cases[i].field);
        accepts(RECIPE_PROTOCOL_CHAT, str_text(&body));
        assert_int_equal(q.constraint.kind, cases[i].kind);
        assert_string_equal(q.constraint.text, cases[i].text);
        str_fini(&body);
    }
    accepts(RECIPE_PROTOCOL_CHAT,
            "{" MODEL ", \"messages\": [{\"role\": \"user\", \"content\": \"json\"}], "
            "\"response_format\": {\"type\": \"json_object\"}}");
    assert_int_equal(q.constraint.kind, RECIPE_CONSTRAINT_JSON_OBJECT);
}

static void test_strict_schemas_keep_their_definitions(void **state)
{
    (void)state;
    accepts(RECIPE_PROTOCOL_CHAT,
            "{" MODEL ", " MESSAGES ", \"response_format\": {\"type\": \"json_schema\", "
            "\"json_schema\": {\"name\": \"n\", \"strict\": true, \"schema\": {\"$defs\": {\"P\": "
            "{\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"integer\"}}}}, \"type\": "
            "\"object\", \"properties\": {\"p\": {\"$ref\": \"#/$defs/P\"}}}}}}");
    assert_string_equal(
        q.constraint.text,
        "{\"$defs\":{\"P\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},"
        "\"additionalProperties\":false,\"required\":[\"x\"]}},\"type\":\"object\",\"properties\":"
        "{\"p\":{\"$ref\":\"#/$defs/P\"}},\"additionalProperties\":false,\"required\":[\"p\"]}");
}

static void test_thinking_switch_of_other_servers(void **state)
{
    (void)state;
    accepts(RECIPE_PROTOCOL_CHAT,
            "{" MODEL ", " MESSAGES ", \"chat_template_kwargs\": {\"thinking\": false}}");
    assert_false(q.chat.thinking);
    accepts(RECIPE_PROTOCOL_CHAT,
            "{" MODEL ", " MESSAGES ", \"thinking\": {\"type\": \"enabled\"}, "
            "\"chat_template_kwargs\": {\"enable_thinking\": false}}");
    assert_true(q.chat.thinking);
}

static void test_allowed_tools_are_what_is_left(void **state)
{
    (void)state;
    accepts(RECIPE_PROTOCOL_CHAT,
            "{" MODEL ", " MESSAGES ", \"tools\": [" TOOL ", {\"type\": \"function\", "
            "\"function\": {\"name\": \"g\"}}], \"tool_choice\": {\"type\": \"allowed_tools\", "
            "\"allowed_tools\": {\"mode\": \"auto\", \"tools\": [{\"type\": \"function\", "
            "\"function\": {\"name\": \"g\"}}]}}}");
    assert_int_equal(q.chat.n_tools, 1);
    assert_string_equal(q.chat.tool[0].name, "g");
    refuses_strictly(RECIPE_PROTOCOL_RESPONSES,
                     "{" MODEL ", \"input\": \"x\", \"tools\": [{\"type\": \"function\", \"name\": "
                     "\"g\"}], \"tool_choice\": {\"type\": \"allowed_tools\", \"mode\": \"auto\", "
                     "\"tools\": [{\"type\": \"function\", \"name\": \"g\"}]}}");
    assert_int_equal(q.chat.n_tools, 1);
}

static void test_a_call_is_not_demanded_without_tools(void **state)
{
    static const char message[] = "tool_choice demands a call, but there are no tools";

    (void)state;
    refuses(RECIPE_PROTOCOL_CHAT, "{" MODEL ", " MESSAGES ", \"tool_choice\": \"required\"}", 400,
            message);
    refuses(RECIPE_PROTOCOL_CHAT,
            "{" MODEL ", " MESSAGES ", \"tools\": [], \"tool_choice\": {\"type\": \"function\", "
            "\"function\": {\"name\": \"f\"}}}",
            400, message);
    refuses(RECIPE_PROTOCOL_RESPONSES,
            "{" MODEL ", \"input\": \"x\", \"tool_choice\": \"required\"}", 400, message);
}

static void test_one_call_at_a_time(void **state)
{
    (void)state;
    accepts(RECIPE_PROTOCOL_CHAT,
            "{" MODEL ", " MESSAGES ", \"tools\": [" TOOL "], \"parallel_tool_calls\": false}");
    assert_true(q.constraint.one_call);
    accepts(RECIPE_PROTOCOL_MESSAGES,
            "{" MODEL ", " MESSAGES ", \"tools\": [{\"name\": \"f\", \"input_schema\": {\"type\": "
            "\"object\"}}], \"tool_choice\": {\"type\": \"auto\", \"disable_parallel_tool_use\": "
            "true}}");
    assert_true(q.constraint.one_call);
}

static void test_strict_and_other_tools_may_be_mixed(void **state)
{
    (void)state;
    refuses_strictly(RECIPE_PROTOCOL_CHAT,
                     "{" MODEL ", " MESSAGES ", \"tools\": [" TOOL ", {\"type\": \"function\", "
                     "\"function\": {\"name\": \"g\", \"strict\": true, \"parameters\": {\"type\": "
                     "\"object\", \"properties\": {}}}}]}");
    assert_int_equal(q.chat.n_tools, 2);
}

static void test_custom_tools_of_any_name(void **state)
{
    (void)state;
    refuses_strictly(RECIPE_PROTOCOL_RESPONSES,
                     "{" MODEL ", \"input\": \"x\", \"tools\": [{\"type\": \"custom\", \"name\": "
                     "\"sql\", \"description\": \"Run SQL\"}]}");
    assert_true(q.chat.tool[0].custom);
    assert_non_null(jtree_get(jtree_get(q.chat.tool[0].parameters, "properties"), "input"));
}

static void test_earlier_responses_are_not_ignored(void **state)
{
    (void)state;
    refuses(RECIPE_PROTOCOL_RESPONSES,
            "{" MODEL ", \"input\": \"x\", \"previous_response_id\": \"resp_1\"}", 400, "resp_1");
    assert_string_equal(e.param, "previous_response_id");
}

static void test_messages_max_tokens_fit_the_context(void **state)
{
    int64_t max = 0;

    (void)state;
    accepts(RECIPE_PROTOCOL_MESSAGES, "{" MODEL ", " MESSAGES ", \"max_tokens\": 32000}");
    assert_true(recipe_resolve_max_tokens(&q, 90, 100, &max, &e));
    assert_int_equal(max, 10);
    assert_false(recipe_resolve_max_tokens(&q, 100, 100, &max, &e));
}

static void test_calls_without_a_type(void **state)
{
    (void)state;
    refuses_strictly(RECIPE_PROTOCOL_CHAT,
                     "{" MODEL ", \"messages\": [{\"role\": \"assistant\", \"content\": null, "
                     "\"tool_calls\": [{\"id\": \"1\", \"function\": {\"name\": \"f\", "
                     "\"arguments\": \"{}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"1\", "
                     "\"content\": \"r\"}]}");
}

static void test_logprobs_by_include(void **state)
{
    (void)state;
    accepts(RECIPE_PROTOCOL_RESPONSES, "{" MODEL ", \"input\": \"x\", \"include\": "
                                       "[\"message.output_text.logprobs\"]}");
    assert_true(q.sampling.logprobs);
}

static void test_a_prompt_that_is_too_long_has_a_code(void **state)
{
    int64_t max;

    (void)state;
    accepts(RECIPE_PROTOCOL_CHAT, "{" MODEL ", " MESSAGES ", \"max_tokens\": 10}");
    assert_true(recipe_resolve_max_tokens(&q, 90, 100, &max, &e));
    assert_false(recipe_resolve_max_tokens(&q, 91, 100, &max, &e));
    assert_string_equal(e.code, "context_length_exceeded");
    assert_string_equal(e.param, "messages");
}

/* A body of many values is refused before it takes a multiple of its size; what nobody reads is not
 * kept, whatever its size. */
static void test_many_values_do_not_fill_the_memory(void **state)
{
    str list = {0}, body = {0};

    (void)state;
    str_puts(&list, "[0");
    for (int i = 0; i < JTREE_MAX_VALUES; i++)
        str_puts(&list, ",0");
    str_putc(&list, ']');
    str_printf(&body, "{" MODEL ", " MESSAGES ", \"unknown\": %s}", str_text(&list));
    accepts(RECIPE_PROTOCOL_CHAT, str_text(&body));
    assert_true(arena_bytes(q.mem) < 100000);
    str_clear(&body);
    str_printf(&body, "{" MODEL ", " MESSAGES ", \"stop\": %s}", str_text(&list));
    refuses(RECIPE_PROTOCOL_CHAT, str_text(&body), 400, "values");
    str_clear(&body);
    str_clear(&list);
    for (int i = 0; i <= RECIPE_MAX_STOP_BYTES; i++)
        str_putc(&list, 'x');
    str_printf(&body, "{" MODEL ", " MESSAGES ", \"stop\": [\"a\", \"%s\"]}", str_text(&list));
    refuses(RECIPE_PROTOCOL_CHAT, str_text(&body), 400, "'stop[1]': string of 8193 bytes");
    str_clear(&body);
    str_printf(&body, "{" MODEL ", " MESSAGES ", \"unknown\": [1,]}");
    refuses(RECIPE_PROTOCOL_CHAT, str_text(&body), 400, "request body:1:");
    str_fini(&list);
    str_fini(&body);
}

static void test_messages_tools_with_a_type(void **state)
{
    (void)state;
    refuses_strictly(RECIPE_PROTOCOL_MESSAGES,
                     "{" MODEL ", " MESSAGES ", \"tools\": [{\"type\": \"custom\", \"name\": "
                     "\"f\", \"input_schema\": {\"type\": \"object\"}}, {\"type\": "
                     "\"web_search_20250305\", \"name\": \"web_search\"}]}");
    assert_int_equal(q.chat.n_tools, 1);
}

static void test_messages_blocks_of_real_clients(void **state)
{
    (void)state;
    refuses_strictly(
        RECIPE_PROTOCOL_MESSAGES,
        "{" MODEL ", \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
        "\"search_result\", \"source\": \"s\", \"title\": \"t\", \"content\": [{\"type\": "
        "\"text\", \"text\": \"found\"}]}]}, {\"role\": \"assistant\", \"content\": [{\"type\": "
        "\"redacted_thinking\", \"data\": \"x\"}, {\"type\": \"server_tool_use\", \"id\": \"1\", "
        "\"name\": \"web_search\", \"input\": {}}, {\"type\": \"text\", \"text\": \"A\"}]}, "
        "{\"role\": \"user\", \"content\": \"x\"}]}");
    assert_int_equal(q.chat.n, 3);
    assert_string_equal(q.chat.message[0].content, "found");
    assert_string_equal(q.chat.message[1].content, "A");
}

static void test_messages_any_needs_a_call_without_thinking(void **state)
{
    const char body[] = "{" MODEL ", " MESSAGES ", " OFF ", \"tools\": [{\"name\": \"f\", "
                        "\"input_schema\": {\"type\": \"object\"}}], \"tool_choice\": {\"type\": "
                        "\"any\"}}";

    (void)state;
    assert_true(parse_as(RECIPE_PROTOCOL_MESSAGES, RECIPE_STRICT, body));
    assert_int_equal(q.chat.choice, RECIPE_CHOICE_AUTO);
    accepts(RECIPE_PROTOCOL_MESSAGES, body);
    assert_int_equal(q.chat.choice, RECIPE_CHOICE_REQUIRED);
}

static void test_messages_output_format(void **state)
{
    (void)state;
    accepts(RECIPE_PROTOCOL_MESSAGES,
            "{" MODEL ", " MESSAGES ", \"output_config\": {\"format\": {\"type\": "
            "\"json_schema\", \"schema\": {\"type\": \"object\"}}}}");
    assert_int_equal(q.constraint.kind, RECIPE_CONSTRAINT_JSON);
}

static void test_errors_of_messages_have_their_own_body(void **state)
{
    str body = {0};

    (void)state;
    refuses(RECIPE_PROTOCOL_MESSAGES, "{" MODEL ", \"messages\": []}", 400, "at least one");
    recipe_error_body(RECIPE_PROTOCOL_MESSAGES, RECIPE_CLIENT, &e, &body);
    assert_string_equal(str_text(&body),
                        "{\"type\": \"error\", \"error\": {\"type\": \"invalid_request_error\", "
                        "\"message\": \"messages: at least one message is required\"}}");
    str_fini(&body);
}

/* Row A16 of spec bugs.md. */
static void test_tool_choice_none_hides_the_tools(void **state)
{
    recipe_prompt with = {0}, without = {0};

    (void)state;
    accepts(RECIPE_PROTOCOL_CHAT,
            "{" MODEL ", " MESSAGES ", \"tools\": [" TOOL "], \"tool_choice\": \"none\"}");
    assert_int_equal(q.constraint.kind, RECIPE_CONSTRAINT_NONE);
    assert_int_equal(recipe_render(&q.chat, NULL, &with, NULL), DI_OK);
    accepts(RECIPE_PROTOCOL_CHAT, "{" MODEL ", " MESSAGES "}");
    assert_int_equal(recipe_render(&q.chat, NULL, &without, NULL), DI_OK);
    assert_string_equal(str_text(&with.text), str_text(&without.text));
    recipe_prompt_fini(&with);
    recipe_prompt_fini(&without);
}

static size_t count_id(const tok_ids *ids, int32_t id)
{
    size_t n = 0;

    for (size_t i = 0; i < ids->n; i++)
        n += ids->ids[i] == id;
    return n;
}

/* Row A17: a quoted placeholder is text wherever it stands; an image is exactly one slot. */
static void test_quoted_image_placeholders_stay_text(void **state)
{
    static const struct {
        const char *messages;
        size_t n;
    } cases[] = {
        {"[{\"role\": \"user\", \"content\": \"<｜image｜> <｜deepseek_image｜>\"}, {\"role\": "
         "\"assistant\", \"content\": \"<｜image｜>\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
         "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}]}, {\"role\": "
         "\"tool\", \"tool_call_id\": \"1\", \"content\": \"<｜image｜>\"}]",
         0},
        {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"<｜image｜>\"}, "
         "{\"type\": \"image_url\", \"image_url\": {\"url\": \"https://x/y.png\"}}]}]",
         1},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        recipe_prompt p = {0};
        tok_ids ids = {0};
        str body = {0};

        str_printf(&body, "{" MODEL ", \"messages\": %s}", cases[i].messages);
        accepts(RECIPE_PROTOCOL_CHAT, str_text(&body));
        assert_int_equal(recipe_render(&q.chat, NULL, &p, NULL), DI_OK);
        assert_int_equal(recipe_encode(tok, &p, &ids, NULL), DI_OK);
        assert_int_equal(count_id(&ids, 129264), cases[i].n);
        recipe_prompt_fini(&p);
        tok_ids_fini(&ids);
        str_fini(&body);
    }
}

static void ignore_event(void *ctx, const char *event, const char *data, size_t n)
{
    (void)ctx;
    (void)event;
    (void)data;
    (void)n;
}

/* Row A15 of spec bugs.md: the arguments that a client sees of one call. */
static void arguments_of(const char *schema, const char *parameters, bool cut_off, const char *want)
{
    const recipe_stream_options o = {.id = "x", .model = "m"};
    recipe_stream *s;
    arena *mem = arena_new(0);
    const jtree *t;
    str body = {0}, text = {0}, out = {0};

    str_printf(&body,
               "{" MODEL ", " MESSAGES ", " OFF
               ", \"tools\": [{\"type\": \"function\", \"function\": "
               "{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": %s}}}]}",
               schema);
    accepts(RECIPE_PROTOCOL_CHAT, str_text(&body));
    str_printf(&text, "<｜DSML｜ invoke name=\"f\">\n%s%s", parameters,
               cut_off ? "" : "</｜DSML｜ invoke>");
    s = recipe_stream_new(&q, &o);
    recipe_stream_ready(s, 1, 0);
    for (size_t i = 0; i < text.len; i++)
        recipe_stream_text(s, 0, text.data + i, 1, 1);
    recipe_stream_finish(s, 0, cut_off ? RECIPE_FINISH_LENGTH : RECIPE_FINISH_STOP, 0);
    recipe_stream_whole(s, &out);
    t = jtree_parse(str_text(&out), out.len, mem, "answer", NULL);
    t = jtree_get(jtree_get(t, "choices")->child, "message");
    t = jtree_get(jtree_get(jtree_get(t, "tool_calls")->child, "function"), "arguments");
    assert_string_equal(t->text, want);
    recipe_stream_free(s);
    arena_free(mem);
    str_fini(&body);
    str_fini(&text);
    str_fini(&out);
}

#define WRAPPED(kind, value)                                                                       \
    "<｜DSML｜ parameter name=\"arguments\" string=\"" kind "\">" value "</｜DSML｜ parameter>\n"

static void test_wrapped_arguments_are_unwrapped_unless_the_schema_has_them(void **state)
{
    const char *plain = "{\"x\": {\"type\": \"integer\"}}", *own = "{\"arguments\": {}}";

    (void)state;
    arguments_of(plain, WRAPPED("true", "{\"x\": 1}"), false, "{\"x\": 1}");
    arguments_of(plain, WRAPPED("false", "{\"x\":1}"), false, "{\"x\": 1}");
    arguments_of(plain, WRAPPED("true", "no object"), false, "{\"arguments\": \"no object\"}");
    arguments_of(own, WRAPPED("true", "{\"x\": 1}"), false, "{\"arguments\": \"{\\\"x\\\": 1}\"}");
    arguments_of(plain, "", false, "{}");
    arguments_of(plain, "<｜DSML｜ parameter name=\"x\" string=\"false\">1</｜DSML｜ parameter>\n",
                 false, "{\"x\": 1}");
    arguments_of(plain, "<｜DSML｜ parameter name=\"arguments\" string=\"true\">{\"x", true,
                 "{\"arguments\": \"{\\\"x");
}

/* An answer with two calls, spelled in a way that the renderer would not choose. */
#define SAMPLED                                                                                    \
    "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"b\" string=\"false\">[1,2e3]"    \
    "</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"a\" string=\"true\">x ｜ y"            \
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>"

#define ANSWER "\n\n<｜DSML｜ calls>\n" SAMPLED "\n</｜DSML｜ calls>"

/* Sample the calls above and give the id of the first back. */
static void sample_calls(recipe_replay *replay, char id[40])
{
    const recipe_stream_options o = {
        .id = "x", .model = "m", .seed = 3, .tok = tok, .replay = replay, .emit = NULL};
    recipe_stream *s;
    tok_ids ids = {0};
    str out = {0};
    const char *at;

    accepts(RECIPE_PROTOCOL_CHAT, "{" MODEL ", " MESSAGES ", " OFF ", \"tools\": [" TOOL "]}");
    s = recipe_stream_new(&q, &o);
    recipe_stream_ready(s, 1, 0);
    assert_int_equal(tokenizer_encode(tok, ANSWER, sizeof ANSWER - 1, true, &ids, NULL), DI_OK);
    for (size_t i = 0; i < ids.n; i++)
        recipe_stream_tokens(s, 0, &ids.ids[i], 1, NULL);
    recipe_stream_finish(s, 0, RECIPE_FINISH_STOP, 0);
    recipe_stream_whole(s, &out);
    assert_string_equal(recipe_stream_finish_reason(s, 0), "tool_calls");
    at = strstr(str_text(&out), "call_00_");
    assert_non_null(at);
    memcpy(id, at, 32);
    id[32] = 0;
    recipe_stream_free(s);
    tok_ids_fini(&ids);
    str_fini(&out);
}

/* The prompt of the next turn, with these arguments in the history. */
static void next_prompt(recipe_replay *replay, const char *id, const char *arguments,
                        recipe_prompt *p)
{
    str body = {0};

    str_printf(&body,
               "{" MODEL ", \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": "
               "\"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"%s\", \"type\": "
               "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"%s\"}}]}, "
               "{\"role\": \"tool\", \"tool_call_id\": \"%s\", \"content\": \"r\"}], " OFF "}",
               id, arguments, id);
    accepts(RECIPE_PROTOCOL_CHAT, str_text(&body));
    assert_int_equal(recipe_render(&q.chat, replay, p, NULL), DI_OK);
    str_fini(&body);
}

static void test_replayed_calls_keep_their_sampled_text(void **state)
{
    recipe_replay *replay = recipe_replay_new(1 << 20);
    recipe_prompt p = {0};
    tok_ids ids = {0}, want = {0};
    char id[40];
    size_t at;

    (void)state;
    sample_calls(replay, id);
    /* As it was given out, and as a client that parses and prints it sends it back. */
    next_prompt(replay, id, "{\\\"b\\\": [1,2e3], \\\"a\\\": \\\"x ｜ y\\\"}", &p);
    assert_non_null(strstr(str_text(&p.text), SAMPLED));
    assert_int_equal(recipe_encode(tok, &p, &ids, NULL), DI_OK);
    assert_int_equal(tokenizer_encode(tok, ANSWER, sizeof ANSWER - 1, true, &want, NULL), DI_OK);
    for (at = 0; at + want.n < ids.n; at++)
        if (memcmp(ids.ids + at, want.ids, want.n * sizeof *want.ids) == 0)
            break;
    assert_true(at + want.n < ids.n);
    next_prompt(replay, id, "{\\\"a\\\":\\\"x ｜ y\\\",\\\"b\\\":[1,2000.0]}", &p);
    assert_non_null(strstr(str_text(&p.text), SAMPLED));
    /* Changed by the client: what it says now counts. */
    next_prompt(replay, id, "{\\\"a\\\": \\\"other\\\"}", &p);
    assert_null(strstr(str_text(&p.text), "2e3"));
    recipe_replay_free(replay);
    recipe_prompt_fini(&p);
    tok_ids_fini(&ids);
    tok_ids_fini(&want);
}

static void test_a_repeated_prefix_is_not_tokenised_again(void **state)
{
    static const char turn[] =
        "{\"role\": \"user\", \"content\": \"A question that is long enough to be kept, with "
        "<｜User｜> "
        "in it and some more words 123.\"}, {\"role\": \"assistant\", \"content\": \"An answer of "
        "the "
        "same kind, also longer than the texts that are not worth keeping.\"}";
    recipe_gaps *known = recipe_gaps_new(1 << 20), *small = recipe_gaps_new(300);
    uint64_t found, encoded, before;
    str body = {0};

    (void)state;
    str_puts(&body, "{" MODEL ", \"messages\": [");
    for (int i = 0; i < 4; i++) {
        recipe_prompt p = {0};
        tok_ids plain = {0}, again = {0}, tight = {0};
        str whole = {0};

        str_printf(&body, "%s%s", i ? ", " : "", turn);
        str_printf(&whole, "%s]}", str_text(&body));
        accepts(RECIPE_PROTOCOL_CHAT, str_text(&whole));
        assert_int_equal(recipe_render(&q.chat, NULL, &p, NULL), DI_OK);
        recipe_gaps_stats(known, &found, &before);
        assert_int_equal(recipe_encode(tok, &p, &plain, NULL), DI_OK);
        assert_int_equal(recipe_encode_again(tok, known, &p, &again, NULL), DI_OK);
        assert_int_equal(recipe_encode_again(tok, small, &p, &tight, NULL), DI_OK);
        recipe_gaps_stats(known, &found, &encoded);
        assert_true(i == 0 || encoded == before); /* nothing new in later turns */
        assert_int_equal(plain.n, again.n);
        assert_memory_equal(plain.ids, again.ids, plain.n * sizeof *plain.ids);
        assert_memory_equal(plain.ids, tight.ids, plain.n * sizeof *plain.ids);
        recipe_prompt_fini(&p);
        tok_ids_fini(&plain);
        tok_ids_fini(&again);
        tok_ids_fini(&tight);
        str_fini(&whole);
    }
    recipe_gaps_free(known);
    recipe_gaps_free(small);
    str_fini(&body);
}

static void test_old_calls_are_forgotten(void **state)
{
    recipe_replay *replay = recipe_replay_new(700);
    recipe_prompt p = {0};
    char first[40];
    recipe_marked m = {0};

    (void)state;
    sample_calls(replay, first);
    str_puts(&m.text, "text");
    for (int i = 0; i < 20; i++) {
        char id[16] = "call_x";

        id[5] = (char)('a' + i);
        recipe_replay_put(replay, id, "f", "{}", 2, &m);
    }
    next_prompt(replay, first, "{\\\"b\\\": [1,2e3], \\\"a\\\": \\\"x ｜ y\\\"}", &p);
    assert_null(strstr(str_text(&p.text), "2e3"));
    recipe_replay_free(replay);
    recipe_prompt_fini(&p);
    recipe_marked_fini(&m);
}

static void test_every_choice_has_its_own_index(void **state)
{
    const recipe_stream_options o = {.id = "x", .model = "m", .tok = tok};
    recipe_stream *s;
    str out = {0};
    arena *mem = arena_new(0);
    const jtree *t, *c;

    (void)state;
    accepts(RECIPE_PROTOCOL_CHAT, "{" MODEL ", " MESSAGES ", " OFF ", \"n\": 2}");
    s = recipe_stream_new(&q, &o);
    recipe_stream_ready(s, 4, 0);
    recipe_stream_text(s, 1, "one", 3, 2);
    recipe_stream_text(s, 0, "zero", 4, 3);
    recipe_stream_finish(s, 1, RECIPE_FINISH_STOP, 0);
    recipe_stream_finish(s, 0, RECIPE_FINISH_LENGTH, 0);
    recipe_stream_whole(s, &out);
    t = jtree_parse(str_text(&out), out.len, mem, "answer", NULL);
    c = jtree_get(t, "choices")->child;
    assert_true(jtree_is(jtree_get(jtree_get(c, "message"), "content"), "zero"));
    assert_true(jtree_is(jtree_get(c, "finish_reason"), "length"));
    assert_true(jtree_is(jtree_get(jtree_get(c->next, "message"), "content"), "one"));
    assert_int_equal(jtree_get(jtree_get(t, "usage"), "completion_tokens")->i64, 5);
    recipe_stream_free(s);
    arena_free(mem);
    str_fini(&out);
}

typedef struct last_event {
    str event, data;
} last_event;

static void keep_event(void *ctx, const char *event, const char *data, size_t n)
{
    last_event *l = ctx;

    str_clear(&l->event);
    str_clear(&l->data);
    str_puts(&l->event, event ? event : "");
    str_append(&l->data, data, n);
}

/* Spec api.md 4.6. */
static void test_failures_in_mid_stream(void **state)
{
    static const char *const bodies[] = {"{" MODEL ", " MESSAGES ", \"stream\": true}",
                                         "{" MODEL ", \"input\": \"x\", \"stream\": true}",
                                         "{" MODEL ", " MESSAGES ", \"stream\": true}"};
    static const char *const events[] = {"", "response.failed", "error"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        last_event l = {0};
        const recipe_stream_options o = {
            .id = "x", .model = "m", .tok = tok, .emit = keep_event, .ctx = &l};
        recipe_error why = {0};
        recipe_stream *s;

        accepts((recipe_protocol)i, bodies[i]);
        s = recipe_stream_new(&q, &o);
        recipe_stream_ready(s, 4, 0);
        recipe_fail(&why, 500, "the engine failed");
        recipe_stream_fail(s, &why);
        assert_string_equal(str_text(&l.event), events[i]);
        assert_non_null(strstr(str_text(&l.data), "the engine failed"));
        assert_non_null(strstr(str_text(&l.data), "\"error\": "));
        recipe_stream_free(s);
        str_fini(&l.event);
        str_fini(&l.data);
    }
}

static void test_held_tokens_are_counted(void **state)
{
    const recipe_stream_options o = {.id = "x", .model = "m", .tok = tok, .emit = ignore_event};
    recipe_stream *s;
    tok_ids ids = {0};

    (void)state;
    accepts(RECIPE_PROTOCOL_CHAT, "{" MODEL ", " MESSAGES ", " OFF "}");
    s = recipe_stream_new(&q, &o);
    recipe_stream_ready(s, 4, 0);
    assert_int_equal(tokenizer_encode(tok, "ok 𠜎", strlen("ok 𠜎"), false, &ids, NULL), DI_OK);
    assert_true(ids.n > 2);
    recipe_stream_tokens(s, 0, ids.ids, ids.n - 1, NULL);
    recipe_stream_finish(s, 0, RECIPE_FINISH_LENGTH, 0);
    assert_int_equal(recipe_stream_n_tokens(s), ids.n - 1);
    recipe_stream_free(s);
    tok_ids_fini(&ids);
}

static int load(void **state)
{
    (void)state;
    return tokenizer_load(&tok, DI_DATA_DIR "/tokenizer-v4/tokenizer.json", NULL) == DI_OK ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    recipe_request_fini(&q);
    tokenizer_free(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_developer_is_system),
        cmocka_unit_test(test_max_completion_tokens_counts),
        cmocka_unit_test(test_explicit_sampling_is_honoured),
        cmocka_unit_test(test_ranges_are_checked),
        cmocka_unit_test(test_unknown_model_is_404),
        cmocka_unit_test(test_formats_of_other_servers),
        cmocka_unit_test(test_strict_schemas_keep_their_definitions),
        cmocka_unit_test(test_thinking_switch_of_other_servers),
        cmocka_unit_test(test_allowed_tools_are_what_is_left),
        cmocka_unit_test(test_a_call_is_not_demanded_without_tools),
        cmocka_unit_test(test_one_call_at_a_time),
        cmocka_unit_test(test_strict_and_other_tools_may_be_mixed),
        cmocka_unit_test(test_custom_tools_of_any_name),
        cmocka_unit_test(test_earlier_responses_are_not_ignored),
        cmocka_unit_test(test_messages_max_tokens_fit_the_context),
        cmocka_unit_test(test_calls_without_a_type),
        cmocka_unit_test(test_logprobs_by_include),
        cmocka_unit_test(test_a_prompt_that_is_too_long_has_a_code),
        cmocka_unit_test(test_many_values_do_not_fill_the_memory),
        cmocka_unit_test(test_messages_tools_with_a_type),
        cmocka_unit_test(test_messages_blocks_of_real_clients),
        cmocka_unit_test(test_messages_any_needs_a_call_without_thinking),
        cmocka_unit_test(test_messages_output_format),
        cmocka_unit_test(test_errors_of_messages_have_their_own_body),
        cmocka_unit_test(test_tool_choice_none_hides_the_tools),
        cmocka_unit_test(test_quoted_image_placeholders_stay_text),
        cmocka_unit_test(test_wrapped_arguments_are_unwrapped_unless_the_schema_has_them),
        cmocka_unit_test(test_replayed_calls_keep_their_sampled_text),
        cmocka_unit_test(test_a_repeated_prefix_is_not_tokenised_again),
        cmocka_unit_test(test_old_calls_are_forgotten),
        cmocka_unit_test(test_every_choice_has_its_own_index),
        cmocka_unit_test(test_failures_in_mid_stream),
        cmocka_unit_test(test_held_tokens_are_counted),
    };

    return cmocka_run_group_tests(tests, load, unload);
}
