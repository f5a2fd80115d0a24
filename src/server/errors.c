/* Errors as clients expect them: OpenAI's {"error": ..} or Anthropic's {"type": "error", ..}. */
#include <stdio.h>
#include <string.h>

#include "server/server_internal.h"

/* Names that the clients' libraries know; they choose the exception by the status alone. */
static const char *openai_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    case 503:
        return "service_unavailable_error";
    default:
        return status < 500 ? "invalid_request_error" : "server_error";
    }
}

static const char *anthropic_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return status < 500 ? "invalid_request_error" : "api_error";
    }
}

static void optional(json_write *w, const char *key, const char *value)
{
    jw_key(w, key);
    if (value)
        jw_cstr(w, value);
    else
        jw_null(w);
}

void error_json(str *out, const error_body *e, bool openai, const char *request_id)
{
    json_write w = {.out = out};

    jw_object(&w);
    if (!openai) {
        jw_key(&w, "type");
        jw_cstr(&w, "error");
    }
    jw_key(&w, "error");
    jw_object(&w);
    if (!openai) {
        jw_key(&w, "type");
        jw_cstr(&w, anthropic_type(e->status));
    }
    jw_key(&w, "message");
    jw_cstr(&w, e->message);
    if (openai) {
        jw_key(&w, "type");
        jw_cstr(&w, openai_type(e->status));
        optional(&w, "param", e->param);
        optional(&w, "code", e->code ? e->code : openai_type(e->status));
    }
    jw_end(&w);
    if (!openai)
        optional(&w, "request_id", request_id);
    jw_end(&w);
}

void conn_error(conn *c, const error_body *e)
{
    bool openai = !c->ep || !(c->ep->flags & EP_ANTHROPIC);
    str body = {0};
    char extra[64] = "";

    error_json(&body, e, openai, c->id);
    if (e->status == 401)
        snprintf(extra, sizeof extra, "www-authenticate: Bearer\r\n");
    else if (e->retry_after_s)
        snprintf(extra, sizeof extra, "retry-after: %d\r\n", e->retry_after_s);
    if (str_ok(&body))
        conn_reply(c, e->status, "application/json", extra, body.data, body.len);
    else
        conn_close(c);
    str_fini(&body);
}

const char *error_param(const char *message)
{
    static const char *const fields[] = {"model",
                                         "prompt",
                                         "suffix",
                                         "max_tokens",
                                         "min_tokens",
                                         "n",
                                         "temperature",
                                         "top_p",
                                         "top_k",
                                         "min_p",
                                         "stop",
                                         "seed",
                                         "logprobs",
                                         "logit_bias",
                                         "repetition_penalty",
                                         "presence_penalty",
                                         "frequency_penalty",
                                         "stop_token_ids",
                                         "ignore_eos",
                                         "echo",
                                         "stream",
                                         "stream_options.include_usage",
                                         "stream_options",
                                         "priority",
                                         "return_token_ids",
                                         "skip_special_tokens",
                                         "tokens",
                                         "parse_special",
                                         "return_token_strs",
                                         "top_logprobs"};

    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        size_t n = strlen(fields[i]);

        if (strncmp(message, fields[i], n) == 0 && (message[n] == ' ' || message[n] == ':'))
            return fields[i];
    }
    return strncmp(message, "stop_ids ", 9) == 0 ? "stop_token_ids" : NULL;
}

error_body error_of(const server *s, di_code code, const char *message)
{
    error_body e = {.status = di_code_http(code), .message = message};

    if (code == DI_E_CANCELLED) /* the engine takes no requests any more */
        e.status = 503;
    if (e.status == 429 || e.status == 503)
        e.retry_after_s = s->opt.retry_after_s;
    if (code == DI_E_FORMAT) /* of a body */
        e.status = 400;
    if (code == DI_E_INVALID)
        e.param = error_param(message);
    return e;
}

void conn_fail(conn *c, const di_status *st)
{
    error_body e = error_of(c->loop->srv, st->code, st->message);

    metric_count(&c->loop->m, e.status == 429 ? METRIC_rejected_busy : METRIC_rejected_bad);
    conn_error(c, &e);
}
