#!/usr/bin/env bash
# Build the fuzzers and run each for SECONDS, starting from its corpus; findings go to build/fuzz-out.
#
#   tools/fuzz.sh SECONDS [FUZZER...]     e.g. tools/fuzz.sh 20 fuzz_json
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: tools/fuzz.sh SECONDS [FUZZER...]}
shift
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz -j "$(nproc)" --target fuzzers
mkdir -p build/fuzz-out

fuzz_one() {
    local name=$1 seconds=$2 corpus=tests/fuzz/corpus/${1#fuzz_} out=build/fuzz-out/$1
    mkdir -p "$out"
    # New inputs stay in build/fuzz-out; the corpus of the tree is read only.
    if "build/fuzz/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=3000 \
        -artifact_prefix="$out/finding-" -print_final_stats=1 "$out" $([ -d "$corpus" ] && echo "$corpus") \
        >"$out.log" 2>&1; then
        echo "fuzz: $name: $(sed -n 's/stat::number_of_executed_units: //p' "$out.log") runs, no finding"
    else
        echo "fuzz: $name FAILED, see $out.log"
        tail -n 40 "$out.log"
        return 1
    fi
}
export -f fuzz_one
if (($# == 0)); then
    set -- $(cd build/fuzz/fuzz && ls)
fi
printf '%s\0' "$@" | xargs -0 -P"$(nproc)" -I{} bash -c 'fuzz_one {} '"$seconds"
