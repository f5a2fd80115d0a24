/* Sampling parameters of a request and the state that penalties need (design.md section 1).
 * The row operation itself is in kernels/sample.h. Thread: engine thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/sample.h"

#define SAMPLER_MAX_BIAS   1024
#define SAMPLER_MAX_BANNED 64

typedef struct logit_bias {
    int32_t id;
    float bias; /* -100 .. 100 */
} logit_bias;

typedef struct sampling_params {
    float temperature;                         /* 0 = greedy .. 100 */
    float top_p;                               /* (0, 1] */
    float min_p;                               /* [0, 1] */
    int32_t top_k;                             /* 0 = all */
    float repetition_penalty;                  /* > 0, 1 = none; over prompt and output */
    float presence_penalty, frequency_penalty; /* -2 .. 2; over the output */
    const logit_bias *bias;                    /* borrowed until sampler_new returns */
    int32_t n_bias;
    const int32_t *banned; /* ids that never come, whatever their bias; borrowed as bias is */
    int32_t n_banned;
    uint64_t seed;
    uint32_t choice;
} sampling_params;

/* Defaults: temperature 1, top_p 1, all else off. */
sampling_params sampling_defaults(void);

/* Refuse impossible values: INVALID, names the field, the value and the range. */
di_code sampling_check(const sampling_params *p, int vocab, di_status *st);

typedef struct sampler sampler;

/* State of one choice; `prompt` counts for the repetition penalty. Errors: INVALID, NOMEM. */
di_code sampler_new(sampler **out, const sampling_params *p, int vocab, const int32_t *prompt,
                    int64_t n_prompt, di_status *st);
void sampler_free(sampler *s);

/* The row for the token at absolute position `position`; borrowed until the next sampler call. */
sample_row sampler_row(const sampler *s, int64_t position);

/* An output token was accepted: penalties see it from now on. Errors: NOMEM. */
di_code sampler_accept(sampler *s, int32_t token, di_status *st);
/* Take back the last n accepted tokens. */
void sampler_rollback(sampler *s, int n);
