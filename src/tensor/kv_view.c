/* Sizes and offsets of sequence state. */
#include "tensor/kv_view.h"

#include <string.h>

#define ALIGN64(n) (((n) + 63) / 64 * 64)

void kv_layout_init(kv_layout *l, kv_format format, int head_dim, int index_dim, int window,
                    int max_draft, int n_rings, const int *ratio, int n_owners)
{
    size_t d = (size_t)head_dim, k = (size_t)index_dim, at = 0;

    *l = (kv_layout){.format = format,
                     .head_dim = head_dim,
                     .index_dim = index_dim,
                     .window = window,
                     .max_draft = max_draft,
                     .ring_rows = window + max_draft + 1,
                     .n_rings = n_rings,
                     .n_owners = n_owners};
    l->latent_bytes = format == KV_F32 ? 4 * d : d / 2 + d / 16;
    l->key_bytes = format == KV_F32 ? 4 * k : k / 2 + k / 32;
    l->ring_row_bytes = format == KV_F32 ? 4 * d : d + d / 32;
    for (int i = 0; i < n_owners; i++) {
        size_t per_block = (size_t)(KV_BLOCK_TOKENS / ratio[i]);

        l->owner[i].ratio = ratio[i];
        l->owner[i].latent_off = at;
        at += per_block * l->latent_bytes;
        l->owner[i].key_off = at;
        at += per_block * l->key_bytes;
    }
    l->block_bytes = ALIGN64(at);
    at = ALIGN64((size_t)n_rings * (size_t)l->ring_rows * l->ring_row_bytes);
    for (int i = 0; i < n_owners; i++) {
        if (ratio[i] == 1)
            continue;
        l->owner[i].open_rows = ratio[i] + max_draft;
        l->owner[i].open_off = at;
        at += ALIGN64((size_t)l->owner[i].open_rows * 2 * d * sizeof(float));
    }
    l->fixed_bytes = at;
}

double kv_bytes_per_token(const kv_layout *l)
{
    double bytes = 0;

    for (int i = 0; i < l->n_owners; i++)
        bytes += (double)(l->latent_bytes + l->key_bytes) / l->owner[i].ratio;
    return bytes;
}

void kv_copy_run(const kv_copy *c, int n)
{
    for (int i = 0; i < n; i++)
        memcpy(c[i].dst, c[i].src, c[i].bytes);
}
