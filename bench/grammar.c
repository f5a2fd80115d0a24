/* Times of constraints: masks, tokens, drafts, compilation, on the released vocabulary.
 *
 *   bench_grammar [--tokenizer FILE] [--data DIR] [--clock cpu|wall]
 *
 * --clock cpu: time of the calling thread, for a busy machine.
 *
 * The work is every schema of the golden data with the texts that fit it. Masks are timed on a
 * first pass (cold) and on a second one with matchers that have seen the states (warm). Prints CSV
 * rows: name,case,threads,value,unit,limit,value/limit. Without the library there is nothing to
 * measure, and one row says so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "grammar/grammar.h"
#include "grammar/stree.h"

#define N_DRAFT  4
#define MAX_FILE ((size_t)64 << 20)

/* Times of one kind, in nanoseconds. */
typedef struct times {
    uint64_t *ns;
    size_t n, cap;
} times;

typedef struct work {
    grammar_prog *prog;
    int32_t *ids;
    int n;
} work;

typedef struct bench {
    tokenizer *tok;
    grammar *g;
    int32_t eos;
    size_t words;
    uint32_t *rows;
    arena *mem;
    work *work;
    int n_work, cap_work;
    times compile, cold, warm, accept, draft, create;
} bench;

static void stop(const char *message)
{
    fprintf(stderr, "bench_grammar: %s\n", message);
    exit(2);
}

static clockid_t which_clock = CLOCK_MONOTONIC;

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(which_clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void note(times *t, uint64_t since)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 4096;
        t->ns = mem_try_realloc(t->ns, t->cap, sizeof *t->ns);
        if (!t->ns)
            stop("out of memory");
    }
    t->ns[t->n++] = now_ns() - since;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* One row a percentile; limits in microseconds, 0 = none. */
static void report(times *t, const char *name, double p50, double p99, double most)
{
    const double at[] = {0.5, 0.99, 1}, limit[] = {p50, p99, most};
    static const char *const names[] = {"p50", "p99", "max"};

    qsort(t->ns, t->n, sizeof *t->ns, by_value);
    for (size_t i = 0; i < 3 && t->n; i++) {
        size_t k = (size_t)(at[i] * (double)(t->n - 1));
        double us = (double)t->ns[k] * 1e-3;

        if (limit[i] > 0)
            printf("%s,%s,1,%.4g,us,%g,%.3g\n", name, names[i], us, limit[i], us / limit[i]);
        else
            printf("%s,%s,1,%.4g,us,,\n", name, names[i], us);
    }
    mem_free(t->ns);
}

/* ---- work ---- */

static void add_texts(bench *b, const snode *texts, grammar_prog *p)
{
    for (const snode *v = texts ? texts->child : NULL; v; v = v->next) {
        tok_ids ids = {0};

        if (b->n_work == b->cap_work) {
            b->cap_work = b->cap_work ? 2 * b->cap_work : 1024;
            b->work = mem_try_realloc(b->work, (size_t)b->cap_work, sizeof *b->work);
            if (!b->work)
                stop("out of memory");
        }
        if (tokenizer_encode(b->tok, v->text, v->n_text, false, &ids, NULL) != DI_OK)
            stop("out of memory");
        b->work[b->n_work++] = (work){grammar_prog_ref(p), ids.ids, (int)ids.n};
    }
}

static void add_case(bench *b, const char *line, size_t n)
{
    str text = {0};
    grammar_spec spec = {.kind = GRAMMAR_JSON};
    grammar_prog *p;
    snode *c, *schema;
    uint64_t began;

    if (stree_read(b->mem, line, n, "golden data", &c, NULL) != DI_OK)
        return;
    schema = stree_get(c, "spec");
    if (!schema || schema->type == JSON_STRING)
        return;
    stree_write(schema, &text);
    spec.text = str_text(&text);
    spec.n = text.len;
    began = now_ns();
    if (grammar_compile(b->g, &spec, &p, NULL, NULL) == DI_OK) {
        note(&b->compile, began);
        add_texts(b, stree_get(c, "accept"), p);
        grammar_prog_unref(p);
    }
    str_fini(&text);
}

static void add_file(bench *b, const char *dir, const char *name)
{
    char path[4096], *text = NULL;
    size_t n = 0;
    di_status st = {0};

    if (path_join(path, sizeof path, dir, name, &st) != DI_OK ||
        file_read(&text, &n, path, MAX_FILE, &st) != DI_OK)
        stop(st.message);
    for (const char *at = text, *end = text + n, *eol; at < end; at = eol + 1) {
        eol = memchr(at, '\n', (size_t)(end - at));
        eol = eol ? eol : end;
        add_case(b, at, (size_t)(eol - at));
    }
    mem_free(text);
}

/* ---- passes ---- */

static void walk(bench *b, const work *w, times *mask, times *accept)
{
    grammar_state *s;
    uint64_t began;

    if (grammar_state_new(w->prog, NULL, &s, NULL) != DI_OK)
        stop("out of memory");
    for (int i = 0; i < w->n; i++) {
        began = now_ns();
        grammar_fill(s, b->rows);
        note(mask, began);
        began = now_ns();
        if (!grammar_accept(s, w->ids[i]))
            break;
        if (accept)
            note(accept, began);
    }
    grammar_state_free(s);
}

/* Rows behind the newest token and 4 drafts, as a speculating step needs them. */
static void walk_drafts(bench *b, const work *w)
{
    grammar_state *s;
    uint64_t began = now_ns();

    if (grammar_state_new(w->prog, NULL, &s, NULL) != DI_OK)
        stop("out of memory");
    note(&b->create, began);
    for (int i = 0; i + N_DRAFT < w->n; i++) {
        began = now_ns();
        grammar_fill_draft(s, w->ids + i, N_DRAFT, b->rows);
        note(&b->draft, began);
        if (!grammar_accept(s, w->ids[i]))
            break;
    }
    grammar_state_free(s);
}

/* Opens the library, or ends the program. */
static void prepare(bench *b)
{
    uint64_t began = now_ns();
    di_status st = {0};
    di_code rc = grammar_prepare(b->g, &st);

    if (rc == DI_E_UNSUPPORTED) {
        fprintf(stderr, "bench_grammar: %s\n", st.message);
        printf("grammar_tables,no library,1,0,ms,,\n");
        exit(0);
    }
    if (rc != DI_OK)
        stop(st.message);
    printf("grammar_tables,once,1,%.4g,ms,,\n", (double)(now_ns() - began) * 1e-6);
}

static void run(bench *b)
{
    for (int i = 0; i < b->n_work; i++)
        walk(b, &b->work[i], &b->cold, NULL);
    for (int i = 0; i < b->n_work; i++)
        walk(b, &b->work[i], &b->warm, &b->accept);
    for (int i = 0; i < b->n_work; i++)
        walk_drafts(b, &b->work[i]);
    report(&b->compile, "grammar_compile", 3000, 40000, 1000000);
    report(&b->cold, "grammar_mask_cold", 0, 0, 15000);
    report(&b->warm, "grammar_mask", 20, 600, 15000);
    report(&b->accept, "grammar_accept", 0, 0, 0);
    report(&b->draft, "grammar_draft_4", 5 * 20 + 60, 0, 0);
    report(&b->create, "grammar_state_new", 0, 0, 0);
}

int main(int argc, char **argv)
{
    const char *file = DI_DATA_DIR "/tokenizer-v4/tokenizer.json", *dir = DI_DATA_DIR "/structured";
    bench b = {.mem = arena_new(0)};
    di_status st = {0};

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--tokenizer") == 0)
            file = argv[i + 1];
        else if (strcmp(argv[i], "--data") == 0)
            dir = argv[i + 1];
        else if (strcmp(argv[i], "--clock") == 0 && strcmp(argv[i + 1], "cpu") == 0)
            which_clock = CLOCK_THREAD_CPUTIME_ID;
    }
    if (tokenizer_load(&b.tok, file, &st) != DI_OK)
        stop(st.message);
    b.eos = tokenizer_added_id(b.tok, "<｜end▁of▁sentence｜>");
    if (grammar_new(&b.g, b.tok, tokenizer_n_ids(b.tok), &b.eos, 1, NULL, &st) != DI_OK)
        stop(st.message);
    b.words = ((size_t)tokenizer_n_ids(b.tok) + 31) / 32;
    b.rows = mem_try_calloc((N_DRAFT + 1) * b.words, sizeof *b.rows);
    if (!b.rows)
        stop("out of memory");
    printf("name,case,threads,value,unit,ceiling,fraction\n");
    prepare(&b);
    add_file(&b, dir, "schema.jsonl");
    add_file(&b, dir, "random.jsonl");
    run(&b);
    for (int i = 0; i < b.n_work; i++) {
        grammar_prog_unref(b.work[i].prog);
        mem_free(b.work[i].ids);
    }
    mem_free(b.work);
    mem_free(b.rows);
    grammar_free(b.g);
    tokenizer_free(b.tok);
    arena_free(b.mem);
    return 0;
}
