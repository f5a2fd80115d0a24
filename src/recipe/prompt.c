/* The V4.1 prompt format (spec recipe.md 1.3). See render.h for what holds. */
#include "recipe/prompt.h"

#include <string.h>

#include "base/mem.h"

/* The bars are U+FF5C, the low triangles U+2581. */
#define TOK_BOS       "<｜begin▁of▁sentence｜>"
#define TOK_EOS       "<｜end▁of▁sentence｜>"
#define TOK_SYSTEM    "<｜System｜>"
#define TOK_USER      "<｜User｜>"
#define TOK_ASSISTANT "<｜Assistant｜>"
#define TOK_REMINDER  "<｜latest_reminder｜>"
#define TOK_THINK     "<think>"
#define TOK_UNTHINK   "</think>"

void recipe_prompt_fini(recipe_prompt *p)
{
    str_fini(&p->text);
    mem_free(p->special);
    *p = (recipe_prompt){0};
}

/* Print one control token and note its place. An allocation failure is remembered in p->text. */
static void control(recipe_prompt *p, const char *spelling)
{
    if (p->n_special == p->cap_special) {
        size_t cap = p->cap_special ? p->cap_special * 2 : 32;
        recipe_span *more = mem_try_realloc(p->special, cap, sizeof *more);

        if (!more) {
            p->text.failed = true;
            return;
        }
        p->special = more;
        p->cap_special = cap;
    }
    p->special[p->n_special++] = (recipe_span){p->text.len, p->text.len + strlen(spelling)};
    str_puts(&p->text, spelling);
}

static void content(recipe_prompt *p, const recipe_message *m)
{
    if (m->n_content)
        str_append(&p->text, m->content, m->n_content);
}

static int effort_number(recipe_effort e)
{
    switch (e) {
    case RECIPE_EFFORT_LOW:
        return 50;
    case RECIPE_EFFORT_MAX:
        return 100;
    case RECIPE_EFFORT_HIGH:
    case RECIPE_EFFORT_XHIGH:
        break;
    }
    return 75;
}

/* Rule 0 of spec 1.2: such a message is not there at all. */
static bool is_dropped(const recipe_message *m)
{
    return m->role == RECIPE_SYSTEM && m->n_content == 0;
}

static void assistant(recipe_prompt *p, const recipe_message *m)
{
    /* Without tools all earlier reasoning is dropped. */
    control(p, TOK_ASSISTANT);
    control(p, TOK_UNTHINK);
    content(p, m);
    control(p, TOK_EOS);
}

/* Spec 1.6: neither the end of sentence nor the tail. A prefix that is the very first message loses
 * its reasoning: so does the released renderer. */
static void prefix(recipe_prompt *p, const recipe_message *m, bool thinking, bool first)
{
    control(p, TOK_ASSISTANT);
    if (thinking && !first) {
        control(p, TOK_THINK);
        if (m->n_reasoning)
            str_append(&p->text, m->reasoning, m->n_reasoning);
        if (m->n_content == 0)
            return;
    }
    control(p, TOK_UNTHINK);
    content(p, m);
}

static void message(recipe_prompt *p, const recipe_message *m, const recipe_message *before,
                    bool system_printed)
{
    switch (m->role) {
    case RECIPE_SYSTEM:
        if (before || !system_printed)
            control(p, TOK_SYSTEM);
        content(p, m);
        break;
    case RECIPE_TOOL:
    case RECIPE_USER:
        if (before && before->role == RECIPE_USER)
            str_puts(&p->text, "\n\n");
        else
            control(p, TOK_USER);
        content(p, m);
        break;
    case RECIPE_REMINDER:
        control(p, TOK_REMINDER);
        content(p, m);
        break;
    case RECIPE_ASSISTANT:
        assistant(p, m);
        break;
    }
}

static di_code check(const recipe_chat *c, di_status *st)
{
    if (c->n == 0)
        return di_fail(st, DI_E_INVALID, "Empty input messages");
    if (c->prefix && c->message[c->n - 1].role != RECIPE_ASSISTANT)
        return di_fail(st, DI_E_INVALID,
                       "Invalid completion message: prefix set true with message which is not "
                       "final message or message role is not assistant");
    return DI_OK;
}

bool recipe_starts_in_reasoning(const recipe_chat *c)
{
    return c->thinking && !(c->prefix && c->message[c->n - 1].n_content > 0);
}

di_code recipe_render(const recipe_chat *c, recipe_replay *replay, recipe_prompt *out,
                      di_status *st)
{
    const recipe_message *before = NULL;
    di_code rc = check(c, st);

    (void)replay;
    if (rc != DI_OK)
        return rc;
    str_clear(&out->text);
    out->n_special = 0;
    control(out, TOK_BOS);
    if (c->thinking) {
        control(out, TOK_SYSTEM);
        str_printf(&out->text,
                   "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough "
                   "the reasoning)\n\n",
                   effort_number(c->effort));
    }
    for (size_t i = 0; i < c->n; i++) {
        const recipe_message *m = &c->message[i];

        if (is_dropped(m))
            continue;
        if (c->prefix && i == c->n - 1)
            prefix(out, m, c->thinking, before == NULL);
        else
            message(out, m, before, c->thinking);
        before = m;
    }
    if (!c->prefix) {
        control(out, TOK_ASSISTANT);
        control(out, c->thinking ? TOK_THINK : TOK_UNTHINK);
    }
    if (!str_ok(&out->text))
        return di_fail(st, DI_E_NOMEM, "no memory to render a prompt of %zu messages", c->n);
    return DI_OK;
}

static di_code push_control(const tokenizer *t, const char *text, size_t n, tok_ids *out,
                            di_status *st)
{
    char spelling[64];
    size_t before = out->n;
    di_code rc;

    DI_CHECK(n < sizeof spelling);
    memcpy(spelling, text, n);
    spelling[n] = 0;
    if (tokenizer_added_id(t, spelling) < 0)
        return di_fail(st, DI_E_FORMAT,
                       "the tokenizer has no token \"%s\", which the prompt format needs: use the "
                       "tokenizer.json of this checkpoint",
                       spelling);
    rc = tokenizer_encode(t, spelling, n, true, out, st);
    if (rc == DI_OK)
        DI_CHECK(out->n == before + 1);
    return rc;
}

di_code recipe_encode(const tokenizer *t, const recipe_prompt *p, tok_ids *out, di_status *st)
{
    const char *text = str_text(&p->text);
    size_t at = 0;
    di_code rc = DI_OK;

    for (size_t i = 0; i < p->n_special; i++) {
        recipe_span s = p->special[i];

        if (s.begin > at)
            DI_TRY(tokenizer_encode(t, text + at, s.begin - at, false, out, st));
        DI_TRY(push_control(t, text + s.begin, s.end - s.begin, out, st));
        at = s.end;
    }
    if (p->text.len > at)
        DI_TRY(tokenizer_encode(t, text + at, p->text.len - at, false, out, st));
done:
    return rc;
}

bool recipe_effort_parse(const char *word, size_t n, bool *on, recipe_effort *effort)
{
    static const struct {
        const char *word;
        bool on;
        recipe_effort effort;
    } words[] = {
        {"none", false, RECIPE_EFFORT_HIGH}, {"minimal", true, RECIPE_EFFORT_LOW},
        {"low", true, RECIPE_EFFORT_LOW},    {"medium", true, RECIPE_EFFORT_HIGH},
        {"high", true, RECIPE_EFFORT_HIGH},  {"xhigh", true, RECIPE_EFFORT_HIGH},
        {"ultra", true, RECIPE_EFFORT_MAX},  {"max", true, RECIPE_EFFORT_MAX},
    };

    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strlen(words[i].word) == n && memcmp(words[i].word, word, n) == 0) {
            *on = words[i].on;
            *effort = words[i].effort;
            return true;
        }
    return false;
}
