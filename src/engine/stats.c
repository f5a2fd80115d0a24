/* The statistics line: what happened since the last one, as text and as JSON (the fields of
 * DeepInfer's line, spec deepinfer.md 9.2, that have a meaning here). */
#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "engine/engine_internal.h"

typedef struct field {
    const char *name;
    double value;
    int digits;
} field;

static double share(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

static double per(double amount, double seconds)
{
    return seconds > 0 ? amount / seconds : 0;
}

/* The fields between `a` and `b`, which lie `seconds` apart. Returns how many. */
static int fields(field *f, const di_stats *a, const di_stats *b, double seconds)
{
    uint64_t steps = b->steps - a->steps, verified = b->verified - a->verified;
    uint64_t busy = b->busy_ns - a->busy_ns, idle = b->idle_ns - a->idle_ns;
    int n = 0;

    f[n++] = (field){"steps_per_s", per((double)steps, seconds), 1};
    f[n++] = (field){"prompt_tokens_per_s",
                     per((double)(b->computed_tokens - a->computed_tokens + b->recomputed_tokens -
                                  a->recomputed_tokens),
                         seconds),
                     1};
    f[n++] = (field){"output_tokens_per_s",
                     per((double)(b->output_tokens - a->output_tokens), seconds), 1};
    f[n++] = (field){"running", (double)b->running, 0};
    f[n++] = (field){"waiting", (double)b->waiting, 0};
    f[n++] =
        (field){"cached_share",
                share(b->cached_tokens - a->cached_tokens, b->prompt_tokens - a->prompt_tokens), 3};
    f[n++] = (field){"accept_rate", share(b->accepted - a->accepted, verified), 3};
    f[n++] = (field){"verified", (double)verified, 0};
    f[n++] = (field){"accepted", (double)(b->accepted - a->accepted), 0};
    f[n++] = (field){"skipped", (double)(b->skipped - a->skipped), 0};
    f[n++] = (field){"kv_used", share((uint64_t)b->blocks_used, (uint64_t)b->blocks_total), 3};
    f[n++] = (field){"kv_cached", share((uint64_t)b->blocks_cached, (uint64_t)b->blocks_total), 3};
    f[n++] = (field){"preempted", (double)(b->preempted - a->preempted), 0};
    f[n++] = (field){"repeated", (double)(b->repeated_tokens - a->repeated_tokens), 0};
    f[n++] = (field){"finished", (double)(b->finished - a->finished), 0};
    f[n++] = (field){"cancelled", (double)(b->cancelled - a->cancelled), 0};
    f[n++] = (field){"failed", (double)(b->failed - a->failed), 0};
    f[n++] = (field){"idle_share", share(idle, busy + idle), 4};
    f[n++] = (field){"host_us_per_step",
                     steps ? (double)(b->host_ns - a->host_ns) * 1e-3 / (double)steps : 0, 1};
    if (b->launches == 0) /* no GPU */
        return n;
    f[n++] = (field){"device_idle_share",
                     busy + idle ? 1 - share(b->device_ns - a->device_ns, busy + idle) : 0, 4};
    f[n++] = (field){"launches_per_step", share(b->launches - a->launches, steps), 1};
    f[n++] = (field){"replays_per_step", share(b->replays - a->replays, steps), 2};
    return n;
}

/* Acceptance per draft position, up to the last that was verified. */
static int positions(const di_stats *a, const di_stats *b, double *rate)
{
    int n = 0;

    for (int i = 0; i < 16; i++) {
        rate[i] =
            share(b->accepted_at[i] - a->accepted_at[i], b->verified_at[i] - a->verified_at[i]);
        if (b->verified_at[i] > a->verified_at[i])
            n = i + 1;
    }
    return n;
}

char *di_engine_stats_line(di_engine *e, bool json)
{
    str out = {0};
    json_write w = {.out = &out};
    di_stats now = di_engine_stats(e);
    uint64_t t = clock_ns();
    double rate[16];
    field f[32];
    int n, n_pos;

    pthread_mutex_lock(&e->lock);
    n = fields(f, &e->line_base, &now, (double)(t - e->line_ns) * 1e-9);
    n_pos = positions(&e->line_base, &now, rate);
    e->line_base = now;
    e->line_ns = t;
    pthread_mutex_unlock(&e->lock);
    if (json)
        jw_object(&w);
    for (int i = 0; i < n; i++) {
        if (json) {
            jw_key(&w, f[i].name);
            jw_number(&w, f[i].value);
        } else {
            str_printf(&out, "%s%s=%.*f", i ? " " : "", f[i].name, f[i].digits, f[i].value);
        }
    }
    if (json) {
        jw_key(&w, "accept_rate_at");
        jw_array(&w);
        for (int i = 0; i < n_pos; i++)
            jw_number(&w, rate[i]);
        jw_end(&w);
        jw_end(&w);
    } else {
        for (int i = 0; i < n_pos; i++)
            str_printf(&out, "%s%.3f", i ? "/" : " accept_rate_at=", rate[i]);
    }
    if (!str_ok(&out)) {
        str_fini(&out);
        return NULL;
    }
    return out.data;
}
