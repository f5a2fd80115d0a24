/* deepinfer logits: the logits of every position of a list of token ids, as a safetensors file. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "cli/ids.h"
#include "cli/session.h"
#include "kv/seq.h"

#define MAX_IDS_BYTES ((size_t)256 << 20)

typedef struct logits_options {
    session_options session;
    const char *ids, *out;
    int64_t chunk;
} logits_options;

static opt_result parse(logits_options *o, int argc, char **argv, di_status *st)
{
    const opt options[] = {
        SESSION_OPTIONS(o->session),
        {.name = "ids",
         .letter = 'i',
         .kind = OPT_STRING,
         .to = &o->ids,
         .arg = "FILE",
         .help = "token ids: a JSON list, or separated by blanks"},
        {.name = "out",
         .letter = 'o',
         .kind = OPT_STRING,
         .to = &o->out,
         .arg = "FILE",
         .help = "safetensors file to write"},
        {.name = "chunk",
         .kind = OPT_INT,
         .to = &o->chunk,
         .arg = "N",
         .help = "positions per step (default: 64); changes speed, not results",
         .min = 1,
         .max = 4096},
    };
    const opt_program program = {
        .name = "logits",
        .usage = "--model DIR --ids FILE --out FILE [OPTION]...",
        .summary =
            "Writes the logits of every position: row i predicts the token behind ids 0 .. i.\n"
            "Tensors: \"logits\" [n, vocabulary] F32 and \"ids\" [n] I32.",
        .options = options,
        .n = ARRAY_LEN(options),
        .notes = "The file appears under its name only when it is complete.",
    };

    return opt_parse(&program, argc, argv, NULL, st);
}

static di_code read_ids(const char *path, int vocab, tok_ids *ids, di_status *st)
{
    char *text;
    size_t n;
    di_code rc = file_read_stream(&text, &n, path, MAX_IDS_BYTES, st);

    if (rc != DI_OK)
        return rc;
    rc = ids_parse(text, n, path, vocab, ids, st);
    if (rc == DI_OK && ids->n == 0)
        rc = di_fail(st, DI_E_INVALID, "\"%s\" holds no ids", path);
    mem_free(text);
    return rc;
}

/* A safetensors file that appears under its name when it is complete. */
typedef struct out_file {
    const char *path;
    char part[4096];
    FILE *f;
} out_file;

static di_code write_bytes(out_file *o, const void *data, size_t n, di_status *st)
{
    if (fwrite(data, 1, n, o->f) != n)
        return di_fail(st, DI_E_IO, "could not write to \"%s\": %s", o->part, errno_text(errno));
    return DI_OK;
}

static di_code out_open(out_file *o, const char *path, size_t n, int vocab, di_status *st)
{
    unsigned long long logits = (unsigned long long)n * (unsigned long long)vocab * 4;
    char header[512];
    unsigned char size[8] = {0};
    int len;
    di_code rc;

    o->path = path;
    if (snprintf(o->part, sizeof o->part, "%s.part", path) >= (int)sizeof o->part)
        return di_fail(st, DI_E_INVALID, "the name of --out is too long");
    o->f = fopen(o->part, "wb");
    if (!o->f)
        return di_fail(st, DI_E_IO, "could not open \"%s\": %s", o->part, errno_text(errno));
    len = snprintf(header, sizeof header,
                   "{\"logits\":{\"dtype\":\"F32\",\"shape\":[%zu,%d],\"data_offsets\":[0,%llu]},"
                   "\"ids\":{\"dtype\":\"I32\",\"shape\":[%zu],\"data_offsets\":[%llu,%llu]}}",
                   n, vocab, logits, n, logits, logits + 4ULL * n);
    while (len % 8)
        header[len++] = ' ';
    size[0] = (unsigned char)len;
    size[1] = (unsigned char)(len >> 8);
    DI_TRY(write_bytes(o, size, sizeof size, st));
    DI_TRY(write_bytes(o, header, (size_t)len, st));
done:
    return rc;
}

/* Finish the file, or take back what there is of it when `ok` is false. */
static di_code out_close(out_file *o, bool ok, di_status *st)
{
    bool written;

    if (!o->f)
        return DI_OK;
    written = fclose(o->f) == 0;
    o->f = NULL;
    if (ok && written && rename(o->part, o->path) == 0)
        return DI_OK;
    if (ok)
        di_fail(st, DI_E_IO, "could not write \"%s\": %s", o->path, errno_text(errno));
    unlink(o->part);
    return ok ? DI_E_IO : DI_OK;
}

/* Run all positions in chunks and write each chunk's logits. */
static di_code run_chunks(const session *s, kv_seq *seq, const tok_ids *ids, int chunk, float *host,
                          out_file *out, progress *bar, di_status *st)
{
    size_t vocab = (size_t)s->cfg->vocab;
    int64_t ngram = s->cfg->n_engram ? s->cfg->engram_ngram : 1;
    di_code rc = DI_OK;

    for (int64_t at = 0, n; at < (int64_t)ids->n; at += n) {
        int64_t history = at < ngram - 1 ? at : ngram - 1;
        seq_rows rows;
        float *logits;

        n = (int64_t)ids->n - at < chunk ? (int64_t)ids->n - at : chunk;
        DI_TRY(kv_seq_reserve(seq, at + n, st));
        rows = (seq_rows){.view = kv_seq_view(seq),
                          .n = (int)n,
                          .token = ids->ids + at,
                          .history = ids->ids + at - history,
                          .n_history = (int)history,
                          .n_logits = (int)n};
        DI_TRY(model_forward(s->m, &rows, 1, &logits, st));
        DI_TRY(s->k->ops->finish(s->k, st));
        s->k->ops->get(s->k, host, logits, (size_t)n * vocab * sizeof *host);
        kv_seq_set_len(seq, at + n);
        DI_TRY(write_bytes(out, host, (size_t)n * vocab * sizeof *host, st));
        progress_set(bar, (uint64_t)(at + n));
    }
    DI_TRY(write_bytes(out, ids->ids, ids->n * sizeof *ids->ids, st));
done:
    return rc;
}

static di_code check_length(const session *s, size_t n, di_status *st)
{
    if ((int64_t)n > s->context)
        return di_fail(
            st, DI_E_INVALID,
            "there are %zu ids, but the longest sequence is %lld: use a larger --context", n,
            (long long)s->context);
    return DI_OK;
}

static di_code run(const logits_options *o, di_status *st)
{
    const int chunk = (int)o->chunk;
    const session_limits lim = {.rows = chunk, .logit_rows = chunk, .seqs = 1};
    session s = {0};
    tok_ids ids = {0};
    kv_pool *blocks = NULL;
    kv_seq *seq = NULL;
    float *host = NULL;
    out_file out = {0};
    progress bar;
    di_code rc;

    DI_TRY(session_open(&s, &o->session, &lim, st));
    DI_TRY(read_ids(o->ids, s.cfg->vocab, &ids, st));
    DI_TRY(check_length(&s, ids.n, st));
    DI_TRY(kv_pool_new_in(&blocks, kernels_kv_memory(s.k), model_kv_layout(s.m),
                          (int)((ids.n + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS), 1, st));
    DI_TRY(kv_seq_new(blocks, &seq, st));
    host = mem_try_calloc((size_t)chunk * (size_t)s.cfg->vocab, sizeof *host);
    if (!host) {
        rc = di_fail(st, DI_E_NOMEM, "no memory for the logits of %d positions", chunk);
        goto done;
    }
    DI_TRY(out_open(&out, o->out, ids.n, s.cfg->vocab, st));
    progress_start(&bar, "logits", "positions", ids.n, o->session.quiet);
    rc = run_chunks(&s, seq, &ids, chunk, host, &out, &bar, st);
    progress_end(&bar);
done:
    if (out_close(&out, rc == DI_OK, st) != DI_OK)
        rc = DI_E_IO;
    mem_free(host);
    kv_seq_free(seq);
    if (blocks)
        kv_pool_free(blocks);
    tok_ids_fini(&ids);
    session_close(&s);
    return rc;
}

int cli_logits(int argc, char **argv)
{
    logits_options o = {.session = SESSION_DEFAULTS, .chunk = 64};
    di_status st = {0};

    switch (parse(&o, argc, argv, &st)) {
    case OPT_HELP_SHOWN:
        return CLI_OK;
    case OPT_WRONG:
        return cli_fail("logits", &st);
    case OPT_RUN:
        break;
    }
    if (!o.ids || !o.out) {
        di_fail(&st, DI_E_INVALID, "give --ids FILE and --out FILE");
        return cli_fail("logits", &st);
    }
    return run(&o, &st) == DI_OK ? CLI_OK : cli_fail("logits", &st);
}
