"""Constraints over HTTP with the shipped model: what comes out fits, alone and in company."""
import concurrent.futures
import json
import re

import pytest
from serving import serve

SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "tags", "n"],
          "properties": {"name": {"type": "string", "maxLength": 12},
                         "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
                         "n": {"type": "integer", "minimum": 1, "maximum": 9}}}
TOOLS = [{"type": "function", "function": {"name": "paint", "parameters": {
    "type": "object", "properties": {"colour": {"enum": ["red", "blue"]}, "coats": {"type": "integer"}},
    "required": ["colour", "coats"], "additionalProperties": False}}}]


def ask(**fields):
    return {"model": "tiny", "max_tokens": 200, "thinking": {"type": "disabled"},
            "messages": [{"role": "user", "content": "Tell me about a fox, as json."}], **fields}


@pytest.fixture(scope="module")
def any_server():
    with serve(real=True) as s:
        yield s


@pytest.fixture(scope="module")
def server(any_server):
    status, _, body = any_server.request("POST", "/v1/chat/completions",
                                         ask(max_tokens=1, response_format={"type": "json_object"}))
    if status == 501:
        assert json.loads(body)["error"]["code"] == "constrained_output_unavailable"
        pytest.skip("no constraint library (tools/llguidance.sh)")
    return any_server


def schema(strict=None):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": strict}}


def answer(server, **fields):
    choice = server.post("/v1/chat/completions", ask(**fields))["choices"][0]
    return choice["message"], choice["finish_reason"]


def check(value):
    assert set(value) == {"name", "tags", "n"} and len(value["name"]) <= 12
    assert set(value["tags"]) <= {"red", "blue"} and len(value["tags"]) <= 3 and 1 <= value["n"] <= 9


def test_a_schema_holds_at_any_seed_and_in_company(server):
    def one(seed):
        message, finish = answer(server, seed=seed, temperature=1, response_format=schema())
        assert finish == "stop"
        check(json.loads(message["content"]))
        return message["content"]

    alone = [one(seed) for seed in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert list(pool.map(one, range(6))) == alone
    assert len(set(alone)) > 1


def test_reasoning_comes_first_and_is_free(server):
    message, finish = answer(server, thinking={"type": "enabled"}, seed=1, max_tokens=400,
                             response_format=schema())
    if finish == "stop":
        check(json.loads(message["content"]))
    assert "reasoning_content" in message


def test_regex_and_grammar(server):
    message, _ = answer(server, response_format={"type": "regex", "regex": "[a-f]{3}-[0-9]{2}"})
    assert re.fullmatch("[a-f]{3}-[0-9]{2}", message["content"])
    message, _ = answer(server, response_format={"type": "ebnf", "grammar": 'root ::= ("ab" | "cd")+ "."',
                                                 }, max_tokens=60)
    assert re.fullmatch(r"(ab|cd)+\.?", message["content"])


def test_a_required_tool_is_called_with_sound_arguments(server):
    for choice in ["required", {"type": "function", "function": {"name": "paint"}}]:
        message, finish = answer(server, tools=TOOLS, tool_choice=choice, seed=3, temperature=1)
        assert finish == "tool_calls"
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            assert call["function"]["name"] == "paint" and set(arguments) == {"colour", "coats"}
            assert arguments["colour"] in ("red", "blue") and isinstance(arguments["coats"], int)


def test_streamed_and_whole_agree(server):
    body = ask(response_format=schema(), seed=4, temperature=1)
    whole = server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
    parts = server.events("/v1/chat/completions", body)[:-1]
    assert "".join(p["choices"][0]["delta"].get("content") or "" for p in parts) == whole


def test_n_choices_are_constrained_each_for_itself(server):
    choices = server.post("/v1/chat/completions", ask(response_format=schema(), seed=5, n=3,
                                                      temperature=1))["choices"]
    for c in choices:
        check(json.loads(c["message"]["content"]))


def test_what_cannot_be_honoured_is_named(server):
    odd = {"type": "object", "properties": {"a": {"type": "string", "format": "date-time"}},
           "if": {"required": ["a"]}, "then": {"required": ["b"]}}
    status, headers, body = server.request("POST", "/v1/chat/completions", ask(
        max_tokens=5, response_format={"type": "json_schema",
                                       "json_schema": {"name": "x", "schema": odd}}))
    if status == 200:
        assert json.loads(headers["x-deepinfer-warnings"])
    else:
        assert status == 400 and "if" in json.loads(body)["error"]["message"]
    error = server.post("/v1/chat/completions", ask(response_format={"type": "regex", "regex": "(a"}),
                        status=400)["error"]
    assert error["code"] == "invalid_regex" and error["param"] == "response_format"
    error = server.post("/v1/chat/completions", ask(response_format={"type": "ebnf", "grammar": "x"}),
                        status=400)["error"]
    assert error["code"] == "invalid_grammar" and error["param"] == "response_format"
    error = server.post("/v1/chat/completions", ask(ebnf="x"), status=400)["error"]
    assert error["code"] == "invalid_grammar" and error["param"] == "ebnf"
    error = server.post("/v1/responses", {"model": "tiny", "input": "x", "text": {"format": {
        "type": "json_schema", "name": "n", "schema": {"type": "string", "minLength": 5, "maxLength": 2}}}},
                        status=400)["error"]
    assert error["code"] == "unsatisfiable" and error["param"] == "text.format"


def test_a_bad_schema_does_not_touch_its_neighbours(server):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        good = pool.submit(answer, server, seed=9, response_format=schema())
        for bad in [{"type": "nothing"}, {"$ref": "#/$defs/x"}, {"minItems": "a", "type": "array"}]:
            server.post("/v1/chat/completions", ask(response_format={
                "type": "json_schema", "json_schema": {"name": "x", "schema": bad}}), status=400)
        check(json.loads(good.result()[0]["content"]))


def test_calls_cannot_be_opened_without_tools(any_server):
    """With a bias that writes nothing but the token that opens calls: only a request with tools may."""
    mark = any_server.post("/tokenize", {"prompt": "｜DSML｜", "parse_special": True})["tokens"]
    assert len(mark) == 1
    bias = {str(mark[0]): 100}
    raw = any_server.post("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 8,
                                              "logit_bias": bias, "return_token_ids": True})
    assert raw["choices"][0]["token_ids"] == mark * 8
    asked = ask(max_tokens=8, logit_bias=bias, logprobs=True, temperature=0)
    for fields in [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}]:
        for thinking in ["enabled", "disabled"]:
            choice = any_server.post("/v1/chat/completions",
                                     {**asked, **fields, "thinking": {"type": thinking}})["choices"][0]
            text = (choice["message"].get("reasoning_content") or "") + (choice["message"]["content"] or "")
            assert text and "DSML" not in text and not choice["message"].get("tool_calls")
            assert choice["finish_reason"] in ("length", "stop")
    kept = any_server.post("/v1/chat/completions", {**ask(max_tokens=8, temperature=0)})["choices"][0]
    banned = any_server.post("/v1/chat/completions", asked)["choices"][0]
    assert kept["message"]["content"] == banned["message"]["content"]


# ---- what cannot be honoured ----

PLAIN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x"}},
         "required": ["a"], "additionalProperties": False}
AHEAD = {**PLAIN, "properties": {"a": {"type": "string", "pattern": "^(?=x)"}}}  # no lookahead


def shaped(body, strict=None):
    return {"response_format": {"type": "json_schema",
                                "json_schema": {"name": "x", "schema": body, "strict": strict}}}


def tool(name, strict=None):
    return {"type": "function", "function": {"name": name, "parameters": AHEAD if name == "odd" else PLAIN,
                                             "strict": strict}}


def tools(*which):
    return {"tools": list(which)}


# What is asked, and what becomes of it under each policy: None = nothing is dropped.
POLICIES = [
    (shaped(AHEAD), {"follow": "pattern", "strict": 400, "lenient": "pattern"}),
    (shaped(AHEAD, True), {"follow": 400, "strict": 400, "lenient": "pattern"}),
    (shaped(PLAIN, True), {"follow": None, "strict": None, "lenient": None}),
    (tools(tool("odd")), {"follow": "pattern", "strict": 400, "lenient": "pattern"}),
    (tools(tool("odd", True)), {"follow": 400, "strict": 400, "lenient": "pattern"}),
    (tools(tool("odd"), tool("good", True)), {"follow": "pattern", "strict": 400, "lenient": "pattern"}),
    (tools(tool("odd", True), tool("good")), {"follow": 400, "strict": 400, "lenient": "pattern"}),
]


@pytest.mark.parametrize("policy", ["follow", "strict", "lenient"])
def test_the_policy_says_what_becomes_of_what_cannot_be_enforced(server, policy, tmp_path):
    config = tmp_path / "options"
    config.write_text(f"constraint-policy = {policy}\n")
    options = ["--constraint-policy", policy] if policy == "lenient" else ["--config", config]
    with serve(*(options if policy != "follow" else []), script=[{"reply": "{}"}],
               tmp_path=tmp_path) as s:
        for fields, wanted in POLICIES:
            status, headers, body = s.request("POST", "/v1/chat/completions", ask(**fields))
            if wanted[policy] == 400:
                error = json.loads(body)["error"]
                assert (status, error["code"]) == (400, "unsupported_keyword"), (policy, fields)
                assert "pattern" in error["message"] and ("odd" in error["message"] or
                                                          "tools" not in fields)
            else:
                assert status == 200, (policy, fields, body)
                dropped = [w["keyword"] for w in json.loads(headers.get("x-deepinfer-warnings", "[]"))]
                assert dropped == ([wanted[policy]] if wanted[policy] else []), (policy, fields)


def test_without_the_library_only_tools_that_are_not_strict_run(tmp_path, monkeypatch):
    monkeypatch.setenv("DI_LLGUIDANCE", str(tmp_path / "none.so"))
    refused = [{"response_format": {"type": "json_object"}}, {"response_format": schema()},
               {"response_format": {"type": "regex", "regex": "a"}},
               {"response_format": {"type": "ebnf", "grammar": 'root ::= "a"'}},
               {**tools(tool("good")), "tool_choice": "required"}, tools(tool("good", True)),
               tools(tool("good", True), tool("odd"))]
    script = [{"reply": "words"}]
    for policy in ["follow", "strict", "lenient"]:
        with serve("--constraint-policy", policy, script=script, tmp_path=tmp_path) as s:
            for fields in refused:
                error = s.post("/v1/chat/completions", ask(**fields), status=501)["error"]
                assert error["code"] == "constrained_output_unavailable"
            status, headers, body = s.request("POST", "/v1/chat/completions", ask(**tools(tool("good"))))
            if policy == "strict":
                assert status == 501
            else:
                assert status == 200
                assert json.loads(headers["x-deepinfer-warnings"]) == [{"pointer": "", "keyword": "tools"}]
                assert json.loads(body)["choices"][0]["message"]["content"] == "words"
            for fields in [{}, {**tools(tool("good", True)), "tool_choice": "none"}]:
                status, headers, _ = s.request("POST", "/v1/chat/completions", ask(**fields))
                assert status == 200 and "x-deepinfer-warnings" not in headers
