/* Throughput of the tokenizer on 10 MB of mixed text, one thread.
 *
 *   bench_tokenizer [--tokenizer FILE] [--data FILE] [--rounds N] [--write TEXT IDS]
 *
 * Prints CSV rows. --write leaves the text (documents end with a 0 byte) and its ids (int32, -1
 * behind each document) for bench/tokenizer_peer.py, which times the `tokenizers` package on the
 * same text in the same run. The text is made here, the same every time: lines of the golden data
 * (code, prose in 40 languages, numbers, emoji, oddities) and sentences of words put together from
 * the vocabulary, frequent tokens more often. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

#define TEXT_BYTES ((size_t)10000000)
#define DOC_BYTES  2000 /* documents end at the first line past this */

typedef struct bench {
    tokenizer *tok;
    str lines; /* golden texts, each behind its length (uint32_t) */
    size_t *line_at, n_lines;
    str text; /* documents, each ends with a 0 byte */
    size_t n_docs;
    uint32_t counter;
} bench;

static void stop(const char *message)
{
    fprintf(stderr, "bench_tokenizer: %s\n", message);
    exit(2);
}

static double seconds(void)
{
    return (double)clock_ns() * 1e-9;
}

/* Uniform in [0, 1), the next of a fixed sequence. */
static double draw(bench *b)
{
    philox_block v = philox4x32((philox_block){{b->counter++, 0, 0, 0}}, 20261130u, 0);

    return v.v[0] * 0x1p-32;
}

/* ---- the text ---- */

/* Keep the "t" of one line of tokenizer.jsonl, unless it is long or holds a 0 byte. */
static void keep_line(bench *b, const char *json, size_t n)
{
    json_read r;
    const char *key, *text;
    size_t n_key, n_text;

    json_open(&r, json, n, "golden data");
    if (json_object(&r, NULL) == DI_OK && json_key(&r, &key, &n_key) &&
        json_key_is(key, n_key, "t") && json_string(&r, &text, &n_text, NULL) == DI_OK &&
        n_text > 0 && n_text < 1500 && !memchr(text, 0, n_text)) {
        uint32_t len = (uint32_t)n_text;

        b->line_at = mem_try_realloc(b->line_at, b->n_lines + 1, sizeof *b->line_at);
        if (!b->line_at)
            stop("out of memory");
        b->line_at[b->n_lines++] = b->lines.len;
        str_append(&b->lines, &len, sizeof len);
        str_append(&b->lines, text, n_text);
    }
    json_close(&r);
}

static void read_lines(bench *b, const char *path)
{
    char *json;
    size_t n;
    di_status st = {0};

    if (file_read(&json, &n, path, (size_t)64 << 20, &st) != DI_OK)
        stop(st.message);
    for (size_t at = 0; at < n;) {
        const char *end = memchr(json + at, '\n', n - at);
        size_t len = end ? (size_t)(end - json) - at : n - at;

        keep_line(b, json + at, len);
        at += len + 1;
    }
    mem_free(json);
    if (!b->n_lines)
        stop("no texts in the golden data");
}

static void add_golden_line(bench *b)
{
    size_t at = b->line_at[(size_t)(draw(b) * (double)b->n_lines)];
    uint32_t len;

    memcpy(&len, b->lines.data + at, sizeof len);
    str_append(&b->text, b->lines.data + at + sizeof len, len);
    str_putc(&b->text, '\n');
}

/* A sentence of vocabulary tokens that are text by themselves; ids are in order of frequency, and
 * the draw is uniform in the logarithm of the id. */
static void add_sentence(bench *b)
{
    int n_words = 5 + (int)(draw(b) * 20);
    double n_ids = tokenizer_n_ids(b->tok);

    for (int w = 0; w < n_words;) {
        int32_t id = (int32_t)(exp(draw(b) * log(n_ids / 256)) * 256) - 1;
        size_t n;
        const char *bytes = tokenizer_bytes(b->tok, id, &n);

        if (!bytes || tokenizer_is_special(b->tok, id) || !utf8_valid(bytes, n))
            continue;
        str_append(&b->text, bytes, n);
        w++;
    }
    str_puts(&b->text, draw(b) < 0.5 ? ".\n" : " ");
}

static void make_text(bench *b)
{
    size_t start = 0;

    while (b->text.len < TEXT_BYTES) {
        if (draw(b) < 0.5)
            add_golden_line(b);
        else
            add_sentence(b);
        if (b->text.len - start >= DOC_BYTES) {
            str_putc(&b->text, 0);
            b->n_docs++;
            start = b->text.len;
        }
    }
    str_putc(&b->text, 0);
    b->n_docs++;
    if (!str_ok(&b->text))
        stop("out of memory");
}

/* ---- the measurements ---- */

/* Encode every document; returns the number of ids, which also go to `file`. */
static size_t encode_all(const bench *b, tok_ids *ids, FILE *file)
{
    size_t n_ids = 0;

    for (size_t at = 0; at < b->text.len;) {
        size_t len = strlen(b->text.data + at);
        static const int32_t end = -1;

        ids->n = 0;
        if (tokenizer_encode(b->tok, b->text.data + at, len, true, ids, NULL) != DI_OK)
            stop("out of memory");
        n_ids += ids->n;
        if (file && (fwrite(ids->ids, sizeof *ids->ids, ids->n, file) != ids->n ||
                     fwrite(&end, sizeof end, 1, file) != 1))
            stop("could not write the ids");
        at += len + 1;
    }
    return n_ids;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static void row(const char *name, const char *what, double value, const char *unit)
{
    printf("%s,%s,1,%.4g,%s,,\n", name, what, value, unit);
}

static void measure(const bench *b, const char *file, int rounds)
{
    double load[64], encode[64], decode[64], mb = (double)(b->text.len - b->n_docs) * 1e-6;
    tok_ids ids = {0}, doc = {0};
    str text = {0};

    if (tokenizer_encode(b->tok, b->text.data, b->text.len, true, &ids, NULL) != DI_OK)
        stop("out of memory");
    for (int i = 0; i < rounds; i++) {
        double start = seconds();
        tokenizer *t;

        if (tokenizer_load(&t, file, NULL) != DI_OK)
            stop("could not load the tokenizer again");
        load[i] = seconds() - start;
        tokenizer_free(t);
        start = seconds();
        encode_all(b, &doc, NULL);
        encode[i] = seconds() - start;
        start = seconds();
        str_clear(&text);
        tokenizer_decode(b->tok, ids.ids, ids.n, false, &text);
        decode[i] = seconds() - start;
    }
    row("tokenizer_load", "file", median(load, rounds) * 1e3, "ms");
    row("tokenizer_encode", "mixed_10MB", mb / median(encode, rounds), "MB/s");
    row("tokenizer_decode", "mixed_10MB", mb / median(decode, rounds), "MB/s");
    tok_ids_fini(&ids);
    tok_ids_fini(&doc);
    str_fini(&text);
}

static void write_files(const bench *b, const char *text_path, const char *ids_path)
{
    FILE *f = fopen(text_path, "wb");
    tok_ids ids = {0};

    if (!f || fwrite(b->text.data, 1, b->text.len, f) != b->text.len || fclose(f) != 0)
        stop("could not write the text");
    f = fopen(ids_path, "wb");
    if (!f)
        stop("could not write the ids");
    encode_all(b, &ids, f);
    if (fclose(f) != 0)
        stop("could not write the ids");
    tok_ids_fini(&ids);
}

int main(int argc, char **argv)
{
    const char *file = DI_DATA_DIR "/tokenizer-v4/tokenizer.json";
    const char *data = DI_DATA_DIR "/recipe/tokenizer.jsonl", *text = NULL, *ids = NULL;
    int rounds = 5;
    bench b = {0};
    di_status st = {0};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tokenizer") == 0 && i + 1 < argc)
            file = argv[++i];
        else if (strcmp(argv[i], "--data") == 0 && i + 1 < argc)
            data = argv[++i];
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--write") == 0 && i + 2 < argc) {
            text = argv[++i];
            ids = argv[++i];
        } else
            stop("usage: [--tokenizer FILE] [--data FILE] [--rounds N] [--write TEXT IDS]");
    }
    if (rounds < 1 || rounds > 64)
        stop("--rounds must be 1 to 64");
    if (tokenizer_load(&b.tok, file, &st) != DI_OK)
        stop(st.message);
    read_lines(&b, data);
    make_text(&b);
    if (text)
        write_files(&b, text, ids);
    else
        measure(&b, file, rounds);
    tokenizer_free(b.tok);
    str_fini(&b.lines);
    str_fini(&b.text);
    mem_free(b.line_at);
    return 0;
}
