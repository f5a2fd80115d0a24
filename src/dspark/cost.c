/* Cost curve of steps: interpolation, running correction, file. */
#include "dspark/cost.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#define COST_FILE_HEAD "deepinfer-cost 2"
#define COST_FILE_END  "end\n"
#define FOLLOW         0.05 /* weight of the newest observation */
#define DRAFT_FIXED    0.35 /* of a round: what does not depend on its length; a first guess */

int cost_points(int max_rows, int *rows)
{
    int n = 0;

    for (int r = 1; n < COST_MAX_POINTS; r = r < 4           ? r + 1
                                             : (r & (r - 1)) ? r / 3 * 4
                                                             : r / 2 * 3) {
        rows[n++] = r < max_rows ? r : max_rows;
        if (r >= max_rows)
            break;
    }
    return n;
}

void cost_init(cost_table *t, int n, const int *rows)
{
    *t = (cost_table){.n = n};
    for (int i = 0; i < n; i++) {
        t->rows[i] = rows[i];
        t->factor[i] = 1;
    }
}

void cost_set_block(cost_table *t, int block)
{
    t->block = block < COST_MAX_BLOCK ? block : COST_MAX_BLOCK;
    for (int b = 1; b <= t->block; b++)
        t->draft_factor[b] = DRAFT_FIXED + (1 - DRAFT_FIXED) * b / t->block;
}

void cost_set(cost_table *t, int point, double step_us, double draft_us)
{
    t->us[point] = step_us;
    t->draft_us[point] = draft_us;
}

/* Linear between the points of `y` (times f, when given), proportional outside. */
static double curve(const cost_table *t, const double *y, const double *f, int x)
{
    int i = 0;
    double lo, hi;

    while (i < t->n && t->rows[i] < x)
        i++;
    if (i == t->n) {
        hi = y[t->n - 1] * (f ? f[t->n - 1] : 1);
        return hi * x / t->rows[t->n - 1];
    }
    hi = y[i] * (f ? f[i] : 1);
    if (i == 0 || t->rows[i] == x)
        return hi;
    lo = y[i - 1] * (f ? f[i - 1] : 1);
    return lo + (hi - lo) * (x - t->rows[i - 1]) / (t->rows[i] - t->rows[i - 1]);
}

double cost_step(const cost_table *t, int rows)
{
    return t->n ? curve(t, t->us, t->factor, rows) : rows;
}

double cost_draft(const cost_table *t, int n_seqs, int block)
{
    if (t->n == 0 || n_seqs < 1 || block < 1)
        return 0;
    return curve(t, t->draft_us, NULL, n_seqs) * (block <= t->block ? t->draft_factor[block] : 1);
}

/* Observed over measured; a stall of the machine is not a trend. */
static double ratio_of(double us, double measured)
{
    return fmin(fmax(us / measured, 0.25), 4.0);
}

void cost_observe_draft(cost_table *t, int n_seqs, int block, double us)
{
    double measured = t->n && n_seqs > 0 ? curve(t, t->draft_us, NULL, n_seqs) : 0;
    double before, by;

    if (!(measured > 0) || !(us > 0) || block < 1 || block > t->block)
        return;
    before = t->draft_factor[block];
    t->draft_factor[block] += FOLLOW * (ratio_of(us, measured) - before);
    t->draft_seen[block] = true;
    by = t->draft_factor[block] / before;
    for (int b = 1; b <= t->block; b++)
        t->draft_factor[b] *= t->draft_seen[b] ? 1 : by;
}

void cost_observe(cost_table *t, int rows, double us)
{
    double measured = t->n ? curve(t, t->us, NULL, rows) : 0, ratio;
    int i = 0;

    if (!(measured > 0) || !(us > 0))
        return;
    ratio = ratio_of(us, measured);
    while (i < t->n - 1 && t->rows[i] < rows)
        i++;
    t->seen[i] = true;
    if (i > 0 && t->rows[i] != rows)
        t->seen[i - 1] = true;
    for (int k = 0; k < t->n; k++)
        if (k == i || (k == i - 1 && t->rows[i] != rows) || !t->seen[k])
            t->factor[k] += FOLLOW * (ratio - t->factor[k]);
}

/* ---- file ---- */

static di_code file_path(char *out, size_t cap, const char *dir, const char *key, di_status *st)
{
    char name[64];

    snprintf(name, sizeof name, "cost-%016" PRIx64 ".txt", (uint64_t)XXH3_64bits(key, strlen(key)));
    return path_join(out, cap, dir, name, st);
}

di_code cost_save(const cost_table *t, const char *dir, const char *key, di_status *st)
{
    char path[1024], temp[1100];
    di_code rc = DI_OK;
    FILE *f;
    bool bad;

    DI_TRY(file_path(path, sizeof path, dir, key, st));
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return di_fail(st, DI_E_IO, "could not create \"%s\": %s", dir, errno_text(errno));
    snprintf(temp, sizeof temp, "%s.%ld", path, (long)getpid());
    f = fopen(temp, "w");
    if (!f)
        return di_fail(st, DI_E_IO, "could not write \"%s\": %s", temp, errno_text(errno));
    fprintf(f, COST_FILE_HEAD "\n%s\n%d\n", key, t->n);
    for (int i = 0; i < t->n; i++)
        fprintf(f, "%d %.3f %.3f\n", t->rows[i], t->us[i], t->draft_us[i]);
    fputs(COST_FILE_END, f);
    bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad || rename(temp, path) != 0) {
        rc = di_fail(st, DI_E_IO, "could not write \"%s\": %s", path, errno_text(errno));
        unlink(temp);
    }
done:
    return rc;
}

/* Parse the text behind the key line; false when anything is off. */
static bool parse(cost_table *t, const char *text)
{
    int n, used;

    if (sscanf(text, "%d\n%n", &n, &used) != 1 || n < 1 || n > COST_MAX_POINTS)
        return false;
    *t = (cost_table){.n = n};
    for (int i = 0; i < n; i++) {
        text += used;
        if (sscanf(text, "%d %lf %lf\n%n", &t->rows[i], &t->us[i], &t->draft_us[i], &used) != 3 ||
            !(t->us[i] > 0) || !(t->draft_us[i] >= 0) || t->rows[i] <= (i ? t->rows[i - 1] : 0))
            return false;
        t->factor[i] = 1;
    }
    return strcmp(text + used, COST_FILE_END) == 0;
}

di_code cost_load(cost_table *t, const char *dir, const char *key, bool *found, di_status *st)
{
    size_t n, head = strlen(COST_FILE_HEAD) + 1, key_len = strlen(key);
    char path[1024], *text = NULL;
    di_code rc = DI_OK;

    *found = false;
    DI_TRY(file_path(path, sizeof path, dir, key, st));
    if (access(path, R_OK) != 0)
        return DI_OK;
    *found = file_read(&text, &n, path, 1 << 16, NULL) == DI_OK && n > head + key_len &&
             memcmp(text, COST_FILE_HEAD "\n", head) == 0 &&
             memcmp(text + head, key, key_len) == 0 && text[head + key_len] == '\n' &&
             parse(t, text + head + key_len + 1);
    if (!*found)
        log_warn(LOG_MODEL,
                 "the cost table \"%s\" is damaged or from another version: steps are "
                 "measured again",
                 path);
done:
    mem_free(text);
    return rc;
}
