/* Log lines on standard error, one write each so that threads do not mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static const char *const area_names[] = {"base", "load",   "kernel", "model",
                                         "kv",   "engine", "cli",    "server"};
static log_level max_level = LOG_WARN;
static bool json_lines;

__attribute__((constructor)) static void read_environment(void)
{
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): a constructor runs before there are threads */
    const char *s = getenv("DI_LOG");

    for (int i = 0; s && i < (int)(sizeof level_names / sizeof *level_names); i++)
        if (strcmp(s, level_names[i]) == 0)
            max_level = (log_level)i;
}

void log_set_level(log_level level)
{
    max_level = level;
}

void log_set_json(bool on)
{
    json_lines = on;
}

/* One line that is built up to its size and written at once. */
typedef struct line {
    char text[2400];
    size_t n;
} line;

static void add(line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(line *l, const char *fmt, ...)
{
    size_t room = sizeof l->text - 4 - l->n; /* "}", "\n" and 0 always fit */
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(l->text + l->n, room, fmt, ap);
    va_end(ap);
    if (n > 0)
        l->n += (size_t)n < room ? (size_t)n : room - 1;
}

/* Text of a message or value: what would break the line or the JSON string is escaped. */
static void add_text(line *l, const char *s)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;

        if (l->n + 12 > sizeof l->text)
            return;
        if (c < ' ' || c == 0x7F)
            add(l, json_lines ? "\\u%04x" : "\\x%02x", c);
        else if (json_lines && (c == '"' || c == '\\'))
            add(l, "\\%c", c);
        else
            l->text[l->n++] = (char)c;
    }
}

static void begin(line *l, log_level level, log_area area)
{
    struct timespec t;

    l->n = 0;
    if (!json_lines) {
        add(l, "%-5s %-6s ", level_names[level], area_names[area]);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &t);
    add(l, "{\"time\": %lld.%03ld, \"level\": \"%s\", \"area\": \"%s\", \"message\": \"",
        (long long)t.tv_sec, t.tv_nsec / 1000000, level_names[level], area_names[area]);
}

static void end(line *l)
{
    if (json_lines)
        l->text[l->n++] = '}';
    l->text[l->n++] = '\n';
    if (write(STDERR_FILENO, l->text, l->n) < 0)
        return; /* nowhere left to complain */
}

void log_line(log_level level, log_area area, const char *fmt, ...)
{
    char message[1200];
    va_list ap;
    line l;

    if (level > max_level)
        return;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    begin(&l, level, area);
    add_text(&l, message);
    if (json_lines)
        add(&l, "\"");
    end(&l);
}

static void add_field(line *l, const log_field *f)
{
    if (f->kind == LOG_FIELD_TEXT && !f->text)
        return;
    add(l, json_lines ? ", \"%s\": " : " %s=", f->key);
    if (f->kind == LOG_FIELD_INT) {
        add(l, "%lld", (long long)f->number);
    } else if (f->kind == LOG_FIELD_MS) {
        add(l, "%.2f", (double)f->number * 1e-6);
    } else {
        bool quoted = json_lines || strchr(f->text, ' ');

        add(l, "%s", quoted ? "\"" : "");
        add_text(l, f->text);
        add(l, "%s", quoted ? "\"" : "");
    }
}

void log_fields(log_level level, log_area area, const char *message, const log_field *field,
                size_t n)
{
    line l;

    if (level > max_level)
        return;
    begin(&l, level, area);
    add_text(&l, message);
    if (json_lines)
        add(&l, "\"");
    for (size_t i = 0; i < n; i++)
        add_field(&l, &field[i]);
    end(&l);
}
