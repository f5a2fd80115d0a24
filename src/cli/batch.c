/* A ring of jobs between the next line to read and the next line to write.
 *
 * Job:  FREE -line read-> RUNNING -done-> FINISHED -its turn-> FREE
 *                          | the line is bad ------^
 * Answers wait in the ring until all before them are written. The ring is longer than the number of
 * sequences, so that one long answer does not hold up the others for a while. */
#include "cli/batch.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/progress.h"
#include "cli/result.h"

#define RING_PER_SEQ 16

typedef struct run run;

typedef struct job {
    run *owner;
    request req;
    answer ans;
    tok_ids ids;
    logprob_list logprobs, prompt_logprobs;
    int64_t index;
    di_status st; /* of this request */
    str line;     /* the finished answer */
    bool finished;
} job;

struct run {
    generator *g;
    const batch_options *opt;
    batch_totals *totals;
    job *ring;
    int64_t cap, first, next; /* jobs first .. next-1, at ring[i % cap] */
    uint64_t start_ns;
};

static job *job_at(const run *r, int64_t i)
{
    return &r->ring[i % r->cap];
}

static void job_fini(job *j)
{
    request_fini(&j->req);
    answer_fini(&j->ans);
    tok_ids_fini(&j->ids);
    logprob_fini(&j->logprobs);
    logprob_fini(&j->prompt_logprobs);
    str_fini(&j->line);
    *j = (job){0};
}

static void on_prompt(void *arg, const gen_token *t)
{
    job *j = arg;

    (void)logprob_push(&j->prompt_logprobs, t, &j->st);
}

static bool on_token(void *arg, const gen_token *t)
{
    job *j = arg;

    j->owner->totals->n_tokens++;
    if (tok_ids_push(&j->ids, t->id, &j->st) != DI_OK)
        return false;
    if (j->req.logprobs >= 0 && logprob_push(&j->logprobs, t, &j->st) != DI_OK)
        return false;
    return t->stop || answer_push(&j->ans, t->id);
}

/* Make the line of a finished job. One that fails here fails alone. */
static void conclude(job *j, gen_finish why)
{
    const run *r = j->owner;
    result res = {.req = &j->req,
                  .ans = &j->ans,
                  .tok = r->opt->defaults->tok,
                  .index = j->index,
                  .ids = &j->ids,
                  .logprobs = j->req.logprobs >= 0 ? &j->logprobs : NULL,
                  .prompt_logprobs =
                      j->req.logprobs >= 0 && j->req.echo ? &j->prompt_logprobs : NULL,
                  .why = why,
                  .created = (int64_t)time(NULL),
                  .model = r->opt->model};

    if (j->st.code == DI_OK)
        (void)answer_end(&j->ans, &j->st);
    if (j->st.code == DI_OK)
        (void)result_write(&res, &j->line, &j->st);
    if (j->st.code != DI_OK) {
        str_fini(&j->line);
        r->totals->n_failed++;
        (void)result_write_error(&j->req, j->index, &j->st, &j->line, NULL);
    }
    j->finished = true;
}

static void on_done(void *arg, gen_finish why, const di_status *st)
{
    job *j = arg;

    if (why == GEN_FAILED && j->st.code == DI_OK)
        j->st = *st;
    conclude(j, why);
}

static void start(run *r, job *j, const char *line, size_t n, int64_t number)
{
    char name[40];
    gen_request gr;
    const request *q = &j->req;
    grammar_state *state = NULL;
    di_code rc;

    snprintf(name, sizeof name, "line %lld", (long long)number);
    DI_TRY(request_parse(&j->req, r->opt->defaults, line, n, name, &j->st));
    DI_TRY(answer_init(&j->ans, r->opt->defaults->tok, q->kind == REQUEST_CHAT,
                       q->starts_in_reasoning, q->stop, q->stop_len, q->n_stop, &j->st));
    DI_TRY(request_mask(q, &state, &j->st));
    j->logprobs.n_top = j->prompt_logprobs.n_top = q->logprobs > 0 ? q->logprobs : 0;
    gr = (gen_request){.prompt = q->ids.ids,
                       .n_prompt = (int64_t)q->ids.n,
                       .max_tokens = q->max_tokens,
                       .sampling = q->sampling,
                       .stop_id = q->stop_id,
                       .n_stop_ids = q->n_stop_ids,
                       .logprobs = q->logprobs >= 0,
                       .prompt_logprobs = q->logprobs >= 0 && q->echo,
                       .n_top = j->logprobs.n_top,
                       .mask_ctx = state,
                       .on_prompt = on_prompt,
                       .on_token = on_token,
                       .on_done = on_done,
                       .arg = j};
    DI_TRY(generator_submit(r->g, &gr, &j->st));
    state = NULL;
    r->totals->n_prompt += gr.n_prompt;
done:
    grammar_state_free(state);
    if (rc != DI_OK)
        conclude(j, GEN_FAILED);
}

/* Start lines while there is room for them. */
static void fill(run *r, lines_in *in)
{
    const char *line;
    size_t n;

    while (generator_n_running(r->g) < r->opt->max_seqs && r->next - r->first < r->cap &&
           lines_next(in, &line, &n)) {
        job *j = job_at(r, r->next++);

        *j = (job){.owner = r, .index = in->next_idx - 1};
        request_init(&j->req);
        start(r, j, line, n, in->number);
    }
}

/* Write finished answers whose turn has come. */
static di_code drain(run *r, lines_out *out, di_status *st)
{
    while (r->first < r->next && job_at(r, r->first)->finished) {
        job *j = job_at(r, r->first);
        di_code rc = DI_OK;

        if (!str_ok(&j->line))
            rc = di_fail(st, DI_E_NOMEM, "no memory for the answer to line %lld",
                         (long long)j->index + 1);
        else
            rc = lines_write(out, &j->line, st);
        if (rc != DI_OK)
            return rc;
        job_fini(j);
        r->first++;
        r->totals->n_lines++;
    }
    return DI_OK;
}

static void show(const run *r, progress *bar)
{
    double seconds = (double)(clock_ns() - r->start_ns) * 1e-9;
    char note[48];

    snprintf(note, sizeof note, "%.1f tok/s",
             seconds > 0 ? (double)r->totals->n_tokens / seconds : 0.0);
    progress_note(bar, note);
    progress_set(bar, (uint64_t)r->totals->n_lines);
}

di_code batch_run(generator *g, lines_in *in, lines_out *out, const batch_options *opt,
                  batch_totals *totals, di_status *st)
{
    run r = {.g = g,
             .opt = opt,
             .totals = totals,
             .cap = (int64_t)opt->max_seqs * RING_PER_SEQ,
             .start_ns = clock_ns()};
    progress bar;
    di_code rc = DI_OK;

    *totals = (batch_totals){.n_lines = out->n_done, .n_failed = out->n_failed};
    r.ring = mem_try_calloc((size_t)r.cap, sizeof *r.ring);
    if (!r.ring)
        return di_fail(st, DI_E_NOMEM, "no memory for %lld requests", (long long)r.cap);
    progress_start(&bar, "generate", "lines", (uint64_t)in->n_lines, opt->quiet);
    for (;;) {
        fill(&r, in);
        DI_TRY(drain(&r, out, st));
        show(&r, &bar);
        if (generator_n_running(g) > 0)
            DI_TRY(generator_step(g, st));
        else if (r.first == r.next && in->next_idx == in->n_lines)
            break;
    }
done:
    if (rc != DI_OK)
        generator_cancel(g);
    totals->seconds = (double)(clock_ns() - r.start_ns) * 1e-9;
    progress_end(&bar);
    for (; r.first < r.next; r.first++)
        job_fini(job_at(&r, r.first));
    mem_free(r.ring);
    return rc;
}
