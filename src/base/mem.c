/* Counted heap allocation with a failing mode for tests. */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_uint_fast64_t n_tries;
static atomic_uint_fast64_t fail_at; /* try number that fails, 0 = never */

/* Count a try; false when this is the one that must fail. */
static bool may_allocate(void)
{
    uint64_t n = atomic_fetch_add_explicit(&n_tries, 1, memory_order_relaxed) + 1;

    return n != atomic_load_explicit(&fail_at, memory_order_relaxed);
}

__attribute__((constructor)) static void read_environment(void)
{
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): a constructor runs before there are threads */
    const char *s = getenv("DI_FAIL_ALLOC");

    if (s)
        mem_fail_at(strtoull(s, NULL, 10));
}

void *mem_try_calloc(size_t count, size_t size)
{
    size_t bytes;

    if (!size_mul(count, size, &bytes) || !may_allocate())
        return NULL;
    return calloc(bytes ? bytes : 1, 1);
}

void *mem_try_realloc(void *p, size_t count, size_t size)
{
    size_t bytes;

    if (!size_mul(count, size, &bytes) || !may_allocate())
        return NULL;
    return realloc(p, bytes ? bytes : 1);
}

void *mem_try_aligned(size_t bytes, size_t align)
{
    const size_t huge = (size_t)2 << 20;
    void *p = NULL;

    if (bytes >= huge && align < huge)
        align = huge;
    if (bytes > SIZE_MAX - align || !may_allocate())
        return NULL;
    bytes = (bytes + align - 1) / align * align;
    if (posix_memalign(&p, align, bytes ? bytes : align) != 0)
        return NULL;
    if (bytes >= huge) {
        madvise(p, bytes, MADV_HUGEPAGE); /* advice: failure only costs speed */
        /* Pages of private memory that are dropped read as zero: a pool of many gigabytes costs
         * nothing until it is used. */
        if (madvise(p, bytes, MADV_DONTNEED) == 0)
            return p;
    }
    memset(p, 0, bytes ? bytes : align);
    return p;
}

char *mem_try_strndup(const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? mem_try_calloc(n + 1, 1) : NULL;

    if (p)
        memcpy(p, s, n);
    return p;
}

char *mem_try_strdup(const char *s)
{
    return mem_try_strndup(s, strlen(s));
}

void mem_free(void *p)
{
    free(p);
}

uint64_t mem_n_tries(void)
{
    return atomic_load_explicit(&n_tries, memory_order_relaxed);
}

void mem_fail_at(uint64_t n)
{
    uint64_t now = atomic_load_explicit(&n_tries, memory_order_relaxed);

    atomic_store_explicit(&fail_at, n ? now + n : 0, memory_order_relaxed);
}

bool size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
