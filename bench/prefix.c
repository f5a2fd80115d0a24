/* Long prompts: what a full prefix hit costs, and what exact replay saves (long); what
 * conversations compute again (turns, see turns.c).
 *
 *   bench_prefix [--rounds N] [--threads N] [--only TEXT] [--model DIR]
 *
 * long: a prompt of 32,768 tokens and 16 tokens of answer with log-probabilities, cold without
 * replay, cold with exact replay, and again as a full hit; time up to the first token, processor
 * time with one thread, else wall time. All answers must be the same bits. What replay should save
 * is worked out from the configuration: the multiplications of what a row skips, as a share of a
 * whole row's. Run from the repository root; takes minutes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/config.h"
#include "engine_rig.h"
#include "turns.h"

#define N_PROMPT 32768
#define N_ANSWER 16

typedef struct prefix_case {
    int32_t *ids;
    size_t n;
    uint64_t hash;
    bench_time first;
    int64_t cached;
} prefix_case;

static void make(void *arg, int i, di_request_params *p)
{
    prefix_case *c = arg;

    (void)i;
    c->hash = 0;
    c->first = (bench_time){0};
    *p = (di_request_params){.ids = c->ids,
                             .n_ids = c->n,
                             .max_tokens = N_ANSWER,
                             .has_seed = true,
                             .temperature = 1,
                             .ignore_eos = true,
                             .logprobs = true};
}

static void event(void *arg, const di_event *ev)
{
    prefix_case *c = arg;

    if (ev->type == DI_EVENT_TOKENS) {
        if (c->first.wall == 0)
            c->first = rig_now();
        c->hash = rig_hash(c->hash, ev);
    }
    if (ev->type == DI_EVENT_FINISH)
        c->cached = ev->usage.cached_tokens;
}

/* Seconds from submission to the first token. */
static double ask(const bench_options *o, di_engine *e, prefix_case *c)
{
    bench_load load = {.n = 1, .in_flight = 1, .make = make, .event = event, .arg = c};
    bench_time start = rig_now();

    rig_serve(e, &load, NULL);
    fprintf(stderr, "  first token: wall %.4f s, processor %.4f s\n", c->first.wall - start.wall,
            c->first.cpu - start.cpu);
    return o->threads == 1 ? c->first.cpu - start.cpu : c->first.wall - start.wall;
}

/* The prompts one after the other, over and over. */
static void fill(prefix_case *c, di_model *m, size_t n)
{
    bench_prompt *prompt;
    int n_prompts = rig_prompts(&prompt);

    c->ids = calloc(n, sizeof *c->ids);
    if (!c->ids)
        rig_stop("out of memory");
    for (int i = 0; c->n < n; i = (i + 1) % n_prompts) {
        di_status st = {0};
        int32_t *ids;
        size_t n_ids;

        if (di_tokenize(m, prompt[i].text, prompt[i].n, true, &ids, &n_ids, &st) != DI_OK)
            rig_stop("%s", st.message);
        for (size_t k = 0; k < n_ids && c->n < n; k++)
            c->ids[c->n++] = ids[k];
        di_free(ids);
    }
    rig_prompts_free(prompt, n_prompts);
}

/* ---- what replay should save ---- */

/* Multiplications of a row in layer l at position n / 2 on average; *kept: those that a row still
 * costs which stops in this layer (the compressor and the index keys). */
static double layer_work(const model_config *c, int l, double n, double *kept)
{
    double d = c->hidden, heads = (double)c->n_heads * c->head_dim, ratio = c->ratio[l];
    double entries = ratio > 0 ? n / 2 / ratio : 0, keys = c->window, work, own = 0;
    bool source = config_is_index_source(c, l);

    if (config_kv_source_idx(c, l) >= 0)
        own = d * (c->head_dim * (ratio > 1 ? 4 : 1) + c->index_dim);
    if (ratio > 0)
        keys += entries < c->index_topk ? entries : c->index_topk;
    work = own + d * c->q_rank + d * c->head_dim + c->q_rank * heads + heads * c->o_rank +
           d * c->o_groups * c->o_rank + 2 * heads * keys + d * c->n_experts +
           3.0 * d * c->inter * (c->n_active + 1) + 2.0 * c->hc * d * (c->hc * (c->hc + 2));
    if (source && c->cand_source >= 0 && l > c->cand_source)
        entries = (double)c->cand_blocks * c->cand_block;
    if (source)
        work += (double)c->index_heads * c->index_dim * (c->q_rank + entries) + d * c->index_heads;
    *kept = own;
    return work;
}

/* Share of a prefill's work that exact replay skips. */
static double predicted(const model_config *c, double n, double *by_layers)
{
    int split = c->kv_source[c->n_kv_sources - 1];
    double all = 0, skipped = 0, tail = (double)(c->window - 1) * (c->n_layers - 1 - split) + 2;

    for (int l = 0; l < c->n_layers; l++) {
        double kept, work = layer_work(c, l, n, &kept);

        all += work;
        skipped += l == split ? work - kept : l > split ? work : 0;
    }
    *by_layers = (double)(c->n_layers - split) / c->n_layers * (1 - tail / n);
    return skipped / all * (1 - tail / n);
}

static void measure_long(const bench_options *opt)
{
    bench_options o = *opt;
    di_model *m = rig_model(&o, o.model);
    di_engine_options eo = {.max_seqs = 1, .max_context = N_PROMPT + 1024, .draft_tokens = -1};
    prefix_case c = {0};
    double whole[100], replay[100], hit[100], share, by_layers, saved;
    model_config cfg;
    di_status st = {0};
    uint64_t hash = 0;

    if (config_load(&cfg, o.model, &st) != DI_OK)
        rig_stop("%s", st.message);
    fill(&c, m, N_PROMPT);
    eo.kv_tokens = (int64_t)2 * N_PROMPT;
    for (int r = 0; r < o.rounds; r++) {
        di_engine *e;

        eo.replay = DI_REPLAY_OFF;
        e = rig_engine(m, eo);
        whole[r] = ask(&o, e, &c);
        hash = c.hash;
        di_engine_close(e);
        eo.replay = DI_REPLAY_EXACT;
        e = rig_engine(m, eo);
        replay[r] = ask(&o, e, &c);
        if (c.hash != hash)
            rig_stop("the answer with replay differs");
        hit[r] = ask(&o, e, &c);
        if (c.hash != hash)
            rig_stop("the answer of a hit differs");
        if (c.cached != N_PROMPT - 1)
            rig_stop("%lld of %d tokens came from the cache", (long long)c.cached, N_PROMPT);
        di_engine_close(e);
    }
    share = predicted(&cfg, N_PROMPT, &by_layers);
    saved = 1 - rig_median(replay, o.rounds) / rig_median(whole, o.rounds);
    rig_row("prefill", "32768 tokens without replay", o.threads, rig_median(whole, o.rounds), "s",
            0);
    rig_row("prefill", "32768 tokens with exact replay", o.threads, rig_median(replay, o.rounds),
            "s", 0);
    rig_row("replay_saves", "against the work skipped", o.threads, 100 * saved, "%", 100 * share);
    rig_row("replay_saves", "against the layers skipped", o.threads, 100 * saved, "%",
            100 * by_layers);
    rig_row("prefix_hit", "32768 tokens against 5 % of cold", o.threads, rig_median(hit, o.rounds),
            "s", 0.05 * rig_median(replay, o.rounds));
    free(c.ids);
    di_model_close(m);
}

int main(int argc, char **argv)
{
    bench_options o = rig_options(argc, argv, 1, "models/tiny");

    if (rig_wants(&o, "long"))
        measure_long(&o);
    if (rig_wants(&o, "turns"))
        measure_turns();
    return 0;
}
