/* Mode CLIENT: how integers may be written, and which member of the body an error is of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "base/str.h"
#include "recipe/request.h"

#define MODEL    "\"model\": \"DeepSeek-V4.1-Flash\", "
#define MESSAGES "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], "
#define CHAT     "{" MODEL MESSAGES
#define RESPONSE "{" MODEL "\"input\": \"Hi\", "
#define TOOL     "{\"type\": \"function\", \"function\": {\"name\": \"f\"}}"
#define OFF      "\"thinking\": {\"type\": \"disabled\"}"

static recipe_request q;
static recipe_error e;

static bool parse(recipe_protocol protocol, recipe_mode mode, const char *body)
{
    const recipe_options o = {.mode = mode};

    recipe_request_fini(&q);
    return recipe_request_parse(&q, protocol, &o, body, strlen(body), &e);
}

static int free_request(void **state)
{
    (void)state;
    recipe_request_fini(&q);
    return 0;
}

/* 1.0 and 1e3 are integers in JSON Schema, and what languages without integers write. */
static void test_integers_may_be_written_as_reals(void **state)
{
    static const char chat[] = CHAT "\"max_tokens\": 7.0, \"n\": 2.0, \"seed\": 1e3, \"top_k\": "
                                    "5.0, \"stop_token_ids\": [4.0], "
                                    "\"logprobs\": true, \"top_logprobs\": 3.0}";

    (void)state;
    assert_false(parse(RECIPE_PROTOCOL_CHAT, RECIPE_STRICT, chat));
    assert_true(parse(RECIPE_PROTOCOL_CHAT, RECIPE_CLIENT, chat));
    assert_int_equal(q.sampling.max_tokens, 7);
    assert_int_equal(q.sampling.n, 2);
    assert_int_equal(q.sampling.seed, 1000);
    assert_int_equal(q.sampling.top_k, 5);
    assert_int_equal(q.sampling.stop_id[0], 4);
    assert_int_equal(q.sampling.top_logprobs, 3);
    assert_true(parse(RECIPE_PROTOCOL_CHAT, RECIPE_CLIENT, CHAT "\"max_completion_tokens\": 8.0}"));
    assert_int_equal(q.sampling.max_tokens, 8);
    assert_true(
        parse(RECIPE_PROTOCOL_RESPONSES, RECIPE_CLIENT, RESPONSE "\"max_output_tokens\": 9.0}"));
    assert_int_equal(q.sampling.max_tokens, 9);
    assert_true(parse(RECIPE_PROTOCOL_MESSAGES, RECIPE_CLIENT, CHAT "\"max_tokens\": 6.0}"));
    assert_int_equal(q.sampling.max_tokens, 6);
}

static void test_other_reals_are_no_integers(void **state)
{
    static const char *const bodies[] = {
        CHAT "\"max_tokens\": 1.5}",
        CHAT "\"max_tokens\": -1.0}",
        CHAT "\"max_tokens\": 1e20}",
        CHAT "\"max_tokens\": 4294967296.0}",
        CHAT "\"n\": 0.5}",
        CHAT "\"seed\": 1e300}",
        CHAT "\"top_k\": 2.5}",
        CHAT "\"stop_token_ids\": [1.5]}",
        CHAT "\"max_tokens\": \"7\"}",
        CHAT "\"max_tokens\": true}",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++)
        if (parse(RECIPE_PROTOCOL_CHAT, RECIPE_CLIENT, bodies[i]) || e.status != 400)
            fail_msg("%s: status %d", bodies[i], e.status);
}

static const struct {
    recipe_protocol protocol;
    const char *body, *param;
} errors[] = {
    {RECIPE_PROTOCOL_CHAT, CHAT "\"max_tokens\": 1.5}", "max_tokens"},
    {RECIPE_PROTOCOL_CHAT, CHAT "\"max_tokens\": 0}", "max_tokens"},
    {RECIPE_PROTOCOL_CHAT, CHAT "\"max_completion_tokens\": 0}", "max_completion_tokens"},
    {RECIPE_PROTOCOL_CHAT, CHAT "\"temperature\": 3}", "temperature"},
    {RECIPE_PROTOCOL_CHAT, CHAT "\"top_logprobs\": 3}", "top_logprobs"},
    {RECIPE_PROTOCOL_CHAT, CHAT "\"logit_bias\": {\"x\": 1}}", "logit_bias"},
    {RECIPE_PROTOCOL_CHAT, CHAT "\"top_k\": \"x\"}", "top_k"},
    {RECIPE_PROTOCOL_CHAT, CHAT "\"stop\": [\"\"]}", "stop[0]"},
    {RECIPE_PROTOCOL_CHAT,
     CHAT
     "\"stop\": [\"1\", \"2\", \"3\", \"4\", \"5\", \"6\", \"7\", \"8\", \"9\", \"10\", \"11\", "
     "\"12\", \"13\", \"14\", \"15\", \"16\", \"17\"]}",
     "stop"},
    {RECIPE_PROTOCOL_CHAT, CHAT "\"stream_options\": {}}", "stream_options"},
    {RECIPE_PROTOCOL_CHAT, CHAT "\"response_format\": {\"type\": \"json_object\"}}", "messages"},
    {RECIPE_PROTOCOL_CHAT,
     CHAT "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": 1}}}",
     "response_format"},
    {RECIPE_PROTOCOL_CHAT, CHAT "\"tools\": [" TOOL ", " TOOL "]}", "tools[1]"},
    {RECIPE_PROTOCOL_CHAT,
     CHAT "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a b\"}}]}",
     "tools[0].function.name"},
    {RECIPE_PROTOCOL_CHAT,
     CHAT OFF ", \"tools\": [" TOOL "], \"tool_choice\": {\"type\": \"function\", \"function\": "
              "{\"name\": \"g\"}}}",
     "tool_choice"},
    {RECIPE_PROTOCOL_CHAT, CHAT "\"tools\": [" TOOL "], \"tool_choice\": \"required\"}",
     "tool_choice"},
    {RECIPE_PROTOCOL_CHAT, "{" MODEL "\"messages\": []}", "messages"},
    {RECIPE_PROTOCOL_CHAT, "{" MODEL "\"messages\": [{\"role\": \"user\"}]}", "messages[0]"},
    {RECIPE_PROTOCOL_CHAT,
     "{" MODEL "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"tool\", "
     "\"tool_call_id\": \"1\", \"content\": \"x\"}]}",
     "messages[1]"},
    {RECIPE_PROTOCOL_CHAT,
     "{" MODEL "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", "
     "\"image_url\": {\"url\": \"x\"}}]}]}",
     "messages[0]"},
    {RECIPE_PROTOCOL_RESPONSES, RESPONSE "\"max_output_tokens\": 0}", "max_output_tokens"},
    {RECIPE_PROTOCOL_RESPONSES, RESPONSE "\"top_p\": 2}", "top_p"},
    {RECIPE_PROTOCOL_RESPONSES, "{" MODEL "\"input\": []}", "input"},
    {RECIPE_PROTOCOL_RESPONSES,
     "{" MODEL "\"input\": [{\"role\": \"user\", \"content\": \"x\"}, {\"type\": "
     "\"function_call_output\", \"call_id\": \"1\", \"output\": \"x\"}]}",
     "input[1]"},
    {RECIPE_PROTOCOL_RESPONSES, RESPONSE "\"text\": {\"format\": {\"type\": \"json_object\"}}}",
     "input"},
    {RECIPE_PROTOCOL_RESPONSES,
     RESPONSE
     "\"text\": {\"format\": {\"type\": \"json_schema\", \"name\": \"n\", \"schema\": 1}}}",
     "text.format"},
    {RECIPE_PROTOCOL_RESPONSES,
     RESPONSE "\"tools\": [{\"type\": \"namespace\", \"name\": \"n\", \"tools\": [{\"type\": "
              "\"function\", \"name\": \"\"}]}]}",
     "tools[0].tools[0].name"},
    {RECIPE_PROTOCOL_RESPONSES, RESPONSE "\"previous_response_id\": \"r\"}",
     "previous_response_id"},
};

static void test_errors_name_the_member(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(errors); i++) {
        str body = {0}, want = {0};

        if (parse(errors[i].protocol, RECIPE_CLIENT, errors[i].body))
            fail_msg("accepted: %s", errors[i].body);
        recipe_error_body(errors[i].protocol, RECIPE_CLIENT, &e, &body);
        str_printf(&want, "\"param\": \"%s\"", errors[i].param);
        if (!strstr(str_text(&body), str_text(&want)))
            fail_msg("%s\nwant %s\n%s", errors[i].body, str_text(&want), str_text(&body));
        str_fini(&body);
        str_fini(&want);
    }
}

/* To the letter: the released recipe names none. */
static void test_strict_errors_name_none(void **state)
{
    str body = {0};

    (void)state;
    assert_false(parse(RECIPE_PROTOCOL_CHAT, RECIPE_STRICT, CHAT "\"temperature\": 3}"));
    recipe_error_body(RECIPE_PROTOCOL_CHAT, RECIPE_STRICT, &e, &body);
    assert_non_null(strstr(str_text(&body), "\"param\": null"));
    str_fini(&body);
}

static void test_custom_tools_in_a_namespace(void **state)
{
    static const char body[] = RESPONSE
        "\"tools\": [{\"type\": \"namespace\", \"name\": \"n\", \"tools\": [{\"type\": \"custom\", "
        "\"name\": \"sql\"}]}]}";

    (void)state;
    assert_false(parse(RECIPE_PROTOCOL_RESPONSES, RECIPE_STRICT, body));
    assert_true(parse(RECIPE_PROTOCOL_RESPONSES, RECIPE_CLIENT, body));
    assert_string_equal(q.chat.tool[0].name, "n::sql");
    assert_true(q.chat.tool[0].custom);
    assert_non_null(jtree_get(jtree_get(q.chat.tool[0].parameters, "properties"), "input"));
}

/* A client may quote a tool that it does not offer any more. */
static void test_references_to_unknown_tools(void **state)
{
    static const char body[] =
        "{" MODEL "\"messages\": [{\"role\": \"assistant\", \"content\": [{\"type\": \"tool_use\", "
        "\"id\": \"1\", \"name\": \"f\", \"input\": {}}]}, {\"role\": \"user\", \"content\": "
        "[{\"type\": \"tool_result\", \"tool_use_id\": \"1\", \"content\": [{\"type\": "
        "\"tool_reference\", \"tool_name\": \"gone\"}]}]}]}";

    (void)state;
    assert_false(parse(RECIPE_PROTOCOL_MESSAGES, RECIPE_STRICT, body));
    assert_true(parse(RECIPE_PROTOCOL_MESSAGES, RECIPE_CLIENT, body));
    assert_string_equal(q.chat.message[1].content, "gone");
}

static void test_nothing_to_answer_is_refused(void **state)
{
    static const char body[] =
        "{" MODEL "\"input\": [{\"type\": \"item_reference\", \"id\": \"x\"}]}";

    (void)state;
    assert_true(parse(RECIPE_PROTOCOL_RESPONSES, RECIPE_STRICT, body));
    assert_false(parse(RECIPE_PROTOCOL_RESPONSES, RECIPE_CLIENT, body));
    assert_string_equal(e.message, "Empty input messages");
    assert_false(parse(RECIPE_PROTOCOL_RESPONSES, RECIPE_CLIENT,
                       "{" MODEL "\"input\": [{\"role\": \"user\", \"content\": \"x\"}, {\"type\": "
                       "\"function_call_output\", \"output\": \"x\"}]}"));
    assert_string_equal(e.place, "input[1].call_id");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integers_may_be_written_as_reals),
        cmocka_unit_test(test_other_reals_are_no_integers),
        cmocka_unit_test(test_errors_name_the_member),
        cmocka_unit_test(test_strict_errors_name_none),
        cmocka_unit_test(test_custom_tools_in_a_namespace),
        cmocka_unit_test(test_references_to_unknown_tools),
        cmocka_unit_test(test_nothing_to_answer_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, free_request);
}
