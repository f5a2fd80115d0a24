/* The input is a line of a batch file. What is accepted must be something that the generator takes:
 * ids inside the vocabulary, a length that fits, parameters in their ranges; and its answer must be
 * a line of JSON. What is refused must say why. */
#include <stdint.h>
#include <string.h>

#include "base/json_read.h"
#include "cli/result.h"

#define VOCAB   6400
#define CONTEXT 512

static const tokenizer *shipped(void)
{
    static tokenizer *t;
    di_status st = {.code = DI_OK};

    if (!t)
        DI_CHECK(tokenizer_load(&t, "models/tiny/tokenizer.json", &st) == DI_OK);
    return t;
}

static void check_request(const request *r)
{
    DI_CHECK(r->ids.n > 0 && r->ids.n <= CONTEXT);
    for (size_t i = 0; i < r->ids.n; i++)
        DI_CHECK(r->ids.ids[i] >= 0 && r->ids.ids[i] < VOCAB);
    for (int i = 0; i < r->n_stop_ids; i++)
        DI_CHECK(r->stop_id[i] >= 0 && r->stop_id[i] < VOCAB);
    DI_CHECK(r->max_tokens >= 0 && r->max_tokens <= CONTEXT);
    DI_CHECK(r->logprobs >= -1 && r->logprobs <= GEN_MAX_TOP);
    DI_CHECK(r->n_stop <= STOP_MAX);
    DI_CHECK(sampling_check(&r->sampling, VOCAB, NULL) == DI_OK);
}

/* One JSON object and a newline, nothing else. */
static void check_line(const str *line)
{
    json_read r;
    di_status st = {.code = DI_OK};

    DI_CHECK(line->len > 1 && line->data[line->len - 1] == '\n');
    DI_CHECK(!memchr(line->data, '\n', line->len - 1));
    json_open(&r, line->data, line->len, "answer");
    DI_CHECK(json_peek(&r) == JSON_OBJECT && json_skip(&r, &st) == DI_OK);
    DI_CHECK(json_end(&r, &st) == DI_OK);
    json_close(&r);
}

/* The answer that repeats the prompt. */
static void answer_request(const request *r, str *line)
{
    answer a;
    result res = {.req = r, .ans = &a, .tok = shipped(), .ids = &r->ids, .model = "m"};

    DI_CHECK(answer_init(&a, shipped(), r->kind == REQUEST_CHAT, r->starts_in_reasoning, r->stop,
                         r->stop_len, r->n_stop, NULL) == DI_OK);
    for (size_t i = 0; i < r->ids.n; i++)
        if (!answer_push(&a, r->ids.ids[i]))
            break;
    DI_CHECK(answer_end(&a, NULL) == DI_OK);
    DI_CHECK(result_write(&res, line, NULL) == DI_OK);
    answer_fini(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const request_defaults d = {.tok = shipped(),
                                .vocab = VOCAB,
                                .eos = 1,
                                .context = CONTEXT,
                                .sampling = sampling_defaults(),
                                .max_tokens = -1,
                                .logprobs = -1,
                                .thinking = true};
    di_status st = {.code = DI_OK};
    request r;
    str line = {0};

    request_init(&r);
    if (request_parse(&r, &d, (const char *)data, n, "line 1", &st) == DI_OK) {
        check_request(&r);
        answer_request(&r, &line);
    } else {
        DI_CHECK(st.code != DI_OK && st.message[0]);
        DI_CHECK(result_write_error(&r, 0, &st, &line, NULL) == DI_OK);
    }
    check_line(&line);
    str_fini(&line);
    request_fini(&r);
    return 0;
}
