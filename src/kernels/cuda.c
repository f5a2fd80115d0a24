/* Finds the CUDA back end: a shared library beside the program (or where the loader looks), because
 * most machines have no GPU and none of its libraries. */
#include "kernels/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "kernels/cuda/library.h"

static const kernel_ops *table;
static char reason[256];

/* Beside the program; else by the loader's rules. Stays loaded. */
static void *open_library(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    const char *dirs[] = {"", "../", "../lib/"};
    void *lib = NULL;
    char *slash;

    path[n > 0 ? n : 0] = 0;
    slash = strrchr(path, '/');
    for (size_t i = 0; slash && !lib && i < ARRAY_LEN(dirs); i++) {
        snprintf(slash + 1, sizeof path - (size_t)(slash + 1 - path), "%s" CUDA_LIBRARY, dirs[i]);
        if (access(path, R_OK) == 0)
            lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return lib ? lib : dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

static void find(void)
{
    const kernel_ops *(*open)(size_t, char *, size_t) = NULL;
    void *lib = open_library(), *sym = lib ? dlsym(lib, CUDA_LIBRARY_OPEN) : NULL;

    if (!sym) {
        const char *text = dlerror(); /* NOLINT(concurrency-mt-unsafe): per thread in glibc */

        snprintf(reason, sizeof reason, "%s", text ? text : CUDA_LIBRARY " cannot be used");
        return;
    }
    memcpy(&open, &sym, sizeof open);
    table = open(sizeof *table, reason, sizeof reason);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

const kernel_ops *kernels_cuda(void)
{
    pthread_once(&once, find);
    return table;
}

const char *kernels_cuda_reason(void)
{
    pthread_once(&once, find);
    return reason;
}
