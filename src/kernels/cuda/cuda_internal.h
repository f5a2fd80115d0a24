/* The CUDA back end, internal: weights and scratch on the device, and one launcher per operation.
 *
 * table.c (host C) owns memory and the operation table; the .cu files hold kernels and their
 * launchers. Everything runs on one stream; a launch that fails is remembered and reported by
 * finish(). Activations are bf16; a q8 row holds the dequantised values as bf16, which is exact
 * (spec 2.3), so the kernels of quantised and plain inputs are the same.
 * Sums: every output element is summed in an order that its weight's shape fixes. */
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention.h"
#include "kernels/compress.h"
#include "kernels/engram.h"
#include "kernels/hc.h"
#include "kernels/index.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/counters.h"
#include "kernels/sample.h"
#include "kernels/step.h"
#include "kernels/weight.h"
#include "tensor/kv_view.h"

#ifdef __cplusplus
extern "C" {
#endif

#define Q8_COLS 32 /* columns of a scale: Q8, FP8 tiles, FP4 groups */

/* Kinds of packed panels (gemm.cuh); weight.packed. */
enum { PACK_NONE, PACK_FP4, PACK_FP8, PACK_BF16, PACK_MIX };

/* A matrix or table in device memory as stored: codes, then scales. */
struct weight {
    weight_kind kind;
    int64_t rows, cols;
    int64_t rows0; /* rows of the first part; its last tile of scales may be ragged */
    const void *data;
    const uint8_t *scale;
    int packed;                   /* kind of panels in `data` (gemm.cuh); 0: as stored */
    struct cuda_experts *experts; /* of load_experts, else NULL */
    void *mem;
    void *host; /* pinned: the codes of a table, else NULL */
};

/* Routed experts of a layer and the shared one. As stored: E2M1 [n_experts][rows][cols/2] and UE8M0
 * [n_experts][rows][cols/32], [0] = w1, [1] = w3, [2] = w2. Packed: panels of w1 and w3 with their
 * rows in turn, and of w2; routed [n_experts]. */
typedef struct cuda_experts {
    int n_experts, hidden, inter;
    bool packed;
    const uint8_t *code[3], *scale[3];
    weight shared[3];
    const uint8_t *up, *down, *shared_up, *shared_down;
} cuda_experts;

/* Scratch in device memory, sized by reserve(). */
typedef struct cuda_scratch {
    int32_t *tile; /* [n_max_tiles] pairs (expert, token tile), then their number */
    int n_max_tiles;
    int32_t *slot, *first, *pos; /* experts: slots (row * k + i) by expert; [n_experts + 1]; place
                                  * of a slot */
    float *slot_weight;          /* of the listed slots */
    uint32_t *meet;              /* [2] where blocks of a launch meet (moe_few.cu) */
    uint16_t *query;             /* [n_rows][32][128] index queries (index.cu) */
    float *query_w;              /* [n_rows][32] */
    int32_t *query_n;            /* [n_rows] entries that get a score */
    int32_t *group;              /* [n_rows + 1][4] groups of rows (index.cu) */
    float *tops;                 /* [n_tops] best scores of tiles (select.cu) */
    size_t n_tops;
    float *part;                 /* sums of chunks (gemm.cu) */
    uint16_t *h;                 /* [slots + rows][inter]: inputs of w2, the shared expert's last */
    uint16_t *ye;                /* [slots + rows][hidden]: outputs of experts before the sum */
    float *z;                    /* [n_logit_rows][vocab]: filtered logits */
    void *sample_best;           /* where blocks of a row of logits meet (sample.cu) */
    uint32_t *sample_done;       /* [n_logit_rows], 0 between calls */
    uint8_t *stage, *stage_host; /* rows, adjustments and masks of sample; pinned on the host */
    size_t stage_bytes;
    cudaEvent_t staged; /* the stage may be written again */
} cuda_scratch;

/* A recorded step (graph.c). */
#define CUDA_GRAPHS    128
#define CUDA_GRAPH_KEY 64
typedef struct cuda_graph {
    uint8_t key[CUDA_GRAPH_KEY];
    size_t bytes; /* of the key; 0: none */
    cudaGraphExec_t exec;
    uint64_t n_launches, used_at;
    int n_seen;
} cuda_graph;

typedef struct cuda_impl {
    cudaStream_t stream;
    cudaError_t error; /* the first since the last finish */
    const char *where;
    kernel_counters count;
    enum { SPAN_NONE, SPAN_OPEN, SPAN_ENDED } span; /* of work (table.c) */
    cudaEvent_t begun, ended;
    bool no_graphs;
    cuda_graph graph[CUDA_GRAPHS], *recording;
    uint64_t graph_clock;
    int n_processors;
    void *encode;          /* cuTensorMapEncodeTiled */
    int max_keys;          /* of one attention row */
    struct loader *loader; /* while weights are loaded; else NULL */
    cuda_scratch s;
    void *mem; /* all scratch */
} cuda_impl;

/* Count a launch; keep its error. */
void cuda_launched(cuda_impl *c, const char *what);
void cuda_note(cuda_impl *c, cudaError_t e, const char *what);

/* The operations; see the headers of their families. */
void cuda_gather(cuda_impl *c, const gather_args *a);
void cuda_rope_rows(cuda_impl *c, const rope_rows_args *a);
void cuda_keep_rows(cuda_impl *c, const keep_rows_args *a);
void cuda_tables(cuda_impl *c, const tables_args *a);
void cuda_copy(cuda_impl *c, const kv_copy *copies, int n);
void cuda_engram_gather(cuda_impl *c, const engram_gather_args *a);
void cuda_engram_apply(cuda_impl *c, const engram_apply_args *a);
void cuda_hc(cuda_impl *c, const hc_args *a);
void cuda_tap(cuda_impl *c, const tap_args *a);
void cuda_quantize(cuda_impl *c, const quantize_args *a);
void cuda_linear(cuda_impl *c, const linear_args *a);
/* narrow.cu: for stored weights of few rows. */
bool cuda_is_narrow(const linear_args *a);
void cuda_narrow(cuda_impl *c, const linear_args *a);

size_t cuda_part_bytes(int n_processors);
void cuda_peak(cuda_impl *c, double *bytes, double *flops);

/* fn of hyper-connections, packed (hc.cu). */
bool cuda_can_pack_mix(int64_t rows, int64_t cols);
size_t cuda_mix_bytes(int64_t cols);
void cuda_pack_mix(cuda_impl *c, const float *fn, int64_t cols, void *out);

/* Packed weights (gemm.cuh, pack.cu). data2 of the same shape: rows in turn, 8 by 8; `rows` are
 * then those of both. */
bool cuda_can_pack(int64_t rows, int64_t cols);
bool cuda_scale_fits(int mode, uint8_t scale); /* the largest one of a matrix */
size_t cuda_packed_bytes(int mode, int64_t rows, int64_t cols);
void cuda_pack(cuda_impl *c, int mode, const void *data, const uint8_t *scale, const void *data2,
               const uint8_t *scale2, int64_t rows, int64_t cols, uint8_t *out);
void cuda_qkv(cuda_impl *c, const qkv_args *a);
void cuda_compress_pool(cuda_impl *c, const compress_pool_args *a);
void cuda_compress_store(cuda_impl *c, const compress_store_args *a);
void cuda_index_scores(cuda_impl *c, const index_scores_args *a);
void cuda_select(cuda_impl *c, const select_args *a);
void cuda_attention(cuda_impl *c, const attention_args *a);
void cuda_ring_commit(cuda_impl *c, const ring_commit_args *a);
void cuda_route(cuda_impl *c, const route_args *a);
void cuda_moe(cuda_impl *c, const experts_args *a);
/* moe_few.cu: a->route, slots by expert and sorted rows of packed experts; false: too many rows. */
bool cuda_route_few(cuda_impl *c, const experts_args *a, int n_tile);
void cuda_confidence(cuda_impl *c, const confidence_args *a);
void cuda_sample(cuda_impl *c, const sample_args *a);
size_t cuda_sample_bytes(int n_rows); /* of sample_best */
bool cuda_sample_stage(cuda_impl *c, const sample_row *row, int n, int vocab);
void cuda_logprobs(cuda_impl *c, const logprobs_args *a);

#ifdef __cplusplus
}
#endif
