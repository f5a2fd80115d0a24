/* Drafts on the executing side: how many of those at hand a step verifies, whom the next ones are
 * proposed for, and how many.
 *
 * All three follow what is expected to give the most tokens per second (dspark/): the drafts at
 * hand by their confidences, the next ones by what the confidences of each sequence were like so
 * far. A sequence whose drafts do not earn their time goes without for a while, longer each time,
 * then a short probe tells whether that has changed. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "engine/bench_pin.h"
#include "engine/engine_internal.h"

#define FIRST_PAUSE  4  /* steps without drafts between two probes, at first */
#define MAX_PAUSE    64 /* at most */
#define PROBE_BLOCK  2
#define WORTH_IT     1.03  /* the least gain that drafts are proposed for */
#define FEW_SEQS     16    /* up to so many the block is chosen before every round ... */
#define CHOOSE_EVERY 16    /* ... else every so many rounds */
#define MEMORY       0.15f /* weight of the newest confidences */
#define PROBE_MEMORY 0.5f
#define ALL_MEMORY   0.02f

/* ---- what to expect ---- */

void drafts_init(exec *x)
{
    float survival = 1;

    calibration_init(&x->cal);
    for (int j = 0; j < DSPARK_MAX_DRAFT; j++)
        x->survival[j] = survival *= 0.7f;
    x->draft_next = x->draft_block;
}

/* Move `mean` towards the survival of n drafts; places behind them keep to what stands before. */
static void follow(float *mean, const float *survival, int n, float share)
{
    for (int j = 0; j < DSPARK_MAX_DRAFT; j++) {
        if (j < n)
            mean[j] += share * (survival[j] - mean[j]);
        else if (j > 0 && mean[j] > mean[j - 1])
            mean[j] = mean[j - 1];
    }
}

/* The confidences of new drafts: what the next ones will be like. */
static void learn(exec *x, choice *c)
{
    draft_offer o;

    draft_offer_init(&o, &x->cal, c->x.conf, c->x.n_draft);
    if (!c->x.has_survival)
        memcpy(c->x.survival, x->survival, sizeof c->x.survival);
    c->x.has_survival = true;
    follow(c->x.survival, o.survival, o.n, c->x.pause > 0 ? PROBE_MEMORY : MEMORY);
    follow(x->survival, o.survival, o.n, ALL_MEMORY);
}

/* ---- verifying ---- */

/* Drafts that the step may verify for this choice: what is at hand, what the plan has room for,
 * what the constraint lets through, and no more than can still be output. */
static int draft_room(const choice *c, const sched_part *p)
{
    int64_t left = c->x.req->max_out - c->x.n_out - 1;
    int n = c->x.n_draft < p->n_rows - 1 ? c->x.n_draft : p->n_rows - 1;

    if (c->mask && n > c->n_masked_drafts)
        n = c->n_masked_drafts;
    return n < left ? n : left < 0 ? 0 : (int)left;
}

/* A GPU replays steps whose shape has come before: with many sequences, fill the step up to one of
 * few numbers of rows, by the likeliest drafts that were left out. An answer does not depend on how
 * many drafts are verified. */
static void fill_up(const exec *x, int n, int room, int *chosen)
{
    int unit = n / 4 > 1 ? n / 4 : 1, total = 0, more;

    for (int k = 0; k < n; k++)
        total += chosen[k];
    more = total > 0 ? (unit - total % unit) % unit : 0;
    for (; more > 0 && total < room; more--, total++) {
        int best = -1;
        float most = -1;

        for (int k = 0; k < n; k++)
            if (chosen[k] < x->offer[k].n && x->offer[k].survival[chosen[k]] > most) {
                most = x->offer[k].survival[chosen[k]];
                best = k;
            }
        if (best < 0)
            return;
        chosen[best]++;
    }
}

/* How many drafts each part verifies, into length[part]. */
void drafts_choose(di_engine *e, const job *j)
{
    exec *x = &e->x;
    int n = 0, other = 0, *chosen = x->token; /* not in use yet in this step */
    bool any = false;

    for (int i = 0; i < j->plan.n_parts; i++) {
        const sched_part *p = &j->plan.part[i];
        const choice *c = choice_of(p->item);

        x->length[i] = 0;
        if (!p->decode)
            other += p->n_rows;
        if (!p->decode || c->x.done || !c->x.pending)
            continue;
        draft_offer_init(&x->offer[n], &x->cal, c->x.conf, draft_room(c, p));
        for (int d = 0; d < c->x.n_sure && d < x->offer[n].n; d++)
            x->offer[n].survival[d] = 1;
        any = any || x->offer[n].n > 0;
        x->draft_part[n++] = i;
    }
    if (!any)
        return;
    if (e->opt.draft_fixed || x->cost.n == 0) {
        for (int k = 0; k < n; k++)
            x->length[x->draft_part[k]] = x->offer[k].n;
        return;
    }
    draft_lengths(&x->cost, x->offer, n, other, e->opt.max_batched_tokens,
                  cost_draft(&x->cost, n, x->draft_next), chosen, x->scratch);
    if (kernels_kv_memory(x->k))
        fill_up(x, n, e->opt.max_batched_tokens - other - n, chosen);
    for (int k = 0; k < n; k++)
        x->length[x->draft_part[k]] = chosen[k];
}

/* ---- proposing ---- */

static int keep_drafts(choice *c, const int32_t *token, const float *conf, int n)
{
    memcpy(c->x.draft, token, (size_t)n * sizeof *token);
    if (conf)
        memcpy(c->x.conf, conf, (size_t)n * sizeof *conf);
    else
        memset(c->x.conf, 0, sizeof c->x.conf);
    c->x.n_draft = n;
    return n;
}

/* Does the choice have a new newest token behind this part? One that is computed again after a
 * preemption keeps the drafts that it has: its masks were filled for them. */
static bool goes_on(const sched_part *p)
{
    return p->decode || p->sample;
}

static void scripted_drafts(di_engine *e, const job *j)
{
    int32_t draft[DSPARK_MAX_DRAFT];

    for (int i = 0; i < j->plan.n_parts; i++) {
        choice *c = choice_of(j->plan.part[i].item);

        if (goes_on(&j->plan.part[i]) && c->x.pending && !c->x.done)
            keep_drafts(c, draft, NULL,
                        e->x.script(e->x.script_arg, c->x.ids, c->x.len + 1, draft, e->max_draft));
    }
}

void engine_pin_acceptance(di_engine *e, double p)
{
    e->x.pinned = true;
    e->x.pin = p;
}

/* Drafts of which each is the coming token with the pinned probability. */
static void pin_drafts(const di_engine *e, choice *c)
{
    const di_request_params *p = &c->x.req->p;
    double sure = e->x.pin < 0.01 ? 0.01 : e->x.pin > 0.99 ? 0.99 : e->x.pin;

    for (int k = 0; k < c->x.n_draft; k++) {
        size_t out = (size_t)c->x.n_out + (size_t)k;
        uint64_t pos = (uint64_t)c->x.len + 1 + (uint64_t)k;
        philox_block r;

        if (out >= p->n_forced || p->forced[out] < 0)
            return;
        r = philox4x32((philox_block){{(uint32_t)pos, (uint32_t)(pos >> 32), 0, 0}},
                       (uint32_t)p->seed, (uint32_t)(p->seed >> 32));
        c->x.draft[k] =
            r.v[0] < e->x.pin * 0x1p32 ? p->forced[out] : (p->forced[out] + 1) % e->vocab;
        c->x.conf[k] = (float)log(sure / (1 - sure)); /* the head's form: a logit */
    }
}

/* Drafts without draft stages: no cost, pinned acceptance. */
static void pinned_only(di_engine *e, const job *j)
{
    for (int i = 0; i < j->plan.n_parts; i++) {
        choice *c = choice_of(j->plan.part[i].item);

        if (!goes_on(&j->plan.part[i]) || !c->x.pending || c->x.done)
            continue;
        c->x.n_draft = e->max_draft;
        memset(c->x.conf, 0, sizeof c->x.conf);
        pin_drafts(e, c);
    }
}

/* Tokens per microsecond of n sequences with these offers, of which `who` would be drafted for, in
 * rounds of `block`; the lengths go to `length`. */
static double expected_rate(exec *x, const di_engine *e, int n, int who, int block, int *length)
{
    double expected = n, us = cost_draft(&x->cost, who, block);
    int chosen =
        draft_lengths(&x->cost, x->offer, n, 0, e->opt.max_batched_tokens, us, length, x->scratch);

    for (int k = 0; k < n; k++)
        for (int d = 0; d < length[k]; d++)
            expected += (double)x->offer[k].survival[d];
    return expected / (cost_step(&x->cost, n + chosen) + us);
}

/* Offers of the n sequences in `part`: what a round of `block` may be expected to bring. Returns
 * how many would be drafted for. */
static int expected_offers(exec *x, const job *j, int n, int block)
{
    int who = 0;

    for (int k = 0; k < n; k++) {
        const choice *c = choice_of(j->plan.part[x->draft_part[k]].item);
        int64_t left = c->x.req->max_out - c->x.n_out - 1;

        x->offer[k].n = c->x.pause > 0 ? 0 : left < block ? (int)left : block;
        memcpy(x->offer[k].survival, c->x.has_survival ? c->x.survival : x->survival,
               sizeof x->offer[k].survival);
        who += x->offer[k].n > 0;
    }
    return who;
}

/* A sequence whose drafts are not worth it goes without for a while. */
static void pause_drafts(choice *c)
{
    c->x.backoff = c->x.backoff ? 2 * c->x.backoff : FIRST_PAUSE;
    c->x.backoff = c->x.backoff < MAX_PAUSE ? c->x.backoff : MAX_PAUSE;
    c->x.pause = c->x.backoff;
}

/* The block of the next round for the n sequences in draft_part, and who is paused. */
static void choose_block(di_engine *e, const job *j, int n)
{
    exec *x = &e->x;
    int *length = x->token, *best_length = x->length, best = 0;
    double best_rate = WORTH_IT * n / cost_step(&x->cost, n);

    for (int k = 0; k < n; k++)
        best_length[k] = 0;
    for (int block = 1; block <= x->draft_block; block++) {
        int who = expected_offers(x, j, n, block);
        double rate = who > 0 ? expected_rate(x, e, n, who, block, length) : 0;

        if (rate <= best_rate)
            continue;
        best_rate = rate;
        best = block;
        memcpy(best_length, length, (size_t)n * sizeof *length);
    }
    x->draft_next = best;
    for (int k = 0; k < n; k++) {
        choice *c = choice_of(j->plan.part[x->draft_part[k]].item);

        if (c->x.pause > 0)
            continue;
        if (best_length[k] > 0)
            c->x.backoff = 0;
        else
            pause_drafts(c);
    }
}

/* Parts with a sequence that goes on, into draft_part. */
static int going_on(exec *x, const job *j)
{
    int n = 0;

    for (int i = 0; i < j->plan.n_parts; i++) {
        choice *c = choice_of(j->plan.part[i].item);

        if (!goes_on(&j->plan.part[i]))
            continue;
        c->x.n_draft = c->x.n_sure = 0;
        if (c->x.pending && !c->x.done && c->x.n_out + 1 < c->x.req->max_out)
            x->draft_part[n++] = i;
    }
    return n;
}

/* Of n sequences in draft_part, those that are drafted for now: all, or with lengths by speed those
 * without a pause and those whose pause ends, which get a probe. Returns how many; *block: how
 * long. */
static int choose_who(di_engine *e, const job *j, int n, int *block)
{
    exec *x = &e->x;
    int kept = 0;
    bool turn = x->n_rounds++ % (uint64_t)(n < CHOOSE_EVERY ? n : CHOOSE_EVERY) == 0;

    *block = x->draft_block;
    if (e->opt.draft_fixed || x->cost.n == 0)
        return n;
    if (n <= FEW_SEQS || turn)
        choose_block(e, j, n);
    *block = x->draft_next;
    for (int k = 0; k < n; k++) {
        choice *c = choice_of(j->plan.part[x->draft_part[k]].item);

        if (c->x.pause > 1 || (c->x.pause == 1 && !turn)) { /* probes of many go together */
            c->x.pause -= c->x.pause > 1;
            continue;
        }
        if (c->x.pause == 1 && *block < PROBE_BLOCK)
            *block = PROBE_BLOCK;
        x->draft_part[kept++] = x->draft_part[k];
    }
    if (*block > x->draft_block)
        *block = x->draft_block;
    return *block > 0 ? kept : 0;
}

/* Propose for the sequences of the step that go on. */
void drafts_propose(di_engine *e, job *j)
{
    exec *x = &e->x;
    int n = going_on(x, j), block;
    double start;

    if (x->script) {
        scripted_drafts(e, j);
        return;
    }
    if (x->draft_block == 0 && x->pinned)
        pinned_only(e, j);
    if (x->draft_block == 0 || n == 0)
        return;
    n = choose_who(e, j, n, &block);
    for (int k = 0; k < n; k++) {
        const choice *c = choice_of(j->plan.part[x->draft_part[k]].item);
        kv_view view = c->item.view;

        view.len = c->x.len;
        x->draft_sample[k] = sampler_row(c->x.sampler, 0);
        x->draft[k] =
            (draft_rows){.view = view, .token = c->x.ids[c->x.len], .row = &x->draft_sample[k]};
    }
    start = exec_clock_us(e);
    /* a failed draft costs speed, not tokens */
    if (n == 0 || model_draft(x->m, x->draft, n, block, x->draft_out, x->draft_conf, NULL) != DI_OK)
        return;
    model_work_draft(x->m, n, block, &j->work);
    cost_observe_draft(&x->cost, n, block, exec_clock_us(e) - start);
    for (int k = 0; k < n; k++) {
        choice *c = choice_of(j->plan.part[x->draft_part[k]].item);

        keep_drafts(c, x->draft_out + (size_t)k * (size_t)block,
                    x->draft_conf + (size_t)k * (size_t)block, block);
        if (x->pinned)
            pin_drafts(e, c);
        learn(x, c);
        if (c->x.pause == 1) /* the probe; what it says counts from the next round on */
            c->x.pause = 0;
    }
}
