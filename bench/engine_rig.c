#include "engine_rig.h"

#include <string.h>
#include <time.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/mem.h"

/* ---- options and output ---- */

bench_options rig_options(int argc, char **argv, int rounds, const char *model)
{
    bench_options o = {.rounds = rounds, .threads = 1, .model = model};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            o.rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            o.threads = atoi(argv[++i]);
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            o.only = argv[++i];
        else if (strcmp(argv[i], "--model") == 0 && i + 1 < argc)
            o.model = argv[++i];
        else
            rig_stop("usage: [--rounds N] [--threads N] [--only TEXT] [--model DIR]");
    }
    if (o.rounds < 1 || o.rounds > 100)
        rig_stop("--rounds must be 1 to 100");
    if (o.threads < 0 || o.threads > 256)
        rig_stop("--threads must be 0 (all) to 256");
    return o;
}

bool rig_wants(const bench_options *o, const char *name)
{
    return !o->only || strstr(name, o->only);
}

void rig_row(const char *name, const char *text, int threads, double value, const char *unit,
             double ceiling)
{
    printf("%s,%s,%d,%.4g,%s,", name, text, threads, value, unit);
    if (ceiling > 0)
        printf("%.4g,%.3f\n", ceiling, value / ceiling);
    else
        printf(",\n");
    fflush(stdout);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double rig_median(double *v, int n)
{
    if (n == 0)
        return 0;
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* ---- clocks ---- */

static double seconds(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bench_time rig_now(void)
{
    return (bench_time){.wall = seconds(CLOCK_MONOTONIC), .cpu = seconds(CLOCK_PROCESS_CPUTIME_ID)};
}

double rig_thread_cpu(void)
{
    return seconds(CLOCK_THREAD_CPUTIME_ID);
}

/* ---- models and engines ---- */

di_model *rig_model(const bench_options *o, const char *dir)
{
    di_status st = {0};
    di_model *m;

    if (di_model_open(&m, dir, &(di_model_options){.n_threads = o->threads}, &st) != DI_OK)
        rig_stop("%s", st.message);
    return m;
}

di_engine *rig_engine(di_model *m, di_engine_options o)
{
    di_status st = {0};
    di_engine *e;

    if (di_engine_start(&e, m, &o, &st) != DI_OK)
        rig_stop("%s", st.message);
    return e;
}

/* ---- prompts ---- */

/* Append the object "texts" of a file. */
static void read_prompts(const char *path, bench_prompt **out, int *n)
{
    di_status st = {0};
    json_read r;
    char *json;
    const char *key, *text;
    size_t n_json, n_key, n_text;
    di_code rc = DI_OK;

    if (file_read(&json, &n_json, path, (size_t)64 << 20, &st) != DI_OK)
        rig_stop("%s", st.message);
    json_open(&r, json, n_json, path);
    DI_TRY(json_object(&r, &st));
    while (json_key(&r, &key, &n_key)) {
        if (!json_key_is(key, n_key, "texts")) {
            DI_TRY(json_skip(&r, &st));
            continue;
        }
        DI_TRY(json_object(&r, &st));
        while (json_key(&r, &key, &n_key)) {
            bench_prompt p = {0};

            snprintf(p.name, sizeof p.name, "%.*s", (int)n_key, key);
            DI_TRY(json_string(&r, &text, &n_text, &st));
            p.text = mem_try_calloc(n_text + 1, 1);
            if (!p.text)
                rig_stop("out of memory");
            memcpy(p.text, text, n_text);
            p.n = n_text;
            *out = mem_try_realloc(*out, (size_t)*n + 1, sizeof **out);
            if (!*out)
                rig_stop("out of memory");
            (*out)[(*n)++] = p;
        }
    }
    DI_TRY(json_end(&r, &st));
done:
    json_close(&r);
    mem_free(json);
    if (rc != DI_OK)
        rig_stop("%s", st.message);
}

int rig_prompts(bench_prompt **out)
{
    int n = 0;

    *out = NULL;
    read_prompts(DI_DATA_DIR "/golden/model/tiny/golden.json", out, &n);
    read_prompts("bench/prompts.json", out, &n);
    return n;
}

void rig_prompts_free(bench_prompt *p, int n)
{
    for (int i = 0; i < n; i++)
        mem_free(p[i].text);
    mem_free(p);
}

/* ---- serving ---- */

typedef struct serving {
    const bench_load *load;
    di_engine *engine;
    pthread_mutex_t lock;
    pthread_cond_t end;
    int n_given, n_done;
    uint64_t n_tokens;
} serving;

static void on_event(const di_event *ev);

/* Submit the next request, if one is left. */
static void give_next(serving *s)
{
    di_request_params p = {0};
    di_status st = {0};
    int i;

    pthread_mutex_lock(&s->lock);
    i = s->n_given < s->load->n ? s->n_given++ : -1;
    pthread_mutex_unlock(&s->lock);
    if (i < 0)
        return;
    s->load->make(s->load->arg, i, &p);
    p.on_event = on_event;
    p.user = s;
    if (di_submit(s->engine, &p, NULL, &st) != DI_OK)
        rig_stop("%s", st.message);
}

static void on_event(const di_event *ev)
{
    serving *s = ev->user;

    if (s->load->event)
        s->load->event(s->load->arg, ev);
    if (ev->type == DI_EVENT_TOKENS)
        s->n_tokens += (uint64_t)ev->n_tokens;
    if (ev->type == DI_EVENT_FINISH && ev->finish == DI_FINISH_ERROR)
        rig_stop("%s", ev->message);
    if (ev->type != DI_EVENT_DONE)
        return;
    give_next(s);
    pthread_mutex_lock(&s->lock);
    s->n_done++;
    pthread_cond_signal(&s->end);
    pthread_mutex_unlock(&s->lock);
}

bench_time rig_serve(di_engine *e, const bench_load *load, uint64_t *n_tokens)
{
    serving s = {.load = load, .engine = e};
    bench_time start, end;

    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.end, NULL);
    start = rig_now();
    for (int i = 0; i < load->in_flight; i++)
        give_next(&s);
    pthread_mutex_lock(&s.lock);
    while (s.n_done < load->n)
        pthread_cond_wait(&s.end, &s.lock);
    pthread_mutex_unlock(&s.lock);
    end = rig_now();
    pthread_cond_destroy(&s.end);
    pthread_mutex_destroy(&s.lock);
    if (n_tokens)
        *n_tokens = s.n_tokens;
    return (bench_time){.wall = end.wall - start.wall, .cpu = end.cpu - start.cpu};
}

uint64_t rig_hash(uint64_t h, const di_event *ev)
{
    size_t n = (size_t)ev->n_tokens;

    h = XXH3_64bits_withSeed(ev->token, n * sizeof *ev->token, h);
    return ev->logprob ? XXH3_64bits_withSeed(ev->logprob, n * sizeof *ev->logprob, h) : h;
}
