/* Chat Completions: chunks and the whole answer (spec recipe.md 3.3). */
#include "recipe/stream_internal.h"

static bool starts_in_reasoning(const recipe_stream *s)
{
    recipe_stage stage = s->q->parsing.stage;

    return !s->q->parsing.starts_in_tool_calls &&
           (stage == RECIPE_STAGE_REASONING || stage == RECIPE_STAGE_REASONING_ON);
}

static void put_usage(const recipe_stream *s, json_write *w)
{
    int64_t n = recipe_stream_n_tokens(s), n_reasoning = recipe_stream_n_reasoning(s);

    jw_object(w);
    put_int(w, "prompt_tokens", s->n_prompt);
    put_int(w, "completion_tokens", n);
    put_int(w, "total_tokens", s->n_prompt + n);
    jw_key(w, "prompt_tokens_details");
    jw_object(w);
    put_int(w, "cached_tokens", s->n_cached);
    jw_end(w);
    if (n_reasoning > 0) {
        jw_key(w, "completion_tokens_details");
        jw_object(w);
        put_int(w, "reasoning_tokens", n_reasoning);
        jw_end(w);
    }
    put_int(w, "prompt_cache_hit_tokens", s->n_cached);
    put_int(w, "prompt_cache_miss_tokens", s->n_prompt - s->n_cached);
    jw_end(w);
}

static void put_head(const recipe_stream *s, json_write *w, const char *object)
{
    jw_object(w);
    put_text(w, "id", s->id);
    put_text(w, "object", object);
    put_int(w, "created", s->o.created);
    put_text(w, "model", s->model);
}

/* Up to the open delta. */
static json_write begin_chunk(recipe_stream *s, const choice *c)
{
    json_write w = {.out = &s->out};

    put_head(s, &w, "chat.completion.chunk");
    put_text(&w, "system_fingerprint", s->fingerprint);
    jw_key(&w, "choices");
    jw_array(&w);
    jw_object(&w);
    put_int(&w, "index", c->idx);
    jw_key(&w, "delta");
    jw_object(&w);
    return w;
}

/* Close the delta and the chunk; logprobs: finished JSON or NULL; usage in the last chunk. */
static void end_chunk(recipe_stream *s, json_write *w, const str *logprobs, const char *list,
                      const char *finish_reason, bool last)
{
    jw_end(w);
    jw_key(w, "logprobs");
    if (logprobs && logprobs->len) {
        jw_object(w);
        put_list(w, list, logprobs);
        jw_end(w);
    } else {
        jw_null(w);
    }
    put_text(w, "finish_reason", finish_reason);
    jw_end(w);
    jw_end(w);
    if (last) {
        jw_key(w, "usage");
        put_usage(s, w);
    } else if (s->q->include_usage || !s->q->stream) {
        put_null(w, "usage");
    }
    jw_end(w);
    stream_emit(s, NULL);
}

static void chat_ready(recipe_stream *s)
{
    if (!s->o.emit)
        return;
    for (int i = 0; i < s->n_choices; i++) {
        json_write w = begin_chunk(s, &s->choice[i]);

        put_text(&w, "role", "assistant");
        if (starts_in_reasoning(s)) {
            put_null(&w, "content");
            put_text(&w, "reasoning_content", "");
        } else {
            put_text(&w, "content", "");
            if (s->q->chat.thinking)
                put_null(&w, "reasoning_content");
        }
        end_chunk(s, &w, NULL, NULL, NULL, false);
    }
}

static void put_call(json_write *w, const choice *c, const recipe_event *e)
{
    const call_out *call = &c->call[e->call];

    jw_key(w, "tool_calls");
    jw_array(w);
    jw_object(w);
    put_int(w, "index", e->call);
    if (e->kind == RECIPE_EVENT_CALL) {
        put_text(w, "id", call->id);
        put_text(w, "type", "function");
    }
    jw_key(w, "function");
    jw_object(w);
    if (e->kind == RECIPE_EVENT_CALL) {
        put_str(w, "name", &call->name);
        put_text(w, "arguments", "");
    } else {
        jw_key(w, "arguments");
        jw_string(w, e->text, e->n);
    }
    jw_end(w);
    jw_end(w);
    jw_end(w);
}

static void chat_event(recipe_stream *s, choice *c, const recipe_event *e)
{
    const char *list = e->kind == RECIPE_EVENT_REASONING ? "reasoning_content" : "content";
    str logprobs = {0};
    json_write w;

    if (!s->o.emit)
        return;
    w = begin_chunk(s, c);
    switch (e->kind) {
    case RECIPE_EVENT_REASONING:
        put_null(&w, "content");
        jw_key(&w, "reasoning_content");
        jw_string(&w, e->text, e->n);
        break;
    case RECIPE_EVENT_CONTENT:
        jw_key(&w, "content");
        jw_string(&w, e->text, e->n);
        if (s->q->chat.thinking)
            put_null(&w, "reasoning_content");
        break;
    case RECIPE_EVENT_CALL:
    case RECIPE_EVENT_ARGS:
    case RECIPE_EVENT_CALL_END:
        put_call(&w, c, e);
        break;
    }
    stream_logprobs(s, e, &logprobs);
    end_chunk(s, &w, &logprobs, list, NULL, false);
    str_fini(&logprobs);
}

static void chat_finish(recipe_stream *s, choice *c, bool last)
{
    json_write w;

    if (!s->o.emit)
        return;
    w = begin_chunk(s, c);
    put_text(&w, "content", "");
    if (s->q->chat.thinking)
        put_null(&w, "reasoning_content");
    end_chunk(s, &w, NULL, NULL, c->reason, last);
}

static void chat_fail(recipe_stream *s, const recipe_error *e)
{
    recipe_error_body(RECIPE_PROTOCOL_CHAT, s->q->mode, e, &s->out);
    stream_emit(s, NULL);
}

static void put_message(const recipe_stream *s, json_write *w, const choice *c)
{
    jw_object(w);
    put_text(w, "role", "assistant");
    put_str(w, "content", &c->content);
    if (starts_in_reasoning(s))
        put_str(w, "reasoning_content", &c->reasoning);
    if (c->n_calls) {
        jw_key(w, "tool_calls");
        jw_array(w);
        for (int i = 0; i < c->n_calls; i++) {
            jw_object(w);
            put_int(w, "index", i);
            put_text(w, "id", c->call[i].id);
            put_text(w, "type", "function");
            jw_key(w, "function");
            jw_object(w);
            put_str(w, "name", &c->call[i].name);
            put_str(w, "arguments", &c->call[i].arguments);
            jw_end(w);
            jw_end(w);
        }
        jw_end(w);
    }
    jw_end(w);
}

static void put_logprobs(json_write *w, const choice *c)
{
    jw_key(w, "logprobs");
    if (!c->logprobs.len && !c->reasoning_logprobs.len) {
        jw_null(w);
        return;
    }
    jw_object(w);
    if (c->logprobs.len)
        put_list(w, "content", &c->logprobs);
    if (c->reasoning_logprobs.len)
        put_list(w, "reasoning_content", &c->reasoning_logprobs);
    jw_end(w);
}

static void chat_whole(recipe_stream *s, str *out)
{
    json_write w = {.out = out};

    put_head(s, &w, "chat.completion");
    jw_key(&w, "choices");
    jw_array(&w);
    for (int i = 0; i < s->n_choices; i++) {
        jw_object(&w);
        put_int(&w, "index", i);
        jw_key(&w, "message");
        put_message(s, &w, &s->choice[i]);
        put_logprobs(&w, &s->choice[i]);
        put_text(&w, "finish_reason", s->choice[i].reason);
        jw_end(&w);
    }
    jw_end(&w);
    jw_key(&w, "usage");
    put_usage(s, &w);
    put_text(&w, "system_fingerprint", s->fingerprint);
    jw_end(&w);
}

const shape shape_chat = {chat_ready, chat_event, chat_finish, chat_fail, chat_whole};
