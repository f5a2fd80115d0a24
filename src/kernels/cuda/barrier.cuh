/* Barriers in shared memory that threads and copies arrive at (mbarrier), and operands of wgmma
 * there. */
#pragma once

#include <stdint.h>

static __device__ __forceinline__ uint32_t shared_of(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void barrier_init(uint64_t *b, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_of(b)), "r"(count));
}

/* Copies, and blocks of the cluster, see the barriers that this thread has initialised. */
static __device__ __forceinline__ void barriers_made(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_of(b)) : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint64_t *b, int phase)
{
    uint32_t done = 0;

    while (!done)
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(shared_of(b)), "r"(phase)
                     : "memory");
}

/* What ordinary stores wrote can be read by wgmma and copies, behind a barrier. */
static __device__ __forceinline__ void fence_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define ROWS_OF_64 (1ull << 16 | 64ull << 32 | 1ull << 62)

/* Rows of 64 columns of bf16, 128-byte swizzle. A step of 16 columns adds 2. */
static __device__ __forceinline__ uint64_t matrix_descriptor(const void *p)
{
    return (uint64_t)((shared_of(p) & 0x3FFFFu) >> 4) | ROWS_OF_64;
}

/* The same of an address in shared memory, known to be the same in all lanes: steps are then added
 * in uniform registers. */
static __device__ __forceinline__ uint64_t uniform_descriptor(uint32_t at)
{
    return (uint64_t)__shfl_sync(0xFFFFFFFFu, (at & 0x3FFFFu) >> 4, 0) | ROWS_OF_64;
}
