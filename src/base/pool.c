/* Thread pool: the owner publishes a job by bumping `start`; every job ends in a barrier.
 *
 * Waiting spins for SPIN_NS, because the next job or the last arrival is usually microseconds away,
 * then sleeps on a futex. With more threads than processors nobody spins: the thread waited for
 * would need the processor. */
#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdalign.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"

#define POOL_MAX_THREADS 256
#define SPIN_NS          50000u

/* A counter that threads can wait on. */
typedef struct event {
    alignas(64) atomic_uint value;
    atomic_uint n_sleepers;
} event;

typedef struct worker {
    pool *pool;
    pthread_t id;
    int thread;
} worker;

struct pool {
    event start, phase;             /* jobs published; barriers completed */
    alignas(64) atomic_int arrived; /* threads waiting in the current barrier */
    alignas(64) pool_fn fn;         /* NULL: end; written before `start` is bumped */
    void *arg;
    int n_threads;
    bool spin;
    worker workers[]; /* n_threads - 1 */
};

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Wait until the value differs from `old`. */
static void event_wait(event *e, unsigned old, bool spin)
{
    uint64_t until = spin ? clock_ns() + SPIN_NS : 0;

    for (unsigned i = 1; spin; i++) {
        /* acquire: pairs with the increment in event_bump; what it published is visible */
        if (atomic_load_explicit(&e->value, memory_order_acquire) != old)
            return;
        cpu_relax();
        if (i % 32 == 0 && clock_ns() > until)
            break;
    }
    /* seq_cst here and in event_bump: either the bumper sees the sleeper, or the kernel sees the
     * new value and does not sleep. */
    atomic_fetch_add(&e->n_sleepers, 1);
    while (atomic_load(&e->value) == old)
        syscall(SYS_futex, &e->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&e->n_sleepers, 1);
}

static void event_bump(event *e)
{
    atomic_fetch_add(&e->value, 1);
    if (atomic_load(&e->n_sleepers))
        syscall(SYS_futex, &e->value, FUTEX_WAKE_PRIVATE, POOL_MAX_THREADS, NULL, NULL, 0);
}

void pool_barrier(pool *p)
{
    unsigned phase;

    if (!p || p->n_threads == 1)
        return;
    phase = atomic_load_explicit(&p->phase.value, memory_order_relaxed);
    /* acq_rel: the last arrival has seen the work of all, and hands it on through `phase` */
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) + 1 == p->n_threads) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        event_bump(&p->phase);
    } else {
        event_wait(&p->phase, phase, p->spin);
    }
}

static void *work(void *arg)
{
    const worker *w = arg;
    pool *p = w->pool;

    for (unsigned seen = 0;; seen++) {
        event_wait(&p->start, seen, p->spin);
        if (!p->fn)
            return NULL;
        p->fn(p->arg, w->thread, p->n_threads);
        pool_barrier(p);
    }
}

/* Start the workers; signals stay with the caller's threads. Returns an errno value. */
static int start_workers(pool *p, int n_workers)
{
    sigset_t all, old;
    int err = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    for (int i = 0; i < n_workers && !err; i++) {
        worker *w = &p->workers[i];

        *w = (worker){.pool = p, .thread = i + 1};
        err = pthread_create(&w->id, NULL, work, w);
        if (!err)
            p->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return err;
}

di_code pool_new(pool **out, int n_threads, di_status *st)
{
    pool *p;
    int err;

    *out = NULL;
    if (n_threads == 0)
        n_threads = cpu_count() < POOL_MAX_THREADS ? cpu_count() : POOL_MAX_THREADS;
    if (n_threads < 1 || n_threads > POOL_MAX_THREADS)
        return di_fail(st, DI_E_INVALID, "%d threads asked for, 1 to %d are possible", n_threads,
                       POOL_MAX_THREADS);
    p = mem_try_aligned(sizeof *p + (size_t)(n_threads - 1) * sizeof(worker), 64);
    if (!p)
        return di_fail(st, DI_E_NOMEM, "no memory for %d threads", n_threads);
    p->n_threads = 1;
    p->spin = n_threads <= cpu_count();
    err = start_workers(p, n_threads - 1);
    if (err) {
        int started = p->n_threads;

        pool_free(p);
        return di_fail(st, DI_E_IO, "could not start thread %d of %d: %s", started + 1, n_threads,
                       errno_text(err));
    }
    *out = p;
    return DI_OK;
}

void pool_free(pool *p)
{
    if (!p)
        return;
    p->fn = NULL;
    event_bump(&p->start);
    for (int i = 0; i < p->n_threads - 1; i++)
        pthread_join(p->workers[i].id, NULL);
    mem_free(p);
}

int pool_n_threads(const pool *p)
{
    return p ? p->n_threads : 1;
}

void pool_run(pool *p, pool_fn fn, void *arg)
{
    if (!p || p->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    event_bump(&p->start);
    fn(arg, 0, p->n_threads);
    pool_barrier(p);
}

void pool_split(int64_t n, int64_t unit, int thread, int n_threads, int64_t *begin, int64_t *end)
{
    int64_t units = (n + unit - 1) / unit, each = units / n_threads, more = units % n_threads;
    int64_t first = thread * each + (thread < more ? thread : more);
    int64_t last = first + each + (thread < more ? 1 : 0);

    *begin = first * unit < n ? first * unit : n;
    *end = last * unit < n ? last * unit : n;
}
