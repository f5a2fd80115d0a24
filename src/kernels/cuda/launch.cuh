/* Launching a kernel so that it starts while the one before it on the stream still ends
 * (programmatic dependent launch): its blocks are placed and its parameters loaded by then.
 *
 * A kernel that is launched by launch() calls after_previous() in every thread, before it reads or
 * writes any memory but weights, and before any thread returns. (What was complete before the
 * previous launch passed its own after_previous() may be read too: gemm_job.listed.) What earlier
 * kernels wrote is not read through __ldg or a `const __restrict__` parameter: the compiler may
 * move such a load up. A kernel without the call goes with <<<>>> and cuda_launched(), and starts
 * when everything before it has ended. */
#pragma once

#include "kernels/cuda/cuda_internal.h"

/* Everything before this kernel on the stream has ended and can be seen; the next one may be
 * placed. Behind the wait, so that at most two kernels share a processor. */
static __device__ __forceinline__ void after_previous(void)
{
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
}

/* `what` is the operation that a failure is reported for. */
template <typename... P, typename... A>
static void launch(cuda_impl *c, const char *what, void (*kernel)(P...), dim3 grid,
                   unsigned threads, size_t smem, A... args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute early;

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = smem;
    config.stream = c->stream;
    config.attrs = &early;
    config.numAttrs = 1;
    cuda_note(c, cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), what);
    cuda_launched(c, what);
}
