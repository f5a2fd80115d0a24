/* The case table: sizes of 1, odd ones, one below and above a tile, and the real model's. Those
 * with .bench are what bench_kernels measures, 64 of the 384 experts of a layer among them. */
#include "kernels/op_cases.h"

/* bf16 outputs of f32 sums whose order is free. */
#define ACT_TOL .rel = 1e-5, .abs = 1e-5, .flips = 0.01
/* Attention and experts round inside: one flip moves many outputs by a step. */
#define DEEP_TOL .rel = 1e-5, .abs = 1e-2, .flips = 0.03
/* ... and the device rounds probabilities relative to powers of two, not to the maximum. */
#define SOFTMAX_TOL DEEP_TOL, .device_rms = 4e-3
/* f32 outputs: all may differ in their last bits. */
#define F32_TOL .rel = 1e-5, .abs = 1e-5, .flips = 1
#define EXACT   .flips = 0

#define FP8(name_, out_, cols_, ...)                                                               \
    {                                                                                              \
        .op = OP_LINEAR, .name = name_, .kind = WEIGHT_FP8, .out = out_, .cols = cols_,            \
        __VA_ARGS__                                                                                \
    }
#define BF16(name_, out_, cols_, ...)                                                              \
    {                                                                                              \
        .op = OP_LINEAR, .name = name_, .kind = WEIGHT_BF16, .out = out_, .cols = cols_,           \
        __VA_ARGS__                                                                                \
    }
#define HC(name_, hc_, dim_, flags_, ...)                                                          \
    {                                                                                              \
        .op = OP_HC, .name = name_, .hc = hc_, .dim = dim_, .flags = flags_, .rel = 2e-5,          \
        .abs = 1e-4, .flips = 0.02, __VA_ARGS__                                                    \
    }
#define HC_ALL (OP_HC_EXPAND | OP_HC_MIX | OP_HC_COLLAPSE)
#define SEQ(op_, name_, ...)                                                                       \
    {                                                                                              \
        .op = op_, .name = name_, __VA_ARGS__                                                      \
    }
#define GEMV_FP8 .flags = OP_BENCH, .bench = "fp8_gemv"
#define GEMM_FP8 .flags = OP_BENCH, .bench = "fp8_gemm"
#define EXPERTS_64(name_, ...)                                                                     \
    {                                                                                              \
        .op = OP_EXPERTS, .name = name_, .n_experts = 64, .dim = 5120, .inter = 2304,              \
        .flags = OP_BENCH, __VA_ARGS__                                                             \
    }
#define SAMPLE(name_, row_)                                                                        \
    {                                                                                              \
        .op = OP_SAMPLE, .name = (name_), .items = 8, .out = 129280, .row = (row_), EXACT,         \
        .flags = OP_BIG, .bench = "sample"                                                         \
    }
#define INDEX .cols = 128, .dim = 32, .rope = 64

static const sample_row greedy = {.top_p = 1};
static const sample_row plain = {.temperature = 1, .top_p = 1};
static const sample_row top_p = {.temperature = 1, .top_p = 0.95f};
static const sample_row top_k = {.temperature = 0.6f, .top_p = 1, .top_k = 50};

const op_case op_cases[] = {
    {.op = OP_GATHER, .name = "wide", .items = 9, .cols = 5120, .k = 4, EXACT},
    {.op = OP_GATHER, .name = "one copy", .items = 300, .cols = 96, .k = 1, EXACT},

    {.op = OP_ROPE_ROWS, .name = "real", .items = 300, .rope = 64, F32_TOL},
    {.op = OP_ROPE_ROWS, .name = "one pair", .items = 3, .rope = 2, F32_TOL},

    {.op = OP_KEEP_ROWS, .name = "real", .items = 40, .cols = 5120, EXACT},
    {.op = OP_KEEP_ROWS, .name = "odd", .items = 300, .cols = 33, EXACT},
    {.op = OP_KEEP_ROWS, .name = "one", .items = 1, .cols = 1, EXACT},

    {.op = OP_ENGRAM_GATHER, .name = "real", .items = 9, .dim = 256, .k = 24, EXACT},
    {.op = OP_ENGRAM_GATHER, .name = "small", .items = 300, .dim = 32, .k = 6, EXACT},

    {.op = OP_ENGRAM_APPLY, .name = "real", .items = 9, .hc = 4, .dim = 5120, ACT_TOL},
    {.op = OP_ENGRAM_APPLY,
     .name = "small",
     .items = 300,
     .hc = 4,
     .dim = 96,
     ACT_TOL,
     .flags = OP_EXTREMES},

    HC("all", 4, 5120, HC_ALL, .items = 9),
    HC("all, small", 4, 96, HC_ALL, .items = 300),
    HC("many rows", 4, 640, HC_ALL, .items = 100),
    HC("extremes", 4, 256, HC_ALL | OP_EXTREMES, .items = 33),
    HC("collapse of chosen rows", 4, 256, OP_HC_COLLAPSE | OP_HC_ROWS, .items = 17),
    HC("expand", 4, 160, OP_HC_EXPAND, .items = 5),
    HC("mix", 4, 160, OP_HC_MIX, .items = 5),
    HC("expand mix collapse norm 1 row", 4, 5120, HC_ALL | OP_BENCH, .items = 1, .copies = 240,
       .bench = "hc"),
    HC("expand mix collapse norm 512 rows", 4, 5120, HC_ALL | OP_BENCH, .items = 512,
       .bench = "hc"),

    {.op = OP_TAP, .name = "real", .items = 5, .hc = 4, .dim = 5120, ACT_TOL},
    {.op = OP_TAP, .name = "small", .items = 300, .hc = 4, .dim = 96, ACT_TOL},

    {.op = OP_QUANTIZE, .name = "extremes", .items = 300, .cols = 512, .flags = OP_EXTREMES, EXACT},
    {.op = OP_QUANTIZE, .name = "one group", .items = 17, .cols = 32, EXACT},

    FP8("smallest", 1, 32, .items = 1, ACT_TOL),
    FP8("odd", 33, 96, .items = 300, ACT_TOL),
    FP8("tile - 1", 31, 256, .items = 17, ACT_TOL),
    FP8("tile + 1", 65, 2016, .items = 9, ACT_TOL),
    FP8("extremes", 64, 512, .items = 33, .flags = OP_EXTREMES, ACT_TOL),
    FP8("two parts", 192, 160, .items = 18, .flags = OP_TWO_PARTS, ACT_TOL),
    FP8("q8 out", 160, 224, .items = 40, .to = LINEAR_Q8, ACT_TOL),
    FP8("f32 out", 48, 1280, .items = 7, .to = LINEAR_F32, F32_TOL),
    FP8("grouped", 128, 256, .items = 17, .groups = 4, .to = LINEAR_Q8, .flags = OP_X_IS_ACT,
        ACT_TOL),
    FP8("one group", 64, 96, .items = 5, .groups = 1, .flags = OP_X_IS_ACT, ACT_TOL),
    BF16("smallest", 1, 1, .items = 1, ACT_TOL),
    BF16("odd", 33, 95, .items = 300, ACT_TOL),
    BF16("f32 out", 48, 5120, .items = 9, .to = LINEAR_F32, F32_TOL),
    BF16("two parts", 64, 96, .items = 17, .to = LINEAR_F32, .flags = OP_TWO_PARTS, F32_TOL),
    BF16("accumulate", 129, 256, .items = 5, .to = LINEAR_F32, .flags = OP_ACCUMULATE, F32_TOL),
    FP8("whole panels", 256, 384, .items = 150, ACT_TOL),
    FP8("whole panels, f32", 128, 1024, .items = 150, .to = LINEAR_F32, F32_TOL),
    FP8("whole panels, groups", 512, 256, .items = 150, .groups = 4, .to = LINEAR_Q8,
        .flags = OP_X_IS_ACT, ACT_TOL),
    FP8("whole panels, narrow groups", 512, 128, .items = 40, .groups = 8, .flags = OP_X_IS_ACT,
        ACT_TOL),
    BF16("whole panels", 384, 512, .items = 150, ACT_TOL),
    BF16("whole panels, accumulate", 128, 256, .items = 70, .to = LINEAR_F32,
         .flags = OP_ACCUMULATE, F32_TOL),
    FP8("wq_b 32768x1280 1 row", 32768, 1280, .items = 1, .copies = 16, GEMV_FP8),
    FP8("wq_b 32768x1280 16 rows", 32768, 1280, .items = 16, .flags = OP_BIG, ACT_TOL,
        .bench = "fp8_gemm"),
    FP8("wq_b 32768x1280 512 rows", 32768, 1280, .items = 512, GEMM_FP8),
    FP8("wo_b 5120x8192 1 row", 5120, 8192, .items = 1, .copies = 16, GEMV_FP8),
    FP8("wo_b 5120x8192 16 rows", 5120, 8192, .items = 16, .flags = OP_BIG, ACT_TOL,
        .bench = "fp8_gemm"),
    FP8("wo_b 5120x8192 512 rows", 5120, 8192, .items = 512, GEMM_FP8),
    FP8("wq_a+wkv 1792x5120 1 row", 1792, 5120, .items = 1, .copies = 64,
        .flags = OP_BENCH | OP_TWO_PARTS, .bench = "fp8_gemv"),
    FP8("wq_a+wkv 1792x5120 16 rows", 1792, 5120, .items = 16, .flags = OP_BIG | OP_TWO_PARTS,
        ACT_TOL, .bench = "fp8_gemm"),
    FP8("wq_a+wkv 1792x5120 512 rows", 1792, 5120, .items = 512, .flags = OP_BENCH | OP_TWO_PARTS,
        .bench = "fp8_gemm"),
    FP8("wo_a", 8192, 4096, .items = 16, .groups = 8, .to = LINEAR_Q8,
        .flags = OP_BIG | OP_X_IS_ACT, ACT_TOL),
    FP8("engram wkv", 25600, 6144, .items = 16, .flags = OP_BIG, ACT_TOL),
    BF16("router", 384, 5120, .items = 16, .to = LINEAR_F32, .flags = OP_BIG, F32_TOL),
    BF16("compressor", 1024, 5120, .items = 16, .to = LINEAR_F32, .flags = OP_BIG | OP_TWO_PARTS,
         F32_TOL),
    BF16("index key", 128, 512, .items = 16, .flags = OP_BIG, ACT_TOL),
    BF16("head, an eighth", 16160, 5120, .items = 4, .to = LINEAR_F32, .flags = OP_BIG, F32_TOL),

    BF16("head 129280x5120 1 row", 129280, 5120, .items = 1, .flags = OP_BENCH,
         .bench = "bf16_gemv"),
    BF16("head 129280x5120 16 rows", 129280, 5120, .items = 16, .flags = OP_BENCH,
         .bench = "bf16_gemm"),

    {.op = OP_QKV, .name = "real", .items = 9, .cols = 1280, .dim = 512, .rope = 64, ACT_TOL},
    {.op = OP_QKV,
     .name = "small",
     .items = 300,
     .cols = 96,
     .dim = 64,
     .rope = 16,
     ACT_TOL,
     .flags = OP_EXTREMES},
    {.op = OP_QKV, .name = "many rows", .items = 530, .cols = 416, .dim = 192, .rope = 64, ACT_TOL},
    {.op = OP_QKV, .name = "keys only", .items = 5, .dim = 512, .rope = 64, ACT_TOL},

    SEQ(OP_COMPRESS_POOL, "ratio 2", .items = 9, .dim = 512, .cols = 128, .ratio = 2, .len = 61,
        .chunk = 9, ACT_TOL),
    SEQ(OP_COMPRESS_POOL, "ratio 2, few rows", .items = 9, .dim = 512, .cols = 128, .ratio = 2,
        .len = 61, .chunk = 6, .flags = OP_AT_ONCE, ACT_TOL),
    SEQ(OP_COMPRESS_POOL, "ratio 2, single rows", .items = 300, .dim = 64, .cols = 32, .ratio = 2,
        ACT_TOL),
    SEQ(OP_COMPRESS_POOL, "ratio 4", .items = 9, .dim = 96, .cols = 32, .ratio = 4, .len = 3,
        .chunk = 30, ACT_TOL),
    SEQ(OP_COMPRESS_POOL, "ratio 1", .items = 9, .dim = 512, .cols = 128, .ratio = 1, .len = 5,
        .chunk = 6, ACT_TOL),
    SEQ(OP_COMPRESS_STORE, "ratio 2", .items = 9, .dim = 512, .cols = 128, .rope = 64, .ratio = 2,
        .len = 61, .chunk = 9, ACT_TOL),
    SEQ(OP_COMPRESS_STORE, "ratio 1", .items = 9, .dim = 64, .cols = 32, .rope = 16, .ratio = 1,
        .len = 120, .chunk = 20, ACT_TOL),

    SEQ(OP_INDEX_SCORES, "all visible", .items = 5, .heads = 32, INDEX, .ratio = 2, .len = 600,
        .k = 64, .chunk = 7, F32_TOL),
    SEQ(OP_INDEX_SCORES, "odd heads", .items = 40, .heads = 12, INDEX, .ratio = 1, .len = 31,
        .k = 16, F32_TOL),
    SEQ(OP_INDEX_SCORES, "source", .items = 5, .heads = 8, INDEX, .ratio = 1, .len = 70, .k = 512,
        .chunk = 7, .blocks = 12, .block = 8, .flags = OP_SOURCE, F32_TOL),
    SEQ(OP_INDEX_SCORES, "filtered", .items = 5, .heads = 32, INDEX, .ratio = 1, .len = 300,
        .k = 33, .chunk = 7, .blocks = 12, .block = 8, .flags = OP_FILTER, F32_TOL),

    SEQ(OP_INDEX_SCORES, "groups of rows", .items = 6, .heads = 32, INDEX, .ratio = 1, .len = 200,
        .k = 64, .chunk = 21, F32_TOL),
    SEQ(OP_INDEX_SCORES, "scales far apart", .items = 5, .heads = 32, INDEX, .ratio = 1, .len = 300,
        .k = 33, .chunk = 7, .flags = OP_SPREAD, F32_TOL),
    SEQ(OP_INDEX_SCORES, "scales far apart, odd heads", .items = 9, .heads = 12, INDEX, .ratio = 2,
        .len = 131, .k = 16, .chunk = 5, .flags = OP_SPREAD, F32_TOL),

    SEQ(OP_SELECT, "ties", .items = 40, INDEX, .ratio = 2, .len = 40, .k = 33, .chunk = 7, EXACT),
    SEQ(OP_SELECT, "top 512", .items = 5, INDEX, .ratio = 1, .len = 3000, .k = 512, .chunk = 3,
        EXACT),
    SEQ(OP_SELECT, "source", .items = 9, INDEX, .ratio = 1, .len = 3, .k = 48, .chunk = 5,
        .blocks = 12, .block = 8, .flags = OP_SOURCE, EXACT),
    SEQ(OP_SELECT, "filtered", .items = 9, INDEX, .ratio = 1, .len = 100, .k = 33, .chunk = 5,
        .blocks = 12, .block = 8, .flags = OP_FILTER, EXACT),
    SEQ(OP_SELECT, "more than a block holds", .items = 4, INDEX, .ratio = 1, .len = 33001, .k = 512,
        .chunk = 2, EXACT),
    SEQ(OP_SELECT, "blocks of a long source", .items = 3, INDEX, .ratio = 1, .len = 20000, .k = 512,
        .chunk = 2, .blocks = 2048, .block = 8, .flags = OP_SOURCE, EXACT),
    SEQ(OP_SELECT, "many candidates", .items = 3, INDEX, .ratio = 1, .len = 20000, .k = 512,
        .chunk = 2, .blocks = 2048, .block = 8, .flags = OP_FILTER, EXACT),
    SEQ(OP_SELECT, "nothing visible", .items = 3, INDEX, .ratio = 4, .len = 0, .k = 8, EXACT),

    SEQ(OP_ATTENTION, "real", .items = 3, .heads = 64, .dim = 512, .cols = 128, .rope = 64,
        .ratio = 2, .len = 900, .k = 320, .chunk = 2, SOFTMAX_TOL),
    SEQ(OP_ATTENTION, "few heads", .items = 9, .heads = 3, .dim = 512, .cols = 32, .rope = 64,
        .ratio = 1, .len = 120, .k = 33, .chunk = 7, SOFTMAX_TOL),
    SEQ(OP_ATTENTION, "from the start", .items = 6, .heads = 8, .dim = 512, .cols = 32, .rope = 64,
        .ratio = 1, .len = 0, .k = 17, .chunk = 40, SOFTMAX_TOL),
    SEQ(OP_ATTENTION, "window only, single rows", .items = 300, .heads = 1, .dim = 64, .cols = 32,
        .rope = 16, .ratio = 1, .len = 1, .flags = OP_NO_COMPRESSED, SOFTMAX_TOL),
    SEQ(OP_ATTENTION, "draft", .items = 5, .heads = 4, .dim = 512, .cols = 32, .rope = 64,
        .ratio = 1, .len = 3, .chunk = 5, .flags = OP_DRAFT, SOFTMAX_TOL),
    SEQ(OP_ATTENTION, "64 heads x 512 on 128 + 512 keys 8 rows", .items = 8, .heads = 64,
        .dim = 512, .cols = 128, .rope = 64, .ratio = 1, .len = 4000, .k = 512, .flags = OP_BIG,
        SOFTMAX_TOL, .bench = "attention"),
    SEQ(OP_INDEX_SCORES, "32 heads x 128 on 131072 entries 1 row", .items = 1, .heads = 32, INDEX,
        .ratio = 1, .len = 131071, .k = 512, .flags = OP_BIG, F32_TOL, .bench = "index_scores"),
    SEQ(OP_INDEX_SCORES, "32 heads x 128 on 16384 entries in chunks", .items = 4, .heads = 32,
        INDEX, .ratio = 1, .len = 16384, .k = 512, .chunk = 17, .flags = OP_BIG, F32_TOL,
        .bench = "index_scores"),
    SEQ(OP_SELECT, "512 of 131072", .items = 1, INDEX, .ratio = 1, .len = 131071, .k = 512,
        .flags = OP_BIG, EXACT, .bench = "select"),

    SEQ(OP_RING_COMMIT, "short", .items = 9, .dim = 64, .cols = 32, .ratio = 1, .len = 130,
        .chunk = 7, EXACT),
    SEQ(OP_RING_COMMIT, "longer than the ring", .items = 4, .dim = 64, .cols = 32, .ratio = 1,
        .len = 3, .chunk = 300, EXACT),
    SEQ(OP_RING_COMMIT, "at once", .items = 9, .dim = 512, .cols = 128, .rope = 64, .ratio = 2,
        .len = 130, .chunk = 6, .flags = OP_AT_ONCE, ACT_TOL),
    SEQ(OP_RING_COMMIT, "at once, longer than the ring", .items = 4, .dim = 64, .cols = 32,
        .rope = 16, .ratio = 1, .len = 3, .chunk = 300, .flags = OP_AT_ONCE, ACT_TOL),

    {.op = OP_ROUTE, .name = "384 experts", .items = 300, .n_experts = 384, .k = 6, F32_TOL},
    {.op = OP_ROUTE, .name = "one of five", .items = 17, .n_experts = 5, .k = 1, F32_TOL},
    {.op = OP_ROUTE,
     .name = "not normalised",
     .items = 17,
     .n_experts = 128,
     .k = 3,
     F32_TOL,
     .flags = OP_HC_ROWS},

    {.op = OP_EXPERTS,
     .name = "small",
     .items = 40,
     .n_experts = 12,
     .k = 3,
     .dim = 160,
     .inter = 96,
     DEEP_TOL},
    {.op = OP_EXPERTS,
     .name = "one expert",
     .items = 5,
     .n_experts = 4,
     .k = 1,
     .dim = 96,
     .inter = 160,
     DEEP_TOL},
    {.op = OP_EXPERTS,
     .name = "many rows",
     .items = 300,
     .n_experts = 6,
     .k = 2,
     .dim = 64,
     .inter = 32,
     DEEP_TOL},
    {.op = OP_EXPERTS,
     .name = "whole panels",
     .items = 150,
     .n_experts = 8,
     .k = 3,
     .dim = 256,
     .inter = 128,
     DEEP_TOL},
    {.op = OP_EXPERTS,
     .name = "with routing",
     .items = 150,
     .n_experts = 40,
     .k = 6,
     .dim = 256,
     .inter = 128,
     .rel = 1e-5,
     .abs = 5e-2, /* see "real" */
     .flips = 0.03,
     .flags = OP_AT_ONCE},
    {.op = OP_EXPERTS,
     .name = "with routing, many slots",
     .items = 350,
     .n_experts = 12,
     .k = 6,
     .dim = 256,
     .inter = 128,
     .rel = 1e-5,
     .abs = 1e-1, /* ... which weighs more among 128: 6e-2 seen */
     .flips = 0.03,
     .flags = OP_AT_ONCE},
    {.op = OP_EXPERTS,
     .name = "thousands of slots",
     .items = 1500,
     .n_experts = 9,
     .k = 3,
     .dim = 128,
     .inter = 128,
     .rel = 1e-5,
     .abs = 5e-2, /* as "real" */
     .flips = 0.03},
    {.op = OP_EXPERTS,
     .name = "extremes",
     .items = 17,
     .n_experts = 6,
     .k = 2,
     .dim = 256,
     .inter = 288,
     DEEP_TOL,
     .flags = OP_EXTREMES},
    {.op = OP_EXPERTS,
     .name = "real",
     .items = 16,
     .n_experts = 16,
     .k = 6,
     .dim = 5120,
     .inter = 2304,
     .rel = 1e-5,
     .abs = 5e-2, /* one code of Q8 in a large h: 2e-2 seen */
     .flips = 0.03,
     .flags = OP_BIG},

    EXPERTS_64("1 row on 6 of 64 experts and the shared", .items = 1, .k = 6, .bench = "fp4_gemv"),
    EXPERTS_64("1 row on 48 of 64 experts and the shared", .items = 1, .k = 48,
               .bench = "fp4_gemv"),
    EXPERTS_64("6 rows on 6 of 64 experts each and the shared", .items = 6, .k = 6,
               .bench = "fp4_gemm"),
    EXPERTS_64("171 rows with 16 per expert and the shared", .items = 171, .k = 6,
               .bench = "fp4_gemm"),
    EXPERTS_64("512 rows with 48 per expert and the shared", .items = 512, .k = 6,
               .bench = "fp4_gemm"),

    {.op = OP_CONFIDENCE, .name = "real", .items = 9, .dim = 5120, .cols = 256, F32_TOL},
    {.op = OP_CONFIDENCE, .name = "small", .items = 17, .dim = 96, .cols = 32, F32_TOL},

    {.op = OP_SAMPLE, .name = "small", .items = 300, .out = 1000, EXACT},
    {.op = OP_SAMPLE, .name = "odd", .items = 24, .out = 33, EXACT},
    {.op = OP_SAMPLE, .name = "real", .items = 9, .out = 129280, EXACT, .flags = OP_BIG},
    SAMPLE("129280 tokens greedy", &greedy),
    SAMPLE("129280 tokens temperature 1", &plain),
    SAMPLE("129280 tokens temperature 1 top-p 0.95", &top_p),
    SAMPLE("129280 tokens temperature 0.6 top-k 50", &top_k),
    {.op = OP_LOGPROBS, .name = "small", .items = 300, .out = 1000, .k = 5, F32_TOL},
    {.op = OP_LOGPROBS, .name = "odd", .items = 24, .out = 33, .k = 20, F32_TOL},
    {.op = OP_LOGPROBS,
     .name = "real",
     .items = 9,
     .out = 129280,
     .k = 20,
     F32_TOL,
     .flags = OP_BIG},
};

const int n_op_cases = (int)ARRAY_LEN(op_cases);

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* Widest input of a linear, a quantise or a fetch of q8 rows. */
static int linear_cols(const op_case *c)
{
    int n = max_int(c->cols * max_int(c->groups, 1), max_int(c->out, c->dim));

    n = max_int(n, c->dim + c->cols);
    return max_int(n, c->k * c->dim);
}

kernel_limits op_limits(const op_case *c, int n)
{
    kernel_limits l = {.window = 128, .cand_block = 8};

    for (; n > 0; c++, n--) {
        bool seq = op_is_sequence(c->op);
        int rows = c->items * max_int(c->chunk, 1);

        l.n_rows = max_int(l.n_rows, max_int(rows, 600));
        if (c->op == OP_SAMPLE || c->op == OP_LOGPROBS)
            l.n_logit_rows = max_int(l.n_logit_rows, c->items);
        l.hidden = max_int(l.hidden, c->dim);
        l.hc = max_int(l.hc, c->hc);
        l.n_heads = max_int(l.n_heads, c->heads);
        l.head_dim = max_int(l.head_dim, seq || c->op == OP_QKV ? c->dim : 0);
        if (c->op != OP_SAMPLE && c->op != OP_LOGPROBS)
            l.max_linear_cols = max_int(l.max_linear_cols, linear_cols(c));
        else
            l.vocab = max_int(l.vocab, c->out);
        l.moe_inter = max_int(l.moe_inter, c->inter);
        l.n_experts = max_int(l.n_experts, c->n_experts);
        if (c->op == OP_EXPERTS || c->op == OP_ROUTE)
            l.n_active = max_int(l.n_active, c->k);
        l.index_heads = max_int(l.index_heads, seq ? c->heads : 0);
        l.index_dim = max_int(l.index_dim, seq ? c->cols : 0);
        l.index_topk = max_int(l.index_topk, seq ? c->k : 0);
        l.cand_blocks = max_int(l.cand_blocks, c->blocks);
        if (c->len + c->chunk + 512 > l.context)
            l.context = c->len + c->chunk + 512;
    }
    return l;
}
