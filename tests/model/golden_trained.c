/* One back end in release on a trained model, end to end: rounding differs here and there, so rows
 * are compared as distributions and texts as texts (the bounds of the issue "Foundation"). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/golden_check.h"

#define MIN_ARGMAX  0.94 /* share of rows whose best token is the golden one */
#define MAX_KL      2e-3 /* mean over rows */
#define MIN_TEXTS   (8.0 / 13.0)
#define PART_MARGIN 0.1 /* texts may part where the golden runner-up is closer than this ... */

typedef struct totals {
    int64_t rows, same;
    double kl;
    int texts, equal, far; /* far: parted above PART_MARGIN */
} totals;

/* log of the sum of exp(x) over all of x [n] but the k listed ids. */
static double log_rest(const float *x, int64_t n, const int64_t *ids, int64_t k)
{
    double top = -INFINITY, sum = 0;

    for (int64_t i = 0; i < n; i++)
        top = fmax(top, (double)x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    for (int64_t i = 0; i < k; i++)
        sum -= exp((double)x[ids[i]] - top);
    return top + log(fmax(sum, 1e-30));
}

/* KL(golden || ours) over the k stored tokens and the rest. The stored logits do not say how much
 * the rest weighs; `rest` is its log weight: exact where a whole row is stored, else ours stands
 * in. */
static double kl_row(const double *want, const float *got, const int64_t *ids, int64_t k,
                     double want_rest, double got_rest)
{
    double top = want_rest, sum_p = 0, sum_q = 0, kl = 0;

    for (int64_t i = 0; i < k; i++)
        top = fmax(top, want[i]);
    for (int64_t i = 0; i <= k; i++) {
        sum_p += exp((i < k ? want[i] : want_rest) - top);
        sum_q += exp((i < k ? (double)got[ids[i]] : got_rest) - top);
    }
    for (int64_t i = 0; i <= k; i++) {
        double lp = (i < k ? want[i] : want_rest) - top - log(sum_p);
        double lq = (i < k ? (double)got[ids[i]] : got_rest) - top - log(sum_q);

        kl += exp(lp) * (lp - lq);
    }
    return kl;
}

/* Rows of a prompt against its stored best logits. */
static void compare_rows(totals *t, const rig *rg, const st_file *f, const golden_prompt *p,
                         const float *logits)
{
    const st_tensor *top = golden_find(f, "%s.top", p->name);
    const st_tensor *top_ids = golden_find(f, "%s.top_ids", p->name);
    const st_tensor *last = golden_find(f, "%s.last", p->name);
    int64_t vocab = rg->cfg->vocab, k;

    if (!top || !top_ids)
        return;
    k = golden_count(top) / p->ids.n;
    for (int64_t i = 0; i < p->ids.n && k > 0 && k <= 64; i++) {
        const float *got = logits + i * vocab;
        double want[64] = {0}, got_rest, want_rest;
        int64_t ids[64] = {0};

        for (int64_t j = 0; j < k; j++) {
            want[j] = golden_at(f, top, i * k + j);
            ids[j] = (int64_t)golden_at(f, top_ids, i * k + j);
        }
        got_rest = want_rest = log_rest(got, vocab, ids, k);
        if (last && i == p->ids.n - 1) {
            float *row = calloc((size_t)vocab, sizeof *row);

            if (row) {
                golden_get(f, last, 0, vocab, row);
                want_rest = log_rest(row, vocab, ids, k);
            }
            free(row);
        }
        t->rows++;
        t->same += rig_argmax(got, (int)vocab) == ids[0];
        t->kl += kl_row(want, got, ids, k, want_rest, got_rest);
    }
}

/* ... and, for a prompt whose golden texts of f32 and release part themselves, below the rms
 * difference of their margins up to there: what rounding alone moves a margin by. The reference,
 * run again with its sums in another order, parts from itself as early (docs/determinism.md). */
static double part_limit(const golden_prompt *p)
{
    const golden_run *a = &p->run[0], *b = &p->run[2];
    double sum = 0, rms;
    int n = 0;

    while (n < a->greedy.n && n < b->greedy.n && n < a->margin.n && n < b->margin.n &&
           a->greedy.v[n] == b->greedy.v[n]) {
        sum += (a->margin.v[n] - b->margin.v[n]) * (a->margin.v[n] - b->margin.v[n]);
        n++;
    }
    if (n == 0 || (n == a->greedy.n && n == b->greedy.n))
        return PART_MARGIN;
    rms = sqrt(sum / n);
    return rms > PART_MARGIN ? rms : PART_MARGIN;
}

/* Greedy text behind the prompt; `logits` is its last row. */
static void compare_text(report *r, const golden_job *job, totals *t, rig *rg, rig_seq *s,
                         const golden_prompt *p, float *logits, di_status *st)
{
    const golden_run *run = &p->run[2];
    int n = 0;

    if (run->greedy.n == 0)
        return;
    for (; n < run->greedy.n; n++) {
        int32_t token = rig_argmax(logits, rg->cfg->vocab);

        if (token != run->greedy.v[n])
            break;
        if (n + 1 < run->greedy.n && !rig_step(rg, s, &token, 1, 1, logits, st))
            return;
    }
    t->texts++;
    t->equal += n == run->greedy.n;
    if (n < run->greedy.n && n < run->margin.n) {
        double limit = part_limit(p);

        t->far += run->margin.v[n] >= PART_MARGIN;
        report_case(r, run->margin.v[n] < limit,
                    "%s %s text parts at token %d, golden margin %.3f, limit %.3f", job->backend,
                    p->name, n, run->margin.v[n], limit);
    }
}

static void run_one(report *r, const golden_job *job, totals *t, rig *rg, const st_file *f,
                    const golden_prompt *p)
{
    size_t vocab = (size_t)rg->cfg->vocab, n = (size_t)p->ids.n;
    float *logits = calloc(n, vocab * sizeof *logits);
    int32_t *token = malloc(n * sizeof *token);
    rig_seq *s = calloc(1, sizeof *s);
    di_status st = {0};
    bool ok = logits && token && s && rig_seq_new(rg, s, &st);

    for (size_t i = 0; ok && i < n; i++)
        token[i] = (int32_t)p->ids.v[i];
    while (ok && s->n < p->ids.n) {
        int chunk = p->ids.n - s->n < rg->max_rows ? p->ids.n - s->n : rg->max_rows;

        ok = rig_step(rg, s, token + s->n, chunk, chunk, logits + (size_t)s->n * vocab, &st);
    }
    if (ok) {
        compare_rows(t, rg, f, p, logits);
        memmove(logits, logits + (n - 1) * vocab, vocab * sizeof *logits);
        compare_text(r, job, t, rg, s, p, logits, &st);
    }
    if (!ok || st.code)
        report_case(r, false, "%s %s: %s", job->backend, p->name, st.message);
    if (s)
        rig_seq_free(s);
    free(s);
    free(token);
    free(logits);
}

static void judge(report *r, const golden_job *job, const totals *t)
{
    if (t->rows > 0) {
        report_case(r, (double)t->same >= MIN_ARGMAX * (double)t->rows,
                    "%s: best token equal in %lld of %lld rows (%.1f %%)", job->backend,
                    (long long)t->same, (long long)t->rows,
                    100.0 * (double)t->same / (double)t->rows);
        report_case(r, t->kl / (double)t->rows <= MAX_KL, "%s: mean KL %.2e", job->backend,
                    t->kl / (double)t->rows);
    }
    if (t->texts > 0)
        report_case(r, t->equal >= MIN_TEXTS * t->texts - 1e-9,
                    "%s: %d of %d texts equal, %d part at a margin of %.1f or more", job->backend,
                    t->equal, t->texts, t->far, PART_MARGIN);
}

void check_trained(report *r, const golden_job *job)
{
    rig rg;
    st_file *f = NULL;
    totals t = {0};
    di_status st = {0};
    rig_options o = {.dir = job->model_dir,
                     .backend = job->backend,
                     .numerics = NUMERICS_RELEASE,
                     .n_threads = job->n_threads};

    if (golden_tensors(&f, job->golden_dir, "logits-release.safetensors", &st))
        report_case(r, false, "%s", st.message);
    if (!f)
        return;
    if (report_case(r, rig_open(&rg, &o, &st), "trained on %s opens %s", job->backend,
                    st.message)) {
        for (int i = 0; i < job->g->n_prompts; i++)
            if (job->g->prompt[i].ids.n > 0)
                run_one(r, job, &t, &rg, f, &job->g->prompt[i]);
        judge(r, job, &t);
        if (!rg.k->pool) /* a device */
            report_case(r, rg.k->ops->counters(rg.k).launches > 0,
                        "%s: %llu kernels ran on the device", job->backend,
                        (unsigned long long)rg.k->ops->counters(rg.k).launches);
        rig_close(&rg);
    }
    st_file_close(f);
}
