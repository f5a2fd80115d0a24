/* What a back end has done on its device so far; all 0 in host memory. */
#pragma once

#include <stdint.h>

typedef struct kernel_counters {
    uint64_t launches; /* kernels that ran, one by one or in recorded steps */
    uint64_t replays;  /* recorded steps that ran, of these kernels */
    uint64_t records;  /* recordings */
    uint64_t busy_ns;  /* work was under way; a span that nobody has waited for counts later */
} kernel_counters;
