/* Load over HTTP: thousands of SSE streams from `deepinfer serve` with scripted replies, against a
 * bare epoll writer that sends as many bytes as often (the floor), in the same run.
 *
 *   bench_http [--streams N] [--tokens N] [--step-us N] [--loops N] [--server FILE] [--model DIR]
 *
 * Rows name,case,threads,value,unit,ceiling,fraction to the standard output, as the other
 * benchmarks. cpu per event   of the loop threads, and of the whole server, between the 5th token
 * of the last stream and the 5th last token of the first; limit 1.5 x the floor memory resident
 * bytes per stream; limit 12 KB latency         from the moment a token is made (the script stamps
 * it) to its arrival here, at half the rate; limit 2 ms at p99 first byte      of a new
 * connection's answer at 1,000 requests a second; limit 5 ms at p99 health          the same for
 * /health while all streams run; limit 10 ms at p99 Every stream's text is compared as it comes: a
 * lost, doubled or moved token ends the run. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define REPLY     "The quick brown fox jumps over the lazy dog. "
#define EDGE      5 /* tokens at both ends that are not measured */
#define STAMP_MOD 16000000

typedef struct settings {
    int streams, tokens, step_us, loops;
    const char *server, *model;
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

typedef struct server_process {
    pid_t pid;
    int port;
    FILE *log;
} server_process;

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
    char path[64], text[512];
    double total = 0, hz = (double)sysconf(_SC_CLK_TCK);
    struct dirent *e;
    DIR *d;

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    d = opendir(path);
    while (d && (e = readdir(d))) {
        unsigned long user, sys;
        char file[400], *paren, *comm;
        FILE *f;

        if (*e->d_name == '.')
            continue;
        snprintf(file, sizeof file, "%s/%s/stat", path, e->d_name);
        f = fopen(file, "r");
        if (!f)
            continue;
        if (fgets(text, sizeof text, f) && (comm = strchr(text, '(')) &&
            (paren = strrchr(text, ')')) && strncmp(comm + 1, name, strlen(name)) == 0 &&
            sscanf(paren + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys) ==
                2)
            total += (double)(user + sys) / hz;
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

static server_process start_server(const settings *o)
{
    char step[16], running[16], conns[16], loops[16], line[512];
    server_process s = {0};
    int to[2];

    snprintf(step, sizeof step, "%d", o->step_us);
    snprintf(running, sizeof running, "%d", o->streams > 4096 ? 4096 : o->streams);
    snprintf(conns, sizeof conns, "%d", o->streams + 4000);
    snprintf(loops, sizeof loops, "%d", o->loops);
    if (pipe(to) < 0)
        die("could not make a pipe");
    s.pid = fork();
    if (s.pid == 0) {
        dup2(to[1], STDERR_FILENO);
        execl(o->server, o->server, "serve", "--model", o->model, "--load-format", "script",
              "--port", "0", "--no-request-log", "--max-queued", "100000", "--max-running", running,
              "--max-connections", conns, "--loops", loops, "--script-step-us", step,
              "--served-model-name", "m", (char *)NULL);
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

static void stop_server(server_process *s)
{
    kill(s->pid, SIGTERM);
    waitpid(s->pid, NULL, 0);
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
    stamp = latency ? strstr(line, "\"token_logprobs\": [-") : NULL;
    if (stamp) {
        long made = atol(stamp + 20), now = (long)(clock_ns() / 1000 % STAMP_MOD);
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

static void run_streams(const settings *o, server_process *p, bool stamped, load *out)
{
    stream *s = mem_try_calloc((size_t)o->streams, sizeof *s);
    int ep = epoll_create1(0), n_open = o->streams, n_begun = 0, most = 0;
    double before = resident_of(p->pid), loop0 = 0, all0 = 0;
    uint64_t t0 = 0, next_health = 0;
    size_t bytes = 0, bytes0 = 0;
    long events0 = 0, events = 0;
    bool measured = false;

    if (!s)
        die("no memory");
    for (int i = 0; i < o->streams; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &s[i]};

        s[i].fd = dial(p->port);
        s[i].asked_ns = clock_ns();
        ask(s[i].fd, o->tokens, stamped);
        epoll_ctl(ep, EPOLL_CTL_ADD, s[i].fd, &e);
    }
    while (n_open > 0) {
        struct epoll_event got[512];
        int n = epoll_wait(ep, got, 512, 10000);

        if (n <= 0)
            die("the streams stand still");
        for (int i = 0; i < n; i++) {
            stream *c = got[i].data.ptr;
            int had = c->n_events;

            /* Not while this program is still asking: what comes meanwhile lies unread here. */
            if (!read_stream(c, stamped && t0 && !measured ? &out->latency : NULL, &bytes))
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
        if (measured)
            continue;
        if (t0 && !stamped && clock_ns() > next_health) {
            add_sample(&out->health, ask_health(p->port));
            next_health = clock_ns() + 50000000;
        }
        if (!t0 && n_begun == o->streams) {
            t0 = clock_ns();
            loop0 = cpu_of(p->pid, "loop");
            all0 = cpu_of(p->pid, "");
            events0 = events;
            bytes0 = bytes;
            out->bytes_per_stream = (resident_of(p->pid) - before) / o->streams;
        } else if (t0 && most >= o->tokens - EDGE) {
            double n_events = (double)(events - events0);

            measured = true;
            out->loop_us = (cpu_of(p->pid, "loop") - loop0) * 1e6 / n_events;
            out->all_us = (cpu_of(p->pid, "") - all0) * 1e6 / n_events;
            out->bytes_per_event = (double)(bytes - bytes0) / n_events;
            out->events_per_s = n_events / ((double)(clock_ns() - t0) * 1e-9);
        }
    }
    close(ep);
    mem_free(s);
}

/* New connections at a steady rate; the time to the first byte of each answer. */
static void run_arrivals(server_process *p, int per_s, double seconds, samples *out)
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

/* Accepts all streams, answers each with a head, then writes n bytes to every one in rounds. */
static void floor_writer(int listen_fd, const settings *o, size_t n, int report)
{
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    int *fd = mem_try_calloc((size_t)o->streams, sizeof *fd), ep = epoll_create1(0);
    char *chunk = mem_try_calloc(n + 1, 1), buf[2000];
    struct rusage a, b;
    double us;

    if (!fd || !chunk)
        _exit(2);
    memset(chunk, 'x', n);
    for (int i = 0; i < o->streams; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.fd = i};

        fd[i] = accept(listen_fd, NULL, NULL);
        fcntl(fd[i], F_SETFL, O_NONBLOCK);
        epoll_ctl(ep, EPOLL_CTL_ADD, fd[i], &e);
    }
    for (int n_read = 0; n_read < o->streams;) {
        struct epoll_event got[256];
        int k = epoll_wait(ep, got, 256, -1);

        for (int i = 0; i < k; i++) {
            if (read(fd[got[i].data.fd], buf, sizeof buf) <= 0 ||
                write(fd[got[i].data.fd], head, sizeof head - 1) < 0)
                _exit(2);
            n_read++;
        }
    }
    getrusage(RUSAGE_SELF, &a);
    for (int r = 0; r < o->tokens; r++) {
        struct epoll_event got[1];

        for (int i = 0; i < o->streams; i++)
            if (write(fd[i], chunk, n) < 0 && errno != EAGAIN)
                _exit(2);
        epoll_wait(ep, got, 1, o->step_us / 1000);
    }
    getrusage(RUSAGE_SELF, &b);
    us =
        (double)(b.ru_utime.tv_sec - a.ru_utime.tv_sec + b.ru_stime.tv_sec - a.ru_stime.tv_sec) *
            1e6 +
        (double)(b.ru_utime.tv_usec - a.ru_utime.tv_usec + b.ru_stime.tv_usec - a.ru_stime.tv_usec);
    us /= (double)o->streams * o->tokens;
    if (write(report, &us, sizeof us) != sizeof us)
        _exit(2);
    _exit(0);
}

/* Processor microseconds of the floor per event. */
static double run_floor(const settings *o, double bytes_per_event)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n_a = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0), ep = epoll_create1(0), report[2], n_open = o->streams;
    stream *s = mem_try_calloc((size_t)o->streams, sizeof *s);
    size_t bytes = 0;
    double us = 0;
    pid_t pid;

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!s || bind(fd, (struct sockaddr *)&a, n_a) < 0 || listen(fd, 4096) < 0 || pipe(report) < 0)
        die("could not listen");
    getsockname(fd, (struct sockaddr *)&a, &n_a);
    pid = fork();
    if (pid == 0)
        floor_writer(fd, o, (size_t)bytes_per_event, report[1]);
    for (int i = 0; i < o->streams; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &s[i]};

        s[i].fd = dial(ntohs(a.sin_port));
        ask(s[i].fd, 1, false);
        epoll_ctl(ep, EPOLL_CTL_ADD, s[i].fd, &e);
    }
    while (n_open > 0) {
        struct epoll_event got[512];
        int n = epoll_wait(ep, got, 512, 20000);

        if (n <= 0)
            die("the floor stands still");
        for (int i = 0; i < n; i++) {
            stream *c = got[i].data.ptr;

            if (!read_stream(c, NULL, &bytes)) {
                close(c->fd);
                n_open--;
            }
        }
    }
    if (read(report[0], &us, sizeof us) != sizeof us)
        die("the floor did not report");
    waitpid(pid, NULL, 0);
    close(fd);
    close(ep);
    mem_free(s);
    return us;
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
        else if (strcmp(argv[i], "--server") == 0)
            o->server = argv[i + 1];
        else if (strcmp(argv[i], "--model") == 0)
            o->model = argv[i + 1];
        else
            die("unknown option");
    }
}

int main(int argc, char **argv)
{
    settings o = {.streams = 4000,
                  .tokens = 60,
                  .step_us = 150000,
                  .loops = 1,
                  .server = "build/release/deepinfer",
                  .model = "models/tiny"};
    struct rlimit files = {.rlim_cur = 20000, .rlim_max = 20000};
    load full = {0}, half = {0};
    samples first = {0};
    server_process p;
    double floor_us;

    read_arguments(&o, argc, argv);
    setrlimit(RLIMIT_NOFILE, &files);
    puts("name,case,threads,value,unit,ceiling,fraction");
    p = start_server(&o);
    run_streams(&o, &p, false, &full);
    stop_server(&p);
    floor_us = run_floor(&o, full.bytes_per_event);
    row("http_floor", "bare epoll writer, cpu per event", 1, floor_us, "us", 0);
    row("http_rate", "events per second", o.loops, full.events_per_s, "1/s", 0);
    row("http_cpu", "loop threads, cpu per event", o.loops, full.loop_us, "us", 1.5 * floor_us);
    row("http_cpu", "whole server, cpu per event", o.loops, full.all_us, "us", 0);
    row("http_memory", "resident per stream", o.loops, full.bytes_per_stream / 1000, "kB", 12);
    row("http_health", "/health under load, p99", o.loops, quantile(&full.health, 0.99), "ms", 10);
    o.step_us *= 2;
    o.tokens = o.tokens / 2 > 2 * EDGE + 2 ? o.tokens / 2 : 2 * EDGE + 2;
    p = start_server(&o);
    run_streams(&o, &p, true, &half);
    row("http_latency", "token made to token here, p50", o.loops, quantile(&half.latency, 0.5),
        "ms", 0);
    row("http_latency", "token made to token here, p99", o.loops, quantile(&half.latency, 0.99),
        "ms", 2);
    stop_server(&p);
    o.step_us = 1000;
    p = start_server(&o);
    run_arrivals(&p, 1000, 4, &first);
    row("http_first", "first byte at 1,000 requests/s, p50", o.loops, quantile(&first, 0.5), "ms",
        0);
    row("http_first", "first byte at 1,000 requests/s, p99", o.loops, quantile(&first, 0.99), "ms",
        5);
    stop_server(&p);
    return 0;
}
