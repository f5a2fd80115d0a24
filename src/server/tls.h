/* Bytes to and from a socket, encrypted or not. Build option DI_TLS (OpenSSL); without it tls_load
 * says UNSUPPORTED. Thread: tls_load at the start, the rest on the connection's loop. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "base/status.h"

struct evbuffer;
struct tls_context;

/* Errors: UNSUPPORTED, IO, FORMAT (certificate and key do not fit, with OpenSSL's text). */
di_code tls_load(struct tls_context **out, const char *cert, const char *key, di_status *st);
void tls_free(struct tls_context *t);

/* The server's side of a connection; NULL when out of memory. */
void *tls_begin(struct tls_context *t, int fd);
void tls_end(void *tls); /* accepts NULL */

/* As read and write of a non-blocking socket: -1 with EAGAIN when it must wait. tls NULL: plain. */
ssize_t tls_read(void *tls, int fd, void *to, size_t n);
/* Write from the front of the buffer and take off what was written. */
ssize_t tls_write_buffer(void *tls, int fd, struct evbuffer *from);
