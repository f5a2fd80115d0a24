/* Golden data of the tokenizer: every case of tokenizer.jsonl, pretok.jsonl and decode.jsonl that
 * lies in a folder (tests/data/recipe/README.md has the formats).
 *
 *   golden_tokenizer [--tokenizer FILE] [--data DIR]
 *
 * Prints each failing case and ends with "N passed, N failed"; exit 1 if any failed, 2 if the input
 * cannot be used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/mem.h"
#include "base/str.h"
#include "tokenizer/tokenizer.h"

#define MAX_FILE_BYTES ((size_t)256 << 20)
#define MAX_PIECES     4096

/* One line of any of the files; absent members are empty. */
typedef struct golden_case {
    bool has_text, has_ids, has_plain, has_bytes, has_pieces, has_whole, has_lossy;
    str text; /* "t", or the bytes of "hex" */
    str lossy, whole;
    tok_ids ids, plain, bytes;
    str pieces[MAX_PIECES];
    size_t n_pieces;
} golden_case;

typedef struct golden {
    tokenizer *tok;
    const char *file;
    size_t line, n_passed, n_failed;
    bool case_failed;
} golden;

static golden_case c; /* one case at a time; its memory is used again */

static void fail(golden *g, const char *what)
{
    if (!g->case_failed)
        fprintf(stderr, "FAILED %s:%zu: %s\n", g->file, g->line, what);
    g->case_failed = true;
}

/* ---- reading a line ---- */

static void push_id(tok_ids *list, int64_t v)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 256;
        int32_t *ids = mem_try_realloc(list->ids, cap, sizeof *ids);

        if (!ids) {
            fprintf(stderr, "out of memory\n");
            exit(2);
        }
        list->ids = ids;
        list->cap = cap;
    }
    list->ids[list->n++] = (int32_t)v;
}

static di_code read_ids(json_read *r, tok_ids *list, bool *has, di_status *st)
{
    di_code rc = DI_OK;
    int64_t v;

    *has = true;
    DI_TRY(json_array(r, st));
    while (json_item(r)) {
        DI_TRY(json_int(r, &v, st));
        push_id(list, v);
    }
done:
    return rc;
}

static di_code read_text(json_read *r, str *out, bool *has, di_status *st)
{
    const char *s;
    size_t n;
    di_code rc = json_string(r, &s, &n, st);

    if (rc == DI_OK) {
        *has = true;
        str_append(out, s, n);
    }
    return rc;
}

static di_code read_hex(json_read *r, di_status *st)
{
    const char *s;
    size_t n;
    di_code rc = json_string(r, &s, &n, st);

    for (size_t i = 0; rc == DI_OK && i + 1 < n; i += 2) {
        char digits[3] = {s[i], s[i + 1], 0};

        str_putc(&c.text, (char)strtoul(digits, NULL, 16));
    }
    c.has_text = true;
    return rc;
}

static di_code read_pieces(json_read *r, di_status *st)
{
    di_code rc = DI_OK;

    c.has_pieces = true;
    DI_TRY(json_array(r, st));
    while (json_item(r)) {
        bool ignored;

        if (c.n_pieces == MAX_PIECES)
            return json_fail(r, st, "more than %d pieces", MAX_PIECES);
        str_clear(&c.pieces[c.n_pieces]);
        DI_TRY(read_text(r, &c.pieces[c.n_pieces++], &ignored, st));
    }
done:
    return rc;
}

static di_code read_case(json_read *r, di_status *st)
{
    di_code rc = DI_OK;
    const char *key;
    size_t n;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        if (json_key_is(key, n, "t"))
            DI_TRY(read_text(r, &c.text, &c.has_text, st));
        else if (json_key_is(key, n, "hex"))
            DI_TRY(read_hex(r, st));
        else if (json_key_is(key, n, "lossy"))
            DI_TRY(read_text(r, &c.lossy, &c.has_lossy, st));
        else if (json_key_is(key, n, "ids"))
            DI_TRY(read_ids(r, &c.ids, &c.has_ids, st));
        else if (json_key_is(key, n, "plain"))
            DI_TRY(read_ids(r, &c.plain, &c.has_plain, st));
        else if (json_key_is(key, n, "bytes"))
            DI_TRY(read_ids(r, &c.bytes, &c.has_bytes, st));
        else if (json_key_is(key, n, "pieces"))
            DI_TRY(read_pieces(r, st));
        else if (json_key_is(key, n, "whole"))
            DI_TRY(read_text(r, &c.whole, &c.has_whole, st));
        else
            DI_TRY(json_skip(r, st));
    }
    rc = json_end(r, st);
done:
    return rc;
}

static void clear_case(void)
{
    c.has_text = c.has_ids = c.has_plain = c.has_bytes = false;
    c.has_pieces = c.has_whole = c.has_lossy = false;
    c.ids.n = c.plain.n = c.bytes.n = c.n_pieces = 0;
    str_clear(&c.text);
    str_clear(&c.lossy);
    str_clear(&c.whole);
}

/* ---- checks ---- */

static bool same_ids(const tok_ids *a, const tok_ids *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0);
}

static bool same_text(const str *a, const str *b)
{
    return a->len == b->len && memcmp(str_text(a), str_text(b), a->len) == 0;
}

static void print_ids(const char *name, const tok_ids *list)
{
    fprintf(stderr, "  %s", name);
    for (size_t i = 0; i < list->n; i++)
        fprintf(stderr, " %d", list->ids[i]);
    fprintf(stderr, "\n");
}

/* Compare ids and show both sides when they differ. */
static void check_ids(golden *g, const char *what, const tok_ids *want, tok_ids *got, di_code rc)
{
    if (rc != DI_OK || !same_ids(want, got)) {
        fail(g, what);
        print_ids("want", want);
        print_ids("got ", got);
    }
    tok_ids_fini(got);
}

static void check_encode(golden *g)
{
    tok_ids got = {0};
    di_code rc = tokenizer_encode(g->tok, str_text(&c.text), c.text.len, true, &got, NULL);
    const tok_ids *plain = c.has_plain ? &c.plain : &c.ids;

    check_ids(g, "ids with added tokens differ", &c.ids, &got, rc);
    rc = tokenizer_encode(g->tok, str_text(&c.text), c.text.len, false, &got, NULL);
    check_ids(g, "ids of plain text differ", plain, &got, rc);
}

/* Decoding what was encoded gives the text back: as it was, or its lossy reading. */
static void check_round_trip(golden *g)
{
    str got = {0};

    tokenizer_decode(g->tok, c.ids.ids, c.ids.n, false, &got);
    if (!same_text(&got, c.has_lossy ? &c.lossy : &c.text))
        fail(g, "decoding the ids does not give the text");
    str_fini(&got);
}

static void check_pieces_of_text(golden *g)
{
    tok_ids got = {0};
    di_code rc = tokenizer_pieces(g->tok, str_text(&c.text), c.text.len, &got, NULL);

    check_ids(g, "lengths of the pieces differ", &c.bytes, &got, rc);
}

static void check_decode(golden *g)
{
    tok_decoder d;
    str got = {0}, all = {0};

    tok_decoder_init(&d, g->tok);
    for (size_t i = 0; i < c.ids.n; i++) {
        str_clear(&got);
        tok_decoder_push(&d, c.ids.ids[i], &got);
        str_append(&all, str_text(&got), got.len);
        if (c.has_pieces && (i >= c.n_pieces || !same_text(&got, &c.pieces[i])))
            fail(g, "incremental decoding gives other pieces");
    }
    tok_decoder_flush(&d, &all);
    tok_decoder_fini(&d);
    str_clear(&got);
    tokenizer_decode(g->tok, c.ids.ids, c.ids.n, false, &got);
    if (!same_text(&got, &c.whole))
        fail(g, "the whole decode differs");
    if (!same_text(&all, &c.whole))
        fail(g, "the pieces and what is held do not make the whole");
    str_fini(&got);
    str_fini(&all);
}

static void check_line(golden *g, const char *text, size_t n)
{
    json_read r;
    di_status st = {0};

    clear_case();
    g->case_failed = false;
    json_open(&r, text, n, g->file);
    if (read_case(&r, &st) != DI_OK) {
        fail(g, st.message);
    } else if (c.has_whole && c.has_ids) {
        check_decode(g);
    } else if (c.has_text && c.has_bytes) {
        check_pieces_of_text(g);
    } else if (c.has_text && c.has_ids) {
        check_encode(g);
        check_round_trip(g);
    } else {
        fail(g, "a line of no known kind");
    }
    json_close(&r);
    g->n_passed += !g->case_failed;
    g->n_failed += g->case_failed;
}

/* ---- files ---- */

/* Run over one file; an absent one is no failure. False when it cannot be read. */
static bool run_file(golden *g, const char *dir, const char *name)
{
    char path[4096];
    di_status st = {0};
    char *text;
    size_t n, at = 0;
    FILE *probe;

    if (path_join(path, sizeof path, dir, name, &st) != DI_OK) {
        fprintf(stderr, "%s\n", st.message);
        return false;
    }
    probe = fopen(path, "rb");
    if (!probe)
        return true;
    fclose(probe);
    if (file_read(&text, &n, path, MAX_FILE_BYTES, &st) != DI_OK) {
        fprintf(stderr, "%s\n", st.message);
        return false;
    }
    g->file = name;
    for (g->line = 1; at < n; g->line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;

        if (len > 0)
            check_line(g, text + at, len);
        at += len + 1;
    }
    mem_free(text);
    return true;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"tokenizer.jsonl", "pretok.jsonl", "decode.jsonl"};
    const char *file = DI_DATA_DIR "/tokenizer-v4/tokenizer.json", *dir = DI_DATA_DIR "/recipe";
    golden g = {0};
    di_status st = {0};
    bool ok = true;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tokenizer") == 0 && i + 1 < argc) {
            file = argv[++i];
        } else if (strcmp(argv[i], "--data") == 0 && i + 1 < argc) {
            dir = argv[++i];
        } else {
            fprintf(stderr, "usage: golden_tokenizer [--tokenizer FILE] [--data DIR]\n");
            return 2;
        }
    }
    if (tokenizer_load(&g.tok, file, &st) != DI_OK) {
        fprintf(stderr, "%s\n", st.message);
        return 2;
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        ok = run_file(&g, dir, names[i]) && ok;
    tokenizer_free(g.tok);
    printf("%zu passed, %zu failed\n", g.n_passed, g.n_failed);
    return !ok ? 2 : g.n_failed > 0;
}
