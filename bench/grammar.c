/* Times of constraints: masks, tokens, drafts, compilation, on the released vocabulary.
 *
 *   bench_grammar [--tokenizer FILE] [--data DIR] [--clock cpu|wall]
 *
 * --clock cpu: time of the calling thread, for a busy machine.
 *
 * The work is every schema of the golden data with the texts that fit it. Masks are timed on a
 * first pass (cold) and on a second one with matchers that have seen the states (warm). Then the
 * same for large constraints of our own (grammar_large.c) with random texts that fit them, and for
 * a crowd: 64 sequences of each of them on 8 threads, all masks of a round before the next round
 * begins. Prints CSV rows: name,case,threads,value,unit,limit,value/limit. Without the library
 * there is nothing to measure, and one row says so. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/str.h"
#include "grammar/grammar.h"
#include "grammar/stree.h"
#include "grammar_large.h"

#define N_DRAFT   4
#define N_CROWD   64
#define N_THREADS 8
#define MAX_WALK  200
#define MAX_FILE  ((size_t)64 << 20)

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
    uint64_t random;
} bench;

/* 64 sequences of one program, each with a text of its own. */
typedef struct crowd {
    bench *b;
    grammar_prog *prog;
    grammar_state *state[N_CROWD];
    const work *work; /* [N_CROWD] */
    uint32_t *row;    /* [N_THREADS][words] */
    uint64_t ns[N_CROWD];
    int round;
    atomic_int next;
} crowd;

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

/* Compilations run on threads of their own: what the whole process uses. */
static uint64_t compile_clock_ns(void)
{
    struct timespec t;

    if (which_clock == CLOCK_MONOTONIC)
        return now_ns();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void note_ns(times *t, uint64_t ns)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 4096;
        t->ns = mem_try_realloc(t->ns, t->cap, sizeof *t->ns);
        if (!t->ns)
            stop("out of memory");
    }
    t->ns[t->n++] = ns;
}

static void note(times *t, uint64_t since)
{
    note_ns(t, now_ns() - since);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* One row a percentile; limits in microseconds, 0 = none. */
static void report(times *t, const char *name, int threads, double p50, double p99, double most)
{
    const double at[] = {0.5, 0.99, 1}, limit[] = {p50, p99, most};
    static const char *const names[] = {"p50", "p99", "max"};

    qsort(t->ns, t->n, sizeof *t->ns, by_value);
    for (size_t i = 0; i < 3 && t->n; i++) {
        size_t k = (size_t)(at[i] * (double)(t->n - 1));
        double us = (double)t->ns[k] * 1e-3;

        if (limit[i] > 0)
            printf("%s,%s,%d,%.4g,us,%g,%.3g\n", name, names[i], threads, us, limit[i],
                   us / limit[i]);
        else
            printf("%s,%s,%d,%.4g,us,,\n", name, names[i], threads, us);
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
    began = compile_clock_ns();
    if (grammar_compile(b->g, &spec, &p, NULL, NULL) == DI_OK) {
        note_ns(&b->compile, compile_clock_ns() - began);
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

/* ---- large constraints ---- */

static uint32_t draw(bench *b, uint32_t n)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(b->random >> 33) % n;
}

/* An allowed token: of a few random ones the shortest, so that texts come to an end. -1 = none. */
static int32_t pick(bench *b)
{
    int32_t best = -1;
    size_t best_len = 0;

    for (int tries = 0; tries < 6; tries++) {
        size_t w = draw(b, (uint32_t)b->words), left = b->words, len;
        uint32_t bits, bit = draw(b, 32);
        int32_t id;

        while (left-- > 0 && !b->rows[w])
            w = (w + 1) % b->words;
        if (!b->rows[w])
            return -1;
        bits = b->rows[w] >> bit ? b->rows[w] >> bit << bit : b->rows[w];
        id = (int32_t)(32 * w) + __builtin_ctz(bits);
        tokenizer_bytes(b->tok, id, &len);
        if (best < 0 || len < best_len) {
            best = id;
            best_len = len;
        }
    }
    return best;
}

/* A random text that fits. */
static work random_text(bench *b, grammar_prog *p)
{
    work w = {.prog = p, .ids = mem_try_calloc(MAX_WALK, sizeof(int32_t))};
    grammar_state *s;

    if (!w.ids || grammar_state_new(p, NULL, &s, NULL) != DI_OK)
        stop("out of memory");
    while (w.n < MAX_WALK && !grammar_must_stop(s) && grammar_fill(s, b->rows)) {
        int32_t id = pick(b);

        if (id < 0 || id == b->eos || !grammar_accept(s, id))
            break;
        w.ids[w.n++] = id;
    }
    grammar_state_free(s);
    return w;
}

static void fill_some(void *arg, int thread, int n_threads)
{
    crowd *c = arg;
    uint32_t *row = c->row + (size_t)thread * c->b->words;

    (void)n_threads;
    for (int i; (i = atomic_fetch_add(&c->next, 1)) < N_CROWD;) {
        uint64_t began = now_ns();

        if (c->round >= c->work[i].n)
            continue;
        grammar_fill(c->state[i], row);
        c->ns[i] = now_ns() - began;
        if (!grammar_accept(c->state[i], c->work[i].ids[c->round]))
            stop("a token that was allowed is refused");
    }
}

/* Of one kind of pass: masks; rounds by the clock on the wall; their processor time. */
typedef struct crowd_times {
    times mask, round, cpu;
} crowd_times;

/* All rounds of a crowd. */
static void run_crowd(crowd *c, pool *threads, crowd_times *t)
{
    for (int i = 0; i < N_CROWD; i++)
        if (grammar_state_new(c->prog, NULL, &c->state[i], NULL) != DI_OK)
            stop("out of memory");
    for (c->round = 0;; c->round++) {
        uint64_t began, cpu = 0;
        int n = 0;

        for (int i = 0; i < N_CROWD; i++)
            n += c->round < c->work[i].n;
        if (n < N_CROWD / 2)
            break;
        atomic_store(&c->next, 0);
        began = clock_ns();
        pool_run(threads, fill_some, c);
        note_ns(&t->round, clock_ns() - began);
        for (int i = 0; i < N_CROWD; i++) {
            if (c->round >= c->work[i].n)
                continue;
            note_ns(&t->mask, c->ns[i]);
            cpu += c->ns[i];
        }
        note_ns(&t->cpu, cpu);
    }
    for (int i = 0; i < N_CROWD; i++)
        grammar_state_free(c->state[i]);
}

/* A program that no other spec shares: nobody has visited its states. */
static grammar_prog *fresh_program(bench *b, const large *l, int i, times *compile)
{
    const grammar_spec spec = {
        .kind = l->kind, .text = str_text(&l->text), .n = l->text.len, .max_whitespace = 32 + i};
    grammar_prog *p;
    di_status st = {0};
    uint64_t began = compile_clock_ns();

    if (grammar_compile(b->g, &spec, &p, NULL, &st) != DI_OK)
        stop(st.message);
    note_ns(compile, compile_clock_ns() - began);
    return p;
}

static void report_crowd(crowd_times *t, const char *state)
{
    char name[64];

    snprintf(name, sizeof name, "grammar_mask_large_%s", state);
    report(&t->mask, name, N_THREADS, 0, 0, 0);
    snprintf(name, sizeof name, "grammar_round_64_%s", state);
    report(&t->round, name, N_THREADS, 0, 0, 0);
    snprintf(name, sizeof name, "grammar_round_64_%s_cpu", state);
    report(&t->cpu, name, N_THREADS, 0, 0, 0);
}

static void run_large(bench *b)
{
    times compile = {0};
    crowd_times t[2];
    large all[N_LARGE];
    work texts[N_CROWD];
    crowd c = {.b = b, .work = texts};
    pool *threads;

    memset(t, 0, sizeof t);
    c.row = mem_try_calloc(N_THREADS * b->words, sizeof *c.row);
    if (!c.row || pool_new(&threads, N_THREADS, NULL) != DI_OK)
        stop("no threads");
    large_make(all);
    for (int i = 0; i < N_LARGE; i++) {
        grammar_prog *p = fresh_program(b, &all[i], 0, &compile);

        for (int k = 0; k < N_CROWD; k++)
            texts[k] = random_text(b, p);
        grammar_prog_unref(p);
        c.prog = fresh_program(b, &all[i], 1, &compile);
        for (int warm = 0; warm < 2; warm++)
            run_crowd(&c, threads, &t[warm]);
        grammar_prog_unref(c.prog);
        for (int k = 0; k < N_CROWD; k++)
            mem_free(texts[k].ids);
        str_fini(&all[i].text);
    }
    pool_free(threads);
    mem_free(c.row);
    report(&compile, "grammar_compile_large", 1, 0, 0, 1000000);
    report_crowd(&t[0], "cold");
    report_crowd(&t[1], "warm");
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
    report(&b->compile, "grammar_compile", 1, 3000, 40000, 1000000);
    report(&b->cold, "grammar_mask_cold", 1, 0, 0, 15000);
    report(&b->warm, "grammar_mask", 1, 20, 600, 15000);
    report(&b->accept, "grammar_accept", 1, 0, 0, 0);
    report(&b->draft, "grammar_draft_4", 1, 5 * 20 + 60, 0, 0);
    report(&b->create, "grammar_state_new", 1, 0, 0, 0);
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
    run_large(&b);
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
