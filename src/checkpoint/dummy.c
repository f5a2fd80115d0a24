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

/* Words first .. first + n - 1 of a tensor. */
typedef struct span {
    uint64_t *out;
    size_t first, n;
    uint64_t seed; /* of the tensor */
} span;

/* Random bits of which `keep` stays and `set` is added. */
static void fill_words(const span *s, uint64_t keep, uint64_t set)
{
    for (size_t i = 0; i < s->n; i++)
        s->out[i] = (hash_at(s->seed, s->first + i) & keep) | set;
}

/* Scale bytes e and e - 1. */
static void fill_scales(const span *s, int e)
{
    for (size_t i = 0; i < s->n; i++)
        s->out[i] = EACH_BYTE * (uint64_t)e - (hash_at(s->seed, s->first + i) & EACH_BYTE);
}

/* Even in [mid - size, mid + size). */
static void fill_floats(const span *s, float mid, float size)
{
    for (size_t i = 0; i < s->n; i++) {
        uint64_t x = hash_at(s->seed, s->first + i);
        float two[2] = {mid + size * ((float)((uint32_t)x >> 8) * 0x1p-23f - 1),
                        mid + size * ((float)(uint32_t)(x >> 40) * 0x1p-23f - 1)};

        memcpy(&s->out[i], two, sizeof two);
    }
}

static void fill_f32(const span *s, const ckpt_tensor *t)
{
    if (t->n_dims == 2)
        fill_floats(s, 0, (float)sqrt(3 / (double)t->shape[1]));
    else if (strstr(t->name, "_scale"))
        fill_floats(s, 0.75f, 0.25f);
    else if (strstr(t->name, "gate.bias"))
        fill_floats(s, 0, 0.02f);
    else
        fill_floats(s, 0, 1);
}

static void fill_bf16(const span *s, const ckpt_tensor *t)
{
    uint64_t binade = (uint64_t)(127 + exponent(t->shape[1], BF16_RMS)) << 7;

    if (is_norm(t->name)) /* from 1 to 1.5 */
        fill_words(s, EACH_HALF * 0x003F, EACH_HALF * 0x3F80);
    else
        fill_words(s, EACH_HALF * 0x807F, EACH_HALF * binade);
}

void dummy_fill(uint64_t *out, const ckpt_tensor *t, uint64_t seed, size_t first, size_t n)
{
    span s = {.out = out, .first = first, .n = n, .seed = seed_of(t->name, seed)};
    int64_t cols = t->shape[1] * 32; /* of the matrix that a scale belongs to */

    switch (t->type) {
    case DTYPE_F32:
        fill_f32(&s, t);
        break;
    case DTYPE_BF16:
        fill_bf16(&s, t);
        break;
    case DTYPE_F8_E8M0:
        fill_scales(&s, 127 + exponent(cols, is_fp4_part(t->name) ? FP4_RMS : FP8_RMS));
        break;
    case DTYPE_F8_E4M3:
        fill_words(&s, EACH_BYTE * 0x8F, EACH_BYTE * 0x30);
        break;
    default:
        fill_words(&s, UINT64_MAX, 0);
    }
}

/* Bytes [from, to) of the tensor that lie in one word. */
static void fill_part(uint8_t *out, const ckpt_tensor *t, uint64_t seed, size_t from, size_t to)
{
    uint64_t word;

    dummy_fill(&word, t, seed, from / 8, 1);
    memcpy(out, (const uint8_t *)&word + from % 8, to - from);
}

void dummy_read(void *to, const ckpt_tensor *t, uint64_t seed, size_t from, size_t bytes)
{
    uint8_t *out = to;
    size_t end = from + bytes, whole = (from + 7) / 8 * 8, last = end / 8 * 8;

    if (whole >= last ||
        (uintptr_t)(out + (whole - from)) % 8) { /* short, or not for whole words */
        for (size_t next; from < end; out += next - from, from = next) {
            next = (from / 8 + 1) * 8 < end ? (from / 8 + 1) * 8 : end;
            fill_part(out, t, seed, from, next);
        }
        return;
    }
    if (from < whole)
        fill_part(out, t, seed, from, whole);
    dummy_fill((uint64_t *)(out + (whole - from)), t, seed, whole / 8, (last - whole) / 8);
    if (last < end)
        fill_part(out + (last - from), t, seed, last, end);
}
