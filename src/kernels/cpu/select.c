/* The best entries of a row of scores, and the candidate blocks.
 *
 * The cut (the k-th largest score) is found in three steps: the maxima of disjoint groups of scores
 * give a lower bound that at least k scores reach; the scores that reach it, seldom more than twice
 * k, are packed together in index order; a radix search among them is exact. Where ties or a
 * hostile order let too many through, the radix search runs over the row itself. All ways give the
 * same. */
#include "kernels/cpu/rows.h"

#define CAP_SURVIVORS 32768
#define MAX_GROUPS    16384

typedef struct select_scratch {
    float *value;   /* [CAP_SURVIVORS + VF] */
    int32_t *index; /* the same */
    float *group;   /* [MAX_GROUPS] */
    float *block;   /* scores of blocks */
} select_scratch;

static select_scratch lay_out(uint8_t *at)
{
    float *value = (float *)(void *)at;
    int32_t *index = (int32_t *)(void *)(value + CAP_SURVIVORS + VF);
    float *group = (float *)(void *)(index + CAP_SURVIVORS + VF);

    return (select_scratch){
        .value = value, .index = index, .group = group, .block = group + MAX_GROUPS};
}

size_t CPU_FN(select_thread_bytes)(const kernel_limits *l)
{
    size_t blocks = l->cand_block > 0 ? (size_t)(l->context / l->cand_block) + 1 : 0;

    return (2 * (CAP_SURVIVORS + VF) + MAX_GROUPS + blocks + VF) * sizeof(float);
}

/* Unsigned integers in the order of the floats; both zeros get one value. */
static uint32_t order_key(float x)
{
    uint32_t u = f32_bits(x + 0.0f);

    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The k-th largest of x [n], 1 <= k <= n; *above = how many are larger. */
static float kth_largest(const float *x, int64_t n, int64_t k, int64_t *above)
{
    uint32_t prefix = 0;
    int64_t larger = 0;

    /* A byte of the answer per pass, highest first: count the keys that share the prefix so far by
     * their next byte, walk down from the largest. */
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t count[256] = {0}, digit = 255;
        uint32_t mask = shift == 24 ? 0 : 0xFFFFFFFFu << (shift + 8);

        for (int64_t i = 0; i < n; i++) {
            uint32_t key = order_key(x[i]);

            if ((key & mask) == prefix)
                count[key >> shift & 255u]++;
        }
        while (larger + count[digit] < k)
            larger += count[digit--];
        prefix |= digit << shift;
    }
    *above = larger;
    return f32_from_bits(prefix & 0x80000000u ? prefix & 0x7FFFFFFFu : ~prefix);
}

/* A bound that at least k of x [n] reach: the k-th largest maximum of `groups` groups, a group
 * being every groups-th score. */
static float lower_bound(const float *x, int64_t n, int64_t k, int groups, float *max)
{
    int64_t above;

    memcpy(max, x, (size_t)groups * sizeof *max);
    for (int64_t row = groups; row + groups <= n; row += groups)
        for (int g = 0; g < groups; g += VF)
            vf_store(max + g, vf_max(vf_load(max + g), vf_load(x + row + g)));
    return kth_largest(max, groups, k, &above);
}

/* Append the lanes of v in `mask` with their indices. */
static inline int64_t append(const select_scratch *s, int64_t n, vf v, int64_t at, uint32_t mask)
{
#if defined(CPU_AVX512)
    __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

    vf_store(s->value + n, _mm512_maskz_compress_ps((__mmask16)mask, v));
    vi_store(s->index + n,
             _mm512_maskz_compress_epi32((__mmask16)mask, vi_add(lanes, vi_set((int32_t)at))));
    return n + __builtin_popcount(mask);
#else
    float lane[VF];

    vf_store(lane, v);
    for (; mask; mask &= mask - 1, n++) {
        int l = __builtin_ctz(mask);

        s->value[n] = lane[l];
        s->index[n] = (int32_t)at + l;
    }
    return n;
#endif
}

/* The scores >= bound with their indices, ascending. -1 when there are too many. */
static int64_t survivors(const select_scratch *s, const float *x, int64_t n, float bound)
{
    int64_t count = 0, i = 0;
    vf limit = vf_set(bound);

    for (; i + VF <= n; i += VF) {
        vf v = vf_load(x + i);
        uint32_t mask = vf_ge(v, limit);

        if (!mask)
            continue;
        if (count > CAP_SURVIVORS - VF)
            return -1;
        count = append(s, count, v, i, mask);
    }
    for (; i < n; i++)
        if (x[i] >= bound) {
            if (count >= CAP_SURVIVORS)
                return -1;
            s->value[count] = x[i];
            s->index[count++] = (int32_t)i;
        }
    return count;
}

/* Indices of the entries above the cut, and of the first `ties` at it; index NULL: i itself. */
static int32_t take(const float *x, const int32_t *index, int64_t n, float cut, int64_t ties,
                    int32_t *out)
{
    int32_t count = 0;

    for (int64_t i = 0; i < n; i++) {
        bool tie = x[i] == cut && ties > 0;

        if (x[i] > cut || tie)
            out[count++] = index ? index[i] : (int32_t)i;
        ties -= tie;
    }
    return count;
}

/* Indices of the k best of x [n], ascending; of equals the lower ones. Returns how many. */
static int32_t best(const select_scratch *s, const float *x, int64_t n, int64_t k, int32_t *out)
{
    int64_t above, count = -1;
    int groups = VF;
    float cut;

    if (n <= k) {
        for (int32_t i = 0; i < n; i++)
            out[i] = i;
        return (int32_t)n;
    }
    while (groups < 2 * k)
        groups *= 2;
    if (groups <= MAX_GROUPS && n >= 4 * groups)
        count = survivors(s, x, n, lower_bound(x, n, k, groups, s->group));
    if (count < 0) {
        cut = kth_largest(x, n, k, &above);
        return take(x, NULL, n, cut, k - above, out);
    }
    cut = kth_largest(s->value, count, k, &above);
    return take(s->value, s->index, count, cut, k - above, out);
}

int32_t CPU_FN(select_best)(void *scratch, const float *x, int64_t n, int64_t k, int32_t *out)
{
    select_scratch s = lay_out(scratch);

    return best(&s, x, n, k, out);
}

/* Best score of each block of `block` entries, `visible` entries in all. */
static void block_maxima(float *max, const float *score, int64_t visible, int block)
{
    int64_t whole = visible / block;

    for (int64_t b = 0; b < whole; b++) {
        const float *x = score + b * block;

        if (block == 8) {
            __m256 v = _mm256_loadu_ps(x);
            __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

            m = _mm_max_ps(m, _mm_movehl_ps(m, m));
            max[b] = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
            continue;
        }
        max[b] = x[0];
        for (int i = 1; i < block; i++)
            max[b] = max_f32(max[b], x[i]);
    }
}

/* The blocks that later layers may look into: the newest and the best of the others. */
static void keep_blocks(const select_args *a, const select_scratch *s, int64_t i, int64_t visible)
{
    candidates *out = a->out;
    int64_t row = a->row0 + i, n = (visible + out->block - 1) / out->block;

    out->count[row] = -1;
    if (n <= out->max_blocks)
        return;
    block_maxima(s->block, a->scores + i * a->stride, visible, out->block);
    s->block[n - 1] = INFINITY; /* the newest entry's block, ragged or not */
    out->count[row] = best(s, s->block, n, out->max_blocks, out->ids + row * out->max_blocks);
}

static void select_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const select_args *a = job->args;
    const candidates *f = a->filter;
    select_scratch s = lay_out(cpu_thread_scratch(job->k, thread));
    int64_t begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t row = a->row0 + i;
        int64_t visible = (a->s->pos[row] + 1) / a->layout->owner[a->owner].ratio;
        int64_t eligible = index_eligible(visible, f, (int)row);
        int32_t *sel = a->sel + row * a->topk;

        if (a->out)
            keep_blocks(a, &s, i, visible);
        a->n_sel[row] = best(&s, a->scores + i * a->stride, eligible, a->topk, sel);
        if (f && f->count[row] >= 0)
            for (int t = 0; t < a->n_sel[row]; t++)
                sel[t] =
                    f->ids[row * f->max_blocks + sel[t] / f->block] * f->block + sel[t] % f->block;
    }
}

void CPU_FN(cpu_select)(kernels *k, const select_args *a)
{
    cpu_run_sized(k, select_job, a, a->n > 1 ? INT64_MAX : 0); /* a row is one thread's */
}
