/* deepinfer chat: a conversation on the terminal.
 *
 * SIGINT sets a flag that the answer in progress looks at between steps; at the input line it only
 * ends the line. The handler is installed without SA_RESTART, so that reading returns. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/sampling_options.h"
#include "cli/service.h"
#include "cli/stream.h"
#include "recipe/chat.h"

typedef struct chat_options {
    session_options session;
    engine_choice engine;
    sampling_options sampling;
    const char *system;
} chat_options;

typedef struct chat {
    service s;
    request_defaults d;
    generator *g;
    arena *mem;              /* of the conversation */
    recipe_message *message; /* in mem */
    size_t n, cap;
    const char *system;
    bool quiet, tty;
} chat;

static volatile sig_atomic_t interrupted_flag;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted_flag = 1;
}

static bool interrupted(void)
{
    return interrupted_flag != 0;
}

static opt_result parse(chat_options *o, int argc, char **argv, di_status *st)
{
    const opt options[] = {
        SESSION_OPTIONS(o->session),
        {.name = "system",
         .letter = 's',
         .kind = OPT_STRING,
         .to = &o->system,
         .arg = "TEXT",
         .help = "system message at the start of the conversation"},
        SAMPLING_OPTIONS(o->sampling),
        ENGINE_OPTIONS(o->engine),
    };
    const opt_program program = {
        .name = "chat",
        .usage = "--model DIR [OPTION]...",
        .summary =
            "Talks with the model: reads one message per line (a \\ at its end goes on in the\n"
            "next line) and prints the answer as it comes, reasoning dimmed on a terminal.",
        .options = options,
        .n = ARRAY_LEN(options),
        .notes = "Ctrl-C stops the answer, Ctrl-D ends the program. /help lists the commands.",
    };

    return opt_parse(&program, argc, argv, NULL, st);
}

static di_code no_memory(di_status *st)
{
    return di_fail(st, DI_E_NOMEM, "no memory for the conversation");
}

/* Append one message; the text is copied. */
static di_code say(chat *c, recipe_role role, const char *text, size_t n, di_status *st)
{
    const char *copy = arena_strndup(c->mem, text, n);

    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 16;
        recipe_message *more = arena_alloc(c->mem, cap, sizeof *more);

        if (!more)
            return no_memory(st);
        if (c->n)
            memcpy(more, c->message, c->n * sizeof *more);
        c->message = more;
        c->cap = cap;
    }
    if (!copy)
        return no_memory(st);
    c->message[c->n++] = (recipe_message){.role = role, .content = copy, .n_content = n};
    return DI_OK;
}

static di_code reset(chat *c, di_status *st)
{
    arena_reset(c->mem);
    c->message = NULL;
    c->n = c->cap = 0;
    return c->system ? say(c, RECIPE_SYSTEM, c->system, strlen(c->system), st) : DI_OK;
}

static void print_commands(void)
{
    puts("/help           this list\n"
         "/reset          forget the conversation\n"
         "/think on|off   reason before answering, or not\n"
         "/quit           leave (or Ctrl-D)\n"
         "A \\ at the end of a line goes on in the next one. Ctrl-C stops an answer.");
}

/* True when the program is to end. */
static bool command(chat *c, const char *line, di_status *st)
{
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0)
        return true;
    if (strcmp(line, "/help") == 0) {
        print_commands();
    } else if (strcmp(line, "/reset") == 0) {
        (void)reset(c, st);
        puts("The conversation is forgotten.");
    } else if (strcmp(line, "/think on") == 0 || strcmp(line, "/think off") == 0) {
        c->d.thinking = strcmp(line, "/think on") == 0;
        printf("Thinking is %s.\n", c->d.thinking ? "on" : "off");
    } else {
        printf("There is no command %s; /help lists them.\n", line);
    }
    return st->code != DI_OK;
}

/* Prompt ids of the conversation so far. */
static di_code make_request(const chat *c, request *req, di_status *st)
{
    const recipe_chat conversation = {
        .message = c->message, .n = c->n, .thinking = c->d.thinking, .effort = c->d.effort};

    return request_from_chat(req, &c->d, &conversation, st);
}

static void report(const chat *c, const request *req, const stream_result *r)
{
    if (c->quiet)
        return;
    fprintf(stderr, "[%lld prompt tokens, %lld kept; %lld tokens%s; %.1f tok/s; seed %llu]\n",
            (long long)r->n_prompt, (long long)r->n_reused, (long long)r->n_tokens,
            r->why == GEN_CANCELLED ? ", stopped"
            : r->why == GEN_LENGTH  ? ", length"
                                    : "",
            r->n_tokens > 1 ? (double)(r->n_tokens - 1) / (r->seconds - r->first_seconds) : 0.0,
            (unsigned long long)req->sampling.seed);
}

/* One turn. What is wrong with this message is told and the message forgotten; only a failure of
 * the system ends the program. */
static di_code turn(chat *c, const char *text, size_t n, di_status *st)
{
    request req;
    stream_result res;
    str content = {0};
    di_code rc;

    request_init(&req);
    interrupted_flag = 0;
    DI_TRY(say(c, RECIPE_USER, text, n, st));
    rc = make_request(c, &req, st);
    if (rc == DI_E_INVALID) {
        printf("(%s; /reset starts again)\n", st->message);
        di_clear(st);
        c->n--;
        rc = DI_OK;
        goto done;
    }
    if (rc != DI_OK)
        goto done;
    DI_TRY(stream_run(c->g, &req, c->d.tok, interrupted, &content, &res, st));
    putchar('\n');
    fflush(stdout);
    report(c, &req, &res);
    DI_TRY(say(c, RECIPE_ASSISTANT, str_text(&content), content.len, st));
done:
    request_fini(&req);
    str_fini(&content);
    return rc;
}

/* Read a message of one or more lines. False at the end of the input. *n is 0 after Ctrl-C. */
static bool read_message(const chat *c, char **line, size_t *cap, str *message)
{
    const char *prompt = "> ";

    str_clear(message);
    for (;;) {
        ssize_t n;

        if (c->tty) {
            fputs(prompt, stdout);
            fflush(stdout);
        }
        errno = 0;
        n = getline(line, cap, stdin);
        if (n < 0 && errno == EINTR) {
            clearerr(stdin);
            str_clear(message);
            putchar('\n');
            return true;
        }
        if (n < 0)
            return message->len > 0;
        if (n > 0 && (*line)[n - 1] == '\n')
            n--;
        if (n == 0 || (*line)[n - 1] != '\\') {
            str_append(message, *line, (size_t)n);
            return true;
        }
        str_append(message, *line, (size_t)n - 1);
        str_putc(message, '\n');
        prompt = ". ";
    }
}

static di_code talk(chat *c, di_status *st)
{
    char *line = NULL;
    size_t cap = 0;
    str message = {0};
    di_code rc = DI_OK;

    while (rc == DI_OK && read_message(c, &line, &cap, &message)) {
        if (message.len == 0)
            continue;
        if (!utf8_valid(message.data, message.len)) {
            puts("(this line is not UTF-8)");
        } else if (message.data[0] == '/' && !strchr(message.data, '\n')) {
            if (command(c, message.data, st))
                break;
        } else {
            rc = turn(c, message.data, message.len, st);
        }
        fflush(stdout);
    }
    if (rc == DI_OK)
        rc = st->code;
    free(line); /* getline's */
    str_fini(&message);
    return rc;
}

static di_code run(const chat_options *o, di_status *st)
{
    struct sigaction stop_answer = {.sa_handler = on_interrupt};
    chat c = {.system = o->system,
              .quiet = o->session.quiet,
              .tty = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO),
              .d = {.logprobs = -1}};
    di_code rc;

    DI_TRY(sampling_apply(&o->sampling, &c.d, st));
    if (o->system && !utf8_valid(o->system, strlen(o->system))) {
        rc = di_fail(st, DI_E_INVALID, "--system is not UTF-8");
        goto done;
    }
    DI_TRY(service_open(&c.s, &o->session, NULL, &o->engine, 1, st));
    service_bind(&c.s, &c.d);
    DI_TRY(generator_new(&c.g, c.s.engine, st));
    c.mem = arena_new(0);
    if (!c.mem) {
        rc = di_fail(st, DI_E_NOMEM, "no memory for a conversation");
        goto done;
    }
    DI_TRY(reset(&c, st));
    sigaction(SIGINT, &stop_answer, NULL);
    if (c.tty)
        puts("/help lists the commands, Ctrl-D ends.");
    DI_TRY(talk(&c, st));
    service_report(&c.s, &o->engine);
done:
    generator_free(c.g);
    arena_free(c.mem);
    service_close(&c.s);
    return rc;
}

int cli_chat(int argc, char **argv)
{
    chat_options o = {
        .session = SESSION_DEFAULTS, .engine = ENGINE_DEFAULTS, .sampling = SAMPLING_DEFAULTS};
    di_status st = {0};

    switch (parse(&o, argc, argv, &st)) {
    case OPT_HELP_SHOWN:
        return CLI_OK;
    case OPT_WRONG:
        return cli_fail("chat", &st);
    case OPT_RUN:
        break;
    }
    return run(&o, &st) == DI_OK ? CLI_OK : cli_fail("chat", &st);
}
