/* Reading the body of POST /v1/completions: OpenAI's fields, and vLLM's that benchmarks use. */
#include "server/completions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/fields.h"

#define MAX_TOP        20
#define DEFAULT_TOKENS 16
#define MAX_BIAS       1024

/* NULL: there are too many, *st says so. */
static completion_prompt *new_prompt(completion_body *b, di_status *st)
{
    if (b->n_prompts < COMPLETION_MAX_PROMPTS)
        return &b->prompt[b->n_prompts++];
    di_fail(st, DI_E_INVALID, "prompt holds more than %d prompts", COMPLETION_MAX_PROMPTS);
    return NULL;
}

static di_code read_text_prompt(completion_body *b, const backend *be, json_read *r, di_status *st)
{
    completion_prompt *p = new_prompt(b, st);
    di_code rc;

    if (!p)
        return st->code;
    DI_TRY(field_text(r, "prompt", b->mem, &p->text, &p->n_text, st));
    if (be->info.bos >= 0)
        DI_TRY(tok_ids_push(&p->ids, be->info.bos, st));
    DI_TRY(tokenizer_encode(be->tok, p->text, p->n_text, false, &p->ids, st));
    if (p->n_text == 0)
        rc = di_fail(st, DI_E_INVALID, "prompt must not be empty");
done:
    return rc;
}

/* The rest of a list of ids whose first element comes next. */
static di_code read_id_prompt(completion_body *b, const backend *be, json_read *r, di_status *st)
{
    completion_prompt *p = new_prompt(b, st);
    di_code rc;

    if (!p)
        return st->code;
    do {
        int32_t id;

        DI_TRY(field_id(r, "prompt: a token id", be->info.vocab, &id, st));
        DI_TRY(tok_ids_push(&p->ids, id, st));
    } while (json_item(r));
done:
    return rc;
}

static di_code read_prompts(completion_body *b, const backend *be, json_read *r, di_status *st)
{
    di_code rc = DI_OK;

    if (json_peek(r) == JSON_STRING)
        return read_text_prompt(b, be, r, st);
    if (json_peek(r) != JSON_ARRAY)
        return field_invalid(st, "prompt", "a string, a list of token ids, or a list of either");
    DI_TRY(json_array(r, st));
    while (json_item(r)) {
        json_type t = json_peek(r);

        if (t == JSON_NUMBER && b->n_prompts == 0)
            return read_id_prompt(b, be, r, st);
        if (t == JSON_STRING) {
            DI_TRY(read_text_prompt(b, be, r, st));
        } else if (t == JSON_ARRAY) {
            DI_TRY(json_array(r, st));
            if (!json_item(r))
                return di_fail(st, DI_E_INVALID, "prompt must not be an empty list");
            DI_TRY(read_id_prompt(b, be, r, st));
        } else {
            return field_invalid(st, "prompt",
                                 "a string, a list of token ids, or a list of either");
        }
    }
    if (b->n_prompts == 0)
        rc = di_fail(st, DI_E_INVALID, "prompt must not be an empty list");
done:
    return rc;
}

static di_code read_stop(completion_body *b, json_read *r, di_status *st)
{
    di_code rc = DI_OK;
    size_t n;

    b->p.n_stop = 0;
    if (json_peek(r) == JSON_STRING) {
        DI_TRY(field_text(r, "stop", b->mem, &b->stop[0], &n, st));
        b->p.n_stop = 1;
    } else if (json_peek(r) == JSON_ARRAY) {
        DI_TRY(json_array(r, st));
        while (json_item(r)) {
            if (b->p.n_stop == STOP_MAX)
                return di_fail(st, DI_E_INVALID, "stop holds more than %d strings", STOP_MAX);
            DI_TRY(field_text(r, "stop", b->mem, &b->stop[b->p.n_stop], &n, st));
            b->p.n_stop++;
        }
    } else {
        return field_invalid(st, "stop", "a string or a list of strings");
    }
    for (int i = 0; i < b->p.n_stop; i++)
        if (!*b->stop[i])
            return field_invalid(st, "stop", "without empty strings");
done:
    return rc;
}

static di_code read_stop_ids(completion_body *b, const backend *be, json_read *r, di_status *st)
{
    di_code rc;

    b->p.n_stop_ids = 0;
    if (json_peek(r) != JSON_ARRAY)
        return field_invalid(st, "stop_token_ids", "a list of token ids");
    DI_TRY(json_array(r, st));
    while (json_item(r)) {
        if (b->p.n_stop_ids == COMPLETION_MAX_STOP_IDS)
            return di_fail(st, DI_E_INVALID, "stop_token_ids holds more than %d ids",
                           COMPLETION_MAX_STOP_IDS);
        DI_TRY(field_id(r, "stop_token_ids", be->info.vocab, &b->stop_ids[b->p.n_stop_ids], st));
        b->p.n_stop_ids++;
    }
done:
    return rc;
}

static di_code read_bias(completion_body *b, const backend *be, json_read *r, di_status *st)
{
    const char *key;
    size_t n;
    di_code rc;

    b->p.n_bias = 0;
    if (json_peek(r) != JSON_OBJECT)
        return field_invalid(st, "logit_bias", "an object from token ids to numbers");
    b->bias = arena_alloc(b->mem, MAX_BIAS, sizeof *b->bias);
    if (!b->bias)
        return di_fail(st, DI_E_NOMEM, "no memory for a request");
    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        di_logit_bias *e = &b->bias[b->p.n_bias];
        char word[24], *end; /* a key has no 0 behind it */
        long long id;

        snprintf(word, sizeof word, "%.*s", n < sizeof word ? (int)n : (int)sizeof word - 1, key);
        id = strtoll(word, &end, 10);
        if (b->p.n_bias == MAX_BIAS)
            return di_fail(st, DI_E_INVALID, "logit_bias holds more than %d ids", MAX_BIAS);
        if (n == 0 || n >= sizeof word || *end || id < 0 || id >= be->info.vocab)
            return di_fail(st, DI_E_INVALID, "logit_bias holds \"%s\", but ids run from 0 to %d",
                           word, be->info.vocab - 1);
        e->id = (int32_t)id;
        DI_TRY(field_real(r, "logit_bias", -100, 100, &e->bias, st));
        b->p.n_bias++;
    }
done:
    return rc;
}

static di_code read_stream_options(completion_body *b, json_read *r, di_status *st)
{
    const char *key;
    size_t n;
    di_code rc;

    if (json_peek(r) != JSON_OBJECT)
        return field_invalid(st, "stream_options", "an object");
    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        if (json_key_is(key, n, "include_usage"))
            DI_TRY(field_bool(r, "stream_options.include_usage", &b->include_usage, st));
        else
            DI_TRY(json_skip(r, st));
    }
done:
    return rc;
}

static di_code read_logprobs(completion_body *b, json_read *r, di_status *st)
{
    bool on;
    int64_t v;
    di_code rc = DI_OK;

    if (json_peek(r) == JSON_BOOL) {
        DI_TRY(json_bool(r, &on, st));
        b->logprobs = on ? 0 : -1;
    } else {
        DI_TRY(field_int(r, "logprobs", 0, MAX_TOP, &v, st));
        b->logprobs = (int)v;
    }
done:
    return rc;
}

/* Fields that are one number or switch. False: the key is not one of them. */
static bool read_simple(completion_body *b, const backend *be, json_read *r, const char *key,
                        size_t n, di_code *rc, di_status *st)
{
    di_request_params *p = &b->p;
    int64_t v = 0;

#define IS(name) json_key_is(key, n, name)
    if (IS("max_tokens") || IS("max_completion_tokens")) {
        *rc = field_int(r, "max_tokens", 0, INT32_MAX, &p->max_tokens, st);
    } else if (IS("min_tokens")) {
        *rc = field_int(r, "min_tokens", 0, INT32_MAX, &p->min_tokens, st);
    } else if (IS("n") || IS("best_of")) {
        *rc = field_int(r, "n", 1, COMPLETION_MAX_CHOICES, &v, st);
        p->n = IS("n") || v > p->n ? (int)v : p->n;
    } else if (IS("seed")) {
        *rc = field_int(r, "seed", 0, INT64_MAX, &v, st);
        p->seed = (uint64_t)v;
        p->has_seed = true;
    } else if (IS("temperature")) {
        *rc = field_real(r, "temperature", 0, 2, &p->temperature, st);
    } else if (IS("top_p")) {
        *rc = field_real(r, "top_p", 1e-9, 1, &p->top_p, st);
    } else if (IS("min_p")) {
        *rc = field_real(r, "min_p", 0, 1, &p->min_p, st);
    } else if (IS("top_k")) {
        *rc = field_int(r, "top_k", -1, INT32_MAX, &v, st);
        p->top_k = v < 0 ? 0 : (int32_t)v;
    } else if (IS("repetition_penalty")) {
        *rc = field_real(r, "repetition_penalty", 1e-6, 100, &p->repetition_penalty, st);
    } else if (IS("presence_penalty")) {
        *rc = field_real(r, "presence_penalty", -2, 2, &p->presence_penalty, st);
    } else if (IS("frequency_penalty")) {
        *rc = field_real(r, "frequency_penalty", -2, 2, &p->frequency_penalty, st);
    } else if (IS("ignore_eos")) {
        *rc = field_bool(r, "ignore_eos", &p->ignore_eos, st);
    } else if (IS("skip_special_tokens")) {
        *rc = field_bool(r, "skip_special_tokens", &p->skip_special, st);
    } else if (IS("priority")) {
        *rc = field_int(r, "priority", -1000, 1000, &v, st);
        p->priority = (int)-v; /* vLLM: lower first */
    } else if (IS("stream")) {
        *rc = field_bool(r, "stream", &b->stream, st);
    } else if (IS("echo")) {
        *rc = field_bool(r, "echo", &b->echo, st);
    } else if (IS("return_token_ids")) {
        *rc = field_bool(r, "return_token_ids", &b->return_ids, st);
    } else {
        return false;
    }
    (void)be;
    return true;
}

static di_code read_field(completion_body *b, const backend *be, json_read *r, const char *key,
                          size_t n, di_status *st)
{
    const char *text;
    di_code rc = DI_OK;

    if (json_peek(r) == JSON_NULL)
        return json_skip(r, st);
    if (read_simple(b, be, r, key, n, &rc, st))
        return rc;
    if (IS("model")) {
        DI_TRY(field_text(r, "model", b->mem, &text, &n, st));
        snprintf(b->model, sizeof b->model, "%s", text);
    } else if (IS("prompt")) {
        for (int i = 0; i < b->n_prompts; i++) /* of a repeated key the last counts */
            tok_ids_fini(&b->prompt[i].ids);
        memset(b->prompt, 0, sizeof b->prompt);
        b->n_prompts = 0;
        rc = read_prompts(b, be, r, st);
    } else if (IS("stop")) {
        rc = read_stop(b, r, st);
    } else if (IS("stop_token_ids")) {
        rc = read_stop_ids(b, be, r, st);
    } else if (IS("logit_bias")) {
        rc = read_bias(b, be, r, st);
    } else if (IS("logprobs")) {
        rc = read_logprobs(b, r, st);
    } else if (IS("stream_options")) {
        rc = read_stream_options(b, r, st);
    } else if (IS("suffix")) {
        DI_TRY(field_text(r, "suffix", b->mem, &text, &n, st));
        if (n)
            rc = field_invalid(st, "suffix", "absent: this model does not fill in the middle");
    } else {
        rc = json_skip(r, st);
    }
#undef IS
done:
    return rc;
}

static di_code check_body(completion_body *b, const server *s, di_status *st)
{
    if (!*b->model)
        return field_invalid(st, "model", "given");
    if (b->n_prompts == 0)
        return field_invalid(st, "prompt", "given");
    if (b->echo && b->stream)
        return field_invalid(st, "echo", "false when stream is true");
    if (b->p.max_tokens < 0)
        b->p.max_tokens = DEFAULT_TOKENS;
    for (int i = 0; i < b->n_prompts; i++)
        if ((int64_t)b->prompt[i].ids.n > s->be->context) {
            b->too_long = true;
            return di_fail(st, DI_E_INVALID,
                           "This model's maximum context length is %lld tokens. However, your "
                           "prompt has %zu tokens. Please reduce the length of the prompt.",
                           (long long)s->be->context, b->prompt[i].ids.n);
        }
    b->p.logprobs = b->logprobs >= 0;
    b->p.top_logprobs = b->logprobs > 0 ? b->logprobs : 0;
    b->p.prompt_logprobs = b->echo && b->logprobs >= 0;
    b->p.stop = b->stop;
    b->p.stop_ids = b->stop_ids;
    b->p.bias = b->bias;
    return DI_OK;
}

di_code completion_read(completion_body *b, const server *s, const char *text, size_t n_text,
                        di_status *st)
{
    json_read r;
    const char *key;
    size_t n;
    di_code rc;

    json_open(&r, text, n_text, "the body");
    b->logprobs = -1;
    b->p = (di_request_params){.max_tokens = -1, .temperature = -1, .n = 1, .skip_special = true};
    b->mem = arena_new(4096);
    if (!b->mem) {
        rc = di_fail(st, DI_E_NOMEM, "no memory for a request");
        goto done;
    }
    DI_TRY(json_object(&r, st));
    while (json_key(&r, &key, &n))
        DI_TRY(read_field(b, s->be, &r, key, n, st));
    DI_TRY(json_end(&r, st));
    rc = check_body(b, s, st);
done:
    json_close(&r);
    return rc;
}

void completion_body_fini(completion_body *b)
{
    for (int i = 0; i < b->n_prompts; i++)
        tok_ids_fini(&b->prompt[i].ids);
    arena_free(b->mem);
}
