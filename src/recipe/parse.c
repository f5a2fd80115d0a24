/* The machine that reads an answer: states and patterns of spec recipe.md 3.1. See parse.h.
 *
 *   Reasoning --</think>--> Common --<DSML--> Calls --invoke--> Name --"--> Args
 *   Args --parameter--> ParamName --> Type --> Value --</DSML--> Args --</DSML--> Calls
 *   Calls --</DSML calls>--> Finished; a stop string in Common or Json --> Finished
 *
 * In every state some patterns are matched side by side; bytes that belong to no pattern get the
 * state's action. Which deltas come out, and when, is the business of the queue. */
#include "recipe/parse.h"

#include <string.h>

#include "base/json_read.h"
#include "base/mem.h"
#include "recipe/control.h"
#include "recipe/parse_internal.h"

#define CONTROLS 5 /* most patterns of a state, stop strings aside */

struct recipe_parser {
    const tokenizer *tok;
    recipe_mode mode;
    recipe_parsing how;     /* stop strings are borrowed */
    bool by_token, decided; /* decided: by_token is known, the patterns are there */
    recipe_event_fn on_event;
    void *ctx;

    matcher matcher[PARSE_N_STATES];
    match_state match[RECIPE_MAX_STOP + CONTROLS];
    parse_state state;
    bool leading;   /* newlines are dropped here */
    bool fresh;     /* no byte since the matchers restarted */
    bool first_arg; /* no parameter yet */
    bool text_value;
    size_t at; /* offset of the next byte */

    queue q;
    str held; /* bytes from q.placed on */
    str name; /* of the call that is open */
    str raw;  /* a value that is not a text, mode CLIENT */
    int n_calls, stop;
    int stop_of[RECIPE_MAX_STOP];

    /* tokens */
    tok_decoder decoder;
    int32_t image_id; /* files spell it in their own way */
    str piece;
    int64_t n_ready, n_held, n_pushed; /* tokens in piece; in the decoder; all */
    recipe_logprob *logprob;           /* of tokens that are ready or held; `top` is unused */
    size_t n_logprob, cap_logprob;
    recipe_alternative *top; /* their alternatives in order */
    size_t n_top, cap_top;

    recipe_marked markup; /* of the call that is open, mode CLIENT with tokens */
    bool blank_tag;       /* its tags have the blank of V4.1 */
    char last;            /* byte before */
    bool failed;
};

/* ---- patterns ---- */

static bool add(recipe_parser *p, parse_state s, const char *text, parse_state next,
                parse_effect effect)
{
    pattern t = {.text = text, .next = next, .effect = effect};
    const char *control = NULL;
    size_t n_control = 0;

    if (*text == '\1') {
        t.newlines = true;
        t.text++;
    }
    t.n = strlen(t.text);
    if (strcmp(t.text, TOK_UNTHINK) == 0) {
        control = t.text;
        n_control = t.n;
    } else if ((control = strstr(t.text, TOK_DSML)) != NULL) {
        n_control = strlen(TOK_DSML);
    }
    return matcher_add(&p->matcher[s], t, control ? (size_t)(control - t.text) : 0,
                       control ? (size_t)(control - t.text) + n_control : 0);
}

static bool add_stops(recipe_parser *p, parse_state s)
{
    for (size_t i = 0; i < p->how.n_stop; i++) {
        const pattern t = {.text = p->how.stop[i],
                           .n = p->how.stop_len[i],
                           .next = PARSE_FINISHED,
                           .effect = EFFECT_STOP,
                           .any_token = true};

        if (!matcher_add(&p->matcher[s], t, 0, 0))
            return false;
    }
    return true;
}

/* Calls that nobody asked for are not shown: the marker ends what a client sees. */
static bool add_calls(recipe_parser *p, parse_state s)
{
    if (p->how.tool_calls)
        return add(p, s, "\1<" TOK_DSML, PARSE_CALLS, EFFECT_DROP);
    return !p->by_token || add(p, s, "\1<" TOK_DSML, PARSE_FINISHED, EFFECT_DROP);
}

/* Only the states that this answer can be in have patterns: streams are many. */
static bool build_text(recipe_parser *p)
{
    return add_stops(p, PARSE_COMMON) && add_calls(p, PARSE_COMMON) &&
           add(p, PARSE_COMMON, TOK_UNTHINK, PARSE_COMMON, EFFECT_DROP);
}

static bool build_json(recipe_parser *p)
{
    return add(p, PARSE_WAIT, "```json\n", PARSE_JSON, EFFECT_DROP) &&
           add(p, PARSE_WAIT, "```\n", PARSE_JSON, EFFECT_DROP) &&
           add(p, PARSE_WAIT, "{", PARSE_JSON, EFFECT_SHOW) &&
           add(p, PARSE_WAIT, "[", PARSE_JSON, EFFECT_SHOW) && add_calls(p, PARSE_WAIT) &&
           add(p, PARSE_WAIT, TOK_UNTHINK, PARSE_WAIT, EFFECT_DROP) && add_stops(p, PARSE_JSON) &&
           add(p, PARSE_JSON, "\n```", PARSE_AFTER_JSON, EFFECT_DROP) &&
           add_calls(p, PARSE_AFTER_JSON);
}

static bool build_reasoning(recipe_parser *p)
{
    return add_calls(p, PARSE_REASONING) &&
           add(p, PARSE_REASONING, "\1" TOK_UNTHINK, PARSE_COMMON, EFFECT_DROP);
}

static bool build_calls(recipe_parser *p)
{
    bool strict = p->mode == RECIPE_STRICT;

    return add(p, PARSE_CALLS, "invoke name=\"", PARSE_NAME, EFFECT_NAME) &&
           add(p, PARSE_CALLS, "</" TOK_DSML "tool_calls>", PARSE_FINISHED, EFFECT_DROP) &&
           add(p, PARSE_CALLS, "</" TOK_DSML " calls>", PARSE_FINISHED, EFFECT_DROP) &&
           add(p, PARSE_NAME, "\"", PARSE_ARGS, EFFECT_OPEN_CALL) &&
           add(p, PARSE_ARGS, strict ? "parameter name=" : "parameter name=\"",
               strict ? PARSE_PARAM_NAME : PARSE_KEY, EFFECT_PARAM) &&
           add(p, PARSE_ARGS, "</" TOK_DSML, PARSE_CALLS, EFFECT_CLOSE_CALL) &&
           add(p, PARSE_PARAM_NAME, " ", PARSE_TYPE, EFFECT_COLON) &&
           add(p, PARSE_KEY, "\" string=\"", PARSE_TYPE, EFFECT_KEY) &&
           add(p, PARSE_KEY, "\">", PARSE_VALUE, EFFECT_KEY_TEXT) &&
           add(p, PARSE_KEY, "</" TOK_DSML, PARSE_ARGS, EFFECT_NO_VALUE) &&
           add(p, PARSE_TYPE, "true\">", PARSE_VALUE, EFFECT_TEXT) &&
           add(p, PARSE_TYPE, "false\">", PARSE_VALUE, EFFECT_RAW) &&
           (strict || add(p, PARSE_TYPE, "</" TOK_DSML, PARSE_ARGS, EFFECT_NULL)) &&
           add(p, PARSE_VALUE, "</" TOK_DSML, PARSE_ARGS, EFFECT_CLOSE_VALUE);
}

/* Before the first input, when it is known whether that is tokens. */
static void decide(recipe_parser *p, bool tokens)
{
    if (p->decided)
        return;
    p->decided = true;
    p->by_token = tokens && p->mode == RECIPE_CLIENT;
    if (!(p->how.json_output ? build_json(p) : build_text(p)) || !build_reasoning(p) ||
        (p->how.tool_calls && !build_calls(p)))
        p->failed = true;
}

static void enter(recipe_parser *p, parse_state s, bool leading)
{
    if (s == PARSE_COMMON && p->how.json_output)
        s = PARSE_WAIT;
    p->state = s;
    p->leading = leading;
    p->fresh = true;
    memset(p->match, 0, sizeof p->match);
}

static void start(recipe_parser *p, const recipe_parsing *how)
{
    if (how->starts_in_tool_calls) {
        enter(p, PARSE_CALLS, false);
        return;
    }
    switch (how->stage) {
    case RECIPE_STAGE_CONTENT:
        enter(p, PARSE_COMMON, true);
        break;
    case RECIPE_STAGE_REASONING:
        enter(p, PARSE_REASONING, true);
        break;
    case RECIPE_STAGE_REASONING_ON:
        enter(p, PARSE_REASONING, false);
        break;
    case RECIPE_STAGE_CONTENT_ON:
        enter(p, PARSE_COMMON, false);
        break;
    }
}

recipe_parser *recipe_parser_new(const recipe_parsing *how, recipe_mode mode, const tokenizer *tok,
                                 recipe_event_fn on_event, void *ctx)
{
    recipe_parser *p = mem_try_calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->tok = tok;
    p->mode = mode;
    p->how = *how;
    p->on_event = on_event;
    p->ctx = ctx;
    p->stop = -1;
    if (tok) {
        tok_decoder_init(&p->decoder, tok);
        p->image_id = tokenizer_added_id(tok, TOK_IMAGE_FILE);
    }
    start(p, how);
    return p;
}

void recipe_parser_free(recipe_parser *p)
{
    if (!p)
        return;
    for (int i = 0; i < PARSE_N_STATES; i++)
        matcher_fini(&p->matcher[i]);
    queue_fini(&p->q);
    str_fini(&p->held);
    str_fini(&p->name);
    str_fini(&p->raw);
    str_fini(&p->piece);
    recipe_marked_fini(&p->markup);
    mem_free(p->logprob);
    mem_free(p->top);
    if (p->tok)
        tok_decoder_fini(&p->decoder);
    mem_free(p);
}

/* ---- placing bytes ---- */

static parse_action action_of(const recipe_parser *p)
{
    switch (p->state) {
    case PARSE_COMMON:
    case PARSE_JSON:
        return ACTION_CONTENT;
    case PARSE_WAIT:
    case PARSE_AFTER_JSON:
        /* As many blanks as there are cuts: what a client sees must not depend on those. */
        return p->mode == RECIPE_STRICT ? ACTION_BLANK : ACTION_DROP;
    case PARSE_REASONING:
        return ACTION_REASONING;
    case PARSE_NAME:
        return ACTION_NAME;
    case PARSE_PARAM_NAME:
    case PARSE_KEY:
        return ACTION_ARGS;
    case PARSE_VALUE:
        /* A client gets a raw value when it is known to be JSON. */
        return p->text_value || p->mode == RECIPE_STRICT ? ACTION_ARGS : ACTION_DROP;
    case PARSE_CALLS:
    case PARSE_ARGS:
    case PARSE_TYPE:
    case PARSE_FINISHED:
    case PARSE_N_STATES:
        break;
    }
    return ACTION_DROP;
}

static void forget(recipe_parser *p, size_t n)
{
    memmove(p->held.data, p->held.data + n, p->held.len - n);
    p->held.len -= n;
    p->held.data[p->held.len] = 0;
}

/* The next n bytes belong to no pattern. */
static void release(recipe_parser *p, size_t n)
{
    bool escape = p->state == PARSE_KEY || (p->state == PARSE_VALUE && p->text_value);
    const char *bytes = str_text(&p->held);

    if (n == 0 || p->held.failed)
        return;
    if (p->state == PARSE_NAME)
        str_append(&p->name, bytes, n);
    if (p->state == PARSE_VALUE && !p->text_value)
        str_append(&p->raw, bytes, n);
    queue_place(&p->q, bytes, n, action_of(p), escape, p->n_calls - 1, p->state == PARSE_REASONING);
    forget(p, n);
}

static bool is_json(const str *s)
{
    json_read r;
    bool ok;

    json_open(&r, str_text(s), s->len, "value");
    ok = json_skip(&r, NULL) == DI_OK && json_end(&r, NULL) == DI_OK;
    json_close(&r);
    return ok;
}

/* ---- effects ---- */

/* The markup of the call so far, with the closing tag that its dialect has. */
static recipe_marked *take_markup(recipe_parser *p)
{
    recipe_marked *m;

    if (!p->by_token)
        return NULL;
    m = mem_try_calloc(1, sizeof *m);
    if (!m)
        return NULL;
    /* The marker that ends the call is the last thing there. */
    recipe_marked_span(&p->markup, p->markup.text.len - strlen(TOK_DSML), p->markup.text.len);
    str_puts(&p->markup.text, p->blank_tag ? " invoke>" : "invoke>");
    *m = p->markup;
    p->markup = (recipe_marked){0};
    return m;
}

/* What a complete pattern shows. */
static void effect_text(recipe_parser *p, const pattern *t, placing *w, str *text)
{
    w->action = ACTION_ARGS;
    switch (t->effect) {
    case EFFECT_DROP:
    case EFFECT_STOP:
    case EFFECT_NAME:
    case EFFECT_RAW:
        w->action = ACTION_DROP;
        break;
    case EFFECT_SHOW:
        w->action = ACTION_CONTENT;
        str_append(text, t->text, t->n);
        break;
    case EFFECT_OPEN_CALL:
        w->action = ACTION_CALL;
        w->call = p->n_calls;
        str_append(text, str_text(&p->name), p->name.len);
        break;
    case EFFECT_PARAM:
        str_puts(text, p->first_arg ? "{" : ", ");
        if (p->mode == RECIPE_CLIENT)
            str_putc(text, '"');
        break;
    case EFFECT_CLOSE_CALL:
        w->action = ACTION_CALL_END;
        str_puts(text, p->first_arg ? "{}" : "}");
        w->markup = take_markup(p);
        break;
    case EFFECT_COLON:
        str_puts(text, ": ");
        break;
    case EFFECT_KEY:
        str_puts(text, "\": ");
        break;
    case EFFECT_KEY_TEXT:
        str_puts(text, "\": \"");
        break;
    case EFFECT_NO_VALUE:
        str_puts(text, "\": null");
        break;
    case EFFECT_NULL:
        str_puts(text, "null");
        break;
    case EFFECT_TEXT:
        str_putc(text, '"');
        break;
    case EFFECT_CLOSE_VALUE:
        if (p->text_value)
            str_putc(text, '"');
        else if (p->mode == RECIPE_CLIENT && is_json(&p->raw))
            str_append(text, str_text(&p->raw), p->raw.len);
        else if (p->mode == RECIPE_CLIENT)
            jtree_quote(str_text(&p->raw), p->raw.len, text);
        break;
    }
    if (w->action == ACTION_ARGS && text->len == 0)
        w->action = ACTION_DROP;
}

/* The markup that is remembered of a call begins with its canonical opening. */
static void begin_markup(recipe_parser *p)
{
    recipe_marked_clear(&p->markup);
    str_putc(&p->markup.text, '<');
    recipe_marked_control(&p->markup, TOK_DSML);
    str_puts(&p->markup.text, p->blank_tag ? " invoke name=\"" : "invoke name=\"");
}

static void apply(recipe_parser *p, const pattern *t)
{
    bool leading = p->state == PARSE_REASONING && t->next == PARSE_COMMON;

    switch (t->effect) {
    case EFFECT_STOP:
        p->stop = (int)(t - p->matcher[p->state].pattern);
        break;
    case EFFECT_NAME:
        str_clear(&p->name);
        if (p->by_token)
            begin_markup(p);
        break;
    case EFFECT_OPEN_CALL:
        p->n_calls++;
        p->first_arg = true;
        break;
    case EFFECT_PARAM:
        p->first_arg = false;
        break;
    case EFFECT_TEXT:
    case EFFECT_KEY_TEXT:
    case EFFECT_RAW:
        p->text_value = t->effect != EFFECT_RAW;
        str_clear(&p->raw);
        break;
    default:
        break;
    }
    enter(p, t->next, leading);
}

/* Pattern t is complete; its n bytes are the last that came. */
static void complete(recipe_parser *p, const pattern *t, size_t n)
{
    placing w = {.n = n, .n_before = n - t->n, .call = p->n_calls - 1};
    str text = {0};

    if (p->held.failed || p->held.len < n)
        return;
    release(p, p->held.len - n);
    w.reasoning = p->state == PARSE_REASONING;
    effect_text(p, t, &w, &text);
    w.text = str_text(&text);
    w.n_text = text.len;
    p->failed = p->failed || !str_ok(&text);
    queue_place_pattern(&p->q, &w);
    forget(p, n);
    apply(p, t);
    str_fini(&text);
}

/* A newline at the very start of a section. */
static void drop_leading(recipe_parser *p)
{
    const placing w = {.n = 1,
                       .n_before = 1,
                       .action = ACTION_DROP,
                       .text = "",
                       .call = -1,
                       .reasoning = p->state == PARSE_REASONING};

    queue_place_pattern(&p->q, &w);
    forget(p, 1);
    enter(p, p->state, true);
}

static bool in_call(const recipe_parser *p)
{
    return p->state >= PARSE_NAME && p->state <= PARSE_VALUE;
}

static void take_byte(recipe_parser *p, char byte, bool control)
{
    const matcher *m = &p->matcher[p->state];
    unsigned symbol = (unsigned char)byte | (control ? SYMBOL_CONTROL : 0);
    size_t len = 0;
    int found;

    if (p->by_token && in_call(p))
        str_putc(&p->markup.text, byte);
    if (p->state == PARSE_CALLS && byte == 'i' && p->match[0].at == 0)
        p->blank_tag = p->last == ' ';
    p->last = byte;
    found = matcher_step(m, p->match, symbol, p->by_token, &len);
    if (found >= 0)
        complete(p, &m->pattern[found], len);
    else if (p->leading && p->fresh && byte == '\n')
        drop_leading(p);
    else
        p->fresh = false;
}

/* Take one piece. control: it is one control token. False after a stop string. */
static bool take_piece(recipe_parser *p, const char *bytes, size_t n, bool control)
{
    size_t begin = p->markup.text.len;
    bool open = in_call(p);

    if (p->q.failed)
        return p->stop < 0;
    for (size_t i = 0; i < n && p->stop < 0; i++) {
        str_putc(&p->held, bytes[i]);
        take_byte(p, bytes[i], control);
        if (p->stop >= 0 && i + 1 < n) /* the rest of the piece is dropped */
            queue_place(&p->q, bytes + i + 1, n - i - 1, ACTION_DROP, false, -1, false);
    }
    if (control && open && p->markup.text.len == begin + n)
        recipe_marked_span(&p->markup, begin, begin + n);
    if (p->stop < 0 && !p->held.failed)
        release(p, p->held.len - matcher_pending(&p->matcher[p->state], p->match));
    queue_drain(&p->q, p->on_event, p->ctx);
    return p->stop < 0;
}

bool recipe_parser_text(recipe_parser *p, const char *text, size_t n, int64_t n_tokens)
{
    if (p->stop >= 0)
        return false;
    decide(p, false);
    p->n_pushed += n_tokens;
    queue_piece(&p->q, n, n_tokens, false, NULL, 0);
    return take_piece(p, text, n, false);
}

/* ---- tokens ---- */

/* Room for n more elements of `size` bytes. */
static bool reserve(void **list, size_t *cap, size_t used, size_t n, size_t size)
{
    size_t want = *cap ? *cap : 4;
    void *more;

    if (used + n <= *cap)
        return true;
    while (want < used + n)
        want *= 2;
    more = mem_try_realloc(*list, want, size);
    if (!more)
        return false;
    *list = more;
    *cap = want;
    return true;
}

static void keep_logprob(recipe_parser *p, const recipe_logprob *lp)
{
    void *entries = p->logprob, *top = p->top;
    size_t n_top = (size_t)lp->n_top;
    bool ok = reserve(&entries, &p->cap_logprob, p->n_logprob, 1, sizeof *p->logprob);

    p->logprob = entries;
    ok = ok && reserve(&top, &p->cap_top, p->n_top, n_top, sizeof *p->top);
    p->top = top;
    if (!ok) {
        p->failed = true;
        return;
    }
    p->logprob[p->n_logprob++] = *lp;
    if (n_top)
        memcpy(p->top + p->n_top, lp->top, n_top * sizeof *p->top);
    p->n_top += n_top;
}

/* The first n collected logprobs as one allocation: entries, then their alternatives. */
static recipe_logprob *take_logprobs(recipe_parser *p, size_t n)
{
    size_t n_top = 0;
    recipe_logprob *out;
    recipe_alternative *top;

    for (size_t i = 0; i < n; i++)
        n_top += (size_t)p->logprob[i].n_top;
    out = mem_try_calloc(1, n * sizeof *out + n_top * sizeof *top);
    if (!out)
        return NULL;
    top = (recipe_alternative *)(out + n);
    if (n_top)
        memcpy(top, p->top, n_top * sizeof *top);
    for (size_t i = 0; i < n; i++) {
        out[i] = p->logprob[i];
        out[i].top = top;
        top += out[i].n_top;
    }
    p->n_logprob -= n;
    p->n_top -= n_top;
    memmove(p->logprob, p->logprob + n, p->n_logprob * sizeof *p->logprob);
    if (p->n_top)
        memmove(p->top, p->top + n_top, p->n_top * sizeof *p->top);
    return out;
}

/* The tokens that are ready are one piece. */
static bool end_run(recipe_parser *p, bool control)
{
    size_t n = p->n_logprob < (size_t)p->n_ready ? p->n_logprob : (size_t)p->n_ready;
    recipe_logprob *lp = n ? take_logprobs(p, n) : NULL;
    bool more;

    if (n && !lp) {
        p->failed = true;
        n = 0;
    }
    queue_piece(&p->q, p->piece.len, p->n_ready, true, lp, n);
    p->n_ready = 0;
    more = take_piece(p, str_text(&p->piece), p->piece.len, control);
    str_clear(&p->piece);
    return more;
}

static bool is_added(const recipe_parser *p, int32_t id)
{
    size_t n;

    return tokenizer_is_added(p->tok, id) && tokenizer_bytes(p->tok, id, &n) != NULL;
}

bool recipe_parser_tokens(recipe_parser *p, const int32_t *ids, size_t n,
                          const recipe_logprob *logprob)
{
    decide(p, true);
    for (size_t i = 0; i < n && p->stop < 0; i++) {
        bool added = is_added(p, ids[i]);

        if (added && p->n_held) { /* what was cut off stays cut */
            tok_decoder_flush(&p->decoder, &p->piece);
            p->n_ready += p->n_held;
            p->n_held = 0;
            if (!end_run(p, false))
                break;
        }
        if (logprob)
            keep_logprob(p, &logprob[i]);
        if (added && ids[i] == p->image_id)
            str_puts(&p->piece, TOK_IMAGE);
        else
            tok_decoder_push(&p->decoder, ids[i], &p->piece);
        p->n_held++;
        p->n_pushed++;
        if (p->decoder.pending.len == 0) {
            p->n_ready += p->n_held;
            p->n_held = 0;
        }
        if (p->n_ready && (added || i + 1 == n || is_added(p, ids[i + 1])))
            end_run(p, added);
    }
    return p->stop < 0;
}

void recipe_parser_finish(recipe_parser *p)
{
    if (p->stop < 0) {
        release(p, p->held.len);
        queue_drain(&p->q, p->on_event, p->ctx);
    }
}

int recipe_parser_stop(const recipe_parser *p)
{
    return p->stop;
}

int recipe_parser_n_calls(const recipe_parser *p)
{
    return p->n_calls;
}

int64_t recipe_parser_n_tokens(const recipe_parser *p)
{
    return p->mode == RECIPE_CLIENT ? p->n_pushed : p->q.n_tokens;
}

int64_t recipe_parser_n_reasoning(const recipe_parser *p)
{
    return p->q.n_reasoning;
}

bool recipe_parser_ok(const recipe_parser *p)
{
    return !p->failed && !p->q.failed && str_ok(&p->held) && str_ok(&p->name) && str_ok(&p->raw) &&
           str_ok(&p->q.text) && str_ok(&p->piece) && str_ok(&p->markup.text);
}
