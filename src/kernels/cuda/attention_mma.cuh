/* Shared memory of attention_mma.cu, and its first two warpgroups, which fill it. */
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/mma.cuh"

#define DIM      512
#define ROPE     64
#define HEADS    64
#define KEYS     64 /* of a tile */
#define MAX_KEYS 640
#define SLABS    (DIM / 64)
#define RING_ROW 528 /* bytes */
#define LATENT   288
#define KEY_SCALE                                                                                  \
    256.0f          /* keys lie in shared memory at 1/256 of their values: one multiplication      \
                     * less for each */
#define FILLERS 256 /* threads of the first two warpgroups */

#define ROWS_AHEAD 4 /* before which nobody reads what belongs to a row any more; 3 suffice */

/* Every matrix lies in slabs of 64 columns, rows of 128 bytes in 128-byte swizzle. Dims are in an
 * order that suits decoding and the output alike: of each 32, column 8 j + 2 t + e is dim
 * 8 t + j + 4 e. */
typedef struct attention_smem {
    bf16 q[SLABS][HEADS][64];
    bf16 key[2][SLABS][KEYS][64];
    bf16 p[2][HEADS][KEYS];
    float ref[2][HEADS];    /* what the probabilities of a tile are relative to, log2 */
    float sum[2][2][HEADS]; /* of a row of the step, by warpgroup */
    const uint8_t *row[2][MAX_KEYS];
    key_list list[2];                  /* of this row of the step and of the next */
    float sink[HEADS];                 /* log2 */
    float2 turn[ROWS_AHEAD][ROPE / 2]; /* cos and sin of the row; it is read when the row ends */
    int n_keys, next_seq;
    uint64_t full[2], p_full[2], q_full, q_empty;
    uint64_t empty[2][2]; /* halves of a tile's keys: each is filled by a warpgroup */
} attention_smem;

/* Nearest even. */
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    uint32_t r;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* threadIdx.x, anew: what follows from it is not kept in registers meanwhile. */
static __device__ __forceinline__ uint32_t thread_anew()
{
    uint32_t t;

    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

static __device__ __forceinline__ void arrive_warp(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(barrier);
}

/* ---- which rows of state ---- */

#define SCOUT_PARTS 4
#define MY_KEYS     ((MAX_KEYS + FILLERS - 1) / FILLERS) /* of a row of the step, by a thread */

static __device__ __forceinline__ void fillers_meet()
{
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

/* Addresses of this thread's keys; smem->row has the entries of compressed ones. As key_row, but
 * all loads at once, and with 32-bit divisions. */
static __device__ __forceinline__ void find_rows(const attention_args &a, const kv_layout &l,
                                                 const key_list &k, int slot, attention_smem *smem)
{
    uint32_t thread = thread_anew();
    const kv_owner &o = l.owner[a.owner > 0 ? a.owner : 0];
    uint32_t per_block = KV_BLOCK_TOKENS / (uint32_t)o.ratio;
    int block[MY_KEYS], rest[MY_KEYS];

#pragma unroll
    for (int i = 0; i < MY_KEYS; i++) {
        int t = (int)thread + i * FILLERS;
        uint32_t entry = 0;

        if (t >= k.n_window && t < k.n)
            entry = *(const uint32_t *)&smem->row[slot][t];
        block[i] = (int)(entry / per_block);
        rest[i] = (int)(entry % per_block);
        if (t >= k.n_window && t < k.n)
            block[i] = k.table[block[i]];
    }
#pragma unroll
    for (int i = 0; i < MY_KEYS; i++) {
        int t = (int)thread + i * FILLERS;

        if (t < k.n_window)
            smem->row[slot][t] = key_row(a, l, k, t);
        else if (t < k.n)
            smem->row[slot][t] = k.blocks + (size_t)block[i] * l.block_bytes + o.latent_off +
                                 (size_t)rest[i] * LATENT;
        else if (t < MAX_KEYS) /* something that may be read */
            smem->row[slot][t] = (const uint8_t *)a.q;
    }
}

/* One of four steps towards smem->row of row `item`, the count-th of this block: each waits for
 * memory once, so they stand between tiles of the row before. */
static __device__ void scout(const attention_args &a, const step &st, const kv_layout &l,
                             int64_t item, int count, int part, attention_smem *smem)
{
    int slot = count % 2;
    const key_list &k = smem->list[slot];

    int found[MY_KEYS];
    uint32_t thread = thread_anew();

    if (part == 0) {
        const uint8_t *q = (const uint8_t *)a.q + item * a.n_heads * DIM * 2;

        for (int i = (int)thread; i < a.n_heads * DIM / 64; i += FILLERS)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(q + i * 128));
        if (thread == 0)
            smem->next_seq = st.seq[item];
    } else if (part == 1) {
        if (thread == 0)
            smem->list[slot] = keys_of(a, st, l, item, smem->next_seq);
        fillers_meet();
    } else if (part == 2) {
        float2 turn = {};

        if (thread < ROPE / 2)
            turn = ((const float2 *)a.cs)[item * (ROPE / 2) + thread];
#pragma unroll
        for (int i = 0; i < MY_KEYS; i++) {
            int t = (int)thread + i * FILLERS;

            found[i] = t >= k.n_window && t < k.n ? k.sel[t - k.n_window] : 0;
        }
#pragma unroll
        for (int i = 0; i < MY_KEYS; i++)
            if ((int)thread + i * FILLERS < MAX_KEYS)
                *(int *)&smem->row[slot][thread + i * FILLERS] = found[i];
        if (thread < ROPE / 2)
            smem->turn[count % ROWS_AHEAD][thread] = turn;
    } else {
        find_rows(a, l, k, slot, smem);
        fillers_meet();
    }
}

/* ---- decoding ---- */

static __device__ __forceinline__ uint32_t pair_of(uint32_t a, uint32_t b, int select)
{
    return __byte_perm(a, b, select);
}

/* Eight E2M1 codes, the first in the low nibble: pairs (j, j + 4) of values times 2^-126, times s.
 */
static __device__ __forceinline__ void decode_codes(uint32_t *out, uint32_t w, uint32_t s)
{
    uint32_t high = w >> 8;

    /* x 0x1040 puts a nibble's sign into bit 15 and the others into bits 8 to 6. */
    out[0] = mul_bf16x2((w & 0x000F000Fu) * 0x1040u & 0x81C081C0u, s);
    out[1] = mul_bf16x2((w & 0x00F000F0u) * 0x104u & 0x81C081C0u, s);
    out[2] = mul_bf16x2((high & 0x000F000Fu) * 0x1040u & 0x81C081C0u, s);
    out[3] = mul_bf16x2((high & 0x00F000F0u) * 0x104u & 0x81C081C0u, s);
}

/* Chunk j of a unit whose first one lies at `unit`, a shared address: of a swizzled row of 128
 * bytes. */
static __device__ __forceinline__ void put_chunk(uint32_t unit, int j, uint32_t a, uint32_t b,
                                                 uint32_t c, uint32_t d)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(unit ^ (uint32_t)(j * 16)),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

static __device__ __forceinline__ uint4 get_chunk(uint32_t unit, int j)
{
    uint4 v;

    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(unit ^ (uint32_t)(j * 16)));
    return v;
}

/* 32 dims of a latent row; scales: two E4M3 codes. */
static __device__ __forceinline__ void decode_latent(uint32_t unit, const uint4 &code,
                                                     uint32_t scales)
{
    uint32_t s = (scales & 0xFFu) << 4 | (scales & 0xFF00u) << 12, low, high;
    uint32_t x[4], y[4], z[4], w[4];

    /* 2^-120 of the scales, and 2^-126 of the values, and 1 / KEY_SCALE: 2^238, in two steps */
    s = mul_bf16x2(mul_bf16x2(s, both(BF16_2_POW(119))), both(BF16_2_POW(119)));
    low = pair_of(s, 0, 0x1010);
    high = pair_of(s, 0, 0x3232);
    decode_codes(x, code.x, low);
    decode_codes(y, code.y, low);
    decode_codes(z, code.z, high);
    decode_codes(w, code.w, high);
#pragma unroll
    for (int j = 0; j < 4; j++)
        put_chunk(unit, j, x[j], y[j], z[j], w[j]);
}

/* 32 dims of a ring row; scale: UE8M0. */
static __device__ __forceinline__ void decode_ring(uint32_t unit, const uint4 &c0, const uint4 &c1,
                                                   uint32_t scale)
{
    const uint32_t low[4] = {c0.x, c0.z, c1.x, c1.z}, high[4] = {c0.y, c0.w, c1.y, c1.w};
    uint32_t s = both((bf16)(f32_bits(ue8m0((uint8_t)scale)) >> 16)), x[4];

#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int t = 0; t < 4; t++) {
            uint32_t v = __byte_perm(low[t], high[t], 0x4000 | j << 12 | j << 4);

            v = (v & 0x80008000u) | (v & 0x7F007F00u) >> 4;
            x[t] = mul_bf16x2(mul_bf16x2(v, both(BF16_2_POW(112))), s);
        }
        put_chunk(unit, j, x[0], x[1], x[2], x[3]);
    }
}

/* ---- tiles of keys ---- */

#define MY_ROWS 4 /* of a tile, by a thread */

/* 32 dims of a thread's rows as they are stored. Rows of the ring take two words each, so tiles
 * with such rows take two rounds. */
typedef struct raw_rows {
    uint4 code[MY_ROWS];
    uint32_t scale[MY_ROWS];
} raw_rows;

/* The tile of keys from `first` on, of n. */
typedef struct tile_at {
    int first, n, n_window;
} tile_at;

static __device__ __forceinline__ bool has_ring(const tile_at &at)
{
    return at.first < at.n_window;
}

static __device__ __forceinline__ uint4 load16(const uint8_t *p)
{
    return __ldg((const uint4 *)p);
}

/* A thread's share of every tile: rows 8 i + thread % 8 of one half, and of these 32 dims. */
typedef struct tile_share {
    uint32_t unit, row;
    uint32_t to; /* shared address in the first buffer */
} tile_share;

static __device__ __forceinline__ tile_share share_of(uint32_t thread, const attention_smem *smem)
{
    uint32_t unit = thread / 32 % 4 * 4 + thread % 32 / 8, row8 = thread % 8;
    uint32_t row = thread / 128 * (8 * MY_ROWS) + row8;

    return {unit, row, shared_of(smem->key[0][unit / 2][row]) + (unit % 2 * 4 ^ row8) * 16};
}

static __device__ __forceinline__ const uint8_t *row_at(uint32_t rows, int i)
{
    uint64_t p;

    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(p) : "r"(rows + i * 64));
    return (const uint8_t *)p;
}

static __device__ __forceinline__ void load_latent(raw_rows &x, int i, const uint8_t *row,
                                                   uint32_t unit)
{
    x.code[i] = load16(row + unit * 16);
    x.scale[i] = __ldg((const uint16_t *)(row + DIM / 2 + unit * 2));
}

/* What of a thread's rows a round takes: all, or with rows of the ring in the tile half of them.
 * rows: shared address of where they lie. */
static __device__ __forceinline__ void load_round(raw_rows &x, const tile_at &at, int round,
                                                  uint32_t rows, const tile_share &my)
{
    int key = at.first + (int)my.row + round * (8 * MY_ROWS / 2);

    rows += (uint32_t)key * 8;
    if (has_ring(at)) {
#pragma unroll
        for (int i = 0; i < MY_ROWS / 2; i++) {
            const uint8_t *row = row_at(rows, i);

            if (key + 8 * i < at.n_window) {
                x.code[2 * i] = load16(row + my.unit * 32);
                x.code[2 * i + 1] = load16(row + my.unit * 32 + 16);
                x.scale[2 * i] = __ldg(row + DIM + my.unit);
            } else {
                load_latent(x, 2 * i, row, my.unit);
            }
        }
    } else {
        const uint8_t *row[MY_ROWS];

#pragma unroll
        for (int i = 0; i < MY_ROWS; i++)
            row[i] = row_at(rows, i);
#pragma unroll
        for (int i = 0; i < MY_ROWS; i++)
            load_latent(x, i, row[i], my.unit);
    }
}

/* Absent keys get a scale of 0. */
static __device__ __forceinline__ void decode_round(const raw_rows &x, const tile_at &at, int round,
                                                    int buffer, const tile_share &my)
{
    uint32_t to = my.to + (uint32_t)buffer * sizeof((attention_smem *)0)->key[0];

    int key = at.first + (int)my.row + round * (8 * MY_ROWS / 2);

    if (has_ring(at)) {
        to += (uint32_t)round * (1024 * MY_ROWS / 2);
#pragma unroll
        for (int i = 0; i < MY_ROWS / 2; i++)
            if (key + 8 * i < at.n_window)
                decode_ring(to + i * 1024, x.code[2 * i], x.code[2 * i + 1], x.scale[2 * i]);
            else
                decode_latent(to + i * 1024, x.code[2 * i],
                              key + 8 * i < at.n ? x.scale[2 * i] : 0);
        return;
    }
#pragma unroll
    for (int i = 0; i < MY_ROWS; i++)
        decode_latent(to + i * 1024, x.code[i], key + 8 * i < at.n ? x.scale[i] : 0);
}

/* ---- queries ---- */

/* Turn the pairs of 32 dims, the words of four chunks. */
static __device__ __forceinline__ void rotate_unit(uint4 (&v)[4], const float2 *turns)
{
    uint32_t *w = (uint32_t *)v;

#pragma unroll
    for (int i = 0; i < 16; i++) {
        float2 turn = turns[i];
        float x = from_bf((bf16)w[i]), y = from_bf((bf16)(w[i] >> 16));

        w[i] = pack_bf16(x * turn.x - y * turn.y, x * turn.y + y * turn.x);
    }
}

/* A warp has eight heads; of these its lanes take the units 4 i + quarter, i = 0 .. 3, where
 * everything but a lane's first address is known beforehand. The first chunk of its unit 0. */
#define UNIT_ROUNDS (DIM / 32 / 4)

static __device__ __forceinline__ uint32_t query_at(uint32_t thread, uint32_t unit, uint32_t chunk,
                                                    const attention_smem *smem)
{
    return shared_of(smem->q[unit / 2][thread / 32 * 8 + thread % 8]) +
           ((unit % 2 * 4 + chunk) ^ thread % 8) * 16;
}

/* As they are; order_queries must follow. */
static __device__ __forceinline__ void copy_queries(const attention_args &a, int64_t item,
                                                    attention_smem *smem)
{
    uint32_t thread = thread_anew(), chunk = thread % 32 / 8, head = thread / 32 * 8 + thread % 8;
    uint32_t to = query_at(thread, 0, chunk, smem);
    int bytes = (int)head < a.n_heads ? 16 : 0; /* else zeros */
    const uint8_t *from = (const uint8_t *)a.q + item * a.n_heads * DIM * 2 +
                          (bytes ? head * (DIM * 2) + chunk * 16 : 0);

#pragma unroll
    for (int unit = 0; unit < DIM / 32; unit++)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         (to ^ (uint32_t)(unit % 2 * 64)) + unit / 2 * (HEADS * 128)),
                     "l"(from + unit * 64), "r"(bytes)
                     : "memory");
}

/* The order of dims in shared memory, where they lie; rope turned. Warps have what they copied. */
static __device__ __forceinline__ void order_queries(const float2 *turns, attention_smem *smem)
{
    uint32_t thread = thread_anew(), quarter = thread % 32 / 8;
    uint32_t at = query_at(thread, quarter, 0, smem);

    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
#pragma unroll
    for (int i = 0; i < UNIT_ROUNDS; i++, at += 2 * HEADS * 128) {
        uint4 v[4];

#pragma unroll
        for (int t = 0; t < 4; t++)
            v[t] = get_chunk(at, t);
        if (i == UNIT_ROUNDS - 1 && quarter >= 4 - ROPE / 32)
            rotate_unit(v, turns + (quarter - (4 - ROPE / 32)) * 16);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int select = j % 2 ? 0x7632 : 0x5410;

            if (j < 2)
                put_chunk(at, j, pair_of(v[0].x, v[0].z, select), pair_of(v[1].x, v[1].z, select),
                          pair_of(v[2].x, v[2].z, select), pair_of(v[3].x, v[3].z, select));
            else
                put_chunk(at, j, pair_of(v[0].y, v[0].w, select), pair_of(v[1].y, v[1].w, select),
                          pair_of(v[2].y, v[2].w, select), pair_of(v[3].y, v[3].w, select));
        }
    }
}

/* ---- the warpgroups ---- */

static __device__ __forceinline__ void announce(uint64_t *barrier)
{
    fence_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(barrier);
}

/* The tiles of this block's rows, one after the other. What a round needs is loaded when the round
 * before has been decoded, and while it is on its way the next row is looked for. */
static __device__ void fill(const attention_args &a, const step &st, const kv_layout &l,
                            attention_smem *smem)
{
    int count = -1, part = 0, use = 0; /* use: bit 0 is the buffer, bits 1 and 2 their phases */
    int item = (int)blockIdx.x - (int)gridDim.x;
    tile_at at = {};
    raw_rows x;

    for (int round = 0;;) {
        bool done = round == 0 && at.first >= at.n, begin = done && part == SCOUT_PARTS, end;

        if (done && item + (int)gridDim.x >= st.n_rows)
            break;
        if (begin) {
            item += (int)gridDim.x;
            count++;
            part = 0;
            at = {0, smem->list[count % 2].n, smem->list[count % 2].n_window};
            use &= 6;
        }
        if (!done || begin)
            load_round(x, at, round, shared_of(smem->row[count % 2]),
                       share_of(thread_anew(), smem));
        if (part < SCOUT_PARTS && round == 0 && item + (int)gridDim.x < st.n_rows)
            scout(a, st, l, item + (int)gridDim.x, count + 1, part++, smem);
        if (done && !begin)
            continue;
        if (begin) {
            barrier_wait(&smem->q_empty, (count & 1) ^ 1);
            if (threadIdx.x == 0)
                smem->n_keys = at.n;
            copy_queries(a, item, smem);
        }
        end = !has_ring(at) || round == 1;
        if (at.n > 0) {
            if (round == 0)
                barrier_wait(&smem->empty[use & 1][thread_anew() / 128],
                             (use >> (1 + (use & 1)) & 1) ^ 1);
            decode_round(x, at, round, use & 1, share_of(thread_anew(), smem));
            if (end) {
                announce(&smem->full[use & 1]);
                use ^= 2 << (use & 1);
            }
        }
        if (begin) {
            order_queries(smem->turn[count % ROWS_AHEAD], smem);
            announce(&smem->q_full);
        }
        round = !end;
        if (end) {
            at.first += KEYS;
            use ^= 1;
        }
    }
}
