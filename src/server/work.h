/* Worker threads for what would hold up a loop: long prompts, compiling constraints.
 *
 *   loop: work_start -> worker: run -> loop: done
 *
 * One queue, first come first served. Thread: work_start on a loop. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "base/status.h"

struct loop;
struct server;
typedef struct work_pool work_pool;

typedef struct work {
    struct work *next;
    struct loop *loop;
    void (*run)(struct work *w);  /* worker thread */
    void (*done)(struct work *w); /* loop thread, once */
} work;

/* Errors: NOMEM, IO (threads). */
di_code work_pool_new(work_pool **out, int n_threads, di_status *st);
/* After the last done. Accepts NULL. */
void work_pool_free(work_pool *p);

/* False: too much is waiting (nothing has happened). */
bool work_start(work_pool *p, struct loop *l, work *w, void (*run)(work *), void (*done)(work *));

/* The loop's side: an eventfd, and what to do when it is readable. */
typedef struct work_done_list {
    pthread_mutex_t lock;
    work *first, *last;
    int eventfd;
} work_done_list;
di_code work_done_init(work_done_list *d, di_status *st);
void work_done_fini(work_done_list *d);
void work_done_run(work_done_list *d);
