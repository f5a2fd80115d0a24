/* Answer formats in the words of other servers (vLLM's structured_outputs, SGLang's regex and
 * ebnf). Mode CLIENT only; docs/api.md lists them. */
#include <string.h>

#include "recipe/recipe_internal.h"

static bool set_text(answer_format *f, recipe_format format, const jtree *text)
{
    f->format = format;
    f->text = text;
    return true;
}

/* A choice of texts as a pattern: each of them escaped, joined by "|". */
static const jtree *choice_pattern(reading *rd, const jtree *list)
{
    jtree *t = take_memory(rd, 1, sizeof *t);
    str text = {0};

    if (!t)
        return NULL;
    for (const jtree *v = list->child; v; v = v->next) {
        if (v != list->child)
            str_putc(&text, '|');
        for (size_t i = 0; i < v->n; i++) {
            if (strchr("\\^$.|?*+()[]{}", v->text[i]) && v->text[i])
                str_putc(&text, '\\');
            str_putc(&text, v->text[i]);
        }
    }
    t->type = JSON_STRING;
    t->text = take_str(rd, &text, &t->n);
    return t->text ? t : NULL;
}

static bool read_structured(reading *rd, const jtree *t, answer_format *f)
{
    enum { S_JSON, S_OBJECT, S_REGEX, S_GRAMMAR, S_CHOICE, N_STRUCTURED };
    static const field fields[N_STRUCTURED] = {{"json", FIELD_ANY, 0, 0, NULL},
                                               {"json_object", FIELD_BOOL, 0, 0, NULL},
                                               {"regex", FIELD_STRING, 0, 0, NULL},
                                               {"grammar", FIELD_STRING, 0, 0, NULL},
                                               {"choice", FIELD_STRINGS, 0, 0, NULL}};
    const place at = {.text = "structured_outputs"};
    const jtree *g[N_STRUCTURED];
    const jtree *pattern;
    di_status st = {0};

    if (!fields_read(rd, t, &at, fields, N_STRUCTURED, g))
        return false;
    if (g[S_JSON]) {
        f->format = RECIPE_FORMAT_JSON_SCHEMA;
        f->schema = g[S_JSON];
        if (g[S_JSON]->type == JSON_STRING) /* also as JSON text */
            f->schema = jtree_parse(g[S_JSON]->text, g[S_JSON]->n, rd->mem, "json", &st);
        return f->schema || parse_fail(rd, &at, "json is no JSON text");
    }
    if (g[S_REGEX])
        return set_text(f, RECIPE_FORMAT_REGEX, g[S_REGEX]);
    if (g[S_GRAMMAR])
        return set_text(f, RECIPE_FORMAT_EBNF, g[S_GRAMMAR]);
    if (g[S_CHOICE]) {
        if (g[S_CHOICE]->n == 0)
            return parse_fail(rd, &at, "choice is empty");
        pattern = choice_pattern(rd, g[S_CHOICE]);
        return pattern && set_text(f, RECIPE_FORMAT_REGEX, pattern);
    }
    if (is_true(g[S_OBJECT]))
        f->format = RECIPE_FORMAT_JSON_OBJECT;
    return true;
}

bool format_extras(reading *rd, const jtree *structured, const jtree *regex, const jtree *ebnf,
                   answer_format *f)
{
    if (f->format != RECIPE_FORMAT_TEXT)
        return true;
    f->member = structured ? "structured_outputs" : regex ? "regex" : ebnf ? "ebnf" : f->member;
    if (structured)
        return read_structured(rd, structured, f);
    if (regex)
        return set_text(f, RECIPE_FORMAT_REGEX, regex);
    if (ebnf)
        return set_text(f, RECIPE_FORMAT_EBNF, ebnf);
    return true;
}
