/* The operation table: what a back end can do, at the granularity of a good GPU kernel.
 *
 * A back end fills kernel_ops; src/model calls through it and never looks inside. The scalar back
 * end (ref/) is the oracle: it reads like the formulas and is what every other one is tested
 * against, operation by operation. cpu/ holds AVX-512 and AVX2, chosen at run time.
 *
 * Contract of every operation
 *   - Rows are token rows. The bits of a row's result depend on that row's inputs only: never on
 *     how many rows the call has, where the row lies among them, or the number of threads.
 *   - Nothing is allocated: scratch was reserved for kernel_limits.
 *   - Arguments are checked where the model is bound, not here: an operation cannot fail. A device
 *     error is kept and reported by finish().
 *   - Activations ("act") have the element type kernels.act: bf16 in the fast back ends; f32 in the
 *     scalar one, holding bf16 values where its numerics round to bf16. "q8" rows are activations
 *     behind Q8 (spec 2.3) in a form that the back end chooses: q8_row_bytes(cols) bytes per row.
 *   - Pointers are device memory of the back end (host memory for the CPU ones).
 * Thread: one owner at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"
#include "formats/dtype.h"
#include "tensor/kv_view.h"

#include "kernels/attention.h"
#include "kernels/compress.h"
#include "kernels/counters.h"
#include "kernels/engram.h"
#include "kernels/hc.h"
#include "kernels/index.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/sample.h"
#include "kernels/step.h"
#include "kernels/weight.h"

/* Which roundings of the release are applied. Fast back ends know NUMERICS_RELEASE only. */
typedef enum numerics {
    NUMERICS_RELEASE, /* bf16 activations, Q8 inputs, bf16 probabilities, packed state */
    NUMERICS_CACHE,   /* f32 over packed state */
    NUMERICS_F32      /* nothing is rounded; state is KV_F32 */
} numerics;

/* Largest sizes that calls will have; reserve() sets scratch aside for them. */
typedef struct kernel_limits {
    int n_rows;       /* rows of a step */
    int n_logit_rows; /* rows of the head */
    int hidden, hc;   /* D and copies */
    int n_heads, head_dim;
    int window;                         /* window keys of a row */
    int max_linear_cols;                /* widest input of a linear */
    int moe_inter, n_experts, n_active; /* n_active: routed experts per token */
    int index_heads, index_dim, index_topk, cand_blocks, cand_block;
    int64_t context; /* longest sequence */
    int vocab;
} kernel_limits;

typedef struct kernels kernels;

/* How a back end that copies its weights reads them (kernel_ops.load_begin): `bytes` from inside a
 * part to `to`, by several threads at once. `owner` comes first. */
typedef struct weight_reader {
    di_code (*read)(void *owner, void *to, const void *from, size_t bytes, di_status *st);
    void *owner;
} weight_reader;

typedef struct kernel_peak {
    char name[64];       /* of the device */
    double bytes, flops; /* per second: copied (read and written), bf16 products; 0 = not known */
} kernel_peak;

typedef struct kernel_ops {
    const char *name; /* "ref", "avx512", "avx2", "cuda" */

    /* Around the loads of a model, where a back end copies weights (NULL: it reads them where they
     * are): between the two, stored bytes come from `r` alone, and pointers into parts only say
     * which. A load may return before its copies have ended; load_end waits for them and gives back
     * what loading took. */
    di_code (*load_begin)(kernels *k, const weight_reader *r, di_status *st);
    di_code (*load_end)(kernels *k, di_status *st);

    /* Life of weights (kernels/weight.h). */
    di_code (*load)(kernels *k, const weight_src *src, weight **out, di_status *st);
    di_code (*load_experts)(kernels *k, const experts_src *src, weight **out, di_status *st);
    void (*unload)(kernels *k, weight *w);

    /* Bytes that load and load_experts take for a source, of which only names, kinds and shapes are
     * read: memory of the back end's own, or pages of the file that every step uses. 0 for tables:
     * they stay mapped. */
    size_t (*weight_bytes)(const kernels *k, const weight_src *src);
    size_t (*experts_bytes)(const kernels *k, const experts_src *src);
    /* Bytes that reserve takes; SIZE_MAX when they exceed all memory. */
    size_t (*scratch_bytes)(const kernels *k, const kernel_limits *lim);

    /* Scratch for these limits; may be called again with larger ones. */
    di_code (*reserve)(kernels *k, const kernel_limits *lim, di_status *st);
    size_t (*q8_row_bytes)(const kernels *k, int cols);

    /* Device memory and copies; host pointers on the other side. */
    void *(*buf_new)(kernels *k, size_t bytes);
    void (*buf_free)(kernels *k, void *buf);
    /* Zeroed host memory that operations read too, at the same address: block tables. */
    void *(*shared_new)(kernels *k, size_t bytes);
    void (*shared_free)(kernels *k, void *p);
    void (*put)(kernels *k, void *dst, const void *host, size_t bytes);
    void (*get)(kernels *k, void *host, const void *src, size_t bytes);
    void (*put_act)(kernels *k, void *dst, const float *host, size_t n);
    void (*get_act)(kernels *k, float *host, const void *src, size_t n);
    /* Copies of sequence state, as if one after the other. */
    void (*copy)(kernels *k, const kv_copy *c, int n);
    /* Bytes that are free where state lies; 0 when nobody knows. */
    uint64_t (*memory_free)(kernels *k);
    /* What the device can do at this moment, measured; NULL in host memory (kernels/peak.h). */
    di_code (*peak)(kernels *k, kernel_peak *out, di_status *st);

    /* Steps that may be recorded; NULL in host memory, where nothing is gained. Between replay,
     * which answers false, and recorded there are only operations that return nothing, and they and
     * all their arguments follow from the key. Once replay has run them itself it answers true, and
     * the caller leaves them out. buf_free, shared_free, unload and reserve forget all records. */
    bool (*replay)(kernels *k, const void *key, size_t bytes);
    void (*recorded)(kernels *k);
    void (*tables)(kernels *k, const tables_args *a);
    /* Take rows for `sample` before the operations that are recorded; false when there is not
     * enough room for what they point at. */
    bool (*sample_stage)(kernels *k, const sample_row *row, int n, int vocab);

    /* The operations, in the order of a layer. */
    void (*gather)(kernels *k, const gather_args *a);
    void (*rope_rows)(kernels *k, const rope_rows_args *a);
    void (*keep_rows)(kernels *k, const keep_rows_args *a);
    void (*engram_gather)(kernels *k, const engram_gather_args *a);
    void (*engram_apply)(kernels *k, const engram_apply_args *a);
    void (*hc)(kernels *k, const hc_args *a);
    void (*tap)(kernels *k, const tap_args *a);
    void (*quantize)(kernels *k, const quantize_args *a);
    void (*linear)(kernels *k, const linear_args *a);
    void (*qkv)(kernels *k, const qkv_args *a);
    void (*compress_pool)(kernels *k, const compress_pool_args *a);
    void (*compress_store)(kernels *k, const compress_store_args *a);
    void (*index_scores)(kernels *k, const index_scores_args *a);
    void (*select)(kernels *k, const select_args *a);
    void (*attention)(kernels *k, const attention_args *a);
    void (*ring_commit)(kernels *k, const ring_commit_args *a);
    void (*route)(kernels *k, const route_args *a);
    void (*experts)(kernels *k, const experts_args *a);
    void (*confidence)(kernels *k, const confidence_args *a);
    void (*sample)(kernels *k, const sample_args *a);
    void (*logprobs)(kernels *k, const logprobs_args *a);

    /* Wait for all that was asked for; report the first device error since the last finish. */
    di_code (*finish)(kernels *k, di_status *st);
    /* Proves where the work was done. */
    kernel_counters (*counters)(const kernels *k);
    void (*close)(kernels *k); /* free impl, which may still be NULL */
} kernel_ops;

/* Where a device has its Engram tables; in host memory they stay mapped. */
typedef enum engram_place {
    ENGRAM_AUTO, /* on the device when all weights fit there */
    ENGRAM_DEVICE,
    ENGRAM_HOST /* pinned host memory, read over the bus: the same bits */
} engram_place;

struct kernels {
    const kernel_ops *ops;
    dtype act;    /* element type of activations */
    kv_format kv; /* format of sequence state */
    numerics numerics;
    engram_place engram;
    pool *pool;          /* NULL on a device */
    kv_memory kv_memory; /* of a device; owner NULL in host memory */
    void *impl;          /* the back end's own: NULL until its first load or reserve */
};

typedef struct kernels_options {
    /* "auto" or "cpu" (its fastest), "ref", "avx2", "avx512", "cuda" (or "nvidia") */
    const char *backend;
    numerics numerics;
    int n_threads; /* 0 = all processors */
    engram_place engram;
} kernels_options;

/* Open a back end. Errors: INVALID (unknown name, numerics that it lacks), UNSUPPORTED (this
 * processor lacks the instructions: the message says which), NOMEM. Close with kernels_close. */
di_code kernels_open(kernels **out, const kernels_options *opt, di_status *st);
void kernels_close(kernels *k);

/* Where the state of sequences lies for this back end; NULL: plain host memory. */
const kv_memory *kernels_kv_memory(const kernels *k);

/* The back ends that run on this machine, best first, then that of a GPU; NULL-terminated static
 * list. */
const char *const *kernels_available(void);

/* The tables behind the names; NULL when this processor lacks the instructions. */
const kernel_ops *kernels_ref(void);
const kernel_ops *kernels_avx512(void);
const kernel_ops *kernels_avx2(void);
