/* Worker threads. See work.h. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/work.h"

#include "base/mem.h"
#include "server/server_internal.h"

#define MAX_THREADS 16
#define MAX_WAITING 1024

struct work_pool {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    work *first, *last;
    int n_waiting, n_threads;
    bool closing;
    pthread_t thread[MAX_THREADS];
};

static void append(work **first, work **last, work *w)
{
    w->next = NULL;
    *(*last ? &(*last)->next : first) = w;
    *last = w;
}

static work *take(work **first, work **last)
{
    work *w = *first;

    *first = w->next;
    if (!*first)
        *last = NULL;
    return w;
}

static void hand_back(work *w)
{
    work_done_list *d = &w->loop->finished;
    uint64_t one = 1;
    int fd = d->eventfd;

    pthread_mutex_lock(&d->lock);
    append(&d->first, &d->last, w);
    pthread_mutex_unlock(&d->lock);
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

static void *worker_main(void *arg)
{
    work_pool *p = arg;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        work *w;

        while (!p->first && !p->closing)
            pthread_cond_wait(&p->wake, &p->lock);
        if (!p->first)
            break;
        w = take(&p->first, &p->last);
        p->n_waiting--;
        pthread_mutex_unlock(&p->lock);
        w->run(w);
        hand_back(w);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

di_code work_pool_new(work_pool **out, int n_threads, di_status *st)
{
    work_pool *p = mem_try_calloc(1, sizeof *p);

    *out = NULL;
    if (!p)
        return di_fail(st, DI_E_NOMEM, "no memory for worker threads");
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (; p->n_threads < n_threads && p->n_threads < MAX_THREADS; p->n_threads++)
        if (pthread_create(&p->thread[p->n_threads], NULL, worker_main, p) != 0) {
            work_pool_free(p);
            return di_fail(st, DI_E_IO, "could not start a thread");
        }
    *out = p;
    return DI_OK;
}

void work_pool_free(work_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

bool work_start(work_pool *p, loop *l, work *w, void (*run)(work *), void (*done)(work *))
{
    bool room;

    w->loop = l;
    w->run = run;
    w->done = done;
    pthread_mutex_lock(&p->lock);
    room = p->n_waiting < MAX_WAITING;
    if (room) {
        append(&p->first, &p->last, w);
        p->n_waiting++;
        pthread_cond_signal(&p->wake);
    }
    pthread_mutex_unlock(&p->lock);
    return room;
}

di_code work_done_init(work_done_list *d, di_status *st)
{
    pthread_mutex_init(&d->lock, NULL);
    d->eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return d->eventfd < 0 ? di_fail(st, DI_E_IO, "could not make an eventfd") : DI_OK;
}

void work_done_fini(work_done_list *d)
{
    if (d->eventfd < 0)
        return;
    close(d->eventfd);
    d->eventfd = -1;
    pthread_mutex_destroy(&d->lock);
}

void work_done_run(work_done_list *d)
{
    uint64_t count;
    work *all, *next;

    if (read(d->eventfd, &count, sizeof count) < 0 && errno != EAGAIN)
        return;
    pthread_mutex_lock(&d->lock);
    all = d->first;
    d->first = d->last = NULL;
    pthread_mutex_unlock(&d->lock);
    for (; all; all = next) {
        next = all->next; /* done may free it */
        all->done(all);
    }
}
