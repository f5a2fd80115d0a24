/* Events of one engine request on their way to the loop thread of its connection.
 *
 *   back end's thread: relay_event -> record in relay.buf -> relay into the loop's ring -> eventfd
 *   loop thread:       eventfd -> relay_drain -> records as di_event -> the call
 *
 * A relay stands in the ring at most once, so a ring with room for all relays of a loop never
 * overflows; what arrives while a relay waits there is taken in the same turn (tokens coalesce when
 * a loop is behind, and nothing is lost or reordered). One producer (the back end's thread), one
 * consumer (the loop). */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"
#include "deepinfer/deepinfer.h"
#include "server/backend.h"

#define RING_CAP 16384 /* relays of one loop; a power of two */

typedef struct relay relay;

typedef struct relay_ring {
    relay *slot[RING_CAP];
    _Alignas(64) atomic_size_t head; /* written by the producer */
    _Alignas(64) atomic_size_t tail; /* written by the consumer */
    _Alignas(64) atomic_bool signalled;
    int eventfd;
    int n_relays; /* loop thread: alive */
} relay_ring;

struct relay {
    relay_ring *ring;
    const backend *be;
    void *handle; /* of the back end; NULL before it is known and after DONE */
    void *owner;  /* loop thread only */
    relay *next;  /* the owner's list */
    int index;    /* of the prompt in its call */
    pthread_mutex_t lock;
    str buf;     /* records; under lock */
    bool queued; /* in the ring; under lock */
    bool done;   /* DONE has come; under lock */
    bool lost;   /* no memory for a record; under lock */
};

/* Errors: IO, NOMEM. */
di_code relay_ring_init(relay_ring *r, di_status *st);
void relay_ring_fini(relay_ring *r);

/* Loop thread. Submit p (on_event and user are set here) for `owner`. Errors: those of the back
 * end, BUSY when the loop has RING_CAP requests. */
di_code relay_submit(relay **out, relay_ring *ring, const backend *be, void *owner, int index,
                     const di_request_params *p, di_status *st);

/* Loop thread. Harmless at any time; DONE still comes. */
void relay_cancel(relay *r);
void relay_cancel_choice(relay *r, int choice);

/* Loop thread: the relays that wait in the ring, at least. */
size_t relay_n_waiting(const relay_ring *ring);

/* Loop thread, whenever the eventfd was written; it is not read here: watch it edge-triggered.
 * `take` gets every event in order (pointers valid for
 * the call); `turn` comes once per relay behind its events. The relay is freed behind the turn that
 * had DONE. `scratch` is work space. */
typedef void (*relay_take)(void *owner, int index, const di_event *ev);
typedef void (*relay_turn)(void *owner, relay *r, bool done);
void relay_drain(relay_ring *ring, str *scratch, relay_take take, relay_turn turn);
