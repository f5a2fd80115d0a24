/* Loading a checkpoint onto the device, against the disk and the link, measured in the same run:
 *
 *   bench_load --model DIR [--backend cuda] [--rounds N] [--rank N]
 *   CSV: name,round,bytes,seconds,GB/s
 *
 * disk      all shards read by sixteen threads, past the page cache (O_DIRECT)
 * cold      the same through the page cache, which held nothing of them
 * memory    the same again: the page cache holds all
 * link      one pinned buffer put onto the device again and again
 * load cold, load warm: model_open, as disk and as memory find the files
 * start     model_open of generated weights of the same configuration; with --rank N of one rank of
 *           N (experts and Engram rows), and nothing else: only DIR/config.json is read
 *
 * tools/make_skeleton.py --fill makes shards in the released layout. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/dummy.h"
#include "kernels/kernels.h"
#include "model/model.h"

#define N_THREADS  16
#define PIECE      ((size_t)4 << 20)
#define MAX_SHARDS 256
#define LINK_BYTES ((size_t)256 << 20)
#define LINK_TURNS 16

static kernels *k;
static const char *dir;
static pool *threads;

static void check(di_code rc, const di_status *st)
{
    if (rc == DI_OK)
        return;
    fprintf(stderr, "%s\n", st->message);
    exit(2);
}

static void row(const char *name, int round, double bytes, uint64_t since)
{
    double s = (double)(clock_ns() - since) * 1e-9;

    printf("%s,%d,%.0f,%.3f,%.2f\n", name, round, bytes, s, bytes / s * 1e-9);
    fflush(stdout);
}

/* ---- the files alone ---- */

typedef struct shard {
    int fd[2]; /* through the page cache, past it (-1: the file system cannot) */
    size_t bytes, first;
} shard;

typedef struct files {
    shard shard[MAX_SHARDS];
    int n;
    size_t bytes, n_pieces;
    bool direct;
    atomic_size_t next;
    atomic_bool failed;
} files;

static void open_files(files *f, const checkpoint *c)
{
    di_status st = {0};

    f->n = checkpoint_n_shards(c);
    DI_CHECK(f->n <= MAX_SHARDS);
    for (int i = 0; i < f->n; i++) {
        shard *s = &f->shard[i];
        char path[4096];
        struct stat sb;

        check(path_join(path, sizeof path, dir, checkpoint_shard_name(c, i), &st), &st);
        s->fd[0] = open(path, O_RDONLY | O_CLOEXEC);
        s->fd[1] = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
        if (s->fd[0] < 0 || fstat(s->fd[0], &sb) != 0) {
            fprintf(stderr, "%s: %s\n", path, errno_text(errno));
            exit(2);
        }
        fsync(s->fd[0]);
        s->bytes = (size_t)sb.st_size;
        s->first = f->n_pieces;
        f->n_pieces += (s->bytes + PIECE - 1) / PIECE;
        f->bytes += s->bytes;
    }
}

/* The page cache holds nothing of them. */
static void forget(const files *f)
{
    for (int i = 0; i < f->n; i++)
        posix_fadvise(f->shard[i].fd[0], 0, 0, POSIX_FADV_DONTNEED);
}

static void read_job(void *arg, int thread, int n_threads)
{
    files *f = arg;
    void *buf = mem_try_aligned(PIECE, 4096);
    int s = 0;

    (void)thread;
    (void)n_threads;
    DI_CHECK(buf);
    for (size_t i; (i = atomic_fetch_add(&f->next, 1)) < f->n_pieces;) {
        const shard *h;

        while (s + 1 < f->n && f->shard[s + 1].first <= i)
            s++;
        h = &f->shard[s];
        if (pread(h->fd[f->direct], buf, PIECE, (off_t)((i - h->first) * PIECE)) <= 0)
            atomic_store(&f->failed, true);
    }
    mem_free(buf);
}

static void read_all(files *f, const char *name, int round, bool direct)
{
    uint64_t t = clock_ns();

    f->direct = direct;
    atomic_store(&f->next, 0);
    atomic_store(&f->failed, false);
    pool_run(threads, read_job, f);
    if (atomic_load(&f->failed))
        printf("%s,%d,failed\n", name, round);
    else
        row(name, round, (double)f->bytes, t);
}

/* ---- the link alone ---- */

static void measure_link(int round)
{
    void *host = k->ops->shared_new(k, LINK_BYTES), *dev = k->ops->buf_new(k, LINK_BYTES);
    di_status st = {0};
    uint64_t t;

    DI_CHECK(host && dev);
    k->ops->put(k, dev, host, LINK_BYTES);
    check(k->ops->finish(k, &st), &st);
    t = clock_ns();
    for (int i = 0; i < LINK_TURNS; i++)
        k->ops->put(k, dev, host, LINK_BYTES);
    check(k->ops->finish(k, &st), &st);
    row("link", round, (double)LINK_BYTES * LINK_TURNS, t);
    k->ops->buf_free(k, dev);
    k->ops->shared_free(k, host);
}

/* ---- loading ---- */

static void load(const char *name, int round, const checkpoint *c)
{
    const model_options mo = {.max_rows = 16, .max_seqs = 1, .context = 1024};
    const model_config *cfg = checkpoint_config(c);
    int32_t *compressed = mem_try_calloc((size_t)cfg->vocab, sizeof *compressed);
    uint64_t t = clock_ns();
    double bytes = 0;
    di_status st = {0};
    model *m;

    DI_CHECK(compressed);
    for (int i = 0; i < cfg->vocab && cfg->n_engram > 0; i++)
        compressed[i] = i % cfg->engram_compressed;
    check(model_open(&m, c, k, compressed, &mo, &st), &st);
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++)
        bytes += (double)checkpoint_tensor(c, i)->bytes;
    row(name, round, bytes, t);
    model_close(m);
    mem_free(compressed);
}

/* Generated weights: all of them, or one rank's share. */
static void start(int n_ranks, int round)
{
    dummy_options o = {.engram_rows = INT64_MAX, .n_shares = n_ranks};
    dummy_when when = k->ops->load_begin ? DUMMY_READ : DUMMY_FOUND;
    checkpoint *c;
    di_status st = {0};

    check(checkpoint_open_dummy(&c, dir, &o, DUMMY_HEADERS, &st), &st);
    if (n_ranks > 0 && checkpoint_config(c)->n_engram > 0)
        o.engram_rows = checkpoint_config(c)->engram_rows[0] / n_ranks;
    checkpoint_close(c);
    check(checkpoint_open_dummy(&c, dir, &o, when, &st), &st);
    load("start", round, c);
    checkpoint_close(c);
}

static void measure(files *f, const checkpoint *c, int round)
{
    forget(f);
    read_all(f, "disk", round, true);
    read_all(f, "cold", round, false);
    read_all(f, "memory", round, false);
    if (k->ops->load_begin) /* a device */
        measure_link(round);
    load("load warm", round, c);
    forget(f);
    load("load cold", round, c);
    start(0, round);
}

int main(int argc, char **argv)
{
    kernels_options ko = {.backend = "cuda"};
    checkpoint *c = NULL;
    static files f;
    di_status st = {0};
    int rounds = 2, n_ranks = 0;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--model"))
            dir = argv[i + 1];
        else if (!strcmp(argv[i], "--backend"))
            ko.backend = argv[i + 1];
        else if (!strcmp(argv[i], "--rounds"))
            rounds = (int)strtol(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--rank"))
            n_ranks = (int)strtol(argv[i + 1], NULL, 10);
    }
    if (!dir || rounds < 1) {
        fprintf(stderr, "bench_load --model DIR [--backend NAME] [--rounds N] [--rank N]\n");
        return 2;
    }
    check(kernels_open(&k, &ko, &st), &st);
    check(pool_new(&threads, N_THREADS, &st), &st);
    printf("name,round,bytes,seconds,GB/s\n");
    if (n_ranks == 0) {
        check(checkpoint_open(&c, dir, false, &st), &st);
        open_files(&f, c);
    }
    for (int r = 1; r <= rounds; r++)
        if (n_ranks > 0)
            start(n_ranks, r);
        else
            measure(&f, c, r);
    checkpoint_close(c);
    pool_free(threads);
    kernels_close(k);
    return 0;
}
