/* Failing with a message (style: one code, one message carrier, one exit per function).
 * Thread: any. */
#pragma once

#include <stddef.h>

#include "deepinfer/status.h"

/* Record a failure and return `code`. Keeps the first message: if `st` already holds a failure the
 * new text is dropped. `st` may be NULL. The message is cut at the size of di_status.message. */
di_code di_fail(di_status *st, di_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "context: " in front of the message of a failed status. No effect on DI_OK or NULL. */
void di_context(di_status *st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Forget a failure, so that the status can be used for the next call. */
void di_clear(di_status *st);

/* Evaluate a call; on failure store its code in `rc` and go to `done`. */
#define DI_TRY(call)                                                                               \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != DI_OK)                                                                           \
            goto done;                                                                             \
    } while (0)

/* A condition that our own code guarantees and whose failure would corrupt weights or state: it
 * stays on in release builds and ends the process. */
#define DI_CHECK(cond)                                                                             \
    do {                                                                                           \
        if (!(cond))                                                                               \
            di_check_failed(#cond, __FILE__, __LINE__);                                            \
    } while (0)
_Noreturn void di_check_failed(const char *cond, const char *file, int line);

/* Thread-safe strerror: text of an errno value in thread-local storage. */
const char *errno_text(int err);

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
