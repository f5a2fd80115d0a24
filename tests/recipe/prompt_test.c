/* What requests and prompts promise beyond the recorded cases of golden_recipe. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "recipe/prompt.h"
#include "recipe/request.h"

#define MAX_BYTES ((size_t)64 << 20)

static tokenizer *tok;

/* Ids of one user message, thinking off. */
static void user_ids(const char *text, tok_ids *ids)
{
    const recipe_message m = {.role = RECIPE_USER, .content = text, .n_content = strlen(text)};
    const recipe_chat chat = {.message = &m, .n = 1};
    recipe_prompt p = {0};

    ids->n = 0;
    assert_int_equal(recipe_render(&chat, NULL, &p, NULL), DI_OK);
    assert_int_equal(recipe_encode(tok, &p, ids, NULL), DI_OK);
    recipe_prompt_fini(&p);
}

static void test_control_tokens_typed_by_a_user_stay_text(void **state)
{
    const struct {
        const char *text;
        size_t n_ids;
    } cases[] = {{"", 4}, {"x", 5}, {"<｜User｜>", 9}, {"<think>", 7}};
    tok_ids ids = {0};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        user_ids(cases[i].text, &ids);
        assert_int_equal(ids.n, cases[i].n_ids);
        for (size_t k = 2; k + 2 < ids.n; k++)
            assert_in_range(ids.ids[k], 3, 127999);
    }
    tok_ids_fini(&ids);
}

/* A tokenizer of an older family has another spelling in the place of <|System|>. */
static void test_tokenizer_without_a_control_token_is_named(void **state)
{
    const recipe_message m = {.role = RECIPE_SYSTEM, .content = "Be brief.", .n_content = 9};
    const recipe_chat chat = {.message = &m, .n = 1};
    recipe_prompt p = {0};
    tok_ids ids = {0};
    tokenizer *old = NULL;
    di_status st = {0};
    char *json, *at;
    size_t n;

    (void)state;
    assert_int_equal(
        file_read(&json, &n, DI_DATA_DIR "/tokenizer-v4/tokenizer.json", MAX_BYTES, NULL), DI_OK);
    at = strstr(json, "<｜System｜>");
    assert_non_null(at);
    at[strlen("<｜")] = 'Z';
    assert_int_equal(tokenizer_parse(&old, json, n, "old.json", NULL), DI_OK);
    assert_int_equal(recipe_render(&chat, NULL, &p, NULL), DI_OK);
    assert_int_equal(recipe_encode(old, &p, &ids, &st), DI_E_FORMAT);
    assert_non_null(strstr(st.message, "<｜System｜>"));
    recipe_prompt_fini(&p);
    tok_ids_fini(&ids);
    tokenizer_free(old);
    mem_free(json);
}

/* Parse a body that must fail. */
static void refuses(const char *members, const char *message)
{
    str body = {0};
    recipe_request q;
    recipe_error e;

    str_printf(&body, "{\"model\": \"DeepSeek-V4.1-Flash\", %s}", members);
    assert_false(recipe_request_parse(&q, RECIPE_PROTOCOL_CHAT, NULL, body.data, body.len, &e));
    assert_int_equal(e.status, 400);
    if (!strstr(e.message, message))
        fail_msg("%s", e.message);
    recipe_request_fini(&q);
    str_fini(&body);
}

static void test_bad_shapes_are_refused_with_their_place(void **state)
{
    (void)state;
    refuses("\"messages\": [{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"robot\",\"content\":"
            "\"a\"}]",
            "messages[1].role: \"robot\" is not one of system, user");
    refuses("\"messages\": [{\"content\":\"a\"}]", "messages[0].role: is missing");
    refuses("\"messages\": [{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]",
            "messages[0].content[0]: a text part has no text");
    refuses("\"messages\": [{\"role\":\"user\",\"content\":3}]",
            "messages[0].content: must be a string or a list");
    refuses("\"messages\": 3", "messages: must be a list");
    refuses("\"messages\": [], \"tools\": [{\"type\": \"function\", \"function\": {}}]",
            "tools[0].function.name: is missing");
    refuses("\"messages\": [{}", "request body:1:");
}

/* Bodies that go through most of the readers. */
static const struct {
    recipe_protocol protocol;
    const char *body;
} bodies[] = {
    {RECIPE_PROTOCOL_CHAT,
     "{\"model\": \"DeepSeek-V4.1-Flash\", \"messages\": [{\"role\": \"user\", \"content\": "
     "[{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"image_url\", \"image_url\": {\"url\": "
     "\"https://x/y\"}}]}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": "
     "\"2\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}, "
     "{\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
     "\"{}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"r\"}, {\"role\": "
     "\"tool\", \"tool_call_id\": \"2\", \"content\": \"r\"}], \"tools\": [{\"type\": "
     "\"function\", \"function\": {\"name\": \"f\", \"strict\": true, \"parameters\": {\"type\": "
     "\"object\", \"properties\": {\"k\": {\"type\": \"string\"}}}}}], \"stop\": [\"x\"]}"},
    {RECIPE_PROTOCOL_RESPONSES,
     "{\"model\": \"DeepSeek-V4.1-Flash\", \"instructions\": \"i\", \"input\": [{\"role\": "
     "\"user\", \"content\": \"q\"}, {\"type\": \"reasoning\", \"content\": [{\"type\": "
     "\"reasoning_text\", \"text\": \"w\"}]}, {\"type\": \"custom_tool_call\", \"call_id\": \"1\", "
     "\"name\": \"apply_patch\", \"input\": \"p\"}, {\"type\": \"custom_tool_call_output\", "
     "\"call_id\": \"1\", \"output\": \"o\"}], \"tools\": [{\"type\": \"custom\", \"name\": "
     "\"apply_patch\"}, {\"type\": \"namespace\", \"name\": \"n\", \"tools\": [{\"name\": "
     "\"m\"}]}]}"},
    {RECIPE_PROTOCOL_MESSAGES,
     "{\"model\": \"DeepSeek-V4.1-Flash\", \"system\": [{\"type\": \"text\", \"text\": \"s\"}], "
     "\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
     "\"content\": [{\"type\": \"thinking\", \"thinking\": \"t\"}, {\"type\": \"tool_use\", "
     "\"id\": \"1\", \"name\": \"f\", \"input\": {\"k\": 1}}]}, {\"role\": \"user\", "
     "\"content\": [{\"type\": \"tool_result\", \"tool_use_id\": \"1\", \"content\": [{\"type\": "
     "\"tool_reference\", \"tool_name\": \"later\"}]}, {\"type\": \"text\", \"text\": \"x\"}]}], "
     "\"tools\": [{\"name\": \"f\", \"input_schema\": {\"type\": \"object\"}}, {\"name\": "
     "\"later\", \"input_schema\": {\"type\": \"object\"}, \"defer_loading\": true}]}"},
};

/* One request with the at-th allocation failing: true when nothing failed. */
static bool survives(size_t i, uint64_t at)
{
    recipe_request q;
    recipe_error e = {0};
    recipe_prompt p = {0};
    tok_ids ids = {0};
    di_code rc = DI_OK;
    bool parsed;

    mem_fail_at(at);
    parsed = recipe_request_parse(&q, bodies[i].protocol, NULL, bodies[i].body,
                                  strlen(bodies[i].body), &e);
    if (parsed)
        rc = recipe_render(&q.chat, NULL, &p, NULL);
    if (parsed && rc == DI_OK)
        rc = recipe_encode(tok, &p, &ids, NULL);
    mem_fail_at(0);
    if (!parsed && e.status != 503)
        fail_msg("body %zu, allocation %llu: %d %s", i, (unsigned long long)at, e.status,
                 e.message);
    assert_true(rc == DI_OK || rc == DI_E_NOMEM);
    recipe_request_fini(&q);
    recipe_prompt_fini(&p);
    tok_ids_fini(&ids);
    return parsed && rc == DI_OK;
}

static void test_out_of_memory_is_reported(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        uint64_t at = 1;

        while (!survives(i, at))
            at++;
        assert_in_range(at, 10, 10000);
    }
}

static int load(void **state)
{
    di_status st = {0};

    (void)state;
    if (tokenizer_load(&tok, DI_DATA_DIR "/tokenizer-v4/tokenizer.json", &st) != DI_OK)
        print_error("%s\n", st.message);
    return tok ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    tokenizer_free(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control_tokens_typed_by_a_user_stay_text),
        cmocka_unit_test(test_tokenizer_without_a_control_token_is_named),
        cmocka_unit_test(test_bad_shapes_are_refused_with_their_place),
        cmocka_unit_test(test_out_of_memory_is_reported),
    };

    return cmocka_run_group_tests(tests, load, unload);
}
