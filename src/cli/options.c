/* Table -> getopt_long -> typed values. See options.h. */
#include "cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/names.h"

#define MAX_OPTIONS 64
#define MAX_NAMES   128
#define HELP_COLUMN 24

/* Values of long options: an option of the program, or one of DeepInfer's names. */
#define CODE_OPTION 256
#define CODE_NAME   1024

static void print_help(const opt_program *p)
{
    printf("Usage: deepinfer %s %s\n\n%s\n\nOptions:\n", p->name, p->usage, p->summary);
    for (size_t i = 0; i <= p->n; i++) {
        static const opt help = {.name = "help", .letter = 'h', .help = "show this text"};
        const opt *o = i < p->n ? &p->options[i] : &help;
        char left[64], letter[8] = "    ";

        if (o->letter)
            snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->arg ? " " : "",
                 o->arg ? o->arg : "");
        printf("  %-*s %s\n", HELP_COLUMN, left, o->help);
    }
    if (p->notes)
        printf("\n%s\n", p->notes);
    puts("\n" CLI_EXIT_HELP);
}

static di_code out_of_range(const opt *o, const char *text, di_status *st)
{
    return di_fail(st, DI_E_INVALID, "--%s is \"%s\", but must be %s from %.15g to %.15g", o->name,
                   text, o->kind == OPT_INT ? "an integer" : "a number", o->min, o->max);
}

static di_code set_int(const opt *o, const char *text, di_status *st)
{
    char *end;
    long long v;

    errno = 0;
    v = strtoll(text, &end, 10);
    if (errno || end == text || *end || (double)v < o->min || (double)v > o->max)
        return out_of_range(o, text, st);
    *(int64_t *)o->to = v;
    return DI_OK;
}

static di_code set_real(const opt *o, const char *text, di_status *st)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !(v >= o->min && v <= o->max))
        return out_of_range(o, text, st);
    *(double *)o->to = v;
    return DI_OK;
}

static di_code set_choice(const opt *o, const char *text, di_status *st)
{
    char all[200] = "";
    size_t len = 0;

    for (size_t i = 0; o->choices[i]; i++) {
        if (strcmp(o->choices[i], text) == 0) {
            *(const char **)o->to = o->choices[i];
            return DI_OK;
        }
        len += (size_t)snprintf(all + len, sizeof all - len, "%s%s", i ? ", " : "", o->choices[i]);
        if (len >= sizeof all)
            break;
    }
    return di_fail(st, DI_E_INVALID, "--%s is \"%s\", but must be one of: %s", o->name, text, all);
}

di_code opt_set(const opt *o, const char *text, di_status *st)
{
    opt_list *list = o->to;

    if (o->given)
        *o->given = true;
    switch (o->kind) {
    case OPT_FLAG:
        *(bool *)o->to = true;
        return DI_OK;
    case OPT_STRING:
        *(const char **)o->to = text;
        return DI_OK;
    case OPT_INT:
        return set_int(o, text, st);
    case OPT_REAL:
        return set_real(o, text, st);
    case OPT_CHOICE:
        return set_choice(o, text, st);
    case OPT_LIST:
        if (list->n == OPT_LIST_MAX)
            return di_fail(st, DI_E_INVALID, "--%s is given more than %d times", o->name,
                           OPT_LIST_MAX);
        list->item[list->n++] = text;
        return DI_OK;
    }
    return di_fail(st, DI_E_INTERNAL, "option --%s has no kind", o->name);
}

static di_code wrong_option(const opt_program *p, char **argv, int code, di_status *st)
{
    const char *word = argv[optind - 1];

    if (code == ':')
        return di_fail(st, DI_E_INVALID, "option %s needs an argument (see deepinfer %s --help)",
                       word, p->name);
    if (optopt && strncmp(word, "--", 2) != 0)
        return di_fail(st, DI_E_INVALID, "unknown option -%c (see deepinfer %s --help)", optopt,
                       p->name);
    return di_fail(st, DI_E_INVALID, "unknown or ambiguous option %s (see deepinfer %s --help)",
                   word, p->name);
}

/* DeepInfer's options that this program understands and does not have itself; returns how many. */
static int add_names(const opt_program *p, struct option *longs)
{
    size_t n;
    const known_name *k = names_all(&n);
    int added = 0;

    DI_CHECK(n <= MAX_NAMES);
    for (size_t i = 0; i < n; i++) {
        if (!k[i].option || opt_find(p, k[i].option) || !names_fit(p, &k[i]))
            continue;
        longs[added++] =
            (struct option){.name = k[i].option,
                            .has_arg = names_boolean(&k[i]) ? optional_argument : required_argument,
                            .val = CODE_NAME + (int)i};
    }
    return added;
}

/* The tables that getopt wants. */
static void make_tables(const opt_program *p, struct option *longs, char *shorts)
{
    *shorts++ = ':';
    *shorts++ = 'h';
    for (size_t i = 0; i < p->n; i++) {
        const opt *o = &p->options[i];
        int has_arg = o->kind == OPT_FLAG ? no_argument : required_argument;

        longs[i] =
            (struct option){.name = o->name, .has_arg = has_arg, .val = CODE_OPTION + (int)i};
        if (o->letter) {
            *shorts++ = o->letter;
            if (has_arg)
                *shorts++ = ':';
        }
    }
    longs[p->n] = (struct option){.name = "help", .val = 'h'};
    longs[p->n + 1 + (size_t)add_names(p, longs + p->n + 1)] = (struct option){0};
    *shorts = 0;
}

static const opt *by_code(const opt_program *p, int code)
{
    if (code >= CODE_OPTION)
        return &p->options[code - CODE_OPTION];
    for (size_t i = 0; i < p->n; i++)
        if (p->options[i].letter == code)
            return &p->options[i];
    return NULL;
}

/* Once, by whoever comes first: the file or the command line. */
static di_code read_environment(const opt_program *p, di_status *st)
{
    static bool done;

    if (done)
        return DI_OK;
    done = true;
    return names_environment(p, st);
}

opt_result opt_parse(const opt_program *p, int argc, char **argv, int *first, di_status *st)
{
    struct option longs[MAX_OPTIONS + MAX_NAMES + 2];
    char shorts[2 * MAX_OPTIONS + 3];
    size_t n_names;
    const known_name *name = names_all(&n_names);
    int code;

    DI_CHECK(p->n <= MAX_OPTIONS);
    if (read_environment(p, st) != DI_OK)
        return OPT_WRONG;
    make_tables(p, longs, shorts);
    opterr = 0;
    optind = 1;
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): the main thread is the only one yet */
    while ((code = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        const opt *o = code < CODE_NAME ? by_code(p, code) : NULL;

        if (code >= CODE_NAME) {
            if (names_set(p, &name[code - CODE_NAME], optarg, st) != DI_OK)
                return OPT_WRONG;
            continue;
        }
        if (code == 'h') {
            print_help(p);
            return OPT_HELP_SHOWN;
        }
        if (!o) {
            wrong_option(p, argv, code, st);
            return OPT_WRONG;
        }
        if (opt_set(o, optarg, st) != DI_OK)
            return OPT_WRONG;
    }
    if (first) {
        *first = optind;
    } else if (optind < argc) {
        di_fail(st, DI_E_INVALID, "unexpected argument \"%s\" (see deepinfer %s --help)",
                argv[optind], p->name);
        return OPT_WRONG;
    }
    return OPT_RUN;
}

/* ---- files ---- */

#define MAX_FILE (1 << 20)

const char *opt_config_file(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0)
            break;
        if (strncmp(argv[i], "--config=", 9) == 0)
            return argv[i] + 9;
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            return argv[i + 1];
    }
    return NULL;
}

static char *trim(char *s)
{
    char *end;

    s += strspn(s, " \t\r");
    end = s + strlen(s);
    while (end > s && strchr(" \t\r", end[-1]))
        end--;
    *end = 0;
    return s;
}

/* A value without its quotes, or cut at a comment. NULL: text behind the closing quote. */
static char *value_of(char *s)
{
    char *end;

    s = trim(s);
    if (*s != '"') {
        s[strcspn(s, "#")] = 0;
        return trim(s);
    }
    end = strchr(++s, '"');
    if (!end || (*trim(end + 1) && *trim(end + 1) != '#'))
        return NULL;
    *end = 0;
    return s;
}

const opt *opt_find(const opt_program *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->options[i].name, name) == 0)
            return &p->options[i];
    return NULL;
}

static di_code set_line(const opt_program *p, char *line, di_status *st)
{
    char *equals, *name = trim(line), *value;
    const opt *o;

    if (!*name || *name == '#')
        return DI_OK;
    equals = strchr(name, '=');
    if (!equals)
        return di_fail(st, DI_E_FORMAT, "expected \"name = value\"");
    *equals = 0;
    name = trim(name);
    value = value_of(equals + 1);
    o = opt_find(p, name);
    if (!value)
        return di_fail(st, DI_E_FORMAT, "text behind the closing quote, or none");
    if (!o || strcmp(name, "config") == 0)
        return di_fail(st, DI_E_INVALID, "unknown option \"%s\" (see deepinfer %s --help)", name,
                       p->name);
    if (o->kind != OPT_FLAG)
        return opt_set(o, value, st);
    if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
        return di_fail(st, DI_E_INVALID, "%s is \"%s\", but must be true or false", name, value);
    *(bool *)o->to = strcmp(value, "true") == 0;
    return DI_OK;
}

di_code opt_read_file(const opt_program *p, const char *path, char **text, di_status *st)
{
    int number = 0;
    size_t n;
    di_code rc = read_environment(p, st);
    char *at = NULL;

    *text = NULL;
    if (rc == DI_OK)
        rc = file_read(text, &n, path, MAX_FILE, st);
    if (rc == DI_OK) /* some editors begin a file with a byte order mark */
        at = *text + (strncmp(*text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0);
    for (char *next; at && rc == DI_OK; at = next) {
        next = strchr(at, '\n');
        if (next)
            *next++ = 0;
        number++;
        rc = set_line(p, at, st);
        if (rc != DI_OK)
            di_context(st, "\"%s\" line %d", path, number);
    }
    return rc;
}
