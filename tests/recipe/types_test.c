/* Mode STRICT: what the released recipe's parser takes, field by field and type by type: each row
 * is what the package answered for a body with every one of `values` in the place of the @. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "base/str.h"
#include "recipe/request.h"

static const char *const values[] = {"null", "true", "5",  "-5",        "1.5", "\"x\"",
                                     "[]",   "[1]",  "{}", "{\"a\":1}", "300"};

/* What stands before and behind the member of a row, by protocol. */
static const char *const before[] = {
    [RECIPE_PROTOCOL_CHAT] = "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\","
                             "\"content\":\"x\"}],",
    [RECIPE_PROTOCOL_RESPONSES] = "{\"model\":\"DeepSeek-V4.1-Flash\",\"input\":\"x\",",
    [RECIPE_PROTOCOL_MESSAGES] = "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":"
                                 "\"user\",\"content\":\"x\"}],"};

static const struct {
    recipe_protocol protocol;
    const char *member;
    const char *answers; /* of each value: x = a parse error, . = none */
} rows[] = {
    {RECIPE_PROTOCOL_CHAT, "\"model\":@", "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":@", "xxxxxx.xxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":[@]", "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":[{\"role\":@,\"content\":\"x\"}]", "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":[{\"role\":\"system\",\"content\":@}]", "xxxxx..xxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":[{\"role\":\"user\",\"content\":@}]", "xxxxx..xxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":[{\"role\":\"assistant\",\"content\":@}]", ".xxxx..xxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":@}]", "xxxxx..xxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":[{\"role\":\"latest_reminder\",\"content\":@}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"tool\",\"tool_call_id\":@,\"content\":\"x\"}]", "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"name\":@}]",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"name\":@}]",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"x\",\"name\":@}]",
     "..........."},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":@}]",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"reasoning_content\":@}]", "..........."},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"prefix\":@}]",
     "..xxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"prefix\":@}]",
     "..........."},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":@}]", ".xxxxx.xxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[@]}]",
     "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":@,\"type\":\"function\","
     "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":@,\"function\":{"
     "\"name\":\"f\",\"arguments\":\"{}\"}}]}]",
     "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
     "\"function\":@}]}]",
     "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
     "\"function\":{\"name\":@,\"arguments\":\"{}\"}}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
     "\"function\":{\"name\":\"f\",\"arguments\":@}}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"messages\":[{\"role\":\"user\",\"content\":[@]}]", "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":@,\"text\":\"t\"}]}]", "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":@}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"t\",\"image_"
     "url\":@}]}]",
     "..........."},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":"
     "@}}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":"
     "\"http://x/y\",\"detail\":@}}]}]",
     ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"file\",\"file_id\":@}]}]",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"file\",\"file_data\":\"x\","
     "\"filename\":@}]}]",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"thinking\":@", ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"thinking\":{\"type\":@}", "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":@}",
     ".x.xxxxxxx."},
    {RECIPE_PROTOCOL_CHAT, "\"reasoning_effort\":@", ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"tools\":@", ".xxxxx.xxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"tools\":[{\"type\":@,\"function\":{\"name\":\"f\"}}]", "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":@}}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":@}}]",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":@}}]",
     "..xxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":@}}]",
     "..........."},
    {RECIPE_PROTOCOL_CHAT, "\"tool_choice\":@", ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":@}}",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"parallel_tool_calls\":@", "..xxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"response_format\":@", ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"response_format\":{\"type\":@}", "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"response_format\":{\"type\":\"regex\",\"regex\":@}", "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"response_format\":{\"type\":\"regex\",\"regex\":\"x\",\"json_schema\":@}", "..........."},
    {RECIPE_PROTOCOL_CHAT,
     "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":@}}",
     "..........."},
    {RECIPE_PROTOCOL_CHAT,
     "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},\"name\":@}}",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_CHAT,
     "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},\"strict\":@}}",
     "..xxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"temperature\":@", ".x...xxxxx."},
    {RECIPE_PROTOCOL_CHAT, "\"top_p\":@", ".x...xxxxx."},
    {RECIPE_PROTOCOL_CHAT, "\"frequency_penalty\":@", ".x...xxxxx."},
    {RECIPE_PROTOCOL_CHAT, "\"presence_penalty\":@", ".x...xxxxx."},
    {RECIPE_PROTOCOL_CHAT, "\"n\":@", ".x.xxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"seed\":@", ".x.xxxxxxx."},
    {RECIPE_PROTOCOL_CHAT, "\"stop\":@", ".xxxx..xxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"max_tokens\":@", ".x.xxxxxxx."},
    {RECIPE_PROTOCOL_CHAT, "\"logprobs\":@", "..xxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"top_logprobs\":@", ".x.xxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"stream\":@", "..xxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"stream\":true,\"stream_options\":{\"include_usage\":@}",
     "..xxxxxxxxx"},
    {RECIPE_PROTOCOL_CHAT, "\"max_completion_tokens\":@", "..........."},
    {RECIPE_PROTOCOL_CHAT, "\"logit_bias\":@", "..........."},
    {RECIPE_PROTOCOL_CHAT, "\"user\":@", "..........."},
    {RECIPE_PROTOCOL_CHAT, "\"top_k\":@", "..........."},
    {RECIPE_PROTOCOL_RESPONSES, "\"input\":@", ".xxxx..xxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"input\":[{\"type\":@,\"role\":\"user\",\"content\":\"x\"}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"input\":[{\"role\":@,\"content\":\"x\"}]", "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"input\":[{\"role\":\"user\",\"content\":@}]", "xxxxx..xxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"input\":[{\"role\":\"user\",\"content\":[{\"type\":@,\"text\":\"x\"}]}]", "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":@}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":@}]}]",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"http://"
     "x/y\",\"detail\":@}]}]",
     ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_file\",\"file_id\":@}]}]",
     "..........."},
    {RECIPE_PROTOCOL_RESPONSES, "\"input\":[{\"type\":\"reasoning\",\"content\":@}]",
     ".xxxxx.xxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"input\":[{\"type\":\"reasoning\",\"content\":[{\"text\":@}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"input\":[{\"type\":\"reasoning\",\"encrypted_content\":@}]",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"input\":[{\"type\":\"reasoning\",\"summary\":@}]",
     "..........."},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"input\":[{\"type\":\"function_call\",\"call_id\":@,\"name\":\"f\",\"arguments\":\"{}\"}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":@}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{}\","
     "\"namespace\":@}]",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"input\":[{\"type\":\"function_call_output\",\"call_id\":@,\"output\":\"x\"}]",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":@}]",
     "xxxxx..xxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"input\":[{\"type\":\"custom_tool_call\",\"call_id\":\"1\",\"name\":\"f\",\"input\":@}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"input\":[{\"type\":\"custom_tool_call_output\",\"call_id\":@}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"input\":[{\"type\":\"custom_tool_call_output\",\"call_id\":\"1\",\"output\":@}]",
     ".xxxx..xxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"instructions\":@", ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"reasoning\":{\"effort\":@}", ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"reasoning\":{\"summary\":@}", ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"reasoning\":{\"generate_summary\":@}", ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"tools\":[{\"type\":@}]", "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"tools\":[{\"type\":\"function\",\"name\":@}]", "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"tools\":[{\"type\":\"custom\",\"name\":\"apply_patch\",\"description\":@}]", "..........."},
    {RECIPE_PROTOCOL_RESPONSES, "\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":@}]",
     "xxxxxx.xxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":\"function\",\"name\":"
     "\"f\",\"strict\":@}]}]",
     "..xxxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"tools\":[{\"type\":\"web_search\",\"search_context_size\":@}]",
     ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"tools\":[{\"type\":\"web_search\",\"user_location\":{\"city\":@}}]", ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"tools\":[{\"type\":\"web_search_preview\",\"user_location\":@}]",
     "..........."},
    {RECIPE_PROTOCOL_RESPONSES, "\"tool_choice\":@", ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"tool_choice\":{\"type\":@}", "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"tool_choice\":{\"type\":\"custom\",\"name\":@}", "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"text\":{\"format\":@}", "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"text\":{\"verbosity\":@}", ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":@,\"schema\":{}}}", "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES,
     "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":@}}", "..........."},
    {RECIPE_PROTOCOL_RESPONSES, "\"temperature\":@", ".x...xxxxx."},
    {RECIPE_PROTOCOL_RESPONSES, "\"top_logprobs\":@", ".x.xxxxxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"max_output_tokens\":@", ".x.xxxxxxx."},
    {RECIPE_PROTOCOL_RESPONSES, "\"user\":@", ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_RESPONSES, "\"store\":@", "..........."},
    {RECIPE_PROTOCOL_RESPONSES, "\"parallel_tool_calls\":@", "..........."},
    {RECIPE_PROTOCOL_RESPONSES, "\"previous_response_id\":@", "..........."},
    {RECIPE_PROTOCOL_MESSAGES, "\"messages\":[{\"role\":@,\"content\":\"x\"}]", "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_MESSAGES, "\"messages\":[{\"role\":\"user\",\"content\":@}]", "xxxxx..xxxx"},
    {RECIPE_PROTOCOL_MESSAGES, "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":@}]}]",
     "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":@}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":@}]}]",
     "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":"
     "\"url\",\"url\":@}}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":"
     "\"base64\",\"media_type\":@,\"data\":\"AAAA\"}}]}]",
     "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":"
     "\"file\",\"file_id\":@}}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"source\":{\"media_"
     "type\":@}}]}]",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":@}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"x\","
     "\"signature\":@}]}]",
     ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\","
     "\"name\":\"f\",\"input\":@}]}]",
     "..........."},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":@}]}"
     "]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
     "\"1\",\"content\":@}]}]",
     ".xxxx..xxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
     "\"1\",\"is_error\":@}]}]",
     "..xxxxxxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
     "\"1\",\"content\":[{\"type\":\"tool_reference\",\"tool_name\":@}]}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"server_tool_use\",\"id\":"
     "\"1\",\"name\":@,\"input\":{}}]}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"tool_addition\",\"tool\":{"
     "\"type\":@,\"name\":\"f\"}}]}]",
     "xxxxxxxxxxx"},
    {RECIPE_PROTOCOL_MESSAGES, "\"system\":@", ".xxxx..xxxx"},
    {RECIPE_PROTOCOL_MESSAGES, "\"system\":[{\"type\":\"text\",\"text\":@}]", "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES, "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":@}",
     ".x.xxxxxxx."},
    {RECIPE_PROTOCOL_MESSAGES, "\"output_config\":{\"effort\":@}", ".xxxxxxxxxx"},
    {RECIPE_PROTOCOL_MESSAGES, "\"output_config\":{\"format\":@}", "..........."},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"},\"type\":@}]",
     "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES, "\"tools\":[{\"name\":@}]", "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"},\"defer_loading\":@}]",
     "..xxxxxxxxx"},
    {RECIPE_PROTOCOL_MESSAGES, "\"tool_choice\":{\"type\":\"tool\",\"name\":@}", "xxxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":@}", "..xxxxxxxxx"},
    {RECIPE_PROTOCOL_MESSAGES,
     "\"tool_choice\":{\"type\":\"none\",\"disable_parallel_tool_use\":@}", "..........."},
    {RECIPE_PROTOCOL_MESSAGES, "\"stop_sequences\":@", ".xxxxx.xxxx"},
    {RECIPE_PROTOCOL_MESSAGES, "\"max_tokens\":@", ".x.xxxxxxx."},
    {RECIPE_PROTOCOL_MESSAGES, "\"metadata\":{\"user_id\":@}", ".xxxx.xxxxx"},
    {RECIPE_PROTOCOL_MESSAGES, "\"top_k\":@", "..........."},
};

static void test_types_are_those_of_the_released_recipe(void **state)
{
    const recipe_options o = {.mode = RECIPE_STRICT};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *at = strchr(rows[i].member, '@');

        for (size_t k = 0; k < ARRAY_LEN(values); k++) {
            str body = {0};
            recipe_request q;
            recipe_error e = {0};
            bool refused;

            str_printf(&body, "%s%.*s%s%s}", before[rows[i].protocol], (int)(at - rows[i].member),
                       rows[i].member, values[k], at + 1);
            refused =
                !recipe_request_parse(&q, rows[i].protocol, &o, str_text(&body), body.len, &e) &&
                e.parse;
            if (refused != (rows[i].answers[k] == 'x'))
                fail_msg("%s: %s", str_text(&body), refused ? e.message : "not refused");
            recipe_request_fini(&q);
            str_fini(&body);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_are_those_of_the_released_recipe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
