/* Log lines for people on standard error: "level area message key=value". Thread: any. */
#pragma once

typedef enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;
typedef enum log_area { LOG_BASE, LOG_LOAD, LOG_KERNEL, LOG_MODEL, LOG_KV, LOG_CLI } log_area;

/* Lines above this level are dropped. Default: LOG_WARN; DI_LOG=error|warn|info|debug overrides. */
void log_set_level(log_level level);

void log_line(log_level level, log_area area, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(area, ...) log_line(LOG_ERROR, area, __VA_ARGS__)
#define log_warn(area, ...)  log_line(LOG_WARN, area, __VA_ARGS__)
#define log_info(area, ...)  log_line(LOG_INFO, area, __VA_ARGS__)
#define log_debug(area, ...) log_line(LOG_DEBUG, area, __VA_ARGS__)
