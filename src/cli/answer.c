/* decoder -> think_split -> stop_match, each holding back what is not certain. See answer.h. */
#include "cli/answer.h"

di_code answer_init(answer *a, const tokenizer *tok, bool split, bool starts_in_reasoning,
                    const char *const *stop, const size_t *stop_len, size_t n_stop, di_status *st)
{
    *a = (answer){.tok = tok, .split = split};
    tok_decoder_init(&a->decoder, tok);
    think_init(&a->think, starts_in_reasoning);
    return stop_init(&a->stop, stop, stop_len, n_stop, st);
}

void answer_fini(answer *a)
{
    tok_decoder_fini(&a->decoder);
    think_fini(&a->think);
    stop_fini(&a->stop);
    str_fini(&a->reasoning);
    str_fini(&a->content);
    str_fini(&a->piece);
    str_fini(&a->part);
}

/* Pass a->piece on; false when a stop string is complete. */
static bool pass(answer *a)
{
    const str *content = &a->piece;

    if (a->split) {
        str_clear(&a->part);
        think_push(&a->think, str_text(&a->piece), a->piece.len, &a->reasoning, &a->part);
        content = &a->part;
    }
    return !stop_push(&a->stop, str_text(content), content->len, &a->content);
}

bool answer_push(answer *a, int32_t id)
{
    bool in_reasoning = a->split && a->think.in_reasoning, go_on;

    if (tokenizer_is_special(a->tok, id))
        return true;
    str_clear(&a->piece);
    tok_decoder_push(&a->decoder, id, &a->piece);
    go_on = pass(a);
    /* The marker itself counts for neither part. */
    if (in_reasoning && a->think.in_reasoning)
        a->n_reasoning++;
    return go_on;
}

di_code answer_end(answer *a, di_status *st)
{
    str_clear(&a->piece);
    tok_decoder_flush(&a->decoder, &a->piece);
    pass(a);
    if (a->split) {
        str_clear(&a->part);
        think_flush(&a->think, &a->reasoning, &a->part);
        stop_push(&a->stop, str_text(&a->part), a->part.len, &a->content);
    }
    stop_flush(&a->stop, &a->content);
    if (!str_ok(&a->reasoning) || !str_ok(&a->content) || !str_ok(&a->piece) || !str_ok(&a->part))
        return di_fail(st, DI_E_NOMEM, "no memory for the text of an answer");
    return DI_OK;
}

static const char *fresh(const str *s, size_t *seen, size_t *n)
{
    const char *text = str_text(s) + *seen;

    *n = s->len - *seen;
    *seen = s->len;
    return text;
}

const char *answer_new_reasoning(answer *a, size_t *n)
{
    return fresh(&a->reasoning, &a->seen_reasoning, n);
}

const char *answer_new_content(answer *a, size_t *n)
{
    return fresh(&a->content, &a->seen_content, n);
}
