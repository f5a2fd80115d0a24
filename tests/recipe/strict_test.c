/* Mode STRICT, beyond the recorded data: what the released recipe, asked for these bodies, answers.
 * Most are bodies that random changes of the recorded ones led to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "recipe/prompt.h"
#include "recipe/request.h"

static const struct {
    const char *what;
    recipe_protocol protocol;
    const char *body, *end, *message; /* of the prompt; of the error */
} cases[] = {
    {"V4: a schema as format", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"user\",\"content\":\"q\"}],\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
     "\"name\":\"x\",\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}}"
     "}}",
     "## Response Format:\n\nYou MUST strictly adhere to the following schema to "
     "reply:\n{\"type\": \"object\", \"properties\": {\"a\": {\"type\": "
     "\"string\"}}}<｜User｜>q<｜Assistant｜></think>",
     NULL},
    {"V4: users' empty messages", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"\"},{\"role\":\"user\","
     "\"content\":\"b\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜>a\n\nb<｜Assistant｜></think>", NULL},
    {"V4: users' empty messages", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"user\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"a\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜></think>", NULL},
    {"V4: users' empty messages", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜></think>", NULL},
    {"V4: users' empty messages", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"user\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜><｜Assistant｜></think>", NULL},
    {"numbers", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":"
     "\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1e-7,"
     "\\\"b\\\":1e16,\\\"c\\\":0.00001,\\\"d\\\":1.5e-6,\\\"e\\\":-0.0,\\\"f\\\":[1e5]}\"}}]},{"
     "\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"r\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></"
     "think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
     "string=\"false\">1e-7</｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" "
     "string=\"false\">1e+16</｜DSML｜parameter>\n<｜DSML｜parameter name=\"c\" "
     "string=\"false\">0.00001</｜DSML｜parameter>\n<｜DSML｜parameter name=\"d\" "
     "string=\"false\">1.5e-6</｜DSML｜parameter>\n<｜DSML｜parameter name=\"e\" "
     "string=\"false\">-0.0</｜DSML｜parameter>\n<｜DSML｜parameter name=\"f\" "
     "string=\"false\">[100000.0]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</"
     "｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result>r</"
     "tool_result><｜Assistant｜></think>",
     NULL},
    {"numbers", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":"
     "[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":"
     "1e-7,\\\"b\\\":1e16,\\\"c\\\":0.00001,\\\"d\\\":1.5e-6,\\\"e\\\":-0.0,\\\"f\\\":[1e5]}\"}}]},"
     "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"r\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n<｜DSML｜ "
     "invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"false\">1e-07</｜DSML｜ "
     "parameter>\n<｜DSML｜ parameter name=\"b\" string=\"false\">1e+16</｜DSML｜ "
     "parameter>\n<｜DSML｜ parameter name=\"c\" string=\"false\">1e-05</｜DSML｜ "
     "parameter>\n<｜DSML｜ parameter name=\"d\" string=\"false\">1.5e-06</｜DSML｜ "
     "parameter>\n<｜DSML｜ parameter name=\"e\" string=\"false\">-0.0</｜DSML｜ "
     "parameter>\n<｜DSML｜ parameter name=\"f\" string=\"false\">[100000.0]</｜DSML｜ "
     "parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ "
     "calls><｜end▁of▁sentence｜><｜User｜><tool_result>r</tool_result><｜Assistant｜></think>",
     NULL},
    {"namespaces", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4-Pro\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":\"q\"},{\"type\":\"function_call\",\"namespace\":\"db\",\"name\":\"q\","
     "\"call_id\":\"1\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"1\","
     "\"output\":\"r\"}],\"tools\":[{\"type\":\"namespace\",\"name\":\"db\",\"description\":\"D\","
     "\"tools\":[{\"type\":\"function\",\"name\":\"q\",\"description\":\"run\",\"parameters\":{"
     "\"type\":\"object\"}}]}]}",
     "\n\n{\"name\": \"db__q\", \"description\": \"run\", \"parameters\": {\"type\": "
     "\"object\"}}\n\nYou MUST strictly follow the above defined tool name and parameter schemas "
     "to invoke tool "
     "calls.\n<｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke "
     "name=\"db__q\">\n</｜DSML｜invoke>\n</"
     "｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result>r</"
     "tool_result><｜Assistant｜></think>",
     NULL},
    {"namespaces", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":\"q\"},{\"type\":\"function_call\",\"namespace\":\"db\",\"name\":\"q\","
     "\"call_id\":\"1\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"1\","
     "\"output\":\"r\"}],\"tools\":[{\"type\":\"namespace\",\"name\":\"db\",\"description\":\"D\","
     "\"tools\":[{\"type\":\"function\",\"name\":\"q\",\"description\":\"run\",\"parameters\":{"
     "\"type\":\"object\"}}]}]}",
     "\n\n{\"name\": \"db::q\", \"description\": \"D\\nrun\", \"parameters\": {\"type\": "
     "\"object\"}}\n\nYou MUST strictly follow the above defined tool name and parameter schemas "
     "to invoke tool calls.\n<｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n<｜DSML｜ "
     "invoke name=\"db::q\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ "
     "calls><｜end▁of▁sentence｜><｜User｜><tool_result>r</tool_result><｜Assistant｜></think>",
     NULL},
    {"image of a bad URL", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"zz\"}}]}]}",
     "<｜begin▁of▁sentence｜><｜User｜>[Unsupported Image]<｜Assistant｜></think>", NULL},
    {"image of an assistant", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"assistant\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"zz\"}}]}]}",
     "<｜begin▁of▁sentence｜><｜Assistant｜></think>[Unsupported "
     "Image]<｜end▁of▁sentence｜><｜Assistant｜></think>",
     NULL},
    {"a file without data", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"user\",\"content\":[{\"type\":\"file\",\"file\":{}}]}]}",
     "<｜begin▁of▁sentence｜><｜User｜>[Unsupported Image]<｜Assistant｜></think>", NULL},
    {"image of an assistant", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4-Pro\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"assistant\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"zz\"}]}]}",
     "<｜begin▁of▁sentence｜><｜Assistant｜></think>[Unsupported "
     "Image]<｜end▁of▁sentence｜><｜Assistant｜></think>",
     NULL},
    {"image of nothing", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4-Pro\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":[{\"type\":\"input_image\"}]}]}",
     "<｜begin▁of▁sentence｜><｜User｜>[Unsupported Image]<｜Assistant｜></think>", NULL},
    {"image of an assistant", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"assistant\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":\"zz\"}}]"
     "}]}",
     "<｜begin▁of▁sentence｜><｜Assistant｜></think>[Unsupported "
     "Image]<｜end▁of▁sentence｜><｜Assistant｜></think>",
     NULL},
    {"image by id", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"file\",\"file_id\":\"x\"}}]}"
     "]}",
     "<｜begin▁of▁sentence｜><｜User｜>[Unsupported Image]<｜Assistant｜></think>", NULL},
    {"reminders", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"latest_reminder\",\"content\":\"a\"},{\"role\":\"latest_reminder\",\"content\":\"b\"},{"
     "\"role\":\"user\",\"content\":\"q\"},{\"role\":\"latest_reminder\",\"content\":\"c\"},{"
     "\"role\":\"user\",\"content\":\"r\"}]}",
     "<｜begin▁of▁sentence｜><｜latest_reminder｜>a<｜latest_reminder｜>b<｜User｜>q<｜latest_"
     "reminder｜>c<｜User｜>r<｜Assistant｜></think>",
     NULL},
    {"reminders around nothing", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"latest_reminder\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"\"},{\"role\":"
     "\"latest_reminder\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"q\"}]}",
     "<｜begin▁of▁sentence｜><｜latest_reminder｜>a<｜latest_reminder｜>b<｜User｜>q<｜Assistant｜>"
     "</think>",
     NULL},
    {"all tools deferred", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"user\",\"content\":\"q\"}],\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":"
     "\"object\"},\"defer_loading\":true}]}",
     "\n\n{\"name\": \"f\", \"description\": \"\", \"parameters\": {\"type\": \"object\"}}\n\nYou "
     "MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
     "calls.\n<｜User｜>q<｜Assistant｜></think>",
     NULL},
    {"reasoning without text", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4-Pro\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":\"q\"},{\"type\":\"reasoning\",\"id\":\"r\",\"summary\":[]},{\"role\":"
     "\"user\",\"content\":\"z\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜>q\n\nz<｜Assistant｜></think>", NULL},
    {"output of a custom tool", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4-Pro\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":\"q\"},{\"type\":\"custom_tool_call\",\"call_id\":\"1\",\"name\":"
     "\"apply_patch\",\"input\":\"x\"},{\"type\":\"custom_tool_call_output\",\"call_id\":\"1\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></"
     "think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"apply_patch\">\n<｜DSML｜parameter "
     "name=\"input\" "
     "string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</"
     "｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result></"
     "tool_result><｜Assistant｜></think>",
     NULL},
    {"image of a bad URL", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"zz\"}}]}]}",
     NULL, ".messages[0]: Unsupported image_url format"},
    {"image of an assistant", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"assistant\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"zz\"}}]}"
     "]}",
     NULL, "Image in assistant message is not supported"},
    {"a file without data", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":[{\"type\":\"file\",\"file\":{}}]}]}",
     NULL, ".messages[0]: file must have a file_id or file_data"},
    {"image of an assistant", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"assistant\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"zz\"}]}]}",
     NULL, "input[0]: Image in assistant message is unsupported"},
    {"image of nothing", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":[{\"type\":\"input_image\"}]}]}",
     NULL, "input[0].content[0]: input_image must have image_url or file_id"},
    {"image of an assistant", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"assistant\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":"
     "\"zz\"}}]}]}",
     NULL, "messages.0.content[0]: invalid url: \"zz\""},
    {"image by id", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"file\",\"file_id\":"
     "\"x\"}}]}]}",
     NULL,
     "messages.0.content[0]: file_id is not supported. Pass the image as a base64 data url "
     "instead."},
    {"reminders", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"latest_reminder\",\"content\":\"a\"},{\"role\":\"latest_reminder\",\"content\":"
     "\"b\"},{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"latest_reminder\",\"content\":\"c\"}"
     ",{\"role\":\"user\",\"content\":\"r\"}]}",
     "<｜begin▁of▁sentence｜><｜latest_reminder｜>a<｜User｜>q<｜latest_reminder｜>c<｜User｜>r<"
     "｜Assistant｜></think>",
     NULL},
    {"reminders around nothing", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"latest_reminder\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"\"},{"
     "\"role\":\"latest_reminder\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"q\"}]}",
     "<｜begin▁of▁sentence｜><｜latest_reminder｜>a<｜User｜>q<｜Assistant｜></think>", NULL},
    {"all tools deferred", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":"
     "\"object\"},\"defer_loading\":true}]}",
     NULL, "tools: at least one tool must have defer_loading=false. All tools cannot be deferred."},
    {"reasoning without text", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":\"q\"},{\"type\":\"reasoning\",\"id\":\"r\",\"summary\":[]},{\"role\":"
     "\"user\",\"content\":\"z\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜>q\n\nz<｜Assistant｜></think>", NULL},
    {"output of a custom tool", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":\"q\"},{\"type\":\"custom_tool_call\",\"call_id\":\"1\",\"name\":"
     "\"apply_patch\",\"input\":\"x\"},{\"type\":\"custom_tool_call_output\",\"call_id\":\"1\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n<｜DSML｜ "
     "invoke name=\"apply_patch\">\n<｜DSML｜ parameter name=\"input\" string=\"true\">x</｜DSML｜ "
     "parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ "
     "calls><｜end▁of▁sentence｜><｜User｜><tool_result></tool_result><｜Assistant｜></think>",
     NULL},
    {"no call, no check", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"parameters\":{\"type\":\"none\"}}}],\"tool_choice\":\"none\"}",
     "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>", NULL},
    {"no call, no check", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}},{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],\"tool_choice\":\"none\"}",
     "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>", NULL},
    {"no call, but names", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f g\",\"parameters\":{\"type\":\"object\"}}}],\"tool_choice\":\"none\"}",
     NULL,
     "Invalid 'tools[0].function.name': string does not match pattern. Expected a string that "
     "matches the pattern '^[a-zA-Z0-9_-]+$'."},
    {"no call, no check", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":"
     "\"zz\"}}],\"tool_choice\":{\"type\":\"none\"}}",
     "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>", NULL},
    {"tools one by one", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"g\",\"parameters\":{}}},{\"type\":\"function\",\"function\":{\"name\":\"f\","
     "\"parameters\":{\"type\":\"object\"}}},{\"type\":\"function\",\"function\":{\"name\":\"f\","
     "\"parameters\":{\"type\":\"object\"}}}]}",
     NULL,
     "Invalid schema for function 'g': schema must be a JSON Schema of 'type: \"object\"', got "
     "'type: null'."},
    {"tools one by one", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}},{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}},{\"type\":\"function\",\"function\":{"
     "\"name\":\"g\",\"parameters\":{}}}]}",
     NULL, "Tool names must be unique."},
    {"strict without parameters", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true}}]}",
     "\n\n{\"name\": \"f\", \"description\": \"\", \"parameters\": {\"type\": \"object\", "
     "\"properties\": {}, \"additionalProperties\": false, \"required\": []}}\n\nYou MUST strictly "
     "follow the above defined tool name and parameter schemas to invoke tool "
     "calls.\n<｜User｜>q<｜Assistant｜></think>",
     NULL},
    {"prefix behind the tools", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"a "
     "json\"},{\"role\":\"assistant\",\"content\":\"x\",\"prefix\":true}],\"tools\":[{\"type\":"
     "\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}},{\"type\":"
     "\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]}",
     NULL, "Tool names must be unique."},
    {"prefix behind the choice", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"a "
     "json\"},{\"role\":\"assistant\",\"content\":\"x\",\"prefix\":true}],\"tools\":[{\"type\":"
     "\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],\"tool_"
     "choice\":{\"type\":\"function\",\"function\":{\"name\":\"z\"}}}",
     NULL,
     "Invalid value for 'tool_call': no function named 'z' was specified in the 'tools' "
     "parameter."},
    {"prefix before stop", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"a "
     "json\"},{\"role\":\"assistant\",\"content\":\"x\",\"prefix\":true}],\"tools\":[{\"type\":"
     "\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],\"stop\":["
     "\"\"]}",
     NULL, "Function call should not be used with prefix"},
    {"prefix and json", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"a "
     "json\"},{\"role\":\"assistant\",\"content\":\"x\",\"prefix\":true}],\"response_format\":{"
     "\"type\":\"json_object\"},\"stop\":[\"\"]}",
     NULL, "response_format json_object should not be used with prefix"},
    {"a result that comes twice", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{"
     "\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},{"
     "\"id\":\"b\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{"
     "\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"r\"},{\"role\":\"tool\",\"tool_call_"
     "id\":\"a\",\"content\":\"r\"}],\"thinking\":{\"type\":\"disabled\"}}",
     NULL, "Duplicate value for 'tool_call_id' of a in message[2]"},
    {"a wrong result before a missing one", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{"
     "\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},{"
     "\"id\":\"b\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{"
     "\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"r\"},{\"role\":\"user\",\"content\":"
     "\"x\"}],\"thinking\":{\"type\":\"disabled\"}}",
     NULL,
     "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
     "'tool_call_id', The following tool_call_ids did not have response messages: c"},
    {"a file in an assistant's message", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"assistant\",\"content\":[{"
     "\"type\":\"file\",\"file_id\":\"x\"}]}],\"thinking\":{\"type\":\"disabled\"}}",
     NULL, ".messages[0]: file_id is not supported. Pass the image as a base64 data url instead."},
    {"file_data that is no data URL", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
     "\"file\",\"file_data\":\"http://x/y\"}]}],\"thinking\":{\"type\":\"disabled\"}}",
     NULL, ".messages[0]: file_data is not a valid base64 data url"},
    {"file_data of another type", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
     "\"file\",\"file_data\":\"data:image/"
     "bmp;base64,AAAA\"}]}],\"thinking\":{\"type\":\"disabled\"}}",
     NULL,
     ".messages[0]: You have uploaded an unsupported file. Please make sure your file is valid and "
     "has one of the following formats: webp, png, jpeg, and gif."},
    {"a data URL with a parameter", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
     "\"image_url\",\"image_url\":{\"url\":\"data:image/"
     "png;x=y;base64,AAAA\"}}]}],\"thinking\":{\"type\":\"disabled\"}}",
     "<｜begin▁of▁sentence｜><｜User｜><｜image｜><｜Assistant｜></think>", NULL},
    {"a schema that is null", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"response_format\":{\"type\":\"json_schema\",\"json_"
     "schema\":{\"schema\":null}}}",
     NULL, "Invalid json schema: null is not of types \"boolean\", \"object\""},
    {"members of another variant", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"response_format\":{\"type\":\"text\",\"json_schema\":"
     "5}}",
     "<｜begin▁of▁sentence｜><｜User｜>x<｜Assistant｜></think>", NULL},
    {"an empty call id", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"type\":"
     "\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":"
     "\"function_call_output\",\"call_id\":\"\",\"output\":\"q\"}]}",
     NULL,
     "Invalid 'input[1].call_id': empty string. Expected a string with minimum length 1, but got "
     "an empty string instead."},
    {"an empty call id", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"type\":"
     "\"function_call\",\"call_id\":\"\",\"name\":\"f\",\"arguments\":\"{}\"}]}",
     NULL,
     "Invalid 'input[0].call_id': empty string. Expected a string with minimum length 1, but got "
     "an empty string instead."},
    {"an output without a call", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":\"x\"},{\"type\":\"function_call_output\",\"output\":\"q\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜>x\n\n<tool_result>q</tool_result><｜Assistant｜></think>",
     NULL},
    {"an output without an id", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"type\":"
     "\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":"
     "\"function_call_output\",\"output\":\"q\"}]}",
     NULL, "No tool output found for tool call 1."},
    {"items that are skipped", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"type\":"
     "\"item_reference\",\"id\":\"x\"}]}",
     "<｜begin▁of▁sentence｜><｜Assistant｜></think>", NULL},
    {"items that are skipped, thinking", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}",
     "<｜begin▁of▁sentence｜><｜Assistant｜><think>", NULL},
    {"an empty system message stays", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"system\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"x\"}]}",
     "<｜begin▁of▁sentence｜><｜System｜><｜User｜>x<｜Assistant｜></think>", NULL},
    {"an empty system message stays", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":\"x\"},{\"role\":\"developer\",\"content\":[]},{\"role\":\"user\","
     "\"content\":\"x\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜>x<｜System｜><｜User｜>x<｜Assistant｜></think>", NULL},
    {"empty instructions do not", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":\"x\"}],\"instructions\":\"\"}",
     "<｜begin▁of▁sentence｜><｜User｜>x<｜Assistant｜></think>", NULL},
    {"an empty system message stays", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"system\",\"content\":[]},{\"role\":\"user\",\"content\":\"x\"}],\"system\":\"\"}",
     "<｜begin▁of▁sentence｜><｜System｜><｜System｜><｜User｜>x<｜Assistant｜></think>", NULL},
    {"V4: it does not", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4-Pro\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{\"role\":"
     "\"system\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"x\"}]}",
     "<｜begin▁of▁sentence｜><｜User｜>x<｜Assistant｜></think>", NULL},
    {"custom tools in a namespace", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{"
     "\"type\":\"custom\",\"name\":\"f\"}]}]}",
     NULL,
     "Currently custom tools are not allowed inside a namespace. Found custom tool 'f' in "
     "tools[0].tools[0]."},
    {"names in a namespace", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{"
     "\"type\":\"function\",\"name\":\"\"}]}]}",
     NULL,
     "Invalid 'tools[0].tools[0].name': empty string. Expected a string with minimum length 1, but "
     "got an empty string instead."},
    {"the name of a namespace", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"namespace\",\"name\":\"a "
     "b\",\"tools\":[]}]}",
     NULL,
     "Invalid 'tools[0].name': string does not match pattern. Expected a string that matches the "
     "pattern '^[a-zA-Z0-9_-]+$'."},
    {"an image without a URL", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"role\":"
     "\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"\"}]}]}",
     NULL, "input[0].content[0]: input_image must have image_url or file_id"},
    {"an image in an output", RECIPE_PROTOCOL_RESPONSES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"reasoning\":{\"effort\":\"none\"},\"input\":[{\"type\":"
     "\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":"
     "\"function_call_output\",\"call_id\":\"1\",\"output\":[{\"type\":\"input_image\"}]}]}",
     NULL, "input[1].output[0]: input_image must have image_url or file_id"},
    {"input that is a list", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\","
     "\"input\":[\"x\",1e-07]}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_"
     "use_id\":\"1\"}]}]}",
     "uments\" string=\"true\">[\"x\", 1e-7]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ "
     "calls><｜end▁of▁sentence｜><｜User｜><tool_result></tool_result><｜Assistant｜></think>",
     NULL},
    {"a reference to an unknown tool", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\","
     "\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
     "\"1\",\"content\":[{\"type\":\"tool_reference\",\"tool_name\":\"zz\"}]}]}]}",
     NULL, "messages.1.content.0: tool reference 'zz' not found in available tools"},
    {"an image of a result", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\","
     "\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
     "\"1\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image\",\"source\":{"
     "\"type\":\"url\",\"url\":\"zz\"}}]}]}]}",
     NULL, "messages.1.content.0.tool_result.content[1]: invalid url: \"zz\""},
    {"a document without a media type", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":[{\"type\":\"document\",\"source\":{\"type\":\"url\",\"url\":"
     "\"x\"}}]}]}",
     "<｜begin▁of▁sentence｜><｜User｜>[Unsupported document type: unknown]<｜Assistant｜></think>",
     NULL},
    {"a server tool with a bad name", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"custom\",\"name\":\"f g\"}]}",
     NULL, "tools[0]: server tools are not supported"},
    {"a server tool without a name", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"bash_20250124\"}]}",
     NULL, "tools[0]: server tools are not supported"},
    {"blocks of the server", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"user\",\"content\":[{\"type\":\"server_tool_use\",\"id\":\"1\",\"name\":\"f\","
     "\"input\":{}}]}]}",
     NULL, "messages.0: `tool_use` blocks can only be in `assistant` messages"},
    {"tools added by the first message", RECIPE_PROTOCOL_MESSAGES,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"disabled\"},\"messages\":[{"
     "\"role\":\"system\",\"content\":[{\"type\":\"tool_addition\",\"tool\":{\"type\":\"tool_"
     "reference\",\"name\":\"f\"}}]},{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"name\":"
     "\"f\",\"input_schema\":{\"type\":\"object\"}}]}",
     "meter schemas to invoke tool calls.\n\n\n### Updated Tool Schemas\n\n{\"name\": \"f\", "
     "\"description\": \"\", \"parameters\": {\"type\": "
     "\"object\"}}<｜User｜>x<｜Assistant｜></think>",
     NULL},
    {"strict: keywords of another type", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
     "\"type\":\"string\",\"minimum\":\"x\",\"enum\":[\"b\"],\"pattern\":\"p\",\"description\":"
     "\"d\",\"title\":5}}}}}]}",
     " \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", "
     "\"description\": \"d\", \"pattern\": \"p\", \"enum\": [\"b\"]}}, \"additionalProperties\": "
     "false, \"required\": [\"a\"]}}\n\nYou MUST strictly follow the above defined tool name and "
     "parameter schemas to invoke tool calls.\n<｜User｜>x<｜Assistant｜></think>",
     NULL},
    {"strict: of numbers", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
     "\"multipleOf\":2,\"type\":\"number\",\"default\":1,\"maximum\":2.5,\"description\":\"d\","
     "\"enum\":[1]}}}}}]}",
     " \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"number\", "
     "\"description\": \"d\", \"default\": 1, \"maximum\": 2.5, \"multipleOf\": 2}}, "
     "\"additionalProperties\": false, \"required\": [\"a\"]}}\n\nYou MUST strictly follow the "
     "above defined tool name and parameter schemas to invoke tool "
     "calls.\n<｜User｜>x<｜Assistant｜></think>",
     NULL},
    {"strict: several types", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
     "\"type\":[\"string\",\"null\"],\"enum\":[\"a\",null],\"description\":\"d\"}}}}}]}",
     " \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": [\"string\", "
     "\"null\"], \"description\": \"d\"}}, \"additionalProperties\": false, \"required\": "
     "[\"a\"]}}\n\nYou MUST strictly follow the above defined tool name and parameter schemas to "
     "invoke tool calls.\n<｜User｜>x<｜Assistant｜></think>",
     NULL},
    {"strict: a reference", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"$"
     "ref\":\"#/x\",\"description\":\"d\"}}}}}]}",
     " \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#/x\"}}, "
     "\"additionalProperties\": false, \"required\": [\"a\"]}}\n\nYou MUST strictly follow the "
     "above defined tool name and parameter schemas to invoke tool "
     "calls.\n<｜User｜>x<｜Assistant｜></think>",
     NULL},
    {"strict: anyOf beside a reference", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"$"
     "ref\":\"#/x\",\"anyOf\":[{\"type\":\"null\",\"default\":1}]}}}}}]}",
     " \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"anyOf\": [{\"type\": "
     "\"null\"}]}}, \"additionalProperties\": false, \"required\": [\"a\"]}}\n\nYou MUST strictly "
     "follow the above defined tool name and parameter schemas to invoke tool "
     "calls.\n<｜User｜>x<｜Assistant｜></think>",
     NULL},
    {"strict: a list without items", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
     "\"type\":\"array\"}}}}}]}",
     NULL, "Invalid tool parameters schema : missing field `items`"},
    {"strict: items that are null", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
     "\"type\":\"array\",\"items\":null}}}}}]}",
     NULL, "Invalid tool parameters schema : one of `type`, `anyOf`, `$ref` field is required"},
    {"strict: properties that are null", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
     "\"type\":\"object\",\"properties\":null}}}}}]}",
     NULL, "An object with no properties is not allowed."},
    {"strict: an object in several types", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
     "\"type\":\"object\",\"additionalProperties\":true,\"properties\":{\"b\":{\"type\":\"null\"}}}"
     "}}}}]}",
     NULL, "additionalProperties should not be true"},
    {"strict: required", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
     "\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"null\"}},\"required\":[\"c\"]}}}}}]}",
     NULL, "Required property 'c' not found in object"},
    {"strict: the order of an object", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true,\"parameters\":{\"description\":\"d\",\"required\":[\"a\"],"
     "\"properties\":{\"a\":{\"type\":\"boolean\"}},\"$defs\":{},\"type\":\"object\"}}}]}",
     " \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"boolean\"}}, "
     "\"additionalProperties\": false, \"required\": [\"a\"], \"description\": \"d\"}}\n\nYou MUST "
     "strictly follow the above defined tool name and parameter schemas to invoke tool "
     "calls.\n<｜User｜>x<｜Assistant｜></think>",
     NULL},
    {"strict: no properties", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\"}}}]}",
     " \"parameters\": {\"type\": \"object\", \"properties\": {}, \"additionalProperties\": false, "
     "\"required\": []}}\n\nYou MUST strictly follow the above defined tool name and parameter "
     "schemas to invoke tool calls.\n<｜User｜>x<｜Assistant｜></think>",
     NULL},
    {"strict: no properties of a format", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"response_format\":{\"type\":\"json_schema\",\"json_"
     "schema\":{\"strict\":true,\"schema\":{\"type\":\"object\"}}}}",
     NULL, "An object with no properties is not allowed."},
    {"strict: a format that is no object", RECIPE_PROTOCOL_CHAT,
     "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"thinking\":{\"type\":\"disabled\"},\"response_format\":{\"type\":\"json_schema\",\"json_"
     "schema\":{\"strict\":true,\"schema\":{\"anyOf\":[{\"type\":\"string\"}]}}}}",
     NULL, "The top level of the json schema must be an object."},
};

static bool ends_with(const str *s, const char *end)
{
    size_t n = strlen(end);

    return s->len >= n && memcmp(str_text(s) + s->len - n, end, n) == 0;
}

static void test_bodies_are_answered_as_by_the_released_recipe(void **state)
{
    const recipe_options o = {.mode = RECIPE_STRICT};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        recipe_request q;
        recipe_error e = {0};
        recipe_prompt p = {0};
        bool ok = recipe_request_parse(&q, cases[i].protocol, &o, cases[i].body,
                                       strlen(cases[i].body), &e);

        if (ok != (cases[i].end != NULL))
            fail_msg("%s: %s\n%s", cases[i].what, ok ? "accepted" : e.message, cases[i].body);
        if (ok)
            assert_int_equal(recipe_render(&q.chat, NULL, &p, NULL), DI_OK);
        if (ok && !ends_with(&p.text, cases[i].end))
            fail_msg("%s: %s\n%s", cases[i].what, cases[i].body, str_text(&p.text));
        if (!ok)
            assert_string_equal(e.message, cases[i].message);
        recipe_prompt_fini(&p);
        recipe_request_fini(&q);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies_are_answered_as_by_the_released_recipe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
