/* Sampling and log-probabilities (kernels/sample.h): one block per row of logits. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/order.cuh"

#include <string.h>

#include "kernels/noise.h"

/* A value and its place as one integer: larger value first, of equals the lower id. 0: none. */
static __device__ __forceinline__ uint64_t ranked(float z, uint32_t id)
{
    return (uint64_t)order_key(z) << 32 | (0xFFFFFFFFu - id);
}

static __device__ __forceinline__ int32_t id_of(uint64_t r)
{
    return (int32_t)(0xFFFFFFFFu - (uint32_t)r);
}

static __device__ uint64_t block_max(uint64_t x)
{
    __shared__ uint64_t part[WARPS];

    for (int d = 16; d > 0; d /= 2) {
        uint64_t other = __shfl_xor_sync(ALL, x, d);

        x = x > other ? x : other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    x = part[0];
    for (int i = 1; i < WARPS; i++)
        x = x > part[i] ? x : part[i];
    return x;
}

/* The largest entry above -inf; 0 when there is none. */
static __device__ uint64_t arg_max(const float *z, int32_t n)
{
    uint64_t best = 0;

    for (int32_t t = threadIdx.x; t < n; t += THREADS)
        if (z[t] > -INFINITY && ranked(z[t], (uint32_t)t) > best)
            best = ranked(z[t], (uint32_t)t);
    return block_max(best);
}

/* Keep what lies above `cut`, and of those equal to it the first `ties`. */
static __device__ void keep_above(float *z, int32_t n, uint32_t cut, int64_t ties)
{
    int64_t equal = 0;

    for (int32_t t0 = 0; t0 < n; t0 += THREADS) {
        int32_t t = t0 + (int32_t)threadIdx.x;
        uint32_t key = t < n ? order_key(z[t]) : 0;
        bool tie = t < n && key == cut;
        int64_t nth = place(tie, &equal);

        if (t < n && (key < cut || (tie && nth >= ties)))
            z[t] = -INFINITY;
    }
    __syncthreads();
}

static __device__ void keep_top_k(float *z, int32_t n, int32_t k)
{
    int64_t above;
    uint32_t cut;

    if (k <= 0 || k >= n)
        return;
    cut = kth_largest([&](int64_t i) { return z[i]; }, n, k, &above);
    keep_above(z, n, cut, k - above);
}

/* exp(z - top) in units of 2^-40: integers, so that sums do not depend on their order. */
static __device__ __forceinline__ unsigned long long mass_of(float z, float top)
{
    return z > -INFINITY ? (unsigned long long)(exp((double)z - (double)top) * 0x1p40) : 0;
}

/* Keep the shortest prefix, in order of falling probability, whose sum reaches p of the total. The
 * value at its end is found byte by byte, as in kth_largest, over masses instead of counts. */
static __device__ void keep_top_p(float *z, int32_t n, float p, float top)
{
    __shared__ unsigned long long mass[256];
    __shared__ uint32_t prefix;
    __shared__ unsigned long long above, one;
    __shared__ double need;

    if (threadIdx.x == 0) {
        prefix = 0;
        above = 0;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t mask = shift == 24 ? 0 : 0xFFFFFFFFu << (shift + 8), before;

        mass[threadIdx.x] = 0;
        __syncthreads();
        before = prefix;
        for (int32_t t = threadIdx.x; t < n; t += THREADS) {
            uint32_t key = order_key(z[t]);

            if ((key & mask) == before)
                atomicAdd(&mass[key >> shift & 255u], mass_of(z[t], top));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t digit = 255;

            if (shift == 24) {
                unsigned long long total = 0;

                for (int i = 0; i < 256; i++)
                    total += mass[i];
                need = (double)p * (double)total;
            }
            while (digit > 0 && (double)(above + mass[digit]) < need)
                above += mass[digit--];
            prefix |= digit << shift;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        uint32_t cut = prefix & 0x80000000u ? prefix & 0x7FFFFFFFu : ~prefix;

        one = mass_of(__uint_as_float(cut), top);
    }
    __syncthreads();
    keep_above(z, n, prefix,
               one > 0 ? (int64_t)ceil((need - (double)above) / (double)one) : (int64_t)n);
}

/* A row is cut into parts of whole cache lines, a block each. */
#define PARTS 32

static __host__ __device__ int32_t part_of(int32_t vocab)
{
    return (vocab + PARTS * 32 - 1) / (PARTS * 32) * 32;
}

/* Adjust the logits first .. end-1 of a row, which lie in z. Entries ascend. */
static __device__ void adjust(const sample_row &r, int32_t first, int32_t end, float *z)
{
    int32_t lo = 0, hi = r.n_adjust;

    while (lo < hi) { /* the first entry of the part */
        int32_t mid = (lo + hi) / 2;

        if (r.adjust[mid].id < first)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (int32_t i = lo + (int32_t)threadIdx.x; i < r.n_adjust && r.adjust[i].id < end;
         i += THREADS) {
        logit_adjust adj = r.adjust[i];
        float l = z[adj.id - first];

        z[adj.id - first] = (l > 0 ? l / adj.rep : l * adj.rep) + adj.add;
    }
}

static __device__ __forceinline__ bool has_filter(const sample_row &r)
{
    return r.temperature > 0 && (r.top_k > 0 || r.top_p < 1 || r.min_p > 0);
}

/* The best entry of a part of a row, behind adjustments, mask, temperature and, for a row without
 * filters, noise. With filters the part is written to z [vocab]. */
static __device__ uint64_t best_of_part(const sample_row &r, int64_t position, const float *logits,
                                        int32_t vocab, float *z)
{
    extern __shared__ float own[];
    int32_t size = part_of(vocab), first = (int32_t)blockIdx.x * size;
    int32_t end = first + size < vocab ? first + size : vocab;
    bool filter = has_filter(r);
    uint64_t best = 0;

    for (int32_t t = first + (int32_t)threadIdx.x; t < end; t += THREADS)
        own[t - first] = logits[t];
    __syncthreads();
    adjust(r, first, end, own);
    __syncthreads();
    for (int32_t t = first + (int32_t)threadIdx.x; t < end; t += THREADS) {
        float x = own[t - first];

        if (r.mask && !(r.mask[t / 32] >> (t % 32) & 1u))
            x = -INFINITY;
        else if (r.temperature > 0)
            x = x / r.temperature;
        if (filter)
            z[t] = x;
        else if (r.temperature > 0 && x > -INFINITY)
            x += noise_gumbel(r.seed, r.choice, position, (uint32_t)t);
        if (x > -INFINITY && ranked(x, (uint32_t)t) > best)
            best = ranked(x, (uint32_t)t);
    }
    return block_max(best);
}

/* The best entry of a row behind its filters and noise; `top` is the largest of z. */
static __device__ uint64_t best_filtered(const sample_row &r, int64_t position, int32_t vocab,
                                         float top, float *z)
{
    keep_top_k(z, vocab, r.top_k);
    if (r.top_p < 1)
        keep_top_p(z, vocab, r.top_p, top);
    for (int32_t t = threadIdx.x; t < vocab; t += THREADS) {
        if (r.min_p > 0 && exp((double)z[t] - (double)top) < (double)r.min_p)
            z[t] = -INFINITY;
        if (z[t] > -INFINITY)
            z[t] += noise_gumbel(r.seed, r.choice, position, (uint32_t)t);
    }
    __syncthreads();
    return arg_max(z, vocab);
}

/* Is this block the last one of its row to come here? What the others wrote can be seen then. */
static __device__ bool is_last(uint32_t *done)
{
    __shared__ bool last;

    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicInc(done, PARTS - 1) == PARTS - 1; /* back to 0 for the next call */
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* Where blocks of a row meet: its best entry per part, and how many parts are done. */
typedef struct sample_meet {
    uint64_t *best; /* [rows][PARTS] */
    uint32_t *done; /* [rows]; 0 between calls */
} sample_meet;

/* Block (part, row). */
static __global__ void sample_kernel(const sample_row *rows, int64_t ahead, const float *logits,
                                     int32_t vocab, float *scratch, sample_meet meet,
                                     int32_t *token)
{
    after_previous();

    int64_t row = blockIdx.y;
    sample_row r = rows[row];
    float *z = scratch + row * vocab;
    uint64_t best = best_of_part(r, r.position + ahead, logits + row * vocab, vocab, z);

    if (threadIdx.x == 0)
        meet.best[row * PARTS + blockIdx.x] = best;
    if (!is_last(&meet.done[row]))
        return;
    best = block_max(threadIdx.x < PARTS ? __ldcg(&meet.best[row * PARTS + threadIdx.x]) : 0);
    if (best && has_filter(r)) {
        float top = z[id_of(best)];

        __syncthreads(); /* everybody has it before anybody changes z */
        best = best_filtered(r, r.position + ahead, vocab, top, z);
    }
    if (threadIdx.x == 0)
        token[row] = best ? id_of(best) : -1;
}

size_t cuda_sample_bytes(int n_rows)
{
    return (size_t)n_rows * PARTS * sizeof(uint64_t);
}

static size_t align8(size_t n)
{
    return (n + 7) / 8 * 8;
}

static size_t mask_bytes(const sample_row *r, int vocab)
{
    return r->mask ? align8(((size_t)vocab + 31) / 32 * 4) : 0;
}

static size_t row_bytes(const sample_row *r, int vocab)
{
    return sizeof *r + align8((size_t)r->n_adjust * sizeof *r->adjust) + mask_bytes(r, vocab);
}

/* Copy `bytes` into the stage at *at; their address on the device. */
static const void *put(cuda_scratch *s, size_t *at, const void *from, size_t bytes)
{
    const void *device = s->stage + *at;

    memcpy(s->stage_host + *at, from, bytes);
    *at += align8(bytes);
    return device;
}

/* How many of the rows, with what they point at, the stage has room for. */
static int rows_that_fit(const cuda_scratch *s, const sample_row *row, int n, int vocab)
{
    size_t bytes = 0;
    int fit = 0;

    for (; fit < n; fit++) {
        bytes += row_bytes(&row[fit], vocab);
        if (bytes > s->stage_bytes)
            break;
    }
    return fit;
}

/* Rows with what they point at go to the device. */
static void stage_rows(cuda_impl *c, const sample_row *row, int n, int vocab)
{
    cuda_scratch *s = &c->s;
    size_t at = (size_t)n * sizeof *row;

    cuda_note(c, cudaEventSynchronize(s->staged), "sample");
    for (int i = 0; i < n; i++) {
        sample_row r = row[i];

        if (r.n_adjust > 0)
            r.adjust =
                (const logit_adjust *)put(s, &at, r.adjust, (size_t)r.n_adjust * sizeof *r.adjust);
        if (r.mask)
            r.mask = (const uint32_t *)put(s, &at, r.mask, ((size_t)vocab + 31) / 32 * 4);
        memcpy(s->stage_host + (size_t)i * sizeof r, &r, sizeof r);
    }
    cuda_note(c, cudaMemcpyAsync(s->stage, s->stage_host, at, cudaMemcpyHostToDevice, c->stream),
              "sample");
    cuda_note(c, cudaEventRecord(s->staged, c->stream), "sample");
}

bool cuda_sample_stage(cuda_impl *c, const sample_row *row, int n, int vocab)
{
    bool fit = rows_that_fit(&c->s, row, n, vocab) == n;

    if (fit)
        stage_rows(c, row, n, vocab);
    return fit;
}

/* The n staged rows, whose logits and tokens begin with row `first`. */
static void sample_staged(cuda_impl *c, const sample_args *a, int first, int n)
{
    sample_meet meet = {(uint64_t *)c->s.sample_best, c->s.sample_done};

    launch(c, "sample", sample_kernel, dim3(PARTS, (unsigned)n), THREADS,
           (size_t)part_of(a->vocab) * sizeof(float), (const sample_row *)c->s.stage, a->ahead,
           a->logits + (int64_t)first * a->vocab, a->vocab, c->s.z, meet, a->token + first);
}

void cuda_sample(cuda_impl *c, const sample_args *a)
{
    if (a->staged) {
        sample_staged(c, a, 0, a->n);
        return;
    }
    for (int first = 0, n; first < a->n; first += n) {
        n = rows_that_fit(&c->s, a->row + first, a->n - first, a->vocab);
        if (n == 0) { /* more than reserve() was told of */
            cuda_note(c, cudaErrorInvalidValue, "sample");
            return;
        }
        stage_rows(c, a->row + first, n, a->vocab);
        sample_staged(c, a, first, n);
    }
}

/* ---- log-probabilities ---- */

static __device__ double block_sum_double(double x)
{
    __shared__ double part[WARPS];
    double sum = 0;

    for (int d = 16; d > 0; d /= 2)
        x += __shfl_xor_sync(ALL, x, d);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        sum += part[i];
    return sum;
}

static __global__ void logprobs_kernel(logprobs_args a)
{
    after_previous();

    int64_t row = blockIdx.x;
    const float *logit = a.logits + row * a.vocab;
    int32_t token = a.token[row];
    uint64_t best = arg_max(logit, a.vocab), own = ranked(logit[token], (uint32_t)token);
    double top = best ? (double)logit[id_of(best)] : 0, sum = 0, log_total;
    float rank = 0; /* counts up to 2^24 are exact */

    for (int32_t t = threadIdx.x; t < a.vocab; t += THREADS) {
        sum += exp((double)logit[t] - top);
        rank += (float)(ranked(logit[t], (uint32_t)t) > own);
    }
    sum = block_sum_double(sum);
    rank = block_sum(rank);
    log_total = top + log(sum);
    if (threadIdx.x == 0) {
        a.logprob[row] = (float)((double)logit[token] - log_total);
        a.rank[row] = (int32_t)rank;
    }
    best = ~(uint64_t)0;
    for (int j = 0; j < a.n_top; j++) {
        uint64_t next = 0;

        for (int32_t t = threadIdx.x; t < a.vocab; t += THREADS) {
            uint64_t r = ranked(logit[t], (uint32_t)t);

            next = r < best && r > next ? r : next;
        }
        best = block_max(next);
        if (threadIdx.x == 0) {
            a.top_id[row * a.n_top + j] = id_of(best);
            a.top_logprob[row * a.n_top + j] = (float)((double)logit[id_of(best)] - log_total);
        }
    }
}

void cuda_logprobs(cuda_impl *c, const logprobs_args *a)
{
    launch(c, "logprobs", logprobs_kernel, a->n, THREADS, 0, *a);
}
