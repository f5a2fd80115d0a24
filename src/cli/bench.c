/* deepinfer bench: throughput against latency of a model on this machine, as tables and pictures
 * (the sweep of spec deepinfer.md section 13), or the replay of a trace. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "engine/bench_pin.h"

#define MAX_RUNNING 1024
#define BLOCK       128
#define MOST_POOL   (1 << 20) /* tokens: a gigabyte */

static opt_result parse(bench_options *o, int argc, char **argv, di_status *st)
{
    const opt options[] = {
        SESSION_OPTIONS(o->session),
        {.name = "out",
         .letter = 'o',
         .kind = OPT_STRING,
         .to = &o->out,
         .arg = "DIR",
         .help = "folder for tables and charts; made when it is not there"},
        {.name = "prompt-tokens",
         .kind = OPT_STRING,
         .to = &o->prompts_text,
         .arg = "LIST",
         .help = "prompt lengths (default: 128,512,2048)"},
        {.name = "concurrency",
         .kind = OPT_STRING,
         .to = &o->concurrency_text,
         .arg = "LIST",
         .help = "requests at once (default: 1,2,4,8,16,32,64)"},
        {.name = "output-tokens",
         .kind = OPT_INT,
         .to = &o->output,
         .arg = "N",
         .help = "output of a request (default: 64); 1 = prefill only",
         .min = 1,
         .max = 1 << 20},
        {.name = "cached-tokens",
         .kind = OPT_INT,
         .to = &o->cached,
         .arg = "N",
         .help = "tokens in front of every prompt that are cached (default: 0)",
         .min = 0,
         .max = 1 << 24},
        {.name = "full",
         .kind = OPT_FLAG,
         .to = &o->full,
         .help = "prompts of 1k to 64k tokens, 1 to 256 at once, 120 minutes"},
        {.name = "max-minutes",
         .kind = OPT_REAL,
         .to = &o->minutes,
         .arg = "X",
         .help = "end in time, leaving points out (default: 10)",
         .min = 0.01,
         .max = 1e5},
        {.name = "duration",
         .kind = OPT_REAL,
         .to = &o->point_s,
         .arg = "S",
         .help = "repeat a point for so long, keep the best (default: 0, once)",
         .min = 0,
         .max = 1e5},
        {.name = "acceptance",
         .kind = OPT_REAL,
         .to = &o->acceptance,
         .arg = "P",
         .help = "accept each draft with this probability (default: real drafts)",
         .min = 0,
         .max = 1},
        {.name = "temperature",
         .kind = OPT_REAL,
         .to = &o->temperature,
         .arg = "X",
         .help = "of sampling (default: 1)",
         .min = 0,
         .max = 100},
        {.name = "text",
         .kind = OPT_STRING,
         .to = &o->text,
         .arg = "FILE",
         .help = "cut prompts from this text (default: a built-in one)"},
        {.name = "trace",
         .kind = OPT_STRING,
         .to = &o->trace,
         .arg = "FILE",
         .help = "replay lines {\"arrival\": S, \"prompt\": N or TEXT, \"output\": N}"},
        {.name = "speed",
         .kind = OPT_REAL,
         .to = &o->speed,
         .arg = "X",
         .help = "of the trace, times real time (default: 1)",
         .min = 1e-3,
         .max = 1e6},
        WEIGHTS_OPTIONS(o->weights),
        ENGINE_OPTIONS(o->engine),
    };
    const opt_program program = {
        .name = "bench",
        .usage = "--model DIR --out DIR [OPTION]...",
        .summary = "Measures prefill and decode over prompt lengths and concurrency; writes\n"
                   "bench.csv, prefill.svg, prefill.png, decode.svg and decode.png.",
        .options = options,
        .n = ARRAY_LEN(options),
        .notes = "docs/bench.md says what is measured and how to read it.",
    };

    return opt_parse(&program, argc, argv, NULL, st);
}

/* "1,2,4": ascending numbers from 1 to max. */
static di_code read_list(bench_list *l, const char *name, const char *text, int64_t max,
                         di_status *st)
{
    const char *at = text;

    for (l->n = 0; l->n < BENCH_MAX_LIST; at++) {
        char *end;
        long long v = strtoll(at, &end, 10);

        if (end == at || v < 1 || v > max || (l->n > 0 && v <= l->value[l->n - 1]) ||
            (*end && *end != ','))
            break;
        l->value[l->n++] = v;
        at = end;
        if (!*at)
            return DI_OK;
    }
    return di_fail(st, DI_E_INVALID,
                   "--%s is \"%s\", but must be ascending numbers from 1 to %lld: 1,2,4", name,
                   text, (long long)max);
}

static di_code check(bench_options *o, di_status *st)
{
    di_code rc = DI_OK;

    if (!o->session.model)
        return di_fail(st, DI_E_INVALID, "no model: give --model DIR");
    if (!o->out)
        return di_fail(st, DI_E_INVALID, "nowhere to write: give --out DIR");
    if (o->acceptance >= 0 && o->engine.drafts == 0)
        return di_fail(st, DI_E_INVALID, "--acceptance needs drafts: give --draft-tokens N");
    if (!o->prompts_text)
        o->prompts_text = o->full ? "1024,2048,4096,8192,16384,32768,65536" : "128,512,2048";
    if (!o->concurrency_text)
        o->concurrency_text = o->full ? "1,2,4,8,16,32,64,128,256" : "1,2,4,8,16,32,64";
    if (o->minutes == 0) /* not given */
        o->minutes = o->full ? 120 : 10;
    DI_TRY(read_list(&o->prompts, "prompt-tokens", o->prompts_text, 1 << 24, st));
    DI_TRY(read_list(&o->concurrency, "concurrency", o->concurrency_text, MAX_RUNNING, st));
    if (o->prompts.n * o->concurrency.n > BENCH_MAX_POINTS)
        rc = di_fail(st, DI_E_INVALID, "%d points are more than %d",
                     o->prompts.n * o->concurrency.n, BENCH_MAX_POINTS);
done:
    return rc;
}

/* The running requests twice: the prompts of a prefill are still cached when they decode. 0 = the
 * engine's share of free memory, for sizes that it must judge. */
static int64_t pool_tokens(int seqs, int64_t tokens)
{
    int64_t blocks = (tokens + BLOCK - 1) / BLOCK + 1, all = 2 * (int64_t)seqs * blocks * BLOCK;

    return all < MOST_POOL ? all : 0;
}

/* Sizes of the engine that the longest and the widest point need. */
static di_code open_service(bench *b, const bench_trace *t, di_status *st)
{
    const bench_options *o = b->o;
    session_options so = o->session;
    engine_choice eo = o->engine;
    int64_t longest = o->prompts.value[o->prompts.n - 1] + o->cached, output;
    int seqs = (int)o->concurrency.value[o->concurrency.n - 1];
    di_code rc = DI_OK;

    output = bench_room(o, longest, seqs);
    if (t) {
        bench_trace_size(t, &longest, &output, &seqs);
        longest += o->cached;
    }
    seqs = t && seqs > 64 ? 64 : seqs;
    if (so.context == 0)
        so.context = longest + output + 1;
    if (eo.kv_tokens == 0)
        eo.kv_tokens = pool_tokens(seqs, longest + output);
    if (eo.step_tokens < seqs)
        eo.step_tokens = seqs;
    b->ids = mem_try_calloc((size_t)longest + 1, sizeof *b->ids);
    b->forced = mem_try_calloc((size_t)output, sizeof *b->forced);
    if (!b->ids || !b->forced)
        return di_fail(st, DI_E_NOMEM, "no memory for prompts of %lld tokens", (long long)longest);
    DI_TRY(service_open(&b->s, &so, &o->weights, &eo, seqs, st));
    if (b->s.info.n_draft_stages == 0 && o->acceptance >= 0 && o->engine.drafts <= 0)
        return di_fail(st, DI_E_INVALID,
                       "this model has no draft stages: give --draft-tokens N "
                       "for drafts that cost nothing");
    if (o->acceptance >= 0)
        engine_pin_acceptance(b->s.engine, o->acceptance);
done:
    return rc;
}

static di_code make_folder(const char *dir, di_status *st)
{
    struct stat sb;

    if (mkdir(dir, 0777) == 0 || (stat(dir, &sb) == 0 && S_ISDIR(sb.st_mode)))
        return DI_OK;
    return di_fail(st, DI_E_IO, "could not make the folder \"%s\": %s", dir, errno_text(errno));
}

static di_code run(bench *b, di_status *st)
{
    const bench_options *o = b->o;
    bench_trace *t = NULL;
    di_code rc = DI_OK;

    b->deadline_ns = clock_ns() + (uint64_t)(o->minutes * 60e9);
    if (o->trace)
        DI_TRY(bench_trace_read(&t, o->trace, o->speed, st));
    DI_TRY(make_folder(o->out, st));
    DI_TRY(bench_peak_init(b, st));
    DI_TRY(open_service(b, t, st));
    DI_TRY(bench_prompts_init(b, st));
    if (t) {
        DI_TRY(bench_trace_run(b, t, st));
    } else {
        DI_TRY(bench_sweep(b, st));
        DI_TRY(bench_report(b, st));
    }
    service_report(&b->s, &o->engine);
done:
    bench_peak_fini(b);
    service_close(&b->s);
    bench_trace_free(t);
    di_free(b->pool);
    mem_free(b->ids);
    mem_free(b->forced);
    return rc;
}

int cli_bench(int argc, char **argv)
{
    static bench b; /* large */
    bench_options o = {.session = SESSION_DEFAULTS,
                       .weights = WEIGHTS_DEFAULTS,
                       .engine = ENGINE_DEFAULTS,
                       .output = 64,
                       .acceptance = -1,
                       .temperature = 1,
                       .speed = 1};
    di_status st = {0};

    switch (parse(&o, argc, argv, &st)) {
    case OPT_HELP_SHOWN:
        return CLI_OK;
    case OPT_WRONG:
        return cli_fail("bench", &st);
    case OPT_RUN:
        break;
    }
    b = (bench){.o = &o};
    if (check(&o, &st) != DI_OK || run(&b, &st) != DI_OK)
        return cli_fail("bench", &st);
    return CLI_OK;
}
