/* The turns of a Messages body: blocks of text, images, thinking, calls and results -> messages
 * (spec recipe.md 2.5). */
#include <string.h>

#include "recipe/recipe_internal.h"

typedef enum block_kind {
    BLOCK_TEXT,
    BLOCK_IMAGE,
    BLOCK_DOCUMENT,
    BLOCK_THINKING,
    BLOCK_SERVER_USE,
    BLOCK_USE,
    BLOCK_RESULT,
    BLOCK_SERVER_RESULT,
    BLOCK_ADDITION,
    /* mode CLIENT */
    BLOCK_REDACTED,
    BLOCK_SEARCH
} block_kind;

static const char *const block_words[] = {"text",
                                          "image",
                                          "document",
                                          "thinking",
                                          "server_tool_use",
                                          "tool_use",
                                          "tool_result",
                                          "web_search_tool_result",
                                          "tool_addition",
                                          "redacted_thinking",
                                          "search_result",
                                          NULL};

enum {
    B_TYPE,
    B_TEXT,
    B_SOURCE,
    B_THINKING,
    B_ID,
    B_NAME,
    B_INPUT,
    B_USE_ID,
    B_CONTENT,
    B_TOOL,
    N_BLOCK
};

static const field block_fields[N_BLOCK] = {
    [B_TYPE] = {"type", FIELD_WORD, FIELD_REQUIRED, 0, block_words},
    [B_TEXT] = {"text", FIELD_STRING, 0, 0, NULL},
    [B_SOURCE] = {"source", FIELD_ANY, 0, 0, NULL},
    [B_THINKING] = {"thinking", FIELD_STRING, 0, 0, NULL},
    [B_ID] = {"id", FIELD_STRING, 0, 0, NULL},
    [B_NAME] = {"name", FIELD_STRING, 0, 0, NULL},
    [B_INPUT] = {"input", FIELD_ANY, FIELD_NULL, 0, NULL},
    [B_USE_ID] = {"tool_use_id", FIELD_STRING, 0, 0, NULL},
    [B_CONTENT] = {"content", FIELD_ANY, 0, 0, NULL},
    [B_TOOL] = {"tool", FIELD_OBJECT, 0, 0, NULL},
};

/* The messages while they are read. */
typedef struct turns {
    reading *rd;
    const tool_list *tools;
    recipe_message *message;
    size_t n, cap;
    const jtree *at; /* the message of the body, and its number */
    size_t idx;
    id_set waiting;   /* calls of the message before */
    size_t n_waiting; /* without a result yet */
} turns;

/* One message of the body while its blocks are read. */
typedef struct turn {
    turns *all;
    recipe_role role;
    size_t block; /* number */
    content text;
    str reasoning;
    size_t n_reasoning;
    recipe_call *call;
    size_t n_call, n_uses; /* n_uses: tool_use blocks there are in all */
    id_set uses;
    const recipe_tool **added;
    size_t n_added, cap_added;
} turn;

static recipe_message *add_message(turns *t, recipe_role role)
{
    if (t->n == t->cap) {
        size_t cap = t->cap * 2;
        recipe_message *more = take_memory(t->rd, cap, sizeof *more);

        if (!more)
            return NULL;
        memcpy(more, t->message, t->n * sizeof *more);
        t->message = more;
        t->cap = cap;
    }
    t->message[t->n] = (recipe_message){.role = role, .keeps = true};
    return &t->message[t->n++];
}

static bool missing(turn *t, const char *what)
{
    const place at = {.text = "messages", .idx = t->all->idx, .has_idx = true};
    const place block = {.text = "content", .idx = t->block, .has_idx = true, .in = &at};

    return parse_fail(t->all->rd, &block, "%s is missing", what);
}

/* source {"type": "base64", media_type, data} | {"type": "url", url} | {"type": "file", file_id} */
static bool read_source(turn *t, const jtree *source, content *c, const char *path)
{
    enum { S_TYPE, S_MEDIA, S_DATA, S_URL, N_SOURCE };
    static const char *const types[] = {"base64", "url", "file", NULL};
    static const char *const media[] = {"image/jpeg", "image/jpg",  "image/png",
                                        "image/gif",  "image/webp", NULL};
    static const field fields[N_SOURCE] = {{"type", FIELD_WORD, FIELD_REQUIRED, 0, types},
                                           {"media_type", FIELD_WORD, 0, 0, media},
                                           {"data", FIELD_STRING, 0, 0, NULL},
                                           {"url", FIELD_STRING, 0, 0, NULL}};
    const place at = {.text = path};
    const jtree *f[N_SOURCE];
    reading *rd = t->all->rd;

    if (!fields_read(rd, source, &at, fields, N_SOURCE, f))
        return false;
    if (content_blind(rd, c))
        return true;
    switch (word_index(f[S_TYPE], types)) {
    case 0:
        if (!f[S_MEDIA] || !f[S_DATA])
            return missing(t, "media_type or data");
        if (!is_base64(f[S_DATA]->text, f[S_DATA]->n))
            return convert_fail(rd, "%s: base64 decode error", path);
        content_image(rd, c,
                      (recipe_image){.kind = RECIPE_IMAGE_DATA,
                                     .detail = "high",
                                     .source = f[S_DATA]->text,
                                     .n_source = f[S_DATA]->n,
                                     .path = path});
        return true;
    case 1:
        if (!f[S_URL])
            return missing(t, "url");
        return content_web_image(rd, c, f[S_URL], path);
    default:
        return convert_fail(
            rd, "%s: file_id is not supported. Pass the image as a base64 data url instead.", path);
    }
}

static bool read_image(turn *t, const jtree *source, content *c)
{
    const char *path =
        t->role == RECIPE_SYSTEM
            ? take_printf(t->all->rd, "messages.%zu", t->all->idx)
            : take_printf(t->all->rd, "messages.%zu.content[%zu]", t->all->idx, t->block);

    if (!path)
        return false;
    if (!source)
        return missing(t, "source");
    if (!read_source(t, source, c, path))
        return false;
    if (t->role == RECIPE_ASSISTANT && t->all->rd->q->chat.family != RECIPE_V4)
        return convert_fail(t->all->rd, "Image in assistant message is unsupported");
    return true;
}

static bool put_document(content *c, const jtree *source)
{
    const jtree *type = jtree_get(source, "media_type");
    str text = {0};

    str_printf(&text, "[Unsupported document type: %s]",
               type && type->type == JSON_STRING ? type->text : "unknown");
    content_text(c, str_text(&text), text.len);
    str_fini(&text);
    return true;
}

static bool read_thinking_block(turn *t, const jtree *text)
{
    if (t->role != RECIPE_ASSISTANT)
        return convert_fail(
            t->all->rd, "messages.%zu.content: thinking blocks may only be in `assistant` messages",
            t->all->idx);
    if (!text)
        return missing(t, "thinking");
    if (t->n_reasoning++)
        str_puts(&t->reasoning, "\n\n");
    str_append(&t->reasoning, text->text, text->n);
    return true;
}

/* The ids of the calls so far, for messages. */
static const char *list_ids(reading *rd, const id_set *s)
{
    str text = {0};
    size_t n;

    for (size_t i = 0; i < s->n; i++)
        if (!s->ref[i].taken)
            str_printf(&text, "%s%s", text.len ? ", " : "", s->ref[i].id);
    return take_str(rd, &text, &n);
}

#define NO_RESULT                                                                                  \
    "`tool_use` ids were found without `tool_result` blocks immediately after: %s. Each "          \
    "`tool_use` block must have a corresponding `tool_result` block in the next message."

static bool no_result(turns *t, const id_set *ids, size_t idx, const char *blank)
{
    const char *list = list_ids(t->rd, ids);

    return list && convert_fail(t->rd, "messages.%zu:%s" NO_RESULT, idx, blank, list);
}

static size_t count_uses(const jtree *list)
{
    size_t n = 0;

    for (const jtree *v = list->child; v; v = v->next)
        n += jtree_is(jtree_get(v, "type"), "tool_use");
    return n;
}

static bool read_use(turn *t, const jtree *const *f)
{
    reading *rd = t->all->rd;
    jtree arguments = {.type = JSON_STRING};
    str text = {0};

    if (t->role != RECIPE_ASSISTANT)
        return convert_fail(
            rd, "messages.%zu: `tool_use` blocks can only be in `assistant` messages", t->all->idx);
    if (!f[B_ID] || !f[B_NAME] || !f[B_INPUT])
        return missing(t, "id, name or input");
    if (!t->call) {
        t->n_uses = count_uses(jtree_get(t->all->at, "content"));
        t->call = take_memory(rd, t->n_uses, sizeof *t->call);
        if (!t->call || !id_set_init(rd, &t->uses, t->n_uses))
            return false;
    }
    if (!id_set_add(&t->uses, f[B_ID]->text, f[B_ID]->n))
        return convert_fail(rd, "messages.%zu.content.%zu: `tool_use` ids must be unique",
                            t->all->idx, t->block);
    jtree_print(f[B_INPUT], JTREE_V4, &text);
    arguments.text = take_str(rd, &text, &arguments.n);
    return arguments.text && call_fill(rd, &t->call[t->n_call++], f[B_ID], f[B_NAME], &arguments);
}

static const recipe_tool *find_tool(turn *t, const jtree *name)
{
    return name && name->type == JSON_STRING ? tools_find(t->all->tools, name->text, name->n)
                                             : NULL;
}

/* Note a tool that is declared here. */
static bool add_tool(turn *t, const recipe_tool *tool)
{
    if (t->n_added == t->cap_added) {
        size_t cap = t->cap_added ? t->cap_added * 2 : 4;
        const recipe_tool **more = take_memory(t->all->rd, cap, sizeof *more);

        if (!more)
            return false;
        if (t->n_added)
            memcpy(more, t->added, t->n_added * sizeof *more);
        t->added = more;
        t->cap_added = cap;
    }
    t->added[t->n_added++] = tool;
    return true;
}

static bool read_addition(turn *t, const jtree *tool)
{
    const jtree *name = jtree_get(tool, "name");
    const recipe_tool *found = find_tool(t, name);

    if (t->role != RECIPE_SYSTEM)
        return convert_fail(t->all->rd,
                            "messages.%zu: `tool_addition` blocks can only be in `system` messages",
                            t->all->idx);
    if (!name || name->type != JSON_STRING)
        return missing(t, "tool");
    if (!found)
        return convert_fail(t->all->rd,
                            "messages.%zu.content.%zu: `tool_addition` references unknown tool "
                            "'%s'",
                            t->all->idx, t->block, name->text);
    return add_tool(t, found);
}

/* The texts of a search result, mode CLIENT. */
static bool read_search(turn *t, const jtree *list, content *c)
{
    if (!list || list->type != JSON_ARRAY)
        return missing(t, "content");
    for (const jtree *v = list->child; v; v = v->next) {
        const jtree *text = jtree_get(v, "text");

        if (text && text->type == JSON_STRING)
            content_text(c, text->text, text->n);
    }
    return true;
}

/* An image of a result: an error names its part, the list of images the result. */
static bool read_result_image(turn *t, const jtree *source, size_t idx, content *c)
{
    reading *rd = t->all->rd;
    const size_t before = rd->q->n_images;
    const char *image =
                   take_printf(rd, "messages.%zu.content.%zu.tool_result", t->all->idx, t->block),
               *part = image ? take_printf(rd, "%s.content[%zu]", image, idx) : NULL;

    if (!part)
        return false;
    if (!source)
        return missing(t, "source");
    if (!read_source(t, source, c, part))
        return false;
    if (rd->q->n_images > before)
        rd->image[before].path = image;
    return true;
}

/* One part of the content of a result. */
static bool read_result_part(turn *t, const jtree *v, size_t idx, content *c)
{
    const jtree *text = jtree_get(v, "text"), *name = jtree_get(v, "tool_name"),
                *type = jtree_get(v, "type");
    const recipe_tool *tool;

    if (jtree_is(type, "text") && text && text->type == JSON_STRING) {
        content_text(c, text->text, text->n);
        return true;
    }
    if (jtree_is(type, "image"))
        return read_result_image(t, jtree_get(v, "source"), idx, c);
    if (jtree_is(type, "document"))
        return put_document(c, jtree_get(v, "source"));
    if (jtree_is(type, "tool_reference") && name && name->type == JSON_STRING) {
        tool = find_tool(t, name);
        if (!tool && t->all->rd->strict)
            return convert_fail(t->all->rd,
                                "messages.%zu.content.%zu: tool reference '%s' not found in "
                                "available tools",
                                t->all->idx, t->block, name->text);
        content_text(c, name->text, name->n);
        return !tool || add_tool(t, tool);
    }
    if (jtree_is(type, "search_result") && !t->all->rd->strict)
        return read_search(t, jtree_get(v, "content"), c);
    return missing(t, "a part of tool_result that is known");
}

static bool read_result(turn *t, const jtree *const *f)
{
    turns *all = t->all;
    recipe_message *m;
    const jtree *body = f[B_CONTENT];
    content c = {0};
    size_t idx = 0;
    bool ok = true;

    if (t->role != RECIPE_USER)
        return convert_fail(
            all->rd, "messages.%zu: `tool_result` blocks can only be in `user` messages", all->idx);
    if (!f[B_USE_ID])
        return missing(t, "tool_use_id");
    if (!id_set_take(&all->waiting, f[B_USE_ID]->text, f[B_USE_ID]->n))
        return id_set_find(&all->waiting, f[B_USE_ID]->text, f[B_USE_ID]->n)
                   ? convert_fail(all->rd,
                                  "messages.%zu.content.%zu: each tool_use must have a single "
                                  "result. Found multiple `tool_result` blocks with id: %s",
                                  all->idx, t->block, f[B_USE_ID]->text)
                   : convert_fail(all->rd,
                                  "unexpected `messages.%zu.content.%zu: tool_use_id` found in "
                                  "`tool_result` blocks: %s. Each `tool_result` block must have "
                                  "a corresponding `tool_use` block in the previous message.",
                                  all->idx, t->block, f[B_USE_ID]->text);
    all->n_waiting--;
    m = add_message(all, RECIPE_TOOL);
    if (!m)
        return false;
    m->call_id = f[B_USE_ID]->text;
    m->n_call_id = f[B_USE_ID]->n;
    if (!body) {
        ok = true;
    } else if (body->type == JSON_STRING) {
        content_text(&c, body->text, body->n);
    } else if (body->type == JSON_ARRAY) {
        for (const jtree *v = body->child; ok && v; v = v->next)
            ok = read_result_part(t, v, idx++, &c);
    } else {
        ok = missing(t, "content as a string or a list");
    }
    if (ok)
        return content_take(all->rd, &c, m);
    content_fini(&c);
    return false;
}

/* Blocks of web search: dropped, or refused. */
static bool read_server_block(turn *t, block_kind kind)
{
    if (t->role != RECIPE_ASSISTANT && t->all->rd->strict)
        return convert_fail(t->all->rd,
                            "messages.%zu: `%s` blocks can only be in `assistant` messages",
                            t->all->idx, block_words[kind == BLOCK_SERVER_USE ? BLOCK_USE : kind]);
    if (!t->all->rd->strict || t->all->rd->o->messages_drop_web_search)
        return true;
    return convert_fail(t->all->rd, "Unsupported content block: server tools are not supported");
}

static bool read_block(turn *t, const jtree *v, const place *at)
{
    reading *rd = t->all->rd;
    const jtree *f[N_BLOCK];
    block_kind kind;

    if (!fields_read(rd, v, at, block_fields, N_BLOCK, f))
        return false;
    kind = (block_kind)word_index(f[B_TYPE], block_words);
    if (t->all->n_waiting && kind != BLOCK_RESULT)
        return no_result(t->all, &t->all->waiting, t->all->idx, " ");
    if (t->n_call && kind != BLOCK_USE) {
        const char *list = list_ids(rd, &t->uses);

        return list &&
               convert_fail(rd, "messages.%zu.%zu: " NO_RESULT, t->all->idx, t->block, list);
    }
    switch (kind) {
    case BLOCK_TEXT:
        if (!f[B_TEXT])
            return missing(t, "text");
        content_text(&t->text, f[B_TEXT]->text, f[B_TEXT]->n);
        return true;
    case BLOCK_IMAGE:
        return read_image(t, f[B_SOURCE], &t->text);
    case BLOCK_DOCUMENT:
        return put_document(&t->text, f[B_SOURCE]);
    case BLOCK_THINKING:
        return read_thinking_block(t, f[B_THINKING]);
    case BLOCK_USE:
        return read_use(t, f);
    case BLOCK_RESULT:
        return read_result(t, f);
    case BLOCK_SERVER_USE:
    case BLOCK_SERVER_RESULT:
        return read_server_block(t, kind);
    case BLOCK_ADDITION:
        return read_addition(t, f[B_TOOL]);
    case BLOCK_SEARCH:
        return read_search(t, f[B_CONTENT], &t->text);
    case BLOCK_REDACTED:
        break;
    }
    return true;
}

/* ---- messages ---- */

/* V4 has no place for a system message in mid-conversation: it is a user's reminder. */
static bool take_reminder(turn *t, recipe_message *m)
{
    content c = {0};
    str text = {0};

    str_printf(&text, "<system-reminder>\n%s\n</system-reminder>", str_text(&t->text.text));
    m->role = RECIPE_USER;
    content_text(&c, str_text(&text), text.len);
    str_fini(&text);
    content_fini(&t->text);
    return content_take(t->all->rd, &c, m);
}

/* What the blocks gave, as messages. */
static bool finish_turn(turn *t, bool results)
{
    turns *all = t->all;
    bool v4 = all->rd->q->chat.family == RECIPE_V4;
    recipe_message *m;

    if (results && t->n_added && !v4) {
        m = add_message(all, RECIPE_SYSTEM);
        if (!m)
            return false;
        m->added = t->added;
        m->n_added = t->n_added;
    }
    if (t->text.n_parts == 0 && results)
        return true;
    if (t->text.text.len == 0 && v4 && t->role == RECIPE_SYSTEM)
        return true;
    m = add_message(all, t->role);
    if (!m)
        return false;
    if (t->role == RECIPE_SYSTEM && v4)
        return take_reminder(t, m);
    if (t->role == RECIPE_SYSTEM && !results) {
        m->added = t->added;
        m->n_added = t->n_added;
    }
    m->call = t->call;
    m->n_call = t->n_call;
    if (t->n_reasoning) {
        m->reasoning = take_str(all->rd, &t->reasoning, &m->n_reasoning);
        if (!m->reasoning)
            return false;
    }
    if (!content_take(all->rd, &t->text, m))
        return false;
    if (m->n_call && !m->n_reasoning && all->rd->q->chat.thinking &&
        all->rd->o->reject_missing_reasoning)
        return convert_fail(all->rd, "The `reasoning_content` in the thinking mode must be passed "
                                     "back to the API.");
    return true;
}

static bool read_blocks(turn *t, const jtree *body, const place *at)
{
    place block = {.text = "content", .has_idx = true, .in = at};
    size_t before = t->all->n;
    turns *all = t->all;

    if (body->type == JSON_STRING) {
        if (all->n_waiting)
            return no_result(all, &all->waiting, all->idx, " ");
        content_text(&t->text, body->text, body->n);
        return finish_turn(t, false);
    }
    if (body->n == 0 && t->role != RECIPE_SYSTEM)
        return convert_fail(all->rd, "messages.%zu: all messages must have non-empty content",
                            all->idx);
    for (const jtree *v = body->child; v; v = v->next, t->block = ++block.idx)
        if (!read_block(t, v, &block))
            return false;
    if (all->n_waiting)
        return no_result(all, &all->waiting, all->idx, " ");
    return finish_turn(t, all->n > before);
}

static bool read_message(turns *all, const jtree *v, const place *at)
{
    enum { M_ROLE, M_CONTENT, N_MESSAGE };
    static const char *const words[] = {"user", "assistant", "system", NULL};
    static const recipe_role roles[] = {RECIPE_USER, RECIPE_ASSISTANT, RECIPE_SYSTEM};
    static const field fields[N_MESSAGE] = {{"role", FIELD_WORD, FIELD_REQUIRED, 0, words},
                                            {"content", FIELD_TEXT, FIELD_REQUIRED, 0, NULL}};
    const jtree *f[N_MESSAGE];
    turn t = {.all = all};
    bool ok;

    if (!fields_read(all->rd, v, at, fields, N_MESSAGE, f))
        return false;
    t.role = roles[word_index(f[M_ROLE], words)];
    all->at = v;
    ok = read_blocks(&t, f[M_CONTENT], at);
    content_fini(&t.text);
    str_fini(&t.reasoning);
    id_set_fini(&all->waiting);
    all->waiting = t.uses;
    all->n_waiting = t.n_call;
    return ok;
}

static bool read_messages(reading *rd, const jtree *list, turns *t)
{
    place at = {.text = "messages", .has_idx = true};

    if (list->n == 0)
        return convert_fail(rd, "messages: at least one message is required");
    for (const jtree *v = list->child; v; v = v->next, t->idx = ++at.idx)
        if (!read_message(t, v, &at))
            return false;
    if (t->n_waiting)
        return no_result(t, &t->waiting, t->idx - 1, "");
    return true;
}

/* "system": text blocks are joined; a block that only names the client's build is left out, it
 * would make every prompt different. */
static bool read_system(reading *rd, const jtree *system, recipe_message *m)
{
    static const char billing[] = "x-anthropic-billing-header";
    static const field fields[] = {{"text", FIELD_STRING, FIELD_REQUIRED, 0, NULL}};
    place at = {.text = "system", .has_idx = true};
    const jtree *text;
    content c = {0};

    m->role = RECIPE_SYSTEM;
    m->keeps = true;
    if (system->type == JSON_STRING) {
        m->content = system->text;
        m->n_content = system->n;
        return true;
    }
    for (const jtree *v = system->child; v; v = v->next, at.idx++) {
        if (!fields_read(rd, v, &at, fields, 1, &text)) {
            content_fini(&c);
            return false;
        }
        if (strncmp(text->text, billing, sizeof billing - 1) != 0)
            content_text(&c, text->text, text->n);
    }
    return content_take(rd, &c, m);
}

bool messages_read_turns(reading *rd, const jtree *system, const jtree *list,
                         const tool_list *tools)
{
    turns t = {.rd = rd, .tools = tools, .cap = 2 * list->n + 2};
    bool ok;

    t.message = take_memory(rd, t.cap, sizeof *t.message);
    ok = t.message && (!system || read_system(rd, system, &t.message[t.n++])) &&
         read_messages(rd, list, &t);
    id_set_fini(&t.waiting);
    rd->q->chat.message = t.message;
    rd->q->chat.n = t.n;
    return ok;
}
