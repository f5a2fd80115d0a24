#!/usr/bin/env bash
# Run every benchmark of build/release/bench, one after the other: bench/out/<name>.csv, and a table.
# The columns are name,case,threads,value,unit,ceiling,fraction. bench/run.sh NAME... runs only those.
# Where bench/<name>_peer.py is there it runs the program, turn by turn with another implementation.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p bench/out
python=python3
[ -x build/venv/bin/python3 ] && python=build/venv/bin/python3
header=name,case,threads,value,unit,ceiling,fraction
(($#)) || set -- $(cd build/release/bench && find . -maxdepth 1 -type f -executable -printf '%f\n' | sort)
for program; do
    csv=bench/out/${program#bench_}.csv peer=bench/${program#bench_}_peer.py
    command=("build/release/bench/$program")
    [ -f "$peer" ] && command=("$python" "$peer" "${command[@]}")
    echo "bench: $program" >&2
    { echo "$header"; "${command[@]}" | grep -vx "$header"; } >"$csv.part"
    mv "$csv.part" "$csv"
done
{
    echo "$header"
    for csv in bench/out/*.csv; do tail -n +2 "$csv"; done
} | column -s, -t
