/* Tokens of the rows of a step, and which drafts stand.
 *
 * A draft is accepted exactly when it equals the token that the target itself samples at that place
 * with that place's noise (design section 1): so the text is the same with any drafts or none.
 * Rows of one sequence: row 0 samples the token behind the newest one, row k the token behind draft
 * k, which counts only if drafts 1..k were all accepted. */
#include <math.h>
#include <string.h>

#include "engine/engine_internal.h"

/* ---- sampling rows ---- */

static bool penalised(const choice *c)
{
    const sampling_params *p = &c->x.req->sampling;

    return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

/* Parameters of row k of a choice, whose token will stand at `position`. */
static sample_row row_of(const di_engine *e, const choice *c, int k, int64_t position)
{
    sample_row s = sampler_row(c->x.sampler, position);
    int64_t n_out = position - c->x.req->n_prompt; /* output tokens before it */

    if (c->mask && c->masked[k])
        s.mask = c->mask + (size_t)k * (size_t)e->mask_words;
    else if (c->x.req->ban && n_out < c->x.req->p.min_tokens)
        s.mask = c->x.req->ban;
    return s;
}

static void sample_span(di_engine *e, const float *logits, int first, int last)
{
    exec *x = &e->x;

    if (last > first)
        x->k->ops->sample(x->k, &(sample_args){.n = last - first,
                                               .vocab = e->vocab,
                                               .logits = logits + (size_t)first * (size_t)e->vocab,
                                               .row = x->sample + first,
                                               .token = x->token + first});
}

/* Sample every row that gives a token, in as few calls as possible: rows that are only there for
 * prompt log-probabilities split the spans. */
static void sample_all(di_engine *e, const job *j, int n_seqs, const float *logits)
{
    exec *x = &e->x;
    int row = 0, first = 0;

    for (int s = 0; s < n_seqs; s++) {
        const sched_part *p = &j->plan.part[x->part_of[s]];
        const choice *c = choice_of(p->item);
        int n = x->rows[s].n_logits;

        if (p->decode) {
            for (int k = 0; k < n; k++)
                x->sample[row + k] = row_of(e, c, k, c->x.len + 1 + k);
        } else if (c->x.req->prompt_value) {
            sample_span(e, logits, first, row);
            first = p->sample && c->x.req->max_out > 0 ? row + n - 1 : row + n;
            x->sample[row + n - 1] = row_of(e, c, 0, p->pos + p->n_rows);
        } else if (n > 0) {
            x->sample[row] = row_of(e, c, 0, p->pos + p->n_rows);
        }
        row += n;
    }
    sample_span(e, logits, first, row);
}

/* ---- acceptance ---- */

static bool is_stop(const di_request *r, int32_t token)
{
    for (int i = 0; i < r->n_stop_ids; i++)
        if (r->stop_id[i] == token)
            return true;
    return false;
}

/* The token of row k is final: append it and see whether the choice ends. */
static void take_token(choice *c, part_result *r, int64_t at, int32_t token)
{
    const di_request *q = c->x.req;

    c->x.ids[at] = token;
    r->token[r->n++] = token;
    c->x.n_out++;
    /* out of memory loses a penalty's memory: end the choice rather than its promise */
    if (sampler_accept(c->x.sampler, token, NULL) != DI_OK) {
        c->x.done = true;
        c->x.finish = DI_FINISH_ERROR;
        r->code = DI_E_NOMEM;
        r->message = "no memory for the penalties of a request";
    } else if (c->x.n_out > q->p.min_tokens && is_stop(q, token)) {
        c->x.done = true;
        c->x.finish = DI_FINISH_STOP;
    } else if (c->x.n_out >= q->max_out) {
        c->x.done = true;
        c->x.finish = DI_FINISH_LENGTH;
    }
}

/* The sampled or forced token of a row; false when the constraint allows none. */
static bool row_token(choice *c, part_result *r, int32_t sampled, int32_t *token)
{
    const di_request *q = c->x.req;

    *token = sampled;
    if ((size_t)c->x.n_out < q->p.n_forced && q->p.forced[c->x.n_out] >= 0)
        *token = q->p.forced[c->x.n_out];
    if (*token >= 0)
        return true;
    c->x.done = true;
    c->x.finish = DI_FINISH_ERROR;
    r->code = DI_E_INVALID;
    r->message = "the constraint allows no token here";
    return false;
}

/* Walk the rows of a decoding choice, `row` being its first. Errors: DEVICE. */
static di_code accept_drafts(di_engine *e, choice *c, part_result *r, int row, const float *logits,
                             di_status *st)
{
    exec *x = &e->x;
    int64_t base = c->x.len + 1;
    di_code rc = DI_OK;

    for (int k = 0; k <= r->verified && !c->x.done; k++) {
        int32_t token;

        if (k > 0 && penalised(c)) { /* the tokens before it have changed the penalties */
            x->sample[row + k] = row_of(e, c, k, base + k);
            sample_span(e, logits, row + k, row + k + 1);
            DI_TRY(x->k->ops->finish(x->k, st));
        }
        if (!row_token(c, r, x->token[row + k], &token))
            break;
        take_token(c, r, base + k, token);
        if (k == r->verified)
            break;
        if (!x->script && k >= c->x.n_sure)
            calibration_observe(&x->cal, k, c->x.conf[k], token == c->x.draft[k]);
        if (token != c->x.draft[k])
            break;
        r->accepted++;
    }
    c->x.len += r->n;
done:
    return rc;
}

/* ---- log-probabilities ---- */

/* Values of n tokens whose logits are n consecutive rows. Errors: DEVICE. */
static di_code find_values(di_engine *e, const float *logits, const int32_t *token, int n,
                           int n_top, token_values *out, di_status *st)
{
    exec *x = &e->x;
    di_code rc = DI_OK;

    memcpy(x->lp_token, token, (size_t)n * sizeof *token);
    x->k->ops->logprobs(x->k, &(logprobs_args){.n = n,
                                               .vocab = e->vocab,
                                               .n_top = n_top,
                                               .logits = logits,
                                               .token = x->lp_token,
                                               .logprob = x->lp,
                                               .rank = x->lp_rank,
                                               .top_id = x->lp_top,
                                               .top_logprob = x->lp_top_value});
    DI_TRY(x->k->ops->finish(x->k, st));
    for (int i = 0; i < n; i++) {
        out[i].logprob = x->lp[i];
        out[i].rank = x->lp_rank[i];
        for (int t = 0; t < n_top; t++)
            out[i].top[t] = (di_token_logprob){.token = x->lp_top[i * n_top + t],
                                               .logprob = x->lp_top_value[i * n_top + t]};
    }
done:
    return rc;
}

/* Row i of a prompt chunk gives the value of the prompt token behind it. Errors: DEVICE. */
static di_code prompt_values(di_engine *e, const choice *c, const sched_part *p,
                             const float *logits, di_status *st)
{
    int64_t first = p->pos + 1, n = p->n_rows;

    if (first + n > c->x.req->n_prompt)
        n = c->x.req->n_prompt - first;
    if (n <= 0)
        return DI_OK;
    return find_values(e, logits, c->x.ids + first, (int)n, c->x.req->p.top_logprobs,
                       c->x.req->prompt_value + first, st);
}

/* ---- all of it ---- */

static void finish_prompt(di_engine *e, choice *c, const sched_part *p, part_result *r, int row)
{
    int32_t token;

    if (!p->sample)
        return;
    if (c->x.req->max_out == 0) {
        c->x.done = true;
        c->x.finish = DI_FINISH_LENGTH;
        return;
    }
    c->x.len = p->pos + p->n_rows;
    if (!row_token(c, r, e->x.token[row], &token))
        return;
    take_token(c, r, c->x.len, token);
    c->x.pending = true;
}

di_code exec_sample(di_engine *e, job *j, int n_seqs, const float *logits, di_status *st)
{
    exec *x = &e->x;
    di_code rc = DI_OK;
    int row = 0;

    sample_all(e, j, n_seqs, logits);
    DI_TRY(x->k->ops->finish(x->k, st));
    for (int s = 0; s < n_seqs; s++) {
        int i = x->part_of[s], n = x->rows[s].n_logits;
        const sched_part *p = &j->plan.part[i];
        choice *c = choice_of(p->item);
        part_result *r = &j->result[i];
        const float *l = logits + (size_t)row * (size_t)e->vocab;

        if (!p->decode && c->x.req->prompt_value)
            DI_TRY(prompt_values(e, c, p, l, st));
        if (p->decode)
            DI_TRY(accept_drafts(e, c, r, row, logits, st));
        else
            finish_prompt(e, c, p, r, row + n - 1);
        if (c->x.req->p.logprobs && r->n > 0)
            DI_TRY(find_values(e, p->decode ? l : l + (size_t)(n - 1) * (size_t)e->vocab, r->token,
                               r->n, c->x.req->p.top_logprobs, r->value, st));
        row += n;
    }
done:
    return rc;
}
