/* Counted heap allocation with a failing mode for tests. */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#define HUGE_BYTES      ((size_t)2 << 20)
#define PAGE_BYTES      ((size_t)4096)
#define MIN_ALIGN       ((size_t)64)
#define HUGE_REST_SHARE 6 /* costs little: at most a sixth more */

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

/* The last huge page of a large block is whole where that costs little: a rest in small pages is
 * read at 0.6 of the speed (measured), and by one thread while the others wait. */
size_t mem_aligned_bytes(size_t bytes)
{
    size_t unit = bytes >= HUGE_BYTES ? PAGE_BYTES : MIN_ALIGN, rest = bytes % HUGE_BYTES;

    if (bytes > SIZE_MAX - HUGE_BYTES)
        return SIZE_MAX;
    if (rest && HUGE_BYTES - rest <= bytes / HUGE_REST_SHARE)
        unit = HUGE_BYTES;
    return bytes ? (bytes + unit - 1) / unit * unit : unit;
}

/* Room for `bytes`, a multiple of what mem_aligned_bytes rounds to; the content is undefined. */
static void *aligned(size_t bytes, size_t align)
{
    void *p = NULL;

    if (bytes >= HUGE_BYTES && align < HUGE_BYTES)
        align = HUGE_BYTES;
    if (bytes > SIZE_MAX - align || !may_allocate())
        return NULL;
    if (posix_memalign(&p, align, bytes) != 0)
        return NULL;
    if (bytes >= HUGE_BYTES)
        madvise(p, bytes, MADV_HUGEPAGE); /* advice: failure only costs speed */
    return p;
}

void *mem_try_aligned(size_t bytes, size_t align)
{
    size_t room = mem_aligned_bytes(bytes);
    void *p = aligned(room, align);

    /* Pages of private memory that are dropped read as zero: a pool of many gigabytes costs nothing
     * until it is used. */
    if (p && (room < HUGE_BYTES || madvise(p, room, MADV_DONTNEED) != 0))
        memset(p, 0, room);
    return p;
}

void *mem_try_resident(size_t bytes, size_t align)
{
    size_t room = mem_aligned_bytes(bytes);
    void *p = aligned(room, align);

    if (p)
        memset(p, 0, room);
    return p;
}

void *mem_try_reserve(size_t bytes)
{
    void *p;

    if (!may_allocate())
        return NULL;
    p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (bytes >= HUGE_BYTES)
        madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

void mem_release_pages(void *p, size_t bytes)
{
    madvise(p, bytes, MADV_DONTNEED); /* advice: failure costs memory only */
}

void mem_unreserve(void *p, size_t bytes)
{
    if (p)
        munmap(p, bytes ? bytes : 1);
}

void mem_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
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
