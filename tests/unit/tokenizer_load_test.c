/* tokenizer.json as hostile input: a small good file, and what happens when one thing in it is
 * changed; order of merges and added tokens; out of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/pretok.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_internal.h"

static str good; /* the file that the tests change */

/* ---- the small file: 256 bytes (ids 0..255), "ab" 256, "abc" 257, "bc" 258, two added tokens ----
 */

static void put_json_string(str *out, const char *text)
{
    str_putc(out, '"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            str_putc(out, '\\');
        if (*text == '\n')
            str_puts(out, "\\n");
        else if (*text == '\r')
            str_puts(out, "\\r");
        else
            str_putc(out, *text);
    }
    str_putc(out, '"');
}

static void put_split(str *out, const char *regex)
{
    str_puts(out, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    put_json_string(out, regex);
    str_puts(out, "},\"behavior\":\"Isolated\",\"invert\":false},");
}

static void put_vocab(str *out)
{
    int id = 0;

    str_puts(out, "\"vocab\":{");
    for (uint32_t cp = 0; cp < 0x144; cp++) {
        char symbol[5] = {0};

        if (tok_symbol_byte(cp) < 0)
            continue;
        symbol[utf8_write(cp, symbol)] = 0;
        put_json_string(out, symbol);
        str_printf(out, ":%d,", id++);
    }
    str_puts(out, "\"ab\":256,\"abc\":257,\"bc\":258}");
}

static int make_good(void **state)
{
    (void)state;
    str_puts(&good, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
                    "{\"id\":260,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,"
                    "\"rstrip\":false,\"normalized\":false,\"special\":true},"
                    "{\"id\":262,\"content\":\"a<\",\"single_word\":false,\"lstrip\":false,"
                    "\"rstrip\":false,\"normalized\":true,\"special\":false},"
                    "{\"id\":263,\"content\":\"a<<\",\"single_word\":false,\"lstrip\":false,"
                    "\"rstrip\":false,\"normalized\":true,\"special\":false}],"
                    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\","
                    "\"pretokenizers\":[");
    put_split(&good, PRETOK_NUMBERS);
    put_split(&good, PRETOK_CJK);
    put_split(&good, PRETOK_WORDS);
    str_puts(&good, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
                    "\"use_regex\":false}]},\"post_processor\":null,\"decoder\":{\"type\":"
                    "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
                    "\"unk_token\":null,\"continuing_subword_prefix\":\"\","
                    "\"byte_fallback\":false,\"ignore_merges\":false,");
    put_vocab(&good);
    str_puts(&good, ",\"merges\":[\"a b\",\"b c\",[\"ab\",\"c\"]]}}\n");
    return str_ok(&good) ? 0 : -1;
}

static int drop_good(void **state)
{
    (void)state;
    str_fini(&good);
    return 0;
}

/* The good file with the first `find` replaced. */
static str changed(const char *find, const char *with)
{
    const char *at = strstr(good.data, find);
    str s = {0};

    if (!at)
        fail_msg("the file has no %s", find);
    str_append(&s, good.data, (size_t)(at - good.data));
    str_puts(&s, with);
    str_puts(&s, at + strlen(find));
    return s;
}

static tokenizer *parse(const str *json)
{
    tokenizer *t;
    di_status st = {0};

    if (tokenizer_parse(&t, json->data, json->len, "small.json", &st) != DI_OK)
        fail_msg("%s", st.message);
    return t;
}

static void assert_refused(const char *find, const char *with, di_code code, const char *says)
{
    str json = changed(find, with);
    tokenizer *t;
    di_status st = {0};
    di_code rc = tokenizer_parse(&t, json.data, json.len, "small.json", &st);

    if (rc != code || !strstr(st.message, says) || !strstr(st.message, "small.json"))
        fail_msg("%s -> %s: %s \"%s\", wanted %s with \"%s\"", find, with, di_code_name(rc),
                 st.message, di_code_name(code), says);
    assert_null(t);
    str_fini(&json);
}

static void assert_ids(const tokenizer *t, const char *text, bool added, const int32_t *want,
                       size_t n)
{
    tok_ids got = {0};

    assert_int_equal(tokenizer_encode(t, text, strlen(text), added, &got, NULL), DI_OK);
    assert_int_equal(got.n, n);
    assert_memory_equal(got.ids, want, n * sizeof *want);
    tok_ids_fini(&got);
}

#define ASSERT_IDS(t, text, added, ...)                                                            \
    assert_ids(t, text, added, (const int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / 4)

/* ---- what a good file means ---- */

static void test_lowest_rank_merges_first_leftmost_on_ties(void **state)
{
    tokenizer *t = parse(&good);

    (void)state;
    ASSERT_IDS(t, "ab", false, 256);
    ASSERT_IDS(t, "abc", false, 257);
    ASSERT_IDS(t, "bc", false, 258);
    ASSERT_IDS(t, "bcbcab", false, 258, 258, 256);
    ASSERT_IDS(t, "ababab", false, 256, 256, 256);
    tokenizer_free(t);
}

static void test_an_entry_that_merges_cannot_reach_is_not_used(void **state)
{
    /* Without "ab c", "abc" is in the vocabulary but never comes out. */
    str json = changed(",[\"ab\",\"c\"]", "");
    tokenizer *t = parse(&json);

    (void)state;
    for (int twice = 0; twice < 2; twice++) /* the first time finds out, the second knows */
        ASSERT_IDS(t, "abc", false, 256, t->byte_id['c']);
    tokenizer_free(t);
    str_fini(&json);
}

static void test_added_tokens_match_in_two_passes(void **state)
{
    tokenizer *t = parse(&good);

    (void)state;
    ASSERT_IDS(t, "<s>", true, 260);
    ASSERT_IDS(t, "a<<s>", true, 262, 260); /* "<s>" first, then "a<" in what is left */
    ASSERT_IDS(t, "a<<", true, 263);        /* longest */
    ASSERT_IDS(t, "a<a<<", true, 262, 263);
    ASSERT_IDS(t, "a<", false, t->byte_id['a'], t->byte_id['<']);
    tokenizer_free(t);
}

static void test_holes_between_ids_have_no_bytes(void **state)
{
    tokenizer *t = parse(&good);
    const int32_t ids[] = {256, 259, 261, 263};
    size_t n;
    str out = {0};

    (void)state;
    assert_int_equal(tokenizer_n_ids(t), 264);
    assert_null(tokenizer_bytes(t, 259, &n));
    assert_null(tokenizer_bytes(t, 261, &n));
    tokenizer_decode(t, ids, 4, false, &out);
    assert_string_equal(str_text(&out), "aba<<");
    str_fini(&out);
    tokenizer_free(t);
}

static void test_merges_may_come_before_the_vocabulary(void **state)
{
    str json = changed(",\"merges\":[\"a b\",\"b c\",[\"ab\",\"c\"]]", ""), other = {0};
    const char *at = strstr(json.data, "\"type\":\"BPE\",");
    tokenizer *t;

    (void)state;
    assert_non_null(at);
    str_append(&other, json.data, (size_t)(at - json.data));
    str_puts(&other, "\"merges\":[\"a b\",\"b c\"],");
    str_puts(&other, at);
    t = parse(&other);
    ASSERT_IDS(t, "abbc", false, 256, 258);
    tokenizer_free(t);
    str_fini(&json);
    str_fini(&other);
}

/* ---- what is refused ---- */

static void test_settings_that_would_change_the_ids_are_refused_by_name(void **state)
{
    static const struct {
        const char *find, *with, *says;
    } cases[] = {
        {"\"version\":\"1.0\"", "\"version\":\"2.0\"", "version is 2.0"},
        {"\"truncation\":null", "\"truncation\":{\"max_length\":5}",
         "truncation is {\"max_length\""},
        {"\"padding\":null", "\"padding\":1", "padding is 1"},
        {"\"padding\"", "\"paddings\"", "unknown member \"paddings\""},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", "normalizer.type is NFC"},
        {"\"normalizer\":null",
         "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}",
         "normalizer.normalizers is {\"type\":\"NFC\"}"},
        {"\"pre_tokenizer\":{\"type\":\"Sequence\"", "\"pre_tokenizer\":{\"type\":\"Metaspace\"",
         "pre_tokenizer.type is Metaspace"},
        {"\\\\p{N}{1,3}", "\\\\p{N}", "pre_tokenizer.pretokenizers[0].pattern.Regex is \\p{N}"},
        {"Isolated", "Removed", "pretokenizers[0].behavior is Removed"},
        {"\"invert\":false", "\"invert\":true", "pretokenizers[0].invert is true"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":false", "{\"type\":\"Digits\",\"x\":1",
         "pretokenizers[3].type is Digits"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true",
         "pretokenizers[3].add_prefix_space is true"},
        {"\"use_regex\":false}", "\"use_regex\":false},{\"type\":\"Digits\"}",
         "pretokenizers[4] is {\"type\":\"Digits\"}"},
        {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"Fuse\"}",
         "decoder.type is Fuse"},
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model.type is Unigram"},
        {"\"dropout\":null", "\"dropout\":0.1", "model.dropout is 0.1"},
        {"\"unk_token\":null", "\"unk_token\":\"<unk>\"", "model.unk_token is \"<unk>\""},
        {"\"continuing_subword_prefix\":\"\"", "\"continuing_subword_prefix\":\"##\"",
         "model.continuing_subword_prefix is ##"},
        {"\"byte_fallback\":false", "\"byte_fallback\":true", "model.byte_fallback is true"},
        {"\"ignore_merges\":false", "\"ignore_merges\":true", "model.ignore_merges is true"},
        {"\"lstrip\":false", "\"lstrip\":true", "added_tokens[0].lstrip is true"},
        {"\"content\":\"<s>\"", "\"content\":\"\u0120\"", "added_tokens[0]: \"\u0120\" reads as"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_refused(cases[i].find, cases[i].with, DI_E_UNSUPPORTED, cases[i].says);
}

static void test_wrong_content_is_refused_with_key_and_entry(void **state)
{
    static const struct {
        const char *find, *with, *says;
    } cases[] = {
        {"{\"version\"", "[\"version\"", ""},
        {"}}\n", "}} x", ""},
        {"}}\n", "}", "ends too early"},
        {"\"version\":", "\"version\":\"1.0\",\"version\":", "member \"version\" twice"},
        {"\"decoder\":{\"type\":\"ByteLevel\"},", "", "member \"decoder\" is missing"},
        {"\"version\":\"1.0\"", "\"version\":1", "a string is expected"},
        {"\"type\":\"BPE\",", "", "model: member \"type\" is missing"},
        {"\"ab\":256", "\"ab\":-1", "model.vocab: id -1 is outside 0..1048575"},
        {"\"ab\":256", "\"ab\":1048576", "model.vocab: id 1048576 is outside"},
        {"\"ab\":256", "\"ab\":1.5", ""},
        {"\"ab\":256", "\"ab\":\"256\"", "a number is expected"},
        {"\"ab\":256", "\"ab\":257", "id 257 belongs to \"ab\" and \"abc\""},
        {"\"ab\":256", "\"abc\":256", "entry \"abc\" twice"},
        {"\"ab\":256", "\"\":256", "model.vocab: an empty entry"},
        {"\"bc\":258", "\"b c\":258,\"b c\":259", "entry \"b c\" twice"},
        {"\"!\":0,", "", "model.vocab has no entry for the byte 0x21"},
        {"\"a b\"", "\"ab\"", "model.merges[0]: \"ab\" is no pair"},
        {"\"a b\"", "\"a \"", "model.merges[0]: \"a \" is no pair"},
        {"\"a b\"", "\" b\"", "model.merges[0]: \" b\" is no pair"},
        {"\"a b\"", "\"\"", "model.merges[0]: \"\" is no pair"},
        {"\"a b\"", "7", "a string is expected"},
        {"\"b c\"", "\"a b\"", "model.merges[1]: the pair of ids"},
        {"\"b c\"", "\"bb c\"", "model.merges[1]: \"bb c\": its first part is not in model.vocab"},
        {"\"b c\"", "\"b cc\"", "model.merges[1]: \"b cc\": its second part"},
        {"\"b c\"", "\"c b\"", "model.merges[1]: \"c b\": what it makes"},
        {"[\"ab\",\"c\"]", "[\"ab\",\"c\",\"c\"]", "model.merges[2]"},
        {"[\"ab\",\"c\"]", "[\"ab\"]", "model.merges[2]: \"ab\" is no pair"},
        {"\"id\":260", "\"id\":256", "added_tokens[0]: id 256 of \"<s>\" is not what model.vocab"},
        {"\"id\":262", "\"id\":260", "added_tokens[1]: id 260 of \"a<\" is not what"},
        {"\"id\":262", "\"id\":-2", "added_tokens[1].id: id -2 is outside"},
        {"\"id\":262,", "", "added_tokens[1]: member \"id\" is missing"},
        {"\"content\":\"a<\"", "\"content\":\"<s>\"", "added_tokens[1]: \"<s>\" twice"},
        {"\"content\":\"<s>\"", "\"content\":\"\"", "added_tokens[0].content is empty"},
        {"\"content\":\"<s>\"", "\"content\":\"ab\"", "added_tokens[0]: id 260 of \"ab\""},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_refused(cases[i].find, cases[i].with, DI_E_FORMAT, cases[i].says);
}

static void test_a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    for (size_t n = 0; n < good.len - 1; n++) { /* the last byte is a newline */
        tokenizer *t;
        di_code rc = tokenizer_parse(&t, good.data, n, "cut.json", NULL);

        assert_true(rc == DI_E_FORMAT || rc == DI_E_UNSUPPORTED);
        assert_null(t);
    }
}

static void test_an_absent_file_is_named(void **state)
{
    tokenizer *t;
    di_status st = {0};

    (void)state;
    assert_int_equal(tokenizer_load(&t, "tests/data/no-such-tokenizer.json", &st), DI_E_IO);
    assert_non_null(strstr(st.message, "no-such-tokenizer.json"));
    assert_null(t);
}

/* ---- out of memory ---- */

/* Load, encode, list pieces, decode and compress; NOMEM as soon as an allocation fails. */
static di_code use_everything(void)
{
    char text[200];
    tokenizer *t = NULL;
    tok_ids ids = {0}, pieces = {0};
    int32_t to[264];
    int n_compressed;
    str out = {0};
    di_code rc = DI_OK;

    memset(text, 'a', sizeof text); /* a long piece: the heap is used */
    text[0] = '\xFF';               /* and a lossy copy */
    DI_TRY(tokenizer_parse(&t, good.data, good.len, "small.json", NULL));
    DI_TRY(tokenizer_encode(t, text, sizeof text, true, &ids, NULL));
    DI_TRY(tokenizer_pieces(t, text, sizeof text, &pieces, NULL));
    tokenizer_decode(t, ids.ids, ids.n, false, &out);
    if (!str_ok(&out))
        rc = DI_E_NOMEM;
    if (rc == DI_OK)
        rc = tokenizer_compressed_ids(t, to, 264, &n_compressed, NULL);
done:
    tokenizer_free(t);
    tok_ids_fini(&ids);
    tok_ids_fini(&pieces);
    str_fini(&out);
    return rc;
}

static void test_every_failing_allocation_is_reported(void **state)
{
    uint64_t n = 0;
    di_code rc;

    (void)state;
    do {
        mem_fail_at(++n);
        rc = use_everything();
        mem_fail_at(0);
        assert_true(rc == DI_OK || rc == DI_E_NOMEM);
    } while (rc != DI_OK);
    assert_true(n > 30);
}

static void test_decoder_reports_a_failing_allocation(void **state)
{
    tokenizer *t = parse(&good);
    tok_decoder d;
    str out = {0};

    (void)state;
    tok_decoder_init(&d, t);
    mem_fail_at(1);
    tok_decoder_push(&d, 256, &out);
    mem_fail_at(0);
    assert_false(str_ok(&out));
    tok_decoder_fini(&d);
    str_fini(&out);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lowest_rank_merges_first_leftmost_on_ties),
        cmocka_unit_test(test_an_entry_that_merges_cannot_reach_is_not_used),
        cmocka_unit_test(test_added_tokens_match_in_two_passes),
        cmocka_unit_test(test_holes_between_ids_have_no_bytes),
        cmocka_unit_test(test_merges_may_come_before_the_vocabulary),
        cmocka_unit_test(test_settings_that_would_change_the_ids_are_refused_by_name),
        cmocka_unit_test(test_wrong_content_is_refused_with_key_and_entry),
        cmocka_unit_test(test_a_file_cut_anywhere_is_refused),
        cmocka_unit_test(test_an_absent_file_is_named),
        cmocka_unit_test(test_every_failing_allocation_is_reported),
        cmocka_unit_test(test_decoder_reports_a_failing_allocation),
    };

    return cmocka_run_group_tests(tests, make_good, drop_good);
}
