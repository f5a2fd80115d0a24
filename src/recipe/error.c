/* See error.h. */
#include "recipe/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json_write.h"
#include "base/utf8.h"

bool recipe_fail(recipe_error *e, int status, const char *fmt, ...)
{
    va_list ap;

    if (e->status)
        return false;
    e->status = status;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    utf8_mend(e->message); /* quoted words are cut anywhere, and so is the message */
    return false;
}

void recipe_error_from(recipe_error *e, const di_status *st)
{
    if (st->code == DI_E_FORMAT) /* the format is that of a body here */
        recipe_fail(e, 400, "%s", st->message);
    else
        recipe_fail(e, di_code_http(st->code), "%s", st->message);
}

/* The words of both worlds for a status. */
static const struct {
    int status;
    const char *openai, *anthropic;
} types[] = {
    {400, "invalid_request_error", "invalid_request_error"},
    {401, "authentication_error", "authentication_error"},
    {403, "permission_error", "permission_error"},
    {404, "invalid_request_error", "not_found_error"},
    {413, "invalid_request_error", "request_too_large"},
    {429, "rate_limit_error", "rate_limit_error"},
    {501, "not_supported_error", "api_error"},
    {503, "server_error", "overloaded_error"},
    {529, "server_error", "overloaded_error"},
};

static const char *type_of(int status, bool anthropic)
{
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (types[i].status == status)
            return anthropic ? types[i].anthropic : types[i].openai;
    if (status >= 400 && status < 500)
        return "invalid_request_error";
    return anthropic ? "api_error" : "server_error";
}

void recipe_error_body(recipe_protocol protocol, recipe_mode mode, const recipe_error *e, str *out)
{
    bool anthropic = protocol == RECIPE_PROTOCOL_MESSAGES && mode == RECIPE_CLIENT;
    const char *type = e->type ? e->type : type_of(e->status, anthropic);
    json_write w = {.out = out};

    jw_object(&w);
    if (anthropic) {
        jw_key(&w, "type");
        jw_cstr(&w, "error");
    }
    jw_key(&w, "error");
    jw_object(&w);
    if (anthropic) {
        jw_key(&w, "type");
        jw_cstr(&w, type_of(e->status, true));
    }
    jw_key(&w, "message");
    jw_cstr(&w, e->message);
    if (!anthropic) {
        jw_key(&w, "type");
        jw_cstr(&w, type);
        jw_key(&w, "param");
        if (e->param || (*e->place && mode == RECIPE_CLIENT))
            jw_cstr(&w, e->param ? e->param : e->place);
        else
            jw_null(&w);
        jw_key(&w, "code");
        jw_cstr(&w, e->code ? e->code : type);
    }
    jw_end(&w);
    jw_end(&w);
}
