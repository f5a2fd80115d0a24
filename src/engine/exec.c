/* The executing side: turns the plan of a step into rows, with what only this side knows (newest
 * tokens, accepted lengths, drafts), runs the model, and proposes the next drafts.
 *
 * The host plans a step before the one in flight has ended; so a sequence may have ended meanwhile:
 * its part is skipped here and costs nothing. */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine_internal.h"

/* ---- memory ---- */

/* Host memory that operations read and write, too. */
static void *new_shared(const exec *x, size_t count, size_t size)
{
    return x->k->ops->shared_new(x->k, count * size);
}

static void free_shared(const exec *x, void *p)
{
    if (p)
        x->k->ops->shared_free(x->k, p);
}

di_code exec_init(di_engine *e, di_status *st)
{
    exec *x = &e->x;
    size_t seqs = (size_t)e->opt.max_seqs, rows = (size_t)e->opt.max_batched_tokens;
    size_t drafts = seqs * (size_t)(e->max_draft ? e->max_draft : 1);

    drafts_init(x);
    x->cpu_clock = x->k->pool && pool_n_threads(x->k->pool) == 1;
    x->rows = mem_try_calloc(seqs, sizeof *x->rows);
    x->part_of = mem_try_calloc(seqs, sizeof *x->part_of);
    x->sample = mem_try_calloc(rows, sizeof *x->sample);
    x->token = new_shared(x, rows, sizeof *x->token);
    x->draft = mem_try_calloc(seqs, sizeof *x->draft);
    x->draft_sample = mem_try_calloc(seqs, sizeof *x->draft_sample);
    x->draft_part = mem_try_calloc(seqs, sizeof *x->draft_part);
    x->draft_out = mem_try_calloc(drafts, sizeof *x->draft_out);
    x->draft_conf = mem_try_calloc(drafts, sizeof *x->draft_conf);
    x->offer = mem_try_calloc(seqs, sizeof *x->offer);
    x->length = mem_try_calloc(seqs, sizeof *x->length);
    x->scratch = mem_try_calloc(seqs * (DSPARK_MAX_DRAFT + 1), sizeof *x->scratch);
    x->lp = new_shared(x, rows, sizeof *x->lp);
    x->lp_token = new_shared(x, rows, sizeof *x->lp_token);
    x->lp_rank = new_shared(x, rows, sizeof *x->lp_rank);
    x->lp_top = new_shared(x, rows * MAX_TOP, sizeof *x->lp_top);
    x->lp_top_value = new_shared(x, rows * MAX_TOP, sizeof *x->lp_top_value);
    if (!x->rows || !x->part_of || !x->sample || !x->token || !x->draft || !x->draft_sample ||
        !x->draft_part || !x->draft_out || !x->draft_conf || !x->offer || !x->length ||
        !x->scratch || !x->lp || !x->lp_token || !x->lp_rank || !x->lp_top || !x->lp_top_value)
        return di_fail(st, DI_E_NOMEM, "no memory for steps of %d sequences", e->opt.max_seqs);
    return DI_OK;
}

void exec_fini(exec *x)
{
    mem_free(x->rows);
    mem_free(x->part_of);
    mem_free(x->sample);
    free_shared(x, x->token);
    mem_free(x->draft);
    mem_free(x->draft_sample);
    mem_free(x->draft_part);
    mem_free(x->draft_out);
    mem_free(x->draft_conf);
    mem_free(x->offer);
    mem_free(x->length);
    mem_free(x->scratch);
    free_shared(x, x->lp);
    free_shared(x, x->lp_token);
    free_shared(x, x->lp_rank);
    free_shared(x, x->lp_top);
    free_shared(x, x->lp_top_value);
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

static seq_rows prompt_rows(const di_engine *e, const choice *c, const sched_part *p, kv_view view)
{
    seq_rows q = with_history(e, c, view, p->pos, p->n_rows);

    if (e->opt.replay != DI_REPLAY_MASK)
        q.whole_from = p->whole_from;
    if (e->opt.replay == DI_REPLAY_MASK || e->opt.replay == DI_REPLAY_COMPACT)
        q.ring_first = p->whole_from;
    if (c->x.req->prompt_value)
        q.n_logits = p->n_rows;
    else if (p->sample && c->x.req->max_out > 0)
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
            x->rows[n] = decode_rows(e, c, x->length[i], p->item->view);
        } else {
            x->rows[n] = prompt_rows(e, c, p, p->item->view);
        }
        j->n_rows += x->rows[n].n;
        x->part_of[n++] = i;
    }
    return n;
}

/* ---- a step ---- */

double exec_clock_us(const di_engine *e)
{
    struct timespec t;

    if (!e->x.cpu_clock)
        return (double)clock_ns() * 1e-3;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void fail_step(job *j, const di_status *st)
{
    j->failed = *st;
    for (int i = 0; i < j->plan.n_parts; i++) {
        choice *c = choice_of(j->plan.part[i].item);
        part_result *r = &j->result[i];

        c->x.done = true;
        c->x.finish = DI_FINISH_ERROR;
        r->code = st->code;
        r->message = j->failed.message;
    }
}

/* What the back end did since it had counted `from`. */
static kernel_counters done_since(const kernels *k, kernel_counters from)
{
    kernel_counters to = k->ops->counters(k);

    return (kernel_counters){.launches = to.launches - from.launches,
                             .replays = to.replays - from.replays,
                             .records = to.records - from.records,
                             .busy_ns = to.busy_ns - from.busy_ns};
}

void exec_run(di_engine *e, job *j)
{
    exec *x = &e->x;
    kernel_counters before;
    uint64_t start, middle;
    double start_us;
    di_status st = {0};
    float *logits;
    int n;

    pthread_mutex_lock(&e->model->running);
    start = clock_ns();
    start_us = exec_clock_us(e);
    before = x->k->ops->counters(x->k);
    x->k->ops->copy(x->k, j->plan.load, j->plan.n_loads);
    drafts_choose(e, j);
    n = build_rows(e, j);
    j->work = (model_work){0};
    if (n > 0) {
        model_work_forward(x->m, x->rows, n, &j->work);
        if (model_launch(x->m, x->rows, n, &logits, &st) != DI_OK ||
            exec_sample(e, j, n, logits, &st) != DI_OK)
            fail_step(j, &st);
    }
    x->k->ops->copy(x->k, j->plan.save, j->plan.n_saves);
    middle = clock_ns();
    j->forward_us = n > 0 ? (double)(middle - start) * 1e-3 : 0;
    if (n > 0)
        cost_observe(&x->cost, j->n_rows, exec_clock_us(e) - start_us);
    drafts_propose(e, j);
    for (int i = 0; i < j->plan.n_parts; i++) {
        const choice *c = choice_of(j->plan.part[i].item);

        j->result[i].done = c->x.done;
        j->result[i].finish = c->x.finish;
        j->result[i].len = c->x.len;
    }
    j->did = done_since(x->k, before);
    j->run_ns = clock_ns() - start;
    pthread_mutex_unlock(&e->model->running);
}

/* ---- cost table ---- */

/* Time for measuring; further points are extrapolated. */
#define MEASURE_US 1e6
#define N_REPEATS  3

/* Time of a step of `rows` rows, which come as a step with drafts has them (those that n sequences
 * have no drafts for: as of prompts, without logits), and of a draft round for n sequences; the
 * best of a few runs (of one when that takes long). */
static di_code measure_point(di_engine *e, kv_lease **lease, int n, int rows, double *step_us,
                             double *draft_us, di_status *st)
{
    exec *x = &e->x;
    di_code rc = DI_OK;
    float *logits;
    int most = 1 + x->draft_block, seqs = (rows + x->draft_block) / most;

    *step_us = *draft_us = 1e30;
    seqs = seqs < n ? seqs : n;
    for (int i = 0; i < rows; i++)
        x->token[i] = (int32_t)((uint32_t)i * 7919u % (uint32_t)e->vocab);
    for (int run = 0; run < N_REPEATS; run++) {
        double t0, t1, took, drafting;

        for (int i = 0; i < seqs; i++) {
            int first = rows * i / seqs, n_rows = rows * (i + 1) / seqs - first;

            x->rows[i] = (seq_rows){.view = kv_lease_view(lease[i], 0),
                                    .n = n_rows,
                                    .token = x->token + first,
                                    .n_logits = n_rows < most ? n_rows : most};
        }
        for (int i = 0; i < n; i++)
            x->draft[i] = (draft_rows){.view = kv_lease_view(lease[i], 1), .token = 0};
        t0 = exec_clock_us(e);
        DI_TRY(model_forward(x->m, x->rows, seqs, &logits, st));
        t1 = exec_clock_us(e);
        if (x->draft_block > 0)
            DI_TRY(model_draft(x->m, x->draft, n, x->draft_block, x->draft_out, x->draft_conf, st));
        took = t1 - t0;
        drafting = exec_clock_us(e) - t1;
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
    double start_us = exec_clock_us(e), last_us = 0;
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
        int each = rows[done] / seqs + 1 + e->x.draft_block; /* see measure_point */
        double step_us, draft_us;
        bool room = each <= e->max_context &&
                    exec_clock_us(e) - start_us + 2 * last_us < MEASURE_US &&
                    (double)(clock_ns() - start) * 1e-3 < 2 * MEASURE_US;

        for (; open < seqs && room; open += room)
            room = kv_lease_open(e->kv, &lease[open], NULL, 0, none, &n_copies, NULL) == DI_OK;
        for (int i = 0; i < seqs && room; i++)
            room = kv_lease_reserve(lease[i], each + e->max_draft + 1, NULL) == DI_OK;
        if (!room)
            break; /* no time, or the context or the pool is smaller than this step */
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
