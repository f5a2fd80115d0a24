/* Slot:  FREE -submit-> PROMPT -all prompt rows done-> DECODE -finish-> FREE
 *
 * A slot's tokens are the prompt and the answer so far in one array; `len` of them are in the
 * state. A step takes rows tokens[len ..]; when it reaches the last token its logits give the next
 * one. So prompt chunks and decode rows are the same thing here too. */
#include "cli/generator.h"

#include <string.h>

#include "base/mem.h"

#define MAX_STOP_IDS 32

typedef struct slot {
    bool used, failed;
    gen_request req; /* prompt and stop_id point into this slot */
    kv_seq *seq;
    sampler *sampler;
    int32_t *tokens; /* [n_prompt + max_tokens] */
    int64_t n_tokens, len;
    int64_t whole_from; /* prompt rows before it need not run every layer (model_exact_tail) */
    int32_t stop_id[MAX_STOP_IDS];
} slot;

/* A row of logits in a step. */
typedef struct logit_row {
    slot *s;
    int64_t pos; /* of the token that the row predicts */
} logit_row;

struct generator {
    model *m;
    kernels *k;
    kv_pool *pool;
    int max_seqs, max_rows, max_logits, n_running, vocab, ngram;
    int64_t context, n_reused;
    slot *slots; /* [max_seqs] */
    /* Of a step; host memory, taken once. */
    seq_rows *seqs;                 /* [max_seqs] */
    slot **seq_slot;                /* [max_seqs] */
    logit_row *logit;               /* [max_logits] */
    sample_row *row;                /* [max_logits] */
    int32_t *token, *rank, *top_id; /* [max_logits], the last [max_logits][GEN_MAX_TOP] */
    float *logprob, *top_logprob;
    int n_seqs, n_logits;
};

/* A block of the host memory of a step. */
static void *block(size_t count, size_t size, bool *ok)
{
    void *p = mem_try_calloc(count, size);

    if (!p)
        *ok = false;
    return p;
}

di_code generator_new(generator **out, model *m, kernels *k, int max_seqs, int rows,
                      int64_t context, di_status *st)
{
    generator *g = mem_try_calloc(1, sizeof *g);
    size_t seqs = (size_t)max_seqs, logits;
    int64_t blocks = (context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS * max_seqs;
    bool ok = true;
    di_code rc = DI_OK;

    *out = NULL;
    if (!g)
        return di_fail(st, DI_E_NOMEM, "no memory for a generator");
    g->m = m;
    g->k = k;
    g->max_seqs = max_seqs;
    g->max_rows = rows;
    g->max_logits = max_seqs > GEN_LOGIT_ROWS ? max_seqs : GEN_LOGIT_ROWS;
    g->vocab = model_cfg(m)->vocab;
    g->ngram = model_cfg(m)->n_engram ? model_cfg(m)->engram_ngram : 1;
    g->context = context;
    logits = (size_t)g->max_logits;
    g->slots = block(seqs, sizeof *g->slots, &ok);
    g->seqs = block(seqs, sizeof *g->seqs, &ok);
    g->seq_slot = block(seqs, sizeof *g->seq_slot, &ok);
    g->logit = block(logits, sizeof *g->logit, &ok);
    g->row = block(logits, sizeof *g->row, &ok);
    g->token = block(logits, sizeof *g->token, &ok);
    g->rank = block(logits, sizeof *g->rank, &ok);
    g->logprob = block(logits, sizeof *g->logprob, &ok);
    g->top_id = block(logits * GEN_MAX_TOP, sizeof *g->top_id, &ok);
    g->top_logprob = block(logits * GEN_MAX_TOP, sizeof *g->top_logprob, &ok);
    if (!ok) {
        rc = di_fail(st, DI_E_NOMEM, "no memory for a generator of %d sequences", max_seqs);
        goto done;
    }
    if (blocks > INT32_MAX) {
        rc = di_fail(st, DI_E_INVALID,
                     "%d sequences of %lld tokens are too many: use a smaller --context or --batch",
                     max_seqs, (long long)context);
        goto done;
    }
    DI_TRY(kv_pool_new(&g->pool, model_kv_layout(m), (int)blocks, max_seqs, st));
    *out = g;
    g = NULL;
done:
    generator_free(g);
    return rc;
}

void generator_free(generator *g)
{
    if (!g)
        return;
    if (g->pool)
        kv_pool_free(g->pool);
    mem_free(g->slots);
    mem_free(g->seqs);
    mem_free(g->seq_slot);
    mem_free(g->logit);
    mem_free(g->row);
    mem_free(g->token);
    mem_free(g->rank);
    mem_free(g->logprob);
    mem_free(g->top_id);
    mem_free(g->top_logprob);
    mem_free(g);
}

void gen_kept_drop(gen_kept *k)
{
    kv_seq_free(k->seq);
    mem_free(k->tokens);
    *k = (gen_kept){0};
}

int generator_n_running(const generator *g)
{
    return g->n_running;
}

int64_t generator_n_reused(const generator *g)
{
    return g->n_reused;
}

static void slot_fini(slot *s)
{
    kv_seq_free(s->seq);
    sampler_free(s->sampler);
    mem_free(s->tokens);
    *s = (slot){0};
}

static void finish(generator *g, slot *s, gen_finish why, const di_status *st)
{
    gen_request req = s->req;

    /* Half a prompt whose rows stopped early has no rings to go on from. */
    if (req.keep && why != GEN_FAILED && (s->len >= req.n_prompt || s->whole_from == 0)) {
        *req.keep = (gen_kept){.seq = s->seq, .tokens = s->tokens, .len = s->len};
        s->seq = NULL;
        s->tokens = NULL;
    }
    slot_fini(s);
    g->n_running--;
    req.on_done(req.arg, why, st);
}

static di_code check_ids(const generator *g, const char *what, const int32_t *id, int64_t n,
                         di_status *st)
{
    for (int64_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= g->vocab)
            return di_fail(st, DI_E_INVALID, "%s[%lld] is %d, but ids run from 0 to %d", what,
                           (long long)i, id[i], g->vocab - 1);
    return DI_OK;
}

static di_code check(const generator *g, const gen_request *r, di_status *st)
{
    int64_t room = g->context - r->n_prompt;
    di_code rc;

    if (r->n_prompt < 1)
        return di_fail(st, DI_E_INVALID, "the prompt is empty");
    if (room < 0)
        return di_fail(st, DI_E_INVALID,
                       "the prompt has %lld tokens, but the longest sequence is %lld: shorten it "
                       "or use a larger --context",
                       (long long)r->n_prompt, (long long)g->context);
    if (r->max_tokens < 0 || r->max_tokens > (room ? room : 1))
        return di_fail(st, DI_E_INVALID, "max_tokens is %lld, but there is room for %lld",
                       (long long)r->max_tokens, (long long)(room ? room : 1));
    if (r->n_top < 0 || r->n_top > GEN_MAX_TOP)
        return di_fail(st, DI_E_INVALID, "top_logprobs is %d, but must be from 0 to %d", r->n_top,
                       GEN_MAX_TOP);
    if (r->n_stop_ids < 0 || r->n_stop_ids > MAX_STOP_IDS)
        return di_fail(st, DI_E_INVALID,
                       "stop_token_ids has %d entries, but at most %d are allowed", r->n_stop_ids,
                       MAX_STOP_IDS);
    rc = check_ids(g, "stop_token_ids", r->stop_id, r->n_stop_ids, st);
    if (rc == DI_OK)
        rc = check_ids(g, "prompt_token_ids", r->prompt, r->n_prompt, st);
    return rc;
}

/* Take over a kept state whose tokens the new prompt begins with; else drop it. */
static void take_kept(generator *g, slot *s)
{
    gen_kept *k = s->req.keep;

    if (!k || !k->seq)
        return;
    if (k->len < s->n_tokens &&
        memcmp(k->tokens, s->tokens, (size_t)k->len * sizeof *s->tokens) == 0) {
        s->seq = k->seq;
        s->len = k->len;
        if (s->whole_from <= s->len)
            s->whole_from = 0; /* the rings are there */
        g->n_reused += k->len;
        k->seq = NULL;
    }
    gen_kept_drop(k);
}

/* Where the last rows of the prompt begin that must run every layer. Log-probabilities of the
 * prompt need all of them. */
static int64_t whole_from(const generator *g, const gen_request *r)
{
    int64_t tail = model_exact_tail(g->m);

    return tail < 0 || r->prompt_logprobs || r->n_prompt <= tail ? 0 : r->n_prompt - tail;
}

static slot *free_slot(generator *g)
{
    for (int i = 0; i < g->max_seqs; i++)
        if (!g->slots[i].used)
            return &g->slots[i];
    return NULL;
}

di_code generator_submit(generator *g, const gen_request *r, di_status *st)
{
    slot *s = free_slot(g);
    int64_t cap = r->n_prompt + r->max_tokens;
    di_code rc;

    if (!s)
        return di_fail(st, DI_E_BUSY, "all %d sequences are in use", g->max_seqs);
    DI_TRY(check(g, r, st));
    s->req = *r;
    s->tokens = mem_try_calloc((size_t)cap, sizeof *s->tokens);
    if (!s->tokens) {
        rc = di_fail(st, DI_E_NOMEM, "no memory for a sequence of %lld tokens", (long long)cap);
        goto done;
    }
    memcpy(s->tokens, r->prompt, (size_t)r->n_prompt * sizeof *s->tokens);
    s->n_tokens = r->n_prompt;
    s->req.prompt = s->tokens;
    if (r->n_stop_ids)
        memcpy(s->stop_id, r->stop_id, (size_t)r->n_stop_ids * sizeof *s->stop_id);
    s->req.stop_id = s->stop_id;
    DI_TRY(sampler_new(&s->sampler, &r->sampling, g->vocab, r->prompt, r->n_prompt, st));
    s->whole_from = whole_from(g, r);
    take_kept(g, s);
    if (!s->seq)
        DI_TRY(kv_seq_new(g->pool, &s->seq, st));
    s->used = true;
    g->n_running++;
    if (r->max_tokens == 0 && !r->prompt_logprobs)
        finish(g, s, GEN_LENGTH, NULL);
    return DI_OK;
done:
    slot_fini(s);
    return rc;
}

/* Rows that the slot's next step may have: all that is left, or as many as its logits allow when
 * each prompt row needs them. */
static int want_rows(const slot *s, int rows_left, int logits_left)
{
    int64_t n = s->n_tokens - s->len;

    if (s->req.prompt_logprobs && s->len < s->req.n_prompt && n > logits_left)
        n = logits_left;
    return (int)(n < rows_left ? n : rows_left);
}

/* Give slot s `n` rows of the step. */
static di_code add_rows(generator *g, slot *s, int n, di_status *st)
{
    seq_rows *q = &g->seqs[g->n_seqs];
    bool all = s->req.prompt_logprobs && s->len < s->req.n_prompt;
    bool last = s->len + n == s->n_tokens;
    int64_t history = s->len < g->ngram - 1 ? s->len : g->ngram - 1;
    int n_logits = all ? n : last ? 1 : 0;
    di_code rc = kv_seq_reserve(s->seq, s->len + n, st);

    if (rc != DI_OK)
        return rc;
    *q = (seq_rows){.view = kv_seq_view(s->seq),
                    .n = n,
                    .token = s->tokens + s->len,
                    .history = s->tokens + s->len - history,
                    .n_history = (int)history,
                    .n_logits = n_logits,
                    .whole_from = s->whole_from,
                    .ring_first = s->whole_from};
    g->seq_slot[g->n_seqs++] = s;
    for (int i = n - n_logits; i < n; i++) {
        int64_t pos = s->len + i + 1;

        g->row[g->n_logits] = sampler_row(s->sampler, pos);
        g->logit[g->n_logits++] = (logit_row){s, pos};
    }
    return DI_OK;
}

/* Decoding sequences first (one row each), then prompts in the order of their slots. */
static di_code plan(generator *g, di_status *st)
{
    int left = g->max_rows;

    g->n_seqs = g->n_logits = 0;
    for (int decode = 1; decode >= 0; decode--)
        for (int i = 0; i < g->max_seqs; i++) {
            slot *s = &g->slots[i];
            int n;
            di_code rc;

            if (!s->used || (s->n_tokens - s->len == 1) != decode)
                continue;
            n = want_rows(s, left, g->max_logits - g->n_logits);
            if (n == 0)
                continue;
            rc = add_rows(g, s, n, st);
            if (rc != DI_OK)
                return rc;
            left -= n;
        }
    return DI_OK;
}

static bool wants_logprobs(const generator *g, int *n_top)
{
    bool any = false;

    *n_top = 0;
    for (int i = 0; i < g->n_logits; i++) {
        const gen_request *r = &g->logit[i].s->req;

        any = any || r->logprobs || r->prompt_logprobs;
        if (r->n_top > *n_top)
            *n_top = r->n_top;
    }
    return any;
}

/* Sample every logit row; prompt rows keep the token that follows them. */
static di_code sample(generator *g, const float *logits, int *n_top, di_status *st)
{
    const kernel_ops *ops = g->k->ops;
    di_code rc;

    *n_top = 0;
    if (g->n_logits == 0)
        return ops->finish(g->k, st);
    ops->sample(g->k, &(sample_args){.n = g->n_logits,
                                     .vocab = g->vocab,
                                     .logits = logits,
                                     .row = g->row,
                                     .token = g->token});
    rc = ops->finish(g->k, st);
    if (rc != DI_OK)
        return rc;
    for (int i = 0; i < g->n_logits; i++)
        if (g->logit[i].pos < g->logit[i].s->req.n_prompt)
            g->token[i] = g->logit[i].s->tokens[g->logit[i].pos];
    if (!wants_logprobs(g, n_top))
        return DI_OK;
    ops->logprobs(g->k, &(logprobs_args){.n = g->n_logits,
                                         .vocab = g->vocab,
                                         .n_top = *n_top,
                                         .logits = logits,
                                         .token = g->token,
                                         .logprob = g->logprob,
                                         .rank = g->rank,
                                         .top_id = g->top_id,
                                         .top_logprob = g->top_logprob});
    return ops->finish(g->k, st);
}

static bool is_stop_id(const slot *s, int32_t id)
{
    for (int i = 0; i < s->req.n_stop_ids; i++)
        if (s->stop_id[i] == id)
            return true;
    return false;
}

/* The token of logit row i has come: hand it out and finish the sequence if that was the end. */
static void deliver(generator *g, int i, int n_top)
{
    slot *s = g->logit[i].s;
    gen_request *r = &s->req;
    gen_token t = {.id = g->token[i], .logprob = g->logprob[i], .rank = g->rank[i]};
    bool go_on;

    if (r->n_top) {
        t.n_top = r->n_top < n_top ? r->n_top : n_top;
        t.top_id = g->top_id + (size_t)i * (size_t)n_top;
        t.top_logprob = g->top_logprob + (size_t)i * (size_t)n_top;
    }
    if (g->logit[i].pos < r->n_prompt) {
        r->on_prompt(r->arg, &t);
        return;
    }
    if (r->max_tokens == 0) {
        finish(g, s, GEN_LENGTH, NULL);
        return;
    }
    t.stop = is_stop_id(s, t.id);
    s->tokens[s->n_tokens++] = t.id;
    go_on = r->on_token(r->arg, &t);
    if (t.stop || !go_on)
        finish(g, s, GEN_STOP, NULL);
    else if (s->n_tokens - r->n_prompt == r->max_tokens)
        finish(g, s, GEN_LENGTH, NULL);
}

static void fail_all(generator *g, const di_status *st)
{
    for (int i = 0; i < g->max_seqs; i++)
        if (g->slots[i].used)
            finish(g, &g->slots[i], GEN_FAILED, st);
}

di_code generator_step(generator *g, di_status *st)
{
    float *logits;
    int n_top;
    di_code rc;

    if (g->n_running == 0)
        return DI_OK;
    DI_TRY(plan(g, st));
    DI_TRY(model_forward(g->m, g->seqs, g->n_seqs, &logits, st));
    DI_TRY(sample(g, logits, &n_top, st));
    for (int i = 0; i < g->n_seqs; i++) {
        slot *s = g->seq_slot[i];

        s->len += g->seqs[i].n;
        kv_seq_set_len(s->seq, s->len);
    }
    for (int i = 0; i < g->n_logits; i++) {
        slot *s = g->logit[i].s;

        /* Penalties see the token before anyone can end the sequence. */
        if (g->logit[i].pos >= s->req.n_prompt)
            DI_TRY(sampler_accept(s->sampler, g->token[i], st));
        deliver(g, i, n_top);
    }
done:
    if (rc != DI_OK)
        fail_all(g, st);
    return rc;
}

void generator_cancel(generator *g)
{
    for (int i = 0; i < g->max_seqs; i++)
        if (g->slots[i].used)
            finish(g, &g->slots[i], GEN_CANCELLED, NULL);
}
