/* Processor features from CPUID, minus what the operating system does not save. */
#include "base/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cpu_features features;
static char name[64] = "unknown processor";

#if defined(__x86_64__)
static bool bit(unsigned reg, int i)
{
    return reg >> i & 1u;
}

/* Register sets that the system saves on a task switch (XCR0). */
static unsigned saved_state(void)
{
    unsigned lo, hi;

    __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return lo;
}

static void read_features(void)
{
    unsigned a, b, c, d, c1, saved;

    if (!__get_cpuid(1, &a, &b, &c1, &d) || !bit(c1, 27) ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return;
    saved = saved_state();
    features.avx2 = (saved & 0x6u) == 0x6u && bit(b, 5) && bit(c1, 12) && bit(c1, 29);
    features.avx512 = features.avx2 && (saved & 0xE6u) == 0xE6u && bit(b, 16) && bit(b, 17) &&
                      bit(b, 30) && bit(b, 31) && bit(c, 1);
    features.avx512_vnni = features.avx512 && bit(c, 11);
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        features.avx512_bf16 = features.avx512 && bit(a, 5);
    if (__get_cpuid(0, &a, &b, &c, &d)) /* the vendor's name begins in ebx */
        features.avx512_bf16_fast = features.avx512_bf16 && b == signature_AMD_ebx;
}

static void read_name(void)
{
    unsigned words[12];
    char text[sizeof words + 1] = {0};
    const char *s = text;

    for (size_t i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + (unsigned)i, &words[4 * i], &words[4 * i + 1],
                         &words[4 * i + 2], &words[4 * i + 3]))
            return;
    memcpy(text, words, sizeof words);
    s += strspn(s, " ");
    if (*s)
        memcpy(name, s, strlen(s) + 1);
}

static void detect(void)
{
    read_features();
    read_name();
}
#else
static void detect(void)
{
}
#endif

const cpu_features *cpu_get(void)
{
    pthread_once(&once, detect);
    return &features;
}

int cpu_count(void)
{
    cpu_set_t set;
    long n;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    n = sysconf(_SC_NPROCESSORS_ONLN); /* more processors than the set has bits */
    return n > 0 ? (int)n : 1;
}

const char *cpu_name(void)
{
    pthread_once(&once, detect);
    return name;
}
