/* Counting, and the Prometheus text format. See metrics.h. */
#include "server/metrics.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/server_internal.h"

const double metric_bounds[METRIC_N_BUCKETS] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                                0.2,   0.3,   0.5,   0.75, 1,    2,    5,
                                                10,    20,    40,    80,   160,  320};

const double metric_size_bounds[METRIC_N_BUCKETS] = {
    1,    2,    5,     10,    20,    50,     100,    200,    500,     1000,
    2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000};

#define RATE_S    5
#define LOAD(x)   atomic_load_explicit(&(x), memory_order_relaxed)
#define ADD(x, n) atomic_fetch_add_explicit(&(x), (n), memory_order_relaxed)

/* ---- counting ---- */

void metric_count(metrics *m, metric_counter c)
{
    ADD(m->counter[c], 1);
}

#define STATUS_NUMBER(n) n,
static const int statuses[] = {METRIC_STATUSES(STATUS_NUMBER)};

void metric_request(metrics *m, int ep, int status)
{
    int i = 0;

    while (i < METRIC_STATUS_OTHER && statuses[i] != status)
        i++;
    ADD(m->requests[ep < 0 ? METRIC_MAX_ENDPOINTS : ep][i], 1);
}

#define FINISH_NAME(name) #name,
static const char *const finish_names[] = {METRIC_FINISHES(FINISH_NAME)};

void metric_finished(metrics *m, const char *reason)
{
    for (int i = 0; i < METRIC_N_FINISHES; i++)
        if (strcmp(reason, finish_names[i]) == 0)
            ADD(m->finish[i], 1);
}

static void observe(metric_histogram *h, const double *bounds, double v, uint64_t sum, uint64_t n)
{
    int i = 0;

    while (i < METRIC_N_BUCKETS && v > bounds[i])
        i++;
    ADD(h->bucket[i], n);
    ADD(h->sum, sum);
}

void metric_observe(metrics *m, metric_time t, uint64_t ns, uint64_t n)
{
    observe(&m->time[t], metric_bounds, (double)ns * 1e-9, ns * n, n);
}

void metric_size_of(metrics *m, metric_size s, uint64_t tokens)
{
    observe(&m->size[s], metric_size_bounds, (double)tokens, tokens, 1);
}

static double rate_of(metric_rate *r, uint64_t start_ns, uint64_t tokens)
{
    uint64_t now = clock_ns();
    double rate;

    pthread_mutex_lock(&r->lock);
    if (!r->ns[0])
        r->ns[0] = r->ns[1] = start_ns;
    rate = (double)(tokens - r->tokens[0]) / ((double)(now - r->ns[0]) * 1e-9 + 1e-9);
    if (now - r->ns[1] > RATE_S * (uint64_t)1000000000) {
        r->ns[0] = r->ns[1];
        r->tokens[0] = r->tokens[1];
        r->ns[1] = now;
        r->tokens[1] = tokens;
    }
    pthread_mutex_unlock(&r->lock);
    return rate;
}

/* ---- writing ---- */

static void head(str *out, const char *name, const char *type, const char *help)
{
    str_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void single(str *out, const char *name, const char *type, const char *help, double v)
{
    head(out, name, type, help);
    str_printf(out, "%s %.17g\n", name, v);
}

#define VLLM_LABELS   "engine=\"0\",model_name=\"%.128s\""
#define SGLANG_LABELS "model_name=\"%.128s\""

/* The same value under our name and under those that dashboards of other servers plot. */
typedef struct gauge {
    const char *name, *vllm, *sglang, *type, *help;
    double value;
} gauge;

static void write_gauge(str *out, const gauge *g, const char *label)
{
    single(out, g->name, g->type, g->help, g->value);
    if (g->vllm) {
        head(out, g->vllm, g->type, g->help);
        str_printf(out, "%s{" VLLM_LABELS "} %.17g\n", g->vllm, label, g->value);
    }
    if (g->sglang) {
        head(out, g->sglang, g->type, g->help);
        str_printf(out, "%s{" SGLANG_LABELS "} %.17g\n", g->sglang, label, g->value);
    }
}

static double ratio(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : 0;
}

/* labels: further ones, with a comma behind, or "". */
static void write_positions(str *out, const char *name, const char *help, const char *labels,
                            const uint64_t v[16])
{
    head(out, name, "counter", help);
    for (int i = 0; i < 16; i++)
        str_printf(out, "%s{%sposition=\"%d\"} %llu\n", name, labels, i, (unsigned long long)v[i]);
}

static void write_engine(const server *s, str *out, const char *label)
{
    char labels[200];
    const di_stats t = s->be->ops->stats(s->be->self);
    double busy = ratio(t.busy_ns, t.busy_ns + t.idle_ns);
    double used = t.blocks_total ? (double)t.blocks_used / (double)t.blocks_total : 0;
#define G "gauge"
#define C "counter"
#define U (double)
    const gauge all[] = {
        {"deepinfer_requests_running", "vllm:num_requests_running", "sglang:num_running_reqs", G,
         "sequences that run", U t.running},
        {"deepinfer_requests_waiting", "vllm:num_requests_waiting", "sglang:num_queue_reqs", G,
         "sequences that wait", U t.waiting},
        {"deepinfer_waiting_tokens", NULL, NULL, G, "prompt tokens that wait", U t.waiting_tokens},
        {"deepinfer_kv_blocks_total", NULL, NULL, G, "blocks of the KV pool", U t.blocks_total},
        {"deepinfer_kv_blocks_used", NULL, NULL, G, "blocks of running sequences", U t.blocks_used},
        {"deepinfer_kv_blocks_cached", NULL, NULL, G, "blocks that only the prefix cache holds",
         U t.blocks_cached},
        {"deepinfer_kv_blocks_free", NULL, NULL, G, "blocks without content", U t.blocks_free},
        {"deepinfer_kv_usage_ratio", "vllm:kv_cache_usage_perc", "sglang:token_usage", G,
         "blocks used / blocks", used},
        {"deepinfer_kv_usage_percent", "vllm:gpu_cache_usage_perc", NULL, G,
         "the same in percent of 1, vLLM's older name", used},
        {"deepinfer_steps_total", NULL, NULL, C, "steps of the engine", U t.steps},
        {"deepinfer_preemptions_total", "vllm:num_preemptions_total", NULL, C,
         "sequences that gave way to others", U t.preempted},
        {"deepinfer_prompt_tokens_total", "vllm:prompt_tokens_total", "sglang:prompt_tokens_total",
         C, "prompt tokens = cached + recomputed + computed", U t.prompt_tokens},
        {"deepinfer_cached_tokens_total", "vllm:prefix_cache_hits_total",
         "sglang:cached_tokens_total", C, "prompt tokens from the prefix cache", U t.cached_tokens},
        {"deepinfer_prefix_cache_queries_total", "vllm:prefix_cache_queries_total", NULL, C,
         "prompt tokens looked up in the prefix cache", U t.prompt_tokens},
        {"deepinfer_recomputed_tokens_total", NULL, NULL, C,
         "prompt tokens computed again for their state", U t.recomputed_tokens},
        {"deepinfer_computed_tokens_total", NULL, NULL, C, "prompt tokens computed",
         U t.computed_tokens},
        {"deepinfer_cache_hit_ratio", NULL, "sglang:cache_hit_rate", G, "cached / prompt tokens",
         ratio(t.cached_tokens, t.prompt_tokens)},
        {"deepinfer_generation_tokens_total", "vllm:generation_tokens_total",
         "sglang:generation_tokens_total", C, "tokens generated", U t.output_tokens},
        {"deepinfer_generation_tokens_per_second", NULL, "sglang:gen_throughput", G,
         "tokens generated per second, over the last seconds",
         rate_of(&((server *)s)->rate, s->start_ns, t.output_tokens)},
        {"deepinfer_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total", NULL, C,
         "drafts proposed = verified + skipped", U t.drafted},
        {"deepinfer_draft_verified_total", NULL, NULL, C, "drafts verified", U t.verified},
        {"deepinfer_draft_skipped_total", NULL, NULL, C, "drafts not worth verifying", U t.skipped},
        {"deepinfer_draft_accepted_total", "vllm:spec_decode_num_accepted_tokens_total", NULL, C,
         "drafts accepted", U t.accepted},
        {"deepinfer_requests_cancelled_total", NULL, "sglang:num_aborted_requests_total", C,
         "requests cancelled", U t.cancelled},
        {"deepinfer_requests_failed_total", NULL, NULL, C, "requests that failed", U t.failed},
        {"deepinfer_busy_seconds_total", NULL, NULL, C, "time in steps", U t.busy_ns * 1e-9},
        {"deepinfer_idle_seconds_total", NULL, NULL, C, "time between steps while there was work",
         U t.idle_ns * 1e-9},
        {"deepinfer_busy_ratio", NULL, NULL, G, "busy / (busy + idle)", busy},
    };
#undef G
#undef C
#undef U

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        write_gauge(out, &all[i], label);
    snprintf(labels, sizeof labels, VLLM_LABELS ",", label);
    write_positions(out, "deepinfer_draft_verified_at_total", "drafts verified, by position", "",
                    t.verified_at);
    write_positions(out, "deepinfer_draft_accepted_at_total", "drafts accepted, by position", "",
                    t.accepted_at);
    write_positions(out, "vllm:spec_decode_num_accepted_tokens_per_pos_total",
                    "drafts accepted, by position", labels, t.accepted_at);
}

/* Where a histogram lies in the metrics of a loop, and what its numbers are. */
typedef struct histogram_of {
    size_t offset;
    const double *bounds;
    double unit; /* of its sum */
} histogram_of;

static histogram_of time_of(metric_time t)
{
    return (histogram_of){offsetof(metrics, time) + (size_t)t * sizeof(metric_histogram),
                          metric_bounds, 1e-9};
}

static histogram_of size_of(metric_size z)
{
    return (histogram_of){offsetof(metrics, size) + (size_t)z * sizeof(metric_histogram),
                          metric_size_bounds, 1};
}

static const metric_histogram *histogram_in(const metrics *m, histogram_of h)
{
    return (const metric_histogram *)(const void *)((const char *)m + h.offset);
}

/* labels: "" or some, without a comma at the end. */
static void histogram(str *out, const server *s, histogram_of h, const char *name, const char *help,
                      const char *labels)
{
    const char *comma = *labels ? "," : "";
    unsigned long long total = 0, sum = 0;

    head(out, name, "histogram", help);
    for (int b = 0; b <= METRIC_N_BUCKETS; b++) {
        for (int i = 0; i < s->n_loops; i++)
            total += LOAD(histogram_in(&s->loops[i].m, h)->bucket[b]);
        if (b < METRIC_N_BUCKETS)
            str_printf(out, "%s_bucket{%s%sle=\"%.7g\"} %llu\n", name, labels, comma, h.bounds[b],
                       total);
    }
    for (int i = 0; i < s->n_loops; i++)
        sum += LOAD(histogram_in(&s->loops[i].m, h)->sum);
    str_printf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, labels, comma, total);
    str_printf(out, *labels ? "%s_sum{%s} %.9f\n" : "%s_sum%s %.9f\n", name, labels,
               (double)sum * h.unit);
    str_printf(out, *labels ? "%s_count{%s} %llu\n" : "%s_count%s %llu\n", name, labels, total);
}

static void write_histograms(const server *s, str *out, const char *label)
{
    const struct {
        histogram_of h;
        const char *vllm, *sglang;
    } alias[] = {
        {time_of(METRIC_time_to_first_token), "vllm:time_to_first_token_seconds",
         "sglang:time_to_first_token_seconds"},
        {time_of(METRIC_inter_token_latency), "vllm:inter_token_latency_seconds",
         "sglang:inter_token_latency_seconds"},
        {time_of(METRIC_inter_token_latency), "vllm:time_per_output_token_seconds",
         "sglang:time_per_output_token_seconds"}, /* older names of the same */
        {time_of(METRIC_request_latency), "vllm:e2e_request_latency_seconds",
         "sglang:e2e_request_latency_seconds"},
        {time_of(METRIC_queue_time), "vllm:request_queue_time_seconds",
         "sglang:queue_time_seconds"},
        {time_of(METRIC_prefill_time), "vllm:request_prefill_time_seconds", NULL},
        {time_of(METRIC_decode_time), "vllm:request_decode_time_seconds", NULL},
        {size_of(METRIC_SIZE_prompt_tokens), "vllm:request_prompt_tokens", NULL},
        {size_of(METRIC_SIZE_generation_tokens), "vllm:request_generation_tokens", NULL},
    };
    char vllm[200], sglang[200];

    snprintf(vllm, sizeof vllm, VLLM_LABELS, label);
    snprintf(sglang, sizeof sglang, SGLANG_LABELS, label);
#define OWN_TIME(name, help)                                                                       \
    histogram(out, s, time_of(METRIC_##name), "deepinfer_" #name "_seconds", help, "");
#define OWN_SIZE(name, help)                                                                       \
    histogram(out, s, size_of(METRIC_SIZE_##name), "deepinfer_request_" #name, help, "");
    METRIC_TIMES(OWN_TIME)
    METRIC_SIZES(OWN_SIZE)
#undef OWN_TIME
#undef OWN_SIZE
    for (size_t i = 0; i < sizeof alias / sizeof *alias; i++) {
        histogram(out, s, alias[i].h, alias[i].vllm, "as deepinfer's", vllm);
        if (alias[i].sglang)
            histogram(out, s, alias[i].h, alias[i].sglang, "as deepinfer's", sglang);
    }
}

static unsigned long long n_finished(const server *s, metric_finish f)
{
    unsigned long long v = 0;

    for (int i = 0; i < s->n_loops; i++)
        v += LOAD(s->loops[i].m.finish[f]);
    return v;
}

/* vLLM's words: a call is a stop, a client that went is an abort. */
static void write_finishes(const server *s, str *out, const char *label)
{
    static const char vllm[] = "vllm:request_success_total";
    const struct {
        const char *reason;
        unsigned long long n;
    } words[] = {
        {"stop", n_finished(s, METRIC_FINISH_stop) + n_finished(s, METRIC_FINISH_tool_calls)},
        {"length", n_finished(s, METRIC_FINISH_length)},
        {"abort", n_finished(s, METRIC_FINISH_cancelled)},
        {"error", n_finished(s, METRIC_FINISH_error)},
    };

    head(out, "deepinfer_requests_finished_total", "counter", "requests that ended, by reason");
    for (int f = 0; f < METRIC_N_FINISHES; f++)
        str_printf(out, "deepinfer_requests_finished_total{reason=\"%s\"} %llu\n", finish_names[f],
                   n_finished(s, (metric_finish)f));
    head(out, vllm, "counter", "requests that ended, by reason");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        str_printf(out, "%s{" VLLM_LABELS ",finished_reason=\"%s\"} %llu\n", vllm, label,
                   words[i].reason, words[i].n);
}

static void write_counters(const server *s, str *out, const char *label)
{
#define OWN_COUNTER(name, help) {"deepinfer_" #name "_total", help},
    static const struct {
        const char *name, *help;
    } own[] = {METRIC_COUNTERS(OWN_COUNTER)};
#undef OWN_COUNTER

    for (int c = 0; c < METRIC_N_COUNTERS; c++) {
        unsigned long long v = 0;

        for (int i = 0; i < s->n_loops; i++)
            v += LOAD(s->loops[i].m.counter[c]);
        single(out, own[c].name, "counter", own[c].help, (double)v);
    }
    write_finishes(s, out, label);
}

static void write_requests(const server *s, str *out)
{
    head(out, "deepinfer_http_requests_total", "counter", "answers, by endpoint and status");
    for (int e = 0; e <= METRIC_MAX_ENDPOINTS; e++) {
        const endpoint *ep = e < METRIC_MAX_ENDPOINTS ? endpoint_at(e) : NULL;

        if (!ep && e < METRIC_MAX_ENDPOINTS)
            continue;
        for (int k = 0; k < METRIC_N_STATUSES; k++) {
            unsigned long long v = 0;

            for (int i = 0; i < s->n_loops; i++)
                v += LOAD(s->loops[i].m.requests[e][k]);
            if (v)
                str_printf(out, "deepinfer_http_requests_total{path=\"%s\",status=\"%d\"} %llu\n",
                           ep ? ep->path : "other", k < METRIC_STATUS_OTHER ? statuses[k] : 0, v);
        }
    }
}

void metrics_write(const server *s, str *out)
{
    const char *label = s->opt.names[0]; /* checked at the start: nothing to escape */

    write_engine(s, out, label);
    write_histograms(s, out, label);
    write_counters(s, out, label);
    write_requests(s, out);
    single(out, "deepinfer_http_connections", "gauge", "connections that are open",
           (double)LOAD(s->n_conns));
    single(out, "deepinfer_http_requests_active", "gauge", "requests that are being answered",
           (double)LOAD(s->n_calls));
    single(out, "deepinfer_uptime_seconds", "gauge", "since the server listens",
           (double)(clock_ns() - s->start_ns) * 1e-9);
}
