/* The abstract conversation that all three protocols become (spec recipe.md 1.1).
 *
 * Everything is borrowed, usually from the arena of a recipe_request. Zero is a sensible value of
 * every field. Thread: any; objects belong to one owner. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "recipe/jtree.h"

/* Which prompt format: that of the checkpoint. */
typedef enum recipe_family { RECIPE_V41, RECIPE_V4 } recipe_family;

typedef enum recipe_role {
    RECIPE_SYSTEM,
    RECIPE_USER,
    RECIPE_ASSISTANT,
    RECIPE_REMINDER, /* latest_reminder */
    RECIPE_TOOL      /* the result of a call */
} recipe_role;

/* How thorough the reasoning is to be: the 75, 50 or 100 of the effort line. */
typedef enum recipe_effort {
    RECIPE_EFFORT_HIGH,
    RECIPE_EFFORT_LOW,
    RECIPE_EFFORT_MAX,
    RECIPE_EFFORT_XHIGH /* prompts like HIGH */
} recipe_effort;

typedef enum recipe_choice {
    RECIPE_CHOICE_AUTO,
    RECIPE_CHOICE_NONE,
    RECIPE_CHOICE_REQUIRED /* at least one call, of the tools that are left in `tool` */
} recipe_choice;

typedef enum recipe_format {
    RECIPE_FORMAT_TEXT,
    RECIPE_FORMAT_JSON_OBJECT,
    RECIPE_FORMAT_JSON_SCHEMA,
    RECIPE_FORMAT_REGEX,
    RECIPE_FORMAT_EBNF /* ours */
} recipe_format;

/* A function that the model may call. */
typedef struct recipe_tool {
    const char *name; /* as the model sees it; a namespace member is "ns::name" */
    size_t n_name;
    const char *ns, *member; /* the two parts for such a member, else NULL */
    size_t n_ns, n_member;
    const char *description; /* NULL = none */
    size_t n_description;
    const jtree *parameters; /* JSON Schema; NULL = none */
    enum { RECIPE_STRICT_UNSET, RECIPE_STRICT_NO, RECIPE_STRICT_YES } strict;
    bool deferred; /* declared later, by a message's `added` */
    bool custom;   /* a custom tool of Responses: its one argument is "input", a text */
} recipe_tool;

/* A call in the history. */
typedef struct recipe_call {
    const char *id, *name;
    size_t n_id, n_name;
    const char *arguments; /* as the client sent it */
    size_t n_arguments;
    const jtree *object; /* the arguments when they are a JSON object, else NULL */
} recipe_call;

typedef struct recipe_message {
    recipe_role role;
    const char *content; /* NULL = empty */
    size_t n_content;
    const char *reasoning; /* assistant only; NULL = not given */
    size_t n_reasoning;
    const recipe_call *call; /* assistant only */
    size_t n_call;
    const char *call_id; /* tool only: the call that this answers */
    size_t n_call_id;
    const size_t *image_at; /* places of image placeholders in content, ascending */
    size_t n_images;
    const recipe_tool *const *added; /* system only: tools that are declared here */
    size_t n_added;
    bool keeps; /* system only: stands in the prompt of V4.1 although it is empty */
} recipe_message;

typedef struct recipe_chat {
    const recipe_message *message;
    size_t n;
    bool thinking;
    recipe_effort effort; /* read when thinking */
    bool prefix;          /* the last message is an assistant's that the answer continues */
    recipe_family family;
    const recipe_tool *tool;
    size_t n_tools;
    recipe_choice choice;
    recipe_format format;
    const jtree *schema; /* of JSON_SCHEMA, as the client wrote it */
} recipe_chat;

/* Words of the protocols, none to max. True and *on / *effort set when word[0..n) is one of them.
 */
bool recipe_effort_parse(const char *word, size_t n, bool *on, recipe_effort *effort);

/* True when the prompt declares tools and the answer may call them. */
bool recipe_has_tools(const recipe_chat *c);
