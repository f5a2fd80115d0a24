/* The llguidance library, opened at run time: nothing else knows how it is loaded.
 *
 * Looked for, in this order: the path in grammar_options, the environment variable DI_LLGUIDANCE,
 * beside the program, in third_party/llguidance of the build folder the program is in, in
 * ../lib/deepinfer, and where the dynamic linker finds libllguidance.so. The library of the wheel
 * needs the names of libpystub.so, which lies beside it (tools/llguidance.sh); one that was built
 * from source needs nothing.
 *
 * It stays open until the process ends: its threads-local data must not go before the threads. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "grammar/grammar_internal.h"

#define LIBRARY "libllguidance.so"

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_open;
static llg_api api;

/* ---- loading ---- */

/* Folder of the running program, with a slash at its end; "" when unknown. */
static void program_folder(char *out, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);
    char *slash;

    out[n > 0 ? n : 0] = 0;
    slash = strrchr(out, '/');
    if (slash)
        slash[1] = 0;
    else
        out[0] = 0;
}

/* The file to open: the given one, or the first that is there. */
static void find_library(const char *path, char *out, size_t cap)
{
    static const char *const places[] = {"", "../third_party/llguidance/",
                                         "../../third_party/llguidance/", "../lib/deepinfer/"};
    char folder[PATH_MAX];
    const char *env = getenv("DI_LLGUIDANCE"); /* NOLINT(concurrency-mt-unsafe): under open_lock */

    if (!path && env && *env)
        path = env;
    if (path) {
        snprintf(out, cap, "%s", path);
        return;
    }
    program_folder(folder, sizeof folder);
    for (size_t i = 0; *folder && i < ARRAY_LEN(places); i++) {
        int n = snprintf(out, cap, "%s%s" LIBRARY, folder, places[i]);

        if (n > 0 && (size_t)n < cap && access(out, R_OK) == 0)
            return;
    }
    snprintf(out, cap, LIBRARY);
}

/* The names of CPython, when a stub lies beside the library and nothing else has them. */
static void load_stub(const char *library)
{
    char path[PATH_MAX];
    const char *slash = strrchr(library, '/');
    int folder = slash ? (int)(slash - library) + 1 : 0;
    int n = snprintf(path, sizeof path, "%.*slibpystub.so", folder, library);

    if (n <= 0 || (size_t)n >= sizeof path || access(path, R_OK) != 0 ||
        dlsym(RTLD_DEFAULT, "PyType_GetFlags"))
        return;
    (void)dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* without it the library says what it misses */
}

static di_code absent(const char *what, di_status *st)
{
    return di_fail(st, DI_E_UNSUPPORTED,
                   "constrained output is not available: %s; run tools/llguidance.sh, or set "
                   "DI_LLGUIDANCE to the library",
                   what);
}

static di_code load_locked(const char *path, di_status *st)
{
    char file[PATH_MAX], what[400];
    const char *missing = NULL, *version;
    void *lib;

    find_library(path, file, sizeof file);
    load_stub(file);
    lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        snprintf(what, sizeof what, "%s", dlerror()); /* NOLINT(concurrency-mt-unsafe): as above */
        return absent(what, st);
    }
/* POSIX: the result of dlsym may be used as a function. */
#define LLG_LOOK_UP(result, name, arguments)                                                       \
    *(void **)(&api.name) = dlsym(lib, "llg_" #name);                                              \
    if (!api.name)                                                                                 \
        missing = "llg_" #name;
    LLG_FUNCTIONS(LLG_LOOK_UP)
#undef LLG_LOOK_UP
    version = missing ? "" : api.get_version();
    if (!missing && strncmp(version, LLG_VERSION, sizeof LLG_VERSION - 1) == 0) {
        is_open = true;
        return DI_OK;
    }
    if (missing)
        snprintf(what, sizeof what, "\"%.250s\" has no %s", file, missing);
    else
        snprintf(what, sizeof what, "\"%.250s\" is %.60s, but " LLG_VERSION "x is needed", file,
                 version);
    dlclose(lib);
    return absent(what, st);
}

di_code llg_open(const char *path, const llg_api **out, di_status *st)
{
    di_code rc = DI_OK;

    pthread_mutex_lock(&open_lock);
    if (!is_open)
        rc = load_locked(path, st);
    pthread_mutex_unlock(&open_lock);
    *out = rc == DI_OK ? &api : NULL;
    return rc;
}

/* ---- tokenizer ---- */

/* The real encoder: the library takes its answers for the only spelling of forced text. */
static size_t encode(const void *user, const uint8_t *bytes, size_t n, uint32_t *ids, size_t cap)
{
    const grammar *g = user;
    tok_ids out = {0};
    size_t n_ids;

    if (tokenizer_encode(g->tok, (const char *)bytes, n, false, &out, NULL) != DI_OK)
        out.n = 0;
    n_ids = out.n;
    if (cap && n_ids)
        memcpy(ids, out.ids, (n_ids < cap ? n_ids : cap) * sizeof *ids);
    tok_ids_fini(&out);
    return n_ids;
}

static bool is_plain(const grammar *g, int id)
{
    return g->plain_row[id / 32] >> (id % 32) & 1;
}

/* Tokens that are allowed or not as a whole, when the place in the grammar takes all texts of such
 * characters: white space, and characters of strings up to some length. The short ones make strings
 * with a small bound cheap (measured: p99 of a mask 1.3 -> 0.85 ms). Without effect on results. */
#define CHARS "[^\"\\\\\\x00-\\x1F\\x7F]"
static const char *const slices[] = {"[\\x20\\x0A\\x0D\\x09]+",
                                     CHARS "{1,1}",
                                     CHARS "{1,2}",
                                     CHARS "{1,3}",
                                     CHARS "{1,4}",
                                     CHARS "{1,6}",
                                     CHARS "{1,10}",
                                     CHARS "{1,30}",
                                     CHARS "+",
                                     NULL};

/* Added tokens get the marker byte in front, so that no text can match them. */
di_code llg_make_tokenizer(const llg_api *llg, const grammar *g, llg_tokenizer **out, di_status *st)
{
    uint32_t *lens = mem_try_calloc((size_t)g->vocab, sizeof *lens), extra[MAX_EOS];
    char error[300] = "";
    str bytes = {0};
    llg_tokenizer_init init;

    *out = NULL;
    for (int id = 0; lens && id < g->vocab; id++) {
        size_t n = 0, before = bytes.len;
        const char *s = id < tokenizer_n_ids(g->tok) ? tokenizer_bytes(g->tok, id, &n) : NULL;

        if (s && !is_plain(g, id))
            str_putc(&bytes, (char)0xFF);
        if (s)
            str_append(&bytes, s, n);
        lens[id] = (uint32_t)(bytes.len - before);
    }
    if (!lens || !str_ok(&bytes)) {
        mem_free(lens);
        str_fini(&bytes);
        return di_fail(st, DI_E_NOMEM, "no memory for the tables of constraints");
    }
    for (int i = 1; i < g->n_eos; i++)
        extra[i - 1] = (uint32_t)g->eos[i];
    init = (llg_tokenizer_init){.struct_size = sizeof init,
                                .vocab_size = (uint32_t)g->vocab,
                                .tok_eos = (uint32_t)g->eos[0],
                                .token_lens = lens,
                                .token_bytes = (const uint8_t *)bytes.data,
                                .tokenize_assumes_string = true,
                                .tokenize_fn = encode,
                                .tokenize_user_data = g,
                                .slices = slices,
                                .tok_eos_extra = g->n_eos > 1 ? extra : NULL,
                                .tok_eos_extra_count = (uint32_t)(g->n_eos - 1)};
    *out = llg->new_tokenizer_v2(&init, error, sizeof error);
    mem_free(lens);
    str_fini(&bytes);
    return *out ? DI_OK
                : di_fail(st, DI_E_UNSUPPORTED, "constraints do not fit this tokenizer: %s", error);
}

void llg_settings(const grammar *g, llg_init *init)
{
    memset(init, 0, sizeof *init);
    g->llg->constraint_init_set_defaults(init, g->llg_tok);
    init->log_buffer_level = 0;
    init->log_stderr_level = 0;
    init->limits.verbose_errors = false;
    init->limits.initial_lexer_fuel = 1000000;
    init->limits.step_max_items = 50000;
    init->limits.max_lexer_states = 250000;
}
