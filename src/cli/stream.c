/* See stream.h. */
#include "cli/stream.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

typedef struct printer {
    answer ans;
    stream_result *res;
    uint64_t start_ns;
    bool color, in_reasoning, done;
    di_status st;
} printer;

/* Print what is new; the switch from reasoning to content is one empty line. */
static void print_new(printer *p)
{
    size_t n;
    const char *text = answer_new_reasoning(&p->ans, &n);

    if (n) {
        if (p->color && !p->in_reasoning)
            fputs("\033[2m", stdout);
        p->in_reasoning = true;
        fwrite(text, 1, n, stdout);
    }
    text = answer_new_content(&p->ans, &n);
    if (n) {
        if (p->in_reasoning && p->color)
            fputs("\033[0m", stdout);
        if (p->in_reasoning)
            fputs("\n\n", stdout);
        p->in_reasoning = false;
        fwrite(text, 1, n, stdout);
    }
    fflush(stdout);
}

static bool on_token(void *arg, const gen_token *t)
{
    printer *p = arg;
    bool go_on = true;

    if (p->res->n_tokens++ == 0)
        p->res->first_seconds = (double)(clock_ns() - p->start_ns) * 1e-9;
    if (!t->stop)
        go_on = answer_push(&p->ans, t->id);
    print_new(p);
    return go_on;
}

static void on_done(void *arg, gen_finish why, const di_status *st)
{
    printer *p = arg;

    p->res->why = why;
    p->done = true;
    if (why == GEN_FAILED)
        p->st = *st;
}

static di_code run_to_end(generator *g, printer *p, bool (*interrupted)(void), di_status *st)
{
    while (!p->done) {
        di_code rc;

        if (interrupted && interrupted()) {
            generator_cancel(g);
            break;
        }
        rc = generator_step(g, st);
        if (rc != DI_OK)
            return rc;
    }
    if (p->st.code != DI_OK)
        return di_fail(st, p->st.code, "%s", p->st.message);
    return DI_OK;
}

di_code stream_run(generator *g, const request *req, const tokenizer *tok,
                   bool (*interrupted)(void), str *content, stream_result *res, di_status *st)
{
    printer p = {.res = res, .color = isatty(STDOUT_FILENO) == 1, .start_ns = clock_ns()};
    gen_request gr = {.prompt = req->ids.ids,
                      .n_prompt = (int64_t)req->ids.n,
                      .max_tokens = req->max_tokens,
                      .sampling = req->sampling,
                      .stop_id = req->stop_id,
                      .n_stop_ids = req->n_stop_ids,
                      .on_token = on_token,
                      .on_done = on_done,
                      .arg = &p};
    int64_t reused = generator_n_reused(g);
    grammar_state *state = NULL;
    di_code rc;

    *res = (stream_result){.n_prompt = gr.n_prompt};
    DI_TRY(answer_init(&p.ans, tok, req->kind == REQUEST_CHAT, req->starts_in_reasoning, req->stop,
                       req->stop_len, req->n_stop, st));
    DI_TRY(request_mask(req, &state, st));
    gr.mask_ctx = state;
    DI_TRY(generator_submit(g, &gr, st));
    state = NULL;
    DI_TRY(run_to_end(g, &p, interrupted, st));
    DI_TRY(answer_end(&p.ans, st));
    print_new(&p);
    if (content)
        str_append(content, str_text(&p.ans.content), p.ans.content.len);
done:
    grammar_state_free(state);
    if (p.in_reasoning && p.color)
        fputs("\033[0m", stdout);
    res->seconds = (double)(clock_ns() - p.start_ns) * 1e-9;
    res->n_reused = generator_n_reused(g) - reused;
    answer_fini(&p.ans);
    return rc;
}
