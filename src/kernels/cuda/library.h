/* The one name that libdeepinfer_cuda.so exports. kernels/cuda.c loads it when it is there, so that
 * one program runs with and without a GPU. */
#pragma once

#include <stddef.h>

#include "kernels/kernels.h"

/* The CUDA table, or NULL with the reason in `why`: no Hopper GPU, or a library of another version
 * (table_bytes is the caller's sizeof(kernel_ops)). Thread: any, once. */
__attribute__((visibility("default"))) const kernel_ops *
deepinfer_cuda_open(size_t table_bytes, char *why, size_t why_bytes);
#define CUDA_LIBRARY      "libdeepinfer_cuda.so"
#define CUDA_LIBRARY_OPEN "deepinfer_cuda_open"
