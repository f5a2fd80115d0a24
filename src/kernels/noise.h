/* Gumbel noise of one token: a pure function of (seed, choice, position, token id).
 *
 * The same source for every back end: only f32 additions, multiplications and integer operations,
 * in a fixed order, none of them fused. Vector versions that keep this order have the same bits. w
 * = first word of Philox 4x32-10, key = seed, counter = (token, choice, position low, high) u = (w
 * + 0.5) * 2^-32;  noise = -log(-log(u)) Error against the exact value: below 1e-6 absolute plus
 * half an ulp (tests/kernels). Thread: any. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "base/device.h"
#include "base/rng.h"

/* Device compilers fuse unless told otherwise. */
#ifdef __CUDA_ARCH__
#define NOISE_MUL(a, b) __fmul_rn(a, b)
#define NOISE_ADD(a, b) __fadd_rn(a, b)
#else
#define NOISE_MUL(a, b) ((a) * (b))
#define NOISE_ADD(a, b) ((a) + (b))
#endif

/* log(1 + f) = f + f^2 * (C0 + C1 f + ... + C7 f^7), relative error below 3e-8: a weighted
 * least-maximum fit over the range of f. log(2) in two parts, the high one with 9 bits to spare, so
 * that its product with an exponent is exact. */
#define NOISE_LOG_C0   (-0x1.fffffap-2f)
#define NOISE_LOG_C1   (0x1.5556f4p-2f)
#define NOISE_LOG_C2   (-0x1.00049ap-2f)
#define NOISE_LOG_C3   (0x1.98d2cp-3f)
#define NOISE_LOG_C4   (-0x1.535d3p-3f)
#define NOISE_LOG_C5   (0x1.318526p-3f)
#define NOISE_LOG_C6   (-0x1.25049ep-3f)
#define NOISE_LOG_C7   (0x1.65c772p-4f)
#define NOISE_LN2_HIGH 0x1.62e4p-1f
#define NOISE_LN2_LOW  0x1.7f7d1cp-20f

/* log(1 + f) + e * log(2) for f in [sqrt(1/2) - 1, sqrt(2) - 1]. */
DI_FN float noise_log_of(float f, float e)
{
    float p = NOISE_LOG_C7;

    p = NOISE_ADD(NOISE_MUL(p, f), NOISE_LOG_C6);
    p = NOISE_ADD(NOISE_MUL(p, f), NOISE_LOG_C5);
    p = NOISE_ADD(NOISE_MUL(p, f), NOISE_LOG_C4);
    p = NOISE_ADD(NOISE_MUL(p, f), NOISE_LOG_C3);
    p = NOISE_ADD(NOISE_MUL(p, f), NOISE_LOG_C2);
    p = NOISE_ADD(NOISE_MUL(p, f), NOISE_LOG_C1);
    p = NOISE_ADD(NOISE_MUL(p, f), NOISE_LOG_C0);
    p = NOISE_ADD(NOISE_MUL(NOISE_MUL(f, f), p), NOISE_MUL(e, NOISE_LN2_LOW));
    return NOISE_ADD(NOISE_ADD(p, f), NOISE_MUL(e, NOISE_LN2_HIGH));
}

/* log(x) for a normal x > 0: x = 2^e * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)). */
DI_FN float noise_log(float x)
{
    uint32_t u, shifted;
    float m;
    int32_t e;

    memcpy(&u, &x, sizeof u);
    shifted = u - 0x3F3504F3u; /* bits of sqrt(1/2) */
    e = (int32_t)shifted >> 23;
    u = (shifted & 0x007FFFFFu) + 0x3F3504F3u;
    memcpy(&m, &u, sizeof m);
    return noise_log_of(NOISE_ADD(m, -1.0f), (float)e);
}

/* The noise of one random word. */
DI_FN float noise_of_word(uint32_t w)
{
    /* Near 1 the logarithm needs 1 - u, which f32 has to full precision and u has not. */
    float minus_log = w >= 0xC0000000u
                          ? -noise_log_of(NOISE_MUL(NOISE_ADD((float)~w, 0.5f), -0x1p-32f), 0.0f)
                          : -noise_log(NOISE_MUL(NOISE_ADD((float)w, 0.5f), 0x1p-32f));

    return -noise_log(minus_log);
}

DI_FN float noise_gumbel(uint64_t seed, uint32_t choice, int64_t position, uint32_t token)
{
    philox_block counter = {
        {token, choice, (uint32_t)position, (uint32_t)((uint64_t)position >> 32)}};

    return noise_of_word(philox4x32(counter, (uint32_t)seed, (uint32_t)(seed >> 32)).v[0]);
}
