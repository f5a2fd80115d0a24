/* Which keys a row attends, for both kernels of sparse attention. */
#pragma once

#include "kernels/cuda/device.cuh"

/* Where the keys of a row are: window positions lo .. lo+n_window-1, then compressed entries. */
typedef struct key_list {
    int64_t lo;
    int n_window, n;
    const kv_view *v;
    const uint8_t *blocks; /* of the view, as its table */
    const int32_t *table;
    const uint8_t *new_rows; /* kv_rows of the sequence, from position v->len on */
    const int32_t *sel;
} key_list;

/* seq: s.seq[row]. */
static __device__ key_list keys_of(const attention_args &a, const step &s, const kv_layout &l,
                                   int64_t row, int32_t seq)
{
    const kv_view *v = &s.view[seq];
    int64_t pos = s.pos[row], window = l.window, end = pos + 1;
    key_list k;

    k.v = v;
    k.blocks = v->blocks;
    k.table = v->table;
    k.new_rows = a.kv_rows + (size_t)s.row0[seq] * l.ring_row_bytes;
    k.sel = a.sel + row * a.topk;
    if (a.draft) {
        k.lo = v->len > window ? v->len - window : 0;
        end = v->len + s.row0[seq + 1] - s.row0[seq];
    } else {
        k.lo = pos >= window ? pos - window + 1 : 0;
        k.lo = k.lo > v->ring_first ? k.lo : v->ring_first;
    }
    k.n_window = (int)(end > k.lo ? end - k.lo : 0);
    k.n = k.n_window + (!a.draft && a.owner >= 0 ? a.n_sel[row] : 0);
    return k;
}

/* Row of state of key t. */
static __device__ __forceinline__ const uint8_t *
key_row(const attention_args &a, const kv_layout &l, const key_list &k, int t)
{
    int64_t p = k.lo + t;

    if (t >= k.n_window)
        return kv_latent(&l, k.v, a.owner, k.sel[t - k.n_window]);
    return p < k.v->len ? kv_ring(&l, k.v, a.ring, p)
                        : k.new_rows + (size_t)(p - k.v->len) * l.ring_row_bytes;
}

/* Attention on the matrix units; false: this shape is not for them. */
bool cuda_attention_mma(cuda_impl *c, const attention_args *a);
