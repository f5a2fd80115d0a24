/* The CUDA back end, when its library and a Hopper GPU are there. Thread: any. */
#pragma once

#include "kernels/kernels.h"

/* Its table; NULL when it cannot run here. */
const kernel_ops *kernels_cuda(void);
/* Why it cannot; "" when it can. */
const char *kernels_cuda_reason(void);
