/* An answer in the shape of its protocol: SSE payloads as it comes, or one JSON object at the end
 * (spec recipe.md 3.3 to 3.5).
 *
 *   s = recipe_stream_new(&q, &o);
 *   recipe_stream_ready(s, n_prompt, n_cached);
 *   recipe_stream_tokens(s, choice, ids, n, logprobs);    // false: a stop string; cancel, then
 * finish recipe_stream_finish(s, choice, RECIPE_FINISH_STOP, now); recipe_stream_whole(s, &json);
 * // not streamed
 *
 * With `emit` each event is handed over as it arises and little is kept (Responses keeps the text,
 * its closing events repeat it); without, all is kept for recipe_stream_whole. The caller frames
 * events ("event: " when not NULL, "data: ") and ends with recipe_stream_done's text.
 * Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "recipe/parse.h"
#include "recipe/replay.h"
#include "recipe/request.h"
#include "tokenizer/tokenizer.h"

typedef struct recipe_stream recipe_stream;

typedef enum recipe_finish {
    RECIPE_FINISH_STOP, /* end of sentence, stop id */
    RECIPE_FINISH_LENGTH,
    RECIPE_FINISH_FILTER,
    RECIPE_FINISH_NONE /* the engine gave no reason */
} recipe_finish;

/* One SSE event: `event` is its name or NULL, `data` one line of JSON; borrowed for the call. */
typedef void (*recipe_emit)(void *ctx, const char *event, const char *data, size_t n);

typedef struct recipe_stream_options {
    const char *id;          /* of the answer, e.g. "chatcmpl-..."; copied */
    const char *model;       /* copied */
    const char *fingerprint; /* system_fingerprint; NULL = null; copied */
    int64_t created;         /* seconds since 1970 */
    uint64_t seed;           /* makes the call ids: different for every answer */
    const tokenizer *tok;    /* NULL when only text is pushed */
    recipe_replay *replay;   /* remembers calls; NULL = none */
    recipe_emit emit;        /* NULL: not streamed */
    void *ctx;
} recipe_stream_options;

/* q must outlive the stream. NULL when out of memory. */
recipe_stream *recipe_stream_new(const recipe_request *q, const recipe_stream_options *o);
void recipe_stream_free(recipe_stream *s);

/* The prompt is known: its tokens and how many of them came from the cache. Emits the opening
 * events. Call it once, before anything else. */
void recipe_stream_ready(recipe_stream *s, int64_t n_prompt, int64_t n_cached);

/* Output of choice `choice` (0 unless n > 1), as recipe_parser_tokens and _text. False: a stop
 * string is complete; cancel the sequence and call recipe_stream_finish. */
bool recipe_stream_tokens(recipe_stream *s, int choice, const int32_t *ids, size_t n,
                          const recipe_logprob *logprob);
bool recipe_stream_text(recipe_stream *s, int choice, const char *text, size_t n, int64_t n_tokens);

/* The choice has ended, at `now` (seconds since 1970). Emits its closing events; those of the
 * answer with the last choice. */
void recipe_stream_finish(recipe_stream *s, int choice, recipe_finish why, int64_t now);

/* Emit a failure in the way that the protocol's clients understand in mid-stream (spec api.md 4.6).
 * Nothing may follow but the end of the stream. */
void recipe_stream_fail(recipe_stream *s, const recipe_error *e);

/* What ends the SSE stream as a last "data: " line: "[DONE]" for Chat, NULL otherwise. */
const char *recipe_stream_done(recipe_protocol protocol);

/* Append the whole answer as one JSON object, after all choices have finished. */
void recipe_stream_whole(recipe_stream *s, str *out);

/* Totals over the choices, for metrics and logs. */
int64_t recipe_stream_n_tokens(const recipe_stream *s);
int64_t recipe_stream_n_reasoning(const recipe_stream *s);
/* "stop", "length", "tool_calls", "content_filter" of a finished choice. */
const char *recipe_stream_finish_reason(const recipe_stream *s, int choice);
/* False after running out of memory: the answer is incomplete, end it with an error. */
bool recipe_stream_ok(const recipe_stream *s);
