/* See lines.h. */
#include "cli/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json_read.h"
#include "base/mem.h"

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r')
            return false;
    return true;
}

/* The next line of any kind. */
static bool raw_next(const char **at, const char *end, const char **line, size_t *n)
{
    const char *nl;

    if (*at >= end)
        return false;
    nl = memchr(*at, '\n', (size_t)(end - *at));
    *line = *at;
    *n = (size_t)((nl ? nl : end) - *at);
    *at = nl ? nl + 1 : end;
    return true;
}

static di_code read_stdin(str *text, di_status *st)
{
    char chunk[65536];
    ssize_t n;

    while ((n = read(STDIN_FILENO, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return di_fail(st, DI_E_IO, "could not read standard input: %s", errno_text(errno));
        str_append(text, chunk, (size_t)n);
    }
    if (!str_ok(text))
        return di_fail(st, DI_E_NOMEM, "no memory for the lines of standard input");
    return DI_OK;
}

static di_code read_stream(str *text, const char *path, di_status *st)
{
    char *data;
    size_t n;
    di_code rc = file_read_stream(&data, &n, path, SIZE_MAX, st);

    if (rc != DI_OK)
        return rc;
    str_append(text, data, n);
    mem_free(data);
    return str_ok(text) ? DI_OK
                        : di_fail(st, DI_E_NOMEM, "no memory for the lines of \"%s\"", path);
}

di_code lines_open(lines_in *l, const char *path, di_status *st)
{
    const char *at, *line;
    size_t n;
    di_code rc;

    *l = (lines_in){.path = path};
    if (strcmp(path, "-") == 0) {
        DI_TRY(read_stdin(&l->text, st));
        l->at = str_text(&l->text);
        l->end = l->at + l->text.len;
    } else if (file_is_stream(path)) {
        DI_TRY(read_stream(&l->text, path, st));
        l->at = str_text(&l->text);
        l->end = l->at + l->text.len;
    } else {
        DI_TRY(file_map_open(&l->map, path, st));
        l->at = l->map.data ? (const char *)l->map.data : "";
        l->end = l->at + l->map.bytes;
    }
    at = l->at;
    while (raw_next(&at, l->end, &line, &n))
        l->n_lines += !is_blank(line, n);
done:
    return rc;
}

void lines_close(lines_in *l)
{
    file_map_close(&l->map);
    str_fini(&l->text);
    *l = (lines_in){0};
}

bool lines_next(lines_in *l, const char **line, size_t *n)
{
    while (raw_next(&l->at, l->end, line, n)) {
        l->number++;
        if (!is_blank(*line, *n)) {
            l->next_idx++;
            return true;
        }
    }
    return false;
}

/* What tells one line from another: its custom_id, as JSON text. */
typedef struct mark {
    const char *id; /* NULL = none */
    size_t n_id;
    bool has_index, has_error;
    int64_t index;
} mark;

static di_code read_mark(const char *line, size_t n, mark *m, di_status *st)
{
    json_read r;
    const char *key;
    size_t len;
    di_code rc;

    *m = (mark){0};
    json_open(&r, line, n, "line");
    DI_TRY(json_object(&r, st));
    while (json_key(&r, &key, &len)) {
        if (json_key_is(key, len, "custom_id") && json_peek(&r) == JSON_STRING) {
            DI_TRY(json_raw(&r, &m->id, &m->n_id, st));
        } else if (json_key_is(key, len, "index") && json_peek(&r) == JSON_NUMBER) {
            m->has_index = true;
            DI_TRY(json_int(&r, &m->index, st));
        } else if (json_key_is(key, len, "error")) {
            m->has_error = json_peek(&r) != JSON_NULL;
            DI_TRY(json_skip(&r, st));
        } else {
            DI_TRY(json_skip(&r, st));
        }
    }
    DI_TRY(json_end(&r, st));
done:
    json_close(&r);
    return rc;
}

/* Two custom_ids, each in its own JSON spelling. */
static bool same_id(const mark *a, const mark *b)
{
    json_read ra, rb;
    const char *sa, *sb;
    size_t na, nb;
    bool same = false;

    if (!a->id || !b->id)
        return a->id == b->id;
    json_open(&ra, a->id, a->n_id, "custom_id");
    json_open(&rb, b->id, b->n_id, "custom_id");
    if (json_string(&ra, &sa, &na, NULL) == DI_OK && json_string(&rb, &sb, &nb, NULL) == DI_OK)
        same = na == nb && memcmp(sa, sb, na) == 0;
    json_close(&ra);
    json_close(&rb);
    return same;
}

/* Does finished line `done` answer the input line? A malformed input line has an answer without
 * custom_id. */
static bool belongs(const char *done, size_t n_done, const char *in, size_t n_in, int64_t idx,
                    bool *failed)
{
    mark d, i;

    if (read_mark(done, n_done, &d, NULL) != DI_OK)
        return false;
    *failed = d.has_error;
    if (d.has_index && d.index != idx)
        return false;
    if (read_mark(in, n_in, &i, NULL) != DI_OK)
        return d.has_error;
    return same_id(&d, &i);
}

/* Walk finished lines and input together; *keep = bytes of whole lines. */
static di_code match_lines(lines_out *o, const file_map *old, lines_in *in, size_t *keep,
                           di_status *st)
{
    const char *begin = (const char *)old->data, *at = begin, *end = begin + old->bytes;
    const char *done, *line;
    size_t n_done, n;

    *keep = 0;
    while (raw_next(&at, end, &done, &n_done)) {
        bool failed = false;

        if (at[-1] != '\n')
            break; /* the part of a line that was being written */
        if (!lines_next(in, &line, &n))
            return di_fail(st, DI_E_INVALID,
                           "\"%s\" has more lines than \"%s\": give another --output, or "
                           "--overwrite to start again",
                           o->path, in->path);
        if (!belongs(done, n_done, line, n, in->next_idx - 1, &failed))
            return di_fail(st, DI_E_INVALID,
                           "line %lld of \"%s\" does not answer line %lld of \"%s\": give another "
                           "--output, or --overwrite to start again",
                           (long long)in->next_idx, o->path, (long long)in->number, in->path);
        o->n_done++;
        o->n_failed += failed;
        *keep = (size_t)(at - begin);
    }
    return DI_OK;
}

static di_code take_up(lines_out *o, lines_in *in, di_status *st)
{
    file_map old;
    size_t keep;
    struct stat info;
    di_code rc;

    if (fstat(o->fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0)
        return DI_OK; /* new, or a pipe or device: nothing to take up */
    rc = file_map_open(&old, o->path, st);
    if (rc != DI_OK)
        return rc;
    rc = match_lines(o, &old, in, &keep, st);
    file_map_close(&old);
    if (rc == DI_OK && (ftruncate(o->fd, (off_t)keep) != 0 || lseek(o->fd, 0, SEEK_END) < 0))
        rc = di_fail(st, DI_E_IO, "could not continue \"%s\": %s", o->path, errno_text(errno));
    return rc;
}

/* The input is mapped: writing to the same file would destroy it. */
static bool same_file(const char *a, const char *b)
{
    struct stat sa, sb;

    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && S_ISREG(sa.st_mode) &&
           sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

di_code lines_resume(lines_out *o, const char *path, bool fresh, lines_in *in, di_status *st)
{
    di_code rc;

    *o = (lines_out){.path = path, .fd = STDOUT_FILENO};
    if (strcmp(path, "-") == 0)
        return DI_OK;
    if (same_file(path, in->path)) {
        o->fd = -1;
        return di_fail(st, DI_E_INVALID, "--output \"%s\" is the input itself", path);
    }
    o->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | (fresh ? O_TRUNC : 0), 0666);
    if (o->fd < 0 && errno == EACCES && !fresh)
        o->fd = open(path, O_WRONLY | O_CLOEXEC); /* a device that cannot be read */
    if (o->fd < 0)
        return di_fail(st, DI_E_IO, "could not open \"%s\": %s", path, errno_text(errno));
    rc = take_up(o, in, st);
    if (rc != DI_OK) {
        close(o->fd);
        o->fd = -1;
    }
    return rc;
}

di_code lines_write(lines_out *o, const str *line, di_status *st)
{
    size_t at = 0;

    while (at < line->len) {
        ssize_t n = write(o->fd, line->data + at, line->len - at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return di_fail(st, DI_E_IO, "could not write to \"%s\": %s", o->path,
                           errno_text(errno));
        at += (size_t)n;
    }
    return DI_OK;
}

di_code lines_out_close(lines_out *o, di_status *st)
{
    int fd = o->fd;

    o->fd = -1;
    if (fd < 0 || fd == STDOUT_FILENO)
        return DI_OK;
    if (close(fd) != 0)
        return di_fail(st, DI_E_IO, "could not write to \"%s\": %s", o->path, errno_text(errno));
    return DI_OK;
}
