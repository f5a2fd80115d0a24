/* HTTP requests: what is read, what is refused, wherever the bytes are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/status.h"
#include "server/http.h"

#define MAX_BODY 1000

/* Feed text in pieces of `step` bytes until it is used up or the request is complete or bad.
 * Returns the bytes used. */
static size_t feed(http_request *r, const char *text, size_t n, size_t step)
{
    size_t at = 0;

    while (r->state != HTTP_DONE && r->state != HTTP_BAD) {
        size_t piece = n - at < step ? n - at : step, used;

        if (r->state == HTTP_READY) {
            http_go(r);
            continue;
        }
        if (piece == 0)
            break;
        used = http_feed(r, text + at, piece, MAX_BODY);
        assert_true(used <= piece);
        at += used;
    }
    return at;
}

typedef struct good {
    const char *text, *path, *query, *body;
    http_method method;
    bool keep_alive;
} good;

static const good goods[] = {
    {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "/", "", "", HTTP_GET, true},
    {"\r\n\r\nGET /x?a=b&c HTTP/1.1\r\nhost:a\r\n\r\n", "/x", "a=b&c", "", HTTP_GET, true},
    {"POST /y HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "/y", "", "abc", HTTP_POST,
     true},
    {"POST /y HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
     "Chunked\r\n\r\n3\r\nabc\r\n002;x=y\r\nde\r\n0\r\n"
     "Trailer: x\r\n\r\n",
     "/y", "", "abcde", HTTP_POST, true},
    {"HEAD http://h:1/p HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n", "/p", "", "",
     HTTP_HEAD_METHOD, false},
    {"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "*", "", "", HTTP_OPTIONS, true},
    {"GET / HTTP/1.0\r\n\r\n", "/", "", "", HTTP_GET, false},
    {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "/", "", "", HTTP_GET, true},
    {"BREW / HTTP/1.1\r\nHost:\r\n\r\n", "/", "", "", HTTP_OTHER, true},
};

static void test_sound_requests_are_read_wherever_they_are_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(goods); i++)
        for (size_t step = 1; step < 80; step += step < 8 ? 1 : 23) {
            const good *g = &goods[i];
            http_request r;

            http_init(&r);
            assert_int_equal(feed(&r, g->text, strlen(g->text), step), strlen(g->text));
            assert_int_equal(r.state, HTTP_DONE);
            assert_int_equal(r.method, g->method);
            assert_string_equal(r.path, g->path);
            assert_string_equal(r.query, g->query);
            assert_string_equal(str_text(&r.body), g->body);
            assert_int_equal(r.keep_alive, g->keep_alive);
            http_fini(&r);
        }
}

typedef struct bad {
    const char *text;
    int status;
} bad;

static const bad bads[] = {
    {"GET\r\n\r\n", 400},
    {"GET /\r\n\r\n", 400},
    {" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
    {"PRI * HTTP/2.0\r\n\r\n", 505},
    {"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 505},
    {"GET / HTTP/1.1\r\n\r\n", 400}, /* no host */
    {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400}, /* folded line */
    {"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400}, /* a bare line feed in a value */
    {"GET / HTTP/1.1\nHost: a\n\n", 400},
    {"GET\n\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
     "Transfer-Encoding: chunked\r\n\r\n",
     400},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\nx", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
    {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\nabc", 413},
};

static void test_what_two_readers_could_read_differently_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bads); i++) {
        const char *problem = "";

        for (size_t step = 1; step < 100; step += 33) {
            http_request r;
            size_t n = strlen(bads[i].text);

            http_init(&r);
            feed(&r, bads[i].text, n, step);
            /* a chunk that is too long shows when its bytes come */
            for (int k = 0; k < 2000 && bads[i].status == 413 && r.state == HTTP_BODY; k++)
                feed(&r, "x", 1, 1);
            if (step == 1)
                problem = r.problem;
            if (r.state == HTTP_BAD && strcmp(r.problem, problem) != 0)
                fail_msg("case %zu, step %zu: %s, but %s", i, step, r.problem, problem);
            if (r.state != HTTP_BAD || r.status != bads[i].status)
                fail_msg("case %zu, step %zu: state %d, status %d", i, step, r.state, r.status);
            http_fini(&r);
        }
    }
}

static void test_a_head_without_an_end_is_cut_off(void **state)
{
    http_request r;

    (void)state;
    http_init(&r);
    feed(&r, "GET / HTTP/1.1\r\n", 16, 16);
    for (int i = 0; i < HTTP_MAX_HEAD + 4 && r.state == HTTP_HEAD; i++)
        feed(&r, "x", 1, 1);
    assert_int_equal(r.state, HTTP_BAD);
    assert_int_equal(r.status, 431);
    assert_true(r.head.len <= HTTP_MAX_HEAD + 4);
    http_fini(&r);
}

static void test_a_body_over_the_limit_is_refused_before_it_is_kept(void **state)
{
    char text[] = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n";
    char block[600] = {0};
    http_request r;

    (void)state;
    http_init(&r);
    feed(&r, text, strlen(text), 1000);
    assert_int_equal(r.state, HTTP_BODY);
    feed(&r, block, sizeof block, sizeof block);
    assert_int_equal(r.state, HTTP_BODY);
    feed(&r, block, sizeof block, sizeof block);
    assert_int_equal(r.state, HTTP_BAD);
    assert_int_equal(r.status, 413);
    assert_true(r.body.len <= MAX_BODY);
    http_fini(&r);
}

static void test_bytes_behind_a_request_are_left_to_the_next(void **state)
{
    const char *two =
        "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhiGET /b HTTP/1.1\r\n"
        "Host: a\r\n\r\n";
    http_request r;
    size_t used;

    (void)state;
    http_init(&r);
    used = feed(&r, two, strlen(two), 1000);
    assert_int_equal(r.state, HTTP_DONE);
    assert_string_equal(str_text(&r.body), "hi");
    http_next(&r);
    assert_int_equal(feed(&r, two + used, strlen(two) - used, 1000), strlen(two) - used);
    assert_string_equal(r.path, "/b");
    http_fini(&r);
}

static void test_fields_and_queries_are_found_by_name(void **state)
{
    const char *text = "GET /p?limit=5&x=%41&flag HTTP/1.1\r\nHost: a\r\nX-Api-Key:  s p \t\r\n"
                       "xx-api-key: other\r\n\r\n";
    char path[] = "a%20b%2Fc", cut[] = "a%4", zero[] = "%00";
    http_request r;
    size_t n;

    (void)state;
    http_init(&r);
    feed(&r, text, strlen(text), 7);
    assert_memory_equal(http_field(&r, "x-api-key", &n), "s p", 3);
    assert_int_equal(n, 3);
    assert_null(http_field(&r, "api-key", &n));
    assert_memory_equal(http_query(&r, "limit", &n), "5", 1);
    assert_int_equal(n, 1);
    assert_null(http_query(&r, "flag", &n));
    assert_int_equal(http_unescape(path), 5);
    assert_string_equal(path, "a b/c");
    assert_int_equal(http_unescape(cut), SIZE_MAX);
    assert_int_equal(http_unescape(zero), SIZE_MAX);
    http_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound_requests_are_read_wherever_they_are_cut),
        cmocka_unit_test(test_what_two_readers_could_read_differently_is_refused),
        cmocka_unit_test(test_a_head_without_an_end_is_cut_off),
        cmocka_unit_test(test_a_body_over_the_limit_is_refused_before_it_is_kept),
        cmocka_unit_test(test_bytes_behind_a_request_are_left_to_the_next),
        cmocka_unit_test(test_fields_and_queries_are_found_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
