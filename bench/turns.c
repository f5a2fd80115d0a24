/* Conversations that take turns, in the layout of the release: how much of their prompts has to be
 * computed again, by the share of the memory that checkpoints get. The KV store alone, driven as
 * the scheduler drives it; nothing is computed, so gigabytes of state cost nothing.
 *
 * Each of N conversations grows by a question and an answer per turn up to its length, then a new
 * one takes its place; whose turn it is is drawn. All share a system prompt. Costs count rows as
 * whole ones; those that exact replay lets skip the decoder layers as ENCODER of one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine_rig.h"
#include "kv/store.h"
#include "turns.h"

#define MEMORY   ((double)(8LL << 30)) /* blocks and checkpoints */
#define RINGS    43
#define ENCODERS 20 /* rings up to the last KV owner */
#define TAIL     (127 * 20 + 2)
#define ENCODER  0.5
#define SPACING  4096
#define SYSTEM   1500
#define TURNS    6000
#define LONGEST  (72 << 10)

typedef struct talk {
    uint32_t key;
    int64_t len; /* prompt and answers so far */
} talk;

typedef struct world {
    kv_store *kv;
    kv_copy *copies;
    int32_t ids[LONGEST];
    double computed, asked;
    uint32_t n_draws, n_talks;
} world;

static uint32_t draw(world *w, uint32_t n)
{
    return philox4x32((philox_block){{w->n_draws++, 0, 0, 0}}, 5, 6).v[0] % n;
}

/* Tokens of a conversation: the first SYSTEM are those of all. */
static void write_ids(world *w, const talk *t, int64_t n)
{
    for (uint32_t i = 0; i < (uint32_t)n; i++)
        w->ids[i] = (int32_t)((i * 2654435761u ^ (i < SYSTEM ? 0 : t->key * 40503u)) >> 4);
}

/* Rows of a prompt's end, as whole ones. */
static double cost(int64_t rows)
{
    return rows <= TAIL ? (double)rows : TAIL + (double)(rows - TAIL) * ENCODER;
}

static void keep(world *w, kv_lease *q, int64_t at, kv_ckpt_kind kind)
{
    int n;

    kv_lease_checkpoint(q, at, kind, NULL, w->copies, &n, NULL);
    kv_store_step_planned(w->kv);
}

/* A prompt of n tokens, then an answer. */
static void turn(world *w, talk *t, int64_t n, int64_t answer)
{
    kv_hit hit;
    kv_lease *q;
    di_status st = {0};
    int64_t at;
    int n_copies;

    write_ids(w, t, n + answer);
    hit = kv_match(w->kv, w->ids, n, 0, TAIL, ENCODER);
    at = hit.len;
    w->asked += cost(n);
    w->computed += cost(n - at);
    if (kv_lease_open(w->kv, &q, &hit, 0, w->copies, &n_copies, &st) != DI_OK ||
        kv_lease_reserve(q, n + answer, &st) != DI_OK)
        rig_stop("%s", st.message);
    for (int64_t mark = (at / SPACING + 1) * SPACING; mark <= n - TAIL; mark += SPACING) {
        kv_lease_commit(q, w->ids + at, mark - at);
        keep(w, q, mark, KV_CKPT_ENCODER);
        at = mark;
    }
    kv_lease_commit(q, w->ids + at, n - 1 - at);
    keep(w, q, n - 1, KV_CKPT_FULL);
    kv_lease_commit(q, w->ids + n - 1, answer);
    keep(w, q, n - 1 + answer, KV_CKPT_FULL);
    kv_lease_close(q);
    t->len = n + answer;
}

/* `n` conversations of `length` tokens with checkpoints of 1/share of the blocks. */
static double play(int n, int64_t length, int share)
{
    static const int ratio[] = {1, 2, 2, 2};
    world *w = calloc(1, sizeof *w);
    talk *t = calloc((size_t)n, sizeof *t);
    kv_layout l;
    kv_store_options o = {
        .layout = &l, .n_encoder_rings = ENCODERS, .max_seqs = 1, .max_context = LONGEST};
    di_status st = {0};
    double result;

    kv_layout_init(&l, KV_PACKED, 512, 128, 128, 5, RINGS, ratio, 4);
    o.n_blocks = (int)(MEMORY * share / (share + 1) / (double)l.block_bytes);
    o.checkpoint_bytes = (size_t)(MEMORY / (share + 1));
    if (!w || !t || kv_store_new(&w->kv, &o, &st) != DI_OK)
        rig_stop("%s", st.message);
    w->copies = calloc((size_t)kv_max_copies(w->kv), sizeof *w->copies);
    for (int i = 0; i < TURNS; i++) {
        talk *who = &t[draw(w, (uint32_t)n)];
        int64_t question = 30 + draw(w, 600), answer = 50 + draw(w, 900);

        if (i == TURNS / 4) /* the store is full by then */
            w->computed = w->asked = 0;
        if (who->len == 0 || who->len + question + answer > length)
            *who = (talk){.key = ++w->n_talks, .len = SYSTEM};
        turn(w, who, who->len + question, answer);
    }
    result = w->computed / w->asked;
    kv_store_free(w->kv);
    free(w->copies);
    free(w);
    free(t);
    return result;
}

void measure_turns(void)
{
    static const int share[] = {8, 4, 2, 1};
    static const int64_t length[] = {4096, 8192, 16384, 32768, 65536};

    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 2; k++) {
            int n = (int)(MEMORY / 890 / (double)length[i]) * (1 + k);

            for (int s = 0; s < 4; s++) {
                char text[80];

                snprintf(text, sizeof text, "%d conversations of %lld, checkpoints 1/%d of blocks",
                         n, (long long)length[i], share[s]);
                rig_row("turns", text, 1, 100 * play(n, length[i], share[s]), "%", 0);
            }
        }
}
