/* Matrix products of a warp and what they are fed with. */
#pragma once

#include "kernels/cuda/device.cuh"

/* D [16][8] f32 += A [16][16] B [16][8]. */
static __device__ __forceinline__ void mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t r;

    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

static __device__ __forceinline__ uint32_t both(bf16 x)
{
    return (uint32_t)x << 16 | x;
}

#define BF16_2_POW(n) ((bf16)(((n) + 127) << 7))
