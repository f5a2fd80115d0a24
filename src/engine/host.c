/* The host thread: takes requests in, plans steps, hands out results.
 *
 *   plan step N+1 while step N runs -> hand it over -> wait for N -> process N -> ...
 *
 * so the executing side always finds the next step ready. What the host learns late (stop strings,
 * cancellation) costs at most one step's rows of that choice; end of sequence and length are known
 * to the executing side and cost nothing. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine_internal.h"

/* ---- lists ---- */

static void link_request(di_engine *e, di_request *r)
{
    r->prev = e->last;
    r->next = NULL;
    if (e->last)
        e->last->next = r;
    else
        e->first = r;
    e->last = r;
}

static void unlink_request(di_engine *e, di_request *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        e->first = r->next;
    if (r->next)
        r->next->prev = r->prev;
    else
        e->last = r->prev;
}

/* ---- ends ---- */

/* DONE can be sent once all choices have ended and left the scheduler. */
static void note_left(di_engine *e, di_request *r)
{
    if (r->n_ended < r->n_choices || r->n_scheduled > 0)
        return;
    r->next_left = e->left;
    e->left = r;
}

static void leave_queue(di_engine *e, di_request *r)
{
    if (!r->queued)
        return;
    r->queued = false;
    r->start_ns = clock_ns();
    pthread_mutex_lock(&e->lock);
    e->n_queued -= r->n_choices;
    e->n_queued_tokens -= r->n_prompt;
    pthread_mutex_unlock(&e->lock);
}

static void count_end(di_engine *e, const di_request *r, di_finish finish)
{
    if (r->n_ended < r->n_choices)
        return;
    e->now.finished += finish == DI_FINISH_STOP || finish == DI_FINISH_LENGTH;
    e->now.cancelled += finish == DI_FINISH_CANCELLED;
    e->now.failed += finish == DI_FINISH_ERROR;
}

/* FINISH of a choice; it takes part in no further step. */
static void end_choice(di_engine *e, choice *c, di_finish finish, di_code code, const char *message,
                       int stop_index)
{
    di_event ev = {.finish = finish, .code = code, .message = message, .stop_index = stop_index};

    if (c->ended)
        return;
    c->ended = true;
    c->item.stopped = true;
    c->req->n_ended++;
    leave_queue(e, c->req);
    count_end(e, c->req, finish);
    event_send(e, c, DI_EVENT_FINISH, &ev, NULL);
    note_left(e, c->req);
}

/* A choice that has ended, is in no step and whose masks nobody fills leaves the scheduler. Its
 * state stays in the cache. */
static void settle_choice(di_engine *e, choice *c)
{
    if (!c->ended || !c->scheduled || c->item.in_flight > 0 || c->filling)
        return;
    if (c->closed || c->stop.matched >= 0 || (c->x.done && c->x.finish != DI_FINISH_ERROR))
        sched_finish(e->sched, &c->item);
    else
        sched_remove(e->sched, &c->item);
    c->scheduled = false;
    c->req->n_scheduled--;
    note_left(e, c->req);
}

/* The scheduler takes a choice. */
static di_code schedule_choice(di_engine *e, choice *c, di_status *st)
{
    di_code rc = sched_add(e->sched, &c->item, st);

    c->scheduled = rc == DI_OK;
    c->req->n_scheduled += c->scheduled;
    return rc;
}

/* ---- text ---- */

/* Append a token's text to e->text through decoder and stop strings; true when a stop string is
 * complete. */
static bool push_text(di_engine *e, choice *c, int32_t token)
{
    const tokenizer *t = e->model->tok;

    if (!t || (c->skip_special && tokenizer_is_special(t, token)))
        return false;
    if (!c->has_stops) {
        tok_decoder_push(&c->decoder, token, &e->text);
        return false;
    }
    str_clear(&e->piece);
    tok_decoder_push(&c->decoder, token, &e->piece);
    return stop_push(&c->stop, str_text(&e->piece), e->piece.len, &e->text);
}

/* What the decoder and the stop strings still hold is text after all. */
static void flush_text(di_engine *e, choice *c)
{
    if (!e->model->tok)
        return;
    str_clear(&e->piece);
    tok_decoder_flush(&c->decoder, &e->piece);
    if (!stop_push(&c->stop, str_text(&e->piece), e->piece.len, &e->text))
        stop_flush(&c->stop, &e->text);
}

/* ---- constraints ---- */

/* Choices whose masks are filled may decode again; those that have ended meanwhile leave. */
static void take_masks(di_engine *e)
{
    for (choice *c = masks_take(e), *next; c; c = next) {
        next = c->next_mask;
        c->filling = false;
        c->item.blocked = false;
        settle_choice(e, c);
    }
}

/* ---- results ---- */

/* One event with the first n tokens of a result; true when a stop string ended the choice. */
static bool give_tokens(di_engine *e, choice *c, const part_result *r, int n, int *stop_index)
{
    di_event ev = {.token = r->token, .stop_index = -1};
    bool stopped = false;

    str_clear(&e->text);
    for (int i = 0; i < n && !stopped; i++) {
        bool end = (r->done && i == r->n - 1 && r->finish == DI_FINISH_STOP) ||
                   (c->closed && i == n - 1 && r->token[i] == e->cfg->eos);

        ev.n_tokens++;
        if (!end) /* the end-of-sequence token is no text */
            stopped = push_text(e, c, r->token[i]);
    }
    if ((r->done || c->closed) && !stopped)
        flush_text(e, c);
    *stop_index = stopped ? c->stop.matched : -1;
    if (!c->first_token_ns)
        c->first_token_ns = clock_ns();
    e->now.output_tokens += (uint64_t)ev.n_tokens;
    event_send(e, c, DI_EVENT_TOKENS, &ev, c->logprobs ? r->value : NULL);
    return stopped;
}

static void count_drafts(di_engine *e, choice *c, const part_result *r)
{
    c->drafted += r->offered;
    c->accepted += r->accepted;
    e->now.drafted += (uint64_t)r->offered;
    e->now.verified += (uint64_t)r->verified;
    e->now.skipped += (uint64_t)(r->offered - r->verified);
    e->now.accepted += (uint64_t)r->accepted;
    e->n_reached[r->accepted < r->verified ? r->accepted + 1 : r->verified]++;
    e->n_accepted[r->accepted]++;
}

/* What the drafts of a step came to, by position: one is verified for good when those before it
 * stand. */
static void count_positions(di_engine *e)
{
    uint64_t reached = 0, accepted = 0;

    for (int i = DSPARK_MAX_DRAFT; i > 0; i--) {
        reached += e->n_reached[i];
        accepted += e->n_accepted[i];
        e->now.verified_at[i - 1] += reached;
        e->now.accepted_at[i - 1] += accepted;
    }
    memset(e->n_reached, 0, sizeof e->n_reached);
    memset(e->n_accepted, 0, sizeof e->n_accepted);
}

/* The choices that share the prompt start once its state can be found in the cache. */
static void start_siblings(di_engine *e, di_request *r)
{
    for (int i = 1; i < r->n_choices; i++) {
        choice *c = &r->choice[i];

        if (c->scheduled || c->ended)
            continue;
        if (schedule_choice(e, c, NULL) != DI_OK) {
            end_choice(e, c, DI_FINISH_ERROR, DI_E_BUSY, "no place in the queue", -1);
            continue;
        }
        if (c->mask)
            masks_fill(e, c);
    }
}

/* Show the new tokens to the constraint: how many of them count. What was sampled behind the end of
 * the constraint does not. */
static int feed_constraint(choice *c, const part_result *r, bool *accepted)
{
    const di_mask_provider *p;

    if (!c->constrained)
        return r->n;
    p = c->req->p.mask;
    for (int i = 0; i < r->n; i++) {
        *accepted = p->accept(c->mask_ctx, r->token[i]);
        if (!*accepted)
            break;
        c->closed = p->finished && p->finished(c->mask_ctx);
        if (c->closed)
            return i + 1;
    }
    return r->n;
}

static void process_part(di_engine *e, const sched_part *p, const part_result *r)
{
    choice *c = choice_of(p->item);
    int stop_index = -1, n = 0;
    bool stopped = false, accepted = true;

    p->item->in_flight--;
    if (p->decode && r->n > 0) {
        sched_advance(p->item, r->len);
        count_drafts(e, c, r);
    }
    if (!c->ended) {
        if (p->sample && c->req->prompt_value && c->idx == 0)
            event_send(e, c, DI_EVENT_PROMPT,
                       &(di_event){.token = c->x.ids,
                                   .n_tokens = (int)c->req->n_prompt,
                                   .message = e->opt.replay == DI_REPLAY_OFF
                                                  ? NULL
                                                  : "replay was off for this request: prompt "
                                                    "log-probabilities need every row"},
                       c->req->prompt_value);
        n = feed_constraint(c, r, &accepted);
        c->n_known += n;
        if (n > 0)
            stopped = give_tokens(e, c, r, n, &stop_index);
        if (r->code != DI_OK)
            end_choice(e, c, DI_FINISH_ERROR, r->code, r->message, -1);
        else if (!accepted && !r->done)
            end_choice(e, c, DI_FINISH_ERROR, DI_E_INTERNAL,
                       "the constraint refused a token that its mask allowed", -1);
        else if (stopped || c->closed)
            end_choice(e, c, DI_FINISH_STOP, DI_OK, NULL, stop_index);
        else if (r->done)
            end_choice(e, c, r->finish, DI_OK, NULL, -1);
        else if (c->constrained && c->item.blocked && c->item.in_flight == 0 && !c->filling)
            masks_want(e, c); /* not while the step that needs them is on its way */
    }
    if (p->sample && c->idx == 0)
        start_siblings(e, c->req);
    else if (r->code != DI_OK) /* the choices that wait for the prompt would wait for ever */
        for (int i = 1; i < c->req->n_choices; i++)
            if (!c->req->choice[i].scheduled)
                end_choice(e, &c->req->choice[i], DI_FINISH_ERROR, r->code, r->message, -1);
    if (c->ended)
        settle_choice(e, c);
    else
        sched_settle(e->sched, p->item);
}

/* What process_part touches of a part to come, on its way into the cache: meanwhile a step has read
 * all weights. */
static void prefetch_part(const job *j, int i)
{
    const choice *c;

    if (i >= j->plan.n_parts)
        return;
    c = choice_of(j->plan.part[i].item);
    __builtin_prefetch(&j->result[i]);
    __builtin_prefetch((const char *)&j->result[i] + CACHE_LINE);
    __builtin_prefetch(&c->item, 1);
    __builtin_prefetch(&c->req, 1);
    __builtin_prefetch((const char *)&c->req + CACHE_LINE, 1);
}

static void process_job(di_engine *e, const job *j)
{
    for (int i = 0; i < j->plan.n_parts; i++) {
        prefetch_part(j, i + 8);
        process_part(e, &j->plan.part[i], &j->result[i]);
    }
    e->step_ns = j->run_ns;
    count_positions(e);
    if (j->forward_us > 0)
        cost_observe(&e->cost, j->n_rows, j->forward_us);
    e->now.steps++;
}

/* DONE for requests whose choices have all ended and left the scheduler. */
static void reap_requests(di_engine *e)
{
    while (e->left) {
        di_request *r = e->left;

        e->left = r->next_left;
        unlink_request(e, r);
        event_done(e, r);
    }
}

/* ---- planning ---- */

/* Prompt tokens up to `end` that are at hand for the first time: each is counted once, whatever a
 * preemption does to it later. */
static int64_t first_time(choice *c, int64_t end)
{
    int64_t n;

    end = end < c->req->n_prompt ? end : c->req->n_prompt;
    n = end > c->n_counted ? end - c->n_counted : 0;
    c->n_counted += n;
    return n;
}

static void count_restored(di_engine *e, choice *c)
{
    int64_t n = first_time(c, c->item.n_cached);

    c->n_cached += n;
    e->now.cached_tokens += (uint64_t)n;
    e->now.prompt_tokens += (uint64_t)n;
}

/* Rows of a prompt part: tokens that the cache knew without a state to start from, new ones, and
 * what this choice had computed before it was preempted. */
static void count_rows(di_engine *e, choice *c, const sched_part *part)
{
    int64_t end = part->pos + part->n_rows, found = c->item.n_found;
    int64_t again = first_time(c, end < found ? end : found), fresh = first_time(c, end);
    int64_t repeated = part->n_rows - again - fresh;

    c->n_recomputed += again;
    c->n_computed += fresh;
    c->n_repeated += repeated;
    e->now.prompt_tokens += (uint64_t)(again + fresh);
    e->now.recomputed_tokens += (uint64_t)again;
    e->now.computed_tokens += (uint64_t)fresh;
    e->now.repeated_tokens += (uint64_t)repeated;
}

static void note_admissions(di_engine *e, const sched_plan *p)
{
    for (int i = 0; i < p->n_parts; i++) {
        const sched_part *part = &p->part[i];
        choice *c = choice_of(part->item);

        if (!part->decode && part->pos == part->item->n_cached) { /* first chunk since admission */
            leave_queue(e, c->req);
            count_restored(e, c);
        }
        if (!part->decode)
            count_rows(e, c, part);
        if (c->constrained && (part->decode || part->sample)) {
            DI_CHECK(!c->filling);
            part->item->blocked = true;
        }
    }
}

/* Plan the next step into a free job; false when nothing can run. */
static bool plan_job(di_engine *e)
{
    job *j = &e->jobs[e->n_planned % N_JOBS];
    sched_counts n;

    sched_next(e->sched, &j->plan);
    if (j->plan.n_parts == 0 && j->plan.n_loads == 0)
        return false;
    note_admissions(e, &j->plan);
    n = sched_get_counts(e->sched);
    j->more = n.waiting > 0 || n.running > j->plan.n_parts;
    e->n_planned++;
    return true;
}

/* ---- the outside ---- */

static void cancel_choice(di_engine *e, choice *c, const char *why)
{
    end_choice(e, c, DI_FINISH_CANCELLED, DI_E_CANCELLED, why, -1);
    settle_choice(e, c);
}

static void cancel_request(di_engine *e, di_request *r, const char *why)
{
    for (int i = 0; i < r->n_choices; i++)
        cancel_choice(e, &r->choice[i], why);
}

/* Those choices that are wanted no more; the others do without the first one's prompt. */
static void cancel_choices(di_engine *e, di_request *r)
{
    for (int i = 0; i < r->n_choices; i++) {
        choice *c = &r->choice[i];

        /* acquire: pairs with the release in di_cancel_choice */
        if (c->ended || !atomic_load_explicit(&c->cancelled, memory_order_acquire))
            continue;
        cancel_choice(e, c, "cancelled");
        if (i == 0)
            start_siblings(e, r);
    }
}

/* A request without output and without prompt values needs no step. */
static void start_request(di_engine *e, di_request *r)
{
    choice *c = &r->choice[0];
    di_status st = {0};

    link_request(e, r);
    e->now.requests++;
    if (r->max_out == 0 && !r->prompt_value) {
        for (int i = 0; i < r->n_choices; i++)
            end_choice(e, &r->choice[i], DI_FINISH_LENGTH, DI_OK, NULL, -1);
        return;
    }
    if (r->deadline_ns && r->deadline_ns < e->deadline_ns)
        e->deadline_ns = r->deadline_ns;
    if (schedule_choice(e, c, &st) != DI_OK) {
        for (int i = 0; i < r->n_choices; i++)
            end_choice(e, &r->choice[i], DI_FINISH_ERROR, st.code, st.message, -1);
        return;
    }
    if (c->mask)
        masks_fill(e, c);
}

/* Cancel what the callers want cancelled, or what is late. */
static void find_cancelled(di_engine *e, bool closing)
{
    uint64_t now = clock_ns();

    e->deadline_ns = UINT64_MAX;
    for (di_request *r = e->first; r; r = r->next) {
        cancel_choices(e, r);
        /* acquire: pairs with the release in di_cancel */
        if (closing || atomic_load_explicit(&r->cancelled, memory_order_acquire))
            cancel_request(e, r, "cancelled");
        else if (r->deadline_ns && now > r->deadline_ns)
            cancel_request(e, r, "the deadline has passed");
        else if (r->deadline_ns && r->deadline_ns < e->deadline_ns)
            e->deadline_ns = r->deadline_ns;
    }
}

/* Take in what the callers left. Returns false when it is time to end. */
static bool take_inbox(di_engine *e, bool may_wait)
{
    di_request *r, *next;
    bool closing, wake;

    pthread_mutex_lock(&e->lock);
    while (may_wait && !e->inbox_first && !e->closing && !e->wake) {
        e->idle_since = 0; /* what the last step left has been cancelled: nobody waits */
        pthread_cond_wait(&e->to_host, &e->lock);
    }
    r = e->inbox_first;
    e->inbox_first = e->inbox_last = NULL;
    wake = e->wake;
    e->wake = false;
    closing = e->closing;
    pthread_mutex_unlock(&e->lock);
    for (; r; r = next) {
        next = r->next;
        start_request(e, r);
    }
    if (closing || wake || (e->deadline_ns != UINT64_MAX && clock_ns() > e->deadline_ns))
        find_cancelled(e, closing);
    return !closing || e->first;
}

static void publish_stats(di_engine *e)
{
    kv_counts kv = kv_store_counts(e->kv);
    sched_counts sc = sched_get_counts(e->sched);

    e->now.preempted = (uint64_t)sc.preempted;
    e->now.running = sc.running;
    e->now.blocks_total = kv.blocks_total;
    e->now.blocks_used = kv.blocks_used;
    e->now.blocks_cached = kv.blocks_cached;
    e->now.blocks_free = kv.blocks_free;
    pthread_mutex_lock(&e->lock);
    e->now.busy_ns = e->stats.busy_ns; /* the executing side's */
    e->now.idle_ns = e->stats.idle_ns;
    e->now.device_ns = e->stats.device_ns;
    e->now.launches = e->stats.launches;
    e->now.replays = e->stats.replays;
    e->now.work_bytes = e->stats.work_bytes;
    e->now.work_flops = e->stats.work_flops;
    e->now.waiting = e->n_queued;
    e->now.waiting_tokens = e->n_queued_tokens;
    e->stats = e->now;
    pthread_mutex_unlock(&e->lock);
}

/* Under the lock: a step has run. */
static void count_run(di_engine *e, const job *j)
{
    e->stats.busy_ns += j->run_ns;
    e->stats.device_ns += j->did.busy_ns;
    e->stats.launches += j->did.launches;
    e->stats.replays += j->did.replays;
    e->stats.work_bytes += j->work.bytes;
    e->stats.work_flops += j->work.flops;
}

static void log_stats(di_engine *e)
{
    char *line;

    if (e->opt.stats_interval <= 0 ||
        e->now.steps < e->line_steps + (uint64_t)e->opt.stats_interval)
        return;
    e->line_steps = e->now.steps;
    line = di_engine_stats_line(e, false);
    if (line)
        log_info(LOG_ENGINE, "%s", line);
    di_free(line);
}

/* Give a planned step to the executing side. */
static void hand_over(di_engine *e)
{
    if (e->opt.no_async) {
        job *j = &e->jobs[(e->n_planned - 1) % N_JOBS];

        exec_run(e, j);
        pthread_mutex_lock(&e->lock);
        count_run(e, j);
        e->n_run++;
        pthread_mutex_unlock(&e->lock);
        return;
    }
    pthread_mutex_lock(&e->lock);
    e->n_handed++;
    pthread_cond_signal(&e->to_exec);
    pthread_mutex_unlock(&e->lock);
}

/* Wait until the oldest step in flight has run. */
static const job *wait_job(di_engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->n_run == e->n_processed)
        pthread_cond_wait(&e->to_host, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return &e->jobs[e->n_processed % N_JOBS];
}

/* Nothing is in flight and nothing can be planned although something waits: a defect. One request
 * fails, the others get another chance. */
static void break_deadlock(di_engine *e)
{
    for (di_request *r = e->first; r; r = r->next)
        for (int i = 0; i < r->n_choices; i++) {
            choice *c = &r->choice[i];

            if (!c->scheduled || c->ended)
                continue;
            log_error(LOG_KV, "no step can be planned; a request is given up");
            e->n_deadlocks++;
            for (int k = 0; k < r->n_choices; k++) /* with those that it would have started */
                if (k == i || !r->choice[k].scheduled)
                    end_choice(e, &r->choice[k], DI_FINISH_ERROR, DI_E_INTERNAL,
                               "no step could be planned", -1);
            settle_choice(e, c);
            return;
        }
}

/* Plan and hand over a step if one can be in flight besides those that are. */
static bool advance(di_engine *e, uint64_t limit)
{
    uint64_t start = clock_ns();
    bool planned = e->n_planned - e->n_processed < limit && plan_job(e);

    e->now.host_ns += clock_ns() - start;
    if (planned)
        hand_over(e);
    return planned;
}

void *host_main(void *engine)
{
    di_engine *e = engine;
    uint64_t limit = e->opt.no_async ? 1 : N_JOBS;

    for (;;) {
        bool planned;

        if (!take_inbox(e, e->n_planned == e->n_processed && !e->first))
            break;
        publish_stats(e); /* before DONE, so that a caller finds his request counted */
        log_stats(e);
        reap_requests(e);
        if (!e->first)
            continue;
        take_masks(e);
        planned = advance(e, limit);
        if (e->n_planned > e->n_processed && (!planned || e->n_planned - e->n_processed == limit)) {
            const job *j = wait_job(e);
            uint64_t start = clock_ns();

            process_job(e, j);
            e->n_processed++;
            e->now.host_ns += clock_ns() - start;
        } else if (!planned && e->first && e->crew.n_open == 0) {
            break_deadlock(e);
        }
    }
    return NULL;
}

void *executor_main(void *engine)
{
    di_engine *e = engine;

    pthread_mutex_lock(&e->lock);
    for (;;) {
        job *j;
        bool more;

        while (e->n_run == e->n_handed && !e->exec_end)
            pthread_cond_wait(&e->to_exec, &e->lock);
        if (e->n_run == e->n_handed)
            break;
        if (e->idle_since)
            e->stats.idle_ns += clock_ns() - e->idle_since;
        j = &e->jobs[e->n_run % N_JOBS];
        pthread_mutex_unlock(&e->lock);
        exec_run(e, j);
        more = j->more;
        for (int i = 0; i < j->plan.n_parts && !more; i++)
            more = !j->result[i].done;
        pthread_mutex_lock(&e->lock);
        count_run(e, j);
        e->idle_since = more ? clock_ns() : 0;
        e->n_run++;
        pthread_cond_signal(&e->to_host);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}
