/* Pieces that several kernels share: number formats, sums in a fixed order. Blocks have THREADS
 * threads, so that the tree of a sum never depends on the number of rows. */
#pragma once

#include <cuda_fp8.h>

#include "formats/scalar.h"
#include "kernels/cuda/cuda_internal.h"

#define THREADS 256
#define WARPS   (THREADS / 32)
#define ALL     0xFFFFFFFFu

typedef uint16_t bf16;

static __device__ __forceinline__ float from_bf(bf16 b)
{
    return __uint_as_float((uint32_t)b << 16);
}

static __device__ __forceinline__ bf16 to_bf(float x)
{
    return bf16_from_f32(x);
}

/* E4M3 code, not NaN: the bits are a float of 2^-120 times the value. */
static __device__ __forceinline__ float e4m3(uint32_t code)
{
    return __uint_as_float((code & 0x80u) << 24 | (code & 0x7Fu) << 20) * 0x1p120f;
}

static __device__ __forceinline__ float e2m1(uint32_t code)
{
    return __uint_as_float((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f;
}

static __device__ __forceinline__ float ue8m0(uint8_t byte)
{
    return ue8m0_to_f32(byte);
}

/* Nearest even, saturating. */
static __device__ __forceinline__ uint8_t to_e4m3(float x)
{
    return (uint8_t)__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

/* Nearest, ties to the even code, saturating; as formats/scalar.c. */
static __device__ __forceinline__ uint32_t to_e2m1(float x)
{
    float a = fabsf(x);
    uint32_t mag = (uint32_t)(a > 0.25f) + (uint32_t)(a >= 0.75f) + (uint32_t)(a > 1.25f) +
                   (uint32_t)(a >= 1.75f) + (uint32_t)(a > 2.5f) + (uint32_t)(a >= 3.5f) +
                   (uint32_t)(a > 5.0f);

    return mag | __float_as_uint(x) >> 31 << 3;
}

/* Largest |x| of the 2^log lanes around this one. */
static __device__ __forceinline__ float lanes_max(float x, int width)
{
    for (int d = width / 2; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL, x, d));
    return x;
}

static __device__ __forceinline__ float warp_sum(float x)
{
    for (int d = 16; d > 0; d /= 2)
        x += __shfl_xor_sync(ALL, x, d);
    return x;
}

/* Sum over the block, the same bits for every thread; all threads call it. */
static __device__ float block_sum(float x)
{
    __shared__ float part[WARPS];
    float sum = 0;

    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        sum += part[i];
    return sum;
}

static __device__ __forceinline__ float q8_scale(float amax)
{
    return pow2_ceil(fmaxf(amax, 1e-4f) * (1.0f / 448.0f));
}

static __device__ __forceinline__ uint8_t q8_byte(float x, float scale)
{
    return to_e4m3(fminf(fmaxf(x / scale, -448.0f), 448.0f));
}

/* Q8 of one value whose 32 neighbours are in the lanes of this warp: code and scale. */
static __device__ __forceinline__ uint8_t q8_code(float x, float *scale)
{
    float s = q8_scale(lanes_max(fabsf(x), 32));

    *scale = s;
    return q8_byte(x, s);
}

/* The value behind Q8, exact in bf16. */
static __device__ __forceinline__ bf16 q8_value(float x)
{
    float s;
    uint8_t code = q8_code(x, &s);

    return to_bf(e4m3(code) * s);
}

/* Element i of a vector weight. */
static __device__ __forceinline__ float vec(const weight &w, int64_t i)
{
    return w.kind == WEIGHT_VEC_BF16 ? from_bf(((const bf16 *)w.data)[i])
                                     : ((const float *)w.data)[i];
}

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* One pair turned by (c, s); results rounded. */
static __device__ __forceinline__ void rotate(float *a, float *b, float c, float s)
{
    float x = *a, y = *b;

    *a = bf16_round(x * c - y * s);
    *b = bf16_round(x * s + y * c);
}

/* h = bf(w * (silu(g) * u)), w the routing weight; 1 for the shared expert. */
static __device__ __forceinline__ float swiglu(float g, float u, float limit, float w)
{
    g = bf16_round(g);
    u = bf16_round(u);
    if (limit > 0) {
        u = fminf(fmaxf(u, -limit), limit);
        g = fminf(g, limit);
    }
    return bf16_round(w * (g / (1.0f + expf(-g)) * u));
}
