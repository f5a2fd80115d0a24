/* deepinfer selftest: are the kernels of this machine right? */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/session.h"
#include "kernels/selftest.h"
#include "kv/seq.h"
#include "recipe/prompt.h"

/* A model's logits by a fast back end against those by ref. Rounding differs in the last place and
 * travels, so the best token may change where two are nearly equal (often, in a model that knows
 * nothing); a wrong kernel changes clear decisions and is far beyond these. */
#define CLEAR     0.5  /* logits: ref prefers its token by this much */
#define MAX_CLEAR 0.05 /* share of positions with a clear decision that differs */
#define MAX_KL    0.05

typedef struct selftest_options {
    session_options session;
} selftest_options;

static opt_result parse(selftest_options *o, int argc, char **argv, di_status *st)
{
    const opt options[] = {SESSION_OPTIONS(o->session)};
    const opt_program program = {
        .name = "selftest",
        .usage = "[OPTION]...",
        .summary =
            "Compares every back end of this machine (or --backend) with the reference, checks\n"
            "that a row has the same bits alone, in a batch and with any number of threads, and\n"
            "the number formats. With --model, compares whole forward passes as well.",
        .options = options,
        .n = ARRAY_LEN(options),
        .notes = "Ends with one line that says whether everything passed.",
    };

    return opt_parse(&program, argc, argv, NULL, st);
}

static void print_result(void *arg, const selftest_result *r)
{
    (void)arg;
    printf("  %-18s difference %8.1e (limit %.0e)  alone %-9s threads %-9s %s\n", r->name, r->worst,
           r->limit, r->same_alone ? "same" : "DIFFERENT", r->same_threads ? "same" : "DIFFERENT",
           r->ok ? "ok" : "FAILED");
    fflush(stdout);
}

/* Logits of all positions of `ids`, computed `chunk` rows at a time; mem_free them. */
static di_code forward(const session *s, const tok_ids *ids, int chunk, float **out, di_status *st)
{
    size_t vocab = (size_t)s->cfg->vocab, row = vocab * sizeof(float);
    int n_ids = (int)ids->n, ngram = s->cfg->n_engram ? s->cfg->engram_ngram : 1;
    kv_pool *blocks = NULL;
    kv_seq *seq = NULL;
    di_code rc;

    *out = mem_try_calloc(ids->n, row);
    if (!*out)
        return di_fail(st, DI_E_NOMEM, "no memory for the logits of %d tokens", n_ids);
    DI_TRY(kv_pool_new_in(&blocks, kernels_kv_memory(s->k), model_kv_layout(s->m),
                          n_ids / KV_BLOCK_TOKENS + 1, 1, st));
    DI_TRY(kv_seq_new(blocks, &seq, st));
    for (int at = 0, n; at < n_ids; at += n) {
        int history = at < ngram - 1 ? at : ngram - 1;
        seq_rows rows;
        float *logits;

        n = n_ids - at < chunk ? n_ids - at : chunk;
        DI_TRY(kv_seq_reserve(seq, at + n, st));
        rows = (seq_rows){.view = kv_seq_view(seq),
                          .n = n,
                          .token = ids->ids + at,
                          .history = ids->ids + at - history,
                          .n_history = history,
                          .n_logits = n};
        DI_TRY(model_forward(s->m, &rows, 1, &logits, st));
        DI_TRY(s->k->ops->finish(s->k, st));
        s->k->ops->get(s->k, *out + (size_t)at * vocab, logits, (size_t)n * row);
        kv_seq_set_len(seq, at + n);
    }
done:
    kv_seq_free(seq);
    if (blocks)
        kv_pool_free(blocks);
    return rc;
}

/* Kullback-Leibler divergence of softmax(q) from softmax(p), in nats. */
static double divergence(const float *p, const float *q, int n)
{
    double mp = -INFINITY, mq = -INFINITY, zp = 0, zq = 0, kl = 0;

    for (int i = 0; i < n; i++) {
        mp = fmax(mp, (double)p[i]);
        mq = fmax(mq, (double)q[i]);
    }
    for (int i = 0; i < n; i++) {
        zp += exp((double)p[i] - mp);
        zq += exp((double)q[i] - mq);
    }
    for (int i = 0; i < n; i++) {
        double lp = (double)p[i] - mp - log(zp), lq = (double)q[i] - mq - log(zq);

        kl += exp(lp) * (lp - lq);
    }
    return kl;
}

static int argmax(const float *x, int n)
{
    int best = 0;

    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* Compare the logits of a back end with those of ref. True when they are close enough. */
static bool compare(const char *backend, const float *want, const float *got, const float *parts,
                    int n, int vocab)
{
    int agree = 0, clear = 0;
    double kl = 0;
    bool same = memcmp(got, parts, (size_t)n * (size_t)vocab * sizeof *got) == 0, ok;

    for (int i = 0; i < n; i++) {
        const float *w = want + (size_t)i * (size_t)vocab, *g = got + (size_t)i * (size_t)vocab;
        int best = argmax(w, vocab), other = argmax(g, vocab);

        agree += best == other;
        clear += w[best] - w[other] > CLEAR;
        kl += divergence(w, g, vocab) / n;
    }
    ok = same && clear <= MAX_CLEAR * n && kl <= MAX_KL;
    printf("  %-8s same best token at %d of %d positions, %d of the others clear, mean KL %.1e, "
           "in chunks: %s  %s\n",
           backend, agree, n, clear, kl, same ? "same bits" : "DIFFERENT BITS",
           ok ? "ok" : "FAILED");
    return ok;
}

/* A plain chat: on text that a model has not seen the like of, its answer hangs on the last place
 * of its sums, and two right back ends differ more. */
static const char sample_text[] =
    "Read the text and answer the question.\n\nRosa lives in Oslo. The favourite color of Rosa is "
    "blue. Rosa works as a doctor. Rosa has a pet mouse. Rosa likes to eat honey. Rosa is 46 years "
    "old. Jane is 76 years old. Jane works as a doctor. Jane likes to eat noodles. Jane has a pet "
    "cat. Jane lives in Moscow.\n\nWhere does Jane live?";

static di_code sample_ids(const tokenizer *tok, tok_ids *ids, di_status *st)
{
    const recipe_message m = {
        .role = RECIPE_USER, .content = sample_text, .n_content = sizeof sample_text - 1};
    const recipe_chat chat = {.message = &m, .n = 1};
    recipe_prompt p = {0};
    di_code rc;

    DI_TRY(recipe_render(&chat, NULL, &p, st));
    DI_TRY(recipe_encode(tok, &p, ids, st));
done:
    recipe_prompt_fini(&p);
    return rc;
}

static di_code open_backend(session *s, const session_options *base, const char *backend,
                            di_status *st)
{
    const session_limits lim = {.rows = 256, .logit_rows = 256, .seqs = 1};
    session_options o = *base;

    o.backend = backend;
    return session_open(s, &o, &lim, st);
}

static di_code logits_of(const session_options *o, const char *backend, int chunk, float **out,
                         int *n, int *vocab, di_status *st)
{
    session s;
    tok_ids ids = {0};
    di_code rc = open_backend(&s, o, backend, st);

    *out = NULL;
    if (rc != DI_OK)
        return rc;
    DI_TRY(sample_ids(s.tok, &ids, st));
    DI_TRY(forward(&s, &ids, chunk, out, st));
    *n = (int)ids.n;
    *vocab = s.cfg->vocab;
done:
    tok_ids_fini(&ids);
    session_close(&s);
    return rc;
}

static di_code test_model(const session_options *o, const char *backend, const float *want,
                          bool *ok, di_status *st)
{
    float *got = NULL, *parts = NULL;
    int n, vocab;
    di_code rc;

    DI_TRY(logits_of(o, backend, 256, &got, &n, &vocab, st));
    DI_TRY(logits_of(o, backend, 7, &parts, &n, &vocab, st));
    *ok = compare(backend, want, got, parts, n, vocab);
done:
    mem_free(got);
    mem_free(parts);
    return rc;
}

typedef struct totals {
    int checks, failed;
} totals;

static di_code test_backend(const selftest_options *o, const char *backend, const float *want,
                            totals *t, di_status *st)
{
    int failed;
    bool ok = true;
    di_code rc;

    printf("%s\n", backend);
    DI_TRY(selftest_backend(backend, (int)o->session.threads, print_result, NULL, &failed, st));
    t->checks++;
    t->failed += failed > 0;
    if (want) {
        DI_TRY(test_model(&o->session, backend, want, &ok, st));
        t->checks++;
        t->failed += !ok;
    }
done:
    return rc;
}

static di_code run(const selftest_options *o, totals *t, di_status *st)
{
    const char *const *backends = kernels_available();
    float *want = NULL;
    int n, vocab;
    bool formats = selftest_formats();
    di_code rc = DI_OK;

    printf("%s, %d processors\n", cpu_name(), cpu_count());
    printf("formats: %s\n", formats ? "ok" : "FAILED");
    t->checks++;
    t->failed += !formats;
    if (o->session.model)
        DI_TRY(logits_of(&o->session, "ref", 256, &want, &n, &vocab, st));
    if (strcmp(o->session.backend, "auto") != 0) {
        DI_TRY(test_backend(o, o->session.backend, want, t, st));
        goto done;
    }
    for (; *backends; backends++)
        DI_TRY(test_backend(o, *backends, want, t, st));
done:
    mem_free(want);
    return rc;
}

int cli_selftest(int argc, char **argv)
{
    selftest_options o = {.session = SESSION_DEFAULTS};
    di_status st = {0};
    totals t = {0};

    switch (parse(&o, argc, argv, &st)) {
    case OPT_HELP_SHOWN:
        return CLI_OK;
    case OPT_WRONG:
        return cli_fail("selftest", &st);
    case OPT_RUN:
        break;
    }
    if (run(&o, &t, &st) != DI_OK) {
        fflush(stdout);
        return cli_fail("selftest", &st);
    }
    if (t.failed)
        printf("selftest FAILED: do not trust the answers of this machine and build\n");
    else
        printf("selftest passed: every back end is right on this machine\n");
    return t.failed ? CLI_FOUND : CLI_OK;
}
