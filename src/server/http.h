/* HTTP/1.0 and 1.1 requests from bytes, without any input or output of its own (RFC 9112).
 *
 *   HEAD -"\r\n\r\n"-> READY -http_go-> BODY -last byte-> DONE -http_next-> HEAD
 *   any -malformed or over a limit-> BAD
 *
 * Strict where leniency lets two programs read one stream differently: line ends are CRLF, a name
 * has no blanks, Content-Length is one number and excludes Transfer-Encoding, the only coding is
 * chunked. Thread: the owner's only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

typedef enum http_state {
    HTTP_HEAD,  /* bytes of the head are missing */
    HTTP_READY, /* the head is complete: look at it, then http_go or answer */
    HTTP_BODY,
    HTTP_DONE,
    HTTP_BAD /* answer `status` with `problem`, then close */
} http_state;

typedef enum http_method {
    HTTP_GET,
    HTTP_HEAD_METHOD,
    HTTP_POST,
    HTTP_OPTIONS,
    HTTP_OTHER
} http_method;

typedef struct http_request {
    http_state state;
    http_method method;
    int minor; /* HTTP/1.minor */
    bool keep_alive, expect_continue, chunked;
    uint64_t length;          /* of the body, when not chunked */
    str head;                 /* as it came; the request line's parts are cut by 0 bytes */
    const char *path, *query; /* in `head`; query "" when there is none */
    const char *fields;       /* first header line */
    str body;
    int status;          /* BAD */
    const char *problem; /* BAD; static storage */

    enum { CHUNK_SIZE, CHUNK_DATA, CHUNK_END, CHUNK_TRAILER } chunk;
    uint64_t chunk_left;
    char line[128]; /* chunk size or trailer line so far */
    size_t n_line, n_trailer;
} http_request;

#define HTTP_MAX_HEAD 32768

void http_init(http_request *r);
void http_fini(http_request *r);
/* Ready for the next request of the connection; memory beyond a little is given back. */
void http_next(http_request *r);

/* Take bytes; returns how many were used. Stops behind the head (READY) and behind the body (DONE).
 * max_body: a longer body is BAD with status 413. */
size_t http_feed(http_request *r, const char *data, size_t n, size_t max_body);

/* After READY: go on with the body. */
void http_go(http_request *r);

/* Value of a header field without blanks around it; NULL when absent. name: lower case. */
const char *http_field(const http_request *r, const char *name, size_t *n);

/* Value of a parameter of the query, not decoded; NULL when absent. */
const char *http_query(const http_request *r, const char *name, size_t *n);

/* "Bad Request" for 400; "Unknown" for others than the server sends. */
const char *http_reason(int status);

/* Undo %XX in place; returns the new length, or SIZE_MAX when malformed or a 0 byte results. */
size_t http_unescape(char *s);
