/* Conversations against the recorded prompts of the released renderer (tests/data/recipe), and what
 * the rules promise beyond them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/mem.h"
#include "recipe/messages.h"
#include "recipe/prompt.h"

#define MAX_BYTES ((size_t)64 << 20)

typedef struct golden {
    str id, prompt;
    recipe_body body;
    bool default_on, thinking, starts_in_reasoning;
    int64_t special[256];
    size_t n_special;
    int32_t ids[4096];
    size_t n_ids;
} golden;

static tokenizer *tok;

static void read_ints(json_read *r, int64_t *out, size_t cap, size_t *n)
{
    *n = 0;
    assert_int_equal(json_array(r, NULL), DI_OK);
    while (json_item(r)) {
        assert_true(*n < cap);
        assert_int_equal(json_int(r, &out[(*n)++], NULL), DI_OK);
    }
}

static void read_special(json_read *r, golden *g)
{
    g->n_special = 0;
    assert_int_equal(json_array(r, NULL), DI_OK);
    while (json_item(r)) {
        size_t n;

        assert_true(g->n_special + 2 <= ARRAY_LEN(g->special));
        read_ints(r, &g->special[g->n_special], 2, &n);
        assert_int_equal(n, 2);
        g->n_special += 2;
    }
}

static void read_body(json_read *r, recipe_body *b)
{
    const char *key;
    size_t n;
    di_status st = {0};
    di_code rc = DI_OK;

    assert_int_equal(json_object(r, NULL), DI_OK);
    while (rc == DI_OK && json_key(r, &key, &n)) {
        if (json_key_is(key, n, "messages"))
            rc = recipe_body_messages(b, r, &st);
        else if (json_key_is(key, n, "thinking"))
            rc = recipe_body_thinking(b, r, &st);
        else
            rc = recipe_body_effort(b, r, &st);
    }
    assert_string_equal(st.message, "");
}

static void read_golden(golden *g, arena *mem, const char *line, size_t len)
{
    json_read r;
    const char *key;
    size_t n;

    json_open(&r, line, len, "plain-chat.jsonl");
    recipe_body_init(&g->body, mem);
    assert_int_equal(json_object(&r, NULL), DI_OK);
    while (json_key(&r, &key, &n)) {
        const char *s;
        size_t k;

        if (json_key_is(key, n, "id") || json_key_is(key, n, "prompt")) {
            str *to = json_key_is(key, n, "id") ? &g->id : &g->prompt;

            assert_int_equal(json_string(&r, &s, &k, NULL), DI_OK);
            str_clear(to);
            str_append(to, s, k);
        } else if (json_key_is(key, n, "body")) {
            read_body(&r, &g->body);
        } else if (json_key_is(key, n, "special")) {
            read_special(&r, g);
        } else if (json_key_is(key, n, "ids")) {
            static int64_t ids[4096];

            read_ints(&r, ids, ARRAY_LEN(ids), &g->n_ids);
            for (size_t i = 0; i < g->n_ids; i++)
                g->ids[i] = (int32_t)ids[i];
        } else if (json_key_is(key, n, "default_on")) {
            assert_int_equal(json_bool(&r, &g->default_on, NULL), DI_OK);
        } else if (json_key_is(key, n, "thinking")) {
            assert_int_equal(json_bool(&r, &g->thinking, NULL), DI_OK);
        } else if (json_key_is(key, n, "stage") && json_peek(&r) == JSON_STRING) {
            assert_int_equal(json_string(&r, &s, &k, NULL), DI_OK);
            g->starts_in_reasoning = memcmp(s, "Reasoning", 9) == 0;
        } else {
            if (json_key_is(key, n, "stage"))
                g->starts_in_reasoning = false;
            assert_int_equal(json_skip(&r, NULL), DI_OK);
        }
    }
    assert_int_equal(json_end(&r, NULL), DI_OK);
    json_close(&r);
}

static void check_golden(const golden *g)
{
    recipe_chat chat = recipe_body_chat(&g->body, g->default_on, RECIPE_EFFORT_HIGH);
    recipe_prompt p = {0};
    tok_ids ids = {0};

    print_message("%s\n", str_text(&g->id));
    assert_int_equal(recipe_render(&chat, NULL, &p, NULL), DI_OK);
    assert_int_equal(p.text.len, g->prompt.len);
    assert_memory_equal(p.text.data, g->prompt.data, p.text.len);
    assert_int_equal(chat.thinking, g->thinking);
    assert_int_equal(recipe_starts_in_reasoning(&chat), g->starts_in_reasoning);
    assert_int_equal(p.n_special * 2, g->n_special);
    for (size_t i = 0; i < p.n_special; i++) {
        assert_int_equal(p.special[i].begin, g->special[2 * i]);
        assert_int_equal(p.special[i].end, g->special[2 * i + 1]);
    }
    assert_int_equal(recipe_encode(tok, &p, &ids, NULL), DI_OK);
    assert_int_equal(ids.n, g->n_ids);
    assert_memory_equal(ids.ids, g->ids, ids.n * sizeof *ids.ids);
    recipe_prompt_fini(&p);
    tok_ids_fini(&ids);
}

static void test_prompts_and_ids_equal_the_recorded_ones(void **state)
{
    static golden g;
    arena *mem = arena_new(0);
    char *text, *line, *next;
    size_t n, cases = 0;

    (void)state;
    assert_int_equal(file_read(&text, &n, DI_DATA_DIR "/recipe/plain-chat.jsonl", MAX_BYTES, NULL),
                     DI_OK);
    for (line = text; *line; line = next) {
        char *end = strchr(line, '\n');

        next = end + 1;
        read_golden(&g, mem, line, (size_t)(end - line));
        check_golden(&g);
        arena_reset(mem);
        cases++;
    }
    assert_int_equal(cases, 125);
    str_fini(&g.id);
    str_fini(&g.prompt);
    mem_free(text);
    arena_free(mem);
}

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

/* Parse a "messages" value that must fail. */
static void refuses(const char *json, di_code code, const char *message)
{
    arena *mem = arena_new(0);
    recipe_body b;
    json_read r;
    di_status st = {0};

    recipe_body_init(&b, mem);
    json_open(&r, json, strlen(json), "line");
    if (recipe_body_messages(&b, &r, &st) == DI_OK)
        assert_int_not_equal(json_end(&r, &st), DI_OK);
    json_close(&r);
    arena_free(mem);
    assert_int_equal(st.code, code);
    assert_non_null(strstr(st.message, message));
}

static void test_bad_messages_are_refused_with_their_place(void **state)
{
    (void)state;
    refuses("[]", DI_E_INVALID, "Empty input messages");
    refuses("{}", DI_E_FORMAT, "line:1:1");
    refuses("[{\"role\":\"user\"}]", DI_E_INVALID, "messages[0] has no \"content\"");
    refuses("[{\"content\":\"a\"}]", DI_E_INVALID, "messages[0] has no \"role\"");
    refuses("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"robot\",\"content\":\"a\"}]",
            DI_E_INVALID, "messages[1].role is \"robot\"");
    refuses("[{\"role\":\"user\",\"content\":null}]", DI_E_INVALID, "messages[0]");
    refuses("[{\"role\":\"assistant\",\"content\":null}]", DI_E_INVALID,
            "Invalid assistant message");
    refuses("[{\"role\":\"user\",\"content\":3}]", DI_E_FORMAT, "line:1:");
    refuses("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", DI_E_INVALID, "\"text\"");
    refuses("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]",
            DI_E_UNSUPPORTED, "image_url");
    refuses("[{\"role\":\"tool\",\"content\":\"a\"}]", DI_E_UNSUPPORTED, "tool results");
    refuses("[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[]}]", DI_E_UNSUPPORTED,
            "tool calls");
    refuses("[{\"role\":\"assistant\",\"content\":\"a\",\"prefix\":true},"
            "{\"role\":\"user\",\"content\":\"a\"}]",
            DI_E_INVALID, "prefix set true");
    refuses("[{\"role\":\"user\",\"content\":\"a\"}", DI_E_FORMAT, "line:1:");
}

static void test_out_of_memory_is_reported(void **state)
{
    const char json[] = "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]";
    int failures = 0;

    (void)state;
    for (uint64_t at = 1;; at++, failures++) {
        arena *mem = arena_new(0);
        recipe_body b;
        recipe_prompt p = {0};
        tok_ids ids = {0};
        json_read r;
        di_code rc;

        recipe_body_init(&b, mem);
        json_open(&r, json, sizeof json - 1, "line");
        mem_fail_at(at);
        rc = recipe_body_messages(&b, &r, NULL);
        if (rc == DI_OK) {
            recipe_chat chat = recipe_body_chat(&b, true, RECIPE_EFFORT_MAX);

            rc = recipe_render(&chat, NULL, &p, NULL);
        }
        if (rc == DI_OK)
            rc = recipe_encode(tok, &p, &ids, NULL);
        mem_fail_at(0);
        json_close(&r);
        recipe_prompt_fini(&p);
        tok_ids_fini(&ids);
        arena_free(mem);
        if (rc == DI_OK)
            break;
        assert_int_equal(rc, DI_E_NOMEM);
    }
    assert_in_range(failures, 4, 100);
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
        cmocka_unit_test(test_prompts_and_ids_equal_the_recorded_ones),
        cmocka_unit_test(test_control_tokens_typed_by_a_user_stay_text),
        cmocka_unit_test(test_tokenizer_without_a_control_token_is_named),
        cmocka_unit_test(test_bad_messages_are_refused_with_their_place),
        cmocka_unit_test(test_out_of_memory_is_reported),
    };

    return cmocka_run_group_tests(tests, load, unload);
}
