/* Checkpoints: the state beside the blocks at one position, in position order, never re-quantised.
 *
 *   unit a   rows max(0, pos-128) .. pos-1 of rings 0 .. n_encoder-1, then the open group's rows
 *   unit b   the same of the remaining rings (all but encoder checkpoints)
 *
 * LIVE, refs > 0   held by a request (preempted, or between turns): its node cannot go
 *   LIVE, refs = 0   cached: goes by its worth when units are short, or with its node
 *
 * Worth is what a checkpoint saves plus the worth of the last one that had to go when it was used
 * (GreedyDual): among equals the least recently used goes first, and a long prompt outlives many
 * short ones, whose state is as large and saves little. */
#include <string.h>

#include "kv/store_internal.h"

static int64_t rows_at(const kv_store *s, int64_t pos)
{
    return pos < s->layout.window ? pos : s->layout.window;
}

static uint8_t *unit(const kv_store *s, int32_t u)
{
    return s->unit_mem + (size_t)u * s->unit_bytes;
}

/* Jobs between ring `ring` of a sequence and `flat` (rows in position order). save: ring -> flat.
 */
static int ring_copies(const kv_lease *q, int ring, int64_t pos, uint8_t *flat, bool save,
                       kv_copy *out)
{
    const kv_layout *l = &q->store->layout;
    kv_view v = kv_lease_view(q, pos);
    int64_t n = rows_at(q->store, pos), p = pos - n;
    int made = 0;

    while (n > 0) { /* at most two runs: up to the end of the ring, then from its start */
        int64_t run = l->ring_rows - p % l->ring_rows;
        uint8_t *row = kv_ring(l, &v, ring, p);

        run = run < n ? run : n;
        out[made++] = (kv_copy){.dst = save ? flat : row,
                                .src = save ? row : flat,
                                .bytes = (size_t)run * l->ring_row_bytes};
        flat += (size_t)run * l->ring_row_bytes;
        p += run;
        n -= run;
    }
    return made;
}

/* Jobs for rows pos - pos%ratio .. pos-1 of every open ring. */
static int open_copies(const kv_lease *q, int64_t pos, uint8_t *flat, bool save, kv_copy *out)
{
    const kv_layout *l = &q->store->layout;
    kv_view v = kv_lease_view(q, pos);
    size_t bytes = 2 * (size_t)l->head_dim * sizeof(float);
    int made = 0;

    for (int o = 0; o < l->n_owners; o++) {
        if (l->owner[o].ratio == 1)
            continue;
        for (int64_t p = pos - pos % l->owner[o].ratio; p < pos; p++, flat += bytes) {
            void *row = kv_open(l, &v, o, p);

            out[made++] =
                (kv_copy){.dst = save ? flat : row, .src = save ? row : flat, .bytes = bytes};
        }
    }
    return made;
}

/* All jobs between a checkpoint's units and a sequence. */
static int state_copies(const kv_checkpoint *c, const kv_lease *q, bool save, kv_copy *out)
{
    const kv_store *s = c->store;
    size_t ring_bytes = (size_t)s->layout.window * s->layout.ring_row_bytes;
    int n_enc = s->opt.n_encoder_rings, made = 0;

    for (int r = 0; r < n_enc; r++)
        made += ring_copies(q, r, c->pos, unit(s, c->unit_a) + (size_t)r * ring_bytes, save,
                            out + made);
    made +=
        open_copies(q, c->pos, unit(s, c->unit_a) + (size_t)n_enc * ring_bytes, save, out + made);
    for (int r = n_enc; c->kind != KV_CKPT_ENCODER && r < s->layout.n_rings; r++)
        made += ring_copies(q, r, c->pos, unit(s, c->unit_b) + (size_t)(r - n_enc) * ring_bytes,
                            save, out + made);
    return made;
}

int ckpt_restore(const kv_checkpoint *c, kv_lease *q, kv_copy *copies)
{
    const kv_store *s = c->store;
    int made = state_copies(c, q, false, copies);

    if (c->partial != NONE)
        copies[made++] =
            (kv_copy){.dst = s->block_mem +
                             (size_t)q->table[c->pos / KV_BLOCK_TOKENS] * s->layout.block_bytes,
                      .src = s->block_mem + (size_t)c->partial * s->layout.block_bytes,
                      .bytes = s->layout.block_bytes};
    return made;
}

void ckpt_evict(kv_store *s, kv_checkpoint *c)
{
    int32_t id = (int32_t)(c - s->ckpts), *at = &s->nodes[c->node].first_ckpt;

    while (*at != id)
        at = &s->ckpts[*at].next;
    *at = c->next;
    s->free_units[s->n_free_units++] = c->unit_a;
    if (c->unit_b != NONE)
        s->free_units[s->n_free_units++] = c->unit_b;
    if (c->partial != NONE)
        block_unhold(s, c->partial);
    c->live = false;
    c->next = s->first_free_ckpt;
    s->first_free_ckpt = id;
    s->n_ckpts--;
    s->evicted_ckpts++;
}

void ckpt_touch(kv_checkpoint *c)
{
    c->used_at = ++c->store->clock;
    c->worth = c->store->floor + (uint64_t)c->saved;
}

static bool worth_less(const kv_checkpoint *a, const kv_checkpoint *b)
{
    return a->worth != b->worth ? a->worth < b->worth : a->used_at < b->used_at;
}

/* The unreferenced checkpoint that is worth least, or NULL. Those of the step that is being planned
 * stay: their copies run behind it and must not meet another's in the same unit. */
static kv_checkpoint *least(kv_store *s)
{
    kv_checkpoint *best = NULL;

    for (int32_t i = 0; i < s->n_units; i++) {
        kv_checkpoint *c = &s->ckpts[i];

        if (c->live && c->refs == 0 && c->step != s->n_steps && (!best || worth_less(c, best)))
            best = c;
    }
    return best;
}

/* The checkpoint of this kind and position that the sequence's node already has, or NULL. */
static kv_checkpoint *existing(const kv_lease *q, int64_t pos, kv_ckpt_kind kind)
{
    kv_store *s = q->store;

    for (int32_t i = s->nodes[q->node].first_ckpt; i != NONE; i = s->ckpts[i].next) {
        kv_checkpoint *c = &s->ckpts[i];

        if (c->pos == pos && c->kind == kind && c->salt == q->salt &&
            memcmp(c->tail, q->tail, (size_t)(pos % KV_BLOCK_TOKENS) * sizeof *c->tail) == 0)
            return c;
    }
    return NULL;
}

bool ckpt_evict_least(kv_store *s)
{
    kv_checkpoint *c = least(s);

    if (!c)
        return false;
    if (c->worth > s->floor)
        s->floor = c->worth;
    ckpt_evict(s, c);
    return true;
}

/* Units for a checkpoint; evicts. False when the budget is full of referenced ones. */
static bool take_units(kv_store *s, int n)
{
    while (s->n_free_units < n)
        if (!ckpt_evict_least(s))
            return false;
    return true;
}

static void add_ref(kv_checkpoint *c)
{
    if (c->refs++ == 0)
        tree_ref(c->store, c->node);
}

di_code kv_lease_checkpoint(kv_lease *q, int64_t pos, kv_ckpt_kind kind, kv_checkpoint **out,
                            kv_copy *copies, int *n_copies, di_status *st)
{
    kv_store *s = q->store;
    kv_checkpoint *c = kind == KV_CKPT_OWN ? NULL : existing(q, pos, kind);

    *n_copies = 0;
    if (out)
        *out = NULL;
    if (pos != q->committed)
        return di_fail(st, DI_E_INTERNAL, "checkpoint at %lld, but %lld tokens are committed",
                       (long long)pos, (long long)q->committed);
    if (!c) {
        if (!take_units(s, kind == KV_CKPT_ENCODER ? 1 : 2))
            return di_fail(st, DI_E_BUSY, "all %d checkpoint units are in use", s->n_units);
        c = &s->ckpts[s->first_free_ckpt];
        s->first_free_ckpt = c->next;
        *c = (kv_checkpoint){.store = s,
                             .pos = pos,
                             .salt = q->salt,
                             .saved = pos - q->kept_at,
                             .step = s->n_steps,
                             .kind = kind,
                             .node = q->node,
                             .next = s->nodes[q->node].first_ckpt,
                             .unit_a = s->free_units[--s->n_free_units],
                             .unit_b = NONE,
                             .partial = NONE,
                             .live = true};
        if (kind != KV_CKPT_ENCODER)
            c->unit_b = s->free_units[--s->n_free_units];
        memcpy(c->tail, q->tail, sizeof c->tail);
        if (pos % KV_BLOCK_TOKENS) {
            c->partial = q->table[pos / KV_BLOCK_TOKENS];
            block_hold(s, c->partial);
        }
        s->nodes[q->node].first_ckpt = (int32_t)(c - s->ckpts);
        s->n_ckpts++;
        *n_copies = state_copies(c, q, true, copies);
    }
    q->kept_at = pos;
    ckpt_touch(c);
    if (out) {
        add_ref(c);
        *out = c;
    }
    return DI_OK;
}

void kv_checkpoint_unref(kv_checkpoint *c)
{
    if (c && --c->refs == 0)
        tree_unref(c->store, c->node);
}

kv_hit kv_checkpoint_hit(kv_checkpoint *c)
{
    return (kv_hit){.len = c->pos, .from = c, .kind = c->kind};
}

void ckpt_best_on(kv_store *s, int32_t n, const int32_t *ids, int64_t n_ids, uint64_t salt,
                  int64_t tail, double encoder_cost, double *cost, kv_hit *hit)
{
    int64_t base = (int64_t)s->nodes[n].depth * KV_BLOCK_TOKENS;

    for (int32_t i = s->nodes[n].first_ckpt; i != NONE; i = s->ckpts[i].next) {
        kv_checkpoint *c = &s->ckpts[i];
        int64_t left = n_ids - c->pos;
        double need;

        if (c->kind == KV_CKPT_OWN || c->salt != salt || left < 1 || c->step == s->n_steps ||
            memcmp(c->tail, ids + base, (size_t)(c->pos - base) * sizeof *ids) != 0)
            continue;
        if (c->kind == KV_CKPT_ENCODER && (tail < 0 || left < tail))
            continue;
        need = c->kind == KV_CKPT_FULL ? (double)left
                                       : (double)tail + (double)(left - tail) * encoder_cost;
        if (need < *cost) {
            *cost = need;
            *hit = kv_checkpoint_hit(c);
        }
    }
}
