/* The bytes of generated tensors. See dummy.h. */
#include "checkpoint/dummy.h"

#include <math.h>
#include <string.h>

#include "checkpoint/checkpoint_internal.h"

/* Root mean square of a stored code before its scale. */
#define FP4_RMS  2.93 /* all sixteen codes alike */
#define FP8_RMS  1.18 /* magnitudes from 1/2 to 2 */
#define BF16_RMS 1.53 /* of the binade [1, 2) */

#define EACH_BYTE UINT64_C(0x0101010101010101)
#define EACH_HALF UINT64_C(0x0001000100010001)

/* SplitMix64 at a place of its sequence: counter-based, a few instructions for eight bytes. */
static uint64_t hash_at(uint64_t seed, uint64_t at)
{
    uint64_t z = seed + (at + 1) * UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static uint64_t seed_of(const char *name, uint64_t seed)
{
    for (; *name; name++)
        seed = hash_at(seed, (unsigned char)*name);
    return seed;
}

static bool is_fp4_part(const char *name)
{
    return strstr(name, ".experts.") != NULL;
}

/* Weights of a norm: they multiply a row that has been brought to size one. */
static bool is_norm(const char *name)
{
    return strstr(name, "norm") || strstr(name, ".q_weight") || strstr(name, ".k_weight");
}

bool dummy_is_table(const char *name)
{
    return strstr(name, "embed.weight") || strstr(name, "embed.scale");
}

/* Power of two nearest to cols^-0.5 / rms. */
static int exponent(int64_t cols, double rms)
{
    return (int)lround(-log2(rms * sqrt((double)cols)));
}

/* Words of random bits of which `keep` stays and `set` is added. */
static void fill_words(uint64_t *out, size_t n, uint64_t seed, uint64_t keep, uint64_t set)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (hash_at(seed, i) & keep) | set;
}

/* Scale bytes e and e - 1. */
static void fill_scales(uint64_t *out, size_t n, uint64_t seed, int e)
{
    for (size_t i = 0; i < n; i++)
        out[i] = EACH_BYTE * (uint64_t)e - (hash_at(seed, i) & EACH_BYTE);
}

/* Even in [mid - size, mid + size). */
static void fill_floats(float *out, size_t n, uint64_t seed, float mid, float size)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t x = (uint32_t)(hash_at(seed, i / 2) >> (32 * (i % 2)));

        out[i] = mid + size * ((float)(x >> 8) * 0x1p-23f - 1);
    }
}

static void fill_f32(float *out, const ckpt_tensor *t, uint64_t seed)
{
    size_t n = t->bytes / sizeof(float);

    if (t->n_dims == 2)
        fill_floats(out, n, seed, 0, (float)sqrt(3 / (double)t->shape[1]));
    else if (strstr(t->name, "_scale"))
        fill_floats(out, n, seed, 0.75f, 0.25f);
    else if (strstr(t->name, "gate.bias"))
        fill_floats(out, n, seed, 0, 0.02f);
    else
        fill_floats(out, n, seed, 0, 1);
}

static void fill_bf16(uint64_t *out, size_t n, const ckpt_tensor *t, uint64_t seed)
{
    uint64_t binade = (uint64_t)(127 + exponent(t->shape[1], BF16_RMS)) << 7;

    if (is_norm(t->name)) /* from 1 to 1.5 */
        fill_words(out, n, seed, EACH_HALF * 0x003F, EACH_HALF * 0x3F80);
    else
        fill_words(out, n, seed, EACH_HALF * 0x807F, EACH_HALF * binade);
}

void dummy_fill(void *out, const ckpt_tensor *t, uint64_t seed)
{
    size_t n = (t->bytes + 7) / 8;
    int64_t cols = t->shape[1] * 32; /* of the matrix that a scale belongs to */

    seed = seed_of(t->name, seed);
    switch (t->type) {
    case DTYPE_F32:
        fill_f32(out, t, seed);
        break;
    case DTYPE_BF16:
        fill_bf16(out, n, t, seed);
        break;
    case DTYPE_F8_E8M0:
        fill_scales(out, n, seed, 127 + exponent(cols, is_fp4_part(t->name) ? FP4_RMS : FP8_RMS));
        break;
    case DTYPE_F8_E4M3:
        fill_words(out, n, seed, EACH_BYTE * 0x8F, EACH_BYTE * 0x30);
        break;
    default:
        fill_words(out, n, seed, UINT64_MAX, 0);
    }
}
