/* The pre-tokenizer of DeepSeek V3 to V4.1: cuts text into the pieces that BPE sees.
 *
 * A hand-written scanner for the four stages of spec recipe.md 5.2; each stage works inside the
 * pieces that the one before left:
 *   1. isolate \p{N}{1,3}
 *   2. isolate runs of U+4E00-9FA5, U+3040-309F, U+30A0-30FF
 *   3. isolate matches of the pattern PRETOK_WORDS
 *   4. bytes become symbols (nothing to cut)
 * Thread: any. */
#pragma once

#include <stddef.h>

/* The three patterns as tokenizer.json spells them: the loader accepts no others. */
#define PRETOK_NUMBERS "\\p{N}{1,3}"
#define PRETOK_CJK     "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
#define PRETOK_WORDS                                                                               \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"                                        \
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"                                                   \
    "| ?[\\p{P}\\p{S}]+[\r\n]*"                                                                    \
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"

/* Length in bytes (1..n) of the first piece of text[0..n), n > 0, which is well-formed UTF-8.
 * Calling it again behind the piece gives the next one: no piece depends on what is before it. */
size_t pretok_next(const char *text, size_t n);
