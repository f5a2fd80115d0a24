/* The model: DeepSeek-V4.1 text backbone, Engram and the DSpark draft, over an operation table.
 *
 * The forward pass is written once (forward.c, draft.c); the back end decides where it runs.
 * A model holds weights and step buffers and serves one step at a time.
 * Thread: engine thread only; model_info from any. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "kernels/kernels.h"
#include "tensor/kv_view.h"

typedef struct model model;

typedef struct model_options {
    int max_rows;       /* rows of a step (prompt chunk); 0 = 512 */
    int max_logit_rows; /* rows that need logits in one step; 0 = 16 */
    int max_seqs;       /* sequences in a step; 0 = 16 */
    int max_draft;      /* longest draft that can be verified; 0 = the trained block */
    int64_t context;    /* longest sequence; 0 = the config's, at most 65,536 */
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes of weights loaded */
    void *progress_arg;
} model_options;

/* Load every weight of `c` into back end `k` and reserve the buffers of a step. Both are borrowed
 * and must outlive the model. `compressed` [vocab]: token id -> compressed id for Engram (may be
 * NULL when the model has no Engram layers); copied. Errors: INVALID, FORMAT (scale bytes), NOMEM.
 */
di_code model_open(model **out, const checkpoint *c, kernels *k, const int32_t *compressed,
                   const model_options *opt, di_status *st);
void model_close(model *m);

/* What a model takes, in bytes. */
typedef struct model_memory {
    size_t weights;   /* as the back end holds them */
    size_t embedding; /* mapped tables that every step reads; made resident when loaded */
    size_t step;      /* buffers and metadata of a step */
    size_t scratch;   /* of the operations */
    size_t sequence;  /* fixed state of one sequence: window rings, open groups */
    size_t block;     /* growing state of one sequence, per KV_BLOCK_TOKENS tokens */
    /* Engram tables, mapped and read row by row: pages that the system takes back when it needs
     * them. engram_used: those that the rows of 1,000 tokens lie on. */
    size_t engram, engram_used;
    kv_layout layout; /* of the state of a sequence */
    int n_encoder_rings;
} model_memory;

/* What model_open would take, by the same code: nothing is loaded or reserved, and `c` may have
 * been opened for its headers only. Errors: as model_open, without FORMAT. Thread: any. */
di_code model_memory_of(model_memory *out, const checkpoint *c, kernels *k,
                        const model_options *opt, di_status *st);

const model_config *model_cfg(const model *m);
const kv_layout *model_kv_layout(const model *m);

/* One sequence's rows in a step. */
typedef struct seq_rows {
    kv_view view;           /* view.len = position of the first row */
    int n;                  /* rows */
    const int32_t *token;   /* [n] ids; range-checked by the caller */
    const int32_t *history; /* the up to ngram-1 tokens before view.len, oldest first */
    int n_history;
    const uint8_t *image; /* [n] or NULL: row lies in an image span (Engram dead, bias_vl) */
    const uint8_t *history_image;     /* [n_history] or NULL */
    const uint16_t *const *embedding; /* [n] bf16 vectors or NULL entries, or NULL */
    int n_logits;                     /* the last n_logits rows get logits */
    /* Bounded replay (spec section 9). Rows at positions before whole_from stop behind the
     * projections of the last KV owner: they write its state and have no output. Layers from that
     * owner on see no window key before ring_first. 0 and 0: every row runs every layer. */
    int64_t whole_from, ring_first;
} seq_rows;

/* Run one forward over the rows of n_seqs sequences. State is written for all rows (drafts that are
 * then rejected are rolled back by committing fewer tokens: kv_view.len of the next step).
 * *logits: device rows [sum of n_logits][vocab] f32, in order, valid until the next step.
 * Taps of all rows go to the draft's rings (model_draft reads them).
 * Errors: INVALID when a limit of model_options is exceeded, DEVICE. */
di_code model_forward(model *m, const seq_rows *seq, int n_seqs, float **logits, di_status *st);

/* The same without waiting: nothing of the model is used again, and no result read, before the back
 * end's finish, which reports errors of the device. */
di_code model_launch(model *m, const seq_rows *seq, int n_seqs, float **logits, di_status *st);

/* How many of a prompt's last rows must run every layer so that its last logits, and the rings that
 * a checkpoint one token before its end holds, are the same bits as without replay: (window - 1)
 * for each layer behind the last KV owner, and 2 (spec section 9). -1: rows of this model cannot
 * stop. */
int64_t model_exact_tail(const model *m);

/* Rings of the layers up to and with the last KV owner: what an encoder checkpoint holds. All of
 * the backbone's when rows cannot stop. */
int model_n_encoder_rings(const model *m);

/* Work of a row that stops behind the last KV owner, as a share of a whole row's; 1 when none can.
 */
double model_encoder_share(const model *m);

/* Propose a draft block for each sequence after its last forward (spec 7.2): view.len = tokens
 * committed (position of the pending token `token`); block = rows to draft (0 = trained size).
 * The token of each position is drawn by `row` (sample_row per sequence; position is set here to
 * len + 1 + k; NULL = greedy). Outputs, host memory: draft [n_seqs][block], confidence
 * [n_seqs][block] raw logits. */
typedef struct draft_rows {
    kv_view view;
    int32_t token;
    const sample_row *row;
} draft_rows;
di_code model_draft(model *m, const draft_rows *seq, int n_seqs, int block, int32_t *draft,
                    float *confidence, di_status *st);

/* For tests and the golden harness: called with each recorded activation (names of
 * golden/model/README.md), as f32 [rows][cols], host memory, valid during the call. */
typedef void (*model_trace)(void *arg, const char *name, const float *data, int64_t rows,
                            int64_t cols);
void model_set_trace(model *m, model_trace fn, void *arg);
