/* Opens the parts in the order in which they depend on each other. See session.h. */
#include "cli/session.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"

#define CONTEXT_DEFAULT 65536

const char *const session_numerics[] = {"release", "cache", "f32", NULL};
const char *const session_engrams[] = {"auto", "device", "host", NULL}; /* engram_place */
const char *const session_devices[] = {"cpu", "cuda", "nvidia", NULL};

numerics session_numerics_of(const char *name)
{
    if (strcmp(name, "cache") == 0)
        return NUMERICS_CACHE;
    return strcmp(name, "f32") == 0 ? NUMERICS_F32 : NUMERICS_RELEASE;
}

engram_place session_engram_of(const char *name)
{
    int i = 0;

    while (session_engrams[i] && strcmp(session_engrams[i], name) != 0)
        i++;
    return (engram_place)i;
}

di_code session_load_tokenizer(tokenizer **out, const char *dir, di_status *st)
{
    char path[4096];
    di_code rc = path_join(path, sizeof path, dir, "tokenizer.json", st);

    *out = NULL;
    return rc == DI_OK ? tokenizer_load(out, path, st) : rc;
}

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
    progress *p = arg;

    p->total = total;
    progress_set(p, done);
}

static di_code choose_context(session *s, int64_t asked, di_status *st)
{
    int64_t longest = s->cfg->max_context;
    int64_t usual = longest < CONTEXT_DEFAULT ? longest : CONTEXT_DEFAULT;

    if (asked > longest)
        return di_fail(st, DI_E_INVALID,
                       "--context is %lld, but this model's longest sequence is %lld",
                       (long long)asked, (long long)longest);
    s->context = asked ? asked : usual;
    return DI_OK;
}

/* Token id -> compressed id, for the Engram tables; NULL where the model has none. */
static di_code compressed_ids(const session *s, int32_t **out, di_status *st)
{
    int n;
    di_code rc;

    *out = NULL;
    if (s->cfg->n_engram == 0)
        return DI_OK;
    *out = mem_try_calloc((size_t)s->cfg->vocab, sizeof **out);
    if (!*out)
        return di_fail(st, DI_E_NOMEM, "no memory for the compressed ids of %d tokens",
                       s->cfg->vocab);
    rc = tokenizer_compressed_ids(s->tok, *out, s->cfg->vocab, &n, st);
    if (rc == DI_OK && n != s->cfg->engram_compressed)
        rc = di_fail(st, DI_E_FORMAT,
                     "\"%s/tokenizer.json\" gives %d compressed ids, but config.json says %d: "
                     "the two files do not belong together",
                     checkpoint_dir(s->ckpt), n, s->cfg->engram_compressed);
    return rc;
}

static di_code open_model(session *s, const session_options *o, const session_limits *lim,
                          di_status *st)
{
    progress bar;
    int32_t *compressed = NULL;
    model_options mo = {.max_rows = lim->rows,
                        .max_logit_rows = lim->logit_rows,
                        .max_seqs = lim->seqs,
                        .context = s->context,
                        .progress = show_progress,
                        .progress_arg = &bar};
    di_code rc;

    progress_start(&bar, "loading", "B", 0, o->quiet);
    DI_TRY(compressed_ids(s, &compressed, st));
    DI_TRY(model_open(&s->m, s->ckpt, s->k, compressed, &mo, st));
done:
    progress_end(&bar);
    mem_free(compressed);
    return rc;
}

di_code session_open(session *s, const session_options *o, const session_limits *lim, di_status *st)
{
    const kernels_options ko = {.backend = o->backend,
                                .numerics = session_numerics_of(o->numerics),
                                .n_threads = (int)o->threads,
                                .engram = session_engram_of(o->engram)};
    di_code rc;

    *s = (session){0};
    if (!o->model) {
        rc = di_fail(st, DI_E_INVALID, "no model: give --model DIR");
        goto done;
    }
    DI_TRY(checkpoint_open(&s->ckpt, o->model, false, st));
    s->cfg = checkpoint_config(s->ckpt);
    DI_TRY(choose_context(s, o->context, st));
    DI_TRY(session_load_tokenizer(&s->tok, o->model, st));
    DI_TRY(kernels_open(&s->k, &ko, st));
    DI_TRY(open_model(s, o, lim, st));
    mem_trim(); /* what was needed to read the files */
done:
    if (rc != DI_OK)
        session_close(s);
    return rc;
}

void session_bind(const session *s, request_defaults *d)
{
    d->tok = s->tok;
    d->vocab = s->cfg->vocab;
    d->bos = s->cfg->bos;
    d->eos = s->cfg->eos;
    d->context = s->context;
}

void session_close(session *s)
{
    if (s->m)
        model_close(s->m);
    if (s->k)
        kernels_close(s->k);
    tokenizer_free(s->tok);
    checkpoint_close(s->ckpt);
    *s = (session){0};
}
