#!/usr/bin/env python3
"""Run clang-tidy over the project's C files, in parallel, skipping what was clean before.

usage: tools/tidy.py BUILD_DIR [PATH...]

BUILD_DIR holds compile_commands.json. With PATHs only files below them are looked at. A file is
known to be clean when the same bytes of it, its headers, its flags and the .clang-tidy files were
clean before: build/tidy-cache holds one empty file per such hash. Exit status 1 on a finding.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "tidy-cache"
TIDY = "clang-tidy-14"


def jobs(build, paths):
    """(source, list of commands) of every C file of the project in the database."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if source.suffix != ".c" or not source.is_relative_to(ROOT) or "build" in source.relative_to(ROOT).parts:
            continue
        if paths and not any(source.is_relative_to(p) for p in paths):
            continue
        found.setdefault(source, []).append((entry["directory"], shlex.split(entry["command"])))
    return sorted(found.items())


def key_of(source, commands, version):
    """Hash of everything that the findings for a file depend on."""
    h = hashlib.sha256(version)
    for config in [ROOT / ".clang-tidy", *(p / ".clang-tidy" for p in source.parents if p.is_relative_to(ROOT))]:
        if config.exists():
            h.update(config.read_bytes())
    for directory, command in commands:
        h.update(" ".join(command).encode())
        out = command.index("-o")
        deps = subprocess.run([c for i, c in enumerate(command) if i not in (out, out + 1) and c != "-c"] + ["-MM"],
                              cwd=directory, capture_output=True, text=True, check=True).stdout
        # -MD -MF of the command may send the list to a file instead of standard output
        if not deps and "-MF" in command:
            deps = pathlib.Path(directory, command[command.index("-MF") + 1]).read_text()
        for name in sorted(set(re.split(r"[\s\\]+", deps.split(":", 1)[-1])) - {""}):
            h.update(name.encode() + pathlib.Path(directory, name).read_bytes())
    return h.hexdigest()


def look_at(build, source, commands, version):
    """Findings of one file as text; "" when it is clean."""
    mark = CACHE / key_of(source, commands, version)
    if mark.exists():
        return ""
    done = subprocess.run([TIDY, "-p", str(build), "--quiet", str(source)], capture_output=True, text=True)
    if done.returncode == 0:
        mark.touch()
        return ""
    return done.stdout or done.stderr


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[1]).resolve()
    work = jobs(build, [pathlib.Path(p).resolve() for p in sys.argv[2:]])
    version = subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout
    CACHE.mkdir(parents=True, exist_ok=True)
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for text in pool.map(lambda job: look_at(build, *job, version), work):
            if text:
                bad += 1
                print(text.replace(f"{ROOT}/", ""), flush=True)
    print(f"tidy: {len(work)} files, {bad} with findings")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
