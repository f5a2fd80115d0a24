/* Rounds, medians, table and CSV of the benchmark programs. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"

#define MAX_CASES   128
#define MAX_ROUNDS  64
#define MAX_SAMPLES 8192
#define MIN_NS      40000000u /* a sample repeats its call until this much time has passed */

typedef struct item {
    const char *name, *text;
    double work, limit; /* limit > 0: a time in ms per `work` rows */
    ceiling ceiling;
    bench_fn fn;
    void *arg;
    double sample[MAX_ROUNDS];
} item;

struct bench {
    const char *program, *only;
    int rounds, n_threads, n_items;
    pool *pool;
    peak *peak;
    item items[MAX_CASES];
    double ceiling[CEILING_COUNT][MAX_SAMPLES];
    int n_samples[CEILING_COUNT];
};

static _Noreturn void die(const char *text)
{
    fprintf(stderr, "%s\n", text);
    exit(2);
}

void bench_check(di_code rc, const di_status *st)
{
    if (rc != DI_OK)
        die(st->message);
}

void *bench_alloc(size_t bytes)
{
    void *p = mem_try_aligned(bytes, 64);

    if (!p)
        die("no memory for the benchmark's data");
    return p;
}

bench *bench_open(const char *program, int argc, char **argv, size_t read_bytes)
{
    bench *b = bench_alloc(sizeof *b);
    di_status st = {0};

    b->program = program;
    b->rounds = 5;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0)
            b->rounds = atoi(argv[i + 1]);
        else if (i + 1 < argc && strcmp(argv[i], "--threads") == 0)
            b->n_threads = atoi(argv[i + 1]);
        else if (i + 1 < argc && strcmp(argv[i], "--only") == 0)
            b->only = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--clock") == 0 && strcmp(argv[i + 1], "cpu") == 0)
            peak_use_cpu_time();
        else
            die("options: --rounds N (1..64), --threads N, --only TEXT, --clock cpu");
    }
    if (b->rounds < 1 || b->rounds > MAX_ROUNDS)
        die("--rounds must be 1..64");
    bench_check(pool_new(&b->pool, b->n_threads, &st), &st);
    b->n_threads = pool_n_threads(b->pool);
    b->peak = peak_new(b->pool, read_bytes);
    if (!b->peak)
        die("no memory for the read and copy buffers");
    return b;
}

pool *bench_pool(const bench *b)
{
    return b->pool;
}

int bench_threads(const bench *b)
{
    return b->n_threads;
}

bool bench_wants(const bench *b, const char *name)
{
    return !b->only || strstr(name, b->only);
}

static item *add(bench *b, const char *name, const char *text, bench_fn fn, void *arg)
{
    item *c = &b->items[b->n_items];

    if (!bench_wants(b, name))
        return NULL;
    if (b->n_items == MAX_CASES)
        die("too many benchmark cases");
    b->n_items++;
    *c = (item){.name = name, .text = text, .fn = fn, .arg = arg};
    return c;
}

void bench_rate(bench *b, const char *name, const char *text, double work, ceiling ceil,
                bench_fn fn, void *arg)
{
    item *c = add(b, name, text, fn, arg);

    if (c) {
        c->work = work;
        c->ceiling = ceil;
    }
}

void bench_time(bench *b, const char *name, const char *text, double rows, double limit_ms,
                bench_fn fn, void *arg)
{
    item *c = add(b, name, text, fn, arg);

    if (c) {
        c->work = rows;
        c->limit = limit_ms;
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    if (n == 0)
        return 0;
    qsort(x, (size_t)n, sizeof *x, compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static void sample_ceilings(bench *b)
{
    for (int c = 0; c < CEILING_COUNT; c++)
        if (b->n_samples[c] < MAX_SAMPLES)
            b->ceiling[c][b->n_samples[c]++] = peak_sample(b->peak, (ceiling)c);
}

/* Seconds per call. */
static double time_call(const item *c)
{
    uint64_t t = peak_clock_ns(), d;
    int n = 0;

    do {
        c->fn(c->arg);
        n++;
        d = peak_clock_ns() - t;
    } while (d < MIN_NS);
    return (double)d * 1e-9 / n;
}

static void report(bench *b)
{
    double top[CEILING_COUNT];

    fprintf(stderr, "%s on %s, %d threads, %d rounds\n", b->program, cpu_name(), b->n_threads,
            b->rounds);
    printf("name,case,threads,value,unit,ceiling,fraction\n");
    for (int c = 0; c < CEILING_COUNT; c++) {
        top[c] = median(b->ceiling[c], b->n_samples[c]);
        fprintf(stderr, "  ceiling %-10s %8.1f %s\n", ceiling_name((ceiling)c), top[c],
                ceiling_unit((ceiling)c));
    }
    fprintf(stderr, "%-14s %-44s %10s %-8s %9s %8s\n", "name", "case", "value", "unit", "ceiling",
            "fraction");
    for (int i = 0; i < b->n_items; i++) {
        item *c = &b->items[i];
        double value = median(c->sample, b->rounds);
        double ceil = c->limit > 0 ? c->limit : top[c->ceiling];
        double fraction = ceil > 0 ? value / ceil : 0;
        const char *unit = c->limit > 0 ? "ms" : ceiling_unit(c->ceiling);

        fprintf(stderr, "%-14s %-44s %10.4g %-8s %9.4g %8.3f\n", c->name, c->text, value, unit,
                ceil, fraction);
        printf("%s,", c->name);
        for (const char *t = c->text; *t; t++) /* a comma would be another column */
            putchar(*t == ',' ? ';' : *t);
        printf(",%d,%.5g,%s,%.5g,%.4f\n", b->n_threads, value, unit, ceil, fraction);
    }
}

int bench_run(bench *b)
{
    for (int i = 0; i < b->n_items; i++)
        b->items[i].fn(b->items[i].arg); /* touch everything once */
    for (int r = 0; r < b->rounds; r++) {
        for (int i = 0; i < b->n_items; i++) {
            item *c = &b->items[i];
            double s;

            sample_ceilings(b);
            s = time_call(c);
            c->sample[r] = c->limit > 0 ? s * 1e3 / c->work : c->work / s * 1e-9;
        }
        sample_ceilings(b);
    }
    report(b);
    peak_free(b->peak);
    pool_free(b->pool);
    mem_free(b);
    return 0;
}
