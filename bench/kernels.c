/* Operations at the real geometry (hidden 5120, 64 heads of 512, experts of 2304) on generated
 * weights that are far larger than the last cache, against the ceilings of this machine. */
#include <stdio.h>

#include "bench.h"
#include "kernels/kernels.h"
#include "kernels_data.h"

#define READ_BYTES ((size_t)512 << 20)

int main(int argc, char **argv)
{
    bench *b = bench_open("kernels", argc, argv, READ_BYTES);
    kernels *k = NULL;
    di_status st = {0};
    int rc;

    bench_check(kernels_open(&k,
                             &(kernels_options){.backend = "auto",
                                                .numerics = NUMERICS_RELEASE,
                                                .n_threads = bench_threads(b)},
                             &st),
                &st);
    if (k->act != DTYPE_BF16) {
        fprintf(stderr, "no fast back end on this processor: nothing to measure\n");
        return 2;
    }
    bench_check(k->ops->reserve(k, &data_limits, &st), &st);
    fprintf(stderr, "back end %s\n", k->ops->name);
    bench_linears(b, k);
    bench_experts(b, k);
    bench_rows(b, k);
    rc = bench_run(b);
    kernels_close(k);
    return rc;
}
