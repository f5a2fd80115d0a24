#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/rig.h"

#define TOKENIZER "models/tiny/tokenizer.json"

tokenizer *tok;
grammar *g;
size_t words;
int vocab;
int32_t eos, think_begin, think_end;

const char person[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":8},\"age\":{"
    "\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"kids\":{\"type\":\"array\",\"items\":{"
    "\"$ref\":\"#\"},\"maxItems\":2}},\"required\":[\"name\",\"age\"],\"additionalProperties\":"
    "false}";
const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"q\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}},\"required\":[\"q\"]"
    "}}},{\"type\":\"function\",\"function\":{\"name\":\"ab\",\"parameters\":null}}]";

grammar_spec spec_of(grammar_kind kind, const char *text)
{
    return (grammar_spec){.kind = kind, .text = text, .n = strlen(text)};
}

grammar_prog *compiled(grammar_spec spec)
{
    grammar_prog *p;
    di_status st = {0};

    if (grammar_compile(g, &spec, &p, NULL, &st) != DI_OK)
        fail_msg("%s: %s", spec.text, st.message);
    return p;
}

grammar_state *begun(grammar_prog *p, int32_t last)
{
    grammar_state *s;

    assert_int_equal(grammar_state_new(p, &(grammar_start){.last_token = last}, &s, NULL), DI_OK);
    return s;
}

bool takes(grammar_prog *p, const char *text, bool added)
{
    tok_ids ids = {0};
    grammar_state *s = begun(p, -1);
    bool ok = true;

    assert_int_equal(tokenizer_encode(tok, text, strlen(text), added, &ids, NULL), DI_OK);
    for (size_t i = 0; i < ids.n && ok; i++)
        ok = grammar_accept(s, ids.ids[i]);
    ok = ok && grammar_can_stop(s);
    grammar_state_free(s);
    tok_ids_fini(&ids);
    return ok;
}

int rig_open(void **state)
{
    di_status st = {0};

    (void)state;
    if (tokenizer_load(&tok, TOKENIZER, &st) != DI_OK)
        fail_msg("%s", st.message);
    vocab = tokenizer_n_ids(tok);
    words = ((size_t)vocab + 31) / 32;
    eos = tokenizer_added_id(tok, "<｜end▁of▁sentence｜>");
    think_begin = tokenizer_added_id(tok, "<think>");
    think_end = tokenizer_added_id(tok, "</think>");
    assert_int_equal(grammar_new(&g, tok, vocab, &eos, 1, NULL, &st), DI_OK);
    if (grammar_prepare(g, &st) != DI_OK) {
        printf("skipped: %s\n", st.message);
        exit(77);
    }
    return 0;
}

int rig_close(void **state)
{
    (void)state;
    grammar_free(g);
    tokenizer_free(tok);
    return 0;
}
