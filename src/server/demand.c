/* Constraints of requests. See demand.h. */
#include "server/demand.h"

#include <string.h>

static grammar_kind kind_of(recipe_constraint_kind k)
{
    switch (k) {
    case RECIPE_CONSTRAINT_JSON:
        return GRAMMAR_JSON;
    case RECIPE_CONSTRAINT_JSON_OBJECT:
        return GRAMMAR_JSON_OBJECT;
    case RECIPE_CONSTRAINT_REGEX:
        return GRAMMAR_REGEX;
    case RECIPE_CONSTRAINT_EBNF:
        return GRAMMAR_EBNF;
    case RECIPE_CONSTRAINT_TOOL_CALL:
        return GRAMMAR_TOOL_CALL;
    case RECIPE_CONSTRAINT_TOOL_CALL_REQUIRED:
    case RECIPE_CONSTRAINT_NONE: /* there is nothing to compile */
        break;
    }
    return GRAMMAR_TOOL_CALL_REQUIRED;
}

static bool any_strict(const recipe_chat *c)
{
    for (size_t i = 0; i < c->n_tools; i++)
        if (c->tool[i].strict == RECIPE_STRICT_YES)
            return true;
    return false;
}

static bool fail(recipe_error *e, const di_status *st, const grammar_detail *d, grammar_kind kind,
                 const char *param)
{
    if (st->code == DI_E_UNSUPPORTED) {
        recipe_fail(e, 501, "%s", st->message);
        e->code = "constrained_output_unavailable";
        e->param = param;
    } else if (st->code == DI_E_INVALID || st->code == DI_E_CANCELLED) {
        recipe_fail(e, 400, "%s", st->message);
        e->code = grammar_fault_code(d->fault, kind);
        e->param = param;
    } else {
        recipe_error_from(e, st);
    }
    return false;
}

/* Calls that the model may make but need not are no demand of the client. Where constraints are not
 * to be had they are read tolerantly and the answer says so; unless a tool, or the server, is
 * strict.
 */
static bool can_do_without(const recipe_request *q, grammar_policy policy)
{
    return q->constraint.kind == RECIPE_CONSTRAINT_TOOL_CALL && policy != GRAMMAR_POLICY_STRICT &&
           !any_strict(&q->chat);
}

bool demand_make(demand *c, grammar *g, const recipe_request *q, int32_t last_token,
                 grammar_policy policy, recipe_error *e)
{
    const recipe_constraint *k = &q->constraint;
    const grammar_spec spec = {.kind = kind_of(k->kind),
                               .text = k->text,
                               .n = k->n,
                               .strict = k->strict,
                               .policy = policy,
                               .single_call = k->one_call};
    const grammar_start start = {.last_token = last_token,
                                 .in_reasoning = q->parsing.stage == RECIPE_STAGE_REASONING ||
                                                 q->parsing.stage == RECIPE_STAGE_REASONING_ON};
    grammar_detail detail = {0};
    di_status st = {0};

    if (k->kind == RECIPE_CONSTRAINT_NONE)
        return true;
    if (grammar_compile(g, &spec, &c->prog, &detail, &st) != DI_OK) {
        c->free_calls = st.code == DI_E_UNSUPPORTED && can_do_without(q, policy);
        return c->free_calls || fail(e, &st, &detail, spec.kind, k->param);
    }
    if (grammar_state_new(c->prog, &start, &c->state, &st) != DI_OK)
        return fail(e, &st, &detail, spec.kind, k->param);
    return true;
}

const char *demand_warnings(const demand *c)
{
    const char *w = c->prog ? grammar_prog_warnings(c->prog) : "[]";

    if (c->free_calls)
        return "[{\"pointer\": \"\", \"keyword\": \"tools\"}]";
    return strcmp(w, "[]") == 0 ? NULL : w;
}

void demand_fini(demand *c)
{
    grammar_state_free(c->state);
    grammar_prog_unref(c->prog);
    *c = (demand){0};
}
