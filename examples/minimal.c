/* A prompt in, its continuation out, token by token:
 *
 *   cc minimal.c $(pkg-config --cflags --libs deepinfer) -o minimal
 *   ./minimal models/tiny "Once upon a time"
 */
#include <deepinfer/deepinfer.h>
#include <stdio.h>
#include <string.h>

static int fail(const di_status *st)
{
    fprintf(stderr, "%s: %s\n", di_code_name(st->code), st->message);
    return 1;
}

static int answer(di_engine *engine, const char *prompt)
{
    di_request_params request = {.text = prompt,
                                 .n_text = strlen(prompt),
                                 .max_tokens = 40,
                                 .temperature = 0.7f,
                                 .has_seed = true, /* the same seed, the same answer */
                                 .seed = 1,
                                 .skip_special = true};
    di_status st = {0};
    di_event event;

    if (di_submit(engine, &request, NULL, &st) != DI_OK)
        return fail(&st);
    while (di_poll(engine, &event, -1)) { /* until no request is left */
        if (event.type == DI_EVENT_TOKENS) {
            fwrite(event.text, 1, event.n_text, stdout);
            fflush(stdout);
        } else if (event.type == DI_EVENT_FINISH) {
            printf("\n[%lld tokens]\n", (long long)event.usage.output_tokens);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    di_status st = {0};
    di_model *model = NULL;
    di_engine *engine = NULL;
    int rc;

    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL_DIR PROMPT\n", argv[0]);
        return 2;
    }
    if (di_model_open(&model, argv[1], NULL, &st) == DI_OK &&
        di_engine_start(&engine, model, NULL, &st) == DI_OK)
        rc = answer(engine, argv[2]);
    else
        rc = fail(&st);
    di_engine_close(engine);
    di_model_close(model);
    return rc;
}
