/* The executing side: turns the plan of a step into rows, with what only this side knows (newest
 * tokens, accepted lengths, drafts), runs the model, and proposes the next drafts.
 *
 * The host plans a step before the one in flight has ended; so a sequence may have ended meanwhile:
 * its part is skipped here and costs nothing. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/bench_pin.h"
#include "engine/engine_internal.h"

#define MAX_BACKOFF 64 /* steps without drafts between two tries, at most */

/* ---- memory ---- */

di_code exec_init(di_engine *e, di_status *st)
{
    exec *x = &e->x;
    size_t seqs = (size_t)e->opt.max_seqs, rows = (size_t)e->opt.max_batched_tokens;
    size_t drafts = seqs * (size_t)(e->max_draft ? e->max_draft : 1);

    calibration_init(&x->cal);
    x->rows = mem_try_calloc(seqs, sizeof *x->rows);
    x->part_of = mem_try_calloc(seqs, sizeof *x->part_of);
    x->sample = mem_try_calloc(rows, sizeof *x->sample);
    x->token = mem_try_calloc(rows, sizeof *x->token);
    x->draft = mem_try_calloc(seqs, sizeof *x->draft);
    x->draft_sample = mem_try_calloc(seqs, sizeof *x->draft_sample);
    x->draft_part = mem_try_calloc(seqs, sizeof *x->draft_part);
    x->draft_out = mem_try_calloc(drafts, sizeof *x->draft_out);
    x->draft_conf = mem_try_calloc(drafts, sizeof *x->draft_conf);
    x->offer = mem_try_calloc(seqs, sizeof *x->offer);
    x->length = mem_try_calloc(seqs, sizeof *x->length);
    x->scratch = mem_try_calloc(seqs * (DSPARK_MAX_DRAFT + 1), sizeof *x->scratch);
    x->lp = mem_try_calloc(rows, sizeof *x->lp);
    x->lp_rank = mem_try_calloc(rows, sizeof *x->lp_rank);
    x->lp_top = mem_try_calloc(rows * MAX_TOP, sizeof *x->lp_top);
    x->lp_top_value = mem_try_calloc(rows * MAX_TOP, sizeof *x->lp_top_value);
    if (!x->rows || !x->part_of || !x->sample || !x->token || !x->draft || !x->draft_sample ||
        !x->draft_part || !x->draft_out || !x->draft_conf || !x->offer || !x->length ||
        !x->scratch || !x->lp || !x->lp_rank || !x->lp_top || !x->lp_top_value)
        return di_fail(st, DI_E_NOMEM, "no memory for steps of %d sequences", e->opt.max_seqs);
    return DI_OK;
}

void exec_fini(exec *x)
{
    mem_free(x->rows);
    mem_free(x->part_of);
    mem_free(x->sample);
    mem_free(x->token);
    mem_free(x->draft);
    mem_free(x->draft_sample);
    mem_free(x->draft_part);
    mem_free(x->draft_out);
    mem_free(x->draft_conf);
    mem_free(x->offer);
    mem_free(x->length);
    mem_free(x->scratch);
    mem_free(x->lp);
    mem_free(x->lp_rank);
    mem_free(x->lp_top);
    mem_free(x->lp_top_value);
    model_close(x->m);
}

/* ---- rows of a step ---- */

static seq_rows with_history(const di_engine *e, const choice *c, kv_view view, int64_t pos, int n)
{
    int64_t back = e->cfg->engram_ngram - 1;

    back = back > pos ? pos : back > 0 ? back : 0;
    view.len = pos;
    return (seq_rows){.view = view,
                      .n = n,
                      .token = c->x.ids + pos,
                      .history = c->x.ids + pos - back,
                      .n_history = (int)back};
}

/* Drafts that the step may verify for this choice: what is at hand, what the plan has room for,
 * what the constraint lets through, and no more than can still be output. */
static int draft_room(const choice *c, const sched_part *p)
{
    int64_t left = c->req->max_out - c->x.n_out - 1;
    int n = c->x.n_draft < p->n_rows - 1 ? c->x.n_draft : p->n_rows - 1;

    if (c->mask && n > c->n_masked_drafts)
        n = c->n_masked_drafts;
    return n < left ? n : left < 0 ? 0 : (int)left;
}

/* Whether drafts earn their time at these lengths; if not, stop proposing for a while, longer each
 * time, then try again. */
static void judge_drafts(exec *x, int n, int other, int n_chosen, double expected)
{
    double with = expected / (cost_step(&x->cost, n + other + n_chosen) + cost_draft(&x->cost, n));
    double without = n / cost_step(&x->cost, n + other);

    if (with >= without) {
        x->draft_backoff = 0;
        return;
    }
    x->draft_backoff = x->draft_backoff ? 2 * x->draft_backoff : 2;
    if (x->draft_backoff > MAX_BACKOFF)
        x->draft_backoff = MAX_BACKOFF;
    x->draft_pause = x->draft_backoff;
}

/* How many drafts each part verifies, into length[part]. */
static void choose_lengths(di_engine *e, const job *j)
{
    exec *x = &e->x;
    int n = 0, other = 0, n_chosen, *chosen = x->token; /* not in use yet in this step */
    bool any = false;
    double expected;

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
    n_chosen = draft_lengths(&x->cost, x->offer, n, other, e->opt.max_batched_tokens,
                             cost_draft(&x->cost, n), chosen, x->scratch);
    expected = n;
    for (int k = 0; k < n; k++) {
        x->length[x->draft_part[k]] = chosen[k];
        for (int d = 0; d < chosen[k]; d++)
            expected += (double)x->offer[k].survival[d];
    }
    judge_drafts(x, n, other, n_chosen, expected);
}

static seq_rows prompt_rows(const di_engine *e, const choice *c, const sched_part *p, kv_view view)
{
    seq_rows q = with_history(e, c, view, p->pos, p->n_rows);

    if (e->opt.replay != DI_REPLAY_MASK)
        q.whole_from = p->whole_from;
    if (e->opt.replay == DI_REPLAY_MASK || e->opt.replay == DI_REPLAY_COMPACT)
        q.ring_first = p->whole_from;
    if (c->req->prompt_value)
        q.n_logits = p->n_rows;
    else if (p->sample && c->req->max_out > 0)
        q.n_logits = 1;
    return q;
}

/* The newest token and its drafts, which lie behind it among the ids. */
static seq_rows decode_rows(const di_engine *e, choice *c, int n_drafts, kv_view view)
{
    seq_rows q;

    memcpy(c->x.ids + c->x.len + 1, c->x.draft, (size_t)n_drafts * sizeof *c->x.ids);
    q = with_history(e, c, view, c->x.len, 1 + n_drafts);
    q.n_logits = q.n;
    return q;
}

/* Rows of the step; parts that have ended are left out. Returns the number of sequences. */
static int build_rows(di_engine *e, job *j)
{
    exec *x = &e->x;
    int n = 0;

    j->n_rows = 0;
    for (int i = 0; i < j->plan.n_parts; i++) {
        const sched_part *p = &j->plan.part[i];
        choice *c = choice_of(p->item);
        part_result *r = &j->result[i];

        r->n = r->offered = r->verified = r->accepted = 0;
        r->code = DI_OK;
        if (c->x.done || (p->decode && !c->x.pending))
            continue;
        if (p->decode) {
            r->offered = c->x.n_draft;
            r->verified = x->length[i];
            x->rows[n] = decode_rows(e, c, x->length[i], j->view[i]);
        } else {
            x->rows[n] = prompt_rows(e, c, p, j->view[i]);
        }
        j->n_rows += x->rows[n].n;
        x->part_of[n++] = i;
    }
    return n;
}

/* ---- drafts ---- */

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
    const di_request_params *p = &c->req->p;
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

/* Propose for every sequence of the step that goes on. */
static void propose(di_engine *e, job *j)
{
    exec *x = &e->x;
    int n = 0, block = x->draft_block;

    for (int i = 0; i < j->plan.n_parts; i++)
        if (goes_on(&j->plan.part[i])) {
            choice *c = choice_of(j->plan.part[i].item);

            c->x.n_draft = c->x.n_sure = 0;
        }
    if (x->script) {
        scripted_drafts(e, j);
        return;
    }
    if (block == 0) {
        if (x->pinned)
            pinned_only(e, j);
        return;
    }
    if (x->draft_pause > 0) {
        x->draft_pause--;
        return;
    }
    for (int i = 0; i < j->plan.n_parts; i++) {
        choice *c = choice_of(j->plan.part[i].item);
        kv_view view = j->view[i];

        if (!goes_on(&j->plan.part[i]) || !c->x.pending || c->x.done ||
            c->x.n_out + 1 >= c->req->max_out)
            continue;
        view.len = c->x.len;
        x->draft_sample[n] = sampler_row(c->x.sampler, 0);
        x->draft[n] =
            (draft_rows){.view = view, .token = c->x.ids[c->x.len], .row = &x->draft_sample[n]};
        x->draft_part[n++] = i;
    }
    /* a failed draft costs speed, not tokens */
    if (n == 0 || model_draft(x->m, x->draft, n, block, x->draft_out, x->draft_conf, NULL) != DI_OK)
        return;
    model_work_draft(x->m, n, block, &j->work);
    for (int k = 0; k < n; k++) {
        choice *c = choice_of(j->plan.part[x->draft_part[k]].item);

        keep_drafts(c, x->draft_out + (size_t)k * (size_t)block,
                    x->draft_conf + (size_t)k * (size_t)block, block);
        if (x->pinned)
            pin_drafts(e, c);
    }
}

/* ---- a step ---- */

static void fail_step(job *j, const di_status *st)
{
    for (int i = 0; i < j->plan.n_parts; i++) {
        choice *c = choice_of(j->plan.part[i].item);
        part_result *r = &j->result[i];

        c->x.done = true;
        c->x.finish = DI_FINISH_ERROR;
        r->code = st->code;
        memcpy(r->message, st->message, sizeof r->message - 1);
        r->message[sizeof r->message - 1] = 0;
    }
}

void exec_run(di_engine *e, job *j)
{
    exec *x = &e->x;
    uint64_t start, middle;
    di_status st = {0};
    float *logits;
    int n;

    pthread_mutex_lock(&e->model->running);
    start = clock_ns();
    kv_copy_run(j->plan.load, j->plan.n_loads);
    choose_lengths(e, j);
    n = build_rows(e, j);
    j->work = (model_work){0};
    if (n > 0) {
        model_work_forward(x->m, x->rows, n, &j->work);
        if (model_forward(x->m, x->rows, n, &logits, &st) == DI_OK)
            exec_sample(e, j, n, logits);
        else
            fail_step(j, &st);
    }
    kv_copy_run(j->plan.save, j->plan.n_saves);
    middle = clock_ns();
    j->forward_us = n > 0 ? (double)(middle - start) * 1e-3 : 0;
    if (n > 0)
        cost_observe(&x->cost, j->n_rows, j->forward_us);
    propose(e, j);
    for (int i = 0; i < j->plan.n_parts; i++) {
        const choice *c = choice_of(j->plan.part[i].item);

        j->result[i].done = c->x.done;
        j->result[i].finish = c->x.finish;
        j->result[i].len = c->x.len;
    }
    j->run_ns = clock_ns() - start;
    pthread_mutex_unlock(&e->model->running);
}

/* ---- cost table ---- */

/* Time for measuring; further points are extrapolated. */
#define MEASURE_US 1e6
#define N_REPEATS  3

/* Time of a step of `rows` rows over n leases, the best of a few runs (of one when that takes
 * long); and of a draft round. */
static di_code measure_point(di_engine *e, kv_lease **lease, int n, int rows, double *step_us,
                             double *draft_us, di_status *st)
{
    exec *x = &e->x;
    di_code rc = DI_OK;
    float *logits;

    *step_us = *draft_us = 1e30;
    for (int i = 0; i < rows; i++)
        x->token[i] = (int32_t)((uint32_t)i * 7919u % (uint32_t)e->vocab);
    for (int run = 0; run < N_REPEATS; run++) {
        uint64_t t0, t1, t2;
        double took, drafting;

        for (int i = 0; i < n; i++) {
            int first = rows * i / n, last = rows * (i + 1) / n;

            x->rows[i] = (seq_rows){.view = kv_lease_view(lease[i], 0),
                                    .n = last - first,
                                    .token = x->token + first,
                                    .n_logits = last - first};
            x->draft[i] = (draft_rows){.view = kv_lease_view(lease[i], 1), .token = 0};
        }
        t0 = clock_ns();
        DI_TRY(model_forward(x->m, x->rows, n, &logits, st));
        t1 = clock_ns();
        if (x->draft_block > 0)
            DI_TRY(model_draft(x->m, x->draft, n, x->draft_block, x->draft_out, x->draft_conf, st));
        t2 = clock_ns();
        took = (double)(t1 - t0) * 1e-3;
        drafting = (double)(t2 - t1) * 1e-3;
        *step_us = took < *step_us ? took : *step_us;
        *draft_us = drafting < *draft_us ? drafting : *draft_us;
        if (rows > 1 && took + drafting > MEASURE_US / 50) /* the first point also warms up */
            break;
    }
done:
    return rc;
}

/* Points double from 4 rows on, and end before the one that would not be done in time. */
di_code exec_measure(di_engine *e, di_status *st)
{
    int all[COST_MAX_POINTS], rows[COST_MAX_POINTS], n_all, n = 0, done = 0, open = 0;
    kv_lease **lease = mem_try_calloc((size_t)e->opt.max_seqs, sizeof *lease);
    kv_copy none[1];
    uint64_t start = clock_ns();
    double last_us = 0;
    di_code rc = DI_OK;

    if (!lease)
        return di_fail(st, DI_E_NOMEM, "no memory to measure steps");
    n_all = cost_points(e->opt.max_batched_tokens, all);
    for (int i = 0; i < n_all; i++)
        if (all[i] <= 8 || (all[i] & (all[i] - 1)) == 0 || i == n_all - 1)
            rows[n++] = all[i];
    cost_init(&e->x.cost, n, rows);
    for (; done < n; done++) {
        int seqs = rows[done] < e->opt.max_seqs ? rows[done] : e->opt.max_seqs, n_copies;
        int each = (rows[done] + seqs - 1) / seqs;
        double step_us, draft_us;
        bool room = (double)(clock_ns() - start) * 1e-3 + 2 * last_us < MEASURE_US;

        for (; open < seqs && room; open += room)
            room = kv_lease_open(e->kv, &lease[open], NULL, 0, none, &n_copies, NULL) == DI_OK;
        for (int i = 0; i < seqs && room; i++)
            room = kv_lease_reserve(lease[i], each + e->max_draft + 1, NULL) == DI_OK;
        if (!room)
            break; /* no time, or the pool is smaller than this step */
        DI_TRY(measure_point(e, lease, seqs, rows[done], &step_us, &draft_us, st));
        cost_set(&e->x.cost, done, step_us, draft_us);
        last_us = step_us + draft_us;
    }
    e->x.cost.n = done;
done:
    for (int i = 0; i < open; i++)
        kv_lease_close(lease[i]);
    mem_free(lease);
    return rc;
}
