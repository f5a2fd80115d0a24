/* What the readers of the three protocols share: shapes by table, errors with their place, checks.
 * Inside recipe only. */
#pragma once

#include "base/map.h"
#include "recipe/request.h"

/* Where a value stands, for messages: "messages" 3 "content" 0 -> messages[3].content[0]. */
typedef struct place {
    const char *text;
    size_t idx;
    bool has_idx;
    const struct place *in;
} place;

/* One reading of a body. */
typedef struct reading {
    recipe_request *q;
    const recipe_options *o;
    recipe_error *e;
    arena *mem;
    bool strict;                /* mode STRICT */
    place at;                   /* the member that is being read, for errors that name none */
    const recipe_tool **loaded; /* tools that a tool_reference or tool_addition names */
    recipe_image *image;
    size_t cap_images;
} reading;

/* ---- fields.c ---- */

typedef enum field_kind {
    FIELD_ANY,
    FIELD_STRING,
    FIELD_BOOL,
    FIELD_REAL,
    FIELD_UINT, /* an integer from 0 to max */
    FIELD_ARRAY,
    FIELD_OBJECT,
    FIELD_WORD,    /* a string of `words` */
    FIELD_STRINGS, /* a list of strings */
    FIELD_TEXT     /* a string or a list */
} field_kind;

typedef enum field_flag {
    FIELD_REQUIRED = 1, /* must be there and not null */
    FIELD_CLIENT = 2,   /* read in mode CLIENT only */
    FIELD_NULL = 4      /* null is kept as a value */
} field_flag;

typedef struct field {
    const char *key;
    field_kind kind;
    unsigned flags;
    uint64_t max;
    const char *const *words; /* NULL-terminated */
} field;

/* Check the members of `t` against n fields; out[i] is the value of fields[i], NULL when absent or
 * null. Unknown members are ignored. False: a parse error is set. */
bool fields_read(reading *rd, const jtree *t, const place *at, const field *fields, size_t n,
                 const jtree **out);

/* Set a parse error "PLACE: ..." (status 400). Returns false. */
bool parse_fail(reading *rd, const place *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Errors from here on are of this member of the body, or of its entry `idx`. Return true, for the
 * convenience of callers. */
bool reading_at(reading *rd, const char *member);
bool reading_item(reading *rd, const char *member, size_t idx);

/* Set a semantic error (status 400). Returns false. */
bool convert_fail(reading *rd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

bool out_of_memory(reading *rd);

/* Index of a string in `words`; -1 = none. */
int word_index(const jtree *t, const char *const *words);

/* Copies in the arena; NULL with an error set when out of memory. */
void *take_memory(reading *rd, size_t count, size_t size);
/* Give the text of s to the arena and empty it. */
const char *take_str(reading *rd, str *s, size_t *n);

bool is_true(const jtree *t);

/* ---- types.c ---- */

/* Mode STRICT: check the types of the whole body. False: a parse error is set. */
bool types_check(reading *rd, const jtree *body);

/* ---- content.c ---- */

/* The text of a message while its parts come in. */
typedef struct content {
    str text;
    size_t n_parts;
    size_t *image_at;
    size_t n_images, cap_images;
    bool failed;
} content;
void content_fini(content *c);

/* Append a part; parts are joined by two newlines. */
void content_text(content *c, const char *text, size_t n);
void content_join(content *c, const jtree *text, const char *glue);
void content_image(reading *rd, content *c, recipe_image image);
/* V4 has no images: a text stands for one, whatever it is. True when it does. */
bool content_blind(const reading *rd, content *c);

/* Move it into m. False: out of memory. */
bool content_take(reading *rd, content *c, recipe_message *m);

/* Check an image URL and add the image: http(s) or a base64 data URL of png, jpeg, gif, webp.
 * `path` names the message. False: a convert error is set. */
bool content_image_url(reading *rd, content *c, const jtree *url, const char *detail,
                       const char *path);
/* The same for Messages: http(s), in mode CLIENT also data URLs. */
bool content_web_image(reading *rd, content *c, const jtree *url, const char *path);
/* The first checks of the file_data of a file; content_image_url has the others. */
bool content_file_data(reading *rd, const jtree *data, const char *path);

bool is_base64(const char *s, size_t n);

/* Text as printf says, in the arena. */
const char *take_printf(reading *rd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- tools.c ---- */

/* Tools as the body has them, before the checks. */
typedef struct tool_list {
    recipe_tool *tool;
    size_t n, cap;
} tool_list;

/* Append a tool, zeroed. NULL: out of memory. */
recipe_tool *tools_add(reading *rd, tool_list *l);

/* Fill name, description, parameters and strict from a flat or nested function object. */
void tool_fill(recipe_tool *t, const jtree *name, const jtree *description, const jtree *parameters,
               const jtree *strict);

/* A custom tool of Responses: a function with one text, "input". apply_patch has the description
 * and the schema that the model knows. */
bool tool_fill_custom(reading *rd, recipe_tool *t, const jtree *name, const jtree *description);

/* Check a name: `path` is "tools[0].function.name". */
bool tool_check_name(reading *rd, const char *name, size_t n, const char *path);

/* What tool_choice says. */
typedef struct tool_choice {
    recipe_choice choice;
    const jtree *name;    /* of a named tool, or NULL */
    const jtree *allowed; /* list of {"name"} or {"function": {"name"}}, or NULL */
} tool_choice;

/* Unique names, schemas, strict: the checks that come behind the messages; none where no tool may
 * be called. `check_strict` is false for Messages. */
bool tools_check(reading *rd, tool_list *l, recipe_choice choice, bool check_strict);

/* Apply the choice: fills q->chat.tool, n_tools, choice. */
bool tools_choose(reading *rd, const tool_list *l, const tool_choice *c);

/* The tool with this name, NULL = none. */
const recipe_tool *tools_find(const tool_list *l, const char *name, size_t n);

/* ---- calls.c ---- */

/* A call of the history; its arguments are looked at as JSON. */
bool call_fill(reading *rd, recipe_call *call, const jtree *id, const jtree *name,
               const jtree *arguments);

/* Ids of calls that wait for their results. */
typedef struct call_ref {
    const char *id;
    size_t n;
    bool taken;
} call_ref;
typedef struct id_set {
    call_ref *ref; /* in the arena */
    size_t n, cap;
    map *index; /* id -> place; only for many */
} id_set;
/* For at most cap ids. False: out of memory, an error is set. */
bool id_set_init(reading *rd, id_set *s, size_t cap);
void id_set_fini(id_set *s);
/* False when the id is there already, or out of memory. */
bool id_set_add(id_set *s, const char *id, size_t n);
/* The entry of an id, NULL = none. */
call_ref *id_set_find(const id_set *s, const char *id, size_t n);
/* Take an id: false when it is not there, or was taken before. */
bool id_set_take(id_set *s, const char *id, size_t n);

/* ---- schema.c ---- */

/* Is this a JSON Schema? False and *why (in the arena) otherwise. */
bool schema_valid(reading *rd, const jtree *t, const char **why);

/* The strict rewrite of a schema (spec recipe.md 2.3). NULL: a convert error is set. `what` begins
 * its message, `top` is the message for a top level that is no object; may_be_empty: it may have no
 * properties. */
const jtree *schema_strict(reading *rd, const jtree *t, const char *what, const char *top,
                           bool may_be_empty);

/* ---- schema_typed.c ---- */

/* The same in mode STRICT, where the schema need not have been found valid. */
const jtree *schema_typed(reading *rd, const jtree *t, const char *what, const char *top,
                          bool may_be_empty);

/* ---- settings.c ---- */

/* Sampling fields of the body; NULL = absent. */
typedef struct settings {
    const jtree *temperature, *top_p, *presence, *frequency, *repetition, *min_p, *top_k, *seed, *n,
        *logprobs, *top_logprobs, *max_tokens, *logit_bias, *stop_ids, *ignore_eos;
    bool top_logprobs_alone; /* Responses: top_logprobs turns logprobs on */
    bool clamp_max_tokens;   /* Messages */
} settings;

/* Check the fields in the order of the recipe and settle q->sampling. */
bool settings_apply(reading *rd, const settings *s);

/* Model name -> family. */
bool settings_model(reading *rd, const jtree *model);

/* What the body says about thinking. */
typedef enum thinking_said { THINKING_UNSAID, THINKING_OFF, THINKING_ON } thinking_said;

/* "thinking": {"type": ...} of Chat and Messages; NULL = absent. False: a parse error. */
bool settings_thinking_type(reading *rd, const jtree *thinking, thinking_said *said);

/* Settle q->chat.thinking and effort (spec recipe.md 2.1). */
void settings_thinking(reading *rd, thinking_said said, const jtree *effort);

/* Stop strings: a list, or (`one`) a string. */
bool settings_stop(reading *rd, const jtree *stop, bool one);

/* What the body wants the answer to be, before it is checked. */
typedef struct answer_format {
    recipe_format format;
    const jtree *schema, *text; /* text: of REGEX and EBNF */
    bool strict;
    const jtree *checked; /* the schema after settings_format */
    const char *member;   /* of the body, for errors */
} answer_format;

/* Check the format and note it; settings_constraint comes last, it needs all else. */
bool settings_format(reading *rd, answer_format *f);

/* Formats in the words of other servers, mode CLIENT: structured_outputs {json, regex, grammar,
 * choice, json_object}, regex, ebnf. They count when response_format says text. */
bool format_extras(reading *rd, const jtree *structured, const jtree *regex, const jtree *ebnf,
                   answer_format *f);

/* Settle q->constraint and q->parsing. */
bool settings_constraint(reading *rd, const answer_format *f);

/* Does some message hold the word json? */
bool settings_json_word(const recipe_chat *c);

/* ---- echo.c ---- */

/* q->echo: what a Responses object repeats of the body. */
bool echo_fill(reading *rd, const jtree *body);

/* ---- one per protocol ---- */

/* The members of a body that its reader looks at. */
typedef struct field_list {
    const field *fields;
    size_t n;
} field_list;
extern const field_list chat_fields, responses_fields, messages_fields;

bool request_read_chat(reading *rd, const jtree *body);
bool request_read_responses(reading *rd, const jtree *body);
bool request_read_messages(reading *rd, const jtree *body);

/* ---- messages_turns.c ---- */

/* "system" (NULL = absent) and "messages" of a Messages body -> q->chat.message. `tools` are those
 * that its blocks may refer to. */
bool messages_read_turns(reading *rd, const jtree *system, const jtree *list,
                         const tool_list *tools);

extern const char *const thinking_words[], *const effort_words[], *const detail_words[];
