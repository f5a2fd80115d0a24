/* The input is a protocol and a mode (first byte) and a request body. What is accepted must render,
 * and stay within what a server may rely on; what is refused must say why with a JSON body. */
#include <stdint.h>
#include <string.h>

#include "base/json_read.h"
#include "base/utf8.h"
#include "recipe/prompt.h"
#include "recipe/request.h"

static void check_json(const str *s)
{
    json_read r;

    json_open(&r, str_text(s), s->len, "body");
    DI_CHECK(json_skip(&r, NULL) == DI_OK && json_end(&r, NULL) == DI_OK);
    json_close(&r);
}

static void check_sampling(const recipe_request *q)
{
    const recipe_sampling *s = &q->sampling;

    DI_CHECK(s->temperature >= 0 && s->temperature <= 2);
    DI_CHECK(s->top_p > 0 || q->mode == RECIPE_STRICT || s->top_p == 0); /* rounds to 0 at worst */
    DI_CHECK(s->n >= 1 && s->n <= 128);
    DI_CHECK(s->top_logprobs >= -1 && s->top_logprobs <= 20);
    DI_CHECK(s->max_tokens == -1 || s->max_tokens >= 1);
    DI_CHECK(q->parsing.n_stop <= RECIPE_MAX_STOP);
    for (size_t i = 0; i < q->parsing.n_stop; i++)
        DI_CHECK(q->parsing.stop_len[i] > 0);
}

/* Control tokens do not overlap; the text is UTF-8 as the body was. */
static void check_prompt(const recipe_prompt *p)
{
    size_t at = 0;

    DI_CHECK(utf8_valid(str_text(&p->text), p->text.len));
    for (size_t i = 0; i < p->n_special; i++) {
        DI_CHECK(p->special[i].begin >= at && p->special[i].end > p->special[i].begin);
        at = p->special[i].end;
    }
    DI_CHECK(at <= p->text.len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    recipe_protocol protocol = (recipe_protocol)(n ? data[0] % 3 : 0);
    const recipe_options o = {.mode = n && data[0] & 0x40 ? RECIPE_STRICT : RECIPE_CLIENT};
    recipe_request q;
    recipe_error e;
    recipe_prompt p = {0};
    str body = {0};
    int64_t max;

    if (n == 0)
        return 0;
    if (recipe_request_parse(&q, protocol, &o, (const char *)data + 1, n - 1, &e)) {
        DI_CHECK(e.status == 0);
        check_sampling(&q);
        DI_CHECK(recipe_render(&q.chat, NULL, &p, NULL) == DI_OK);
        check_prompt(&p);
        if (recipe_resolve_max_tokens(&q, 10, 4096, &max, &e))
            DI_CHECK(max >= 1 && max <= 4086);
    } else {
        DI_CHECK(e.status >= 400 && e.message[0]);
        recipe_error_body(protocol, o.mode, &e, &body);
        check_json(&body);
    }
    recipe_request_fini(&q);
    recipe_prompt_fini(&p);
    str_fini(&body);
    return 0;
}
