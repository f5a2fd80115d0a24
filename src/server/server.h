/* The HTTP server: OpenAI's and Anthropic's interfaces over a back end.
 *
 *   server_start -> loop threads serve -> server_drain (no new work) -> server_calls == 0 ->
 * server_stop
 *
 * Thread: the main thread; everything else happens on the loop threads. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "grammar/grammar.h"
#include "server/backend.h"

typedef struct server server;

/* 0 or NULL means the default that stands behind each field. */
typedef struct server_options {
    const char *host;         /* "127.0.0.1" */
    int port;                 /* 0 = any free one */
    int n_loops;              /* 2 */
    const char *const *names; /* models that requests may name; the first is the one reported */
    size_t n_names;           /* at least 1 */
    const char *key;          /* one API key, or NULL */
    const char *key_file;     /* more keys with limits (keys.h), or NULL */
    const char *cors;         /* origin that browsers may call from, "*" = all; NULL = none */
    const char *tls_cert, *tls_key; /* PEM files; both or none */
    bool log_json, log_off;
    int max_conns;         /* 8,192 */
    int64_t max_body;      /* bytes of a body; 64 MiB */
    int64_t max_bodies;    /* bytes of all bodies that are being received; 1 GiB */
    int64_t max_pending;   /* bytes that a client may leave unread in a stream; 1 MiB */
    int keepalive_s;       /* comment in a silent stream; 5 */
    int idle_s;            /* connection without a request; 75 */
    int head_s;            /* to send a head; 10 */
    int stall_s;           /* without progress in a body or an answer; 30 */
    int retry_after_s;     /* what 429 and 503 recommend; 1 */
    bool thinking_off;     /* what chats do that do not say */
    bool recipe_strict;    /* deepseek-recipe's behaviour to the letter (docs/api.md) */
    grammar_policy policy; /* of schemas that cannot be honoured; FOLLOW */
} server_options;

/* Listen and serve. The back end must outlive the server. Errors: INVALID, IO (address in use),
 * NOMEM, UNSUPPORTED (TLS in a build without it). */
di_code server_start(server **out, const server_options *o, const backend *be, di_status *st);

int server_port(const server *s);

/* Close the listening sockets; requests that come on open connections get 503, running ones go on.
 */
void server_drain(server *s);

/* Requests that are being answered. */
int server_calls(const server *s);

/* Cancel what runs, wait for its end, end the threads, free everything. Accepts NULL. */
void server_stop(server *s);
