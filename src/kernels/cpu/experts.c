/* Routed and shared experts (kernels/moe.h).
 *
 * Rows are grouped by expert with a counting sort; "place" is a row's index in that order, the
 * shared expert's rows come behind. Pass 1 makes h = Q8(...) of every place, pass 2 adds the
 * products with w2 to f32 sums in ascending expert id, the shared expert last. In both passes the
 * threads split the outputs, with one barrier between. */
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/quant_simd.h"

#include <string.h>

#include "formats/scalar.h"

typedef struct job {
    const kernels *k;
    const experts_args *a;
    const experts *e;
    int n_routed;   /* places of routed rows: n * k */
    int32_t *first; /* [n_experts + 1] places of each expert */
    int32_t *token; /* [n_routed + n] row of x of a place */
    float *weight;  /* [n_routed + n] */
    uint16_t *h;    /* [n_routed + n][inter] Q8 rows */
    float *sum;     /* [n][hidden] */
} job;

/* Scratch of one thread. */
typedef struct scratch {
    float *panel, *gate, *up, *x;
} scratch;

static size_t align64(size_t n)
{
    return (n + 63) / 64 * 64;
}

size_t CPU_FN(experts_thread_bytes)(const kernel_limits *l)
{
    size_t cols = (size_t)(l->hidden > l->moe_inter ? l->hidden : l->moe_inter);

    return (STRIP_PANEL_FLOATS + 2 * STRIP_ROWS * STRIP + STRIP_ROWS * cols) * sizeof(float);
}

size_t CPU_FN(experts_shared_bytes)(const kernel_limits *l)
{
    size_t n = (size_t)l->n_rows, places = n * (size_t)(l->n_active + 1);

    return align64(((size_t)l->n_experts + 1) * 4) + 2 * align64(places * 4) +
           align64(places * (size_t)l->moe_inter * 2) + n * (size_t)l->hidden * 4;
}

static void place_scratch(job *j)
{
    uint8_t *p = cpu_shared_scratch(j->k);
    size_t places = (size_t)j->n_routed + (size_t)j->a->n;

    j->first = (int32_t *)(void *)p;
    p += align64(((size_t)j->e->n_experts + 1) * 4);
    j->token = (int32_t *)(void *)p;
    p += align64(places * 4);
    j->weight = (float *)(void *)p;
    p += align64(places * 4);
    j->h = (uint16_t *)(void *)p;
    p += align64(places * (size_t)j->e->inter * 2);
    j->sum = (float *)(void *)p;
}

/* Counting sort by expert; within an expert in the order of rows. */
static void group_rows(job *j)
{
    const experts_args *a = j->a;
    int32_t *first = j->first;
    int n_experts = j->e->n_experts;

    memset(first, 0, ((size_t)n_experts + 1) * sizeof *first);
    for (int i = 0; i < j->n_routed; i++)
        first[a->ids[i] + 1]++;
    for (int e = 0; e < n_experts; e++)
        first[e + 1] += first[e];
    for (int i = 0; i < j->n_routed; i++) {
        int32_t place = first[a->ids[i]]++;

        j->token[place] = i / a->k;
        j->weight[place] = a->weights[i];
    }
    for (int e = n_experts; e > 0; e--) /* first[e] has moved to the end of e */
        first[e] = first[e - 1];
    first[0] = 0;
    for (int t = 0; t < a->n; t++) {
        j->token[j->n_routed + t] = t;
        j->weight[j->n_routed + t] = 1.0f;
    }
}

/* Strip i of matrix m of expert e; e = n_experts is the shared one. */
static strip expert_strip(const experts *x, int e, int m, int64_t i)
{
    int64_t n_blocks = (m == 2 ? x->inter : x->hidden) / BLOCK;

    if (e == x->n_experts)
        return matrix_strip(&x->shared[m], i);
    return (strip){.format = STRIP_FP4,
                   .data = x->data[m] + (size_t)e * x->bytes[m] + (size_t)(i * n_blocks) * 544,
                   .n_blocks = n_blocks};
}

/* Rows for the products with an expert's matrix: packed, then multiplied strip by strip. Routed
 * experts are FP4: on AVX-512 exact integer dots are faster than f32. */
static void pack(float *out, bool shared, const uint16_t *x, int64_t cols, const int32_t *index,
                 int n)
{
#if defined(CPU_AVX512)
    if (!shared) {
        strip_pack_fp4_avx512(out, x, cols, index, n, cols);
        return;
    }
#endif
    (void)shared;
    CPU_FN(strip_pack)(out, x, cols, index, n, cols);
}

static void product(float *out, const strip *w, const float *x, int n, float *panel)
{
#if defined(CPU_AVX512)
    if (w->format == STRIP_FP4) {
        strip_product_fp4_avx512(out, w, x, n, panel);
        return;
    }
#endif
    CPU_FN(strip_product)(out, w, x, n, panel);
}

/* h = Q8(bf(factor * (silu(g) * u))) of one row and strip. */
static void swiglu(uint16_t *h, const float *gate, const float *up, float factor, float limit)
{
    const vf w = vf_set(factor), one = vf_set(1.0f), hi = vf_set(limit), lo = vf_set(-limit);

    for (int i = 0; i < STRIP; i += VF) {
        vf g = vf_bf16(vf_load(gate + i)), u = vf_bf16(vf_load(up + i)), silu;

        if (limit > 0) {
            g = vf_min(g, hi);
            u = vf_max(vf_min(u, hi), lo);
        }
        silu = vf_div(g, vf_add(one, vf_exp(vf_sub(vf_zero(), g))));
        vf_store_bf16(h + i, vf_mul(w, vf_mul(silu, u)));
    }
    q8_row(h, h, STRIP);
}

/* Pass 1 for places [p, p + n) of expert e, strips [s0, s1) of the inner columns. */
static void up_part(const job *j, const scratch *s, int e, int p, int n, int64_t s0, int64_t s1)
{
    int64_t hidden = j->e->hidden, inter = j->e->inter;

    pack(s->x, e == j->e->n_experts, j->a->x_q8, hidden, j->token + p, n);
    for (int64_t i = s0; i < s1; i++) {
        strip w1 = expert_strip(j->e, e, 0, i), w3 = expert_strip(j->e, e, 1, i);

        product(s->gate, &w1, s->x, n, s->panel);
        product(s->up, &w3, s->x, n, s->panel);
        for (int t = 0; t < n; t++)
            swiglu(j->h + (p + t) * inter + i * STRIP, s->gate + t * STRIP, s->up + t * STRIP,
                   j->weight[p + t], j->a->limit);
    }
}

/* Pass 2: strips of the hidden columns; the shared expert finishes the rows. */
static void down_part(const job *j, const scratch *s, int e, int p, int n, int64_t s0, int64_t s1)
{
    int64_t hidden = j->e->hidden, inter = j->e->inter;
    bool last = e == j->e->n_experts;

    pack(s->x, last, j->h + p * inter, inter, NULL, n);
    for (int64_t i = s0; i < s1; i++) {
        strip w2 = expert_strip(j->e, e, 2, i);

        product(s->gate, &w2, s->x, n, s->panel);
        for (int t = 0; t < n; t++) {
            int64_t at = j->token[p + t] * hidden + i * STRIP;

            for (int c = 0; c < STRIP; c += VF) {
                vf y = vf_add(vf_load(j->sum + at + c), vf_bf16(vf_load(s->gate + t * STRIP + c)));

                if (last)
                    vf_store_bf16((uint16_t *)j->a->y + at + c, y);
                else
                    vf_store(j->sum + at + c, y);
            }
        }
    }
}

typedef void (*part_fn)(const job *j, const scratch *s, int e, int p, int n, int64_t s0,
                        int64_t s1);

/* All experts ascending, then the shared one, in parts of STRIP_ROWS places. */
static void all_experts(const job *j, const scratch *s, part_fn part, int64_t s0, int64_t s1)
{
    for (int e = 0; s0 < s1 && e <= j->e->n_experts; e++) {
        bool shared = e == j->e->n_experts;
        int p = shared ? j->n_routed : j->first[e];
        int end = shared ? j->n_routed + j->a->n : j->first[e + 1];

        for (; p < end; p += STRIP_ROWS)
            part(j, s, e, p, end - p < STRIP_ROWS ? end - p : STRIP_ROWS, s0, s1);
    }
}

static void experts_job(void *arg, int thread, int n_threads)
{
    const job *j = arg;
    int64_t hidden = j->e->hidden, begin, end;
    scratch s = {.panel = cpu_thread_scratch(j->k, thread)};

    s.gate = s.panel + STRIP_PANEL_FLOATS;
    s.up = s.gate + STRIP_ROWS * STRIP;
    s.x = s.up + STRIP_ROWS * STRIP;
    pool_split(j->e->inter / STRIP, 1, thread, n_threads, &begin, &end);
    all_experts(j, &s, up_part, begin, end);
    pool_barrier(j->k->pool);

    pool_split(hidden / STRIP, 1, thread, n_threads, &begin, &end);
    for (int64_t t = 0; t < j->a->n; t++)
        memset(j->sum + t * hidden + begin * STRIP, 0,
               (size_t)(end - begin) * STRIP * sizeof(float));
    all_experts(j, &s, down_part, begin, end);
}

void CPU_FN(cpu_experts)(kernels *k, const experts_args *a)
{
    job j = {.k = k, .a = a, .e = &a->w->e, .n_routed = a->n * a->k};

    if (a->route)
        CPU_FN(cpu_route)(k, a->route);
    place_scratch(&j);
    group_rows(&j);
    pool_run(k->pool, experts_job, &j);
}
