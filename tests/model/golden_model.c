/* The model against golden vectors (golden/model/README.md of the reference says what they are).
 *
 *   golden_model [--models DIR] [--golden DIR] [--backend NAME] [--only MODEL] [--part PART]
 *                [--threads N] [--verbose]
 *
 * Runs over every folder of --golden that has a golden.json and whose model is in --models. Parts:
 * f32, cache, sublayers, trained; default: all that the files allow. --backend is that of the
 * release parts; default: every back end of this machine. Ends with "N passed, N failed". */
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/golden_check.h"

/* The project's own checkpoints lie in two folders. */
static const char *const own_models[] = {"tests/data/models", "models", NULL};

typedef struct options {
    const char *models[3]; /* NULL-terminated */
    const char *golden, *backend, *only, *part;
    int n_threads;
    bool verbose;
} options;

bool report_case(report *r, bool ok, const char *fmt, ...)
{
    va_list ap;

    *(ok ? &r->passed : &r->failed) += 1;
    if (!ok || r->verbose) {
        printf("%s %s: ", ok ? "ok  " : "FAIL", r->model);
        va_start(ap, fmt);
        vprintf(fmt, ap);
        va_end(ap);
        putchar('\n');
        fflush(stdout);
    }
    return ok;
}

static bool wanted(const options *o, const char *part)
{
    return !o->part || !strcmp(o->part, part);
}

/* The folder of a model, in the first place that has it. */
static bool find_model(const options *o, const char *name, char *out, size_t cap)
{
    for (int i = 0; o->models[i]; i++) {
        char config[1200];

        snprintf(out, cap, "%s/%s", o->models[i], name);
        snprintf(config, sizeof config, "%s/config.json", out);
        if (!access(config, R_OK))
            return true;
    }
    return false;
}

static void check_release(report *r, const options *o, golden_job *job)
{
    for (const char *const *name = kernels_available(); *name; name++) {
        if (o->backend && strcmp(o->backend, *name) != 0)
            continue;
        job->backend = *name;
        if (wanted(o, "sublayers"))
            check_sublayers(r, job);
        if (wanted(o, "trained") && job->g->has_texts)
            check_trained(r, job);
    }
}

static void check_folder(report *r, const options *o, const char *name)
{
    char golden_dir[1100], model_dir[1100];
    golden g;
    di_status st = {0};
    golden_job job = {.g = &g, .golden_dir = golden_dir, .model_dir = model_dir};

    snprintf(golden_dir, sizeof golden_dir, "%s/%s", o->golden, name);
    r->model = name;
    if (golden_open(&g, golden_dir, &st)) {
        report_case(r, false, "%s", st.message);
        return;
    }
    if (find_model(o, g.model ? g.model : name, model_dir, sizeof model_dir) ||
        find_model(o, name, model_dir, sizeof model_dir)) {
        job.n_threads = o->n_threads;
        if (wanted(o, "f32"))
            check_end_to_end(r, &job, 0);
        if (wanted(o, "cache"))
            check_end_to_end(r, &job, 1);
        check_release(r, o, &job);
    } else {
        printf("note %s: no such model in the folders given, left out\n", name);
    }
    golden_close(&g);
}

static int is_golden(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static bool parse(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (!strcmp(argv[i], "--verbose")) {
            o->verbose = true;
            continue;
        }
        if (!value)
            return false;
        i++;
        if (!strcmp(argv[i - 1], "--models"))
            o->models[0] = value, o->models[1] = NULL;
        else if (!strcmp(argv[i - 1], "--golden"))
            o->golden = value;
        else if (!strcmp(argv[i - 1], "--backend"))
            o->backend = value;
        else if (!strcmp(argv[i - 1], "--only"))
            o->only = value;
        else if (!strcmp(argv[i - 1], "--part"))
            o->part = value;
        else if (!strcmp(argv[i - 1], "--threads"))
            o->n_threads = atoi(value);
        else
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    options o = {.models = {own_models[0], own_models[1]}, .golden = DI_DATA_DIR "/golden/model"};
    report r = {0};
    struct dirent **entry;
    int n;

    if (!parse(&o, argc, argv)) {
        fprintf(stderr,
                "usage: %s [--models DIR] [--golden DIR] [--backend NAME] [--only MODEL] "
                "[--part f32|cache|sublayers|trained] [--threads N] [--verbose]\n",
                argv[0]);
        return 2;
    }
    r.verbose = o.verbose;
    n = scandir(o.golden, &entry, is_golden, alphasort);
    if (n < 0) {
        fprintf(stderr, "could not read \"%s\"\n", o.golden);
        return 2;
    }
    for (int i = 0; i < n; i++) {
        char path[1200];

        snprintf(path, sizeof path, "%s/%s/golden.json", o.golden, entry[i]->d_name);
        if ((!o.only || !strcmp(o.only, entry[i]->d_name)) && !access(path, F_OK))
            check_folder(&r, &o, entry[i]->d_name);
        free(entry[i]);
    }
    free(entry);
    if (r.exempt)
        printf("note: %d rows behind near-ties of selections left out\n", r.exempt);
    printf("%d passed, %d failed\n", r.passed, r.failed);
    return r.failed > 0 || r.passed == 0;
}
