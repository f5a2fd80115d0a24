/* Operations that every back end in host memory does alike. */
#pragma once

#include "kernels/kernels.h"

void *host_shared_new(kernels *k, size_t bytes);
void host_shared_free(kernels *k, void *p);
void host_copy(kernels *k, const kv_copy *c, int n);
uint64_t host_memory_free(kernels *k);
kernel_counters host_counters(const kernels *k);
void host_keep_rows(kernels *k, const keep_rows_args *a);
