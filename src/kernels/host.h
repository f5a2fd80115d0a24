/* Operations that every back end in host memory does alike. */
#pragma once

#include "kernels/kernels.h"

void host_keep_rows(kernels *k, const keep_rows_args *a);
