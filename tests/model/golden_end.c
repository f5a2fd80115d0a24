/* End to end in f32 and cache: this proves the wiring.
 *
 * f32: everything within 2e-5. A row may differ more when it stands at or behind a position where
 * two candidates of a selection are closer than 1e-6: such rows are exempt and counted.
 * cache: FP4 codes of the state flip at rounding boundaries and random models amplify that (5 % rms
 * of the logits was seen on a prompt that agrees to 1e-6 while nothing flips), so logits are
 * compared by rms, 15 % per prompt, and greedy texts on trained models only. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/engram.h"
#include "model/golden_check.h"

#define TOL_F32   2e-5
#define TOL_CACHE 0.15
#define NEAR_TIE  1e-6f
#define TAP_ROWS  4

/* What the trace hook keeps of a run over a prompt. */
typedef struct record {
    int64_t first;    /* position of the first row of the chunk that runs */
    int64_t tie_pos;  /* first position with a near-tie; INT64_MAX = none */
    char layer[96];   /* whose margins came last */
    int64_t tile_row; /* rows of that layer seen */
    float *taps;      /* [TAP_ROWS][tap_cols] of the last positions */
    int64_t tap_cols, tap_rows;
} record;

static void keep_taps(record *c, const float *data, int64_t rows, int64_t cols)
{
    int64_t n = rows < TAP_ROWS ? rows : TAP_ROWS, old = TAP_ROWS - n;

    if (!c->taps)
        c->taps = calloc((size_t)(TAP_ROWS * cols), sizeof *c->taps);
    if (!c->taps)
        return;
    c->tap_cols = cols;
    memmove(c->taps, c->taps + n * cols, (size_t)(old * cols) * sizeof *data);
    memcpy(c->taps + old * cols, data + (rows - n) * cols, (size_t)(n * cols) * sizeof *data);
}

static void on_trace(void *arg, const char *name, const float *data, int64_t rows, int64_t cols)
{
    record *c = arg;

    if (!strcmp(name, "main_hidden"))
        keep_taps(c, data, rows, cols);
    if (!strstr(name, "indexer.margin"))
        return;
    if (strcmp(name, c->layer) != 0) {
        snprintf(c->layer, sizeof c->layer, "%s", name);
        c->tile_row = 0;
    }
    for (int64_t i = 0; i < rows; i++)
        if (data[i] < NEAR_TIE && c->first + c->tile_row + i < c->tie_pos)
            c->tie_pos = c->first + c->tile_row + i;
    c->tile_row += rows;
}

/* How a prompt is cut. */
typedef enum cut { CUT_WHOLE, CUT_TAIL, CUT_RANDOM } cut;
static const char *const cut_name[] = {"whole", "token-by-token tail", "random chunks"};

static int next_chunk(cut how, int left, int max_rows, uint32_t *seed)
{
    int n = left < max_rows ? left : max_rows;

    if (how == CUT_TAIL)
        return left <= 9 ? 1 : left - 9 < max_rows ? left - 9 : max_rows;
    if (how == CUT_RANDOM) {
        *seed = *seed * 1664525u + 1013904223u;
        n = 1 + (int)((*seed >> 16) % 48u);
        return n < left ? n : left;
    }
    return n;
}

/* Run a prompt; logits [n][vocab] of every position. */
static bool run_prompt(rig *r, rig_seq *s, const golden_list *ids, cut how, float *logits,
                       record *rec, di_status *st)
{
    uint32_t seed = 12345;
    int32_t *token = malloc((size_t)ids->n * sizeof *token);
    bool ok = token != NULL;

    for (int i = 0; ok && i < ids->n; i++)
        token[i] = (int32_t)ids->v[i];
    *rec = (record){.tie_pos = INT64_MAX};
    model_set_trace(r->m, how == CUT_WHOLE ? on_trace : NULL, rec);
    while (ok && s->n < ids->n) {
        int n = next_chunk(how, ids->n - s->n, r->max_rows, &seed);

        rec->first = s->n;
        rec->layer[0] = 0;
        ok = rig_step(r, s, token + s->n, n, n, logits + (size_t)s->n * (size_t)r->cfg->vocab, st);
    }
    model_set_trace(r->m, NULL, NULL);
    free(token);
    return ok;
}

/* Differences between a run and golden values. */
typedef struct diff {
    double max, sum_sq, ref_sq;
    int64_t exempt; /* rows over the tolerance behind a near-tie */
} diff;

static void diff_row(diff *d, const double *want, const float *got, int64_t n, bool exempt,
                     double tol)
{
    double max = 0;

    for (int64_t i = 0; i < n; i++) {
        double e = fabs(want[i] - (double)got[i]);

        max = e > max || isnan(e) ? (isnan(e) ? INFINITY : e) : max;
        d->sum_sq += e * e;
        d->ref_sq += want[i] * want[i];
    }
    if (exempt && max > tol)
        d->exempt++;
    else if (max > d->max)
        d->max = max;
}

/* Judge and report a difference. */
static void judge(report *r, int precision, const diff *d, const char *what, const char *prompt)
{
    double rms = d->ref_sq > 0 ? sqrt(d->sum_sq / d->ref_sq) : sqrt(d->sum_sq);
    bool ok = precision == 0 ? d->max <= TOL_F32 : rms <= TOL_CACHE;

    r->exempt += (int)d->exempt;
    report_case(r, ok, "%s %s %s: max difference %.1e, rms %.1e%s", golden_precision[precision],
                prompt, what, d->max, rms, d->exempt ? " (rows behind a near-tie left out)" : "");
}

/* Logits of the prompt against whatever is stored of them. */
static void compare_logits(report *r, int precision, const rig *rg, const st_file *f,
                           const golden_prompt *p, const float *logits, int64_t tie_pos)
{
    const st_tensor *all = golden_find(f, "%s.logits", p->name);
    const st_tensor *top = golden_find(f, "%s.top", p->name);
    const st_tensor *ids = golden_find(f, "%s.top_ids", p->name);
    const st_tensor *last = golden_find(f, "%s.last", p->name);
    int64_t vocab = rg->cfg->vocab, s = p->ids.n;
    double *want = malloc((size_t)vocab * sizeof *want);
    float *got = malloc((size_t)vocab * sizeof *got);

    if (want && got && all) {
        diff d = {0};
        int64_t rows = golden_count(all) / vocab;

        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < vocab; j++)
                want[j] = golden_at(f, all, i * vocab + j);
            diff_row(&d, want, logits + (s - rows + i) * vocab, vocab, s - rows + i >= tie_pos,
                     TOL_F32);
        }
        judge(r, precision, &d, "logits", p->name);
    }
    if (want && got && top && ids) {
        diff d = {0};
        int64_t k = golden_count(top) / s;

        for (int64_t i = 0; i < s; i++) {
            for (int64_t j = 0; j < k; j++) {
                want[j] = golden_at(f, top, i * k + j);
                got[j] = logits[i * vocab + (int64_t)golden_at(f, ids, i * k + j)];
            }
            diff_row(&d, want, got, k, i >= tie_pos, TOL_F32);
        }
        judge(r, precision, &d, "best logits", p->name);
    }
    if (want && got && last) {
        diff d = {0};

        for (int64_t j = 0; j < vocab; j++)
            want[j] = golden_at(f, last, j);
        diff_row(&d, want, logits + (s - 1) * vocab, vocab, s - 1 >= tie_pos, TOL_F32);
        judge(r, precision, &d, "last logits", p->name);
    }
    free(want);
    free(got);
}

static void compare_taps(report *r, int precision, const st_file *f, const golden_prompt *p,
                         const record *rec)
{
    const st_tensor *t = golden_find(f, "%s.main_hidden", p->name);
    int64_t rows;
    double *want;
    diff d = {0};

    if (!t || !rec->taps)
        return;
    rows = golden_count(t) / rec->tap_cols;
    want = malloc((size_t)rec->tap_cols * sizeof *want);
    for (int64_t i = 0; want && i < rows && i < TAP_ROWS; i++) {
        for (int64_t j = 0; j < rec->tap_cols; j++)
            want[j] = golden_at(f, t, (rows - 1 - i) * rec->tap_cols + j);
        diff_row(&d, want, rec->taps + (TAP_ROWS - 1 - i) * rec->tap_cols, rec->tap_cols,
                 p->ids.n - 1 - i >= rec->tie_pos, TOL_F32);
    }
    judge(r, precision, &d, "main_hidden", p->name);
    free(want);
}

/* Greedy continuation behind the prompt that s holds; `logits` is its last row. */
static void check_greedy(report *r, int precision, bool trained, rig *rg, rig_seq *s,
                         const st_file *f, const golden_prompt *p, float *logits, int64_t tie_pos,
                         di_status *st)
{
    const golden_run *run = &p->run[precision];
    const st_tensor *t = golden_find(f, "%s.greedy", p->name);
    int64_t vocab = rg->cfg->vocab;
    double *want = malloc((size_t)vocab * sizeof *want);
    diff d = {0};
    int same = 0;

    for (; want && same < run->greedy.n; same++) {
        int32_t token = rig_argmax(logits, (int)vocab);

        for (int64_t j = 0; t && j < vocab; j++)
            want[j] = golden_at(f, t, same * vocab + j);
        if (t)
            diff_row(&d, want, logits, vocab, s->n - 1 >= tie_pos, TOL_F32);
        if (token != run->greedy.v[same])
            break;
        if (same + 1 < run->greedy.n && !rig_step(rg, s, &token, 1, 1, logits, st))
            break;
    }
    free(want);
    if (precision == 0 && t)
        judge(r, precision, &d, "greedy logits", p->name);
    /* In cache a code flip may turn a near-tie of two tokens; in f32 only a tie may. */
    if (run->greedy.n > 0 && (precision == 0 || trained)) {
        bool tie = same < run->margin.n && run->margin.v[same] < (precision ? 0.1 : 2 * TOL_F32);

        report_case(r, same == run->greedy.n || tie || s->n > tie_pos,
                    "%s %s greedy: %d of %d tokens equal", golden_precision[precision], p->name,
                    same, run->greedy.n);
    }
}

/* One speculative round as the reference does it: draft, verify greedily, commit what is right. */
static bool run_round(rig *rg, rig_seq *s, int32_t *pending, int block, int32_t *draft, float *conf,
                      int *accepted, float *logits, di_status *st)
{
    int32_t chunk[GOLDEN_MAX_BLOCK + 1], base = s->n;
    int64_t vocab = rg->cfg->vocab;
    int good = 0;

    if (!rig_draft(rg, s, *pending, block, draft, conf, st))
        return false;
    chunk[0] = *pending;
    memcpy(chunk + 1, draft, (size_t)block * sizeof *draft);
    if (!rig_step(rg, s, chunk, block + 1, block + 1, logits, st))
        return false;
    while (good < block && draft[good] == rig_argmax(logits + good * vocab, (int)vocab))
        good++;
    *pending = rig_argmax(logits + good * vocab, (int)vocab);
    rig_roll_back(s, base + 1 + good);
    *accepted = good;
    return true;
}

static bool round_equals(const golden_round *w, int64_t pos, int32_t token, const int32_t *draft,
                         const float *conf, int accepted)
{
    bool ok = (w->pos < 0 || w->pos == pos) && (w->token < 0 || w->token == token) &&
              (w->accepted < 0 || w->accepted == accepted);

    for (int i = 0; i < w->draft.n; i++)
        ok = ok && w->draft.v[i] == draft[i];
    for (int i = 0; i < w->confidence.n; i++) /* stored with five decimals */
        ok = ok && fabs(w->confidence.v[i] - (double)conf[i]) <= TOL_F32 + 1e-5;
    return ok;
}

/* Draft rounds behind the prompt that s holds; `logits` begins with its last row. */
static void check_rounds(report *r, rig *rg, rig_seq *s, const golden_prompt *p, float *logits,
                         di_status *st)
{
    const golden_run *run = &p->run[0];
    int32_t pending = rig_argmax(logits, rg->cfg->vocab), draft[GOLDEN_MAX_BLOCK];
    float conf[GOLDEN_MAX_BLOCK];
    int block = rg->cfg->draft_block, same = 0;

    if (run->n_rounds == 0 || rg->cfg->n_stages == 0 || block > GOLDEN_MAX_BLOCK)
        return;
    for (; same < run->n_rounds; same++) {
        int64_t pos = s->n;
        int32_t token = pending;
        int accepted;

        if (!run_round(rg, s, &pending, block, draft, conf, &accepted, logits, st) ||
            !round_equals(&run->round[same], pos, token, draft, conf, accepted))
            break;
    }
    report_case(r, same == run->n_rounds, "f32 %s draft rounds: %d of %d equal", p->name, same,
                run->n_rounds);
}

static void check_chunkings(report *r, rig *rg, rig_seq *s, const golden_prompt *p,
                            const float *whole, float *logits, di_status *st)
{
    record rec;

    for (cut how = CUT_TAIL; how <= CUT_RANDOM; how++) {
        bool ok;

        rig_roll_back(s, 0);
        ok = run_prompt(rg, s, &p->ids, how, logits, &rec, st);
        ok = ok &&
             !memcmp(whole, logits, (size_t)p->ids.n * (size_t)rg->cfg->vocab * sizeof *logits);
        report_case(r, ok, "f32 %s in %s: same bits as whole", p->name, cut_name[how]);
    }
}

static void check_prompt(report *r, int precision, bool trained, rig *rg, const st_file *f,
                         const golden_prompt *p)
{
    size_t row = (size_t)rg->cfg->vocab * sizeof(float), n = (size_t)p->ids.n;
    float *whole = malloc(n * row), *logits = malloc((n + GOLDEN_MAX_BLOCK + 1) * row);
    rig_seq *s = calloc(1, sizeof *s);
    di_status st = {0};
    record rec = {0};
    bool ok = whole && logits && s && rig_seq_new(rg, s, &st) &&
              run_prompt(rg, s, &p->ids, CUT_WHOLE, whole, &rec, &st);

    report_case(r, ok, "%s %s runs %s", golden_precision[precision], p->name, st.message);
    if (ok) {
        memcpy(logits, whole + (n - 1) * (size_t)rg->cfg->vocab, row);
        compare_logits(r, precision, rg, f, p, whole, rec.tie_pos);
        compare_taps(r, precision, f, p, &rec);
        check_greedy(r, precision, trained, rg, s, f, p, logits, rec.tie_pos, &st);
    }
    if (ok && precision == 0) {
        check_chunkings(r, rg, s, p, whole, logits, &st); /* leaves the prompt in s */
        memcpy(logits, whole + (n - 1) * (size_t)rg->cfg->vocab, row);
        check_rounds(r, rg, s, p, logits, &st);
    }
    if (st.code)
        report_case(r, false, "%s %s: %s", golden_precision[precision], p->name, st.message);
    if (s)
        rig_seq_free(s);
    free(s);
    free(whole);
    free(logits);
    free(rec.taps);
}

/* Table rows of every position of every prompt, exact. */
static void check_hash(report *r, const golden *g, const rig *rg, const st_file *f)
{
    const model_config *c = rg->cfg;
    int cols = config_engram_cols(c);
    engram_hash *h = NULL;
    int64_t rows[256];
    di_status st = {0};

    if (!f || c->n_engram == 0 || cols > (int)ARRAY_LEN(rows))
        return;
    if (!report_case(r, engram_hash_new(&h, c, rg->compressed, &st) == DI_OK, "Engram hash %s",
                     st.message))
        return;
    for (int k = 0; k < g->n_prompts; k++) {
        const golden_list *ids = &g->prompt[k].ids;
        const st_tensor *t = golden_find(f, "%s.engram_rows", g->prompt[k].name);
        int64_t wrong = 0;

        if (!t)
            continue;
        for (int p = 0; p < ids->n; p++)
            for (int e = 0; e < c->n_engram; e++) {
                int32_t id[16];

                for (int back = 0; back < c->engram_ngram; back++)
                    id[back] =
                        p >= back ? engram_compress(h, (int32_t)ids->v[p - back]) : ENGRAM_DEAD;
                engram_rows(h, e, id, rows);
                for (int i = 0; i < cols; i++)
                    wrong += (double)rows[i] !=
                             golden_at(f, t, ((int64_t)p * c->n_engram + e) * cols + i);
            }
        report_case(r, wrong == 0, "%s Engram rows: %lld differ", g->prompt[k].name,
                    (long long)wrong);
    }
    engram_hash_free(h);
}

/* long.safetensors: a prompt of thousands of tokens, logits of its last positions. */
static void check_long(report *r, rig *rg, const st_file *f)
{
    const st_tensor *ids = golden_find(f, "ids"), *t = golden_find(f, "logits");
    golden_prompt p = {.name = "long"};
    int64_t vocab = rg->cfg->vocab, rows;
    size_t n;
    float *logits;
    rig_seq *s = calloc(1, sizeof *s);
    di_status st = {0};
    record rec = {0};
    diff d = {0};

    if (!ids || !t || !s || golden_count(ids) > RIG_MAX_TOKENS) {
        free(s);
        return;
    }
    p.ids.n = (int)golden_count(ids);
    n = (size_t)p.ids.n;
    p.ids.v = malloc(n * sizeof *p.ids.v);
    logits = malloc(n * (size_t)vocab * sizeof *logits);
    rows = golden_count(t) / vocab;
    if (p.ids.v && logits && rig_seq_new(rg, s, &st)) {
        double *want = malloc((size_t)vocab * sizeof *want);

        for (size_t i = 0; i < n; i++)
            p.ids.v[i] = (int64_t)golden_at(f, ids, (int64_t)i);
        if (want && run_prompt(rg, s, &p.ids, CUT_WHOLE, logits, &rec, &st)) {
            for (int64_t i = 0; i < rows; i++) {
                for (int64_t j = 0; j < vocab; j++)
                    want[j] = golden_at(f, t, i * vocab + j);
                diff_row(&d, want, logits + ((int64_t)n - rows + i) * vocab, vocab,
                         (int64_t)n - rows + i >= rec.tie_pos, TOL_F32);
            }
            judge(r, 0, &d, "logits", "long");
        }
        free(want);
        rig_seq_free(s);
    }
    if (st.code)
        report_case(r, false, "long: %s", st.message);
    free(rec.taps);
    free(p.ids.v);
    free(logits);
    free(s);
}

void check_end_to_end(report *r, const golden_job *job, int precision)
{
    rig rg;
    char name[64];
    st_file *f = NULL, *hash = NULL, *big = NULL;
    di_status st = {0};
    rig_options o = {.dir = job->model_dir,
                     .backend = "ref",
                     .numerics = precision == 0 ? NUMERICS_F32 : NUMERICS_CACHE,
                     .n_threads = job->n_threads};

    snprintf(name, sizeof name, "logits-%s.safetensors", golden_precision[precision]);
    if (golden_tensors(&f, job->golden_dir, name, &st) ||
        golden_tensors(&hash, job->golden_dir, "hash.safetensors", &st) ||
        golden_tensors(&big, job->golden_dir, "long.safetensors", &st)) {
        report_case(r, false, "%s", st.message);
    } else if (f || (precision == 0 && (hash || big))) {
        if (report_case(r, rig_open(&rg, &o, &st), "%s opens %s", golden_precision[precision],
                        st.message)) {
            if (precision == 0)
                check_hash(r, job->g, &rg, hash);
            for (int i = 0; f && i < job->g->n_prompts; i++)
                if (job->g->prompt[i].ids.n > 0)
                    check_prompt(r, precision, job->g->has_texts, &rg, f, &job->g->prompt[i]);
            if (precision == 0)
                check_long(r, &rg, big);
            rig_close(&rg);
        }
    }
    st_file_close(f);
    st_file_close(hash);
    st_file_close(big);
}
