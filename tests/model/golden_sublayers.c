/* One back end in release: every sublayer from the recorded inputs of trace-release.safetensors.
 *
 * Exact: latents, index keys, router ids, Engram rows, selections and candidates of rows without a
 * tie. Activations: equal but for isolated flips of one bf16 ulp (a sum of fp32 products in another
 * order falls on the other side of a rounding boundary). attn_out: at most 2 % rms on rows with
 * equal selections; the probabilities are rounded to bf16 and Q8 in front of wo_b amplifies a flip.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/quant.h"
#include "model/engram.h"
#include "model/golden_check.h"
#include "model/layer.h"

#define MAX_FLIPS 0.01 /* share of elements that may differ ... */
#define MAX_RMS   2e-3 /* ... and their rms against that of the tensor */
#define ATTN_RMS  0.02
#define SCORE_TIE 1e-5 /* of the row's largest score */
#define MAX_KEPT  16

/* Activations that the model traced, by name. */
typedef struct kept {
    char name[96];
    float *data;
    int64_t n, cap;
} kept;

typedef struct lab {
    report *r;
    const golden_job *job;
    const st_file *f;
    rig rg;
    rig_seq *seq;
    int s; /* rows of the trace */
    kept kept[MAX_KEPT];
    uint8_t *same_sel; /* [s] the row's selection equals the golden one */
    float *a, *b;      /* scratch of the largest tensor */
    int64_t scratch;
} lab;

static void on_trace(void *arg, const char *name, const float *data, int64_t rows, int64_t cols)
{
    lab *t = arg;
    const char *suffix = strrchr(name, '.');
    kept *k = NULL;

    for (int i = 0; i < MAX_KEPT && !k; i++) {
        const char *mine = strrchr(t->kept[i].name, '.');

        if (!t->kept[i].name[0] || (mine && suffix && !strcmp(mine, suffix)))
            k = &t->kept[i];
    }
    if (!k)
        return;
    if (k->cap < rows * cols) {
        free(k->data);
        k->cap = rows * cols;
        k->data = malloc((size_t)k->cap * sizeof *data);
    }
    snprintf(k->name, sizeof k->name, "%s", name);
    k->n = k->data ? rows * cols : 0;
    if (k->data)
        memcpy(k->data, data, (size_t)k->n * sizeof *data);
}

/* The last record of this name; NULL when there is none of that size. */
static const float *record(const lab *t, const char *name, int64_t n)
{
    for (int i = 0; i < MAX_KEPT; i++)
        if (!strcmp(t->kept[i].name, name) && t->kept[i].n == n)
            return t->kept[i].data;
    return NULL;
}

/* Golden tensor as f32 in scratch b; NULL when it is not in the file. */
static const float *want(const lab *t, const char *name, int64_t *n)
{
    const st_tensor *g = golden_find(t->f, "%s", name);

    *n = 0;
    if (!g || golden_count(g) > t->scratch)
        return NULL;
    *n = golden_count(g);
    golden_get(t->f, g, 0, *n, t->b);
    return t->b;
}

/* Equal up to isolated flips of the last place. */
static void check_act(lab *t, const char *name, const float *got)
{
    int64_t n, differ = 0;
    const float *w = want(t, name, &n);
    double sq = 0, ref = 0;

    if (!w)
        return;
    for (int64_t i = 0; got && i < n; i++) {
        double e = (double)got[i] - (double)w[i];

        differ += got[i] != w[i];
        sq += e * e;
        ref += (double)w[i] * (double)w[i];
    }
    report_case(t->r,
                got && (double)differ <= MAX_FLIPS * (double)n + 1 && sq <= ref * MAX_RMS * MAX_RMS,
                "%s %s: %lld of %lld differ, rms %.1e", t->job->backend, name, (long long)differ,
                (long long)n, ref > 0 ? sqrt(sq / ref) : sqrt(sq));
}

/* The same for what a trace hook gave. */
static void check_record(lab *t, const char *name)
{
    const st_tensor *g = golden_find(t->f, "%s", name);

    if (g)
        check_act(t, name, record(t, name, golden_count(g)));
}

/* f32 values that hang on activations: a flip in front of them moves them a little. */
static void check_rms(lab *t, const char *name, const float *got)
{
    int64_t n;
    const float *w = want(t, name, &n);
    double sq = 0, ref = 0;

    if (!w)
        return;
    for (int64_t i = 0; got && i < n; i++) {
        sq += ((double)got[i] - (double)w[i]) * ((double)got[i] - (double)w[i]);
        ref += (double)w[i] * (double)w[i];
    }
    report_case(t->r, got && sq <= ref * MAX_RMS * MAX_RMS, "%s %s: rms %.1e", t->job->backend,
                name, ref > 0 ? sqrt(sq / ref) : sqrt(sq));
}

static void check_close(lab *t, const char *name, double tol)
{
    int64_t n;
    const float *w = want(t, name, &n), *got;
    double max = 0;

    if (!w)
        return;
    got = record(t, name, n);
    for (int64_t i = 0; got && i < n; i++)
        max = fmax(max, fabs((double)got[i] - (double)w[i]));
    report_case(t->r, got && max <= tol, "%s %s: max difference %.1e", t->job->backend, name, max);
}

static void check_exact(lab *t, const char *name, const float *got)
{
    int64_t n, differ = 0;
    const float *w = want(t, name, &n);

    if (!w)
        return;
    for (int64_t i = 0; got && i < n; i++)
        differ += got[i] != w[i];
    report_case(t->r, got && differ == 0, "%s %s: %lld of %lld differ", t->job->backend, name,
                (long long)differ, (long long)n);
}

/* attn_out: rms over the rows whose selection is the golden one. */
static void check_attention(lab *t, const char *name, const uint8_t *same)
{
    int64_t n, rows, cols = t->rg.cfg->hidden, used = 0;
    const float *w = want(t, name, &n), *got;
    double sq = 0, ref = 0;

    if (!w)
        return;
    got = record(t, name, n);
    rows = n / cols;
    for (int64_t i = 0; got && i < rows; i++) {
        if (same && !same[i])
            continue;
        used++;
        for (int64_t j = i * cols; j < (i + 1) * cols; j++) {
            sq += ((double)got[j] - (double)w[j]) * ((double)got[j] - (double)w[j]);
            ref += (double)w[j] * (double)w[j];
        }
    }
    report_case(t->r, got && used > 0 && sq <= ref * ATTN_RMS * ATTN_RMS,
                "%s %s: rms %.2e on %lld of %lld rows", t->job->backend, name,
                ref > 0 ? sqrt(sq / ref) : sqrt(sq), (long long)used, (long long)rows);
}

/* ---- selections ----------------------------------------------------------------------------- */

static int falling(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

/* Whether the k-th and the next of v [n] are as good as equal. Sorts. */
static bool tied(float *v, int n, int k)
{
    float top;

    qsort(v, (size_t)n, sizeof *v, falling);
    top = fmaxf(fabsf(v[0]), fabsf(v[n - 1]));
    return n > k && (double)(v[k - 1] - v[k]) <= SCORE_TIE * (double)top;
}

/* Whether golden row `row` of a layer's scores has a tie at its cut. `inside` [groups]: entries
 * that may be chosen, or NULL. */
static bool tie_at_cut(const lab *t, const char *score_name, int64_t row, int64_t groups,
                       const float *inside, bool blocks)
{
    const model_config *c = t->rg.cfg;
    const st_tensor *g = golden_find(t->f, "%s", score_name);
    float *v = malloc((size_t)groups * sizeof *v);
    int n = 0, nb = 0;
    bool tie = false;

    for (int64_t e = 0; g && v && e < groups; e++) {
        float x = (float)golden_at(t->f, g, row * groups + e);

        if (isfinite(x) && (!inside || inside[e] != 0))
            v[n++] = x;
    }
    if (blocks && v) { /* block maxima; the newest block is always in */
        float *best = malloc((size_t)n * sizeof *best + 1);

        for (int b = 0; best && (b + 1) * c->cand_block < n; b++, nb++) {
            best[b] = -INFINITY;
            for (int e = b * c->cand_block; e < (b + 1) * c->cand_block; e++)
                best[b] = fmaxf(best[b], v[e]);
        }
        tie = best && nb + 1 > c->cand_blocks && tied(best, nb, c->cand_blocks - 1);
        free(best);
    } else if (v && n > 0) {
        tie = tied(v, n, c->index_topk);
    }
    free(v);
    return tie;
}

static int layer_ratio(const lab *t, int layer)
{
    return layer < t->rg.cfg->n_layers ? t->rg.cfg->ratio[layer] : 0;
}

/* Selection (or candidates) of an index source against the golden one, row by row. */
static void check_selection(lab *t, int layer, const char *what, bool blocks)
{
    char name[96], score[96], cand[96];
    const model_config *c = t->rg.cfg;
    const st_tensor *g, *gc;
    int64_t groups = t->s / layer_ratio(t, layer), wrong = 0, ties = 0;
    const float *got;
    float *inside = calloc((size_t)groups + 1, sizeof *inside);
    bool filtered = c->cand_source >= 0 && layer > c->cand_source;

    snprintf(name, sizeof name, "layers.%d.attn.indexer.%s", layer, what);
    snprintf(score, sizeof score, "layers.%d.attn.indexer.score", layer);
    snprintf(cand, sizeof cand, "layers.%d.attn.indexer.candidates", c->cand_source);
    g = golden_find(t->f, "%s", name);
    gc = filtered ? golden_find(t->f, "%s", cand) : NULL;
    if (!g || !inside) {
        free(inside);
        return;
    }
    got = record(t, name, t->s * groups);
    for (int64_t i = 0; got && i < t->s; i++) {
        int64_t visible = (i + 1) / layer_ratio(t, layer);
        bool same = true;

        for (int64_t e = 0; e < visible; e++) {
            same = same && (double)got[i * groups + e] == golden_at(t->f, g, i * groups + e);
            inside[e] = gc ? (float)golden_at(t->f, gc, i * groups + e) : 1;
        }
        if (!blocks)
            t->same_sel[i] = same;
        if (same)
            continue;
        if (tie_at_cut(t, score, i, groups, inside, blocks))
            ties++;
        else
            wrong++;
    }
    free(inside);
    t->r->exempt += (int)ties;
    report_case(t->r, got && wrong == 0, "%s %s: %lld rows differ without a tie, %lld with",
                t->job->backend, name, (long long)wrong, (long long)ties);
}

/* ---- state ---------------------------------------------------------------------------------- */

#define ROW_BYTES 4096

/* A row of state, wherever it lies. */
static void get_row(lab *t, uint8_t row[ROW_BYTES], const void *at, size_t bytes)
{
    DI_CHECK(bytes <= ROW_BYTES);
    t->rg.k->ops->get(t->rg.k, row, at, bytes);
}

static void check_compressed(lab *t, int layer)
{
    uint8_t row[ROW_BYTES];
    const kv_layout *l = model_kv_layout(t->rg.m);
    kv_view v = kv_seq_view(t->seq->kv);
    int owner = config_kv_source_idx(t->rg.cfg, layer);
    size_t d = (size_t)l->head_dim, k = (size_t)l->index_dim;
    int64_t groups = t->s / layer_ratio(t, layer);
    char name[96];

    for (int64_t e = 0; e < groups; e++) {
        get_row(t, row, kv_latent(l, &v, owner, e), l->latent_bytes);
        q4c_decode(t->a + (size_t)e * d, row, row + d / 2, d);
    }
    snprintf(name, sizeof name, "layers.%d.attn.latent", layer);
    check_exact(t, name, t->a);
    for (int64_t e = 0; e < groups; e++) {
        get_row(t, row, kv_key(l, &v, owner, e), l->key_bytes);
        q4i_decode(t->a + (size_t)e * k, row, row + k / 2, k);
    }
    snprintf(name, sizeof name, "layers.%d.attn.index_key", layer);
    check_exact(t, name, t->a);
}

/* Ring rows of a draft stage for the positions before `pos`, as the golden context has them. */
static void check_ring(lab *t, int stage, int64_t pos)
{
    const kv_layout *l = model_kv_layout(t->rg.m);
    kv_view v = kv_seq_view(t->seq->kv);
    size_t d = (size_t)l->head_dim;
    int64_t n = pos < l->window ? pos : l->window;
    uint8_t row[ROW_BYTES];
    char name[96];

    for (int64_t i = 0; i < n; i++) {
        get_row(t, row, kv_ring(l, &v, t->rg.cfg->n_layers + stage, pos - n + i),
                l->ring_row_bytes);
        q8_decode(t->a + (size_t)i * d, row, row + d, d);
    }
    snprintf(name, sizeof name, "draft.context.%d", stage);
    check_act(t, name, t->a);
}

static void put_ring(lab *t, int stage, int64_t pos)
{
    const kv_layout *l = model_kv_layout(t->rg.m);
    kv_view v = kv_seq_view(t->seq->kv);
    const st_tensor *g = golden_find(t->f, "draft.context.%d", stage);
    int64_t d = l->head_dim, n = g ? golden_count(g) / d : 0;

    for (int64_t i = 0; i < n; i++) {
        uint8_t row[ROW_BYTES];

        DI_CHECK(l->ring_row_bytes <= ROW_BYTES);
        golden_get(t->f, g, i * d, d, t->a);
        q8_encode(row, row + d, t->a, (size_t)d); /* on its own output: exact */
        t->rg.k->ops->put(t->rg.k, kv_ring(l, &v, t->rg.cfg->n_layers + stage, pos - n + i), row,
                          l->ring_row_bytes);
    }
}

/* ---- layers --------------------------------------------------------------------------------- */

static void prefix_of(const lab *t, int layer, char *out, size_t cap)
{
    int n = t->rg.cfg->n_layers;

    snprintf(out, cap, layer < n ? "layers.%d" : "mtp.%d", layer < n ? layer : layer - n);
}

/* Golden tensor PREFIX.SUFFIX into the model through `set`; false when it is not recorded. */
static bool put(lab *t, const char *prefix, const char *suffix,
                void (*set)(model *m, const float *data))
{
    char name[96];
    int64_t n;
    const float *w;

    snprintf(name, sizeof name, "%s.%s", prefix, suffix);
    w = want(t, name, &n);
    if (w)
        set(t->rg.m, w);
    return w != NULL;
}

static void check_input(lab *t, const char *prefix, const char *suffix)
{
    char name[96];

    snprintf(name, sizeof name, "%s.%s", prefix, suffix);
    layer_get_input(t->rg.m, t->a);
    check_act(t, name, t->a);
}

static void check_stream(lab *t, const char *prefix, const char *suffix)
{
    char name[96];

    snprintf(name, sizeof name, "%s.%s", prefix, suffix);
    layer_get_stream(t->rg.m, t->a);
    check_act(t, name, t->a);
}

static void check_engram(lab *t, int layer, const char *prefix)
{
    char name[128], before[32];

    if (config_engram_idx(t->rg.cfg, layer) < 0)
        return;
    snprintf(before, sizeof before, "layers.%d", layer - 1);
    if (layer > 0 && !put(t, before, "out", layer_set_stream))
        return;
    layer_engram(t->rg.m, layer);
    snprintf(name, sizeof name, "%s.engram.gate", prefix);
    check_close(t, name, 1e-5);
    check_stream(t, prefix, "in");
}

static void check_attention_sublayer(lab *t, int layer, const char *prefix)
{
    char name[96];
    bool stage = layer >= t->rg.cfg->n_layers;

    if (!put(t, prefix, "attn_in", layer_set_input))
        return;
    layer_attention(t->rg.m, layer);
    if (!stage && layer_ratio(t, layer) > 0 && config_kv_source_idx(t->rg.cfg, layer) >= 0)
        check_compressed(t, layer);
    if (!stage && layer_ratio(t, layer) > 0 && config_is_index_source(t->rg.cfg, layer)) {
        if (layer == t->rg.cfg->cand_source)
            check_selection(t, layer, "candidates", true);
        check_selection(t, layer, "selected", false);
    }
    snprintf(name, sizeof name, "%s.attn_out", prefix);
    check_attention(t, name, layer_ratio(t, layer) > 0 ? t->same_sel : NULL);
}

static void check_ffn_sublayer(lab *t, const char *prefix, int layer)
{
    char name[96];
    int64_t n;

    if (!put(t, prefix, "ffn_in", layer_set_input))
        return;
    layer_ffn(t->rg.m, layer);
    snprintf(name, sizeof name, "%s.ffn.expert_ids", prefix);
    if (want(t, name, &n))
        check_exact(t, name, record(t, name, n));
    snprintf(name, sizeof name, "%s.ffn.expert_weights", prefix);
    check_close(t, name, 1e-5);
    snprintf(name, sizeof name, "%s.ffn_out", prefix);
    check_record(t, name);
}

/* A layer or stage: each part starts from what was recorded in front of it. */
static void check_layer(lab *t, int layer)
{
    char prefix[32], next[32];

    prefix_of(t, layer, prefix, sizeof prefix);
    if (!put(t, prefix, "in", layer_set_stream) || !put(t, prefix, "pre_mix", layer_set_pre))
        return;
    layer_enter(t->rg.m, layer, HC_ATTN);
    check_input(t, prefix, "attn_in");
    check_attention_sublayer(t, layer, prefix);
    if (!put(t, prefix, "attn_out", layer_set_output))
        return;
    layer_enter(t->rg.m, layer, HC_FFN);
    check_input(t, prefix, "ffn_in");
    check_ffn_sublayer(t, prefix, layer);
    if (!put(t, prefix, "ffn_out", layer_set_output))
        return;
    layer_leave(t->rg.m);
    check_stream(t, prefix, "out");
    prefix_of(t, layer + 1, next, sizeof next);
    if (layer + 1 < t->rg.cfg->n_layers && config_engram_idx(t->rg.cfg, layer + 1) < 0)
        check_stream(t, next, "in");
}

static void check_backbone(lab *t, seq_rows *rows, di_status *st)
{
    const model_config *c = t->rg.cfg;

    if (!report_case(t->r, layer_begin(t->rg.m, rows, 1, st) == DI_OK, "%s begins %s",
                     t->job->backend, st->message))
        return;
    if (config_engram_idx(c, 0) < 0)
        check_stream(t, "layers.0", "in");
    for (int l = 0; l < c->n_layers; l++) {
        char prefix[32];

        prefix_of(t, l, prefix, sizeof prefix);
        check_engram(t, l, prefix);
        check_layer(t, l);
    }
    layer_head(t->rg.m);
    check_record(t, "final");
}

/* Rings of the draft stages from the recorded streams of the tapped layers. */
static void check_feed(lab *t)
{
    const model_config *c = t->rg.cfg;

    for (int i = 0; i < c->n_taps; i++) {
        char prefix[32];

        prefix_of(t, c->tap_layer[i], prefix, sizeof prefix);
        if (!put(t, prefix, "in", layer_set_stream))
            return;
        layer_tap(t->rg.m, c->tap_layer[i]);
    }
    draft_feed(t->rg.m);
    for (int s = 0; s < c->n_stages; s++)
        check_ring(t, s, t->s);
}

static void check_draft(lab *t, di_status *st)
{
    const model_config *c = t->rg.cfg;
    const st_tensor *tokens = golden_find(t->f, "draft.tokens"), *logits;
    const st_tensor *token = golden_find(t->f, "draft.token"),
                    *pos = golden_find(t->f, "draft.pos");
    int32_t draft[GOLDEN_MAX_BLOCK];
    float conf[GOLDEN_MAX_BLOCK] = {0}, as_float[GOLDEN_MAX_BLOCK] = {0};
    draft_rows rows;
    int block;

    if (!tokens || !token || !pos || c->n_stages == 0)
        return;
    check_feed(t);
    block = (int)golden_count(tokens);
    t->seq->n = (int)golden_at(t->f, pos, 0);
    kv_seq_set_len(t->seq->kv, t->seq->n);
    for (int s = 0; s < c->n_stages; s++)
        put_ring(t, s, t->seq->n);
    rows =
        (draft_rows){.view = kv_seq_view(t->seq->kv), .token = (int32_t)golden_at(t->f, token, 0)};
    if (!report_case(t->r, layer_begin_draft(t->rg.m, &rows, 1, block, st) == DI_OK,
                     "draft begins %s", st->message))
        return;
    check_stream(t, "mtp.0", "in");
    for (int s = 0; s < c->n_stages; s++)
        check_layer(t, c->n_layers + s);
    if (draft_propose(t->rg.m, &rows, 1, block, draft, conf, st))
        return;
    check_record(t, "draft.hidden");
    logits = golden_find(t->f, "draft.logits");
    if (logits)
        check_rms(t, "draft.logits", record(t, "draft.logits", golden_count(logits)));
    for (int i = 0; i < block; i++)
        as_float[i] = (float)draft[i];
    check_exact(t, "draft.tokens", as_float);
    check_rms(t, "draft.confidence", conf);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static bool reserve(lab *t, const golden_list *ids)
{
    for (size_t i = 0; i < st_file_n_tensors(t->f); i++) {
        int64_t n = golden_count(st_file_tensor(t->f, i));

        t->scratch = n > t->scratch ? n : t->scratch;
    }
    t->s = ids->n;
    t->scratch += (int64_t)t->s * t->rg.cfg->hidden * t->rg.cfg->hc;
    t->a = malloc((size_t)t->scratch * sizeof *t->a);
    t->b = malloc((size_t)t->scratch * sizeof *t->b);
    t->same_sel = malloc((size_t)t->s);
    t->seq = calloc(1, sizeof *t->seq);
    if (!t->a || !t->b || !t->same_sel || !t->seq)
        return false;
    memset(t->same_sel, 1, (size_t)t->s);
    for (int i = 0; i < t->s; i++)
        t->seq->token[i] = (int32_t)ids->v[i];
    return true;
}

void check_sublayers(report *r, const golden_job *job)
{
    const golden_list *ids = &job->g->trace_prompt;
    lab t = {.r = r, .job = job};
    st_file *f = NULL;
    seq_rows rows;
    di_status st = {0};
    rig_options o = {.dir = job->model_dir,
                     .backend = job->backend,
                     .numerics = NUMERICS_RELEASE,
                     .n_threads = job->n_threads,
                     .max_rows = ids->n};

    if (golden_tensors(&f, job->golden_dir, "trace-release.safetensors", &st))
        report_case(r, false, "%s", st.message);
    t.f = f;
    if (!f || ids->n < 1 || ids->n > RIG_MAX_TOKENS) {
        st_file_close(f);
        return;
    }
    if (report_case(r, rig_open(&t.rg, &o, &st), "release on %s opens %s", job->backend,
                    st.message)) {
        if (reserve(&t, ids) && rig_seq_new(&t.rg, t.seq, &st) &&
            rig_rows(t.seq, t.s, t.s, &rows, &st)) {
            model_set_trace(t.rg.m, on_trace, &t);
            check_backbone(&t, &rows, &st);
            check_draft(&t, &st);
        }
        if (st.code)
            report_case(r, false, "release on %s: %s", job->backend, st.message);
        if (t.seq)
            rig_seq_free(t.seq);
        rig_close(&t.rg);
    }
    for (int i = 0; i < MAX_KEPT; i++)
        free(t.kept[i].data);
    free(t.a);
    free(t.b);
    free(t.same_sel);
    free(t.seq);
    st_file_close(f);
}
