/* The input is a whole safetensors file. What is accepted must be readable to its last byte. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "checkpoint/safetensors.h"

static void read_all(const st_file *f)
{
    volatile unsigned char sum = 0;
    size_t at = 0;

    for (size_t i = 0; i < st_file_n_tensors(f); i++) {
        const st_tensor *t = st_file_tensor(f, i);
        const unsigned char *data = st_file_data(f, t);

        DI_CHECK(t->offset == at && st_file_find(f, t->name) == t);
        at += t->bytes;
        for (size_t b = 0; b < t->bytes; b++)
            sum = (unsigned char)(sum + data[b]);
    }
    DI_CHECK(at + st_file_data_offset(f) == st_file_bytes(f));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    di_status st = {.code = DI_OK};
    st_file *f;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (st_file_open(&f, path, false, &st) == DI_OK)
        read_all(f);
    else
        DI_CHECK(st.code != DI_OK && st.message[0] && !f);
    st_file_close(f);
    close(fd);
    return 0;
}
