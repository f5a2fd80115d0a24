/* Weights on their way to the device: threads read the stored bytes into pinned slots of their own,
 * a copy stream takes them up, and what re-orders them on the main stream waits by events only. So
 * reading, copies and packing overlap; the caller waits for reading alone. C only.
 *
 *   to = loader_area(l, bytes)      half of the staging memory on the device
 *   loader_add(l, from, to, ...)    as often as needed
 *   loader_run(l, &most, st)        everything has been read when it returns
 *   loader_ready(l)                 the main stream may use it
 *   (launches that read the area)
 *   loader_used(l)                  the other half is next
 *
 * Thread: the owner of the back end. */
#pragma once

#include "base/status.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/kernels.h"

#define LOADER_HALF ((size_t)128 << 20) /* bytes of an area that chunks are made for */

typedef struct loader loader;

/* `reader` is copied; NULL: bytes are taken from where they lie. Errors: NOMEM, DEVICE, IO. */
di_code loader_new(loader **out, cudaStream_t main, const weight_reader *reader, di_status *st);
/* Waits for what is under way. Accepts NULL. */
void loader_free(loader *l);

/* Device memory of `bytes` that nobody uses any more when the copies of the next run arrive. NULL:
 * st says why. */
void *loader_area(loader *l, size_t bytes, di_status *st);

/* `bytes` from `from` go to `to`: device memory, or host memory, which is written in place. Of
 * scale bytes the largest is looked for. Errors: of a run that had to come first, for there are
 * many. */
di_code loader_add(loader *l, const void *from, void *to, size_t bytes, bool scales, di_status *st);
/* The same into host memory: written in place. */
di_code loader_add_host(loader *l, const void *from, void *to, size_t bytes, di_status *st);

/* Read everything that was added. *most: the largest scale byte since the last loader_run; may be
 * NULL. Errors: of the reader, DEVICE. */
di_code loader_run(loader *l, uint8_t *most, di_status *st);
di_code loader_ready(loader *l, di_status *st);
di_code loader_used(loader *l, di_status *st);
