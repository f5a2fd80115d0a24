/* The scalar back end, internal: how it holds weights and scratch, and the pieces that several
 * operations share.
 *
 * Activations and q8 rows are f32. One rule for precision: every sum runs in double, everything
 * else in f32 as the formula is written, and `numerics` says where a stored value is rounded to
 * bf16 or quantised:
 *            bf16 rounding   Q8 of linear inputs   bf16 probabilities   state
 *   RELEASE  yes             yes                   yes                  packed
 *   CACHE    no              no                    no                   packed
 *   F32      no              no                    no                   f32
 * Threads split output columns, heads, entries or rows; no sum is split. */
#pragma once

#include "formats/quant.h"
#include "formats/scalar.h"
#include "kernels/kernels.h"

/* Products with rows of weights are the only loops worth more than the baseline instruction set.
 * The lanes of the sums are written out, so every clone gives the same bits. gcc only: clang 14
 * does not export the dispatched name, and the resolvers run before a sanitizer is ready. */
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&                \
    !defined(__SANITIZE_THREAD__)
#define REF_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define REF_CLONES
#endif

/* Pointers into the mapped shards, as stored and possibly unaligned; borrowed. */
struct weight {
    weight_kind kind;
    int64_t rows, cols;
    int n_parts;
    weight_part part[2];
    struct ref_experts *experts; /* of load_experts, else NULL */
};

/* The experts of a layer: [0] = w1, [1] = w3, [2] = w2. */
typedef struct ref_experts {
    int n_experts, hidden, inter;
    fp4_part *routed[3]; /* [n_experts] each */
    weight shared[3];    /* FP8 matrices */
} ref_experts;

/* Scratch of one thread. */
typedef struct ref_scratch {
    double *row[2]; /* a dequantised weight row each */
    float *f;       /* whatever an operation needs: see floats_needed() */
    int32_t *id;    /* [vocab] */
} ref_scratch;

typedef struct ref_impl {
    kernel_limits limits; /* what scratch is reserved for */
    int n_threads;
    ref_scratch *thread; /* [n_threads] */
    double *rows;
    float *floats;
    int32_t *ids;
    size_t row_doubles, thread_floats; /* per thread */
    size_t max_keys;                   /* of one attention row */
    /* experts: slots (row * k + i) in the order of their expert, and where each expert's begin */
    int32_t *slot, *first;
    float *h; /* [n_rows * (n_active + 1)][inter] inputs of w2 */
    float e4m3[256];
} ref_impl;

/* What a job gets: the operation's arguments with the back end. */
typedef struct ref_job {
    const kernels *k;
    const ref_impl *impl;
    const void *args;
} ref_job;

/* Run a job on all threads of the pool. */
void ref_run(kernels *k, pool_fn fn, const void *args);

/* bf() of the release. */
static inline float ref_round(const kernels *k, float x)
{
    return k->numerics == NUMERICS_RELEASE ? bf16_round(x) : x;
}

static inline float load_f32(const void *base, int64_t i)
{
    float x;

    memcpy(&x, (const uint8_t *)base + 4 * i, sizeof x);
    return x;
}

static inline float load_bf16(const void *base, int64_t i)
{
    uint16_t b;

    memcpy(&b, (const uint8_t *)base + 2 * i, sizeof b);
    return bf16_to_f32(b);
}

/* Element i of a vector weight (or of a small matrix, as stored). */
static inline float ref_vec(const weight *w, int64_t i)
{
    return w->kind == WEIGHT_VEC_BF16 ? load_bf16(w->part[0].data, i)
                                      : load_f32(w->part[0].data, i);
}

/* Row r of a matrix or table, dequantised (exact). */
void ref_weight_row(const ref_impl *impl, const weight *w, int64_t r, double *out);
/* Row r of an FP4 matrix of `cols` columns. */
void ref_fp4_row(const fp4_part *m, int64_t r, int64_t cols, double *out);

/* sum w[i] * x[i] in sixteen interleaved lanes that are then added pairwise. */
double ref_dot(const double *w, const float *x, int64_t n);
/* y[i] += a * x[i] */
void ref_axpy(double *y, double a, const float *x, int64_t n);
double ref_sum_squares(const float *x, int64_t n);

/* Q8 round trip in place, in numerics that quantise the inputs of linears; n a multiple of 32. */
void ref_q8(const kernels *k, float *x, int64_t n);

/* 1 / sqrt(mean(x^2) + eps) */
float ref_rms_factor(const float *x, int64_t n, float eps);
/* out = bf(w * (x * factor)); out may be x. */
void ref_rms(const kernels *k, float *out, const float *x, const weight *w, int64_t n, float eps);

/* Rotate pairs (2i, 2i+1) of x [2*half] by cs [half][2]; result bf. The inverse turns back. */
void ref_rope(const kernels *k, float *x, const float *cs, int half);
void ref_rope_back(const kernels *k, float *x, const float *cs, int half);

float ref_sigmoid(float x);

/* Rows of state <-> f32. */
void ref_ring_encode(const kv_layout *l, uint8_t *row, const float *x);
void ref_ring_decode(const ref_impl *impl, const kv_layout *l, float *x, const uint8_t *row);

/* The k-th largest of x [n], 1 <= k <= n; *above = how many are larger. -0 equals +0. */
float ref_kth_largest(const float *x, int64_t n, int64_t k, int64_t *above);

/* The operations. */
void ref_gather(kernels *k, const gather_args *a);
void ref_rope_rows(kernels *k, const rope_rows_args *a);
void ref_engram_gather(kernels *k, const engram_gather_args *a);
void ref_engram_apply(kernels *k, const engram_apply_args *a);
void ref_hc(kernels *k, const hc_args *a);
void ref_tap(kernels *k, const tap_args *a);
void ref_quantize(kernels *k, const quantize_args *a);
void ref_linear(kernels *k, const linear_args *a);
void ref_qkv(kernels *k, const qkv_args *a);
void ref_compress_pool(kernels *k, const compress_pool_args *a);
void ref_compress_store(kernels *k, const compress_store_args *a);
void ref_index_scores(kernels *k, const index_scores_args *a);
void ref_select(kernels *k, const select_args *a);
void ref_attention(kernels *k, const attention_args *a);
void ref_ring_commit(kernels *k, const ring_commit_args *a);
void ref_route(kernels *k, const route_args *a);
void ref_moe(kernels *k, const experts_args *a);
void ref_confidence(kernels *k, const confidence_args *a);
void ref_sample(kernels *k, const sample_args *a);
void ref_logprobs(kernels *k, const logprobs_args *a);

/* Weights (weights.c). */
di_code ref_load(kernels *k, const weight_src *src, weight **out, di_status *st);
di_code ref_load_experts(kernels *k, const experts_src *src, weight **out, di_status *st);
void ref_unload(kernels *k, weight *w);
size_t ref_weight_bytes(const kernels *k, const weight_src *src);
size_t ref_experts_bytes(const kernels *k, const experts_src *src);
