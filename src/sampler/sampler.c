/* Parameters of a request -> the row that the sampling operation reads.
 *
 * Entries are the ids that were seen or have a bias, ascending, in two arrays of the same order:
 * `adjust` is handed out as it is, `memory` holds what it is computed from. An adjustment is always
 * computed afresh from the counts, never added to, so a rollback restores the same bits.
 *
 * Allocation: both arrays and the list of accepted tokens start with room for what the prompt needs
 * plus SPARE and double when full, so a sequence of n tokens allocates at most 3 * log2(n / SPARE)
 * times after sampler_new; entries never exceed the vocabulary. Without penalties nothing is
 * remembered and nothing is allocated after sampler_new. */
#include "sampler/sampler.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

#define SPARE 1024

typedef struct entry {
    int32_t count; /* in the output */
    bool prompt;
    bool biased;
    float bias;
} entry;

struct sampler {
    sampling_params params;
    bool counts; /* a penalty is on: tokens are remembered */
    logit_adjust *adjust;
    entry *memory;
    int32_t n, cap;
    int32_t *accepted;
    int64_t n_accepted, cap_accepted;
};

sampling_params sampling_defaults(void)
{
    return (sampling_params){.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};
}

/* One numeric field of the parameters and its closed range (open below where `above` is set). */
typedef struct range {
    const char *name;
    double value, min, max;
    bool above; /* min itself is outside */
} range;

static di_code check_range(const range *r, di_status *st)
{
    /* Written so that NaN fails. */
    if (r->value <= r->max && (r->above ? r->value > r->min : r->value >= r->min))
        return DI_OK;
    return di_fail(st, DI_E_INVALID, "%s is %g, but must be %s %g and at most %g", r->name,
                   r->value, r->above ? "above" : "at least", r->min, r->max);
}

static di_code check_bias(const sampling_params *p, int vocab, di_status *st)
{
    if (p->n_bias < 0 || p->n_bias > SAMPLER_MAX_BIAS)
        return di_fail(st, DI_E_INVALID, "logit_bias has %d entries, but at most %d are allowed",
                       p->n_bias, SAMPLER_MAX_BIAS);
    for (int32_t i = 0; i < p->n_bias; i++) {
        const logit_bias *b = &p->bias[i];

        if (b->id < 0 || b->id >= vocab)
            return di_fail(st, DI_E_INVALID,
                           "logit_bias names token id %d, but ids run from 0 to %d", b->id,
                           vocab - 1);
        if (!(b->bias >= -100.0f && b->bias <= 100.0f))
            return di_fail(st, DI_E_INVALID,
                           "logit_bias of token id %d is %g, but must be at least -100 and at most "
                           "100",
                           b->id, (double)b->bias);
    }
    return DI_OK;
}

static di_code check_banned(const sampling_params *p, int vocab, di_status *st)
{
    if (p->n_banned < 0 || p->n_banned > SAMPLER_MAX_BANNED)
        return di_fail(st, DI_E_INVALID, "banned_ids has %d entries, but at most %d are allowed",
                       p->n_banned, SAMPLER_MAX_BANNED);
    for (int32_t i = 0; i < p->n_banned; i++)
        if (p->banned[i] < 0 || p->banned[i] >= vocab)
            return di_fail(st, DI_E_INVALID,
                           "banned_ids holds token id %d, but ids run from 0 to %d", p->banned[i],
                           vocab - 1);
    return DI_OK;
}

di_code sampling_check(const sampling_params *p, int vocab, di_status *st)
{
    const range ranges[] = {
        {"temperature", (double)p->temperature, 0, 100, false},
        {"top_p", (double)p->top_p, 0, 1, true},
        {"min_p", (double)p->min_p, 0, 1, false},
        {"top_k", (double)p->top_k, 0, (double)INT32_MAX, false},
        {"repetition_penalty", (double)p->repetition_penalty, 0, 100, true},
        {"presence_penalty", (double)p->presence_penalty, -2, 2, false},
        {"frequency_penalty", (double)p->frequency_penalty, -2, 2, false},
    };

    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        di_code rc = check_range(&ranges[i], st);

        if (rc != DI_OK)
            return rc;
    }
    if (check_banned(p, vocab, st) != DI_OK)
        return DI_E_INVALID;
    return check_bias(p, vocab, st);
}

/* Index of the first entry whose id is not below `id`. */
static int32_t lower_bound(const sampler *s, int32_t id)
{
    int32_t lo = 0, hi = s->n;

    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;

        if (s->adjust[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void refresh(sampler *s, int32_t i)
{
    const sampling_params *p = &s->params;
    const entry *e = &s->memory[i];
    float add = e->bias;

    if (e->count > 0)
        add -= p->presence_penalty + p->frequency_penalty * (float)e->count;
    s->adjust[i].rep = e->prompt || e->count > 0 ? p->repetition_penalty : 1.0f;
    s->adjust[i].add = add;
}

static di_code grow(sampler *s, di_status *st)
{
    int32_t cap = s->cap > INT32_MAX / 2 ? INT32_MAX : s->cap * 2;
    logit_adjust *adjust = mem_try_realloc(s->adjust, (size_t)cap, sizeof *adjust);
    entry *memory;

    if (!adjust)
        return di_fail(st, DI_E_NOMEM, "no memory for the penalties of a request");
    s->adjust = adjust;
    memory = mem_try_realloc(s->memory, (size_t)cap, sizeof *memory);
    if (!memory)
        return di_fail(st, DI_E_NOMEM, "no memory for the penalties of a request");
    s->memory = memory;
    s->cap = cap;
    return DI_OK;
}

/* Find the entry of `id` or make an empty one. */
static di_code entry_at(sampler *s, int32_t id, int32_t *idx, di_status *st)
{
    int32_t i = lower_bound(s, id);
    size_t tail = (size_t)(s->n - i);

    *idx = i;
    if (i < s->n && s->adjust[i].id == id)
        return DI_OK;
    if (s->n == s->cap) {
        di_code rc = grow(s, st);

        if (rc != DI_OK)
            return rc;
    }
    memmove(s->adjust + i + 1, s->adjust + i, tail * sizeof *s->adjust);
    memmove(s->memory + i + 1, s->memory + i, tail * sizeof *s->memory);
    s->adjust[i] = (logit_adjust){.id = id, .rep = 1.0f};
    s->memory[i] = (entry){0};
    s->n++;
    return DI_OK;
}

static void entry_remove(sampler *s, int32_t i)
{
    size_t tail = (size_t)(s->n - i - 1);

    memmove(s->adjust + i, s->adjust + i + 1, tail * sizeof *s->adjust);
    memmove(s->memory + i, s->memory + i + 1, tail * sizeof *s->memory);
    s->n--;
}

static di_code remember_bias(sampler *s, const sampling_params *p, di_status *st)
{
    for (int32_t i = 0; i < p->n_bias; i++) {
        int32_t at;
        di_code rc = entry_at(s, p->bias[i].id, &at, st);

        if (rc != DI_OK)
            return rc;
        if (s->memory[at].biased)
            return di_fail(st, DI_E_INVALID, "logit_bias names token id %d twice", p->bias[i].id);
        s->memory[at].biased = true;
        s->memory[at].bias = p->bias[i].bias;
        refresh(s, at);
    }
    return DI_OK;
}

/* A ban is a bias that nothing outweighs; it takes the place of one. */
static di_code remember_banned(sampler *s, const sampling_params *p, di_status *st)
{
    for (int32_t i = 0; i < p->n_banned; i++) {
        int32_t at;
        di_code rc = entry_at(s, p->banned[i], &at, st);

        if (rc != DI_OK)
            return rc;
        s->memory[at].biased = true;
        s->memory[at].bias = -INFINITY;
        refresh(s, at);
    }
    return DI_OK;
}

/* Only the repetition penalty looks at the prompt. */
static di_code remember_prompt(sampler *s, int vocab, const int32_t *prompt, int64_t n,
                               di_status *st)
{
    if (s->params.repetition_penalty == 1.0f)
        return DI_OK;
    for (int64_t i = 0; i < n; i++) {
        int32_t at;
        di_code rc;

        if (prompt[i] < 0 || prompt[i] >= vocab)
            return di_fail(st, DI_E_INVALID, "token id %d of the prompt is not in 0..%d", prompt[i],
                           vocab - 1);
        rc = entry_at(s, prompt[i], &at, st);
        if (rc != DI_OK)
            return rc;
        s->memory[at].prompt = true;
        refresh(s, at);
    }
    return DI_OK;
}

di_code sampler_new(sampler **out, const sampling_params *p, int vocab, const int32_t *prompt,
                    int64_t n_prompt, di_status *st)
{
    di_code rc = DI_OK;
    sampler *s = NULL;

    *out = NULL;
    DI_TRY(sampling_check(p, vocab, st));
    s = mem_try_calloc(1, sizeof *s);
    if (!s) {
        rc = di_fail(st, DI_E_NOMEM, "no memory for the sampling state of a request");
        goto done;
    }
    s->params = *p;
    s->params.bias = NULL; /* borrowed for this call only, as is the next */
    s->params.banned = NULL;
    s->counts = p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
                p->frequency_penalty != 0.0f;
    s->cap = (s->counts ? SPARE : 0) + p->n_bias + p->n_banned;
    s->cap_accepted = s->counts ? SPARE : 1;
    if (s->cap > 0) {
        s->adjust = mem_try_calloc((size_t)s->cap, sizeof *s->adjust);
        s->memory = mem_try_calloc((size_t)s->cap, sizeof *s->memory);
        s->accepted = mem_try_calloc((size_t)s->cap_accepted, sizeof *s->accepted);
        if (!s->adjust || !s->memory || !s->accepted) {
            rc = di_fail(st, DI_E_NOMEM, "no memory for the penalties of a request");
            goto done;
        }
    }
    DI_TRY(remember_bias(s, p, st));
    DI_TRY(remember_banned(s, p, st));
    DI_TRY(remember_prompt(s, vocab, prompt, n_prompt, st));
    *out = s;
    s = NULL;
done:
    sampler_free(s);
    return rc;
}

void sampler_free(sampler *s)
{
    if (!s)
        return;
    mem_free(s->adjust);
    mem_free(s->memory);
    mem_free(s->accepted);
    mem_free(s);
}

sample_row sampler_row(const sampler *s, int64_t position)
{
    const sampling_params *p = &s->params;

    return (sample_row){
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .seed = p->seed,
        .choice = p->choice,
        .position = position,
        .adjust = s->n ? s->adjust : NULL,
        .n_adjust = s->n,
    };
}

di_code sampler_accept(sampler *s, int32_t token, di_status *st)
{
    int32_t at;
    di_code rc;

    if (!s->counts)
        return DI_OK;
    if (s->n_accepted == s->cap_accepted) {
        int32_t *more =
            mem_try_realloc(s->accepted, (size_t)s->cap_accepted * 2, sizeof *s->accepted);

        if (!more)
            return di_fail(st, DI_E_NOMEM, "no memory for the penalties of a request");
        s->accepted = more;
        s->cap_accepted *= 2;
    }
    rc = entry_at(s, token, &at, st);
    if (rc != DI_OK)
        return rc;
    s->accepted[s->n_accepted++] = token;
    s->memory[at].count++;
    refresh(s, at);
    return DI_OK;
}

void sampler_rollback(sampler *s, int n)
{
    for (; n > 0 && s->n_accepted > 0; n--) {
        int32_t at = lower_bound(s, s->accepted[--s->n_accepted]);
        entry *e = &s->memory[at];

        e->count--;
        if (e->count == 0 && !e->prompt && !e->biased)
            entry_remove(s, at);
        else
            refresh(s, at);
    }
}
