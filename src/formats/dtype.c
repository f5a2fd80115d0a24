/* Names and sizes of stored element types. */
#include "formats/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    unsigned bytes;
} types[DTYPE_COUNT] = {
    [DTYPE_F32] = {"F32", 4},         [DTYPE_BF16] = {"BF16", 2}, [DTYPE_F8_E4M3] = {"F8_E4M3", 1},
    [DTYPE_F8_E8M0] = {"F8_E8M0", 1}, [DTYPE_I8] = {"I8", 1},     [DTYPE_I32] = {"I32", 4},
    [DTYPE_I64] = {"I64", 8},         [DTYPE_BOOL] = {"BOOL", 1},
};

const char *dtype_name(dtype t)
{
    return (unsigned)t < DTYPE_COUNT ? types[t].name : "?";
}

unsigned dtype_bytes(dtype t)
{
    return (unsigned)t < DTYPE_COUNT ? types[t].bytes : 0;
}

dtype dtype_from_name(const char *name, unsigned n)
{
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (strlen(types[t].name) == n && memcmp(types[t].name, name, n) == 0)
            return (dtype)t;
    return DTYPE_COUNT;
}
