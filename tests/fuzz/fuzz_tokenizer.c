/* tokenizer.json from an enemy: it loads or is refused with a message; what loads encodes the text
 * behind it (after a line that holds only "---") and gives it back. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

static const char separator[] = "\n---\n";

static void require(bool ok)
{
    if (!ok)
        abort();
}

/* Encode, decode whole and piece by piece: all give the text, read lossily. */
static void round_trip(const tokenizer *t, const char *text, size_t n, bool added)
{
    tok_ids ids = {0}, pieces = {0};
    str whole = {0}, parts = {0};
    tok_decoder d;
    size_t bytes = 0;

    require(tokenizer_encode(t, text, n, added, &ids, NULL) == DI_OK);
    require(tokenizer_pieces(t, text, n, &pieces, NULL) == DI_OK);
    tok_decoder_init(&d, t);
    for (size_t i = 0; i < ids.n; i++) {
        size_t len;

        require(tokenizer_bytes(t, ids.ids[i], &len) != NULL);
        tok_decoder_push(&d, ids.ids[i], &parts);
    }
    tok_decoder_flush(&d, &parts);
    tokenizer_decode(t, ids.ids, ids.n, false, &whole);
    for (size_t i = 0; i < pieces.n; i++)
        bytes += (size_t)pieces.ids[i];
    require(bytes == whole.len && parts.len == whole.len);
    require(whole.len == 0 || memcmp(whole.data, parts.data, whole.len) == 0);
    if (utf8_valid(text, n))
        require(whole.len == n && (n == 0 || memcmp(whole.data, text, n) == 0));
    tok_decoder_fini(&d);
    tok_ids_fini(&ids);
    tok_ids_fini(&pieces);
    str_fini(&whole);
    str_fini(&parts);
}

static void compress(const tokenizer *t)
{
    static int32_t to[4096];
    int n_compressed, n_ids = tokenizer_n_ids(t);

    if (n_ids > 4096) /* holes in the ids make this slow without making it different */
        n_ids = 4096;
    require(tokenizer_compressed_ids(t, to, n_ids, &n_compressed, NULL) == DI_OK);
    require(n_compressed <= n_ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *json = (const char *)data, *text = NULL;
    size_t n_json = n, n_text = 0;
    tokenizer *t;
    di_status st = {0};

    if (n > 0 && (text = memmem(data, n, separator, sizeof separator - 1))) {
        n_json = (size_t)(text - json);
        text += sizeof separator - 1;
        n_text = n - (size_t)(text - json);
    }
    if (tokenizer_parse(&t, json, n_json, "fuzz.json", &st) != DI_OK) {
        require(t == NULL && st.code != DI_OK && st.message[0]);
        return 0;
    }
    if (text) {
        compress(t);
        round_trip(t, text, n_text, true);
        round_trip(t, text, n_text, false);
    }
    tokenizer_free(t);
    return 0;
}
