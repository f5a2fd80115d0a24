/* The input is a model.safetensors.index.json. What is accepted names plain files only. */
#include <stdint.h>
#include <string.h>

#include "checkpoint/checkpoint_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    di_status st = {.code = DI_OK};
    shard_index x;

    if (shard_index_parse(&x, (const char *)data, n, "index.json", &st) != DI_OK) {
        DI_CHECK(st.code != DI_OK && st.message[0] && !x.mem);
        return 0;
    }
    DI_CHECK(x.n > 0 && x.n_shards > 0);
    for (int i = 0; i < x.n_shards; i++)
        DI_CHECK(x.shard[i][0] != 0 && x.shard[i][0] != '.' && !strchr(x.shard[i], '/'));
    for (size_t i = 0; i < x.n; i++)
        DI_CHECK(x.entry[i].name[0] && x.entry[i].shard >= 0 && x.entry[i].shard < x.n_shards);
    shard_index_fini(&x);
    return 0;
}
