/* Messages: events and the whole answer (spec recipe.md 3.5). */
#include <string.h>

#include "base/arena.h"
#include "recipe/stream_internal.h"

static void put_usage(const recipe_stream *s, json_write *w, int64_t n_output)
{
    jw_key(w, "usage");
    jw_object(w);
    put_int(w, "input_tokens", s->n_prompt - s->n_cached);
    put_int(w, "cache_creation_input_tokens", 0);
    put_int(w, "cache_read_input_tokens", s->n_cached);
    put_int(w, "output_tokens", n_output);
    put_text(w, "service_tier", "standard");
    jw_end(w);
}

static void put_head(const recipe_stream *s, json_write *w)
{
    put_text(w, "id", s->id);
    put_text(w, "type", "message");
    put_text(w, "role", "assistant");
    put_text(w, "model", s->model);
}

static void end_event(recipe_stream *s, json_write *w, const char *type)
{
    jw_end(w);
    stream_emit(s, type);
}

static void delta(recipe_stream *s, const char *type, const char *key, const char *text, size_t n)
{
    json_write w = stream_begin(s, "content_block_delta");

    put_int(&w, "index", s->index);
    jw_key(&w, "delta");
    jw_object(&w);
    put_text(&w, "type", type);
    jw_key(&w, key);
    jw_string(&w, text, n);
    jw_end(&w);
    end_event(s, &w, "content_block_delta");
}

static void close_block(recipe_stream *s)
{
    json_write w;

    if (s->open == OUT_NONE)
        return;
    if (s->open == OUT_REASONING)
        delta(s, "signature_delta", "signature", s->id, strlen(s->id));
    w = stream_begin(s, "content_block_stop");
    put_int(&w, "index", s->index++);
    end_event(s, &w, "content_block_stop");
    s->open = OUT_NONE;
}

static void ping(recipe_stream *s)
{
    json_write w;

    if (s->pinged)
        return;
    s->pinged = true;
    w = stream_begin(s, "ping");
    end_event(s, &w, "ping");
}

static void open_block(recipe_stream *s, item_out kind, const call_out *call)
{
    json_write w;

    close_block(s);
    w = stream_begin(s, "content_block_start");
    put_int(&w, "index", s->index);
    jw_key(&w, "content_block");
    jw_object(&w);
    if (kind == OUT_REASONING) {
        put_text(&w, "type", "thinking");
        put_text(&w, "thinking", "");
        put_text(&w, "signature", "");
    } else if (kind == OUT_MESSAGE) {
        put_text(&w, "type", "text");
        put_text(&w, "text", "");
    } else {
        put_text(&w, "type", "tool_use");
        put_text(&w, "id", call->id);
        put_str(&w, "name", &call->name);
        put_json(&w, "input", "{}");
    }
    jw_end(&w);
    end_event(s, &w, "content_block_start");
    s->open = kind;
    ping(s);
}

static bool starts_in_reasoning(const recipe_stream *s)
{
    recipe_stage stage = s->q->parsing.stage;

    return !s->q->parsing.starts_in_tool_calls &&
           (stage == RECIPE_STAGE_REASONING || stage == RECIPE_STAGE_REASONING_ON);
}

static void messages_ready(recipe_stream *s)
{
    json_write w;

    if (!s->o.emit)
        return;
    w = stream_begin(s, "message_start");
    jw_key(&w, "message");
    jw_object(&w);
    put_head(s, &w);
    put_json(&w, "content", "[]");
    put_null(&w, "stop_reason");
    put_null(&w, "stop_sequence");
    put_usage(s, &w, 0);
    jw_end(&w);
    end_event(s, &w, "message_start");
    if (starts_in_reasoning(s))
        open_block(s, OUT_REASONING, NULL);
}

static void messages_event(recipe_stream *s, choice *c, const recipe_event *e)
{
    if (!s->o.emit)
        return;
    switch (e->kind) {
    case RECIPE_EVENT_REASONING:
        if (s->open != OUT_REASONING)
            open_block(s, OUT_REASONING, NULL);
        delta(s, "thinking_delta", "thinking", e->text, e->n);
        break;
    case RECIPE_EVENT_CONTENT:
        if (s->open != OUT_MESSAGE)
            open_block(s, OUT_MESSAGE, NULL);
        delta(s, "text_delta", "text", e->text, e->n);
        break;
    case RECIPE_EVENT_CALL:
        open_block(s, OUT_CALL, stream_call(c, e->call));
        break;
    case RECIPE_EVENT_ARGS:
        delta(s, "input_json_delta", "partial_json", e->text, e->n);
        break;
    case RECIPE_EVENT_CALL_END:
        break;
    }
}

/* The stop string that was found, NULL = none. */
static const char *stop_sequence(const recipe_stream *s, const choice *c)
{
    int i = recipe_parser_stop(c->parser);

    return i < 0 ? NULL : s->q->parsing.stop[i];
}

static const char *stop_reason(const recipe_stream *s, const choice *c)
{
    if (stop_sequence(s, c))
        return "stop_sequence";
    switch (c->why) {
    case RECIPE_FINISH_LENGTH:
        return "max_tokens";
    case RECIPE_FINISH_FILTER:
        return "refusal";
    case RECIPE_FINISH_STOP:
        return c->n_calls ? "tool_use" : "end_turn";
    case RECIPE_FINISH_NONE:
        break;
    }
    return "end_turn";
}

static void messages_finish(recipe_stream *s, choice *c, bool last)
{
    json_write w;

    (void)last; /* there is one choice */
    if (!s->o.emit)
        return;
    close_block(s);
    w = stream_begin(s, "message_delta");
    jw_key(&w, "delta");
    jw_object(&w);
    put_text(&w, "stop_reason", stop_reason(s, c));
    put_text(&w, "stop_sequence", stop_sequence(s, c));
    jw_end(&w);
    put_usage(s, &w, recipe_stream_n_tokens(s));
    end_event(s, &w, "message_delta");
    w = stream_begin(s, "message_stop");
    end_event(s, &w, "message_stop");
}

static void messages_fail(recipe_stream *s, const recipe_error *e)
{
    recipe_error_body(RECIPE_PROTOCOL_MESSAGES, RECIPE_CLIENT, e, &s->out);
    stream_emit(s, "error");
}

/* The arguments as an object, {} when they are none. */
static void put_input(json_write *w, const call_out *call)
{
    arena *mem = arena_new(0);
    const jtree *t =
        mem ? jtree_parse(str_text(&call->arguments), call->arguments.len, mem, "input", NULL)
            : NULL;

    if (t && t->type == JSON_OBJECT) {
        jw_key(w, "input");
        jw_raw(w, str_text(&call->arguments), call->arguments.len);
    } else {
        put_json(w, "input", "{}");
    }
    arena_free(mem);
}

static void messages_whole(recipe_stream *s, str *out)
{
    const choice *c = &s->choice[0];
    json_write w = {.out = out};

    jw_object(&w);
    put_head(s, &w);
    jw_key(&w, "content");
    jw_array(&w);
    if (starts_in_reasoning(s) || c->reasoning.len) {
        jw_object(&w);
        put_text(&w, "type", "thinking");
        put_str(&w, "thinking", &c->reasoning);
        put_text(&w, "signature", s->id);
        jw_end(&w);
    }
    if (c->content.len) {
        jw_object(&w);
        put_text(&w, "type", "text");
        put_str(&w, "text", &c->content);
        jw_end(&w);
    }
    for (int i = 0; i < c->n_calls; i++) {
        jw_object(&w);
        put_text(&w, "type", "tool_use");
        put_text(&w, "id", c->call[i].id);
        put_str(&w, "name", &c->call[i].name);
        put_input(&w, &c->call[i]);
        jw_end(&w);
    }
    jw_end(&w);
    put_text(&w, "stop_reason", stop_reason(s, c));
    put_text(&w, "stop_sequence", stop_sequence(s, c));
    put_usage(s, &w, recipe_stream_n_tokens(s));
    jw_end(&w);
}

const shape shape_messages = {messages_ready, messages_event, messages_finish, messages_fail,
                              messages_whole};
