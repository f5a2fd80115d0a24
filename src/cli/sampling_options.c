/* See sampling_options.h. */
#include "cli/sampling_options.h"

#include <string.h>

#include "base/utf8.h"

const char *const sampling_on_off[] = {"on", "off", NULL};
const char *const sampling_efforts[] = {"low", "high", "max", NULL};

di_code sampling_apply(const sampling_options *o, request_defaults *d, di_status *st)
{
    bool on;

    d->sampling = (sampling_params){.temperature = (float)o->temperature,
                                    .top_p = (float)o->top_p,
                                    .min_p = (float)o->min_p,
                                    .top_k = (int32_t)o->top_k,
                                    .repetition_penalty = (float)o->repetition,
                                    .presence_penalty = (float)o->presence,
                                    .frequency_penalty = (float)o->frequency,
                                    .seed = (uint64_t)o->seed};
    d->has_seed = o->has_seed;
    d->max_tokens = o->max_tokens;
    d->ignore_eos = o->ignore_eos;
    d->thinking = strcmp(o->thinking, "on") == 0;
    d->stop = o->stop.item;
    d->n_stop = o->stop.n;
    for (size_t i = 0; i < o->stop.n; i++)
        if (!*o->stop.item[i] || !utf8_valid(o->stop.item[i], strlen(o->stop.item[i])))
            return di_fail(st, DI_E_INVALID, "--stop needs a text that is not empty, in UTF-8");
    if (!recipe_effort_parse(o->effort, strlen(o->effort), &on, &d->effort))
        return di_fail(st, DI_E_INTERNAL, "effort %s is not known", o->effort);
    return DI_OK;
}
