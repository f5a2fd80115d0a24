/* The ceilings of this machine: one thread and all threads, median and best of the rounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "bench.h"

#define ROUNDS     9
#define READ_BYTES ((size_t)768 << 20)

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure(int n_threads)
{
    di_status st = {0};
    double sample[CEILING_COUNT][ROUNDS];
    pool *threads;
    peak *p;

    bench_check(pool_new(&threads, n_threads, &st), &st);
    p = peak_new(threads, READ_BYTES);
    if (!p) {
        fprintf(stderr, "no memory for the read and copy buffers\n");
        exit(2);
    }
    for (int r = 0; r < ROUNDS; r++)
        for (int c = 0; c < CEILING_COUNT; c++)
            sample[c][r] = peak_sample(p, (ceiling)c);
    for (int c = 0; c < CEILING_COUNT; c++) {
        const char *name = ceiling_name((ceiling)c), *unit = ceiling_unit((ceiling)c);
        double mid, best;

        qsort(sample[c], ROUNDS, sizeof(double), compare);
        mid = sample[c][ROUNDS / 2];
        best = sample[c][ROUNDS - 1];
        fprintf(stderr, "%-10s %2d thread%s %9.1f %-8s best %9.1f\n", name, n_threads,
                n_threads > 1 ? "s" : " ", mid, unit, best);
        printf("roofline,%s,%d,%.5g,%s,%.5g,%.4f\n", name, n_threads, mid, unit, best,
               best > 0 ? mid / best : 0);
    }
    peak_free(p);
    pool_free(threads);
}

int main(void)
{
    fprintf(stderr, "%s, %d processors\n", cpu_name(), cpu_count());
    printf("name,case,threads,value,unit,ceiling,fraction\n");
    measure(1);
    if (cpu_count() > 1)
        measure(cpu_count());
    return 0;
}
