/* Engram hash: primes, multipliers and rows (spec 6.2). */
#include "model/engram.h"

#include "base/mem.h"
#include "checkpoint/engram_rows.h"
#include "model/numpy_rng.h"

#define MAX_NGRAM 16

struct engram_hash {
    int n_layers, ngram, heads, cols, vocab;
    int32_t pad;             /* compressed id of the pad token */
    int32_t *map;            /* [vocab] */
    int64_t *prime, *offset; /* [n_layers][cols] */
    int64_t mult[CFG_MAX_ENGRAM][MAX_NGRAM];
};

/* Offsets of the columns in their table. Errors: FORMAT when it has another number of rows. */
static di_code derive_primes(engram_hash *h, const model_config *c, di_status *st)
{
    engram_primes(c, h->prime);
    for (int l = 0; l < h->n_layers; l++) {
        int64_t sum = 0;

        for (int i = l * h->cols; i < (l + 1) * h->cols; i++) {
            h->offset[i] = sum;
            sum += h->prime[i];
        }
        if (sum != c->engram_rows[l])
            return di_fail(st, DI_E_FORMAT,
                           "Engram table of layer %d has %lld rows, its hash needs %lld "
                           "(config.json: engram_num_embeddings, engram_vocab_size)",
                           c->engram_layer[l], (long long)c->engram_rows[l], (long long)sum);
    }
    return DI_OK;
}

static void derive_multipliers(engram_hash *h, const model_config *c)
{
    uint64_t bound = (uint64_t)INT64_MAX / (uint64_t)c->engram_compressed / 2;

    for (int l = 0; l < h->n_layers; l++) {
        numpy_rng r;

        numpy_rng_init(&r, 10007u * (uint32_t)c->engram_layer[l]);
        for (int i = 0; i < h->ngram; i++)
            h->mult[l][i] = (int64_t)(numpy_rng_below(&r, bound) * 2 + 1);
    }
}

/* The map must use exactly the ids 0 .. engram_compressed-1. */
static di_code copy_map(engram_hash *h, const model_config *c, const int32_t *compressed,
                        di_status *st)
{
    int32_t top = -1;

    for (int i = 0; i < c->vocab; i++) {
        if (compressed[i] < 0)
            return di_fail(st, DI_E_FORMAT, "token %d has no compressed id", i);
        if (compressed[i] > top)
            top = compressed[i];
        h->map[i] = compressed[i];
    }
    if (top + 1 != c->engram_compressed)
        return di_fail(st, DI_E_FORMAT,
                       "the tokenizer has %d compressed ids, config.json says %d "
                       "(engram_compressed_vocab_size): the two files are not of one model",
                       top + 1, c->engram_compressed);
    h->pad = h->map[c->engram_pad];
    return DI_OK;
}

di_code engram_hash_new(engram_hash **out, const model_config *c, const int32_t *compressed,
                        di_status *st)
{
    di_code rc = DI_OK;
    engram_hash *h = mem_try_calloc(1, sizeof *h);
    size_t n;

    *out = NULL;
    if (!h)
        return di_fail(st, DI_E_NOMEM, "no memory for the Engram hash");
    *h = (engram_hash){.n_layers = c->n_engram,
                       .ngram = c->engram_ngram,
                       .heads = c->engram_heads,
                       .cols = config_engram_cols(c),
                       .vocab = c->vocab};
    if (h->ngram > MAX_NGRAM || c->engram_compressed < 1 || c->engram_compressed > 1 << 29 ||
        c->engram_pad >= c->vocab) {
        rc = di_fail(st, DI_E_FORMAT, "Engram of %d-grams over %d compressed ids is not supported",
                     h->ngram, c->engram_compressed);
        goto done;
    }
    n = (size_t)h->n_layers * (size_t)h->cols;
    h->map = mem_try_calloc((size_t)c->vocab, sizeof *h->map);
    h->prime = mem_try_calloc(n, sizeof *h->prime);
    h->offset = mem_try_calloc(n, sizeof *h->offset);
    if (!h->map || !h->prime || !h->offset) {
        rc = di_fail(st, DI_E_NOMEM, "no memory for the Engram hash");
        goto done;
    }
    DI_TRY(copy_map(h, c, compressed, st));
    DI_TRY(derive_primes(h, c, st));
    derive_multipliers(h, c);
    *out = h;
    h = NULL;
done:
    engram_hash_free(h);
    return rc;
}

size_t engram_hash_bytes(const model_config *c)
{
    size_t cols = (size_t)c->n_engram * (size_t)config_engram_cols(c);

    return sizeof(engram_hash) + (size_t)c->vocab * sizeof(int32_t) + 2 * cols * sizeof(int64_t);
}

void engram_hash_free(engram_hash *h)
{
    if (!h)
        return;
    mem_free(h->map);
    mem_free(h->prime);
    mem_free(h->offset);
    mem_free(h);
}

int32_t engram_compress(const engram_hash *h, int32_t token)
{
    return h->map[token];
}

void engram_rows(const engram_hash *h, int layer, const int32_t *t, int64_t *rows)
{
    const int64_t *prime = h->prime + (size_t)layer * (size_t)h->cols;
    const int64_t *offset = h->offset + (size_t)layer * (size_t)h->cols;
    int64_t v = 0;
    bool blocked = false; /* sticky: never look past the start or an image */
    int col = 0;

    for (int back = 0; back < h->ngram; back++) {
        blocked = blocked || t[back] < 0;
        v ^= (blocked ? h->pad : t[back]) * h->mult[layer][back];
        if (back == 0)
            continue;
        for (int head = 0; head < h->heads; head++, col++)
            rows[col] = v % prime[col] + offset[col];
    }
}
