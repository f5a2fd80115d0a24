/* The files of the web page, compiled in (cmake/embed.cmake writes the table). Thread: any. */
#pragma once

#include <stddef.h>

typedef struct page_file {
    const char *name;
    const unsigned char *data;
    size_t n;
} page_file;

extern const page_file page_files[];
extern const size_t page_n_files;
