/* Reading HTTP requests. See http.h. */
#include "server/http.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#define KEEP_BYTES    1024 /* of a buffer, from one request of a connection to the next */
#define MAX_TRAILER   4096
#define TLS_HANDSHAKE 0x16 /* first byte of a client that wants TLS */

static void bad(http_request *r, int status, const char *problem)
{
    r->state = HTTP_BAD;
    r->status = status;
    r->problem = problem;
}

void http_init(http_request *r)
{
    *r = (http_request){.path = "", .query = "", .fields = ""};
}

void http_fini(http_request *r)
{
    str_fini(&r->head);
    str_fini(&r->body);
}

void http_next(http_request *r)
{
    str head = r->head;

    str_fini(&r->body);
    if (head.cap > KEEP_BYTES)
        str_fini(&head);
    else
        str_clear(&head);
    http_init(r);
    r->head = head;
}

/* ---- head ---- */

static bool is_token(char c)
{
    return isalnum((unsigned char)c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static http_method method_of(const char *s)
{
    static const struct {
        const char *name;
        http_method method;
    } known[] = {{"GET", HTTP_GET},
                 {"HEAD", HTTP_HEAD_METHOD},
                 {"POST", HTTP_POST},
                 {"OPTIONS", HTTP_OPTIONS}};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(s, known[i].name) == 0)
            return known[i].method;
    return HTTP_OTHER;
}

/* "/path", "/path?query", "http://host/path" or "*". */
static bool split_target(http_request *r, char *target)
{
    char *q;

    if (strncasecmp(target, "http://", 7) == 0) {
        target = strchr(target + 7, '/');
        if (!target) {
            r->path = "/";
            return true;
        }
    }
    if (*target != '/' && strcmp(target, "*") != 0)
        return false;
    for (const char *p = target; *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7F)
            return false;
    q = strchr(target, '?');
    if (q) {
        *q = 0;
        r->query = q + 1;
    }
    r->path = target;
    return true;
}

static bool read_request_line(http_request *r, char *line)
{
    char *target = strchr(line, ' '), *version;

    if (!target || target == line)
        return false;
    *target++ = 0;
    for (const char *p = line; *p; p++)
        if (!is_token(*p))
            return false;
    version = strchr(target, ' ');
    if (!version)
        return false;
    *version++ = 0;
    if (strcmp(version, "HTTP/1.1") == 0) {
        r->minor = 1;
    } else if (strcmp(version, "HTTP/1.0") != 0) {
        if (strncmp(version, "HTTP/", 5) == 0)
            bad(r, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
        return false;
    }
    r->method = method_of(line);
    return split_target(r, target);
}

/* Every line is "name: value" with visible characters, blanks and tabs in the value. */
static bool fields_are_sound(const char *p, const char *end)
{
    while (p < end) {
        const char *eol = strstr(p, "\r\n"), *colon = strchr(p, ':');

        if (!eol || !colon || colon > eol || colon == p)
            return false;
        for (; p < colon; p++)
            if (!is_token(*p))
                return false;
        for (p++; p < eol; p++)
            if ((unsigned char)*p < ' ' && *p != '\t')
                return false;
        p = eol + 2;
    }
    return true;
}

static const char *next_field(const char *line, const char *name, size_t *n)
{
    size_t n_name = strlen(name);

    for (; *line; line = strstr(line, "\r\n") + 2) {
        const char *v, *end;

        if (strncasecmp(line, name, n_name) != 0 || line[n_name] != ':')
            continue;
        end = strstr(line, "\r\n");
        v = line + n_name + 1;
        while (*v == ' ' || *v == '\t')
            v++;
        while (end > v && (end[-1] == ' ' || end[-1] == '\t'))
            end--;
        *n = (size_t)(end - v);
        return v;
    }
    return NULL;
}

const char *http_field(const http_request *r, const char *name, size_t *n)
{
    return next_field(r->fields, name, n);
}

/* Twice the same field is how two programs come to read one stream differently. */
static bool is_repeated(const http_request *r, const char *name)
{
    size_t n;
    const char *v = http_field(r, name, &n);

    return v && next_field(strstr(v, "\r\n") + 2, name, &n);
}

static bool has_word(const char *list, size_t n, const char *word)
{
    size_t n_word = strlen(word);

    for (size_t i = 0; i + n_word <= n; i++) {
        bool begins = i == 0 || list[i - 1] == ',' || list[i - 1] == ' ' || list[i - 1] == '\t';
        size_t e = i + n_word;
        bool ends = e == n || list[e] == ',' || list[e] == ' ' || list[e] == '\t';

        if (begins && ends && strncasecmp(list + i, word, n_word) == 0)
            return true;
    }
    return false;
}

static bool read_length(http_request *r, const char *v, size_t n)
{
    if (n == 0 || n > 18)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isdigit((unsigned char)v[i]))
            return false;
        r->length = r->length * 10 + (uint64_t)(v[i] - '0');
    }
    return true;
}

/* How the body is delimited and what becomes of the connection. */
static void read_framing(http_request *r)
{
    size_t n, n2;
    const char *v = http_field(r, "transfer-encoding", &n);
    const char *length = http_field(r, "content-length", &n2);

    if (v && (length || r->minor == 0)) {
        bad(r, 400, "transfer-encoding beside content-length, or in HTTP/1.0");
        return;
    }
    if (is_repeated(r, "transfer-encoding") || is_repeated(r, "content-length")) {
        bad(r, 400, "content-length or transfer-encoding more than once");
        return;
    }
    if (v) {
        if (n != 7 || strncasecmp(v, "chunked", 7) != 0) {
            bad(r, 501, "the only transfer-encoding that is understood is chunked");
            return;
        }
        r->chunked = true;
    }
    if (length && !read_length(r, length, n2)) {
        bad(r, 400, "content-length must be one number");
        return;
    }
    v = http_field(r, "content-encoding", &n);
    if (v && !(n == 8 && strncasecmp(v, "identity", 8) == 0)) {
        bad(r, 415, "content-encoding is not supported: send the body as it is");
        return;
    }
    v = http_field(r, "connection", &n);
    r->keep_alive =
        r->minor == 1 ? !(v && has_word(v, n, "close")) : v && has_word(v, n, "keep-alive");
    v = http_field(r, "expect", &n);
    r->expect_continue = v && r->minor == 1 && has_word(v, n, "100-continue");
    if (r->minor == 1 && !http_field(r, "host", &n))
        bad(r, 400, "the host header is missing");
    else if (is_repeated(r, "host"))
        bad(r, 400, "the host header is there more than once");
}

static void read_head(http_request *r)
{
    char *head = r->head.data, *eol = strstr(head, "\r\n");

    r->state = HTTP_READY;
    if (strlen(head) != r->head.len) {
        bad(r, 400, "a 0 byte in the head");
        return;
    }
    head[r->head.len - 2] = 0; /* the empty line */
    r->fields = eol + 2;
    *eol = 0;
    if (!read_request_line(r, head)) {
        if (r->state != HTTP_BAD)
            bad(r, 400, "malformed request line");
        return;
    }
    if (!fields_are_sound(r->fields, head + r->head.len - 2)) {
        bad(r, 400, "malformed header line");
        return;
    }
    read_framing(r);
}

/* A line end without its CR among the bytes [from, to); none when to < from. */
static bool has_bare_lf(const char *data, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (data[i] == '\n' && (i == 0 || data[i - 1] != '\r'))
            return true;
    return false;
}

static size_t feed_head(http_request *r, const char *data, size_t n)
{
    size_t skipped = 0, before, from, used;
    const char *end;

    /* Empty lines in front of a request are allowed. */
    while (r->head.len == 0 && skipped < n && (data[skipped] == '\r' || data[skipped] == '\n'))
        skipped++;
    before = r->head.len;
    used = n - skipped;
    if (used > HTTP_MAX_HEAD + 4 - before)
        used = HTTP_MAX_HEAD + 4 - before;
    str_append(&r->head, data + skipped, used);
    if (!str_ok(&r->head)) {
        bad(r, 503, "no memory for the head");
        return n;
    }
    if (r->head.len == 0)
        return skipped;
    if (!is_token(r->head.data[0])) { /* its empty line might never come either */
        bad(r, 400,
            r->head.data[0] == TLS_HANDSHAKE ? "this port speaks plain HTTP, not TLS"
                                             : "this is not an HTTP request");
        return n;
    }
    from = before > 3 ? before - 3 : 0;
    end = memmem(r->head.data + from, r->head.len - from, "\r\n\r\n", 4);
    /* Seen at once, as its empty line would never come; and whatever else is wrong with the head,
     * so that it does not matter in which pieces it comes. */
    if (has_bare_lf(r->head.data, before, end ? (size_t)(end - r->head.data) : r->head.len)) {
        bad(r, 400, "lines of the head must end in CRLF");
        return n;
    }
    if (!end) {
        if (r->head.len >= HTTP_MAX_HEAD + 4)
            bad(r, 431, "the head is longer than 32768 bytes");
        return skipped + used;
    }
    r->head.len = (size_t)(end - r->head.data) + 4;
    r->head.data[r->head.len] = 0;
    used = r->head.len - before;
    read_head(r);
    return skipped + used;
}

/* ---- body ---- */

void http_go(http_request *r)
{
    r->state = r->chunked || r->length ? HTTP_BODY : HTTP_DONE;
}

static bool take_body(http_request *r, const char *data, size_t n, size_t max_body)
{
    if (n > max_body || r->body.len > max_body - n) {
        bad(r, 413, "the body is too large");
        return false;
    }
    str_append(&r->body, data, n);
    if (!str_ok(&r->body)) {
        bad(r, 503, "no memory for the body");
        return false;
    }
    return true;
}

/* Collect a line in r->line. True when it is complete (without its CRLF). */
static bool take_line(http_request *r, const char *data, size_t n, size_t *used)
{
    for (*used = 0; *used < n;) {
        char c = data[(*used)++];

        if (c == '\n') {
            if (r->n_line == 0 || r->line[r->n_line - 1] != '\r') {
                bad(r, 400, "malformed chunk");
                return false;
            }
            r->line[--r->n_line] = 0;
            return true;
        }
        if (r->n_line == sizeof r->line - 1) {
            bad(r, 400, "a line of a chunk is too long");
            return false;
        }
        r->line[r->n_line++] = c;
    }
    return false;
}

static void read_chunk_size(http_request *r)
{
    size_t i = 0;

    r->chunk_left = 0;
    for (; i < r->n_line && isxdigit((unsigned char)r->line[i]); i++) {
        char c = (char)tolower((unsigned char)r->line[i]);

        if (i == 15)
            break;
        r->chunk_left = r->chunk_left * 16 + (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (i == 0 || (i < r->n_line && r->line[i] != ';' && r->line[i] != ' '))
        bad(r, 400, "malformed chunk size");
    r->n_line = 0;
    r->chunk = r->chunk_left ? CHUNK_DATA : CHUNK_TRAILER;
}

static void end_line(http_request *r)
{
    switch (r->chunk) {
    case CHUNK_SIZE:
        read_chunk_size(r);
        break;
    case CHUNK_END:
        if (r->n_line)
            bad(r, 400, "malformed chunk");
        r->chunk = CHUNK_SIZE;
        break;
    default: /* a trailer: read over */
        if (r->n_line == 0)
            r->state = HTTP_DONE;
        r->n_trailer += r->n_line + 2;
        if (r->n_trailer > MAX_TRAILER)
            bad(r, 431, "the trailer is too long");
    }
    r->n_line = 0;
}

static size_t feed_chunked(http_request *r, const char *data, size_t n, size_t max_body)
{
    size_t at = 0, used;

    while (at < n && r->state == HTTP_BODY) {
        if (r->chunk == CHUNK_DATA) {
            used = n - at < r->chunk_left ? n - at : (size_t)r->chunk_left;
            if (!take_body(r, data + at, used, max_body))
                return n;
            r->chunk_left -= used;
            if (r->chunk_left == 0)
                r->chunk = CHUNK_END;
        } else if (take_line(r, data + at, n - at, &used)) {
            end_line(r);
        }
        at += used;
    }
    return at;
}

size_t http_feed(http_request *r, const char *data, size_t n, size_t max_body)
{
    size_t left;

    switch (r->state) {
    case HTTP_HEAD:
        return feed_head(r, data, n);
    case HTTP_BODY:
        if (r->chunked)
            return feed_chunked(r, data, n, max_body);
        left = (size_t)r->length - r->body.len;
        if (n > left)
            n = left;
        if (!take_body(r, data, n, max_body))
            return n;
        if (r->body.len == r->length)
            r->state = HTTP_DONE;
        return n;
    default:
        return 0;
    }
}

/* ---- small things ---- */

const char *http_query(const http_request *r, const char *name, size_t *n)
{
    size_t n_name = strlen(name);

    for (const char *p = r->query; *p;) {
        size_t len = strcspn(p, "&");

        if (len > n_name && strncmp(p, name, n_name) == 0 && p[n_name] == '=') {
            *n = len - n_name - 1;
            return p + n_name + 1;
        }
        p += len;
        p += *p == '&';
    }
    return NULL;
}

const char *http_reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {{200, "OK"},
                   {204, "No Content"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {413, "Content Too Large"},
                   {415, "Unsupported Media Type"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {499, "Client Closed Request"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"},
                   {505, "HTTP Version Not Supported"}};

    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].text;
    return "Unknown";
}

static int hex(char c)
{
    return isdigit((unsigned char)c)    ? c - '0'
           : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10
                                        : -1;
}

size_t http_unescape(char *s)
{
    size_t to = 0;

    for (size_t i = 0; s[i]; i++) {
        char c = s[i];

        if (c == '%') {
            int high = hex(s[i + 1]), low = high < 0 ? -1 : hex(s[i + 2]);

            if (low < 0 || (high == 0 && low == 0))
                return SIZE_MAX;
            c = (char)(high * 16 + low);
            i += 2;
        }
        s[to++] = c;
    }
    s[to] = 0;
    return to;
}
