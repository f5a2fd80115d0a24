/* A tokenizer for generated weights, where a folder has a config.json only: one id per byte, the
 * control tokens of the recipe at the end of the vocabulary, and " tN" for every other id. */
#include <stdio.h>
#include <string.h>

#include "tokenizer/pretok.h"
#include "tokenizer/tokenizer_internal.h"

static const char *const control[] = {"<｜System｜>",          "<｜User｜>", "<｜Assistant｜>",
                                      "<｜latest_reminder｜>", "<think>",    "</think>"};

/* The id of an added token: one of three fixed ones, or one from the end that those leave free. */
static int control_id(const tokenizer_ids *ids, int i)
{
    int id = ids->vocab - 1;

    for (;; id--) {
        if (id == ids->bos || id == ids->eos || id == ids->pad)
            continue;
        if (i-- == 0)
            return id;
    }
}

static bool is_taken(const tokenizer_ids *ids, int id)
{
    if (id == ids->bos || id == ids->eos || id == ids->pad)
        return true;
    for (int i = 0; i < (int)ARRAY_LEN(control); i++)
        if (id == control_id(ids, i))
            return true;
    return false;
}

/* A pattern as a JSON string. */
static void put_pattern(str *s, const char *pattern)
{
    str_puts(s, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"");
    for (; *pattern; pattern++) {
        if (*pattern == '"' || *pattern == '\\')
            str_putc(s, '\\');
        if (*pattern == '\r' || *pattern == '\n')
            str_puts(s, *pattern == '\r' ? "\\r" : "\\n");
        else
            str_putc(s, *pattern);
    }
    str_puts(s, "\"},\"behavior\":\"Isolated\",\"invert\":false},");
}

static void put_added(str *s, int id, const char *text, bool last)
{
    str_printf(s,
               "{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
               "\"rstrip\":false,\"normalized\":false,\"special\":true}%s",
               id, text, last ? "" : ",");
}

/* The code point that stands for a byte in the files of byte-level BPE. */
static int byte_symbol(int byte)
{
    int next = 256;

    if ((byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE)
        return byte;
    for (int b = 0; b < byte; b++)
        next += !((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE);
    return next;
}

/* Entry of the vocabulary: bytes first, then " tN". */
static void put_entry(str *s, int i, int id)
{
    if (i < 256)
        str_printf(s, "%s\"\\u%04x\":%d", i ? "," : "", (unsigned)byte_symbol(i), id);
    else
        str_printf(s, ",\"\\u0120t%d\":%d", id, id);
}

static void put_document(str *s, const tokenizer_ids *ids)
{
    int n = 0;

    str_puts(s, "{\"version\":\"1.0\",\"added_tokens\":[");
    put_added(s, ids->bos, "<｜begin▁of▁sentence｜>", false);
    put_added(s, ids->eos, "<｜end▁of▁sentence｜>", false);
    put_added(s, ids->pad, "<｜▁pad▁｜>", false);
    for (int i = 0; i < (int)ARRAY_LEN(control); i++)
        put_added(s, control_id(ids, i), control[i], i + 1 == (int)ARRAY_LEN(control));
    str_puts(s, "],\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    put_pattern(s, PRETOK_NUMBERS);
    put_pattern(s, PRETOK_CJK);
    put_pattern(s, PRETOK_WORDS);
    str_puts(s, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
                "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int id = 0; id < ids->vocab; id++)
        if (!is_taken(ids, id))
            put_entry(s, n++, id);
    str_puts(s, "},\"merges\":[]}}");
}

di_code tokenizer_generate(tokenizer **out, const tokenizer_ids *ids, di_status *st)
{
    str s = {0};
    di_code rc;

    *out = NULL;
    if (ids->vocab < 256 + 3 + (int)ARRAY_LEN(control) || ids->bos == ids->eos ||
        ids->bos == ids->pad || ids->eos == ids->pad)
        return di_fail(st, DI_E_UNSUPPORTED,
                       "no tokenizer can be generated for %d ids, or for end, begin and padding "
                       "that are one id: the folder needs a tokenizer.json",
                       ids->vocab);
    put_document(&s, ids);
    rc = str_ok(&s) ? tokenizer_parse(out, str_text(&s), s.len, "generated tokenizer", st)
                    : di_fail(st, DI_E_NOMEM, "no memory for a generated tokenizer");
    str_fini(&s);
    return rc;
}
