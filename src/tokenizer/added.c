/* Added tokens: spellings that become one id when the caller asks for it.
 *
 * They are recognised in two passes, as the released tokenizer does: first the tokens flagged
 * "normalized": false, leftmost-longest, then the others in what lies between. One trie over bytes
 * holds both kinds; nearly every place of a text is passed over by its first byte. */
#include <string.h>

#include "base/mem.h"
#include "tokenizer/tokenizer_internal.h"

/* The child of a node for a byte, or 0. */
static int32_t child_of(const tokenizer *t, int32_t node, uint8_t byte)
{
    int32_t c = t->nodes[node].child;

    while (c && t->nodes[c].byte != byte)
        c = t->nodes[c].sibling;
    return c;
}

/* Room for `more` nodes behind the root. */
static bool reserve_nodes(tokenizer *t, size_t more)
{
    size_t used = (size_t)t->n_nodes, cap = 64, want = used + more + 1;
    tok_node *nodes;

    while (cap < want)
        cap *= 2;
    if (t->nodes && used > 0 && cap == (size_t)t->cap_nodes)
        return true;
    nodes = mem_try_realloc(t->nodes, cap, sizeof *nodes);
    if (!nodes)
        return false;
    t->nodes = nodes;
    t->cap_nodes = (int)cap;
    if (used == 0) {
        nodes[0] = (tok_node){.id = -1};
        t->n_nodes = 1;
    }
    return true;
}

di_code tok_added_enter(tokenizer *t, int32_t id, di_status *st)
{
    tok_span span = t->symbol[id];
    const char *spelling = t->symbols.data + span.at;
    int32_t node = 0;

    if (!t->added)
        t->added = map_new(64);
    if (!t->added || !reserve_nodes(t, span.n) ||
        map_insert(t->added, spelling, span.n, (uint32_t)id) < 0)
        return di_fail(st, DI_E_NOMEM, "no memory for added tokens");
    for (uint32_t i = 0; i < span.n; i++) {
        uint8_t byte = (uint8_t)spelling[i];
        int32_t next = child_of(t, node, byte);

        if (!next) {
            next = t->n_nodes++;
            t->nodes[next] = (tok_node){.sibling = t->nodes[node].child, .id = -1, .byte = byte};
            t->nodes[node].child = next;
        }
        node = next;
    }
    t->nodes[node].id = id;
    if (t->flags[id] & TOK_NORMALIZED)
        t->starts_normalized[(uint8_t)spelling[0]] = true;
    else
        t->starts_plain[(uint8_t)spelling[0]] = true;
    return DI_OK;
}

/* Longest token of the pass at the start of text[0..n); -1 = none. */
static int32_t longest_at(const tokenizer *t, const char *text, size_t n, bool normalized,
                          size_t *len)
{
    int32_t node = 0, found = -1;

    for (size_t i = 0; i < n; i++) {
        int32_t id;

        node = child_of(t, node, (uint8_t)text[i]);
        if (!node)
            break;
        id = t->nodes[node].id;
        if (id >= 0 && ((t->flags[id] & TOK_NORMALIZED) != 0) == normalized) {
            found = id;
            *len = i + 1;
        }
    }
    return found;
}

int32_t tok_added_find(const tokenizer *t, const char *text, size_t n, bool normalized, size_t *at,
                       size_t *len)
{
    const bool *starts = normalized ? t->starts_normalized : t->starts_plain;

    for (size_t i = 0; i < n; i++) {
        if (starts[(uint8_t)text[i]]) {
            int32_t id = longest_at(t, text + i, n - i, normalized, len);

            if (id >= 0) {
                *at = i;
                return id;
            }
        }
    }
    return -1;
}

int32_t tokenizer_added_id(const tokenizer *t, const char *spelling)
{
    uint32_t id;

    if (!t->added || !map_find(t->added, spelling, strlen(spelling), &id))
        return -1;
    return (int32_t)id;
}
