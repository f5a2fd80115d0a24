/* Ceilings of this machine, measured: memory streams and the dot instructions (bench/roofline.c,
 * deepinfer bench). Thread: the owner of the pool; all threads of the pool take part. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"

typedef enum ceiling {
    CEILING_READ, /* GB/s, 64-byte loads of buffers far larger than the caches */
    CEILING_COPY, /* GB/s, read plus write */
    CEILING_FMA,  /* GFLOP/s, vfmadd231ps */
    CEILING_BF16, /* GFLOP/s, vdpbf16ps; 0 when the processor lacks it */
    CEILING_VNNI, /* Gop/s, vpdpbusd; 0 when the processor lacks it */
    CEILING_COUNT
} ceiling;

const char *ceiling_name(ceiling c);
const char *ceiling_unit(ceiling c);

typedef struct peak peak;

/* Buffers of `bytes` per thread for the memory streams. NULL when out of memory. */
peak *peak_new(pool *p, size_t bytes);
void peak_free(peak *p);

/* One sample, a few tens of milliseconds. */
double peak_sample(peak *p, ceiling c);

/* Nanoseconds for measuring: wall clock, or (after peak_use_cpu_time) processor time of the calling
 * thread, which is the better choice with one thread on a busy machine. */
uint64_t peak_clock_ns(void);
void peak_use_cpu_time(void);

/* Inner loops (peak_loops.c): `n` times twelve independent instructions; the operations done. */
double peak_fma(long n);
double peak_bf16(long n);
double peak_vnni(long n);
void peak_read(const void *buf, size_t bytes);
