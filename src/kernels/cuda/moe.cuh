/* Routing of a row, which two kernels do. */
#pragma once

#include "kernels/cuda/device.cuh"

#define MAX_EXPERTS 1024
#define MAX_ACTIVE  64

static __device__ float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* A warp's row; `s` [n_experts] is its own shared memory. Each round takes the best score that is
 * left; ties: the lower id. */
static __device__ void route_row(const route_args &a, const float *bias, const float *bias_vl,
                                 int64_t row, float *s, int32_t *ids, float *weights)
{
    const float *logit = a.logits + row * a.n_experts;
    int lane = threadIdx.x % 32;
    float sum = 0;

    if (a.image && a.image[row] && bias_vl)
        bias = bias_vl;
    for (int e = lane; e < a.n_experts; e += 32)
        s[e] = sqrtf(softplus(logit[e])) + bias[e];
    __syncwarp();
    for (int i = 0; i < a.k; i++) {
        float top = -INFINITY, w;
        int id = a.n_experts;

        for (int e = lane; e < a.n_experts; e += 32)
            if (s[e] > top) {
                top = s[e];
                id = e;
            }
        for (int d = 16; d > 0; d /= 2) {
            float t = __shfl_xor_sync(ALL, top, d);
            int other = __shfl_xor_sync(ALL, id, d);

            if (t > top || (t == top && other < id)) {
                top = t;
                id = other;
            }
        }
        id = id < a.n_experts ? id : 0; /* no score is a number */
        w = sqrtf(softplus(logit[id]));
        sum += w;
        if (lane == 0) {
            s[id] = -INFINITY;
            ids[i] = id;
            weights[i] = w;
        }
        __syncwarp();
    }
    for (int i = lane; i < a.k; i += 32) {
        float *w = &weights[i];

        *w = (a.normalize && a.k > 1 ? *w / (sum + 1e-20f) : *w) * a.scale;
    }
}
