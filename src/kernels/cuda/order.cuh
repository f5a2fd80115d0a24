/* Order statistics of a block: floats as integers in their order, k-th largest, places. */
#pragma once

#include "kernels/cuda/device.cuh"

/* Unsigned integers in the order of the floats; both zeros get one value. */
static __device__ __forceinline__ uint32_t order_key(float x)
{
    uint32_t u = __float_as_uint(x + 0.0f);

    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Key of the k-th largest of n values, 1 <= k <= n; *above = how many are larger. One byte per
 * pass, highest first. */
template <typename F>
static __device__ uint32_t kth_largest(F value, int64_t n, int64_t k, int64_t *above)
{
    __shared__ int count[256];
    __shared__ uint32_t prefix;
    __shared__ int64_t larger;

    __syncthreads();
    if (threadIdx.x == 0) {
        prefix = 0;
        larger = 0;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t mask = shift == 24 ? 0 : 0xFFFFFFFFu << (shift + 8), before;

        for (int i = threadIdx.x; i < 256; i += blockDim.x)
            count[i] = 0;
        __syncthreads();
        before = prefix;
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            uint32_t key = order_key(value(i));

            if ((key & mask) == before)
                atomicAdd(&count[key >> shift & 255u], 1); /* integers: any order */
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t digit = 255;

            while (larger + count[digit] < k)
                larger += count[digit--];
            prefix |= digit << shift;
        }
        __syncthreads();
    }
    *above = larger;
    return prefix;
}

/* Number of threads before this one whose `take` is set, plus those of earlier calls in *total. */
static __device__ int64_t place(bool take, int64_t *total)
{
    __shared__ int warp_count[32];
    uint32_t ballot = __ballot_sync(ALL, take);
    int warp = threadIdx.x / 32;
    int64_t at = *total;

    __syncthreads();
    if (threadIdx.x % 32 == 0)
        warp_count[warp] = __popc(ballot);
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / 32; i++) {
        at += i < warp ? warp_count[i] : 0;
        *total += warp_count[i];
    }
    return at + __popc(ballot & ((1u << threadIdx.x % 32) - 1u));
}
