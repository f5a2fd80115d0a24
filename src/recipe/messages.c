/* Reads bodies with the pull reader: one function per level. See messages.h. */
#include "recipe/messages.h"

#include <string.h>

/* One message while its keys come in. */
typedef struct draft {
    size_t idx;
    bool has_role, has_content, null_content, prefix, calls;
    recipe_role role;
    str content, reasoning;
} draft;

void recipe_body_init(recipe_body *b, arena *mem)
{
    *b = (recipe_body){.mem = mem};
}

static di_code no_memory(di_status *st)
{
    return di_fail(st, DI_E_NOMEM, "no memory for the messages of a request");
}

static di_code append(recipe_body *b, const recipe_message *m, di_status *st)
{
    if (b->n == b->cap) {
        size_t cap = b->cap ? b->cap * 2 : 16;
        recipe_message *more = arena_alloc(b->mem, cap, sizeof *more);

        if (!more)
            return no_memory(st);
        if (b->n)
            memcpy(more, b->message, b->n * sizeof *more);
        b->message = more;
        b->cap = cap;
    }
    b->message[b->n++] = *m;
    return DI_OK;
}

di_code recipe_body_add(recipe_body *b, recipe_role role, const char *content, size_t n,
                        di_status *st)
{
    recipe_message m = {.role = role, .n_content = n};

    m.content = arena_strndup(b->mem, n ? content : "", n);
    if (!m.content)
        return no_memory(st);
    return append(b, &m, st);
}

static di_code read_role(draft *d, json_read *r, di_status *st)
{
    static const struct {
        const char *word;
        recipe_role role;
    } roles[] = {
        {"system", RECIPE_SYSTEM},
        {"developer", RECIPE_SYSTEM},
        {"user", RECIPE_USER},
        {"assistant", RECIPE_ASSISTANT},
        {"latest_reminder", RECIPE_REMINDER},
    };
    const char *word;
    size_t n;
    di_code rc = json_string(r, &word, &n, st);

    if (rc != DI_OK)
        return rc;
    for (size_t i = 0; i < ARRAY_LEN(roles); i++)
        if (json_key_is(word, n, roles[i].word)) {
            d->role = roles[i].role;
            d->has_role = true;
            return DI_OK;
        }
    if (json_key_is(word, n, "tool"))
        return di_fail(st, DI_E_UNSUPPORTED,
                       "messages[%zu]: tool results are not supported by this program", d->idx);
    return di_fail(st, DI_E_INVALID,
                   "messages[%zu].role is \"%.*s\", but must be system, user, assistant or "
                   "latest_reminder",
                   d->idx, n > 40 ? 40 : (int)n, word);
}

/* One part of a content list; text parts are joined by two newlines. */
static di_code read_part(draft *d, json_read *r, bool first, di_status *st)
{
    const char *s;
    size_t n;
    bool has_text = false, other_type = false;
    char type[32] = "";
    di_code rc;

    DI_TRY(json_object(r, st));
    while (json_key(r, &s, &n)) {
        if (json_key_is(s, n, "type")) {
            DI_TRY(json_string(r, &s, &n, st));
            other_type = !json_key_is(s, n, "text");
            memcpy(type, s, n < sizeof type ? n : sizeof type - 1);
        } else if (json_key_is(s, n, "text")) {
            DI_TRY(json_string(r, &s, &n, st));
            if (!first)
                str_puts(&d->content, "\n\n");
            str_append(&d->content, s, n);
            has_text = true;
        } else {
            DI_TRY(json_skip(r, st));
        }
    }
    if (other_type)
        rc = di_fail(st, DI_E_UNSUPPORTED,
                     "messages[%zu]: content of type \"%s\" is not supported by this program",
                     d->idx, type);
    else if (!has_text)
        rc = di_fail(st, DI_E_INVALID, "messages[%zu]: a text part has no \"text\"", d->idx);
done:
    return rc;
}

static di_code read_content(draft *d, json_read *r, di_status *st)
{
    const char *s;
    size_t n;
    di_code rc = DI_OK;

    str_clear(&d->content);
    d->has_content = true;
    d->null_content = false;
    switch (json_peek(r)) {
    case JSON_NULL:
        d->null_content = true;
        DI_TRY(json_null(r, st));
        break;
    case JSON_ARRAY:
        DI_TRY(json_array(r, st));
        for (bool first = true; json_item(r); first = false)
            DI_TRY(read_part(d, r, first, st));
        break;
    default:
        DI_TRY(json_string(r, &s, &n, st));
        str_append(&d->content, s, n);
        break;
    }
done:
    return rc;
}

static di_code read_reasoning(draft *d, json_read *r, di_status *st)
{
    const char *s;
    size_t n;
    di_code rc;

    if (json_peek(r) == JSON_NULL)
        return json_null(r, st);
    rc = json_string(r, &s, &n, st);
    if (rc != DI_OK)
        return rc;
    str_clear(&d->reasoning);
    str_append(&d->reasoning, s, n);
    return DI_OK;
}

static di_code read_message(draft *d, json_read *r, di_status *st)
{
    const char *key;
    size_t n;
    di_code rc;

    DI_TRY(json_object(r, st));
    while (json_key(r, &key, &n)) {
        if (json_key_is(key, n, "role")) {
            DI_TRY(read_role(d, r, st));
        } else if (json_key_is(key, n, "content")) {
            DI_TRY(read_content(d, r, st));
        } else if (json_key_is(key, n, "reasoning_content")) {
            DI_TRY(read_reasoning(d, r, st));
        } else if (json_key_is(key, n, "prefix") && json_peek(r) == JSON_BOOL) {
            DI_TRY(json_bool(r, &d->prefix, st));
        } else if (json_key_is(key, n, "tool_calls") && json_peek(r) != JSON_NULL) {
            d->calls = true;
            DI_TRY(json_skip(r, st));
        } else {
            DI_TRY(json_skip(r, st));
        }
    }
done:
    return rc;
}

static di_code check_message(const draft *d, di_status *st)
{
    if (!d->has_role)
        return di_fail(st, DI_E_INVALID, "messages[%zu] has no \"role\"", d->idx);
    if (d->calls)
        return di_fail(st, DI_E_UNSUPPORTED,
                       "messages[%zu]: tool calls are not supported by this program", d->idx);
    if (d->has_content && !d->null_content)
        return DI_OK;
    if (d->role == RECIPE_ASSISTANT)
        return di_fail(st, DI_E_INVALID,
                       "Invalid assistant message: content or tool_calls must be set");
    return di_fail(st, DI_E_INVALID, "messages[%zu] has no \"content\"", d->idx);
}

static di_code take_message(recipe_body *b, json_read *r, di_status *st)
{
    draft d = {.idx = b->n};
    recipe_message m;
    di_code rc;

    DI_TRY(read_message(&d, r, st));
    DI_TRY(check_message(&d, st));
    if (!str_ok(&d.content) || !str_ok(&d.reasoning)) {
        rc = no_memory(st);
        goto done;
    }
    if (b->prefix) {
        rc = di_fail(st, DI_E_INVALID,
                     "Invalid completion message: prefix set true with message which is not final "
                     "message or message role is not assistant");
        goto done;
    }
    DI_TRY(recipe_body_add(b, d.role, str_text(&d.content), d.content.len, st));
    b->prefix = d.prefix && d.role == RECIPE_ASSISTANT;
    m = b->message[b->n - 1];
    m.n_reasoning = d.reasoning.len;
    m.reasoning = arena_strndup(b->mem, str_text(&d.reasoning), d.reasoning.len);
    if (!m.reasoning) {
        rc = no_memory(st);
        goto done;
    }
    b->message[b->n - 1] = m;
done:
    str_fini(&d.content);
    str_fini(&d.reasoning);
    return rc;
}

di_code recipe_body_messages(recipe_body *b, json_read *r, di_status *st)
{
    di_code rc;

    b->n = 0;
    b->prefix = false;
    DI_TRY(json_array(r, st));
    while (json_item(r))
        DI_TRY(take_message(b, r, st));
    if (b->n == 0 && !r->error)
        rc = di_fail(st, DI_E_INVALID, "Empty input messages");
done:
    return rc;
}

di_code recipe_body_thinking(recipe_body *b, json_read *r, di_status *st)
{
    const char *s;
    size_t n;
    di_code rc;

    if (json_peek(r) == JSON_NULL)
        return json_null(r, st);
    DI_TRY(json_object(r, st));
    while (json_key(r, &s, &n)) {
        if (!json_key_is(s, n, "type")) {
            DI_TRY(json_skip(r, st));
            continue;
        }
        DI_TRY(json_string(r, &s, &n, st));
        if (json_key_is(s, n, "enabled") || json_key_is(s, n, "adaptive")) {
            b->thinking = RECIPE_THINKING_ON;
        } else if (json_key_is(s, n, "disabled")) {
            b->thinking = RECIPE_THINKING_OFF;
        } else {
            rc = di_fail(st, DI_E_INVALID,
                         "thinking.type is \"%.*s\", but must be enabled, adaptive or disabled",
                         n > 40 ? 40 : (int)n, s);
            goto done;
        }
    }
done:
    return rc;
}

di_code recipe_body_effort(recipe_body *b, json_read *r, di_status *st)
{
    const char *s;
    size_t n;
    di_code rc;

    if (json_peek(r) == JSON_NULL)
        return json_null(r, st);
    rc = json_string(r, &s, &n, st);
    if (rc != DI_OK)
        return rc;
    if (!recipe_effort_parse(s, n, &b->effort_on, &b->effort))
        return di_fail(st, DI_E_INVALID,
                       "reasoning_effort is \"%.*s\", but must be none, minimal, low, medium, "
                       "high, xhigh, ultra or max",
                       n > 40 ? 40 : (int)n, s);
    b->has_effort = true;
    return DI_OK;
}

recipe_chat recipe_body_chat(const recipe_body *b, bool on, recipe_effort effort)
{
    recipe_chat c = {
        .message = b->message, .n = b->n, .thinking = on, .effort = effort, .prefix = b->prefix};

    if (b->has_effort) {
        c.thinking = b->effort_on;
        c.effort = b->effort_on ? b->effort : RECIPE_EFFORT_HIGH;
    }
    if (b->thinking != RECIPE_THINKING_UNSET)
        c.thinking = b->thinking == RECIPE_THINKING_ON;
    return c;
}
