/* Lists of items in order of service, admission, budgets and preemption. */
#include "sched/sched.h"

#include "base/mem.h"

#define MAX_PREEMPT 3

typedef struct item_list {
    sched_item *first, *last;
    int64_t n;
} item_list;

struct sched {
    sched_options opt;
    item_list waiting, running; /* in order of service */
    int64_t waiting_tokens, preempted;
    uint64_t n_arrivals;
    kv_copy *load; /* saves of preempted items and restores of admitted ones, for the next plan */
    int n_loads, cap_loads;
};

/* ---- lists ---- */

/* a is served before b */
static bool before(const sched_item *a, const sched_item *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

static void insert(item_list *l, sched_item *it)
{
    sched_item *at = l->last;

    while (at && before(it, at))
        at = at->prev;
    it->prev = at;
    it->next = at ? at->next : l->first;
    if (it->next)
        it->next->prev = it;
    else
        l->last = it;
    if (at)
        at->next = it;
    else
        l->first = it;
    l->n++;
}

static void unlink_item(item_list *l, sched_item *it)
{
    if (it->prev)
        it->prev->next = it->next;
    else
        l->first = it->next;
    if (it->next)
        it->next->prev = it->prev;
    else
        l->last = it->prev;
    it->prev = it->next = NULL;
    l->n--;
}

/* ---- life ---- */

di_code sched_new(sched **out, const sched_options *opt, di_status *st)
{
    sched *s = mem_try_calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return di_fail(st, DI_E_NOMEM, "no memory for the scheduler");
    s->opt = *opt;
    s->cap_loads = 2 * opt->max_seqs * kv_max_copies(opt->kv);
    s->load = mem_try_calloc((size_t)s->cap_loads, sizeof *s->load);
    if (!s->load) {
        sched_free(s);
        return di_fail(st, DI_E_NOMEM, "no memory for the scheduler");
    }
    *out = s;
    return DI_OK;
}

void sched_free(sched *s)
{
    if (!s)
        return;
    mem_free(s->load);
    mem_free(s);
}

static void start_waiting(sched *s, sched_item *it)
{
    it->state = SCHED_WAITING;
    s->waiting_tokens += it->n_goal;
    insert(&s->waiting, it);
}

/* The lease learns all tokens up to `to`. */
static void commit(sched_item *it, int64_t to)
{
    kv_lease_commit(it->lease, it->ids + it->n_committed, to - it->n_committed);
    it->n_committed = to;
}

/* Only whole blocks are of use to others; the rest is committed when the state is saved. */
void sched_advance(sched_item *it, int64_t len)
{
    it->known_len = len;
    if (len / KV_BLOCK_TOKENS != it->n_committed / KV_BLOCK_TOKENS)
        commit(it, len);
}

/* Tokens that the pool must hold so that a sequence of len tokens can go on: the drafts of the step
 * in flight and of the one that is planned lie behind it. */
static int64_t reach(const sched *s, int64_t len)
{
    return len + 2 * (1 + (int64_t)s->opt.max_draft);
}

di_code sched_add(sched *s, sched_item *it, di_status *st)
{
    int64_t pool = kv_store_counts(s->opt.kv).blocks_total * KV_BLOCK_TOKENS;

    if (reach(s, it->max_len) > pool)
        return di_fail(
            st, DI_E_INVALID,
            "%lld tokens of prompt and output do not fit the KV pool of %lld tokens; ask "
            "for fewer or start the engine with a larger pool",
            (long long)it->max_len, (long long)pool);
    if (s->waiting.n >= s->opt.max_waiting)
        return di_fail(st, DI_E_BUSY, "%lld requests are waiting, the limit is %lld",
                       (long long)s->waiting.n, (long long)s->opt.max_waiting);
    if (s->waiting.n > 0 && s->waiting_tokens + it->n_prompt > s->opt.max_waiting_tokens)
        return di_fail(st, DI_E_BUSY, "%lld prompt tokens are waiting, the limit is %lld",
                       (long long)s->waiting_tokens, (long long)s->opt.max_waiting_tokens);
    it->arrival = ++s->n_arrivals;
    it->n_goal = it->n_prompt;
    it->n_done = it->n_cached = it->known_len = it->n_committed = it->room = 0;
    it->sampled = false;
    it->lease = NULL;
    it->resume = NULL;
    it->in_flight = it->n_preempted = 0;
    start_waiting(s, it);
    return DI_OK;
}

void sched_remove(sched *s, sched_item *it)
{
    if (it->state == SCHED_WAITING) {
        s->waiting_tokens -= it->n_goal;
        unlink_item(&s->waiting, it);
    } else if (it->state != SCHED_OUT) {
        unlink_item(&s->running, it);
    }
    kv_lease_close(it->lease);
    kv_checkpoint_unref(it->resume);
    it->lease = NULL;
    it->resume = NULL;
    it->state = SCHED_OUT;
}

void sched_finish(sched *s, sched_item *it)
{
    int n = 0;

    if (it->lease && it->state == SCHED_DECODE && !it->frozen_tail &&
        s->cap_loads - s->n_loads >= kv_max_copies(s->opt.kv)) {
        commit(it, it->known_len);
        if (kv_lease_checkpoint(it->lease, it->known_len, KV_CKPT_FULL, NULL, s->load + s->n_loads,
                                &n, NULL) == DI_OK)
            s->n_loads += n;
    }
    sched_remove(s, it);
}

sched_counts sched_get_counts(const sched *s)
{
    return (sched_counts){.waiting = s->waiting.n,
                          .waiting_tokens = s->waiting_tokens,
                          .running = s->running.n,
                          .preempted = s->preempted};
}

/* ---- preemption ---- */

static int64_t whole_from(const sched_item *it)
{
    int64_t end = it->frozen_tail ? it->n_prompt : it->n_goal;

    return it->tail < 0 || it->tail >= end ? 0 : end - it->tail;
}

/* Save the state, close the sequence, wait again. Without room for a checkpoint the tokens are
 * computed again: the same bits either way. */
static void preempt(sched *s, sched_item *it)
{
    bool decoding = it->n_done == it->n_goal;
    int64_t at = decoding ? it->known_len : it->n_done;
    int64_t from = whole_from(it);
    kv_ckpt_kind kind = !it->frozen_tail && (decoding || from == 0) ? KV_CKPT_FULL
                        : at > from                                 ? KV_CKPT_OWN
                                                                    : KV_CKPT_ENCODER;
    int n = 0;

    commit(it, at);
    if (at > 0 && s->cap_loads - s->n_loads >= kv_max_copies(s->opt.kv) &&
        kv_lease_checkpoint(it->lease, at, kind, &it->resume, s->load + s->n_loads, &n, NULL) ==
            DI_OK)
        s->n_loads += n;
    kv_lease_close(it->lease);
    it->lease = NULL;
    unlink_item(&s->running, it);
    it->n_preempted++;
    s->preempted++;
    if (decoding) {
        it->n_goal = at;
        it->sampled = true;
    }
    it->n_done = 0;
    start_waiting(s, it);
}

void sched_settle(sched *s, sched_item *it)
{
    if (it->state == SCHED_DRAINING && it->in_flight == 0)
        preempt(s, it);
}

/* The item that should give way to `for_item`: behind it in the order of service, the least to save
 * and restore, not preempted too often; but the first of all always finds one, so that it ends and
 * the others get their turn. NULL when there is none. */
static sched_item *victim(const sched *s, const sched_item *for_item)
{
    sched_item *best = NULL;

    for (sched_item *it = s->running.last; it && it != for_item; it = it->prev) {
        if (it->n_preempted >= MAX_PREEMPT && for_item != s->running.first)
            continue;
        if (!best || it->priority < best->priority ||
            (it->priority == best->priority &&
             it->n_done + it->known_len < best->n_done + best->known_len))
            best = it;
    }
    return best;
}

static bool any_draining(const sched *s)
{
    for (const sched_item *it = s->running.first; it; it = it->next)
        if (it->state == SCHED_DRAINING)
            return true;
    return false;
}

/* Release the saved state of the waiting item that is served last: it will compute its tokens
 * again. */
static bool drop_saved(sched *s)
{
    for (sched_item *it = s->waiting.last; it; it = it->prev)
        if (it->resume) {
            kv_checkpoint_unref(it->resume);
            it->resume = NULL;
            return true;
        }
    return false;
}

/* Room for positions up to tokens-1 of a running item. On a full pool somebody behind it is told to
 * drain (once: what drains already may be enough) and the item sits this step out. When nobody is
 * left to give way, blocks that the item holds twice are the last reserve: it starts again from its
 * own checkpoint. */
static bool make_room(sched *s, sched_item *it, int64_t tokens)
{
    sched_item *v;

    if (tokens <= it->room)
        return true;
    for (;;) {
        if (kv_lease_reserve(it->lease, tokens, NULL) == DI_OK) {
            it->room = kv_lease_capacity(it->lease);
            return true;
        }
        if (any_draining(s))
            return false;
        v = victim(s, it);
        if (!v && drop_saved(s))
            continue;
        if (!v && it == s->running.first && kv_lease_has_twins(it->lease))
            it->state = SCHED_DRAINING; /* settled when the next step is planned */
        if (!v)
            return false;
        v->state = SCHED_DRAINING;
        if (v->in_flight > 0)
            return false;
        preempt(s, v);
    }
}

/* ---- planning ---- */

static double cost(const sched *s, int rows)
{
    return s->opt.step_cost_us(s->opt.cost_arg, rows);
}

static sched_part *add_part(sched_plan *p, sched_item *it, int n_rows)
{
    sched_part *part = &p->part[p->n_parts++];

    *part = (sched_part){.item = it, .n_rows = n_rows};
    p->n_rows += n_rows;
    it->in_flight++;
    return part;
}

static void plan_decode(sched *s, sched_plan *p)
{
    for (sched_item *it = s->running.first; it; it = it->next) {
        int rows = 1 + s->opt.max_draft;

        if (it->state != SCHED_DECODE || it->blocked || it->stopped)
            continue;
        if (p->n_rows + rows > s->opt.max_rows)
            rows = s->opt.max_rows - p->n_rows;
        if (rows < 1)
            return;
        if (!make_room(s, it, reach(s, it->known_len)))
            continue;
        add_part(p, it, rows)->decode = true;
    }
}

/* Rows that the step still has for prompts. */
static int prompt_budget(const sched *s, const sched_plan *p)
{
    int left = s->opt.max_rows - p->n_rows;

    if (s->opt.step_budget_us > 0 && p->n_parts > 0)
        while (left > 0 && cost(s, p->n_rows + left) > s->opt.step_budget_us)
            left = left > 16 ? left - left / 8 : left - 1;
    return left;
}

/* Commit tokens up to `to` and take a checkpoint there; its copies run after the step. Approximate
 * replay keeps no full ones: its decoder rings are those of this prompt and no other. */
static void commit_and_save(sched *s, sched_plan *p, sched_item *it, int64_t to, kv_ckpt_kind kind)
{
    int n = 0;

    commit(it, to);
    if (kind == KV_CKPT_FULL && it->frozen_tail)
        return;
    if (to > 0 && p->cap_saves - p->n_saves >= kv_max_copies(s->opt.kv) &&
        kv_lease_checkpoint(it->lease, to, kind, NULL, p->save + p->n_saves, &n, NULL) == DI_OK)
        p->n_saves += n;
}

/* A chunk of at most `budget` rows of a prompt. Chunks end at multiples of the spacing, where an
 * encoder checkpoint is taken, as long as the decoder layers are skipped there; behind the whole
 * prompt a full checkpoint is taken one token early, so that a full hit still computes a row. */
static void plan_chunk(sched *s, sched_plan *p, sched_item *it, int budget)
{
    int64_t at = it->n_done, n = it->n_goal - at, from = whole_from(it), mark;
    sched_part *part;

    if (it->all_logits && s->opt.max_logit_rows > 0) {
        int left = s->opt.max_logit_rows - p->n_logit_rows;

        budget = budget < left ? budget : left;
    }
    if (budget < 1) /* others have all rows of logits */
        return;
    n = n < budget ? n : budget;
    mark = (at / s->opt.spacing + 1) * s->opt.spacing;
    if (at + n > mark && mark <= from)
        n = mark - at;
    if (!make_room(s, it, reach(s, at + n)))
        return;
    part = add_part(p, it, (int)n);
    part->pos = at;
    part->whole_from = from;
    p->n_logit_rows += it->all_logits ? (int)n : 0;
    it->n_done += n;
    if (it->n_done == it->n_goal) {
        part->sample = !it->sampled;
        it->known_len = it->n_goal;
        it->state = SCHED_DECODE;
        commit_and_save(s, p, it, it->n_goal - 1, KV_CKPT_FULL);
        commit(it, it->n_goal);
    } else if (it->n_done == mark && mark <= from) {
        commit_and_save(s, p, it, mark, KV_CKPT_ENCODER);
    } else {
        commit(it, it->n_done);
    }
}

/* Blocks that admitted prompts will still ask for. */
static int64_t promised_blocks(const sched *s)
{
    int64_t n = 0;

    for (const sched_item *it = s->running.first; it; it = it->next)
        if (it->state == SCHED_PROMPT)
            n += (reach(s, it->n_goal) - kv_lease_capacity(it->lease)) / KV_BLOCK_TOKENS + 1;
    return n;
}

/* The pool is too small for the state to start from and its copy, and nobody runs who could give
 * way: start from nothing in an empty store. */
static bool open_cold(sched *s, sched_item *it, kv_hit *hit)
{
    int n;

    while (drop_saved(s))
        ;
    kv_store_clear(s->opt.kv);
    *hit = (kv_hit){0};
    return kv_lease_open(s->opt.kv, &it->lease, NULL, it->salt, NULL, &n, NULL) == DI_OK;
}

/* Start a waiting item on the best state there is. False: no room now. */
static bool admit(sched *s, sched_item *it)
{
    kv_counts c = kv_store_counts(s->opt.kv);
    int64_t need = reach(s, it->n_goal) / KV_BLOCK_TOKENS + 1;
    kv_hit hit = {0};
    int n = 0;

    if (s->running.n >= s->opt.max_seqs || s->cap_loads - s->n_loads < kv_max_copies(s->opt.kv) ||
        (s->running.n > 0 && need + promised_blocks(s) > c.blocks_free + c.blocks_cached))
        return false;
    if (it->resume)
        hit = kv_checkpoint_hit(it->resume);
    else if (!it->no_match)
        hit = kv_match(s->opt.kv, it->ids, it->n_goal, it->salt,
                       it->tail < 0 ? -1 : it->n_goal - whole_from(it), s->opt.encoder_cost);
    if (kv_lease_open(s->opt.kv, &it->lease, &hit, it->salt, s->load + s->n_loads, &n, NULL) !=
            DI_OK &&
        (s->running.n > 0 || !open_cold(s, it, &hit)))
        return false;
    s->n_loads += n;
    kv_checkpoint_unref(it->resume);
    it->resume = NULL;
    s->waiting_tokens -= it->n_goal;
    unlink_item(&s->waiting, it);
    it->n_done = it->n_cached = it->n_committed = hit.len;
    it->view = kv_lease_view(it->lease, 0);
    it->room = kv_lease_capacity(it->lease);
    it->n_found = hit.found;
    it->state = SCHED_PROMPT;
    if (it->n_done == it->n_goal) { /* a preempted item goes on where it was */
        it->known_len = it->n_goal;
        it->state = SCHED_DECODE;
    }
    insert(&s->running, it);
    return true;
}

/* Prompts that run already, in order of service. */
static void plan_prompts(sched *s, sched_plan *p, int *budget)
{
    for (sched_item *it = s->running.first; it && *budget > 0 && p->n_parts < s->opt.max_seqs;
         it = it->next) {
        int rows = p->n_rows;

        if (it->state != SCHED_PROMPT || it->stopped)
            continue;
        plan_chunk(s, p, it, *budget);
        *budget -= p->n_rows - rows;
    }
}

/* Waiting items, strictly in order of service: nobody overtakes one that has no room yet. */
static void plan_admissions(sched *s, sched_plan *p, int *budget)
{
    while (*budget > 0 && s->waiting.first && p->n_parts < s->opt.max_seqs && !any_draining(s)) {
        sched_item *it = s->waiting.first;
        int rows = p->n_rows;

        if (!admit(s, it))
            return;
        if (it->state == SCHED_PROMPT)
            plan_chunk(s, p, it, *budget);
        else if (!it->blocked && make_room(s, it, reach(s, it->known_len)))
            add_part(p, it, 1)->decode = true;
        *budget -= p->n_rows - rows;
    }
}

static void plan_parts(sched *s, sched_plan *p)
{
    int budget;

    plan_decode(s, p);
    budget = prompt_budget(s, p);
    plan_prompts(s, p, &budget);
    plan_admissions(s, p, &budget);
}

/* Items that drain with no step in flight wait again; false when there was none. */
static bool settle_all(sched *s)
{
    bool any = false;

    for (sched_item *it = s->running.first, *next; it; it = next) {
        next = it->next;
        if (it->state == SCHED_DRAINING && it->in_flight == 0) {
            preempt(s, it);
            any = true;
        }
    }
    return any;
}

void sched_next(sched *s, sched_plan *p)
{
    p->n_parts = p->n_rows = p->n_logit_rows = p->n_loads = p->n_saves = 0;
    kv_store_step_planned(s->opt.kv);
    settle_all(s);
    plan_parts(s, p);
    if (p->n_parts == 0 && settle_all(s)) /* one has made room for itself */
        plan_parts(s, p);
    for (int i = 0; i < s->n_loads; i++)
        p->load[i] = s->load[i];
    p->n_loads = s->n_loads;
    s->n_loads = 0;
}

di_code sched_plan_init(sched_plan *p, const sched *s, di_status *st)
{
    *p = (sched_plan){.cap_loads = s->cap_loads,
                      .cap_saves = s->opt.max_seqs * kv_max_copies(s->opt.kv)};
    p->part = mem_try_calloc((size_t)s->opt.max_seqs, sizeof *p->part);
    p->load = mem_try_calloc((size_t)p->cap_loads, sizeof *p->load);
    p->save = mem_try_calloc((size_t)p->cap_saves, sizeof *p->save);
    if (!p->part || !p->load || !p->save) {
        sched_plan_fini(p);
        return di_fail(st, DI_E_NOMEM, "no memory for the plans of %d sequences", s->opt.max_seqs);
    }
    return DI_OK;
}

void sched_plan_fini(sched_plan *p)
{
    mem_free(p->part);
    mem_free(p->load);
    mem_free(p->save);
    *p = (sched_plan){0};
}
