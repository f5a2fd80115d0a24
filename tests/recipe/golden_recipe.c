/* Golden data of the request side: every case of prompts.jsonl, errors.jsonl, resolve.jsonl and
 * streams.jsonl that lies in a folder (tests/data/recipe/README.md has the formats).
 *
 *   golden_recipe [--tokenizer FILE] [--data DIR]
 *
 * Prints each failing case and ends with "N passed, N failed"; exit 1 if any failed, 2 if the input
 * cannot be used. */
#include <stdio.h>
#include <string.h>

#include "golden.h"

static const struct {
    const char *file;
    void (*run)(golden *g, const jtree *line);
} files[] = {
    {"prompts.jsonl", golden_prompt},
    {"errors.jsonl", golden_error},
    {"resolve.jsonl", golden_resolve},
    {"streams.jsonl", golden_stream},
};

int main(int argc, char **argv)
{
    const char *dir = DI_DATA_DIR "/recipe",
               *vocabulary = DI_DATA_DIR "/tokenizer-v4/tokenizer.json";
    golden g = {.id = ""};
    di_status st = {0};
    size_t n_files = 0;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--data") == 0)
            dir = argv[i + 1];
        else if (strcmp(argv[i], "--tokenizer") == 0)
            vocabulary = argv[i + 1];
    }
    g.mem = arena_new(0);
    if (!g.mem || tokenizer_load(&g.tok, vocabulary, &st) != DI_OK) {
        fprintf(stderr, "golden_recipe: %s\n", st.message);
        arena_free(g.mem);
        return 2;
    }
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        size_t passed = g.n_passed, failed = g.n_failed;

        if (!golden_run(&g, dir, files[i].file, files[i].run))
            continue;
        printf("%s: %zu passed, %zu failed\n", files[i].file, g.n_passed - passed,
               g.n_failed - failed);
        n_files++;
    }
    tokenizer_free(g.tok);
    arena_free(g.mem);
    if (n_files == 0) {
        fprintf(stderr, "golden_recipe: no golden files in \"%s\"\n", dir);
        return 2;
    }
    printf("%zu passed, %zu failed\n", g.n_passed, g.n_failed);
    return g.n_failed != 0;
}
