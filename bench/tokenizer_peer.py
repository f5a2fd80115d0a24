#!/usr/bin/env python3
"""Tokenizer throughput against the `tokenizers` package: one thread each, the same 10 MB of text,
turn by turn in one run, and the same ids.

    bench/tokenizer_peer.py build/release/bench/bench_tokenizer

Prints the CSV rows of bench_tokenizer; the row of encoding has the peer as its ceiling and the ratio
to it as its fraction (above 1: faster than the peer).
"""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from array import array

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Tokenizer  # noqa: E402  (reads the environment)

ROUNDS = 5


def own_rows(program, tokenizer):
    out = subprocess.run([program, "--tokenizer", tokenizer, "--rounds", "1"], check=True,
                         capture_output=True, text=True).stdout
    return {tuple(f[:2]): (float(f[3]), f[4]) for f in (line.split(",") for line in out.split())}


def check_ids(peer, docs, path):
    ours = array("i")
    with open(path, "rb") as f:
        ours.frombytes(f.read())
    theirs = array("i")
    for e in peer.encode_batch_fast(docs, add_special_tokens=False):
        theirs.extend(e.ids)
        theirs.append(-1)
    if ours != theirs:
        sys.exit("the ids differ from the peer's")


def main(program):
    tokenizer = str(pathlib.Path(program).parents[1] / "data/tokenizer-v4/tokenizer.json")
    peer = Tokenizer.from_file(tokenizer)
    with tempfile.TemporaryDirectory() as tmp:
        text, ids = tmp + "/text", tmp + "/ids"
        subprocess.run([program, "--tokenizer", tokenizer, "--write", text, ids], check=True)
        with open(text, "rb") as f:
            docs = [d.decode() for d in f.read().split(b"\0")[:-1]]
        check_ids(peer, docs, ids)
    megabytes = sum(len(d.encode()) for d in docs) / 1e6
    own, theirs = [], []
    for _ in range(ROUNDS):
        own.append(own_rows(program, tokenizer))
        start = time.perf_counter()
        peer.encode_batch_fast(docs, add_special_tokens=False)
        theirs.append(megabytes / (time.perf_counter() - start))
    print("name,case,threads,value,unit,ceiling,fraction")
    for key in own[0]:
        value, unit = statistics.median(r[key][0] for r in own), own[0][key][1]
        ceiling = statistics.median(theirs) if key[0] == "tokenizer_encode" else None
        tail = f"{ceiling:.4g},{value / ceiling:.2f}" if ceiling else ","
        print(f"{key[0]},{key[1]},1,{value:.4g},{unit},{tail}")


if __name__ == "__main__":
    main(sys.argv[1])
