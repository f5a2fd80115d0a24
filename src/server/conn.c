/* Connections: bytes to requests, answers to bytes.
 *
 *   READ -whole request-> WORK -conn_reply-> FLUSH -all written-> READ (keep-alive) | LINGER | DEAD
 *                         WORK -conn_begin_stream-> STREAM -conn_end_stream-> FLUSH
 *   any -client gone, time up, too much unread-> DEAD (freed by the next tick)
 *
 * What a client can make us hold is bounded: the head by HTTP_MAX_HEAD, bodies by max_body and
 * max_bodies, bytes sent ahead of their turn by EARLY_BYTES, unread stream by max_pending.
 * Thread: the connection's loop. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <event2/buffer.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/keys.h"
#include "server/request_log.h"
#include "server/server_internal.h"
#include "server/tls.h"

#define EARLY_BYTES 65536
#define LINGER_S    2
#define BODY_RATE   512 /* bytes per second that a slow body must reach in the long run */
#define SECOND      ((uint64_t)1000000000)

static void feed(conn *c, const char *data, size_t n);

/* ---- life ---- */

static void uncharge(conn *c)
{
    if (c->body_charged)
        atomic_fetch_sub_explicit(&c->loop->srv->body_bytes, (long long)c->body_charged,
                                  memory_order_relaxed);
    c->body_charged = 0;
}

/* An answer that the client has not taken yet counts as a running request: a drain waits for it. */
static void count_flushing(conn *c, bool on)
{
    if (on != c->flushing)
        atomic_fetch_add_explicit(&c->loop->srv->n_calls, on ? 1 : -1, memory_order_relaxed);
    c->flushing = on;
}

void conn_close(conn *c)
{
    loop *l = c->loop;
    call *k = c->call;

    if (c->state == CONN_DEAD)
        return;
    if (k) {
        if (c->status == 0)
            c->status = 499;
        metric_count(&l->m, METRIC_clients_gone);
        k->finish = "cancelled";
        request_log(c, k);
        call_detach(k);
    }
    c->state = CONN_DEAD;
    event_del(&c->read);
    event_del(&c->write);
    tls_end(c->tls);
    c->tls = NULL;
    close(c->fd);
    uncharge(c);
    count_flushing(c, false);
    keys_release(c);
    *(c->prev ? &c->prev->next : &l->first) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->prev = NULL;
    c->next = l->dead;
    l->dead = c;
    if (c->refused)
        l->n_refused--;
    else
        atomic_fetch_sub_explicit(&l->srv->n_conns, 1, memory_order_relaxed);
}

void conn_free_dead(loop *l)
{
    for (conn *c = l->dead, *next; c; c = next) {
        next = c->next;
        http_fini(&c->req);
        str_fini(&c->early);
        str_fini(&c->extra);
        if (c->out)
            evbuffer_free(c->out);
        mem_free(c);
    }
    l->dead = NULL;
}

/* ---- writing ---- */

static size_t pending(const conn *c)
{
    return c->out ? evbuffer_get_length(c->out) : 0;
}

/* The answer is complete and written: next request, or good-bye. */
static void answered(conn *c)
{
    uint64_t now = clock_ns();

    uncharge(c);
    count_flushing(c, false);
    keys_release(c);
    c->begin_ns = c->progress_ns = now;
    if (c->out)
        evbuffer_free(c->out);
    c->out = NULL;
    if (c->close_after) {
        /* A close with unread bytes would reset the connection and lose the answer on its way. */
        shutdown(c->fd, SHUT_WR);
        c->state = CONN_LINGER;
        return;
    }
    http_next(&c->req);
    c->sent_continue = false;
    c->ep = NULL;
    c->key = NULL;
    c->status = 0;
    c->id[0] = c->trace[0] = 0;
    c->state = CONN_READ;
    if (c->watching_close) {
        event_del(&c->read);
        event_assign(&c->read, c->loop->base, c->fd, EV_READ | EV_PERSIST,
                     event_get_callback(&c->read), c);
        event_add(&c->read, NULL);
        c->watching_close = false;
    }
    if (c->early.len) /* not from here: the stack would grow with every pipelined request */
        event_active(&c->read, EV_READ, 0);
}

static void flush_out(conn *c)
{
    while (pending(c)) {
        ssize_t n = tls_write_buffer(c->tls, c->fd, c->out);

        if (n < 0) {
            if (errno == EAGAIN)
                event_add(&c->write, NULL);
            else
                conn_close(c);
            return;
        }
        c->progress_ns = clock_ns();
    }
    event_del(&c->write);
    if (c->state == CONN_FLUSH)
        answered(c);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    flush_out(arg);
}

/* One part needs no msghdr, which the kernel would have to copy. */
static ssize_t send_now(int fd, struct iovec *part, int n)
{
    struct msghdr m = {.msg_iov = part, .msg_iovlen = (size_t)n};

    if (n == 1)
        return send(fd, part->iov_base, part->iov_len, MSG_NOSIGNAL);
    return sendmsg(fd, &m, MSG_NOSIGNAL);
}

/* Send n parts, as far as the kernel takes them now; the rest waits in c->out. */
static void send_parts(conn *c, struct iovec *part, int n)
{
    bool waiting = pending(c) > 0;

    c->sent_ns = clock_ns();
    if (!waiting)
        c->progress_ns = c->sent_ns;
    if (!waiting && !c->tls) {
        ssize_t sent = send_now(c->fd, part, n);

        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            conn_close(c);
            return;
        }
        for (; n > 0 && sent >= (ssize_t)part->iov_len; part++, n--)
            sent -= (ssize_t)part->iov_len;
        if (n > 0 && sent > 0) {
            part->iov_base = (char *)part->iov_base + sent;
            part->iov_len -= (size_t)sent;
        }
    }
    if (n == 0)
        return;
    if (!c->out)
        c->out = evbuffer_new();
    for (int i = 0; i < n; i++)
        if (!c->out || evbuffer_add(c->out, part[i].iov_base, part[i].iov_len) < 0) {
            conn_close(c);
            return;
        }
    if (c->tls && !waiting)
        flush_out(c);
    else
        event_add(&c->write, NULL);
}

static void finish(conn *c)
{
    c->state = CONN_FLUSH;
    if (pending(c) == 0)
        answered(c);
    else
        count_flushing(c, true);
}

static void write_head(conn *c, str *h, int status, const char *type, const char *extra)
{
    const server *s = c->loop->srv;
    bool draining = atomic_load_explicit(&s->draining, memory_order_relaxed);
    bool body_unread = c->req.state == HTTP_READY && (c->req.chunked || c->req.length);

    c->status = status;
    if (!c->req.keep_alive || draining || c->req.state == HTTP_BAD || body_unread)
        c->close_after = true;
    str_printf(h, "HTTP/1.1 %d %s\r\ndate: %s\r\n", status, http_reason(status), c->loop->date);
    if (type)
        str_printf(h, "content-type: %s\r\n", type);
    if (*c->id)
        str_printf(h, "x-request-id: %s\r\nrequest-id: %s\r\n", c->id, c->id);
    if (*c->trace)
        str_printf(h, "traceparent: %s\r\n", c->trace);
    if (s->opt.cors)
        str_printf(h,
                   "access-control-allow-origin: %s\r\n"
                   "access-control-expose-headers: x-request-id, request-id, retry-after, "
                   "x-deepinfer-seed, x-deepinfer-warnings\r\n",
                   s->opt.cors);
    if (c->close_after)
        str_puts(h, "connection: close\r\n");
    else if (c->req.minor == 0)
        str_puts(h, "connection: keep-alive\r\n");
    if (extra)
        str_puts(h, extra);
    str_append(h, c->extra.data, c->extra.len);
    str_fini(&c->extra);
}

void conn_reply(conn *c, int status, const char *type, const char *extra, const void *body,
                size_t n)
{
    str h = {0};
    call *k = c->call;

    if (c->state == CONN_DEAD)
        return;
    write_head(c, &h, status, type, extra);
    if (status != 204)
        str_printf(&h, "content-length: %zu\r\n", n);
    str_puts(&h, "\r\n");
    metric_request(&c->loop->m, c->ep ? c->ep->metric : -1, status);
    request_log(c, k);
    if (k)
        call_detach(k);
    if (!str_ok(&h)) {
        str_fini(&h);
        conn_close(c);
        return;
    }
    if (c->req.method == HTTP_HEAD_METHOD)
        n = 0;
    send_parts(c, (struct iovec[]){{h.data, h.len}, {(void *)body, n}}, n ? 2 : 1);
    str_fini(&h);
    if (c->state != CONN_DEAD)
        finish(c);
}

void conn_reply_json(conn *c, int status, const str *body)
{
    if (str_ok(body))
        conn_reply(c, status, "application/json", NULL, body->data, body->len);
    else
        conn_error(c, &(error_body){.status = 503, .message = "no memory for the answer"});
}

void conn_begin_stream(conn *c, const char *type)
{
    str h = {0};

    if (c->state != CONN_WORK)
        return;
    if (c->req.minor == 0)
        c->close_after = true;
    write_head(c, &h, 200, type, "cache-control: no-cache\r\nx-accel-buffering: no\r\n");
    str_puts(&h, c->req.minor ? "transfer-encoding: chunked\r\n\r\n" : "\r\n");
    c->state = CONN_STREAM;
    metric_request(&c->loop->m, c->ep ? c->ep->metric : -1, 200);
    if (!str_ok(&h))
        conn_close(c);
    else
        send_parts(c, (struct iovec[]){{h.data, h.len}}, 1);
    str_fini(&h);
    /* What the request said is not needed any more; thousands of streams are open at once. */
    str_fini(&c->req.body);
    uncharge(c);
}

str *chunk_begin(loop *l)
{
    static const char room[CHUNK_ROOM] = {0};

    if (l->out.len == 0)
        str_append(&l->out, room, CHUNK_ROOM);
    return &l->out;
}

/* The size line of a chunk of n bytes, written so that it ends at `end`; returns its begin. */
static char *size_line(char *end, size_t n)
{
    *--end = '\n';
    *--end = '\r';
    do
        *--end = "0123456789abcdef"[n % 16];
    while (n /= 16);
    return end;
}

void conn_chunk(conn *c)
{
    loop *l = c->loop;
    size_t n = l->out.len > CHUNK_ROOM ? l->out.len - CHUNK_ROOM : 0;
    char *from;

    if (n && c->req.minor)
        str_puts(&l->out, "\r\n");
    if (c->state == CONN_STREAM && !str_ok(&l->out)) {
        log_warn(LOG_SERVER, "no memory for a piece of a stream: cut id=%s", c->id);
        conn_close(c);
    } else if (c->state == CONN_STREAM && n) {
        from = l->out.data + CHUNK_ROOM;
        if (c->req.minor)
            from = size_line(from, n);
        metric_count(&l->m, METRIC_chunks);
        send_parts(c, (struct iovec[]){{from, (size_t)(l->out.data + l->out.len - from)}}, 1);
        if (c->state == CONN_STREAM && pending(c) > (size_t)l->srv->opt.max_pending) {
            metric_count(&l->m, METRIC_slow_readers_cut);
            log_info(LOG_SERVER, "client does not read: cut id=%s pending=%zu", c->id, pending(c));
            conn_close(c);
        }
    }
    str_clear(&l->out);
}

void conn_end_stream(conn *c)
{
    call *k = c->call;

    if (c->state != CONN_STREAM)
        return;
    request_log(c, k);
    if (k)
        call_detach(k);
    if (c->req.minor)
        send_parts(c, (struct iovec[]){{"0\r\n\r\n", 5}}, 1);
    if (c->state == CONN_STREAM)
        finish(c);
}

/* ---- requests ---- */

#define METHOD_ERROR                                                                               \
    "{\"error\": {\"message\": \"this path does not take this method\", "                          \
    "\"type\": \"invalid_request_error\", \"param\": null, \"code\": \"method_not_allowed\"}}"

/* The head is there: may this client send its body and be served? False: it has its answer. */
static bool admit(conn *c)
{
    server *s = c->loop->srv;
    const char *allow = NULL;
    char line[64];
    int status;

    request_ids(c);
    c->ep = endpoint_find(&c->req, &status, &allow);
    if (c->req.method == HTTP_OPTIONS && s->opt.cors) {
        http_go(&c->req);
        return true;
    }
    if (!c->ep && status == 405) {
        snprintf(line, sizeof line, "allow: %s\r\n", allow);
        c->state = CONN_WORK;
        conn_reply(c, 405, "application/json", line, METHOD_ERROR, strlen(METHOD_ERROR));
        return false;
    }
    c->state = CONN_WORK;
    if (!c->ep) {
        conn_error(c, &(error_body){.status = 404, .message = "there is nothing at this path"});
        return false;
    }
    if (!(c->ep->flags & EP_OPEN) && !keys_admit(c))
        return false;
    if ((c->ep->flags & EP_WORK) && atomic_load_explicit(&s->draining, memory_order_relaxed)) {
        metric_count(&c->loop->m, METRIC_rejected_draining);
        conn_error(c, &(error_body){.status = 503,
                                    .message = "the server is going down",
                                    .retry_after_s = s->opt.retry_after_s});
        return false;
    }
    if (c->req.length > (uint64_t)s->opt.max_body) {
        conn_error(c, &(error_body){.status = 413, .message = "the body is too large"});
        return false;
    }
    c->state = CONN_READ;
    if (c->req.expect_continue && (c->req.length || c->req.chunked) && !c->sent_continue) {
        c->sent_continue = true;
        send_parts(c, (struct iovec[]){{"HTTP/1.1 100 Continue\r\n\r\n", 25}}, 1);
        if (c->state == CONN_DEAD)
            return false;
    }
    http_go(&c->req);
    return true;
}

/* Memory of all bodies together. */
static bool charge(conn *c)
{
    server *s = c->loop->srv;
    long long more = (long long)c->req.body.cap - (long long)c->body_charged;

    if (more <= 0)
        return true;
    c->body_charged += (size_t)more;
    if (atomic_fetch_add_explicit(&s->body_bytes, more, memory_order_relaxed) + more <=
        s->opt.max_bodies)
        return true;
    c->state = CONN_WORK;
    c->req.keep_alive = false;
    metric_count(&c->loop->m, METRIC_rejected_busy);
    conn_error(c, &(error_body){.status = 503,
                                .message = "too many large requests at once",
                                .retry_after_s = s->opt.retry_after_s});
    return false;
}

/* OPTIONS of a browser, which asks for the headers that a page wants to send: libraries add many of
 * their own, and none changes what a request may do here. */
static void reply_preflight(conn *c)
{
    size_t n;
    const char *asked = http_field(&c->req, "access-control-request-headers", &n);
    str lines = {0};

    str_puts(&lines, "access-control-allow-methods: GET, POST, OPTIONS\r\n"
                     "access-control-allow-headers: ");
    if (asked)
        str_append(&lines, asked, n); /* a field of a sound head: no line end in it */
    else
        str_puts(&lines, "authorization, content-type");
    str_puts(&lines, "\r\naccess-control-max-age: 86400\r\n"
                     "vary: access-control-request-headers\r\n");
    if (str_ok(&lines))
        conn_reply(c, 204, NULL, lines.data, NULL, 0);
    else
        conn_close(c);
    str_fini(&lines);
}

static void dispatch(conn *c)
{
    c->state = CONN_WORK;
    if (!c->ep) {
        reply_preflight(c);
        return;
    }
    if (c->ep->method == HTTP_POST && c->req.body.len == 0) {
        conn_error(c, &(error_body){.status = 400,
                                    .message = "the body is empty: a JSON object is expected"});
        return;
    }
    if ((c->ep->flags & EP_WORK) && !keys_take(c))
        return;
    c->ep->handle(c);
}

static void feed(conn *c, const char *data, size_t n)
{
    while (n && c->state == CONN_READ) {
        size_t used;

        if (c->req.state == HTTP_HEAD && c->req.head.len == 0)
            c->begin_ns = clock_ns();
        used = http_feed(&c->req, data, n, (size_t)c->loop->srv->opt.max_body);
        data += used;
        n -= used;
        if (c->req.state == HTTP_READY && !admit(c))
            break;
        if (c->req.state == HTTP_BAD) {
            if (!*c->id)
                request_ids(c);
            c->state = CONN_WORK;
            metric_count(&c->loop->m, METRIC_rejected_bad);
            conn_error(c, &(error_body){.status = c->req.status, .message = c->req.problem});
            break;
        }
        if (c->req.state == HTTP_BODY && !charge(c))
            break;
        if (c->req.state == HTTP_DONE)
            dispatch(c);
    }
    if (n && c->state != CONN_DEAD && c->state != CONN_LINGER && !c->close_after)
        str_append(&c->early, data, n);
}

/* ---- reading ---- */

static void feed_early(conn *c)
{
    str early = c->early;

    c->early = (str){0};
    feed(c, early.data, early.len);
    str_fini(&early);
}

/* Enough is waiting: leave the rest in the socket, but notice when the client goes. */
static void watch_close(conn *c)
{
    event_callback_fn on_readable = event_get_callback(&c->read);

    event_del(&c->read);
    event_assign(&c->read, c->loop->base, c->fd, EV_CLOSED | EV_PERSIST, on_readable, c);
    event_add(&c->read, NULL);
    c->watching_close = true;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    conn *c = arg;
    loop *l = c->loop;

    if (c->state == CONN_DEAD)
        return;
    if (what & EV_CLOSED) {
        conn_close(c);
        return;
    }
    if (c->early.len && c->state == CONN_READ)
        feed_early(c);
    for (int turn = 0; turn < 4 && c->state != CONN_DEAD && !c->watching_close; turn++) {
        ssize_t n = tls_read(c->tls, fd, l->in, sizeof l->in);

        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            conn_close(c);
            return;
        }
        if (c->state == CONN_LINGER)
            continue;
        c->progress_ns = clock_ns();
        if (c->state == CONN_READ)
            feed(c, l->in, (size_t)n);
        else
            str_append(&c->early, l->in, (size_t)n);
        if (c->state != CONN_DEAD && c->state != CONN_READ && c->early.len > EARLY_BYTES)
            watch_close(c);
        if (n < (ssize_t)sizeof l->in && !c->tls)
            return;
    }
}

/* NULL: no memory, and fd is closed. */
static conn *new_conn(loop *l, int fd, const char *peer)
{
    conn *c = mem_try_calloc(1, sizeof *c);

    if (!c || (l->srv->tls && !(c->tls = tls_begin(l->srv->tls, fd)))) {
        mem_free(c);
        close(fd);
        return NULL;
    }
    c->loop = l;
    c->fd = fd;
    c->begin_ns = c->progress_ns = clock_ns();
    snprintf(c->peer, sizeof c->peer, "%s", peer);
    http_init(&c->req);
    c->next = l->first;
    if (l->first)
        l->first->prev = c;
    l->first = c;
    event_assign(&c->read, l->base, fd, EV_READ | EV_PERSIST, on_readable, c);
    event_assign(&c->write, l->base, fd, EV_WRITE, on_writable, c);
    event_add(&c->read, NULL);
    return c;
}

void conn_open(loop *l, int fd, const char *peer)
{
    conn *c = new_conn(l, fd, peer);

    if (!c)
        return;
    atomic_fetch_add_explicit(&l->srv->n_conns, 1, memory_order_relaxed);
    metric_count(&l->m, METRIC_connections_opened);
    on_readable(fd, EV_READ, c); /* a client's first bytes are often there already */
}

void conn_refuse(loop *l, int fd, const char *peer, const char *text, size_t n)
{
    conn *c;

    if (l->n_refused >= REFUSED_MOST || l->srv->tls) {
        close(fd);
        return;
    }
    c = new_conn(l, fd, peer);
    if (!c)
        return;
    l->n_refused++;
    c->refused = true;
    c->state = CONN_LINGER;
    if (send(fd, text, n, MSG_NOSIGNAL) < 0)
        conn_close(c);
    else
        shutdown(fd, SHUT_WR);
}

/* ---- time ---- */

static void give_up_reading(conn *c, const char *why)
{
    metric_count(&c->loop->m, METRIC_timeouts);
    if (!*c->id)
        request_ids(c);
    c->state = CONN_WORK;
    c->req.keep_alive = false;
    conn_error(c, &(error_body){.status = 408, .message = why});
}

static void tick_reading(conn *c, uint64_t now)
{
    const server_options *o = &c->loop->srv->opt;
    uint64_t since = (now - c->begin_ns) / SECOND;
    bool draining = atomic_load_explicit(&c->loop->srv->draining, memory_order_relaxed);

    if (c->req.state == HTTP_HEAD && c->req.head.len == 0) {
        if (draining || since >= (uint64_t)o->idle_s)
            conn_close(c);
    } else if (c->req.state == HTTP_HEAD) {
        if (since >= (uint64_t)o->head_s)
            give_up_reading(c, "the head of the request took too long");
    } else if (now - c->progress_ns >= (uint64_t)o->stall_s * SECOND ||
               (since > (uint64_t)o->stall_s && c->req.body.len / since < BODY_RATE)) {
        give_up_reading(c, "the body of the request took too long");
    }
}

void conn_tick(conn *c, uint64_t now)
{
    const server_options *o = &c->loop->srv->opt;

    if (pending(c) && now - c->progress_ns >= (uint64_t)o->stall_s * SECOND) {
        metric_count(&c->loop->m, METRIC_slow_readers_cut);
        log_info(LOG_SERVER, "client does not read: cut id=%s pending=%zu", c->id, pending(c));
        conn_close(c);
    } else if (c->state == CONN_READ) {
        tick_reading(c, now);
    } else if (c->state == CONN_LINGER) {
        if (now - c->begin_ns >= LINGER_S * SECOND)
            conn_close(c);
    } else if (c->state == CONN_STREAM && now - c->sent_ns >= (uint64_t)o->keepalive_s * SECOND) {
        metric_count(&c->loop->m, METRIC_keepalives);
        str_puts(chunk_begin(c->loop), ": keep-alive\n\n");
        conn_chunk(c);
    }
}
