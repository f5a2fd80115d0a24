/* The engine as a back end. See backend.h. */
#include "server/backend.h"

#include "base/mem.h"
#include "engine/model_parts.h"

static di_code engine_submit(void *self, const di_request_params *p, void **handle, di_status *st)
{
    di_request *r = NULL;
    di_code rc = di_submit(self, p, &r, st);

    *handle = r;
    return rc;
}

static void engine_cancel(void *self, void *handle)
{
    di_cancel(self, handle);
}

static void engine_cancel_choice(void *self, void *handle, int choice)
{
    di_cancel_choice(self, handle, choice);
}

static di_stats engine_stats(void *self)
{
    return di_engine_stats(self);
}

static void engine_free(void *self)
{
    (void)self; /* the caller closes its engine */
}

static const backend_ops engine_ops = {.submit = engine_submit,
                                       .cancel = engine_cancel,
                                       .cancel_choice = engine_cancel_choice,
                                       .stats = engine_stats,
                                       .free = engine_free};

backend backend_of_engine(di_model *model, di_engine *engine, int64_t context, int64_t max_queued)
{
    return (backend){.ops = &engine_ops,
                     .self = engine,
                     .info = di_model_get_info(model),
                     .context = context,
                     .max_queued = max_queued,
                     .tok = model_parts_tokenizer(model)};
}
