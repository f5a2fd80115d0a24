#!/usr/bin/env python3
"""Write docs/options.md from what the programs print: tools/make_options.py [BINARY]."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/deepinfer")
HEAD = """# Options

What `--help` of each subcommand prints; written by `tools/make_options.py`, and compared with the
programs by `tests/client/test_cli.py`. Fields of input lines, exit statuses and environment variables
are in [operations.md](operations.md).
"""


def output(*words):
    return subprocess.run([BINARY, *words], check=True, capture_output=True, text=True).stdout


def help_of(*name):
    return output(*name, "--help")


names = re.findall(r"^  ([a-z]+) ", help_of().split("Subcommands:")[1], re.M)
parts = [HEAD, "```\n" + help_of() + "```\n"]
parts += [f"## {name}\n\n```\n{help_of(name)}```\n" for name in names]
parts += ["## DeepInfer's names\n\nOptions and `DEEPINFER_*` variables of DeepInfer are understood by the "
          "programs that run an engine\n(printed by `deepinfer --names`):\n\n" + output("--names")]
(ROOT / "docs/options.md").write_text("\n".join(parts))
