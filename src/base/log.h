/* Log lines on standard error: "level area message key=value" for people, or one JSON object a
 * line. Thread: any; the two settings before there are threads. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;
typedef enum log_area {
    LOG_BASE,
    LOG_LOAD,
    LOG_KERNEL,
    LOG_MODEL,
    LOG_KV,
    LOG_ENGINE,
    LOG_CLI,
    LOG_SERVER
} log_area;

/* Lines above this level are dropped. Default: LOG_WARN; DI_LOG=error|warn|info|debug overrides. */
void log_set_level(log_level level);

/* JSON lines: {"time", "level", "area", "message", fields...}. */
void log_set_json(bool on);

void log_line(log_level level, log_area area, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(area, ...) log_line(LOG_ERROR, area, __VA_ARGS__)
#define log_warn(area, ...)  log_line(LOG_WARN, area, __VA_ARGS__)
#define log_info(area, ...)  log_line(LOG_INFO, area, __VA_ARGS__)
#define log_debug(area, ...) log_line(LOG_DEBUG, area, __VA_ARGS__)

/* A line with fields: "message key=value ...", or members of the JSON object. text NULL: the field
 * is left out; LOG_FIELD_INT and LOG_FIELD_MS take the number, LOG_FIELD_MS as milliseconds with
 * two decimals. */
typedef struct log_field {
    const char *key;
    enum { LOG_FIELD_TEXT, LOG_FIELD_INT, LOG_FIELD_MS } kind;
    const char *text;
    int64_t number; /* LOG_FIELD_MS: nanoseconds */
} log_field;
void log_fields(log_level level, log_area area, const char *message, const log_field *field,
                size_t n);
