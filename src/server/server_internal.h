/* What the files of the server share.
 *
 * A loop is one thread with its event base, its connections and their calls; nothing of it is
 * touched by others but the relay ring and the counters (relaxed atomics, read by /metrics).
 *
 *   conn   a client's socket: reads requests, writes answers (conn.c)
 *   call   a request that the back end works on, until its last event (call.c). Its conn is NULL
 * once the client has gone. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <event2/event.h>
#include <event2/event_struct.h>

#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"
#include "grammar/grammar.h"
#include "recipe/gaps.h"
#include "recipe/prompt.h"
#include "recipe/replay.h"
#include "recipe/request.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/relay.h"
#include "server/server.h"
#include "server/work.h"

typedef struct loop loop;
typedef struct conn conn;
typedef struct call call;
typedef struct endpoint endpoint;
typedef struct api_key api_key;
typedef struct key_table key_table;
typedef struct tls_context tls_context;

struct server {
    server_options opt;
    const backend *be;
    int port, n_loops;
    loop *loops;
    key_table *keys;       /* NULL: everybody may call */
    recipe_replay *replay; /* of tool calls that were given out */
    recipe_gaps *known;    /* texts of prompts that were tokenised before */
    grammar *grammar;
    int32_t call_id; /* control token that opens calls, -1 = none */
    work_pool *workers;
    tls_context *tls;
    uint64_t start_ns;
    metric_rate rate;
    int64_t created;      /* Unix time of the start */
    char fingerprint[32]; /* system_fingerprint of answers */
    atomic_int n_conns, n_calls;
    atomic_llong body_bytes;
    atomic_bool draining, stopping;
};

#define LISTEN_MOST 4 /* addresses of one host name */

struct loop {
    server *srv;
    int idx;
    pthread_t thread;
    bool started;
    struct event_base *base;
    int listen_fd[LISTEN_MOST]; /* -1 when closed */
    struct event accept[LISTEN_MOST], tick, relay_ready, work_ready;
    work_done_list finished;
    relay_ring ring;
    conn *first, *dead; /* connections; closed ones wait for the tick to be freed */
    int n_calls, n_refused;
    str scratch;   /* of relays */
    str out;       /* one chunk, with CHUNK_ROOM bytes in front */
    char date[40]; /* for the header */
    uint64_t date_s;
    uint64_t drained_ns; /* when the ring was last found empty */
    metrics m;
    char in[65536];
};

/* ---- connections (conn.c) ---- */

typedef enum conn_state {
    CONN_READ,   /* a request, or the wait for one */
    CONN_WORK,   /* the request is with its handler; nothing of the answer is out */
    CONN_STREAM, /* the head of a streamed answer is out */
    CONN_FLUSH,  /* the answer is complete; bytes wait for the client */
    CONN_LINGER, /* said good-bye; reads until the client closes too */
    CONN_DEAD
} conn_state;

struct conn {
    loop *loop;
    conn *prev, *next;
    int fd;
    void *tls; /* NULL = plain */
    struct event read, write;
    conn_state state;
    bool close_after, watching_close, sent_continue, flushing, refused;
    http_request req;
    str early; /* bytes behind the request that is being answered */
    struct evbuffer *out;
    size_t body_charged;
    uint64_t begin_ns;    /* of the request: its first byte; or when waiting began */
    uint64_t progress_ns; /* last byte read or written */
    uint64_t sent_ns;     /* last byte given to conn_chunk */
    const endpoint *ep;
    api_key *key;
    bool key_taken; /* counted in the key's running requests */
    call *call;
    int status; /* of the answer */
    char id[65];
    str extra;      /* header lines for the answer */
    char trace[56]; /* traceparent to pass on, or "" */
    char peer[48];
};

#define CHUNK_ROOM 18 /* bytes in front of a chunk's content: its size line */

void conn_open(loop *l, int fd, const char *peer);
/* One too many: `text` is all that it gets. It stays until the client has read that and closes, for
 * a close with unread bytes of a request would take the answer back; not when many do so. */
#define REFUSED_MOST 64 /* of a loop */
void conn_refuse(loop *l, int fd, const char *peer, const char *text, size_t n);
/* Close now; a call is told that its client has gone. */
void conn_close(conn *c);
void conn_tick(conn *c, uint64_t now_ns);
void conn_free_dead(loop *l);

/* Answer as a whole. extra: header lines that end in CRLF, or NULL. */
void conn_reply(conn *c, int status, const char *type, const char *extra, const void *body,
                size_t n);
void conn_reply_json(conn *c, int status, const str *body);
/* Answer in pieces: head, chunks, end. The content of a chunk is l->out from CHUNK_ROOM on, written
 * by chunk_begin and what follows it; conn_chunk sends it when it is not empty. */
void conn_begin_stream(conn *c, const char *type);
str *chunk_begin(loop *l);
void conn_chunk(conn *c);
void conn_end_stream(conn *c);

/* Error in the form that the endpoint's clients expect. param, code may be NULL; retry:
 * Retry-After. */
typedef struct error_body {
    int status;
    const char *message, *param, *code;
    int retry_after_s; /* 0 = none */
} error_body;
void conn_error(conn *c, const error_body *e);
void conn_fail(conn *c, const di_status *st);
/* The field of a body that a message is about, NULL = none: messages about a wrong field begin with
 * its name (fields.h, the engine, the sampler). */
const char *error_param(const char *message);
/* The text of an error; openai: {"error":{..}}, else {"type":"error",..}. */
void error_json(str *out, const error_body *e, bool openai, const char *request_id);
error_body error_of(const server *s, di_code code, const char *message);

/* ---- endpoints (endpoints.c) ---- */

typedef enum endpoint_flags {
    EP_OPEN = 1,      /* no API key */
    EP_WORK = 2,      /* uses the model: refused while draining, counted against limits */
    EP_ANTHROPIC = 4, /* errors in Anthropic's form */
    EP_PREFIX = 8     /* the path goes on with an argument */
} endpoint_flags;

struct endpoint {
    http_method method;
    const char *path;
    void (*handle)(conn *c);
    int flags;
    int metric; /* index of its counters */
};

/* The endpoint of a request; NULL and *status = 404 or 405. */
const endpoint *endpoint_find(const http_request *r, int *status, const char **allow);
const endpoint *endpoint_at(int i); /* NULL behind the last */

/* ---- calls (call.c) ---- */

typedef struct call_ops {
    void (*event)(call *k, int index, const di_event *ev); /* client there or not */
    void (*turn)(call *k);                                 /* behind the events of a turn */
    void (*end)(call *k);                                  /* every request is done; client there */
    void (*free)(call *k);                                 /* frees k itself */
} call_ops;

struct call {
    const call_ops *ops;
    loop *loop;
    conn *conn; /* NULL: the client has gone, or has its whole answer */
    api_key *key;
    relay *relays;
    int n_open, n_relays;
    bool stream, answered;
    uint64_t begin_ns, first_ns, last_ns;
    /* For log and metrics. */
    int64_t n_prompt, n_cached, n_out;
    uint64_t queued_us;
    const char *finish;
    di_code code;
    char message[256];
};

/* Tie k (zeroed but for its own part) to the connection that is with its handler. */
void call_open(call *k, const call_ops *ops, conn *c, bool stream);
/* Submit one request of the call. On failure nothing has happened. */
di_code call_submit(call *k, int index, const di_request_params *p, di_status *st);
/* Behind the last call_submit that worked: end at once if there is none. On a failure of a later
 * one, call_abandon cancels those before it; the caller answers the connection. */
void call_abandon(call *k);
/* Keep k alive while something else than the back end works for it; call_release says whether it
 * still has its client, and frees it if not. */
void call_hold(call *k);
/* Nothing was submitted and nothing will be: the connection is free for another call. Frees k. */
void call_close(call *k);
bool call_release(call *k);
/* The client has its answer (or has gone): cancel what still runs, let go of the connection. */
void call_detach(call *k);
void call_take(void *owner, int index, const di_event *ev);
void call_turn(void *owner, relay *r, bool done);

/* ---- handlers ---- */

void handle_health(conn *c);
void handle_ready(conn *c);
void handle_models(conn *c);
void handle_model(conn *c);
void handle_metrics(conn *c);
void handle_version(conn *c);
void handle_tokenize(conn *c);
void handle_detokenize(conn *c);
void handle_completions(conn *c);
void handle_chat(conn *c);
void handle_responses(conn *c);
void handle_messages(conn *c);
void handle_count_tokens(conn *c);
void handle_apply_template(conn *c);
void handle_page(conn *c);

/* Names that requests may use, with patterns for what clients of the vendors send by themselves. */
#define SERVER_MAX_ALIASES 32
size_t server_aliases(const server *s, recipe_alias alias[SERVER_MAX_ALIASES]);

bool server_knows_model(const server *s, const char *name, size_t n);
