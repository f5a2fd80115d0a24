/* Identity of a request and its one line in the log. Thread: the connection's loop. */
#pragma once

struct conn;
struct call;

/* Set c->id (the client's x-request-id when it is sane, else a fresh one) and c->trace (the
 * client's W3C traceparent with a span of ours, else ""). */
void request_ids(struct conn *c);

/* The line of a request that has its answer or has lost its client. k may be NULL. */
void request_log(struct conn *c, struct call *k);
