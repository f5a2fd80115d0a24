"""Edges of the HTTP interface that a hostile or a new client finds first."""
import contextlib
import http.client
import json
import socket
import time

import pytest

from serving import serve

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server():
    with serve("--cors", "*", "--script-step-us", "0", "--api-key", "k") as s:
        yield s


def ask(server, body, status, path=CHAT):
    """The error message of a refused body."""
    got, _, text = server.request("POST", path, body, {"authorization": "Bearer k"})
    assert got == status, text
    return json.loads(text)["error"]["message"]


@pytest.mark.parametrize("fields, status", [
    (b"host: b\r\n", b"400"),
    (b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", b"400"),
    (b"content-length: 2\r\ncontent-length: 2\r\n", b"400"),
    (b"content-encoding: gzip\r\ncontent-length: 2\r\n", b"415"),
    (b"x: a\nz: b\r\n", b"400"),
])
def test_heads_that_two_programs_could_read_differently(server, fields, status):
    got = server.raw(b"POST /tokenize HTTP/1.1\r\nhost: a\r\n" + fields + b"\r\n{}")
    assert got.startswith(b"HTTP/1.1 " + status), got


def test_lines_that_end_in_lf_alone_are_answered_at_once(server):
    got = server.raw(b"GET /health HTTP/1.1\nhost: a\n\n", timeout=5)
    assert got.startswith(b"HTTP/1.1 400") and b"CRLF" in got


def test_what_is_no_http_is_answered_at_once(server):
    got = server.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", timeout=5)  # https:// by mistake
    assert got.startswith(b"HTTP/1.1 400") and b"not TLS" in got
    got = server.raw(b'{"model": "tiny"}', timeout=5)
    assert got.startswith(b"HTTP/1.1 400") and b"not an HTTP request" in got


def test_a_client_too_many_reads_why_although_it_has_sent_a_body():
    """A close with unread bytes resets the connection, and the answer is lost on its way."""
    body = b"x" * 30000
    request = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    with serve("--max-connections", 2, "--loops", 1) as s:
        held = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(2)]
        assert s.raw(b"").startswith(b"HTTP/1.1 503")
        for _ in range(30):
            with socket.create_connection(("127.0.0.1", s.port), timeout=10) as c:
                c.sendall(request)
                c.sendall(body)
                assert c.recv(1000).startswith(b"HTTP/1.1 503")
        crowd = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(200)]  # is not kept
        for c in held + crowd:
            c.close()
        for _ in range(50):
            with contextlib.suppress(OSError, http.client.HTTPException):
                if s.request("GET", "/health")[0] == 200:
                    return
            time.sleep(0.1)
        raise AssertionError("the server goes on refusing")


def test_an_address_of_ipv6_stands_in_brackets():
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        with serve("--host", "::1") as s:
            assert f"http://[::1]:{s.port}" in "".join(s.lines)
            with socket.create_connection(("::1", s.port), timeout=10) as c:
                c.sendall(b"GET /health HTTP/1.1\r\nhost: [::1]\r\n\r\n")
                assert c.recv(1000).startswith(b"HTTP/1.1 200")
    except RuntimeError as e:
        assert "could not listen" in str(e)
        pytest.skip("no IPv6")


def test_a_name_is_served_at_all_its_addresses():
    """"localhost" is ::1 and 127.0.0.1 on most machines, and clients try either."""
    try:
        socket.getaddrinfo("localhost", 80)
    except socket.gaierror:
        pytest.skip("no hosts file names localhost")
    with serve("--host", "localhost") as s:
        assert f"http://localhost:{s.port}" in "".join(s.lines)
        for family, _, _, _, address in socket.getaddrinfo("localhost", s.port, type=socket.SOCK_STREAM):
            with socket.socket(family) as c:
                c.settimeout(10)
                c.connect(address)
                c.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert c.recv(1000).startswith(b"HTTP/1.1 200")


def test_offsets_of_an_echo_are_places_in_its_text():
    """The token that begins a prompt is in the lists, but not in the text."""
    with serve(real=True) as s:
        choice = s.complete("The ship", max_tokens=6, logprobs=1, echo=True)["choices"][0]
        lp = choice["logprobs"]
        assert lp["text_offset"][:3] == [0, 0, 3] and lp["tokens"][1:3] == ["The", " ship"]
        for token, at in list(zip(lp["tokens"], lp["text_offset"]))[1:]:
            assert token.startswith("bytes:") or choice["text"][at:].startswith(token)


def test_files_of_options_and_keys(tmp_path):
    conf, keys = tmp_path / "conf", tmp_path / "keys"
    conf.write_bytes(b"\xef\xbb\xbfserved-model-name = named\r\n# by an editor that marks its files\r\n")
    with serve("--config", conf) as s:
        assert "named" in {m["id"] for m in json.loads(s.get("/v1/models"))["data"]}
    keys.write_text("one name=a\ntwo\none requests_per_minute=1\n")
    with pytest.raises(RuntimeError, match="line 3: this key was given before"), \
            serve("--api-key-file", keys):
        pass


def test_an_identity_coding_is_none(server):
    got = server.raw(b"POST /detokenize HTTP/1.1\r\nhost: a\r\ncontent-encoding: identity\r\n"
                     b"authorization: Bearer k\r\nconnection: close\r\n"
                     b"content-length: 13\r\n\r\n{\"tokens\":[]}")
    assert got.startswith(b"HTTP/1.1 200"), got


def test_a_refused_key_says_how_to_send_one(server):
    status, headers, _ = server.request("GET", "/v1/models")
    assert status == 401 and headers["www-authenticate"] == "Bearer"


def test_a_page_may_send_whatever_headers_its_library_adds(server):
    asked = "authorization,content-type,x-stainless-lang,x-stainless-retry-count,openai-organization"
    status, headers, _ = server.request("OPTIONS", CHAT, None, {
        "origin": "http://page", "access-control-request-method": "POST",
        "access-control-request-headers": asked})
    assert status == 204 and headers["access-control-allow-headers"] == asked
    assert "POST" in headers["access-control-allow-methods"]
    _, headers, _ = server.request("GET", "/v1/models", None, {"authorization": "Bearer k"})
    assert headers["access-control-allow-origin"] == "*"
    assert "x-deepinfer-seed" in headers["access-control-expose-headers"]


def test_bodies_that_are_no_object(server):
    assert "empty" in ask(server, "", 400)
    assert ask(server, "[]", 400) == "request body: must be an object"
    assert "empty" in ask(server, "", 400, "/v1/messages")


def test_an_unknown_model_is_told_the_names_that_are_there(server):
    message = ask(server, {"model": "gpt-9", "messages": HI}, 404)
    assert '"gpt-9"' in message and "tiny" in message and "DeepSeek-V4-Pro" not in message


def test_a_call_cannot_be_demanded_without_tools(server):
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        body = {"model": "tiny", "messages": HI, "tool_choice": choice,
                "thinking": {"type": "disabled"}}
        assert "tool" in ask(server, body, 400)
    for choice in ("auto", "none"):
        body = {"model": "tiny", "messages": HI, "max_tokens": 1, "tool_choice": choice}
        assert server.request("POST", CHAT, body, {"authorization": "Bearer k"})[0] == 200


def test_the_bound_of_n_is_one_number(server):
    for n in (0, 65, 129):
        assert "[1, 64]" in ask(server, {"model": "tiny", "messages": HI, "n": n}, 400)


def test_images_are_refused_with_their_place(server):
    url = "data:image/png;base64,iVBORw0KGgo="
    part = {"type": "image_url", "image_url": {"url": url}}
    message = ask(server, {"model": "tiny", "messages": [{"role": "user", "content": [part]}]}, 400)
    assert message.startswith("messages[0]") and "not images" in message
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                         "data": "iVBORw0KGgo="}}
    body = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": [block]}]}
    message = ask(server, body, 400, "/v1/messages")
    assert message.startswith("messages.0.content[0]") and "not images" in message


def test_numbers_that_json_does_not_have(server):
    for text in ("NaN", "Infinity", "-Infinity", "1e999", "01", ".5", "1.", "+1", "0x1", '"1"'):
        body = '{"model": "tiny", "messages": [{"role": "user", "content": "x"}], ' \
               f'"max_tokens": 1, "temperature": {text}}}'
        ask(server, body, 400)
        ask(server, body.replace("temperature", "presence_penalty"), 400)


def test_a_stop_string_ends_its_choice_at_the_engine():
    """The engine does not go on with a choice whose text has ended while others run."""
    with serve(real=True) as s:
        before = s.metric("deepinfer_generation_tokens_total")
        r = s.post(CHAT, {"model": "tiny", "n": 4, "seed": 3, "temperature": 1.5,
                          "max_tokens": 300, "ignore_eos": True, "stop": ["owl", "horse"],
                          "thinking": {"type": "disabled"},
                          "messages": [{"role": "user", "content": "Tell me a story about the sea."}]})
        ends = [c["finish_reason"] for c in r["choices"]]
        assert "stop" in ends and "length" in ends, r
        shown = r["usage"]["completion_tokens"]
        assert shown < 1000
        # a step or two are on their way when the string is found, each with its drafts
        assert s.metric("deepinfer_generation_tokens_total") - before <= shown + 4 * 24


def samples(text):
    """{name with labels: value} of a page of metrics."""
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
            for line in text.splitlines() if not line.startswith("#")}


def test_dashboards_of_other_servers_find_their_series(tmp_path):
    rules = [{"when": "[long]", "reply": "word ", "repeat": 100000, "step_us": 2000},
             {"reply": "a b c", "finish": "stop", "wait_ms": 30}]
    with serve("--loops", "1", script=rules, tmp_path=tmp_path) as s:
        s.complete("x", max_tokens=2)
        s.complete("x", max_tokens=100)
        s.post(CHAT, {"model": "tiny", "messages": HI, "thinking": {"type": "disabled"}})
        body = b'{"model": "tiny", "prompt": "[long]", "max_tokens": 9999, "stream": true}'
        with socket.create_connection(("127.0.0.1", s.port)) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
                           % len(body) + body)
            assert client.recv(100)
        s.wait_metric('vllm:request_success_total{engine="0",model_name="tiny",finished_reason="abort"}', 1)
        m = samples(s.get("/metrics"))
    v, g = 'engine="0",model_name="tiny"', 'model_name="tiny"'
    ended = {r: m[f'vllm:request_success_total{{{v},finished_reason="{r}"}}']
             for r in ["stop", "length", "abort", "error"]}
    assert ended == {"stop": 2, "length": 1, "abort": 1, "error": 0}
    for name in ["request_prompt_tokens", "request_generation_tokens",
                 "request_prefill_time_seconds", "request_decode_time_seconds",
                 "request_queue_time_seconds", "e2e_request_latency_seconds"]:
        assert m[f'vllm:{name}_bucket{{{v},le="+Inf"}}'] == m[f"vllm:{name}_count{{{v}}}"] == 4, name
    assert m[f"vllm:request_generation_tokens_sum{{{v}}}"] == m[f"vllm:generation_tokens_total{{{v}}}"]
    assert m[f"vllm:request_prompt_tokens_sum{{{v}}}"] == m[f"vllm:prompt_tokens_total{{{v}}}"]
    assert m[f'vllm:request_generation_tokens_bucket{{{v},le="2"}}'] in (1, 2)  # and the aborted one, perhaps
    assert m[f"vllm:request_prefill_time_seconds_sum{{{v}}}"] >= 0.09  # three waits of 30 ms
    assert m[f"vllm:kv_cache_usage_perc{{{v}}}"] == m[f"vllm:gpu_cache_usage_perc{{{v}}}"]
    assert m[f"sglang:gen_throughput{{{g}}}"] > 0
    for name in ["num_running_reqs", "num_queue_reqs", "token_usage", "cache_hit_rate"]:
        assert f"sglang:{name}{{{g}}}" in m


def test_the_context_is_full_to_the_last_token(server):
    """Prompt and answer together may have as many tokens as the context, and not one more."""
    body = {"model": "tiny", "messages": HI, "thinking": {"type": "disabled"}}
    with serve("--context", "64", "--script-step-us", "0") as s:
        prompt = s.post("/apply-template", body)["count"]
        full = s.post(CHAT, {**body, "max_tokens": 64 - prompt})
        assert full["choices"][0]["finish_reason"] == "length"
        assert full["usage"]["total_tokens"] == 64
        e = s.post(CHAT, {**body, "max_tokens": 65 - prompt}, status=400)["error"]
        assert e["code"] == "context_length_exceeded"
        rest = s.post(CHAT, body)  # nothing asked: what there is room for
        assert rest["usage"]["total_tokens"] == 64
        assert s.complete([5] * 64, max_tokens=9)["usage"]["completion_tokens"] == 1
        assert s.post("/v1/completions", {"model": "tiny", "prompt": [5] * 65}, status=400)


def test_the_wrong_field_is_the_param_of_the_error(server):
    for fields, param in [({"temperature": 3}, "temperature"), ({"stop": [""]}, "stop[0]"),
                          ({"max_tokens": 0}, "max_tokens"), ({"stream": 1}, "stream"),
                          ({"messages": [{"role": "x"}]}, "messages[0].role"),
                          ({"response_format": {"type": "x"}}, "response_format.type"),
                          ({"tools": [{"type": "function", "function": {"name": "a b"}}]},
                           "tools[0].function.name")]:
        body = {"model": "tiny", "messages": HI, **fields}
        got, _, text = server.request("POST", CHAT, body, {"authorization": "Bearer k"})
        assert got == 400 and json.loads(text)["error"]["param"] == param, text


def test_a_limit_of_a_key_is_named(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a requests_per_minute=1\nb max_running=1\n")
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    long = json.dumps({**body, "max_tokens": 9999, "stream": True}).encode()
    with serve("--api-key-file", str(keys)) as s:
        def refused(key):
            status, headers, text = s.request("POST", "/v1/completions", body,
                                              {"authorization": f"Bearer {key}"})
            assert status == 429 and int(headers["retry-after"]) >= 1
            return json.loads(text)["error"]["message"]

        s.post("/v1/completions", body, headers={"authorization": "Bearer a"})
        assert "1 requests per minute" in refused("a")
        with socket.create_connection(("127.0.0.1", s.port)) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nx-api-key: b\r\n"
                           b"content-length: %d\r\n\r\n" % len(long) + long)
            assert client.recv(100)
            assert "1 running" in refused("b")


@pytest.mark.parametrize("path, fields, param", [
    ("/v1/completions", {"prompt": "x", "max_tokens": -1}, "max_tokens"),
    ("/v1/completions", {"prompt": "x", "temperature": "hot"}, "temperature"),
    ("/v1/completions", {"prompt": "x", "n": 1.5}, "n"),
    ("/v1/completions", {"prompt": "x", "stop": [""]}, "stop"),
    ("/v1/completions", {"prompt": "x", "stop": [str(i) for i in range(17)]}, "stop"),
    ("/v1/completions", {"prompt": "x", "stop_token_ids": [-1]}, "stop_token_ids"),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"x": 1}}, "logit_bias"),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"1": 101}}, "logit_bias"),
    ("/v1/completions", {"prompt": "x", "logprobs": 21}, "logprobs"),
    ("/v1/completions", {"prompt": "x", "echo": True, "stream": True}, "echo"),
    ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
    ("/v1/completions", {"prompt": "x", "stream_options": {"include_usage": 1}},
     "stream_options.include_usage"),
    ("/v1/completions", {"prompt": ["x", [-1]]}, "prompt"),
    ("/v1/completions", {"prompt": []}, "prompt"),
    ("/v1/completions", {"prompt": ["x"] * 200}, "prompt"),
    ("/v1/completions", {}, "prompt"),
    ("/v1/completions", {"prompt": "x", "model": "gone"}, "model"),
    (CHAT, {"messages": HI, "max_tokens": 0.5}, "max_tokens"),
    (CHAT, {"messages": HI, "max_completion_tokens": 10 ** 8}, "max_completion_tokens"),
    (CHAT, {"messages": HI, "logit_bias": {"999999": 1}}, "logit_bias"),
    (CHAT, {"messages": HI, "stop_token_ids": [999999]}, "stop_token_ids"),
    (CHAT, {"messages": HI, "response_format": {"type": "zz"}}, "response_format.type"),
    (CHAT, {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://x/y"}}]}]}, "messages[0]"),
    ("/v1/responses", {"input": "x", "temperature": 5}, "temperature"),
    ("/v1/responses", {"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
    ("/v1/responses", {"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {}, "prompt"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [1], "skip_special_tokens": 1}, "skip_special_tokens"),
])
def test_errors_name_the_field(server, path, fields, param):
    status, _, text = server.request("POST", path, {"model": "tiny", **fields},
                                     {"authorization": "Bearer k"})
    error = json.loads(text)["error"]
    assert status in (400, 404) and error["param"] == param, text


def test_a_prompt_that_is_too_long_has_a_code(server):
    for path, fields, param in [("/v1/completions", {"prompt": [5] * 70000}, "prompt"),
                                (CHAT, {"messages": [{"role": "user", "content": "a b " * 90000}]},
                                 "messages")]:
        status, _, text = server.request("POST", path, {"model": "tiny", **fields},
                                         {"authorization": "Bearer k"})
        error = json.loads(text)["error"]
        assert status == 400 and error["code"] == "context_length_exceeded", text
        assert error["param"] == param


@pytest.mark.parametrize("path, fields", [
    (CHAT, {"messages": HI, "max_tokens": 3.0, "n": 1.0}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 3.0, "n": 1.0}),
    ("/v1/responses", {"input": "x", "max_output_tokens": 3.0}),
    ("/v1/messages", {"messages": HI, "max_tokens": 3.0}),
])
def test_integers_may_be_written_as_reals(server, path, fields):
    status, _, text = server.request("POST", path, {"model": "tiny", **fields},
                                     {"authorization": "Bearer k"})
    assert status == 200, text
