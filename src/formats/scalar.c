/* E4M3 and E2M1 conversions, written from the definitions of the formats. */
#include "formats/scalar.h"

#include <math.h>

float e4m3_to_f32(uint8_t code)
{
    unsigned exponent = (code >> 3) & 15u, mantissa = code & 7u;
    float magnitude;

    if ((code & 0x7Fu) == 0x7Fu)
        return f32_from_bits(0x7FC00000u | ((uint32_t)(code & 0x80u) << 24));
    if (exponent == 0)
        magnitude = (float)mantissa * 0x1p-9f; /* subnormal: m/8 * 2^-6 */
    else
        magnitude = f32_from_bits((exponent + 120u) << 23 | mantissa << 20);
    return code & 0x80u ? -magnitude : magnitude;
}

uint8_t e4m3_from_f32(float x)
{
    uint32_t u = f32_bits(x), sign = u >> 24 & 0x80u, mag = u & 0x7FFFFFFFu;

    if (mag > 0x7F800000u)
        return (uint8_t)(sign | 0x7Fu);
    if (mag >= 0x43E00000u) /* 448 and above */
        return (uint8_t)(sign | 0x7Eu);
    if (mag < 0x3C800000u) { /* below 2^-6: multiples of 2^-9; 8 of them are the code of 2^-6 */
        float steps = nearbyintf(f32_from_bits(mag) * 0x1p9f);

        return (uint8_t)(sign | (uint32_t)steps);
    }
    mag += 0x7FFFFu + (mag >> 20 & 1u); /* nearest even at 3 mantissa bits; may carry up to 448 */
    return (uint8_t)(sign | ((mag >> 20) - (120u << 3)));
}

float e2m1_to_f32(unsigned code)
{
    static const float magnitude[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

    return code & 8u ? -magnitude[code & 7u] : magnitude[code & 7u];
}

unsigned e2m1_from_f32(float x)
{
    float a = fabsf(x);
    /* Midpoints between neighbours; a tie goes to the even code, so those with an even code below
     * are exclusive. */
    unsigned mag = (unsigned)(a > 0.25f) + (unsigned)(a >= 0.75f) + (unsigned)(a > 1.25f) +
                   (unsigned)(a >= 1.75f) + (unsigned)(a > 2.5f) + (unsigned)(a >= 3.5f) +
                   (unsigned)(a > 5.0f);

    return mag | (f32_bits(x) >> 31 << 3);
}
