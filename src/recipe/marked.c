/* See marked.h. */
#include "recipe/marked.h"

#include <string.h>

#include "base/mem.h"

void recipe_marked_fini(recipe_marked *m)
{
    str_fini(&m->text);
    mem_free(m->special);
    *m = (recipe_marked){0};
}

void recipe_marked_clear(recipe_marked *m)
{
    str_clear(&m->text);
    m->n_special = 0;
}

void recipe_marked_span(recipe_marked *m, size_t begin, size_t end)
{
    if (m->n_special == m->cap_special) {
        size_t cap = m->cap_special ? m->cap_special * 2 : 32;
        recipe_span *more = mem_try_realloc(m->special, cap, sizeof *more);

        if (!more) {
            m->text.failed = true;
            return;
        }
        m->special = more;
        m->cap_special = cap;
    }
    m->special[m->n_special++] = (recipe_span){begin, end};
}

void recipe_marked_control(recipe_marked *m, const char *spelling)
{
    size_t begin = m->text.len;

    str_puts(&m->text, spelling);
    recipe_marked_span(m, begin, begin + strlen(spelling));
}

void recipe_marked_append(recipe_marked *m, const char *text, size_t n, const recipe_span *special,
                          size_t n_special)
{
    size_t at = m->text.len;

    str_append(&m->text, text, n);
    for (size_t i = 0; i < n_special; i++)
        recipe_marked_span(m, at + special[i].begin, at + special[i].end);
}
