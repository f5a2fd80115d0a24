/* Bodies that nobody means to send, and answers that no model should write.
 *
 * Every golden request is changed at random: fields vanish, change their type, come twice, hold
 * numbers beyond every range, texts that spell markers, half surrogates. What is refused says why;
 * what is accepted renders, encodes, and hands over a constraint that compiles or is refused for a
 * reason. Then answers are put together from halves of markers: each protocol's events must fit
 * together and say what the whole answer says. HOSTILE=n: n times as many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "golden.h"
#include "grammar/grammar.h"
#include "grammar/stree.h"
#include "recipe/jtree.h"
#include "recipe/prompt.h"
#include "recipe/stream.h"

#define TIMES 10

static tokenizer *tok;
static grammar *gr;
static bool has_library;
static uint32_t turn;

static uint32_t draw(uint32_t n)
{
    return philox4x32((philox_block){{turn++, 0, 0, 0}}, 11, 3).v[0] % n;
}

static int rounds(void)
{
    const char *s = getenv("HOSTILE");

    return TIMES * (s && atoi(s) > 0 ? atoi(s) : 1);
}

/* ---- changes ---- */

/* Replacements, as JSON. */
static const char *const values[] = {
    "null",
    "true",
    "false",
    "0",
    "-1",
    "-0",
    "1e400",
    "-1e999",
    "0.1",
    "1e-400",
    "18446744073709551616",
    "9223372036854775808",
    "123456789012345678901234567890123456789",
    "\"\"",
    "\" \"",
    "\"\\u0000\"",
    "\"a\\u0000b\"",
    "\"\\ud83d\\ude00\"",
    "\"</think>\"",
    "\"<｜User｜>\"",
    "\"\\n\\n<｜DSML｜ calls>\\n\"",
    "\"｜DSML｜\"",
    "\"<｜image｜>\"",
    "\"../../etc\"",
    "\"data:image/png;base64,AAAA\"",
    "\"https://x.example/a.png\"",
    "[]",
    "{}",
    "[[]]",
    "[null]",
    "[{}]",
    "{\"type\":\"object\"}",
    "{\"$ref\":\"#\"}",
    "{\"\":null}",
};

typedef struct nodes {
    snode *at[4096];
    uint32_t n;
} nodes;

static void collect(snode *v, nodes *out)
{
    for (snode *c = v->child; c; c = c->next) {
        if (out->n < ARRAY_LEN(out->at))
            out->at[out->n++] = c;
        collect(c, out);
    }
}

static snode *value(arena *mem)
{
    const char *text = values[draw(ARRAY_LEN(values))];
    snode *v;

    if (stree_read(mem, text, strlen(text), "value", &v, NULL) != DI_OK)
        fail_msg("%s", text);
    return v;
}

/* Take over what another node is, but for its place. */
static void become(snode *v, const snode *other)
{
    v->type = other->type;
    v->flag = other->flag;
    v->text = other->text;
    v->n_text = other->n_text;
    v->child = other->child;
    v->last = other->last;
    v->n_child = other->n_child;
}

static void change(arena *mem, snode *root)
{
    static nodes all;
    snode *v, *other;

    all.n = 0;
    collect(root, &all);
    if (all.n == 0)
        return;
    v = all.at[draw(all.n)];
    other = all.at[draw(all.n)];
    switch (draw(6)) {
    case 0:
        stree_remove(v);
        break;
    case 1:
    case 2:
        become(v, value(mem));
        break;
    case 3: /* what stands elsewhere */
        if ((other = stree_copy(mem, other)))
            become(v, other);
        break;
    case 4: /* the key twice */
        if (v->key && (other = stree_copy(mem, draw(2) ? v : value(mem)))) {
            other->key = v->key;
            other->n_key = v->n_key;
            stree_attach(v->parent, other);
        }
        break;
    default: /* a field of another place */
        if (v->key && other->key) {
            v->key = other->key;
            v->n_key = other->n_key;
        }
    }
}

/* A value of 100 levels in front of another one. */
static void nest(str *body, size_t at)
{
    str out = {0};

    while (at < body->len && body->data[at] != ':')
        at++;
    at += at < body->len;
    str_append(&out, body->data, at);
    for (int i = 0; i < 100; i++)
        str_puts(&out, "[");
    for (int i = 0; i < 100; i++)
        str_puts(&out, "]");
    str_puts(&out, ",\"k\":");
    str_append(&out, body->data + at, body->len - at);
    str_fini(body);
    *body = out;
}

/* Changes of the bytes: half surrogates, bytes that are no UTF-8, an end too early. */
static void spoil(str *body)
{
    static const char *const bits[] = {"\\ud800", "\\udc00", "\\ud83d\\u0041", "\xff", "\xc3",
                                       "\\x",     "\n"};
    const char *bit = bits[draw(ARRAY_LEN(bits))];
    size_t at = draw((uint32_t)body->len + 1);
    str out = {0};

    if (draw(8) == 0) {
        body->len = at;
        return;
    }
    if (draw(6) == 0) {
        nest(body, at);
        return;
    }
    while (at < body->len && body->data[at] != '"')
        at++;
    at += at < body->len;
    str_append(&out, body->data, at);
    str_puts(&out, bit);
    str_append(&out, body->data + at, body->len - at);
    str_fini(body);
    *body = out;
}

/* ---- bodies ---- */

static int n_accepted, n_refused, n_compiled;

static void check_json(const str *s)
{
    arena *mem = arena_new(0);

    if (!jtree_parse(str_text(s), s->len, mem, "error body", NULL))
        fail_msg("not JSON: %s", str_text(s));
    arena_free(mem);
}

static void check_constraint(const recipe_request *q)
{
    static const grammar_kind kinds[] = {[RECIPE_CONSTRAINT_JSON] = GRAMMAR_JSON,
                                         [RECIPE_CONSTRAINT_JSON_OBJECT] = GRAMMAR_JSON_OBJECT,
                                         [RECIPE_CONSTRAINT_REGEX] = GRAMMAR_REGEX,
                                         [RECIPE_CONSTRAINT_EBNF] = GRAMMAR_EBNF,
                                         [RECIPE_CONSTRAINT_TOOL_CALL] = GRAMMAR_TOOL_CALL,
                                         [RECIPE_CONSTRAINT_TOOL_CALL_REQUIRED] =
                                             GRAMMAR_TOOL_CALL_REQUIRED};
    grammar_spec spec = {.text = q->constraint.text, .n = q->constraint.n};
    grammar_detail d = {0};
    grammar_prog *p;
    di_status st = {0};
    di_code rc;

    if (q->constraint.kind == RECIPE_CONSTRAINT_NONE || !has_library)
        return;
    spec.kind = kinds[q->constraint.kind];
    spec.strict = q->constraint.strict;
    rc = grammar_compile(gr, &spec, &p, &d, &st);
    if (rc != DI_OK && (rc != DI_E_INVALID || d.fault == GRAMMAR_FAULT_INTERNAL))
        fail_msg("%s: %.500s", st.message, spec.text);
    n_compiled += rc == DI_OK;
    grammar_prog_unref(p);
}

static void check_accepted(const recipe_request *q, const char *body)
{
    recipe_prompt p = {0};
    tok_ids ids = {0};
    di_status st = {0};
    int64_t max;
    recipe_error e = {0};

    if (recipe_render(&q->chat, NULL, &p, &st) != DI_OK ||
        recipe_encode(tok, &p, &ids, &st) != DI_OK)
        fail_msg("%s: %.2000s", st.message, body);
    assert_true(utf8_valid(str_text(&p.text), p.text.len));
    assert_true(ids.n > 0);
    if (!recipe_resolve_max_tokens(q, (int64_t)ids.n, 1 << 16, &max, &e))
        assert_int_equal(e.status, 400);
    check_constraint(q);
    recipe_prompt_fini(&p);
    tok_ids_fini(&ids);
}

static void try_body(const str *body, recipe_protocol protocol, recipe_mode mode)
{
    const recipe_options o = {.mode = mode};
    recipe_request q;
    recipe_error e = {0};
    str out = {0};

    if (recipe_request_parse(&q, protocol, &o, str_text(body), body->len, &e)) {
        n_accepted++;
        check_accepted(&q, str_text(body));
    } else {
        n_refused++;
        if ((e.status != 400 && e.status != 404) || !e.message[0])
            fail_msg("%d \"%s\": %.2000s", e.status, e.message, str_text(body));
        if (!utf8_valid(e.message, strlen(e.message)))
            fail_msg("\"%s\" is not UTF-8: %.2000s", e.message, str_text(body));
        recipe_error_body(protocol, mode, &e, &out);
        check_json(&out);
    }
    recipe_request_fini(&q);
    str_fini(&out);
}

static void change_case(golden *g, const jtree *line)
{
    static const char *const protocols[] = {"chat", "responses", "messages"};
    const jtree *name = jtree_get(line, "protocol"), *t = jtree_get(line, "body");
    str text = {0};

    golden_body(t, &text);
    for (int i = 0; i < rounds(); i++) {
        str body = {0};
        snode *root;
        int protocol = 0;

        while (protocol < 2 && name && strcmp(name->text, protocols[protocol]) != 0)
            protocol++;
        if (stree_read(g->mem, str_text(&text), text.len, "body", &root, NULL) != DI_OK)
            break; /* a case of bad JSON */
        for (uint32_t k = 1 + draw(4) / 3; k > 0; k--)
            change(g->mem, root);
        stree_write(root, &body);
        if (draw(8) == 0)
            spoil(&body);
        try_body(&body, (recipe_protocol)protocol, i % 2 ? RECIPE_STRICT : RECIPE_CLIENT);
        str_fini(&body);
    }
    str_fini(&text);
}

static void test_changed_bodies_are_refused_for_a_reason_or_render(void **state)
{
    golden g = {.tok = tok, .mem = arena_new(0)};

    (void)state;
    assert_true(golden_run(&g, DI_DATA_DIR "/recipe", "prompts.jsonl", change_case));
    assert_true(golden_run(&g, DI_DATA_DIR "/recipe", "errors.jsonl", change_case));
    arena_free(g.mem);
    print_message("%d accepted, %d refused, %d compiled\n", n_accepted, n_refused, n_compiled);
    assert_true(n_accepted > 500 && n_refused > 500);
    assert_true(!has_library || n_compiled > 100);
}

/* ---- answers ---- */

#define D "｜DSML｜"

static const char *const parts[] = {
    "a",
    " ",
    "\n",
    "\n\n",
    "日",
    "\xe6\x97", /* half a character */
    "</think>",
    "</thi",
    "<think>",
    "<" D,
    "</" D,
    D,
    "<｜DS",
    "<" D " calls>\n",
    "</" D " calls>",
    "<" D "tool_calls>\n",
    "<" D " invoke name=\"f\">\n",
    "</" D " invoke>\n",
    "<" D " invoke name=\"",
    "<" D " parameter name=\"k\" string=\"true\">",
    "<" D " parameter name=\"n\" string=\"false\">",
    "<" D " parameter name=\"q\" string=\"maybe\">",
    "</" D " parameter>\n",
    "1e5",
    "{\"a\": [",
    "]}",
    "STOP",
    "STO",
    "\"",
    "\\",
    "<｜User｜>",
    "```json\n",
};

typedef struct told {
    recipe_protocol protocol;
    arena *mem;
    str content, reasoning; /* of the deltas */
    int n_events, n_open, n_finishes, next_index;
    int64_t sequence;
} told;

static void append(str *s, const jtree *t)
{
    if (t && t->type == JSON_STRING)
        str_append(s, t->text, t->n);
}

static void on_chat(told *w, const jtree *t)
{
    const jtree *list = jtree_get(t, "choices"), *c = list ? list->child : NULL;
    const jtree *delta = jtree_get(c, "delta"), *why = jtree_get(c, "finish_reason");

    assert_non_null(list);
    assert_int_equal(w->n_finishes, 0);
    append(&w->content, jtree_get(delta, "content"));
    append(&w->reasoning, jtree_get(delta, "reasoning_content"));
    w->n_finishes += why && why->type == JSON_STRING;
}

static void on_responses(told *w, const jtree *t)
{
    const jtree *type = jtree_get(t, "type"), *n = jtree_get(t, "sequence_number");

    assert_int_equal(w->n_finishes, 0);
    assert_non_null(n);
    assert_int_equal(n->i64, w->sequence);
    w->sequence++;
    if (jtree_is(type, "response.output_item.added"))
        w->n_open++;
    if (jtree_is(type, "response.output_item.done"))
        w->n_open--;
    assert_in_range(w->n_open, 0, 1);
    if (jtree_is(type, "response.output_text.delta"))
        append(&w->content, jtree_get(t, "delta"));
    if (jtree_is(type, "response.reasoning_text.delta"))
        append(&w->reasoning, jtree_get(t, "delta"));
    w->n_finishes += jtree_is(type, "response.completed") || jtree_is(type, "response.incomplete");
}

static void on_messages(told *w, const jtree *t)
{
    const jtree *type = jtree_get(t, "type"), *idx = jtree_get(t, "index");
    const jtree *delta = jtree_get(t, "delta");

    assert_int_equal(w->n_finishes, 0);
    if (jtree_is(type, "content_block_start")) {
        assert_int_equal(w->n_open++, 0);
        assert_int_equal(idx->i64, w->next_index++);
    } else if (jtree_is(type, "content_block_delta")) {
        assert_int_equal(w->n_open, 1);
        assert_int_equal(idx->i64, w->next_index - 1);
    } else if (jtree_is(type, "content_block_stop")) {
        assert_int_equal(w->n_open--, 1);
    }
    append(&w->content, jtree_get(delta, "text"));
    append(&w->reasoning, jtree_get(delta, "thinking"));
    w->n_finishes += jtree_is(type, "message_stop");
}

static void on_sse(void *ctx, const char *event, const char *data, size_t n)
{
    static void (*const readers[])(told *, const jtree *) = {on_chat, on_responses, on_messages};
    told *w = ctx;
    di_status st = {0};
    const jtree *t = jtree_parse(data, n, w->mem, "event", &st);

    if (!t)
        fail_msg("%s: %s", st.message, data);
    assert_true(utf8_valid(data, n) && !memchr(data, '\n', n));
    assert_true(!event || jtree_is(jtree_get(t, "type"), event));
    w->n_events++;
    readers[w->protocol](w, t);
}

/* Text and reasoning of a whole answer. */
static void read_whole(told *w, const jtree *t)
{
    const jtree *list = jtree_get(t, w->protocol == RECIPE_PROTOCOL_CHAT        ? "choices"
                                     : w->protocol == RECIPE_PROTOCOL_RESPONSES ? "output"
                                                                                : "content");

    assert_non_null(list);
    for (const jtree *c = list->child; c; c = c->next) {
        const jtree *message = jtree_get(c, "message"), *inner = jtree_get(c, "content");

        append(&w->content, jtree_get(message, "content"));
        append(&w->reasoning, jtree_get(message, "reasoning_content"));
        append(&w->reasoning, jtree_get(c, "thinking"));
        if (w->protocol == RECIPE_PROTOCOL_MESSAGES)
            append(&w->content, jtree_get(c, "text"));
        for (inner = inner && inner->type == JSON_ARRAY ? inner->child : NULL; inner;
             inner = inner->next)
            append(jtree_is(jtree_get(inner, "type"), "reasoning_text") ? &w->reasoning
                                                                        : &w->content,
                   jtree_get(inner, "text"));
    }
}

static void push(recipe_stream *s, const str *text, const tok_ids *ids, bool by_token)
{
    bool on = true;

    recipe_stream_ready(s, 5, 2);
    for (size_t at = 0, n = by_token ? ids->n : text->len, take; on && at < n; at += take) {
        take = 1 + draw(7);
        take = take < n - at ? take : n - at;
        while (!by_token && at + take < n && ((uint8_t)text->data[at + take] & 0xC0) == 0x80)
            take++; /* text comes in whole characters */
        on = by_token ? recipe_stream_tokens(s, 0, ids->ids + at, take, NULL)
                      : recipe_stream_text(s, 0, text->data + at, take, 1);
    }
    recipe_stream_finish(s, 0, draw(3) ? RECIPE_FINISH_STOP : RECIPE_FINISH_LENGTH, 0);
    assert_true(recipe_stream_ok(s));
}

static void try_answer(const recipe_request *q, const str *text)
{
    told parts_of = {.protocol = q->protocol, .mem = arena_new(0)};
    told whole_of = {.protocol = q->protocol, .mem = parts_of.mem};
    recipe_stream_options o = {.id = "i", .model = "m", .tok = tok, .ctx = &parts_of};
    bool by_token = q->mode == RECIPE_CLIENT && (draw(2) || !utf8_valid(text->data, text->len));
    tok_ids ids = {0};
    recipe_stream *s;
    str out = {0};
    const jtree *t;

    assert_int_equal(tokenizer_encode(tok, str_text(text), text->len, true, &ids, NULL), DI_OK);
    o.emit = on_sse;
    s = recipe_stream_new(q, &o);
    push(s, text, &ids, by_token);
    recipe_stream_free(s);
    assert_int_equal(parts_of.n_finishes, 1);
    assert_int_equal(parts_of.n_open, 0);

    o.emit = NULL;
    s = recipe_stream_new(q, &o);
    push(s, text, &ids, by_token);
    recipe_stream_whole(s, &out);
    recipe_stream_free(s);
    t = jtree_parse(str_text(&out), out.len, parts_of.mem, "answer", NULL);
    assert_non_null(t);
    read_whole(&whole_of, t);
    if (!q->parsing.json_output || q->mode == RECIPE_CLIENT) { /* STRICT: a blank for each piece */
        assert_string_equal(str_text(&parts_of.content), str_text(&whole_of.content));
        assert_string_equal(str_text(&parts_of.reasoning), str_text(&whole_of.reasoning));
    }
    str_fini(&out);
    str_fini(&parts_of.content);
    str_fini(&parts_of.reasoning);
    str_fini(&whole_of.content);
    str_fini(&whole_of.reasoning);
    tok_ids_fini(&ids);
    arena_free(parts_of.mem);
}

static const char *const askers[3] = {
    "\"messages\":[{\"role\":\"user\",\"content\":\"a json\"}],"
    "\"stop\":[\"STOP\",\"\\n\\n\\n\"],\"thinking\":{\"type\":",
    "\"input\":\"a json\",\"reasoning\":{\"effort\":",
    "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":99,"
    "\"stop_sequences\":[\"STOP\"],\"thinking\":{\"type\":"};
static const char *const tool_lists[3] = {
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"k\":{\"type\":\"string\"}}}}}]",
    ",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"k\":{\"type\":\"string\"}}}}]",
    ",\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"k\":"
    "{\"type\":\"string\"}}}}]"};

static void test_answers_of_broken_markers_keep_to_their_protocol(void **state)
{
    static const char *const off[3] = {"disabled", "none", "disabled"};
    static const char *const on[3] = {"enabled", "high", "enabled"};
    static const char format[] = ",\"response_format\":{\"type\":\"json_object\"}";

    (void)state;
    for (int i = 0; i < 200 * rounds(); i++) {
        int protocol = i % 3;
        const char *more = draw(2)                         ? tool_lists[protocol]
                           : protocol == 0 && draw(3) == 0 ? format
                                                           : "";
        recipe_options o = {.mode = i & 4 ? RECIPE_STRICT : RECIPE_CLIENT};
        recipe_request q;
        recipe_error e;
        str body = {0}, text = {0};

        str_puts(&body, "{\"model\":\"DeepSeek-V4.1-Flash\",\"stream\":true,");
        str_printf(&body, "%s\"%s\"}%s}", askers[protocol], i & 8 ? on[protocol] : off[protocol],
                   more);
        if (!recipe_request_parse(&q, (recipe_protocol)protocol, &o, str_text(&body), body.len, &e))
            fail_msg("%s: %s", e.message, str_text(&body));
        for (uint32_t k = draw(14); k > 0; k--)
            str_puts(&text, parts[draw(ARRAY_LEN(parts))]);
        if (q.mode == RECIPE_STRICT && !utf8_valid(str_text(&text), text.len))
            str_clear(&text); /* text, and only whole characters */
        try_answer(&q, &text);
        recipe_request_fini(&q);
        str_fini(&body);
        str_fini(&text);
    }
}

static int set_up(void **state)
{
    const int32_t eos = 1;
    di_status st = {0};

    (void)state;
    if (tokenizer_load(&tok, "models/tiny/tokenizer.json", &st) != DI_OK)
        fail_msg("%s", st.message);
    assert_int_equal(grammar_new(&gr, tok, tokenizer_n_ids(tok), &eos, 1, NULL, NULL), DI_OK);
    has_library = grammar_prepare(gr, NULL) == DI_OK;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    grammar_free(gr);
    tokenizer_free(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changed_bodies_are_refused_for_a_reason_or_render),
        cmocka_unit_test(test_answers_of_broken_markers_keep_to_their_protocol),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
