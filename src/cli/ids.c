/* Lists of token ids as text. */
#include "cli/ids.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"

static di_code check_range(const char *name, size_t i, long long id, int n_ids, di_status *st)
{
    if (id >= 0 && id < n_ids)
        return DI_OK;
    return di_fail(st, DI_E_INVALID, "id %zu of %s is %lld, but ids run from 0 to %d", i, name, id,
                   n_ids - 1);
}

static di_code parse_json(const char *text, size_t n, const char *name, int n_ids, tok_ids *ids,
                          di_status *st)
{
    json_read r;
    int64_t v;
    di_code rc;

    json_open(&r, text, n, name);
    DI_TRY(json_array(&r, st));
    while (json_item(&r)) {
        DI_TRY(json_int(&r, &v, st));
        DI_TRY(check_range(name, ids->n, (long long)v, n_ids, st));
        DI_TRY(tok_ids_push(ids, (int32_t)v, st));
    }
    rc = json_end(&r, st);
done:
    json_close(&r);
    return rc;
}

static di_code parse_plain(const char *text, const char *name, int n_ids, tok_ids *ids,
                           di_status *st)
{
    static const char blanks[] = " \t\r\n,";
    di_code rc = DI_OK;

    for (const char *s = text + strspn(text, blanks); *s; s += strspn(s, blanks)) {
        char *end;
        long long v;

        errno = 0;
        v = strtoll(s, &end, 10);
        if (end == s || (*end && !strchr(blanks, *end)) || errno)
            return di_fail(st, DI_E_FORMAT, "id %zu of %s is not an integer: \"%.20s\"", ids->n,
                           name, s);
        DI_TRY(check_range(name, ids->n, v, n_ids, st));
        DI_TRY(tok_ids_push(ids, (int32_t)v, st));
        s = end;
    }
done:
    return rc;
}

di_code ids_parse(const char *text, size_t n, const char *name, int n_ids, tok_ids *ids,
                  di_status *st)
{
    if (strlen(text) != n)
        return di_fail(st, DI_E_FORMAT, "%s holds a 0 byte: it is not a list of ids", name);
    if (text[strspn(text, " \t\r\n")] == '[')
        return parse_json(text, n, name, n_ids, ids, st);
    return parse_plain(text, name, n_ids, ids, st);
}
