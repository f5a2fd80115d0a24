/* Operations on rows, in every back end, against values worked out by hand. */
#include "kernels/hand.h"

#include <math.h>

#include "formats/quant.h"
#include "formats/scalar.h"

#define ONE_E4M3 0x38u
#define ONE_E2M1 2u

static void test_quantize_equals_the_vector_of_the_specification(void **state)
{
    static const float want[8] = {-.375f,      .09375f, -.21875f,  .25f,
                                  -.05078125f, -.375f,  .1171875f, -.1875f}; /* spec 13 */
    float x[32], y[32];
    uint8_t identity[32 * 32] = {0}, scale = 127;
    linear_args lin = {.n = 1, .out = LINEAR_F32};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    for (int i = 0; i < 32; i++) {
        x[i] = bf16_round((float)(37 * i % 61 - 30) * 0.013f);
        identity[33 * i] = ONE_E4M3;
    }
    lin.w = load_one(&b, WEIGHT_FP8, identity, &scale, 32, 32);
    lin.x = dev_q8(&b, x, 1, 32);
    lin.y = dev(&b, sizeof y);
    b.k->ops->linear(b.k, &lin);
    get_bytes(&b, y, lin.y, sizeof y);
    assert_memory_equal(y, want, sizeof want);
    bench_close(&b);
}

/* x is all ones, so an output is the sum of the scales of its 32x32 tiles, 32 for each (7 at the
 * ragged end). */
static void test_fp8_linear_uses_the_scale_of_each_tile(void **state)
{
    enum { ROWS = 70, COLS = 96 };
    static uint8_t code[ROWS * COLS];
    static const uint8_t scale[9] = {127, 128, 126, 130, 120, 127, 125, 127, 129};
    float x[2 * COLS], y[2 * ROWS];
    linear_args a = {.n = 2, .out = LINEAR_F32};
    weight_src src = {.name = "two parts", .kind = WEIGHT_FP8, .cols = COLS, .n_parts = 2};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    memset(code, ONE_E4M3, sizeof code);
    for (int i = 0; i < COLS; i++) {
        x[i] = 1.0f;
        x[COLS + i] = -0.5f;
    }
    src.part[0] = (weight_part){.data = code, .scale = scale, .rows = 64};
    src.part[1] = (weight_part){.data = code + 64 * COLS, .scale = scale + 6, .rows = ROWS - 64};
    a.w = bench_load(&b, &src);
    a.x = dev_q8(&b, x, 2, COLS);
    a.y = dev(&b, sizeof y);
    b.k->ops->linear(b.k, &a);
    get_bytes(&b, y, a.y, sizeof y);
    for (int r = 0; r < ROWS; r++) {
        float sum = 0;

        for (int t = 0; t < 3; t++)
            sum += 32.0f * ue8m0_to_f32(scale[r / 32 * 3 + t]);
        assert_close((double)y[r], (double)sum, 0);
        assert_close((double)y[ROWS + r], -0.5 * (double)sum, 0);
    }
    bench_close(&b);
}

/* Group g of the outputs sees group g of the inputs only. */
static void test_grouped_linear_is_block_diagonal(void **state)
{
    enum { GROUPS = 2, N = 32, K = 32 };
    static uint8_t code[GROUPS * N * K];
    static const uint8_t scale[2] = {127, 128};
    float x[GROUPS * K], y[GROUPS * N];
    linear_args a = {.n = 1, .groups = GROUPS, .x_is_act = true, .out = LINEAR_ACT};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    for (int i = 0; i < GROUPS * N; i++) /* row i of a group picks input i of the group */
        code[i * K + i % N] = ONE_E4M3;
    for (int i = 0; i < GROUPS * K; i++)
        x[i] = (float)(i + 1);
    a.w = load_one(&b, WEIGHT_FP8, code, scale, GROUPS * N, K);
    a.x = dev_act(&b, x, GROUPS * K);
    a.y = dev(&b, sizeof y);
    b.k->ops->linear(b.k, &a);
    get_act(&b, y, a.y, GROUPS * N);
    for (int i = 0; i < GROUPS * N; i++)
        assert_close((double)y[i], (i < N ? 1.0 : 2.0) * (i + 1), 0);
    bench_close(&b);
}

static void test_bf16_linear_accumulates(void **state)
{
    const uint16_t w[2 * 3] = {bf16_from_f32(1),  bf16_from_f32(2),    bf16_from_f32(3),
                               bf16_from_f32(-1), bf16_from_f32(0.5f), bf16_from_f32(0)};
    const float x[3] = {1, 10, 100}, before[2] = {1000, -1000};
    float y[2];
    linear_args a = {.n = 1, .out = LINEAR_F32, .accumulate = true};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    a.w = load_one(&b, WEIGHT_BF16, w, NULL, 2, 3);
    a.x = dev_act(&b, x, 3);
    a.y = dev_copy(&b, before, sizeof before);
    b.k->ops->linear(b.k, &a);
    get_bytes(&b, y, a.y, sizeof y);
    assert_close((double)y[0], 1321, 0);
    assert_close((double)y[1], -996, 0);
    bench_close(&b);
}

/* Spec 13: the stream is all ones, so m = sum of a row of fn. */
static void test_hc_mix_equals_the_vector_of_the_specification(void **state)
{
    enum { HC = 4, DIM = 32, N_MIX = 24 };
    static const float m8[8] = {.1f, -.2f, .3f, .4f, .5f, -.6f, .7f, -.8f};
    static const double pre_want[4] = {.51249844, .47751617, .542399, .5572489};
    static const double post_want[4] = {1.0823133, .9500416, 1.1169623, .93509144};
    static const double comb_want[16] = {.3842613, .1157385, .3842608, .1157384, .2993428, .2006568,
                                         .2993427, .2006568, .2006560, .2993434, .2006562, .2993434,
                                         .1157389, .3842604, .1157394, .3842604};
    static const float scale[3] = {.5f, .25f, 2};
    static float fn[N_MIX * HC * DIM];
    float base[N_MIX], x[HC * DIM], pre[4], post[4], comb[16];
    hc_args a = {.n = 1, .hc = HC, .dim = DIM, .eps = 1e-20f, .hc_eps = 1e-6f, .iters = 20};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    for (int i = 0; i < N_MIX; i++) {
        float m = i < 8 ? m8[i] : .05f * (float)(i - 8) * (i % 2 ? 1.0f : -1.0f);

        base[i] = .01f * (float)i;
        for (int j = 0; j < HC * DIM; j++)
            fn[i * HC * DIM + j] = m / (HC * DIM);
    }
    for (int j = 0; j < HC * DIM; j++)
        x[j] = 1;
    a.x = dev_act(&b, x, HC * DIM);
    a.fn = load_one(&b, WEIGHT_F32, fn, NULL, N_MIX, HC * DIM);
    a.base = load_one(&b, WEIGHT_VEC_F32, base, NULL, 1, N_MIX);
    a.scale = load_one(&b, WEIGHT_VEC_F32, scale, NULL, 1, 3);
    a.pre_out = dev(&b, sizeof pre);
    a.post_out = dev(&b, sizeof post);
    a.comb_out = dev(&b, sizeof comb);
    b.k->ops->hc(b.k, &a);
    get_bytes(&b, pre, a.pre_out, sizeof pre);
    get_bytes(&b, post, a.post_out, sizeof post);
    get_bytes(&b, comb, a.comb_out, sizeof comb);
    for (int i = 0; i < 4; i++) {
        assert_close((double)pre[i], pre_want[i], 1e-6);
        assert_close((double)post[i], post_want[i], 1e-6);
    }
    for (int i = 0; i < 16; i++)
        assert_close((double)comb[i], comb_want[i], 1e-6);
    bench_close(&b);
}

/* The first index of comb is the one that is summed. */
static void test_hc_expand_sums_over_the_first_index(void **state)
{
    enum { DIM = 32 };
    const float post[4] = {1, 2, 0, 0.5f};
    float comb[16] = {0}, x[4 * DIM], y[DIM], got[4 * DIM];
    hc_args a = {.n = 1, .hc = 4, .dim = DIM};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    comb[0 * 4 + 1] = 1; /* copy 0 goes to copy 1 */
    comb[2 * 4 + 3] = 2; /* copy 2, doubled, to copy 3 */
    for (int d = 0; d < DIM; d++) {
        y[d] = (float)d;
        for (int i = 0; i < 4; i++)
            x[i * DIM + d] = 100.0f * (float)(i + 1);
    }
    a.x = dev_act(&b, x, 4 * DIM);
    a.y = dev_act(&b, y, DIM);
    a.post = dev_copy(&b, post, sizeof post);
    a.comb = dev_copy(&b, comb, sizeof comb);
    b.k->ops->hc(b.k, &a);
    get_act(&b, got, a.x, 4 * DIM);
    for (int d = 0; d < DIM; d++) {
        assert_close((double)got[d], d, 0);
        assert_close((double)got[DIM + d], (double)bf16_round(2.0f * (float)d + 100), 0);
        assert_close((double)got[2 * DIM + d], 0, 0);
        assert_close((double)got[3 * DIM + d], (double)bf16_round(.5f * (float)d + 600), 0);
    }
    bench_close(&b);
}

/* Without pre the first copy is taken; the norm divides by the root mean square. */
static void test_hc_collapse_and_norm(void **state)
{
    enum { DIM = 64 };
    float x[2 * 2 * DIM], out[2 * DIM], collapsed[2 * DIM];
    uint16_t norm[DIM];
    const int32_t rows[2] = {1, 0};
    const float pre[4] = {0.5f, 0.25f, 1, -1};
    hc_args a = {.n = 2, .hc = 2, .dim = DIM, .eps = 1e-20f};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    for (int i = 0; i < 2 * 2 * DIM; i++)
        x[i] = i % 2 ? 4 : -4;
    for (int d = 0; d < DIM; d++)
        norm[d] = bf16_from_f32(3);
    a.x = dev_act(&b, x, 2 * 2 * DIM);
    a.norm = load_one(&b, WEIGHT_VEC_BF16, norm, NULL, 1, DIM);
    a.out = dev(&b, sizeof out);
    a.collapsed = dev(&b, sizeof collapsed);
    b.k->ops->hc(b.k, &a);
    get_act(&b, out, a.out, 2 * DIM);
    for (int i = 0; i < 2 * DIM; i++)
        assert_close((double)out[i], i % 2 ? 3 : -3, 0);
    a.pre_in = dev_copy(&b, pre, sizeof pre);
    a.rows = dev_copy(&b, rows, sizeof rows);
    b.k->ops->hc(b.k, &a);
    get_act(&b, out, a.out, 2 * DIM);
    get_act(&b, collapsed, a.collapsed, 2 * DIM);
    for (int d = 0; d < DIM; d++) {
        assert_close((double)collapsed[d], 0, 0); /* stream row 1: 1 - 1 */
        assert_close((double)out[d], 0, 0);       /* an all-zero row stays zero */
        assert_close((double)collapsed[DIM + d], d % 2 ? 3 : -3, 0);
    }
    bench_close(&b);
}

static void test_tap_is_the_mean_of_the_copies(void **state)
{
    enum { DIM = 32, STRIDE = 96 };
    float x[4 * DIM], out[STRIDE], mark[STRIDE];
    tap_args a = {.n = 1, .hc = 4, .dim = DIM, .out_stride = STRIDE};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    for (int copy = 0; copy < 4; copy++)
        for (int i = 0; i < DIM; i++)
            x[copy * DIM + i] = 2.0f * (float)copy;
    for (int i = 0; i < STRIDE; i++)
        mark[i] = 7;
    a.x = dev_act(&b, x, 4 * DIM);
    a.out = dev_act(&b, mark, STRIDE);
    b.k->ops->tap(b.k, &a);
    get_act(&b, out, a.out, STRIDE);
    for (int i = 0; i < STRIDE; i++)
        assert_close((double)out[i], i < DIM ? 3 : 7, 0);
    bench_close(&b);
}

static void test_rope_angles_are_products_in_f32(void **state)
{
    const float freq[2] = {1.0f, 0.687656045f};
    const int64_t pos[3] = {0, 1, 1048575};
    float cs[3 * 2 * 2];
    rope_rows_args a = {.n = 3, .half = 2};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    a.pos = dev_copy(&b, pos, sizeof pos);
    a.freq = dev_copy(&b, freq, sizeof freq);
    a.cs = dev(&b, sizeof cs);
    b.k->ops->rope_rows(b.k, &a);
    get_bytes(&b, cs, a.cs, sizeof cs);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++) {
            volatile float angle = (float)pos[i] * freq[j];

            assert_close((double)cs[(i * 2 + j) * 2], cos((double)angle), 2e-7);
            assert_close((double)cs[(i * 2 + j) * 2 + 1], sin((double)angle), 2e-7);
        }
    bench_close(&b);
}

static void test_gather_repeats_rows_and_takes_vectors(void **state)
{
    const uint16_t table[2 * 3] = {1, 2, 3, 0x4000, 0x4100, 0x4200}, own[3] = {0x3F80, 0, 0xBF80};
    const int32_t ids[3] = {1, 0, 1};
    const uint16_t *vectors[3] = {NULL, NULL, NULL};
    float out[3 * 2 * 3];
    gather_args a = {.n = 3, .copies = 2};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    vectors[2] = dev_copy(&b, own, sizeof own);
    a.table = load_one(&b, WEIGHT_BF16_TABLE, table, NULL, 2, 3);
    a.ids = dev_copy(&b, ids, sizeof ids);
    a.vectors = dev_copy(&b, vectors, sizeof vectors);
    a.out = dev(&b, sizeof out);
    b.k->ops->gather(b.k, &a);
    get_act(&b, out, a.out, ARRAY_LEN(out));
    for (int i = 0; i < 18; i++) {
        const uint16_t *row = i / 6 == 2 ? own : table + 3 * ids[i / 6];

        assert_int_equal(f32_bits(out[i]), (uint32_t)row[i % 3] << 16);
    }
    bench_close(&b);
}

static void test_keep_rows_packs_rows_at_the_start(void **state)
{
    const uint16_t before[6 * 3] = {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5};
    const int32_t rows[3] = {0, 2, 5};
    uint16_t got[3 * 3];
    keep_rows_args a = {.n = 3, .row_bytes = 6};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    a.rows = dev_copy(&b, rows, sizeof rows);
    a.buf = dev_copy(&b, before, sizeof before);
    b.k->ops->keep_rows(b.k, &a);
    get_bytes(&b, got, a.buf, sizeof got);
    for (int i = 0; i < 9; i++)
        assert_int_equal(got[i], rows[i / 3]);
    bench_close(&b);
}

/* x = key, all weights 1: the normalised product is sqrt(dim); copies with another sign or size. */
static void test_engram_gate(void **state)
{
    enum { HC = 2, DIM = 64 };
    float x[2 * HC * DIM], kv[2 * (HC + 1) * DIM], gate[2 * HC], got[2 * HC * DIM];
    const uint8_t image[2] = {0, 1};
    uint16_t one[HC * DIM];
    engram_apply_args a = {.n = 2, .hc = HC, .dim = DIM, .eps = 1e-20f};
    double open = 1 / (1 + exp(-sqrt(sqrt(DIM)))), shut = 1 / (1 + exp(sqrt(sqrt(DIM))));
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    for (int i = 0; i < HC * DIM; i++)
        one[i] = bf16_from_f32(1);
    for (int r = 0; r < 2; r++)
        for (int d = 0; d < DIM; d++) {
            float sign = d % 3 ? 1.0f : -1.0f;

            x[(r * HC + 0) * DIM + d] = 2 * sign;
            x[(r * HC + 1) * DIM + d] = 0.5f * sign;
            kv[(r * (HC + 1) + 0) * DIM + d] = 8 * sign;
            kv[(r * (HC + 1) + 1) * DIM + d] = -sign;
            kv[(r * (HC + 1) + 2) * DIM + d] = 16;
        }
    a.x = dev_act(&b, x, ARRAY_LEN(x));
    a.kv = dev_act(&b, kv, ARRAY_LEN(kv));
    a.q_w = load_one(&b, WEIGHT_VEC_BF16, one, NULL, HC, DIM);
    a.k_w = load_one(&b, WEIGHT_VEC_BF16, one, NULL, HC, DIM);
    a.image = dev_copy(&b, image, sizeof image);
    a.gate = dev(&b, sizeof gate);
    b.k->ops->engram_apply(b.k, &a);
    get_bytes(&b, gate, a.gate, sizeof gate);
    get_act(&b, got, a.x, ARRAY_LEN(got));
    assert_close((double)gate[0], open, 1e-6);
    assert_close((double)gate[1], shut, 1e-6);
    assert_close((double)gate[2], 0, 0);
    for (int i = 0; i < HC * DIM; i++) {
        double want = (double)x[i] + 16 * (i < DIM ? open : shut);

        assert_close((double)got[i], want, fabs(want) / 256);
        assert_true(got[HC * DIM + i] == x[HC * DIM + i]); /* an image row passes unchanged */
    }
    bench_close(&b);
}

static void test_engram_rows_are_laid_side_by_side(void **state)
{
    enum { DIM = 32, ROWS = 3 };
    uint8_t code[ROWS * DIM], identity[4096] = {0};
    const uint8_t scale[ROWS] = {127, 120, 130}, one[4] = {127, 127, 127, 127};
    const int64_t ids[4] = {2, 0, 1, 1};
    float y[2 * 2 * DIM];
    engram_gather_args a = {.n = 2, .n_cols = 2};
    linear_args lin = {.n = 2, .out = LINEAR_F32};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    for (int i = 0; i < ROWS * DIM; i++)
        code[i] = (uint8_t)(0x30 + i / DIM); /* few bits: exact behind Q8 */
    for (int i = 0; i < 2 * DIM; i++)
        identity[i * 2 * DIM + i] = ONE_E4M3;
    a.table = load_one(&b, WEIGHT_FP8_TABLE, code, scale, ROWS, DIM);
    a.ids = dev_copy(&b, ids, sizeof ids);
    a.out_q8 = dev(&b, 2 * b.k->ops->q8_row_bytes(b.k, 2 * DIM));
    b.k->ops->engram_gather(b.k, &a);
    lin.w = load_one(&b, WEIGHT_FP8, identity, one, 2 * DIM, 2 * DIM);
    lin.x = a.out_q8;
    lin.y = dev(&b, sizeof y);
    b.k->ops->linear(b.k, &lin);
    get_bytes(&b, y, lin.y, sizeof y);
    for (int i = 0; i < 4 * DIM; i++) {
        int64_t row = ids[i / DIM];

        assert_true(y[i] == e4m3_to_f32(code[row * DIM]) * ue8m0_to_f32(scale[row]));
    }
    bench_close(&b);
}

/* Router: the bias steers the choice and not the weights, ties go to the lower id. */
static void test_route(void **state)
{
    enum { E = 6 };
    const float logits[3 * E] = {0, 1, 1, -30, 30, 1, 0, 1, 1, -30, 30, 1, 2, 2, 2, 2, 2, 2};
    const float bias[E] = {100, 0, 0, 0, 0, 0}, bias_vl[E] = {0, 0, 0, 200, 0, 0};
    const uint8_t image[3] = {0, 1, 0};
    int32_t ids[9];
    float w[9];
    double s0 = sqrt(log1p(exp(0))), s1 = sqrt(log1p(exp(1))), s30 = sqrt(30);
    double sum = s0 + s1 + s30;
    route_args a = {.n = 3, .n_experts = E, .k = 3, .normalize = true, .scale = 1.5f};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    a.logits = dev_copy(&b, logits, sizeof logits);
    a.bias = load_one(&b, WEIGHT_VEC_F32, bias, NULL, 1, E);
    a.bias_vl = load_one(&b, WEIGHT_VEC_F32, bias_vl, NULL, 1, E);
    a.image = dev_copy(&b, image, sizeof image);
    a.ids = dev(&b, sizeof ids);
    a.weights = dev(&b, sizeof w);
    b.k->ops->route(b.k, &a);
    get_bytes(&b, ids, a.ids, sizeof ids);
    get_bytes(&b, w, a.weights, sizeof w);
    assert_int_equal(ids[0], 0); /* by its bias */
    assert_int_equal(ids[1], 4);
    assert_int_equal(ids[2], 1); /* of 1, 2 and 5 */
    assert_close((double)w[0], 1.5 * s0 / sum, 1e-6);
    assert_close((double)w[1], 1.5 * s30 / sum, 1e-6);
    assert_close((double)w[2], 1.5 * s1 / sum, 1e-6);
    assert_int_equal(ids[3], 3); /* the image row's own bias */
    assert_int_equal(ids[4], 4);
    assert_int_equal(ids[5], 1);
    assert_int_equal(ids[6], 0);
    assert_int_equal(ids[7], 1);
    assert_int_equal(ids[8], 2);
    assert_close((double)w[8], 0.5, 1e-6);
    a.normalize = false;
    b.k->ops->route(b.k, &a);
    get_bytes(&b, w, a.weights, sizeof w);
    assert_close((double)w[1], 1.5 * s30, 1e-5);
    bench_close(&b);
}

enum { EXPERT_DIM = 32 };

/* Experts whose matrices are identities times powers of two. */
typedef struct tiny_experts {
    uint8_t fp4[EXPERT_DIM * EXPERT_DIM / 2], fp8[EXPERT_DIM * EXPERT_DIM];
    uint8_t scale[3][EXPERT_DIM], one[EXPERT_DIM], zero;
    fp4_part up[3], down[3];
    experts_src src;
} tiny_experts;

static void tiny_experts_init(tiny_experts *t, const uint8_t down_scale[3], uint8_t shared_down)
{
    static uint8_t shared;

    *t = (tiny_experts){0};
    for (int i = 0; i < EXPERT_DIM; i++) {
        t->fp4[(i * EXPERT_DIM + i) / 2] = (uint8_t)(ONE_E2M1 << (i % 2 ? 4 : 0));
        t->fp8[i * EXPERT_DIM + i] = ONE_E4M3;
        t->one[i] = 127;
    }
    for (int e = 0; e < 3; e++) {
        memset(t->scale[e], down_scale[e], EXPERT_DIM);
        t->up[e] = (fp4_part){.data = t->fp4, .scale = t->one};
        t->down[e] = (fp4_part){.data = t->fp4, .scale = t->scale[e]};
    }
    shared = shared_down;
    t->src = (experts_src){.name = "tiny",
                           .n_experts = 3,
                           .hidden = EXPERT_DIM,
                           .inter = EXPERT_DIM,
                           .w1 = t->up,
                           .w3 = t->up,
                           .w2 = t->down,
                           .shared_w1 = {.data = t->fp8, .scale = t->one, .rows = EXPERT_DIM},
                           .shared_w3 = {.data = t->fp8, .scale = t->one, .rows = EXPERT_DIM},
                           .shared_w2 = {.data = t->fp8, .scale = &shared, .rows = EXPERT_DIM}};
}

static void run_experts(const char *backend, const tiny_experts *t, const float *x,
                        const int32_t *ids, const float *w, int k, float limit, float *y)
{
    experts_args a = {.n = 1, .k = k, .limit = limit};
    weight *loaded = NULL;
    bench b;

    bench_open(&b, backend, NUMERICS_RELEASE);
    assert_int_equal(b.k->ops->load_experts(b.k, &t->src, &loaded, NULL), DI_OK);
    b.weight[b.n_weights++] = loaded;
    a.w = loaded;
    a.x_q8 = dev_q8(&b, x, 1, EXPERT_DIM);
    a.ids = dev_copy(&b, ids, (size_t)k * sizeof *ids);
    a.weights = dev_copy(&b, w, (size_t)k * sizeof *w);
    a.y = dev(&b, EXPERT_DIM * sizeof *y);
    b.k->ops->experts(b.k, &a);
    get_act(&b, y, a.y, EXPERT_DIM);
    bench_close(&b);
}

/* bf(x) behind Q8, alone in its group of 32 but for `most`. */
static float q8_of(float x, float most)
{
    float group[32] = {most, bf16_round(x)}, y[32];
    uint8_t code[32], scale;

    q8_encode(code, &scale, group, 32);
    q8_decode(y, code, &scale, 32);
    return y[1];
}

/* g = u = x through the identities, so y = Q8(bf(w * silu(x) * x)) of the expert, and the shared
 * expert's without w. The limit holds g from above and u from both sides. */
static void test_experts_formula(void **state)
{
    const uint8_t down[3] = {127, 127, 128};
    const int32_t ids[1] = {2};
    const float w[1] = {0.75f}, value[8] = {0.5f, 1, -1, 2, 3, -4, 12, -12};
    float x[EXPERT_DIM], y[EXPERT_DIM];
    float most_routed = 0, most_shared = 0, routed[8], shared[8];
    tiny_experts t;

    for (int i = 0; i < EXPERT_DIM; i++)
        x[i] = value[i % 8];
    for (int i = 0; i < 8; i++) {
        float g = fminf(value[i], 10), u = fminf(fmaxf(value[i], -10), 10);
        float h = g / (1.0f + expf(-g)) * u;

        routed[i] = bf16_round(w[0] * h);
        shared[i] = bf16_round(h);
        most_routed = fmaxf(most_routed, fabsf(routed[i]));
        most_shared = fmaxf(most_shared, fabsf(shared[i]));
    }
    tiny_experts_init(&t, down, 127);
    run_experts(*state, &t, x, ids, w, 1, 10, y);
    for (int i = 0; i < EXPERT_DIM; i++) {
        float want =
            bf16_round(2 * q8_of(routed[i % 8], most_routed) + q8_of(shared[i % 8], most_shared));

        assert_close((double)y[i], (double)want, fabs((double)want) * 0x1p-7);
    }
}

/* 2^24 + 1 - 2^24 in f32: 0 in ascending order of expert, 1 in the order of the ids. */
static void test_expert_outputs_are_added_in_ascending_id(void **state)
{
    const uint8_t down[3] = {127 + 24, 127, 127 + 24};
    const int32_t ids[3] = {2, 0, 1};
    float x[EXPERT_DIM], y[EXPERT_DIM], w[3];
    float h = 4.0f / (1.0f + expf(-2.0f)); /* silu(2) * 2 */
    tiny_experts t;

    for (int i = 0; i < EXPERT_DIM; i++)
        x[i] = 2;
    w[0] = -1 / h; /* expert 2 */
    w[1] = 1 / h;
    w[2] = 1 / h;
    tiny_experts_init(&t, down, 0); /* the shared expert adds next to nothing */
    run_experts(*state, &t, x, ids, w, 3, 10, y);
    for (int i = 0; i < EXPERT_DIM; i++)
        assert_close((double)y[i], 0, 1e-30);
}

static void test_confidence_is_a_product_with_both_parts(void **state)
{
    uint16_t w[64];
    float h[2 * 32], e[2 * 32], out[2];
    confidence_args a = {.n = 2, .dim = 32, .rank = 32};
    bench b;

    bench_open(&b, *state, NUMERICS_RELEASE);
    for (int i = 0; i < 64; i++)
        w[i] = bf16_from_f32(i < 32 ? 1.0f : -0.5f);
    for (int i = 0; i < 64; i++) {
        h[i] = i < 32 ? 1 : 2;
        e[i] = i < 32 ? 4 : 0;
    }
    a.w = load_one(&b, WEIGHT_BF16, w, NULL, 1, 64);
    a.h = dev_act(&b, h, 64);
    a.e = dev_act(&b, e, 64);
    a.out = dev(&b, sizeof out);
    b.k->ops->confidence(b.k, &a);
    get_bytes(&b, out, a.out, sizeof out);
    assert_close((double)out[0], 32 - 64, 0);
    assert_close((double)out[1], 64, 0);
    bench_close(&b);
}

/* Numerics f32 of ref: nothing is rounded. */
static void test_f32_numerics_round_nothing(void **state)
{
    float x[32], y[32];
    uint8_t identity[32 * 32] = {0}, scale = 127;
    linear_args lin = {.n = 1, .out = LINEAR_ACT};
    bench b;

    (void)state;
    bench_open(&b, "ref", NUMERICS_F32);
    for (int i = 0; i < 32; i++) {
        x[i] = 1.0f / (float)(i + 3);
        identity[33 * i] = ONE_E4M3;
    }
    lin.w = load_one(&b, WEIGHT_FP8, identity, &scale, 32, 32);
    lin.x = dev_q8(&b, x, 1, 32);
    lin.y = dev(&b, sizeof y);
    b.k->ops->linear(b.k, &lin);
    get_act(&b, y, lin.y, 32);
    assert_memory_equal(y, x, sizeof x);
    bench_close(&b);
}

int main(void)
{
    static const struct {
        const char *name;
        CMUnitTestFunction test;
    } all[] = {
        {"quantize equals the vector of the specification",
         test_quantize_equals_the_vector_of_the_specification},
        {"fp8 linear uses the scale of each tile", test_fp8_linear_uses_the_scale_of_each_tile},
        {"grouped linear is block diagonal", test_grouped_linear_is_block_diagonal},
        {"bf16 linear accumulates", test_bf16_linear_accumulates},
        {"hc mix equals the vector of the specification",
         test_hc_mix_equals_the_vector_of_the_specification},
        {"hc expand sums over the first index", test_hc_expand_sums_over_the_first_index},
        {"hc collapse and norm", test_hc_collapse_and_norm},
        {"tap is the mean of the copies", test_tap_is_the_mean_of_the_copies},
        {"rope angles are products in f32", test_rope_angles_are_products_in_f32},
        {"gather repeats rows and takes vectors", test_gather_repeats_rows_and_takes_vectors},
        {"keep rows packs rows at the start", test_keep_rows_packs_rows_at_the_start},
        {"engram gate", test_engram_gate},
        {"engram rows are laid side by side", test_engram_rows_are_laid_side_by_side},
        {"route", test_route},
        {"experts formula", test_experts_formula},
        {"expert outputs are added in ascending id", test_expert_outputs_are_added_in_ascending_id},
        {"confidence is a product with both parts", test_confidence_is_a_product_with_both_parts},
    };
    struct CMUnitTest tests[64];
    int n = 0;

    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        n = for_every_backend(tests, n, all[i].name, all[i].test);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_f32_numerics_round_nothing);
    return _cmocka_run_group_tests("formulas", tests, (size_t)n, NULL, NULL);
}
