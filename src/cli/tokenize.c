/* deepinfer tokenize: text to token ids and back. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/ids.h"
#include "cli/input.h"
#include "cli/options.h"
#include "tokenizer/tokenizer.h"

#define MAX_INPUT_BYTES ((size_t)1 << 30)

typedef struct tokenize_options {
    const char *model, *tokenizer, *file;
    bool decode, pieces, plain, skip_special, json;
    char **operands;
    int n_operands;
} tokenize_options;

static opt_result parse(tokenize_options *o, int argc, char **argv, di_status *st)
{
    const opt options[] = {
        {.name = "model",
         .letter = 'm',
         .kind = OPT_STRING,
         .to = &o->model,
         .arg = "DIR",
         .help = "checkpoint whose tokenizer.json is used"},
        {.name = "tokenizer",
         .kind = OPT_STRING,
         .to = &o->tokenizer,
         .arg = "FILE",
         .help = "the tokenizer.json itself, instead of --model"},
        {.name = "file",
         .letter = 'f',
         .kind = OPT_STRING,
         .to = &o->file,
         .arg = "FILE",
         .help = "read from a file, \"-\" for standard input (default without TEXT)"},
        {.name = "decode",
         .letter = 'd',
         .kind = OPT_FLAG,
         .to = &o->decode,
         .help = "the input is a list of ids: print their text"},
        {.name = "pieces",
         .kind = OPT_FLAG,
         .to = &o->pieces,
         .help = "print the text of each id beside it"},
        {.name = "plain",
         .kind = OPT_FLAG,
         .to = &o->plain,
         .help = "control tokens that are spelled in the text stay plain text"},
        {.name = "skip-special",
         .kind = OPT_FLAG,
         .to = &o->skip_special,
         .help = "with --decode: leave out special tokens"},
        {.name = "json",
         .kind = OPT_FLAG,
         .to = &o->json,
         .help = "one JSON object: n, ids, pieces, text"},
    };
    const opt_program program = {
        .name = "tokenize",
        .usage = "(--model DIR | --tokenizer FILE) [OPTION]... [TEXT | ID...]",
        .summary = "Prints the token ids of a text, or with --decode the text of token ids.",
        .options = options,
        .n = ARRAY_LEN(options),
        .notes =
            "Ids are read as a JSON list or separated by blanks or commas. Ill-formed UTF-8 in\n"
            "a text is read as U+FFFD. With --decode a newline is added on a terminal only.",
    };
    int first = 0;
    opt_result got = opt_parse(&program, argc, argv, &first, st);

    o->operands = argv + first;
    o->n_operands = argc - first;
    return got;
}

/* What the options say together. */
static di_code check_options(const tokenize_options *o, di_status *st)
{
    if (!o->model == !o->tokenizer)
        return di_fail(st, DI_E_INVALID, "give either --model DIR or --tokenizer FILE");
    if (o->file && o->n_operands > 0)
        return di_fail(st, DI_E_INVALID, "give either --file or a text, not both");
    if (!o->decode && o->n_operands > 1)
        return di_fail(st, DI_E_INVALID, "more than one text: put it in quotes");
    if (o->decode && (o->plain || o->pieces))
        return di_fail(st, DI_E_INVALID, "--%s does not go with --decode",
                       o->plain ? "plain" : "pieces");
    if (!o->decode && o->skip_special)
        return di_fail(st, DI_E_INVALID, "--skip-special needs --decode");
    return DI_OK;
}

/* ---- input ---- */

/* The text or the list of ids, and what to call it in messages. */
static di_code read_input(const tokenize_options *o, str *in, const char **name, di_status *st)
{
    di_code rc = DI_OK;

    *name = "the command line";
    for (int i = 0; i < o->n_operands; i++) {
        if (i > 0)
            str_putc(in, ' ');
        str_puts(in, o->operands[i]);
    }
    if (o->n_operands == 0 && (!o->file || strcmp(o->file, "-") == 0)) {
        *name = "standard input";
        rc = input_read_stdin(in, MAX_INPUT_BYTES, st);
    } else if (o->file) {
        char *text;
        size_t n;

        *name = o->file;
        rc = file_read_stream(&text, &n, o->file, MAX_INPUT_BYTES, st);
        if (rc == DI_OK) {
            str_append(in, text, n);
            mem_free(text);
        }
    }
    if (rc == DI_OK && !str_ok(in))
        rc = di_fail(st, DI_E_NOMEM, "no memory for the input");
    return rc;
}

static di_code load(const tokenize_options *o, tokenizer **tok, di_status *st)
{
    char path[4096];
    di_code rc = DI_OK;

    if (o->tokenizer)
        return tokenizer_load(tok, o->tokenizer, st);
    DI_TRY(path_join(path, sizeof path, o->model, "tokenizer.json", st));
    rc = tokenizer_load(tok, path, st);
done:
    return rc;
}

/* ---- output ---- */

static void put_piece(json_write *w, const tokenizer *tok, int32_t id)
{
    size_t n;
    const char *bytes = tokenizer_bytes(tok, id, &n);

    jw_string(w, bytes ? bytes : "", n);
}

static void put_json(const tokenize_options *o, const tokenizer *tok, const tok_ids *ids,
                     const str *text, str *out)
{
    json_write w = {.out = out};

    jw_object(&w);
    jw_key(&w, "n");
    jw_uint(&w, ids->n);
    jw_key(&w, "ids");
    jw_array(&w);
    for (size_t i = 0; i < ids->n; i++)
        jw_int(&w, ids->ids[i]);
    jw_end(&w);
    if (o->pieces) {
        jw_key(&w, "pieces");
        jw_array(&w);
        for (size_t i = 0; i < ids->n; i++)
            put_piece(&w, tok, ids->ids[i]);
        jw_end(&w);
    }
    if (o->decode) {
        jw_key(&w, "text");
        jw_string(&w, str_text(text), text->len);
    }
    jw_end(&w);
    str_putc(out, '\n');
}

/* One line of ids, or with --pieces one line per id. */
static void put_ids(const tokenize_options *o, const tokenizer *tok, const tok_ids *ids, str *out)
{
    for (size_t i = 0; i < ids->n; i++) {
        json_write w = {.out = out};

        str_printf(out, "%d", ids->ids[i]);
        if (o->pieces) {
            str_putc(out, '\t');
            put_piece(&w, tok, ids->ids[i]);
        }
        str_putc(out, o->pieces || i + 1 == ids->n ? '\n' : ' ');
    }
}

static di_code run(const tokenize_options *o, di_status *st)
{
    tokenizer *tok = NULL;
    tok_ids ids = {0};
    str in = {0}, text = {0}, out = {0};
    const char *name;
    di_code rc;

    DI_TRY(check_options(o, st));
    DI_TRY(load(o, &tok, st));
    DI_TRY(read_input(o, &in, &name, st));
    if (o->decode) {
        DI_TRY(ids_parse(str_text(&in), in.len, name, tokenizer_n_ids(tok), &ids, st));
        tokenizer_decode(tok, ids.ids, ids.n, o->skip_special, &text);
    } else {
        DI_TRY(tokenizer_encode(tok, str_text(&in), in.len, !o->plain, &ids, st));
    }
    if (o->json) {
        put_json(o, tok, &ids, &text, &out);
    } else if (o->decode) {
        str_append(&out, str_text(&text), text.len);
        if (isatty(STDOUT_FILENO))
            str_putc(&out, '\n');
    } else {
        put_ids(o, tok, &ids, &out);
    }
    if (str_ok(&text) && str_ok(&out))
        fwrite(str_text(&out), 1, out.len, stdout); /* main reports an output that fails */
    else
        rc = di_fail(st, DI_E_NOMEM, "no memory for the output");
done:
    tokenizer_free(tok);
    tok_ids_fini(&ids);
    str_fini(&in);
    str_fini(&text);
    str_fini(&out);
    return rc;
}

int cli_tokenize(int argc, char **argv)
{
    tokenize_options o = {0};
    di_status st = {0};

    switch (parse(&o, argc, argv, &st)) {
    case OPT_HELP_SHOWN:
        return CLI_OK;
    case OPT_WRONG:
        return cli_fail("tokenize", &st);
    case OPT_RUN:
        break;
    }
    return run(&o, &st) == DI_OK ? CLI_OK : cli_fail("tokenize", &st);
}
