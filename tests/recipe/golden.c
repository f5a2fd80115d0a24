/* Reading golden files and comparing JSON values. See golden.h. */
#include "golden.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

#define MAX_FILE_BYTES ((size_t)256 << 20)

void golden_fail(golden *g, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "FAILED %s:%zu %s: ", g->file, g->line, g->id);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    g->case_failed = true;
}

static void run_line(golden *g, const char *text, size_t n, void (*run)(golden *, const jtree *))
{
    di_status st = {0};
    const jtree *t = jtree_parse(text, n, g->mem, g->file, &st), *id = jtree_get(t, "id");

    g->line++;
    g->case_failed = false;
    g->id = id && id->type == JSON_STRING ? id->text : "";
    if (t)
        run(g, t);
    else
        golden_fail(g, "%s", st.message);
    if (g->case_failed)
        g->n_failed++;
    else
        g->n_passed++;
    arena_reset(g->mem);
}

bool golden_run(golden *g, const char *dir, const char *file,
                void (*run)(golden *g, const jtree *line))
{
    char path[4096], *text;
    size_t n;

    snprintf(path, sizeof path, "%s/%s", dir, file);
    if (file_read(&text, &n, path, MAX_FILE_BYTES, NULL) != DI_OK)
        return false;
    g->file = file;
    g->line = 0;
    for (const char *s = text; s < text + n;) {
        const char *end = memchr(s, '\n', (size_t)(text + n - s));

        if (!end)
            end = text + n;
        if (end > s)
            run_line(g, s, (size_t)(end - s), run);
        s = end + 1;
    }
    mem_free(text);
    return true;
}

void golden_body(const jtree *t, str *out)
{
    if (t && t->type == JSON_STRING)
        str_append(out, t->text, t->n);
    else if (t)
        jtree_print(t, JTREE_PYTHON, out);
}

recipe_options golden_options(golden *g, const jtree *options)
{
    recipe_options o = {.mode = RECIPE_STRICT};

    for (const jtree *v = options ? options->child : NULL; v; v = v->next) {
        if (strcmp(v->key, "default_thinking_mode") == 0) {
            o.thinking_off = !v->yes;
        } else if (strcmp(v->key, "reasoning_content_behavior") == 0) {
            o.reject_missing_reasoning = jtree_is(v, "Reject");
        } else if (strcmp(v->key, "responses_web_search") == 0) {
            o.responses_reject_web_search = jtree_is(v, "Reject");
        } else if (strcmp(v->key, "messages_web_search") == 0) {
            o.messages_drop_web_search = jtree_is(v, "Drop");
        } else if (strcmp(v->key, "thinking_max_tokens_upper_bound") == 0) {
            o.max_tokens_thinking = (uint32_t)v->u64;
        } else if (strcmp(v->key, "non_thinking_max_tokens_upper_bound") == 0) {
            o.max_tokens_plain = (uint32_t)v->u64;
        } else if (strcmp(v->key, "model_alias") == 0 && v->n) {
            recipe_alias *alias = arena_alloc(g->mem, v->n, sizeof *alias);
            size_t i = 0;

            for (const jtree *a = v->child; a; a = a->next, i++)
                alias[i] = (recipe_alias){.name = a->key,
                                          .family = jtree_is(a, "DeepseekV41Flash") ? RECIPE_V41
                                                                                    : RECIPE_V4};
            o.alias = alias;
            o.n_alias = v->n;
        } else {
            golden_fail(g, "unknown option %s", v->key);
        }
    }
    return o;
}

/* "call_NN_*" against "call_NN_" and 24 letters or digits. */
static bool same_call_id(const jtree *want, const jtree *got)
{
    if (want->n != 9 || memcmp(want->text, "call_", 5) != 0 || want->text[8] != '*' || got->n != 32)
        return false;
    for (size_t i = 8; i < got->n; i++)
        if (!isalnum((unsigned char)got->text[i]))
            return false;
    return memcmp(want->text, got->text, 8) == 0;
}

static bool same_members(const jtree *want, const jtree *got)
{
    const jtree *y = got->child;

    if (want->n != got->n)
        return false;
    for (const jtree *x = want->child; x; x = x->next) {
        if (want->type == JSON_OBJECT)
            y = jtree_find(got, x->key, x->n_key);
        if (!y || !golden_same(x, y))
            return false;
        y = y->next;
    }
    return true;
}

bool golden_same(const jtree *want, const jtree *got)
{
    if (!want || !got || want->type != got->type)
        return want == got;
    switch (want->type) {
    case JSON_NUMBER:
        return want->kind == JTREE_U64 ? got->kind == JTREE_U64 && want->u64 == got->u64
                                       : jtree_real(want) == jtree_real(got);
    case JSON_STRING:
        return (want->n == got->n && memcmp(want->text, got->text, want->n) == 0) ||
               same_call_id(want, got);
    case JSON_ARRAY:
    case JSON_OBJECT:
        return same_members(want, got);
    case JSON_BOOL:
        return want->yes == got->yes;
    case JSON_NULL:
    case JSON_NONE:
        break;
    }
    return true;
}

void golden_expect_json(golden *g, const char *what, const jtree *want, const char *got, size_t n)
{
    di_status st = {0};
    const jtree *t = jtree_parse(got, n, g->mem, what, &st);
    str text = {0};

    if (t && golden_same(want, t))
        return;
    if (want)
        jtree_print(want, JTREE_PYTHON, &text);
    golden_fail(g, "%s %s\n  want %s\n  got  %.*s", what, st.message, str_text(&text), (int)n, got);
    str_fini(&text);
}
