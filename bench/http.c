/* Load over HTTP: thousands of SSE streams from `deepinfer serve` with scripted replies, against a
 * bare epoll writer that sends as many bytes as often (the floor), in the same run.
 *
 *   bench_http [--streams N] [--tokens N] [--step-us N] [--loops N] [--server FILE] [--model DIR]
 *              [--only spread|together|latency|first] [--rounds N]
 *
 * Server and floor take turns in every round (of the first two parts); the rows are medians.
 *
 * Two patterns, the same for server and floor:
 *   spread     every stream has its own clock; the tokens of all are spread evenly over a step
 *   together   all streams get their tokens in one moment, as from the steps of an engine
 *
 * Rows name,case,threads,value,unit,ceiling,fraction to the standard output, as the other
 * benchmarks; times are those that the kernel kept for the threads, and taken once all streams run.
 *   cpu per event   of the loop threads, and of the whole server; limit 1.5 x the floor
 *   memory          resident bytes per stream; limit 12 KB
 *   latency         from the moment a token is made (it carries the time) to its arrival here, at
 *                   half the rate; limit 2 ms at p99 when spread. Beside it that of the floor: what
 *                   the kernel, and this program while it is busy with other streams, add by
 *                   themselves. Together, the last stream waits for the writes to all others.
 *   first byte      of a new connection's answer at 1,000 requests a second; limit 5 ms at p99
 *   health          the same for /health while all streams run; limit 10 ms at p99
 * Every stream's text is compared as it comes: a lost, doubled or moved token ends the run. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define REPLY     "The quick brown fox jumps over the lazy dog. "
#define EDGE      5                        /* tokens at both ends that are not measured */
#define STAMP     "\"token_logprobs\": [-" /* microseconds modulo STAMP_MOD behind it */
#define STAMP_MOD 16000000
#define ROUNDS    10 /* steps over which the streams begin */

typedef struct settings {
    int streams, tokens, step_us, loops, rounds;
    bool together, stamped;
    const char *server, *model, *only;
} settings;

typedef struct stream {
    int fd, n_events;
    size_t at;         /* place in REPLY */
    uint64_t asked_ns; /* when the request was sent */
    uint64_t first_ns; /* first byte of the answer */
    char line[2048];
    size_t n_line;
    bool done;
} stream;

typedef struct samples {
    double *v;
    size_t n, cap;
} samples;

/* What the streams come from. */
typedef struct target {
    pid_t pid;
    int port;
    FILE *log;           /* of the server; NULL for the floor */
    const char *threads; /* name of those whose time is compared; "" = all */
} target;

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench_http: %s (%s)\n", what, strerror(errno));
    exit(2);
}

/* ---- samples ---- */

static void add_sample(samples *s, double v)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 4096;
        s->v = mem_try_realloc(s->v, s->cap, sizeof *s->v);
        if (!s->v)
            die("no memory");
    }
    s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double quantile(samples *s, double q)
{
    if (s->n == 0)
        return 0;
    qsort(s->v, s->n, sizeof *s->v, by_value);
    return s->v[(size_t)(q * (double)(s->n - 1))];
}

static void row(const char *name, const char *text, int threads, double value, const char *unit,
                double limit)
{
    printf("%s,%s,%d,%.4g,%s,%.4g,%.3f\n", name, text, threads, value, unit, limit,
           limit > 0 ? value / limit : 0);
    fprintf(stderr, "%-14s %-34s %10.4g %-6s limit %8.4g  %s\n", name, text, value, unit, limit,
            limit <= 0       ? ""
            : value <= limit ? "met"
                             : "NOT MET");
}

/* ---- processes ---- */

/* Processor time in seconds of the threads whose name begins with `name` ("" = all). */
static double cpu_of(pid_t pid, const char *name)
{
    char path[64], text[64];
    double total = 0;
    struct dirent *e;
    DIR *d;

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    d = opendir(path);
    while (d && (e = readdir(d))) {
        unsigned long long ns = 0;
        char file[400];
        FILE *f;

        if (*e->d_name == '.')
            continue;
        snprintf(file, sizeof file, "%s/%s/comm", path, e->d_name);
        f = fopen(file, "r");
        if (f && fgets(text, sizeof text, f) && strncmp(text, name, strlen(name)) == 0) {
            fclose(f);
            snprintf(file, sizeof file, "%s/%s/schedstat", path, e->d_name);
            f = fopen(file, "r");
            if (f && fscanf(f, "%llu", &ns) == 1)
                total += (double)ns * 1e-9;
        }
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return total;
}

static double resident_of(pid_t pid)
{
    char path[64], line[256];
    double kb = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/status", pid);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %lf", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb * 1024;
}

static target start_server(const settings *o)
{
    char step[16], running[16], conns[16], loops[16], line[512];
    target s = {.threads = "loop"};
    int to[2];

    snprintf(step, sizeof step, "%d", o->step_us);
    snprintf(running, sizeof running, "%d", o->streams > 4096 ? 4096 : o->streams);
    snprintf(conns, sizeof conns, "%d", o->streams + 4000);
    snprintf(loops, sizeof loops, "%d", o->loops);
    if (pipe(to) < 0)
        die("could not make a pipe");
    s.pid = fork();
    if (s.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* nothing is left behind when this program dies */
        dup2(to[1], STDERR_FILENO);
        execl(o->server, o->server, "serve", "--model", o->model, "--load-format", "script",
              "--port", "0", "--no-request-log", "--max-queued", "100000", "--max-running", running,
              "--max-connections", conns, "--loops", loops, "--script-step-us", step,
              "--served-model-name", "m", o->together ? "--script-together" : (char *)NULL,
              (char *)NULL);
        _exit(127);
    }
    close(to[1]);
    s.log = fdopen(to[0], "r");
    while (s.log && fgets(line, sizeof line, s.log)) {
        const char *at = strstr(line, "127.0.0.1:");

        if (at) {
            s.port = atoi(at + 10);
            return s;
        }
        fputs(line, stderr);
    }
    die("the server did not start");
}

static void stop(target *s)
{
    kill(s->pid, SIGTERM);
    waitpid(s->pid, NULL, 0);
    if (s->log)
        fclose(s->log);
}

/* ---- clients ---- */

static int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        die("could not connect");
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void ask(int fd, int tokens, bool logprobs)
{
    char body[300], text[500];
    int n =
        snprintf(body, sizeof body,
                 "{\"model\": \"m\", \"prompt\": \"%s\", \"max_tokens\": %d, \"stream\": true%s}",
                 logprobs ? "[stamp]" : "go", tokens, logprobs ? ", \"logprobs\": 0" : "");

    n = snprintf(text, sizeof text,
                 "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s", n,
                 body);
    if (write(fd, text, (size_t)n) != n)
        die("could not ask");
}

/* One line of a stream. */
static void take_line(stream *s, const char *line, samples *latency)
{
    const char *text = strstr(line, "\"text\": \""), *stamp;

    if (strncmp(line, "data: [DONE]", 12) == 0)
        s->done = true;
    if (strncmp(line, "data: {", 7) != 0 || !text)
        return;
    for (text += 9; *text != '"'; text++) {
        if (*text != REPLY[s->at])
            die("a token is lost or out of order");
        s->at = (s->at + 1) % (sizeof REPLY - 1);
    }
    if (strstr(line, "\"finish_reason\": null"))
        s->n_events++;
    stamp = latency ? strstr(line, STAMP) : NULL;
    if (stamp) {
        long made = atol(stamp + strlen(STAMP)), now = (long)(clock_ns() / 1000 % STAMP_MOD);
        long us = (now - made + STAMP_MOD) % STAMP_MOD;

        add_sample(latency, (double)us / 1000);
    }
}

/* Returns false at the end of the connection. */
static bool read_stream(stream *s, samples *latency, size_t *bytes)
{
    char buf[16384];
    ssize_t n = read(s->fd, buf, sizeof buf);

    if (n <= 0)
        return n < 0 && errno == EAGAIN;
    *bytes += (size_t)n;
    if (!s->first_ns)
        s->first_ns = clock_ns();
    for (ssize_t i = 0; i < n; i++) {
        if (buf[i] == '\n') {
            s->line[s->n_line] = 0;
            take_line(s, s->line, latency);
            s->n_line = 0;
        } else if (s->n_line < sizeof s->line - 1) {
            s->line[s->n_line++] = buf[i];
        }
    }
    return true;
}

typedef struct load {
    double loop_us, all_us, bytes_per_event, bytes_per_stream, events_per_s;
    samples latency, health;
} load;

/* /health on a connection of its own, while streams run. */
static double ask_health(int port)
{
    static const char text[] = "GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    uint64_t begin = clock_ns();
    int fd = dial(port);
    char buf[1000];

    fcntl(fd, F_SETFL, 0);
    if (write(fd, text, sizeof text - 1) < 0 || read(fd, buf, sizeof buf) <= 0)
        die("no answer from /health");
    close(fd);
    return (double)(clock_ns() - begin) * 1e-6;
}

/* When stream i asks, so that the tokens of all are spread evenly over a step: in ROUNDS rounds of
 * a step each, every round between the streams of the one before. */
static uint64_t ask_at(const settings *o, int i)
{
    uint64_t step = (uint64_t)o->step_us * 1000, n = (uint64_t)(o->streams + ROUNDS - 1) / ROUNDS;
    uint64_t round = (uint64_t)i / n, place = (uint64_t)i % n;

    return round * step + (place * ROUNDS + round) * step / (n * ROUNDS);
}

/* Asks for the streams that are due by now; returns the milliseconds until the next, or -1. */
static int begin_streams(const settings *o, const target *p, stream *s, int *n_asked, int ep,
                         uint64_t t0)
{
    for (; *n_asked < o->streams; ++*n_asked) {
        stream *c = &s[*n_asked];
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        uint64_t now = clock_ns(), due = t0 + ask_at(o, *n_asked);

        if (due > now)
            return (int)((due - now) / 1000000);
        c->fd = dial(p->port);
        c->asked_ns = clock_ns();
        ask(c->fd, o->tokens, o->stamped);
        epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
    }
    return -1;
}

/* Between two moments when all streams run. */
typedef struct window {
    uint64_t begin_ns;
    double loop_s, all_s;
    long events;
    size_t bytes;
} window;

static void end_window(const window *w, const target *p, long events, size_t bytes, load *out)
{
    double n = (double)(events - w->events);

    out->loop_us = (cpu_of(p->pid, p->threads) - w->loop_s) * 1e6 / n;
    out->all_us = (cpu_of(p->pid, "") - w->all_s) * 1e6 / n;
    out->bytes_per_event = (double)(bytes - w->bytes) / n;
    out->events_per_s = n / ((double)(clock_ns() - w->begin_ns) * 1e-9);
}

static void run_streams(const settings *o, const target *p, load *out)
{
    stream *s = mem_try_calloc((size_t)o->streams, sizeof *s);
    int ep = epoll_create1(0), n_open = o->streams, n_asked = 0, n_begun = 0, most = 0;
    double before = resident_of(p->pid);
    uint64_t begin = clock_ns(), next_health = 0;
    window w = {0};
    size_t bytes = 0;
    long events = 0;
    bool measured = false;

    if (!s)
        die("no memory");
    while (n_open > 0) {
        struct epoll_event got[64];
        int wait = begin_streams(o, p, s, &n_asked, ep, begin);
        int n = epoll_wait(ep, got, 64, wait < 0 ? 10000 : wait);

        if (n < 0 || (n == 0 && wait < 0))
            die("the streams stand still");
        for (int i = 0; i < n; i++) {
            stream *c = got[i].data.ptr;
            int had = c->n_events;

            if (!read_stream(c, o->stamped && w.begin_ns && !measured ? &out->latency : NULL,
                             &bytes))
                die("a stream ended early");
            events += c->n_events - had;
            n_begun += had < EDGE && c->n_events >= EDGE;
            most = c->n_events > most ? c->n_events : most;
            if (c->done) {
                if (c->n_events != o->tokens)
                    die("a stream lacks tokens");
                close(c->fd);
                n_open--;
            }
        }
        if (w.begin_ns && !measured && p->log && !o->stamped && clock_ns() > next_health) {
            add_sample(&out->health, ask_health(p->port));
            next_health = clock_ns() + 50000000;
        }
        if (!w.begin_ns && n_begun == o->streams) {
            w = (window){clock_ns(), cpu_of(p->pid, p->threads), cpu_of(p->pid, ""), events, bytes};
            out->bytes_per_stream = (resident_of(p->pid) - before) / o->streams;
        } else if (w.begin_ns && !measured && most >= o->tokens - EDGE) {
            measured = true;
            end_window(&w, p, events, bytes, out);
        }
    }
    if (!measured)
        die("the streams ended before all of them ran: give more tokens");
    close(ep);
    mem_free(s);
}

/* New connections at a steady rate; the time to the first byte of each answer. */
static void run_arrivals(const target *p, int per_s, double seconds, samples *out)
{
    int n = (int)(per_s * seconds), ep = epoll_create1(0), n_started = 0, n_ended = 0;
    stream *s = mem_try_calloc((size_t)n, sizeof *s);
    uint64_t begin = clock_ns();
    size_t bytes = 0;

    if (!s)
        die("no memory");
    while (n_ended < n) {
        struct epoll_event got[256];
        uint64_t due = begin + (uint64_t)n_started * 1000000000u / (uint64_t)per_s;
        int k;

        if (n_started < n && clock_ns() >= due) {
            stream *c = &s[n_started++];
            struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};

            c->asked_ns = due; /* not later: a late client must not hide a late server */
            c->fd = dial(p->port);
            c->asked_ns = clock_ns();
            ask(c->fd, 2, false);
            epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
            continue;
        }
        k = epoll_wait(ep, got, 256, n_started < n ? 0 : 1000);
        for (int i = 0; i < k; i++) {
            stream *c = got[i].data.ptr;
            bool open = read_stream(c, NULL, &bytes);

            if (!open && !c->done)
                die("an answer ended early");
            if (c->done) {
                add_sample(out, (double)(c->first_ns - c->asked_ns) * 1e-6);
                close(c->fd);
                n_ended++;
            }
        }
    }
    close(ep);
    mem_free(s);
}

/* ---- the floor ---- */

#define FLOOR_HEAD "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
#define FLOOR_TAIL "00000000]}, \"text\": \"\", \"finish_reason\": null}\n\n\r\n"

/* A writer's streams: one that began is due every step. */
typedef struct floor_stream {
    int fd, n_written;
    uint64_t due_ns;
} floor_stream;

typedef struct floor_state {
    const settings *o;
    int ep, listen_fd;
    floor_stream *s;
    int *queue; /* of indices, a ring of o->streams, in the order in which they are due */
    int head, n_running, n_begun;
    char *chunk; /* the bytes of an event, with room for the time at `stamp` */
    size_t n_chunk;
    char *stamp;
} floor_state;

/* An event as long as the server's, with what the client looks at. */
static void make_chunk(floor_state *f, size_t n)
{
    static const char head[] = "\r\ndata: {", tail[] = STAMP FLOOR_TAIL;
    size_t least = sizeof head + sizeof tail + 8;

    n = n < least ? least : n;
    f->chunk = mem_try_calloc(n + 1, 1);
    if (!f->chunk)
        _exit(2);
    memset(f->chunk, 'x', n);
    memcpy(f->chunk, head, sizeof head - 1);
    memcpy(f->chunk + n - (sizeof tail - 1), tail, sizeof tail - 1);
    f->stamp = f->chunk + n - strlen(FLOOR_TAIL);
    f->n_chunk = n;
}

/* A stream that has asked begins: into the order of those that are due within the step. Later a
 * stream that was written is due behind all others. */
static void floor_begin(floor_state *f, int fd, uint64_t due_ns)
{
    int idx = f->n_begun++, at = f->n_running++;

    f->s[idx] = (floor_stream){fd, 0, due_ns};
    for (; at > 0; at--) {
        int before = f->queue[(f->head + at - 1) % f->o->streams];

        if (f->s[before].due_ns <= due_ns)
            break;
        f->queue[(f->head + at) % f->o->streams] = before;
    }
    f->queue[(f->head + at) % f->o->streams] = idx;
}

/* Takes connections and requests. */
static void floor_serve(floor_state *f, const struct epoll_event *got, int n)
{
    uint64_t step = (uint64_t)f->o->step_us * 1000, now = clock_ns();
    char buf[2000];

    for (int i = 0; i < n; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.fd = got[i].data.fd};
        int fd = got[i].data.fd;

        if (fd == f->listen_fd) {
            e.data.fd = accept4(fd, NULL, NULL, SOCK_NONBLOCK);
            epoll_ctl(f->ep, EPOLL_CTL_ADD, e.data.fd, &e);
            continue;
        }
        epoll_ctl(f->ep, EPOLL_CTL_DEL, fd, NULL);
        if (read(fd, buf, sizeof buf) <= 0 || write(fd, FLOOR_HEAD, sizeof FLOOR_HEAD - 1) < 0)
            _exit(2);
        floor_begin(f, fd, f->o->together ? (now + step - 1) / step * step : now);
    }
}

/* Writes what is due; returns when the next event is (0 = nothing runs yet). */
static uint64_t floor_write(floor_state *f)
{
    const settings *o = f->o;
    uint64_t now = clock_ns();

    while (f->n_running && f->s[f->queue[f->head]].due_ns <= now) {
        int idx = f->queue[f->head];
        floor_stream *s = &f->s[idx];
        char digits[16];

        if (o->stamped) { /* together: the moment in which all tokens are made */
            uint64_t made = o->together ? now : clock_ns();

            snprintf(digits, sizeof digits, "%08d", (int)(made / 1000 % STAMP_MOD));
            memcpy(f->stamp, digits, 8);
        }
        if (write(s->fd, f->chunk, f->n_chunk) < 0 && errno != EAGAIN)
            _exit(2);
        f->head = (f->head + 1) % o->streams;
        if (++s->n_written < o->tokens) {
            s->due_ns += (uint64_t)o->step_us * 1000;
            f->queue[(f->head + f->n_running - 1) % o->streams] = idx;
        } else {
            f->n_running--;
            if (write(s->fd, "data: [DONE]\n", 13) < 0)
                _exit(2);
        }
    }
    return f->n_running ? f->s[f->queue[f->head]].due_ns : 0;
}

static _Noreturn void floor_writer(int listen_fd, const settings *o, size_t n)
{
    floor_state f = {.o = o, .ep = epoll_create1(0), .listen_fd = listen_fd};
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listen_fd};

    f.s = mem_try_calloc((size_t)o->streams, sizeof *f.s);
    f.queue = mem_try_calloc((size_t)o->streams, sizeof *f.queue);
    if (!f.s || !f.queue)
        _exit(2);
    make_chunk(&f, n);
    epoll_ctl(f.ep, EPOLL_CTL_ADD, listen_fd, &e);
    for (;;) { /* until it is killed */
        struct epoll_event got[64];
        uint64_t next = floor_write(&f), now = clock_ns(), ns = next > now ? next - now : 0;
        struct timespec wait = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};

        floor_serve(&f, got, epoll_pwait2(f.ep, got, 64, next ? &wait : NULL, NULL));
    }
}

static target start_floor(const settings *o, double bytes_per_event)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n_a = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    target t = {.threads = ""};

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&a, n_a) < 0 || listen(fd, 4096) < 0)
        die("could not listen");
    getsockname(fd, (struct sockaddr *)&a, &n_a);
    t.port = ntohs(a.sin_port);
    t.pid = fork();
    if (t.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        floor_writer(fd, o, (size_t)bytes_per_event);
    }
    close(fd);
    return t;
}

/* ---- the run ---- */

static void read_arguments(settings *o, int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--streams") == 0)
            o->streams = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--tokens") == 0)
            o->tokens = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--step-us") == 0)
            o->step_us = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--loops") == 0)
            o->loops = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--rounds") == 0)
            o->rounds = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--only") == 0)
            o->only = argv[i + 1];
        else if (strcmp(argv[i], "--server") == 0)
            o->server = argv[i + 1];
        else if (strcmp(argv[i], "--model") == 0)
            o->model = argv[i + 1];
        else
            die("unknown option");
    }
}

/* Server and floor with the same streams. */
typedef struct pair {
    load server, floor;
} pair;

static void run_pair(const settings *o, pair *out)
{
    target p = start_server(o);

    run_streams(o, &p, &out->server);
    stop(&p);
    p = start_floor(o, out->server.bytes_per_event);
    run_streams(o, &p, &out->floor);
    stop(&p);
}

static void cpu_part(settings o, const char *pattern)
{
    samples floor_us = {0}, loop_us = {0}, all_us = {0}, rate = {0}, ratio = {0}, memory = {0};
    samples health = {0};
    char text[80];

#define ROW(name, what, value, unit, limit)                                                        \
    (snprintf(text, sizeof text, "%s, %s", pattern, what),                                         \
     row(name, text, o.loops, value, unit, limit))
    for (int i = 0; i < o.rounds; i++) {
        pair p = {0};

        run_pair(&o, &p);
        add_sample(&floor_us, p.floor.loop_us);
        add_sample(&loop_us, p.server.loop_us);
        add_sample(&all_us, p.server.all_us);
        add_sample(&rate, p.server.events_per_s);
        add_sample(&ratio, p.server.loop_us / p.floor.loop_us);
        add_sample(&memory, p.server.bytes_per_stream / 1000);
        for (size_t k = 0; k < p.server.health.n; k++)
            add_sample(&health, p.server.health.v[k]);
        mem_free(p.server.health.v);
    }
    ROW("http_floor", "bare epoll writer, cpu per event", quantile(&floor_us, 0.5), "us", 0);
    ROW("http_cpu", "loop threads, cpu per event", quantile(&loop_us, 0.5), "us", 0);
    ROW("http_cpu", "loop threads, times the floor", quantile(&ratio, 0.5), "x", 1.5);
    ROW("http_cpu", "the same, best round", quantile(&ratio, 0), "x", 0);
    ROW("http_cpu", "whole server, cpu per event", quantile(&all_us, 0.5), "us", 0);
    ROW("http_rate", "events per second", quantile(&rate, 0.5), "1/s", 0);
    ROW("http_memory", "resident per stream", quantile(&memory, 0.5), "kB", 12);
    ROW("http_health", "/health under load, p99", quantile(&health, 0.99), "ms", 10);
}

static void latency_part(settings o, const char *pattern, double limit)
{
    char text[80];
    pair p = {0};

    o.step_us *= 2;
    o.stamped = true;
    run_pair(&o, &p);
    ROW("http_floor", "token made to here, p50", quantile(&p.floor.latency, 0.5), "ms", 0);
    ROW("http_floor", "token made to here, p99", quantile(&p.floor.latency, 0.99), "ms", 0);
    ROW("http_latency", "token made to here, p50", quantile(&p.server.latency, 0.5), "ms", 0);
    ROW("http_latency", "token made to here, p99", quantile(&p.server.latency, 0.99), "ms", limit);
#undef ROW
}

static void first_part(settings o)
{
    samples first = {0};
    target p;

    o.step_us = 1000;
    p = start_server(&o);
    run_arrivals(&p, 1000, 4, &first);
    stop(&p);
    row("http_first", "first byte at 1,000 requests/s, p50", o.loops, quantile(&first, 0.5), "ms",
        0);
    row("http_first", "first byte at 1,000 requests/s, p99", o.loops, quantile(&first, 0.99), "ms",
        5);
}

static bool wanted(const settings *o, const char *part)
{
    return !o->only || strcmp(o->only, part) == 0;
}

int main(int argc, char **argv)
{
    settings o = {.streams = 4000,
                  .tokens = 40,
                  .step_us = 150000,
                  .loops = 1,
                  .rounds = 1,
                  .server = "build/release/deepinfer",
                  .model = "models/tiny"};
    struct rlimit files = {.rlim_cur = 20000, .rlim_max = 20000};

    read_arguments(&o, argc, argv);
    setrlimit(RLIMIT_NOFILE, &files);
    puts("name,case,threads,value,unit,ceiling,fraction");
    if (wanted(&o, "spread"))
        cpu_part(o, "spread");
    o.together = true;
    if (wanted(&o, "together"))
        cpu_part(o, "together");
    if (wanted(&o, "latency"))
        latency_part(o, "together", 0);
    o.together = false;
    if (wanted(&o, "latency"))
        latency_part(o, "spread", 2);
    if (wanted(&o, "first"))
        first_part(o);
    return 0;
}
