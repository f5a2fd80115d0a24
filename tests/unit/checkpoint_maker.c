/* Writes small checkpoints. The list of tensors is that of the table under test: whether the table
 * is right is shown by the skeleton of the release and by the shipped model. */
#include "unit/checkpoint_maker.h"

#include <ftw.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "checkpoint/table.h"

static di_code add_tensor(void *arg, const table_entry *e, di_status *st)
{
    maker *m = arg;
    made_tensor *t;

    (void)st;
    m->tensor = realloc(m->tensor, (m->n + 1) * sizeof *m->tensor);
    assert_non_null(m->tensor);
    t = &m->tensor[m->n++];
    *t = (made_tensor){.dtype = dtype_name(e->type),
                       .n_dims = e->n_dims,
                       .shape = {e->shape[0], e->shape[1], 1},
                       .bytes = (size_t)(e->shape[0] * e->shape[1]) * dtype_bytes(e->type)};
    snprintf(t->name, sizeof t->name, "%s", e->name);
    return DI_OK;
}

/* F32 before BF16 before bytes: every tensor is aligned. */
static int wide_first(const void *a, const void *b)
{
    const made_tensor *x = a, *y = b;
    unsigned p = dtype_bytes(dtype_from_name(x->dtype, (unsigned)strlen(x->dtype)));
    unsigned q = dtype_bytes(dtype_from_name(y->dtype, (unsigned)strlen(y->dtype)));

    if (x->shard != y->shard)
        return x->shard - y->shard;
    return p != q ? (int)q - (int)p : strcmp(x->name, y->name);
}

void maker_init(maker *m, int n_shards)
{
    model_config c;
    di_status st = {.code = DI_OK};
    size_t n;
    const char *tmp = getenv("TMPDIR");

    *m = (maker){.n_shards = n_shards};
    snprintf(m->dir, sizeof m->dir, "%.40s/checkpoint-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(m->dir));
    assert_int_equal(file_read(&m->config, &n, MAKER_SMALL_CONFIG, 1 << 20, &st), DI_OK);
    assert_int_equal(config_parse(&c, m->config, n, MAKER_SMALL_CONFIG, &st), DI_OK);
    assert_int_equal(table_walk(&c, add_tensor, m, &st), DI_OK);
    for (size_t i = 0; i < m->n; i++)
        m->tensor[i].shard = m->tensor[i].index_shard = (int)(i * (size_t)n_shards / m->n);
    qsort(m->tensor, m->n, sizeof *m->tensor, wide_first);
    maker_layout(m);
}

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb;
    (void)type;
    (void)ftw;
    return remove(path);
}

void maker_fini(maker *m)
{
    nftw(m->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    mem_free(m->config);
    free(m->tensor);
}

void maker_layout(maker *m)
{
    for (int s = 0; s < m->n_shards; s++) {
        int64_t at = 0;

        for (size_t i = 0; i < m->n; i++)
            if (m->tensor[i].shard == s) {
                m->tensor[i].begin = at;
                at += (int64_t)m->tensor[i].bytes;
                m->tensor[i].end = at;
            }
    }
}

made_tensor *maker_find(const maker *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->tensor[i].name, name) == 0)
            return &m->tensor[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

const char *maker_file(const maker *m, const char *name)
{
    static char path[160];

    snprintf(path, sizeof path, "%s/%s", m->dir, name);
    return path;
}

const char *maker_path(const maker *m, int shard)
{
    char name[64];

    if (m->no_index)
        return maker_file(m, "model.safetensors");
    snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard + 1, m->n_shards);
    return maker_file(m, name);
}

long maker_file_size(const char *path)
{
    struct stat sb;

    assert_int_equal(stat(path, &sb), 0);
    return (long)sb.st_size;
}

static void put_tensor(str *out, const made_tensor *t)
{
    str_printf(out, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
    for (int i = 0; i < t->n_dims; i++)
        str_printf(out, "%s%" PRId64, i ? "," : "", t->shape[i]);
    str_printf(out, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", t->begin, t->end);
}

static void write_shard(const maker *m, int shard)
{
    str head = {.len = 0};
    unsigned char length[8];
    FILE *f = fopen(maker_path(m, shard), "wb");

    assert_non_null(f);
    str_puts(&head, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < m->n; i++)
        if (m->tensor[i].shard == shard)
            put_tensor(&head, &m->tensor[i]);
    str_puts(&head, "}");
    while (head.len % 8)
        str_putc(&head, ' ');
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(head.len >> 8 * i);
    fwrite(length, 1, 8, f);
    fwrite(head.data, 1, head.len, f);
    for (size_t i = 0; i < m->n; i++)
        if (m->tensor[i].shard == shard)
            for (size_t b = 0; b < m->tensor[i].bytes; b++)
                putc((int)(7 * b % 200), f);
    assert_int_equal(fclose(f), 0);
    str_fini(&head);
}

static void write_index(const maker *m)
{
    FILE *f = fopen(maker_file(m, "model.safetensors.index.json"), "w");
    const char *comma = "";

    assert_non_null(f);
    fprintf(f, "{\"metadata\":{\"total_size\":0},\"weight_map\":{");
    for (size_t i = 0; i < m->n; i++) {
        if (m->tensor[i].index_shard < 0)
            continue;
        fprintf(f, "%s\n\"%s\":\"model-%05d-of-%05d.safetensors\"", comma, m->tensor[i].name,
                m->tensor[i].index_shard + 1, m->n_shards);
        comma = ",";
    }
    fprintf(f, "}}\n");
    assert_int_equal(fclose(f), 0);
}

void maker_write(const maker *m)
{
    FILE *f = fopen(maker_file(m, "config.json"), "w");

    assert_non_null(f);
    fputs(m->config, f);
    assert_int_equal(fclose(f), 0);
    for (int s = 0; s < m->n_shards; s++)
        write_shard(m, s);
    if (!m->no_index)
        write_index(m);
}

char *json_edit(const char *text, const char *after, const char *key, const char *value)
{
    char quoted[80];
    const char *from = after ? strstr(text, after) : text, *line, *end, *colon;
    str out = {.len = 0};

    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    assert_non_null(from);
    line = strstr(from, quoted);
    assert_non_null(line);
    colon = line + strlen(quoted);
    end = strchr(line, '\n');
    assert_non_null(end);
    str_append(&out, text, (size_t)(line - text));
    if (value) {
        str_append(&out, line, (size_t)(colon - line));
        str_printf(&out, " %s%s", value, end[-1] == ',' ? "," : "");
    }
    str_puts(&out, end);
    assert_true(str_ok(&out));
    return out.data;
}
