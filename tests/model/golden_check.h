/* Cases of the golden harness: counting and the three groups of checks.
 *
 * Which tolerance belongs where: spec oracle-check.md section 3. */
#pragma once

#include "model/golden_file.h"
#include "model/rig.h"

typedef struct report {
    int passed, failed, exempt; /* exempt: rows behind near-ties that differ */
    bool verbose;               /* print passing cases too */
    const char *model;          /* name in front of every case */
} report;

/* Count a case; a failing one is printed with its text. Returns ok. */
bool report_case(report *r, bool ok, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* What one golden directory is checked with. */
typedef struct golden_job {
    const golden *g;
    const char *golden_dir, *model_dir;
    const char *backend; /* of the release checks */
    int n_threads;
} golden_job;

/* The scalar back end in f32 (precision 0) or cache (1): logits in several chunkings, Engram rows,
 * greedy continuations, draft rounds, taps, the long prompt. */
void check_end_to_end(report *r, const golden_job *job, int precision);

/* One back end in release: every sublayer from recorded inputs. */
void check_sublayers(report *r, const golden_job *job);

/* One back end in release on a trained model: agreement of logits and of greedy texts. */
void check_trained(report *r, const golden_job *job);
