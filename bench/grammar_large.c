/* Large constraints. See grammar_large.h. */
#include "grammar_large.h"

#include <string.h>

static const char choice[] = "{\"anyOf\":[{\"type\":\"boolean\"},{\"type\":\"null\"},"
                             "{\"type\":\"string\",\"maxLength\":60}]}";

static const char *const kinds[] = {
    "{\"type\":\"string\"}",
    "{\"type\":\"integer\",\"minimum\":-1000000,\"maximum\":1000000}",
    "{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}[0-9]{6,12}$\"}",
    "{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"maxItems\":20}",
    "{\"type\":\"string\",\"format\":\"date-time\"}",
    choice,
    "{\"type\":\"string\",\"enum\":[\"low\",\"medium\",\"high\",\"unknown\"]}",
};

/* An object of n properties of all kinds, every third one required. */
static void object(str *s, int n, int seed)
{
    str_puts(s, "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{");
    for (int i = 0; i < n; i++)
        str_printf(s, "%s\"field_%d_%d\":%s", i ? "," : "", seed, i,
                   kinds[(size_t)(i + seed) % ARRAY_LEN(kinds)]);
    str_puts(s, "},\"required\":[");
    for (int i = 0; i < n; i += 3)
        str_printf(s, "%s\"field_%d_%d\"", i ? "," : "", seed, i);
    str_puts(s, "]}");
}

static void nested(str *s)
{
    for (int i = 0; i < 24; i++)
        str_printf(
            s,
            "{\"type\":\"object\",\"additionalProperties\":false,\"required\":[\"level_%d\"],"
            "\"properties\":{\"note\":{\"type\":\"string\"},\"level_%d\":",
            i, i);
    object(s, 5, 0);
    for (int i = 0; i < 24; i++)
        str_puts(s, "}}");
}

static void names(str *s)
{
    str_puts(s, "{\"type\":\"array\",\"minItems\":20,\"items\":{\"enum\":[");
    for (int i = 0; i < 2000; i++)
        str_printf(s, "%s\"%c%c station %d of line %d\"", i ? "," : "", 'A' + i % 26, 'a' + i / 77,
                   i, i % 13);
    str_puts(s, "]}}");
}

static void variants(str *s)
{
    str_puts(s, "{\"type\":\"array\",\"minItems\":4,\"items\":{\"anyOf\":[");
    for (int i = 0; i < 50; i++) {
        str_puts(s, i ? "," : "");
        object(s, 6, i);
    }
    str_puts(s, "]}}");
}

static void tree(str *s)
{
    str_puts(s,
             "{\"$ref\":\"#/$defs/node\",\"$defs\":{\"node\":{\"type\":\"object\",\"required\":"
             "[\"name\",\"children\"],\"additionalProperties\":false,\"properties\":{\"name\":"
             "{\"type\":\"string\",\"maxLength\":40},\"value\":{\"type\":\"number\"},\"children\":"
             "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/node\"}}}}}}");
}

/* Texts with bounds: counting states. */
static void bounds(str *s)
{
    str_puts(s,
             "{\"type\":\"object\",\"additionalProperties\":false,\"required\":[\"a\",\"b\",\"c\"],"
             "\"properties\":{\"a\":{\"type\":\"string\",\"minLength\":200,\"maxLength\":4000},"
             "\"b\":{\"type\":\"string\",\"pattern\":\"^([a-z]+ ){30,60}$\"},"
             "\"c\":{\"type\":\"string\",\"pattern\":\"^.{0,300}$\"}}}");
}

static void tools(str *s)
{
    str_puts(s, "[");
    for (int i = 0; i < 64; i++) {
        str_printf(s, "%s{\"type\":\"function\",\"function\":{\"name\":\"tool_%d\",\"parameters\":",
                   i ? "," : "", i);
        object(s, 8, i);
        str_puts(s, "}}");
    }
    str_puts(s, "]");
}

void large_make(large out[N_LARGE])
{
    static const char *const titles[N_LARGE] = {
        "200 properties", "24 levels",     "2000 names",     "50 variants",
        "recursive",      "bounded texts", "64 tools, auto", "64 tools, required"};

    memset(out, 0, N_LARGE * sizeof *out);
    for (int i = 0; i < N_LARGE; i++) {
        out[i].name = titles[i];
        out[i].kind = i < 6    ? GRAMMAR_JSON
                      : i == 6 ? GRAMMAR_TOOL_CALL
                               : GRAMMAR_TOOL_CALL_REQUIRED;
    }
    object(&out[0].text, 200, 0);
    nested(&out[1].text);
    names(&out[2].text);
    variants(&out[3].text);
    tree(&out[4].text);
    bounds(&out[5].text);
    tools(&out[6].text);
    tools(&out[7].text);
}
