/* The table of DeepInfer's names. See names.h. */
#include "cli/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

#define PREFIX "DEEPINFER_"

extern char **environ;

/* clang-format off */
static const known_name table[] = {
    {"max-model-len", NULL, NAME_SAME, {"context"}, NULL},
    {"max-seqs", NULL, NAME_SAME, {"max-running", "batch"}, NULL},
    {"max-batched-tokens", NULL, NAME_SAME, {"max-batched-tokens"}, NULL},
    {"load-format", NULL, NAME_SAME, {"load-format"}, NULL},
    {"served-model-name", NULL, NAME_SAME, {"served-model-name"}, NULL},
    {"seed", NULL, NAME_SAME, {"seed"}, NULL},
    {"engine-type", NULL, NAME_ONLY, {NULL}, "normal"},
    {"chunked-prefill", NULL, NAME_ONLY, {NULL}, "true"},
    {"block-size", NULL, NAME_ONLY, {NULL}, "128"},
    {"lookahead", NULL, NAME_ONLY, {NULL}, "0"},
    {"dp", NULL, NAME_ONLY, {NULL}, "1"},
    {"cp", NULL, NAME_ONLY, {NULL}, "1"},
    {"ep", NULL, NAME_ONLY, {NULL}, "1"},
    {"engram-parallel", NULL, NAME_ONLY, {NULL}, "1"},
    {"rank", NULL, NAME_ONLY, {NULL}, "0"},
    {"group-rank", NULL, NAME_ONLY, {NULL}, "0"},
    {"device", "ACCELERATOR", NAME_SAME, {"device"}, NULL},
    {"zero-overhead", "ZERO_OVERHEAD_SCHEDULING", NAME_OFF, {"no-async"}, NULL},
    {"draft-tokens", "USE_NEXTN_DECODE", NAME_SAME, {"draft-tokens"}, NULL},
    {"draft-adaptive", "ENABLE_MTP_VARLEN", NAME_OFF, {"draft-fixed"}, NULL},
    {"cost-curve-dir", "DECODE_PERF_CACHE_DIR", NAME_SAME, {"cost-dir"}, NULL},
    {"replay", "YOCO_PREFILL_TRUNCATION_MODE", NAME_SAME, {"replay"}, NULL},
    {"replay-keep", "YOCO_PREFILL_KEEP_TOKENS", NAME_SAME, {"replay-keep"}, NULL},
    {"batch-invariant", "BATCH_INVARIANT", NAME_ONLY, {NULL}, "bool"},
    {"stats-interval", "LOGGING_INTERVAL_STEP", NAME_SAME, {"stats-interval"}, NULL},
    {NULL, "PREFILL_ATTEMPT_INTERVAL", NAME_NONE, {NULL}, NULL},
    {NULL, "PREFILL_ANY_ATTEMPT_INTERVAL", NAME_NONE, {NULL}, NULL},
    {NULL, "PREFILL_MAX_SUM_SEQLEN_K", NAME_NONE, {NULL}, NULL},
    {NULL, "INDEX_ATTN_MEMORY_LIMIT", NAME_NONE, {NULL}, NULL},
    {NULL, "MAX_BACKTRACKING_TOKENS", NAME_NONE, {NULL}, NULL},
    {NULL, "DFLASH_CONFIDENCE_HEAD_TEMPERATURE", NAME_NONE, {NULL}, NULL},
    {NULL, "DECODE_PERF_CACHE_TTL_SEC", NAME_NONE, {NULL}, NULL},
    {NULL, "ENFORCE_EAGER", NAME_NONE, {NULL}, NULL},
    {NULL, "DFLASH_ENFORCE_EAGER", NAME_NONE, {NULL}, NULL},
    {NULL, "CUDAGRAPH_BATCH_SIZE_INTERVAL", NAME_NONE, {NULL}, NULL},
    {NULL, "DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL", NAME_NONE, {NULL}, NULL},
    {NULL, "SAMPLER_FORCE_TOPK", NAME_NONE, {NULL}, NULL},
    {NULL, "DECODE_TOKEN_BLACKLIST", NAME_NONE, {NULL}, NULL},
    {NULL, "COMPUTE_SUM_SMALLER_PROBS", NAME_NONE, {NULL}, NULL},
    {NULL, "XGRAMMAR_TIMEOUT", NAME_NONE, {NULL}, NULL},
    {NULL, "XGRAMMAR_DISABLE_CACHE", NAME_NONE, {NULL}, NULL},
    {NULL, "XGRAMMAR_CACHE_LIMIT_BYTES", NAME_NONE, {NULL}, NULL},
    {NULL, "XGRAMMAR_DEBUG", NAME_NONE, {NULL}, NULL},
    {NULL, "SO_BUILDER_CPUS", NAME_NONE, {NULL}, NULL},
    {NULL, "NUM_STATE_SLOTS_RATIO", NAME_NONE, {NULL}, NULL},
    {NULL, "PREFILL_STORE_EXTRA_STATE", NAME_NONE, {NULL}, NULL},
    {NULL, "PREFILL_STORE_EXTRA_STATE_SIZE", NAME_NONE, {NULL}, NULL},
    {NULL, "OVERRIDE_NUM_EXTRA_EXPERTS", NAME_NONE, {NULL}, NULL},
    {NULL, "EXPERT_COUNT_WINDOW_SIZE", NAME_NONE, {NULL}, NULL},
    {NULL, "EXPERT_REARRANGEMENT_STEP_INTERVAL", NAME_NONE, {NULL}, NULL},
    {NULL, "REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE", NAME_NONE, {NULL}, NULL},
    {NULL, "REARRANGE_P2P_GROUPS", NAME_NONE, {NULL}, NULL},
    {NULL, "SHOW_EPLB_DETAIL", NAME_NONE, {NULL}, NULL},
    {NULL, "MOE_LB_STAT_INTERVAL", NAME_NONE, {NULL}, NULL},
    {NULL, "FORCE_LOAD_BALANCE", NAME_NONE, {NULL}, NULL},
    {NULL, "FORCE_IMBALANCE_RATIO", NAME_NONE, {NULL}, NULL},
    {NULL, "ENGRAM_PAD_TOKEN", NAME_NONE, {NULL}, NULL},
    {NULL, "ENGRAM_FORCE_GPU_STORAGE", NAME_NONE, {NULL}, NULL},
    {NULL, "USE_MULTIMODAL_POOL", NAME_NONE, {NULL}, NULL},
    {NULL, "MULTIMODAL_POOL_SIZE_GB", NAME_NONE, {NULL}, NULL},
    {NULL, "MULTI_MODAL_BUFFER_SIZE", NAME_NONE, {NULL}, NULL},
    {NULL, "MULTI_MODAL_WORKER_TIMEOUT", NAME_NONE, {NULL}, NULL},
    {NULL, "PROFILE_HTTP_ENABLE", NAME_NONE, {NULL}, NULL},
    {NULL, "PROFILE_HTTP_PORT_BASE", NAME_NONE, {NULL}, NULL},
    {NULL, "TORCH_PROFILER_DIR", NAME_NONE, {NULL}, NULL},
    {NULL, "GLOO_TIMEOUT", NAME_NONE, {NULL}, NULL},
    {NULL, "RINGBUFFER_WARNING_INTERVAL", NAME_NONE, {NULL}, NULL},
    {NULL, "NCCL_NUM_SMS", NAME_NONE, {NULL}, NULL},
    {NULL, "USERBUFFER_COMM_SMS", NAME_NONE, {NULL}, NULL},
    {NULL, "JIT_CACHE_DIR", NAME_NONE, {NULL}, NULL},
    {NULL, "GC_INTERVAL_STEP", NAME_NONE, {NULL}, NULL},
    {NULL, "DISABLE_SYNC_GUARD", NAME_NONE, {NULL}, NULL},
    {NULL, "PROFILE_TORCH_CUDA_MEMORY", NAME_NONE, {NULL}, NULL},
    {NULL, "ENABLE_MEMORY_TRACING", NAME_NONE, {NULL}, NULL},
    {NULL, "NCCL_MEMORY_SAMPLE_INTERVAL_STEPS", NAME_NONE, {NULL}, NULL},
};
/* clang-format on */

const known_name *names_all(size_t *n)
{
    *n = ARRAY_LEN(table);
    return table;
}

/* DeepInfer's rule: false is one of these, everything else is true. */
static bool boolean(const char *value)
{
    return !value || (*value && strcmp(value, "0") != 0 && strcmp(value, "false") != 0 &&
                      strcmp(value, "False") != 0);
}

static const opt *target(const opt_program *p, const known_name *k)
{
    const opt *o = NULL;

    for (int i = 0; i < 2 && !o; i++)
        o = k->ours[i] ? opt_find(p, k->ours[i]) : NULL;
    return o;
}

static bool runs_engine(const opt_program *p)
{
    return opt_find(p, "draft-tokens") != NULL;
}

bool names_fit(const opt_program *p, const known_name *k)
{
    return k->kind == NAME_ONLY ? runs_engine(p) : target(p, k) != NULL;
}

bool names_boolean(const known_name *k)
{
    return k->kind == NAME_OFF ||
           (k->only && (strcmp(k->only, "bool") == 0 || strcmp(k->only, "true") == 0));
}

static di_code set_only(const known_name *k, const char *value, di_status *st)
{
    bool same = strcmp(k->only, "bool") == 0 ||
                (strcmp(k->only, "true") == 0 ? boolean(value) : value && !strcmp(value, k->only));

    if (same)
        return DI_OK;
    return di_fail(st, DI_E_INVALID, "%s is \"%s\", but here it is always %s",
                   k->option ? k->option : k->variable, value ? value : "", k->only);
}

di_code names_set(const opt_program *p, const known_name *k, const char *value, di_status *st)
{
    const opt *o = target(p, k);

    switch (k->kind) {
    case NAME_SAME:
        return opt_set(o, value ? value : "", st);
    case NAME_OFF:
        return boolean(value) ? DI_OK : opt_set(o, NULL, st);
    case NAME_ONLY:
        return set_only(k, value, st);
    case NAME_NONE:
        break;
    }
    return di_fail(st, DI_E_INTERNAL, "%s has no meaning here", k->variable);
}

/* ---- environment ---- */

static const known_name *by_variable(const char *name, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].variable && strlen(table[i].variable) == n &&
            strncmp(table[i].variable, name, n) == 0)
            return &table[i];
    return NULL;
}

/* One "DEEPINFER_NAME=value" of the environment. */
static di_code take_variable(const opt_program *p, const char *entry, di_status *st)
{
    const char *name = entry + strlen(PREFIX), *value = strchr(name, '=');
    size_t n = value ? (size_t)(value - name) : strlen(name);
    const known_name *k = by_variable(name, n);
    di_code rc;

    value = value ? value + 1 : "";
    if (!k || k->kind == NAME_NONE) {
        fprintf(stderr, "deepinfer %s: " PREFIX "%.*s has no meaning here and is ignored\n",
                p->name, (int)n, name);
        return DI_OK;
    }
    if (!*value || !names_fit(p, k)) /* empty as if not there; or of another subcommand */
        return DI_OK;
    if (k->kind == NAME_SAME && strcmp(value, "0") == 0 &&
        strcmp(k->variable, "USE_NEXTN_DECODE") != 0)
        return DI_OK; /* DeepInfer's word for the default */
    rc = names_set(p, k, value, st);
    if (rc != DI_OK)
        di_context(st, PREFIX "%s", k->variable);
    return rc;
}

di_code names_environment(const opt_program *p, di_status *st)
{
    di_code rc = DI_OK;

    if (!runs_engine(p))
        return DI_OK;
    for (char **at = environ; *at && rc == DI_OK; at++)
        if (strncmp(*at, PREFIX, strlen(PREFIX)) == 0)
            rc = take_variable(p, *at, st);
    return rc;
}

/* ---- table ---- */

static void print_meaning(const known_name *k)
{
    switch (k->kind) {
    case NAME_SAME:
        printf("`--%s`", k->ours[0]);
        if (k->ours[1])
            printf(", `--%s`", k->ours[1]);
        break;
    case NAME_OFF:
        printf("`--%s` when false", k->ours[0]);
        break;
    case NAME_ONLY:
        if (strcmp(k->only, "bool") == 0)
            printf("always so, whatever it says");
        else
            printf("always %s; no other value is possible", k->only);
        break;
    case NAME_NONE:
        break;
    }
}

void names_print(void)
{
    puts("| option | variable | here |\n|---|---|---|");
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        const known_name *k = &table[i];

        if (k->kind == NAME_NONE)
            continue;
        if (k->option)
            printf("| `--%s` | ", k->option);
        else
            printf("| | ");
        if (k->variable)
            printf("`" PREFIX "%s` | ", k->variable);
        else
            printf("| ");
        print_meaning(k);
        puts(" |");
    }
    puts(
        "\nBooleans are false when they are empty, `0`, `false` or `False`. The command line comes "
        "on "
        "top of a\nconfiguration file, and that on top of the environment. These variables have no "
        "meaning here; each draws\none line on standard error:\n");
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].kind == NAME_NONE)
            printf("- `" PREFIX "%s`\n", table[i].variable);
}
