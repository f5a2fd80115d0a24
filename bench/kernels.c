/* Operations at the real geometry (hidden 5120, 64 heads of 512, experts of 2304) on generated
 * weights that are far larger than the last cache, against the ceilings of this machine. Shapes and
 * data are those cases of the tests' table (tests/kernels/cases.c) that have a name for it. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "kernels/op_cases.h"

#define READ_BYTES ((size_t)512 << 20)
#define MAX_CASES  64
#define SAMPLE_MS  0.3 /* aims of the operations that are compared with a time */
#define SELECT_MS  0.15
#define WINDOW     128
#define FP4_BYTES  (17.0 / 32) /* of a weight: 4 bits and an eighth of a scale byte */

typedef struct measured {
    const op_case *c;
    op_inst *o;
} measured;

/* Every set of weights once. */
static void run(void *arg)
{
    const measured *m = arg;

    for (int i = 0; i < (m->c->copies > 1 ? m->c->copies : 1); i++) {
        op_next(m->o);
        op_run(m->o);
    }
}

/* Bytes (against the read ceiling) or operations of a call of op_run. */
static double work_of(const measured *m, ceiling *against)
{
    const op_case *c = m->c;
    double n = op_n_rows(m->o), mix = (2.0 + c->hc) * c->hc * c->hc * c->dim;
    double expert = 3.0 * c->dim * c->inter, matrix = (double)c->out * c->cols;
    bool one = c->items == 1;

    *against = one ? CEILING_READ : CEILING_BF16;
    switch (c->op) {
    case OP_LINEAR:
        return one ? matrix * (c->kind == WEIGHT_BF16 ? 2 : 1) : 2 * matrix * n;
    case OP_EXPERTS:
        return one ? expert * (c->k * FP4_BYTES + 1) : 2 * expert * n * (c->k + 1);
    case OP_HC:
        *against = one ? CEILING_READ : CEILING_FMA;
        return one ? mix * sizeof(float) : 2 * mix * n;
    case OP_ATTENTION:
        *against = CEILING_BF16;
        return n * 4 * c->heads * c->dim * (WINDOW + c->k);
    case OP_INDEX_SCORES:
        *against = CEILING_VNNI;
        return n * 2 * c->heads * c->cols * c->len;
    default:
        fprintf(stderr, "no ceiling for %s\n", op_name(c->op));
        return 0;
    }
}

static void add(bench *b, measured *m)
{
    const op_case *c = m->c;
    ceiling against;
    double work;

    if (c->op == OP_SELECT) {
        bench_time(b, c->bench, c->name, 1, SELECT_MS, run, m);
    } else if (c->op == OP_SAMPLE) { /* of a row on one core: every thread has its share */
        bench_time(b, c->bench, c->name, (double)c->items / bench_threads(b), SAMPLE_MS, run, m);
    } else {
        work = work_of(m, &against) * (c->copies > 1 ? c->copies : 1);
        bench_rate(b, c->bench, c->name, work, against, run, m);
    }
}

/* Instances of all wanted cases; those with the same weights share them. */
static int build(bench *b, kernels *k, measured *all, int n)
{
    for (int i = 0; i < n; i++) {
        op_inst *donor = NULL;

        for (int j = 0; j < i && !donor; j++)
            if (op_same_weights(all[j].c, all[i].c))
                donor = all[j].o;
        all[i].o = op_new_sharing(k, all[i].c, donor);
        op_drop_sources(all[i].o);
        add(b, &all[i]);
    }
    return n;
}

int main(int argc, char **argv)
{
    static measured all[MAX_CASES];
    static op_case chosen[MAX_CASES];
    bench *b = bench_open("kernels", argc, argv, READ_BYTES);
    kernels_options opt = {
        .backend = "auto", .numerics = NUMERICS_RELEASE, .n_threads = bench_threads(b)};
    kernels *k = NULL;
    kernel_limits lim;
    di_status st = {0};
    int rc, n = 0;

    for (int i = 0; i < n_op_cases && n < MAX_CASES; i++)
        if (op_cases[i].bench && bench_wants(b, op_cases[i].bench)) {
            chosen[n] = op_cases[i];
            all[n++].c = &op_cases[i];
        }
    bench_check(kernels_open(&k, &opt, &st), &st);
    if (k->act != DTYPE_BF16) {
        fprintf(stderr, "no fast back end on this processor: nothing to measure\n");
        return 2;
    }
    lim = op_limits(chosen, n);
    bench_check(k->ops->reserve(k, &lim, &st), &st);
    fprintf(stderr, "back end %s\n", k->ops->name);
    n = build(b, k, all, n);
    rc = bench_run(b);
    while (n > 0) /* who borrowed weights came later */
        op_free(all[--n].o);
    kernels_close(k);
    return rc;
}
