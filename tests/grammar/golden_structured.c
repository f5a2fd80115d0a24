/* golden_structured --data DIR --tokenizer FILE: every *.jsonl of DIR against the constraints.
 *
 * Cases are schemas, regexes, grammars and tool sets with texts that must and must not fit, and
 * event scripts (protocol.jsonl). A text that must fit is encoded, and every token has to be in its
 * mask; one that must not fit may break off anywhere, or not be complete. Prints each failing case
 * and ends with "N passed, N failed". Exit status 1 when one failed, 77 without the library. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "grammar/grammar.h"
#include "grammar/stree.h"

#define MAX_FILE  ((size_t)64 << 20)
#define MAX_DRAFT 64
#define SLOW_NS   2000000000ull

typedef struct golden {
    tokenizer *tok;
    grammar *g;
    int32_t eos;
    uint32_t *row;
    size_t words;
    const char *file;
    const snode *tools; /* the tool set of dsml.jsonl, for protocol.jsonl */
    long passed, failed, unsound, tight, slow;
} golden;

/* ---- cases ---- */

static void complain(golden *t, const snode *c, const char *what, const char *text)
{
    const snode *id = stree_get(c, "id");

    printf("%s %s: %s%s%.200s\n", t->file, id ? id->text : "?", what, *text ? ": " : "", text);
}

static void text_of(const snode *v, str *out)
{
    if (v->type == JSON_STRING)
        str_append(out, v->text, v->n_text);
    else
        stree_write(v, out);
}

static tok_ids encode(const golden *t, const char *text, size_t n, bool added)
{
    tok_ids ids = {0};

    tokenizer_encode(t->tok, text, n, added, &ids, NULL);
    return ids;
}

static bool in_row(const uint32_t *row, int32_t id)
{
    return row[id / 32] >> (id % 32) & 1;
}

/* Whether a text may be written, and is complete. by_mask: as a model writes it; else any spelling
 * in tokens. */
static bool fits(golden *t, grammar_prog *p, const snode *text, bool added, bool by_mask)
{
    tok_ids ids = encode(t, text->text, text->n_text, added);
    grammar_state *s = NULL;
    bool ok = grammar_state_new(p, NULL, &s, NULL) == DI_OK;

    for (size_t i = 0; i < ids.n && ok; i++) {
        ok = !by_mask || (grammar_fill(s, t->row) && in_row(t->row, ids.ids[i]));
        ok = ok && grammar_accept(s, ids.ids[i]);
    }
    ok = ok && grammar_fill(s, t->row) && in_row(t->row, t->eos) && grammar_accept(s, t->eos);
    grammar_state_free(s);
    tok_ids_fini(&ids);
    return ok;
}

static bool listed(const snode *list, const snode *text)
{
    for (const snode *v = list ? list->child : NULL; v; v = v->next)
        if (v->n_text == text->n_text && memcmp(v->text, text->text, v->n_text) == 0)
            return true;
    return false;
}

static bool check_texts(golden *t, const snode *c, grammar_prog *p, bool added)
{
    const snode *accept = stree_get(c, "accept"), *reject = stree_get(c, "reject");
    const snode *may_fail = stree_get(c, "accept_may_fail");
    bool ok = true;

    for (const snode *v = accept ? accept->child : NULL; v; v = v->next)
        if (!listed(may_fail, v) && !fits(t, p, v, added, true)) {
            complain(t, c, "does not take", v->text);
            t->tight++;
            ok = false;
        }
    for (const snode *v = reject ? reject->child : NULL; v; v = v->next)
        if (fits(t, p, v, added, false)) {
            complain(t, c, "takes", v->text);
            t->unsound++;
            ok = false;
        }
    return ok;
}

/* The constraint of a case; spec->text points into *text. */
static bool make_spec(const snode *c, grammar_spec *spec, str *text)
{
    const snode *kind = stree_get(c, "kind"), *body = stree_get(c, "spec"), *choice, *parallel;

    *spec = (grammar_spec){.strict = true};
    if (stree_get(c, "spec_text"))
        body = stree_get(c, "spec_text");
    if (!body)
        return false;
    if (stree_is(kind, "dsml_v4_1")) {
        choice = stree_get(body, "tool_choice");
        parallel = stree_get(body, "parallel_tool_calls");
        spec->strict = false;
        spec->kind = !choice || stree_is(choice, "auto") ? GRAMMAR_TOOL_CALL
                     : stree_is(choice, "none")          ? GRAMMAR_REGEX
                                                         : GRAMMAR_TOOL_CALL_REQUIRED;
        spec->single_call = parallel && parallel->type == JSON_BOOL && !parallel->flag;
        if (choice && stree_get(choice, "function"))
            spec->tool = stree_get(stree_get(choice, "function"), "name")->text;
        body = stree_get(body, "tools");
        if (!body)
            return false;
        if (spec->kind == GRAMMAR_REGEX) { /* any text; the engine bans the token of calls */
            str_puts(text, "(?s:.*)");
            body = NULL;
        }
    } else if (stree_is(kind, "json_schema")) {
        spec->kind = GRAMMAR_JSON;
        if (body->type == JSON_STRING && body->key && strcmp(body->key, "spec") == 0) {
            stree_write(body, text);
            body = NULL;
        }
    } else {
        spec->kind = stree_is(kind, "regex") ? GRAMMAR_REGEX : GRAMMAR_EBNF;
    }
    if (body)
        text_of(body, text);
    spec->text = str_text(text);
    spec->n = text->len;
    return true;
}

static bool check_case(golden *t, const snode *c)
{
    const snode *expect = stree_get(c, "expect");
    grammar_prog *p = NULL;
    grammar_spec spec;
    grammar_detail d;
    di_status st = {0};
    str text = {0};
    uint64_t began = clock_ns();
    bool ok = make_spec(c, &spec, &text);
    di_code rc = ok ? grammar_compile(t->g, &spec, &p, &d, &st) : DI_E_INVALID;

    if (!ok) {
        complain(t, c, "the case has no specification", "");
    } else if (clock_ns() - began > SLOW_NS) {
        complain(t, c, "compiling takes too long", "");
        t->slow++;
        ok = false;
    } else if (rc == DI_OK) {
        ok = stree_is(expect, "ok") || stree_is(expect, "ok_or_refuse");
        if (!ok)
            complain(t, c, "should be refused", "");
        else
            ok = check_texts(t, c, p, stree_is(stree_get(c, "kind"), "dsml_v4_1"));
    } else {
        ok = rc == DI_E_INVALID && !stree_is(expect, "ok");
        if (!ok)
            complain(t, c, "is refused", st.message);
    }
    grammar_prog_unref(p);
    str_fini(&text);
    return ok;
}

/* ---- event scripts ---- */

typedef struct script {
    golden *t;
    const snode *c;
    grammar_state *s;
    uint32_t *rows; /* of the last draft */
    int n_rows, end[MAX_DRAFT + 1];
    bool ok;
} script;

/* A token by its text: <EOS>, <T:Name>, an added token, or one of the vocabulary. */
static int32_t token_of(const golden *t, const snode *v)
{
    char name[128];
    int32_t id = -1;
    tok_ids ids;

    if (stree_is(v, "<EOS>"))
        return t->eos;
    if (strncmp(v->text, "<T:", 3) == 0) {
        int n = (int)v->n_text - 4;

        snprintf(name, sizeof name, "<｜%.*s｜>", n, v->text + 3);
        id = tokenizer_added_id(t->tok, name);
        snprintf(name, sizeof name, "｜%.*s｜", n, v->text + 3);
        return id >= 0 ? id : tokenizer_added_id(t->tok, name);
    }
    ids = encode(t, v->text, v->n_text, true);
    if (ids.n == 1)
        id = ids.ids[0];
    tok_ids_fini(&ids);
    return id;
}

/* The token, or the first one of a text that is several. */
static int32_t first_token(const golden *t, const snode *v)
{
    int32_t id = token_of(t, v);
    tok_ids ids;

    if (id >= 0)
        return id;
    ids = encode(t, v->text, v->n_text, true);
    id = ids.n ? ids.ids[0] : -1;
    tok_ids_fini(&ids);
    return id;
}

static void expect(script *s, bool ok, const char *what, const char *text)
{
    if (!ok)
        complain(s->t, s->c, what, text);
    s->ok = s->ok && ok;
}

/* "allow" and "deny" of a row. */
static void check_row(script *s, const snode *rule, const uint32_t *row)
{
    static const char *const lists[] = {"allow", "deny"};

    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        const snode *list = stree_get(rule, lists[i]);

        for (const snode *v = list ? list->child : NULL; v; v = v->next) {
            int32_t id = first_token(s->t, v);

            expect(s, id >= 0 && in_row(row, id) == (i == 0), i ? "should be masked" : "is masked",
                   v->text);
        }
    }
}

static void feed(script *s, const snode *text, bool added)
{
    tok_ids ids = encode(s->t, text->text, text->n_text, added);
    bool ok = true;

    for (size_t i = 0; i < ids.n && ok; i++)
        ok = grammar_accept(s->s, ids.ids[i]);
    expect(s, ok, "does not take", text->text);
    tok_ids_fini(&ids);
}

/* Tokens of a list of texts; end[i] = tokens of the first i texts. A text that is no token by
 * itself is several. Returns the number of texts. */
static int tokens_of(script *s, const snode *list, int32_t *out, int *end)
{
    int n = 0;

    end[0] = 0;
    for (const snode *v = list->child; v && n < MAX_DRAFT; v = v->next, n++) {
        int32_t id = token_of(s->t, v);
        tok_ids ids = id >= 0 ? (tok_ids){0} : encode(s->t, v->text, v->n_text, true);

        end[n + 1] = end[n];
        expect(s, id >= 0 || (end[n] + (int)ids.n < MAX_DRAFT), "the draft is too long", v->text);
        if (id >= 0)
            out[end[n + 1]++] = id;
        for (size_t i = 0; i < ids.n && end[n + 1] < MAX_DRAFT; i++)
            out[end[n + 1]++] = ids.ids[i];
        tok_ids_fini(&ids);
    }
    return n;
}

static void run_draft(script *s, const snode *step)
{
    const snode *e = stree_get(step, "expect"), *want = stree_get(e, "valid_prefix");
    const snode *rows = stree_get(e, "rows");
    int32_t draft[MAX_DRAFT];
    int n = tokens_of(s, stree_get(step, "draft"), draft, s->end), k = s->end[n], m, texts = 0;

    s->rows = mem_try_realloc(s->rows, (size_t)(k + 1) * s->t->words, sizeof *s->rows);
    m = s->rows ? grammar_fill_draft(s->s, draft, k, s->rows) : -1;
    while (texts < n && s->end[texts + 1] <= m)
        texts++;
    s->n_rows = texts + 1;
    if (want)
        expect(s, texts == atoi(want->text), "valid prefix is not", want->text);
    if (rows)
        expect(s, texts + 1 == atoi(rows->text), "number of rows is not", rows->text);
    expect(s, grammar_valid_prefix(s->s, draft, k) == m, "two prefixes", "");
}

static void check_rows(script *s, const snode *list)
{
    for (const snode *v = list->child; v; v = v->next) {
        int idx = atoi(stree_get(v, "row")->text);

        expect(s, idx < s->n_rows, "there is no such row", stree_get(v, "row")->text);
        if (idx < s->n_rows)
            check_row(s, v, s->rows + (size_t)s->end[idx] * s->t->words);
    }
}

/* The row must be the same alone, replayed and in a copy. */
static void check_same(script *s)
{
    size_t n = s->t->words;
    uint32_t *other = mem_try_calloc(n, sizeof *other);
    grammar_state *copy = grammar_state_clone(s->s);

    grammar_fill(s->s, s->t->row);
    expect(s, other && copy, "no memory", "");
    if (other && copy) {
        grammar_fill(copy, other);
        expect(s, memcmp(other, s->t->row, n * sizeof *other) == 0, "a copy has another row", "");
    }
    grammar_state_free(copy);
    mem_free(other);
}

static void check_finish(script *s, const snode *e)
{
    const snode *finished = stree_get(e, "finished"), *calls = stree_get(e, "tool_calls");

    if (finished)
        expect(s, grammar_must_stop(s->s) == finished->flag, "finished is the other way", "");
    if (calls)
        expect(s, grammar_in_calls(s->s) == (atoi(calls->text) > 0), "calls are open or not", "");
}

static void run_step(script *s, const snode *step)
{
    const snode *v;
    int32_t ids[MAX_DRAFT];

    if ((v = stree_get(step, "feed")))
        feed(s, v, true);
    if ((v = stree_get(step, "feed_bytes")))
        feed(s, v, false);
    if ((v = stree_get(step, "mask"))) {
        expect(s, grammar_fill(s->s, s->t->row), "dead end", "");
        check_row(s, v, s->t->row);
    }
    if (stree_get(step, "draft"))
        run_draft(s, step);
    if ((v = stree_get(step, "rows")))
        check_rows(s, v);
    if ((v = stree_get(step, "commit"))) {
        int n = tokens_of(s, v, ids, s->end);

        for (int i = 0; i < s->end[n]; i++)
            expect(s, grammar_accept(s->s, ids[i]), "commit refused", "");
    }
    if ((v = stree_get(step, "rollback")))
        grammar_rollback(s->s, atoi(v->text));
    if (stree_get(step, "same_mask_when"))
        check_same(s);
    if (!stree_get(step, "draft"))
        check_finish(s, stree_get(step, "expect"));
}

static bool check_script(golden *t, const snode *c)
{
    const snode *con = stree_get(c, "constraint"), *schema = stree_get(con, "schema");
    const snode *tail = stree_get(c, "prompt_tail"), *steps = stree_get(c, "steps");
    const snode *kind = stree_get(con, "kind");
    script s = {.t = t, .c = c, .ok = true};
    grammar_spec spec = {.strict = true};
    grammar_prog *p = NULL;
    di_status st = {0};
    str text = {0};

    if (stree_is(kind, "tool_call")) {
        spec.kind = GRAMMAR_TOOL_CALL;
        spec.strict = false;
        schema = t->tools;
    } else {
        spec.kind = stree_is(kind, "regex") ? GRAMMAR_REGEX : GRAMMAR_JSON;
    }
    if (schema)
        text_of(schema, &text);
    spec.text = str_text(&text);
    spec.n = text.len;
    if (grammar_compile(t->g, &spec, &p, NULL, &st) != DI_OK)
        expect(&s, false, "is refused", st.message);
    if (p && grammar_state_new(p, &(grammar_start){.last_token = tail ? token_of(t, tail) : -1},
                               &s.s, NULL) == DI_OK)
        for (const snode *step = steps ? steps->child : NULL; step && s.ok; step = step->next)
            run_step(&s, step);
    grammar_state_free(s.s);
    grammar_prog_unref(p);
    mem_free(s.rows);
    str_fini(&text);
    return s.ok;
}

/* ---- files ---- */

static void check_line(golden *t, const char *line, size_t n, arena *keep)
{
    arena *mem = arena_new(0);
    di_status st = {0};
    snode *c = NULL;
    bool ok;

    if (stree_read(mem, line, n, t->file, &c, &st) != DI_OK) {
        printf("%s: %s\n", t->file, st.message);
        ok = false;
    } else if (stree_is(stree_get(c, "kind"), "protocol")) {
        ok = check_script(t, c);
    } else {
        ok = check_case(t, c);
    }
    if (c && !t->tools && stree_is(stree_get(c, "kind"), "dsml_v4_1") &&
        stree_read(keep, line, n, t->file, &c, NULL) == DI_OK)
        t->tools = stree_get(stree_get(c, "spec"), "tools");
    t->passed += ok;
    t->failed += !ok;
    arena_free(mem);
}

static di_code check_file(golden *t, const char *dir, const char *name, arena *keep, di_status *st)
{
    char path[4096], *text = NULL;
    long before = t->passed, failed = t->failed;
    uint64_t began = clock_ns();
    size_t n = 0;
    di_code rc;

    DI_TRY(path_join(path, sizeof path, dir, name, st));
    DI_TRY(file_read(&text, &n, path, MAX_FILE, st));
    t->file = name;
    for (const char *at = text, *end = text + n, *eol; at < end; at = eol + 1) {
        eol = memchr(at, '\n', (size_t)(end - at));
        eol = eol ? eol : end;
        if (eol > at)
            check_line(t, at, (size_t)(eol - at), keep);
    }
    printf("%-24s %5ld of %ld right, %.1f s\n", name, t->passed - before,
           t->passed - before + t->failed - failed, (double)(clock_ns() - began) * 1e-9);
    mem_free(text);
done:
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static di_code check_folder(golden *t, const char *dir, di_status *st)
{
    DIR *d = opendir(dir);
    char *names[256];
    int n = 0;
    arena *keep = arena_new(0);
    di_code rc = DI_OK;

    if (!d)
        return di_fail(st, DI_E_IO, "could not open the folder \"%s\"", dir);
    for (struct dirent *e; (e = readdir(d)) && n < 256;) {
        size_t len = strlen(e->d_name);

        if (len > 6 && strcmp(e->d_name + len - 6, ".jsonl") == 0)
            names[n++] = mem_try_strdup(e->d_name);
    }
    closedir(d);
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (int i = 0; i < n; i++) {
        if (rc == DI_OK)
            rc = check_file(t, dir, names[i], keep, st);
        mem_free(names[i]);
    }
    arena_free(keep);
    return rc;
}

int main(int argc, char **argv)
{
    const char *dir = NULL, *file = NULL;
    golden t = {0};
    di_status st = {0};
    di_code rc;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--data") == 0)
            dir = argv[i + 1];
        else if (strcmp(argv[i], "--tokenizer") == 0)
            file = argv[i + 1];
    }
    if (!dir || !file) {
        fprintf(stderr, "usage: golden_structured --data DIR --tokenizer FILE\n");
        return 2;
    }
    DI_TRY(tokenizer_load(&t.tok, file, &st));
    t.eos = tokenizer_added_id(t.tok, "<｜end▁of▁sentence｜>");
    DI_TRY(grammar_new(&t.g, t.tok, tokenizer_n_ids(t.tok), &t.eos, 1, NULL, &st));
    rc = grammar_prepare(t.g, &st);
    if (rc == DI_E_UNSUPPORTED) {
        printf("skipped: %s\n", st.message);
        grammar_free(t.g);
        tokenizer_free(t.tok);
        return 77;
    }
    if (rc != DI_OK)
        goto done;
    t.words = ((size_t)tokenizer_n_ids(t.tok) + 31) / 32;
    t.row = mem_try_calloc(t.words, sizeof *t.row);
    DI_TRY(check_folder(&t, dir, &st));
    printf("unsound %ld, too tight %ld, too slow %ld\n", t.unsound, t.tight, t.slow);
    printf("%ld passed, %ld failed\n", t.passed, t.failed);
done:
    if (rc != DI_OK)
        fprintf(stderr, "golden_structured: %s\n", st.message);
    grammar_free(t.g);
    tokenizer_free(t.tok);
    mem_free(t.row);
    return rc != DI_OK ? 2 : t.failed || !t.passed;
}
