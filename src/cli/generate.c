/* deepinfer generate: the answer to one prompt, or to a file of them. */
#include <stdio.h>
#include <string.h>

#include "cli/batch.h"
#include "cli/cli.h"
#include "cli/sampling_options.h"
#include "cli/service.h"
#include "cli/stream.h"

typedef struct generate_options {
    session_options session;
    weights_choice weights;
    engine_choice engine;
    sampling_options sampling;
    constraint_options constraint;
    const char *prompt, *input, *output;
    bool raw, overwrite;
    int64_t batch, logprobs;
} generate_options;

static opt_result parse(generate_options *o, int argc, char **argv, di_status *st)
{
    const opt options[] = {
        SESSION_OPTIONS(o->session),
        {.name = "prompt",
         .letter = 'p',
         .kind = OPT_STRING,
         .to = &o->prompt,
         .arg = "TEXT",
         .help = "answer TEXT, a user's message, on the terminal"},
        {.name = "raw",
         .kind = OPT_FLAG,
         .to = &o->raw,
         .help = "with --prompt: continue TEXT as it stands"},
        {.name = "input",
         .letter = 'i',
         .kind = OPT_STRING,
         .to = &o->input,
         .arg = "FILE",
         .help = "answer every line of FILE (- = standard input)"},
        {.name = "output",
         .letter = 'o',
         .kind = OPT_STRING,
         .to = &o->output,
         .arg = "FILE",
         .help = "write answers to FILE; taken up where it ends (default: -)"},
        {.name = "overwrite",
         .kind = OPT_FLAG,
         .to = &o->overwrite,
         .help = "start --output again instead of taking it up"},
        {.name = "batch",
         .kind = OPT_INT,
         .to = &o->batch,
         .arg = "N",
         .help = "lines answered at the same time (default: 16)",
         .min = 1,
         .max = 256},
        SAMPLING_OPTIONS(o->sampling),
        CONSTRAINT_OPTIONS(o->constraint),
        WEIGHTS_OPTIONS(o->weights),
        ENGINE_OPTIONS(o->engine),
        {.name = "logprobs",
         .kind = OPT_INT,
         .to = &o->logprobs,
         .arg = "N",
         .help = "log-probabilities of every token and N alternatives",
         .min = 0,
         .max = GEN_MAX_TOP},
    };
    const opt_program program = {
        .name = "generate",
        .usage = "--model DIR (--prompt TEXT | --input FILE) [OPTION]...",
        .summary =
            "Answers a prompt, or a file with one JSON object per line (docs/operations.md):\n"
            "  {\"prompt\": TEXT}  {\"prompt_token_ids\": [..]}  {\"messages\": [..]}\n"
            "  {\"custom_id\", \"method\", \"url\", \"body\"}  lines of the OpenAI batch format",
        .options = options,
        .n = ARRAY_LEN(options),
    };

    return opt_parse(&program, argc, argv, NULL, st);
}

static di_code check(const generate_options *o, di_status *st)
{
    if (!o->prompt && !o->input)
        return di_fail(st, DI_E_INVALID, "nothing to do: give --prompt TEXT or --input FILE");
    if (o->prompt && o->input)
        return di_fail(st, DI_E_INVALID, "--prompt and --input exclude each other");
    if (o->prompt && !*o->prompt)
        return di_fail(st, DI_E_INVALID, "the prompt is empty");
    if (o->prompt && (strcmp(o->output, "-") != 0 || o->logprobs >= 0))
        return di_fail(st, DI_E_INVALID, "--output and --logprobs need --input");
    if (o->input && o->raw)
        return di_fail(st, DI_E_INVALID, "--raw needs --prompt: a line's \"prompt\" is always raw");
    if (!o->session.model)
        return di_fail(st, DI_E_INVALID, "no model: give --model DIR");
    return DI_OK;
}

static di_code answer_prompt(const generate_options *o, const request_defaults *d, generator *g,
                             di_status *st)
{
    request req;
    stream_result res;
    di_code rc;

    request_init(&req);
    DI_TRY(request_from_text(&req, d, o->prompt, o->raw, st));
    DI_TRY(stream_run(g, &req, d->tok, NULL, NULL, &res, st));
    putchar('\n');
    fflush(stdout);
    if (!o->session.quiet)
        fprintf(stderr,
                "%lld prompt tokens, %lld tokens (%s), %.2f s, first token after %.2f s, "
                "%.1f tok/s, seed %llu\n",
                (long long)res.n_prompt, (long long)res.n_tokens,
                res.why == GEN_LENGTH ? "length" : "stop", res.seconds, res.first_seconds,
                res.n_tokens > 1 ? (double)(res.n_tokens - 1) / (res.seconds - res.first_seconds)
                                 : 0.0,
                (unsigned long long)req.sampling.seed);
done:
    request_fini(&req);
    return rc;
}

static di_code answer_file(const generate_options *o, const request_defaults *d, generator *g,
                           lines_in *in, bool *failed, di_status *st)
{
    const batch_options bo = {.defaults = d,
                              .model = o->session.model,
                              .max_seqs = (int)o->batch,
                              .quiet = o->session.quiet};
    batch_totals t;
    lines_out out;
    di_code rc, closed;

    rc = lines_resume(&out, o->output, o->overwrite, in, st);
    if (rc != DI_OK)
        return rc;
    rc = batch_run(g, in, &out, &bo, &t, st);
    closed = lines_out_close(&out, st);
    *failed = t.n_failed > 0;
    if (!o->session.quiet)
        fprintf(stderr,
                "%lld lines (%lld taken up, %lld failed), %lld prompt tokens, %lld tokens, %.2f s, "
                "%.1f tok/s\n",
                (long long)t.n_lines, (long long)out.n_done, (long long)t.n_failed,
                (long long)t.n_prompt, (long long)t.n_tokens, t.seconds,
                t.seconds > 0 ? (double)t.n_tokens / t.seconds : 0.0);
    return rc != DI_OK ? rc : closed;
}

static di_code run(generate_options *o, bool *failed, di_status *st)
{
    service s = {0};
    request_defaults d = {.logprobs = (int)o->logprobs};
    generator *g = NULL;
    lines_in in = {0};
    int32_t eos;
    di_code rc;

    DI_TRY(sampling_apply(&o->sampling, &d, st));
    DI_TRY(constraint_apply(&o->constraint, &d.constraint, st));
    if (o->input)
        DI_TRY(lines_open(&in, o->input, st));
    DI_TRY(
        service_open(&s, &o->session, &o->weights, &o->engine, o->prompt ? 1 : (int)o->batch, st));
    service_bind(&s, &d);
    eos = d.eos;
    if (eos >= 0)
        DI_TRY(grammar_new(&d.grammar, d.tok, d.vocab, &eos, 1, NULL, st));
    DI_TRY(generator_new(&g, s.engine, st));
    if (o->prompt)
        DI_TRY(answer_prompt(o, &d, g, st));
    else
        DI_TRY(answer_file(o, &d, g, &in, failed, st));
    service_report(&s, &o->engine);
done:
    generator_free(g);
    grammar_free(d.grammar);
    service_close(&s);
    constraint_options_fini(&o->constraint);
    lines_close(&in);
    return rc;
}

int cli_generate(int argc, char **argv)
{
    generate_options o = {.session = SESSION_DEFAULTS,
                          .weights = WEIGHTS_DEFAULTS,
                          .engine = ENGINE_DEFAULTS,
                          .sampling = SAMPLING_DEFAULTS,
                          .output = "-",
                          .batch = 16,
                          .logprobs = -1};
    di_status st = {0};
    bool failed = false;

    switch (parse(&o, argc, argv, &st)) {
    case OPT_HELP_SHOWN:
        return CLI_OK;
    case OPT_WRONG:
        return cli_fail("generate", &st);
    case OPT_RUN:
        break;
    }
    if (check(&o, &st) != DI_OK || run(&o, &failed, &st) != DI_OK)
        return cli_fail("generate", &st);
    return failed ? CLI_FOUND : CLI_OK;
}
