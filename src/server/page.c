/* GET / and the files of the page. Its policy lets it load and call this server only, and run no
 * script but its own file. */
#include "server/page.h"

#include <string.h>

#include "server/server_internal.h"

#define POLICY                                                                                     \
    "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; "           \
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "                    \
    "frame-ancestors 'none'\r\n"                                                                   \
    "x-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\n"                          \
    "cross-origin-opener-policy: same-origin\r\ncache-control: no-cache\r\n"

static const char *type_of(const char *name)
{
    const char *dot = strrchr(name, '.');

    return strcmp(dot, ".html") == 0  ? "text/html; charset=utf-8"
           : strcmp(dot, ".js") == 0  ? "text/javascript; charset=utf-8"
           : strcmp(dot, ".css") == 0 ? "text/css; charset=utf-8"
                                      : "image/svg+xml";
}

void handle_page(conn *c)
{
    const char *name = c->req.path[1] ? c->req.path + 1 : "index.html";

    for (size_t i = 0; i < page_n_files; i++)
        if (strcmp(page_files[i].name, name) == 0) {
            conn_reply(c, 200, type_of(name), POLICY, page_files[i].data, page_files[i].n);
            return;
        }
    conn_error(c, &(error_body){.status = 404, .message = "there is nothing at this path"});
}
