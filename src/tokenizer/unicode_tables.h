/* Character classes and folding by table; the tables are made by tools/make_unicode.py.
 * Thread: any. */
#pragma once

#include <stdint.h>

/* Classes that the pre-tokenizer tells apart (spec recipe.md 5.2): general categories of Unicode
 * 16.0.0, those of the CJK and kana range of stage 2 apart. */
typedef enum uc_class {
    UC_OTHER, /* controls, unassigned, private use, formats, separators that are no white space */
    UC_LETTER,
    UC_MARK,
    UC_NUMBER,
    UC_PUNCT, /* punctuation and symbols */
    UC_SPACE, /* White_Space, CR and LF aside */
    UC_NEWLINE,
    UC_CJK_OTHER,  /* unassigned */
    UC_CJK_LETTER, /* letters and marks */
    UC_CJK_PUNCT
} uc_class;

extern const uint8_t uc_class_index[0x110000 >> 7];
extern const uint8_t uc_class_blocks[];

/* Class of a scalar value (cp < 0x110000). */
static inline uc_class uc_class_of(uint32_t cp)
{
    return (uc_class)uc_class_blocks[(uint32_t)uc_class_index[cp >> 7] << 7 | (cp & 127)];
}

/* Folding of one character: 0 = stays, 1 = dropped, else the place in uc_fold_pool of the number of
 * characters that replace it, which follow. Hangul syllables are not in the table. */
extern const uint16_t uc_fold_index[0x110000 >> 6];
extern const uint16_t uc_fold_blocks[];
extern const uint32_t uc_fold_pool[];

static inline uint32_t uc_fold_of(uint32_t cp)
{
    return uc_fold_blocks[(uint32_t)uc_fold_index[cp >> 6] << 6 | (cp & 63)];
}
