"""DeepInfer's options and DEEPINFER_* variables mean what ours mean."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("DEEPINFER", str(ROOT / "build/release/deepinfer"))
ASK = ["generate", "--model", ROOT / "models/tiny", "--prompt", "The fox and the kite", "--raw",
       "--max-tokens", "12", "--seed", "3", "--threads", "1"]


def run(*args, **variables):
    names = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")}
    names.update({"DEEPINFER_" + k: v for k, v in variables.items()})
    done = subprocess.run(list(map(str, [BINARY, *args])), env=names, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def stats(*args, **variables):
    rc, out, err = run(*ASK, "--stats", *args, **variables)
    assert rc == 0, err
    return out, {k: float(v) for k, v in re.findall(r"(\w+)=([0-9.]+)", err)}


@pytest.fixture(scope="module")
def answer():
    return stats()[0]


def test_drafts_and_their_lengths(answer):
    off, counts = stats(USE_NEXTN_DECODE="0")
    assert off == answer and counts["verified"] + counts["skipped"] == 0
    fixed = stats("--draft-fixed")  # then the counts do not depend on time
    for given in ({"ENABLE_MTP_VARLEN": "0"}, {"ENABLE_MTP_VARLEN": "False"}):
        out, counts = stats(**given)
        assert out == answer
        assert (counts["verified"], counts["skipped"]) == (fixed[1]["verified"], fixed[1]["skipped"])
    assert stats("--draft-adaptive=0")[1]["verified"] == fixed[1]["verified"] > 0
    assert stats("--draft-adaptive")[0] == answer


def test_the_command_line_comes_on_top(answer):
    out, counts = stats("--draft-tokens", "3", USE_NEXTN_DECODE="0")
    assert out == answer and counts["verified"] + counts["skipped"] > 0


def test_a_configuration_file_comes_on_top_of_the_environment(tmp_path):
    file = tmp_path / "serve.conf"
    file.write_text("replay = off\n")
    nowhere = ["serve", "--model", tmp_path, "--config", file]
    rc, _, err = run(*nowhere, YOCO_PREFILL_TRUNCATION_MODE="nonsense")
    assert rc == 2 and "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE" in err and "mask" in err
    rc, _, err = run(*nowhere, YOCO_PREFILL_TRUNCATION_MODE="mask")
    assert rc == 2 and "config.json" in err and "replay" not in err


def test_replay_mode_and_kept_tokens(answer):
    rc, _, err = run(*ASK, YOCO_PREFILL_TRUNCATION_MODE="compact", YOCO_PREFILL_KEEP_TOKENS="0")
    assert rc == 2 and "replay_keep" in err
    out, _ = stats(YOCO_PREFILL_TRUNCATION_MODE="compact", YOCO_PREFILL_KEEP_TOKENS="140")
    assert out == answer  # the prompt is shorter


def test_values_are_checked_and_the_variable_is_named():
    for name, value, part in [("USE_NEXTN_DECODE", "99", "16"), ("YOCO_PREFILL_KEEP_TOKENS", "x", "integer"),
                              ("ACCELERATOR", "abacus", "cpu")]:
        rc, _, err = run(*ASK, **{name: value})
        assert rc == 2 and "DEEPINFER_" + name in err and part in err, err


@pytest.mark.parametrize("args", [
    ["--zero-overhead=0"], ["--zero-overhead"], ["--device", "cpu"], ["--batch-invariant"], ["--batch-invariant=0"],
    ["--dp=1", "--cp=1", "--ep=1", "--block-size=128", "--engine-type=normal", "--chunked-prefill", "--rank=0"],
    ["--max-model-len", "4096", "--max-batched-tokens", "64"],
])
def test_options_are_understood(args, answer):
    rc, out, err = run(*ASK, *args)
    assert rc == 0 and out == answer, err


@pytest.mark.parametrize("args, part", [
    (["--dp=2"], "always 1"), (["--block-size", "64"], "always 128"), (["--block-size=64"], "always 128"),
    (["--chunked-prefill=false"], "always true"), (["--max-model-len", "100000000"], "context"),
    (["--no-graphs"], "unknown"),
])
def test_what_is_not_so_here_is_refused(args, part):
    rc, _, err = run(*ASK, *args)
    assert rc == 2 and part in err, err


def test_the_times_of_steps_are_kept(tmp_path):
    stats(DECODE_PERF_CACHE_DIR=str(tmp_path))
    assert list(tmp_path.iterdir())


def test_a_statistics_line_every_n_steps():
    rc, _, err = run(*ASK, "--draft-tokens", "0", LOGGING_INTERVAL_STEP="4")
    assert rc == 0 and len(re.findall("steps_per_s=", err)) in (2, 3)


def test_a_variable_without_meaning_draws_one_line(answer):
    rc, out, err = run(*ASK, "--quiet", GC_INTERVAL_STEP="7", NO_SUCH_THING="1", USE_NEXTN_DECODE="2")
    assert rc == 0 and out == answer
    assert sorted(re.findall(r"DEEPINFER_\w+", err)) == ["DEEPINFER_GC_INTERVAL_STEP", "DEEPINFER_NO_SUCH_THING"]
    assert len(err.strip().splitlines()) == 2


def test_programs_without_an_engine_do_not_care():
    rc, _, err = run("tokenize", "--model", ROOT / "models/tiny", "x", GC_INTERVAL_STEP="7")
    assert rc == 0 and err == ""


def test_the_table_is_in_the_documents():
    table = run("--names")[1]
    assert table in (ROOT / "docs/options.md").read_text()
    for name in ("USE_NEXTN_DECODE", "JIT_CACHE_DIR"):
        assert f"DEEPINFER_{name}`" in table
