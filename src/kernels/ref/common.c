/* The pieces that several operations share. */
#include "kernels/ref/ref.h"

#include <math.h>

void ref_run(kernels *k, pool_fn fn, const void *args)
{
    ref_job job = {.k = k, .impl = k->impl, .args = args};

    pool_run(k->pool, fn, &job);
}

REF_CLONES double ref_dot(const double *w, const float *x, int64_t n)
{
    double lane[16] = {0};
    int64_t i = 0;

    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++)
            lane[j] += w[i + j] * (double)x[i + j];
    for (int j = 0; i < n; i++, j++)
        lane[j] += w[i] * (double)x[i];
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0];
}

REF_CLONES void ref_axpy(double *y, double a, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += a * (double)x[i];
}

double ref_sum_squares(const float *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

void ref_q8(const kernels *k, float *x, int64_t n)
{
    uint8_t code[Q8_GROUP], scale;

    if (k->numerics != NUMERICS_RELEASE)
        return;
    for (int64_t i = 0; i < n; i += Q8_GROUP) {
        q8_encode(code, &scale, x + i, Q8_GROUP);
        q8_decode(x + i, code, &scale, Q8_GROUP);
    }
}

float ref_rms_factor(const float *x, int64_t n, float eps)
{
    return (float)(1.0 / sqrt(ref_sum_squares(x, n) / (double)n + (double)eps));
}

void ref_rms(const kernels *k, float *out, const float *x, const weight *w, int64_t n, float eps)
{
    float r = ref_rms_factor(x, n, eps);

    for (int64_t i = 0; i < n; i++)
        out[i] = ref_round(k, ref_vec(w, i) * (x[i] * r));
}

/* Turn each pair by (c, s); sign -1 turns back. */
static void rotate(const kernels *k, float *x, const float *cs, int half, float sign)
{
    for (int i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1], c = cs[2 * i], s = sign * cs[2 * i + 1];

        x[2 * i] = ref_round(k, a * c - b * s);
        x[2 * i + 1] = ref_round(k, a * s + b * c);
    }
}

void ref_rope(const kernels *k, float *x, const float *cs, int half)
{
    rotate(k, x, cs, half, 1.0f);
}

void ref_rope_back(const kernels *k, float *x, const float *cs, int half)
{
    rotate(k, x, cs, half, -1.0f);
}

float ref_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

void ref_ring_encode(const kv_layout *l, uint8_t *row, const float *x)
{
    size_t d = (size_t)l->head_dim;

    if (l->format == KV_F32)
        memcpy(row, x, d * sizeof *x);
    else
        q8_encode(row, row + d, x, d);
}

void ref_ring_decode(const ref_impl *impl, const kv_layout *l, float *x, const uint8_t *row)
{
    size_t d = (size_t)l->head_dim;

    if (l->format == KV_F32) {
        memcpy(x, row, d * sizeof *x);
        return;
    }
    for (size_t i = 0; i < d; i++)
        x[i] = impl->e4m3[row[i]] * ue8m0_to_f32(row[d + i / Q8_GROUP]);
}

/* Unsigned integers in the order of the floats; both zeros get one value. */
static uint32_t order_key(float x)
{
    uint32_t u = f32_bits(x + 0.0f);

    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

float ref_kth_largest(const float *x, int64_t n, int64_t k, int64_t *above)
{
    uint32_t prefix = 0;
    int64_t larger = 0;

    /* One byte of the answer per pass, highest first: count the keys that share the prefix found so
     * far by their next byte, and walk down from the largest. */
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t count[256] = {0};
        uint32_t mask = shift == 24 ? 0 : 0xFFFFFFFFu << (shift + 8);
        uint32_t digit = 255;

        for (int64_t i = 0; i < n; i++) {
            uint32_t key = order_key(x[i]);

            if ((key & mask) == prefix)
                count[key >> shift & 255u]++;
        }
        while (larger + count[digit] < k)
            larger += count[digit--];
        prefix |= digit << shift;
    }
    *above = larger;
    return f32_from_bits(prefix & 0x80000000u ? prefix & 0x7FFFFFFFu : ~prefix);
}
