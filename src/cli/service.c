/* See service.h. */
#include "cli/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "engine/model_parts.h"

#define CONTEXT_DEFAULT 65536

const char *const service_replays[] = {"exact", "off", "compact", "mask", NULL};

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
    progress *p = arg;

    p->total = total;
    progress_set(p, done);
}

static di_replay replay_of(const char *name)
{
    di_replay r = DI_REPLAY_EXACT;

    while (service_replays[r] && strcmp(service_replays[r], name) != 0)
        r++;
    return r;
}

static di_code choose_context(service *s, int64_t asked, di_status *st)
{
    int64_t longest = s->info.max_context;

    if (asked > longest)
        return di_fail(st, DI_E_INVALID,
                       "--context is %lld, but this model's longest sequence is %lld",
                       (long long)asked, (long long)longest);
    s->context = asked ? asked : longest < CONTEXT_DEFAULT ? longest : CONTEXT_DEFAULT;
    return DI_OK;
}

di_code service_open(service *s, const session_options *o, const weights_choice *w,
                     const engine_choice *e, int max_seqs, di_status *st)
{
    progress bar;
    di_model_options mo = {.backend = o->backend,
                           .numerics = o->numerics,
                           .engram = o->engram,
                           .n_threads = (int)o->threads,
                           .progress = show_progress,
                           .progress_arg = &bar};
    di_engine_options eo = {.max_seqs = max_seqs,
                            .max_batched_tokens = (int)e->step_tokens,
                            .kv_tokens = e->kv_tokens,
                            .decode_latency_ms = (int)e->latency_ms,
                            .checkpoint_spacing = e->spacing,
                            .no_prefix_cache = e->no_cache,
                            .replay = replay_of(e->replay),
                            .replay_keep = e->replay_keep,
                            .draft_tokens = e->drafts == 0  ? -1
                                            : e->drafts < 0 ? 0
                                                            : (int)e->drafts,
                            .draft_fixed = e->fixed,
                            .cost_dir = e->cost_dir,
                            .stats_interval = (int)e->stats_interval,
                            .no_async = e->no_async};
    di_code rc;

    *s = (service){0};
    if (!o->model)
        return di_fail(st, DI_E_INVALID, "no model: give --model DIR");
    if (e->stats_interval && !getenv("DI_LOG")) /* NOLINT(concurrency-mt-unsafe): no threads yet */
        log_set_level(LOG_INFO);
    if (w)
        DI_TRY(weights_apply(w, &mo, st));
    DI_TRY(di_model_open(&s->model, o->model, &mo, st));
    s->info = di_model_get_info(s->model);
    DI_TRY(choose_context(s, o->context, st));
    eo.max_context = s->context;
    progress_start(&bar, "loading", "B", 0, o->quiet);
    rc = di_engine_start(&s->engine, s->model, &eo, st);
    progress_end(&bar);
    mem_trim(); /* what was needed to read the files */
done:
    if (rc != DI_OK)
        service_close(s);
    return rc;
}

void service_close(service *s)
{
    di_engine_close(s->engine);
    di_model_close(s->model);
    *s = (service){0};
}

void service_bind(const service *s, request_defaults *d)
{
    d->tok = model_parts_tokenizer(s->model);
    d->vocab = s->info.vocab;
    d->bos = s->info.bos;
    d->eos = s->info.eos;
    d->context = s->context;
}

void service_report(const service *s, const engine_choice *e)
{
    char *line = e->stats ? di_engine_stats_line(s->engine, false) : NULL;

    if (line)
        fprintf(stderr, "%s\n", line);
    di_free(line);
}
