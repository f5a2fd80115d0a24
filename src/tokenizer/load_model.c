/* tokenizer.json: the vocabulary, the merges and the added tokens. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "tokenizer/load.h"

/* A vocabulary string for a message: at most 60 bytes. */
#define SHOW(s, n) (int)((n) < 60 ? (n) : 60), (s)

static bool push(load_list *list, load_entry e)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 1024;
        load_entry *entries = mem_try_realloc(list->entries, cap, sizeof *entries);

        if (!entries)
            return false;
        list->entries = entries;
        list->cap = cap;
    }
    list->entries[list->n++] = e;
    return true;
}

static di_code no_memory(const loader *l, di_status *st)
{
    return di_fail(st, DI_E_NOMEM, "no memory to read %s", l->name);
}

/* Copy a spelling behind the others. */
static bool keep_spelling(tokenizer *t, const char *s, size_t n, tok_span *span)
{
    *span = (tok_span){(uint32_t)t->symbols.len, (uint32_t)n};
    str_append(&t->symbols, s, n);
    return str_ok(&t->symbols);
}

static di_code read_id(loader *l, const char *what, int32_t *id, di_status *st)
{
    int64_t v;
    di_code rc = json_int(&l->r, &v, st);

    if (rc != DI_OK)
        return rc;
    if (v < 0 || v >= TOK_MAX_IDS)
        return json_fail(&l->r, st, "%s: id %lld is outside 0..%lld", what, (long long)v,
                         (long long)TOK_MAX_IDS - 1);
    *id = (int32_t)v;
    return DI_OK;
}

/* ---- vocabulary ---- */

static di_code read_vocab_entries(loader *l, load_list *list, const char *what, di_status *st)
{
    di_code rc = DI_OK;
    const char *key;
    size_t n;

    DI_TRY(json_object(&l->r, st));
    while (json_key(&l->r, &key, &n)) {
        load_entry e = {0};

        if (n == 0)
            return json_fail(&l->r, st, "%s: an empty entry", what);
        if (!keep_spelling(l->t, key, n, &e.spelling))
            return no_memory(l, st);
        DI_TRY(read_id(l, what, &e.id, st));
        if (!push(list, e))
            return no_memory(l, st);
    }
    rc = load_check(l, st);
done:
    return rc;
}

static di_code enter_vocab(loader *l, const load_list *list, const char *what, di_status *st)
{
    tokenizer *t = l->t;

    for (size_t i = 0; i < list->n; i++) {
        load_entry e = list->entries[i];
        const char *s = t->symbols.data + e.spelling.at;
        bool is_bytes;
        int entered;

        if (t->flags[e.id] & TOK_PRESENT)
            return di_fail(st, DI_E_FORMAT, "%s: %s: id %d belongs to \"%.*s\" and \"%.*s\"",
                           l->name, what, e.id,
                           SHOW(t->symbols.data + t->symbol[e.id].at, t->symbol[e.id].n),
                           SHOW(s, e.spelling.n));
        entered = tok_vocab_enter(t, e.id, e.spelling, &is_bytes);
        if (entered == 1 && !is_bytes)
            entered = map_insert(l->raw, s, e.spelling.n, (uint32_t)e.id);
        if (entered < 0)
            return no_memory(l, st);
        if (entered == 0)
            return di_fail(st, DI_E_FORMAT, "%s: %s: entry \"%.*s\" twice", l->name, what,
                           SHOW(s, e.spelling.n));
    }
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] < 0)
            return di_fail(st, DI_E_FORMAT, "%s: %s has no entry for the byte 0x%02X", l->name,
                           what, (unsigned)b);
    return DI_OK;
}

static di_code read_vocab(loader *l, const char *what, di_status *st)
{
    di_code rc = DI_OK;
    load_list list = {0};
    int32_t last = -1;

    DI_TRY(read_vocab_entries(l, &list, what, st));
    for (size_t i = 0; i < list.n; i++)
        if (list.entries[i].id > last)
            last = list.entries[i].id;
    DI_TRY(tok_vocab_init(l->t, last + 1, list.n, st));
    DI_TRY(enter_vocab(l, &list, what, st));
    l->has_vocab = true;
done:
    mem_free(list.entries);
    return rc;
}

/* ---- merges ---- */

typedef struct merge {
    int32_t left, right, id;
} merge;

typedef struct merge_list {
    merge *merges;
    size_t n, cap;
    str pair;  /* "left right" as in the file */
    str bytes; /* the same as bytes, without the blank */
} merge_list;

/* Read the next item, a string "a b" or a list ["a", "b"], into list->pair. */
static di_code read_pair(json_read *r, merge_list *list, di_status *st)
{
    di_code rc = DI_OK;
    const char *s;
    size_t n;

    str_clear(&list->pair);
    if (json_peek(r) != JSON_ARRAY) {
        DI_TRY(json_string(r, &s, &n, st));
        str_append(&list->pair, s, n);
        return DI_OK;
    }
    DI_TRY(json_array(r, st));
    for (int i = 0; json_item(r); i++) {
        DI_TRY(json_string(r, &s, &n, st));
        if (i > 0)
            str_putc(&list->pair, ' ');
        str_append(&list->pair, s, n);
    }
done:
    return rc;
}

/* Ids of the pair in list->pair and of what it makes. */
static di_code resolve_pair(loader *l, json_read *r, merge_list *list, merge *m, di_status *st)
{
    const char *s = str_text(&list->pair);
    size_t n = list->pair.len, n_left, n_right, left, right;
    const char *blank = memchr(s, ' ', n);
    char *bytes;

    if (!blank || blank == s || blank + 1 == s + n)
        return json_fail(r, st, "model.merges[%zu]: \"%.*s\" is no pair", list->n, SHOW(s, n));
    n_left = (size_t)(blank - s);
    n_right = n - n_left - 1;
    str_clear(&list->bytes);
    str_append(&list->bytes, s, n); /* room: bytes are never longer than their symbols */
    if (!str_ok(&list->bytes))
        return no_memory(l, st);
    bytes = list->bytes.data;
    if (tok_symbol_bytes(s, n_left, bytes, &left) &&
        tok_symbol_bytes(blank + 1, n_right, bytes + left, &right)) {
        m->left = tok_vocab_find(l->t, bytes, left);
        m->right = tok_vocab_find(l->t, bytes + left, right);
        m->id = tok_vocab_find(l->t, bytes, left + right);
    }
    if (m->left < 0 || m->right < 0 || m->id < 0)
        return json_fail(r, st, "model.merges[%zu]: \"%.*s\": %s is not in model.vocab", list->n,
                         SHOW(s, n),
                         m->left < 0    ? "its first part"
                         : m->right < 0 ? "its second part"
                                        : "what it makes");
    return DI_OK;
}

static bool push_merge(merge_list *list, merge m)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 4096;
        merge *merges = mem_try_realloc(list->merges, cap, sizeof *merges);

        if (!merges)
            return false;
        list->merges = merges;
        list->cap = cap;
    }
    list->merges[list->n++] = m;
    return true;
}

static di_code read_merge_list(loader *l, json_read *r, merge_list *list, di_status *st)
{
    di_code rc = DI_OK;

    DI_TRY(json_array(r, st));
    while (json_item(r)) {
        merge m = {-1, -1, -1};

        DI_TRY(read_pair(r, list, st));
        if (!str_ok(&list->pair))
            return no_memory(l, st);
        DI_TRY(resolve_pair(l, r, list, &m, st));
        if ((int64_t)list->n == TOK_MAX_MERGES)
            return json_fail(r, st, "model.merges has more than %lld entries",
                             (long long)TOK_MAX_MERGES);
        if (!push_merge(list, m))
            return no_memory(l, st);
    }
    if (r->error)
        rc = json_end(r, st);
done:
    return rc;
}

static di_code build_merges(loader *l, json_read *r, di_status *st)
{
    di_code rc = DI_OK;
    merge_list list = {0};

    DI_TRY(read_merge_list(l, r, &list, st));
    DI_TRY(tok_merges_init(l->t, list.n, st));
    for (size_t i = 0; i < list.n; i++) {
        merge m = list.merges[i];

        if (!tok_merge_enter(l->t, m.left, m.right, (uint32_t)i, m.id)) {
            rc = di_fail(st, DI_E_FORMAT, "%s: model.merges[%zu]: the pair of ids %d and %d twice",
                         l->name, i, m.left, m.right);
            goto done;
        }
    }
    rc = tok_merges_done(l->t, st);
done:
    mem_free(list.merges);
    str_fini(&list.pair);
    str_fini(&list.bytes);
    return rc;
}

/* Merges name entries of the vocabulary: should they come first, they wait. */
static di_code read_merges(loader *l, const char *what, di_status *st)
{
    (void)what;
    if (!l->has_vocab)
        return json_raw(&l->r, &l->late, &l->n_late, st);
    return build_merges(l, &l->r, st);
}

di_code load_model(loader *l, const char *what, di_status *st)
{
    static const rule rules[] = {
        {.key = "type", .kind = RULE_TEXT, .text = "BPE", .required = true},
        {.key = "dropout", .kind = RULE_NULL},
        {.key = "unk_token", .kind = RULE_NULL},
        {.key = "continuing_subword_prefix", .kind = RULE_NO_TEXT},
        {.key = "end_of_word_suffix", .kind = RULE_NO_TEXT},
        {.key = "fuse_unk", .kind = RULE_ANY_BOOL},
        {.key = "byte_fallback", .kind = RULE_FALSE},
        {.key = "ignore_merges", .kind = RULE_FALSE},
        {.key = "vocab", .kind = RULE_READ, .read = read_vocab, .required = true},
        {.key = "merges", .kind = RULE_READ, .read = read_merges, .required = true},
    };
    di_code rc = DI_OK;
    json_read late;

    DI_TRY(load_object(l, what, rules, ARRAY_LEN(rules), st));
    if (l->late) {
        json_open(&late, l->late, l->n_late, l->name);
        rc = build_merges(l, &late, st);
        json_close(&late);
    }
done:
    return rc;
}

/* ---- added tokens ---- */

static di_code read_added_id(loader *l, const char *what, di_status *st)
{
    return read_id(l, what, &l->entry.id, st);
}

static di_code read_content(loader *l, const char *what, di_status *st)
{
    const char *s;
    size_t n;
    di_code rc = json_string(&l->r, &s, &n, st);

    if (rc != DI_OK)
        return rc;
    if (n == 0)
        return json_fail(&l->r, st, "%s is empty", what);
    return keep_spelling(l->t, s, n, &l->entry.spelling) ? DI_OK : no_memory(l, st);
}

static di_code read_flag(loader *l, tok_flag flag, di_status *st)
{
    bool v;
    di_code rc = json_bool(&l->r, &v, st);

    if (rc == DI_OK && v)
        l->entry.flags |= (uint8_t)flag;
    return rc;
}

static di_code read_special(loader *l, const char *what, di_status *st)
{
    (void)what;
    return read_flag(l, TOK_SPECIAL, st);
}

static di_code read_normalized(loader *l, const char *what, di_status *st)
{
    (void)what;
    return read_flag(l, TOK_NORMALIZED, st);
}

di_code load_added_tokens(loader *l, const char *what, di_status *st)
{
    static const rule rules[] = {
        {.key = "id", .kind = RULE_READ, .read = read_added_id, .required = true},
        {.key = "content", .kind = RULE_READ, .read = read_content, .required = true},
        {.key = "single_word", .kind = RULE_FALSE, .required = true},
        {.key = "lstrip", .kind = RULE_FALSE, .required = true},
        {.key = "rstrip", .kind = RULE_FALSE, .required = true},
        {.key = "normalized", .kind = RULE_READ, .read = read_normalized, .required = true},
        {.key = "special", .kind = RULE_READ, .read = read_special, .required = true},
    };
    di_code rc = DI_OK;

    DI_TRY(json_array(&l->r, st));
    while (json_item(&l->r)) {
        char path[64];

        snprintf(path, sizeof path, "%s[%zu]", what, l->added.n);
        l->entry = (load_entry){.flags = TOK_PRESENT | TOK_ADDED};
        DI_TRY(load_object(l, path, rules, ARRAY_LEN(rules), st));
        if (!push(&l->added, l->entry))
            return no_memory(l, st);
    }
    rc = load_check(l, st);
done:
    return rc;
}

/* Id that the vocabulary gives to a spelling, -1 = none. *plain: its bytes are its UTF-8. */
static int32_t vocab_id(const loader *l, const char *s, size_t n, char *bytes, bool *plain)
{
    size_t n_bytes;
    uint32_t id;

    *plain = true;
    if (tok_symbol_bytes(s, n, bytes, &n_bytes)) {
        *plain = n_bytes == n && memcmp(s, bytes, n) == 0;
        return tok_vocab_find(l->t, bytes, n_bytes);
    }
    return map_find(l->raw, s, n, &id) ? (int32_t)id : -1;
}

/* The id is free, or the vocabulary has the same spelling under it. */
static di_code check_added(loader *l, size_t i, load_entry e, di_status *st)
{
    const char *s = l->t->symbols.data + e.spelling.at;
    size_t at = l->t->blob.len;
    uint32_t other;
    bool plain;
    int32_t id;

    str_append(&l->t->blob, s, e.spelling.n);
    if (!str_ok(&l->t->blob))
        return no_memory(l, st);
    id = vocab_id(l, s, e.spelling.n, l->t->blob.data + at, &plain);
    memcpy(l->t->blob.data + at, s, e.spelling.n);
    if (!plain)
        return di_fail(st, DI_E_UNSUPPORTED,
                       "%s: added_tokens[%zu]: \"%.*s\" reads as byte symbols, which is ambiguous",
                       l->name, i, SHOW(s, e.spelling.n));
    if (id >= 0 ? id != e.id : (l->t->flags[e.id] & TOK_PRESENT) != 0)
        return di_fail(st, DI_E_FORMAT,
                       "%s: added_tokens[%zu]: id %d of \"%.*s\" is not what model.vocab or "
                       "another added token says",
                       l->name, i, e.id, SHOW(s, e.spelling.n));
    if (l->t->added && map_find(l->t->added, s, e.spelling.n, &other))
        return di_fail(st, DI_E_FORMAT, "%s: added_tokens[%zu]: \"%.*s\" twice", l->name, i,
                       SHOW(s, e.spelling.n));
    l->t->bytes[e.id] = (tok_span){(uint32_t)at, e.spelling.n};
    return DI_OK;
}

di_code load_finish_added(loader *l, di_status *st)
{
    tokenizer *t = l->t;
    di_code rc = DI_OK;
    int32_t last = -1;

    for (size_t i = 0; i < l->added.n; i++)
        if (l->added.entries[i].id > last)
            last = l->added.entries[i].id;
    DI_TRY(tok_vocab_grow(t, last + 1, st));
    for (size_t i = 0; i < l->added.n; i++) {
        load_entry e = l->added.entries[i];

        DI_TRY(check_added(l, i, e, st));
        t->symbol[e.id] = e.spelling;
        t->flags[e.id] = e.flags;
        DI_TRY(tok_added_enter(t, e.id, st));
    }
done:
    return rc;
}
