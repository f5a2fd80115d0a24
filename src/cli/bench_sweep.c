/* The sweep: for every prompt length and concurrency a burst of requests that end with their first
 * token (prefill), then the same prompts again, whose state is cached now, with all their output
 * (decode). Decoding is measured while every request of the burst decodes, until the output has
 * come; what is left is cancelled. */
#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/wave.h"

/* A point while its waves run. */
typedef struct run {
    bench *b;
    bench_point *p;
    uint64_t first_request; /* so that prefill and decode have the same prompts */
    double *scratch;        /* [concurrency] */
    bool cut;
} run;

bench_phase bench_phase_of(const bench *b, const di_stats *from, const di_stats *to, double seconds,
                           double tokens)
{
    double bytes_s = (to->work_bytes - from->work_bytes) / b->peak.bytes;
    double flops_s = (to->work_flops - from->work_flops) / b->peak.flops;
    double busy = (double)(to->busy_ns - from->busy_ns),
           idle = (double)(to->idle_ns - from->idle_ns);
    double steps = (double)(to->steps - from->steps);
    double launches = (double)(to->launches - from->launches);
    double all = busy + idle;

    if (launches > 0) /* a GPU idles whenever it has no work, in steps too */
        idle = all - (double)(to->device_ns - from->device_ns);

    return (bench_phase){
        .measured = seconds > 0 && steps > 0,
        .tokens_s = seconds > 0 ? tokens / seconds : 0,
        .seconds = seconds,
        .roofline = seconds > 0 ? (bytes_s > flops_s ? bytes_s : flops_s) / seconds : 0,
        .compute_bound = flops_s > bytes_s,
        .mfu = seconds > 0 ? flops_s / seconds : 0,
        .idle = all > 0 ? idle / all : 0,
        .launches = steps > 0 ? launches / steps : 0,
        .step_ms = steps > 0 ? busy * 1e-6 / steps : 0,
        .host_us = steps > 0 ? (double)(to->host_ns - from->host_ns) * 1e-3 / steps : 0,
        .steps = steps};
}

static void show(void *arg)
{
    bench *b = arg;
    di_stats s = di_engine_stats(b->s.engine);

    progress_set(&b->bar, s.computed_tokens + s.output_tokens);
}

int64_t bench_room(const bench_options *o, int64_t prompt, int64_t concurrency)
{
    return 2 * o->output + 4 * (prompt * concurrency / o->engine.step_tokens + concurrency);
}

/* A burst of the point's requests; goal: output tokens to measure, 0 = until all have ended. */
static di_code burst(run *r, int64_t output, int64_t goal, wave *w, di_status *st)
{
    bench *b = r->b;
    di_code rc = DI_OK, ended;

    DI_TRY(wave_init(w, b->s.engine, r->p->concurrency, output * r->p->concurrency, st));
    w->goal = goal;
    b->n_requests = r->first_request;
    for (int i = 0; i < r->p->concurrency && rc == DI_OK; i++) {
        di_request_params p;

        bench_next_request(b, r->p->prompt, output, &p);
        rc = wave_submit(w, &p, st);
    }
    ended = wave_wait(w, rc == DI_OK ? b->deadline_ns : 0, show, b, &r->cut, st);
    rc = rc != DI_OK ? rc : ended;
done:
    return rc;
}

static void read_prefill(run *r, const wave *w)
{
    bench_point *p = r->p;
    di_stats end = di_engine_stats(w->engine);
    double cached = (double)(end.cached_tokens - w->begin.cached_tokens), tokens, last = 0;

    for (int i = 0; i < w->n; i++)
        last = (double)w->user[i].first_ns > last ? (double)w->user[i].first_ns : last;
    tokens = (double)w->n * (double)w->user[0].n_prompt - cached;
    p->prefill =
        bench_phase_of(r->b, &w->begin, &end, (last - (double)w->user[0].submit_ns) * 1e-9, tokens);
    p->ttft = wave_ttft_ms(w, r->scratch);
}

static void read_decode(run *r, const wave *w)
{
    bench_point *p = r->p;
    const di_stats *a = &w->open, *z = &w->close;
    double seconds = w->close_ns > w->open_ns ? (double)(w->close_ns - w->open_ns) * 1e-9 : 0;
    double verified = (double)(z->verified - a->verified), per;

    p->decode = bench_phase_of(r->b, a, z, seconds, (double)w->window_tokens);
    if (!p->decode.measured)
        return;
    per = p->decode.steps * p->concurrency;
    p->user_tokens_s = p->decode.tokens_s / p->concurrency;
    p->tokens_per_step = (double)w->window_tokens / per;
    p->verified_per_step = verified / per;
    p->acceptance = verified > 0 ? (double)(z->accepted - a->accepted) / verified : 0;
    p->tpot = wave_tpot_ms(w, r->scratch);
    p->gap = spread_of(w->gap_ms, w->n_gaps);
}

/* One measurement of the point into r->p. */
static di_code measure(run *r, di_status *st)
{
    wave w = {0};
    di_code rc = DI_OK;

    bench_peak_measure(r->b);
    r->p->peak = r->b->peak;
    r->first_request = r->b->n_requests;
    DI_TRY(burst(r, 1, 0, &w, st));
    if (!r->cut)
        read_prefill(r, &w);
    wave_fini(&w);
    if (r->cut || r->b->o->output < 2)
        goto done;
    DI_TRY(burst(r, bench_room(r->b->o, r->p->prompt, r->p->concurrency),
                 r->b->o->output * r->p->concurrency, &w, st));
    if (!r->cut)
        read_decode(r, &w);
done:
    wave_fini(&w);
    return rc;
}

static bool better(double now, double best)
{
    return now > best;
}

/* Repeats of a point until its time is up: the best prefill and the best decode, for what disturbs
 * a measurement only makes it slower. */
static di_code run_point(bench *b, bench_point *p, di_status *st)
{
    uint64_t until = clock_ns() + (uint64_t)(b->o->point_s * 1e9);
    size_t most = (size_t)p->concurrency;
    run r = {.b = b, .scratch = mem_try_calloc(most, sizeof(double))};
    di_code rc = DI_OK;

    if (!r.scratch)
        return di_fail(st, DI_E_NOMEM, "no memory for %zu times", most);
    do {
        bench_point now = {.prompt = p->prompt, .concurrency = p->concurrency}, old = *p;

        r.p = &now;
        DI_TRY(measure(&r, st));
        if (now.prefill.measured && better(now.prefill.tokens_s, old.prefill.tokens_s)) {
            p->prefill = now.prefill;
            p->ttft = now.ttft;
        }
        if (now.decode.measured && better(now.decode.tokens_s, old.decode.tokens_s)) {
            now.prefill = p->prefill;
            now.ttft = p->ttft;
            *p = now;
        }
    } while (!r.cut && clock_ns() < until);
done:
    mem_free(r.scratch);
    return rc;
}

/* Would this point end before the deadline, by what prompts and outputs have taken so far? */
static bool fits(const bench *b, const bench_point *p)
{
    double prompt_s = 0, step_s = 0, left;

    for (int i = 0; i < b->n_points; i++) {
        const bench_point *q = &b->point[i];

        if (q->prefill.measured)
            prompt_s = (double)(p->prompt * p->concurrency) / q->prefill.tokens_s;
        if (q->decode.measured && q->concurrency <= p->concurrency)
            step_s = (double)b->o->output / q->user_tokens_s;
    }
    left = (double)b->deadline_ns * 1e-9 - (double)clock_ns() * 1e-9;
    return left > 0 && prompt_s + step_s < left;
}

/* The state of the common prefix, and warm caches. */
static di_code warm_up(bench *b, di_status *st)
{
    bench_point p = {.prompt = b->o->prompts.value[0], .concurrency = 1};
    run r = {.b = b, .p = &p};
    wave w = {0};
    di_code rc = burst(&r, 2, 0, &w, st);

    wave_fini(&w);
    b->n_requests = 1;
    return rc;
}

/* Is the state of a prompt there when it decodes? Only whole blocks are kept. */
static bool cached(const bench_options *o, int i)
{
    return !o->engine.no_cache && o->prompts.value[i] >= 128;
}

static uint64_t total_tokens(const bench_options *o)
{
    uint64_t total = 0;

    for (int i = 0; i < o->prompts.n; i++)
        for (int k = 0; k < o->concurrency.n; k++)
            total += (uint64_t)o->concurrency.value[k] *
                     (uint64_t)(o->prompts.value[i] * (cached(o, i) ? 1 : 2) + o->output + 2);
    return total;
}

di_code bench_sweep(bench *b, di_status *st)
{
    const bench_options *o = b->o;
    di_code rc = DI_OK;

    progress_start(&b->bar, "bench", "tokens", total_tokens(o), o->session.quiet);
    DI_TRY(warm_up(b, st));
    for (int i = 0; i < o->prompts.n; i++)
        for (int k = 0; k < o->concurrency.n; k++) {
            bench_point p = {.prompt = o->prompts.value[i],
                             .concurrency = (int)o->concurrency.value[k]};
            char note[64];

            snprintf(note, sizeof note, "%lld tokens x %d", (long long)p.prompt, p.concurrency);
            progress_note(&b->bar, note);
            if (fits(b, &p))
                DI_TRY(run_point(b, &p, st));
            if (p.prefill.measured)
                b->point[b->n_points++] = p;
            else
                b->left_out[b->n_left_out++] = p;
        }
done:
    progress_end(&b->bar);
    return rc;
}
