/* Pieces and the segments that their bytes fall into: what is given out, and when.
 *
 * Pieces are finished in order. A segment of the oldest unfinished piece is given out when it ends
 * with its piece or another one follows in the same piece. When nothing is left the arrays start
 * again, so a stream that holds nothing back keeps their first size. */
#include <string.h>

#include "base/mem.h"
#include "recipe/jtree.h"
#include "recipe/parse_internal.h"

static void segment_free(segment *s)
{
    if (s->markup) {
        recipe_marked_fini(s->markup);
        mem_free(s->markup);
        s->markup = NULL;
    }
}

void queue_fini(queue *q)
{
    for (size_t i = q->first_piece; i < q->n_pieces; i++)
        mem_free(q->piece[i].logprob);
    for (size_t i = q->first_seg; i < q->n_segs; i++)
        segment_free(&q->seg[i]);
    mem_free(q->piece);
    mem_free(q->seg);
    str_fini(&q->text);
    *q = (queue){0};
}

void queue_piece(queue *q, size_t n, int64_t n_tokens, bool by_ids, recipe_logprob *logprob,
                 size_t n_logprob)
{
    if (q->n_pieces == q->cap_pieces) {
        size_t cap = q->cap_pieces ? q->cap_pieces * 2 : 4;
        piece *more = mem_try_realloc(q->piece, cap, sizeof *more);

        if (!more) {
            q->failed = true;
            mem_free(logprob);
            return;
        }
        q->piece = more;
        q->cap_pieces = cap;
    }
    q->piece[q->n_pieces++] = (piece){.begin = q->end,
                                      .end = q->end + n,
                                      .n_tokens = n_tokens,
                                      .by_ids = by_ids,
                                      .logprob = logprob,
                                      .n_logprob = n_logprob};
    q->end += n;
}

static segment *add_segment(queue *q)
{
    if (q->n_segs == q->cap_segs) {
        size_t cap = q->cap_segs ? q->cap_segs * 2 : 4;
        segment *more = mem_try_realloc(q->seg, cap, sizeof *more);

        if (!more) {
            q->failed = true;
            return NULL;
        }
        q->seg = more;
        q->cap_segs = cap;
    }
    DI_CHECK(q->seg);
    q->seg[q->n_segs] =
        (segment){.piece = q->at_piece, .text_begin = q->text.len, .text_end = q->text.len};
    return &q->seg[q->n_segs++];
}

/* The piece where the next byte is placed. */
static piece *next_piece(queue *q)
{
    while (q->at_piece < q->n_pieces && q->placed >= q->piece[q->at_piece].end)
        q->at_piece++;
    return q->at_piece < q->n_pieces ? &q->piece[q->at_piece] : NULL;
}

/* How many of n bytes fall into *p; notes the state in which the piece begins. */
static size_t portion(piece *p, size_t at, size_t n, bool reasoning)
{
    if (!p->placed) {
        p->placed = true;
        p->reasoning = reasoning;
    }
    return p->end - at < n ? p->end - at : n;
}

static bool joins(const queue *q, const segment *s, parse_action a, int call)
{
    return !s->fixed && s->piece == q->at_piece && s->action == a && s->call == call;
}

void queue_place(queue *q, const char *bytes, size_t n, parse_action a, bool escape, int call,
                 bool reasoning)
{
    while (n) {
        piece *p = next_piece(q);
        size_t take = p ? portion(p, q->placed, n, reasoning) : 0;
        segment *s = q->n_segs > q->first_seg ? &q->seg[q->n_segs - 1] : NULL;

        if (!p)
            return; /* the piece was lost for want of memory */
        if (!s || !joins(q, s, a, call))
            s = add_segment(q);
        if (!s)
            return;
        s->action = a;
        s->call = call;
        s->end = q->placed + take;
        if (escape)
            jtree_escape(bytes, take, &q->text);
        else if (a != ACTION_DROP && a != ACTION_NAME)
            str_append(&q->text, bytes, take);
        s->text_end = q->text.len;
        q->placed += take;
        bytes += take;
        n -= take;
    }
}

void queue_place_pattern(queue *q, const placing *w)
{
    size_t left = w->n, before = w->n_before;

    for (bool first = true; left; first = false) {
        piece *p = next_piece(q);
        size_t take;
        segment *s;

        if (!p)
            break;
        take = portion(p, q->placed, left, w->reasoning && before > 0);
        s = add_segment(q);
        if (!s)
            break;
        s->fixed = true;
        s->action = first ? w->action : ACTION_DROP;
        s->call = w->call;
        s->end = q->placed + take;
        if (first) {
            str_append(&q->text, w->text, w->n_text);
            s->text_end = q->text.len;
            s->markup = w->markup;
        }
        q->placed += take;
        left -= take;
        before -= take < before ? take : before;
    }
    if (left == w->n && w->markup) { /* nowhere to put it */
        recipe_marked_fini(w->markup);
        mem_free(w->markup);
    }
}

/* Hand one segment over as an event. Logprobs ride on the first text that its piece shows. */
static void show(queue *q, segment *s, piece *p, recipe_event_fn on_event, void *ctx)
{
    static const recipe_event_kind kinds[] = {
        [ACTION_CONTENT] = RECIPE_EVENT_CONTENT,     [ACTION_BLANK] = RECIPE_EVENT_CONTENT,
        [ACTION_REASONING] = RECIPE_EVENT_REASONING, [ACTION_ARGS] = RECIPE_EVENT_ARGS,
        [ACTION_CALL] = RECIPE_EVENT_CALL,           [ACTION_CALL_END] = RECIPE_EVENT_ARGS};
    recipe_event e = {.call = s->call,
                      .text = str_text(&q->text) + s->text_begin,
                      .n = s->text_end - s->text_begin};

    if (s->action == ACTION_DROP || s->action == ACTION_NAME)
        return;
    e.kind = kinds[s->action];
    if (s->action == ACTION_BLANK) {
        e.text = " ";
        e.n = 1;
    }
    if (e.kind == RECIPE_EVENT_CONTENT || e.kind == RECIPE_EVENT_REASONING) {
        e.logprob = p->logprob;
        e.n_logprob = p->n_logprob;
        p->n_logprob = 0;
    }
    if (e.n || e.kind == RECIPE_EVENT_CALL)
        on_event(ctx, &e);
    if (s->action == ACTION_CALL_END) {
        const recipe_event end = {
            .kind = RECIPE_EVENT_CALL_END, .call = s->call, .text = "", .markup = s->markup};

        on_event(ctx, &end);
    }
}

static void finish_piece(queue *q)
{
    piece *p = &q->piece[q->first_piece++];

    q->n_tokens += p->n_tokens;
    if (p->by_ids && p->reasoning)
        q->n_reasoning += p->n_tokens;
    mem_free(p->logprob);
    p->logprob = NULL;
}

static void finish_empty(queue *q)
{
    while (q->first_piece < q->n_pieces &&
           q->piece[q->first_piece].begin == q->piece[q->first_piece].end)
        finish_piece(q);
}

void queue_drain(queue *q, recipe_event_fn on_event, void *ctx)
{
    finish_empty(q);
    while (q->first_seg < q->n_segs) {
        segment *s = &q->seg[q->first_seg];
        piece *p = &q->piece[s->piece];
        bool ends = s->end == p->end;

        if (!ends && (q->first_seg + 1 == q->n_segs || q->seg[q->first_seg + 1].piece != s->piece))
            break;
        show(q, s, p, on_event, ctx);
        segment_free(s);
        q->first_seg++;
        if (ends)
            finish_piece(q);
        finish_empty(q);
    }
    if (q->first_seg == q->n_segs) {
        q->first_seg = q->n_segs = 0;
        str_clear(&q->text);
    }
    if (q->first_piece == q->n_pieces)
        q->first_piece = q->n_pieces = q->at_piece = 0;
}
