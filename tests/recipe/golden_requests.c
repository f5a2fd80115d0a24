/* prompts.jsonl, errors.jsonl, resolve.jsonl: bodies -> conversation, prompt, ids; or the error. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "golden.h"
#include "recipe/prompt.h"

static recipe_protocol protocol_of(const jtree *line)
{
    const jtree *p = jtree_get(line, "protocol");

    return jtree_is(p, "responses")  ? RECIPE_PROTOCOL_RESPONSES
           : jtree_is(p, "messages") ? RECIPE_PROTOCOL_MESSAGES
                                     : RECIPE_PROTOCOL_CHAT;
}

static void expect_text(golden *g, const char *what, const jtree *want, const char *got)
{
    bool null = !want || want->type == JSON_NULL;

    if (null ? got != NULL : !got || !jtree_is(want, got))
        golden_fail(g, "%s: want %s, got %s", what, null ? "null" : want->text, got ? got : "null");
}

static void expect_bool(golden *g, const char *what, const jtree *want, bool got)
{
    if (!want || want->type != JSON_BOOL || want->yes != got)
        golden_fail(g, "%s: got %s", what, got ? "true" : "false");
}

/* A number, or null when it is not there. */
static void expect_number(golden *g, const char *what, const jtree *want, bool there, double got)
{
    bool null = !want || want->type == JSON_NULL;

    if (null ? there : !there || fabs(jtree_real(want) - got) > 1e-6 * fabs(got))
        golden_fail(g, "%s: want %g, got %g", what, null ? NAN : jtree_real(want),
                    there ? got : NAN);
}

static const char *effort_name(const recipe_chat *c)
{
    static const char *const names[] = {"high", "low", "max", "xhigh"};

    return c->thinking ? names[c->effort] : NULL;
}

static void check_sampling(golden *g, const jtree *want, const recipe_sampling *s)
{
    expect_number(g, "max_tokens", jtree_get(want, "max_tokens"), s->max_tokens >= 0,
                  (double)s->max_tokens);
    expect_number(g, "temperature", jtree_get(want, "temperature"), true, (double)s->temperature);
    expect_number(g, "top_p", jtree_get(want, "top_p"), true, (double)s->top_p);
    expect_bool(g, "logprobs", jtree_get(want, "logprobs"), s->logprobs);
    expect_number(g, "top_logprobs", jtree_get(want, "top_logprobs"), s->top_logprobs >= 0,
                  (double)s->top_logprobs);
    expect_number(g, "seed", jtree_get(want, "seed"), (s->set & RECIPE_SET_SEED) != 0,
                  (double)s->seed);
}

static void check_constraint(golden *g, const jtree *want, const recipe_constraint *k)
{
    static const char *const kinds[] = {NULL,   "json",      "json_object",       "regex",
                                        "ebnf", "tool_call", "tool_call_required"};
    bool none = !want || want->type == JSON_NULL;

    if (none && k->kind != RECIPE_CONSTRAINT_NONE)
        golden_fail(g, "constraint %s, want none", kinds[k->kind]);
    if (none)
        return;
    expect_text(g, "constraint kind", jtree_get(want, "kind"), kinds[k->kind]);
    expect_text(g, "constraint text", jtree_get(want, "schema"), k->text);
}

static void check_parsing(golden *g, const jtree *want, const recipe_parsing *p)
{
    static const char *const stages[] = {NULL, "ReasoningStart", "ReasoningContinuation",
                                         "ContentContinuation"};
    const jtree *stop = jtree_get(want, "stop"), *v = stop ? stop->child : NULL;

    expect_bool(g, "tool_calls", jtree_get(want, "tool_calls"), p->tool_calls);
    expect_bool(g, "starts_in_tool_calls", jtree_get(want, "starts_in_tool_calls"),
                p->starts_in_tool_calls);
    expect_bool(g, "json_output", jtree_get(want, "json_output"), p->json_output);
    expect_text(g, "stage", jtree_get(want, "stage"), stages[p->stage]);
    if (!stop || stop->n != p->n_stop)
        golden_fail(g, "%zu stop strings", p->n_stop);
    for (size_t i = 0; v && i < p->n_stop; i++, v = v->next)
        expect_text(g, "stop", v, p->stop[i]);
}

static void check_images(golden *g, const jtree *want, const recipe_request *q)
{
    const jtree *v = want ? want->child : NULL;

    if ((want ? want->n : 0) != q->n_images)
        golden_fail(g, "%zu images", q->n_images);
    for (size_t i = 0; v && i < q->n_images; i++, v = v->next) {
        expect_text(g, "image kind", jtree_get(v, "kind"),
                    q->image[i].kind == RECIPE_IMAGE_URL ? "url" : "data_url");
        expect_text(g, "image detail", jtree_get(v, "detail"), q->image[i].detail);
        expect_text(g, "image path", jtree_get(v, "path"), q->image[i].path);
    }
}

static void check_prompt(golden *g, const jtree *want, const recipe_request *q)
{
    const jtree *text = jtree_get(want, "prompt"), *special = jtree_get(want, "special"),
                *ids = jtree_get(want, "ids"), *v;
    recipe_prompt p = {0};
    tok_ids got = {0};
    di_status st = {0};
    size_t i = 0;

    if (recipe_render(&q->chat, NULL, &p, &st) != DI_OK ||
        recipe_encode(g->tok, &p, &got, &st) != DI_OK) {
        golden_fail(g, "%s", st.message);
    } else if (p.text.len != text->n || memcmp(p.text.data, text->text, text->n) != 0) {
        golden_fail(g, "prompt\n  want %s\n  got  %s", text->text, p.text.data);
    } else {
        for (v = special->child; v && i < p.n_special; v = v->next, i++)
            if ((size_t)v->child->i64 != p.special[i].begin ||
                (size_t)v->child->next->i64 != p.special[i].end)
                golden_fail(g, "special range %zu", i);
        if (special->n != p.n_special)
            golden_fail(g, "%zu special ranges, want %zu", p.n_special, special->n);
        for (i = 0, v = ids->child; v && i < got.n; v = v->next, i++)
            if (v->i64 != got.ids[i]) {
                golden_fail(g, "id %zu is %d, want %lld", i, got.ids[i], (long long)v->i64);
                break;
            }
        if (got.n != ids->n)
            golden_fail(g, "%zu ids, want %zu", got.n, ids->n);
    }
    recipe_prompt_fini(&p);
    tok_ids_fini(&got);
}

static void check_request(golden *g, const jtree *want, const recipe_request *q)
{
    static const char *const choices[] = {"auto", "none", "required"};
    static const char *const formats[] = {"text", "json_object", "json_schema", "regex", "ebnf"};

    expect_text(g, "model", jtree_get(want, "model"), q->chat.family == RECIPE_V41 ? "v4.1" : "v4");
    expect_bool(g, "thinking", jtree_get(want, "thinking"), q->chat.thinking);
    expect_text(g, "effort", jtree_get(want, "effort"), effort_name(&q->chat));
    expect_text(g, "tool_choice", jtree_get(want, "tool_choice"), choices[q->chat.choice]);
    expect_text(g, "response_format", jtree_get(want, "response_format"), formats[q->chat.format]);
    expect_bool(g, "stream", jtree_get(want, "stream"), q->stream);
    check_sampling(g, jtree_get(want, "sampling"), &q->sampling);
    check_constraint(g, jtree_get(want, "constraint"), &q->constraint);
    check_parsing(g, jtree_get(want, "parsing"), &q->parsing);
    check_images(g, jtree_get(want, "images"), q);
    check_prompt(g, want, q);
}

void golden_prompt(golden *g, const jtree *line)
{
    recipe_options o = golden_options(g, jtree_get(line, "options"));
    recipe_request q;
    recipe_error e;
    str body = {0};

    golden_body(jtree_get(line, "body"), &body);
    if (recipe_request_parse(&q, protocol_of(line), &o, str_text(&body), body.len, &e))
        check_request(g, jtree_get(line, "expect"), &q);
    else
        golden_fail(g, "refused: %s", e.message);
    recipe_request_fini(&q);
    str_fini(&body);
}

static void unhex(const jtree *t, str *out)
{
    for (size_t i = 0; i + 1 < t->n; i += 2) {
        unsigned v = 0;

        sscanf(t->text + i, "%2x", &v);
        str_putc(out, (char)v);
    }
}

static void check_error(golden *g, const jtree *want, recipe_protocol protocol,
                        const recipe_error *e)
{
    const jtree *error = jtree_get(want, "error"), *inner = jtree_get(error, "error");
    str body = {0};

    if (jtree_get(want, "status")->i64 != e->status)
        golden_fail(g, "status %d", e->status);
    recipe_error_body(protocol, RECIPE_STRICT, e, &body);
    if (!jtree_is(jtree_get(want, "stage"), "parse")) {
        golden_expect_json(g, "error", error, str_text(&body), body.len);
    } else {
        const jtree *got = jtree_parse(str_text(&body), body.len, g->mem, "error", NULL);

        if (!e->parse)
            golden_fail(g, "not a parse error: %s", e->message);
        if (!golden_same(jtree_get(inner, "type"), jtree_get(jtree_get(got, "error"), "type")))
            golden_fail(g, "type of the error");
    }
    str_fini(&body);
}

void golden_error(golden *g, const jtree *line)
{
    recipe_options o = golden_options(g, jtree_get(line, "options"));
    const jtree *text = jtree_get(line, "body_text"), *hex = jtree_get(line, "body_hex");
    recipe_request q;
    recipe_error e;
    str body = {0};

    if (hex)
        unhex(hex, &body);
    else
        golden_body(text ? text : jtree_get(line, "body"), &body);
    if (recipe_request_parse(&q, protocol_of(line), &o, str_text(&body), body.len, &e))
        golden_fail(g, "not refused");
    else
        check_error(g, jtree_get(line, "expect"), protocol_of(line), &e);
    recipe_request_fini(&q);
    str_fini(&body);
}

void golden_resolve(golden *g, const jtree *line)
{
    const recipe_options o = {.mode = RECIPE_STRICT};
    const jtree *want = jtree_get(line, "expect"), *max = jtree_get(want, "max_tokens");
    recipe_request q;
    recipe_error e;
    str body = {0};
    int64_t got;

    golden_body(jtree_get(line, "body"), &body);
    if (recipe_request_parse(&q, RECIPE_PROTOCOL_CHAT, &o, str_text(&body), body.len, &e) &&
        recipe_resolve_max_tokens(&q, jtree_get(line, "prompt_tokens")->i64,
                                  jtree_get(line, "context_limit")->i64, &got, &e))
        expect_number(g, "max_tokens", max, true, (double)got);
    else if (max)
        golden_fail(g, "refused: %s", e.message);
    else
        check_error(g, want, RECIPE_PROTOCOL_CHAT, &e);
    recipe_request_fini(&q);
    str_fini(&body);
}
