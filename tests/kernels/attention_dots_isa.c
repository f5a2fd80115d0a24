/* The one line that needs the AVX-512 back end's own header. */
#include "kernels/cpu/cpu_internal.h"

#include "kernels/attention_dots.h"

void attention_use_bf16_dots(kernels *k, bool on)
{
    ((cpu_impl *)k->impl)->bf16_attention = on;
}
