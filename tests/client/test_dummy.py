"""Generated weights: a folder with a config.json alone runs, with the same bits every time."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("DEEPINFER", str(ROOT / "build/release/deepinfer"))
DUMMY = ["--load-format", "dummy"]


def run(*args, timeout=240):
    done = subprocess.run([BINARY, *map(str, args)], capture_output=True, timeout=timeout)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def folder(tmp_path):
    shutil.copy(ROOT / "models/tiny/config.json", tmp_path)
    return tmp_path


def answer(folder, *args):
    rc, out, err = run("generate", "--model", folder, *DUMMY, "--prompt", "Hello", "--max-tokens", 12,
                       "--seed", 7, "--quiet", *args)
    assert rc == 0, err
    return out


def test_a_config_alone_generates_and_two_runs_are_equal(folder):
    first = answer(folder)
    assert len(first.split()) > 6 and " t" in first
    assert answer(folder, "--threads", 1) == first
    assert answer(folder, "--draft-tokens", 0) == first


def test_the_scalar_back_end_reads_generated_weights_where_they_are(folder):
    first = answer(folder, "--backend", "ref", "--layers", 2)
    assert len(first.split()) > 6
    assert answer(folder, "--backend", "ref", "--layers", 2) == first


def test_a_share_and_few_layers_are_another_model(folder):
    assert answer(folder, "--layers", 4) != answer(folder)
    assert answer(folder, "--expert-share", "0/2") != answer(folder, "--expert-share", "1/2")


def test_a_tokenizer_of_the_folder_is_used(folder):
    shutil.copy(ROOT / "models/tiny/tokenizer.json", folder)
    assert " t" not in answer(folder)[:2]


def test_inspect_says_what_is_generated(folder):
    rc, out, err = run("inspect", folder, *DUMMY, "--layers", 4, "--expert-share", "0/4", "--json")
    assert rc == 0, err
    report = json.loads(out)
    assert report["shards"] == []
    assert [x["mode"] for x in report["layers"]][:4].count("full") >= 1
    rc, out, _ = run("inspect", folder, *DUMMY)
    assert rc == 0 and "generated" in out


@pytest.mark.parametrize("args, want", [
    (["--load-format", "random"], "random"),
    (["--layers", "3"], "--layers needs --load-format dummy"),
    ([*DUMMY, "--layers", "300"], "300"),
    ([*DUMMY, "--layers", "11"], "config.json has 10"),
    ([*DUMMY, "--expert-share", "3"], "--expert-share"),
    ([*DUMMY, "--expert-share", "4/4"], "--expert-share"),
    ([*DUMMY, "--expert-share", "0/3"], "cannot be divided by 3"),
    ([*DUMMY, "--engram-rows", "5"], "too few"),
])
def test_wrong_options_are_one_line_with_status_2(folder, args, want):
    rc, out, err = run("generate", "--model", folder, "--prompt", "x", *args)
    assert (rc, out) == (2, "")
    assert want in err and err.count("\n") == 1, err


def test_a_folder_without_config_is_refused(tmp_path):
    rc, _, err = run("generate", "--model", tmp_path, *DUMMY, "--prompt", "x")
    assert rc == 2 and "config.json" in err and err.count("\n") == 1
