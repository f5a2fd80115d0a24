/* A safetensors file on disk: length checks, the header, and a read-only map of the data. */
#include "checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

#define LENGTH_BYTES ((size_t)8)

struct st_file {
    char *path;
    st_header header;
    file_map map; /* empty when opened with headers_only */
    int fd;       /* for st_file_read; -1 when opened with headers_only */
    size_t bytes, data_offset;
};

/* Read exactly n bytes at an offset. */
static di_code read_at(int fd, void *buf, size_t n, size_t at, const char *path, di_status *st)
{
    size_t done = 0;

    while (done < n) {
        ssize_t got = pread(fd, (char *)buf + done, n - done, (off_t)(at + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return di_fail(st, DI_E_IO, "could not read \"%s\": %s", path, errno_text(errno));
        if (got == 0)
            return di_fail(st, DI_E_IO, "could not read \"%s\": it became shorter while read",
                           path);
        done += (size_t)got;
    }
    return DI_OK;
}

/* Header length, checked against the file. */
static di_code read_length(const st_file *f, int fd, size_t *out, di_status *st)
{
    unsigned char b[LENGTH_BYTES];
    uint64_t n = 0;
    di_code rc = DI_OK;

    if (f->bytes < LENGTH_BYTES)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\" is cut off: %zu bytes, a safetensors file has at least %zu; get the "
                       "file again",
                       f->path, f->bytes, LENGTH_BYTES);
    DI_TRY(read_at(fd, b, sizeof b, 0, f->path, st));
    for (size_t i = LENGTH_BYTES; i-- > 0;)
        n = n << 8 | b[i];
    if (n > ST_MAX_HEADER)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\": a header of %" PRIu64 " bytes, at most %zu are allowed; this is no "
                       "safetensors file or it is damaged",
                       f->path, n, ST_MAX_HEADER);
    if (n > f->bytes - LENGTH_BYTES)
        return di_fail(st, DI_E_FORMAT,
                       "\"%s\" is cut off: its header has %" PRIu64 " bytes and the file only %zu "
                       "after the length, at least %" PRIu64
                       " bytes are missing; get the file again",
                       f->path, n, f->bytes - LENGTH_BYTES, n - (f->bytes - LENGTH_BYTES));
    *out = (size_t)n;
done:
    return rc;
}

static di_code file_size(const char *path, int fd, size_t *out, di_status *st)
{
    struct stat sb;

    if (fstat(fd, &sb) != 0)
        return di_fail(st, DI_E_IO, "could not read \"%s\": %s", path, errno_text(errno));
    if (!S_ISREG(sb.st_mode))
        return di_fail(st, DI_E_IO, "could not read \"%s\": not a regular file", path);
    *out = (size_t)sb.st_size;
    return DI_OK;
}

static di_code read_header(st_file *f, int fd, di_status *st)
{
    char *text = NULL;
    size_t n = 0;
    di_code rc = DI_OK;

    DI_TRY(file_size(f->path, fd, &f->bytes, st));
    DI_TRY(read_length(f, fd, &n, st));
    text = mem_try_calloc(n + 1, 1);
    if (!text)
        return di_fail(st, DI_E_NOMEM, "no memory for the header of \"%s\" (%zu bytes)", f->path,
                       n);
    DI_TRY(read_at(fd, text, n, LENGTH_BYTES, f->path, st));
    f->data_offset = LENGTH_BYTES + n;
    rc = st_header_parse(&f->header, text, n, f->bytes - f->data_offset, f->path, st);
done:
    mem_free(text);
    return rc;
}

static di_code map_data(st_file *f, di_status *st)
{
    di_code rc = file_map_open(&f->map, f->path, st);

    if (rc == DI_OK && f->map.bytes != f->bytes)
        rc = di_fail(st, DI_E_IO, "could not read \"%s\": it changed while it was opened", f->path);
    return rc;
}

di_code st_file_open(st_file **out, const char *path, bool headers_only, di_status *st)
{
    st_file *f = mem_try_calloc(1, sizeof *f);
    int fd = -1;
    di_code rc = DI_OK;

    *out = NULL;
    if (f) {
        f->fd = -1;
        f->path = mem_try_strdup(path);
    }
    if (!f || !f->path) {
        rc = di_fail(st, DI_E_NOMEM, "no memory to open \"%s\"", path);
        goto done;
    }
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not wait for a writer of a pipe */
    if (fd < 0) {
        rc = di_fail(st, DI_E_IO, "could not open \"%s\": %s", path, errno_text(errno));
        goto done;
    }
    DI_TRY(read_header(f, fd, st));
    if (!headers_only) {
        DI_TRY(map_data(f, st));
        f->fd = fd;
        fd = -1; /* kept */
    }
    *out = f;
    f = NULL; /* handed over */
done:
    if (fd >= 0)
        close(fd);
    st_file_close(f);
    return rc;
}

void st_file_close(st_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    file_map_close(&f->map);
    st_header_fini(&f->header);
    mem_free(f->path);
    mem_free(f);
}

const char *st_file_path(const st_file *f)
{
    return f->path;
}

size_t st_file_bytes(const st_file *f)
{
    return f->bytes;
}

size_t st_file_data_offset(const st_file *f)
{
    return f->data_offset;
}

size_t st_file_n_tensors(const st_file *f)
{
    return f->header.n_tensors;
}

const st_tensor *st_file_tensor(const st_file *f, size_t i)
{
    return &f->header.tensor[i];
}

const st_tensor *st_file_find(const st_file *f, const char *name)
{
    for (size_t i = 0; i < f->header.n_tensors; i++)
        if (strcmp(f->header.tensor[i].name, name) == 0)
            return &f->header.tensor[i];
    return NULL;
}

const void *st_file_data(const st_file *f, const st_tensor *t)
{
    return f->map.data ? f->map.data + f->data_offset + t->offset : NULL;
}

di_code st_file_read(const st_file *f, void *to, size_t from, size_t bytes, di_status *st)
{
    return read_at(f->fd, to, bytes, f->data_offset + from, f->path, st);
}

void st_file_need(const st_file *f, size_t from, size_t bytes)
{
    if (f->map.data)
        file_map_need(&f->map, f->data_offset + from, bytes);
}

void st_file_drop(const st_file *f, size_t from, size_t bytes)
{
    if (f->map.data)
        file_map_drop(&f->map, f->data_offset + from, bytes);
}
