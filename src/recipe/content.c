/* Message texts that are joined from parts, and the images in them. See recipe_internal.h. */
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "recipe/control.h"
#include "recipe/recipe_internal.h"

void content_fini(content *c)
{
    str_fini(&c->text);
    mem_free(c->image_at);
    *c = (content){0};
}

static void glue_part(content *c, const char *glue)
{
    if (c->n_parts++)
        str_puts(&c->text, glue);
}

void content_text(content *c, const char *text, size_t n)
{
    glue_part(c, "\n\n");
    str_append(&c->text, text, n);
}

void content_join(content *c, const jtree *text, const char *glue)
{
    glue_part(c, glue);
    str_append(&c->text, text->text, text->n);
}

/* Note that an image begins at the end of the text. */
static bool add_place(content *c)
{
    if (c->n_images == c->cap_images) {
        size_t cap = c->cap_images ? c->cap_images * 2 : 8;
        size_t *more = mem_try_realloc(c->image_at, cap, sizeof *more);

        if (!more)
            return false;
        c->image_at = more;
        c->cap_images = cap;
    }
    c->image_at[c->n_images++] = c->text.len;
    return true;
}

static bool add_image(reading *rd, recipe_image image)
{
    recipe_request *q = rd->q;

    if (q->n_images == rd->cap_images) {
        size_t cap = rd->cap_images ? rd->cap_images * 2 : 8;
        recipe_image *more = take_memory(rd, cap, sizeof *more);

        if (!more)
            return false;
        if (q->n_images)
            memcpy(more, rd->image, q->n_images * sizeof *more);
        rd->image = more;
        rd->cap_images = cap;
        q->image = more;
    }
    rd->image[q->n_images++] = image;
    return true;
}

bool content_blind(const reading *rd, content *c)
{
    if (rd->q->chat.family != RECIPE_V4)
        return false;
    content_text(c, "[Unsupported Image]", strlen("[Unsupported Image]"));
    return true;
}

void content_image(reading *rd, content *c, recipe_image image)
{
    glue_part(c, "\n\n");
    if (!add_place(c) || !add_image(rd, image)) {
        c->failed = true;
        return;
    }
    str_puts(&c->text, TOK_IMAGE);
}

bool content_take(reading *rd, content *c, recipe_message *m)
{
    bool ok = !c->failed;

    m->content = take_str(rd, &c->text, &m->n_content);
    if (c->n_images) {
        size_t *at = take_memory(rd, c->n_images, sizeof *at);

        if (at)
            memcpy(at, c->image_at, c->n_images * sizeof *at);
        m->image_at = at;
        m->n_images = c->n_images;
        ok = ok && at;
    }
    content_fini(c);
    return ok && m->content ? true : out_of_memory(rd);
}

bool is_base64(const char *s, size_t n)
{
    size_t pad = 0;

    if (n % 4)
        return false;
    while (n && pad < 2 && s[n - 1] == '=')
        n--, pad++;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];

        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
              c == '+' || c == '/'))
            return false;
    }
    return true;
}

static bool starts(const char *s, size_t n, const char *with)
{
    size_t k = strlen(with);

    return n >= k && strncasecmp(s, with, k) == 0;
}

/* "image/png" and the like at the start of s[0..n), up to `end`. */
static bool known_type(const char *s, size_t n)
{
    static const char *const known[] = {"image/png", "image/jpeg", "image/jpg", "image/gif",
                                        "image/webp"};

    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strlen(known[i]) == n && strncasecmp(s, known[i], n) == 0)
            return true;
    return false;
}

static bool unsupported(reading *rd, const char *path, const char *what)
{
    return convert_fail(
        rd,
        "%s: You have uploaded an unsupported %s. Please make sure your %s is valid "
        "and has one of the following formats: webp, png, jpeg, and gif.",
        path, what, what);
}

bool content_file_data(reading *rd, const jtree *data, const char *path)
{
    static const char mark[] = ";base64,";
    const char *s = data->text, *body = strstr(s, mark);
    size_t skip = body ? (size_t)(body - s) + sizeof mark - 1 : 0;
    bool is_data = starts(s, data->n, "data:");

    if (!is_data || (body && !is_base64(s + skip, data->n - skip)))
        return convert_fail(rd, "%s: file_data is not a valid base64 data url", path);
    return !body || known_type(s + 5, strcspn(s + 5, ";")) || unsupported(rd, path, "file");
}

bool content_image_url(reading *rd, content *c, const jtree *url, const char *detail,
                       const char *path)
{
    recipe_image image = {.detail = detail, .source = url->text, .n_source = url->n, .path = path};
    const char *s = url->text, *mark = ";base64,", *data;

    if (starts(s, url->n, "http://") || starts(s, url->n, "https://")) {
        image.kind = RECIPE_IMAGE_URL;
        content_image(rd, c, image);
        return true;
    }
    data = starts(s, url->n, "data:") ? strstr(s, mark) : NULL;
    if (!data)
        return convert_fail(rd, "%s: Unsupported image_url format", path);
    if (!known_type(s + 5, strcspn(s + 5, ";")))
        return unsupported(rd, path, "image");
    data += strlen(mark);
    if (!is_base64(data, url->n - (size_t)(data - s)))
        return convert_fail(rd, "%s: Invalid base64 data", path);
    image.kind = RECIPE_IMAGE_DATA;
    content_image(rd, c, image);
    return true;
}

bool content_web_image(reading *rd, content *c, const jtree *url, const char *path)
{
    bool web = starts(url->text, url->n, "http://") || starts(url->text, url->n, "https://");
    str quoted = {0};

    if (web || (!rd->strict && starts(url->text, url->n, "data:")))
        return content_image_url(rd, c, url, "high", path);
    jtree_quote(url->text, url->n, &quoted);
    convert_fail(rd, "%s: invalid url: %.*s", path, quoted.len > 200 ? 200 : (int)quoted.len,
                 str_text(&quoted));
    str_fini(&quoted);
    return false;
}
