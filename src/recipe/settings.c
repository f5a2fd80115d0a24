/* Model, thinking, sampling and limits of a request (spec recipe.md 2.1 and 4). */
#include <math.h>
#include <string.h>

#include "recipe/recipe_internal.h"

#define MAX_CHOICES 64

/* ---- model ---- */

static bool alias_matches(const char *alias, const jtree *model)
{
    size_t n = strlen(alias);

    if (n && alias[n - 1] == '*')
        return model->n >= n - 1 && memcmp(alias, model->text, n - 1) == 0;
    return jtree_is(model, alias);
}

/* In mode CLIENT the message tells the names that are served here, not those of the recipe. */
static bool unknown_model(reading *rd, const jtree *model)
{
    str names = {0};

    if (rd->strict)
        return recipe_fail(rd->e, 400,
                           "The supported API model names are DeepSeek-V4-Pro, "
                           "DeepSeek-V4.1-Flash, but you passed %s.",
                           model->text);
    rd->e->code = "model_not_found";
    rd->e->param = "model";
    for (size_t i = 0; i < rd->o->n_alias; i++)
        str_printf(&names, "%s%s", i ? ", " : "", rd->o->alias[i].name);
    recipe_fail(rd->e, 404, "there is no model \"%.100s\" here%s%.300s", model->text,
                names.len ? "; names that are served: " : "", str_text(&names));
    str_fini(&names);
    return false;
}

bool settings_model(reading *rd, const jtree *model)
{
    recipe_request *q = rd->q;

    q->model = model->text;
    for (size_t i = 0; i < rd->o->n_alias; i++)
        if (alias_matches(rd->o->alias[i].name, model)) {
            q->chat.family = rd->o->alias[i].family;
            return true;
        }
    if (jtree_is(model, "DeepSeek-V4.1-Flash")) {
        q->chat.family = RECIPE_V41;
    } else if (jtree_is(model, "DeepSeek-V4-Pro")) {
        q->chat.family = RECIPE_V4;
    } else {
        return unknown_model(rd, model);
    }
    return true;
}

/* ---- thinking ---- */

bool settings_thinking_type(reading *rd, const jtree *thinking, thinking_said *said)
{
    static const field fields[] = {{"type", FIELD_WORD, FIELD_REQUIRED, 0, thinking_words}};
    const place at = {.text = "thinking"};
    const jtree *type;

    *said = THINKING_UNSAID;
    if (!thinking)
        return true;
    if (!fields_read(rd, thinking, &at, fields, 1, &type))
        return false;
    *said = jtree_is(type, "disabled") ? THINKING_OFF : THINKING_ON;
    return true;
}

bool recipe_effort_parse(const char *word, size_t n, bool *on, recipe_effort *effort)
{
    static const recipe_effort efforts[] = {
        RECIPE_EFFORT_HIGH, RECIPE_EFFORT_LOW,   RECIPE_EFFORT_LOW, RECIPE_EFFORT_HIGH,
        RECIPE_EFFORT_HIGH, RECIPE_EFFORT_XHIGH, RECIPE_EFFORT_MAX, RECIPE_EFFORT_MAX};
    const jtree t = {.type = JSON_STRING, .text = word, .n = n};
    int i = word_index(&t, effort_words);

    if (i < 0)
        return false;
    *on = i > 0; /* the first is "none" */
    *effort = efforts[i];
    return true;
}

void settings_thinking(reading *rd, thinking_said said, const jtree *effort)
{
    recipe_chat *c = &rd->q->chat;
    bool on = !rd->o->thinking_off;

    if (effort)
        recipe_effort_parse(effort->text, effort->n, &on, &c->effort);
    c->thinking = said == THINKING_UNSAID ? on : said == THINKING_ON;
}

/* ---- stop strings ---- */

static bool add_stop(reading *rd, const jtree *s, const char *name)
{
    recipe_parsing *p = &rd->q->parsing;

    if (s->n == 0)
        return convert_fail(rd,
                            "Invalid '%s': empty string. Expected a string with minimum length 1, "
                            "but got an empty string instead.",
                            name);
    if (s->n > RECIPE_MAX_STOP_BYTES)
        return convert_fail(rd, "Invalid '%s': string of %zu bytes, at most %d are supported", name,
                            s->n, RECIPE_MAX_STOP_BYTES);
    p->stop[p->n_stop] = s->text;
    p->stop_len[p->n_stop++] = s->n;
    return true;
}

bool settings_stop(reading *rd, const jtree *stop, bool one)
{
    size_t i = 0;

    if (!stop)
        return true;
    reading_at(rd, stop->key);
    if (one && stop->type == JSON_STRING)
        return add_stop(rd, stop, "stop");
    if (stop->n > RECIPE_MAX_STOP)
        return convert_fail(rd, "Stop string array too long: %zu", stop->n);
    for (const jtree *v = stop->child; v; v = v->next, i++) {
        const char *name = take_printf(rd, "stop[%zu]", i);

        if (!name || !add_stop(rd, v, name))
            return false;
    }
    return true;
}

/* ---- sampling ---- */

/* A number of the body within [min, max] (`open`: above min) or the text of the range. */
static bool in_range(reading *rd, const jtree *t, double min, bool open, double max, float *out,
                     uint32_t set, const char *name, const char *range)
{
    recipe_sampling *s = &rd->q->sampling;
    double v;

    if (!t)
        return true;
    reading_at(rd, t->key);
    v = jtree_real(t);
    if (!(open ? v > min : v >= min) || v > max)
        return convert_fail(rd, "Invalid %s value, the valid range of %s is %s", name, name, range);
    *out = (float)v;
    s->set |= set;
    return true;
}

/* Temperature and top_p as the recipe fixes them: for a body that does not say, and in mode STRICT
 * for every body. */
static void fix_sampling(reading *rd)
{
    const recipe_chat *c = &rd->q->chat;
    recipe_sampling *s = &rd->q->sampling;
    bool all = rd->strict;

    if (c->thinking && (all || !(s->set & RECIPE_SET_TEMPERATURE)))
        s->temperature = 1;
    if (!all && (s->set & RECIPE_SET_TOP_P))
        return;
    if (c->family == RECIPE_V41)
        s->top_p = !c->thinking ? 1 : s->top_p < 0.95f ? 0.95f : s->top_p;
    else if (c->thinking)
        s->top_p = recipe_has_tools(c) ? 0.95f : 1;
}

static bool read_n(reading *rd, const jtree *n)
{
    uint64_t max = rd->strict ? 1 : MAX_CHOICES;

    rd->q->sampling.n = 1;
    if (!n)
        return true;
    reading_at(rd, n->key);
    if (n->u64 < 1 || n->u64 > max)
        return rd->strict ? convert_fail(rd, "Invalid n value (currently only n = 1 is supported)")
                          : convert_fail(rd, "Invalid n value, the valid range of n is [1, %d]",
                                         MAX_CHOICES);
    rd->q->sampling.n = (int)n->u64;
    return true;
}

static bool read_logprobs(reading *rd, const settings *f)
{
    recipe_sampling *s = &rd->q->sampling;

    s->top_logprobs = -1;
    s->logprobs = is_true(f->logprobs);
    if (!f->top_logprobs)
        return true;
    reading_at(rd, f->top_logprobs->key);
    if (f->top_logprobs_alone)
        s->logprobs = true;
    if (!s->logprobs)
        return convert_fail(rd, "Invalid top_logprobs and logprobs value, logprobs must be set to "
                                "true if top_logprobs is used.");
    if (f->top_logprobs->u64 > 20)
        return convert_fail(
            rd, "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].");
    s->top_logprobs = (int)f->top_logprobs->u64;
    return true;
}

static bool read_max_tokens(reading *rd, const settings *f)
{
    recipe_request *q = rd->q;
    uint32_t bound = q->chat.thinking ? q->max_tokens_thinking : q->max_tokens_plain;
    uint64_t v;

    q->sampling.max_tokens = -1;
    if (!f->max_tokens)
        return true;
    reading_at(rd, f->max_tokens->key);
    v = f->max_tokens->u64;
    if (v > bound && f->clamp_max_tokens)
        v = bound;
    if (v < 1 || v > bound)
        return convert_fail(
            rd, "Invalid max_tokens value, the valid range of max_tokens is [1, %u]", bound);
    q->sampling.max_tokens = (int64_t)v;
    q->sampling.set |= RECIPE_SET_MAX_TOKENS;
    return true;
}

static bool read_seed(reading *rd, const jtree *seed)
{
    if (!seed)
        return true;
    reading_at(rd, seed->key);
    if (seed->u64 > INT64_MAX)
        return convert_fail(rd, "Invalid seed value, the valid range of seed is [0, 2^63)");
    rd->q->sampling.seed = seed->u64;
    rd->q->sampling.set |= RECIPE_SET_SEED;
    return true;
}

/* A key of logit_bias: a token id in decimal digits. */
static bool bias_id(const jtree *t, int32_t *id)
{
    int64_t v = 0;

    if (t->n_key == 0 || t->n_key > 9)
        return false;
    for (size_t i = 0; i < t->n_key; i++) {
        if (t->key[i] < '0' || t->key[i] > '9')
            return false;
        v = v * 10 + (t->key[i] - '0');
    }
    *id = (int32_t)v;
    return true;
}

static bool read_bias(reading *rd, const jtree *biases)
{
    recipe_sampling *s = &rd->q->sampling;
    recipe_bias *bias;

    if (!biases)
        return true;
    reading_at(rd, biases->key);
    bias = take_memory(rd, biases->n, sizeof *bias);
    if (!bias)
        return false;
    for (const jtree *v = biases->child; v; v = v->next) {
        recipe_bias *b = &bias[s->n_bias];

        if (!bias_id(v, &b->id))
            return convert_fail(rd, "logit_bias names \"%s\", which is not a token id", v->key);
        if (v->type != JSON_NUMBER || fabs(jtree_real(v)) > 100)
            return convert_fail(rd, "Invalid logit_bias value, the valid range is [-100, 100]");
        b->bias = (float)jtree_real(v);
        s->n_bias++;
    }
    s->bias = bias;
    s->set |= RECIPE_SET_LOGIT_BIAS;
    return true;
}

static bool read_stop_ids(reading *rd, const jtree *ids)
{
    recipe_sampling *s = &rd->q->sampling;

    if (!ids)
        return true;
    reading_at(rd, ids->key);
    if (ids->n > RECIPE_MAX_STOP_IDS)
        return convert_fail(rd, "stop_token_ids has %zu entries, but at most %d are allowed",
                            ids->n, RECIPE_MAX_STOP_IDS);
    for (const jtree *v = ids->child; v; v = v->next) {
        int64_t id;

        if (!jtree_whole(v, &id) || id < 0 || id > INT32_MAX)
            return convert_fail(rd, "stop_token_ids must hold token ids");
        s->stop_id[s->n_stop_ids++] = (int32_t)id;
    }
    return true;
}

/* -1 means all, as in vLLM. */
static bool read_top_k(reading *rd, const jtree *t)
{
    recipe_sampling *s = &rd->q->sampling;
    int64_t v;

    if (!t)
        return true;
    reading_at(rd, t->key);
    if (!jtree_whole(t, &v) || v < -1 || v > INT32_MAX)
        return convert_fail(rd, "Invalid top_k value, it must be an integer from -1 on");
    s->top_k = v < 0 ? 0 : (int32_t)v;
    s->set |= RECIPE_SET_TOP_K;
    return true;
}

bool settings_apply(reading *rd, const settings *f)
{
    recipe_sampling *s = &rd->q->sampling;

    s->temperature = s->top_p = s->repetition_penalty = 1;
    if (!read_n(rd, f->n) ||
        !in_range(rd, f->presence, -2, false, 2, &s->presence_penalty, RECIPE_SET_PRESENCE,
                  "presence_penalty", "[-2, 2]") ||
        !in_range(rd, f->frequency, -2, false, 2, &s->frequency_penalty, RECIPE_SET_FREQUENCY,
                  "frequency_penalty", "[-2, 2]") ||
        !in_range(rd, f->temperature, 0, false, 2, &s->temperature, RECIPE_SET_TEMPERATURE,
                  "temperature", "[0, 2]") ||
        !in_range(rd, f->top_p, 0, true, 1, &s->top_p, RECIPE_SET_TOP_P, "top_p", "(0, 1.0]") ||
        !read_logprobs(rd, f) || !read_max_tokens(rd, f) || !read_seed(rd, f->seed) ||
        !in_range(rd, f->min_p, 0, false, 1, &s->min_p, RECIPE_SET_MIN_P, "min_p", "[0, 1]") ||
        !in_range(rd, f->repetition, 0, true, 2, &s->repetition_penalty, RECIPE_SET_REPETITION,
                  "repetition_penalty", "(0, 2]") ||
        !read_top_k(rd, f->top_k) || !read_bias(rd, f->logit_bias) ||
        !read_stop_ids(rd, f->stop_ids))
        return false;
    s->ignore_eos = is_true(f->ignore_eos);
    if (rd->strict)
        s->presence_penalty = s->frequency_penalty = 0; /* checked, then dropped */
    fix_sampling(rd);
    return true;
}

bool recipe_resolve_max_tokens(const recipe_request *q, int64_t n_prompt, int64_t context,
                               int64_t *out, recipe_error *e)
{
    int64_t asked = q->sampling.max_tokens, room = context - n_prompt, limit = 65536;
    int64_t completion = asked > 0 ? asked : 0, all = n_prompt + completion;

    /* Clients of Messages must say max_tokens and say what their largest model can do. */
    if (q->protocol == RECIPE_PROTOCOL_MESSAGES && q->mode == RECIPE_CLIENT && room > 0 &&
        asked > room)
        asked = completion = room;
    if (room < completion) {
        recipe_fail(e, 400,
                    "This model's maximum context length is %lld tokens. However, you requested "
                    "%lld tokens (%lld in the messages, %lld in the completion). Please reduce the "
                    "length of the messages or completion.",
                    (long long)context, (long long)all, (long long)n_prompt, (long long)completion);
        if (q->mode == RECIPE_CLIENT) {
            e->code = "context_length_exceeded";
            e->param = q->protocol == RECIPE_PROTOCOL_RESPONSES ? "input" : "messages";
        }
        return false;
    }
    if (asked > 0) {
        *out = asked;
        return true;
    }
    if (!q->chat.thinking)
        limit = 8192;
    else if (q->chat.effort == RECIPE_EFFORT_MAX)
        limit = 131072;
    if (limit > room)
        limit = room;
    *out = limit < 1 ? 1 : limit;
    return true;
}
