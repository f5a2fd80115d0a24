/* The order in which a prompt shows the messages (spec recipe.md 1.2 and 1.9). Inside recipe only.
 */
#pragma once

#include "base/status.h"
#include "recipe/chat.h"

typedef struct message_order {
    const recipe_message **message; /* [n] */
    size_t n;
    const recipe_message **head; /* V4: system messages, which come first; [n_head] */
    size_t n_head;
} message_order;

/* Leave out empty system messages, put the results of each run into the order of their calls, and
 * for V4 collect the system messages. Errors: NOMEM. */
di_code message_order_init(message_order *o, const recipe_chat *c, di_status *st);
void message_order_fini(message_order *o);
