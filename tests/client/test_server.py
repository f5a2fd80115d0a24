"""`deepinfer serve` from the outside, with scripted replies: protocol, limits, life cycle."""
import concurrent.futures
import contextlib
import json
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import time

import pytest
from serving import BINARY, SANITIZED, TINY, VOCAB, Server, serve

FOX = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    script = [
        {"when": "[slow]", "reply": "tick ", "repeat": 100000, "step_us": 2000},
        {"when": "[crawl]", "reply": "tick ", "repeat": 100000, "step_us": 50000},
        {"when": "[late]", "reply": "at last", "wait_ms": 2500},
        {"when": "[error]", "reply": "some words", "finish": "error"},
        {"when": "[stops]", "reply": "abcDEFGHIJklm gammas end"},
        {"when": "[emoji]", "reply": "a 👩‍👩‍👧 שלום 漢字 b", "step_us": 100},
        {"when": "[flood]", "reply": FOX, "repeat": 1000000, "step_us": 0},
        {"when": "[short]", "reply": "yes", "step_us": 100},
    ]
    with serve("--keepalive", 1, script=script, tmp_path=tmp_path_factory.mktemp("s"),
               *["--max-queued", 64]) as s:
        yield s


def wait_quiet(server):
    server.wait_metric("deepinfer_requests_running", 0)
    server.wait_metric("deepinfer_http_requests_active", 0)


# ---- small endpoints ----

def test_health_live_and_ready(server):
    for path in ["/health", "/health/live", "/health/ready"]:
        assert "status" in json.loads(server.get(path))
    status, headers, body = server.request("HEAD", "/health")
    assert status == 200 and body == b"" and int(headers["content-length"]) > 0


def test_models_in_the_shape_of_each_vendor(server):
    ours = json.loads(server.get("/v1/models"))
    assert ours["object"] == "list" and ours["data"][0]["id"] == "tiny"
    assert ours["data"][0]["object"] == "model"
    theirs = json.loads(server.get("/v1/models", headers={"anthropic-version": "2026-10-21"}))
    assert theirs["data"][0]["type"] == "model" and theirs["has_more"] is False
    assert theirs["first_id"] == theirs["last_id"] == "tiny"
    assert json.loads(server.get("/v1/models/tiny"))["id"] == "tiny"
    assert json.loads(server.get("/v1/models/t%69ny"))["id"] == "tiny"
    assert json.loads(server.get("/v1/models/other", status=404))["error"]["code"] == \
        "model_not_found"


def test_tokens_and_back(server):
    text = "Hello <｜User｜> 漢字 🙂"
    plain = server.post("/tokenize", {"prompt": text})
    special = server.post("/tokenize", {"prompt": text, "parse_special": True,
                                        "return_token_strs": True})
    assert plain["count"] == len(plain["tokens"]) > special["count"]
    assert "<｜User｜>" in special["token_strs"]
    for ids in (plain["tokens"], special["tokens"]):
        assert server.post("/detokenize", {"tokens": ids})["prompt"] == text
    skipped = server.post("/detokenize", {"tokens": special["tokens"] + [1],
                                          "skip_special_tokens": True})
    assert skipped["prompt"] == text
    assert server.post("/tokenize", {"prompt": ""})["tokens"] == []


@pytest.mark.parametrize("body", [
    "", "{", "[]", "{}", '{"prompt": 1}', '{"prompt": "\xff"}'.encode("latin-1"), '{"prompt": "a"} x',
    '{"prompt": "\\ud800"}', "[" * 100000])
def test_bad_bodies_of_tokenize(server, body):
    assert server.request("POST", "/tokenize", body)[0] == 400


@pytest.mark.parametrize("ids", [[VOCAB], [-1], [2 ** 31], [2 ** 63], [1.5], ["a"], 1, None])
def test_ids_outside_the_vocabulary(server, ids):
    error = server.post("/detokenize", {"tokens": ids}, status=400)["error"]
    assert "tokens" in error["message"]


def test_unknown_paths_and_methods(server):
    assert server.request("GET", "/nothing")[0] == 404
    status, headers, _ = server.request("GET", "/v1/completions")
    assert status == 405 and headers["allow"] == "POST"
    status, headers, _ = server.request("POST", "/health", "{}")
    assert status == 405 and headers["allow"] == "GET, HEAD"
    assert server.request("DELETE", "/v1/models")[0] == 405


# ---- completions ----

def test_completion_whole_and_streamed_agree(server):
    whole = server.complete(max_tokens=12)
    assert whole["object"] == "text_completion" and whole["model"] == "tiny"
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None
    assert FOX.startswith(choice["text"])
    assert whole["usage"]["completion_tokens"] == 12
    events = server.events("/v1/completions",
                           {"model": "tiny", "prompt": "Hi", "max_tokens": 12,
                            "stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == [] and events[-2]["usage"] == whole["usage"]
    parts = [e["choices"][0] for e in events[:-2]]
    assert "".join(p["text"] for p in parts) == choice["text"]
    assert [p["finish_reason"] for p in parts] == [None] * (len(parts) - 1) + ["length"]
    assert all(e["usage"] is None for e in events[:-2])


def test_usage_is_left_out_of_streams_that_do_not_ask(server):
    events = server.events("/v1/completions", {"model": "tiny", "prompt": "Hi", "max_tokens": 2})
    assert all("usage" not in e for e in events[:-1])


def test_several_prompts_and_choices(server):
    body = server.complete(["[short]", "b"], n=3, max_tokens=4)
    assert [c["index"] for c in body["choices"]] == list(range(6))
    assert [c["text"] for c in body["choices"][:3]] == ["yes"] * 3
    assert [c["finish_reason"] for c in body["choices"]] == ["stop"] * 3 + ["length"] * 3
    ids = server.post("/tokenize", {"prompt": "b"})["tokens"]
    same = server.complete([[0] + ids, [0] + ids], max_tokens=4)
    assert same["choices"][1]["text"] == body["choices"][3]["text"]
    assert same["usage"]["prompt_tokens"] == 2 * (1 + len(ids))
    assert server.complete(ids, max_tokens=1)["usage"]["prompt_tokens"] == len(ids)


def test_stop_strings_across_tokens(server):
    # the stop string is spread over tokens, lies inside one, or begins and does not go on
    for stop, text in [("DEFGHIJ", "abc"), ("gamma", "abcDEFGHIJklm "), ("as e", "abcDEFGHIJklm gamm"),
                       ("DEFGHIX", "abcDEFGHIJklm gammas end"), (["zzz", "lm"], "abcDEFGHIJk")]:
        whole = server.complete("[stops]", stop=stop, max_tokens=100)["choices"][0]
        assert whole["text"] == text and whole["finish_reason"] == "stop", stop
        events = server.events("/v1/completions", {"model": "tiny", "prompt": "[stops]",
                                                   "stop": stop, "max_tokens": 100})
        assert "".join(e["choices"][0]["text"] for e in events[:-1]) == text


def test_characters_split_over_tokens_come_whole(server):
    want = "a 👩‍👩‍👧 שלום 漢字 b"
    assert server.complete("[emoji]", max_tokens=100)["choices"][0]["text"] == want
    raw = server.events("/v1/completions", {"model": "tiny", "prompt": "[emoji]",
                                            "max_tokens": 100}, raw=True)
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in raw.split("\n")
             if line.startswith("data: {")]
    assert "".join(texts) == want and "\ufffd" not in raw
    # a cut in the middle of a character gives one replacement character at most, streamed or not
    for n in range(1, 30):
        whole = server.complete("[emoji]", max_tokens=n)["choices"][0]["text"]
        events = server.events("/v1/completions", {"model": "tiny", "prompt": "[emoji]",
                                                   "max_tokens": n})
        assert "".join(e["choices"][0]["text"] for e in events[:-1]) == whole
        assert whole.count("\ufffd") <= 1 and want.startswith(whole.rstrip("\ufffd"))


def test_logprobs(server):
    body = server.complete("x", max_tokens=3, logprobs=2, return_token_ids=True)
    lp = body["choices"][0]["logprobs"]
    assert "".join(lp["tokens"]) == body["choices"][0]["text"]
    assert lp["token_logprobs"] == [0, -0.125, -0.25]
    assert [len(t) for t in lp["top_logprobs"]] == [2, 2, 2]
    assert lp["text_offset"][0] == 0 and lp["text_offset"][1] == len(lp["tokens"][0])
    assert len(body["choices"][0]["token_ids"]) == 3
    events = server.events("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 3,
                                               "logprobs": 2})
    streamed = [e["choices"][0]["logprobs"] for e in events[:-1]]
    assert sum((s["tokens"] for s in streamed if s), []) == lp["tokens"]
    assert sum((s["text_offset"] for s in streamed if s), []) == lp["text_offset"]


def test_no_tokens_and_echo(server):
    body = server.complete("Hello", max_tokens=0)
    assert body["choices"][0]["text"] == "" and body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    assert server.complete("Hello", max_tokens=0, echo=True)["choices"][0]["text"] == "Hello"
    assert server.complete("Hello ", max_tokens=1, echo=True)["choices"][0]["text"] == "Hello The"


@pytest.mark.parametrize("field, value", [
    ("prompt", ""), ("prompt", []), ("prompt", [[]]), ("prompt", None), ("prompt", 5),
    ("prompt", ["a", ""]), ("prompt", ["a", 1]), ("prompt", [{}]),
    ("prompt", [VOCAB]), ("prompt", [VOCAB + 1]), ("prompt", [-1]), ("prompt", [2 ** 31]),
    ("prompt", [2 ** 63]), ("prompt", [0, 1e300]), ("prompt", [1.5]),
    ("stop_token_ids", [VOCAB]), ("stop_token_ids", [-1]), ("stop_token_ids", [2 ** 63]),
    ("stop_token_ids", 3), ("stop_token_ids", list(range(40))),
    ("logit_bias", {str(VOCAB): 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"x": 1}),
    ("logit_bias", {"": 1}), ("logit_bias", {"9223372036854775808": 1}), ("logit_bias", {"1": 101}),
    ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", "5"), ("n", 0), ("n", 65), ("n", 2 ** 40),
    ("temperature", -1), ("temperature", 3), ("temperature", "x"), ("top_p", 0), ("top_p", 2),
    ("seed", -1), ("seed", 2 ** 63), ("logprobs", 21), ("logprobs", -1), ("stop", [""]),
    ("stop", ["a"] * 17), ("stop", 1), ("stream", 1), ("model", ""), ("suffix", "x"),
])
def test_bad_fields_are_named(server, field, value):
    body = {"model": "tiny", "prompt": "Hi", "max_tokens": 1, field: value}
    error = server.post("/v1/completions", body, status=400)["error"]
    assert error["message"].split(".")[0].find(field) >= 0 or field in error["message"], error
    assert error["type"] == "invalid_request_error"
    assert server.complete("[short]")["choices"][0]["text"] == "yes"


def test_a_bad_request_does_not_touch_its_neighbours(server):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        good = pool.submit(server.complete, "[slow]", max_tokens=50)
        for _ in range(20):
            server.post("/v1/completions", {"model": "tiny", "prompt": [VOCAB]}, status=400)
        assert good.result()["choices"][0]["text"] == "tick " * 25 or \
            good.result()["usage"]["completion_tokens"] == 50


def test_unknown_fields_and_nulls_are_ignored(server):
    body = server.complete("[short]", user="me", nothing={"a": [1]}, stop=None, seed=None,
                           temperature=None, logprobs=None, stream=False)
    assert body["choices"][0]["text"] == "yes"


def test_unknown_model(server):
    error = server.post("/v1/completions", {"model": "gpt-9", "prompt": "a"}, status=404)["error"]
    assert error["code"] == "model_not_found" and error["param"] == "model"


def test_prompts_beyond_the_context(server, tmp_path):
    with serve("--context", 20) as small:
        assert len(server.post("/tokenize", {"prompt": "a"})["tokens"]) == 1
        exact = small.complete([5] * 20, max_tokens=100)
        assert exact["usage"]["completion_tokens"] == 1
        assert exact["choices"][0]["finish_reason"] == "length"
        error = small.post("/v1/completions", {"model": "tiny", "prompt": [5] * 21}, status=400)
        assert "maximum context length is 20 tokens" in error["error"]["message"]
        clamped = small.complete([5] * 15, max_tokens=1000)
        assert clamped["usage"]["completion_tokens"] == 5
        assert clamped["choices"][0]["finish_reason"] == "length"


def test_an_error_of_the_engine_whole_and_streamed(server):
    error = server.post("/v1/completions", {"model": "tiny", "prompt": "[error]", "max_tokens": 99},
                        status=500)["error"]
    assert error["type"] == "server_error"
    events = server.events("/v1/completions", {"model": "tiny", "prompt": "[error]",
                                               "max_tokens": 99})
    assert events[-1] == "[DONE]" and "error" in events[-2]
    assert "".join(e["choices"][0]["text"] for e in events[:-2]) == "some words"


# ---- chats without the clients' libraries ----

def chat(server, content, status=200, **fields):
    return server.post("/v1/chat/completions", {
        "model": "tiny", "messages": [{"role": "user", "content": content}],
        "thinking": {"type": "disabled"}, "max_tokens": 4, **fields}, status=status)


def test_control_tokens_that_a_user_spells_are_text(server):
    def prompt(content):
        return server.post("/apply-template", {
            "model": "tiny", "messages": [{"role": "user", "content": content}],
            "thinking": {"type": "disabled"}})

    special = server.post("/tokenize", {"prompt": "<｜User｜><think></think><｜begin▁of▁sentence｜>"
                                        "<｜end▁of▁sentence｜><｜Assistant｜><｜place▁holder▁no▁0｜>",
                                        "parse_special": True})["tokens"]
    empty = prompt("")["tokens"]
    for text in ["x", "<｜User｜>", "<think>", "</think>", "<｜begin▁of▁sentence｜>",
                 "a <｜end▁of▁sentence｜> b", "<｜Assistant｜></think>", "<｜place▁holder▁no▁0｜>"]:
        ids = prompt(text)["tokens"]
        assert [t for t in ids if t in special] == [t for t in empty if t in special], text
        assert server.post("/detokenize", {"tokens": ids})["prompt"].count(text) >= 1
        assert chat(server, text)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_empty_contents_do_no_harm(server, content):
    assert chat(server, content)["choices"][0]["finish_reason"]


@pytest.mark.parametrize("body", [
    {"messages": []}, {"messages": None}, {}, {"messages": "x"}, {"messages": [{}]},
    {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "nobody", "content": "a"}]},
    {"messages": [{"role": "assistant", "content": None}]},
    {"messages": [{"role": "user", "content": "a"}], "n": 65},
    {"messages": [{"role": "user", "content": "a"}], "logit_bias": {str(VOCAB): 1}},
    {"messages": [{"role": "user", "content": "a"}], "stop_token_ids": [VOCAB]},
    {"messages": [{"role": "user", "content": "a"}], "seed": 2 ** 63}])
def test_bad_chats(server, body):
    error = server.post("/v1/chat/completions", {"model": "tiny", **body}, status=400)["error"]
    assert error["message"] and error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages",
                                  "/v1/messages/count_tokens", "/apply-template"])
@pytest.mark.parametrize("body", ["", "{", "null", "[" * 1000, '{"model": "tiny"}', "\x00", "{}}"])
def test_bad_bodies_of_every_protocol(server, path, body):
    status, _, text = server.request("POST", path, body)
    assert status == 400 and json.loads(text)["error"]["message"]


def test_long_prompts_are_prepared_beside_the_loop(server):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(chat, server, "word " * 40000) for _ in range(4)]
        for _ in range(10):
            begin = time.monotonic()
            server.get("/health")
            assert time.monotonic() - begin < 1
        assert all(j.result()["usage"]["prompt_tokens"] > 30000 for j in jobs)


def test_clients_that_go_while_their_prompt_is_prepared(server):
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "word " * 40000}],
                       "stream": True}).encode()
    for _ in range(6):
        with socket.create_connection(("127.0.0.1", server.port)) as s:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: " +
                      str(len(body)).encode() + b"\r\n\r\n" + body)
    wait_quiet(server)
    assert chat(server, "[short]")


# ---- connections ----

def test_one_connection_serves_many_requests_also_ahead_of_their_turn(server):
    one = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 63\r\n\r\n" + \
        b'{"model": "tiny", "prompt": "[short]", "max_tokens": 9        }'
    last = b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    got = server.raw(one * 30 + last)
    assert got.count(b"HTTP/1.1 200 OK") == 31 and got.count(b'"text": "yes"') == 30
    assert got.endswith(b'{"status": "ok"}')


def test_a_request_may_come_byte_by_byte(server):
    body = b'{"model": "tiny", "prompt": "[short]"}'
    text = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: " + \
        str(len(body)).encode() + b"\r\n\r\n" + body
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        for i in range(len(text)):
            s.sendall(text[i:i + 1])
            if i % 20 == 0:
                time.sleep(0.001)
        got = b""
        while piece := s.recv(4096):
            got += piece
    assert b'"text": "yes"' in got


def test_expect_100_continue(server):
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(b"POST /tokenize HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n"
                  b"content-length: 15\r\n\r\n")
        assert s.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(b'{"prompt": "a"}')
        assert s.recv(1000).startswith(b"HTTP/1.1 200 OK")
        # a body that would be refused is not asked for
        s.sendall(b"POST /tokenize HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n"
                  b"content-length: 99999999999\r\n\r\n")
        assert s.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_http_1_0(server):
    body = b'{"model": "tiny", "prompt": "Hi", "max_tokens": 3, "stream": true}'
    got = server.raw(b"POST /v1/completions HTTP/1.0\r\ncontent-length: 66\r\n\r\n" + body)
    head, _, rest = got.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and b"connection: close" in head
    assert rest.startswith(b"data: {") and rest.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("text, status", [
    (b"nonsense\r\n\r\n", 400), (b"GET / HTTP/3.0\r\n\r\n", 505),
    (b"POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
     400),
    (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 40000 + b"\r\n\r\n", 431),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400)])
def test_malformed_http_gets_its_status_and_the_connection_ends(server, text, status):
    got = server.raw(text)
    assert got.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in got
    assert b'{"error": ' in got


def test_large_bodies(server):
    with serve("--max-body-mb", 2) as small:
        text = "word " * 300000
        assert small.post("/tokenize", {"prompt": text})["count"] > 100000
        assert small.request("POST", "/tokenize", "x" * (3 << 20))[0] == 413
        assert small.raw(b"POST /tokenize HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" +
                         (b"100000\r\n" + b"x" * 0x100000 + b"\r\n") * 3).startswith(
                             b"HTTP/1.1 413 ")
        assert small.get("/health")


def test_request_ids_and_trace_context_are_passed_on(server):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    _, headers, _ = server.request("POST", "/v1/completions",
                                   {"model": "tiny", "prompt": "[short]"},
                                   {"x-request-id": "my.id-1", "traceparent": trace})
    assert headers["x-request-id"] == "my.id-1"
    assert headers["traceparent"].startswith(trace[:36]) and headers["traceparent"].endswith("-01")
    assert headers["traceparent"] != trace
    line = server.log("id=my.id-1")
    assert trace[3:35] in line and "output=" in line and "finish=stop" in line
    for bad in ["a b", "x" * 65, 'quo"te']:
        _, headers, _ = server.request("GET", "/health", headers={"x-request-id": bad,
                                                                  "traceparent": "00-0-0-0"})
        assert re.fullmatch("[0-9a-f]{32}", headers["x-request-id"])
        assert "traceparent" not in headers


def test_comments_keep_a_silent_stream_alive(server):
    text = server.events("/v1/completions", {"model": "tiny", "prompt": "[late]"}, raw=True)
    assert text.count(": keep-alive\n\n") >= 2
    assert "at" in text and text.endswith("data: [DONE]\n\n")


# ---- clients that go, or do not read ----

def open_stream(server, prompt, stream=True, **fields):
    body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 60000, "stream": stream,
                       **fields}).encode()
    s = socket.create_connection(("127.0.0.1", server.port))
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: " +
              str(len(body)).encode() + b"\r\n\r\n" + body)
    return s


def test_requests_of_clients_that_went_are_cancelled(server):
    wait_quiet(server)
    before = server.metric("deepinfer_clients_gone_total")
    sockets = [open_stream(server, "[slow]", stream=i % 2 == 0) for i in range(64)]
    server.wait_metric("deepinfer_requests_running", 64)
    for s in sockets[::2]:
        assert s.recv(10)
    for i, s in enumerate(sockets):
        if i % 3 == 0:  # also with a reset instead of an orderly end
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    server.wait_metric("deepinfer_requests_running", 0, timeout=1)
    assert server.metric("deepinfer_clients_gone_total") == before + 64
    server.wait_metric("deepinfer_http_requests_active", 0)


def test_clients_may_go_at_any_byte(server):
    bodies = [("/v1/completions", {"prompt": "[short]", "max_tokens": 9}),
              ("/v1/completions", {"prompt": ["a", "[short]"], "max_tokens": 5, "n": 2, "logprobs": 1}),
              ("/v1/chat/completions", {"messages": [{"role": "user", "content": "[short]"}]}),
              ("/v1/messages", {"messages": [{"role": "user", "content": "[stops]"}], "max_tokens": 20}),
              ("/v1/responses", {"input": "[short]"}),
              ("/tokenize", {"prompt": "word " * 5000})]
    rng = random.Random(7)

    def one(_):
        path, body = rng.choice(bodies)
        text = json.dumps({"model": "tiny", "stream": rng.random() < 0.6, **body}).encode()
        text = b"POST " + path.encode() + b" HTTP/1.1\r\nhost: a\r\ncontent-length: " + \
            str(len(text)).encode() + b"\r\n\r\n" + text
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as c:
            if rng.random() < 0.5:
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            c.sendall(text[:rng.randrange(len(text))] if rng.random() < 0.2 else text)
            want = rng.choice([0, 1, 200, 600, 1500, 4000])
            while want > 0 and rng.random() < 0.9:
                c.settimeout(0.3)
                with contextlib.suppress(OSError):
                    piece = c.recv(want)
                    want -= len(piece) or want
                    continue
                break

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(250)))
    wait_quiet(server)
    assert server.complete("[short]")["choices"][0]["text"] == "yes"


def descriptors(server):
    return len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()))


def resident(server):
    text = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text).group(1))


def test_a_thousand_aborted_requests_leave_nothing_behind(server):
    wait_quiet(server)
    for round_ in range(20):
        sockets = [open_stream(server, "[slow]", stream=i % 2 == 0) for i in range(50)]
        for s in sockets[::10]:
            with contextlib.suppress(OSError):
                s.settimeout(1)
                s.recv(10)
        for s in sockets:
            s.close()
        wait_quiet(server)
        if round_ == 4:
            time.sleep(0.4)
            fds, memory = descriptors(server), resident(server)
    time.sleep(0.4)
    assert descriptors(server) <= fds
    assert SANITIZED or resident(server) <= memory + 2048


def test_a_client_that_does_not_read_is_cut_and_others_are_not_held_up(server):
    wait_quiet(server)
    before = server.metric("deepinfer_slow_readers_cut_total")
    with open_stream(server, "[flood]") as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        end = time.monotonic() + 20
        while server.metric("deepinfer_slow_readers_cut_total") == before:
            assert time.monotonic() < end
            assert server.complete("[short]")["choices"][0]["text"] == "yes"
            time.sleep(0.05)
    assert server.metric("deepinfer_slow_readers_cut_total") == before + 1
    wait_quiet(server)


def test_a_slow_head_and_a_slow_body_are_cut():
    # the defaults are 10 s and 30 s: looked at through the same code with an idle connection
    with serve() as s:
        with socket.create_connection(("127.0.0.1", s.port), timeout=15) as c:
            c.sendall(b"GET /health HT")
            got = c.recv(1000)
            assert got.startswith(b"HTTP/1.1 408 ")
        assert s.metric("deepinfer_timeouts_total") == 1


# ---- limits ----

def test_a_full_queue_gives_429_and_lets_others_finish():
    with serve("--max-running", 2, "--max-queued", 3, "--script-step-us", 80000) as s:
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            jobs = [pool.submit(s.request, "POST", "/v1/completions",
                                {"model": "tiny", "prompt": "a", "max_tokens": 10})
                    for _ in range(12)]
            results = [j.result() for j in jobs]
        statuses = sorted(r[0] for r in results)
        # 3 at least: those that wait count before the first of them runs
        assert statuses.count(200) >= 3 and statuses.count(429) >= 1
        assert set(statuses) == {200, 429}
        for status, headers, body in results:
            if status == 429:
                assert int(headers["retry-after"]) >= 1
                assert json.loads(body)["error"]["type"] == "rate_limit_error"


def test_too_many_connections_get_503():
    with serve("--max-connections", 4, "--loops", 1) as s:
        open_ones = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(4)]
        time.sleep(0.2)
        got = s.raw(b"")
        assert got.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in got
        assert int(re.search(rb"content-length: (\d+)", got).group(1)) == \
            len(got.partition(b"\r\n\r\n")[2])
        for c in open_ones:
            c.close()
        time.sleep(0.4)
        assert s.get("/health")


def test_api_keys(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# who may\nsecret-one name=one\nsecret-two name=two requests_per_minute=2\n"
                    "secret-three max_running=1\n")
    with serve("--api-key-file", keys, "--api-key", "main", "--script-step-us", 5000) as s:
        def ask(key, header="authorization", n=2):
            value = f"Bearer {key}" if header == "authorization" else key
            return s.request("POST", "/v1/completions",
                             {"model": "tiny", "prompt": "a", "max_tokens": n}, {header: value})

        assert s.request("GET", "/health")[0] == 200
        for headers in [{}, {"authorization": "Bearer wrong"}, {"x-api-key": "secret-on"},
                        {"authorization": "Basic main"}, {"x-api-key": ""}]:
            status, _, body = s.request("GET", "/v1/models", headers=headers)
            assert status == 401 and json.loads(body)["error"]["type"] == "authentication_error"
        assert ask("main")[0] == 200
        assert ask("secret-one", "x-api-key")[0] == 200
        assert "key=one" in s.log("key=one")
        assert [ask("secret-two")[0] for _ in range(3)] == [200, 200, 429]
        assert int(ask("secret-two")[1]["retry-after"]) >= 20
        with concurrent.futures.ThreadPoolExecutor() as pool:
            long = pool.submit(ask, "secret-three", n=100)
            time.sleep(0.2)
            assert ask("secret-three")[0] == 429
            assert long.result()[0] == 200
        assert ask("secret-three")[0] == 200
        # no body is read for a stranger
        got = s.raw(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 401 ")


def test_a_bad_key_file_is_refused(tmp_path):
    keys = tmp_path / "keys"
    for text, word in [("abc max_running=0\n", "line 1"), ("a\nb color=red\n", "line 2"), ("", "no API")]:
        keys.write_text(text)
        with pytest.raises(RuntimeError, match=word):
            Server("--api-key-file", keys)


def test_cors_for_browsers():
    with serve("--cors", "https://a.example") as s:
        status, headers, _ = s.request("OPTIONS", "/v1/chat/completions",
                                       headers={"origin": "https://a.example"})
        assert status == 204 and "POST" in headers["access-control-allow-methods"]
        _, headers, _ = s.request("GET", "/health")
        assert headers["access-control-allow-origin"] == "https://a.example"


# ---- options ----

def test_options_from_a_file_and_the_command_line_on_top(tmp_path):
    config = tmp_path / "serve.conf"
    config.write_text(f'# a server\nmodel = "{TINY}"  # quoted\nload-format = script\nport = 1\n'
                      "served-model-name = a\nserved-model-name = b\nno-request-log = true\n")
    process = subprocess.Popen([BINARY, "serve", "--config", config, "--port", "0"],
                               stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    assert "serving model=a" in line
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    for text, word in [("nothing = 1\n", "line 1"), ("\nport = x\n", "line 2"), ("port\n", "name = value"),
                       ('host = "a" b\n', "quote"), ("no-request-log = yes\n", "true or false")]:
        config.write_text(text)
        done = subprocess.run([BINARY, "serve", "--config", config], capture_output=True, text=True)
        assert done.returncode == 2 and word in done.stderr


def test_a_port_that_is_taken_is_an_error():
    with serve() as s:
        done = subprocess.run([BINARY, "serve", "--model", TINY, "--load-format", "script", "--port",
                               str(s.port)], capture_output=True, text=True, timeout=20)
        assert done.returncode == 2 and "could not listen" in done.stderr


def test_nothing_listens_for_a_bad_model(tmp_path):
    done = subprocess.run([BINARY, "serve", "--model", tmp_path, "--port", "0"],
                          capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "serving" not in done.stderr


def test_json_log_lines():
    with serve("--log-format", "json") as s:
        s.complete("[x]", max_tokens=2)
        s.stop()
        lines = [json.loads(line) for line in s.lines]
    request = next(line for line in lines if line["message"] == "request")
    assert request["status"] == 200 and request["output"] == 2 and request["finish"] == "length"
    assert {"time", "level", "area", "id", "peer", "ms", "first_ms"} <= set(request)


# ---- the end ----

def test_sigterm_loses_no_token_and_refuses_new_work():
    with serve("--script-step-us", 20000) as s:
        keep = socket.create_connection(("127.0.0.1", s.port))
        keep.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert keep.recv(1000).startswith(b"HTTP/1.1 200")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(s.events, "/v1/completions",
                                {"model": "tiny", "prompt": "a", "max_tokens": 60}) for _ in range(8)]
            s.wait_metric("deepinfer_requests_running", 8)
            s.process.send_signal(signal.SIGTERM)
            s.log("draining")
            # a request in the same moment is refused as one that may come again
            keep.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}")
            got = keep.recv(1000)
            assert got == b"" or got.startswith(b"HTTP/1.1 503 ")
            texts = ["".join(e["choices"][0]["text"] for e in j.result()[:-1]) for j in jobs]
            ends = [j.result()[-2]["choices"][0]["finish_reason"] for j in jobs]
        assert len(set(texts)) == 1 and ends == ["length"] * 8
        assert s.process.wait(10) == 0
        assert "draining: 8 requests run" in s.log("draining")


def test_sigterm_waits_for_a_slow_reader_of_a_finished_answer():
    with serve("--script-step-us", 0) as s:
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.port))
        body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 25000, "logprobs": 20}).encode()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: " +
                  str(len(body)).encode() + b"\r\n\r\n" + body)
        s.log("output=25000", timeout=60)
        s.process.send_signal(signal.SIGTERM)
        s.log("draining: 1 requests run")
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        got = b""
        while piece := c.recv(1 << 16):
            got += piece
        head, _, rest = got.partition(b"\r\n\r\n")
        assert len(rest) == int(re.search(rb"content-length: (\d+)", head).group(1)) > 5 << 20
        assert s.process.wait(10) == 0


def test_a_second_signal_cancels():
    with serve("--script-step-us", 20000) as s:
        c = open_stream(s, "a")
        s.wait_metric("deepinfer_requests_running", 1)
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert s.process.poll() is None
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(10) == 0
        c.close()


def test_the_drain_ends_after_its_time():
    with serve("--script-step-us", 20000, "--drain-timeout", 1) as s:
        c = open_stream(s, "a")
        s.wait_metric("deepinfer_requests_running", 1)
        begin = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(10) == 0
        assert 0.8 < time.monotonic() - begin < 5
        c.close()


# ---- metrics ----

def test_metrics_are_well_formed_and_have_the_names_of_other_servers(server):
    server.complete("[short]")
    text = server.get("/metrics")
    types, seen = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, name
            types[name] = kind
        elif not line.startswith("#"):
            found = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^}]*\})? (\S+)', line)
            assert found, line
            float(found.group(3))
            assert line.rsplit(" ", 1)[0] not in seen
            seen.add(line.rsplit(" ", 1)[0])
            base = re.sub("_(bucket|sum|count)$", "", found.group(1))
            assert found.group(1) in types or types.get(base) == "histogram", line
    for name in ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                 "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds",
                 "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
                 "vllm:request_success_total", "vllm:prefix_cache_hits_total",
                 "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage",
                 "sglang:cache_hit_rate", "sglang:gen_throughput", "deepinfer_draft_accepted_total",
                 "deepinfer_computed_tokens_total", "deepinfer_idle_seconds_total"]:
        assert name in types, name


def test_histograms_add_up(server):
    text = server.get("/metrics")
    name = "deepinfer_time_to_first_token_seconds"
    buckets = [float(v) for v in re.findall(rf'{name}_bucket{{le="[^"]+"}} (\S+)', text)]
    assert buckets == sorted(buckets) and buckets[-1] > 0
    assert buckets[-1] == float(re.search(rf"{name}_count (\S+)", text).group(1))
