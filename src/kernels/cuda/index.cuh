/* What scores and selection share: candidates by value, eligible entries of a row. */
#pragma once

#include "kernels/cuda/device.cuh"

/* A filter or output of candidates, by value; block 0: there is none. */
static inline candidates by_value(const candidates *c)
{
    candidates none = {};

    return c ? *c : none;
}

/* The e-th eligible entry of a row. Only the last candidate block can be ragged. */
static __device__ __forceinline__ uint32_t eligible_entry(const candidates &f, int64_t row,
                                                          uint32_t e)
{
    uint32_t block = (uint32_t)f.block;

    if (block == 0 || f.count[row] < 0)
        return e;
    return (uint32_t)f.ids[row * f.max_blocks + e / block] * block + e % block;
}

static __device__ __forceinline__ int64_t visible_of(const step &s, const kv_layout &l, int owner,
                                                     int64_t row)
{
    return (s.pos[row] + 1) / l.owner[owner].ratio;
}

static __device__ __forceinline__ int64_t eligible_of(const candidates &f, int64_t row,
                                                      int64_t visible)
{
    return index_eligible(visible, f.block ? &f : NULL, (int)row);
}

/* Whether a row's candidates are wanted and do not all fit. */
static __device__ __forceinline__ bool has_blocks(int64_t visible, int block, int max_blocks)
{
    return max_blocks > 0 && (visible + block - 1) / block > max_blocks;
}
