/* The CPU back ends, internal: weights in strips, scratch, and the operations of the table.
 *
 * Every source of cpu/ that includes this is compiled once per instruction set (simd.h); CPU_FN
 * gives its functions a name per set. Activations are bf16 rows; a q8 row is the bf16 row of the Q8
 * round trip (exact in bf16), so quantised and plain linears read the same rows.
 *
 * The order of every sum of a linear: 32-column blocks ascending; inside a block one f32 chain over
 * ascending columns (or the exact integer sum, FP4 on AVX-512); acc = fma(block, scale, acc). It
 * does not depend on rows, tiles or threads: threads split strips of outputs. Thread: the owner of
 * the back end; inside a job, its own scratch. */
#pragma once

#include "kernels/kernels.h"

#include "kernels/cpu/simd.h"

#define STRIP 32 /* weight rows that are computed together: one Q8 group, one row of FP8 tiles */
#define BLOCK 32 /* columns that share a scale */

/* How the bytes of a 32x32 block lie (strip_bytes of weights.c):
 *   STRIP_BF16  [k/2][row][2] bf16                                            2048 bytes
 *   STRIP_FP8   AVX-512: pairs of columns, rows in the order that byte unpacking yields;
 *               AVX2: [k][row]                                                1024 bytes
 *   STRIP_FP4   [k/8][row] dwords: byte j holds column j (low nibble) and 4+j; then 32 scale bytes
 *               by row                                                        544 bytes
 * A strip is its blocks in ascending columns; missing rows and columns are zero. */
typedef enum strip_format { STRIP_BF16, STRIP_FP8, STRIP_FP4 } strip_format;

typedef struct matrix {
    strip_format format;
    int64_t rows, cols, n_strips, n_blocks;
    size_t strip_bytes;   /* all blocks of a strip */
    const uint8_t *data;  /* [n_strips][strip_bytes] */
    const uint8_t *scale; /* FP8: [n_strips][n_blocks] UE8M0 */
} matrix;

/* Routed experts and the shared one; 0 = w1, 1 = w3, 2 = w2. */
typedef struct experts {
    int n_experts, hidden, inter;
    const uint8_t *data[3]; /* expert e's strips at data[m] + e * bytes[m] */
    size_t bytes[3];
    matrix shared[3];
} experts;

struct weight {
    weight_kind kind;
    int64_t rows, cols;
    float *f32;        /* vectors, F32 matrices and one-row BF16 matrices: [rows][cols] */
    matrix m;          /* BF16 and FP8 matrices */
    const void *table; /* tables: the mapped rows */
    const uint8_t *table_scale;
    experts e;    /* of load_experts */
    void *own[4]; /* memory that unload gives back */
};

/* Of the back end; scratch is one union per thread (operations do not overlap) and a shared part
 * for what the threads of one operation exchange. */
typedef struct cpu_impl {
    kernel_limits lim;
    int n_threads;
    uint8_t *scratch;
    size_t thread_bytes, shared_bytes;
    bool bf16_attention; /* dots by vdpbf16ps, where that is faster than f32 FMA */
} cpu_impl;

static inline int cpu_threads(const kernels *k)
{
    return k->pool ? pool_n_threads(k->pool) : 1;
}

static inline void *cpu_thread_scratch(const kernels *k, int thread)
{
    const cpu_impl *c = k->impl;

    return c->scratch + c->shared_bytes + (size_t)thread * c->thread_bytes;
}

static inline void *cpu_shared_scratch(const kernels *k)
{
    return ((const cpu_impl *)k->impl)->scratch;
}

/* One strip of a matrix. */
typedef struct strip {
    strip_format format;
    const uint8_t *data;
    const uint8_t *scale; /* FP8: [n_blocks] */
    int64_t n_blocks;
} strip;

/* Products of a strip with up to STRIP_ROWS rows (strip.c). */
#define STRIP_ROWS 48

/* Rows as f32 in the order that strip_product reads; STRIP_ROWS * n_blocks * BLOCK floats at most.
 * Row i is x + index[i] * stride (index NULL: i), `cols` bf16 values; missing columns become 0. */
void CPU_FN(strip_pack)(float *out, const uint16_t *x, int64_t stride, const int32_t *index, int n,
                        int64_t cols);

/* out [n][STRIP] = x W^T for the rows of a strip; `panel` is scratch of STRIP_PANEL_FLOATS. */
#define STRIP_CHUNK        4
#define STRIP_PANEL_FLOATS (STRIP_CHUNK * (BLOCK + 1) * STRIP)
void CPU_FN(strip_product)(float *out, const strip *s, const float *x, int n, float *panel);

#if defined(CPU_AVX512)
/* The same for FP4 strips by exact integer dots (strip_fp4.c); x is packed by the first. */
void strip_pack_fp4_avx512(void *out, const uint16_t *x, int64_t stride, const int32_t *index,
                           int n, int64_t cols);
void strip_product_fp4_avx512(float *out, const strip *s, const void *x, int n, float *panel);
#endif

static inline strip matrix_strip(const matrix *m, int64_t i)
{
    return (strip){.format = m->format,
                   .data = m->data + (size_t)i * m->strip_bytes,
                   .scale = m->scale ? m->scale + i * m->n_blocks : NULL,
                   .n_blocks = m->n_blocks};
}

/* Scratch that the operations of a file need under these limits, 64-byte aligned use. */
size_t CPU_FN(linear_thread_bytes)(const kernel_limits *l);
size_t CPU_FN(experts_thread_bytes)(const kernel_limits *l);
size_t CPU_FN(experts_shared_bytes)(const kernel_limits *l);
/* ... and of all other operations together. */
size_t CPU_FN(rows_thread_bytes)(const kernel_limits *l);
size_t CPU_FN(rows_shared_bytes)(const kernel_limits *l, int n_threads);

/* Weights (weights.c). */
di_code CPU_FN(cpu_load)(kernels *k, const weight_src *src, weight **out, di_status *st);
di_code CPU_FN(cpu_load_experts)(kernels *k, const experts_src *src, weight **out, di_status *st);
void CPU_FN(cpu_unload)(kernels *k, weight *w);
size_t CPU_FN(cpu_weight_bytes)(const kernels *k, const weight_src *src);
size_t CPU_FN(cpu_experts_bytes)(const kernels *k, const experts_src *src);

/* The operations, in the order of the table. */
void CPU_FN(cpu_gather)(kernels *k, const gather_args *a);
void CPU_FN(cpu_rope_rows)(kernels *k, const rope_rows_args *a);
void CPU_FN(cpu_engram_gather)(kernels *k, const engram_gather_args *a);
void CPU_FN(cpu_engram_apply)(kernels *k, const engram_apply_args *a);
void CPU_FN(cpu_hc)(kernels *k, const hc_args *a);
void CPU_FN(cpu_tap)(kernels *k, const tap_args *a);
void CPU_FN(cpu_quantize)(kernels *k, const quantize_args *a);
void CPU_FN(cpu_linear)(kernels *k, const linear_args *a);
void CPU_FN(cpu_qkv)(kernels *k, const qkv_args *a);
void CPU_FN(cpu_compress_pool)(kernels *k, const compress_pool_args *a);
void CPU_FN(cpu_compress_store)(kernels *k, const compress_store_args *a);
void CPU_FN(cpu_index_scores)(kernels *k, const index_scores_args *a);
void CPU_FN(cpu_select)(kernels *k, const select_args *a);
void CPU_FN(cpu_attention)(kernels *k, const attention_args *a);
void CPU_FN(cpu_ring_commit)(kernels *k, const ring_commit_args *a);
void CPU_FN(cpu_route)(kernels *k, const route_args *a);
void CPU_FN(cpu_experts)(kernels *k, const experts_args *a);
void CPU_FN(cpu_confidence)(kernels *k, const confidence_args *a);
void CPU_FN(cpu_sample)(kernels *k, const sample_args *a);
void CPU_FN(cpu_logprobs)(kernels *k, const logprobs_args *a);
