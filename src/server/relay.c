/* Events from the back end's thread to loop threads. See relay.h.
 *
 * A record is a rec, then n_token ids, and with `values` logprob, rank and n_token * n_top
 * alternatives, then the text and the message, each with a 0 behind it, padded to 8 bytes. */
#include "server/relay.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"

#define KEEP_BYTES 2048
#define MAX_TURN   256 /* relays in a row */

typedef struct rec {
    uint32_t bytes; /* of the whole record */
    uint8_t type, finish, code, values;
    int32_t choice, n_token, n_top, stop_index;
    uint32_t n_text, n_message;
    uint64_t seed;
    di_usage usage;
} rec;

di_code relay_ring_init(relay_ring *r, di_status *st)
{
    r->eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (r->eventfd < 0)
        return di_fail(st, DI_E_IO, "could not make an eventfd");
    return DI_OK;
}

void relay_ring_fini(relay_ring *r)
{
    if (r->eventfd >= 0)
        close(r->eventfd);
    r->eventfd = -1;
}

static void wake(const relay_ring *ring)
{
    uint64_t one = 1;

    while (write(ring->eventfd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

/* ---- back end's thread ---- */

static void push(relay_ring *ring, relay *r)
{
    size_t h = atomic_load_explicit(&ring->head, memory_order_relaxed);

    ring->slot[h & (RING_CAP - 1)] = r; /* there is room: see relay.h */
    /* release at least: pairs with the acquire in relay_drain, the slot is filled */
    atomic_store(&ring->head, h + 1);
    /* seq_cst, as in relay_drain: either we see its reset, or it sees our relay */
    if (!atomic_exchange(&ring->signalled, true))
        wake(ring);
}

static size_t padded(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

static void record(str *to, const di_event *ev)
{
    static const char zeros[8];
    bool values = ev->logprob != NULL;
    size_t n = (size_t)ev->n_tokens, n_top = values && ev->top ? (size_t)ev->n_top : 0;
    size_t n_message = ev->message ? strlen(ev->message) : 0;
    size_t bytes = padded(sizeof(rec) + n * 4 + (values ? n * 8 + n * n_top * sizeof *ev->top : 0) +
                          ev->n_text + n_message + 2);
    rec head = {.bytes = (uint32_t)bytes,
                .type = (uint8_t)ev->type,
                .finish = (uint8_t)ev->finish,
                .code = (uint8_t)ev->code,
                .values = values,
                .choice = ev->choice,
                .n_token = ev->n_tokens,
                .n_top = (int32_t)n_top,
                .stop_index = ev->stop_index,
                .n_text = (uint32_t)ev->n_text,
                .n_message = (uint32_t)n_message,
                .seed = ev->seed,
                .usage = ev->usage};
    size_t end = to->len + bytes;

    str_append(to, &head, sizeof head);
    str_append(to, ev->token, n * 4);
    if (values) {
        str_append(to, ev->logprob, n * 4);
        str_append(to, ev->rank, n * 4);
        str_append(to, ev->top, n * n_top * sizeof *ev->top);
    }
    str_append(to, ev->text, ev->n_text);
    str_append(to, zeros, 1);
    str_append(to, ev->message, n_message);
    if (str_ok(to))
        str_append(to, zeros, end - to->len);
}

static void on_event(const di_event *ev)
{
    relay *r = ev->user;
    bool ring_it;
    size_t before;

    pthread_mutex_lock(&r->lock);
    before = r->buf.len;
    record(&r->buf, ev);
    if (!str_ok(&r->buf)) {
        r->buf.failed = false;
        r->buf.len = before;
        r->lost = true;
    }
    if (ev->type == DI_EVENT_DONE) {
        r->done = true;
        r->handle = NULL;
    }
    ring_it = !r->queued;
    r->queued = true;
    /* Inside the lock: the loop frees a relay whose DONE it has seen. */
    if (ring_it)
        push(r->ring, r);
    pthread_mutex_unlock(&r->lock);
}

/* ---- loop thread ---- */

static void relay_free(relay *r)
{
    if (!r)
        return;
    r->ring->n_relays--;
    pthread_mutex_destroy(&r->lock);
    str_fini(&r->buf);
    mem_free(r);
}

di_code relay_submit(relay **out, relay_ring *ring, const backend *be, void *owner, int index,
                     const di_request_params *p, di_status *st)
{
    di_request_params q = *p;
    void *handle;
    di_code rc;
    relay *r;

    *out = NULL;
    if (ring->n_relays == RING_CAP)
        return di_fail(st, DI_E_BUSY, "this thread has %d requests, its most", RING_CAP);
    r = mem_try_calloc(1, sizeof *r);
    if (!r)
        return di_fail(st, DI_E_NOMEM, "no memory for a request");
    *r = (relay){.ring = ring, .be = be, .owner = owner, .index = index};
    pthread_mutex_init(&r->lock, NULL);
    ring->n_relays++;
    q.on_event = on_event;
    q.user = r;
    rc = be->ops->submit(be->self, &q, &handle, st);
    if (rc != DI_OK) {
        relay_free(r);
        return rc;
    }
    pthread_mutex_lock(&r->lock);
    if (!r->done)
        r->handle = handle;
    pthread_mutex_unlock(&r->lock);
    *out = r;
    return DI_OK;
}

void relay_cancel(relay *r)
{
    /* Under the lock: the handle is good until on_event has taken DONE. */
    pthread_mutex_lock(&r->lock);
    if (r->handle)
        r->be->ops->cancel(r->be->self, r->handle);
    pthread_mutex_unlock(&r->lock);
}

void relay_cancel_choice(relay *r, int choice)
{
    pthread_mutex_lock(&r->lock);
    if (r->handle)
        r->be->ops->cancel_choice(r->be->self, r->handle, choice);
    pthread_mutex_unlock(&r->lock);
}

/* The event that a record holds; returns its end. */
static const char *unpack(const char *p, di_event *ev)
{
    rec h;
    size_t n;
    const char *at = p + sizeof h;

    memcpy(&h, p, sizeof h);
    n = (size_t)h.n_token;
    *ev = (di_event){.type = h.type,
                     .choice = h.choice,
                     .n_tokens = h.n_token,
                     .n_top = h.n_top,
                     .finish = h.finish,
                     .stop_index = h.stop_index,
                     .code = h.code,
                     .seed = h.seed,
                     .usage = h.usage,
                     .n_text = h.n_text};
    ev->token = (const int32_t *)(const void *)at;
    at += n * 4;
    if (h.values) {
        ev->logprob = (const float *)(const void *)at;
        at += n * 4;
        ev->rank = (const int32_t *)(const void *)at;
        at += n * 4;
        ev->top = (const di_token_logprob *)(const void *)at;
        at += n * (size_t)h.n_top * sizeof *ev->top;
    }
    ev->text = at;
    ev->message = h.n_message ? at + h.n_text + 1 : NULL;
    return p + h.bytes;
}

static void drain_one(relay *r, str *scratch, relay_take take, relay_turn turn)
{
    str taken;
    bool done, lost;
    di_event ev = {0};

    pthread_mutex_lock(&r->lock);
    taken = r->buf;
    r->buf = *scratch;
    done = r->done;
    lost = r->lost;
    r->queued = false;
    pthread_mutex_unlock(&r->lock);
    for (const char *p = str_text(&taken), *end = p + taken.len; p < end;) {
        p = unpack(p, &ev);
        if (lost && ev.type == DI_EVENT_DONE && ev.code == DI_OK) {
            ev.code = DI_E_NOMEM;
            ev.message = "no memory for an event of this request: its tokens are not complete";
        }
        take(r->owner, r->index, &ev);
    }
    if (done && ev.type != DI_EVENT_DONE) { /* there was no memory even for it */
        ev = (di_event){.type = DI_EVENT_DONE, .code = DI_E_NOMEM, .text = "", .stop_index = -1};
        ev.message = "no memory for the end of this request";
        take(r->owner, r->index, &ev);
    }
    str_clear(&taken);
    if (taken.cap > KEEP_BYTES) /* a burst; streams are many and stay small */
        str_fini(&taken);
    *scratch = taken;
    turn(r->owner, r, done);
    if (done)
        relay_free(r);
}

size_t relay_n_waiting(const relay_ring *ring)
{
    return atomic_load_explicit(&ring->head, memory_order_relaxed) -
           atomic_load_explicit(&ring->tail, memory_order_relaxed);
}

/* While this runs `signalled` stays true, so that the producer makes no system call for what we see
 * anyway. Only with the ring empty it is taken back; then the ring is looked at once more. */
void relay_drain(relay_ring *ring, str *scratch, relay_take take, relay_turn turn)
{
    size_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

    for (int n = 0;; n++) {
        relay *r;

        /* acquire: pairs with the release in push */
        if (tail == atomic_load_explicit(&ring->head, memory_order_acquire)) {
            /* seq_cst, as in push: either it sees the reset, or we see its relay */
            atomic_store(&ring->signalled, false);
            if (tail == atomic_load(&ring->head) || atomic_exchange(&ring->signalled, true))
                return;
        }
        if (n == MAX_TURN) { /* sockets have a turn too; come again */
            wake(ring);
            return;
        }
        r = ring->slot[tail & (RING_CAP - 1)];
        atomic_store_explicit(&ring->tail, ++tail, memory_order_relaxed);
        drain_one(r, scratch, take, turn);
    }
}
