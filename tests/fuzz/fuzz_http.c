/* The first byte is the size of pieces, the rest a connection's bytes. However they are cut, the
 * same requests come out: paths, bodies, or the same refusal. */
#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "server/http.h"

#define MAX_BODY 4096

/* All requests of the connection as text. */
static void read_all(const char *data, size_t n, size_t step, str *out)
{
    http_request r;
    size_t at = 0;

    http_init(&r);
    for (;;) {
        size_t piece = n - at < step ? n - at : step, len;

        if (r.state == HTTP_BAD) {
            str_printf(out, "bad %d %s", r.status, r.problem);
            break;
        }
        if (r.state == HTTP_READY) {
            http_field(&r, "content-length", &len);
            http_query(&r, "a", &len);
            str_printf(out, "%d %d %d %s?%s ", (int)r.method, r.minor, r.keep_alive, r.path,
                       r.query);
            http_go(&r);
        } else if (r.state == HTTP_DONE) {
            DI_CHECK(r.body.len <= MAX_BODY);
            str_append(out, r.body.data, r.body.len);
            http_next(&r);
        } else if (piece == 0) {
            break;
        } else {
            size_t used = http_feed(&r, data + at, piece, MAX_BODY);

            DI_CHECK(used <= piece && (used > 0 || r.state != HTTP_HEAD));
            at += used;
        }
    }
    http_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    str whole = {0}, cut = {0};

    if (n == 0)
        return 0;
    read_all((const char *)data + 1, n - 1, n, &whole);
    read_all((const char *)data + 1, n - 1, 1 + (size_t)data[0] % 64, &cut);
    DI_CHECK(whole.len == cut.len && memcmp(str_text(&whole), str_text(&cut), whole.len) == 0);
    str_fini(&whole);
    str_fini(&cut);
    return 0;
}
