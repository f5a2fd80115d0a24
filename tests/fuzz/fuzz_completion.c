/* The input is a body of /v1/completions. What is accepted has parameters in their ranges and ids
 * inside the vocabulary; what is refused says why. */
#include <stdint.h>
#include <string.h>

#include "server/completions.h"

#define VOCAB 6400

static const server *toy_server(void)
{
    static backend be;
    static server s = {.be = &be};
    static tokenizer *t;
    di_status st = {.code = DI_OK};

    if (!t) {
        DI_CHECK(tokenizer_load(&t, "models/tiny/tokenizer.json", &st) == DI_OK);
        be = (backend){.tok = t, .context = 4096, .info = {.vocab = VOCAB, .bos = 0, .eos = 1}};
    }
    return &s;
}

static void check(const completion_body *b)
{
    const di_request_params *p = &b->p;

    DI_CHECK(*b->model && b->n_prompts > 0 && b->n_prompts <= COMPLETION_MAX_PROMPTS);
    for (int i = 0; i < b->n_prompts; i++) {
        DI_CHECK(b->prompt[i].ids.n > 0 && b->prompt[i].ids.n <= 4096);
        for (size_t k = 0; k < b->prompt[i].ids.n; k++)
            DI_CHECK(b->prompt[i].ids.ids[k] >= 0 && b->prompt[i].ids.ids[k] < VOCAB);
    }
    for (int i = 0; i < p->n_stop_ids; i++)
        DI_CHECK(p->stop_ids[i] >= 0 && p->stop_ids[i] < VOCAB);
    for (int i = 0; i < p->n_bias; i++)
        DI_CHECK(p->bias[i].id >= 0 && p->bias[i].id < VOCAB);
    for (int i = 0; i < p->n_stop; i++)
        DI_CHECK(*p->stop[i]);
    DI_CHECK(p->n >= 1 && p->n <= COMPLETION_MAX_CHOICES && p->max_tokens >= 0);
    DI_CHECK(p->temperature <= 2 && p->top_p >= 0 && p->top_p <= 1);
    DI_CHECK(b->logprobs >= -1 && b->logprobs <= 20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    completion_body b = {0};
    di_status st = {.code = DI_OK};

    if (completion_read(&b, toy_server(), (const char *)data, n, &st) == DI_OK)
        check(&b);
    else
        DI_CHECK(st.code != DI_OK && *st.message);
    completion_body_fini(&b);
    return 0;
}
