/* What a sweep has found: a table on the terminal, bench.csv, and two charts. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/file.h"
#include "cli/bench.h"
#include "cli/chart.h"

static const char *base_name(const char *path)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    return path + n;
}

void bench_subject(const bench *b, char *buf, size_t cap)
{
    const bench_options *o = b->o;
    const di_model_info *m = &b->s.info;
    bool dummy = strcmp(o->weights.format, "dummy") == 0;
    char drafts[64] = "no drafts", share[80] = "", where[96];
    int n = o->engine.drafts >= 0 ? (int)o->engine.drafts : m->draft_block;

    if (m->n_draft_stages == 0 && o->engine.drafts <= 0)
        n = 0;
    if (n > 0 && o->acceptance >= 0)
        snprintf(drafts, sizeof drafts, "%d drafts pinned to %.0f %%", n, 100 * o->acceptance);
    else if (n > 0)
        snprintf(drafts, sizeof drafts, "%s %d drafts", o->engine.fixed ? "always" : "up to", n);
    if (o->weights.share)
        snprintf(share, sizeof share, ", one rank of EP%s (share %s), communication excluded",
                 strchr(o->weights.share, '/') + 1, o->weights.share);
    if (b->device)
        snprintf(where, sizeof where, "%s", b->device_peak.name);
    else
        snprintf(where, sizeof where, "%d %s of %s", m->n_threads,
                 m->n_threads == 1 ? "thread" : "threads", cpu_name());
    snprintf(buf, cap, "%.*s%s%s, %d layers, %s, %s, %s", 40, base_name(o->session.model),
             dummy ? ", generated weights" : "", share, m->n_layers, m->backend, where, drafts);
}

/* ---- fronts ---- */

static void mark_fronts(bench *b)
{
    double x[BENCH_MAX_POINTS], y[BENCH_MAX_POINTS];
    bool front[BENCH_MAX_POINTS];

    for (int i = 0; i < b->n_points; i++) {
        x[i] = b->point[i].ttft.p50;
        y[i] = b->point[i].prefill.tokens_s;
    }
    pareto_mark(x, y, b->n_points, true, front);
    for (int i = 0; i < b->n_points; i++) {
        b->point[i].front_prefill = front[i];
        x[i] = b->point[i].user_tokens_s;
        y[i] = b->point[i].decode.tokens_s;
    }
    pareto_mark(x, y, b->n_points, false, front);
    for (int i = 0; i < b->n_points; i++)
        b->point[i].front_decode = front[i];
}

/* ---- tables ---- */

static void put_phase(FILE *f, const bench_phase *p)
{
    fprintf(f, ",%.2f,%.4f,%s,%.4f,%.4f,%.3f,%.1f,%.0f", p->tokens_s, p->roofline,
            p->compute_bound ? "compute" : "memory", p->mfu, p->idle, p->step_ms, p->host_us,
            p->steps);
}

static void put_spread(FILE *f, spread s)
{
    fprintf(f, ",%.3f,%.3f,%.3f", s.p50, s.p90, s.p99);
}

static void put_rows(FILE *f, const bench *b)
{
    fputs("prompt_tokens,concurrency,cached_tokens,output_tokens"
          ",prefill_tokens_per_s,prefill_roofline,prefill_bound,prefill_mfu,prefill_idle"
          ",prefill_step_ms,prefill_host_us,prefill_steps"
          ",ttft_ms_p50,ttft_ms_p90,ttft_ms_p99,prefill_front"
          ",decode_tokens_per_s,decode_roofline,decode_bound,decode_mfu,decode_idle,decode_step_ms"
          ",decode_host_us,decode_steps,user_tokens_per_s,tokens_per_step,verified_per_step"
          ",acceptance,tpot_ms_p50,tpot_ms_p90,tpot_ms_p99,itl_ms_p50,itl_ms_p90,itl_ms_p99"
          ",decode_front,read_gb_per_s,gflop_per_s,prefill_launches,decode_launches\n",
          f);
    for (int i = 0; i < b->n_points; i++) {
        const bench_point *p = &b->point[i];

        fprintf(f, "%lld,%d,%lld,%lld", (long long)p->prompt, p->concurrency,
                (long long)b->o->cached, (long long)b->o->output);
        put_phase(f, &p->prefill);
        put_spread(f, p->ttft);
        fprintf(f, ",%d", p->front_prefill);
        put_phase(f, &p->decode);
        fprintf(f, ",%.2f,%.3f,%.3f,%.4f", p->user_tokens_s, p->tokens_per_step,
                p->verified_per_step, p->acceptance);
        put_spread(f, p->tpot);
        put_spread(f, p->gap);
        fprintf(f, ",%d,%.2f,%.1f,%.0f,%.0f\n", p->front_decode, p->peak.bytes * 1e-9,
                p->peak.flops * 1e-9, p->prefill.launches, p->decode.launches);
    }
}

static di_code write_csv(const bench *b, di_status *st)
{
    char path[4096];
    FILE *f;
    di_code rc = path_join(path, sizeof path, b->o->out, "bench.csv", st);
    bool bad;

    if (rc != DI_OK)
        return rc;
    f = fopen(path, "we");
    if (!f)
        return di_fail(st, DI_E_IO, "could not write \"%s\": %s", path, errno_text(errno));
    put_rows(f, b);
    bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad)
        return di_fail(st, DI_E_IO, "could not write \"%s\": %s", path, errno_text(errno));
    return DI_OK;
}

/* Which points there was no time for, by prompt length. */
static void tell_left_out(const bench *b)
{
    printf("%d points were left out: no time for them (--max-minutes):", b->n_left_out);
    for (int i = 0; i < b->n_left_out; i++) {
        const bench_point *p = &b->left_out[i];

        if (i > 0 && p->prompt == p[-1].prompt)
            printf(", %d", p->concurrency);
        else
            printf("%s %lld tokens x %d", i ? ";" : "", (long long)p->prompt, p->concurrency);
    }
    puts("");
}

static void print_table(const bench *b)
{
    char subject[256];

    bench_subject(b, subject, sizeof subject);
    printf("%s\nceilings: %s %.1f GB/s, %.0f GFLOP/s\n\n", subject, b->device ? "copy" : "read",
           b->peak.bytes * 1e-9, b->peak.flops * 1e-9);
    puts("prompt users | prefill tok/s  TTFT ms p50      p99 roof idle | decode tok/s  tok/s/user "
         "ITL ms p50    p99 tok/step roof idle");
    for (int i = 0; i < b->n_points; i++) {
        const bench_point *p = &b->point[i];

        printf("%6lld %5d |%c%12.0f %12.1f %8.1f %3.0f%% %3.0f%% |%c%11.1f %11.2f %10.2f %6.2f "
               "%8.2f %3.0f%% %3.0f%%\n",
               (long long)p->prompt, p->concurrency, p->front_prefill ? '*' : ' ',
               p->prefill.tokens_s, p->ttft.p50, p->ttft.p99, 100 * p->prefill.roofline,
               100 * p->prefill.idle, p->front_decode ? '*' : ' ', p->decode.tokens_s,
               p->user_tokens_s, p->gap.p50, p->gap.p99, p->tokens_per_step,
               100 * p->decode.roofline, 100 * p->decode.idle);
    }
    puts("* on the Pareto front; roof: share of the step's roofline");
    if (b->n_left_out)
        tell_left_out(b);
}

/* ---- charts ---- */

/* 2048 -> "2k" */
static void short_count(char *buf, size_t cap, int64_t v, const char *unit)
{
    if (v >= 1024 && v % 1024 == 0)
        snprintf(buf, cap, "%lldk%s", (long long)(v / 1024), unit);
    else
        snprintf(buf, cap, "%lld%s", (long long)v, unit);
}

/* Which entries of a list get a curve: all, or the ends and some between. */
static int curves(const bench_list *l, int64_t *value)
{
    int n = l->n < CHART_MAX_SERIES ? l->n : CHART_MAX_SERIES;

    for (int i = 0; i < n; i++)
        value[i] = l->value[n > 1 ? i * (l->n - 1) / (n - 1) : 0];
    return n;
}

static void add_point(chart_series *s, double x, double y, bool front, int64_t label)
{
    chart_point *p;

    if (s->n == CHART_MAX_POINTS || !(x > 0) || !(y > 0))
        return;
    p = &s->point[s->n++];
    *p = (chart_point){.x = x, .y = y, .front = front};
    short_count(p->label, sizeof p->label, label, "");
}

static void prefill_chart(const bench *b, chart *ch)
{
    int64_t users[CHART_MAX_SERIES] = {0};

    ch->title = "Prefill: throughput against time to first token";
    ch->x_label = "time to first token, median (ms)";
    ch->y_label = "uncached prompt tokens/s";
    ch->legend = "requests at once";
    ch->x_log = true;
    ch->n = curves(&b->o->concurrency, users);
    for (int s = 0; s < ch->n; s++) {
        snprintf(ch->series[s].name, sizeof ch->series[s].name, "%lld", (long long)users[s]);
        for (int i = 0; i < b->n_points; i++)
            if (b->point[i].concurrency == users[s])
                add_point(&ch->series[s], b->point[i].ttft.p50, b->point[i].prefill.tokens_s,
                          b->point[i].front_prefill, b->point[i].prompt);
    }
}

static void decode_chart(const bench *b, chart *ch)
{
    int64_t prompt[CHART_MAX_SERIES] = {0};

    ch->title = "Decode: throughput against speed per user";
    ch->x_label = "output tokens/s per user";
    ch->y_label = "output tokens/s";
    ch->legend = "prompt tokens";
    ch->n = curves(&b->o->prompts, prompt);
    for (int s = 0; s < ch->n; s++) {
        snprintf(ch->series[s].name, sizeof ch->series[s].name, "%lld",
                 (long long)prompt[s] + (long long)b->o->cached);
        for (int i = 0; i < b->n_points; i++)
            if (b->point[i].prompt == prompt[s])
                add_point(&ch->series[s], b->point[i].user_tokens_s, b->point[i].decode.tokens_s,
                          b->point[i].front_decode, b->point[i].concurrency);
    }
}

static di_code write_chart(const bench *b, bool prefill, di_status *st)
{
    static chart ch; /* large */
    char subject[256], note[256];

    ch = (chart){.subtitle = subject, .note = note};
    bench_subject(b, subject, sizeof subject);
    snprintf(note, sizeof note,
             "Labels: %s. Excluded: loading, tokenisation, network. Prompts share no prefix%s.",
             prefill ? "prompt tokens" : "requests at once",
             b->o->cached ? " beyond the cached one" : "");
    if (prefill)
        prefill_chart(b, &ch);
    else
        decode_chart(b, &ch);
    return chart_write(&ch, b->o->out, prefill ? "prefill" : "decode", st);
}

di_code bench_report(bench *b, di_status *st)
{
    di_code rc = DI_OK;

    if (b->n_points == 0)
        return di_fail(st, DI_E_BUSY,
                       "no point could be measured in %g minutes: give more, or "
                       "fewer tokens and requests",
                       b->o->minutes);
    mark_fronts(b);
    print_table(b);
    DI_TRY(write_csv(b, st));
    DI_TRY(write_chart(b, true, st));
    if (b->o->output > 1)
        rc = write_chart(b, false, st);
done:
    return rc;
}
