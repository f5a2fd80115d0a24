/* Choose the dots of sparse attention in the AVX-512 back end, whatever is faster here. */
#pragma once

#include <stdbool.h>

#include "kernels/kernels.h"

void attention_use_bf16_dots(kernels *k, bool on);
