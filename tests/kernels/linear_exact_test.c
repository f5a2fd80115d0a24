/* Every E4M3 and E2M1 code with every scale byte through the products of every back end: exact,
 * subnormals and overflow included, with one row and with many. A scale byte read as a number, or a
 * decoder that drops subnormals, shows here. */
#include "kernels/hand.h"

#include <math.h>

#include "formats/scalar.h"

enum { N_SCALES = 255, COLS = 32 * N_SCALES, N_CODES = 256 };

/* 2^(byte-127), exact. */
static double scale_value(int byte)
{
    return ldexp(1.0, byte - 127);
}

/* Row b of x is 1 at column 32 b, 0 elsewhere: it picks the codes under scale byte b. */
static float *unit_rows(void)
{
    float *x = calloc((size_t)N_SCALES * COLS, sizeof *x);

    assert_non_null(x);
    for (int b = 0; b < N_SCALES; b++)
        x[b * COLS + 32 * b] = 1.0f;
    return x;
}

static void reserve_wide(bench *b)
{
    kernel_limits lim = {.n_rows = 300,
                         .n_logit_rows = 1,
                         .hidden = 512,
                         .hc = 4,
                         .n_heads = 1,
                         .head_dim = 32,
                         .window = 1,
                         .max_linear_cols = COLS,
                         .moe_inter = COLS,
                         .n_experts = 1,
                         .n_active = 1,
                         .index_heads = 1,
                         .index_dim = 32,
                         .index_topk = 1,
                         .cand_blocks = 1,
                         .cand_block = 1,
                         .context = 128,
                         .vocab = 64};
    di_status st = {0};

    if (b->k->ops->reserve(b->k, &lim, &st) != DI_OK)
        fail_msg("%s", st.message);
}

static void check_fp8(const float *y)
{
    for (int b = 0; b < N_SCALES; b++)
        for (int c = 0; c < N_CODES; c++) {
            double code = (c & 0x7F) == 0x7F ? 0.0 : (double)e4m3_to_f32((uint8_t)c);

            if (y[b * N_CODES + c] != (float)(code * scale_value(b)))
                fail_msg("code %d, scale byte %d: got %a", c, b, (double)y[b * N_CODES + c]);
        }
}

static void test_every_e4m3_code_and_scale_byte(void **state)
{
    bench b;
    float *x = unit_rows(), *y = calloc(N_SCALES * N_CODES, sizeof *y);
    uint8_t *code = calloc(N_CODES, COLS), *scale = calloc(N_CODES / 32, N_SCALES);
    linear_args lin = {.n = N_SCALES, .out = LINEAR_F32};
    size_t x_bytes;
    const uint8_t *rows;

    for (int r = 0; r < N_CODES; r++)
        for (int t = 0; t < N_SCALES; t++) {
            code[r * COLS + 32 * t] = (uint8_t)((r & 0x7F) == 0x7F ? 0 : r);
            scale[r / 32 * N_SCALES + t] = (uint8_t)t;
        }
    bench_open(&b, *state, NUMERICS_RELEASE);
    reserve_wide(&b);
    lin.w = load_one(&b, WEIGHT_FP8, code, scale, N_CODES, COLS);
    lin.x = rows = dev_q8(&b, x, N_SCALES, COLS);
    lin.y = dev(&b, N_SCALES * N_CODES * sizeof *y);
    b.k->ops->linear(b.k, &lin);
    get_bytes(&b, y, lin.y, N_SCALES * N_CODES * sizeof *y);
    check_fp8(y);

    x_bytes = b.k->ops->q8_row_bytes(b.k, COLS);
    lin.n = 1;
    lin.y = dev(&b, N_CODES * sizeof *y);
    memset(y, 0xFF, N_SCALES * N_CODES * sizeof *y);
    for (int t = 0; t < N_SCALES; t++) {
        lin.x = rows + (size_t)t * x_bytes;
        b.k->ops->linear(b.k, &lin);
        get_bytes(&b, y + t * N_CODES, lin.y, N_CODES * sizeof *y);
    }
    check_fp8(y);
    bench_close(&b);
    free(x);
    free(y);
    free(code);
    free(scale);
}

/* The down projection of an expert sees h = 1 at inner column 32 b for row b: w1 and w3 hold 1 and
 * .5 there, x = 4, silu(4 * 4) = 16 in bf16, u = 2, the routing weight 1/32. */
enum { HIDDEN = 256 };

typedef struct fp4_case {
    uint8_t *w1, *w3, *w2, *ones, *scale2, *zero;
    experts_src src;
    fp4_part part[3];
} fp4_case;

static void fp4_case_make(fp4_case *t)
{
    *t = (fp4_case){.w1 = calloc(COLS, HIDDEN / 2),
                    .w3 = calloc(COLS, HIDDEN / 2),
                    .w2 = calloc(HIDDEN, COLS / 2),
                    .ones = malloc((size_t)COLS * HIDDEN / 32),
                    .scale2 = malloc((size_t)HIDDEN * N_SCALES),
                    .zero = calloc(COLS, HIDDEN)};
    memset(t->ones, 127, (size_t)COLS * HIDDEN / 32);
    for (int b = 0; b < N_SCALES; b++) {
        unsigned shift = b % 2 ? 4 : 0;

        t->w1[32 * b * HIDDEN / 2 + b / 2] = (uint8_t)(6u << shift); /* 4 */
        t->w3[32 * b * HIDDEN / 2 + b / 2] = (uint8_t)(1u << shift); /* .5 */
        for (int r = 0; r < HIDDEN; r++) {
            t->w2[r * COLS / 2 + 16 * b] = (uint8_t)(r % 16);
            t->scale2[r * N_SCALES + b] = (uint8_t)b;
        }
    }
    t->part[0] = (fp4_part){t->w1, t->ones};
    t->part[1] = (fp4_part){t->w3, t->ones};
    t->part[2] = (fp4_part){t->w2, t->scale2};
    t->src = (experts_src){.name = "every code",
                           .n_experts = 1,
                           .hidden = HIDDEN,
                           .inter = COLS,
                           .w1 = &t->part[0],
                           .w3 = &t->part[1],
                           .w2 = &t->part[2],
                           .shared_w1 = {t->zero, t->ones, COLS},
                           .shared_w3 = {t->zero, t->ones, COLS},
                           .shared_w2 = {t->zero, t->ones, HIDDEN}};
}

static void fp4_case_free(fp4_case *t)
{
    free(t->w1);
    free(t->w3);
    free(t->w2);
    free(t->ones);
    free(t->scale2);
    free(t->zero);
}

static void check_fp4(const float *y, int b)
{
    for (int r = 0; r < HIDDEN; r++) {
        double want = (double)e2m1_to_f32((unsigned)r % 16) * scale_value(b);

        if (y[r] != (float)want)
            fail_msg("code %d, scale byte %d: got %a", r % 16, b, (double)y[r]);
    }
}

static void test_every_e2m1_code_and_scale_byte(void **state)
{
    bench b;
    fp4_case t;
    float *x = calloc(N_SCALES * HIDDEN, sizeof *x), *y = calloc(N_SCALES * HIDDEN, sizeof *y);
    int32_t ids[N_SCALES] = {0};
    float weights[N_SCALES];
    experts_args a = {.n = N_SCALES, .k = 1};
    weight *w = NULL;
    const uint8_t *rows;

    fp4_case_make(&t);
    for (int i = 0; i < N_SCALES; i++) {
        x[i * HIDDEN + i] = 4.0f;
        weights[i] = 1.0f / 32;
    }
    bench_open(&b, *state, NUMERICS_RELEASE);
    reserve_wide(&b);
    assert_int_equal(b.k->ops->load_experts(b.k, &t.src, &w, NULL), DI_OK);
    a.w = b.weight[b.n_weights++] = w;
    a.x_q8 = rows = dev_q8(&b, x, N_SCALES, HIDDEN);
    a.ids = dev_copy(&b, ids, sizeof ids);
    a.weights = dev_copy(&b, weights, sizeof weights);
    a.y = dev_act(&b, y, N_SCALES * HIDDEN);
    b.k->ops->experts(b.k, &a);
    get_act(&b, y, a.y, N_SCALES * HIDDEN);
    for (int i = 0; i < N_SCALES; i++)
        check_fp4(y + i * HIDDEN, i);
    a.n = 1;
    for (int i = 0; i < N_SCALES; i += 2) {
        a.x_q8 = rows + (size_t)i * b.k->ops->q8_row_bytes(b.k, HIDDEN);
        b.k->ops->experts(b.k, &a);
        get_act(&b, y, a.y, HIDDEN);
        check_fp4(y, i);
    }
    bench_close(&b);
    fp4_case_free(&t);
    free(x);
    free(y);
}

int main(void)
{
    struct CMUnitTest tests[16];
    int n = 0;

    n = for_every_backend(tests, n, "every e4m3 code and scale byte",
                          test_every_e4m3_code_and_scale_byte);
    n = for_every_backend(tests, n, "every e2m1 code and scale byte",
                          test_every_e2m1_code_and_scale_byte);
    return _cmocka_run_group_tests("linear_exact", tests, (size_t)n, NULL, NULL);
}
