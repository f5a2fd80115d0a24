/* The input is a config.json. What is accepted must answer every question about its layers, and its
 * tensor table must have sizes that fit their types. */
#include <stdint.h>

#include "base/status.h"
#include "checkpoint/config.h"
#include "checkpoint/sizes.h"

#define MAX_WALK 3000 /* experts of all layers: larger tables only take longer */

static void check_layers(const model_config *c)
{
    for (int l = 0; l < c->n_layers + c->n_stages; l++) {
        int owner = config_kv_owner(c, l), index = config_index_owner(c, l);

        DI_CHECK((owner >= 0) == (c->ratio[l] > 0) && (index >= 0) == (c->ratio[l] > 0));
        DI_CHECK(owner <= l && index <= l && index >= owner);
        DI_CHECK(owner < 0 || c->ratio[owner] == c->ratio[l]);
        DI_CHECK(config_n_active(c, l) <= config_n_experts(c, l));
        DI_CHECK(config_engram_idx(c, l) < 0 || config_engram_cols(c) > 0);
        DI_CHECK(config_tap_idx(c, l) < c->n_taps && config_kv_source_idx(c, l) < c->n_kv_sources);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    di_status st = {.code = DI_OK};
    model_config c;
    model_sizes s;

    if (config_parse(&c, (const char *)data, n, "config.json", &st) != DI_OK) {
        DI_CHECK(st.code != DI_OK && st.message[0]);
        return 0;
    }
    check_layers(&c);
    if (c.n_layers * c.n_experts + c.n_stages * c.draft_experts <= MAX_WALK) {
        sizes_of(&s, &c);
        DI_CHECK(s.total.bytes >= s.backbone.bytes && s.active_output >= s.active_prompt);
        DI_CHECK(s.loaded_bytes + s.mapped_bytes + s.part[CKPT_PART_VISION].bytes == s.total.bytes);
    }
    return 0;
}
