/* API keys. See keys.h. */
#include "server/keys.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "server/server_internal.h"

#define MAX_FILE (1 << 20)

struct api_key {
    char *secret, *name;
    int64_t per_minute, max_running; /* 0 = no limit */
    int64_t running;
    double budget; /* requests that may come now, at most per_minute */
    uint64_t filled_ns;
};

struct key_table {
    pthread_mutex_t lock; /* the changing parts of the keys */
    api_key *key;
    size_t n, cap;
};

/* ---- loading ---- */

/* NULL: out of memory, *st says so. */
static api_key *add_key(key_table *t, const char *secret, di_status *st)
{
    api_key *k = &t->key[t->n];

    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 8;

        k = mem_try_realloc(t->key, cap, sizeof *k);
        if (k) {
            t->key = k;
            t->cap = cap;
            k += t->n;
        }
    }
    if (k)
        *k = (api_key){.secret = mem_try_strdup(secret)};
    if (!k || !k->secret) {
        di_fail(st, DI_E_NOMEM, "no memory for API keys");
        return NULL;
    }
    t->n++;
    return k;
}

static bool read_count(const char *s, int64_t *out)
{
    char *end;
    long long v = strtoll(s, &end, 10);

    *out = v;
    return *s && !*end && v > 0 && v <= 1000000000;
}

static di_code read_word(api_key *k, const char *word, const char *file, int line, di_status *st)
{
    if (strncmp(word, "name=", 5) == 0 && word[5] && !k->name) {
        k->name = mem_try_strdup(word + 5);
        return k->name ? DI_OK : di_fail(st, DI_E_NOMEM, "no memory for API keys");
    }
    if (strncmp(word, "requests_per_minute=", 20) == 0 && read_count(word + 20, &k->per_minute))
        return DI_OK;
    if (strncmp(word, "max_running=", 12) == 0 && read_count(word + 12, &k->max_running))
        return DI_OK;
    return di_fail(st, DI_E_FORMAT,
                   "\"%s\" line %d: \"%s\" is not name=NAME, requests_per_minute=N or "
                   "max_running=N",
                   file, line, word);
}

static di_code read_line(key_table *t, char *text, const char *file, int line, di_status *st)
{
    di_code rc = DI_OK;
    char *save = NULL, *word = strtok_r(text, " \t\r", &save);
    api_key *k;

    if (!word || *word == '#')
        return DI_OK;
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->key[i].secret, word) == 0)
            return di_fail(st, DI_E_FORMAT, "\"%s\" line %d: this key was given before", file,
                           line);
    k = add_key(t, word, st);
    if (!k)
        return DI_E_NOMEM;
    while ((word = strtok_r(NULL, " \t\r", &save)))
        DI_TRY(read_word(k, word, file, line, st));
    k->budget = (double)k->per_minute;
    k->filled_ns = clock_ns();
done:
    return rc;
}

di_code keys_load(key_table **out, const char *key, const char *file, di_status *st)
{
    di_code rc = DI_OK;
    key_table *t = NULL;
    char *text = NULL;
    size_t n;
    int line = 0;

    *out = NULL;
    if (!key && !file)
        return DI_OK;
    t = mem_try_calloc(1, sizeof *t);
    if (!t)
        return di_fail(st, DI_E_NOMEM, "no memory for API keys");
    pthread_mutex_init(&t->lock, NULL);
    if (key && !add_key(t, key, st)) {
        rc = DI_E_NOMEM;
        goto done;
    }
    if (file) {
        DI_TRY(file_read(&text, &n, file, MAX_FILE, st));
        for (char *at = text, *next; at; at = next) {
            next = strchr(at, '\n');
            if (next)
                *next++ = 0;
            DI_TRY(read_line(t, at, file, ++line, st));
        }
    }
    if (t->n == 0)
        rc = di_fail(st, DI_E_FORMAT, "\"%s\" holds no API key", file);
done:
    if (rc == DI_OK) {
        *out = t;
        t = NULL;
    }
    keys_free(t);
    mem_free(text);
    return rc;
}

void keys_free(key_table *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n; i++) {
        mem_free(t->key[i].secret);
        mem_free(t->key[i].name);
    }
    pthread_mutex_destroy(&t->lock);
    mem_free(t->key);
    mem_free(t);
}

/* ---- requests ---- */

/* Takes the same time wherever the texts differ. */
static bool same(const char *secret, const char *s, size_t n)
{
    size_t len = strlen(secret);
    unsigned diff = len != n;

    for (size_t i = 0; i < n; i++)
        diff |= (unsigned char)s[i] ^ (unsigned char)secret[i < len ? i : 0];
    return diff == 0;
}

static const char *given_key(const http_request *r, size_t *n)
{
    const char *v = http_field(r, "authorization", n);

    if (v && *n > 7 && strncasecmp(v, "bearer ", 7) == 0) {
        for (v += 7, *n -= 7; *n && *v == ' '; (*n)--)
            v++;
        return v;
    }
    return http_field(r, "x-api-key", n);
}

bool keys_admit(conn *c)
{
    key_table *t = c->loop->srv->keys;
    size_t n = 0;
    const char *v;

    if (!t)
        return true;
    v = given_key(&c->req, &n);
    for (size_t i = 0; v && i < t->n; i++)
        if (same(t->key[i].secret, v, n))
            c->key = &t->key[i];
    if (c->key)
        return true;
    metric_count(&c->loop->m, METRIC_rejected_auth);
    conn_error(c, &(error_body){.status = 401,
                                .message = v ? "this API key is not known here"
                                             : "an API key is needed: send \"authorization: Bearer "
                                               "KEY\" or \"x-api-key: KEY\"",
                                .code = "invalid_api_key"});
    return false;
}

/* Seconds until the key may send again, and which limit says so; 0 = counted. Under the lock. */
static int take_locked(api_key *k, int retry_s, char *why, size_t cap)
{
    uint64_t now = clock_ns();

    if (k->max_running && k->running >= k->max_running) {
        snprintf(why, cap, "this API key has %lld running requests, its limit",
                 (long long)k->running);
        return retry_s;
    }
    if (k->per_minute) {
        double rate = (double)k->per_minute / 60;

        k->budget += (double)(now - k->filled_ns) * 1e-9 * rate;
        if (k->budget > (double)k->per_minute)
            k->budget = (double)k->per_minute;
        k->filled_ns = now;
        if (k->budget < 1) {
            snprintf(why, cap, "this API key has sent its limit of %lld requests per minute",
                     (long long)k->per_minute);
            return (int)((1 - k->budget) / rate) + 1;
        }
        k->budget -= 1;
    }
    k->running++;
    return 0;
}

bool keys_take(conn *c)
{
    server *s = c->loop->srv;
    char why[100];
    int wait;

    if (!c->key)
        return true;
    pthread_mutex_lock(&s->keys->lock);
    wait = take_locked(c->key, s->opt.retry_after_s, why, sizeof why);
    pthread_mutex_unlock(&s->keys->lock);
    c->key_taken = wait == 0;
    if (wait == 0)
        return true;
    metric_count(&c->loop->m, METRIC_rejected_limit);
    conn_error(c, &(error_body){.status = 429,
                                .message = why,
                                .code = "rate_limit_exceeded",
                                .retry_after_s = wait});
    return false;
}

void keys_release(conn *c)
{
    server *s = c->loop->srv;

    if (!c->key_taken)
        return;
    pthread_mutex_lock(&s->keys->lock);
    c->key->running--;
    pthread_mutex_unlock(&s->keys->lock);
    c->key_taken = false;
}

const char *keys_name(const api_key *k)
{
    return !k ? NULL : k->name ? k->name : "unnamed";
}
