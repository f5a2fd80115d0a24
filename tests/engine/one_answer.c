/* One answer: the tokens of a request depend on nothing but itself (design section 1).
 *
 *   one_answer --model DIR [--model DIR [--model DIR]] [--backend NAME] [--rounds N] [--from K]
 *              [--seed S] [--state FILE] [--demand]
 *
 * Every twenty rounds share a set of requests, each of which is first run alone with the plainest
 * settings: one thread, one sequence, whole prompts, no cache, no drafts, no replay, no
 * asynchronous steps. A round then draws a schedule: some of the requests in random company, that
 * is random order and priorities, repeated prompts, cancelled neighbours, random chunk sizes, pools
 * that force preemption, cache states, drafts (real, scripted, of all lengths), replay, threads,
 * asynchronous or not. Every token and every bit of every log-probability must be the same. Every
 * fifth set is a crowd: many short requests in a pool that their outputs outgrow, so that they are
 * preempted again and again.
 *
 * Round K is a function of S and K: it can be run again alone. With --state the number of rounds
 * done is kept in FILE and a later call goes on there. Of several models the first two take turns,
 * the third has every twentieth set. --demand: a run of 100 rounds that saw no preemption, no token
 * from the cache or no accepted draft fails. Ends with "N passed, N failed". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "engine/engine_internal.h"

#define SET_ROUNDS 20 /* rounds that share their requests */
#define N_SPECS    4
#define MAX_RUNS   7
#define MAX_PROMPT 620
#define MAX_OUT    28
#define MAX_N      3
#define MAX_MODELS 3

/* ---- random numbers of a round ---- */

static uint32_t rng_key, rng_round, rng_stream, rng_at;

enum { STREAM_SET, STREAM_ROUND, STREAM_SCRIPT };

static void start_stream(uint32_t round, uint32_t stream)
{
    rng_round = round;
    rng_stream = stream;
    rng_at = 0;
}

static uint32_t draw(uint32_t n)
{
    philox_block at = {{rng_at++, rng_round, rng_stream, 0}};

    return philox4x32(at, rng_key, 0x5eed).v[0] % n;
}

static bool chance(uint32_t percent)
{
    return draw(100) < percent;
}

/* ---- requests and what they answer ---- */

typedef struct answer {
    int n;
    int32_t token[MAX_OUT];
    float logprob[MAX_OUT], top[MAX_OUT][2];
    di_finish finish;
    char text[4096];
    size_t n_text;
    float prompt[MAX_PROMPT]; /* log-probabilities, choice 0 only */
} answer;

typedef struct spec {
    int32_t ids[MAX_PROMPT];
    int n_ids;
    di_request_params p;
    const char *stop[2];
    int32_t stop_id;
    int32_t forced[MAX_OUT];
    bool masked;
    answer want[MAX_N];
} spec;

static spec specs[N_SPECS];

/* ---- a scripted constraint: allowed tokens are a hash of what was taken ---- */

typedef struct constraint {
    uint32_t state[MAX_OUT + 2 * MAX_STEP + 2];
    int n;
} constraint;

static bool allows(const constraint *c, int32_t token)
{
    return (c->state[c->n] ^ ((uint32_t)token * 2654435761u)) % 5 != 0;
}

static bool mask_fill(void *ctx, uint32_t *mask, int vocab)
{
    const constraint *c = ctx;

    if (c->state[c->n] % 4 == 0)
        return false; /* free here */
    memset(mask, 0, (size_t)((vocab + 31) / 32) * 4);
    for (int t = 0; t < vocab; t++)
        if (allows(c, t))
            mask[t / 32] |= 1u << (t % 32);
    return true;
}

static bool mask_accept(void *ctx, int32_t token)
{
    constraint *c = ctx;

    if (c->state[c->n] % 4 != 0 && !allows(c, token))
        return false;
    c->state[c->n + 1] = (c->state[c->n] ^ (uint32_t)token) * 16777619u + 1;
    c->n++;
    return true;
}

static void mask_rollback(void *ctx, int n)
{
    ((constraint *)ctx)->n -= n;
}

static void *mask_fork(void *ctx)
{
    constraint *c = malloc(sizeof *c);

    if (c)
        memcpy(c, ctx, sizeof *c);
    return c;
}

static const di_mask_provider provider = {.fill = mask_fill,
                                          .accept = mask_accept,
                                          .rollback = mask_rollback,
                                          .fork = mask_fork,
                                          .free = free};

/* ---- drawing requests ---- */

/* Lengths around the borders of windows, groups and blocks, and some that bounded replay shortens.
 */
static int draw_length(void)
{
    static const int border[] = {1, 2, 3, 5, 64, 126, 127, 128, 129, 130, 255, 256, 257};

    if (chance(8))
        return 380 + (int)draw(MAX_PROMPT - 380);
    return chance(60) ? border[draw(sizeof border / sizeof *border)] + (int)draw(3)
                      : 1 + (int)draw(200);
}

/* Lengths just below a border of a block, so that the output crosses it. */
static int draw_crowd_length(void)
{
    return 128 * (chance(85) ? 1 : 2) - 8 - (int)draw(12);
}

static void draw_spec(spec *s, int idx, int vocab, bool crowd)
{
    int shared = 0;

    memset(s, 0, sizeof *s);
    s->n_ids = crowd ? draw_crowd_length() : draw_length();
    if (idx > 0 && chance(50)) { /* a prefix of another prompt */
        const spec *o = &specs[draw((uint32_t)idx)];

        shared = (int)draw((uint32_t)o->n_ids) + 1;
        shared = shared < s->n_ids ? shared : s->n_ids;
        memcpy(s->ids, o->ids, (size_t)shared * sizeof *s->ids);
    }
    for (int i = shared; i < s->n_ids; i++)
        s->ids[i] = 3 + (int32_t)draw((uint32_t)vocab - 3);
    s->p = (di_request_params){.n = chance(20) ? 1 + (int)draw(MAX_N) : 1,
                               .max_tokens = 1 + draw(16),
                               .has_seed = true,
                               .seed = draw(1000),
                               .temperature = (float[]){0, 0, 0.7f, 1, 1.5f}[draw(5)],
                               .ignore_eos = chance(50)};
    if (crowd) {
        s->p.n = 1;
        s->p.max_tokens = MAX_OUT - draw(12);
        s->p.ignore_eos = true;
    } else if (chance(10)) {
        s->p.prompt_logprobs = true;
        s->p.max_tokens = chance(30) ? 0 : s->p.max_tokens;
    } else if (chance(3)) {
        s->p.max_tokens = 0;
    }
    if (chance(30))
        s->p.top_p = 0.5f + 0.1f * (float)draw(5);
    if (chance(30))
        s->p.top_k = 1 + (int32_t)draw(50);
    if (chance(20))
        s->p.min_p = 0.02f;
    if (chance(20))
        s->p.repetition_penalty = 1.3f;
    if (chance(20))
        s->p.presence_penalty = 0.5f;
    if (chance(20))
        s->p.frequency_penalty = 0.25f;
    if (chance(40)) {
        s->p.logprobs = true;
        s->p.top_logprobs = 2;
    }
    if (chance(30)) {
        s->stop[0] = (const char *[]){"a", "th", "\n", "e "}[draw(4)];
        s->p.n_stop = 1;
    }
    if (chance(20)) {
        s->stop_id = (int32_t)draw((uint32_t)vocab);
        s->p.n_stop_ids = 1;
    }
    if (chance(20) && s->p.max_tokens > 0)
        s->p.min_tokens = draw((uint32_t)s->p.max_tokens);
    if (chance(15) && s->p.max_tokens > 0) {
        for (int i = 0; i < MAX_OUT; i++)
            s->forced[i] = chance(30) ? (int32_t)draw((uint32_t)vocab) : -1;
        s->p.n_forced = (size_t)s->p.max_tokens;
    }
    s->masked = s->p.n_forced == 0 && chance(20);
}

/* ---- running ---- */

typedef struct run {
    const spec *s;
    answer got[MAX_N];
    bool cancelled, done;
    di_request *request;
} run;

static int n_checks, n_failed;

static di_request_params params_of(spec *s, run *r)
{
    di_request_params p = s->p;

    p.ids = s->ids;
    p.n_ids = (size_t)s->n_ids;
    p.stop = s->stop;
    p.stop_ids = &s->stop_id;
    p.forced = s->forced;
    p.user = r;
    if (s->masked) {
        constraint *c = calloc(1, sizeof *c);

        c->state[0] = (uint32_t)s->n_ids;
        p.mask = &provider;
        p.mask_ctx = c;
    }
    return p;
}

static void submit(di_engine *e, spec *s, run *r, int priority, uint64_t deadline_us)
{
    di_status st = {0};
    di_request_params p = params_of(s, r);

    memset(r, 0, sizeof *r);
    r->s = s;
    p.priority = priority;
    p.deadline_us = deadline_us;
    if (di_submit(e, &p, &r->request, &st) != DI_OK) {
        printf("submit: %s\n", st.message);
        exit(1);
    }
}

static void take_event(const di_event *ev)
{
    run *r = ev->user;
    answer *a = &r->got[ev->choice];

    if (ev->type == DI_EVENT_FINISH)
        a->finish = ev->finish;
    if (ev->type == DI_EVENT_FINISH && ev->finish == DI_FINISH_ERROR)
        printf("round %u: %s\n", rng_round, ev->message);
    if (ev->type == DI_EVENT_DONE)
        r->done = true;
    if (ev->type == DI_EVENT_PROMPT)
        memcpy(a->prompt, ev->logprob, (size_t)ev->n_tokens * sizeof *a->prompt);
    if (ev->type != DI_EVENT_TOKENS)
        return;
    for (int i = 0; i < ev->n_tokens; i++, a->n++) {
        a->token[a->n] = ev->token[i];
        if (!ev->logprob)
            continue;
        a->logprob[a->n] = ev->logprob[i];
        for (int t = 0; t < ev->n_top && t < 2; t++)
            a->top[a->n][t] = ev->top[i * ev->n_top + t].logprob;
    }
    memcpy(a->text + a->n_text, ev->text, ev->n_text);
    a->n_text += ev->n_text;
}

static void compare(const run *r, const char *setting)
{
    for (int c = 0; c < r->s->p.n && !r->cancelled; c++) {
        const answer *want = &r->s->want[c], *got = &r->got[c];
        bool same = memcmp(want, got, sizeof *want) == 0;
        int at = 0;

        n_checks++;
        if (same)
            continue;
        n_failed++;
        while (at < want->n && at < got->n && want->token[at] == got->token[at])
            at++;
        printf("round %u, prompt of %d, choice %d: %d tokens (finish %d) instead of %d (%d), the "
               "first %d alike\n    settings: %s\n",
               rng_round, r->s->n_ids, c, got->n, (int)got->finish, want->n, (int)want->finish, at,
               setting);
    }
}

/* ---- the scripted drafter: what will be said, now and then wrong ---- */

static uint32_t script_count;

static int script(void *arg, const int32_t *ids, int64_t n_ids, int32_t *draft, int max)
{
    philox_block at = {{script_count++, rng_round, STREAM_SCRIPT, 0}};
    uint32_t h = philox4x32(at, rng_key, 2).v[0];
    int n = max ? (int)(h % (uint32_t)(max + 1)) : 0, vocab = *(const int *)arg;
    int wrong = (int)(h >> 8) % (max + 2);

    for (int k = 0; k < n; k++)
        draft[k] = (int32_t)((h >> 4) % (uint32_t)vocab);
    for (int i = 0; i < N_SPECS; i++)
        for (int c = 0; c < specs[i].p.n; c++) {
            const spec *s = &specs[i];
            const answer *a = &s->want[c];
            int64_t out = n_ids - s->n_ids;

            if (out < 1 || out > a->n || memcmp(ids, s->ids, (size_t)s->n_ids * sizeof *ids) != 0 ||
                memcmp(ids + s->n_ids, a->token, (size_t)out * sizeof *ids) != 0)
                continue;
            for (int k = 0; k < n && out + k < a->n; k++)
                if (k != wrong)
                    draft[k] = a->token[out + k];
            return n;
        }
    return n;
}

/* ---- engines ---- */

static const char *model_dir, *backend = "auto";

static di_model *open_model(int threads)
{
    di_status st = {0};
    di_model_options o = {.n_threads = threads, .backend = backend};
    di_model *m;

    if (di_model_open(&m, model_dir, &o, &st) != DI_OK) {
        printf("%s\n", st.message);
        exit(2);
    }
    return m;
}

static di_engine *start(di_model *m, const di_engine_options *o)
{
    di_status st = {0};
    di_engine *e;

    if (di_engine_start(&e, m, o, &st) != DI_OK) {
        printf("%s\n", st.message);
        exit(1);
    }
    return e;
}

/* Every request alone. */
static void run_plain(di_model *m)
{
    const di_engine_options plain = {.max_seqs = 1,
                                     .max_context = 1024,
                                     .max_batched_tokens = 1024,
                                     .kv_tokens = 2048,
                                     .no_prefix_cache = true,
                                     .replay = DI_REPLAY_OFF,
                                     .draft_tokens = -1,
                                     .no_async = true};
    di_engine *e = start(m, &plain);
    di_event ev;

    for (int i = 0; i < N_SPECS; i++) {
        run r;

        submit(e, &specs[i], &r, 0, 0);
        while (di_poll(e, &ev, -1))
            take_event(&ev);
        memcpy(specs[i].want, r.got, sizeof r.got);
    }
    di_engine_close(e);
}

/* Costs of steps as some machine may have them: what they say decides how many drafts are verified.
 * Before the first request, so that no thread looks yet. */
static void invent_costs(di_engine *e)
{
    int rows[COST_MAX_POINTS], n = cost_points(e->opt.max_batched_tokens, rows);
    double base = 50 + draw(400), row = 1 + draw(60), round = 5 + draw(200);

    cost_init(&e->x.cost, n, rows);
    for (int i = 0; i < n; i++)
        cost_set(&e->x.cost, i, base + row * rows[i], round + rows[i]);
    e->cost = e->x.cost;
    e->opt.draft_fixed = false;
}

static di_engine_options draw_options(bool stages, bool crowd, bool *scripted)
{
    static const int rows[] = {0, 3, 8, 17, 64, 130, 300, 1024};
    int seqs = crowd ? 5 + (int)draw(3) : 1 + (int)draw(5);
    int max_rows = seqs + rows[crowd ? 3 + draw(5) : draw(8)];
    di_engine_options o = {.max_seqs = seqs,
                           .max_context = 1024,
                           .max_batched_tokens = max_rows,
                           .max_queued_tokens = 1 << 20,
                           .kv_tokens = crowd        ? 512 + 128 * (int64_t)draw(3)
                                        : chance(50) ? 768 + 128 * (int64_t)draw(4)
                                                     : 8192,
                           .checkpoint_spacing = (int64_t[]){128, 256, 4096}[draw(3)],
                           .no_prefix_cache = chance(20),
                           .replay = chance(70) ? DI_REPLAY_EXACT : DI_REPLAY_OFF,
                           .no_async = chance(30),
                           .draft_fixed = true, /* nothing is measured at start */
                           .decode_latency_ms = max_rows < 30 && chance(20) ? 1 : 0};

    *scripted = chance(50);
    if (*scripted || stages)
        o.draft_tokens = chance(15) ? -1 : 1 + (int)draw(7);
    else
        o.draft_tokens = -1;
    return o;
}

static void describe(const di_engine_options *o, bool scripted, bool adaptive, int threads,
                     char *out, size_t n)
{
    snprintf(out, n,
             "%d threads, %d seqs, %d rows, %lld kv tokens, spacing %lld, cache %d, replay %d, "
             "async %d, drafts %d %s%s",
             threads, o->max_seqs, o->max_batched_tokens, (long long)o->kv_tokens,
             (long long)o->checkpoint_spacing, !o->no_prefix_cache, (int)o->replay, !o->no_async,
             o->draft_tokens, scripted ? "scripted " : "", adaptive ? "adaptive" : "fixed");
}

static uint64_t total_preempted, total_cached, total_accepted;
static int n_closed; /* engines that were closed in the middle */

static void check_identities(di_engine *e)
{
    di_stats s = di_engine_stats(e);

    n_checks++;
    if (s.drafted != s.verified + s.skipped ||
        s.prompt_tokens != s.cached_tokens + s.recomputed_tokens + s.computed_tokens ||
        s.blocks_total != s.blocks_used + s.blocks_cached + s.blocks_free || s.blocks_used != 0 ||
        s.running != 0 || s.waiting != 0 || s.waiting_tokens != 0 || e->n_deadlocks != 0) {
        n_failed++;
        printf(
            "round %u: accounting: drafted %llu = %llu + %llu, prompt %llu = %llu + %llu + %llu, "
            "blocks %lld = %lld + %lld + %lld, %llu deadlocks\n",
            rng_round, (unsigned long long)s.drafted, (unsigned long long)s.verified,
            (unsigned long long)s.skipped, (unsigned long long)s.prompt_tokens,
            (unsigned long long)s.cached_tokens, (unsigned long long)s.recomputed_tokens,
            (unsigned long long)s.computed_tokens, (long long)s.blocks_total,
            (long long)s.blocks_used, (long long)s.blocks_cached, (long long)s.blocks_free,
            (unsigned long long)e->n_deadlocks);
    }
    total_preempted += s.preempted;
    total_cached += s.cached_tokens;
    total_accepted += s.accepted;
}

/* One request of the company; some are cancelled or have a deadline that may pass. */
static void submit_one(di_engine *e, run *r)
{
    bool cut = chance(10);

    submit(e, &specs[draw(N_SPECS)], r, (int)draw(3), cut && chance(30) ? 1 + draw(20000) : 0);
    r->cancelled = cut;
    if (cut && chance(50))
        di_cancel(e, r->request);
}

static int submit_all(di_engine *e, run *runs, bool crowd)
{
    int n = crowd ? 5 + (int)draw(MAX_RUNS - 4) : 2 + (int)draw(3);
    di_event ev;

    for (int i = 0; i < n; i++) {
        submit_one(e, &runs[i]);
        for (int k = (int)draw(6); k > 0 && di_poll(e, &ev, 0); k--)
            take_event(&ev);
        if (chance(crowd ? 3 : 20))
            while (di_poll(e, &ev, -1)) /* everything done: the next ones find the cache */
                take_event(&ev);
    }
    return n;
}

/* Some of the requests in random company. */
static void run_company(di_model *m, int threads, bool crowd)
{
    static run runs[MAX_RUNS];
    bool scripted, close_early = chance(5), adaptive = chance(50);
    int vocab = di_model_get_info(m).vocab, n;
    di_engine_options o = draw_options(di_model_get_info(m).n_draft_stages > 0, crowd, &scripted);
    di_engine *e = start(m, &o);
    char setting[256];
    di_event ev;

    describe(&o, scripted, adaptive, threads, setting, sizeof setting);
    if (adaptive)
        invent_costs(e);
    if (scripted) {
        e->x.script_arg = &vocab;
        e->x.script = script;
    }
    n = submit_all(e, runs, crowd);
    for (int k = 0; (!close_early || k < 20) && di_poll(e, &ev, -1); k++) {
        take_event(&ev);
        for (int i = 0; i < n; i++) /* the slow way to cancel in the middle of an answer */
            if (runs[i].cancelled && !runs[i].done && chance(20))
                di_cancel(e, runs[i].request);
    }
    if (!close_early) {
        di_engine_drain(e);
        for (int i = 0; i < n; i++)
            compare(&runs[i], setting);
        check_identities(e);
    }
    n_closed += close_early;
    di_engine_close(e);
}

/* One in five, so that any hundred rounds in a row have one, and the models take turns. */
static bool is_crowd(unsigned set)
{
    return set % 5 == 2;
}

/* The requests of a set and their plain answers. */
static void draw_set(di_model *m, unsigned set)
{
    start_stream(set, STREAM_SET);
    for (int i = 0; i < N_SPECS; i++)
        draw_spec(&specs[i], i, di_model_get_info(m).vocab, is_crowd(set));
    run_plain(m);
}

static void run_round(di_model *const m[2], unsigned round)
{
    int threads;

    start_stream(round, STREAM_ROUND);
    script_count = 0;
    threads = chance(95) ? 1 : 2; /* two spin, where processors are few */
    run_company(m[threads - 1], threads, is_crowd(round / SET_ROUNDS));
}

/* ---- the command line ---- */

typedef struct options {
    const char *dir[MAX_MODELS], *state;
    int n_dirs;
    unsigned rounds, from;
    bool demand;
} options;

static bool parse(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        unsigned v = (unsigned)strtoul(value, NULL, 10);

        if (strcmp(name, "--demand") == 0) {
            o->demand = true;
            continue;
        }
        i++;
        if (strcmp(name, "--model") == 0 && o->n_dirs < MAX_MODELS)
            o->dir[o->n_dirs++] = value;
        else if (strcmp(name, "--backend") == 0)
            backend = value;
        else if (strcmp(name, "--rounds") == 0)
            o->rounds = v;
        else if (strcmp(name, "--from") == 0)
            o->from = v;
        else if (strcmp(name, "--seed") == 0)
            rng_key = v;
        else if (strcmp(name, "--state") == 0)
            o->state = value;
        else
            return false;
    }
    return o->n_dirs > 0;
}

static unsigned rounds_done(const char *file)
{
    FILE *f = file ? fopen(file, "r") : NULL;
    unsigned n = 0;

    if (f && fscanf(f, "%u", &n) != 1)
        n = 0;
    if (f)
        fclose(f);
    return n;
}

static void keep_rounds_done(const char *file, unsigned n)
{
    char next[1024];
    FILE *f;

    snprintf(next, sizeof next, "%s.new", file);
    f = fopen(next, "w");
    if (!f || fprintf(f, "%u\n", n) < 0 || fclose(f) != 0 || rename(next, file) != 0) {
        printf("could not write \"%s\"\n", file);
        exit(2);
    }
}

/* Which model has set k. */
static int turn(const options *o, unsigned k)
{
    return o->n_dirs == 3 && k % 20 == 9 ? 2 : o->n_dirs > 1 ? (int)(k % 2) : 0;
}

/* On a device that the engine has really run there, and replayed steps unless it must not. */
static bool ran_on(const kernels *k)
{
    kernel_counters n = k->ops->counters(k);

    if (!kernels_kv_memory(k))
        return true;
    printf("%s: %llu kernels ran on the device, %llu steps and draft rounds of them recorded\n",
           k->ops->name, (unsigned long long)n.launches, (unsigned long long)n.replays);
    return n.launches > 0 && (n.replays > 0) == !getenv("DI_NO_GRAPHS");
}

static bool saw_everything(void)
{
    printf("%llu preemptions, %llu tokens from the cache, %llu drafts accepted, %d engines closed "
           "early\n",
           (unsigned long long)total_preempted, (unsigned long long)total_cached,
           (unsigned long long)total_accepted, n_closed);
    return total_preempted > 0 && total_cached > 0 && total_accepted > 0;
}

int main(int argc, char **argv)
{
    options o = {.rounds = 10};
    di_model *m[MAX_MODELS][2];
    time_t start_time = time(NULL);
    unsigned first;

    if (!parse(&o, argc, argv)) {
        printf("usage: one_answer --model DIR ... [--rounds N] [--from K] [--seed S] "
               "[--state FILE] [--demand]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < 2 * o.n_dirs; i++) {
        model_dir = o.dir[i / 2];
        m[i / 2][i % 2] = open_model(1 + i % 2);
    }
    first = o.from > rounds_done(o.state) ? o.from : rounds_done(o.state);
    for (unsigned k = first; k < o.from + o.rounds && n_failed == 0; k++) {
        di_model **pair = m[turn(&o, k / SET_ROUNDS)];

        if (k == first || k % SET_ROUNDS == 0)
            draw_set(pair[0], k / SET_ROUNDS);
        run_round(pair, k);
        if (n_failed == 0 && o.state)
            keep_rounds_done(o.state, k + 1);
        if ((k + 1) % 100 == 0)
            printf("round %u, %d checks, %d failed, %ld s\n", k, n_checks, n_failed,
                   (long)(time(NULL) - start_time));
    }
    n_failed += !ran_on(m[turn(&o, first / SET_ROUNDS)][0]->k);
    for (int i = 0; i < 2 * o.n_dirs; i++)
        di_model_close(m[i / 2][i % 2]);
    n_failed += !saw_everything() && o.demand && first + 100 <= o.from + o.rounds;
    printf("%d passed, %d failed\n", n_checks - n_failed, n_failed);
    return n_failed ? 1 : 0;
}
