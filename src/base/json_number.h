/* Numbers as JSON text, whatever the locale of the process. Inside base only. Thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define JSON_NUMBER_CAP 32

/* Value of a 0-terminated JSON number, rounded to nearest; infinite on overflow. */
double json_number_parse(const char *text);

/* Shortest text that reads back as v (finite); 0-terminated, returns its length. */
size_t json_number_print(char out[JSON_NUMBER_CAP], double v);
