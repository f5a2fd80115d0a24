/* Making a configuration smaller: fewer layers, a share of the experts, fewer Engram rows. */
#include <inttypes.h>

#include "base/mem.h"
#include "checkpoint/checkpoint_internal.h"
#include "checkpoint/dummy.h"
#include "checkpoint/engram_rows.h"

#define DEFAULT_ROWS ((int64_t)1 << 20)

/* Layers n of old.n_layers, evenly spread: the kinds stay in proportion. */
static int kept_layer(const model_config *old, int i, int n)
{
    return (int)((int64_t)i * old->n_layers / n);
}

/* The first kept layer of those that read one source takes its place. */
static void keep_sources(model_config *c, const model_config *old)
{
    int kv_owner = -1, index_owner = -1;

    c->n_kv_sources = c->n_index_sources = 0;
    c->cand_source = -1;
    for (int i = 0; i < c->n_layers; i++) {
        int from = kept_layer(old, i, c->n_layers), kv = config_kv_owner(old, from);
        int index = config_index_owner(old, from);

        c->ratio[i] = old->ratio[from];
        if (kv >= 0 && kv != kv_owner)
            c->kv_source[c->n_kv_sources++] = i;
        if (index >= 0 && index != index_owner) {
            c->index_source[c->n_index_sources++] = i;
            if (old->cand_source >= 0 && index >= old->cand_source && c->cand_source < 0)
                c->cand_source = i;
        }
        kv_owner = kv >= 0 ? kv : kv_owner;
        index_owner = index >= 0 ? index : index_owner;
    }
}

static void keep_engram(model_config *c, const model_config *old)
{
    int next = 0;

    c->n_engram = 0;
    for (int e = 0; e < old->n_engram; e++) {
        while (next < c->n_layers && kept_layer(old, next, c->n_layers) < old->engram_layer[e])
            next++;
        if (next == c->n_layers)
            return;
        c->engram_layer[c->n_engram] = next++;
        c->engram_rows[c->n_engram++] = old->engram_rows[e];
    }
}

/* Taps are the last layers, behind the last KV source where there are so many, or the rows of a
 * prompt could not stop there (model/plan.c). */
static void keep_taps(model_config *c, const model_config *old)
{
    int first = c->n_kv_sources ? c->kv_source[c->n_kv_sources - 1] : 0;
    int room = c->n_layers - first;

    c->n_taps = old->n_taps < room ? old->n_taps : room;
    for (int i = 0; i < c->n_taps; i++)
        c->tap_layer[i] = c->n_layers - c->n_taps + i;
}

static di_code keep_layers(model_config *c, int n, di_status *st)
{
    const model_config old = *c;

    if (n < 0 || n > old.n_layers)
        return di_fail(st, DI_E_INVALID, "%d layers to keep, but config.json has %d", n,
                       old.n_layers);
    if (n == 0 || n == old.n_layers)
        return DI_OK;
    c->n_layers = n;
    keep_sources(c, &old);
    for (int s = 0; s < c->n_stages; s++)
        c->ratio[n + s] = 0;
    keep_engram(c, &old);
    keep_taps(c, &old);
    return DI_OK;
}

static di_code keep_share(model_config *c, const dummy_options *o, di_status *st)
{
    int n = o->n_shares;

    if (n == 0)
        return DI_OK;
    if (n < 1 || o->share < 0 || o->share >= n)
        return di_fail(st, DI_E_INVALID, "expert share %d/%d: shares of n run from 0 to n-1",
                       o->share, n);
    if (c->n_experts % n || (c->n_stages > 0 && c->draft_experts % n))
        return di_fail(st, DI_E_INVALID,
                       "expert share %d/%d: %d experts (%d in draft stages) cannot be divided by "
                       "%d",
                       o->share, n, c->n_experts, c->n_stages > 0 ? c->draft_experts : 0, n);
    if (c->n_experts / n < c->n_active ||
        (c->n_stages > 0 && c->draft_experts / n < c->draft_active))
        return di_fail(st, DI_E_INVALID,
                       "expert share %d/%d: %d experts per token are more than a share holds",
                       o->share, n, c->n_active);
    c->n_experts /= n;
    c->draft_experts = c->n_stages > 0 ? c->draft_experts / n : c->draft_experts;
    return DI_OK;
}

/* The hash decides how many rows a table has: a smaller vocabulary of it, smaller primes. */
static di_code keep_rows(model_config *c, int64_t most, di_status *st)
{
    int cols = config_engram_cols(c);
    int64_t *prime, largest = 0;

    for (int e = 0; e < c->n_engram; e++)
        largest = c->engram_rows[e] > largest ? c->engram_rows[e] : largest;
    most = most ? most : DEFAULT_ROWS;
    if (largest <= most)
        return DI_OK;
    if (most < 64 * (int64_t)cols)
        return di_fail(st, DI_E_INVALID,
                       "%" PRId64 " Engram rows are too few for %d columns: at least %d", most,
                       cols, 64 * cols);
    prime = mem_try_calloc((size_t)c->n_engram * (size_t)cols, sizeof *prime);
    if (!prime)
        return di_fail(st, DI_E_NOMEM, "no memory for the Engram hash");
    c->engram_vocab = most / cols;
    engram_primes(c, prime);
    for (int e = 0; e < c->n_engram; e++) {
        c->engram_rows[e] = 0;
        for (int i = 0; i < cols; i++)
            c->engram_rows[e] += prime[e * cols + i];
    }
    mem_free(prime);
    return DI_OK;
}

di_code dummy_config(model_config *c, const dummy_options *o, di_status *st)
{
    di_code rc = DI_OK;

    DI_TRY(keep_layers(c, o->n_layers, st));
    DI_TRY(keep_share(c, o, st));
    DI_TRY(keep_rows(c, o->engram_rows, st));
    rc = config_check(c, "config.json of what is kept", st);
done:
    return rc;
}
