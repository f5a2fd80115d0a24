/* deepinfer serve: an HTTP server for programs written for OpenAI's and Anthropic's interfaces. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/service.h"
#include "server/server.h"

typedef struct serve_options {
    session_options session;
    engine_choice engine;
    const char *config, *host, *api_key, *api_key_file, *cors, *tls_cert, *tls_key, *log_format,
        *load_format, *script, *thinking, *recipe, *policy;
    opt_list names;
    int64_t port, loops, max_running, max_queued, max_conns, max_body_mb, keepalive, drain,
        script_step;
    bool no_log, script_together;
    char *config_text; /* what the file's strings lie in */
    char default_name[128];
} serve_options;

#define SERVE_DEFAULTS                                                                             \
    {                                                                                              \
        .session = SESSION_DEFAULTS, .engine = ENGINE_DEFAULTS, .host = "127.0.0.1", .port = 8000, \
        .loops = 2, .max_running = 64, .max_queued = 1024, .max_conns = 8192, .max_body_mb = 64,   \
        .keepalive = 5, .drain = 600, .log_format = "text", .load_format = "auto",                 \
        .thinking = "on", .recipe = "client", .policy = "follow", .script_step = 10000             \
    }

static const char *const log_formats[] = {"text", "json", NULL};
static const char *const load_formats[] = {"auto", "dummy", "script", NULL};
static const char *const on_off[] = {"on", "off", NULL};
static const char *const recipes[] = {"client", "strict", NULL};
static const char *const policies[] = {[GRAMMAR_POLICY_FOLLOW] = "follow",
                                       [GRAMMAR_POLICY_STRICT] = "strict",
                                       [GRAMMAR_POLICY_LENIENT] = "lenient",
                                       NULL};

static opt_result parse(serve_options *o, int argc, char **argv, di_status *st)
{
    /* clang-format off */
    const opt options[] = {
        SESSION_OPTIONS(o->session),
        {.name = "host", .kind = OPT_STRING, .to = &o->host, .arg = "ADDR",
         .help = "address to listen on (default: 127.0.0.1; 0.0.0.0 = all)"},
        {.name = "port", .letter = 'p', .kind = OPT_INT, .to = &o->port, .arg = "N",
         .help = "port (default: 8000; 0 = any free one, printed)", .min = 0, .max = 65535},
        {.name = "served-model-name", .kind = OPT_LIST, .to = &o->names, .arg = "NAME",
         .help = "name that requests use (default: the folder's); several: aliases"},
        {.name = "api-key", .kind = OPT_STRING, .to = &o->api_key, .arg = "KEY",
         .help = "only requests with this key are served"},
        {.name = "api-key-file", .kind = OPT_STRING, .to = &o->api_key_file, .arg = "FILE",
         .help = "keys with limits, one a line (docs/operations.md)"},
        {.name = "cors", .kind = OPT_STRING, .to = &o->cors, .arg = "ORIGIN",
         .help = "let web pages of ORIGIN call (* = all)"},
        {.name = "tls-cert", .kind = OPT_STRING, .to = &o->tls_cert, .arg = "FILE",
         .help = "certificate chain (PEM): serve HTTPS"},
        {.name = "tls-key", .kind = OPT_STRING, .to = &o->tls_key, .arg = "FILE",
         .help = "its private key (PEM)"},
        {.name = "max-running", .kind = OPT_INT, .to = &o->max_running, .arg = "N",
         .help = "sequences that run at once (default: 64)", .min = 1, .max = 4096},
        {.name = "max-queued", .kind = OPT_INT, .to = &o->max_queued, .arg = "N",
         .help = "sequences that wait; more get 429 (default: 1024)", .min = 1, .max = 1 << 20},
        {.name = "max-connections", .kind = OPT_INT, .to = &o->max_conns, .arg = "N",
         .help = "open connections; more get 503 (default: 8192)", .min = 1, .max = 1 << 20},
        {.name = "max-body-mb", .kind = OPT_INT, .to = &o->max_body_mb, .arg = "N",
         .help = "largest request; more gets 413 (default: 64)", .min = 1, .max = 4096},
        {.name = "keepalive", .kind = OPT_INT, .to = &o->keepalive, .arg = "S",
         .help = "comment in a stream after S silent seconds (default: 5)", .min = 1, .max = 3600},
        {.name = "drain-timeout", .kind = OPT_INT, .to = &o->drain, .arg = "S",
         .help = "after SIGTERM, cancel what runs longer (default: 600)", .min = 0, .max = 1 << 20},
        {.name = "loops", .kind = OPT_INT, .to = &o->loops, .arg = "N",
         .help = "threads that talk to clients (default: 2)", .min = 1, .max = 64},
        {.name = "thinking", .kind = OPT_CHOICE, .to = &o->thinking, .arg = "on|off",
         .help = "reason when a chat does not say (default: on)", .choices = on_off},
        {.name = "recipe", .kind = OPT_CHOICE, .to = &o->recipe, .arg = "WORD",
         .help = "client, or strict: deepseek-recipe to the letter", .choices = recipes},
        {.name = "constraint-policy", .kind = OPT_CHOICE, .to = &o->policy, .arg = "WORD",
         .help = "unknown keywords: follow the request (default), strict, lenient",
         .choices = policies},
        {.name = "log-format", .kind = OPT_CHOICE, .to = &o->log_format, .arg = "WORD",
         .help = "text or json (default: text)", .choices = log_formats},
        {.name = "no-request-log", .kind = OPT_FLAG, .to = &o->no_log,
         .help = "no line for every request"},
        {.name = "load-format", .kind = OPT_CHOICE, .to = &o->load_format, .arg = "WORD",
         .help = "auto; dummy weights; script: scripted replies, no model", .choices = load_formats},
        {.name = "script", .kind = OPT_STRING, .to = &o->script, .arg = "FILE",
         .help = "replies of --load-format script (docs/operations.md)"},
        {.name = "script-step-us", .kind = OPT_INT, .to = &o->script_step, .arg = "N",
         .help = "time between its tokens (default: 10000)", .min = 0, .max = 60000000},
        {.name = "script-together", .kind = OPT_FLAG, .to = &o->script_together,
         .help = "tokens of all requests in one moment, as an engine gives them"},
        ENGINE_OPTIONS(o->engine),
        {.name = "config", .kind = OPT_STRING, .to = &o->config, .arg = "FILE",
         .help = "read options from FILE (name = value); these here come on top"},
    };
    /* clang-format on */
    const opt_program program = {
        .name = "serve",
        .usage = "--model DIR [OPTION]...",
        .summary = "Serves the model over HTTP: /v1/chat/completions, /v1/completions,\n"
                   "/v1/responses, /v1/messages and more (docs/api.md). A page to try it is at /.\n"
                   "SIGTERM or SIGINT: finish what runs, then end; a second one cancels.",
        .options = options,
        .n = ARRAY_LEN(options),
    };
    const char *file = opt_config_file(argc, argv);

    if (file && opt_read_file(&program, file, &o->config_text, st) != DI_OK)
        return OPT_WRONG;
    return opt_parse(&program, argc, argv, NULL, st);
}

/* ---- running ---- */

/* Last part of the folder's path. */
static void name_model(serve_options *o)
{
    const char *dir = o->session.model, *end = dir + strlen(dir), *from;
    size_t n = 0;

    while (end > dir + 1 && end[-1] == '/')
        end--;
    for (from = end; from > dir && from[-1] != '/'; from--)
        continue;
    for (; from < end && n < sizeof o->default_name - 1; from++)
        o->default_name[n++] = (unsigned char)*from <= ' ' || strchr("\"\\", *from) ? '-' : *from;
    if (o->names.n == 0)
        o->names.item[o->names.n++] = n ? o->default_name : "model";
}

static grammar_policy policy_of(const serve_options *o)
{
    int i = 0;

    while (policies[i] && strcmp(policies[i], o->policy) != 0)
        i++;
    return (grammar_policy)i;
}

static server_options server_options_of(const serve_options *o)
{
    return (server_options){.host = o->host,
                            .port = (int)o->port,
                            .n_loops = (int)o->loops,
                            .names = o->names.item,
                            .n_names = o->names.n,
                            .key = o->api_key,
                            .key_file = o->api_key_file,
                            .cors = o->cors,
                            .tls_cert = o->tls_cert,
                            .tls_key = o->tls_key,
                            .log_json = strcmp(o->log_format, "json") == 0,
                            .log_off = o->no_log,
                            .max_conns = (int)o->max_conns,
                            .max_body = o->max_body_mb << 20,
                            .keepalive_s = (int)o->keepalive,
                            .thinking_off = strcmp(o->thinking, "off") == 0,
                            .recipe_strict = strcmp(o->recipe, "strict") == 0,
                            .policy = policy_of(o)};
}

/* Wait for one of the signals, at most `ms` (-1 = for ever). The signal, or 0. */
static int wait_signal(const sigset_t *set, int ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    int got;

    do
        got = ms < 0 ? sigwaitinfo(set, NULL) : sigtimedwait(set, NULL, &t);
    while (got < 0 && errno == EINTR);
    return got < 0 ? 0 : got;
}

/* Until a signal comes; then until nothing runs, a second signal or the time is up. */
static void serve_until_signal(const serve_options *o, server *s, const sigset_t *set)
{
    wait_signal(set, -1);
    server_drain(s);
    log_info(LOG_SERVER, "draining: %d requests run", server_calls(s));
    for (int64_t ms = 0; server_calls(s) > 0; ms += 50) {
        if (wait_signal(set, 50)) {
            log_warn(LOG_SERVER, "second signal: cancelling %d requests", server_calls(s));
            return;
        }
        if (ms >= o->drain * 1000) {
            log_warn(LOG_SERVER, "drain timeout: cancelling %d requests", server_calls(s));
            return;
        }
    }
    wait_signal(set, 300); /* last bytes of the last answers; loops see idle connections off */
}

static di_code open_backend(serve_options *o, service *svc, backend *be, di_status *st)
{
    di_code rc;

    if (!o->session.model)
        return di_fail(st, DI_E_INVALID, "no model: give --model DIR");
    if (o->script && strcmp(o->load_format, "script") != 0)
        return di_fail(st, DI_E_INVALID, "--script needs --load-format script");
    if (strcmp(o->load_format, "script") == 0)
        return backend_script(
            be,
            &(script_options){.model_dir = o->session.model,
                              .file = o->script,
                              .max_seqs = (int)o->max_running,
                              .max_queued = (int)o->max_queued,
                              .context = o->session.context ? o->session.context : 65536,
                              .step_us = o->script_step,
                              .together = o->script_together},
            st);
    rc = service_open(svc, &o->session, NULL, &o->engine, (int)o->max_running, st);
    if (rc == DI_OK)
        *be = backend_of_engine(svc->model, svc->engine, svc->context, o->max_queued);
    return rc;
}

static di_code run(serve_options *o, const sigset_t *set, di_status *st)
{
    service svc = {0};
    backend be = {0};
    server *s = NULL;
    server_options so;
    bool v6;
    di_code rc;

    DI_TRY(open_backend(o, &svc, &be, st));
    name_model(o);
    so = server_options_of(o);
    DI_TRY(server_start(&s, &so, &be, st));
    v6 = strchr(o->host, ':') != NULL; /* in a URL an address with colons stands in brackets */
    log_info(LOG_SERVER, "serving model=%s url=%s://%s%s%s:%d", o->names.item[0],
             o->tls_cert ? "https" : "http", v6 ? "[" : "", o->host, v6 ? "]" : "", server_port(s));
    serve_until_signal(o, s, set);
done:
    server_stop(s);
    if (be.ops)
        be.ops->free(be.self);
    service_close(&svc);
    return rc;
}

int cli_serve(int argc, char **argv)
{
    serve_options o = SERVE_DEFAULTS;
    di_status st = {0};
    sigset_t set;
    di_code rc = DI_OK;

    switch (parse(&o, argc, argv, &st)) {
    case OPT_HELP_SHOWN:
        mem_free(o.config_text);
        return CLI_OK;
    case OPT_WRONG:
        mem_free(o.config_text);
        return cli_fail("serve", &st);
    case OPT_RUN:
        break;
    }
    /* Blocked before there are threads: only the main thread takes them, with sigwait. */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (!getenv("DI_LOG")) /* NOLINT(concurrency-mt-unsafe): no threads yet */
        log_set_level(LOG_INFO);
    log_set_json(strcmp(o.log_format, "json") == 0);
    rc = run(&o, &set, &st);
    if (rc == DI_OK)
        log_info(LOG_SERVER, "ended");
    mem_free(o.config_text);
    return rc == DI_OK ? CLI_OK : cli_fail("serve", &st);
}
