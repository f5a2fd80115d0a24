"""Memory: what `inspect` predicts is what `generate` takes, and more prompts take no more."""
import json
import os
import pathlib
import random
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("DEEPINFER", ROOT / "build/release/deepinfer"))
TINY = ROOT / "models/tiny"
MINI_B = ROOT / "tests/data/models/mini-b"
MIB = 1 << 20
SANITIZED = b"__asan_init" in BINARY.read_bytes() or b"__tsan_init" in BINARY.read_bytes()

pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer's shadow memory counts as resident")


def vocabulary(model):
    return json.loads((model / "config.json").read_text())["text_config"]["vocab_size"]


def predicted(model, *args):
    out = subprocess.run([BINARY, "inspect", "--json", model, *map(str, args)], check=True,
                         capture_output=True, timeout=60).stdout
    return json.loads(out)["memory"]


def command_of(pid):
    return pathlib.Path(f"/proc/{pid}/comm").read_bytes()


def peak(tmp_path, model, n, *args, prompt=100, answer=20):
    """Runs n random prompts; the largest resident size of the process, in bytes."""
    draw = random.Random(n)
    top = vocabulary(model) - 100
    lines = [{"prompt_token_ids": [draw.randrange(3, top) for _ in range(prompt)],
              "max_tokens": answer, "ignore_eos": True, "temperature": 0} for _ in range(n)]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    child = subprocess.Popen([BINARY, "generate", "--model", model, "--input", source, "--output",
                              target, "--overwrite", "--quiet", *map(str, args)])
    largest = 0  # getrusage would count the interpreter's pages between fork and exec
    while child.poll() is None:
        for line in pathlib.Path(f"/proc/{child.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:") and b"deepinfer" in command_of(child.pid):
                largest = int(line.split()[1]) * 1024
        time.sleep(0.01)
    assert child.returncode == 0
    assert len(target.read_text().splitlines()) == n
    return largest


@pytest.mark.parametrize("model", [TINY, MINI_B], ids=["tiny", "mini-b"])
@pytest.mark.parametrize("context", [1024, 65536])
@pytest.mark.parametrize("sequences", [1, 16])
def test_resident_size_is_within_5_percent_of_what_inspect_predicts(tmp_path, model, context,
                                                                    sequences):
    options = ["--context", context, "--batch", sequences]
    said = predicted(model, *options)["total"]
    took = peak(tmp_path, model, 2 * sequences + 6, "--no-prefix-cache", *options)
    assert abs(took - said) <= 0.05 * took + MIB, (took / MIB, said / MIB)


def test_long_sequences_take_what_inspect_predicts_for_full_ones(tmp_path):
    options = ["--context", 8192, "--batch", 1]
    memory = predicted(TINY, *options)
    took = peak(tmp_path, TINY, 1, "--no-prefix-cache", *options, prompt=8100)
    assert memory["total_full"] - memory["total"] > 3 * MIB
    assert abs(took - memory["total_full"]) <= 0.05 * took + MIB


def test_300_prompts_take_no_more_memory_than_30(tmp_path):
    options = ["--context", 1024, "--batch", 8, "--no-prefix-cache"]
    few = peak(tmp_path, MINI_B, 30, *options, prompt=40, answer=4)
    many = peak(tmp_path, MINI_B, 300, *options, prompt=40, answer=4)
    assert many - few < MIB


@pytest.mark.parametrize("cache", [[], ["--no-prefix-cache"]], ids=["cache", "no-cache"])
def test_a_run_that_fills_the_pool_ends_within_5_percent_of_the_predicted_peak(tmp_path, cache):
    options = ["--context", 1024, "--batch", 8, "--kv-tokens", 8192, *cache]
    memory = predicted(TINY, *options)
    took = peak(tmp_path, TINY, 24, *options, prompt=400, answer=4)
    assert memory["kv_tokens"] == 8192 < 24 * 400
    assert memory["peak"] - memory["total"] > (3 * MIB if cache else 16 * MIB)
    assert abs(took - memory["peak"]) <= 0.05 * took


def test_more_prompts_than_the_prefix_cache_holds_take_no_more_than_the_peak(tmp_path):
    options = ["--context", 1024, "--batch", 8]
    said = predicted(MINI_B, *options)["peak"]
    took = peak(tmp_path, MINI_B, 100, *options, prompt=140, answer=4)
    assert abs(took - said) <= 0.05 * took + MIB


def test_the_parts_of_the_prediction_add_up_to_its_total():
    m = predicted(TINY, "--batch", 3)
    parts = ["weights", "embedding", "step_buffers", "kernel_scratch", "tokenizer",
             "sequence_state", "sequence_blocks", "process", "engram_rows"]
    assert sum(m[p] for p in parts) == m["total"]
    assert all(m[p] > 0 for p in parts)


def test_the_prediction_grows_with_context_sequences_and_threads():
    def of(context, batch, threads):
        return predicted(MINI_B, "--context", context, "--batch", batch, "--threads", threads)

    base = of(1024, 1, 1)
    assert of(65536, 1, 1)["step_buffers"] > base["step_buffers"]
    assert of(1024, 16, 1)["sequence_state"] > 15 * base["sequence_state"]
    assert of(1024, 1, 8)["kernel_scratch"] > base["kernel_scratch"]
