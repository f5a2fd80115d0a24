/* Read-only maps and whole reads. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

/* Open for reading and look at what it is. Without `stream` it has to be a regular file, and the
 * call does not wait for the writer of a pipe. The caller closes *fd when it is >= 0. */
static di_code open_file(int *fd, struct stat *info, const char *path, bool stream, di_status *st)
{
    *info = (struct stat){0};
    *fd = open(path, O_RDONLY | O_CLOEXEC | (stream ? 0 : O_NONBLOCK));
    if (*fd < 0 || fstat(*fd, info) != 0)
        return di_fail(st, DI_E_IO, "could not open \"%s\": %s", path, errno_text(errno));
    if (S_ISDIR(info->st_mode))
        return di_fail(st, DI_E_IO, "\"%s\" is a directory, a file is needed", path);
    if (!stream && !S_ISREG(info->st_mode))
        return di_fail(st, DI_E_IO, "\"%s\" is a pipe or a device, a regular file is needed", path);
    return DI_OK;
}

bool file_is_stream(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

di_code file_map_open(file_map *out, const char *path, di_status *st)
{
    di_code rc = DI_OK;
    struct stat info;
    void *data;
    int fd = -1;

    *out = (file_map){0};
    DI_TRY(open_file(&fd, &info, path, false, st));
    if (info.st_size == 0)
        goto done;
    data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        rc = di_fail(st, errno == ENOMEM ? DI_E_NOMEM : DI_E_IO,
                     "could not map \"%s\" (%lld bytes): %s", path, (long long)info.st_size,
                     errno_text(errno));
        goto done;
    }
    *out = (file_map){.data = data, .bytes = (size_t)info.st_size};
done:
    if (fd >= 0)
        close(fd);
    return rc;
}

void file_map_close(file_map *m)
{
    if (m->data)
        munmap((void *)m->data, m->bytes);
    *m = (file_map){0};
}

static void advise(const file_map *m, size_t offset, size_t bytes, int advice)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = offset / page * page, end;

    if (!size_add(offset, bytes, &end) || end > m->bytes)
        end = m->bytes;
    if (begin < end)
        madvise((void *)(m->data + begin), end - begin, advice);
}

void file_map_drop(const file_map *m, size_t offset, size_t bytes)
{
    /* A page shared with a neighbour that is still in use is only read again: the map is clean. */
    advise(m, offset, bytes, MADV_DONTNEED);
}

void file_map_need(const file_map *m, size_t offset, size_t bytes)
{
#ifdef MADV_POPULATE_READ
    advise(m, offset, bytes, MADV_POPULATE_READ);
#else
    advise(m, offset, bytes, MADV_WILLNEED);
#endif
}

/* Read until the end of the file or until `cap` bytes are there; -1 with errno set on failure. */
static ssize_t read_some(int fd, char *to, size_t cap)
{
    size_t n = 0;

    while (n < cap) {
        ssize_t got = read(fd, to + n, cap - n);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        n += (size_t)got;
    }
    return (ssize_t)n;
}

/* Read to the end into a growing buffer of at most max_bytes + 2 bytes (one to notice that the file
 * is too long, one for the 0). */
static di_code read_all(char **data, size_t *n, int fd, size_t hint, size_t max_bytes,
                        const char *path, di_status *st)
{
    size_t cap = hint < max_bytes ? hint + 1 : max_bytes + 1;

    for (;;) {
        char *bigger = mem_try_realloc(*data, cap + 1, 1);
        ssize_t got;

        if (!bigger)
            return di_fail(st, DI_E_NOMEM, "no memory to read \"%s\"", path);
        *data = bigger;
        got = read_some(fd, *data + *n, cap - *n);
        if (got < 0)
            return di_fail(st, DI_E_IO, "could not read \"%s\": %s", path, errno_text(errno));
        *n += (size_t)got;
        if (*n > max_bytes)
            return di_fail(st, DI_E_FORMAT, "\"%s\" is larger than %zu bytes", path, max_bytes);
        (*data)[*n] = 0;
        if (*n < cap)
            return DI_OK;
        cap = cap < max_bytes / 2 ? cap * 2 : max_bytes + 1;
    }
}

static di_code read_whole(char **out, size_t *n, const char *path, size_t max_bytes, bool stream,
                          di_status *st)
{
    di_code rc = DI_OK;
    struct stat info;
    char *data = NULL;
    size_t len = 0;
    int fd = -1;

    *out = NULL;
    *n = 0;
    if (max_bytes > SIZE_MAX / 4)
        max_bytes = SIZE_MAX / 4;
    DI_TRY(open_file(&fd, &info, path, stream, st));
    DI_TRY(read_all(&data, &len, fd, info.st_size > 0 ? (size_t)info.st_size : 4095, max_bytes,
                    path, st));
    *out = data;
    *n = len;
    data = NULL; /* handed over */
done:
    mem_free(data);
    if (fd >= 0)
        close(fd);
    return rc;
}

di_code file_read(char **out, size_t *n, const char *path, size_t max_bytes, di_status *st)
{
    return read_whole(out, n, path, max_bytes, false, st);
}

di_code file_read_stream(char **out, size_t *n, const char *path, size_t max_bytes, di_status *st)
{
    return read_whole(out, n, path, max_bytes, true, st);
}

di_code path_join(char *out, size_t cap, const char *dir, const char *name, di_status *st)
{
    int n = snprintf(out, cap, "%s/%s", dir, name);

    if (n < 0 || (size_t)n >= cap)
        return di_fail(st, DI_E_INVALID, "the path \"%s/%s\" is longer than %zu bytes", dir, name,
                       cap);
    return DI_OK;
}
