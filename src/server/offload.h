/* Handlers whose work grows with the body: a short one is done on the loop, a long one on a worker,
 * so that nobody else on the loop waits for it. */
#pragma once

#include "base/status.h"
#include "base/str.h"

struct conn;
struct server;

typedef struct offload_ops {
    /* Any thread. Whatever comes of the body; NULL when out of memory. */
    void *(*make)(const struct server *s, const str *body);
    /* Loop thread. Answer the client (c NULL: it has gone) and free the result. */
    void (*finish)(struct conn *c, void *result);
} offload_ops;

#define OFFLOAD_INLINE_BYTES (16 << 10) /* a body that the loop reads itself */

/* The whole handler; c's body is taken over. */
void offload(struct conn *c, const offload_ops *ops);

/* What the simple ones make: JSON, or why not. */
typedef struct offload_answer {
    str json;
    di_status st; /* DI_OK: json is the answer */
} offload_answer;
/* finish for an offload_answer. */
void offload_reply(struct conn *c, void *answer);
