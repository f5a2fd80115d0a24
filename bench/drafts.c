/* Speculation on a checkpoint: tokens per second with drafts off, of fixed lengths, and adaptive.
 *
 *   bench_drafts [--rounds N] [--threads N] [--only TEXT] [--model DIR]
 *
 * The variants serve the same prompts (the 13 golden ones and 50 of their kinds, up to 48 tokens,
 * to their own end) turn by turn in one run: what disturbs the machine disturbs all of them. Time
 * is processor time of the process with one thread, else wall time. Every variant has had the
 * prompts before, so that they are in its prefix cache and decoding is what is measured. The text
 * of every variant is compared with the first's. Run from the repository root. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_rig.h"

#define MAX_ROUNDS 100
#define MAX_TOKENS 48 /* as the golden texts have */

typedef struct variant {
    const char *name;
    di_engine *e;
    int draft_tokens;
    bool fixed, warm;
    double rate[MAX_ROUNDS];
    uint64_t text; /* sum of the hashes of the answers */
    di_stats before;
} variant;

static variant variants[] = {
    {.name = "off", .draft_tokens = -1},
    {.name = "fixed 2", .draft_tokens = 2, .fixed = true},
    {.name = "fixed 5", .draft_tokens = 5, .fixed = true},
    {.name = "adaptive", .draft_tokens = 0},
};
#define N_VARIANTS (sizeof variants / sizeof *variants)
#define ADAPTIVE   (N_VARIANTS - 1)

typedef struct drafts_case {
    const bench_prompt *prompt;
    float temperature;
    uint64_t hash[256], text;
} drafts_case;

static void make(void *arg, int i, di_request_params *p)
{
    drafts_case *c = arg;

    c->hash[i] = 0;
    *p = (di_request_params){.text = c->prompt[i].text,
                             .n_text = c->prompt[i].n,
                             .max_tokens = MAX_TOKENS,
                             .has_seed = true,
                             .seed = (uint64_t)i,
                             .temperature = c->temperature};
}

/* The seed of a request is its number. */
static void event(void *arg, const di_event *ev)
{
    drafts_case *c = arg;

    if (ev->type == DI_EVENT_TOKENS)
        for (int i = 0; i < ev->n_tokens; i++)
            c->hash[ev->seed] = c->hash[ev->seed] * 1000003u + (uint32_t)ev->token[i] + 1;
    else if (ev->type == DI_EVENT_DONE)
        c->text += c->hash[ev->seed] * (2 * ev->seed + 1);
}

static double serve(const bench_options *o, variant *v, drafts_case *c, int n, int in_flight)
{
    bench_load load = {.n = n, .in_flight = in_flight, .make = make, .event = event, .arg = c};
    bench_time t;
    uint64_t tokens;

    c->text = 0;
    t = rig_serve(v->e, &load, &tokens);
    v->text = c->text;
    return (double)tokens / (o->threads == 1 ? t.cpu : t.wall);
}

/* Accepted drafts per step of a sequence since `before`, for the eye. */
static void report(const variant *v)
{
    di_stats s = di_engine_stats(v->e);
    double verified = (double)(s.verified - v->before.verified);
    double accepted = (double)(s.accepted - v->before.accepted);
    double tokens = (double)(s.output_tokens - v->before.output_tokens);

    fprintf(stderr, "  %-9s tokens/step %.2f, verified %.0f of %.0f, accepted %.0f%%\n", v->name,
            tokens / (tokens - accepted), verified, (double)(s.drafted - v->before.drafted),
            verified > 0 ? 100 * accepted / verified : 0);
}

static void measure(const bench_options *o, const bench_prompt *prompt, int n, int in_flight,
                    float temperature)
{
    drafts_case c = {.prompt = prompt, .temperature = temperature};
    double rate[N_VARIANTS], best = 0;
    char name[64], text[96];

    snprintf(name, sizeof name, "drafts_%s_%02d", temperature > 0 ? "sampled" : "greedy",
             in_flight);
    if (!rig_wants(o, name))
        return;
    for (size_t v = 0; v < N_VARIANTS; v++) {
        if (!variants[v].warm) /* the cache, and the running correction of costs */
            serve(o, &variants[v], &c, n, 1);
        variants[v].warm = true;
        variants[v].before = di_engine_stats(variants[v].e);
    }
    for (int r = 0; r < o->rounds; r++)
        for (size_t v = 0; v < N_VARIANTS; v++) {
            size_t at = (v + (size_t)r) % N_VARIANTS;

            variants[at].rate[r] = serve(o, &variants[at], &c, n, in_flight);
            if (variants[at].text != variants[r ? at : 0].text)
                rig_stop("the text of \"%s\" differs", variants[at].name);
        }
    for (size_t v = 0; v < N_VARIANTS; v++) {
        rate[v] = rig_median(variants[v].rate, o->rounds);
        if (v != ADAPTIVE && rate[v] > best)
            best = rate[v];
        report(&variants[v]);
    }
    for (size_t v = 0; v < N_VARIANTS; v++) {
        snprintf(text, sizeof text, "%s against off", variants[v].name);
        rig_row(name, text, o->threads, rate[v], "tokens/s", rate[0]);
    }
    rig_row(name, "adaptive against the best", o->threads, rate[ADAPTIVE], "tokens/s", best);
}

int main(int argc, char **argv)
{
    static const int in_flight[] = {1, 4, 16, 64};
    bench_options o = rig_options(argc, argv, 1, "models/tiny");
    di_model *m = rig_model(&o, o.model);
    bench_prompt *prompt;
    int n = rig_prompts(&prompt);

    if (n > 256)
        rig_stop("%d prompts, at most 256", n);
    for (size_t v = 0; v < N_VARIANTS; v++)
        variants[v].e = rig_engine(m, (di_engine_options){.max_seqs = 64,
                                                          .max_context = 2048,
                                                          .kv_tokens = 1 << 19,
                                                          .draft_tokens = variants[v].draft_tokens,
                                                          .draft_fixed = variants[v].fixed});
    for (int t = 0; t < 2; t++)
        for (size_t k = 0; k < sizeof in_flight / sizeof *in_flight; k++)
            measure(&o, prompt, n, in_flight[k], (float)t);
    for (size_t v = 0; v < N_VARIANTS; v++)
        di_engine_close(variants[v].e);
    di_model_close(m);
    rig_prompts_free(prompt, n);
    return 0;
}
