/* Operations of back ends in host memory. */
#include "kernels/host.h"

#include <string.h>
#include <sys/sysinfo.h>

#include "base/mem.h"

void *host_shared_new(kernels *k, size_t bytes)
{
    (void)k;
    return mem_try_calloc(bytes, 1);
}

void host_shared_free(kernels *k, void *p)
{
    (void)k;
    mem_free(p);
}

void host_copy(kernels *k, const kv_copy *c, int n)
{
    (void)k;
    kv_copy_run(c, n);
}

uint64_t host_memory_free(kernels *k)
{
    struct sysinfo info;

    (void)k;
    return sysinfo(&info) == 0 ? (uint64_t)info.freeram * info.mem_unit : 0;
}

kernel_counters host_counters(const kernels *k)
{
    (void)k;
    return (kernel_counters){0};
}

void host_keep_rows(kernels *k, const keep_rows_args *a)
{
    char *buf = a->buf;

    (void)k;
    for (int i = 0; i < a->n; i++)
        if (a->rows[i] != i)
            memcpy(buf + (size_t)i * a->row_bytes, buf + (size_t)a->rows[i] * a->row_bytes,
                   a->row_bytes);
}
