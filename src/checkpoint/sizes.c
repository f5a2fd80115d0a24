/* Sums over the tensor table, and the state of a sequence from its row formats. */
#include "checkpoint/sizes.h"

#include <stdbool.h>
#include <string.h>

#define BLOCK_TOKENS 128 /* tokens per block of a sequence's state (design section 5) */
#define ALIGN        64  /* of each part of the state in memory */

typedef struct counter {
    model_sizes *s;
    const model_config *c;
    int split; /* last KV source: prompt tokens run the layers before it in full */
    uint64_t prompt_experts, output_experts; /* parameters of all routed experts on the way */
} counter;

static uint64_t round_up(uint64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static void add(part_size *p, uint64_t params, uint64_t bytes)
{
    p->tensors++;
    p->params += params;
    p->bytes += bytes;
}

/* The tensors of the last KV source that make its KV entry and index key: all that a prompt token
 * needs of this layer. */
static bool makes_kv(const table_entry *e)
{
    return e->part == CKPT_PART_COMPRESSOR || strstr(e->name, ".attn_norm.") ||
           strstr(e->name, ".indexer.wk.") || strstr(e->name, ".indexer.k_norm.");
}

static bool is_backbone(ckpt_part p)
{
    return p != CKPT_PART_ENGRAM_TABLES && p != CKPT_PART_DRAFT && p != CKPT_PART_VISION;
}

/* Parameters of this tensor on the way of a prompt and of an output token. */
static void count_active(counter *k, const table_entry *e, uint64_t params)
{
    bool prompt = e->layer >= 0 && (e->layer < k->split || (e->layer == k->split && makes_kv(e)));

    if (!is_backbone(e->part) || e->part == CKPT_PART_EMBED)
        return;
    if (e->part == CKPT_PART_EXPERTS) {
        k->output_experts += params;
        k->prompt_experts += prompt ? params : 0;
    } else {
        k->s->active_output += params;
        k->s->active_prompt += prompt ? params : 0;
    }
}

static di_code count(void *arg, const table_entry *e, di_status *st)
{
    counter *k = arg;
    model_sizes *s = k->s;
    uint64_t elements = (uint64_t)e->shape[0] * (uint64_t)e->shape[1];
    uint64_t bytes = elements * dtype_bytes(e->type);
    uint64_t params = e->type == DTYPE_F8_E8M0 ? 0 : e->type == DTYPE_I8 ? elements * 2 : elements;

    (void)st;
    add(&s->part[e->part], params, bytes);
    add(&s->total, params, bytes);
    if (is_backbone(e->part))
        add(&s->backbone, params, bytes);
    count_active(k, e, params);
    if (e->part == CKPT_PART_EMBED || e->part == CKPT_PART_ENGRAM_TABLES)
        s->mapped_bytes += bytes;
    else if (e->part != CKPT_PART_VISION)
        s->loaded_bytes += bytes;
    return DI_OK;
}

/* Row formats of spec 4.9: latents E2M1 with an E4M3 scale per 16, index keys E2M1 with a UE8M0
 * scale per 32, ring rows E4M3 with a UE8M0 scale per 32. */
static void count_state(model_sizes *s, const model_config *c)
{
    uint64_t d = (uint64_t)c->head_dim, k = (uint64_t)c->index_dim;
    uint64_t entry = d / 2 + d / 16 + k / 2 + k / 32, row = d + d / 32;
    uint64_t window = (uint64_t)c->window, draft = (uint64_t)c->draft_block;
    uint64_t n_rings = (uint64_t)c->n_layers + (uint64_t)c->n_stages;

    s->ring_bytes = (uint64_t)c->n_layers * window * row;
    s->draft_ring_bytes = (uint64_t)c->n_stages * window * row;
    /* in memory a ring keeps the rows that a rejected draft would have displaced */
    s->fixed_bytes = round_up(n_rings * (window + draft + 1) * row);
    for (int i = 0; i < c->n_kv_sources; i++) {
        uint64_t ratio = (uint64_t)c->ratio[c->kv_source[i]];
        uint64_t open = 2 * d * sizeof(float); /* the token of an open group and its gate */

        s->kv_block_bytes += entry * (BLOCK_TOKENS / ratio);
        if (ratio > 1) {
            s->open_bytes += (ratio - 1) * open;
            s->fixed_bytes += round_up((ratio + draft) * open);
        }
    }
    s->kv_token_bytes = (double)s->kv_block_bytes / BLOCK_TOKENS;
}

void sizes_of(model_sizes *s, const model_config *c)
{
    counter k = {.s = s, .c = c, .split = c->n_layers};

    *s = (model_sizes){.kv_token_bytes = 0};
    if (c->n_kv_sources > 0)
        k.split = c->kv_source[c->n_kv_sources - 1];
    table_walk(c, count, &k, NULL);
    s->active_prompt += k.prompt_experts / (uint64_t)c->n_experts * (uint64_t)c->n_active;
    s->active_output += k.output_experts / (uint64_t)c->n_experts * (uint64_t)c->n_active;
    count_state(s, c);
}

uint64_t sizes_sequence(const model_sizes *s, int64_t tokens)
{
    uint64_t blocks = ((uint64_t)tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;

    return blocks * round_up(s->kv_block_bytes) + s->fixed_bytes;
}
