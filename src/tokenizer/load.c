/* tokenizer.json: the document and the settings around the vocabulary.
 *
 * Every member is checked against a table of rules: what changes the ids or the text and is not
 * what the encoder does is refused by name, never ignored. */
#include "tokenizer/load.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "tokenizer/pretok.h"

#define MAX_FILE_BYTES ((size_t)1 << 30) /* places in the tables are 32 bits wide */
#define BYTES_PER_ID   112               /* of a loaded tokenizer, byte pairs aside */
#define MAX_SHOWN      160               /* bytes of a value that a message shows */

di_code load_check(loader *l, di_status *st)
{
    return l->r.error ? json_end(&l->r, st) : DI_OK;
}

/* ---- rules ---- */

static di_code refuse(loader *l, const char *what, const char *is, size_t n, const char *want,
                      di_status *st)
{
    return di_fail(st, DI_E_UNSUPPORTED, "%s: %s is %.*s, only %s is supported", l->name, what,
                   (int)(n < MAX_SHOWN ? n : MAX_SHOWN), is, want);
}

/* Refuse the value that comes next. */
static di_code refuse_next(loader *l, const char *what, const char *want, di_status *st)
{
    const char *raw;
    size_t n;
    di_code rc = json_raw(&l->r, &raw, &n, st);

    return rc == DI_OK ? refuse(l, what, raw, n, want, st) : rc;
}

static di_code expect_text(loader *l, const char *what, const char *want, di_status *st)
{
    const char *text;
    size_t n;
    di_code rc = json_string(&l->r, &text, &n, st);

    if (rc == DI_OK && !json_key_is(text, n, want))
        rc = refuse(l, what, text, n, want, st);
    return rc;
}

static di_code expect_no_text(loader *l, const char *what, di_status *st)
{
    if (json_peek(&l->r) == JSON_STRING)
        return expect_text(l, what, "", st);
    return json_null(&l->r, st);
}

static di_code expect_false(loader *l, const char *what, di_status *st)
{
    bool v;
    di_code rc = json_bool(&l->r, &v, st);

    if (rc == DI_OK && v)
        rc = refuse(l, what, "true", 4, "false", st);
    return rc;
}

static di_code follow(loader *l, const rule *x, const char *what, di_status *st)
{
    bool ignored;

    switch (x->kind) {
    case RULE_NULL:
        return json_peek(&l->r) == JSON_NULL ? json_null(&l->r, st)
                                             : refuse_next(l, what, "null", st);
    case RULE_NO_TEXT:
        return expect_no_text(l, what, st);
    case RULE_FALSE:
        return expect_false(l, what, st);
    case RULE_ANY_BOOL:
        return json_bool(&l->r, &ignored, st);
    case RULE_TEXT:
        return expect_text(l, what, x->text, st);
    case RULE_READ:
        break;
    }
    return x->read(l, what, st);
}

di_code load_object(loader *l, const char *what, const rule *rules, size_t n, di_status *st)
{
    di_code rc = DI_OK;
    uint32_t seen = 0;
    const char *key;
    size_t n_key;

    DI_TRY(json_object(&l->r, st));
    while (json_key(&l->r, &key, &n_key)) {
        char path[160];
        size_t i = 0;

        while (i < n && !json_key_is(key, n_key, rules[i].key))
            i++;
        if (i == n)
            return di_fail(st, DI_E_UNSUPPORTED, "%s: %s%sunknown member \"%.*s\"", l->name, what,
                           *what ? ": " : "", (int)(n_key < 80 ? n_key : 80), key);
        if (seen >> i & 1)
            return json_fail(&l->r, st, "%s%smember \"%s\" twice", what, *what ? ": " : "",
                             rules[i].key);
        seen |= (uint32_t)1 << i;
        snprintf(path, sizeof path, "%s%s%s", what, *what ? "." : "", rules[i].key);
        DI_TRY(follow(l, &rules[i], path, st));
    }
    DI_TRY(load_check(l, st));
    for (size_t i = 0; i < n; i++)
        if (rules[i].required && !(seen >> i & 1))
            return json_fail(&l->r, st, "%s%smember \"%s\" is missing", what, *what ? ": " : "",
                             rules[i].key);
done:
    return rc;
}

/* ---- normalizer, pre_tokenizer, post_processor, decoder ---- */

static di_code read_no_normalizers(loader *l, const char *what, di_status *st)
{
    di_code rc = DI_OK;

    DI_TRY(json_array(&l->r, st));
    if (json_item(&l->r))
        return refuse_next(l, what, "an empty list", st);
    rc = load_check(l, st);
done:
    return rc;
}

static di_code read_normalizer(loader *l, const char *what, di_status *st)
{
    static const rule rules[] = {
        {.key = "type", .kind = RULE_TEXT, .text = "Sequence", .required = true},
        {.key = "normalizers", .kind = RULE_READ, .read = read_no_normalizers, .required = true},
    };

    if (json_peek(&l->r) == JSON_NULL)
        return json_null(&l->r, st);
    return load_object(l, what, rules, ARRAY_LEN(rules), st);
}

/* Decoder and post-processor: their flags move offsets only, no text and no id. */
static di_code read_byte_level(loader *l, const char *what, di_status *st)
{
    static const rule rules[] = {
        {.key = "type", .kind = RULE_TEXT, .text = "ByteLevel", .required = true},
        {.key = "add_prefix_space", .kind = RULE_ANY_BOOL},
        {.key = "trim_offsets", .kind = RULE_ANY_BOOL},
        {.key = "use_regex", .kind = RULE_ANY_BOOL},
    };

    return load_object(l, what, rules, ARRAY_LEN(rules), st);
}

static di_code read_post_processor(loader *l, const char *what, di_status *st)
{
    if (json_peek(&l->r) == JSON_NULL)
        return json_null(&l->r, st);
    return read_byte_level(l, what, st);
}

/* The last stage of the pre-tokenizer: here the flags would change the pieces. */
static di_code read_byte_stage(loader *l, const char *what, di_status *st)
{
    static const rule rules[] = {
        {.key = "type", .kind = RULE_TEXT, .text = "ByteLevel", .required = true},
        {.key = "add_prefix_space", .kind = RULE_FALSE, .required = true},
        {.key = "trim_offsets", .kind = RULE_ANY_BOOL},
        {.key = "use_regex", .kind = RULE_FALSE, .required = true},
    };

    return load_object(l, what, rules, ARRAY_LEN(rules), st);
}

static di_code read_pattern(loader *l, const char *what, di_status *st)
{
    const rule rules[] = {
        {.key = "Regex", .kind = RULE_TEXT, .text = l->regex, .required = true},
    };

    return load_object(l, what, rules, ARRAY_LEN(rules), st);
}

static di_code read_split_stage(loader *l, const char *what, di_status *st)
{
    static const rule rules[] = {
        {.key = "type", .kind = RULE_TEXT, .text = "Split", .required = true},
        {.key = "pattern", .kind = RULE_READ, .read = read_pattern, .required = true},
        {.key = "behavior", .kind = RULE_TEXT, .text = "Isolated", .required = true},
        {.key = "invert", .kind = RULE_FALSE, .required = true},
    };

    return load_object(l, what, rules, ARRAY_LEN(rules), st);
}

static di_code read_stages(loader *l, const char *what, di_status *st)
{
    static const char *const regex[] = {PRETOK_NUMBERS, PRETOK_CJK, PRETOK_WORDS};
    di_code rc = DI_OK;
    size_t n = 0;

    DI_TRY(json_array(&l->r, st));
    while (json_item(&l->r)) {
        char path[64];

        snprintf(path, sizeof path, "%s[%zu]", what, n);
        if (n < ARRAY_LEN(regex)) {
            l->regex = regex[n];
            DI_TRY(read_split_stage(l, path, st));
        } else if (n == ARRAY_LEN(regex)) {
            DI_TRY(read_byte_stage(l, path, st));
        } else {
            return refuse_next(l, path, "a list of four stages", st);
        }
        n++;
    }
    DI_TRY(load_check(l, st));
    if (n != ARRAY_LEN(regex) + 1)
        rc = di_fail(st, DI_E_UNSUPPORTED, "%s: %s has %zu stages, only four are supported",
                     l->name, what, n);
done:
    return rc;
}

static di_code read_pre_tokenizer(loader *l, const char *what, di_status *st)
{
    static const rule rules[] = {
        {.key = "type", .kind = RULE_TEXT, .text = "Sequence", .required = true},
        {.key = "pretokenizers", .kind = RULE_READ, .read = read_stages, .required = true},
    };

    if (json_peek(&l->r) == JSON_NULL)
        return refuse_next(l, what, "the one of DeepSeek V3 to V4.1", st);
    return load_object(l, what, rules, ARRAY_LEN(rules), st);
}

/* ---- the document ---- */

static di_code read_document(loader *l, di_status *st)
{
    static const rule rules[] = {
        {.key = "version", .kind = RULE_TEXT, .text = "1.0"},
        {.key = "truncation", .kind = RULE_NULL},
        {.key = "padding", .kind = RULE_NULL},
        {.key = "added_tokens", .kind = RULE_READ, .read = load_added_tokens},
        {.key = "normalizer", .kind = RULE_READ, .read = read_normalizer},
        {.key = "pre_tokenizer", .kind = RULE_READ, .read = read_pre_tokenizer, .required = true},
        {.key = "post_processor", .kind = RULE_READ, .read = read_post_processor},
        {.key = "decoder", .kind = RULE_READ, .read = read_byte_level, .required = true},
        {.key = "model", .kind = RULE_READ, .read = load_model, .required = true},
    };
    di_code rc = DI_OK;

    DI_TRY(load_object(l, "", rules, ARRAY_LEN(rules), st));
    DI_TRY(json_end(&l->r, st));
    rc = load_finish_added(l, st);
done:
    return rc;
}

di_code tokenizer_parse(tokenizer **out, const char *json, size_t n, const char *name,
                        di_status *st)
{
    di_code rc = DI_OK;
    loader l = {.name = name};

    *out = NULL;
    if (n > MAX_FILE_BYTES)
        return di_fail(st, DI_E_FORMAT, "%s: %zu bytes are more than the limit of %zu", name, n,
                       MAX_FILE_BYTES);
    json_open(&l.r, json, n, name);
    l.t = mem_try_calloc(1, sizeof *l.t);
    l.raw = map_new(16);
    if (!l.t || !l.raw) {
        rc = di_fail(st, DI_E_NOMEM, "no memory to read %s", name);
        goto done;
    }
    DI_TRY(read_document(&l, st));
    tok_mark_text(l.t);
    *out = l.t;
    l.t = NULL;
done:
    tokenizer_free(l.t);
    map_free(l.raw);
    mem_free(l.added.entries);
    json_close(&l.r);
    return rc;
}

di_code tokenizer_load(tokenizer **out, const char *path, di_status *st)
{
    file_map m;
    di_code rc = file_map_open(&m, path, st);

    *out = NULL;
    if (rc != DI_OK)
        return rc;
    rc = tokenizer_parse(out, (const char *)m.data, m.bytes, path, st);
    file_map_close(&m);
    return rc;
}

void tokenizer_free(tokenizer *t)
{
    if (!t)
        return;
    mem_free(t->flags);
    mem_free(t->symbol);
    mem_free(t->bytes);
    mem_free((void *)t->whole);
    mem_free(t->slots);
    mem_free(t->merges);
    mem_free(t->merged);
    mem_free(t->byte_rank);
    mem_free(t->nodes);
    map_free(t->added);
    str_fini(&t->symbols);
    str_fini(&t->blob);
    mem_free(t);
}

size_t tokenizer_memory(const tokenizer *t)
{
    size_t ids = (size_t)t->n_ids, per_id = sizeof *t->flags + 2 * sizeof(tok_span);
    size_t slots = t->slots ? (size_t)1 << (64 - t->slot_shift) : 0;
    size_t merges = t->merges ? (size_t)1 << (64 - t->merge_shift) : 0;

    return sizeof *t + ids * per_id + (size_t)t->n_vocab_ids + t->symbols.cap + t->blob.cap +
           slots * sizeof *t->slots + merges * (sizeof *t->merges + sizeof *t->merged / 2) +
           (t->byte_rank ? (size_t)256 * 256 * sizeof *t->byte_rank : 0) +
           (size_t)t->cap_nodes * sizeof *t->nodes + (t->added ? map_bytes(t->added) : 0);
}

size_t tokenizer_memory_about(int n_ids)
{
    return (size_t)256 * 256 * sizeof(uint32_t) + (size_t)n_ids * BYTES_PER_ID;
}

int tokenizer_n_ids(const tokenizer *t)
{
    return t->n_ids;
}
