/* Prompts of a benchmark: ids cut from one text, so that drafts meet language, or random ids where
 * the weights are generated. Every prompt begins with ids of its own: none shares a prefix. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/bench.h"

#define MAX_TEXT   ((size_t)64 << 20)
#define N_RANDOM   4096
#define OWN_PREFIX 4 /* ids that tell prompts apart */

static const char builtin[] =
    "The mill stood where the two rivers met, and for as long as anybody could remember it had "
    "been painted white. Every spring the miller climbed the ladder with a bucket and a brush, and "
    "every spring his neighbours told him that he had missed a place behind the wheel. He said "
    "that the wheel could not see it. In the evening, when the water was low, children came to "
    "look for the stones that the current had made round, and the oldest of them counted aloud: "
    "one for the house, two for the road, three for the boat that never came back. Ann kept hers "
    "in a box under the stairs. She knew each of them by its weight, and she could say in the dark "
    "which one she held. When her brother asked what they were for, she answered that a thing need "
    "not be for anything. That year the snow stayed until April, and the lower field lay under "
    "water for a month. Nobody could reach the village by cart, so the letters came by boat, and "
    "with them a stranger who asked for a bed, a lamp, and the name of the man who owned the mill. "
    "What is it that you want from him? asked the woman at the inn. A sack of flour, said the "
    "stranger, and the answer to a question. He put four coins on the table, one beside the other. "
    "The first is for the bed, the second for the lamp, the third is for the flour. And the "
    "fourth? The fourth is for you, if you tell me why the bridge has no middle.\n";

static uint32_t mix(uint64_t a, uint64_t b)
{
    return philox4x32(
               (philox_block){{(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32)}},
               0x62656E63u, 0x68u)
        .v[0];
}

static int32_t random_id(const bench *b, uint64_t a, uint64_t c)
{
    return (int32_t)(mix(a, c) % (uint32_t)b->s.info.vocab);
}

static di_code pool_of_text(bench *b, di_status *st)
{
    char *text = NULL;
    size_t n = sizeof builtin - 1;
    di_code rc = DI_OK;

    if (b->o->text)
        DI_TRY(file_read(&text, &n, b->o->text, MAX_TEXT, st));
    DI_TRY(di_tokenize(b->s.model, text ? text : builtin, n, false, &b->pool, &b->n_pool, st));
    if (b->n_pool < (size_t)2 * OWN_PREFIX)
        rc = di_fail(st, DI_E_INVALID, "\"%s\" has %zu tokens, at least %d are needed", b->o->text,
                     b->n_pool, 2 * OWN_PREFIX);
done:
    mem_free(text);
    return rc;
}

static di_code pool_of_noise(bench *b, di_status *st)
{
    b->n_pool = N_RANDOM;
    b->pool = mem_try_calloc(b->n_pool, sizeof *b->pool);
    if (!b->pool)
        return di_fail(st, DI_E_NOMEM, "no memory for prompts");
    for (size_t i = 0; i < b->n_pool; i++)
        b->pool[i] = random_id(b, i, 1);
    return DI_OK;
}

di_code bench_prompts_init(bench *b, di_status *st)
{
    if (strcmp(b->o->weights.format, "dummy") == 0 && !b->o->text)
        return pool_of_noise(b, st);
    return pool_of_text(b, st);
}

void bench_next_request(bench *b, int64_t n, int64_t output, di_request_params *p)
{
    uint64_t id = ++b->n_requests;
    int64_t shared = b->o->cached, at = 0;

    for (; at < shared; at++) /* the same for all */
        b->ids[at] = b->pool[(size_t)at % b->n_pool];
    for (int64_t i = 0; i < n; i++, at++)
        b->ids[at] = i < OWN_PREFIX ? b->pool[mix(id, 2 + (uint64_t)i) % b->n_pool]
                                    : b->pool[(mix(id, 0) + (uint64_t)i) % b->n_pool];
    b->ids[0] = b->s.info.bos;
    *p = (di_request_params){.ids = b->ids,
                             .n_ids = (size_t)at,
                             .max_tokens = output,
                             .has_seed = true,
                             .seed = id,
                             .temperature = (float)b->o->temperature,
                             .ignore_eos = true};
    if (b->o->acceptance < 0)
        return;
    for (int64_t i = 0; i < output; i++)
        b->forced[i] = random_id(b, id, 16 + (uint64_t)i);
    p->forced = b->forced;
    p->n_forced = (size_t)output;
}
