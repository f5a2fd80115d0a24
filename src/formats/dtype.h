/* Element types of stored tensors, as safetensors headers name them. */
#pragma once

#include <stdint.h>

typedef enum dtype {
    DTYPE_F32,     /* "F32" */
    DTYPE_BF16,    /* "BF16" */
    DTYPE_F8_E4M3, /* "F8_E4M3": no infinities, NaN 0x7F and 0xFF, largest 448 */
    DTYPE_F8_E8M0, /* "F8_E8M0": 2^(byte-127), 255 is NaN */
    DTYPE_I8,      /* "I8": two E2M1 codes, even column in the low nibble */
    DTYPE_I32,     /* "I32": golden data only */
    DTYPE_I64,     /* "I64": golden data only */
    DTYPE_BOOL,    /* "BOOL": golden data only */
    DTYPE_COUNT
} dtype;

/* Name in a safetensors header; static storage. */
const char *dtype_name(dtype t);

/* Bytes per stored element. */
unsigned dtype_bytes(dtype t);

/* DTYPE_COUNT when the name is unknown. */
dtype dtype_from_name(const char *name, unsigned n);
