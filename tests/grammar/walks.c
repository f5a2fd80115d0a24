/* grammar_walks --data FILE --tokenizer FILE --walks N: random answers of every schema of FILE.
 *
 * N walks a schema, each a random choice among the allowed tokens until the end of sequence, at
 * most 400 of them. Prints what was finished, one {"id", "text"} a line, for test_walks.py, which
 * checks it with another validator. Exit status 77 without the library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/rng.h"
#include "grammar/grammar.h"
#include "grammar/stree.h"

#define MAX_WALK 400

typedef struct walker {
    tokenizer *tok;
    grammar *g;
    int32_t eos;
    int vocab;
    uint32_t *row;
    uint32_t drawn;
} walker;

static uint32_t draw(walker *w, uint32_t n)
{
    return n ? philox4x32((philox_block){{w->drawn++, 0, 0, 0}}, 9, 9).v[0] % n : 0;
}

static bool in_row(const walker *w, int32_t id)
{
    return w->row[id / 32] >> (id % 32) & 1;
}

/* The end half the time that it is allowed; short tokens more often, or strings would hardly end.
 */
static int32_t pick(walker *w)
{
    int32_t best = -1;
    size_t best_len = SIZE_MAX, n;

    if (in_row(w, w->eos) && draw(w, 2))
        return w->eos;
    for (int tries = 0, found = 0; tries < 400000 && found < 3; tries++) {
        int32_t id = (int32_t)draw(w, (uint32_t)w->vocab);

        if (!in_row(w, id))
            continue;
        found++;
        (void)tokenizer_bytes(w->tok, id, &n);
        if (n < best_len) {
            best = id;
            best_len = n;
        }
    }
    return best;
}

static void walk(walker *w, grammar_prog *p, const snode *id)
{
    int32_t out[MAX_WALK];
    int n = 0;
    bool ended = false;
    grammar_state *s;
    str text = {0}, line = {0};
    json_write j = {.out = &line};

    if (grammar_state_new(p, NULL, &s, NULL) != DI_OK)
        exit(2);
    while (n < MAX_WALK && !ended && grammar_fill(s, w->row)) {
        int32_t token = pick(w);

        if (token < 0 || !grammar_accept(s, token))
            break;
        ended = token == w->eos;
        out[n++] = token;
    }
    if (grammar_state_error(s)) {
        fprintf(stderr, "%s: %s\n", id->text, grammar_state_error(s));
        exit(1);
    }
    grammar_state_free(s);
    if (!ended)
        return;
    tokenizer_decode(w->tok, out, (size_t)(n - 1), false, &text);
    jw_object(&j);
    jw_key(&j, "id");
    jw_cstr(&j, id->text);
    jw_key(&j, "text");
    jw_string(&j, str_text(&text), text.len);
    jw_end(&j);
    printf("%s\n", str_text(&line));
    str_fini(&text);
    str_fini(&line);
}

static void walk_schema(walker *w, const char *line, size_t n, int walks)
{
    arena *mem = arena_new(0);
    str text = {0};
    grammar_spec spec = {.kind = GRAMMAR_JSON, .strict = true};
    grammar_prog *p;
    snode *c, *schema;

    if (stree_read(mem, line, n, "data", &c, NULL) == DI_OK && (schema = stree_get(c, "spec")) &&
        schema->type != JSON_STRING && stree_get(c, "id")) {
        stree_write(schema, &text);
        spec.text = str_text(&text);
        spec.n = text.len;
        if (grammar_compile(w->g, &spec, &p, NULL, NULL) == DI_OK) {
            for (int i = 0; i < walks; i++)
                walk(w, p, stree_get(c, "id"));
            grammar_prog_unref(p);
        }
    }
    str_fini(&text);
    arena_free(mem);
}

int main(int argc, char **argv)
{
    const char *data = NULL, *file = NULL;
    char *text;
    size_t n;
    int walks = 1;
    walker w = {0};
    di_status st = {0};

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--data") == 0)
            data = argv[i + 1];
        else if (strcmp(argv[i], "--tokenizer") == 0)
            file = argv[i + 1];
        else if (strcmp(argv[i], "--walks") == 0)
            walks = atoi(argv[i + 1]);
    }
    if (!data || !file || tokenizer_load(&w.tok, file, &st) != DI_OK ||
        file_read(&text, &n, data, (size_t)64 << 20, &st) != DI_OK) {
        fprintf(stderr, "usage: grammar_walks --data FILE --tokenizer FILE --walks N\n%s\n",
                st.message);
        return 2;
    }
    w.vocab = tokenizer_n_ids(w.tok);
    w.eos = tokenizer_added_id(w.tok, "<｜end▁of▁sentence｜>");
    w.row = mem_try_calloc(((size_t)w.vocab + 31) / 32, sizeof *w.row);
    if (!w.row || grammar_new(&w.g, w.tok, w.vocab, &w.eos, 1, NULL, &st) != DI_OK)
        return 2;
    if (grammar_prepare(w.g, &st) != DI_OK) {
        fprintf(stderr, "%s\n", st.message);
        return 77;
    }
    for (const char *at = text, *end = text + n, *eol; at < end; at = eol + 1) {
        eol = memchr(at, '\n', (size_t)(end - at));
        eol = eol ? eol : end;
        walk_schema(&w, at, (size_t)(eol - at), walks);
    }
    grammar_free(w.g);
    tokenizer_free(w.tok);
    mem_free(w.row);
    mem_free(text);
    return 0;
}
