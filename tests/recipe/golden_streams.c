/* streams.jsonl: output of the model in chunks -> events and whole answers of each protocol.
 *
 * Events are compared one by one, with the chunk after which they came. */
#include <stdio.h>
#include <string.h>

#include "golden.h"
#include "recipe/stream.h"

#define MAX_IDS 4096
#define MAX_TOP 20

/* What the stream gave, against what is wanted, as it comes. */
typedef struct sink {
    golden *g;
    const char *protocol;
    const jtree *want; /* next event */
    int64_t chunk;
    size_t n;
} sink;

static void on_event(void *ctx, const char *event, const char *data, size_t n)
{
    sink *s = ctx;
    const jtree *w = s->want, *chunk = w ? w->child : NULL, *name = chunk ? chunk->next : NULL;
    char what[64];

    snprintf(what, sizeof what, "%s event %zu", s->protocol, s->n++);
    if (s->g->case_failed)
        return;
    if (!w || !chunk || !name) {
        golden_fail(s->g, "%s is one too many: %.*s", what, (int)n, data);
        return;
    }
    golden_expect_json(s->g, what, name->next, data, n);
    if (chunk->i64 != s->chunk)
        golden_fail(s->g, "%s came with chunk %lld, want %lld", what, (long long)s->chunk,
                    (long long)chunk->i64);
    if (name->type == JSON_NULL ? event != NULL : !event || !jtree_is(name, event))
        golden_fail(s->g, "%s is called %s", what, event ? event : "(null)");
    s->want = w->next;
}

/* Ids and logprobs of a chunk. */
typedef struct tokens {
    int32_t ids[MAX_IDS];
    recipe_logprob logprob[MAX_IDS];
    recipe_alternative top[MAX_IDS][MAX_TOP];
    size_t n;
    bool has_logprobs;
} tokens;

static void read_logprobs(tokens *t, const jtree *list)
{
    size_t i = 0;

    t->has_logprobs = list && list->type == JSON_ARRAY;
    for (const jtree *v = t->has_logprobs ? list->child : NULL; v; v = v->next, i++) {
        recipe_logprob *lp = &t->logprob[i];

        *lp = (recipe_logprob){
            .id = t->ids[i], .logprob = (float)jtree_real(v->child), .top = t->top[i]};
        for (const jtree *a = v->child->next->child; a && lp->n_top < MAX_TOP; a = a->next)
            t->top[i][lp->n_top++] = (recipe_alternative){
                .id = (int32_t)a->child->i64, .logprob = (float)jtree_real(a->child->next)};
    }
}

static bool push_chunk(recipe_stream *s, const jtree *chunk)
{
    static tokens t;
    const jtree *ids = jtree_get(chunk, "ids");

    if (!ids)
        return recipe_stream_text(s, 0, chunk->child->text, chunk->child->n,
                                  chunk->child->next->i64);
    t.n = 0;
    for (const jtree *v = ids->child; v && t.n < MAX_IDS; v = v->next)
        t.ids[t.n++] = (int32_t)v->i64;
    read_logprobs(&t, jtree_get(chunk, "logprobs"));
    return recipe_stream_tokens(s, 0, t.ids, t.n, t.has_logprobs ? t.logprob : NULL);
}

static recipe_finish finish_of(const jtree *line)
{
    const jtree *f = jtree_get(line, "finish");

    return jtree_is(f, "Stop")            ? RECIPE_FINISH_STOP
           : jtree_is(f, "Length")        ? RECIPE_FINISH_LENGTH
           : jtree_is(f, "ContentFilter") ? RECIPE_FINISH_FILTER
                                          : RECIPE_FINISH_NONE;
}

/* Push all chunks; returns the chunk at which a stop string ended the answer, -1 = none. */
static int64_t push_all(recipe_stream *s, const jtree *line, sink *to)
{
    const jtree *chunks = jtree_get(line, "chunks");
    int64_t stopped = -1;

    to->chunk = -1;
    recipe_stream_ready(s, 11, 5);
    to->chunk = 0;
    for (const jtree *v = chunks->child; v && stopped < 0; v = v->next) {
        if (!push_chunk(s, v))
            stopped = to->chunk;
        else
            to->chunk++;
    }
    /* The closing events belong to the end, or to the chunk with the stop string. */
    recipe_stream_finish(s, 0, finish_of(line), 0);
    return stopped;
}

static void check_whole(golden *g, const jtree *line, const jtree *want, const recipe_request *q,
                        recipe_stream_options o)
{
    sink none = {.g = g};
    recipe_stream *s;
    str out = {0};

    o.emit = NULL;
    s = recipe_stream_new(q, &o);
    push_all(s, line, &none);
    recipe_stream_whole(s, &out);
    golden_expect_json(g, "response", jtree_get(want, "response"), str_text(&out), out.len);
    if (!recipe_stream_ok(s))
        golden_fail(g, "the stream is not ok");
    recipe_stream_free(s);
    str_fini(&out);
}

static void check_protocol(golden *g, const jtree *line, const jtree *want,
                           recipe_protocol protocol)
{
    recipe_options options = golden_options(g, jtree_get(line, "options"));
    const jtree *stopped = jtree_get(want, "stopped_at"), *done = jtree_get(want, "done");
    const char *end = recipe_stream_done(protocol);
    sink to = {.g = g, .protocol = want->key, .want = jtree_get(want, "events")->child};
    recipe_stream_options o = {.id = "id-golden",
                               .model = "?",
                               .fingerprint = "fp-golden",
                               .seed = 7,
                               .tok = g->tok,
                               .emit = on_event,
                               .ctx = &to};
    recipe_request q;
    recipe_error e;
    recipe_stream *s = NULL;
    str body = {0};
    int64_t got;

    golden_body(jtree_get(want, "body"), &body);
    if (!recipe_request_parse(&q, protocol, &options, str_text(&body), body.len, &e)) {
        golden_fail(g, "refused: %s", e.message);
        goto end;
    }
    o.model = q.model;
    s = recipe_stream_new(&q, &o);
    got = push_all(s, line, &to);
    if (to.want && !g->case_failed)
        golden_fail(g, "%s: only %zu events", want->key, to.n);
    if (got != (stopped->type == JSON_NULL ? -1 : stopped->i64))
        golden_fail(g, "%s: stopped at %lld", want->key, (long long)got);
    if (done->type == JSON_NULL ? end != NULL : !end || !jtree_is(done, end))
        golden_fail(g, "%s: end of the stream", want->key);
    check_whole(g, line, want, &q, o);
end:
    recipe_stream_free(s);
    recipe_request_fini(&q);
    str_fini(&body);
}

void golden_stream(golden *g, const jtree *line)
{
    const jtree *expect = jtree_get(line, "expect");

    for (const jtree *v = expect->child; v; v = v->next)
        check_protocol(g, line, v,
                       strcmp(v->key, "chat") == 0        ? RECIPE_PROTOCOL_CHAT
                       : strcmp(v->key, "responses") == 0 ? RECIPE_PROTOCOL_RESPONSES
                                                          : RECIPE_PROTOCOL_MESSAGES);
}
