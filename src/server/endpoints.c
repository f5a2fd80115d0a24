/* The table of endpoints (docs/api.md describes them in this order). */
#include <stdbool.h>
#include <string.h>

#include "server/server_internal.h"

static const endpoint endpoints[] = {
    {HTTP_POST, "/v1/chat/completions", handle_chat, EP_WORK, 0},
    {HTTP_POST, "/v1/completions", handle_completions, EP_WORK, 1},
    {HTTP_POST, "/v1/responses", handle_responses, EP_WORK, 2},
    {HTTP_POST, "/v1/messages", handle_messages, EP_WORK | EP_ANTHROPIC, 3},
    {HTTP_POST, "/v1/messages/count_tokens", handle_count_tokens, EP_ANTHROPIC, 4},
    {HTTP_POST, "/apply-template", handle_apply_template, 0, 5},
    {HTTP_POST, "/tokenize", handle_tokenize, 0, 6},
    {HTTP_POST, "/detokenize", handle_detokenize, 0, 7},
    {HTTP_GET, "/v1/models", handle_models, 0, 8},
    {HTTP_GET, "/v1/models/", handle_model, EP_PREFIX, 9},
    {HTTP_GET, "/health", handle_health, EP_OPEN, 10},
    {HTTP_GET, "/health/live", handle_health, EP_OPEN, 11},
    {HTTP_GET, "/health/ready", handle_ready, EP_OPEN, 12},
    {HTTP_GET, "/metrics", handle_metrics, EP_OPEN, 13},
    {HTTP_GET, "/version", handle_version, EP_OPEN, 14},
    {HTTP_GET, "/", handle_page, EP_OPEN, 15},
    {HTTP_GET, "/app.js", handle_page, EP_OPEN, 16},
    {HTTP_GET, "/style.css", handle_page, EP_OPEN, 17},
    {HTTP_GET, "/favicon.svg", handle_page, EP_OPEN, 18},
    {HTTP_GET, "/text.js", handle_page, EP_OPEN, 19},
};
_Static_assert(sizeof endpoints / sizeof *endpoints <= METRIC_MAX_ENDPOINTS, "counters for each");

const endpoint *endpoint_at(int i)
{
    return i < (int)ARRAY_LEN(endpoints) ? &endpoints[i] : NULL;
}

static bool is_path(const endpoint *e, const char *path, const char *wanted)
{
    return e->flags & EP_PREFIX ? strncmp(path, wanted, strlen(wanted)) == 0
                                : strcmp(path, wanted) == 0;
}

/* Also at the addresses of DeepSeek's own service, which its clients are set up for: without /v1,
 * and everything that Anthropic's library asks for below /anthropic. */
static bool is_at(const endpoint *e, const char *path)
{
    if (strncmp(e->path, "/v1/", 4) != 0)
        return is_path(e, path, e->path);
    if (strncmp(path, "/anthropic/v1/", 14) == 0)
        path += strlen("/anthropic");
    return is_path(e, path, e->path) || is_path(e, path, e->path + strlen("/v1"));
}

const endpoint *endpoint_find(const http_request *r, int *status, const char **allow)
{
    http_method method = r->method == HTTP_HEAD_METHOD ? HTTP_GET : r->method;

    *status = 404;
    for (size_t i = 0; i < ARRAY_LEN(endpoints); i++) {
        const endpoint *e = &endpoints[i];

        if (!is_at(e, r->path))
            continue;
        if (e->method == method) {
            *status = 200;
            return e;
        }
        *status = 405;
        *allow = e->method == HTTP_GET ? "GET, HEAD" : "POST";
    }
    return NULL;
}
