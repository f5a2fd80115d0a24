#!/usr/bin/env bash
# Formatting, house rules and clang-tidy: tools/lint.sh [BUILD_DIR], a configured build (build/release).
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0

# rule TITLE: complain when standard input is not empty.
rule() {
    local found
    found=$(cat)
    if [ -n "$found" ]; then
        printf 'lint: %s\n%s\n' "$1" "$found"
        bad=1
    fi
}

mapfile -t sources < <(git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh')
mapfile -t texts < <(git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.py' '*.sh' '*.md' \
    '*.cmake' '*CMakeLists.txt' '.ci/*' Makefile)

clang-format-14 --dry-run -Werror "${sources[@]}" 2>&1 | grep -E 'error:' | rule "not formatted (make fmt)"
# Generated tables (*_tables.c) are as long as they are.
wc -l "${sources[@]}" | awk '$2 != "total" && $2 !~ /_tables\.c$/ && $1 > 800' | rule "over 800 lines: look for the seam inside"
grep -nP '\t' "${sources[@]}" | head | rule "tabs"
grep -nP '[ \t]+$' "${texts[@]}" | head | rule "blanks at the end of a line"
grep -n '#include "\.\./' "${sources[@]}" | rule "include by module/header.h, not by a relative path"
grep -L '#pragma once' $(printf '%s\n' "${sources[@]}" | grep -E '\.(h|cuh)$') | rule "headers without #pragma once"
grep -nE '\b(TO[D]O|FIX[M]E|XX[X]|HAC[K])\b' "${texts[@]}" | rule "unfinished work"
# Paths of one machine: the project must build wherever it is cloned.
grep -nE "(^|[\"' (=])/(home|root|Users|w[o]rk|mnt|srv)(/|\b)|\.\./sh[a]red" "${texts[@]}" |
    rule "a path that exists on one machine only"
grep -nE '\b(mall[o]c|call[o]c|reall[o]c)\(' $(printf '%s\n' "${sources[@]}" | grep '^src/') |
    grep -v '^src/base/mem\.c:' | rule "library code allocates through base/mem.h"

tools/tidy.py "${1:-build/release}" || bad=1
((bad)) || echo "lint: clean"
exit $bad
