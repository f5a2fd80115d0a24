/* Progress bar: drawn over itself on a terminal, a line now and then in a log. */
#include "base/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"

#define TTY_EVERY_NS  100000000u  /* ten times a second */
#define LINE_EVERY_NS 5000000000u /* every five seconds */
#define BAR_WIDTH     24

/* "3.4 GiB" for bytes, "1234 tok" for anything else. */
static void put_amount(str *out, double v, const char *unit)
{
    static const char *const sizes[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    unsigned i = 0;

    if (strcmp(unit, "B") != 0) {
        str_printf(out, v < 100 && v != (double)(uint64_t)v ? "%.1f %s" : "%.0f %s", v, unit);
        return;
    }
    for (; v >= 1024 && i + 1 < sizeof sizes / sizeof *sizes; i++)
        v /= 1024;
    str_printf(out, i ? "%.1f %s" : "%.0f %s", v, sizes[i]);
}

static void put_duration(str *out, double seconds)
{
    unsigned long long s = (unsigned long long)(seconds + 0.5);

    if (s >= 3600)
        str_printf(out, "%llu:%02llu:%02llu", s / 3600, s / 60 % 60, s % 60);
    else
        str_printf(out, "%llu:%02llu", s / 60, s % 60);
}

static void put_bar(str *out, double part)
{
    int filled = (int)(part * BAR_WIDTH);

    str_putc(out, '[');
    for (int i = 0; i < BAR_WIDTH; i++)
        str_putc(out, i < filled ? '#' : '.');
    str_printf(out, "] %3.0f%% ", part * 100);
}

/* "label [####....] 40% 12 of 30 prompts, 3.1 prompts/s, 0:06 left, note" */
static void put_state(str *out, const progress *p, uint64_t now)
{
    double seconds = (double)(now - p->start_ns) * 1e-9;
    double rate = seconds > 0 ? (double)p->done / seconds : 0;

    str_printf(out, "%s ", p->label);
    if (p->total) {
        double part = (double)p->done / (double)p->total;

        part = part > 1 ? 1 : part;
        if (p->tty)
            put_bar(out, part);
        else
            str_printf(out, "%.0f%% ", part * 100);
    }
    put_amount(out, (double)p->done, p->unit);
    if (p->total) {
        str_puts(out, " of ");
        put_amount(out, (double)p->total, p->unit);
    }
    str_puts(out, ", ");
    put_amount(out, rate, p->unit);
    str_puts(out, "/s");
    if (p->total && p->done > 0 && p->done < p->total) {
        str_puts(out, ", ");
        put_duration(out, (double)(p->total - p->done) / rate);
        str_puts(out, " left");
    }
    if (p->note[0])
        str_printf(out, ", %s", p->note);
}

static void draw(progress *p, uint64_t now, bool last)
{
    str line = {0};

    if (p->tty)
        str_puts(&line, "\r");
    put_state(&line, p, now);
    if (p->tty)
        str_puts(&line, "\x1b[K"); /* clear what a longer line left behind */
    if (!p->tty || last)
        str_putc(&line, '\n');
    /* A lost progress line is no failure of the work. */
    if (str_ok(&line) && write(STDERR_FILENO, line.data, line.len) > 0)
        p->drawn = true;
    p->shown_ns = now;
    str_fini(&line);
}

void progress_start(progress *p, const char *label, const char *unit, uint64_t total, bool quiet)
{
    uint64_t now = clock_ns();

    *p = (progress){.label = label,
                    .unit = unit,
                    .total = total,
                    .start_ns = now,
                    .shown_ns = now,
                    .quiet = quiet,
                    .tty = isatty(STDERR_FILENO) == 1};
}

void progress_set(progress *p, uint64_t done)
{
    uint64_t now = clock_ns();

    p->done = done;
    if (!p->quiet && now - p->shown_ns >= (p->tty ? TTY_EVERY_NS : LINE_EVERY_NS))
        draw(p, now, false);
}

void progress_note(progress *p, const char *note)
{
    snprintf(p->note, sizeof p->note, "%s", note);
}

void progress_end(progress *p)
{
    /* Work that was over before the first line was due stays silent in a log. */
    if (!p->quiet && (p->tty || p->drawn))
        draw(p, clock_ns(), true);
}
