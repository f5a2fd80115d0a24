/* UTF-8: every character, every short byte sequence against a decoder written the slow way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "base/utf8.h"

/* Bits of a character by the classic pattern of lead bytes; 0 when s is no well-formed character
 * of exactly n bytes. */
static bool naive_char(const unsigned char *s, size_t n, uint32_t *cp)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t v;

    if (n == 1) {
        *cp = s[0];
        return s[0] < 0x80;
    }
    if (n == 2 && (s[0] & 0xE0) == 0xC0)
        v = s[0] & 0x1Fu;
    else if (n == 3 && (s[0] & 0xF0) == 0xE0)
        v = s[0] & 0x0Fu;
    else if (n == 4 && (s[0] & 0xF8) == 0xF0)
        v = s[0] & 0x07u;
    else
        return false;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return false;
        v = v << 6 | (s[i] & 0x3Fu);
    }
    *cp = v;
    return v >= least[n] && v <= 0x10FFFF && !(v >= 0xD800 && v <= 0xDFFF);
}

/* Is s[0..n) the beginning of some well-formed character? The bytes that may still follow are
 * tried at both ends of the continuation range, which is enough: a range is an interval. */
static bool naive_prefix(const unsigned char *s, size_t n)
{
    for (size_t total = n + 1; total <= 4; total++)
        for (unsigned pick = 0; pick < 1u << (total - n); pick++) {
            unsigned char t[4];
            uint32_t cp;

            memcpy(t, s, n);
            for (size_t i = n; i < total; i++)
                t[i] = pick >> (i - n) & 1u ? 0xBF : 0x80;
            if (naive_char(t, total, &cp))
                return true;
        }
    return false;
}

/* Length that utf8_read must give, and the character or UTF8_BAD. */
static size_t naive_read(const unsigned char *s, size_t n, uint32_t *cp)
{
    size_t len = 1;

    for (size_t k = 1; k <= 4 && k <= n; k++)
        if (naive_char(s, k, cp))
            return k;
    *cp = UTF8_BAD;
    while (len < n && len < 3 && naive_prefix(s, len + 1))
        len++;
    return naive_prefix(s, 1) ? len : 1;
}

static void check(const unsigned char *s, size_t n)
{
    uint32_t want, got;
    size_t want_len = naive_read(s, n, &want), got_len = utf8_read((const char *)s, n, &got);

    if (want_len != got_len || want != got)
        fail_msg("%02x %02x %02x %02x of %zu: length %zu not %zu, character %x not %x", s[0], s[1],
                 s[2], s[3], n, got_len, want_len, got, want);
    if (utf8_is_partial((const char *)s, n) != naive_prefix(s, n))
        fail_msg("%02x %02x %02x %02x of %zu: wrong answer on partial", s[0], s[1], s[2], s[3], n);
}

static void test_all_characters_survive_writing_and_reading(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        char s[4];
        uint32_t back;
        size_t n;

        if (cp == 0xD800)
            cp = 0xE000;
        n = utf8_write(cp, s);
        assert_int_equal(utf8_read(s, n, &back), n);
        assert_int_equal(back, cp);
        assert_true(utf8_valid(s, n));
        for (size_t k = 1; k < n; k++) {
            assert_true(utf8_is_partial(s, k));
            assert_false(utf8_valid(s, k));
        }
        assert_false(utf8_is_partial(s, n));
    }
}

static void test_all_sequences_up_to_three_bytes_match_the_naive_decoder(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 1u << 24; v++) {
        unsigned char s[4] = {(unsigned char)(v >> 16), (unsigned char)(v >> 8), (unsigned char)v};

        /* ASCII and continuation bytes in front say nothing new for three bytes */
        if (s[0] < 0xC0 && v & 0xFFFF)
            continue;
        if ((v & 0xFFFF) == 0)
            check(s, 1);
        if ((v & 0xFF) == 0)
            check(s, 2);
        check(s, 3);
    }
}

static void test_all_four_byte_leads_match_at_the_edges_of_every_range(void **state)
{
    static const unsigned char edges[] = {0x00, 0x22, 0x7F, 0x80, 0x81, 0x8F, 0x90, 0x9F,
                                          0xA0, 0xBF, 0xC0, 0xC2, 0xE0, 0xF0, 0xFF};

    (void)state;
    for (unsigned lead = 0xC0; lead <= 0xFF; lead++)
        for (unsigned second = 0; second <= 0xFF; second++)
            for (size_t a = 0; a < sizeof edges; a++)
                for (size_t b = 0; b < sizeof edges; b++) {
                    unsigned char s[4] = {(unsigned char)lead, (unsigned char)second, edges[a],
                                          edges[b]};

                    check(s, 4);
                }
}

static void test_valid_looks_at_every_byte_of_long_text(void **state)
{
    char s[40];

    (void)state;
    for (size_t n = 0; n <= sizeof s; n++) {
        memset(s, 'a', n);
        assert_true(utf8_valid(s, n));
        for (size_t i = 0; i < n; i++) {
            s[i] = (char)0xFF;
            assert_false(utf8_valid(s, n));
            s[i] = 'a';
        }
        if (n >= 2) {
            s[n - 2] = (char)0xC3;
            s[n - 1] = (char)0xA9;
            assert_true(utf8_valid(s, n));
            assert_false(utf8_valid(s, n - 1));
        }
    }
}

static void test_mending_takes_out_what_was_cut(void **state)
{
    static const char *const cases[][2] = {{"", ""},
                                           {"a\xC3\xA9", "a\xC3\xA9"},
                                           {"\xC3\xA9\xC3", "\xC3\xA9"},
                                           {"\xE6\x97\"\xA5 b", "\" b"},
                                           {"\xFF\xF0\x9F\x99", ""}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char s[16];

        snprintf(s, sizeof s, "%s", cases[i][0]);
        utf8_mend(s);
        assert_string_equal(s, cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_characters_survive_writing_and_reading),
        cmocka_unit_test(test_all_sequences_up_to_three_bytes_match_the_naive_decoder),
        cmocka_unit_test(test_all_four_byte_leads_match_at_the_edges_of_every_range),
        cmocka_unit_test(test_valid_looks_at_every_byte_of_long_text),
        cmocka_unit_test(test_mending_takes_out_what_was_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
