/* Products of rows with a strip of 32 weight rows: the inner loops of all linear layers.
 *
 * Arithmetic is f32 FMA on exactly decoded weights: on the processors we measured it has twice the
 * rate of vdpbf16ps (docs/performance.md), keeps subnormals, and gives AVX-512, AVX2 and any number
 * of rows the same bits. Two paths with the same chain of operations per output:
 *   few rows   weights are decoded in registers and used at once (bound by memory)
 *   many rows  a chunk of blocks is decoded to f32 in L1 and used by all tiles of rows */
#include "kernels/cpu/cpu_internal.h"

#include <string.h>

#include "formats/scalar.h"
#include "kernels/cpu/e4m3_bf16.h"

#define NV (STRIP / VF) /* vectors that hold a value of every row of the strip */

#if defined(CPU_AVX512)
#define TILE   12 /* rows of x whose sums stay in registers, TILE_NV vectors each */
#define DIRECT 6  /* up to this many rows take the first path */
#define KEPT   3  /* ... and up to this many have their sums of the whole strip in registers */
#else
#define TILE   6
#define DIRECT 2
#define KEPT   2
#endif
#define TILE_NV 2

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#define INLINE static inline __attribute__((always_inline))

/* Rows of each tile of n rows, the last may have fewer: alike, for a narrow one leaves the units
 * that multiply waiting for their own results. */
static int tile_rows(int n)
{
    int tiles = (n + TILE - 1) / TILE;

    return tiles ? (n + tiles - 1) / tiles : TILE;
}

/* Column k of a block as f32, all rows of the strip. Loads and look-ups that neighbouring columns
 * share are written out for each; the compiler merges them. */
#if defined(CPU_AVX512)

INLINE void decode_fp8(vf w[NV], const uint8_t *block, int k)
{
    __m512i raw = _mm512_load_si512(block + (k / 2) * 64);
    __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(e4m3_bf16_low), raw,
                                           _mm512_loadu_si512(e4m3_bf16_low + 64));
    __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(e4m3_bf16_high), raw,
                                            _mm512_loadu_si512(e4m3_bf16_high + 64));
    __m512i pair[2];

    high = _mm512_ternarylogic_epi32(high, raw, _mm512_set1_epi8((char)0x80), 0xF8); /* a | (b&c) */
    pair[0] = _mm512_unpacklo_epi8(low, high);
    pair[1] = _mm512_unpackhi_epi8(low, high);
    for (int v = 0; v < NV; v++)
        w[v] = vf_from_bits(k % 2 ? vi_and(pair[v], vi_set((int32_t)0xFFFF0000u))
                                  : vi_shl(pair[v], 16));
}

INLINE void decode_fp4(vf w[NV], const uint8_t *block, int k)
{
    const vf value = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                    -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    int shift = 8 * (k % 4) + 4 * (k % 8 / 4);

    for (int v = 0; v < NV; v++) {
        vi code = vi_load(block + (k / 8) * 4 * STRIP + v * 4 * VF);

        w[v] = _mm512_permutexvar_ps(_mm512_srli_epi32(code, (unsigned)shift), value);
    }
}

#else

INLINE void decode_fp8(vf w[NV], const uint8_t *block, int k)
{
    for (int v = 0; v < NV; v++) {
        __m128i code = _mm_loadl_epi64((const __m128i *)(const void *)(block + k * STRIP + v * VF));
        /* The fields in place of those of f16 are the value * 2^-8, subnormals included. */
        __m128i half = _mm_srai_epi16(_mm_unpacklo_epi8(_mm_setzero_si128(), code), 1);

        half = _mm_and_si128(half, _mm_set1_epi16((short)0xBF80));
        w[v] = vf_mul(_mm256_cvtph_ps(half), vf_set(256.0f));
    }
}

INLINE void decode_fp4(vf w[NV], const uint8_t *block, int k)
{
    const vf value = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    int shift = 8 * (k % 4) + 4 * (k % 8 / 4);

    for (int v = 0; v < NV; v++) {
        vi code = _mm256_srli_epi32(vi_load(block + (k / 8) * 4 * STRIP + v * 4 * VF), shift);

        w[v] = vf_or_sign(_mm256_permutevar8x32_ps(value, code), vf_from_bits(vi_shl(code, 28)));
    }
}

#endif

INLINE void decode_bf16(vf w[NV], const uint8_t *block, int k)
{
    for (int v = 0; v < NV; v++) {
        vi pair = vi_load(block + (k / 2) * 4 * STRIP + v * 4 * VF);

        w[v] = vf_from_bits(k % 2 ? vi_and(pair, vi_set((int32_t)0xFFFF0000u)) : vi_shl(pair, 16));
    }
}

INLINE void decode(vf w[NV], strip_format format, const uint8_t *block, int k)
{
    if (format == STRIP_FP8)
        decode_fp8(w, block, k);
    else if (format == STRIP_FP4)
        decode_fp4(w, block, k);
    else
        decode_bf16(w, block, k);
}

INLINE size_t block_bytes(strip_format format)
{
    return format == STRIP_FP8 ? 1024 : format == STRIP_FP4 ? 544 : 2048;
}

/* Scales of block b; UE8M0 0 is the subnormal 2^-127. */
INLINE void decode_scale(vf scale[NV], strip_format format, const strip *s, int64_t b)
{
    for (int v = 0; v < NV; v++) {
        if (format == STRIP_FP4) {
            const uint8_t *byte = s->data + (size_t)b * 544 + 512 + v * VF;
#if defined(CPU_AVX512)
            vi e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)byte));
#else
            vi e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)byte));
#endif
            scale[v] = vf_from_bits(vi_max(vi_shl(e, 23), vi_set(0x00400000)));
        } else {
            scale[v] = vf_set(format == STRIP_FP8 ? ue8m0_to_f32(s->scale[b]) : 1.0f);
        }
    }
}

/* One line of the strips that come: the hardware's prefetchers alone leave the core waiting,
 * because its window holds few lines of weights with the work on them. */
INLINE void prefetch(const uint8_t *at)
{
    _mm_prefetch((const char *)at + 3072, _MM_HINT_T1);
    _mm_prefetch((const char *)at + 512, _MM_HINT_T0);
}

/* First path: n rows, x [n_blocks][n][BLOCK]. Columns are a loop over a line or two of weights:
 * unrolled further, the compiler moves all prefetches of a block to its beginning. */
INLINE void direct(float *out, strip_format format, const strip *s, const float *x, int n)
{
    const int per_column = format == STRIP_FP4 ? STRIP / 2 : (int)block_bytes(format) / BLOCK;
    const int columns = format == STRIP_FP4 ? 8 : 2; /* what one load decodes to */
    const bool kept = n <= KEPT;
    vf total[KEPT][NV];

    UNROLL
    for (int t = 0; t < n; t++) {
        for (int v = 0; v < NV; v++) {
            if (kept)
                total[t][v] = vf_zero();
            else
                vf_store(out + t * STRIP + v * VF, vf_zero());
        }
    }
    for (int64_t b = 0; b < s->n_blocks; b++, x += n * BLOCK) {
        const uint8_t *block = s->data + (size_t)b * block_bytes(format);
        vf sum[DIRECT][NV], scale[NV];

        decode_scale(scale, format, s, b);
        UNROLL
        for (int t = 0; t < n; t++)
            for (int v = 0; v < NV; v++)
                sum[t][v] = vf_zero();
        for (int k = 0; k < BLOCK; k += columns, block += columns * per_column) {
            UNROLL
            for (int c = 0; c < columns; c++) {
                vf w[NV];

                if (c * per_column / 64 != (c + 1) * per_column / 64)
                    prefetch(block + c * per_column);
                decode(w, format, block, c);
                UNROLL
                for (int t = 0; t < n; t++) {
                    vf xk = vf_set(x[t * BLOCK + k + c]);

                    for (int v = 0; v < NV; v++)
                        sum[t][v] = vf_fma(w[v], xk, sum[t][v]);
                }
            }
        }
        UNROLL
        for (int t = 0; t < n; t++) {
            for (int v = 0; v < NV; v++) {
                float *to = out + t * STRIP + v * VF;

                if (kept)
                    total[t][v] = vf_fma(sum[t][v], scale[v], total[t][v]);
                else
                    vf_store(to, vf_fma(sum[t][v], scale[v], vf_load(to)));
            }
        }
    }
    UNROLL
    for (int t = 0; kept && t < n; t++)
        for (int v = 0; v < NV; v++)
            vf_store(out + t * STRIP + v * VF, total[t][v]);
}

static void direct_n(float *out, strip_format format, const strip *s, const float *x, int n)
{
#define CASE(i)                                                                                    \
    case i:                                                                                        \
        if (format == STRIP_FP8)                                                                   \
            direct(out, STRIP_FP8, s, x, i);                                                       \
        else if (format == STRIP_FP4)                                                              \
            direct(out, STRIP_FP4, s, x, i);                                                       \
        else                                                                                       \
            direct(out, STRIP_BF16, s, x, i);                                                      \
        break;
    switch (n) {
        CASE(1)
        CASE(2)
#if DIRECT > 2
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
#endif
    default:
        break;
    }
#undef CASE
}

/* Decode `n` blocks from b to panel [n][BLOCK][STRIP], their scales to scale [n][STRIP]. Two
 * columns share their look-ups only if nothing is stored between them: for all that the compiler
 * knows the store could change the block. */
INLINE void decode_chunk(float *panel, float *scale, strip_format format, const strip *s,
                         int64_t b0, int n)
{
    for (int b = 0; b < n; b++) {
        const uint8_t *block = s->data + (size_t)(b0 + b) * block_bytes(format);
        float *to = panel + b * BLOCK * STRIP;
        vf w[2][NV];

        UNROLL
        for (int k = 0; k < BLOCK; k += 2, to += 2 * STRIP) {
            const int per_column = (int)block_bytes(format) / BLOCK;

            for (int c = k; c < k + 2; c++)
                if (c * per_column / 64 != (c + 1) * per_column / 64)
                    _mm_prefetch((const char *)block + c * per_column + 512, _MM_HINT_T0);
            decode(w[0], format, block, k);
            decode(w[1], format, block, k + 1);
            for (int v = 0; v < NV; v++) {
                vf_store(to + v * VF, w[0][v]);
                vf_store(to + STRIP + v * VF, w[1][v]);
            }
        }
        decode_scale(w[0], format, s, b0 + b);
        for (int v = 0; v < NV; v++)
            vf_store(scale + b * STRIP + v * VF, w[0][v]);
    }
}

/* Weights that come next, `step` bytes of them for every column that is multiplied: memory works
 * while the products are computed. step 0: nothing new. */
typedef struct ahead {
    const char *at;
    size_t step;
} ahead;

/* out [n][STRIP] += scale * (panel x) for `blocks` blocks and the n rows of a tile;
 * x [blocks][n][BLOCK]. */
INLINE void tile(float *out, const float *panel, const float *scale, const float *x, int n,
                 int blocks, ahead next)
{
    for (int b = 0; b < blocks; b++, x += n * BLOCK) {
        for (int half = 0; half < NV; half += TILE_NV) {
            const float *w = panel + b * BLOCK * STRIP + half * VF;
            vf sum[TILE][TILE_NV];

            UNROLL
            for (int t = 0; t < n; t++)
                sum[t][0] = sum[t][1] = vf_zero();
            for (int k = 0; k < BLOCK; k++) {
                vf w0 = vf_load(w + k * STRIP), w1 = vf_load(w + k * STRIP + VF);

                _mm_prefetch(next.at, _MM_HINT_T1);
                next.at += next.step;
                UNROLL
                for (int t = 0; t < n; t++) {
                    vf xk = vf_set(x[t * BLOCK + k]);

                    sum[t][0] = vf_fma(w0, xk, sum[t][0]);
                    sum[t][1] = vf_fma(w1, xk, sum[t][1]);
                }
            }
            UNROLL
            for (int t = 0; t < n; t++) {
                for (int v = 0; v < TILE_NV; v++) {
                    float *to = out + t * STRIP + (half + v) * VF;

                    vf_store(to, vf_fma(sum[t][v], vf_load(scale + b * STRIP + (half + v) * VF),
                                        vf_load(to)));
                }
            }
        }
    }
}

static void tile_n(float *out, const float *panel, const float *scale, const float *x, int n,
                   int blocks, ahead next)
{
#define CASE(i)                                                                                    \
    case i:                                                                                        \
        tile(out, panel, scale, x, i, blocks, next);                                               \
        break;
    switch (n) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
#if TILE > 6
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
        CASE(12)
#endif
    default:
        break;
    }
#undef CASE
}

static void paneled(float *out, const strip *s, const float *x, int n, float *panel)
{
    float *scale = panel + STRIP_CHUNK * BLOCK * STRIP;
    size_t bytes = block_bytes(s->format);
    int each = tile_rows(n);

    memset(out, 0, (size_t)n * STRIP * sizeof *out);
    for (int64_t b = 0; b < s->n_blocks; b += STRIP_CHUNK) {
        int blocks = (int)(s->n_blocks - b < STRIP_CHUNK ? s->n_blocks - b : STRIP_CHUNK);

        if (s->format == STRIP_FP8)
            decode_chunk(panel, scale, STRIP_FP8, s, b, blocks);
        else if (s->format == STRIP_FP4)
            decode_chunk(panel, scale, STRIP_FP4, s, b, blocks);
        else
            decode_chunk(panel, scale, STRIP_BF16, s, b, blocks);
        for (int t = 0; t < n; t += each) {
            int width = n - t < each ? n - t : each;
            ahead next = {.at = (const char *)s->data + (size_t)(b + blocks) * bytes};

            next.step = t == 0 ? bytes / BLOCK / (NV / TILE_NV) : 0;
            tile_n(out + t * STRIP, panel, scale, x + (t * s->n_blocks + b * width) * BLOCK, width,
                   blocks, next);
        }
    }
}

void CPU_FN(strip_product)(float *out, const strip *s, const float *x, int n, float *panel)
{
    if (n > DIRECT)
        paneled(out, s, x, n, panel);
    else
        direct_n(out, s->format, s, x, n);
}

/* Tiles of rows, each [n_blocks][rows of the tile][BLOCK]. */
void CPU_FN(strip_pack)(float *out, const uint16_t *x, int64_t stride, const int32_t *index, int n,
                        int64_t cols)
{
    int64_t n_blocks = (cols + BLOCK - 1) / BLOCK;
    int each = tile_rows(n);

    for (int i = 0; i < n; i++) {
        int t = i / each * each, width = n - t < each ? n - t : each;
        const uint16_t *from = x + (index ? index[i] : i) * stride;
        float *to = out + (t * n_blocks + (i - t)) * BLOCK;

        for (int64_t c = 0; c < cols; c += BLOCK, to += width * BLOCK) {
            if (cols - c >= BLOCK) {
                for (int j = 0; j < BLOCK; j += VF)
                    vf_store(to + j, vf_load_bf16(from + c + j));
            } else {
                for (int j = 0; j < BLOCK; j++)
                    to[j] = c + j < cols ? bf16_to_f32(from[c + j]) : 0.0f;
            }
        }
    }
}
