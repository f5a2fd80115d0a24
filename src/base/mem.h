/* Heap memory for library code: every allocation can fail and is counted.
 *
 * Tests set DI_FAIL_ALLOC=n (or call mem_fail_at) so that the n-th try fails, and compare
 * mem_n_tries before and after a step to prove that a step allocates nothing.
 * Thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory for `count` objects of `size` bytes; NULL when out of memory or on overflow. */
void *mem_try_calloc(size_t count, size_t size);

/* Resize, keeping the content; new bytes are undefined. NULL leaves `p` as it was. */
void *mem_try_realloc(void *p, size_t count, size_t size);

/* Zeroed memory at a multiple of `align` (a power of two, at least 64); large ones are advised to
 * use 2 MiB pages. Free with mem_free. NULL when out of memory. */
void *mem_try_aligned(size_t bytes, size_t align);

/* The same with every page there at once: what each step uses is paid for before the first one, and
 * its size is known in advance. */
void *mem_try_resident(size_t bytes, size_t align);

/* What the two take for `bytes`, which are rounded up; SIZE_MAX on overflow. */
size_t mem_aligned_bytes(size_t bytes);

/* Address space for `bytes` that takes no memory until it is written, whole pages, zeroed; NULL
 * when the system refuses. mem_release_pages makes a page-aligned part of it empty again. */
void *mem_try_reserve(size_t bytes);
void mem_release_pages(void *p, size_t bytes);
void mem_unreserve(void *p, size_t bytes); /* accepts NULL */

/* Give memory that was freed back to the system: once, after loading. */
void mem_trim(void);

/* Copy of a string, or of its first n bytes with a 0 behind. NULL when out of memory. */
char *mem_try_strdup(const char *s);
char *mem_try_strndup(const char *s, size_t n);

/* Accepts NULL. */
void mem_free(void *p);

/* Number of allocation tries since the start of the process, all threads. */
uint64_t mem_n_tries(void);

/* The n-th try from now on fails (1 = the next one); 0 switches the failing allocator off. */
void mem_fail_at(uint64_t n);

/* a*b and a+b that report overflow: true and *out set when the result fits. */
bool size_mul(size_t a, size_t b, size_t *out);
bool size_add(size_t a, size_t b, size_t *out);
