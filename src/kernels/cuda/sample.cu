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

/* Logits with adjustments, mask and temperature. */
static __device__ void prepare(const sample_row &r, const float *logits, int32_t n, float *z)
{
    for (int32_t t = threadIdx.x; t < n; t += THREADS)
        z[t] = logits[t];
    __syncthreads();
    for (int32_t i = threadIdx.x; i < r.n_adjust; i += THREADS) {
        logit_adjust adj = r.adjust[i];
        float l = z[adj.id];

        z[adj.id] = (l > 0 ? l / adj.rep : l * adj.rep) + adj.add;
    }
    __syncthreads();
    for (int32_t t = threadIdx.x; t < n; t += THREADS) {
        if (r.mask && !(r.mask[t / 32] >> (t % 32) & 1u))
            z[t] = -INFINITY;
        else if (r.temperature > 0)
            z[t] = z[t] / r.temperature;
    }
    __syncthreads();
}

static __global__ void sample_kernel(const sample_row *rows, const float *logits, int32_t vocab,
                                     float *scratch, int32_t *token)
{
    after_previous();

    sample_row r = rows[blockIdx.x];
    float *z = scratch + (int64_t)blockIdx.x * vocab, top;
    uint64_t best;

    prepare(r, logits + (int64_t)blockIdx.x * vocab, vocab, z);
    best = arg_max(z, vocab);
    if (best && r.temperature > 0) {
        top = z[id_of(best)];
        __syncthreads(); /* everybody has it before anybody changes z */
        keep_top_k(z, vocab, r.top_k);
        if (r.top_p < 1)
            keep_top_p(z, vocab, r.top_p, top);
        for (int32_t t = threadIdx.x; t < vocab; t += THREADS) {
            if (r.min_p > 0 && exp((double)z[t] - (double)top) < (double)r.min_p)
                z[t] = -INFINITY;
            if (z[t] > -INFINITY)
                z[t] += noise_gumbel(r.seed, r.choice, r.position, (uint32_t)t);
        }
        __syncthreads();
        best = arg_max(z, vocab);
    }
    if (threadIdx.x == 0)
        token[blockIdx.x] = best ? id_of(best) : -1;
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

/* Rows with what they point at, as many as the stage has room for: at least one. */
static int stage_rows(cuda_impl *c, const sample_args *a, int first)
{
    cuda_scratch *s = &c->s;
    size_t bytes = 0, at;
    int n = 0;

    for (; first + n < a->n; n++) {
        bytes += row_bytes(&a->row[first + n], a->vocab);
        if (bytes > s->stage_bytes)
            break;
    }
    cuda_note(c, cudaEventSynchronize(s->staged), "sample");
    at = (size_t)n * sizeof(sample_row);
    for (int i = 0; i < n; i++) {
        sample_row r = a->row[first + i];

        if (r.n_adjust > 0)
            r.adjust =
                (const logit_adjust *)put(s, &at, r.adjust, (size_t)r.n_adjust * sizeof *r.adjust);
        if (r.mask)
            r.mask = (const uint32_t *)put(s, &at, r.mask, ((size_t)a->vocab + 31) / 32 * 4);
        memcpy(s->stage_host + (size_t)i * sizeof r, &r, sizeof r);
    }
    cuda_note(c, cudaMemcpyAsync(s->stage, s->stage_host, at, cudaMemcpyHostToDevice, c->stream),
              "sample");
    cuda_note(c, cudaEventRecord(s->staged, c->stream), "sample");
    return n;
}

void cuda_sample(cuda_impl *c, const sample_args *a)
{
    for (int first = 0, n; first < a->n; first += n) {
        n = stage_rows(c, a, first);
        if (n == 0) { /* more than reserve() was told of */
            cuda_note(c, cudaErrorInvalidValue, "sample");
            return;
        }
        launch(c, "sample", sample_kernel, n, THREADS, 0, (const sample_row *)c->s.stage,
               a->logits + (int64_t)first * a->vocab, a->vocab, c->s.z, a->token + first);
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
