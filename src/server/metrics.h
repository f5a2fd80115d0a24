/* Counters of a loop, summed when /metrics is asked for (docs/metrics in api.md).
 *
 * One writer (the loop), any reader: relaxed atomics, because a scrape needs no order between them.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/str.h"

/* name, help: become deepinfer_<name>_total. */
#define METRIC_COUNTERS(X)                                                                         \
    X(connections_opened, "connections accepted")                                                  \
    X(connections_refused, "connections refused: too many are open")                               \
    X(clients_gone, "clients that left before their answer was complete")                          \
    X(slow_readers_cut, "connections cut because the client did not read")                         \
    X(timeouts, "connections closed for silence")                                                  \
    X(rejected_auth, "requests refused: no valid API key")                                         \
    X(rejected_limit, "requests refused: a limit of the API key")                                  \
    X(rejected_busy, "requests refused: queue or thread full")                                     \
    X(rejected_draining, "requests refused: the server is going down")                             \
    X(rejected_bad, "requests refused: malformed or invalid")                                      \
    X(keepalives, "comments sent into silent streams")                                             \
    X(chunks, "pieces of streams sent")

#define METRIC_FINISHES(X) X(stop) X(length) X(tool_calls) X(cancelled) X(error)

/* Histograms in seconds; name, help: deepinfer_<name>_seconds. */
#define METRIC_TIMES(X)                                                                            \
    X(time_to_first_token, "from the request to its first token")                                  \
    X(inter_token_latency, "between two events with tokens, per token")                            \
    X(request_latency, "from the request to its end")                                              \
    X(queue_time, "from the request to its first step")                                            \
    X(prefill_time, "from the first step to the first token")                                      \
    X(decode_time, "from the first token to the end")

/* Histograms of tokens; name, help: deepinfer_request_<name>. */
#define METRIC_SIZES(X)                                                                            \
    X(prompt_tokens, "prompt tokens of a request")                                                 \
    X(generation_tokens, "tokens generated for a request")

#define METRIC_MAX_ENDPOINTS 32
#define METRIC_STATUSES(X)                                                                         \
    X(200)                                                                                         \
    X(204)                                                                                         \
    X(400)                                                                                         \
    X(401) X(404) X(405) X(408) X(413) X(415) X(429) X(431) X(499) X(500) X(501) X(503) X(505)

#define METRIC_ENUM_COUNTER(name, help) METRIC_##name,
#define METRIC_ENUM_TIME(name, help)    METRIC_##name,
#define METRIC_ENUM_SIZE(name, help)    METRIC_SIZE_##name,
#define METRIC_ENUM_FINISH(name)        METRIC_FINISH_##name,
#define METRIC_ENUM_STATUS(n)           METRIC_STATUS_##n,
typedef enum metric_counter {
    METRIC_COUNTERS(METRIC_ENUM_COUNTER) METRIC_N_COUNTERS
} metric_counter;
typedef enum metric_time { METRIC_TIMES(METRIC_ENUM_TIME) METRIC_N_TIMES } metric_time;
typedef enum metric_size { METRIC_SIZES(METRIC_ENUM_SIZE) METRIC_N_SIZES } metric_size;
typedef enum metric_finish { METRIC_FINISHES(METRIC_ENUM_FINISH) METRIC_N_FINISHES } metric_finish;
typedef enum metric_status {
    METRIC_STATUSES(METRIC_ENUM_STATUS) METRIC_STATUS_OTHER,
    METRIC_N_STATUSES
} metric_status;

#define METRIC_N_BUCKETS 20
extern const double metric_bounds[METRIC_N_BUCKETS];      /* upper bounds in seconds */
extern const double metric_size_bounds[METRIC_N_BUCKETS]; /* in tokens */

typedef struct metric_histogram {
    atomic_ullong bucket[METRIC_N_BUCKETS + 1]; /* not cumulated; the last is above all bounds */
    atomic_ullong sum;                          /* in ns, or in tokens */
} metric_histogram;

typedef struct metrics {
    atomic_ullong counter[METRIC_N_COUNTERS];
    atomic_ullong finish[METRIC_N_FINISHES];
    atomic_ullong requests[METRIC_MAX_ENDPOINTS + 1][METRIC_N_STATUSES]; /* the last: no endpoint */
    metric_histogram time[METRIC_N_TIMES], size[METRIC_N_SIZES];
} metrics;

void metric_count(metrics *m, metric_counter c);
void metric_request(metrics *m, int ep, int status);
void metric_finished(metrics *m, const char *reason);
/* n observations of ns each. */
void metric_observe(metrics *m, metric_time t, uint64_t ns, uint64_t n);

void metric_size_of(metrics *m, metric_size s, uint64_t tokens);

/* Tokens per second of late: over the time since the last but one of samples that are taken when
 * the metrics are read, at least RATE_S apart. */
typedef struct metric_rate {
    pthread_mutex_t lock;
    uint64_t ns[2], tokens[2]; /* the older one first */
} metric_rate;

struct server;
/* The whole page. */
void metrics_write(const struct server *s, str *out);
