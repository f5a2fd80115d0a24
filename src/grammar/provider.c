/* A state as a constraint of the engine (deepinfer.h, di_mask_provider). */
#include "grammar/grammar.h"

static bool fill(void *ctx, uint32_t *mask, int vocab)
{
    (void)vocab;
    grammar_fill(ctx, mask);
    return true; /* also in a dead end: a mask without a token ends the choice in error */
}

static bool accept(void *ctx, int32_t token)
{
    return grammar_accept(ctx, token);
}

static void rollback(void *ctx, int n)
{
    grammar_rollback(ctx, n);
}

static void *fork_state(void *ctx)
{
    return grammar_state_clone(ctx);
}

static void free_state(void *ctx)
{
    grammar_state_free(ctx);
}

static bool finished(void *ctx)
{
    return grammar_must_stop(ctx);
}

static int forced(void *ctx, int32_t *token, int cap)
{
    return grammar_forced(ctx, token, cap);
}

const di_mask_provider grammar_provider = {
    .fill = fill,
    .accept = accept,
    .rollback = rollback,
    .fork = fork_state,
    .free = free_state,
    .finished = finished,
    .forced = forced,
};
