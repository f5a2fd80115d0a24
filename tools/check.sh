#!/usr/bin/env bash
# What CI runs. Every step runs, also after a failed one; ends with "N passed, N failed", where a
# failed step without tests of its own counts as one. Logs are in build/check.
set -uo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)
logs=build/check
rm -rf "$logs"
mkdir -p "$logs"
passed=0 failed=0 skipped=0 failed_steps=()

# step NAME COMMAND...: run it with its output in a log; count what ctest says in it.
step() {
    local name=$1 log=$logs/$1.log begin=$SECONDS rc=0 total=0 bad=0 skip=0 line
    shift
    echo "check: $name ..."
    "$@" >"$log" 2>&1 </dev/null || rc=$?
    line=$(grep -E '^[0-9]+% tests passed' "$log" | tail -n 1)
    if [ -n "$line" ]; then
        total=$(sed -E 's/.* out of ([0-9]+).*/\1/' <<<"$line")
        bad=$(sed -E 's/.*, ([0-9]+) tests failed.*/\1/' <<<"$line")
        skip=$(grep -cE '\*\*\*Skipped' "$log")
    fi
    if ((rc != 0)); then
        ((bad > 0)) || bad=1
        failed_steps+=("$name")
        tail -n 60 "$log"
        echo "check: $name FAILED after $((SECONDS - begin)) s (whole log: $log)"
    else
        echo "check: $name ok, $((SECONDS - begin)) s$( ((total)) && echo ", $total tests, $skip skipped")"
    fi
    ((total > 0)) && passed=$((passed + total - bad - skip))
    failed=$((failed + bad)) skipped=$((skipped + skip))
}

build_and_test() {
    cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs" &&
        ctest -j "$jobs" --no-tests=error --preset "$@"
}

# Only the programs of the tests labelled thread are built: their names are their targets.
tsan() {
    local targets
    cmake --preset tsan || return
    targets=$(ctest --test-dir build/tsan -L thread -N | sed -n 's/^ *Test *#[0-9]*: //p')
    cmake --build --preset tsan -j "$jobs" --target $targets &&
        ctest -j "$jobs" --no-tests=error --preset tsan -L thread
}

# The preset gcc is the release build with warnings as errors.
step test make test PRESET=gcc
step clang build_and_test clang -L 'unit|kernels' -LE slow
step asan build_and_test asan -LE 'soak|slow'
step tsan tsan
step lint tools/lint.sh build/gcc
step fuzz tools/fuzz.sh "${FUZZ_S:-20}"
step cuda tools/cuda.sh

((${#failed_steps[@]})) && echo "check: failed: ${failed_steps[*]}"
echo "check: took $((SECONDS / 60)) min $((SECONDS % 60)) s"
echo "$passed passed, $failed failed, $skipped skipped"
exit $((failed > 0))
