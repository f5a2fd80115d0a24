/* deepinfer inspect: what a checkpoint holds and what it takes to run it. Reads headers only, and
 * the scale bytes with --verify. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json_write.h"
#include "base/progress.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/dummy.h"
#include "checkpoint/sizes.h"
#include "cli/cli.h"
#include "cli/memory.h"
#include "cli/options.h"
#include "cli/session.h"
#include "cli/weights.h"

#define NAME "inspect"

typedef struct report {
    const checkpoint *c;
    const model_config *cfg;
    model_sizes sizes;
    memory_report mem;
    bool verified; /* scales were read */
    const di_status *finding;
} report;

/* Role of a layer, in the words of spec section 1. */
typedef struct role {
    const char *mode, *candidates;
    int ratio, kv_owner, index_owner, tap; /* -1 = none */
    bool engram;
} role;

static role role_of(const model_config *c, int layer)
{
    role r = {.mode = "window", .candidates = "-", .kv_owner = -1, .index_owner = -1, .tap = -1};

    if (layer >= c->n_layers)
        return r;
    r.ratio = c->ratio[layer];
    r.kv_owner = config_kv_owner(c, layer);
    r.index_owner = config_index_owner(c, layer);
    r.tap = config_tap_idx(c, layer);
    r.engram = config_engram_idx(c, layer) >= 0;
    if (r.ratio == 0)
        return r;
    r.mode = config_kv_source_idx(c, layer) >= 0 ? "full"
             : config_is_index_source(c, layer)  ? "reindex"
                                                 : "reuse";
    if (layer == c->cand_source)
        r.candidates = "produces";
    else if (c->cand_source >= 0 && layer > c->cand_source && config_is_index_source(c, layer))
        r.candidates = "filtered";
    return r;
}

static bool same_role(const role *a, const role *b)
{
    return strcmp(a->mode, b->mode) == 0 && strcmp(a->candidates, b->candidates) == 0 &&
           a->ratio == b->ratio && a->kv_owner == b->kv_owner && a->index_owner == b->index_owner &&
           (a->tap < 0) == (b->tap < 0) && a->engram == b->engram;
}

/* ------------------------------------------------------------------------------------ text */

/* 1234567 -> "1,234,567". Returns buf. */
static const char *grouped(char buf[32], uint64_t v)
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, v), at = 0;

    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = 0;
    return buf;
}

/* Three or four significant digits with a unit: parameters by thousands, bytes by 1,024. */
static const char *scaled(char buf[32], uint64_t v, double unit, const char *const *units)
{
    double x = (double)v;
    int i = 0;

    while (x >= unit && units[i + 1]) {
        x /= unit;
        i++;
    }
    snprintf(buf, 32, "%.*f%s%s", i == 0 ? 0 : 2, x, *units[i] ? " " : "", units[i]);
    return buf;
}

static const char *human_params(char buf[32], uint64_t v)
{
    static const char *const units[] = {"", "K", "M", "B", "T", NULL};

    return scaled(buf, v, 1000, units);
}

static const char *human_bytes(char buf[32], uint64_t v)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", NULL};

    return scaled(buf, v, 1024, units);
}

static void print_head(const report *r)
{
    const model_config *c = r->cfg;
    const part_size *t = &r->sizes.total;
    char a[32], b[32], d[32];
    int n = checkpoint_n_shards(r->c);

    printf("%s\n", checkpoint_dir(r->c));
    printf("%d layers, %d draft stages, hidden %d, %d heads x %d, %d experts (%d used), "
           "vocabulary %d, context %" PRId64 ", %s\n",
           c->n_layers, c->n_stages, c->hidden, c->n_heads, c->head_dim, c->n_experts, c->n_active,
           c->vocab, c->max_context, c->vision.n_layers ? "with vision" : "text only");
    printf("%s tensors, %s bytes (%s) ", grouped(a, t->tensors), grouped(b, t->bytes),
           human_bytes(d, t->bytes));
    if (checkpoint_is_dummy(r->c))
        fputs("generated\n\n", stdout);
    else
        printf("in %d %s\n\n", n, n == 1 ? "shard" : "shards");
}

static void print_part(const char *name, const part_size *p)
{
    char a[32], b[32], d[32], e[32];

    printf("%-20s %8s %10s %18s %20s\n", name, grouped(a, p->tensors), human_params(b, p->params),
           grouped(d, p->params), grouped(e, p->bytes));
}

static void print_parts(const report *r)
{
    printf("%-20s %8s %10s %18s %20s\n", "part", "tensors", "params", "", "bytes");
    for (int p = 0; p < CKPT_PART_COUNT; p++) {
        if (p == CKPT_PART_ENGRAM_TABLES)
            print_part("= backbone", &r->sizes.backbone);
        if (r->sizes.part[p].tensors > 0)
            print_part(ckpt_part_name((ckpt_part)p), &r->sizes.part[p]);
    }
    print_part("= total", &r->sizes.total);
    putchar('\n');
}

/* "7", "3-7", "mtp.0-2" */
static const char *layer_range(char buf[32], const model_config *c, int from, int to)
{
    const char *pre = from >= c->n_layers ? "mtp." : "";
    int base = from >= c->n_layers ? c->n_layers : 0;

    if (from == to)
        snprintf(buf, 32, "%s%d", pre, from - base);
    else
        snprintf(buf, 32, "%s%d-%d", pre, from - base, to - base);
    return buf;
}

static const char *number_or_dash(char buf[32], int v)
{
    if (v < 0)
        return "-";
    snprintf(buf, 32, "%d", v);
    return buf;
}

static void print_layers(const report *r)
{
    const model_config *c = r->cfg;
    int n = c->n_layers + c->n_stages, to;
    char a[32], b[32], d[32];

    printf("%-10s %-8s %5s %9s %11s  %-10s %-7s %s\n", "layers", "mode", "ratio", "KV owner",
           "top-k owner", "candidates", "Engram", "draft tap");
    for (int from = 0; from < n; from = to + 1) {
        role first = role_of(c, from);

        for (to = from; to + 1 < n && to + 1 != c->n_layers; to++) {
            role next = role_of(c, to + 1);

            if (!same_role(&first, &next))
                break;
        }
        printf("%-10s %-8s %5d %9s %11s  %-10s %-7s %s\n", layer_range(a, c, from, to), first.mode,
               first.ratio, number_or_dash(b, first.kv_owner), number_or_dash(d, first.index_owner),
               first.candidates, first.engram ? "yes" : "-", first.tap >= 0 ? "yes" : "-");
    }
    putchar('\n');
}

static void print_costs(const report *r)
{
    const model_sizes *s = &r->sizes;
    char a[32], b[32], d[32];

    printf("active parameters    %s per prompt token, %s per output token\n",
           human_params(a, s->active_prompt), human_params(b, s->active_output));
    printf("state of a sequence  %g bytes per token; fixed: rings %s, draft rings %s, open groups "
           "%s bytes\n",
           s->kv_token_bytes, grouped(a, s->ring_bytes), grouped(b, s->draft_ring_bytes),
           grouped(d, s->open_bytes));
}

static void print_memory(const report *r)
{
    const memory_report *m = &r->mem;
    const engine_memory *e = &m->engine;
    const model_memory *p = &e->model;
    int n = m->opt.engine.max_seqs;
    char a[32], b[32], d[32];

    printf("memory needed        %s for %d %s of up to 128 tokens each, and %s for each 1,000 "
           "tokens more; %s when all have %s tokens; %s at most\n",
           human_bytes(a, m->total), n, n == 1 ? "sequence" : "sequences",
           human_bytes(b, (uint64_t)memory_per_1000(m)), human_bytes(d, m->full),
           grouped((char[32]){0}, (uint64_t)e->context), human_bytes((char[32]){0}, m->peak));
    if (e->device > 0)
        printf("  on the device      %s of it, taken at once\n", human_bytes(a, e->device));
    printf("  weights            %s as back end %s holds them\n", human_bytes(a, p->weights),
           m->backend);
    printf("  embedding          %s, mapped, read all the time\n", human_bytes(a, p->embedding));
    printf("  step buffers       %s\n", human_bytes(a, p->step));
    printf("  kernel scratch     %s for %d %s\n", human_bytes(a, p->scratch), m->opt.threads,
           m->opt.threads == 1 ? "thread" : "threads");
    printf("  tokenizer          %s%s\n", human_bytes(a, e->tokenizer),
           m->tokenizer_read ? "" : ", estimated from the vocabulary");
    printf("  sequences          %s, and %s in the first block of each\n",
           human_bytes(a, e->store.start), human_bytes(b, e->first_blocks));
    printf("  process            %s\n", human_bytes(a, m->process));
    if (r->cfg->n_engram > 0)
        printf("  Engram rows        %s of %s tables, mapped and read on demand: the system takes "
               "them back\n",
               human_bytes(a, p->engram_used), human_bytes(b, p->engram));
    printf("  pool, as it fills  %s for %s tokens; prefix cache: %s\n",
           human_bytes(a, e->store.blocks), grouped(b, (uint64_t)e->kv_tokens),
           m->opt.engine.no_prefix_cache ? "off" : human_bytes(d, e->store.checkpoints));
}

static void print_text(const report *r)
{
    print_head(r);
    print_parts(r);
    print_layers(r);
    print_costs(r);
    print_memory(r);
    if (r->verified)
        printf("scales               %s\n",
               r->finding->code == DI_OK ? "all sound" : r->finding->message);
}

/* ------------------------------------------------------------------------------------ JSON */

static void jw_field(json_write *w, const char *key, uint64_t v)
{
    jw_key(w, key);
    jw_uint(w, v);
}

static void json_part(json_write *w, const char *name, const part_size *p)
{
    jw_key(w, name);
    jw_object(w);
    jw_field(w, "tensors", p->tensors);
    jw_field(w, "params", p->params);
    jw_field(w, "bytes", p->bytes);
    jw_end(w);
}

static void json_optional(json_write *w, const char *key, int v)
{
    jw_key(w, key);
    if (v >= 0)
        jw_int(w, v);
    else
        jw_null(w);
}

static void json_layers(json_write *w, const model_config *c)
{
    jw_key(w, "layers");
    jw_array(w);
    for (int l = 0; l < c->n_layers + c->n_stages; l++) {
        role r = role_of(c, l);
        char name[32];

        jw_object(w);
        jw_key(w, "layer");
        jw_cstr(w, layer_range(name, c, l, l));
        jw_key(w, "mode");
        jw_cstr(w, r.mode);
        jw_key(w, "ratio");
        jw_int(w, r.ratio);
        json_optional(w, "kv_owner", r.kv_owner);
        json_optional(w, "topk_owner", r.index_owner);
        jw_key(w, "candidates");
        jw_cstr(w, strcmp(r.candidates, "-") == 0 ? "none" : r.candidates);
        jw_key(w, "engram");
        jw_bool(w, r.engram);
        json_optional(w, "draft_tap", r.tap);
        jw_end(w);
    }
    jw_end(w);
}

static void json_costs(json_write *w, const report *r)
{
    const model_sizes *s = &r->sizes;

    jw_field(w, "active_params_per_prompt_token", s->active_prompt);
    jw_field(w, "active_params_per_output_token", s->active_output);
    jw_key(w, "kv_bytes_per_token");
    jw_number(w, s->kv_token_bytes);
    jw_field(w, "ring_bytes_per_sequence", s->ring_bytes);
    jw_field(w, "draft_ring_bytes_per_sequence", s->draft_ring_bytes);
    jw_field(w, "open_group_bytes_per_sequence", s->open_bytes);
}

static void json_memory(json_write *w, const memory_report *m)
{
    const engine_memory *e = &m->engine;
    const model_memory *p = &e->model;

    jw_key(w, "memory");
    jw_object(w);
    jw_field(w, "context", (uint64_t)e->context);
    jw_field(w, "sequences", (uint64_t)m->opt.engine.max_seqs);
    jw_field(w, "threads", (uint64_t)m->opt.threads);
    jw_key(w, "backend");
    jw_cstr(w, m->backend);
    jw_field(w, "weights", p->weights);
    jw_field(w, "embedding", p->embedding);
    jw_field(w, "step_buffers", p->step);
    jw_field(w, "kernel_scratch", p->scratch);
    jw_field(w, "tokenizer", e->tokenizer);
    jw_field(w, "sequence_state", e->store.start);
    jw_field(w, "sequence_blocks", e->first_blocks);
    jw_field(w, "process", m->process);
    jw_field(w, "engram_rows", p->engram_used);
    jw_field(w, "total", m->total);
    jw_field(w, "device", e->device);
    jw_key(w, "per_1000_tokens");
    jw_number(w, memory_per_1000(m));
    jw_field(w, "total_full", m->full);
    jw_field(w, "kv_tokens", (uint64_t)e->kv_tokens);
    jw_field(w, "kv_pool", e->store.blocks);
    jw_field(w, "prefix_cache", e->store.checkpoints);
    jw_field(w, "peak", m->peak);
    jw_field(w, "mapped_on_demand", p->engram);
    jw_end(w);
}

static void json_report(json_write *w, const report *r)
{
    jw_object(w);
    jw_key(w, "model");
    jw_cstr(w, checkpoint_dir(r->c));
    jw_key(w, "shards");
    jw_array(w);
    for (int i = 0; i < checkpoint_n_shards(r->c); i++)
        jw_cstr(w, checkpoint_shard_name(r->c, i));
    jw_end(w);
    jw_key(w, "parts");
    jw_object(w);
    for (int p = 0; p < CKPT_PART_COUNT; p++)
        json_part(w, ckpt_part_name((ckpt_part)p), &r->sizes.part[p]);
    jw_end(w);
    json_part(w, "backbone", &r->sizes.backbone);
    json_part(w, "total", &r->sizes.total);
    json_costs(w, r);
    json_memory(w, &r->mem);
    json_layers(w, r->cfg);
    if (r->verified) {
        jw_key(w, "scales_sound");
        jw_bool(w, r->finding->code == DI_OK);
        jw_key(w, "finding");
        if (r->finding->code == DI_OK)
            jw_null(w);
        else
            jw_cstr(w, r->finding->message);
    }
    jw_end(w);
}

static di_code print_json(const report *r, di_status *st)
{
    str out = {.len = 0};
    json_write w = {.out = &out, .indent = 2};
    bool ok;

    json_report(&w, r);
    ok = str_ok(&out);
    if (ok)
        puts(str_text(&out));
    str_fini(&out);
    return ok ? DI_OK : di_fail(st, DI_E_NOMEM, "no memory for the report");
}

/* --------------------------------------------------------------------------------- program */

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
    progress *p = arg;

    p->total = total;
    progress_set(p, done);
}

static void verify(const report *r, bool quiet, di_status *finding)
{
    progress p;

    progress_start(&p, "checking scales", "B", 0, quiet);
    checkpoint_verify(r->c, show_progress, &p, finding);
    progress_end(&p);
}

typedef struct arguments {
    const char *dir;
    bool json, verify, quiet, no_cache;
    const char *backend;
    int64_t context, batch, threads, kv_tokens;
    weights_choice weights;
} arguments;

static opt_result parse(arguments *a, int argc, char **argv, di_status *st)
{
    const opt options[] = {
        {.name = "model",
         .kind = OPT_STRING,
         .to = &a->dir,
         .arg = "DIR",
         .help = "folder of the checkpoint (or give it without --model)"},
        {.name = "json", .kind = OPT_FLAG, .to = &a->json, .help = "print JSON"},
        {.name = "verify",
         .kind = OPT_FLAG,
         .to = &a->verify,
         .help = "read every scale byte too and refuse NaN"},
        {.name = "context",
         .kind = OPT_INT,
         .to = &a->context,
         .arg = "N",
         .help = "memory for sequences of N tokens (default: the model's, up to 65536)",
         .min = 1,
         .max = 1 << 24},
        {.name = "batch",
         .kind = OPT_INT,
         .to = &a->batch,
         .arg = "N",
         .help = "... for N sequences at the same time (default: 16)",
         .min = 1,
         .max = 256},
        {.name = "kv-tokens",
         .kind = OPT_INT,
         .to = &a->kv_tokens,
         .arg = "N",
         .help = "... with a KV pool for N tokens (default: by free memory)",
         .min = 128,
         .max = 1ll << 40},
        {.name = "no-prefix-cache",
         .kind = OPT_FLAG,
         .to = &a->no_cache,
         .help = "... without the prefix cache"},
        {.name = "threads",
         .letter = 't',
         .kind = OPT_INT,
         .to = &a->threads,
         .arg = "N",
         .help = "... for N threads (default: one per processor)",
         .min = 1,
         .max = 256},
        {.name = "backend",
         .kind = OPT_STRING,
         .to = &a->backend,
         .arg = "NAME",
         .help = "... with auto (the fastest here), avx512, avx2, ref or cuda"},
        {.name = "device",
         .kind = OPT_CHOICE,
         .to = &a->backend,
         .arg = "NAME",
         .help = "... on cpu or cuda (nvidia): --backend auto or cuda",
         .choices = session_devices},
        WEIGHTS_OPTIONS(a->weights),
        {.name = "quiet",
         .letter = 'q',
         .kind = OPT_FLAG,
         .to = &a->quiet,
         .help = "no progress bar"},
    };
    const opt_program p = {.name = NAME,
                           .usage = "DIR [OPTION]...",
                           .summary = "What a checkpoint holds, and what it takes to run it.\n"
                                      "Checks every header and reads no weights.",
                           .options = options,
                           .n = ARRAY_LEN(options)};
    int first = argc;
    opt_result got = opt_parse(&p, argc, argv, &first, st);

    if (got == OPT_RUN && !a->dir && first < argc)
        a->dir = argv[first++];
    if (got == OPT_RUN && !a->dir) {
        di_fail(st, DI_E_INVALID,
                "give the folder of a checkpoint (see deepinfer " NAME " --help)");
        return OPT_WRONG;
    }
    if (got == OPT_RUN && first < argc) {
        di_fail(st, DI_E_INVALID, "one folder at a time, \"%s\" is too many", argv[first]);
        return OPT_WRONG;
    }
    return got;
}

static di_code open_checkpoint(checkpoint **c, const arguments *a, di_status *st)
{
    di_model_options mo = {0};
    dummy_options d;
    di_code rc = weights_apply(&a->weights, &mo, st);

    if (rc != DI_OK || strcmp(mo.load_format, "dummy") != 0)
        return rc != DI_OK ? rc : checkpoint_open(c, a->dir, !a->verify, st);
    d = (dummy_options){.n_layers = mo.dummy_layers,
                        .share = mo.dummy_share,
                        .n_shares = mo.dummy_shares,
                        .engram_rows = mo.dummy_engram_rows};
    return checkpoint_open_dummy(c, a->dir, &d, DUMMY_HEADERS, st);
}

static di_code run(const arguments *a, di_status *finding, di_status *st)
{
    checkpoint *c = NULL;
    report r = {.verified = a->verify, .finding = finding};
    memory_options mo = {.backend = a->backend,
                         .threads = (int)a->threads,
                         .engine = {.max_seqs = (int)a->batch,
                                    .kv_tokens = a->kv_tokens,
                                    .no_prefix_cache = a->no_cache}};
    di_code rc = DI_OK;

    DI_TRY(open_checkpoint(&c, a, st));
    r.c = c;
    r.cfg = checkpoint_config(c);
    mo.engine.max_context = a->context; /* 0: the engine's default */
    DI_TRY(memory_predict(&r.mem, c, &mo, st));
    sizes_of(&r.sizes, r.cfg);
    if (a->verify)
        verify(&r, a->quiet, finding);
    if (a->json)
        rc = print_json(&r, st);
    else
        print_text(&r);
done:
    checkpoint_close(c);
    return rc;
}

int cli_inspect(int argc, char **argv)
{
    arguments a = {.backend = "auto", .batch = 16, .weights = WEIGHTS_DEFAULTS};
    di_status st = {.code = DI_OK}, finding = {.code = DI_OK};

    switch (parse(&a, argc, argv, &st)) {
    case OPT_HELP_SHOWN:
        return CLI_OK;
    case OPT_WRONG:
        return cli_fail(NAME, &st);
    case OPT_RUN:
        break;
    }
    if (run(&a, &finding, &st) != DI_OK)
        return cli_fail(NAME, &st);
    if (finding.code == DI_OK)
        return CLI_OK;
    cli_fail(NAME, &finding);
    return CLI_FOUND;
}
