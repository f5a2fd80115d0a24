/* deepinfer: choose the subcommand. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/names.h"

typedef struct program {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} program;

static const program programs[] = {
    {"generate", "answer a prompt, or a file of prompts", cli_generate},
    {"chat", "talk with the model on the terminal", cli_chat},
    {"serve", "answer clients of OpenAI's and Anthropic's interfaces over HTTP", cli_serve},
    {"tokenize", "text to token ids, or ids to text", cli_tokenize},
    {"recipe", "a request to its prompt, an output to its events", cli_recipe},
    {"bench", "measure throughput against latency, with charts", cli_bench},
    {"logits", "logits of every position of a list of ids, as a file", cli_logits},
    {"selftest", "check this machine's kernels against the reference", cli_selftest},
    {"inspect", "what a checkpoint holds and needs", cli_inspect},
};

static void print_help(FILE *to)
{
    fputs("Usage: deepinfer SUBCOMMAND [OPTION]...\n\n"
          "Inference for DeepSeek-V4.1-class models on any CPU.\n\nSubcommands:\n",
          to);
    for (size_t i = 0; i < ARRAY_LEN(programs); i++)
        fprintf(to, "  %-10s %s\n", programs[i].name, programs[i].help);
    fputs("\ndeepinfer SUBCOMMAND --help shows its options;\n"
          "deepinfer --names those of DeepInfer that are understood.\n" CLI_EXIT_HELP
          "\n\nExample: deepinfer generate --model models/tiny --prompt \"Hello!\"\n",
          to);
}

int cli_fail(const char *name, const di_status *st)
{
    fprintf(stderr, "deepinfer %s: %s\n", name, st->message);
    return CLI_BAD;
}

/* Output that could not be written (a full disk, say) must not end in status 0. */
static int close_output(int status)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "deepinfer: could not write to standard output\n");
        return CLI_BAD;
    }
    return status;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    signal(SIGPIPE, SIG_IGN); /* a reader that goes away is a write error, with a message */
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return close_output(CLI_OK);
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        puts("deepinfer " DI_VERSION);
        return close_output(CLI_OK);
    }
    if (strcmp(name, "--names") == 0) {
        names_print();
        return close_output(CLI_OK);
    }
    for (size_t i = 0; i < ARRAY_LEN(programs); i++)
        if (strcmp(programs[i].name, name) == 0)
            return close_output(programs[i].run(argc - 1, argv + 1));
    if (*name)
        fprintf(stderr, "deepinfer: there is no subcommand \"%s\"\n\n", name);
    print_help(stderr);
    return CLI_BAD;
}
