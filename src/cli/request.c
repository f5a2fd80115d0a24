/* Reads a line twice: once for the batch envelope, once for the body. See request.h.
 *
 * Fields are read by a table of names and readers; what depends on several of them (prompt, length)
 * is settled at the end, so their order in the line does not matter. */
#include "cli/request.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>

#include "base/json_read.h"
#include "base/utf8.h"
#include "recipe/prompt.h"
#include "recipe/request.h"

/* Bounds of the recipe on the length of an answer whose request does not say (spec recipe.md 4). */
#define LENGTH_PLAIN    8192
#define LENGTH_THINKING 65536
#define LENGTH_MAX      131072

/* A body while its fields come in. */
typedef struct body {
    request *r;
    const request_defaults *d;
    json_read in;
    str chat;           /* "messages", "thinking", "reasoning_effort" as members of a Chat body */
    const char *prompt; /* in the arena; NULL = not given as text */
    size_t n_prompt;
    bool has_text, has_ids, has_messages, has_effort;
    int64_t max_tokens; /* -1 = not given */
    bool logprobs_on, ignore_eos;
    constraint constraint;
    int64_t logprobs, top_logprobs; /* -1 = not given */
} body;

void request_init(request *r)
{
    *r = (request){.logprobs = -1};
}

void request_fini(request *r)
{
    arena_free(r->mem);
    str_fini(&r->custom_id);
    tok_ids_fini(&r->ids);
    grammar_prog_unref(r->prog);
    request_init(r);
}

static di_code no_memory(di_status *st)
{
    return di_fail(st, DI_E_NOMEM, "no memory for a request");
}

static di_code read_int(body *b, const char *field, int64_t min, int64_t max, int64_t *out,
                        di_status *st)
{
    int64_t v = 0;
    di_code rc = json_int(&b->in, &v, st);

    if (rc != DI_OK)
        return rc;
    if (v < min || v > max)
        return di_fail(st, DI_E_INVALID, "%s is %lld, but must be from %lld to %lld", field,
                       (long long)v, (long long)min, (long long)max);
    *out = v;
    return DI_OK;
}

/* The sampler checks the range; a double that no float holds becomes infinite and fails there. */
static di_code read_real(body *b, float *out, di_status *st)
{
    double v;
    di_code rc = json_number(&b->in, &v, st);

    if (rc == DI_OK)
        *out = (float)v;
    return rc;
}

static di_code read_ids(body *b, const char *field, di_status *st)
{
    tok_ids *ids = &b->r->ids;
    int64_t v = 0;
    di_code rc;

    ids->n = 0;
    b->has_ids = true;
    DI_TRY(json_array(&b->in, st));
    while (json_item(&b->in)) {
        DI_TRY(json_int(&b->in, &v, st));
        if (v < 0 || v >= b->d->vocab) {
            rc = di_fail(st, DI_E_INVALID, "%s[%zu] is %lld, but ids run from 0 to %d", field,
                         ids->n, (long long)v, b->d->vocab - 1);
            goto done;
        }
        DI_TRY(tok_ids_push(ids, (int32_t)v, st));
    }
done:
    return rc;
}

static di_code read_text(body *b, di_status *st)
{
    const char *s;
    size_t n;
    di_code rc = json_string(&b->in, &s, &n, st);

    if (rc != DI_OK)
        return rc;
    b->has_text = true;
    b->n_prompt = n;
    b->prompt = arena_strndup(b->r->mem, s, n);
    return b->prompt ? DI_OK : no_memory(st);
}

/* "prompt" of completions may also be a list of ids. */
static di_code read_prompt(body *b, di_status *st)
{
    return json_peek(&b->in) == JSON_ARRAY ? read_ids(b, "prompt", st) : read_text(b, st);
}

static di_code add_stop(body *b, const char *s, size_t n, di_status *st)
{
    request *r = b->r;

    if (r->n_stop == STOP_MAX)
        return di_fail(st, DI_E_INVALID, "stop has more than %d strings", STOP_MAX);
    if (n == 0)
        return di_fail(st, DI_E_INVALID,
                       "Invalid 'stop': empty string. Expected a string with minimum length 1, but "
                       "got an empty string instead.");
    r->stop[r->n_stop] = arena_strndup(r->mem, s, n);
    if (!r->stop[r->n_stop])
        return no_memory(st);
    r->stop_len[r->n_stop++] = n;
    return DI_OK;
}

static di_code read_stop(body *b, di_status *st)
{
    const char *s;
    size_t n;
    di_code rc;

    b->r->n_stop = 0;
    if (json_peek(&b->in) != JSON_ARRAY) {
        rc = json_string(&b->in, &s, &n, st);
        return rc == DI_OK ? add_stop(b, s, n, st) : rc;
    }
    DI_TRY(json_array(&b->in, st));
    while (json_item(&b->in)) {
        DI_TRY(json_string(&b->in, &s, &n, st));
        DI_TRY(add_stop(b, s, n, st));
    }
done:
    return rc;
}

static di_code read_stop_ids(body *b, di_status *st)
{
    request *r = b->r;
    int64_t v = 0;
    di_code rc;

    r->n_stop_ids = 0;
    DI_TRY(json_array(&b->in, st));
    while (json_item(&b->in)) {
        if (r->n_stop_ids == REQUEST_MAX_STOP_IDS) {
            rc = di_fail(st, DI_E_INVALID, "stop_token_ids has more than %d ids",
                         REQUEST_MAX_STOP_IDS);
            goto done;
        }
        DI_TRY(read_int(b, "stop_token_ids", 0, b->d->vocab - 1, &v, st));
        r->stop_id[r->n_stop_ids++] = (int32_t)v;
    }
done:
    return rc;
}

/* A key of logit_bias: a token id in decimal digits. */
static bool bias_id(const char *key, size_t n, int32_t *id)
{
    int64_t v = 0;

    if (n == 0 || n > 9)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (key[i] < '0' || key[i] > '9')
            return false;
        v = v * 10 + (key[i] - '0');
    }
    *id = (int32_t)v;
    return true;
}

static di_code read_bias(body *b, di_status *st)
{
    sampling_params *p = &b->r->sampling;
    logit_bias *bias = arena_alloc(b->r->mem, SAMPLER_MAX_BIAS, sizeof *bias);
    const char *key;
    size_t n;
    int32_t count = 0;
    di_code rc;

    if (!bias)
        return no_memory(st);
    DI_TRY(json_object(&b->in, st));
    while (json_key(&b->in, &key, &n)) {
        if (count == SAMPLER_MAX_BIAS) {
            rc = di_fail(st, DI_E_INVALID, "logit_bias has more than %d entries", SAMPLER_MAX_BIAS);
            goto done;
        }
        if (!bias_id(key, n, &bias[count].id)) {
            rc = di_fail(st, DI_E_INVALID, "logit_bias names \"%.*s\", which is not a token id",
                         n > 40 ? 40 : (int)n, key);
            goto done;
        }
        DI_TRY(read_real(b, &bias[count].bias, st));
        count++;
    }
    p->bias = bias;
    p->n_bias = count;
done:
    return rc;
}

/* "logprobs": true (chat) or a number of alternatives (completions). */
static di_code read_logprobs(body *b, di_status *st)
{
    if (json_peek(&b->in) == JSON_BOOL) {
        b->logprobs = -1;
        return json_bool(&b->in, &b->logprobs_on, st);
    }
    b->logprobs_on = true;
    return read_int(b, "logprobs", 0, 20, &b->logprobs, st);
}

static di_code read_seed(body *b, di_status *st)
{
    int64_t v = 0;
    di_code rc = read_int(b, "seed", 0, INT64_MAX, &v, st);

    if (rc == DI_OK)
        b->r->sampling.seed = (uint64_t)v;
    return rc;
}

static di_code read_n(body *b, di_status *st)
{
    int64_t v = 0;
    di_code rc = json_int(&b->in, &v, st);

    if (rc == DI_OK && v != 1)
        rc = di_fail(st, DI_E_INVALID, "Invalid n value (currently only n = 1 is supported)");
    return rc;
}

static di_code read_max_tokens(body *b, di_status *st)
{
    return read_int(b, "max_tokens", 0, 393216, &b->max_tokens, st);
}

static di_code read_top_k(body *b, di_status *st)
{
    int64_t v = 0;
    di_code rc = read_int(b, "top_k", -1, INT32_MAX, &v, st);

    if (rc == DI_OK)
        b->r->sampling.top_k = v < 0 ? 0 : (int32_t)v; /* -1: all, as in vLLM */
    return rc;
}

static di_code read_model(body *b, di_status *st)
{
    const char *s;
    size_t n;
    di_code rc = json_string(&b->in, &s, &n, st);

    if (rc != DI_OK)
        return rc;
    if (n >= sizeof b->r->model)
        return di_fail(st, DI_E_INVALID, "model has a name of %zu bytes", n);
    memcpy(b->r->model, s, n);
    b->r->model[n] = 0;
    return DI_OK;
}

static di_code refuse(const char *field, di_status *st)
{
    return di_fail(st, DI_E_UNSUPPORTED, "\"%s\" is not supported by this program", field);
}

static di_code read_tools(body *b, di_status *st)
{
    di_code rc = json_array(&b->in, st);

    if (rc == DI_OK && json_item(&b->in))
        rc = refuse("tools", st);
    return rc;
}

static di_code read_format(body *b, di_status *st)
{
    return constraint_read(&b->constraint, &b->in, b->r->mem, st);
}

/* Keep a member for src/recipe, which reads conversations. */
static di_code keep_member(body *b, const char *key, di_status *st)
{
    const char *raw;
    size_t n;
    di_code rc = json_raw(&b->in, &raw, &n, st);

    if (rc != DI_OK)
        return rc;
    str_printf(&b->chat, ", \"%s\": ", key);
    str_append(&b->chat, raw, n);
    return DI_OK;
}

static di_code read_messages(body *b, di_status *st)
{
    b->has_messages = true;
    return keep_member(b, "messages", st);
}

static di_code read_token_ids(body *b, di_status *st)
{
    return read_ids(b, "prompt_token_ids", st);
}

#define REAL_READER(field)                                                                         \
    static di_code read_##field(body *b, di_status *st)                                            \
    {                                                                                              \
        return read_real(b, &b->r->sampling.field, st);                                            \
    }
REAL_READER(temperature)
REAL_READER(top_p)
REAL_READER(min_p)
REAL_READER(repetition_penalty)
REAL_READER(presence_penalty)
REAL_READER(frequency_penalty)

static di_code read_thinking(body *b, di_status *st)
{
    return keep_member(b, "thinking", st);
}

static di_code read_effort(body *b, di_status *st)
{
    b->has_effort = true;
    return keep_member(b, "reasoning_effort", st);
}

static di_code read_top_logprobs(body *b, di_status *st)
{
    return read_int(b, "top_logprobs", 0, 20, &b->top_logprobs, st);
}

static di_code read_ignore_eos(body *b, di_status *st)
{
    return json_bool(&b->in, &b->ignore_eos, st);
}

static di_code read_echo(body *b, di_status *st)
{
    return json_bool(&b->in, &b->r->echo, st);
}

static const struct {
    const char *name;
    di_code (*read)(body *b, di_status *st);
} fields[] = {
    {"prompt", read_prompt},
    {"prompt_token_ids", read_token_ids},
    {"messages", read_messages},
    {"model", read_model},
    {"max_tokens", read_max_tokens},
    {"max_completion_tokens", read_max_tokens},
    {"temperature", read_temperature},
    {"top_p", read_top_p},
    {"min_p", read_min_p},
    {"top_k", read_top_k},
    {"repetition_penalty", read_repetition_penalty},
    {"presence_penalty", read_presence_penalty},
    {"frequency_penalty", read_frequency_penalty},
    {"logit_bias", read_bias},
    {"seed", read_seed},
    {"n", read_n},
    {"stop", read_stop},
    {"stop_token_ids", read_stop_ids},
    {"ignore_eos", read_ignore_eos},
    {"logprobs", read_logprobs},
    {"top_logprobs", read_top_logprobs},
    {"echo", read_echo},
    {"thinking", read_thinking},
    {"reasoning_effort", read_effort},
    {"tools", read_tools},
    {"response_format", read_format},
};

static di_code read_fields(body *b, di_status *st)
{
    const char *key;
    size_t n;
    di_code rc;

    DI_TRY(json_object(&b->in, st));
    while (json_key(&b->in, &key, &n)) {
        size_t i = 0;

        while (i < ARRAY_LEN(fields) && !json_key_is(key, n, fields[i].name))
            i++;
        /* null counts as absent; what must not be null says so by having no value at all. */
        if (i == ARRAY_LEN(fields) || json_peek(&b->in) == JSON_NULL)
            DI_TRY(json_skip(&b->in, st));
        else
            DI_TRY(fields[i].read(b, st));
    }
    DI_TRY(json_end(&b->in, st));
done:
    return rc;
}

di_code request_max_tokens(int64_t asked, bool strict, int64_t n_prompt, int64_t context,
                           const recipe_chat *chat, int64_t *out, di_status *st)
{
    int64_t room = context - n_prompt, limit = LENGTH_THINKING;
    int64_t completion = asked > 0 ? asked : 0, all = n_prompt + completion;

    if (room < 0 || (strict && asked > (room ? room : 1)))
        return di_fail(st, DI_E_INVALID,
                       "This model's maximum context length is %lld tokens. However, you requested "
                       "%lld tokens (%lld in the messages, %lld in the completion). Please reduce "
                       "the length of the messages or completion.",
                       (long long)context, (long long)all, (long long)n_prompt,
                       (long long)completion);
    if (asked < 0) {
        if (!chat || !chat->thinking)
            limit = LENGTH_PLAIN;
        else if (chat->effort == RECIPE_EFFORT_MAX)
            limit = LENGTH_MAX;
        asked = limit;
    } else if (asked == 0) {
        *out = 0;
        return DI_OK;
    }
    if (room == 0)
        room = 1; /* the prompt fills the context: its last row still gives a token */
    *out = asked < room ? asked : room;
    return DI_OK;
}

/* No program of this directory offers tools, so no answer of a chat may open a call. */
static di_code ban_calls(request *r, const request_defaults *d, di_status *st)
{
    int32_t id = recipe_call_id(d->tok, d->vocab), *banned;

    if (id < 0)
        return DI_OK;
    banned = arena_alloc(r->mem, 1, sizeof *banned);
    if (!banned)
        return di_fail(st, DI_E_NOMEM, "no memory for a request");
    *banned = id;
    r->sampling.banned = banned;
    r->sampling.n_banned = 1;
    return DI_OK;
}

static di_code encode_chat(request *r, const request_defaults *d, const recipe_chat *chat,
                           di_status *st)
{
    recipe_prompt p = {0};
    di_code rc;

    r->starts_in_reasoning = recipe_starts_in_reasoning(chat);
    DI_TRY(ban_calls(r, d, st));
    DI_TRY(recipe_render(chat, NULL, &p, st));
    DI_TRY(recipe_encode(d->tok, &p, &r->ids, st));
done:
    recipe_prompt_fini(&p);
    return rc;
}

static di_code encode_text(request *r, const request_defaults *d, const char *text, size_t n,
                           di_status *st)
{
    di_code rc;

    if (n == 0)
        return di_fail(st, DI_E_INVALID, "the prompt is empty");
    DI_TRY(tok_ids_push(&r->ids, d->bos, st));
    DI_TRY(tokenizer_encode(d->tok, text, n, false, &r->ids, st));
done:
    return rc;
}

/* Stop ids of a request: the end of sentence, unless it is to be ignored, and its own. */
static void add_eos(request *r, int eos, bool ignore)
{
    if (!ignore)
        r->stop_id[r->n_stop_ids++] = eos;
}

static di_code compile(request *r, const request_defaults *d, const constraint *c, di_status *st)
{
    if (!c->on)
        return DI_OK;
    if (!d->grammar)
        return di_fail(st, DI_E_UNSUPPORTED, "constraints are not available here");
    return grammar_compile(d->grammar, &c->spec, &r->prog, NULL, st);
}

di_code request_mask(const request *r, grammar_state **out, di_status *st)
{
    const grammar_start start = {.last_token = r->ids.ids[r->ids.n - 1],
                                 .in_reasoning = r->starts_in_reasoning};

    *out = NULL;
    return r->prog ? grammar_state_new(r->prog, &start, out, st) : DI_OK;
}

static di_code settle_logprobs(const body *b, di_status *st)
{
    request *r = b->r;

    if (b->top_logprobs >= 0 && !b->logprobs_on)
        return di_fail(st, DI_E_INVALID,
                       "Invalid top_logprobs and logprobs value, logprobs must be set to true if "
                       "top_logprobs is used.");
    if (b->logprobs_on)
        r->logprobs = b->top_logprobs >= 0 ? (int)b->top_logprobs
                      : b->logprobs >= 0   ? (int)b->logprobs
                                           : 0;
    return DI_OK;
}

/* The conversation of the body; q owns what it shows. */
static di_code read_chat(const body *b, recipe_request *q, di_status *st)
{
    const recipe_alias any = {"*", RECIPE_V41};
    const recipe_options o = {.thinking_off = !b->d->thinking, .alias = &any, .n_alias = 1};
    recipe_error e;
    str text = {0};
    di_code rc = DI_OK;

    str_puts(&text, "{\"model\": \"\"");
    str_append(&text, str_text(&b->chat), b->chat.len);
    str_putc(&text, '}');
    if (!str_ok(&text) || !str_ok(&b->chat))
        rc = no_memory(st);
    else if (!recipe_request_parse(q, RECIPE_PROTOCOL_CHAT, &o, text.data, text.len, &e))
        rc = di_fail(st, e.status == 503 ? DI_E_NOMEM : DI_E_INVALID, "%s", e.message);
    else if (q->n_images)
        rc = di_fail(st, DI_E_UNSUPPORTED, "%s: images are not supported by this program",
                     q->image[0].path);
    else if (!b->has_effort)
        q->chat.effort = b->d->effort;
    str_fini(&text);
    return rc;
}

/* All fields are there: prompt, length and parameters. */
static di_code settle(body *b, di_status *st)
{
    request *r = b->r;
    const request_defaults *d = b->d;
    recipe_request q = {0};
    int n_prompts = b->has_text + b->has_ids + b->has_messages;
    di_code rc;

    if (n_prompts != 1)
        return di_fail(st, DI_E_INVALID,
                       n_prompts ? "only one of \"prompt\", \"prompt_token_ids\" and \"messages\" "
                                   "may be given"
                                 : "no \"prompt\", \"prompt_token_ids\" or \"messages\"");
    r->kind = b->has_messages ? REQUEST_CHAT : REQUEST_TEXT;
    DI_TRY(sampling_check(&r->sampling, d->vocab, st));
    DI_TRY(settle_logprobs(b, st));
    if (b->has_messages) {
        DI_TRY(read_chat(b, &q, st));
        DI_TRY(encode_chat(r, d, &q.chat, st));
    } else if (b->has_text) {
        DI_TRY(encode_text(r, d, b->prompt, b->n_prompt, st));
    }
    if (r->ids.n == 0) {
        rc = di_fail(st, DI_E_INVALID, "the prompt is empty");
        goto done;
    }
    if (r->echo && r->kind == REQUEST_CHAT) {
        rc = di_fail(st, DI_E_INVALID, "echo works with a prompt, not with messages");
        goto done;
    }
    DI_TRY(request_max_tokens(b->max_tokens >= 0 ? b->max_tokens : d->max_tokens,
                              r->batch && b->max_tokens >= 0, (int64_t)r->ids.n, d->context,
                              b->has_messages ? &q.chat : NULL, &r->max_tokens, st));
    add_eos(r, d->eos, b->ignore_eos);
    DI_TRY(compile(r, d, &b->constraint, st));
done:
    recipe_request_fini(&q);
    return rc;
}

static uint64_t random_seed(void)
{
    uint64_t seed = 0;

    /* Cannot fail for 8 bytes once the system has booted; 0 would still be a valid seed. */
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = 0;
    return seed >> 1; /* what "seed" accepts */
}

static di_code set_defaults(request *r, const request_defaults *d, di_status *st)
{
    r->mem = arena_new(0);
    if (!r->mem)
        return no_memory(st);
    r->sampling = d->sampling;
    r->sampling.bias = NULL;
    r->sampling.n_bias = 0;
    if (!d->has_seed)
        r->sampling.seed = random_seed();
    r->logprobs = d->logprobs;
    for (size_t i = 0; i < d->n_stop; i++) {
        r->stop[i] = d->stop[i];
        r->stop_len[i] = strlen(d->stop[i]);
    }
    r->n_stop = d->n_stop;
    return DI_OK;
}

static di_code parse_body(request *r, const request_defaults *d, const char *text, size_t n,
                          const char *name, di_status *st)
{
    body b = {.r = r,
              .d = d,
              .max_tokens = -1,
              .logprobs = -1,
              .top_logprobs = -1,
              .ignore_eos = d->ignore_eos,
              .constraint = d->constraint};
    di_code rc;

    json_open(&b.in, text, n, name);
    DI_TRY(read_fields(&b, st));
    DI_TRY(settle(&b, st));
done:
    json_close(&b.in);
    str_fini(&b.chat);
    return rc;
}

/* The batch envelope; *body is NULL for a plain line. */
typedef struct envelope {
    const char *body;
    size_t n_body;
    bool has_url, post;
    bool chat, known_url;
    char url[64];
} envelope;

static di_code read_envelope_key(request *r, envelope *e, json_read *in, const char *key, size_t n,
                                 di_status *st)
{
    const char *s;
    size_t len;
    di_code rc;

    if (json_key_is(key, n, "custom_id") && json_peek(in) != JSON_NULL) {
        DI_TRY(json_string(in, &s, &len, st));
        str_clear(&r->custom_id);
        str_append(&r->custom_id, s, len);
        r->has_custom_id = true;
    } else if (json_key_is(key, n, "url")) {
        DI_TRY(json_string(in, &s, &len, st));
        e->has_url = true;
        e->chat = json_key_is(s, len, "/v1/chat/completions");
        e->known_url = e->chat || json_key_is(s, len, "/v1/completions");
        memcpy(e->url, s, len < sizeof e->url ? len : sizeof e->url - 1);
    } else if (json_key_is(key, n, "method")) {
        DI_TRY(json_string(in, &s, &len, st));
        e->post = json_key_is(s, len, "POST");
    } else if (json_key_is(key, n, "body")) {
        DI_TRY(json_raw(in, &e->body, &e->n_body, st));
    } else {
        DI_TRY(json_skip(in, st));
    }
done:
    return rc;
}

static di_code read_envelope(request *r, envelope *e, const char *line, size_t n, const char *name,
                             di_status *st)
{
    json_read in;
    const char *key;
    size_t len;
    di_code rc;

    json_open(&in, line, n, name);
    DI_TRY(json_object(&in, st));
    while (json_key(&in, &key, &len))
        DI_TRY(read_envelope_key(r, e, &in, key, len, st));
    DI_TRY(json_end(&in, st));
done:
    json_close(&in);
    r->batch = e->body != NULL || e->has_url;
    r->kind = e->chat ? REQUEST_CHAT : REQUEST_TEXT;
    return rc;
}

static di_code check_envelope(const request *r, const envelope *e, di_status *st)
{
    if (!r->batch)
        return DI_OK;
    if (!e->body)
        return di_fail(st, DI_E_INVALID, "a batch line has a \"url\" but no \"body\"");
    if (!r->has_custom_id)
        return di_fail(st, DI_E_INVALID, "a batch line has no \"custom_id\"");
    if (!e->post)
        return di_fail(st, DI_E_INVALID, "\"method\" must be \"POST\"");
    if (!e->known_url)
        return di_fail(st, DI_E_INVALID,
                       "\"url\" is \"%s\", but must be /v1/completions or /v1/chat/completions",
                       e->url);
    return DI_OK;
}

di_code request_parse(request *r, const request_defaults *d, const char *line, size_t n,
                      const char *name, di_status *st)
{
    envelope e = {0};
    bool chat;
    di_code rc;

    DI_TRY(read_envelope(r, &e, line, n, name, st));
    DI_TRY(check_envelope(r, &e, st));
    DI_TRY(set_defaults(r, d, st));
    chat = r->kind == REQUEST_CHAT;
    if (r->batch)
        DI_TRY(parse_body(r, d, e.body, e.n_body, name, st));
    else
        DI_TRY(parse_body(r, d, line, n, name, st));
    if (r->batch && chat != (r->kind == REQUEST_CHAT))
        rc = di_fail(st, DI_E_INVALID,
                     chat ? "/v1/chat/completions needs \"messages\""
                          : "/v1/completions needs \"prompt\"");
done:
    return rc;
}

/* Length and stop ids of a request that did not come from a line. */
static di_code finish_request(request *r, const request_defaults *d, const recipe_chat *chat,
                              di_status *st)
{
    di_code rc;

    DI_TRY(request_max_tokens(d->max_tokens, false, (int64_t)r->ids.n, d->context, chat,
                              &r->max_tokens, st));
    add_eos(r, d->eos, d->ignore_eos);
    DI_TRY(compile(r, d, &d->constraint, st));
done:
    return rc;
}

di_code request_from_chat(request *r, const request_defaults *d, const recipe_chat *chat,
                          di_status *st)
{
    di_code rc;

    DI_TRY(set_defaults(r, d, st));
    r->kind = REQUEST_CHAT;
    DI_TRY(encode_chat(r, d, chat, st));
    DI_TRY(finish_request(r, d, chat, st));
done:
    return rc;
}

di_code request_from_text(request *r, const request_defaults *d, const char *text, bool raw,
                          di_status *st)
{
    size_t n = strlen(text);
    const recipe_message m = {.role = RECIPE_USER, .content = text, .n_content = n};
    const recipe_chat chat = {.message = &m, .n = 1, .thinking = d->thinking, .effort = d->effort};
    di_code rc;

    if (n == 0)
        return di_fail(st, DI_E_INVALID, "the prompt is empty");
    if (!utf8_valid(text, n))
        return di_fail(st, DI_E_INVALID, "the prompt is not UTF-8");
    if (!raw)
        return request_from_chat(r, d, &chat, st);
    DI_TRY(set_defaults(r, d, st));
    DI_TRY(encode_text(r, d, text, n, st));
    DI_TRY(finish_request(r, d, NULL, st));
done:
    return rc;
}
