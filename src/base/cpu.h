/* What this processor can do; read once. Thread: any. */
#pragma once

#include <stdbool.h>

typedef struct cpu_features {
    bool avx2;             /* AVX2, FMA, F16C */
    bool avx512;           /* F, BW, DQ, VL, VBMI */
    bool avx512_bf16;      /* vdpbf16ps */
    bool avx512_bf16_fast; /* ... at twice the rate of f32 FMA; on Intel it has half of it */
    bool avx512_vnni;      /* vpdpbusd */
} cpu_features;

const cpu_features *cpu_get(void);

/* Processors this process may run on. */
int cpu_count(void);

/* Model name of the processor, e.g. for benchmark headers; static storage. */
const char *cpu_name(void);
