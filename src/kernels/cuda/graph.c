/* Recorded steps: the launches between replay and recorded, as a CUDA graph per key.
 *
 * Recording takes the time of a few steps, and most prompt steps never come again: a key runs as it
 * is until it has come RECORD_AT times. Then the launches are recorded, and from then on one call
 * runs them all.
 *
 *   unknown -replay-> SEEN -replay, often-> recording -recorded-> KNOWN -replay-> run
 *
 * The least recently used key goes when there are too many; all go when memory is given back. */
#include <string.h>

#include "kernels/cuda/cuda_host.h"

#define RECORD_AT 5

static cuda_graph *find(cuda_impl *c, const void *key, size_t bytes)
{
    for (int i = 0; i < CUDA_GRAPHS; i++) {
        cuda_graph *g = &c->graph[i];

        if (g->bytes == bytes && memcmp(g->key, key, bytes) == 0)
            return g;
    }
    return NULL;
}

static void forget(cuda_graph *g)
{
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    *g = (cuda_graph){0};
}

void cuda_forget_graphs(cuda_impl *c)
{
    for (int i = 0; i < CUDA_GRAPHS; i++)
        forget(&c->graph[i]);
}

/* Keep the key in the place of the one that was not used for longest. */
static void remember(cuda_impl *c, const void *key, size_t bytes)
{
    cuda_graph *g = c->graph;

    for (int i = 1; i < CUDA_GRAPHS; i++)
        if (c->graph[i].used_at < g->used_at)
            g = &c->graph[i];
    forget(g);
    memcpy(g->key, key, bytes);
    g->bytes = bytes;
    g->used_at = ++c->graph_clock;
    g->n_seen = 1;
}

static void run(cuda_impl *c, cuda_graph *g)
{
    cuda_note(c, cudaGraphLaunch(g->exec, c->stream), "a recorded step");
    c->count.launches += g->n_launches;
    c->count.replays++;
}

bool cuda_replay(kernels *k, const void *key, size_t bytes)
{
    cuda_impl *c = k->impl;
    cuda_graph *g = find(c, key, bytes);

    if (c->no_graphs || bytes > sizeof g->key)
        return false;
    if (!g) {
        remember(c, key, bytes);
        return false;
    }
    g->used_at = ++c->graph_clock;
    if (g->exec) {
        run(c, g);
        return true;
    }
    if (++g->n_seen < RECORD_AT)
        return false;
    /* other threads may allocate meanwhile: only this one's calls are checked */
    if (cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess) {
        c->recording = g;
        g->n_launches = c->count.launches;
    }
    cudaGetLastError();
    return false;
}

void cuda_recorded(kernels *k)
{
    cuda_impl *c = k->impl;
    cuda_graph *g = c->recording;
    cudaGraph_t graph = NULL;
    cudaError_t e;

    if (!g)
        return;
    c->recording = NULL;
    g->n_launches = c->count.launches - g->n_launches;
    c->count.launches -= g->n_launches; /* nothing has run yet */
    e = cudaStreamEndCapture(c->stream, &graph);
    if (!e)
        e = cudaGraphInstantiate(&g->exec, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    if (e) {
        cuda_note(c, e, "recording a step");
        forget(g);
        return;
    }
    c->count.records++;
    run(c, g);
}
