/* Scalar conversions of the released number formats; exact, for every code.
 *
 * Source: spec "DeepSeek-V4.1-Flash" section 2.2 and OCP FP8/MX formats. Thread: any. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "base/device.h"

DI_FN uint32_t f32_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

DI_FN float f32_from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

/* bf16: the upper half of an f32. */
DI_FN float bf16_to_f32(uint16_t b)
{
    return f32_from_bits((uint32_t)b << 16);
}

/* Round to nearest even; NaN stays a quiet NaN, overflow gives infinity. */
DI_FN uint16_t bf16_from_f32(float x)
{
    uint32_t u = f32_bits(x);

    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

/* bf(x) of the specification: round to bf16, keep as f32. */
DI_FN float bf16_round(float x)
{
    return bf16_to_f32(bf16_from_f32(x));
}

/* UE8M0: 2^(byte-127), byte 0 is the subnormal 2^-127. The byte 255 (NaN) is refused at load and
 * must not come here. */
DI_FN float ue8m0_to_f32(uint8_t byte)
{
    return byte ? f32_from_bits((uint32_t)byte << 23) : f32_from_bits(0x00400000u);
}

/* E4M3 (the "fn" variant: bias 7, no infinities, 0x7F and 0xFF are NaN). */
float e4m3_to_f32(uint8_t code);

/* Round to nearest even; |x| > 448 saturates, NaN gives 0x7F with the sign of x. */
uint8_t e4m3_from_f32(float x);

/* E2M1: bit 3 is the sign, magnitudes 0 .5 1 1.5 2 3 4 6. */
float e2m1_to_f32(unsigned code);

/* Round to nearest, ties to the even code; |x| > 6 saturates; the sign of zero is kept. */
unsigned e2m1_from_f32(float x);

/* Smallest power of two >= v, for v > 0 that is normal; from the bits, without a logarithm. */
DI_FN float pow2_ceil(float v)
{
    uint32_t u = f32_bits(v);

    return f32_from_bits((u & 0x7FFFFFu) ? ((u >> 23) + 1u) << 23 : u);
}
