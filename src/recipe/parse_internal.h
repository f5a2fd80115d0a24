/* The parts of the output parser: matchers, the queue of pieces, the machine. Inside recipe only.
 */
#pragma once

#include "recipe/parse.h"

/* A byte of output and whether it belongs to a control token: symbol = byte | SYMBOL_CONTROL. */
#define SYMBOL_CONTROL 0x100u

/* ---- match.c ---- */

/* States of spec recipe.md 3.1. WAIT is Common in JSON mode; KEY is ParamName of mode CLIENT. */
typedef enum parse_state {
    PARSE_COMMON,
    PARSE_WAIT,
    PARSE_JSON,
    PARSE_AFTER_JSON,
    PARSE_CALLS,
    PARSE_NAME,
    PARSE_ARGS,
    PARSE_PARAM_NAME,
    PARSE_KEY,
    PARSE_TYPE,
    PARSE_VALUE,
    PARSE_REASONING,
    PARSE_FINISHED,
    PARSE_N_STATES
} parse_state;

/* What a pattern does when it is complete. */
typedef enum parse_effect {
    EFFECT_DROP,
    EFFECT_STOP,
    EFFECT_SHOW,      /* the pattern itself is content */
    EFFECT_OPEN_CALL, /* the name has ended */
    EFFECT_NAME,      /* a name begins */
    EFFECT_PARAM,     /* a parameter begins */
    EFFECT_CLOSE_CALL,
    EFFECT_COLON,    /* strict: behind the raw key */
    EFFECT_KEY,      /* client: behind the escaped key */
    EFFECT_KEY_TEXT, /* client: no string attribute, the value is a text */
    EFFECT_NO_VALUE, /* client: closed before its value */
    EFFECT_NULL,
    EFFECT_TEXT, /* string="true" */
    EFFECT_RAW,  /* string="false" */
    EFFECT_CLOSE_VALUE
} parse_effect;

typedef struct pattern {
    const char *text; /* "\1" stands for any number of newlines, at the start only */
    size_t n;
    parse_state next;
    parse_effect effect;
    bool any_token;   /* a stop string: control tokens or not */
    bool newlines;    /* ↵* in front; not part of text */
    uint16_t *symbol; /* [n] */
    uint16_t *fail;   /* KMP: [n] */
} pattern;

/* Pattern of one state and how far each has matched. */
typedef struct matcher {
    pattern *pattern;
    size_t n, cap;
} matcher;

typedef struct match_state {
    uint32_t at;       /* symbols matched */
    uint32_t newlines; /* in front of them */
} match_state;

/* Add a pattern; its text is borrowed, bytes [control_begin, control_end) are a control token.
 * False: out of memory. */
bool matcher_add(matcher *m, pattern p, size_t control_begin, size_t control_end);
void matcher_fini(matcher *m);

/* Take one symbol. The index of the first pattern that is complete now, and its length in bytes,
 * newlines in front included; -1 = none. */
int matcher_step(const matcher *m, match_state *s, unsigned symbol, bool by_token, size_t *len);

/* Length of the longest partial match. */
size_t matcher_pending(const matcher *m, const match_state *s);

/* ---- queue.c ---- */

typedef enum parse_action {
    ACTION_DROP,
    ACTION_CONTENT,
    ACTION_BLANK, /* a run shows as one blank */
    ACTION_REASONING,
    ACTION_NAME, /* the name is collected elsewhere */
    ACTION_ARGS,
    ACTION_CALL,    /* header: text is the name */
    ACTION_CALL_END /* text ends the arguments; then the call is complete */
} parse_action;

/* What came in one go. Offsets count all bytes of the answer. */
typedef struct piece {
    size_t begin, end;
    int64_t n_tokens;
    bool by_ids, placed, reasoning;
    recipe_logprob *logprob; /* one allocation with the alternatives */
    size_t n_logprob;
} piece;

/* A stretch of a piece with one action, in the order of the bytes. */
typedef struct segment {
    size_t piece;                /* number */
    size_t end;                  /* offset */
    size_t text_begin, text_end; /* what to show, in queue.text */
    parse_action action;
    bool fixed; /* of a pattern: does not join its neighbour */
    int call;
    recipe_marked *markup; /* CALL_END, owned; or NULL */
} segment;

typedef struct queue {
    piece *piece;
    size_t n_pieces, first_piece, cap_pieces, at_piece; /* at_piece: where bytes are placed next */
    segment *seg;
    size_t n_segs, first_seg, cap_segs;
    str text;
    size_t placed, end;            /* offsets: bytes placed, bytes there are */
    int64_t n_tokens, n_reasoning; /* of pieces that are finished */
    bool failed;
} queue;

void queue_fini(queue *q);

/* Append a piece of n bytes. Takes the logprobs over. */
void queue_piece(queue *q, size_t n, int64_t n_tokens, bool by_ids, recipe_logprob *logprob,
                 size_t n_logprob);

/* Place the next n bytes: they show themselves (`escape`: as the inside of a JSON string). */
void queue_place(queue *q, const char *bytes, size_t n, parse_action a, bool escape, int call,
                 bool reasoning);

/* Place the next n bytes, of a pattern: `text` belongs to the piece in which they begin. The first
 * n_before are newlines in front of the marker; reasoning: the state was Reasoning. */
typedef struct placing {
    size_t n, n_before;
    parse_action action;
    const char *text;
    size_t n_text;
    int call;
    bool reasoning;
    recipe_marked *markup; /* taken */
} placing;
void queue_place_pattern(queue *q, const placing *p);

/* Give out what can be (spec recipe.md 3.2). */
void queue_drain(queue *q, recipe_event_fn on_event, void *ctx);
