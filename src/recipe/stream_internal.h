/* What the three shapes of an answer share. Inside recipe only. */
#pragma once

#include "base/json_write.h"
#include "recipe/stream.h"

/* One call of the answer. */
typedef struct call_out {
    char id[36];
    const recipe_tool *tool; /* NULL: not declared */
    str name, arguments;     /* arguments: kept when needed */
    str held;                /* arguments that may be wrapped, see unwrap.c */
    bool may_wrap;           /* it is not decided yet, or they are */
} call_out;

/* One choice while it comes. */
typedef struct choice {
    recipe_stream *s;
    int idx;
    recipe_parser *parser;
    call_out *call;
    int n_calls;
    str reasoning, content;           /* kept when needed */
    str reasoning_logprobs, logprobs; /* entries of JSON lists, kept when needed */
    bool finished;
    const char *reason; /* Chat's word */
    recipe_finish why;
} choice;

/* Responses: the item that is open. */
typedef enum item_out { OUT_NONE, OUT_REASONING, OUT_MESSAGE, OUT_CALL, OUT_CUSTOM } item_out;

typedef struct shape {
    void (*ready)(recipe_stream *s);
    void (*event)(recipe_stream *s, choice *c, const recipe_event *e);
    void (*finish)(recipe_stream *s, choice *c, bool last);
    void (*fail)(recipe_stream *s, const recipe_error *e);
    void (*whole)(recipe_stream *s, str *out);
} shape;
extern const shape shape_chat, shape_responses, shape_messages;

struct recipe_stream {
    const recipe_request *q;
    const shape *shape;
    recipe_stream_options o; /* strings point to copies */
    char *id, *model, *fingerprint;
    choice *choice; /* [n_choices] */
    int n_choices, n_finished;
    int64_t n_prompt, n_cached, completed;
    bool keep; /* all text is kept: for the whole answer */
    str out;   /* of one event */
    bool failed;
    /* Responses and Messages: the item or block that is open, its number, numbers of events */
    item_out open;
    int index, open_call;
    int64_t sequence;
    str item_text, item_logprobs;
    str output; /* Responses: finished items */
    bool pinged;
};

/* Hand s->out over as one event and empty it. */
void stream_emit(recipe_stream *s, const char *event);
/* Begin an event of Responses or Messages, {"type": TYPE, in s->out. */
json_write stream_begin(recipe_stream *s, const char *type);

/* Append entries of logprobs to a JSON list without its brackets. */
void stream_logprobs(recipe_stream *s, const recipe_event *e, str *list);

/* A member of strings, NULL = null; finished JSON; a list without its brackets. */
void put_text(json_write *w, const char *key, const char *text);
void put_str(json_write *w, const char *key, const str *text);
void put_int(json_write *w, const char *key, int64_t v);
void put_null(json_write *w, const char *key);
void put_json(json_write *w, const char *key, const char *json);
void put_list(json_write *w, const char *key, const str *list);

/* ---- unwrap.c ---- */

/* Can the arguments of this call be wrapped? */
bool unwrap_may(const recipe_stream *s, const call_out *call);

/* Take more of the arguments. True: *text is what can be given out now, borrowed until the next
 * call; false: all is held. `ends`: the call is complete. */
bool unwrap_take(call_out *call, const char *more, size_t n, bool ends, str *text);

/* The call that an event belongs to. */
call_out *stream_call(choice *c, int call);
