/* Instances of the operations on a step. An item is a sequence: it has len + 61 * (item % 7) tokens
 * behind it and 1 + (5 * item) % chunk rows in the step. Sizes of a case:
 *   compress_pool, compress_store   dim, cols = index dim, rope, ratio
 *   index_scores, select            heads, cols = index dim, rope, ratio, k = top-k, blocks, block
 *   attention, ring_commit          heads, dim, rope, ratio, k = top-k */
#include "kernels/op_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/quant.h"

#define WINDOW    128
#define MAX_DRAFT 5

/* A row of state in its format. */
static void put_row(const op_inst *o, uint8_t *row, const float *x, size_t d,
                    void (*encode)(uint8_t *, uint8_t *, const float *, size_t), size_t codes)
{
    if (o->layout.format == KV_F32)
        memcpy(row, x, d * sizeof *x);
    else
        encode(row, row + codes, x, d);
}

static void get_row(const op_inst *o, float *x, const uint8_t *row, size_t d,
                    void (*decode)(float *, const uint8_t *, const uint8_t *, size_t), size_t codes)
{
    if (o->layout.format == KV_F32)
        memcpy(x, row, d * sizeof *x);
    else
        decode(x, row, row + codes, d);
}

/* Host image of one sequence's state, as a view on host memory. */
static kv_view host_view(const op_inst *o, uint8_t *state, const int32_t *table, int64_t len)
{
    return (kv_view){
        .fixed = state, .blocks = state + o->layout.fixed_bytes, .table = table, .len = len};
}

/* Groups of 32 columns of every third row or key far apart, each 16 times the one before. */
static float spread(const op_case *c, int64_t row, int64_t column)
{
    return c->flags & OP_SPREAD && row % 3 == 1 ? (float)(1 << 4 * (column / 32 % 4)) : 1.0f;
}

/* Random content of everything the sequence has committed. */
static void fill_state(op_inst *o, int item, const kv_view *v)
{
    const kv_layout *l = &o->layout;
    size_t d = (size_t)l->head_dim, k = (size_t)l->index_dim;
    op_rng rng = op_rng_of(o->c, "state", item);
    float *x = op_host(o, d + k, sizeof *x);
    int64_t first = v->len > l->ring_rows ? v->len - l->ring_rows : 0;

    for (int64_t p = first; p < v->len; p++) {
        for (size_t i = 0; i < d; i++)
            x[i] = op_normal(&rng);
        put_row(o, kv_ring(l, v, 0, p), x, d, q8_encode, d);
        for (size_t i = 0; l->owner[0].open_rows && i < 2 * d; i++)
            kv_open(l, v, 0, p)[i] = op_normal(&rng);
    }
    for (int64_t e = 0; e < v->len / l->owner[0].ratio; e++) {
        for (size_t i = 0; i < d; i++)
            x[i] = op_normal(&rng);
        put_row(o, kv_latent(l, v, 0, e), x, d, q4c_encode, d / 2);
        for (size_t i = 0; i < k; i++)
            x[i] = op_normal(&rng) * spread(o->c, e, (int64_t)i);
        put_row(o, kv_key(l, v, 0, e), x, k, q4i_encode, k / 2);
    }
}

/* Item of every row, for the generators of rows: unique per (sequence, row). */
static int *row_items(op_inst *o)
{
    int *item = op_host(o, (size_t)o->s.n_rows, sizeof *item);

    for (int i = 0, r = 0; i < o->n; i++)
        for (int j = 0; r < o->row0[i + 1]; r++, j++)
            item[r] = o->item[i] * 1000 + j;
    return item;
}

static int64_t item_len(const op_case *c, int item)
{
    return c->len + 61 * (item % 7);
}

static int item_rows(const op_case *c, int item)
{
    return c->chunk > 1 ? 1 + 5 * item % c->chunk : 1;
}

static void build_step(op_inst *o)
{
    const op_case *c = o->c;
    int n_rows = 0, r = 0;
    int32_t *row0 = op_host(o, (size_t)o->n + 1, sizeof *row0), *seq, *table;
    int64_t *pos, n_blocks = (item_len(c, 6) + c->chunk) / KV_BLOCK_TOKENS + 1;
    kv_view *view = op_host(o, (size_t)o->n, sizeof *view);

    kv_layout_init(&o->layout, o->k->kv, c->dim, c->cols, WINDOW, MAX_DRAFT, 1, &c->ratio, 1);
    o->state_bytes = o->layout.fixed_bytes + (size_t)n_blocks * o->layout.block_bytes;
    o->state = op_dev(o, (size_t)o->n * o->state_bytes);
    for (int i = 0; i < o->n; i++)
        n_rows += item_rows(c, o->item[i]);
    seq = op_host(o, (size_t)n_rows, sizeof *seq);
    pos = op_host(o, (size_t)n_rows, sizeof *pos);
    table = op_host(o, (size_t)n_blocks, sizeof *table);
    for (int64_t b = 0; b < n_blocks; b++) /* blocks lie in reverse order */
        table[b] = (int32_t)(n_blocks - 1 - b);
    for (int i = 0; i < o->n; i++) {
        uint8_t *state = op_host(o, o->state_bytes, 1);
        int64_t len = item_len(c, o->item[i]);

        view[i] = host_view(o, state, table, len);
        fill_state(o, o->item[i], &view[i]);
        o->k->ops->put(o->k, o->state + (size_t)i * o->state_bytes, state, o->state_bytes);
        row0[i] = r;
        for (int j = 0; j < item_rows(c, o->item[i]); j++, r++) {
            seq[r] = i;
            pos[r] = len + j;
        }
    }
    row0[o->n] = r;
    o->row0 = row0;
    o->seq = seq;
    o->pos = pos;
    o->table = table;
    table = op_dev_copy(o, table, (size_t)n_blocks * sizeof *table);
    o->len = op_host(o, (size_t)o->n, sizeof *o->len);
    for (int i = 0; i < o->n; i++) {
        o->len[i] = view[i].len;
        view[i] = host_view(o, o->state + (size_t)i * o->state_bytes, table, view[i].len);
    }
    o->max_len = n_blocks * KV_BLOCK_TOKENS;
    o->s = (step){
        .n_rows = n_rows,
        .n_seqs = o->n,
        .row0 = op_dev_copy(o, row0, ((size_t)o->n + 1) * sizeof *row0),
        .seq = op_dev_copy(o, seq, (size_t)n_rows * sizeof *seq),
        .pos = op_dev_copy(o, pos, (size_t)n_rows * sizeof *pos),
        .view = op_dev_copy(o, view, (size_t)o->n * sizeof *view),
    };
}

static void build_groups(op_inst *o)
{
    int n = 0, ratio = o->c->ratio;
    int32_t *last = op_host(o, (size_t)o->s.n_rows, sizeof *last);
    int64_t *entry = op_host(o, (size_t)o->s.n_rows, sizeof *entry);

    o->group_first = op_host(o, (size_t)o->n + 1, sizeof *o->group_first);
    for (int i = 0; i < o->n; i++) {
        for (int r = o->row0[i]; r < o->row0[i + 1]; r++) {
            if ((o->pos[r] + 1) % ratio != 0)
                continue;
            last[n] = r;
            entry[n++] = o->pos[r] / ratio;
        }
        o->group_first[i + 1] = n;
    }
    o->last_row = last;
    o->groups = (step_groups){.n = n,
                              .ratio = ratio,
                              .last_row = op_dev_copy(o, last, (size_t)n * sizeof *last),
                              .entry = op_dev_copy(o, entry, (size_t)n * sizeof *entry)};
}

/* Items of the rows that complete the groups. */
static int *group_items(op_inst *o)
{
    int *row = row_items(o), *item = op_host(o, (size_t)o->groups.n, sizeof *item);

    for (int g = 0; g < o->groups.n; g++)
        item[g] = row[o->last_row[g]];
    return item;
}

static void add_state_output(op_inst *o)
{
    op_add_output(o, (op_output){.name = "state", .kind = OUT_STATE});
}

static void build_compress_pool(op_inst *o)
{
    const op_case *c = o->c;
    int64_t dim = c->dim, n = o->s.n_rows;
    float *proj = op_host_rows(o, "proj", row_items(o), n, 2 * dim, 1.0f);
    float *lat = op_dev(o, (size_t)(o->groups.n * dim) * 4);

    o->args.compress_pool = (compress_pool_args){
        .s = &o->s,
        .g = &o->groups,
        .layout = &o->layout,
        .few = c->flags & OP_AT_ONCE,
        .eps = 1e-20f,
        .norm = op_weight(o, "norm", WEIGHT_VEC_BF16, 1, dim, false),
        .lat = lat,
    };
    if (c->ratio == 1)
        o->args.compress_pool.proj =
            op_dev_act(o, op_host_rows(o, "proj", row_items(o), n, dim, 1.0f), n * dim);
    else
        o->args.compress_pool.proj = op_dev_copy(o, proj, (size_t)(n * 2 * dim) * sizeof *proj);
    op_add_output(
        o, (op_output){
               .name = "lat", .kind = OUT_ACT, .data = lat, .cols = dim, .first = o->group_first});
    add_state_output(o);
}

static void build_compress_store(op_inst *o)
{
    const op_case *c = o->c;
    int64_t n = o->groups.n;
    int *item = group_items(o);

    o->args.compress_store = (compress_store_args){
        .s = &o->s,
        .g = &o->groups,
        .layout = &o->layout,
        .rope = c->rope,
        .eps = 1e-20f,
        .lat = op_dev_act(o, op_host_rows(o, "lat", item, n, c->dim, 1.0f), n * c->dim),
        .key_raw = op_dev_act(o, op_host_rows(o, "key", item, n, c->cols, 1.0f), n * c->cols),
        .k_norm = op_weight(o, "k_norm", WEIGHT_VEC_BF16, 1, c->cols, false),
        .cs = op_cs(o, item, n, c->rope),
    };
    add_state_output(o);
}

/* Some candidate blocks per row, ascending, the newest among them; every third row has no filter.
 */
static candidates *random_filter(op_inst *o)
{
    const op_case *c = o->c;
    candidates *f = op_host(o, 1, sizeof *f);
    int *item = row_items(o);
    size_t n = (size_t)o->s.n_rows;
    int32_t *ids = op_host(o, n * (size_t)c->blocks, sizeof *ids);
    int32_t *count = op_host(o, n, sizeof *count);

    for (int r = 0; r < o->s.n_rows; r++) {
        op_rng rng = op_rng_of(c, "filter", item[r]);
        int visible = (int)(o->pos[r] + 1) / c->ratio;
        int n_blocks = (visible + c->block - 1) / c->block, left = c->blocks;

        count[r] = -1;
        if (n_blocks <= c->blocks || item[r] % 3 == 2)
            continue;
        count[r] = 0;
        for (int b = 0; b < n_blocks; b++) {
            bool newest = b == n_blocks - 1;

            if (newest || (left > 1 && op_below(&rng, n_blocks - b) < left)) {
                ids[r * c->blocks + count[r]++] = b;
                left--;
            }
        }
    }
    o->filter =
        (candidates){.block = c->block, .max_blocks = c->blocks, .ids = ids, .count = count};
    *f = (candidates){.block = c->block,
                      .max_blocks = c->blocks,
                      .ids = op_dev_copy(o, ids, n * (size_t)c->blocks * sizeof *ids),
                      .count = op_dev_copy(o, count, n * sizeof *count)};
    return f;
}

/* Entries of a row that have scores: 0 when it takes all and no source asks. */
static int32_t scored(const op_inst *o, int row)
{
    const op_case *c = o->c;
    int64_t visible = (o->pos[row] + 1) / c->ratio;
    int64_t eligible = index_eligible(visible, o->filter.ids ? &o->filter : NULL, row);
    bool source = c->flags & OP_SOURCE && (visible + c->block - 1) / c->block > c->blocks;

    return eligible <= c->k && !source ? 0 : (int32_t)eligible;
}

/* Queries [n][heads][cols]. */
static float *index_queries(op_inst *o)
{
    const op_case *c = o->c;
    int64_t n = o->s.n_rows, wide = (int64_t)c->heads * c->cols;
    float *x = op_host_rows(o, "iq", row_items(o), n, wide, 1.0f);

    for (int64_t i = 0; i < n * wide; i++)
        x[i] *= spread(c, i / c->cols % c->heads, i % c->cols);
    return x;
}

static void build_index_scores(op_inst *o)
{
    const op_case *c = o->c;
    int *item = row_items(o);
    int64_t n = o->s.n_rows, stride = o->max_len, wide = (int64_t)c->heads * c->cols;
    candidates *filter = c->flags & OP_FILTER ? random_filter(o) : NULL;
    int32_t *defined = op_host(o, (size_t)n, sizeof *defined);
    float *scores = op_dev(o, (size_t)(n * stride) * sizeof *scores);

    for (int r = 0; r < n; r++)
        defined[r] = scored(o, r);
    o->args.index_scores = (index_scores_args){
        .s = &o->s,
        .layout = &o->layout,
        .heads = c->heads,
        .rope = c->rope,
        .topk = c->k,
        .source_blocks = c->flags & OP_SOURCE ? c->blocks : 0,
        .block = c->block,
        .filter = filter,
        .iq = op_dev_act(o, index_queries(o), n * wide),
        .iw = op_dev_act(o, op_host_rows(o, "iw", item, n, c->heads, 1.0f), n * c->heads),
        .cs = op_cs(o, item, n, c->rope),
        .scores = scores,
        .stride = stride,
    };
    op_add_output(o, (op_output){.name = "scores",
                                 .kind = OUT_F32,
                                 .data = scores,
                                 .cols = stride,
                                 .first = o->row0,
                                 .defined = op_dev_copy(o, defined, (size_t)n * 4)});
}

/* Scores with ties (every other row is coarse), NaN where none may be read. */
static float *random_scores(op_inst *o, int64_t stride)
{
    int64_t n = o->s.n_rows;
    int *item = row_items(o);
    float *x = op_host(o, (size_t)(n * stride), sizeof *x);

    for (int r = 0; r < n; r++) {
        op_rng rng = op_rng_of(o->c, "scores", item[r]);
        int32_t defined = scored(o, r);

        for (int64_t e = 0; e < stride; e++) {
            float v = op_normal(&rng);

            if (item[r] % 2 == 1)
                v = roundf(v * 2) / 2 * (op_below(&rng, 2) ? 1.0f : -1.0f); /* -0 too */
            x[r * stride + e] = e < defined ? v : NAN;
        }
    }
    return op_dev_copy(o, x, (size_t)(n * stride) * sizeof *x);
}

static void build_select(op_inst *o)
{
    const op_case *c = o->c;
    int64_t stride = o->max_len;
    size_t n = (size_t)o->s.n_rows;
    candidates *filter = c->flags & OP_FILTER ? random_filter(o) : NULL, *out = NULL;
    int32_t *sel = op_dev(o, n * (size_t)c->k * sizeof *sel);
    int32_t *n_sel = op_dev(o, n * sizeof *n_sel);

    op_add_output(o, (op_output){.name = "sel",
                                 .kind = OUT_I32,
                                 .data = sel,
                                 .cols = c->k,
                                 .first = o->row0,
                                 .defined = n_sel});
    op_add_output(
        o,
        (op_output){.name = "n_sel", .kind = OUT_I32, .data = n_sel, .cols = 1, .first = o->row0});
    if (c->flags & OP_SOURCE) {
        out = op_host(o, 1, sizeof *out);
        *out = (candidates){.block = c->block,
                            .max_blocks = c->blocks,
                            .ids = op_dev(o, n * (size_t)c->blocks * sizeof *out->ids),
                            .count = op_dev(o, n * sizeof *out->count)};
        op_add_output(o, (op_output){.name = "blocks",
                                     .kind = OUT_I32,
                                     .data = out->ids,
                                     .cols = c->blocks,
                                     .first = o->row0,
                                     .defined = out->count});
        op_add_output(o, (op_output){.name = "n_blocks",
                                     .kind = OUT_I32,
                                     .data = out->count,
                                     .cols = 1,
                                     .first = o->row0});
    }
    o->args.select = (select_args){
        .s = &o->s,
        .layout = &o->layout,
        .topk = c->k,
        .filter = filter,
        .out = out,
        .scores = random_scores(o, stride),
        .stride = stride,
        .sel = sel,
        .n_sel = n_sel,
    };
}

/* Window keys of the step's rows in ring format. */
static uint8_t *random_kv_rows(op_inst *o)
{
    size_t n = (size_t)o->s.n_rows, d = (size_t)o->c->dim, bytes = o->layout.ring_row_bytes;
    float *x = op_host_rows(o, "kv", row_items(o), (int64_t)n, o->c->dim, 1.0f);
    uint8_t *row = op_host(o, n, bytes);

    for (size_t i = 0; i < n; i++)
        put_row(o, row + i * bytes, x + i * d, d, q8_encode, d);
    return op_dev_copy(o, row, n * bytes);
}

/* Random selections, ascending: of the entries committed before the step. */
static void random_selection(op_inst *o, attention_args *a)
{
    int k = o->c->k, *item = row_items(o);
    size_t n = (size_t)o->s.n_rows;
    int32_t *sel = op_host(o, n * (size_t)k, sizeof *sel), *n_sel = op_host(o, n, sizeof *n_sel);

    for (int r = 0; r < o->s.n_rows; r++) {
        op_rng rng = op_rng_of(o->c, "sel", item[r]);
        int entries = (int)o->len[o->seq[r]] / o->c->ratio;

        for (int e = 0; e < entries && n_sel[r] < k; e++)
            if (op_below(&rng, entries - e) < k - n_sel[r])
                sel[r * k + n_sel[r]++] = e;
    }
    a->sel = op_dev_copy(o, sel, n * (size_t)k * sizeof *sel);
    a->n_sel = op_dev_copy(o, n_sel, n * sizeof *n_sel);
    a->topk = k;
}

static void build_attention(op_inst *o)
{
    const op_case *c = o->c;
    int64_t n = o->s.n_rows, wide = (int64_t)c->heads * c->dim;
    int *item = row_items(o);
    attention_args *a = &o->args.attention;

    *a = (attention_args){
        .s = &o->s,
        .layout = &o->layout,
        .n_heads = c->heads,
        .rope = c->rope,
        .scale = 1.0f / sqrtf((float)c->dim),
        .draft = c->flags & OP_DRAFT,
        .q = op_dev_act(o, op_host_rows(o, "q", item, n, wide, 1.0f), n * wide),
        .cs = op_cs(o, item, n, c->rope),
        .kv_rows = random_kv_rows(o),
        .sink = op_weight(o, "sink", WEIGHT_VEC_F32, 1, c->heads, false),
        .owner = c->flags & (OP_DRAFT | OP_NO_COMPRESSED) ? -1 : 0,
        .o = op_dev(o, (size_t)(n * wide) * 4),
    };
    if (a->owner == 0)
        random_selection(o, a);
    op_add_output(
        o, (op_output){.name = "o", .kind = OUT_ACT, .data = a->o, .cols = wide, .first = o->row0});
}

static void build_ring_commit(op_inst *o)
{
    const op_case *c = o->c;
    int64_t n = o->s.n_rows;

    if (c->flags & OP_AT_ONCE)
        o->args.qkv = (qkv_args){
            .n = (int)n,
            .dim = c->dim,
            .rope = c->rope,
            .eps = 1e-20f,
            .qkv = op_dev_act(o, op_host_rows(o, "qkv", row_items(o), n, c->dim, 1.0f), n * c->dim),
            .kv_norm = op_weight(o, "kv_norm", WEIGHT_VEC_BF16, 1, c->dim, false),
            .cs = op_cs(o, row_items(o), n, c->rope),
            .layout = &o->layout,
            .kv_rows = op_dev(o, (size_t)n * o->layout.ring_row_bytes),
            .commit = &o->s};
    else
        o->args.ring_commit =
            (ring_commit_args){.s = &o->s, .layout = &o->layout, .kv_rows = random_kv_rows(o)};
    add_state_output(o);
}

void op_build_sequences(op_inst *o)
{
    static void (*const build[OP_COUNT])(op_inst *) = {
        [OP_COMPRESS_POOL] = build_compress_pool, [OP_COMPRESS_STORE] = build_compress_store,
        [OP_INDEX_SCORES] = build_index_scores,   [OP_SELECT] = build_select,
        [OP_ATTENTION] = build_attention,         [OP_RING_COMMIT] = build_ring_commit,
    };

    build_step(o);
    build_groups(o);
    build[o->c->op](o);
}

/* Everything that a sequence keeps: entries (latents, keys), ring rows, open rows. */
float *op_fetch_state(op_inst *o, int64_t *width)
{
    const kv_layout *l = &o->layout;
    size_t d = (size_t)l->head_dim, k = (size_t)l->index_dim;
    int64_t n_entries = o->max_len / l->owner[0].ratio;
    int64_t row = (int64_t)(d + k), open = 2 * (int64_t)d * l->owner[0].open_rows;
    uint8_t *state = malloc((size_t)o->n * o->state_bytes);
    float *y;

    *width = n_entries * row + (int64_t)d * l->ring_rows + open;
    y = calloc((size_t)(o->n * *width) + 1, sizeof *y);
    DI_CHECK(state && y);
    o->k->ops->get(o->k, state, o->state, (size_t)o->n * o->state_bytes);
    for (int i = 0; i < o->n; i++) {
        kv_view v = host_view(o, state + (size_t)i * o->state_bytes, o->table, 0);
        float *to = y + i * *width;

        for (int64_t e = 0; e < n_entries; e++, to += row) {
            get_row(o, to, kv_latent(l, &v, 0, e), d, q4c_decode, d / 2);
            get_row(o, to + d, kv_key(l, &v, 0, e), k, q4i_decode, k / 2);
        }
        for (int64_t p = 0; p < l->ring_rows; p++, to += d)
            get_row(o, to, kv_ring(l, &v, 0, p), d, q8_decode, d);
        if (open > 0)
            memcpy(to, kv_open(l, &v, 0, 0), (size_t)open * sizeof *to);
    }
    free(state);
    return y;
}
