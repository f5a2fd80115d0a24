/* Work on bodies beside the loop. See offload.h. */
#include "server/offload.h"

#include <stddef.h>

#include "base/mem.h"
#include "server/server_internal.h"

typedef struct errand {
    call base;
    work work;
    const offload_ops *ops;
    str body;
    void *result;
} errand;

static errand *of_work(work *w)
{
    return (errand *)(void *)((char *)w - offsetof(errand, work));
}

static void no_memory(conn *c)
{
    conn_error(c, &(error_body){.status = 503,
                                .message = "no memory for a request",
                                .retry_after_s = c->loop->srv->opt.retry_after_s});
}

static void finish(conn *c, const offload_ops *ops, void *result)
{
    if (result)
        ops->finish(c, result);
    else if (c)
        no_memory(c);
}

/* The client has gone: what was made for it goes too. */
static void free_errand(call *k)
{
    errand *e = (errand *)(void *)k;

    if (e->result)
        e->ops->finish(NULL, e->result);
    str_fini(&e->body);
    mem_free(e);
}

static const call_ops errand_ops = {.free = free_errand};

static void run(work *w)
{
    errand *e = of_work(w);

    e->result = e->ops->make(e->base.loop->srv, &e->body);
    str_fini(&e->body);
}

static void done(work *w)
{
    errand *e = of_work(w);
    conn *c = e->base.conn;
    void *result = e->result;
    const offload_ops *ops = e->ops;

    if (!call_release(&e->base))
        return;
    e->result = NULL;
    call_close(&e->base); /* frees e; what follows may open a call of its own */
    finish(c, ops, result);
}

void offload(conn *c, const offload_ops *ops)
{
    const server *s = c->loop->srv;
    errand *e;

    if (c->req.body.len <= OFFLOAD_INLINE_BYTES) {
        finish(c, ops, ops->make(s, &c->req.body));
        return;
    }
    e = mem_try_calloc(1, sizeof *e);
    if (!e) {
        no_memory(c);
        return;
    }
    e->ops = ops;
    e->body = c->req.body;
    c->req.body = (str){0};
    call_open(&e->base, &errand_ops, c, false);
    call_hold(&e->base);
    if (work_start(s->workers, c->loop, &e->work, run, done))
        return;
    call_release(&e->base);
    call_close(&e->base);
    conn_error(c, &(error_body){.status = 503,
                                .message = "too many requests are being prepared",
                                .retry_after_s = s->opt.retry_after_s});
}

void offload_reply(conn *c, void *answer)
{
    offload_answer *a = answer;

    if (c && a->st.code == DI_OK)
        conn_reply_json(c, 200, &a->json);
    else if (c)
        conn_fail(c, &a->st);
    str_fini(&a->json);
    mem_free(a);
}
