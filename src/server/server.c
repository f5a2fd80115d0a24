/* Loops: threads with an event base, a listening socket of their own on the shared port, a tick. */
#include "server/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/keys.h"
#include "server/server_internal.h"
#include "server/tls.h"

#define TICK_MS      250
#define BACKLOG      1024
#define ACCEPT_BURST 64
#define N_WORKERS    2
#define GATHER_NS    200000
#define GATHER_FEW   8 /* relays that are worth a wake-up */
#define REPLAY_BYTES (64u << 20)
#define KNOWN_BYTES  (128u << 20)

/* ---- sockets ---- */

static di_code resolve(struct addrinfo **out, const char *host, int port, di_status *st)
{
    const struct addrinfo want = {.ai_family = AF_UNSPEC,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char service[8];
    int rc;

    snprintf(service, sizeof service, "%d", port);
    rc = getaddrinfo(host, service, &want, out);
    if (rc != 0)
        return di_fail(st, DI_E_INVALID, "--host \"%s\": %s", host, gai_strerror(rc));
    return DI_OK;
}

/* A socket bound to the address; shared: others of this process may bind it too. */
static int bound_socket(const struct addrinfo *a, bool shared)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (shared)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && (!shared || listen(fd, BACKLOG) == 0))
        return fd;
    close(fd);
    return -1;
}

static int port_of(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a;
    socklen_t n = sizeof a;

    memset(&a, 0, sizeof a);
    if (getsockname(fd, &a.any, &n) != 0)
        return 0;
    return ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
}

static void set_port(struct addrinfo *a, int port)
{
    if (a->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)a->ai_addr)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)(void *)a->ai_addr)->sin_port = htons((uint16_t)port);
}

/* One name may have the same address twice. */
static bool is_repeated(const struct addrinfo *all, const struct addrinfo *a)
{
    for (; all != a; all = all->ai_next)
        if (all->ai_addrlen == a->ai_addrlen &&
            memcmp(all->ai_addr, a->ai_addr, a->ai_addrlen) == 0)
            return true;
    return false;
}

/* A listening socket for every loop. Sharing would let a second server take the same port in
 * silence, so a socket that does not share is tried first. False: errno says why. */
static bool listen_at(server *s, struct addrinfo *a, int idx)
{
    int probe = bound_socket(a, false);

    if (probe < 0)
        return false;
    s->port = port_of(probe);
    close(probe);
    set_port(a, s->port);
    for (int i = 0; i < s->n_loops; i++) {
        s->loops[i].listen_fd[idx] = bound_socket(a, true);
        if (s->loops[i].listen_fd[idx] < 0)
            return false;
    }
    return true;
}

/* At every address of the name, as "localhost" has one of each kind and clients try either; those
 * that this machine does not have are left out. */
static di_code listen_all(server *s, di_status *st)
{
    const char *host = s->opt.host;
    struct addrinfo *all;
    di_code rc = resolve(&all, host, s->opt.port, st);
    int n = 0, problem = 0;
    bool failed = false;

    if (rc != DI_OK)
        return rc;
    s->port = s->opt.port;
    for (struct addrinfo *a = all; a && n < LISTEN_MOST && !failed; a = a->ai_next) {
        set_port(a, s->port); /* of the first, where the system chose */
        if (is_repeated(all, a))
            continue;
        if (listen_at(s, a, n)) {
            n++;
            continue;
        }
        problem = errno;
        failed = problem != EADDRNOTAVAIL && problem != EAFNOSUPPORT;
    }
    if (failed || n == 0)
        rc = di_fail(st, DI_E_IO, "could not listen on %s port %d: %s", host, s->port,
                     errno_text(problem));
    freeaddrinfo(all);
    return rc;
}

/* ---- accepting ---- */

static void refuse(loop *l, int fd, const char *peer)
{
    static const char body[] = "{\"error\": {\"message\": \"too many connections\", \"type\": "
                               "\"service_unavailable_error\", \"param\": null, \"code\": null}}";
    char text[400];
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
                     "retry-after: %d\r\nconnection: close\r\ncontent-length: %zu\r\n\r\n%s",
                     l->srv->opt.retry_after_s, sizeof body - 1, body);

    metric_count(&l->m, METRIC_connections_refused);
    conn_refuse(l, fd, peer, text, (size_t)n);
}

static void on_accept(evutil_socket_t listen_fd, short what, void *arg)
{
    loop *l = arg;
    int one = 1;

    (void)what;
    for (int i = 0; i < ACCEPT_BURST; i++) {
        struct sockaddr_storage a;
        socklen_t n = sizeof a;
        char peer[48] = "?";
        int fd = accept4(listen_fd, (struct sockaddr *)&a, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                log_error(LOG_SERVER, "no descriptor for a connection: raise ulimit -n");
            return;
        }
        getnameinfo((struct sockaddr *)&a, n, peer, sizeof peer, NULL, 0, NI_NUMERICHOST);
        if (atomic_load_explicit(&l->srv->n_conns, memory_order_relaxed) >= l->srv->opt.max_conns) {
            refuse(l, fd, peer);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
        conn_open(l, fd, peer);
    }
}

static void stop_listening(loop *l)
{
    for (int i = 0; i < LISTEN_MOST; i++) {
        if (l->listen_fd[i] < 0)
            continue;
        on_accept(l->listen_fd[i], EV_READ, l); /* those who came before the end */
        event_del(&l->accept[i]);
        close(l->listen_fd[i]);
        l->listen_fd[i] = -1;
    }
}

/* ---- the loop ---- */

static void set_date(loop *l)
{
    time_t now = time(NULL);
    struct tm tm;

    if ((uint64_t)now == l->date_s)
        return;
    l->date_s = (uint64_t)now;
    gmtime_r(&now, &tm);
    strftime(l->date, sizeof l->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    loop *l = arg;
    uint64_t now = clock_ns();
    bool stopping = atomic_load(&l->srv->stopping);

    (void)fd;
    (void)what;
    set_date(l);
    if (atomic_load_explicit(&l->srv->draining, memory_order_relaxed))
        stop_listening(l);
    for (conn *c = l->first, *next; c; c = next) {
        next = c->next; /* conn_tick closes at most its own connection */
        if (stopping)
            conn_close(c);
        else
            conn_tick(c, now);
    }
    conn_free_dead(l);
    if (stopping && l->n_calls == 0)
        event_base_loopbreak(l->base);
}

/* Waking up costs as much as sending an event. When events come one by one in short succession, a
 * short sleep lets some gather (the back end does not signal meanwhile). A burst, a stream alone,
 * and what has gathered while this thread waited for a processor, are served at once. */
static void on_relay(evutil_socket_t fd, short what, void *arg)
{
    const struct timespec gather = {.tv_nsec = GATHER_NS};
    loop *l = arg;

    (void)fd;
    (void)what;
    if (relay_n_waiting(&l->ring) < GATHER_FEW && clock_ns() - l->drained_ns < GATHER_NS)
        clock_nanosleep(CLOCK_MONOTONIC, 0, &gather, NULL);
    relay_drain(&l->ring, &l->scratch, call_take, call_turn);
    l->drained_ns = clock_ns();
}

static void on_work(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    work_done_run(arg);
}

static void *loop_main(void *arg)
{
    loop *l = arg;

    pthread_setname_np(pthread_self(), "loop"); /* for top and the benchmark */
    event_base_dispatch(l->base);
    conn_free_dead(l);
    return NULL;
}

static di_code loop_init(loop *l, server *s, int idx, di_status *st)
{
    const struct timeval tick = {.tv_usec = TICK_MS * 1000l};
    struct event_config *cfg = event_config_new();

    l->srv = s;
    l->idx = idx;
    if (cfg) {
        event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK);
        event_config_require_features(cfg, EV_FEATURE_EARLY_CLOSE | EV_FEATURE_ET);
        l->base = event_base_new_with_config(cfg);
        event_config_free(cfg);
    }
    if (!l->base)
        return di_fail(st, DI_E_NOMEM, "could not make an event loop");
    if (relay_ring_init(&l->ring, st) != DI_OK || work_done_init(&l->finished, st) != DI_OK)
        return st->code;
    for (int i = 0; i < LISTEN_MOST && l->listen_fd[i] >= 0; i++) {
        event_assign(&l->accept[i], l->base, l->listen_fd[i], EV_READ | EV_PERSIST, on_accept, l);
        event_add(&l->accept[i], NULL);
    }
    event_assign(&l->tick, l->base, -1, EV_PERSIST, on_tick, l);
    /* Edge-triggered: every write to the eventfd wakes the loop, which need not read it. */
    event_assign(&l->relay_ready, l->base, l->ring.eventfd, EV_READ | EV_PERSIST | EV_ET, on_relay,
                 l);
    event_assign(&l->work_ready, l->base, l->finished.eventfd, EV_READ | EV_PERSIST, on_work,
                 &l->finished);
    event_add(&l->work_ready, NULL);
    event_add(&l->tick, &tick);
    event_add(&l->relay_ready, NULL);
    set_date(l);
    return DI_OK;
}

static void loop_fini(loop *l)
{
    for (int i = 0; i < LISTEN_MOST; i++)
        if (l->listen_fd[i] >= 0)
            close(l->listen_fd[i]);
    if (l->base)
        event_base_free(l->base);
    relay_ring_fini(&l->ring);
    work_done_fini(&l->finished);
    str_fini(&l->scratch);
    str_fini(&l->out);
}

/* ---- the server ---- */

static void set_defaults(server_options *o)
{
#define DEFAULT(field, value) o->field = o->field ? o->field : (value)
    DEFAULT(host, "127.0.0.1");
    DEFAULT(n_loops, 2);
    DEFAULT(max_conns, 8192);
    DEFAULT(max_body, 64ll << 20);
    DEFAULT(max_bodies, 1ll << 30);
    DEFAULT(max_pending, 1ll << 20);
    DEFAULT(keepalive_s, 5);
    DEFAULT(idle_s, 75);
    DEFAULT(head_s, 10);
    DEFAULT(stall_s, 30);
    DEFAULT(retry_after_s, 1);
#undef DEFAULT
}

static di_code check_options(const server_options *o, di_status *st)
{
    for (size_t i = 0; i < o->n_names; i++)
        for (const char *p = o->names[i]; *p; p++)
            if ((unsigned char)*p <= ' ' || *p == '"' || *p == '\\' || (unsigned char)*p >= 0x7F)
                return di_fail(
                    st, DI_E_INVALID,
                    "the model name \"%s\" holds a blank, a quote or a character outside "
                    "ASCII",
                    o->names[i]);
    if (!o->tls_cert != !o->tls_key)
        return di_fail(st, DI_E_INVALID, "--tls-cert and --tls-key belong together");
    for (const char *p = o->cors ? o->cors : ""; *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7F)
            return di_fail(st, DI_E_INVALID, "--cors \"%s\" is not an origin", o->cors);
    return DI_OK;
}

/* Every stream is a descriptor. */
static void raise_descriptors(int wanted)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= (rlim_t)wanted)
        return;
    r.rlim_cur = r.rlim_max < (rlim_t)wanted ? r.rlim_max : (rlim_t)wanted;
    if (setrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur < (rlim_t)wanted)
        log_warn(LOG_SERVER, "only %llu descriptors for %d connections: raise ulimit -n",
                 (unsigned long long)r.rlim_cur, wanted);
}

/* What the request language needs besides the tokenizer. */
static di_code prepare_requests(server *s, di_status *st)
{
    const backend *be = s->be;
    int32_t eos = be->info.eos;
    di_code rc;

    s->replay = recipe_replay_new(REPLAY_BYTES);
    s->known = recipe_gaps_new(KNOWN_BYTES);
    if (!s->replay || !s->known)
        return di_fail(st, DI_E_NOMEM, "no memory for the server");
    s->call_id = recipe_call_id(be->tok, be->info.vocab);
    DI_TRY(grammar_new(&s->grammar, be->tok, be->info.vocab, &eos, 1, NULL, st));
    DI_TRY(work_pool_new(&s->workers, N_WORKERS, st));
done:
    return rc;
}

di_code server_start(server **out, const server_options *o, const backend *be, di_status *st)
{
    di_code rc = DI_OK;
    server *s = mem_try_calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return di_fail(st, DI_E_NOMEM, "no memory for the server");
    s->opt = *o;
    set_defaults(&s->opt);
    s->be = be;
    s->start_ns = clock_ns();
    pthread_mutex_init(&s->rate.lock, NULL);
    s->created = (int64_t)time(NULL);
    snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%016llx",
             (unsigned long long)be->info.fingerprint);
    DI_TRY(check_options(&s->opt, st));
    DI_TRY(keys_load(&s->keys, s->opt.key, s->opt.key_file, st));
    DI_TRY(prepare_requests(s, st));
    if (s->opt.tls_cert)
        DI_TRY(tls_load(&s->tls, s->opt.tls_cert, s->opt.tls_key, st));
    raise_descriptors(s->opt.max_conns + 64 + s->opt.n_loops * REFUSED_MOST);
    s->loops = mem_try_aligned((size_t)s->opt.n_loops * sizeof *s->loops, 64);
    if (!s->loops) {
        rc = di_fail(st, DI_E_NOMEM, "no memory for %d loops", s->opt.n_loops);
        goto done;
    }
    s->n_loops = s->opt.n_loops;
    for (int i = 0; i < s->n_loops; i++) {
        memset(s->loops[i].listen_fd, -1, sizeof s->loops[i].listen_fd);
        s->loops[i].ring.eventfd = s->loops[i].finished.eventfd = -1;
    }
    DI_TRY(listen_all(s, st));
    for (int i = 0; i < s->n_loops; i++)
        DI_TRY(loop_init(&s->loops[i], s, i, st));
    for (int i = 0; i < s->n_loops; i++) {
        s->loops[i].started =
            pthread_create(&s->loops[i].thread, NULL, loop_main, &s->loops[i]) == 0;
        if (!s->loops[i].started) {
            rc = di_fail(st, DI_E_IO, "could not start a thread");
            goto done;
        }
    }
    *out = s;
    s = NULL;
done:
    server_stop(s);
    return rc;
}

int server_port(const server *s)
{
    return s->port;
}

void server_drain(server *s)
{
    atomic_store(&s->draining, true);
}

int server_calls(const server *s)
{
    return atomic_load(&((server *)s)->n_calls);
}

void server_stop(server *s)
{
    if (!s)
        return;
    atomic_store(&s->draining, true);
    atomic_store(&s->stopping, true); /* the ticks see it, also when there are no clients */
    for (int i = 0; i < s->n_loops; i++)
        if (s->loops[i].started)
            pthread_join(s->loops[i].thread, NULL);
    for (int i = 0; i < s->n_loops; i++)
        loop_fini(&s->loops[i]);
    mem_free(s->loops);
    work_pool_free(s->workers);
    grammar_free(s->grammar);
    recipe_replay_free(s->replay);
    recipe_gaps_free(s->known);
    tls_free(s->tls);
    keys_free(s->keys);
    pthread_mutex_destroy(&s->rate.lock);
    mem_free(s);
}
