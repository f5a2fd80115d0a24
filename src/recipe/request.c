/* A body of bytes -> tree -> the reader of its protocol. See request.h. */
#include "recipe/request.h"

#include <string.h>

#include "recipe/recipe_internal.h"

#define MIN_BLOCK ((size_t)2 << 10)
#define MAX_BLOCK ((size_t)64 << 10)

/* A short request must not hold a large block for as long as its answer takes; a tree takes about
 * four times its text. */
static size_t block_bytes(size_t n_body)
{
    size_t n = n_body < MAX_BLOCK / 4 ? n_body * 4 : MAX_BLOCK;

    return n < MIN_BLOCK ? MIN_BLOCK : n;
}

/* Members that nobody reads are not kept for as long as the answer takes. */
static bool is_read(const void *ctx, const char *key, size_t n)
{
    static const field_list *const lists[] = {&chat_fields, &responses_fields, &messages_fields};
    const recipe_request *q = ctx;
    const field_list *l = lists[q->protocol];

    for (size_t i = 0; i < l->n; i++)
        if (json_key_is(key, n, l->fields[i].key))
            return true;
    return false;
}

static bool read_body(reading *rd, const jtree *body)
{
    switch (rd->q->protocol) {
    case RECIPE_PROTOCOL_CHAT:
        return request_read_chat(rd, body);
    case RECIPE_PROTOCOL_RESPONSES:
        return request_read_responses(rd, body);
    case RECIPE_PROTOCOL_MESSAGES:
        break;
    }
    return request_read_messages(rd, body);
}

bool recipe_request_parse(recipe_request *q, recipe_protocol protocol, const recipe_options *o,
                          const char *body, size_t n, recipe_error *e)
{
    static const recipe_options defaults;
    reading rd = {.q = q, .o = o ? o : &defaults, .e = e};
    const jtree *t;
    di_status st = {0};

    *q = (recipe_request){.protocol = protocol, .mode = rd.o->mode, .model = ""};
    *e = (recipe_error){0};
    rd.strict = rd.o->mode == RECIPE_STRICT;
    q->max_tokens_thinking = rd.o->max_tokens_thinking ? rd.o->max_tokens_thinking : 393216;
    q->max_tokens_plain = rd.o->max_tokens_plain ? rd.o->max_tokens_plain : 393216;
    q->mem = rd.mem = arena_new(block_bytes(n));
    if (!q->mem)
        return out_of_memory(&rd);
    t = jtree_parse_some(body, n, q->mem, "request body", is_read, q, &st);
    if (!t) {
        e->parse = true;
        recipe_error_from(e, &st);
        return false;
    }
    return (!rd.strict || types_check(&rd, t)) && read_body(&rd, t);
}

void recipe_request_fini(recipe_request *q)
{
    arena_free(q->mem);
    *q = (recipe_request){0};
}
