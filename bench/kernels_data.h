/* Cases of bench/kernels, by family. Each adds its cases and keeps its data until the process ends.
 */
#pragma once

#include "bench.h"
#include "kernels/kernels.h"

/* Real geometry, scratch for the largest case. */
extern const kernel_limits data_limits;

/* Pseudo-random bytes and bf16 activations of a normal-like distribution. */
void data_bytes(void *out, size_t n, uint32_t seed);
void data_act(kernels *k, void *act, size_t n, uint32_t seed);

void bench_linears(bench *b, kernels *k);
void bench_experts(bench *b, kernels *k);
void bench_rows(bench *b, kernels *k);
