/* See loader.h. */
#include "kernels/cuda/loader.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/pool.h"
#include "kernels/cuda/cuda_host.h"

#define MAX_THREADS 16
#define N_SLOTS     2 /* per thread: one is read into while the other goes up */
#define SLOT_BYTES  ((size_t)4 << 20)
#define LEAST_PIECE ((size_t)256 << 10)
#define MAX_SPANS   128

/* Bytes that lie together on both sides. */
typedef struct span {
    const uint8_t *from;
    uint8_t *to;
    size_t bytes, first; /* first: number of its first piece in the run */
    bool scales, host;
} span;

typedef struct slot {
    uint8_t *mem;      /* pinned */
    cudaEvent_t taken; /* its last copy has ended */
} slot;

struct loader {
    cudaStream_t main, copy;
    weight_reader reader;
    pool *pool;
    uint8_t *pinned;
    slot slot[MAX_THREADS * N_SLOTS];
    int n_slots;
    uint8_t *area[2];
    size_t area_bytes;
    int half;             /* of area: the one that is filled */
    cudaEvent_t used[2];  /* its last readers have ended */
    cudaEvent_t arrived;  /* copies of the last run */
    span span[MAX_SPANS]; /* of the coming run */
    int n_spans;
    size_t bytes;       /* of all spans */
    size_t piece_bytes; /* of the run */
    uint8_t most;       /* largest scale byte of the runs before, since it was asked for */
    atomic_uint most_now;
    atomic_size_t next; /* piece */
    size_t n_pieces;
    pthread_mutex_t lock; /* for the first error */
    di_code rc;
    di_status st;
};

static di_code take_bytes(void *owner, void *to, const void *from, size_t bytes, di_status *st)
{
    (void)owner;
    (void)st;
    memcpy(to, from, bytes);
    return DI_OK;
}

/* ---- life ---- */

static di_code make_slots(loader *l, di_status *st)
{
    di_code rc = DI_OK;
    int n = pool_n_threads(l->pool) * N_SLOTS;

    CU_TRY(cudaHostAlloc((void **)&l->pinned, (size_t)n * SLOT_BYTES, cudaHostAllocDefault),
           "reserving pinned memory");
    for (int i = 0; i < n; i++) {
        l->slot[i].mem = l->pinned + (size_t)i * SLOT_BYTES;
        CU_TRY(cudaEventCreateWithFlags(&l->slot[i].taken, cudaEventDisableTiming),
               "making an event");
        l->n_slots++;
    }
done:
    return rc;
}

di_code loader_new(loader **out, cudaStream_t main, const weight_reader *reader, di_status *st)
{
    const weight_reader plain = {.read = take_bytes};
    loader *l = mem_try_calloc(1, sizeof *l);
    di_code rc = DI_OK;

    *out = NULL;
    if (!l)
        return di_fail(st, DI_E_NOMEM, "no memory to load weights");
    pthread_mutex_init(&l->lock, NULL);
    l->main = main;
    l->reader = reader ? *reader : plain;
    DI_TRY(pool_new(&l->pool, cpu_count() < MAX_THREADS ? cpu_count() : MAX_THREADS, st));
    CU_TRY(cudaStreamCreateWithFlags(&l->copy, cudaStreamNonBlocking), "making a stream");
    for (int i = 0; i < 2; i++)
        CU_TRY(cudaEventCreateWithFlags(&l->used[i], cudaEventDisableTiming), "making an event");
    CU_TRY(cudaEventCreateWithFlags(&l->arrived, cudaEventDisableTiming), "making an event");
    DI_TRY(make_slots(l, st));
    *out = l;
    l = NULL;
done:
    loader_free(l);
    return rc;
}

void loader_free(loader *l)
{
    if (!l)
        return;
    if (l->copy)
        cudaStreamSynchronize(l->copy);
    cudaStreamSynchronize(l->main);
    for (int i = 0; i < l->n_slots; i++)
        cudaEventDestroy(l->slot[i].taken);
    for (int i = 0; i < 2; i++) {
        if (l->used[i])
            cudaEventDestroy(l->used[i]);
        cudaFree(l->area[i]);
    }
    if (l->arrived)
        cudaEventDestroy(l->arrived);
    if (l->copy)
        cudaStreamDestroy(l->copy);
    cudaFreeHost(l->pinned);
    pool_free(l->pool);
    pthread_mutex_destroy(&l->lock);
    mem_free(l);
}

/* ---- areas ---- */

static di_code grow(loader *l, size_t bytes, di_status *st)
{
    di_code rc = DI_OK;

    CU_TRY(cudaStreamSynchronize(l->copy), "copying weights");
    CU_TRY(cudaStreamSynchronize(l->main), "packing weights");
    l->area_bytes = bytes > LOADER_HALF ? bytes : LOADER_HALF;
    for (int i = 0; i < 2; i++) {
        cudaFree(l->area[i]);
        l->area[i] = NULL;
        CU_TRY(cudaMalloc((void **)&l->area[i], l->area_bytes), "reserving staging memory");
    }
done:
    if (rc)
        l->area_bytes = 0;
    return rc;
}

void *loader_area(loader *l, size_t bytes, di_status *st)
{
    cudaError_t e;

    if (bytes > l->area_bytes && grow(l, bytes, st))
        return NULL;
    e = cudaStreamWaitEvent(l->copy, l->used[l->half], 0);
    if (e != cudaSuccess) {
        cuda_error(st, e, "waiting for packed weights");
        return NULL;
    }
    return l->area[l->half];
}

di_code loader_ready(loader *l, di_status *st)
{
    di_code rc = DI_OK;

    CU_TRY(cudaEventRecord(l->arrived, l->copy), "copying weights");
    CU_TRY(cudaStreamWaitEvent(l->main, l->arrived, 0), "copying weights");
done:
    return rc;
}

di_code loader_used(loader *l, di_status *st)
{
    di_code rc = DI_OK;

    CU_TRY(cudaEventRecord(l->used[l->half], l->main), "packing weights");
    l->half ^= 1;
done:
    return rc;
}

/* ---- runs ---- */

static di_code add(loader *l, const span *s, di_status *st)
{
    di_code rc = DI_OK;

    if (l->n_spans == MAX_SPANS)
        DI_TRY(loader_run(l, NULL, st));
    if (s->bytes > 0)
        l->span[l->n_spans++] = *s;
    l->bytes += s->bytes;
done:
    return rc;
}

di_code loader_add(loader *l, const void *from, void *to, size_t bytes, bool scales, di_status *st)
{
    return add(l, &(span){.from = from, .to = to, .bytes = bytes, .scales = scales}, st);
}

di_code loader_add_host(loader *l, const void *from, void *to, size_t bytes, di_status *st)
{
    return add(l, &(span){.from = from, .to = to, .bytes = bytes, .host = true}, st);
}

static void keep_error(loader *l, di_code rc, const di_status *st)
{
    pthread_mutex_lock(&l->lock);
    if (!l->rc) {
        l->rc = rc;
        l->st = *st;
    }
    pthread_mutex_unlock(&l->lock);
    atomic_store(&l->next, l->n_pieces); /* the others end, too */
}

static void note_scales(loader *l, const uint8_t *scale, size_t n)
{
    unsigned most = 0, old = atomic_load(&l->most_now);

    for (size_t i = 0; i < n; i++)
        most = scale[i] > most ? scale[i] : most;
    while (most > old && !atomic_compare_exchange_weak(&l->most_now, &old, most))
        ;
}

static di_code read_piece(loader *l, const span *s, size_t at, slot *t, di_status *st)
{
    size_t n = s->bytes - at < l->piece_bytes ? s->bytes - at : l->piece_bytes;
    di_code rc = DI_OK;

    if (s->host)
        return l->reader.read(l->reader.owner, s->to + at, s->from + at, n, st);
    CU_TRY(cudaEventSynchronize(t->taken), "copying weights");
    DI_TRY(l->reader.read(l->reader.owner, t->mem, s->from + at, n, st));
    if (s->scales)
        note_scales(l, t->mem, n);
    CU_TRY(cudaMemcpyAsync(s->to + at, t->mem, n, cudaMemcpyHostToDevice, l->copy),
           "copying weights");
    CU_TRY(cudaEventRecord(t->taken, l->copy), "copying weights");
done:
    return rc;
}

/* Threads take pieces in order, so each span is read from its beginning on. */
static void read_job(void *arg, int thread, int n_threads)
{
    loader *l = arg;
    slot *mine = &l->slot[thread * N_SLOTS];
    int s = 0, turn = 0;

    (void)n_threads;
    for (;;) {
        size_t i = atomic_fetch_add(&l->next, 1);
        di_status st = {0};
        di_code rc;

        if (i >= l->n_pieces)
            return;
        while (s + 1 < l->n_spans && l->span[s + 1].first <= i)
            s++;
        rc = read_piece(l, &l->span[s], (i - l->span[s].first) * l->piece_bytes, &mine[turn], &st);
        if (rc)
            keep_error(l, rc, &st);
        turn = (turn + 1) % N_SLOTS;
    }
}

/* Small runs are cut finer, so that all threads have something to read. */
static size_t piece_size(const loader *l)
{
    size_t n = l->bytes / ((size_t)pool_n_threads(l->pool) * N_SLOTS);

    n = n < LEAST_PIECE ? LEAST_PIECE : n > SLOT_BYTES ? SLOT_BYTES : n;
    return n / 4096 * 4096;
}

di_code loader_run(loader *l, uint8_t *most, di_status *st)
{
    di_code rc;

    l->piece_bytes = piece_size(l);
    l->n_pieces = 0;
    for (int i = 0; i < l->n_spans; i++) {
        l->span[i].first = l->n_pieces;
        l->n_pieces += (l->span[i].bytes + l->piece_bytes - 1) / l->piece_bytes;
    }
    atomic_store(&l->next, 0);
    atomic_store(&l->most_now, l->most);
    pool_run(l->pool, read_job, l);
    l->most = (uint8_t)atomic_load(&l->most_now);
    l->n_spans = 0;
    l->bytes = 0;
    if (most) {
        *most = l->most;
        l->most = 0;
    }
    rc = l->rc;
    if (rc && st)
        *st = l->st;
    l->rc = DI_OK;
    return rc;
}
