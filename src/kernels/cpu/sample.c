/* Sampling and log-probabilities, a row per thread (kernels/sample.h).
 *
 * The token is the one that the scalar back end gives: logits over temperature by true division,
 * probabilities and their sums in double, noise bit for bit. What makes it fast: the cut of top-p
 * is searched by mass (no sort), and a token whose logit plus an upper bound of its noise cannot
 * reach the best so far needs no logarithm, or no hash at all. The filters end as one cut
 * in z; masked tokens are -inf. Arrays are padded to whole vectors with -inf. */
#include "kernels/cpu/sample_simd.h"

#include <float.h>

/* The largest noise is 22.88: u is at most 1 - 2^-33. */
#define NOISE_MAX 22.9f

typedef struct sample_scratch {
    void *select;
    float *z;         /* [vocab] adjusted logits / temperature */
    int32_t *id;      /* [vocab] their tokens behind top-k */
    double *mass;     /* [vocab] probabilities, the largest is 1 */
    int32_t *list[3]; /* [vocab] */
    float *w;         /* mass as f32, over list[2] */
} sample_scratch;

static size_t padded(int64_t n)
{
    return (size_t)(n + VF - 1) / VF * VF;
}

static sample_scratch lay_out(uint8_t *at, size_t select_bytes, int vocab)
{
    size_t n = padded(vocab) + VF;
    sample_scratch s = {.select = at};

    at += pad64(select_bytes);
    s.z = (float *)(void *)at;
    s.id = (int32_t *)(void *)(at + n * 4);
    s.mass = (double *)(void *)(at + n * 8);
    for (size_t i = 0; i < 3; i++)
        s.list[i] = (int32_t *)(void *)(at + n * (16 + 4 * i));
    s.w = (float *)s.list[2];
    return s;
}

size_t CPU_FN(sample_thread_bytes)(const kernel_limits *l)
{
    return pad64(CPU_FN(select_thread_bytes)(l)) + (padded(l->vocab) + VF) * 28;
}

/* v where the lane's bit is set, else -inf. */
static inline vf keep_allowed(vf v, uint32_t bits)
{
#if defined(CPU_AVX512)
    return _mm512_mask_mov_ps(vf_set(-INFINITY), (__mmask16)bits, v);
#else
    __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i set = _mm256_cmpeq_epi32(vi_and(vi_set((int32_t)bits), lane), lane);

    return _mm256_blendv_ps(vf_set(-INFINITY), v, vf_from_bits(set));
#endif
}

static bool allowed(const sample_row *r, int32_t id)
{
    return !r->mask || r->mask[id / 32] >> (id % 32) & 1u;
}

/* Put the adjusted logits into z, whose largest is `top`. Returns the largest then: only where the
 * largest itself was lowered does it take another look at all. */
static float adjust_some(const sample_row *r, const float *logits, int vocab, float top, float *z)
{
    bool divide = r->temperature > 0 && r->temperature != 1.0f, lowered = false;
    float best = top;
    vf all;

    for (int i = 0; i < r->n_adjust; i++) {
        const logit_adjust *adj = &r->adjust[i];
        float l = logits[adj->id];

        if (!allowed(r, adj->id))
            continue;
        l = (l > 0 ? l / adj->rep : l * adj->rep) + adj->add;
        l = divide ? l / r->temperature : l;
        lowered |= z[adj->id] == top && !(l >= top);
        best = l > best ? l : best;
        z[adj->id] = l;
    }
    if (!lowered)
        return best;
    all = vf_load(z);
    for (int i = VF; i < vocab; i += VF)
        all = vf_max(all, vf_load(z + i));
    return vf_max_lane(all);
}

/* z = adjusted, masked logits over the temperature. Returns the largest. */
static float prepare(const sample_row *r, const float *logits, int vocab, float *z)
{
    bool divide = r->temperature > 0 && r->temperature != 1.0f;
    vf t = vf_set(divide ? r->temperature : 1.0f), top = vf_set(-INFINITY);

    for (int i = 0; i < vocab; i += VF) {
        vf v =
            i + VF <= vocab ? vf_load(logits + i) : vf_load_part(logits + i, vocab - i, -INFINITY);

        if (divide)
            v = vf_div(v, t);
        if (r->mask)
            v = keep_allowed(v, r->mask[i / 32] >> (i % 32));
        top = vf_max(top, v);
        vf_store(z + i, v);
    }
    return adjust_some(r, logits, vocab, vf_max_lane(top), z);
}

/* The first of x [n] (padded) that equals `top`, the largest. */
static int32_t index_of(const float *x, int64_t n, float top)
{
    for (int64_t i = 0; i < n; i += VF) {
        uint32_t mask = vf_ge(vf_load(x + i), vf_set(top));

        if (mask)
            return (int32_t)i + __builtin_ctz(mask);
    }
    return -1;
}

/* Keep the k largest in a compact z with their ids. Returns how many. */
static int64_t keep_top_k(const sample_scratch *s, int64_t n, int64_t k)
{
    int64_t count = 0;
    int32_t kept = CPU_FN(select_best)(s->select, s->z, n, k, s->id);

    for (int32_t i = 0; i < kept; i++) {
        float z = s->z[s->id[i]];

        if (z > -INFINITY) {
            s->z[count] = z; /* count <= i <= id[i]: not yet read */
            s->id[count++] = s->id[i];
        }
    }
    for (size_t i = (size_t)count; i < padded(count) + VF; i++)
        s->z[i] = -INFINITY;
    return count;
}

/* The places i, i + 1, ... of a vector. */
static inline vi lanes_from(int64_t i)
{
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    return vi_add(vi_load(lanes), vi_set((int32_t)i));
}

/* Append the lanes of v in `mask` to x [n]; VF elements behind are overwritten. Returns the new n.
 */
static inline int64_t append_lanes(int32_t *x, int64_t n, vi v, uint32_t mask)
{
#if defined(CPU_AVX512)
    vi_store(x + n, _mm512_maskz_compress_epi32((__mmask16)mask, v));
    return n + __builtin_popcount(mask);
#else
    int32_t lane[VF];

    if (mask == 0xFF) {
        vi_store(x + n, v);
        return n + VF;
    }
    vi_store(lane, v);
    for (; mask; mask &= mask - 1)
        x[n++] = lane[__builtin_ctz(mask)];
    return n;
#endif
}

/* Probabilities relative to the largest, in double and f32. Returns their sum. */
static double weigh(const sample_scratch *s, int64_t n, float top)
{
    vd sum0 = vd_set(0), sum1 = vd_set(0);

    for (int64_t i = 0; i < n; i += 2 * VD) {
        vd m0 = vd_exp(vd_sub(vd_load_f32(s->z + i), vd_set((double)top)));
        vd m1 = vd_exp(vd_sub(vd_load_f32(s->z + i + VD), vd_set((double)top)));

        vd_store(s->mass + i, m0);
        vd_store(s->mass + i + VD, m1);
        vd_store_f32(s->w + i, m0);
        vd_store_f32(s->w + i + VD, m1);
        sum0 = vd_add(sum0, m0);
        sum1 = vd_add(sum1, m1);
    }
    return vd_sum(vd_add(sum0, sum1));
}

/* About the sum of w [n] (padded) where it reaches `limit`. */
static double mass_from(const float *w, int64_t n, float limit)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()}, least = vf_set(limit);
    int64_t i = 0;

    for (; i + 4 * VF <= n; i += 4 * VF)
        for (int j = 0; j < 4; j++)
            sum[j] = vf_add(sum[j], vf_keep_ge(vf_load(w + i + j * VF), least));
    for (; i < n; i += VF)
        sum[0] = vf_add(sum[0], vf_keep_ge(vf_load(w + i), least));
    return (double)vf_sum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
}

/* A band [*lo, *hi) of w in which the sum from above passes `need`, by bisection of the bits. What
 * lies below (total - need) / n is too little to matter: the search begins there. */
static void find_band(const float *w, int64_t n, double total, double need, float *lo, float *hi)
{
    float start = (float)(0.99 * (total - need) / (double)n);
    uint32_t low = f32_bits(start > 0 ? start : 0), high = f32_bits(1.0f) + 1;

    while (high - low > 1u << 18) { /* a 32nd of an octave: some hundred tokens */
        uint32_t mid = low + (high - low) / 2;

        if (mass_from(w, n, f32_from_bits(mid)) < need)
            high = mid;
        else
            low = mid;
    }
    *lo = f32_from_bits(low);
    *hi = f32_from_bits(high);
}

/* Places with lo <= w < hi, ascending, into list[0]; *above = the exact mass from hi on, *inside =
 * that of the band. */
static int64_t take_band(const sample_scratch *s, int64_t n, float lo, float hi, double *above,
                         double *inside)
{
    vd sum0 = vd_set(0), sum1 = vd_set(0);
    int64_t count = 0;

    for (int64_t i = 0; i < n; i += VF) {
        vf w = vf_load(s->w + i);
        uint32_t from_lo = vf_ge(w, vf_set(lo)), from_hi = vf_ge(w, vf_set(hi));

        if (from_hi) {
            sum0 = vd_add(sum0, vd_keep_ge(vd_load(s->mass + i), s->w + i, hi));
            sum1 = vd_add(sum1, vd_keep_ge(vd_load(s->mass + i + VD), s->w + i + VD, hi));
        }
        if (from_lo & ~from_hi)
            count = append_lanes(s->list[0], count, lanes_from(i), from_lo & ~from_hi);
    }
    *above = vd_sum(vd_add(sum0, sum1));
    *inside = 0;
    for (int64_t i = 0; i < count; i++)
        *inside += s->mass[s->list[0][i]];
    return count;
}

/* A value of the list near its middle. */
static float pivot_of(const float *z, const int32_t *list, int64_t n)
{
    float a = z[list[0]], b = z[list[n / 2]], c = z[list[n - 1]];
    float low = a < b ? a : b, high = a < b ? b : a;

    return c < low ? low : c > high ? high : c;
}

/* Where the sum passes `need` in falling order of z (of equals the lower place first), `sum` lying
 * above the list: the value of the last kept place, and that place. Quickselect by mass. */
static float find_cut(const sample_scratch *s, int64_t n, double sum, double need, int32_t *last)
{
    int32_t *list = s->list[0], *equal = s->list[1], *below = s->list[2], *swap;
    float pivot = -INFINITY;

    *last = INT32_MAX; /* nothing is cut when rounding leaves the sum short of `need` */
    while (n > 0) {
        int64_t n_above = 0, n_equal = 0, n_below = 0;
        double m_above = 0, m_equal = 0;

        pivot = pivot_of(s->z, list, n);
        for (int64_t i = 0; i < n; i++) {
            int32_t at = list[i];

            if (s->z[at] > pivot) {
                m_above += s->mass[at];
                list[n_above++] = at;
            } else if (s->z[at] == pivot) {
                m_equal += s->mass[at];
                equal[n_equal++] = at;
            } else {
                below[n_below++] = at;
            }
        }
        if (sum + m_above >= need) {
            n = n_above;
            continue;
        }
        sum += m_above;
        if (sum + m_equal >= need) {
            int64_t i = 0;

            for (; i < n_equal && sum < need; i++)
                sum += s->mass[equal[i]];
            *last = equal[i > 0 ? i - 1 : 0];
            return pivot;
        }
        sum += m_equal;
        swap = list;
        list = below;
        below = swap;
        n = n_below;
    }
    return pivot;
}

/* What the filters keep: z above `z`, and of those equal to it the places up to `last`. */
typedef struct cut {
    float z;
    int32_t last;
} cut;

/* The shortest prefix, in order of falling probability, whose sum reaches p of the total. */
static cut cut_top_p(const sample_scratch *s, int64_t n, float p, float top)
{
    double total = weigh(s, n, top), need = (double)p * total, above, inside;
    float lo, hi;
    int64_t count;
    cut c;

    find_band(s->w, n, total, need, &lo, &hi);
    count = take_band(s, n, lo, hi, &above, &inside);
    if (above >= need || above + inside < need) /* the f32 sums misled: search everything */
        count = take_band(s, n, 0.0f, 2.0f, &above, &inside);
    c.z = find_cut(s, count, above, need, &c.last);
    return c;
}

/* The least z whose probability is min_p of the largest, by bisection with the exact rule. */
static float cut_min_p(float min_p, float top)
{
    float hi = top, lo = top + logf(min_p) - (1e-3f + 1e-6f * fabsf(top));

    if (exp((double)lo - (double)top) >= (double)min_p)
        return lo; /* the margin drowned in a huge logit */
    for (;;) {
        float mid = lo + (hi - lo) / 2;

        if (mid <= lo || mid >= hi)
            return hi;
        if (exp((double)mid - (double)top) < (double)min_p)
            lo = mid;
        else
            hi = mid;
    }
}

/* Pack the tokens that are kept and can reach `least` with the largest noise, in place; has_id:
 * places have tokens already. Returns how many. */
static int64_t pack_runners(const sample_scratch *s, int64_t n, bool has_id, cut c, float least)
{
    int64_t count = 0;

    for (int64_t i = 0; i < n; i += VF) {
        vf z = vf_load(s->z + i);
        uint32_t mask = vf_ge(z, vf_set(c.z)) & vf_ge(vf_add(z, vf_set(NOISE_MAX)), vf_set(least));
        vi ids = has_id ? vi_load(s->id + i) : lanes_from(i);

        if (!mask)
            continue;
        if (i + VF > c.last) /* of equals only the first are kept */
            mask &= vf_gt(z, vf_set(c.z)) | (c.last < i ? 0 : (2u << (c.last - i)) - 1u);
        append_lanes((int32_t *)(void *)s->z, count, vf_bits(z), mask);
        count = append_lanes(s->id, count, ids, mask);
    }
    return count;
}

/* The winner among the tokens that are kept: the best noisy logit, of equals the lower token. */
static int32_t draw(const sample_row *row, const sample_scratch *s, int64_t n, bool has_id, cut c,
                    float top)
{
    int32_t at = index_of(s->z, n, top), winner = -1;
    uint32_t top_id = (uint32_t)(has_id ? s->id[at] : at);
    philox_lanes p = philox_begin(row->seed, row->choice, row->position);
    float best = -INFINITY;
    /* What the likeliest token reaches bounds the others from below. */
    float least = top + noise_gumbel(row->seed, row->choice, row->position, top_id);

    n = pack_runners(s, n, has_id, c, least);
    for (int64_t i = 0; i < n; i += VF) { /* ascending tokens: the first of equals stays */
        vf z = vf_load_part(s->z + i, n - i < VF ? (int)(n - i) : VF, -INFINITY), v;
        vi w = philox_words(&p, vi_load(s->id + i));
        float most;

        if (!vf_ge(vf_add(z, noise_bound(w)), vf_set(least)))
            continue;
        v = vf_add(z, noise_lanes(w));
        most = vf_max_lane(v);
        if (most > best) {
            best = most;
            winner = s->id[i + __builtin_ctz(vf_ge(v, vf_set(most)))];
            least = max_f32(least, most);
        }
    }
    return winner;
}

static int32_t sample_one(const sample_row *r, const float *logits, int vocab,
                          const sample_scratch *s)
{
    float top = prepare(r, logits, vocab, s->z);
    cut c = {.z = -FLT_MAX, .last = INT32_MAX};
    bool has_id = false;
    int64_t n = vocab;
    float least;

    if (top == -INFINITY)
        return -1;
    if (r->temperature <= 0)
        return index_of(s->z, n, top);
    if (r->top_k > 0 && r->top_k < vocab) {
        n = keep_top_k(s, n, r->top_k);
        has_id = true;
    }
    if (r->top_p < 1)
        c = cut_top_p(s, n, r->top_p, top);
    if (r->min_p > 0 && (least = cut_min_p(r->min_p, top)) > c.z)
        c = (cut){.z = least, .last = INT32_MAX};
    return draw(r, s, n, has_id, c, top);
}

static void sample_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const sample_args *a = job->args;
    const cpu_impl *impl = job->k->impl;
    sample_scratch s = lay_out(cpu_thread_scratch(job->k, thread),
                               CPU_FN(select_thread_bytes)(&impl->lim), a->vocab);
    int64_t begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        sample_row row = a->row[i];

        row.position += a->ahead;
        a->token[i] = sample_one(&row, a->logits + i * a->vocab, a->vocab, &s);
    }
}

void CPU_FN(cpu_sample)(kernels *k, const sample_args *a)
{
    cpu_run_sized(k, sample_job, a, a->n > 1 ? INT64_MAX : 0); /* a row is one thread's */
}

/* Logarithm of the sum of e^x. */
static double log_sum_exp(const float *x, int n)
{
    vf top = vf_set(-INFINITY);
    vd sum = vd_set(0);
    double m;

    for (int i = 0; i < n; i += VF)
        top = vf_max(top, vf_load_part(x + i, n - i < VF ? n - i : VF, -INFINITY));
    m = (double)vf_max_lane(top);
    for (int i = 0; i < n; i += VF) {
        float part[VF];

        vf_store(part, vf_load_part(x + i, n - i < VF ? n - i : VF, -INFINITY));
        for (int j = 0; j < VF; j += VD)
            sum = vd_add(sum, vd_exp(vd_sub(vd_load_f32(part + j), vd_set(m))));
    }
    return m + log(vd_sum(sum));
}

/* How many tokens come before `token`: larger logits, or equal ones with a lower id. */
static int32_t rank_of(const float *x, int n, int32_t token)
{
    vf own = vf_set(x[token]);
    int32_t rank = 0;

    for (int i = 0; i < n; i += VF) {
        vf v = vf_load_part(x + i, n - i < VF ? n - i : VF, -INFINITY);
        uint32_t equal = vf_ge(v, own) & ~vf_gt(v, own);

        if (i + VF > token)
            equal &= i > token ? 0 : (1u << (token - i)) - 1u;
        rank += __builtin_popcount(vf_gt(v, own)) + __builtin_popcount(equal);
    }
    return rank;
}

/* The n_top best tokens in falling order; equal ones by id. */
static void top_tokens(void *select, const float *x, int n, int n_top, int32_t *id)
{
    int32_t count = CPU_FN(select_best)(select, x, n, n_top, id);

    for (int32_t i = 1; i < count; i++) { /* stable, few */
        int32_t token = id[i], at = i;

        for (; at > 0 && x[token] > x[id[at - 1]]; at--)
            id[at] = id[at - 1];
        id[at] = token;
    }
}

static void logprobs_job(void *arg, int thread, int n_threads)
{
    const cpu_job *job = arg;
    const logprobs_args *a = job->args;
    void *select = cpu_thread_scratch(job->k, thread);
    int64_t begin, end;

    pool_split(a->n, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const float *x = a->logits + i * a->vocab;
        int32_t token = a->token[i];
        double log_total = log_sum_exp(x, a->vocab);

        a->logprob[i] = (float)((double)x[token] - log_total);
        a->rank[i] = rank_of(x, a->vocab, token);
        if (a->n_top > 0)
            top_tokens(select, x, a->vocab, a->n_top, a->top_id + i * a->n_top);
        for (int64_t j = i * a->n_top; j < (i + 1) * a->n_top; j++)
            a->top_logprob[j] = (float)((double)x[a->top_id[j]] - log_total);
    }
}

void CPU_FN(cpu_logprobs)(kernels *k, const logprobs_args *a)
{
    cpu_run_sized(k, logprobs_job, a, a->n > 1 ? INT64_MAX : 0);
}
