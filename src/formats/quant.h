/* The activation quantisers of the release, in code form; exact.
 *
 * Source: spec section 2.3. Inputs are finite f32 (bf16 values in the release). The decoded value
 * of element i is code[i] * scale of its group, exact in bf16. Q8 and Q4i are idempotent; Q4c is
 * NOT: move its codes and scales, never quantise decoded values again. Thread: any. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define Q8_GROUP  32
#define Q4I_GROUP 32
#define Q4C_GROUP 16

/* Q8: E4M3 codes, one UE8M0 scale byte per 32 values.
 *   amax = max(max|x|, 1e-4); s = pow2ceil(amax * f32(1/448)); q = e4m3(clamp(x / s, +-448))
 * x [n], codes [n], scales [n/32]; n a multiple of 32. */
void q8_encode(uint8_t *codes, uint8_t *scales, const float *x, size_t n);
void q8_decode(float *y, const uint8_t *codes, const uint8_t *scales, size_t n);

/* Q4i (index queries and keys): E2M1 codes two per byte (even element low), one UE8M0 byte per 32.
 *   amax = max(max|x|, 6 * 2^-126); s = pow2ceil(amax * f32(1/6)); q = e2m1(clamp(x / s, +-6))
 * x [n], codes [n/2], scales [n/32]; n a multiple of 32. */
void q4i_encode(uint8_t *codes, uint8_t *scales, const float *x, size_t n);
void q4i_decode(float *y, const uint8_t *codes, const uint8_t *scales, size_t n);

/* Q4c (compressed KV): E2M1 codes two per byte, one E4M3 scale per 16.
 *   amax = max(max|x|, 6 * 2^-9); s = e4m3(amax / 6); q = e2m1(clamp(x / s, +-6))
 * x [n], codes [n/2], scales [n/16]; n a multiple of 16. */
void q4c_encode(uint8_t *codes, uint8_t *scales, const float *x, size_t n);
void q4c_decode(float *y, const uint8_t *codes, const uint8_t *scales, size_t n);
