/* config.json: what is read, what is refused, and that each message names its key. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/config.h"
#include "unit/checkpoint_maker.h"

#define FLASH "tests/data/checkpoint/config.flash.json"

static char *load_text(const char *path)
{
    char *text;
    size_t n;

    assert_int_equal(file_read(&text, &n, path, 1 << 20, NULL), DI_OK);
    return text;
}

static di_code parse(model_config *c, const char *text, di_status *st)
{
    *st = (di_status){.code = DI_OK};
    return config_parse(c, text, strlen(text), "config.json", st);
}

/* The text must be refused with `code` by a message that holds `words`. */
static void assert_refused(const char *text, di_code code, const char *words)
{
    model_config c;
    di_status st;

    if (parse(&c, text, &st) == DI_OK)
        fail_msg("accepted, but \"%s\" was expected", words);
    if (st.code != code || !strstr(st.message, words) || !strstr(st.message, "config.json"))
        fail_msg("%s \"%s\" lacks \"%s\"", di_code_name(st.code), st.message, words);
}

static void test_released_config_is_read(void **state)
{
    static const int owners[] = {-1, -1, 2,  2,  2,  2,  2,  2,  8,  8,  8,  8, 8,
                                 8,  14, 14, 14, 14, 14, 14, 20, 20, 20, 20, 20};
    char *text = load_text(FLASH);
    model_config c;
    di_status st;

    (void)state;
    assert_int_equal(parse(&c, text, &st), DI_OK);
    assert_int_equal(c.vocab, 129280);
    assert_int_equal(c.hidden, 5120);
    assert_int_equal(c.n_layers, 40);
    assert_int_equal(c.n_stages, 3);
    assert_int_equal(c.max_context, 1048576);
    assert_true(c.rms_eps == 1e-20f && c.hc_eps == 1e-6f && c.route_scale == 1.5f);
    assert_true(c.norm_topk);
    assert_int_equal(c.engram_rows[1], 384016682);
    assert_int_equal(config_engram_cols(&c), 24);
    assert_int_equal(c.yarn_original, 65536);
    assert_int_equal(c.vision.n_layers, 32);
    assert_int_equal(c.image_token, 129264);
    for (int l = 0; l < (int)ARRAY_LEN(owners); l++)
        assert_int_equal(config_kv_owner(&c, l), owners[l]);
    assert_int_equal(config_index_owner(&c, 19), 14);
    assert_int_equal(config_index_owner(&c, 23), 20);
    assert_int_equal(config_index_owner(&c, 39), 36);
    assert_int_equal(config_index_owner(&c, 41), -1);
    assert_int_equal(config_kv_source_idx(&c, 14), 2);
    assert_int_equal(config_kv_source_idx(&c, 15), -1);
    assert_int_equal(config_tap_idx(&c, 38), 1);
    assert_int_equal(config_engram_idx(&c, 14), 1);
    assert_int_equal(config_n_experts(&c, 39), 384);
    assert_int_equal(config_n_experts(&c, 40), 128);
    assert_int_equal(config_n_active(&c, 42), 3);
    mem_free(text);
}

/* Keys whose absence the released reader tolerates; every other key of the file is required. */
static bool is_optional(const char *section, const char *key)
{
    static const char *const optional[] = {
        "architectures",  "dtype",        "tie_word_embeddings", "num_key_value_heads",
        "attention_bias", "hidden_act",   "n_shared_experts",    "topk_method",
        "norm_topk_prob", "max_wh_ratio", "activation_scheme"};

    if (strcmp(key, "model_type") == 0)
        return section != NULL;
    for (size_t i = 0; i < ARRAY_LEN(optional); i++)
        if (strcmp(optional[i], key) == 0)
            return true;
    return false;
}

/* Calls fn for each "key": line of the small config; section is the text that opens its object. */
static void for_each_key(const char *text,
                         void (*fn)(const char *text, const char *section, const char *key))
{
    static const char *const sections[] = {"\"quantization_config\"", "\"rope_scaling\"",
                                           "\"text_config\"", "\"vision_config\""};
    const char *section = NULL;
    int n = 0;

    for (const char *at = text; (at = strstr(at, "\n  ")) != NULL; at++) {
        const char *quote = strchr(at, '"'), *end;
        char key[80];

        if (!quote || quote > strchr(at + 1, '\n'))
            continue;
        end = strchr(quote + 1, '"');
        snprintf(key, sizeof key, "%.*s", (int)(end - quote - 1), quote + 1);
        for (size_t i = 0; i < ARRAY_LEN(sections); i++)
            if (strncmp(quote, sections[i], strlen(sections[i])) == 0)
                section = sections[i];
        if (strchr(at + 1, '\n')[-1] == '{')
            continue; /* opens an object */
        fn(text, section, key);
        n++;
    }
    assert_true(n > 70); /* the loop has seen the file */
}

static void remove_key(const char *text, const char *section, const char *key)
{
    char *edited, words[100];
    model_config c;
    di_status st;

    if (strcmp(key, "end") == 0)
        return; /* keeps the line before it from ending in a comma */
    edited = json_edit(text, section, key, NULL);
    if (is_optional(section, key)) {
        if (parse(&c, edited, &st) != DI_OK)
            fail_msg("without %s: %s", key, st.message);
    } else {
        snprintf(words, sizeof words, "%s is missing", key);
        assert_refused(edited, DI_E_FORMAT, words);
    }
    mem_free(edited);
}

static void test_each_missing_key_is_named(void **state)
{
    char *text = load_text(MAKER_SMALL_CONFIG);

    (void)state;
    for_each_key(text, remove_key);
    mem_free(text);
}

static void spoil_key(const char *text, const char *section, const char *key)
{
    static const char *const wrong[] = {"{}", "[[]]", "{\"a\": [1]}"};

    if (strcmp(key, "end") == 0 || strcmp(key, "architectures") == 0 ||
        strcmp(key, "max_wh_ratio") == 0 ||
        (strcmp(key, "model_type") == 0 && section && strcmp(section, "\"vision_config\"") == 0))
        return; /* not read */
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        char *edited = json_edit(text, section, key, wrong[i]);

        assert_refused(edited, DI_E_FORMAT, key);
        mem_free(edited);
    }
}

static void test_each_key_of_the_wrong_type_is_named(void **state)
{
    char *text = load_text(MAKER_SMALL_CONFIG);

    (void)state;
    for_each_key(text, spoil_key);
    mem_free(text);
}

typedef struct mutation {
    const char *section, *key, *value;
    di_code code;
    const char *words; /* NULL: the key */
} mutation;

#define Q    "\"quantization_config\""
#define T    "\"text_config\""
#define R    "\"rope_scaling\""
#define V    "\"vision_config\""
#define BAD  DI_E_FORMAT
#define UNSU DI_E_UNSUPPORTED

static const mutation mutations[] = {
    {NULL, "model_type", "\"llama\"", UNSU, NULL},
    {NULL, "dtype", "\"float16\"", UNSU, NULL},
    {NULL, "tie_word_embeddings", "true", UNSU, NULL},
    {NULL, "bos_token_id", "64", BAD, NULL},
    {NULL, "eos_token_id", "-1", BAD, NULL},
    {NULL, "pad_token_id", "1.5", BAD, NULL},
    {NULL, "image_token_id", "64", BAD, NULL},
    {Q, "quant_method", "\"gptq\"", UNSU, NULL},
    {Q, "activation_scheme", "\"static\"", UNSU, NULL},
    {Q, "weight_block_size", "[128, 128]", BAD, NULL},
    {Q, "weight_block_size", "[32]", BAD, NULL},
    {Q, "weight_block_size", "[32, 32, 32]", BAD, NULL},
    {Q, "scale_fmt", "\"float\"", UNSU, NULL},
    {Q, "expert_dtype", "\"fp8\"", UNSU, NULL},
    {T, "model_type", "\"deepseek_v3\"", UNSU, NULL},
    {T, "vocab_size", "0", BAD, NULL},
    {T, "vocab_size", "100000000", BAD, NULL},
    {T, "vocab_size", "61", BAD, "image_token_id 63 is outside the vocabulary"},
    {T, "hidden_size", "65", BAD, NULL},
    {T, "hidden_size", "-64", BAD, NULL},
    {T, "hidden_size", "9223372036854775807", BAD, NULL},
    {T, "hidden_size", "9223372036854775808", BAD, NULL},
    {T, "hidden_size", "1e2", BAD, NULL},
    {T, "moe_intermediate_size", "48", BAD, NULL},
    {T, "num_hidden_layers", "0", BAD, NULL},
    {T, "num_hidden_layers", "5", BAD, "compress_ratios"},
    {T, "num_hidden_layers", "300", BAD, NULL},
    {T, "num_attention_heads", "3", BAD, "o_groups"},
    {T, "num_key_value_heads", "8", BAD, NULL},
    {T, "head_dim", "40", BAD, NULL},
    {T, "qk_rope_head_dim", "15", BAD, NULL},
    {T, "qk_rope_head_dim", "64", BAD, NULL},
    {T, "q_lora_rank", "33", BAD, NULL},
    {T, "o_lora_rank", "9", BAD, NULL},
    {T, "o_groups", "0", BAD, NULL},
    {T, "hidden_act", "\"gelu\"", UNSU, NULL},
    {T, "swiglu_limit", "0", BAD, NULL},
    {T, "rms_norm_eps", "0", BAD, NULL},
    {T, "rms_norm_eps", "1e999", BAD, NULL},
    {T, "attention_bias", "true", UNSU, NULL},
    {T, "tie_word_embeddings", "true", UNSU, NULL},
    {T, "max_position_embeddings", "0", BAD, NULL},
    {T, "rope_theta", "1", BAD, NULL},
    {R, "rope_type", "\"linear\"", UNSU, NULL},
    {R, "factor", "0.5", BAD, NULL},
    {R, "beta_fast", "1", BAD, NULL},
    {R, "beta_slow", "0", BAD, NULL},
    {R, "original_max_position_embeddings", "0", BAD, NULL},
    {T, "n_routed_experts", "0", BAD, NULL},
    {T, "n_routed_experts", "1", BAD, NULL},
    {T, "n_routed_experts", "1000000", BAD, NULL},
    {T, "n_shared_experts", "2", BAD, NULL},
    {T, "num_experts_per_tok", "4", BAD, NULL},
    {T, "scoring_func", "\"sigmoid\"", UNSU, NULL},
    {T, "topk_method", "\"greedy\"", UNSU, NULL},
    {T, "norm_topk_prob", "1", BAD, NULL},
    {T, "routed_scaling_factor", "0", BAD, NULL},
    {T, "sliding_window", "0", BAD, NULL},
    {T, "compress_ratios", "[0, 2, 1, 1, 0]", BAD, NULL},
    {T, "compress_ratios", "[0, 2, 1, 4, 0, 0]", BAD, NULL},
    {T, "compress_ratios", "[2, 2, 1, 1, 0, 0]", BAD, NULL},
    {T, "compress_ratios", "[0, 2, 1, 2, 0, 0]", BAD, NULL},
    {T, "compress_ratios", "[0, 0, 1, 1, 0, 0]", BAD, NULL},
    {T, "compress_ratios", "[0, 2, 1, 1, 1, 0]", BAD, "draft stage"},
    {T, "compress_rope_theta", "-5", BAD, NULL},
    {T, "kv_source_layer_ids", "[2, 1]", BAD, "must ascend"},
    {T, "kv_source_layer_ids", "[1, 1]", BAD, "must ascend"},
    {T, "kv_source_layer_ids", "[1, 2, 4]", BAD, NULL},
    {T, "kv_source_layer_ids", "[2]", BAD, "compress_ratios"},
    {T, "index_source_layer_ids", "[2, 3]", BAD, NULL},
    {T, "index_source_layer_ids", "[0, 1, 2, 3]", BAD, NULL},
    {T, "index_n_heads", "0", BAD, NULL},
    {T, "index_head_dim", "16", BAD, NULL},
    {T, "index_topk", "0", BAD, NULL},
    {T, "candidate_source_layer_id", "0", BAD, NULL},
    {T, "candidate_source_layer_id", "1", BAD, "KV source"},
    {T, "candidate_topk_blocks", "0", BAD, NULL},
    {T, "candidate_block_size", "0", BAD, NULL},
    {T, "hc_mult", "0", BAD, NULL},
    {T, "hc_mult", "9", BAD, NULL},
    {T, "hc_sinkhorn_iters", "0", BAD, NULL},
    {T, "hc_eps", "-1", BAD, NULL},
    {T, "engram_layer_ids", "[0]", BAD, "engram_num_embeddings"},
    {T, "engram_layer_ids", "[0, 4]", BAD, NULL},
    {T, "engram_num_embeddings", "[40, 0]", BAD, NULL},
    {T, "engram_max_ngram_size", "1", BAD, NULL},
    {T, "engram_vocab_size", "0", BAD, NULL},
    {T, "engram_n_heads", "0", BAD, NULL},
    {T, "engram_head_dim", "16", BAD, NULL},
    {T, "engram_head_dim", "0", BAD, NULL},
    {T, "engram_pad_token_id", "50", BAD, NULL},
    {T, "engram_compressed_vocab_size", "65", BAD, NULL},
    {T, "num_nextn_predict_layers", "1", BAD, "compress_ratios"},
    {T, "dspark_block_size", "0", BAD, NULL},
    {T, "dspark_noise_token_id", "64", BAD, NULL},
    {T, "dspark_target_layer_ids", "[]", BAD, NULL},
    {T, "dspark_target_layer_ids", "[3, 4]", BAD, NULL},
    {T, "dspark_markov_rank", "0", BAD, NULL},
    {T, "dspark_n_routed_experts", "-1", BAD, NULL},
    {T, "dspark_num_experts_per_tok", "3", BAD, NULL},
    {V, "num_hidden_layers", "-1", BAD, NULL},
    {V, "hidden_size", "null", BAD, "hidden_size"},
    {V, "num_attention_heads", "3", BAD, NULL},
    {V, "intermediate_size", "0", BAD, NULL},
    {V, "patch_size", "0", BAD, NULL},
    {V, "downsample_ratio", "100", BAD, NULL},
};

static void test_impossible_values_are_named(void **state)
{
    char *text = load_text(MAKER_SMALL_CONFIG);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(mutations); i++) {
        const mutation *m = &mutations[i];
        char *edited = json_edit(text, m->section, m->key, m->value);

        assert_refused(edited, m->code, m->words ? m->words : m->key);
        mem_free(edited);
    }
    mem_free(text);
}

static void test_values_at_their_limits_are_read(void **state)
{
    static const mutation good[] = {
        {T, "candidate_source_layer_id", "null", DI_OK, NULL},
        {T, "candidate_source_layer_id", "-1", DI_OK, NULL},
        {T, "candidate_topk_blocks", "1", DI_OK, NULL}, /* fewer candidates than top-k: allowed */
        {T, "norm_topk_prob", "false", DI_OK, NULL},
        {T, "hc_mult", "1", DI_OK, NULL},
        {T, "hc_mult", "8", DI_OK, NULL},
        {T, "qk_rope_head_dim", "32", DI_OK, NULL},
        {T, "dspark_n_routed_experts", "0", DI_OK, NULL},
        {T, "rope_theta", "1e4", DI_OK, NULL},
        {V, "num_hidden_layers", "0", DI_OK, NULL},
    };
    char *text = load_text(MAKER_SMALL_CONFIG);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        char *edited = json_edit(text, good[i].section, good[i].key, good[i].value);
        model_config c;
        di_status st;

        if (parse(&c, edited, &st) != DI_OK)
            fail_msg("%s = %s: %s", good[i].key, good[i].value, st.message);
        mem_free(edited);
    }
    mem_free(text);
}

static void test_defaults_of_the_released_reader(void **state)
{
    char *text = load_text(MAKER_SMALL_CONFIG);
    char *edited = json_edit(text, T, "norm_topk_prob", NULL);
    model_config c;
    di_status st;

    (void)state;
    assert_int_equal(parse(&c, edited, &st), DI_OK);
    assert_true(c.norm_topk);
    mem_free(edited);
    edited = json_edit(text, T, "dspark_n_routed_experts", "0");
    assert_int_equal(parse(&c, edited, &st), DI_OK);
    assert_int_equal(config_n_experts(&c, 4), 3); /* the backbone's number */
    mem_free(edited);
    mem_free(text);
}

static void test_malformed_json_is_located(void **state)
{
    static const char *const texts[] = {
        "",
        "[",
        "{",
        "{\"text_config\": {",
        "{\"text_config\": {\"vocab_size\": 5,}}",
        "{\"model_type\": \"deepseek_v41\"} x",
        "{\"text_config\": [1]}",
        "null",
        "{\"a\": tru}",
    };
    model_config c;
    di_status st;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        assert_int_equal(parse(&c, texts[i], &st), DI_E_FORMAT);
        assert_non_null(strstr(st.message, "config.json"));
    }
}

static void test_key_that_stands_twice_is_refused(void **state)
{
    char *text = load_text(MAKER_SMALL_CONFIG);
    char *edited = json_edit(text, T, "vocab_size", "64,\n    \"vocab_size\": 32");

    (void)state;
    assert_refused(edited, DI_E_FORMAT, "vocab_size stands twice");
    mem_free(edited);
    mem_free(text);
}

static void test_deep_nesting_is_refused(void **state)
{
    enum { DEPTH = 100000 };
    char *text = mem_try_calloc(DEPTH + 16, 1);

    (void)state;
    assert_non_null(text);
    memset(text + snprintf(text, 16, "{\"a\": "), '[', DEPTH);
    assert_refused(text, DI_E_FORMAT, "config.json");
    mem_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_released_config_is_read),
        cmocka_unit_test(test_each_missing_key_is_named),
        cmocka_unit_test(test_each_key_of_the_wrong_type_is_named),
        cmocka_unit_test(test_impossible_values_are_named),
        cmocka_unit_test(test_values_at_their_limits_are_read),
        cmocka_unit_test(test_defaults_of_the_released_reader),
        cmocka_unit_test(test_malformed_json_is_located),
        cmocka_unit_test(test_key_that_stands_twice_is_refused),
        cmocka_unit_test(test_deep_nesting_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
