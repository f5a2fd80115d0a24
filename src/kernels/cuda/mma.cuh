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

/* Four 8 x 8 matrices, lane l giving row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void load_matrices(uint32_t *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p)));
}

static __device__ __forceinline__ void load_transposed(uint32_t *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p)));
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

/* Four E4M3 codes as two pairs, times s. */
static __device__ __forceinline__ void decode4_e4m3(uint32_t *out, uint32_t w, uint32_t s)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t v = __byte_perm(w, 0, h ? 0x3424 : 0x1404); /* a byte atop each half */

        v = (v & 0x80008000u) | (v & 0x7F007F00u) >> 4;
        out[h] = mul_bf16x2(mul_bf16x2(v, both(BF16_2_POW(120))), s);
    }
}

/* Eight E2M1 codes, the first in the low nibble, as four pairs, times s. */
static __device__ __forceinline__ void decode8_e2m1(uint32_t *out, uint32_t w, uint32_t s)
{
    uint32_t even = w & 0x0F0F0F0Fu, odd = w >> 4 & 0x0F0F0F0Fu;
    /* Lower and upper bytes of bf16 numbers of 2^-126 times the values, four at a time. */
    uint32_t el = (even & 0x03030303u) << 6, ol = (odd & 0x03030303u) << 6;
    uint32_t eh = (even & 0x08080808u) << 4 | (even & 0x04040404u) >> 2;
    uint32_t oh = (odd & 0x08080808u) << 4 | (odd & 0x04040404u) >> 2;
    uint32_t e[2] = {__byte_perm(el, eh, 0x5140), __byte_perm(el, eh, 0x7362)};
    uint32_t o[2] = {__byte_perm(ol, oh, 0x5140), __byte_perm(ol, oh, 0x7362)};

#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t v = __byte_perm(e[p / 2], o[p / 2], p % 2 ? 0x7632 : 0x5410);

        out[p] = mul_bf16x2(mul_bf16x2(v, both(BF16_2_POW(126))), s);
    }
}
