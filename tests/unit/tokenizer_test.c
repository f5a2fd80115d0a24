/* The tokenizer on the released file: traps of the pre-tokenizer, added tokens, ill-formed text,
 * decoding, compressed ids (spec recipe.md 5, model.md 6.1). The golden data are run by
 * golden_tokenizer; refused files are in tokenizer_load_test.c. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_internal.h"

#define USER      "<\uFF5CUser\uFF5C>"
#define ASSISTANT "<\uFF5CAssistant\uFF5C>"
#define BOS       "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>"

static tokenizer *tok;

static int load(void **state)
{
    di_status st = {0};

    (void)state;
    if (tokenizer_load(&tok, DI_DATA_DIR "/tokenizer-v4/tokenizer.json", &st) == DI_OK)
        return 0;
    print_error("%s\n", st.message);
    return -1;
}

static int unload(void **state)
{
    (void)state;
    tokenizer_free(tok);
    return 0;
}

/* ---- helpers ---- */

/* The pieces of a text, joined by a separator that the texts do not hold. */
static void assert_pieces(const char *text, const char *want)
{
    tok_ids n = {0};
    str got = {0};

    assert_int_equal(tokenizer_pieces(tok, text, strlen(text), &n, NULL), DI_OK);
    for (size_t i = 0, at = 0; i < n.n; at += (size_t)n.ids[i++]) {
        if (i > 0)
            str_putc(&got, '`');
        str_append(&got, text + at, (size_t)n.ids[i]);
    }
    assert_string_equal(str_text(&got), want);
    tok_ids_fini(&n);
    str_fini(&got);
}

static tok_ids encode(const char *text, size_t n, bool added)
{
    tok_ids ids = {0};

    assert_int_equal(tokenizer_encode(tok, text, n, added, &ids, NULL), DI_OK);
    return ids;
}

static void assert_ids(tok_ids got, const int32_t *want, size_t n)
{
    assert_int_equal(got.n, n);
    if (n > 0)
        assert_memory_equal(got.ids, want, n * sizeof *want);
    tok_ids_fini(&got);
}

#define ASSERT_IDS(got, ...)                                                                       \
    assert_ids(got, (const int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / 4)

/* Encoding and decoding again gives the bytes back. */
static void assert_round_trip(const char *text, bool added)
{
    tok_ids ids = encode(text, strlen(text), added);
    str got = {0};

    tokenizer_decode(tok, ids.ids, ids.n, false, &got);
    assert_string_equal(str_text(&got), text);
    tok_ids_fini(&ids);
    str_fini(&got);
}

/* ---- pieces ---- */

static void test_blanks_before_a_number_stay_together(void **state)
{
    (void)state;
    assert_pieces("a  1", "a`  `1");
    assert_pieces("a  b", "a` ` b");
    assert_pieces("a  \u4F60", "a`  `\u4F60");
    assert_pieces("a  ", "a`  ");
    assert_pieces("a\u3000\u3000b", "a`\u3000`\u3000b");
}

static void test_numbers_come_in_threes(void **state)
{
    (void)state;
    assert_pieces("1234567", "123`456`7");
    assert_pieces("x12y", "x`12`y");
    assert_pieces("\u0661\u0662\u0663\u0664", "\u0661\u0662\u0663`\u0664");
    assert_pieces("1\u00BD\u2167\u2460", "1\u00BD\u2167`\u2460");
}

static void test_cjk_runs_are_cut_off_first(void **state)
{
    (void)state;
    assert_pieces("\u4F60\u597Dabc", "\u4F60\u597D`abc");
    assert_pieces("\u304B\u30AB\u4E00", "\u304B\u30AB\u4E00");
    assert_pieces("\u9FA5\u9FA6", "\u9FA5`\u9FA6"); /* a letter behind the range */
    assert_pieces("\u4F60\uFF0C\u597D", "\u4F60`\uFF0C`\u597D");
}

static void test_the_word_pattern_cuts_inside_cjk_runs(void **state)
{
    (void)state;
    assert_pieces("\u30A2\u30FB\u30A2", "\u30A2`\u30FB`\u30A2"); /* a point */
    assert_pieces("\u30A0\u309B\n", "\u30A0\u309B`\n");
    assert_pieces("\u304B\u3099\u304B", "\u304B\u3099\u304B");               /* a mark */
    assert_pieces("\u3096\u3097\u3098\u3099", "\u3096`\u3097`\u3098\u3099"); /* unassigned */
    assert_pieces("\u3097a", "\u3097`a");
    assert_pieces("\u200B\u304B", "\u200B`\u304B");
    assert_pieces("!\u30FB", "!`\u30FB");
}

static void test_ascii_punctuation_takes_the_ascii_letters_behind_it(void **state)
{
    (void)state;
    assert_pieces("!foo", "!foo");
    assert_pieces("!\u00E9", "!`\u00E9");
    assert_pieces("$var_x", "$var`_x");
    assert_pieces(" .a", " .`a"); /* the blank takes the point before the point can take the a */
    assert_pieces("..ab", "..`ab");
    assert_pieces("\u2014ab", "\u2014`ab"); /* not one of the 32 */
    assert_pieces(".a\u00E9", ".a`\u00E9");
}

static void test_the_tilde_is_a_symbol(void **state)
{
    (void)state;
    assert_pieces(" ~", " ~");
    assert_pieces("a ~ b", "a` ~` b");
}

static void test_punctuation_does_not_join_words(void **state)
{
    (void)state;
    assert_pieces("a\u2014b", "a`\u2014`b");
    assert_pieces("a\u2026", "a`\u2026");
    assert_pieces("a\uFF0Cb", "a`\uFF0C`b");
    assert_pieces("a\U0001F600b", "a`\U0001F600`b");
    assert_pieces("a\u3000b", "a`\u3000b"); /* a blank begins the word behind it */
}

static void test_the_last_newline_of_a_run_ends_the_piece(void **state)
{
    (void)state;
    assert_pieces("a \n  b", "a` \n` ` b");
    assert_pieces("a \n \r\n\tb", "a` \n \r\n`\tb");
    assert_pieces("a)\n\nb", "a`)\n\n`b");
    assert_pieces("\n1", "\n`1");
    assert_pieces("\n  1", "\n`  `1");
}

static void test_text_that_nothing_matches_is_one_piece_per_run(void **state)
{
    (void)state;
    assert_pieces("a\x1C\x1D.", "a`\x1C\x1D`."); /* no White_Space */
    assert_pieces("\u200B\u200B", "\u200B\u200B");
    assert_pieces("\u200B\u200Bx", "\u200B`\u200Bx"); /* the last one begins the word */
    assert_pieces(" \u200B", " `\u200B");
    assert_pieces("\uE000 a", "\uE000` a");
}

static void test_characters_newer_than_unicode_16_are_unassigned(void **state)
{
    (void)state;
    assert_pieces("ab\u088Fcd", "ab`\u088Fcd");
    assert_pieces(".\u20C1.", ".`\u20C1`.");
}

static void test_marks_belong_to_words(void **state)
{
    (void)state;
    assert_pieces("e\u0301a", "e\u0301a");
    assert_pieces("\u0301a", "\u0301a");
    assert_pieces(".\u0301a", ".`\u0301a");
    assert_pieces(" \u0301", " \u0301");
}

/* ---- ids ---- */

static void test_blanks_never_vanish(void **state)
{
    static const char *const texts[] = {" ", "  a  b ",        "\ta\n b\r\n", "a\u00A0b \u3000",
                                        "",  "\u2581a \u0120b"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        assert_round_trip(texts[i], true);
}

static void test_role_markers_in_user_text_stay_text(void **state)
{
    tok_ids plain = encode(USER "hi", strlen(USER "hi"), false);
    int32_t user = tokenizer_added_id(tok, USER);

    (void)state;
    assert_int_equal(user, 128803);
    for (size_t i = 0; i < plain.n; i++)
        assert_true(plain.ids[i] < 128000);
    assert_true(plain.n > 3);
    tok_ids_fini(&plain);
    ASSERT_IDS(encode(USER "hi", strlen(USER "hi"), true), 128803, 6366);
    assert_round_trip(USER "hi" ASSISTANT, false);
}

static void test_text_beside_an_added_token_is_a_text_of_its_own(void **state)
{
    tok_ids two = encode("  ", 2, true);
    tok_ids all = encode("  " BOS "  ", strlen("  " BOS "  "), true);

    (void)state;
    assert_int_equal(two.n, 1);
    assert_int_equal(all.n, 3);
    assert_int_equal(all.ids[0], two.ids[0]);
    assert_int_equal(all.ids[1], 0);
    assert_int_equal(all.ids[2], two.ids[0]);
    tok_ids_fini(&two);
    tok_ids_fini(&all);
}

static void test_ids_outside_the_vocabulary_have_no_bytes(void **state)
{
    static const int32_t ids[] = {-1, 129280, INT32_MAX, INT32_MIN};
    size_t n = 7;

    (void)state;
    assert_int_equal(tokenizer_n_ids(tok), 129280);
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        assert_null(tokenizer_bytes(tok, ids[i], &n));
        assert_int_equal(n, 0);
        assert_null(tokenizer_symbol(tok, ids[i], &n));
        assert_false(tokenizer_is_special(tok, ids[i]));
    }
    assert_int_equal(tokenizer_added_id(tok, "no such token"), -1);
}

static void test_symbols_and_bytes_of_an_id(void **state)
{
    tok_ids ids = encode(" the", 4, false);
    const char *s;
    size_t n;

    (void)state;
    assert_int_equal(ids.n, 1);
    s = tokenizer_bytes(tok, ids.ids[0], &n);
    assert_int_equal(n, 4);
    assert_memory_equal(s, " the", 4);
    s = tokenizer_symbol(tok, ids.ids[0], &n);
    assert_int_equal(n, 5);
    assert_memory_equal(s, "\u0120the", 5);
    tok_ids_fini(&ids);
}

static void test_ill_formed_bytes_read_as_replacement_characters(void **state)
{
    static const char *const ill[] = {"\xFF", "a\xC0\xAF", "\xE2\x82(", "\xF0\x9F\x98",
                                      "\xED\xA0\x80"};
    static const char *const good[] = {"\uFFFD", "a\uFFFD\uFFFD", "\uFFFD(", "\uFFFD",
                                       "\uFFFD\uFFFD\uFFFD"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(ill); i++) {
        tok_ids a = encode(ill[i], strlen(ill[i]), true);
        tok_ids b = encode(good[i], strlen(good[i]), true);

        assert_ids(a, b.ids, b.n);
        tok_ids_fini(&b);
    }
}

static void test_every_single_byte_has_an_id(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++) {
        int32_t id = tok->byte_id[b];
        size_t n;
        const char *bytes = tokenizer_bytes(tok, id, &n);

        assert_int_equal(n, 1);
        assert_int_equal((uint8_t)bytes[0], b);
        assert_true(id >= 3 && id <= 258);
    }
}

/* The definition of BPE, in the slowest way; returns the number of ids. */
static size_t merge_naively(const char *text, size_t n, int32_t *id)
{
    for (size_t i = 0; i < n; i++)
        id[i] = tok->byte_id[(uint8_t)text[i]];
    for (;;) {
        uint32_t best = TOK_NO_RANK;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++)
            if (tok_merge_rank(tok, id[i], id[i + 1]) < best) {
                best = tok_merge_rank(tok, id[i], id[i + 1]);
                at = i;
            }
        if (best == TOK_NO_RANK)
            return n;
        id[at] = tok->merged[best];
        memmove(id + at + 1, id + at + 2, (n - at - 2) * sizeof *id);
        n--;
    }
}

static void test_short_and_long_pieces_merge_by_rank(void **state)
{
    static const char letters[] = "etaoinshrdluabab";
    char text[200];
    int32_t want[200];
    uint32_t seed = 1;

    (void)state;
    for (size_t n = 1; n <= sizeof text; n++)
        for (int round = 0; round < 5; round++) {
            tok_ids got;

            for (size_t i = 0; i < n; i++) {
                seed = seed * 1664525 + 1013904223;
                text[i] = letters[seed >> 28];
            }
            got = encode(text, n, false);
            assert_ids(got, want, merge_naively(text, n, want));
        }
}

static void test_long_pieces_are_not_quadratic(void **state)
{
    const size_t n = 1000000;
    char *text = mem_try_calloc(n, 1);
    uint64_t start = clock_ns();
    tok_ids ids;
    str back = {0};

    (void)state;
    for (size_t i = 0; i < n; i++)
        text[i] = (char)('a' + i * 7919 % 26 * (i % 3) % 26);
    ids = encode(text, n, false);
    tokenizer_decode(tok, ids.ids, ids.n, false, &back);
    assert_int_equal(back.len, n);
    assert_memory_equal(back.data, text, n);
    assert_true(clock_ns() - start < 20ull * 1000000000); /* a quadratic scan takes minutes */
    tok_ids_fini(&ids);
    str_fini(&back);
    mem_free(text);
}

static void *encode_often(void *arg)
{
    static const char text[] = "for (size_t i = 0; i < n; i++) unzusammenh\u00E4ngend \u4F60\u597D";
    tok_ids *last = arg;

    for (int i = 0; i < 200; i++) {
        last->n = 0;
        if (tokenizer_encode(tok, text, sizeof text - 1, true, last, NULL) != DI_OK)
            last->n = 0;
    }
    return NULL;
}

static void test_threads_share_a_tokenizer(void **state)
{
    pthread_t threads[4];
    tok_ids ids[5] = {{0}};

    (void)state;
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &ids[i]), 0);
    encode_often(&ids[4]);
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_ids(ids[i], ids[4].ids, ids[4].n);
    }
    assert_true(ids[4].n > 10);
    tok_ids_fini(&ids[4]);
}

/* ---- decoding ---- */

static void test_decoder_never_splits_a_character(void **state)
{
    static const char text[] = "na\u00EFve \u4F60\u597D \U0001F469\u200D\U0001F4BB\u2014\u0915";
    tok_decoder d;
    str out = {0}, all = {0};

    (void)state;
    tok_decoder_init(&d, tok);
    for (const char *p = text; *p; p++) { /* one id per byte: the worst case */
        str_clear(&out);
        tok_decoder_push(&d, tok->byte_id[(uint8_t)*p], &out);
        assert_null(strstr(str_text(&out), "\uFFFD"));
        str_append(&all, str_text(&out), out.len);
    }
    assert_string_equal(str_text(&all), text);
    tok_decoder_flush(&d, &all);
    assert_string_equal(str_text(&all), text);
    tok_decoder_fini(&d);
    str_fini(&out);
    str_fini(&all);
}

static void test_decoder_holds_ill_formed_bytes_until_a_good_one(void **state)
{
    tok_decoder d;
    str out = {0};

    (void)state;
    tok_decoder_init(&d, tok);
    for (int i = 0; i < 1000; i++)
        tok_decoder_push(&d, tok->byte_id[0x80], &out);
    assert_int_equal(out.len, 0);
    tok_decoder_push(&d, tok->byte_id['a'], &out);
    assert_int_equal(out.len, 3001);
    str_clear(&out);
    tok_decoder_push(&d, tok->byte_id[0xE4], &out);
    tok_decoder_push(&d, -5, &out); /* an unknown id has no bytes */
    assert_int_equal(out.len, 0);
    tok_decoder_flush(&d, &out);
    assert_string_equal(str_text(&out), "\uFFFD");
    tok_decoder_fini(&d);
    str_fini(&out);
}

static void test_skipping_special_tokens_keeps_the_role_markers(void **state)
{
    tok_ids ids = encode(BOS USER "x</think>", strlen(BOS USER "x</think>"), true);
    str out = {0};

    (void)state;
    assert_true(tokenizer_is_special(tok, 0));
    assert_false(tokenizer_is_special(tok, 128803));
    tokenizer_decode(tok, ids.ids, ids.n, true, &out);
    assert_string_equal(str_text(&out), USER "x</think>");
    str_clear(&out);
    tokenizer_decode(tok, ids.ids, ids.n, false, &out);
    assert_string_equal(str_text(&out), BOS USER "x</think>");
    tok_ids_fini(&ids);
    str_fini(&out);
}

/* ---- compressed ids ---- */

static void test_compressed_ids_of_the_released_vocabulary(void **state)
{
    int n = tokenizer_n_ids(tok), n_compressed = 0;
    int32_t *to = mem_try_calloc((size_t)n, sizeof *to);
    uint64_t hash = 0xCBF29CE484222325u;

    (void)state;
    assert_int_equal(tokenizer_compressed_ids(tok, to, n, &n_compressed, NULL), DI_OK);
    assert_int_equal(n_compressed, 99092);
    assert_int_equal(to[2], 2);
    for (int i = 0; i < n; i++) /* FNV-1a of the map that the Rust normalisers give */
        for (int b = 0; b < 32; b += 8)
            hash = (hash ^ ((uint32_t)to[i] >> b & 0xFF)) * 0x100000001B3u;
    assert_int_equal(hash, 0x6B5CFA68A5F57BA6u);
    mem_free(to);
}

static void test_normal_form_of_the_compressed_ids(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"\uFF21\uFB01", "afi"}, /* compatibility forms, lowercase */
        {"\u00C9e\u0301", "ee"}, /* accents */
        {"\u0130", "i"},
        {"\uAC00\uB2E4", "\u1100\u1161\u1103\u1161"},
        {"\uAC01", "\u1100\u1161\u11A8"},
        {"  a\t\n b ", "a b"}, /* runs of blanks, both ends */
        {" ", " "},
        {"\r\n\t", " "},
        {"\u3000", " "},  /* NFKC makes it a blank */
        {"\u2028x", "x"}, /* white space that is no blank is stripped only */
        {"\u2028", ""},
        {"\u0301", ""},
        {"a\uE000", "a "}, /* the stand-in of a lone blank */
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        str got = {0};

        tok_fold(cases[i].text, strlen(cases[i].text), &got);
        assert_string_equal(str_text(&got), cases[i].want);
        str_fini(&got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blanks_before_a_number_stay_together),
        cmocka_unit_test(test_numbers_come_in_threes),
        cmocka_unit_test(test_cjk_runs_are_cut_off_first),
        cmocka_unit_test(test_the_word_pattern_cuts_inside_cjk_runs),
        cmocka_unit_test(test_ascii_punctuation_takes_the_ascii_letters_behind_it),
        cmocka_unit_test(test_the_tilde_is_a_symbol),
        cmocka_unit_test(test_punctuation_does_not_join_words),
        cmocka_unit_test(test_the_last_newline_of_a_run_ends_the_piece),
        cmocka_unit_test(test_text_that_nothing_matches_is_one_piece_per_run),
        cmocka_unit_test(test_characters_newer_than_unicode_16_are_unassigned),
        cmocka_unit_test(test_marks_belong_to_words),
        cmocka_unit_test(test_blanks_never_vanish),
        cmocka_unit_test(test_role_markers_in_user_text_stay_text),
        cmocka_unit_test(test_text_beside_an_added_token_is_a_text_of_its_own),
        cmocka_unit_test(test_ids_outside_the_vocabulary_have_no_bytes),
        cmocka_unit_test(test_symbols_and_bytes_of_an_id),
        cmocka_unit_test(test_ill_formed_bytes_read_as_replacement_characters),
        cmocka_unit_test(test_every_single_byte_has_an_id),
        cmocka_unit_test(test_short_and_long_pieces_merge_by_rank),
        cmocka_unit_test(test_long_pieces_are_not_quadratic),
        cmocka_unit_test(test_threads_share_a_tokenizer),
        cmocka_unit_test(test_decoder_never_splits_a_character),
        cmocka_unit_test(test_decoder_holds_ill_formed_bytes_until_a_good_one),
        cmocka_unit_test(test_skipping_special_tokens_keeps_the_role_markers),
        cmocka_unit_test(test_compressed_ids_of_the_released_vocabulary),
        cmocka_unit_test(test_normal_form_of_the_compressed_ids),
    };

    return cmocka_run_group_tests(tests, load, unload);
}
