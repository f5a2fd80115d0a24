/* The engine's own work: what the host does per step with 256 sequences running, and how long the
 * executing side waits between steps.
 *
 *   bench_engine [--rounds N] [--threads N] [--only TEXT]
 *
 * Host work is read between two events of one request that follow each other, where every running
 * request had exactly one event in between: that is one step. host_step: processor time of the
 * host's thread, everything included (plans, results, text, callbacks, locks); host_wall: wall time
 * of planning and of processing results. Run from the repository root. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_rig.h"

#define N_SEQS  256
#define N_STEPS 64
#define N_KEEP  8192
#define MINI    "tests/data/models/mini-f"

typedef struct host_case {
    int32_t ids[64];
    int n_events;
    double cpu;
    uint64_t host_ns, steps;
    di_engine *engine;
    double step_us[N_KEEP], wall_us[N_KEEP];
    int n;
} host_case;

static void make_host(void *arg, int i, di_request_params *p)
{
    host_case *h = arg;

    for (int k = 0; k < 64; k++)
        h->ids[k] = 3 + (i * 31 + k * 7) % 500;
    *p = (di_request_params){.ids = h->ids,
                             .n_ids = 24 + (size_t)(i % 16),
                             .max_tokens = N_STEPS,
                             .has_seed = true,
                             .seed = (uint64_t)i,
                             .temperature = 1,
                             .ignore_eos = true};
}

/* Events of the request whose seed is 0 mark the steps. */
static void host_event(void *arg, const di_event *ev)
{
    host_case *h = arg;
    di_stats s;
    double cpu;

    if (ev->type != DI_EVENT_TOKENS)
        return;
    h->n_events++;
    if (ev->seed != 0)
        return;
    s = di_engine_stats(h->engine);
    cpu = rig_thread_cpu();
    if (h->n_events == N_SEQS && h->n < N_KEEP) {
        h->step_us[h->n] = 1e6 * (cpu - h->cpu);
        h->wall_us[h->n++] = 1e-3 * (double)(s.host_ns - h->host_ns);
    }
    h->n_events = 0;
    h->cpu = rig_thread_cpu();
    h->host_ns = s.host_ns;
}

static void measure_host(const bench_options *o, const char *dir, int drafts, const char *text)
{
    di_model *m = rig_model(o, dir);
    host_case *h = calloc(1, sizeof *h);
    bench_load load = {
        .n = N_SEQS, .in_flight = N_SEQS, .make = make_host, .event = host_event, .arg = h};

    if (!h)
        rig_stop("out of memory");
    h->engine = rig_engine(m, (di_engine_options){.max_seqs = N_SEQS,
                                                  .max_context = 512,
                                                  .max_batched_tokens = 2048,
                                                  .kv_tokens = (int64_t)512 * N_SEQS,
                                                  .draft_tokens = drafts,
                                                  .draft_fixed = drafts > 0});
    for (int r = 0; r < o->rounds; r++)
        rig_serve(h->engine, &load, NULL);
    if (h->n == 0)
        rig_stop("no step had all sequences in it");
    rig_row("host_step", text, o->threads, rig_median(h->step_us, h->n), "us", 100);
    rig_row("host_wall", text, o->threads, rig_median(h->wall_us, h->n), "us", 100);
    di_engine_close(h->engine);
    di_model_close(m);
    free(h);
}

/* ---- idle share ---- */

typedef struct idle_case {
    const bench_prompt *prompt;
    int n_prompts;
} idle_case;

static void make_idle(void *arg, int i, di_request_params *p)
{
    const idle_case *c = arg;
    const bench_prompt *text = &c->prompt[i % c->n_prompts];

    *p = (di_request_params){.text = text->text,
                             .n_text = text->n,
                             .max_tokens = 64,
                             .has_seed = true,
                             .seed = (uint64_t)i,
                             .temperature = 1,
                             .ignore_eos = true};
}

static void measure_idle(const bench_options *o, int in_flight, bool no_async)
{
    di_model *m = rig_model(o, o->model);
    di_engine *e = rig_engine(m, (di_engine_options){.max_seqs = in_flight,
                                                     .max_context = 2048,
                                                     .kv_tokens = (int64_t)2048 * in_flight,
                                                     .no_async = no_async});
    bench_prompt *prompt;
    idle_case c = {.n_prompts = rig_prompts(&prompt)};
    int n = in_flight < 16 ? 16 : 2 * in_flight;
    bench_load load = {.n = n, .in_flight = in_flight, .make = make_idle, .arg = &c};
    double share[100];
    char text[64];

    c.prompt = prompt;
    for (int r = 0; r < o->rounds; r++) {
        di_stats a = di_engine_stats(e), b;
        double idle, busy;

        rig_serve(e, &load, NULL);
        b = di_engine_stats(e);
        idle = (double)(b.idle_ns - a.idle_ns);
        busy = (double)(b.busy_ns - a.busy_ns);
        share[r] = 100 * idle / (idle + busy);
    }
    snprintf(text, sizeof text, "%d in flight%s", in_flight, no_async ? " without async" : "");
    rig_row("idle_share", text, o->threads, rig_median(share, o->rounds), "%", 1);
    di_engine_close(e);
    di_model_close(m);
    rig_prompts_free(prompt, c.n_prompts);
}

int main(int argc, char **argv)
{
    bench_options o = rig_options(argc, argv, 1, "models/tiny");

    if (rig_wants(&o, "host")) {
        measure_host(&o, MINI, -1, "256 sequences");
        measure_host(&o, MINI, 5, "256 sequences with 5 drafts each");
    }
    if (rig_wants(&o, "idle"))
        for (int n = 1; n <= 64; n *= 4)
            measure_idle(&o, n, false);
    return 0;
}
