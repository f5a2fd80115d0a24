/* See weights.h. */
#include "cli/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const weights_formats[] = {"auto", "dummy", NULL};

/* "I/N" without anything else; the engine checks the values. */
static di_code read_share(const char *text, int *share, int *n_shares, di_status *st)
{
    const char *slash = strchr(text, '/');
    char *end_i, *end_n;
    long i = strtol(text, &end_i, 10), n = slash ? strtol(slash + 1, &end_n, 10) : 0;

    if (!slash || end_i == text || end_i != slash || end_n == slash + 1 || *end_n || n < 1 ||
        i < 0 || i >= n || n > 4096)
        return di_fail(st, DI_E_INVALID,
                       "--expert-share is \"%s\", but must be I/N with I from 0 to N-1: 0/8", text);
    *share = (int)i;
    *n_shares = (int)n;
    return DI_OK;
}

di_code weights_apply(const weights_choice *o, di_model_options *mo, di_status *st)
{
    bool dummy = strcmp(o->format, "dummy") == 0;

    if (!dummy && (o->layers || o->share || o->engram_rows))
        return di_fail(st, DI_E_INVALID, "--%s needs --load-format dummy",
                       o->layers  ? "layers"
                       : o->share ? "expert-share"
                                  : "engram-rows");
    mo->load_format = o->format;
    mo->dummy_layers = (int)o->layers;
    mo->dummy_engram_rows = o->engram_rows;
    return o->share ? read_share(o->share, &mo->dummy_share, &mo->dummy_shares, st) : DI_OK;
}
