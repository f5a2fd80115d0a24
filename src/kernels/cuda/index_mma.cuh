/* Index scores on the matrix units: what the kernel for few rows and the one for groups of rows
 * share. Heads of 128 dims, up to 32 of them. */
#pragma once

#include "kernels/cuda/mma.cuh"

#define QUERY_DIM   128
#define QUERY_HEADS 32
#define TOGETHER    16 /* rows of a group, at most */
#define KEYS        64 /* of a tile */
#define KEY_WORDS   17 /* of a stored key; the last has the scales */

/* Consecutive rows of one sequence; the tiles of the groups before it. */
typedef struct row_group {
    int first, n, before, tiles;
} row_group;

typedef struct query_scratch {
    bf16 *q;    /* [rows][QUERY_HEADS][QUERY_DIM] behind rope and Q4i; missing heads are zero */
    float *w;   /* [rows][QUERY_HEADS] */
    int32_t *n; /* [rows] entries that get a score */
    row_group *group; /* [0]: how many (n) and all their tiles (before); the groups follow */
} query_scratch;

/* Keys of a sequence. Entries are counted in 32 bits. */
typedef struct key_table {
    const uint8_t *base;
    const int32_t *table;
    size_t block_bytes, key_bytes;
    uint32_t per_block;
} key_table;

static __device__ __forceinline__ key_table keys_of(const kv_layout &l, const kv_view *v, int owner)
{
    return {v->blocks + l.owner[owner].key_off, v->table, l.block_bytes, l.key_bytes,
            KV_BLOCK_TOKENS / (uint32_t)l.owner[owner].ratio};
}

/* Eight codes of a word to four registers: [2 * step + half] as query_place says. */
static __device__ __forceinline__ void decode_key(uint32_t (&out)[4], uint32_t w, uint32_t s)
{
    const uint32_t SIGN = 0x80008000u, REST = 0x01C001C0u; /* of bf16: 2^-126 times the value */
    uint32_t v[4] = {(w << 12 & SIGN) | (w << 6 & REST), (w << 8 & SIGN) | (w << 2 & REST),
                     (w << 4 & SIGN) | (w >> 2 & REST), (w & SIGN) | (w >> 6 & REST)};

#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = mul_bf16x2(mul_bf16x2(v[i], both(BF16_2_POW(126))), s);
}

/* The power of two of a scale in both halves. 2^-127, below all others, is subnormal in bf16. */
static __device__ __forceinline__ uint32_t scale_pair(uint32_t byte)
{
    return both(byte ? (bf16)(byte << 7) : (bf16)0x40);
}

/* Scores of the listed groups of rows (index_groups.cu). A tile of KEYS lies in one block of its
 * sequence. */
void cuda_score_groups(cuda_impl *c, const index_scores_args *a, const query_scratch *q);
