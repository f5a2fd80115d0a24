/* Q8, Q4i and Q4c, group by group. */
#include "formats/quant.h"

#include <math.h>

#include "formats/scalar.h"

static float group_amax(const float *x, int n, float floor)
{
    float amax = floor;

    for (int i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    return amax;
}

static float clamp(float x, float limit)
{
    return fminf(fmaxf(x, -limit), limit);
}

/* Two E2M1 codes per byte, the even element in the low nibble. */
static void pack_e2m1(uint8_t *codes, const float *x, int n, float scale)
{
    for (int i = 0; i < n; i += 2)
        codes[i / 2] = (uint8_t)(e2m1_from_f32(clamp(x[i] / scale, 6.0f)) |
                                 e2m1_from_f32(clamp(x[i + 1] / scale, 6.0f)) << 4);
}

static void unpack_e2m1(float *y, const uint8_t *codes, int n, float scale)
{
    for (int i = 0; i < n; i += 2) {
        y[i] = e2m1_to_f32(codes[i / 2] & 15u) * scale;
        y[i + 1] = e2m1_to_f32(codes[i / 2] >> 4) * scale;
    }
}

void q8_encode(uint8_t *codes, uint8_t *scales, const float *x, size_t n)
{
    for (size_t g = 0; g < n / Q8_GROUP; g++, x += Q8_GROUP, codes += Q8_GROUP) {
        float s = pow2_ceil(group_amax(x, Q8_GROUP, 1e-4f) * (1.0f / 448.0f));

        scales[g] = (uint8_t)(f32_bits(s) >> 23);
        for (int i = 0; i < Q8_GROUP; i++)
            codes[i] = e4m3_from_f32(clamp(x[i] / s, 448.0f));
    }
}

void q8_decode(float *y, const uint8_t *codes, const uint8_t *scales, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = e4m3_to_f32(codes[i]) * ue8m0_to_f32(scales[i / Q8_GROUP]);
}

void q4i_encode(uint8_t *codes, uint8_t *scales, const float *x, size_t n)
{
    for (size_t g = 0; g < n / Q4I_GROUP; g++, x += Q4I_GROUP, codes += Q4I_GROUP / 2) {
        float s = pow2_ceil(group_amax(x, Q4I_GROUP, 6.0f * 0x1p-126f) * (1.0f / 6.0f));

        scales[g] = (uint8_t)(f32_bits(s) >> 23);
        pack_e2m1(codes, x, Q4I_GROUP, s);
    }
}

void q4i_decode(float *y, const uint8_t *codes, const uint8_t *scales, size_t n)
{
    for (size_t g = 0; g < n / Q4I_GROUP; g++)
        unpack_e2m1(y + g * Q4I_GROUP, codes + g * Q4I_GROUP / 2, Q4I_GROUP,
                    ue8m0_to_f32(scales[g]));
}

void q4c_encode(uint8_t *codes, uint8_t *scales, const float *x, size_t n)
{
    for (size_t g = 0; g < n / Q4C_GROUP; g++, x += Q4C_GROUP, codes += Q4C_GROUP / 2) {
        scales[g] = e4m3_from_f32(group_amax(x, Q4C_GROUP, 6.0f * 0x1p-9f) / 6.0f);
        pack_e2m1(codes, x, Q4C_GROUP, e4m3_to_f32(scales[g]));
    }
}

void q4c_decode(float *y, const uint8_t *codes, const uint8_t *scales, size_t n)
{
    for (size_t g = 0; g < n / Q4C_GROUP; g++)
        unpack_e2m1(y + g * Q4C_GROUP, codes + g * Q4C_GROUP / 2, Q4C_GROUP,
                    e4m3_to_f32(scales[g]));
}
