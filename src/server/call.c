/* Calls: requests that the back end works on.
 *
 *   call_open -> call_submit (once per prompt) -> events, turns -> last DONE -> end -> free
 *   client gone, or answered early (stop in the text): call_detach cancels; DONE still comes ->
 * free
 *
 * Thread: the call's loop. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/keys.h"
#include "server/server_internal.h"

void call_open(call *k, const call_ops *ops, conn *c, bool stream)
{
    loop *l = c->loop;

    k->ops = ops;
    k->loop = l;
    k->conn = c;
    k->key = c->key;
    k->stream = stream;
    k->begin_ns = c->begin_ns;
    k->finish = "error";
    c->call = k;
    l->n_calls++;
    atomic_fetch_add_explicit(&l->srv->n_calls, 1, memory_order_relaxed);
}

static void forget_call(call *k)
{
    loop *l = k->loop;

    l->n_calls--;
    atomic_fetch_sub_explicit(&l->srv->n_calls, 1, memory_order_relaxed);
    k->ops->free(k);
}

static void call_free(call *k)
{
    loop *l = k->loop;

    metric_finished(&l->m, k->finish);
    if (k->n_relays)
        metric_observe(&l->m, METRIC_request_latency, clock_ns() - k->begin_ns, 1);
    forget_call(k);
}

di_code call_submit(call *k, int index, const di_request_params *p, di_status *st)
{
    relay *r;
    di_code rc = relay_submit(&r, &k->loop->ring, k->loop->srv->be, k, index, p, st);

    if (rc != DI_OK)
        return rc;
    r->next = k->relays;
    k->relays = r;
    k->n_open++;
    k->n_relays++;
    return DI_OK;
}

static void cancel_all(call *k)
{
    for (relay *r = k->relays; r; r = r->next)
        relay_cancel(r);
}

void call_detach(call *k)
{
    if (k->conn)
        k->conn->call = NULL;
    if (k->conn && !k->answered && k->n_open)
        k->finish = "cancelled";
    k->conn = NULL;
    cancel_all(k);
    if (k->n_open == 0)
        call_free(k);
}

void call_close(call *k)
{
    k->conn->call = NULL;
    forget_call(k);
}

void call_hold(call *k)
{
    k->n_open++;
}

bool call_release(call *k)
{
    k->n_open--;
    if (k->conn)
        return true;
    if (k->n_open == 0)
        call_free(k);
    return false;
}

void call_abandon(call *k)
{
    k->finish = "error";
    k->answered = true;
    call_detach(k);
}

static void observe_tokens(call *k, const di_event *ev)
{
    uint64_t now = clock_ns();

    if (ev->n_tokens == 0)
        return;
    if (!k->first_ns) {
        k->first_ns = now;
        metric_observe(&k->loop->m, METRIC_time_to_first_token, now - k->begin_ns, 1);
    } else {
        metric_observe(&k->loop->m, METRIC_inter_token_latency,
                       (now - k->last_ns) / (uint64_t)ev->n_tokens, (uint64_t)ev->n_tokens);
    }
    k->last_ns = now;
}

/* Of a request of the back end that is done; times are 0 for what it never came to. */
static void observe_end(metrics *m, const di_usage *u)
{
    metric_observe(m, METRIC_queue_time, u->queued_us * 1000, 1);
    if (u->first_token_us >= u->queued_us && u->total_us >= u->first_token_us &&
        u->first_token_us) {
        metric_observe(m, METRIC_prefill_time, (u->first_token_us - u->queued_us) * 1000, 1);
        metric_observe(m, METRIC_decode_time, (u->total_us - u->first_token_us) * 1000, 1);
    }
    metric_size_of(m, METRIC_SIZE_prompt_tokens, (uint64_t)u->prompt_tokens);
    metric_size_of(m, METRIC_SIZE_generation_tokens, (uint64_t)u->output_tokens);
}

void call_take(void *owner, int index, const di_event *ev)
{
    call *k = owner;

    if (ev->type == DI_EVENT_TOKENS) {
        observe_tokens(k, ev);
    } else if (ev->type == DI_EVENT_DONE) {
        observe_end(&k->loop->m, &ev->usage);
    }
    if (ev->code != DI_OK && k->code == DI_OK) {
        k->code = ev->code;
        snprintf(k->message, sizeof k->message, "%s", ev->message ? ev->message : "");
    }
    if (k->conn)
        k->ops->event(k, index, ev);
}

static void forget(call *k, relay *r)
{
    relay **at = &k->relays;

    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    k->n_open--;
}

void call_turn(void *owner, relay *r, bool done)
{
    call *k = owner;

    if (done)
        forget(k, r);
    if (k->conn && k->n_open)
        k->ops->turn(k);
    if (k->n_open)
        return;
    /* Held: the client may go while its answer is written, which would free k under `end`. */
    call_hold(k);
    if (k->conn) {
        k->answered = true;
        k->ops->end(k); /* answers, which detaches */
    }
    call_release(k);
}
