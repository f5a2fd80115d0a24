/* Products with a strip of FP4 weights by integer dots (vpdpbusd); AVX-512 only.
 *
 * Everything inside a 32-column block is exact. Weights become 2 * E2M1 + 12, unsigned bytes 0..24.
 * Activations are E4M3 codes times a group scale, that is X * scale * 2^-9 with |X| <= 448 * 512;
 * X is split into three signed digits of base 256; where all X of a block are multiples of eight
 * (none is smaller than 2^-11 of the block's limit), X / 8 into two. The integer dots give
 * sum(w * X) in 32 bits (below 2^28); the +12 is taken back with -12 * sum(X), known from packing.
 * One rounding to f32 per block, the same with X / 8, then acc = fma(dot, weight scale, acc) in
 * ascending blocks. So the order of the integer sums is of no consequence, and one row and many
 * have the same bits. vdpbf16ps
 * would round inside the block, at half the rate of f32 FMA where we measured
 * (docs/performance.md).
 */
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/quant_simd.h"

#include <string.h>

#define FP4_BYTES 544
#define TILE      4                 /* rows of x whose sums stay in registers */
#define CHUNK     16                /* blocks decoded at a time for many rows */
#define QUADS     (BLOCK / 4)       /* groups of four columns, one dword of a dot */
#define NV        (STRIP / VF)      /* vectors of 16 rows */
#define PANEL     (QUADS * NV * 64) /* decoded bytes of a block */
#define RECORD    BLOCK             /* dwords of a packed row and block, as in strip_pack */
#define DIGITS    3

_Static_assert(CHUNK *PANEL <= STRIP_PANEL_FLOATS * 4, "the panel fits the scratch");

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#define INLINE static inline __attribute__((always_inline))

/* Record of a row and block: DIGITS * QUADS dwords of four digits each, then
 *   CORRECTION  -12 * sum(X)
 *   FACTOR      f32: group scale * 2^-10, of X * (2 w)
 *   LONG        not 0: the last digit counts */
#define CORRECTION (DIGITS * QUADS)
#define FACTOR     (DIGITS * QUADS + 1)
#define LONG       (DIGITS * QUADS + 2)

/* Rows of each tile of n rows, the last may have fewer: alike, for a narrow one leaves the units
 * that multiply waiting for their own results. */
static int tile_rows(int n)
{
    int tiles = (n + TILE - 1) / TILE;

    return tiles ? (n + tiles - 1) / tiles : TILE;
}

static void pack_block(int32_t *record, const uint16_t *x)
{
    float s = q8_scale(x);
    vf unit = vf_set(pow2_inverse(s) * 512.0f);
    vi sum = vi_set(0), all[BLOCK / VF], low = vi_set(0);
    bool is_long;

    for (int i = 0; i < BLOCK / VF; i++) {
        all[i] = vf_to_int(vf_mul(vf_load_bf16(x + i * VF), unit));
        low = _mm512_or_si512(low, all[i]);
    }
    is_long = _mm512_test_epi32_mask(low, vi_set(7)) != 0;
    for (int i = 0; i < BLOCK; i += VF) {
        vi v = is_long ? all[i / VF] : vi_sar(all[i / VF], 3);

        sum = vi_add(sum, v);
        for (int d = 0; d < DIGITS; d++) {
            vi digit = vi_sar(vi_shl(v, 24), 24);

            _mm_storeu_si128((__m128i *)(void *)(record + d * QUADS + i / 4),
                             _mm512_cvtepi32_epi8(digit));
            v = vi_sar(vi_sub(v, digit), 8);
        }
    }
    record[CORRECTION] = -12 * _mm512_reduce_add_epi32(sum);
    record[FACTOR] = (int32_t)f32_bits(s * (is_long ? 0x1p-10f : 0x1p-7f));
    record[LONG] = is_long;
}

void strip_pack_fp4_avx512(void *out, const uint16_t *x, int64_t stride, const int32_t *index,
                           int n, int64_t cols)
{
    int64_t n_blocks = cols / BLOCK;
    int each = tile_rows(n);

    for (int i = 0; i < n; i++) {
        int t = i / each * each, width = n - t < each ? n - t : each;
        const uint16_t *from = x + (index ? index[i] : i) * stride;
        int32_t *to = (int32_t *)out + (t * n_blocks + (i - t)) * RECORD;

        for (int64_t b = 0; b < n_blocks; b++, to += width * RECORD)
            pack_block(to, from + b * BLOCK);
    }
}

/* Columns 8d..8d+3 (quad 2d) and 8d+4..8d+7 (quad 2d+1) of 16 rows, 2 * E2M1 + 12. The look-up
 * takes six bits of each byte: the table repeats itself, and what stands above a code is of no
 * consequence. */
INLINE void decode(__m512i w[2], const uint8_t *block, int d, int v)
{
    const __m512i value = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    __m512i raw = _mm512_loadu_si512(block + (d * NV + v) * 64);

    w[0] = _mm512_permutexvar_epi8(raw, value);
    w[1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(raw, 4), value);
}

INLINE vf scale_of(const uint8_t *block, int v)
{
    const void *byte = block + BLOCK * STRIP / 2 + v * VF;
    vi e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)byte));

    return vf_from_bits(vi_max(vi_shl(e, 23), vi_set(0x00400000)));
}

/* Sums of a dot, in the type that the instruction's builtin has: with another one gcc 12 keeps
 * arrays of them in memory. */
typedef int sums __attribute__((vector_size(64)));

INLINE void dot(sums *sum, __m512i w, vi x)
{
    *sum = (sums)_mm512_dpbusd_epi32((__m512i)*sum, w, x);
}

/* acc + (the block's dot as f32) * scale. The digits' sums come by value: an array would be kept in
 * memory. */
INLINE vf finish(vf acc, sums sum0, sums sum1, sums sum2, const int32_t *record, vf scale)
{
    vi all = vi_add(vi_shl((vi)sum2, 8), (vi)sum1);

    all = vi_add(vi_shl(all, 8), (vi)sum0);
    return vf_fma(vf_mul(vi_to_float(all), vf_from_bits(vi_set(record[FACTOR]))), scale, acc);
}

/* A block's sums of n rows, before its dots. */
INLINE void begin(sums sum[][NV][DIGITS], const int32_t *x, int n)
{
    UNROLL
    for (int t = 0; t < n; t++)
        UNROLL
    for (int v = 0; v < NV; v++) {
        sum[t][v][0] = (sums)vi_set(x[t * RECORD + CORRECTION]);
        sum[t][v][1] = sum[t][v][2] = (sums)vi_set(0);
    }
}

/* out [n][STRIP] += a block's sums. */
INLINE void add_block(float *out, sums sum[][NV][DIGITS], const int32_t *x, int n,
                      const vf scale[NV])
{
    UNROLL
    for (int t = 0; t < n; t++)
        UNROLL
    for (int v = 0; v < NV; v++) {
        float *to = out + t * STRIP + v * VF;

        vf_store(to, finish(vf_load(to), sum[t][v][0], sum[t][v][1], sum[t][v][2], x + t * RECORD,
                            scale[v]));
    }
}

INLINE void prefetch(const uint8_t *at)
{
    _mm_prefetch((const char *)at + 3072, _MM_HINT_T1);
    _mm_prefetch((const char *)at + 512, _MM_HINT_T0);
}

/* Whether any of n rows needs all its digits. */
INLINE bool any_long(const int32_t *x, int n)
{
    int32_t any = 0;

    UNROLL
    for (int t = 0; t < n; t++)
        any |= x[t * RECORD + LONG];
    return any != 0;
}

/* A block's dots of one row or two. */
INLINE void dots(sums sum[2][NV][DIGITS], const uint8_t *block, const int32_t *x, int n, int digits)
{
    UNROLL
    for (int d = 0; d < BLOCK / 8; d++) {
        UNROLL
        for (int v = 0; v < NV; v++) {
            __m512i w[2];

            prefetch(block + (d * NV + v) * 68);
            decode(w, block, d, v);
            UNROLL
            for (int t = 0; t < n; t++)
                UNROLL
            for (int i = 0; i < 2 * digits; i++)
                dot(&sum[t][v][i / 2], w[i % 2],
                    vi_set(x[t * RECORD + i / 2 * QUADS + 2 * d + i % 2]));
        }
    }
}

/* One row or two: weights are decoded in registers. x [n_blocks][n] records. */
INLINE void direct(float *out, const strip *s, const int32_t *x, int n)
{
    const uint8_t *block = s->data;
    vf total[2][NV];

    UNROLL
    for (int t = 0; t < n; t++)
        UNROLL
    for (int v = 0; v < NV; v++)
        total[t][v] = vf_zero();
    for (int64_t b = 0; b < s->n_blocks; b++, x += n * RECORD, block += FP4_BYTES) {
        sums sum[2][NV][DIGITS];

        begin(sum, x, n);
        if (any_long(x, n))
            dots(sum, block, x, n, DIGITS);
        else
            dots(sum, block, x, n, DIGITS - 1);
        UNROLL
        for (int t = 0; t < n; t++)
            UNROLL
        for (int v = 0; v < NV; v++)
            total[t][v] = finish(total[t][v], sum[t][v][0], sum[t][v][1], sum[t][v][2],
                                 x + t * RECORD, scale_of(block, v));
    }
    UNROLL
    for (int t = 0; t < n; t++)
        UNROLL
    for (int v = 0; v < NV; v++)
        vf_store(out + t * STRIP + v * VF, total[t][v]);
}

/* A block's dots of three rows or four. */
INLINE void dots_wide(sums sum[TILE][NV][DIGITS], const uint8_t *block, const int32_t *x, int n,
                      int digits)
{
    for (int d = 0; d < BLOCK / 8; d++) {
        __m512i w[NV][2];

        UNROLL
        for (int v = 0; v < NV; v++) {
            prefetch(block + (d * NV + v) * 68);
            decode(w[v], block, d, v);
        }
        UNROLL
        for (int t = 0; t < n; t++) {
            UNROLL
            for (int i = 0; i < 2 * digits; i++) {
                vi xd = vi_set(x[t * RECORD + i / 2 * QUADS + 2 * d + i % 2]);

                dot(&sum[t][0][i / 2], w[0][i % 2], xd);
                dot(&sum[t][1][i / 2], w[1][i % 2], xd);
            }
        }
    }
}

/* Three rows or four: the sums of a block fill the registers, so those of the strip stay in out,
 * and the columns are a loop: unrolled, gcc 12 keeps some of its sums in memory. */
INLINE void direct_wide(float *out, const strip *s, const int32_t *x, int n)
{
    const uint8_t *block = s->data;

    for (int i = 0; i < n * STRIP; i += VF)
        vf_store(out + i, vf_zero());
    for (int64_t b = 0; b < s->n_blocks; b++, x += n * RECORD, block += FP4_BYTES) {
        const vf scale[NV] = {scale_of(block, 0), scale_of(block, 1)};
        sums sum[TILE][NV][DIGITS];

        begin(sum, x, n);
        if (any_long(x, n))
            dots_wide(sum, block, x, n, DIGITS);
        else
            dots_wide(sum, block, x, n, DIGITS - 1);
        add_block(out, sum, x, n, scale);
    }
}

/* Decoded blocks: panel [n][QUADS][NV][64]. */
static void decode_chunk(uint8_t *panel, const uint8_t *block, int n)
{
    for (int b = 0; b < n; b++, block += FP4_BYTES, panel += PANEL) {
        UNROLL
        for (int d = 0; d < BLOCK / 8; d++) {
            UNROLL
            for (int v = 0; v < NV; v++) {
                __m512i w[2];

                prefetch(block + (d * NV + v) * 68);
                decode(w, block, d, v);
                _mm512_storeu_si512(panel + ((2 * d) * NV + v) * 64, w[0]);
                _mm512_storeu_si512(panel + ((2 * d + 1) * NV + v) * 64, w[1]);
            }
        }
    }
}

/* Dots of a decoded block; the block at `ahead` is asked for. */
INLINE void dots_panel(sums sum[TILE][NV][DIGITS], const uint8_t *panel, const char *ahead,
                       const int32_t *x, int n, int digits)
{
    for (int quad = 0; quad < QUADS; quad++) {
        __m512i w0 = _mm512_loadu_si512(panel + quad * NV * 64);
        __m512i w1 = _mm512_loadu_si512(panel + quad * NV * 64 + 64);

        _mm_prefetch(ahead + quad * (FP4_BYTES / QUADS), _MM_HINT_T1);
        UNROLL
        for (int t = 0; t < n; t++) {
            UNROLL
            for (int d = 0; d < digits; d++) {
                vi xd = vi_set(x[t * RECORD + d * QUADS + quad]);

                dot(&sum[t][0][d], w0, xd);
                dot(&sum[t][1][d], w1, xd);
            }
        }
    }
}

/* out [n][STRIP] += products of `blocks` blocks with the n rows of a tile. Meanwhile memory brings
 * what comes behind them (a tile that is not the first asks for it in vain: it is there). */
INLINE void tile(float *out, const uint8_t *panel, const uint8_t *block, const int32_t *x, int n,
                 int blocks)
{
    const char *ahead = (const char *)block + blocks * FP4_BYTES;

    for (int b = 0; b < blocks; b++, x += n * RECORD, panel += PANEL, block += FP4_BYTES) {
        /* before anything is stored, which for all that the compiler knows changes the block */
        const vf scale[NV] = {scale_of(block, 0), scale_of(block, 1)};
        sums sum[TILE][NV][DIGITS];

        begin(sum, x, n);
        if (any_long(x, n))
            dots_panel(sum, panel, ahead, x, n, DIGITS);
        else
            dots_panel(sum, panel, ahead, x, n, DIGITS - 1);
        ahead += FP4_BYTES;
        add_block(out, sum, x, n, scale);
    }
}

/* Not inlined: next to the direct paths gcc 12 would keep fewer of its sums in registers. */
static __attribute__((noinline)) void paneled(float *out, const strip *s, const int32_t *x, int n,
                                              uint8_t *panel)
{
    int each = tile_rows(n);

    memset(out, 0, (size_t)n * STRIP * sizeof *out);
    for (int64_t b = 0; b < s->n_blocks; b += CHUNK) {
        int blocks = (int)(s->n_blocks - b < CHUNK ? s->n_blocks - b : CHUNK);
        const uint8_t *block = s->data + (size_t)b * FP4_BYTES;

        decode_chunk(panel, block, blocks);
        for (int t = 0; t < n; t += each) {
            int width = n - t < each ? n - t : each;
            const int32_t *from = x + (t * s->n_blocks + b * width) * RECORD;
            float *to = out + t * STRIP;

            if (width == 4)
                tile(to, panel, block, from, 4, blocks);
            else if (width == 3)
                tile(to, panel, block, from, 3, blocks);
            else if (width == 2)
                tile(to, panel, block, from, 2, blocks);
            else
                tile(to, panel, block, from, 1, blocks);
        }
    }
}

void strip_product_fp4_avx512(float *out, const strip *s, const void *x, int n, float *panel)
{
    if (n == 1)
        direct(out, s, x, 1);
    else if (n == 2)
        direct(out, s, x, 2);
    else if (n == 3)
        direct_wide(out, s, x, 3);
    else if (n == 4)
        direct_wide(out, s, x, 4);
    else
        paneled(out, s, x, n, (uint8_t *)panel);
}
