/* The prompt formats of V4.1 and V4 (spec recipe.md 1.3 to 1.6, 1.9). See prompt.h for what holds.
 */
#include "recipe/prompt.h"

#include <string.h>

#include "base/mem.h"
#include "recipe/control.h"
#include "recipe/order.h"

/* The tools block; tags have a blank in V4.1 and none in V4. */
#define TOOLS_BEFORE(CALLS, INVOKE, PARAMETER)                                                     \
    "\n\n## Tools\n\n"                                                                             \
    "You have access to a set of tools to help answer the user's question. You can invoke tools "  \
    "by writing a \"<｜DSML｜" CALLS ">\" block like the following:\n\n"                           \
    "<｜DSML｜" CALLS ">\n"                                                                        \
    "<｜DSML｜" INVOKE " name=\"$TOOL_NAME\">\n"                                                   \
    "<｜DSML｜" PARAMETER                                                                          \
    " name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜" PARAMETER ">\n"   \
    "...\n"                                                                                        \
    "</｜DSML｜" INVOKE ">\n"                                                                      \
    "<｜DSML｜" INVOKE " name=\"$TOOL_NAME2\">\n"                                                  \
    "...\n"                                                                                        \
    "</｜DSML｜" INVOKE ">\n"                                                                      \
    "</｜DSML｜" CALLS ">\n\n"                                                                     \
    "String parameters should be specified as is and set `string=\"true\"`. For all other types "  \
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "                 \
    "`string=\"false\"`.\n\n"                                                                      \
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning " \
    "inside <think>...</think> BEFORE any tool calls or final response.\n\n"                       \
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"             \
    "### Available Tool Schemas\n\n"

#define TOOLS_AFTER                                                                                \
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke "    \
    "tool calls.\n"

#define FORMAT_BLOCK                                                                               \
    "\n\n## Response Format:\n\n"                                                                  \
    "You MUST strictly adhere to the following schema to reply:\n"

#define FORMAT_V4_OBJECT                                                                           \
    "\n\nYou are a helpful assistant designed to output JSON.\n## Response Format:\n\n"            \
    "Reply with JSON object ONLY."

#define EFFORT_V4_HIGH                                                                             \
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"                            \
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "     \
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "   \
    "edge cases, and adversarial scenarios.\n"                                                     \
    "Explicitly write out your entire deliberation process, documenting every intermediate step, " \
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "  \
    "unchecked.\n\n"

#define EFFORT_V4_MAX                                                                              \
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"           \
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "      \
    "exhaustively decompose the problem into its most fundamental components, trace every causal " \
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"       \
    "Do not stop reasoning until you have independently verified the solution from multiple "      \
    "angles and are certain that no assumption remains unchecked and no error remains "            \
    "undiscovered.\n\n"

/* What the two formats spell differently. */
typedef struct dialect {
    const char *calls, *invoke, *parameter;
    const char *tools;
    bool empty_line; /* for a call without arguments */
    jtree_style json;
} dialect;

static const dialect dialects[] = {
    [RECIPE_V41] = {" calls", " invoke", " parameter",
                    TOOLS_BEFORE(" calls", " invoke", " parameter"), true, JTREE_PYTHON},
    [RECIPE_V4] = {"tool_calls", "invoke", "parameter",
                   TOOLS_BEFORE("tool_calls", "invoke", "parameter"), false, JTREE_V4},
};

/* One rendering. */
typedef struct printer {
    const recipe_chat *c;
    const dialect *d;
    recipe_replay *replay;
    recipe_prompt *p;
    bool tools; /* declared */
} printer;

static void control(printer *r, const char *spelling)
{
    recipe_marked_control(r->p, spelling);
}

static void text(printer *r, const char *s)
{
    str_puts(&r->p->text, s);
}

/* Print our own text, in which DSML and think tags are control tokens. */
static void literal(printer *r, const char *s)
{
    static const char *const controls[] = {TOK_DSML, TOK_THINK, TOK_UNTHINK};

    while (*s) {
        const char *first = NULL, *spelling = NULL;

        for (size_t i = 0; i < ARRAY_LEN(controls); i++) {
            const char *at = strstr(s, controls[i]);

            if (at && (!first || at < first)) {
                first = at;
                spelling = controls[i];
            }
        }
        if (!first)
            break;
        str_append(&r->p->text, s, (size_t)(first - s));
        control(r, spelling);
        s = first + strlen(spelling);
    }
    text(r, s);
}

/* "<DSML calls" and the like. */
static void open_tag(printer *r, const char *name)
{
    text(r, "<");
    control(r, TOK_DSML);
    text(r, name);
}

static void close_tag(printer *r, const char *name)
{
    text(r, "</");
    control(r, TOK_DSML);
    text(r, name);
    text(r, ">");
}

static void content(printer *r, const recipe_message *m)
{
    size_t at = r->p->text.len;

    if (m->n_content)
        str_append(&r->p->text, m->content, m->n_content);
    for (size_t i = 0; i < m->n_images; i++)
        recipe_marked_span(r->p, at + m->image_at[i], at + m->image_at[i] + strlen(TOK_IMAGE));
}

/* ---- the head ---- */

static void tool_line(printer *r, const recipe_tool *t)
{
    str *out = &r->p->text;

    str_puts(out, "{\"name\": ");
    jtree_quote(t->name, t->n_name, out);
    str_puts(out, ", \"description\": ");
    jtree_quote(t->description ? t->description : "", t->n_description, out);
    str_puts(out, ", \"parameters\": ");
    if (t->parameters)
        jtree_print(t->parameters, r->d->json, out);
    else
        str_puts(out, "{}");
    str_putc(out, '}');
}

static void tools_block(printer *r)
{
    bool any = false;

    literal(r, r->d->tools);
    for (size_t i = 0; i < r->c->n_tools; i++) {
        if (r->c->tool[i].deferred && r->c->family == RECIPE_V41)
            continue;
        if (any)
            text(r, "\n");
        tool_line(r, &r->c->tool[i]);
        any = true;
    }
    text(r, TOOLS_AFTER);
}

static void format_block(printer *r)
{
    switch (r->c->format) {
    case RECIPE_FORMAT_JSON_OBJECT:
        text(r, r->c->family == RECIPE_V4 ? FORMAT_V4_OBJECT
                                          : FORMAT_BLOCK "{\"type\": \"json_object\"}");
        break;
    case RECIPE_FORMAT_JSON_SCHEMA:
        text(r, FORMAT_BLOCK);
        jtree_print(r->c->schema, r->d->json, &r->p->text);
        break;
    case RECIPE_FORMAT_TEXT:
    case RECIPE_FORMAT_REGEX:
    case RECIPE_FORMAT_EBNF:
        break;
    }
}

static void head_blocks(printer *r)
{
    if (r->tools)
        tools_block(r);
    format_block(r);
}

/* True when the head needs a system message even if the conversation has none. */
static bool needs_system(const printer *r)
{
    return r->tools || r->c->format == RECIPE_FORMAT_JSON_OBJECT ||
           r->c->format == RECIPE_FORMAT_JSON_SCHEMA;
}

static void effort_line(printer *r)
{
    int n = 75;

    if (r->c->effort == RECIPE_EFFORT_LOW)
        n = 50;
    else if (r->c->effort == RECIPE_EFFORT_MAX)
        n = 100;
    str_printf(&r->p->text,
               "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the "
               "reasoning)\n\n",
               n);
}

static void added_tools(printer *r, const recipe_message *m)
{
    text(r, "\n\n### Updated Tool Schemas\n\n");
    for (size_t i = 0; i < m->n_added; i++) {
        if (i)
            text(r, "\n");
        tool_line(r, m->added[i]);
    }
}

/* Up to the first message that is no system message; returns how many of o->message it used. */
static size_t head_v41(printer *r, const message_order *o)
{
    bool first = o->n && o->message[0]->role == RECIPE_SYSTEM;

    if (r->c->thinking && (o->n || needs_system(r))) {
        control(r, TOK_SYSTEM);
        effort_line(r);
    }
    if (!first && !needs_system(r))
        return 0;
    if (!r->c->thinking)
        control(r, TOK_SYSTEM);
    if (first)
        content(r, o->message[0]);
    head_blocks(r);
    if (first && o->message[0]->n_added)
        added_tools(r, o->message[0]);
    return first ? 1 : 0;
}

/* V4: all system messages stand in front, without a control token. */
static void head_v4(printer *r, const message_order *o)
{
    if (r->c->thinking && r->c->effort == RECIPE_EFFORT_MAX)
        text(r, EFFORT_V4_MAX);
    else if (r->c->thinking && r->c->effort != RECIPE_EFFORT_LOW)
        text(r, EFFORT_V4_HIGH);
    for (size_t i = 0; i < o->n_head; i++) {
        if (i)
            text(r, "\n\n");
        content(r, o->head[i]);
    }
    head_blocks(r);
}

/* ---- messages ---- */

static void parameter(printer *r, const char *key, size_t n_key, const jtree *value)
{
    bool is_text = value->type == JSON_STRING;

    open_tag(r, r->d->parameter);
    text(r, " name=\"");
    str_append(&r->p->text, key, n_key);
    text(r, is_text ? "\" string=\"true\">" : "\" string=\"false\">");
    if (is_text)
        str_append(&r->p->text, value->text, value->n);
    else
        jtree_print(value, r->d->json, &r->p->text);
    close_tag(r, r->d->parameter);
    text(r, "\n");
}

/* Arguments that are no object become one text that is called "arguments". */
static void call(printer *r, const recipe_call *c)
{
    const jtree raw = {.type = JSON_STRING, .text = c->arguments, .n = c->n_arguments};

    if (recipe_replay_get(r->replay, c, r->p))
        return;
    open_tag(r, r->d->invoke);
    text(r, " name=\"");
    str_append(&r->p->text, c->name, c->n_name);
    text(r, "\">\n");
    if (!c->object)
        parameter(r, "arguments", 9, &raw);
    else if (c->object->n == 0 && r->d->empty_line)
        text(r, "\n");
    for (const jtree *v = c->object ? c->object->child : NULL; v; v = v->next)
        parameter(r, v->key, v->n_key, v);
    close_tag(r, r->d->invoke);
}

static void open_calls(printer *r)
{
    text(r, "\n\n");
    open_tag(r, r->d->calls);
    text(r, ">\n");
}

static void assistant(printer *r, const recipe_message *m)
{
    control(r, TOK_ASSISTANT);
    if (r->c->thinking && r->tools) {
        control(r, TOK_THINK);
        if (m->n_reasoning)
            str_append(&r->p->text, m->reasoning, m->n_reasoning);
    }
    control(r, TOK_UNTHINK);
    content(r, m);
    if (m->n_call) {
        open_calls(r);
        for (size_t i = 0; i < m->n_call; i++) {
            call(r, &m->call[i]);
            text(r, "\n");
        }
        close_tag(r, r->d->calls);
    }
    control(r, TOK_EOS);
}

/* Spec 1.6: neither the end of sentence nor the tail. In V4.1 a prefix that is the very first
 * message loses its reasoning: so does the released renderer. */
static void prefix(printer *r, const recipe_message *m, bool first)
{
    control(r, TOK_ASSISTANT);
    if (r->c->thinking && !(first && r->c->family == RECIPE_V41)) {
        control(r, TOK_THINK);
        if (m->n_reasoning)
            str_append(&r->p->text, m->reasoning, m->n_reasoning);
        if (m->n_content == 0)
            return;
    }
    control(r, TOK_UNTHINK);
    content(r, m);
}

static void message(printer *r, const recipe_message *m, const recipe_message *before)
{
    switch (m->role) {
    case RECIPE_SYSTEM:
        control(r, TOK_SYSTEM);
        content(r, m);
        if (m->n_added)
            added_tools(r, m);
        break;
    case RECIPE_USER:
    case RECIPE_TOOL:
        if (before && (before->role == RECIPE_USER || before->role == RECIPE_TOOL))
            text(r, "\n\n");
        else
            control(r, TOK_USER);
        if (m->role == RECIPE_TOOL)
            text(r, "<tool_result>");
        content(r, m);
        if (m->role == RECIPE_TOOL)
            text(r, "</tool_result>");
        break;
    case RECIPE_REMINDER:
        control(r, TOK_REMINDER);
        content(r, m);
        break;
    case RECIPE_ASSISTANT:
        assistant(r, m);
        break;
    }
}

static void tail(printer *r)
{
    control(r, TOK_ASSISTANT);
    control(r, r->c->thinking ? TOK_THINK : TOK_UNTHINK);
    if (r->tools && r->c->choice == RECIPE_CHOICE_REQUIRED)
        open_calls(r);
}

static di_code check(const recipe_chat *c, di_status *st)
{
    if (c->prefix && (c->n == 0 || c->message[c->n - 1].role != RECIPE_ASSISTANT))
        return di_fail(st, DI_E_INVALID,
                       "Invalid completion message: prefix set true with message which is not "
                       "final message or message role is not assistant");
    return DI_OK;
}

bool recipe_starts_in_reasoning(const recipe_chat *c)
{
    return c->thinking && !(c->prefix && c->message[c->n - 1].n_content > 0);
}

int32_t recipe_call_id(const tokenizer *t, int n_ids)
{
    int32_t id = tokenizer_added_id(t, TOK_DSML);

    return id < n_ids ? id : -1;
}

di_code recipe_render(const recipe_chat *c, recipe_replay *replay, recipe_prompt *out,
                      di_status *st)
{
    printer r = {.c = c,
                 .d = &dialects[c->family],
                 .replay = replay,
                 .p = out,
                 .tools = recipe_has_tools(c)};
    message_order o;
    size_t i = 0;
    di_code rc = check(c, st);

    if (rc != DI_OK)
        return rc;
    rc = message_order_init(&o, c, st);
    if (rc != DI_OK)
        return rc;
    recipe_marked_clear(out);
    control(&r, TOK_BOS);
    if (c->family == RECIPE_V41)
        i = head_v41(&r, &o);
    else
        head_v4(&r, &o);
    for (const recipe_message *before = i ? o.message[0] : NULL; i < o.n; i++) {
        if (c->prefix && i == o.n - 1)
            prefix(&r, o.message[i], !before && !needs_system(&r));
        else
            message(&r, o.message[i], before);
        before = o.message[i];
    }
    if (!c->prefix)
        tail(&r);
    message_order_fini(&o);
    if (!str_ok(&out->text))
        return di_fail(st, DI_E_NOMEM, "no memory to render a prompt of %zu messages", c->n);
    return DI_OK;
}

/* ---- ids ---- */

static di_code push_control(const tokenizer *t, const char *s, size_t n, tok_ids *out,
                            di_status *st)
{
    char spelling[64];
    int32_t id;

    DI_CHECK(n < sizeof spelling);
    memcpy(spelling, s, n);
    spelling[n] = 0;
    id = tokenizer_added_id(t, strcmp(spelling, TOK_IMAGE) == 0 ? TOK_IMAGE_FILE : spelling);
    if (id < 0) /* files of the recipe itself */
        id = tokenizer_added_id(t, spelling);
    if (id < 0)
        return di_fail(st, DI_E_FORMAT,
                       "the tokenizer has no token \"%s\", which the prompt format needs: use the "
                       "tokenizer.json of this checkpoint",
                       spelling);
    return tok_ids_push(out, id, st);
}

di_code recipe_encode_again(const tokenizer *t, recipe_gaps *known, const recipe_prompt *p,
                            tok_ids *out, di_status *st)
{
    const char *s = str_text(&p->text);
    size_t at = 0;
    di_code rc = DI_OK;

    for (size_t i = 0; i < p->n_special; i++) {
        recipe_span span = p->special[i];

        if (span.begin > at)
            DI_TRY(recipe_gaps_encode(known, t, s + at, span.begin - at, out, st));
        DI_TRY(push_control(t, s + span.begin, span.end - span.begin, out, st));
        at = span.end;
    }
    if (p->text.len > at)
        DI_TRY(recipe_gaps_encode(known, t, s + at, p->text.len - at, out, st));
done:
    return rc;
}

di_code recipe_encode(const tokenizer *t, const recipe_prompt *p, tok_ids *out, di_status *st)
{
    return recipe_encode_again(t, NULL, p, out, st);
}
