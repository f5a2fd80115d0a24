/* Monotonic time. Thread: any. */
#pragma once

#include <stdint.h>

/* Nanoseconds of a clock that never goes back. */
uint64_t clock_ns(void);
