/* Plain sockets, and OpenSSL where it is built in. See tls.h. */
#include "server/tls.h"

#include <errno.h>
#include <unistd.h>
#include <event2/buffer.h>

#define TLS_WRITE 16384 /* a record */

static ssize_t plain_write(int fd, struct evbuffer *from)
{
    int n = evbuffer_write(from, fd);

    if (n < 0 && errno == EINTR)
        errno = EAGAIN;
    return n;
}

static ssize_t plain_read(int fd, void *to, size_t n)
{
    ssize_t got = read(fd, to, n);

    if (got < 0 && errno == EINTR)
        errno = EAGAIN;
    return got;
}

#ifdef DI_TLS

#include <openssl/err.h>
#include <openssl/ssl.h>

static di_code ssl_fail(di_status *st, di_code code, const char *what, const char *file)
{
    char text[160];

    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    return di_fail(st, code, "%s \"%s\": %s", what, file, text);
}

di_code tls_load(struct tls_context **out, const char *cert, const char *key, di_status *st)
{
    SSL_CTX *x = SSL_CTX_new(TLS_server_method());
    di_code rc = DI_OK;

    *out = NULL;
    if (!x)
        return di_fail(st, DI_E_NOMEM, "no memory for TLS");
    SSL_CTX_set_min_proto_version(x, TLS1_2_VERSION);
    SSL_CTX_set_mode(x, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
    if (SSL_CTX_use_certificate_chain_file(x, cert) != 1)
        rc = ssl_fail(st, DI_E_FORMAT, "could not use the certificate", cert);
    else if (SSL_CTX_use_PrivateKey_file(x, key, SSL_FILETYPE_PEM) != 1)
        rc = ssl_fail(st, DI_E_FORMAT, "could not use the private key", key);
    else if (SSL_CTX_check_private_key(x) != 1)
        rc = ssl_fail(st, DI_E_FORMAT, "the private key does not belong to the certificate", key);
    if (rc == DI_OK)
        *out = (struct tls_context *)(void *)x;
    else
        SSL_CTX_free(x);
    return rc;
}

void tls_free(struct tls_context *t)
{
    SSL_CTX_free((SSL_CTX *)(void *)t);
}

void *tls_begin(struct tls_context *t, int fd)
{
    SSL *s = SSL_new((SSL_CTX *)(void *)t);

    if (!s || SSL_set_fd(s, fd) != 1) {
        SSL_free(s);
        return NULL;
    }
    SSL_set_accept_state(s);
    return s;
}

void tls_end(void *tls)
{
    if (tls)
        SSL_shutdown(tls); /* one way: the other side may be gone */
    SSL_free(tls);
    ERR_clear_error();
}

/* -1 and errno for a call that returned n <= 0; 0 for a clean end. */
static ssize_t ssl_result(SSL *s, int n)
{
    int why = SSL_get_error(s, n);

    ERR_clear_error();
    if (why == SSL_ERROR_ZERO_RETURN)
        return 0;
    errno = why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return -1;
}

ssize_t tls_read(void *tls, int fd, void *to, size_t n)
{
    int got;

    if (!tls)
        return plain_read(fd, to, n);
    got = SSL_read(tls, to, n > INT32_MAX ? INT32_MAX : (int)n);
    return got > 0 ? got : ssl_result(tls, got);
}

ssize_t tls_write_buffer(void *tls, int fd, struct evbuffer *from)
{
    size_t n = evbuffer_get_length(from);
    int sent;

    if (!tls)
        return plain_write(fd, from);
    if (n > TLS_WRITE)
        n = TLS_WRITE;
    sent = SSL_write(tls, evbuffer_pullup(from, (ssize_t)n), (int)n);
    if (sent <= 0)
        return ssl_result(tls, sent);
    evbuffer_drain(from, (size_t)sent);
    return sent;
}

#else

di_code tls_load(struct tls_context **out, const char *cert, const char *key, di_status *st)
{
    (void)cert;
    (void)key;
    *out = NULL;
    return di_fail(st, DI_E_UNSUPPORTED,
                   "this build has no TLS: configure with -DDI_TLS=ON (needs OpenSSL), or let a "
                   "proxy end it");
}

void tls_free(struct tls_context *t)
{
    (void)t;
}

void *tls_begin(struct tls_context *t, int fd)
{
    (void)t;
    (void)fd;
    return NULL;
}

void tls_end(void *tls)
{
    (void)tls;
}

ssize_t tls_read(void *tls, int fd, void *to, size_t n)
{
    (void)tls;
    return plain_read(fd, to, n);
}

ssize_t tls_write_buffer(void *tls, int fd, struct evbuffer *from)
{
    (void)tls;
    return plain_write(fd, from);
}

#endif
