/* Replaying a trace: one JSON object per line,
 *   {"arrival": SECONDS, "prompt": TOKENS or TEXT, "output": TOKENS}
 * A request is submitted when its arrival divided by --speed has passed, whatever the engine does
 * meanwhile. trace.csv has a line per request, trace.svg and trace.png their times. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/chart.h"
#include "cli/wave.h"

#define MAX_TRACE    ((size_t)1 << 30)
#define MAX_REQUESTS 65536
#define MAX_TOKENS   ((int64_t)1 << 24)
#define SLICE_NS     50000000u /* between two looks at the clock while nothing arrives */

typedef struct arrival {
    double at_s;
    int64_t prompt, output;
    const char *text; /* [n_text] instead of a number of tokens, or NULL */
    size_t n_text;
} arrival;

struct bench_trace {
    arena *mem;
    arrival *list; /* [n] in the order of time */
    int n, cap;
};

/* ---- reading ---- */

static di_code read_prompt(json_read *r, bench_trace *t, arrival *a, di_status *st)
{
    const char *text;
    di_code rc = DI_OK;

    if (json_peek(r) != JSON_STRING)
        return json_int(r, &a->prompt, st);
    DI_TRY(json_string(r, &text, &a->n_text, st));
    a->text = arena_strndup(t->mem, text, a->n_text);
    a->prompt = (int64_t)a->n_text;
    if (!a->text)
        rc = di_fail(st, DI_E_NOMEM, "no memory for a trace");
done:
    return rc;
}

static di_code read_line(bench_trace *t, arrival *a, json_read *r, di_status *st)
{
    const char *key;
    size_t n;
    int seen = 0;
    di_code rc = DI_OK;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        if (json_key_is(key, n, "arrival")) {
            seen |= 1;
            DI_TRY(json_number(r, &a->at_s, st));
        } else if (json_key_is(key, n, "prompt")) {
            seen |= 2;
            DI_TRY(read_prompt(r, t, a, st));
        } else if (json_key_is(key, n, "output")) {
            seen |= 4;
            DI_TRY(json_int(r, &a->output, st));
        } else {
            DI_TRY(json_skip(r, st));
        }
    }
    DI_TRY(json_end(r, st));
    if (seen != 7)
        return di_fail(st, DI_E_FORMAT, "%s: \"%s\" is missing", r->name,
                       !(seen & 1)   ? "arrival"
                       : !(seen & 2) ? "prompt"
                                     : "output");
    if (!(a->at_s >= 0 && a->at_s <= 1e7) || a->prompt < 1 || a->prompt > MAX_TOKENS ||
        a->output < 1 || a->output > MAX_TOKENS)
        rc = di_fail(st, DI_E_FORMAT,
                     "%s: arrival must be from 0 s, prompt and output from 1 to %lld tokens",
                     r->name, (long long)MAX_TOKENS);
done:
    return rc;
}

static di_code add_line(bench_trace *t, const char *text, size_t n, const char *name, di_status *st)
{
    json_read r;
    di_code rc;

    if (t->n == MAX_REQUESTS)
        return di_fail(st, DI_E_FORMAT, "%s: more than %d requests", name, MAX_REQUESTS);
    if (t->n == t->cap) {
        int cap = t->cap ? 2 * t->cap : 64;
        arrival *more = mem_try_realloc(t->list, (size_t)cap, sizeof *more);

        if (!more)
            return di_fail(st, DI_E_NOMEM, "no memory for a trace");
        t->list = more;
        t->cap = cap;
    }
    t->list[t->n] = (arrival){0};
    json_open(&r, text, n, name);
    rc = read_line(t, &t->list[t->n], &r, st);
    json_close(&r);
    t->n += rc == DI_OK;
    return rc;
}

static int by_time(const void *a, const void *b)
{
    const arrival *x = a, *y = b;

    return (x->at_s > y->at_s) - (x->at_s < y->at_s);
}

di_code bench_trace_read(bench_trace **out, const char *path, double speed, di_status *st)
{
    bench_trace *t = mem_try_calloc(1, sizeof *t);
    char *text = NULL, name[4200];
    size_t n = 0;
    int line = 0;
    di_code rc = DI_OK;

    *out = NULL;
    if (!t)
        return di_fail(st, DI_E_NOMEM, "no memory for a trace");
    t->mem = arena_new(0);
    if (!t->mem) {
        rc = di_fail(st, DI_E_NOMEM, "no memory for a trace");
        goto done;
    }
    DI_TRY(file_read(&text, &n, path, MAX_TRACE, st));
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;

        snprintf(name, sizeof name, "%.4000s:%d", path, ++line);
        if (strspn(text + at, " \t\r") < len)
            DI_TRY(add_line(t, text + at, len, name, st));
        at += len + 1;
    }
    if (t->n == 0) {
        rc = di_fail(st, DI_E_FORMAT, "\"%s\" has no requests", path);
        goto done;
    }
    qsort(t->list, (size_t)t->n, sizeof *t->list, by_time);
    for (int i = 0; i < t->n; i++)
        t->list[i].at_s /= speed;
    *out = t;
    t = NULL;
done:
    mem_free(text);
    bench_trace_free(t);
    return rc;
}

void bench_trace_free(bench_trace *t)
{
    if (!t)
        return;
    arena_free(t->mem);
    mem_free(t->list);
    mem_free(t);
}

void bench_trace_size(const bench_trace *t, int64_t *prompt, int64_t *output, int *n)
{
    *prompt = *output = 0;
    *n = t->n;
    for (int i = 0; i < t->n; i++) {
        *prompt = t->list[i].prompt > *prompt ? t->list[i].prompt : *prompt;
        *output = t->list[i].output > *output ? t->list[i].output : *output;
    }
}

/* ---- running ---- */

static di_code submit(bench *b, const arrival *a, wave *w, di_status *st)
{
    di_request_params p;

    bench_next_request(b, a->prompt, a->output, &p);
    if (a->text) {
        p.ids = NULL;
        p.n_ids = 0;
        p.text = a->text;
        p.n_text = a->n_text;
    }
    return wave_submit(w, &p, st);
}

static int n_done(wave *w)
{
    int n;

    pthread_mutex_lock(&w->lock);
    n = w->n_done;
    pthread_mutex_unlock(&w->lock);
    return n;
}

typedef struct trace_tick {
    bench *b;
    wave *w;
} trace_tick;

static void show(void *arg)
{
    trace_tick *t = arg;

    progress_set(&t->b->bar, (uint64_t)n_done(t->w));
}

/* Submit every request when its time has come. */
static di_code submit_all(bench *b, const bench_trace *t, wave *w, di_status *st)
{
    uint64_t start = clock_ns();
    trace_tick tick = {b, w};

    for (int i = 0; i < t->n; i++) {
        uint64_t due = start + (uint64_t)(t->list[i].at_s * 1e9);
        di_code rc;

        for (uint64_t now = clock_ns(); now < due; now = clock_ns()) {
            uint64_t wait = due - now < SLICE_NS ? due - now : SLICE_NS;
            struct timespec s = {.tv_nsec = (long)wait};

            if (now >= b->deadline_ns)
                return DI_OK; /* wave_wait ends what runs */
            nanosleep(&s, NULL);
            show(&tick);
        }
        rc = submit(b, &t->list[i], w, st);
        if (rc != DI_OK)
            return rc;
    }
    return DI_OK;
}

static di_code write_rows(const bench *b, const bench_trace *t, const wave *w, di_status *st)
{
    char path[4096];
    FILE *f;
    bool bad;
    di_code rc = path_join(path, sizeof path, b->o->out, "trace.csv", st);

    if (rc != DI_OK)
        return rc;
    f = fopen(path, "we");
    if (!f)
        return di_fail(st, DI_E_IO, "could not write \"%s\": %s", path, errno_text(errno));
    fputs("arrival_s,prompt,output_tokens,ttft_ms,tpot_ms,total_ms\n", f);
    for (int i = 0; i < w->n_submitted; i++) {
        const wave_user *u = &w->user[i];

        fprintf(
            f, "%.4f,%lld,%lld,%.3f,%.3f,%.3f\n", t->list[i].at_s, (long long)t->list[i].prompt,
            (long long)u->n_tokens, u->first_ns ? (double)(u->first_ns - u->submit_ns) * 1e-6 : 0.0,
            u->n_tokens > 1 ? (double)(u->last_ns - u->first_ns) * 1e-6 / (double)(u->n_tokens - 1)
                            : 0.0,
            u->last_ns ? (double)(u->last_ns - u->submit_ns) * 1e-6 : 0.0);
    }
    bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad)
        return di_fail(st, DI_E_IO, "could not write \"%s\": %s", path, errno_text(errno));
    return DI_OK;
}

static di_code write_chart(const bench *b, const bench_trace *t, const wave *w, di_status *st)
{
    static chart ch; /* large */
    char subject[256];
    int every = (w->n_submitted + CHART_MAX_POINTS - 1) / CHART_MAX_POINTS;

    ch = (chart){.title = "Trace: time to first token of every request",
                 .subtitle = subject,
                 .note = every > 1 ? "Evenly chosen requests; trace.csv has all of them."
                                   : "Excluded: loading, tokenisation, network.",
                 .x_label = "arrival (s)",
                 .y_label = "time to first token (ms)",
                 .scatter = true,
                 .n = 1};
    bench_subject(b, subject, sizeof subject);
    snprintf(ch.series[0].name, sizeof ch.series[0].name, "request");
    for (int i = 0; i < w->n_submitted; i += every) {
        const wave_user *u = &w->user[i];

        if (u->first_ns && ch.series[0].n < CHART_MAX_POINTS)
            ch.series[0].point[ch.series[0].n++] = (chart_point){
                .x = t->list[i].at_s, .y = (double)(u->first_ns - u->submit_ns) * 1e-6};
    }
    return chart_write(&ch, b->o->out, "trace", st);
}

static di_code report(const bench *b, const bench_trace *t, const wave *w, const di_stats *end,
                      di_status *st)
{
    double *scratch = mem_try_calloc((size_t)w->n, sizeof *scratch), seconds = 0, tokens = 0;
    spread ttft, tpot, gap;
    bench_phase p;
    di_code rc = DI_OK;

    if (!scratch)
        return di_fail(st, DI_E_NOMEM, "no memory for %d times", w->n);
    for (int i = 0; i < w->n_submitted; i++) {
        const wave_user *u = &w->user[i];
        double until = u->last_ns ? (double)(u->last_ns - w->user[0].submit_ns) * 1e-9 : 0;

        seconds = until > seconds ? until : seconds;
        tokens += (double)u->n_tokens;
    }
    ttft = wave_ttft_ms(w, scratch);
    tpot = wave_tpot_ms(w, scratch);
    gap = spread_of(w->gap_ms, w->n_gaps);
    p = bench_phase_of(b, &w->begin, end, seconds, tokens);
    printf("%d of %d requests in %.2f s: %.1f output tokens/s, %.1f uncached prompt tokens/s\n"
           "TTFT ms p50 %.1f p90 %.1f p99 %.1f\nTPOT ms p50 %.2f p90 %.2f p99 %.2f\n"
           "ITL  ms p50 %.2f p90 %.2f p99 %.2f\nroofline %.1f %%, idle %.2f %% of the work\n",
           w->n_done, t->n, seconds, p.tokens_s,
           seconds > 0 ? (double)(end->computed_tokens - w->begin.computed_tokens) / seconds : 0.0,
           ttft.p50, ttft.p90, ttft.p99, tpot.p50, tpot.p90, tpot.p99, gap.p50, gap.p90, gap.p99,
           100 * p.roofline, 100 * p.idle);
    DI_TRY(write_rows(b, t, w, st));
    rc = write_chart(b, t, w, st);
done:
    mem_free(scratch);
    return rc;
}

di_code bench_trace_run(bench *b, const bench_trace *t, di_status *st)
{
    wave w = {0};
    trace_tick tick = {b, &w};
    di_stats end;
    int64_t tokens = 0;
    bool cut;
    di_code rc = DI_OK, ended;

    for (int i = 0; i < t->n; i++)
        tokens += t->list[i].output;
    DI_TRY(wave_init(&w, b->s.engine, t->n, tokens, st));
    progress_start(&b->bar, "trace", "requests", (uint64_t)t->n, b->o->session.quiet);
    rc = submit_all(b, t, &w, st);
    ended = wave_wait(&w, rc == DI_OK ? b->deadline_ns : 0, show, &tick, &cut, st);
    progress_end(&b->bar);
    rc = rc != DI_OK ? rc : ended;
    end = di_engine_stats(b->s.engine);
    if (rc == DI_OK && w.n_submitted > 0)
        rc = report(b, t, &w, &end, st);
done:
    wave_fini(&w);
    return rc;
}
