/* The model as its own files see it: weights, buffers of a step, and the parts of a forward pass.
 * Thread: engine thread only. */
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "formats/scalar.h"
#include "kernels/kernels.h"
#include "model/engram.h"
#include "model/model.h"
#include "model/plan.h"

typedef struct hc_weights {
    weight *fn, *base, *scale;
} hc_weights;

/* Weights of a layer or draft stage; NULL where the plan gives it no such part. */
typedef struct layer_weights {
    hc_weights hc_attn, hc_ffn;
    weight *attn_norm, *ffn_norm;
    weight *wqkv; /* [wq_a; wkv] */
    weight *q_norm, *kv_norm, *wq_b, *sink, *wo_a, *wo_b;
    weight *compress; /* KV sources: wkv, behind it wgate where the ratio is above 1 */
    weight *compress_norm, *index_wk, *index_k_norm;
    weight *index_wq_b, *index_w; /* index sources */
    weight *gate, *bias, *bias_vl, *experts;
    weight *engram_table, *engram_wkv, *engram_q, *engram_k;
    weight *stage_wkv; /* draft stages: wkv alone, for the rows of the main stream */
} layer_weights;

typedef struct model_weights {
    layer_weights layer[CFG_MAX_LAYERS];
    weight *embed, *norm, *head;
    weight *main_proj, *main_norm; /* draft */
    weight *draft_norm, *markov_embed, *markov_head, *confidence;
    weight **all; /* every one above, for unload */
    int n_all, cap_all;
} model_weights;

/* An array that is written on the host and read by operations. */
typedef struct dual {
    void *host, *dev;
} dual;

/* Where all duals of a step lie: one region on the host, one on the device. */
typedef struct step_arena {
    uint8_t *host, *dev;
    size_t cap, used, draft, always; /* what a draft needs of it, and what every step does */
} step_arena;

/* Rows of a step (kernels/step.h): host arrays, their device copies, and the view for operations.
 */
typedef struct step_rows {
    step s; /* device pointers */
    dual row0, seq, pos, image, view;
    float *cs_window, *cs_comp; /* [rows][half][2] device */
} step_rows;

/* Compression groups that the step completes, for one ratio. */
typedef struct step_comp {
    step_groups g; /* device pointers */
    dual last_row, entry, first_pos;
    float *cs; /* [groups][half][2] at the groups' first positions */
} step_comp;

/* Device buffers of a step, R = cap_rows. "act" elements are kernels.act. */
typedef struct model_buffers {
    void *x;                        /* [R][hc][D] act: the stream */
    void *in, *in_q8;               /* [R][D] act, q8: a sublayer's input */
    void *y;                        /* [R][D] act: a sublayer's output */
    float *pre[2];                  /* [R][hc] */
    float *post, *comb;             /* [R][hc], [R][hc][hc] */
    void *qkv, *qr_q8;              /* [R][q_rank + head_dim] act; [R] q8 rows of q_rank */
    uint8_t *kv_rows;               /* [R] ring rows */
    void *q, *o;                    /* [R][heads * head_dim] act */
    void *low_q8;                   /* [R] q8 rows of groups * o_rank */
    void *proj;                     /* [R][2 * head_dim] f32 or [R][head_dim] act */
    void *lat, *key_raw;            /* [R][head_dim], [R][index_dim] act */
    void *iq, *iw;                  /* [R][index_heads * index_dim], [R][index_heads] act */
    float *scores;                  /* score_cap floats: a tile of index scores */
    int32_t *sel, *n_sel;           /* [R][topk], [R] */
    float *gate_logits;             /* [R][experts] */
    int32_t *expert_ids;            /* [R][active] */
    float *expert_w;                /* [R][active] */
    void *mem_q8, *mem_kv;          /* [R] q8 rows of an Engram read; [R][(hc+1) * D] act */
    float *mem_gate;                /* [R][hc] */
    void *taps;                     /* [R][n_taps * D] act */
    void *taps_q8, *main, *main_q8; /* [R] of the tail rows */
    void *head_in, *collapsed;      /* [cap_head][D] act */
    float *logits;                  /* [max_logit_rows][vocab] */
    float *draft_logits;            /* [max_seqs * max_draft][vocab] */
    int32_t *draft_tok;             /* [max_draft][max_seqs], behind it as many confidences */
    void *markov;                   /* [max_seqs][rank] act */
} model_buffers;

/* Weights of a layer or of a head: bytes as stored, and elements of matrices. */
typedef struct work_sums {
    double bytes, weights;               /* used by every row */
    double expert_bytes, expert_weights; /* of all routed experts */
} work_sums;

struct model {
    kernels *k;
    const checkpoint *ckpt;
    model_config cfg;
    model_options opt; /* defaults filled in */
    plan plan;
    kv_layout layout;
    engram_hash *hash;
    model_weights w;
    float *freq_window, *freq_comp; /* device */

    int cap_rows;                  /* rows of a step or of a draft */
    int cap_head;                  /* rows of the head */
    size_t score_cap;              /* floats */
    bool records;                  /* the back end may replay steps of the same shape */
    step_arena arena;              /* duals */
    int32_t *tables, *kept_tables; /* [max_seqs][blocks] device: block tables; NULL: not needed */
    step_rows rows;                /* of the forward or of the draft that runs */
    step_rows tail;                /* the last ring_rows rows of every sequence, packed */
    bool tail_is_all;              /* these are all rows: `rows` is used instead */
    bool rings_at_once; /* no row takes a place in a ring that the step reads (attention.h) */
    step_rows kept;     /* the rows that go on behind the split, when not all do */
    bool cut;          /* rows stop at the split of this step, or see fewer window keys behind it */
    int n_leads;       /* sequences with rows that stop there */
    dual lead;         /* [n_leads][2] 0 and the number of these rows */
    dual lead_view;    /* [n_leads] */
    int32_t *lead_row; /* [n_leads] host: their first row */
    dual keep;         /* [kept rows] their rows before */
    step_comp comp[PLAN_MAX_RATIOS];
    bool has_vectors; /* rows bring their own embeddings */
    int64_t last_pos; /* largest position of the step */
    int64_t max_pos;  /* ... or a little more: what sizes follow */
    candidates cand;
    dual token, vectors, engram_ids, head_rows; /* engram_ids [n_engram][R][cols] */
    int n_head;                                 /* rows of head_rows */
    dual newest;                                /* [n_seqs] of a draft: the tokens it follows */
    sample_row *sample;                         /* [max_seqs] host */
    bool sample_staged;                         /* the back end has it */
    int32_t *draft_host;                        /* host copy of b.draft_tok and draft_conf */
    model_buffers b;
    bool sizing;       /* nothing is loaded or allocated: sizes are added up */
    size_t step_bytes; /* of all buffers below, and of their host halves */
    void **bufs;       /* every device buffer, for free */
    int n_bufs, cap_bufs;
    void **hosts; /* every host half of a dual */
    int n_hosts, cap_hosts;

    /* State of a pass. */
    const float *pre; /* what the next collapse uses; NULL = (1, 0, ...) */
    int pre_idx;      /* buffer that the next mix writes */
    bool pending;     /* y waits to be expanded into x */

    work_sums work_layer[CFG_MAX_LAYERS], work_head, work_main, work_markov;

    model_trace trace;
    void *trace_arg;
    float *trace_buf; /* host */
    size_t trace_cap;
};

/* bind.c: load every weight; with m->sizing, add up what they take instead. */
di_code model_bind(model *m, model_memory *mem, di_status *st);
void model_unbind(model *m);

/* work.c: sum up what steps read and compute. */
di_code model_work_init(model *m, di_status *st);

/* buffers.c: everything that a step needs; with m->sizing, its sizes alone (m->step_bytes). */
di_code model_reserve(model *m, di_status *st);
size_t model_scratch_bytes(const model *m);
void model_release(model *m);

/* step.c: metadata of a step: written and put on the device, where open makes the rest of it. */
di_code step_begin(model *m, const seq_rows *seq, int n_seqs, di_status *st);
void step_open(model *m);
di_code step_begin_draft(model *m, const draft_rows *seq, int n_seqs, int block, di_status *st);
void step_open_draft(model *m);
/* Run the recorded operations of a step of this shape instead of calling them: true when there are
 * any. Else the caller calls them, then kernel_ops.recorded. */
typedef enum step_kind { STEP_FORWARD, STEP_DRAFT } step_kind;
bool step_replay(model *m, step_kind kind);
/* Lay all duals of a step of this shape into m->arena; its `used` says how large they are. */
void step_lay(model *m, size_t n_rows, size_t n_seqs, size_t n_head);

/* Go on behind the split with the kept rows only: step_rows, stream and inputs. The rings of the
 * split's layer get the window keys of the rows that stop. */
void step_cut(model *m);

static inline const char *layer_prefix(const model *m, int l, char buf[32])
{
    int n = m->plan.n_layers;

    snprintf(buf, 32, l < n ? "layers.%d." : "mtp.%d.", l < n ? l : l - n);
    return buf;
}

/* trace.c: give an activation to the trace hook; nothing happens without one. `name` is
 * printf-style behind the layer's prefix (layer < 0: none). */
void trace_act(model *m, int layer, const char *name, const void *act, int64_t rows, int64_t cols);
void trace_f32(model *m, int layer, const char *name, const float *data, int64_t rows,
               int64_t cols);
void trace_i32(model *m, int layer, const char *name, const int32_t *data, int64_t rows,
               int64_t cols);
/* The selection of the step, and the entries inside a candidate source's blocks, as 0 or 1 per row
 * and entry (a row's entries that are not visible yet are meaningless in the second); how far the
 * scores of rows row0.. of a tile are from choosing another entry or candidate block. */
void trace_selection(model *m, int layer);
void trace_candidates(model *m, int layer);
void trace_margins(model *m, int layer, int row0, int n, int64_t stride);
