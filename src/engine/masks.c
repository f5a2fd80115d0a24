/* Masks of the next step, filled beside the steps.
 *
 *   host: masks_want -> wanted -> masks_take -> queue -> crew (or the host itself) -> done -> host
 *
 * A mask takes microseconds, but milliseconds at states of a grammar that were never visited. So a
 * crew of threads computes them, several choices at once, and the host stays free to plan steps for
 * others. Only when all choices wait for masks does it work along; for one that is alone it does so
 * at once, and nobody has to be woken.
 *
 * A choice is `filling` from masks_want until masks_take returns it. Meanwhile it is in no step
 * that decodes or samples, its drafts, masks and constraint belong to who fills them, and it stays
 * in the scheduler even if it has ended. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "engine/engine_internal.h"

/* With nothing in flight, choices that are ready wait for the others as long as the last step took,
 * at least this long: a step reads all weights, for one sequence or for all. */
#define GRACE_NS 1000000

/* ---- one choice ---- */

/* Fill the mask of row k; false = no constraint now. */
static void fill_mask(const di_engine *e, choice *c, int k)
{
    const di_request *r = c->req;
    uint32_t *mask = c->mask + (size_t)k * (size_t)e->mask_words;

    c->masked[k] = r->p.mask->fill(c->mask_ctx, mask, e->vocab);
    if (!r->ban || c->n_known - r->n_prompt + k >= r->p.min_tokens)
        return;
    for (int w = 0; w < e->mask_words; w++)
        mask[w] = c->masked[k] ? mask[w] & r->ban[w] : r->ban[w];
    c->masked[k] = true;
}

/* Tokens that must come are drafts that stand: they take the place of the model's, unless those
 * begin with them. */
static void draft_forced(const di_engine *e, choice *c)
{
    int32_t token[DSPARK_MAX_DRAFT];
    int n;

    if (!c->req->p.mask->forced || e->max_draft == 0)
        return;
    n = c->req->p.mask->forced(c->mask_ctx, token, e->max_draft);
    if (n <= 0)
        return;
    if (n > c->x.n_draft || memcmp(c->x.draft, token, (size_t)n * sizeof *token) != 0) {
        memcpy(c->x.draft, token, (size_t)n * sizeof *token);
        c->x.n_draft = n;
    }
    c->x.n_sure = n;
}

void masks_fill(const di_engine *e, choice *c)
{
    const di_mask_provider *p = c->req->p.mask;
    int n = 0;

    draft_forced(e, c);
    fill_mask(e, c, 0);
    while (n < c->x.n_draft && n < MAX_STEP - 1 && p->accept(c->mask_ctx, c->x.draft[n]))
        fill_mask(e, c, ++n);
    if (n > 0)
        p->rollback(c->mask_ctx, n);
    c->n_masked_drafts = n;
}

/* ---- the crew ---- */

/* Take the next choice from the queue and fill its masks. The lock is held before and after. */
static void fill_next_locked(di_engine *e)
{
    mask_crew *w = &e->crew;
    choice *c = w->queue;

    w->queue = c->next_mask;
    pthread_mutex_unlock(&e->lock);
    masks_fill(e, c);
    pthread_mutex_lock(&e->lock);
    c->next_mask = w->done;
    w->done = c;
    w->n_done++;
}

static void *crew_main(void *engine)
{
    di_engine *e = engine;
    mask_crew *w = &e->crew;

    pthread_mutex_lock(&e->lock);
    while (!w->end) {
        if (!w->queue) {
            pthread_cond_wait(&w->work, &e->lock);
            continue;
        }
        fill_next_locked(e);
        if (w->n_done == w->n_open)
            pthread_cond_signal(&e->to_host);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* Threads for n choices at once, no more than processors. Where none can be started the host does
 * the work. */
static void hire(di_engine *e, int n)
{
    mask_crew *w = &e->crew;
    int most = cpu_count() < MAX_CREW ? cpu_count() : MAX_CREW;

    while (!w->refused && w->n_threads < n && w->n_threads < most) {
        w->refused = pthread_create(&w->thread[w->n_threads], NULL, crew_main, e) != 0;
        w->n_threads += !w->refused;
    }
}

void masks_end(di_engine *e)
{
    mask_crew *w = &e->crew;

    pthread_mutex_lock(&e->lock);
    w->end = true;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < w->n_threads; i++)
        pthread_join(w->thread[i], NULL);
}

/* ---- the host's side ---- */

void masks_want(di_engine *e, choice *c)
{
    c->filling = true;
    c->next_mask = e->crew.wanted;
    e->crew.wanted = c;
    e->crew.n_wanted++;
}

/* Hand what is wanted to the crew; returns how many choices that are. */
static int queue_locked(di_engine *e)
{
    mask_crew *w = &e->crew;
    int n = w->n_wanted;

    for (choice *c = w->wanted, *next; c; c = next) {
        next = c->next_mask;
        c->next_mask = w->queue;
        w->queue = c;
    }
    w->wanted = NULL;
    w->n_wanted = 0;
    w->n_open += n;
    return n;
}

/* Wait for all, but no longer than a step that runs, or, with nothing in flight, than the next one
 * would. */
static void wait_locked(di_engine *e)
{
    const mask_crew *w = &e->crew;
    bool idle = e->n_planned == e->n_processed;
    uint64_t until = clock_ns() + (e->step_ns > GRACE_NS ? e->step_ns : GRACE_NS);
    const struct timespec t = {.tv_sec = (time_t)(until / 1000000000u),
                               .tv_nsec = (long)(until % 1000000000u)};

    while (w->n_done < w->n_open && e->n_run == e->n_processed) {
        if (!idle || e->opt.no_async)
            pthread_cond_wait(&e->to_host, &e->lock);
        else if (pthread_cond_timedwait(&e->to_host, &e->lock, &t) == ETIMEDOUT)
            break;
    }
}

/* Nothing is in flight, and nothing could be: the scheduler has only choices that wait for masks.
 */
static bool all_wait(const di_engine *e)
{
    const mask_crew *w = &e->crew;
    sched_counts n = sched_get_counts(e->sched);

    return e->n_planned == e->n_processed && w->n_wanted + w->n_open == n.running + n.waiting;
}

static choice *fill_lone(di_engine *e)
{
    choice *c = e->crew.wanted;

    e->crew.wanted = NULL;
    e->crew.n_wanted = 0;
    masks_fill(e, c);
    return c;
}

choice *masks_take(di_engine *e)
{
    mask_crew *w = &e->crew;
    bool helps = all_wait(e) || (w->n_threads == 0 && w->refused);
    choice *done;
    int n;

    if (w->n_open == 0 && w->n_wanted == 0)
        return NULL;
    if (helps && w->n_open == 0 && w->n_wanted == 1)
        return fill_lone(e);
    hire(e, w->n_wanted - helps);
    pthread_mutex_lock(&e->lock);
    n = queue_locked(e);
    for (int i = helps; i < n && i - helps < w->n_threads; i++)
        pthread_cond_signal(&w->work);
    while (w->queue && (helps || w->n_threads == 0))
        fill_next_locked(e);
    wait_locked(e);
    done = w->done;
    w->done = NULL;
    w->n_open -= w->n_done;
    w->n_done = 0;
    pthread_mutex_unlock(&e->lock);
    return done;
}
