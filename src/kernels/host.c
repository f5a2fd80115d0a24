/* Operations of back ends in host memory. */
#include "kernels/host.h"

#include <string.h>

void host_keep_rows(kernels *k, const keep_rows_args *a)
{
    char *buf = a->buf;

    (void)k;
    for (int i = 0; i < a->n; i++)
        if (a->rows[i] != i)
            memcpy(buf + (size_t)i * a->row_bytes, buf + (size_t)a->rows[i] * a->row_bytes,
                   a->row_bytes);
}
