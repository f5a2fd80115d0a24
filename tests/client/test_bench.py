"""deepinfer bench from the outside: tables, charts, traces, generated weights, bad input."""
import csv
import json
import os
import pathlib
import shutil
import struct
import subprocess
import xml.etree.ElementTree
import zlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("DEEPINFER", str(ROOT / "build/release/deepinfer"))
TINY = ROOT / "models/tiny"
SMALL = ["--prompt-tokens", "16,160", "--concurrency", "1,3", "--output-tokens", "6", "--quiet"]


def run(*args, timeout=280):
    done = subprocess.run([BINARY, "bench", *map(str, args)], capture_output=True, timeout=timeout)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def table(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def pixels(path):
    """Width, height and the decoded bytes of a PNG file, with every checksum looked at."""
    data, at, idat = path.read_bytes(), 8, b""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + n]
        assert struct.unpack(">I", data[at + 8 + n:at + 12 + n])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            width, height = struct.unpack(">II", body[:8])
        idat += body if kind == b"IDAT" else b""
        at += 12 + n
    return width, height, zlib.decompress(idat)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "made"
    rc, text, err = run("--model", TINY, "--out", out, *SMALL)
    assert rc == 0, err
    return out, text


def test_the_table_has_every_point_with_sound_values(sweep):
    rows = table(sweep[0] / "bench.csv")
    assert [(r["prompt_tokens"], r["concurrency"]) for r in rows] == [
        ("16", "1"), ("16", "3"), ("160", "1"), ("160", "3")]
    for r in rows:
        v = {k: float(x) for k, x in r.items() if not k.endswith("_bound")}
        assert v["prefill_tokens_per_s"] > 0 and v["decode_tokens_per_s"] > 0
        assert v["ttft_ms_p50"] <= v["ttft_ms_p90"] <= v["ttft_ms_p99"]
        assert v["itl_ms_p50"] <= v["itl_ms_p99"]
        assert v["decode_tokens_per_s"] == pytest.approx(
            v["user_tokens_per_s"] * v["concurrency"], rel=0.02)
        assert 0 <= v["decode_idle"] <= 1 and 0 < v["decode_roofline"] < 20
        assert r["prefill_bound"] in ("memory", "compute")
    assert any(r["prefill_front"] == "1" for r in rows)
    # time between two bursts, whose requests are cancelled, is nobody's idle time
    assert min(float(r["prefill_idle"]) for r in rows[1:]) < 0.3
    assert any(r["decode_front"] == "1" for r in rows)


def test_the_terminal_names_the_model_and_the_ceilings(sweep):
    assert "tiny, 10 layers" in sweep[1] and "GB/s" in sweep[1]
    assert len([x for x in sweep[1].splitlines() if " | " in x or " |*" in x]) >= 4


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_charts_are_well_formed_and_say_what_they_show(sweep, name):
    root = xml.etree.ElementTree.parse(sweep[0] / f"{name}.svg").getroot()
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("tokens/s" in t for t in texts) and any("tiny" in t for t in texts)
    assert any("Excluded" in t for t in texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) >= 4
    width, height, data = pixels(sweep[0] / f"{name}.png")
    assert (width, height) == (1760, 1080)
    assert len(data) == height * (3 * width + 1)
    assert any(data)


def test_pinned_acceptance_is_met_and_costs_verification(tmp_path):
    rc, _, err = run("--model", TINY, "--out", tmp_path, "--prompt-tokens", "16", "--concurrency", "4",
                     "--output-tokens", "60", "--draft-tokens", "3", "--draft-fixed",
                     "--acceptance", "0.75", "--quiet")
    assert rc == 0, err
    row = table(tmp_path / "bench.csv")[0]
    # 1 + 0.75 + 0.75^2 + 0.75^3 = 2.73 tokens a step; of 3 verified drafts 1.73 are taken
    assert float(row["tokens_per_step"]) == pytest.approx(2.73, abs=0.4)
    assert float(row["verified_per_step"]) == pytest.approx(3, abs=0.3)


def test_generated_weights_need_a_config_only(tmp_path):
    shutil.copy(TINY / "config.json", tmp_path)
    rc, out, err = run("--model", tmp_path, "--load-format", "dummy", "--layers", 3, "--expert-share",
                       "1/2", "--out", tmp_path / "out", *SMALL)
    assert rc == 0, err
    assert "generated weights, one rank of EP2 (share 1/2), communication excluded, 3 layers" in out
    assert len(table(tmp_path / "out" / "bench.csv")) == 4


def test_a_trace_is_replayed_in_the_order_of_arrival(tmp_path):
    lines = [{"arrival": 8.0, "prompt": "How many stones?", "output": 4},
             {"arrival": 0, "prompt": 50, "output": 8},
             {"arrival": 2.0, "prompt": 20, "output": 1}]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    rc, out, err = run("--model", TINY, "--out", tmp_path / "out", "--trace", trace, "--speed", 4,
                       "--quiet")
    assert rc == 0, err
    assert "3 of 3 requests" in out and "TTFT ms p50" in out
    rows = table(tmp_path / "out" / "trace.csv")
    assert [r["arrival_s"] for r in rows] == ["0.0000", "0.5000", "2.0000"]
    assert [r["output_tokens"] for r in rows] == ["8", "1", "4"]
    assert all(float(r["ttft_ms"]) > 0 for r in rows)
    xml.etree.ElementTree.parse(tmp_path / "out" / "trace.svg")
    pixels(tmp_path / "out" / "trace.png")


def test_it_ends_in_time_and_says_what_is_left_out(tmp_path):
    rc, out, err = run("--model", TINY, "--out", tmp_path, "--prompt-tokens", "16,60000",
                       "--concurrency", "1", "--output-tokens", "4", "--max-minutes", "0.3", "--quiet",
                       timeout=120)
    if rc == 0:
        assert "1 points were left out" in out and "60000 tokens x 1\n" in out
    else:  # a machine so busy that nothing fitted in
        assert "no point could be measured" in err


@pytest.mark.parametrize("args, want", [
    ([], "--model"),
    (["--model", TINY], "--out"),
    (["--model", TINY, "--out", "x", "--concurrency", "4,2"], "ascending"),
    (["--model", TINY, "--out", "x", "--prompt-tokens", "1,,2"], "ascending"),
    (["--model", TINY, "--out", "x", "--prompt-tokens", "12a"], "ascending"),
    (["--model", TINY, "--out", "x", "--acceptance", "1.5"], "acceptance"),
    (["--model", TINY, "--out", "x", "--acceptance", "0.5", "--draft-tokens", "0"], "--draft-tokens"),
    (["--model", TINY, "--out", "x", "--trace", "absent.jsonl"], "absent.jsonl"),
    (["--model", TINY, "--out", "/proc/none/here"], "/proc/none/here"),
    (["--model", "absent", "--out", "x"], "absent"),
])
def test_bad_usage_is_one_line_with_status_2(tmp_path, monkeypatch, args, want):
    monkeypatch.chdir(tmp_path)
    rc, out, err = run(*args)
    assert (rc, out) == (2, "")
    assert want in err and err.count("\n") == 1, err


@pytest.mark.parametrize("line, want", [
    ('{"arrival": 0, "prompt": 5}', '"output" is missing'),
    ('{"arrival": -1, "prompt": 5, "output": 2}', "arrival must be"),
    ('{"arrival": 0, "prompt": 0, "output": 2}', "from 1 to"),
    ('not json', "trace.jsonl:2"),
    (None, "no requests"),
])
def test_a_bad_trace_names_file_and_line(tmp_path, line, want):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrival": 0, "prompt": 5, "output": 2}\n' + line + "\n" if line else "\n\n")
    rc, _, err = run("--model", TINY, "--out", tmp_path / "out", "--trace", trace)
    assert rc == 2 and want in err and err.count("\n") == 1, err
