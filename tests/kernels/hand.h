/* Small helpers for tests that call operations with values worked out by hand. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

/* A back end with everything it hands out; one test's. */
typedef struct bench {
    kernels *k;
    void *buf[64];
    int n_bufs;
    weight *weight[32];
    int n_weights;
} bench;

static inline void bench_open(bench *b, const char *backend, numerics num)
{
    kernels_options opt = {.backend = backend, .numerics = num, .n_threads = 2};
    kernel_limits lim = {.n_rows = 300,
                         .n_logit_rows = 300,
                         .hidden = 512,
                         .hc = 4,
                         .n_heads = 8,
                         .head_dim = 512,
                         .window = 128,
                         .max_linear_cols = 2048,
                         .moe_inter = 256,
                         .n_experts = 16,
                         .n_active = 4,
                         .index_heads = 8,
                         .index_dim = 128,
                         .index_topk = 64,
                         .cand_blocks = 16,
                         .cand_block = 4,
                         .context = 4096,
                         .vocab = 4096};
    di_status st = {0};

    *b = (bench){0};
    if (kernels_open(&b->k, &opt, &st) != DI_OK || b->k->ops->reserve(b->k, &lim, &st) != DI_OK)
        fail_msg("%s", st.message);
}

static inline void bench_close(bench *b)
{
    for (int i = 0; i < b->n_weights; i++)
        b->k->ops->unload(b->k, b->weight[i]);
    for (int i = 0; i < b->n_bufs; i++)
        b->k->ops->buf_free(b->k, b->buf[i]);
    kernels_close(b->k);
}

/* Zeroed device memory; with a copy of host data. */
static inline void *dev(bench *b, size_t bytes)
{
    void *p = b->k->ops->buf_new(b->k, bytes + 64);
    uint8_t *zero = calloc(1, bytes + 64);

    assert_non_null(p);
    assert_non_null(zero);
    assert_in_range(b->n_bufs, 0, 63);
    b->buf[b->n_bufs++] = p;
    b->k->ops->put(b->k, p, zero, bytes + 64);
    free(zero);
    return p;
}

static inline void *dev_copy(bench *b, const void *host, size_t bytes)
{
    void *p = dev(b, bytes);

    b->k->ops->put(b->k, p, host, bytes);
    return p;
}

static inline void *dev_act(bench *b, const float *host, size_t n)
{
    void *p = dev(b, n * sizeof *host);

    b->k->ops->put_act(b->k, p, host, n);
    return p;
}

/* act rows behind the back end's Q8 */
static inline void *dev_q8(bench *b, const float *host, int n, int cols)
{
    void *q8 = dev(b, (size_t)n * b->k->ops->q8_row_bytes(b->k, cols));
    quantize_args a = {
        .n = n, .cols = cols, .x = dev_act(b, host, (size_t)n * (size_t)cols), .q8 = q8};

    b->k->ops->quantize(b->k, &a);
    return q8;
}

static inline weight *bench_load(bench *b, const weight_src *src)
{
    di_status st = {0};
    weight *w = NULL;

    assert_in_range(b->n_weights, 0, 31);
    if (b->k->ops->load(b->k, src, &w, &st) != DI_OK)
        fail_msg("%s", st.message);
    b->weight[b->n_weights++] = w;
    return w;
}

static inline weight *load_one(bench *b, weight_kind kind, const void *data, const uint8_t *scale,
                               int64_t rows, int64_t cols)
{
    weight_src src = {.name = "test",
                      .kind = kind,
                      .cols = cols,
                      .n_parts = 1,
                      .part[0] = {.data = data, .scale = scale, .rows = rows}};

    return bench_load(b, &src);
}

static inline void get_act(bench *b, float *host, const void *src, size_t n)
{
    assert_int_equal(b->k->ops->finish(b->k, NULL), DI_OK);
    b->k->ops->get_act(b->k, host, src, n);
}

static inline void get_bytes(bench *b, void *host, const void *src, size_t bytes)
{
    assert_int_equal(b->k->ops->finish(b->k, NULL), DI_OK);
    b->k->ops->get(b->k, host, src, bytes);
}

static inline void assert_close(double got, double want, double tolerance)
{
    double off = got > want ? got - want : want - got;

    if (!(off <= tolerance))
        fail_msg("got %.9g, want %.9g +- %.3g", got, want, tolerance);
}

/* DI_BACKEND=name restricts tests to one back end. */
static inline bool backend_wanted(const char *name)
{
    const char *only = getenv("DI_BACKEND");

    return !only || strcmp(only, name) == 0;
}

/* Add `test` for every back end of this machine: its name becomes "behaviour: back end" and *state
 * the back end's name. */
static inline int for_backends(struct CMUnitTest *tests, int n, const char *behaviour,
                               CMUnitTestFunction test, bool host_only)
{
    static char names[64][120];

    for (const char *const *b = kernels_available(); *b; b++) {
        if (!backend_wanted(*b) || (host_only && strcmp(*b, "cuda") == 0))
            continue;
        assert_in_range(n, 0, 63);
        snprintf(names[n], sizeof names[n], "%s: %s", behaviour, *b);
        tests[n] =
            (struct CMUnitTest){.name = names[n], .test_func = test, .initial_state = (void *)*b};
        n++;
    }
    return n;
}

static inline int for_every_backend(struct CMUnitTest *tests, int n, const char *behaviour,
                                    CMUnitTestFunction test)
{
    return for_backends(tests, n, behaviour, test, false);
}

/* For tests that look into the state of a sequence in place. */
static inline int for_every_host_backend(struct CMUnitTest *tests, int n, const char *behaviour,
                                         CMUnitTestFunction test)
{
    return for_backends(tests, n, behaviour, test, true);
}
