/* Log lines on standard error, one write each so that threads do not mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static const char *const area_names[] = {"base", "load", "kernel", "model", "kv", "cli"};
static log_level max_level = LOG_WARN;

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

void log_line(log_level level, log_area area, const char *fmt, ...)
{
    char line[1200];
    va_list ap;
    int n, m;

    if (level > max_level)
        return;
    n = snprintf(line, sizeof line, "%-5s %-6s ", level_names[level], area_names[area]);
    va_start(ap, fmt);
    m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    n = m < 0 ? n : n + m;
    if (n > (int)sizeof line - 2)
        n = (int)sizeof line - 2;
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return; /* nowhere left to complain */
}
