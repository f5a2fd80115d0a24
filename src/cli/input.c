/* See input.h. */
#include "cli/input.h"

#include <errno.h>
#include <stdio.h>

di_code input_read_stdin(str *in, size_t max_bytes, di_status *st)
{
    char buf[65536];
    size_t n;

    while ((n = fread(buf, 1, sizeof buf, stdin)) > 0) {
        str_append(in, buf, n);
        if (in->len > max_bytes)
            return di_fail(st, DI_E_INVALID, "standard input is longer than %zu bytes", max_bytes);
    }
    if (ferror(stdin))
        return di_fail(st, DI_E_IO, "could not read standard input: %s", errno_text(errno));
    if (!str_ok(in))
        return di_fail(st, DI_E_NOMEM, "no memory for the input");
    return DI_OK;
}
