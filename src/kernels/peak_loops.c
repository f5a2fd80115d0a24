/* The instructions whose rate is a ceiling, twelve independent chains each, written out so that the
 * compiler cannot change them; chosen by the processor at run time. */
#include "kernels/peak.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "base/cpu.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,avx512vnni")))
#define AVX2   __attribute__((target("avx2,fma")))

#define TWELVE(op, a, b, r)                                                                        \
    __asm__ volatile(op " %1, %2, %%" r "0\n" op " %1, %2, %%" r "1\n" op " %1, %2, %%" r "2\n" op \
                        " %1, %2, %%" r "3\n" op " %1, %2, %%" r "4\n" op " %1, %2, %%" r "5\n" op \
                        " %1, %2, %%" r "6\n" op " %1, %2, %%" r "7\n" op " %1, %2, %%" r "8\n" op \
                        " %1, %2, %%" r "9\n" op " %1, %2, %%" r "10\n" op " %1, %2, %%" r "11\n"  \
                     : "+r"(n)                                                                     \
                     : "x"(a), "x"(b)                                                              \
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",     \
                       "xmm9", "xmm10", "xmm11")

AVX512 static void fma_512(long n)
{
    __m512 a = _mm512_set1_ps(1.0f), b = _mm512_set1_ps(0.5f);

    for (; n > 0; n--)
        TWELVE("vfmadd231ps", a, b, "zmm");
}

AVX2 static void fma_256(long n)
{
    __m256 a = _mm256_set1_ps(1.0f), b = _mm256_set1_ps(0.5f);

    for (; n > 0; n--)
        TWELVE("vfmadd231ps", a, b, "ymm");
}

AVX512 static void bf16_512(long n)
{
    __m512i a = _mm512_set1_epi32(0x3F803F80), b = _mm512_set1_epi32(0x3F003F00);

    for (; n > 0; n--)
        TWELVE("vdpbf16ps", a, b, "zmm");
}

AVX512 static void vnni_512(long n)
{
    __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2);

    for (; n > 0; n--)
        TWELVE("vpdpbusd", a, b, "zmm");
}

double peak_fma(long n)
{
    if (cpu_get()->avx512) {
        fma_512(n);
        return 12.0 * 32 * (double)n;
    }
    fma_256(n);
    return 12.0 * 16 * (double)n;
}

double peak_bf16(long n)
{
    bf16_512(n);
    return 12.0 * 64 * (double)n;
}

double peak_vnni(long n)
{
    vnni_512(n);
    return 12.0 * 128 * (double)n;
}

AVX512 static void read_512(const char *p, size_t bytes)
{
    __m512i s[4];

    for (int j = 0; j < 4; j++)
        s[j] = _mm512_setzero_si512();
    for (size_t i = 0; i + 256 <= bytes; i += 256)
        for (size_t j = 0; j < 4; j++)
            s[j] = _mm512_or_si512(s[j], _mm512_load_si512(p + i + 64 * j));
    s[0] = _mm512_or_si512(_mm512_or_si512(s[0], s[1]), _mm512_or_si512(s[2], s[3]));
    __asm__ volatile("" : : "x"(s[0]));
}

AVX2 static void read_256(const char *p, size_t bytes)
{
    __m256i s[4];

    for (int j = 0; j < 4; j++)
        s[j] = _mm256_setzero_si256();
    for (size_t i = 0; i + 128 <= bytes; i += 128)
        for (size_t j = 0; j < 4; j++)
            s[j] = _mm256_or_si256(s[j], _mm256_load_si256((const void *)(p + i + 32 * j)));
    s[0] = _mm256_or_si256(_mm256_or_si256(s[0], s[1]), _mm256_or_si256(s[2], s[3]));
    __asm__ volatile("" : : "x"(s[0]));
}

void peak_read(const void *buf, size_t bytes)
{
    if (cpu_get()->avx512)
        read_512(buf, bytes);
    else
        read_256(buf, bytes);
}

#else

/* Portable loops: what a compiler makes of them is the ceiling of this build. */
double peak_fma(long n)
{
    float s[64] = {0};

    for (long i = 0; i < n; i++)
        for (int j = 0; j < 64; j++)
            s[j] += s[j] * 0.5f + 1.0f;
    __asm__ volatile("" : : "r"(s) : "memory");
    return 128.0 * (double)n;
}

double peak_bf16(long n)
{
    return peak_fma(n);
}

double peak_vnni(long n)
{
    return peak_fma(n);
}

void peak_read(const void *buf, size_t bytes)
{
    const uint64_t *p = buf;
    uint64_t s = 0;

    for (size_t i = 0; i < bytes / 8; i++)
        s |= p[i];
    __asm__ volatile("" : : "r"(s));
}

#endif
