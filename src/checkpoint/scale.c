/* UE8M0 scale bytes: 255 is NaN and no writer of a sound checkpoint makes it. */
#include <inttypes.h>
#include <string.h>

#include "checkpoint/checkpoint_internal.h"
#include "checkpoint/dummy.h"

#define CHUNK ((size_t)16 << 20) /* bytes between two progress calls */

static di_code bad_scale(const checkpoint *c, const ckpt_tensor *t, size_t at, di_status *st)
{
    return di_fail(st, DI_E_FORMAT,
                   "\"%s/%s\": tensor \"%s\": the scale of block [%" PRId64 ",%" PRId64
                   "] is 255 (NaN); the file is damaged, get it again",
                   checkpoint_dir(c), checkpoint_shard_name(c, t->shard), t->name,
                   (int64_t)at / t->shape[1], (int64_t)at % t->shape[1]);
}

di_code scale_check(const checkpoint *c, const ckpt_tensor *t, const void *bytes, size_t at,
                    size_t n, di_status *st)
{
    const char *bad = memchr(bytes, 255, n);

    return bad ? bad_scale(c, t, at + (size_t)(bad - (const char *)bytes), st) : DI_OK;
}

di_code checkpoint_scale_check(const checkpoint *c, const ckpt_tensor *scale, di_status *st)
{
    if (!scale->data)
        return di_fail(st, DI_E_INVALID, "\"%s\" was opened for its headers only",
                       checkpoint_dir(c));
    return scale_check(c, scale, scale->data, 0, scale->bytes, st);
}

di_code checkpoint_verify(const checkpoint *c, ckpt_progress progress, void *arg, di_status *st)
{
    uint64_t done = 0, total = 0;
    di_code rc = DI_OK;

    if (checkpoint_is_dummy(c)) /* nothing is stored */
        return DI_OK;
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++)
        if (checkpoint_tensor(c, i)->type == DTYPE_F8_E8M0)
            total += checkpoint_tensor(c, i)->bytes;
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const ckpt_tensor *t = checkpoint_tensor(c, i);

        if (t->type != DTYPE_F8_E8M0)
            continue;
        if (!t->data)
            return checkpoint_scale_check(c, t, st);
        for (size_t at = 0; at < t->bytes; at += CHUNK) {
            size_t n = t->bytes - at < CHUNK ? t->bytes - at : CHUNK;

            DI_TRY(scale_check(c, t, (const char *)t->data + at, at, n, st));
            done += n;
            if (progress)
                progress(arg, done, total);
        }
        checkpoint_drop(c, t);
    }
done:
    return rc;
}
