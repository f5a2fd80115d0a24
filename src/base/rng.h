/* Counter-based random numbers: a pure function of key and counter (design.md section 1).
 *
 * Philox 4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): known
 * answers of the paper's Random123 package are in tests/unit. Thread: any. */
#pragma once

#include <stdint.h>

#include "base/device.h"

typedef struct philox_block {
    uint32_t v[4];
} philox_block;

/* Ten rounds of Philox 4x32 on a 128-bit counter with a 64-bit key. */
DI_FN philox_block philox4x32(philox_block ctr, uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * ctr.v[0];
        uint64_t p1 = (uint64_t)0xCD9E8D57u * ctr.v[2];

        ctr.v[0] = (uint32_t)(p1 >> 32) ^ ctr.v[1] ^ k0;
        ctr.v[1] = (uint32_t)p1;
        ctr.v[2] = (uint32_t)(p0 >> 32) ^ ctr.v[3] ^ k1;
        ctr.v[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return ctr;
}
