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

/* One instruction; NaN becomes 0x7FFF. */
static __device__ __forceinline__ bf16 to_bf(float x)
{
    bf16 b;

    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(x));
    return b;
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

/* The same with the scale known, and its inverse (exact: powers of two). */
static __device__ __forceinline__ uint8_t q8_byte_near(float x, float inverse)
{
    return to_e4m3(fminf(fmaxf(x * inverse, -448.0f), 448.0f));
}

static __device__ __forceinline__ float q8_near(float x, float s, float inverse)
{
    return e4m3(q8_byte_near(x, inverse)) * s;
}

static __device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    uint32_t r;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* Two bf16 values behind Q8: to three bits behind the first, or to a multiple of `least` / 8 where
 * that is more; `least` is the smallest normal number of their scale. Adding 1.5 times the 16-fold
 * power of two brings the last bit that stays to the end of a bf16. Both halves; below 2^123. */
static __device__ __forceinline__ uint32_t q8_pair(uint32_t x, uint32_t least)
{
    uint32_t power, r;

    asm("max.bf16x2 %0, %1, %2;" : "=r"(power) : "r"(x & 0x7F807F80u), "r"(least));
    power += 0x02400240u;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(power));
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(r), "r"(power));
    return (r & 0x7FFF7FFFu) | (x & 0x80008000u);
}

/* Q8 of 32 values in 4 neighbouring lanes: 8 bf16 each. */
static __device__ __forceinline__ uint4 q8_of_lanes(uint4 v)
{
    uint32_t most, least;

    asm("{.reg .b32 a;\n\tmax.xorsign.abs.bf16x2 a, %1, %2;\n\t"
        "max.xorsign.abs.bf16x2 %0, %3, %4;\n\tmax.xorsign.abs.bf16x2 %0, %0, a;}"
        : "=&r"(most)
        : "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
    least = __float_as_uint(q8_scale(lanes_max(fmaxf(fabsf(__uint_as_float(most << 16)),
                                                     fabsf(__uint_as_float(most & 0xFFFF0000u))),
                                               4))) -
            (6u << 23);
    least = __byte_perm(least, 0, 0x3232);
    return make_uint4(q8_pair(v.x, least), q8_pair(v.y, least), q8_pair(v.z, least),
                      q8_pair(v.w, least));
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

/* w * (silu(g) * u), w the routing weight; 1 for the shared expert. Exponential and quotient to a
 * few units of f32's last place. */
static __device__ __forceinline__ float swiglu(float g, float u, float limit, float w)
{
    g = from_bf(to_bf(g));
    u = from_bf(to_bf(u));
    if (limit > 0) {
        u = fminf(fmaxf(u, -limit), limit);
        g = fminf(g, limit);
    }
    return w * (__fdividef(g, 1.0f + __expf(-g)) * u);
}
