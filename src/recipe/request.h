/* One request body of Chat Completions, Responses or Messages -> what it asks for.
 *
 *   recipe_request q;
 *   recipe_error e;
 *   if (recipe_request_parse(&q, RECIPE_PROTOCOL_CHAT, &options, body, n, &e))
 *       ... q.chat, q.sampling, q.constraint, q.stop ...
 *   else
 *       recipe_error_body(RECIPE_PROTOCOL_CHAT, options.mode, &e, &out);   // with status e.status
 *   recipe_request_fini(&q);                                               // in both cases
 *
 * Source: spec recipe.md section 2 and 4 (mode STRICT: the released converter to the letter) and
 * section 6 (mode CLIENT, the default: what real clients send is accepted, what a client sets
 * explicitly is honoured; docs/api.md lists each difference).
 * Thread: the owner's only; a parsed request is immutable. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"
#include "recipe/chat.h"
#include "recipe/error.h"

#define RECIPE_MAX_STOP       16
#define RECIPE_MAX_STOP_BYTES 8192 /* of one string: the matcher takes a multiple per stream */
#define RECIPE_MAX_STOP_IDS   31
#define RECIPE_MAX_TOOLS      4096

/* Which fields of the sampling the body set itself, null aside. */
typedef enum recipe_set {
    RECIPE_SET_TEMPERATURE = 1 << 0,
    RECIPE_SET_TOP_P = 1 << 1,
    RECIPE_SET_TOP_K = 1 << 2,
    RECIPE_SET_MIN_P = 1 << 3,
    RECIPE_SET_REPETITION = 1 << 4,
    RECIPE_SET_FREQUENCY = 1 << 5,
    RECIPE_SET_PRESENCE = 1 << 6,
    RECIPE_SET_SEED = 1 << 7,
    RECIPE_SET_MAX_TOKENS = 1 << 8,
    RECIPE_SET_LOGIT_BIAS = 1 << 9
} recipe_set;

typedef struct recipe_bias {
    int32_t id;
    float bias;
} recipe_bias;

/* What the engine is to do: the recipe's values where the body sets none (STRICT: where the recipe
 * does not let it). Penalties, top_k, min_p, bias, n and ids are read in mode CLIENT only. */
typedef struct recipe_sampling {
    uint32_t set; /* recipe_set */
    float temperature, top_p;
    float min_p;              /* 0 = off */
    float repetition_penalty; /* 1 = off */
    float frequency_penalty, presence_penalty;
    int32_t top_k;      /* 0 = all */
    uint64_t seed;      /* when set */
    int64_t max_tokens; /* -1 = not asked: recipe_resolve_max_tokens */
    bool logprobs;
    int top_logprobs; /* 0..20; -1 = not asked */
    int n;            /* choices, 1..128 */
    const recipe_bias *bias;
    size_t n_bias;
    bool ignore_eos;
    int32_t stop_id[RECIPE_MAX_STOP_IDS];
    int n_stop_ids;
} recipe_sampling;

/* What the answer's tokens must match; it holds from the end of the reasoning on (spec
 * structured.md section 1). */
typedef enum recipe_constraint_kind {
    RECIPE_CONSTRAINT_NONE,
    RECIPE_CONSTRAINT_JSON,        /* text: compact JSON Schema, "" = any value */
    RECIPE_CONSTRAINT_JSON_OBJECT, /* any object; mode CLIENT (STRICT says JSON with "") */
    RECIPE_CONSTRAINT_REGEX,       /* text: the pattern */
    RECIPE_CONSTRAINT_EBNF,        /* text: the grammar; mode CLIENT */
    RECIPE_CONSTRAINT_TOOL_CALL,   /* text: compact JSON list of the tools */
    RECIPE_CONSTRAINT_TOOL_CALL_REQUIRED
} recipe_constraint_kind;

typedef struct recipe_constraint {
    recipe_constraint_kind kind;
    const char *text; /* 0-terminated */
    size_t n;
    const char *param; /* the member of the body that asks for it */
    bool one_call;     /* parallel_tool_calls is false */
    bool strict;       /* of a schema: what cannot be enforced is refused */
} recipe_constraint;

/* Where the answer begins (spec recipe.md 1.6 and 3.1). */
typedef enum recipe_stage {
    RECIPE_STAGE_CONTENT,      /* thinking is off */
    RECIPE_STAGE_REASONING,    /* ReasoningStart */
    RECIPE_STAGE_REASONING_ON, /* ReasoningContinuation */
    RECIPE_STAGE_CONTENT_ON    /* ContentContinuation */
} recipe_stage;

/* How to read the answer. */
typedef struct recipe_parsing {
    bool tool_calls;           /* markup of calls is read */
    bool starts_in_tool_calls; /* the prompt has opened the block */
    bool json_output;          /* json_object */
    recipe_stage stage;
    const char *stop[RECIPE_MAX_STOP];
    size_t stop_len[RECIPE_MAX_STOP];
    size_t n_stop;
} recipe_parsing;

typedef enum recipe_image_kind { RECIPE_IMAGE_URL, RECIPE_IMAGE_DATA } recipe_image_kind;

/* One image of the conversation, in the order of the placeholders. */
typedef struct recipe_image {
    recipe_image_kind kind;
    const char *detail; /* "low", "high", "original", "auto" */
    const char *source; /* URL, or data URL, or base64 text */
    size_t n_source;
    const char *path; /* the message, for messages */
} recipe_image;

/* Fields that a Responses object repeats, as finished JSON values. */
typedef struct recipe_echo {
    const char *instructions, *max_output_tokens, *reasoning, *temperature, *text, *tool_choice,
        *tools, *top_logprobs, *top_p, *user;
} recipe_echo;

typedef struct recipe_request {
    arena *mem; /* holds what the pointers below show */
    recipe_protocol protocol;
    recipe_mode mode;
    const char *model; /* as the body names it, 0-terminated */
    recipe_chat chat;
    recipe_sampling sampling;
    recipe_constraint constraint;
    recipe_parsing parsing;
    bool stream, include_usage;
    const recipe_image *image;
    size_t n_images;
    recipe_echo echo; /* Responses only */
    const char *user; /* user, prompt_cache_key or metadata.user_id; NULL = none */
    uint32_t max_tokens_thinking, max_tokens_plain; /* bounds of the options */
} recipe_request;

/* A model name that is accepted besides the two of the recipe. */
typedef struct recipe_alias {
    const char *name; /* may end in "*" */
    recipe_family family;
} recipe_alias;

/* Zero: the defaults. Everything is borrowed for the call. */
typedef struct recipe_options {
    recipe_mode mode;
    bool thinking_off;             /* when the body does not say */
    bool reject_missing_reasoning; /* reasoning_content_behavior Reject */
    bool responses_reject_web_search;
    bool messages_drop_web_search;                  /* always so in mode CLIENT */
    uint32_t max_tokens_thinking, max_tokens_plain; /* bounds of max_tokens; 0 = 393216 */
    const recipe_alias *alias;
    size_t n_alias;
} recipe_options;

/* Read a body of n bytes into *q, which may be uninitialised. False: *e says why (status 400, 404
 * for an unknown model in mode CLIENT, 503 out of memory). Call recipe_request_fini in both cases.
 */
bool recipe_request_parse(recipe_request *q, recipe_protocol protocol, const recipe_options *o,
                          const char *body, size_t n, recipe_error *e);
void recipe_request_fini(recipe_request *q);

/* max_tokens of a prompt of n_prompt tokens (images expanded) in a context of `context` tokens
 * (spec recipe.md section 4). False: *e has the 400. */
bool recipe_resolve_max_tokens(const recipe_request *q, int64_t n_prompt, int64_t context,
                               int64_t *out, recipe_error *e);
