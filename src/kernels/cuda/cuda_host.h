/* The host side of the CUDA back end: errors, life, weights. C only. */
#pragma once

#include "base/status.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/kernels.h"

/* A failed CUDA call as a status; `what` was tried. */
di_code cuda_error(di_status *st, cudaError_t e, const char *what);

#define CU_TRY(call, what)                                                                         \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            rc = cuda_error(st, e_, what);                                                         \
            goto done;                                                                             \
        }                                                                                          \
    } while (0)

/* Make k->impl at the first need. Errors: NOMEM, DEVICE. */
di_code cuda_need_impl(kernels *k, di_status *st);

/* Recorded steps (graph.c). */
bool cuda_replay(kernels *k, const void *key, size_t bytes);
void cuda_recorded(kernels *k);
void cuda_forget_graphs(cuda_impl *c);

/* Pieces of one allocation begin at multiples of 256 bytes. */
static inline size_t cuda_aligned(size_t n)
{
    return (n + 255) / 256 * 256;
}

/* Weights (weights.c). */
di_code cuda_load_begin(kernels *k, const weight_reader *r, di_status *st);
di_code cuda_load_end(kernels *k, di_status *st);
di_code cuda_load(kernels *k, const weight_src *src, weight **out, di_status *st);
di_code cuda_load_experts(kernels *k, const experts_src *src, weight **out, di_status *st);
void cuda_unload(kernels *k, weight *w);
size_t cuda_weight_bytes(const kernels *k, const weight_src *src);
size_t cuda_experts_bytes(const kernels *k, const experts_src *src);
