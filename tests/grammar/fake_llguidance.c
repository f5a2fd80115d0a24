/* A library with all the names and the wrong version: it must be refused. */
#define EXPORT __attribute__((visibility("default")))

EXPORT const char *llg_get_version(void);
const char *llg_get_version(void)
{
    return "llguidance@2.0.0";
}

/* Never called. */
#define NAME(name)                                                                                 \
    EXPORT void llg_##name(void);                                                                  \
    void llg_##name(void)                                                                          \
    {                                                                                              \
    }
NAME(new_tokenizer_v2)
NAME(free_tokenizer)
NAME(constraint_init_set_defaults)
NAME(new_matcher)
NAME(validate_grammar)
NAME(clone_matcher)
NAME(free_matcher)
NAME(matcher_get_error)
NAME(matcher_compute_mask_into)
NAME(matcher_consume_token)
NAME(matcher_validate_tokens)
NAME(matcher_rollback)
NAME(matcher_reset)
NAME(matcher_is_accepting)
NAME(matcher_is_stopped)
NAME(matcher_compute_ff_tokens)
