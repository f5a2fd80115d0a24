/* What the files of deepinfer bench share. Thread: main thread. */
#pragma once

#include "base/pool.h"
#include "base/progress.h"
#include "cli/measure.h"
#include "cli/service.h"

#define BENCH_MAX_LIST   32
#define BENCH_MAX_POINTS 256

typedef struct bench_list {
    int64_t value[BENCH_MAX_LIST];
    int n;
} bench_list;

typedef struct bench_options {
    session_options session;
    weights_choice weights;
    engine_choice engine;
    const char *out, *text, *trace;
    const char *concurrency_text, *prompts_text;
    bench_list concurrency, prompts;
    int64_t output, cached;
    double minutes, point_s, acceptance, temperature, speed; /* acceptance < 0 = real */
    bool full;
} bench_options;

/* Ceilings of this machine with this many threads. */
typedef struct bench_peak {
    double bytes, flops; /* per second */
} bench_peak;

/* One side of a point. */
typedef struct bench_phase {
    bool measured;
    double tokens_s;    /* of all requests */
    double seconds;     /* that were measured */
    double roofline;    /* share: least time at the ceilings / time taken */
    bool compute_bound; /* the larger ceiling is that of operations */
    double mfu;         /* operations / ceiling */
    double idle;        /* of the executing side, on a GPU of that */
    double step_ms, host_us, steps;
    double launches; /* of kernels per step; 0 on a CPU */
} bench_phase;

typedef struct bench_point {
    int64_t prompt;
    int concurrency;
    bench_phase prefill, decode;
    spread ttft, tpot, gap;   /* ms */
    double user_tokens_s;     /* per request, decoding */
    double tokens_per_step;   /* of one request */
    double verified_per_step; /* drafts of one request */
    double acceptance;        /* of verified drafts */
    bool front_prefill, front_decode;
    bench_peak peak; /* ceilings just before */
} bench_point;

typedef struct bench {
    const bench_options *o;
    service s;
    pool *threads; /* of the ceilings */
    struct peak *meter;
    kernels *device; /* a GPU, to measure; else NULL */
    kernel_peak device_peak;
    bench_peak peak; /* as just before the point that runs */
    int32_t *pool;   /* [n_pool] ids that prompts are made of */
    size_t n_pool;
    int32_t *ids, *forced; /* [longest prompt], [output]; of the request that is being made */
    uint64_t n_requests;   /* made so far: no two are equal */
    uint64_t deadline_ns;
    progress bar;
    bench_point point[BENCH_MAX_POINTS];
    bench_point left_out[BENCH_MAX_POINTS]; /* prompt and concurrency only */
    int n_points, n_left_out;
} bench;

/* bench_prompts.c: ids of the built-in text, of --text, or random ones for generated weights.
 * Errors: IO, NOMEM. */
di_code bench_prompts_init(bench *b, di_status *st);
/* The next request: `cached` tokens that all have, then n of its own, at most one BOS. */
void bench_next_request(bench *b, int64_t n, int64_t output, di_request_params *p);

/* bench_peak.c: the ceilings, into b->peak: once at the start, and before every point, for other
 * programs on the machine take their share. Errors: NOMEM, IO. */
di_code bench_peak_init(bench *b, di_status *st);
void bench_peak_measure(bench *b);
void bench_peak_fini(bench *b);

/* bench_sweep.c: every prompt length with every concurrency, into b->point. Errors: of requests. */
di_code bench_sweep(bench *b, di_status *st);
/* Output tokens of a request that decodes: those that are measured, and what it may gain while
 * others still read their prompts. */
int64_t bench_room(const bench_options *o, int64_t prompt, int64_t concurrency);
/* Rates and shares between two readings of the statistics. */
bench_phase bench_phase_of(const bench *b, const di_stats *from, const di_stats *to, double seconds,
                           double tokens);

/* bench_trace.c: replay of --trace. *failed: requests that did not fit in. */
typedef struct bench_trace bench_trace;
di_code bench_trace_read(bench_trace **out, const char *path, double speed, di_status *st);
void bench_trace_free(bench_trace *t);
/* Longest prompt and output; text is counted in bytes, which are at least as many. */
void bench_trace_size(const bench_trace *t, int64_t *prompt, int64_t *output, int *n);
di_code bench_trace_run(bench *b, const bench_trace *t, di_status *st);

/* bench_report.c: tables and charts into --out. Errors: IO, NOMEM. */
di_code bench_report(bench *b, di_status *st);
/* "tiny, 10 layers, avx512, 2 threads, ..." for subtitles. */
void bench_subject(const bench *b, char *buf, size_t cap);
