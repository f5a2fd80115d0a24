"""The programs from the outside: what they print, write and return, also for bad input."""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("DEEPINFER", str(ROOT / "build/release/deepinfer"))
TINY = ROOT / "models/tiny"
SUBCOMMANDS = ["generate", "chat", "serve", "tokenize", "bench", "logits", "inspect", "selftest"]
VOCAB = 6400
GREEDY = ["--temperature", "0", "--quiet"]
OFF = ["--thinking", "off"]


def run(*args, stdin=None, timeout=120, env=None):
    """Returns (exit status, standard output, standard error) as text."""
    done = subprocess.run([BINARY, *map(str, args)], input=stdin, capture_output=True,
                          timeout=timeout, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def ask(text, *args):
    rc, out, err = run("generate", "--model", TINY, "--prompt", text, *GREEDY, *args)
    assert rc == 0, err
    return out


def batch(tmp_path, lines, *args, status=0, name="out.jsonl"):
    """Runs lines (objects, or bytes as they are) and returns the parsed answers."""
    source, target = tmp_path / "in.jsonl", tmp_path / name
    source.write_bytes(b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines))
    rc, _, err = run("generate", "--model", TINY, "--input", source, "--output", target,
                     "--quiet", *args)
    assert rc == status, err
    return [json.loads(line) for line in target.read_text().splitlines()]


def user(text, **fields):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0,
            "thinking": {"type": "disabled"}, **fields}


def has_constraints():
    return "not available" not in run("generate", "-m", TINY, "-p", "x", "-n", "1", "--regex", "a",
                                      "--quiet")[2]


needs_constraints = pytest.mark.skipif("not has_constraints()", reason="no constraint library")


# ---- command lines ----

def test_help_lists_every_subcommand():
    rc, out, _ = run("--help")
    assert rc == 0
    assert all(f"  {name} " in out for name in SUBCOMMANDS)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_of_a_subcommand_fits_one_screen_and_names_the_exit_statuses(name):
    rc, out, err = run(name, "--help")
    assert rc == 0 and err == ""
    assert out.startswith(f"Usage: deepinfer {name} ")
    assert len(out.splitlines()) <= 60
    assert max(map(len, out.splitlines())) <= 100
    assert "Exit status" in out


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_is_in_the_documents(name):
    assert run(name, "--help")[1] in (ROOT / "docs/options.md").read_text()


def test_version():
    rc, out, _ = run("--version")
    assert rc == 0 and out.startswith("deepinfer 0.")


@pytest.mark.parametrize("args", [
    [], ["nothing"], ["generate"], ["generate", "--nothing"], ["generate", "extra"],
    ["generate", "--model"], ["chat", "-Z"], ["logits", "--model", "x"],
])
def test_wrong_usage_ends_in_2_with_a_message(args):
    rc, out, err = run(*args)
    assert rc == 2 and out == ""
    assert err.startswith("Usage:") or err.startswith("deepinfer")


@pytest.mark.parametrize("option,value,words", [
    ("--temperature", "-1", "0 to 100"), ("--temperature", "hot", "0 to 100"),
    ("--temperature", "nan", "0 to 100"), ("--top-p", "0", "to 1"), ("--top-p", "1.5", "to 1"),
    ("--top-k", "-3", "from 0"), ("--min-p", "2", "0 to 1"), ("--max-tokens", "-5", "from 0"),
    ("--max-tokens", "1e3", "integer"), ("--threads", "0", "from 1"), ("--batch", "0", "from 1"),
    ("--seed", "-1", "from 0"), ("--seed", "99999999999999999999", "from 0"),
    ("--numerics", "exact", "release, cache, f32"), ("--presence-penalty", "3", "-2 to 2"),
    ("--repetition-penalty", "0", "to 100"), ("--logprobs", "21", "0 to 20"),
    ("--effort", "huge", "low, high, max"), ("--context", "0", "from 1"),
    ("--stop", "", "not empty"),
])
def test_impossible_values_name_the_option_and_the_limits(option, value, words):
    rc, out, err = run("generate", "--model", TINY, "--prompt", "x", option, value)
    assert rc == 2 and out == ""
    assert option in err and words in err
    assert err.count("\n") == 1


def test_backend_that_does_not_exist_is_refused():
    rc, _, err = run("generate", "--model", TINY, "--prompt", "x", "--backend", "abacus")
    assert rc == 2 and "abacus" in err


def test_context_beyond_the_model_is_refused():
    rc, _, err = run("generate", "--model", TINY, "--prompt", "x", "--context", "9999999")
    assert rc == 2 and "9999999" in err and "1048576" in err


def test_fast_back_ends_have_release_numerics_only():
    rc, _, err = run("generate", "--model", TINY, "--prompt", "x", "--numerics", "f32",
                     "--backend", "avx2")
    assert rc == 2 and err.count("\n") == 1


# ---- models ----

def test_missing_model_is_named():
    rc, _, err = run("generate", "--model", "/nowhere/model", "--prompt", "x")
    assert rc == 2 and "/nowhere/model" in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json",
                                  "model-00002-of-00003.safetensors"])
def test_missing_file_of_a_model_is_named_and_nothing_is_written(tmp_path, name):
    model = tmp_path / "model"
    model.mkdir()
    for file in TINY.iterdir():
        if file.name != name:
            (model / file.name).symlink_to(file)
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x"}\n')
    target = tmp_path / "out.jsonl"
    rc, _, err = run("generate", "--model", model, "--input", source, "--output", target)
    assert rc == 2 and name in err and err.count("\n") == 1
    assert not target.exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json",
                                  "model-00002-of-00003.safetensors"])
def test_pipe_in_place_of_a_model_file_is_refused_and_not_waited_for(tmp_path, name):
    model = tmp_path / "model"
    model.mkdir()
    for file in TINY.iterdir():
        if file.name != name:
            (model / file.name).symlink_to(file)
    os.mkfifo(model / name)
    rc, _, err = run("generate", "--model", model, "--prompt", "x", timeout=20)
    assert rc == 2 and name in err and "regular file" in err and err.count("\n") == 1


def test_truncated_shard_is_refused(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    shard = model / "model-00003-of-00003.safetensors"
    os.chmod(shard, 0o644)
    with open(shard, "r+b") as f:
        f.truncate(shard.stat().st_size - 1000)
    rc, _, err = run("chat", "--model", model, stdin=b"hi\n")
    assert rc == 2 and shard.name in err


# ---- one prompt ----

def test_greedy_chat_answers():
    assert ask("Hello!", *OFF) == "Hello! How can I help you?\n"


def test_thinking_is_printed_before_the_answer():
    out = ask("What is the capital of Norway?")
    reasoning, answer = out.split("\n\n")
    assert "Oslo" in reasoning and "Oslo" in answer
    assert "</think>" not in out and "\033" not in out


def test_raw_prompt_is_continued():
    out = ask("It was a fine morning, and Elizabeth", "--raw", "--max-tokens", "4")
    assert out.startswith(" ") and len(out.split()) in (3, 4)


def test_prompt_statistics_go_to_standard_error():
    rc, out, err = run("generate", "--model", TINY, "--prompt", "Hello!", "--temperature", "0", *OFF,
                       "--seed", "12")
    assert rc == 0 and out == "Hello! How can I help you?\n"
    assert "8 prompt tokens" in err and "seed 12" in err


def test_seed_makes_the_answer():
    args = ["--temperature", "1", "--max-tokens", "12"]
    one, same, other = (ask("Tell me a story.", "--seed", seed, *args) for seed in (1, 1, 2))
    assert one == same and one != other


@pytest.mark.parametrize("text", ["", b"\xff\xfe"])
def test_prompts_that_are_empty_or_not_utf8_are_refused(text):
    rc, out, err = run("generate", "--model", TINY, "--prompt", os.fsdecode(text))
    assert rc == 2 and out == ""
    assert "empty" in err or "UTF-8" in err


def test_prompt_longer_than_the_context_is_refused():
    rc, _, err = run("generate", "--model", TINY, "--prompt", "word " * 200, "--context", "64")
    assert rc == 2 and "64 tokens" in err


def test_zero_tokens_are_zero_tokens():
    rc, out, err = run("generate", "--model", TINY, "--prompt", "Hello!", "--max-tokens", "0")
    assert rc == 0 and out == "\n" and " 0 tokens" in err


# ---- files ----

def test_answers_come_in_order_with_all_fields(tmp_path):
    got = batch(tmp_path, [
        user("Hello!", custom_id="one"),
        {"prompt_token_ids": [0, 6384, 42, 524, 81, 3, 6385, 6388], "temperature": 0},
        {"prompt": "It was a fine morning", "max_tokens": 3, "seed": 5},
    ])
    assert [g["index"] for g in got] == [0, 1, 2]
    assert got[0]["custom_id"] == "one" and "custom_id" not in got[1]
    assert got[0]["text"] == got[1]["text"] == "Hello! How can I help you?"
    assert got[0]["token_ids"] == got[1]["token_ids"] and got[0]["token_ids"][-1] == 1
    assert [g["finish_reason"] for g in got] == ["stop", "stop", "length"]
    assert got[0]["usage"] == {"prompt_tokens": 8, "completion_tokens": 11, "total_tokens": 19}
    assert got[2]["seed"] == 5 and len(got[2]["token_ids"]) == 3


def test_answers_do_not_depend_on_what_else_runs(tmp_path):
    lines = [user(f"Tell me a story about a {x}.", temperature=0.9, seed=i, max_tokens=10 + i)
             for i, x in enumerate(["fox", "kite", "dog", "boat", "cat", "bird"])]
    together = batch(tmp_path, lines, "--batch", "6", "--threads", "2", name="a.jsonl")
    alone = batch(tmp_path, lines, "--batch", "1", "--threads", "1", name="b.jsonl")
    assert [g["token_ids"] for g in together] == [g["token_ids"] for g in alone]


def test_bad_lines_get_errors_in_their_place(tmp_path):
    bad = [
        (b"not json", "line 2:"),
        (b'{"prompt": "\xff"}', "line 3:"),
        ({"prompt": ""}, "empty"),
        ({"prompt_token_ids": []}, "empty"),
        ({"messages": []}, "Empty input messages"),
        ({}, "prompt"),
        ({"prompt": "x", "messages": []}, "only one of"),
        ({"prompt_token_ids": [VOCAB]}, f"prompt_token_ids[0] is {VOCAB}"),
        ({"prompt_token_ids": [0, -1]}, "prompt_token_ids[1] is -1"),
        ({"prompt_token_ids": [2 ** 31]}, str(2 ** 31)),
        (b'{"prompt_token_ids": [9223372036854775808]}', "line 12:"),
        ({"prompt": "x", "stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"prompt": "x", "logit_bias": {str(VOCAB): 1}}, "logit_bias"),
        ({"prompt": "x", "logit_bias": {"x": 1}}, "logit_bias"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "temperature": "hot"}, "line 17:"),
        ({"prompt": "x", "top_p": 0}, "top_p"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "x", "n": 2}, "n = 1"),
        ({"prompt": "x", "seed": -1}, "seed"),
        ({"prompt": "x", "stop": ["a", ""]}, "stop"),
        ({"prompt": "x", "top_logprobs": 2}, "top_logprobs"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "robot"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, "tools"),
        ({"prompt_token_ids": [5] * 300}, "300"),
        (b'{"prompt": "x"} {"prompt": "y"}', "line 27:"),
        (b'{"prompt": "x"', "line 28:"),
    ]
    lines = [user("Hello!")] + [line for line, _ in bad] + [user("Hello!", custom_id="last")]
    got = batch(tmp_path, lines, "--context", "256", status=1)
    assert len(got) == len(lines)
    assert got[0]["text"] == got[-1]["text"] == "Hello! How can I help you?"
    for answer, (line, words) in zip(got[1:], bad):
        assert words in answer["error"]["message"], (line, answer)
        assert answer["error"]["type"] == "invalid_request_error"
        assert "text" not in answer


def test_blank_lines_are_skipped_and_the_last_needs_no_newline(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('\n{"prompt": "A", "max_tokens": 1}\n  \r\n{"prompt": "B", "max_tokens": 1}')
    rc, out, err = run("generate", "--model", TINY, "--input", source, "--quiet")
    assert rc == 0 and [json.loads(x)["index"] for x in out.splitlines()] == [0, 1]


def test_standard_input_and_output():
    rc, out, _ = run("generate", "--model", TINY, "--input", "-", "--quiet",
                     stdin=b'{"prompt": "A", "max_tokens": 1}\n')
    assert rc == 0 and json.loads(out)["finish_reason"] == "length"


def test_input_may_be_a_pipe_with_a_name():
    rc, out, _ = run("generate", "--model", TINY, "--input", "/dev/stdin", "--quiet",
                     stdin=b'{"prompt": "A", "max_tokens": 1}\n')
    assert rc == 0 and json.loads(out)["finish_reason"] == "length"


def test_empty_input_gives_an_empty_output(tmp_path):
    assert batch(tmp_path, []) == []


def test_half_done_output_is_taken_up(tmp_path):
    lines = [user("Hello!", custom_id=f"é {i}", seed=i) for i in range(5)]
    whole = batch(tmp_path, lines)
    text = (tmp_path / "out.jsonl").read_bytes()
    cut = text.index(b"\n", text.index(b"\n") + 1) + 20  # two lines and a part of the third
    (tmp_path / "half.jsonl").write_bytes(text[:cut])
    assert batch(tmp_path, lines, name="half.jsonl") == whole
    assert batch(tmp_path, lines, name="half.jsonl") == whole  # nothing left to do
    assert (tmp_path / "half.jsonl").read_bytes() == text


def test_taken_up_errors_still_count(tmp_path):
    lines = [{"prompt": ""}, {"prompt": "A", "max_tokens": 1, "seed": 1}]
    first = batch(tmp_path, lines, status=1)
    assert batch(tmp_path, lines, status=1) == first


def test_output_of_another_input_is_not_touched(tmp_path):
    batch(tmp_path, [user("Hello!", custom_id="a")])
    before = (tmp_path / "out.jsonl").read_bytes()
    for lines in ([user("Hello!", custom_id="b")], [user("Hello!")], []):
        assert batch(tmp_path, lines, status=2)
        assert (tmp_path / "out.jsonl").read_bytes() == before
    got = batch(tmp_path, [user("Hello!", custom_id="b")], "--overwrite")
    assert got[0]["custom_id"] == "b"


def test_input_is_never_overwritten(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x", "max_tokens": 1}\n')
    (tmp_path / "link.jsonl").symlink_to(source)
    rc, _, err = run("generate", "--model", TINY, "--input", source, "--output",
                     tmp_path / "link.jsonl", "--overwrite")
    assert rc == 2 and "input itself" in err
    assert source.read_text() == '{"prompt": "x", "max_tokens": 1}\n'


def test_unwritable_output_is_named(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x", "max_tokens": 1}\n')
    rc, _, err = run("generate", "--model", TINY, "--input", source, "--output",
                     tmp_path / "no" / "out.jsonl")
    assert rc == 2 and "out.jsonl" in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_is_an_error():
    with open("/dev/full", "w") as full:
        done = subprocess.run([BINARY, "generate", "--model", TINY, "--input", "-", "--quiet"],
                              input=b'{"prompt": "x", "max_tokens": 1}\n', stdout=full,
                              stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 2 and b"No space left" in done.stderr


def test_max_tokens_beyond_the_context_are_cut(tmp_path):
    ids = [0] + [300] * 59
    got = batch(tmp_path, [
        {"prompt_token_ids": ids, "max_tokens": 1000, "ignore_eos": True},
        {"prompt_token_ids": ids, "ignore_eos": True},
        {"prompt_token_ids": ids + [5] * 4, "ignore_eos": True},
        {"prompt_token_ids": ids + [5] * 5},
    ], "--context", "64", status=1)
    assert [len(g["token_ids"]) for g in got[:3]] == [4, 4, 1]
    assert all(g["finish_reason"] == "length" for g in got[:3])
    assert "64 tokens" in got[3]["error"]["message"]


def test_stop_strings_cut_the_text_before_them(tmp_path):
    plain, stopped, inside, never = batch(tmp_path, [
        user("Hello!"), user("Hello!", stop="can I h"), user("Hello!", stop=["zzz", "ell"]),
        user("Hello!", stop="you?!"),
    ])
    assert stopped["text"] == "Hello! How " and stopped["finish_reason"] == "stop"
    assert inside["text"] == "H"
    assert never["text"] == plain["text"]


def test_control_tokens_in_a_message_stay_text(tmp_path):
    got = batch(tmp_path, [user("<｜User｜>", max_tokens=0), user("x", max_tokens=0),
                           user("", max_tokens=0)])
    counts = [g["usage"]["prompt_tokens"] for g in got]
    assert counts[2] == 4 and counts[1] == 5 and counts[0] > 6


def test_logprobs_are_sorted_and_hold_the_token(tmp_path):
    got, = batch(tmp_path, [user("Hello!", logprobs=True, top_logprobs=5)])
    assert [e["id"] for e in got["logprobs"]] == got["token_ids"]
    for entry in got["logprobs"]:
        top = [t["logprob"] for t in entry["top"]]
        assert len(top) == 5 and top == sorted(top, reverse=True)
        assert entry["rank"] == 0 and entry["id"] == entry["top"][0]["id"]
        assert entry["logprob"] == top[0] < 0


def test_echo_without_new_tokens_gives_prompt_logprobs(tmp_path):
    got, = batch(tmp_path, [{"prompt": "Hello there", "max_tokens": 0, "echo": True,
                             "logprobs": 1}])
    assert got["text"] == "Hello there" and got["token_ids"] == []
    assert got["finish_reason"] == "length"
    assert got["prompt_logprobs"][0] is None
    assert len(got["prompt_logprobs"]) == got["usage"]["prompt_tokens"]


def test_bytes_that_are_no_characters_are_replaced_one_by_one(tmp_path):
    """0xF0, the first byte of an emoji, is the byte symbol U+00F0 of the vocabulary."""
    first = json.loads((TINY / "tokenizer.json").read_text())["model"]["vocab"]["\u00f0"]
    lines = [{"prompt": "x", "logit_bias": {str(first): 100}, "max_tokens": n, "temperature": 0}
             for n in range(1, 5)]
    for n, got in enumerate(batch(tmp_path, lines), 1):
        assert got["token_ids"] == [first] * n and got["text"] == "\ufffd" * n


# ---- OpenAI batch lines ----

def openai(body, url="/v1/chat/completions", custom_id="c", **more):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more}


def test_openai_lines_get_openai_answers(tmp_path):
    body = {"model": "m", **user("Hello!"), "seed": 3}
    chat, text = batch(tmp_path, [
        openai(body),
        openai({"model": "m", "prompt": "Once", "max_tokens": 2, "logprobs": 1}, "/v1/completions",
               "d"),
    ])
    assert chat["custom_id"] == "c" and chat["error"] is None
    answer = chat["response"]
    assert answer["status_code"] == 200 and answer["body"]["object"] == "chat.completion"
    choice = answer["body"]["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hello! How can I help you?"}
    assert choice["finish_reason"] == "stop" and choice["index"] == 0
    assert answer["body"]["usage"]["completion_tokens"] == 11 and answer["body"]["seed"] == 3
    body = text["response"]["body"]
    assert body["object"] == "text_completion" and body["model"] == "m"
    assert len(body["choices"][0]["logprobs"]["tokens"]) == 2


def test_openai_reasoning_has_its_own_field(tmp_path):
    got, = batch(tmp_path, [openai({"model": "m", "temperature": 0, "reasoning_effort": "low",
                                    "messages": [{"role": "user",
                                                  "content": "What is the capital of Norway?"}]})])
    message = got["response"]["body"]["choices"][0]["message"]
    assert "Oslo" in message["reasoning_content"] and "Oslo" in message["content"]
    usage = got["response"]["body"]["usage"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


@pytest.mark.parametrize("line,words", [
    (openai({"model": "m", "messages": []}), "Empty input messages"),
    (openai({"model": "m", "prompt": "x"}), "messages"),
    (openai(user("x"), "/v1/completions"), "prompt"),
    (openai(user("x"), "/v1/embeddings"), "/v1/embeddings"),
    ({"custom_id": "c", "method": "GET", "url": "/v1/completions", "body": {"prompt": "x"}}, "POST"),
    ({"custom_id": "c", "method": "POST", "url": "/v1/completions"}, "body"),
    (openai(user("x", max_tokens=5000)), "5"),
])
def test_bad_openai_lines_have_status_400(tmp_path, line, words):
    got, = batch(tmp_path, [line], "--context", "128", status=1)
    assert got["custom_id"] == "c" and got["response"]["status_code"] == 400
    assert words in got["response"]["body"]["error"]["message"]
    assert got["error"] == got["response"]["body"]["error"]


# ---- chat ----

def talk(*lines, args=()):
    rc, out, err = run("chat", "--model", TINY, "--temperature", "0", *OFF, *args,
                       stdin="".join(line + "\n" for line in lines).encode())
    assert rc == 0, err
    return out, err


def test_chat_answers_each_line_and_keeps_the_conversation():
    out, err = talk("Hello!", "Hello!")
    assert out.splitlines()[0] == "Hello! How can I help you?"
    counts = [line.split()[0].strip("[") for line in err.splitlines() if "prompt tokens" in line]
    assert counts[0] == "8" and int(counts[1]) > 16


def test_chat_keeps_the_state_of_the_turn_before():
    _, err = talk("Hello!", "What is the opposite of big?")
    kept = [line.split(" kept")[0].split()[-1] for line in err.splitlines() if " kept" in line]
    assert kept[0] == "0" and int(kept[1]) >= 18


def test_chat_with_kept_state_answers_like_a_cold_one(tmp_path):
    out, _ = talk("Hello!", "What is the opposite of big?")
    first, second = out.splitlines()
    got, = batch(tmp_path, [{"temperature": 0, "thinking": {"type": "disabled"}, "messages": [
        {"role": "user", "content": "Hello!"}, {"role": "assistant", "content": first},
        {"role": "user", "content": "What is the opposite of big?"}]}])
    assert got["text"] == second


def test_chat_commands():
    out, err = talk("/help", "Hello!", "/reset", "Hello!", "/nothing", "/think on", "/quit", "Hello!")
    assert "/reset" in out and "There is no command /nothing" in out and "Thinking is on" in out
    assert out.count("How can I help you?") == 2
    assert [line.split()[0] for line in err.splitlines() if "prompt tokens" in line] == ["[8", "[8"]


def test_chat_joins_lines_that_end_in_a_backslash():
    _, err = talk("Hello \\", "there")
    assert sum("prompt tokens" in line for line in err.splitlines()) == 1


def test_chat_message_that_is_too_long_is_told_and_forgotten():
    out, _ = talk("word " * 200, "Hello!", args=["--context", "64"])
    assert "maximum context length is 64" in out and "How can I help you?" in out


def test_interrupt_stops_the_answer_and_not_the_program():
    chat = subprocess.Popen([BINARY, "chat", "--model", str(TINY), "--backend", "ref", "--ignore-eos",
                             *OFF], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)
    try:
        chat.stdin.write(b"Tell me a story.\n")
        chat.stdin.flush()
        chat.stdout.read(5)  # the answer has begun
        chat.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert chat.poll() is None
        out, err = chat.communicate(b"/help\n/quit\n", timeout=60)
        assert chat.returncode == 0
        assert b", stopped" in err and b"/reset" in out
    finally:
        chat.kill()


# ---- logits ----

def safetensors(path):
    raw = path.read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8:8 + size])
    out = {}
    for name, t in head.items():
        a, b = t["data_offsets"]
        code = {"F32": "f", "I32": "i"}[t["dtype"]]
        out[name] = (t["shape"], struct.unpack(f"<{(b - a) // 4}{code}", raw[8 + size + a:8 + size + b]))
    assert 8 + size + max(t["data_offsets"][1] for t in head.values()) == len(raw)
    return out


def logits(tmp_path, ids, *args, status=0):
    source, target = tmp_path / "ids", tmp_path / "logits.safetensors"
    source.write_text(ids)
    rc, _, err = run("logits", "--model", TINY, "--ids", source, "--out", target, "--quiet", *args)
    assert rc == status, err
    assert not (tmp_path / "logits.safetensors.part").exists()
    if status:
        assert not target.exists()
        return err
    return safetensors(target)


def test_logits_predict_what_greedy_says(tmp_path):
    ids = [0, 6384, 42, 524, 81, 3, 6385, 6388]
    got = logits(tmp_path, json.dumps(ids))
    shape, values = got["logits"]
    assert shape == [8, VOCAB] and got["ids"] == ([8], tuple(ids))
    last = values[-VOCAB:]
    assert last.index(max(last)) == 42  # "H"


def test_logits_do_not_depend_on_chunks_or_on_how_ids_are_written(tmp_path):
    ids = [0] + [(i * 37) % 6000 + 3 for i in range(40)]
    whole = logits(tmp_path, json.dumps(ids), "--chunk", "64")
    parts = logits(tmp_path, " ".join(map(str, ids)) + "\n", "--chunk", "7", "--threads", "1")
    assert whole == parts


@pytest.mark.parametrize("ids,words", [
    ("", "no ids"), ("[]", "no ids"), ("0 x", "not an integer"), ("[0, 6400]", "id 1"),
    ("0 -3", "is -3"), ("[0, 1", ":1:"), ("[0.5]", ":1:"), (" ".join(["5"] * 65), "65 ids"),
])
def test_bad_ids_are_refused(tmp_path, ids, words):
    assert words in logits(tmp_path, ids, "--context", "64", status=2)


# ---- the other programs ----

def test_inspect_prints_the_shipped_model():
    rc, out, _ = run("inspect", TINY)
    assert rc == 0 and "6400" in out.replace(",", "")


def test_selftest_ends_with_a_verdict():
    rc, out, err = run("selftest", timeout=300)
    assert rc == 0, out + err
    assert "passed" in out.splitlines()[-1]


def test_selftest_compares_back_ends_on_a_model():
    rc, out, err = run("selftest", "--model", TINY, timeout=300)
    assert rc == 0, out + err
    assert "passed" in out.splitlines()[-1]


# ---- constraints ----

PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}


def formatted(kind, **fields):
    return {"type": kind, **fields}


@needs_constraints
def test_answers_follow_the_response_format_of_their_line(tmp_path):
    schema = formatted("json_schema", json_schema={"name": "p", "strict": True, "schema": PERSON})
    lines = [user("Who?", response_format=schema, seed=i, temperature=i % 2) for i in range(6)]
    lines += [user("Who?", response_format=formatted("regex", regex="[A-Z][a-z]{2,8} (one|two)")),
              user("Who?", response_format=formatted("ebnf", grammar='root ::= "<" root ">" | "x"')),
              user("Who?", response_format=formatted("text"), max_tokens=4)]
    answers = batch(tmp_path, lines, "--seed", "5")
    assert answers == batch(tmp_path, lines, "--seed", "5", "--draft-tokens", "0", "--batch", "1",
                            name="alone.jsonl")
    for a in answers[:6]:
        value = json.loads(a["text"])
        assert list(value) == ["name", "age"] and len(value["name"]) <= 12 and 0 <= value["age"] <= 150
    assert re.fullmatch("[A-Z][a-z]{2,8} (one|two)", answers[6]["text"])
    assert re.fullmatch("(<*)x(>*)", answers[7]["text"])
    assert answers[7]["text"].count("<") == answers[7]["text"].count(">")
    assert [a["finish_reason"] for a in answers] == ["stop"] * 8 + ["length"]


@needs_constraints
def test_the_constraint_begins_behind_the_reasoning():
    rc, out, err = run("generate", "-m", TINY, "-p", "Is it cold?", "--regex", "(yes|no)", *GREEDY)
    assert rc == 0, err
    assert re.search("(yes|no)$", out.strip()) and len(out.strip()) > 3


@needs_constraints
def test_the_constraint_of_the_options_holds_for_lines_without_their_own(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(PERSON))
    answers = batch(tmp_path, [user("Who?"), user("Who?", response_format=formatted("regex", regex="a|b"))],
                    "--json-schema", tmp_path / "s.json")
    assert set(json.loads(answers[0]["text"])) == {"name", "age"}
    assert answers[1]["text"] in ("a", "b")


@needs_constraints
@pytest.mark.parametrize("fields, message", [
    (formatted("json_schema", json_schema={"strict": True, "schema": {"not": {}}}), '"not" at "/not"'),
    (formatted("json_schema", json_schema={"schema": {"type": "interger"}}), "no such type"),
    (formatted("json_schema", json_schema={}), "no \"json_schema.schema\""),
    (formatted("regex", regex="(a"), "unclosed group"),
    (formatted("ebnf", grammar="root ::= x"), "not defined"),
    (formatted("xml"), "must be text"),
])
def test_a_constraint_that_cannot_be_compiled_is_an_error_of_its_line(tmp_path, fields, message):
    answers = batch(tmp_path, [user("x", response_format=fields), user("x", max_tokens=1)], status=1)
    assert message in answers[0]["error"]["message"]
    assert answers[1]["finish_reason"] == "length"


def test_without_the_library_a_constraint_is_refused_not_ignored(tmp_path):
    env = {**os.environ, "DI_LLGUIDANCE": str(tmp_path / "nothing.so")}
    rc, out, err = run("generate", "-m", TINY, "-p", "x", "--regex", "a", "--quiet", env=env)
    assert (rc, out) == (2, "") and "not available" in err
    rc, out, err = run("generate", "-m", TINY, "-p", "x", "-n", "2", *GREEDY, env=env)
    assert rc == 0, err


def test_two_constraints_on_the_command_line_are_refused(tmp_path):
    rc, _, err = run("generate", "-m", TINY, "-p", "x", "--regex", "a", "--ebnf", tmp_path / "e")
    assert rc == 2 and "exclude each other" in err
