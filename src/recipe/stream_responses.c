/* Responses: events and the whole answer (spec recipe.md 3.4).
 *
 * An item stays open until the next one begins or the answer ends; its finished form is appended to
 * s->output, which the last event and the whole answer show. */
#include <string.h>

#include "base/arena.h"
#include "recipe/stream_internal.h"

static void end_event(recipe_stream *s, json_write *w, const char *type)
{
    put_int(w, "sequence_number", s->sequence++);
    jw_end(w);
    stream_emit(s, type);
}

/* ---- the response object ---- */

static const char *incomplete_reason(const choice *c)
{
    if (recipe_parser_stop(c->parser) >= 0)
        return NULL;
    return c->why == RECIPE_FINISH_LENGTH   ? "max_output_tokens"
           : c->why == RECIPE_FINISH_FILTER ? "content_filter"
                                            : NULL;
}

static void put_usage(const recipe_stream *s, json_write *w, bool done)
{
    int64_t n = recipe_stream_n_tokens(s);

    if (!done) {
        put_null(w, "usage");
        return;
    }
    jw_key(w, "usage");
    jw_object(w);
    put_int(w, "input_tokens", s->n_prompt);
    jw_key(w, "input_tokens_details");
    jw_object(w);
    put_int(w, "cached_tokens", s->n_cached);
    jw_end(w);
    put_int(w, "output_tokens", n);
    jw_key(w, "output_tokens_details");
    jw_object(w);
    put_int(w, "reasoning_tokens", recipe_stream_n_reasoning(s));
    jw_end(w);
    put_int(w, "total_tokens", s->n_prompt + n);
    jw_end(w);
}

static void put_failure(json_write *w, const recipe_error *e)
{
    if (!e) {
        put_null(w, "error");
        return;
    }
    jw_key(w, "error");
    jw_object(w);
    put_text(w, "code", e->code ? e->code : "server_error");
    put_text(w, "message", e->message);
    jw_end(w);
}

/* Members that are the same in every answer. */
static void put_fixed(json_write *w, const char *const *keys, size_t n, const char *json)
{
    for (size_t i = 0; i < n; i++)
        put_json(w, keys[i], json);
}

static void put_response(const recipe_stream *s, json_write *w, bool done, const recipe_error *e)
{
    static const char *const nulls[] = {
        "max_tool_calls",         "moderation",        "previous_response_id", "prompt_cache_key",
        "prompt_cache_retention", "safety_identifier", "content_filters"};
    const recipe_echo *echo = &s->q->echo;
    const char *reason = done ? incomplete_reason(&s->choice[0]) : NULL;

    jw_object(w);
    put_text(w, "id", s->id);
    put_text(w, "object", "response");
    put_int(w, "created_at", s->o.created);
    put_text(w, "status",
             e        ? "failed"
             : !done  ? "in_progress"
             : reason ? "incomplete"
                      : "completed");
    put_json(w, "background", "false");
    if (done)
        put_int(w, "completed_at", s->completed);
    else
        put_null(w, "completed_at");
    put_failure(w, e);
    put_json(w, "frequency_penalty", "0.0");
    jw_key(w, "incomplete_details");
    if (reason) {
        jw_object(w);
        put_text(w, "reason", reason);
        jw_end(w);
    } else {
        jw_null(w);
    }
    put_json(w, "instructions", echo->instructions);
    put_json(w, "max_output_tokens", echo->max_output_tokens);
    put_fixed(w, nulls, ARRAY_LEN(nulls), "null");
    put_text(w, "model", s->model);
    put_list(w, "output", &s->output);
    put_json(w, "parallel_tool_calls", s->q->constraint.one_call ? "false" : "true");
    put_json(w, "presence_penalty", "0.0");
    put_json(w, "reasoning", echo->reasoning);
    put_text(w, "service_tier", "default");
    put_json(w, "store", "false");
    put_json(w, "temperature", echo->temperature);
    put_json(w, "text", echo->text);
    put_json(w, "tool_choice", echo->tool_choice);
    put_json(w, "tools", echo->tools);
    put_json(w, "top_logprobs", echo->top_logprobs);
    put_json(w, "top_p", echo->top_p);
    put_text(w, "truncation", "disabled");
    put_usage(s, w, done);
    put_json(w, "user", echo->user);
    put_json(w, "metadata", "{}");
    jw_end(w);
}

static void lifecycle(recipe_stream *s, const char *type, bool done, const recipe_error *e)
{
    json_write w = stream_begin(s, type);

    jw_key(&w, "response");
    put_response(s, &w, done, e);
    end_event(s, &w, type);
}

/* ---- items ---- */

static const char *const prefixes[] = {
    [OUT_REASONING] = "rs", [OUT_MESSAGE] = "msg", [OUT_CALL] = "fc", [OUT_CUSTOM] = "ctc"};

static void put_item_id(recipe_stream *s, json_write *w, const char *key)
{
    str id = {0};

    str_printf(&id, "%s_%s_%d", prefixes[s->open], s->id, s->index);
    put_str(w, key, &id);
    str_fini(&id);
}

/* item_id, output_index and, for texts, content_index. */
static void put_where(recipe_stream *s, json_write *w, bool part)
{
    if (part)
        put_int(w, "content_index", 0);
    put_item_id(s, w, "item_id");
    put_int(w, "output_index", s->index);
}

static void put_part(recipe_stream *s, json_write *w, const str *text)
{
    jw_object(w);
    if (s->open == OUT_REASONING) {
        put_text(w, "type", "reasoning_text");
    } else {
        put_text(w, "type", "output_text");
        put_json(w, "annotations", "[]");
        put_list(w, "logprobs", &s->item_logprobs);
    }
    put_str(w, "text", text);
    jw_end(w);
}

/* The one argument of a custom tool as text; otherwise the JSON text. */
static void custom_input(const call_out *call, str *out)
{
    arena *mem = arena_new(0);
    const jtree *t =
        mem ? jtree_parse(str_text(&call->arguments), call->arguments.len, mem, "input", NULL)
            : NULL;
    const jtree *input = t && t->n == 1 ? jtree_get(t, "input") : NULL;

    if (input && input->type == JSON_STRING)
        str_append(out, input->text, input->n);
    else
        str_append(out, str_text(&call->arguments), call->arguments.len);
    arena_free(mem);
}

static void put_call_item(recipe_stream *s, json_write *w, const call_out *call, bool done)
{
    const recipe_tool *t = call->tool;
    bool member = t && t->ns;
    str input = {0};

    put_text(w, "call_id", call->id);
    jw_key(w, "name");
    if (member)
        jw_string(w, t->member, t->n_member);
    else
        jw_string(w, str_text(&call->name), call->name.len);
    if (member) {
        jw_key(w, "namespace");
        jw_string(w, t->ns, t->n_ns);
    }
    if (done && s->open == OUT_CUSTOM)
        custom_input(call, &input);
    else if (done)
        str_append(&input, str_text(&call->arguments), call->arguments.len);
    put_str(w, s->open == OUT_CUSTOM ? "input" : "arguments", &input);
    str_fini(&input);
}

/* status: of the item; phase: of a message; call: of a call; done: with its content. */
static void put_item(recipe_stream *s, json_write *w, const char *status, const char *phase,
                     const call_out *call, bool done)
{
    static const char *const types[] = {[OUT_REASONING] = "reasoning",
                                        [OUT_MESSAGE] = "message",
                                        [OUT_CALL] = "function_call",
                                        [OUT_CUSTOM] = "custom_tool_call"};
    str enc = {0};

    jw_object(w);
    put_text(w, "type", types[s->open]);
    put_item_id(s, w, "id");
    put_text(w, "status", status);
    if (s->open == OUT_MESSAGE) {
        put_text(w, "role", "assistant");
        put_text(w, "phase", phase);
    }
    if (call) {
        put_call_item(s, w, call, done);
    } else {
        jw_key(w, "content");
        jw_array(w);
        if (done)
            put_part(s, w, &s->item_text);
        jw_end(w);
    }
    if (s->open == OUT_REASONING) {
        put_json(w, "summary", "[]");
        str_printf(&enc, "%s-%d", s->id, s->index);
        put_str(w, "encrypted_content", &enc);
        str_fini(&enc);
    }
    jw_end(w);
}

static const call_out *open_call(const recipe_stream *s)
{
    const choice *c = &s->choice[0];

    return s->open == OUT_CALL || s->open == OUT_CUSTOM ? &c->call[s->open_call] : NULL;
}

static void open_item(recipe_stream *s, item_out kind, const call_out *call)
{
    static const str empty = {0};
    json_write w;

    s->open = kind;
    str_clear(&s->item_text);
    str_clear(&s->item_logprobs);
    if (!s->o.emit)
        return;
    w = stream_begin(s, "response.output_item.added");
    jw_key(&w, "item");
    put_item(s, &w, "in_progress", "final_answer", call, false);
    put_int(&w, "output_index", s->index);
    end_event(s, &w, "response.output_item.added");
    if (call)
        return;
    w = stream_begin(s, "response.content_part.added");
    put_where(s, &w, true);
    jw_key(&w, "part");
    put_part(s, &w, &empty);
    end_event(s, &w, "response.content_part.added");
}

/* The closing events of a text. */
static void close_text(recipe_stream *s)
{
    const char *type =
        s->open == OUT_REASONING ? "response.reasoning_text.done" : "response.output_text.done";
    json_write w = stream_begin(s, type);

    put_where(s, &w, true);
    if (s->open == OUT_MESSAGE)
        put_list(&w, "logprobs", &s->item_logprobs);
    put_str(&w, "text", &s->item_text);
    end_event(s, &w, type);
    w = stream_begin(s, "response.content_part.done");
    put_where(s, &w, true);
    jw_key(&w, "part");
    put_part(s, &w, &s->item_text);
    end_event(s, &w, "response.content_part.done");
}

static void close_arguments(recipe_stream *s, const call_out *call)
{
    bool custom = s->open == OUT_CUSTOM;
    const char *type =
        custom ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done";
    str input = {0};
    json_write w;

    if (custom) {
        custom_input(call, &input);
        w = stream_begin(s, "response.custom_tool_call_input.delta");
        put_where(s, &w, false);
        put_str(&w, "delta", &input);
        end_event(s, &w, "response.custom_tool_call_input.delta");
    }
    w = stream_begin(s, type);
    put_where(s, &w, false);
    put_str(&w, custom ? "input" : "arguments", custom ? &input : &call->arguments);
    end_event(s, &w, type);
    str_fini(&input);
}

/* Close the open item: its events, then its place in the output. */
static void close_item(recipe_stream *s, const char *status, const char *phase)
{
    const call_out *call = open_call(s);
    json_write w = {.out = &s->output};

    if (s->open == OUT_NONE)
        return;
    if (s->o.emit && call)
        close_arguments(s, call);
    else if (s->o.emit)
        close_text(s);
    if (s->output.len)
        str_puts(&s->output, ", ");
    put_item(s, &w, status, phase, call, true);
    if (s->o.emit) {
        w = stream_begin(s, "response.output_item.done");
        jw_key(&w, "item");
        put_item(s, &w, status, phase, call, true);
        put_int(&w, "output_index", s->index);
        end_event(s, &w, "response.output_item.done");
    }
    s->open = OUT_NONE;
    s->index++;
}

static void text_delta(recipe_stream *s, const recipe_event *e)
{
    const char *type =
        s->open == OUT_REASONING ? "response.reasoning_text.delta" : "response.output_text.delta";
    str logprobs = {0};
    json_write w;

    str_append(&s->item_text, e->text, e->n);
    if (s->open == OUT_MESSAGE) {
        stream_logprobs(s, e, &s->item_logprobs);
        stream_logprobs(s, e, &logprobs);
    }
    if (s->o.emit) {
        w = stream_begin(s, type);
        put_where(s, &w, true);
        jw_key(&w, "delta");
        jw_string(&w, e->text, e->n);
        if (s->open == OUT_MESSAGE)
            put_list(&w, "logprobs", &logprobs);
        end_event(s, &w, type);
    }
    str_fini(&logprobs);
}

static void responses_ready(recipe_stream *s)
{
    if (!s->o.emit)
        return;
    lifecycle(s, "response.created", false, NULL);
    lifecycle(s, "response.in_progress", false, NULL);
}

static void begin_call(recipe_stream *s, const call_out *call, int idx)
{
    if (!call)
        return;
    close_item(s, "completed", "commentary");
    s->open_call = idx;
    open_item(s, call->tool && call->tool->custom ? OUT_CUSTOM : OUT_CALL, call);
}

static void responses_event(recipe_stream *s, choice *c, const recipe_event *e)
{
    item_out kind = e->kind == RECIPE_EVENT_REASONING ? OUT_REASONING : OUT_MESSAGE;
    json_write w;

    switch (e->kind) {
    case RECIPE_EVENT_REASONING:
    case RECIPE_EVENT_CONTENT:
        if (s->open != kind) {
            close_item(s, "completed", "final_answer");
            open_item(s, kind, NULL);
        }
        text_delta(s, e);
        break;
    case RECIPE_EVENT_CALL:
        begin_call(s, stream_call(c, e->call), e->call);
        break;
    case RECIPE_EVENT_ARGS:
        if (!s->o.emit || s->open != OUT_CALL)
            break;
        w = stream_begin(s, "response.function_call_arguments.delta");
        put_where(s, &w, false);
        jw_key(&w, "delta");
        jw_string(&w, e->text, e->n);
        end_event(s, &w, "response.function_call_arguments.delta");
        break;
    case RECIPE_EVENT_CALL_END:
        break;
    }
}

static void responses_finish(recipe_stream *s, choice *c, bool last)
{
    const char *reason = incomplete_reason(c);

    (void)last; /* there is one choice */
    close_item(s, reason ? "incomplete" : "completed", "final_answer");
    if (s->o.emit)
        lifecycle(s, reason ? "response.incomplete" : "response.completed", true, NULL);
}

/* Clients of this protocol know a failure by its event only. */
static void responses_fail(recipe_stream *s, const recipe_error *e)
{
    lifecycle(s, "response.failed", false, e);
}

static void responses_whole(recipe_stream *s, str *out)
{
    json_write w = {.out = out};

    put_response(s, &w, true, NULL);
}

const shape shape_responses = {responses_ready, responses_event, responses_finish, responses_fail,
                               responses_whole};
