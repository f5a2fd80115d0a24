/* Tokens of one answer -> text: decoded without cutting a character, reasoning split off, stop
 * strings found. Thread: the owner's only. */
#pragma once

#include "recipe/stop.h"
#include "recipe/think.h"
#include "tokenizer/tokenizer.h"

typedef struct answer {
    const tokenizer *tok;
    tok_decoder decoder;
    bool split; /* a chat answer: reasoning and content are told apart */
    think_split think;
    stop_match stop;
    str reasoning, content;              /* all of it so far */
    size_t seen_reasoning, seen_content; /* what answer_new_* gave out */
    int64_t n_reasoning;                 /* tokens whose text went to the reasoning */
    str piece, part;                     /* scratch */
} answer;

/* `split`: the text is a chat answer that begins in its reasoning or in its content; otherwise all
 * of it is content. Stop strings count in the content only and are copied. Errors: INVALID, NOMEM.
 */
di_code answer_init(answer *a, const tokenizer *tok, bool split, bool starts_in_reasoning,
                    const char *const *stop, const size_t *stop_len, size_t n_stop, di_status *st);
void answer_fini(answer *a);

/* Take one token; special ones (end of sentence) have no text. False when a stop string is
 * complete. */
bool answer_push(answer *a, int32_t id);

/* The end: what was held back is text. Errors: NOMEM when any of the text was lost. */
di_code answer_end(answer *a, di_status *st);

/* Text that came since the last call; borrowed until the next push. */
const char *answer_new_reasoning(answer *a, size_t *n);
const char *answer_new_content(answer *a, size_t *n);
