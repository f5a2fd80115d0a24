"""Programs written for the `openai` package work unchanged: chat, completions, responses, models."""
import json

import pytest
from serving import serve

openai = pytest.importorskip("openai", reason="the openai package is not installed "
                                              "(tools/setup.sh --test)")
pydantic = pytest.importorskip("pydantic")

D = "｜DSML｜"
CALL = (f'\n\n<{D} calls>\n<{D} invoke name="weather">\n'
        f'<{D} parameter name="city" string="true">San "F"</{D} parameter>\n'
        f'<{D} parameter name="days" string="false">3</{D} parameter>\n</{D} invoke>\n'
        f'<{D} invoke name="now">\n</{D} invoke>\n</{D} calls>')
SCRIPT = [
    {"when": "[think]", "reply": "Let me see.\n</think>\n\nIt is 4.", "step_us": 200},
    {"when": "[call]", "reply": "I look it up." + CALL, "step_us": 200},
    {"when": "[json]", "reply": '{"name": "Ada", "age": 36}', "step_us": 200},
    {"when": "[long]", "reply": "word ", "repeat": 100000, "step_us": 3000},
    {"when": "[stop]", "reply": "one two STOP three", "step_us": 200},
    {"when": "[error]", "reply": "some words", "finish": "error", "step_us": 200},
    {"reply": "Hello there!", "step_us": 200},
]
OFF = {"thinking": {"type": "disabled"}}
TOOLS = [{"type": "function", "function": {
    "name": name, "description": "d", "parameters": {"type": "object", "properties": properties}}}
    for name, properties in [("weather", {"city": {"type": "string"}, "days": {"type": "integer"}}),
                             ("now", {})]]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(script=SCRIPT, tmp_path=tmp_path_factory.mktemp("s")) as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=30)


def chat(client, text, **fields):
    return client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": text}], **fields)


def test_models(client):
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat_whole(client):
    r = chat(client, "hi", extra_body=OFF)
    assert r.choices[0].message.content == "Hello there!"
    assert r.choices[0].finish_reason == "stop" and r.model == "tiny"
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_streamed(client):
    chunks = list(chat(client, "hi", stream=True, stream_options={"include_usage": True},
                       extra_body=OFF))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello there!"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens > 0
    assert len({c.id for c in chunks}) == 1


def test_reasoning_is_its_own_field(client):
    r = chat(client, "[think]")
    assert r.choices[0].message.reasoning_content == "Let me see."
    assert r.choices[0].message.content == "It is 4."
    assert r.usage.completion_tokens_details.reasoning_tokens > 0
    chunks = list(chat(client, "[think]", stream=True))
    reasoning = "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks)
    content = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert (reasoning, content) == ("Let me see.", "It is 4.")


def test_tool_calls(client):
    r = chat(client, "[call]", tools=TOOLS, extra_body=OFF)
    message = r.choices[0].message
    assert r.choices[0].finish_reason == "tool_calls" and message.content == "I look it up."
    assert [c.function.name for c in message.tool_calls] == ["weather", "now"]
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": 'San "F"', "days": 3}
    assert json.loads(message.tool_calls[1].function.arguments) == {}
    calls = {}
    for c in chat(client, "[call]", tools=TOOLS, stream=True, extra_body=OFF):
        for part in c.choices[0].delta.tool_calls or []:
            call = calls.setdefault(part.index, {"name": "", "arguments": ""})
            call["name"] += part.function.name or ""
            call["arguments"] += part.function.arguments or ""
        assert D not in (c.choices[0].delta.content or "")
    assert [c["name"] for c in calls.values()] == ["weather", "now"]
    assert calls[0]["arguments"] == message.tool_calls[0].function.arguments
    # the next turn
    r = client.chat.completions.create(model="tiny", tools=TOOLS, extra_body=OFF, messages=[
        {"role": "user", "content": "x"}, message,
        *[{"role": "tool", "tool_call_id": c.id, "content": "ok"} for c in message.tool_calls]])
    assert r.choices[0].message.content == "Hello there!"


def test_tools_that_may_not_be_used_are_not_shown(client):
    with_tools = chat(client, "hi", tools=TOOLS, tool_choice="none", extra_body=OFF)
    without = chat(client, "hi", extra_body=OFF)
    assert with_tools.usage.prompt_tokens == without.usage.prompt_tokens


def test_logprobs(client):
    r = chat(client, "hi", logprobs=True, top_logprobs=3, extra_body=OFF)
    content = r.choices[0].logprobs.content
    assert "".join(e.token for e in content) == "Hello there!"
    assert all(len(e.top_logprobs) == 3 and e.top_logprobs[0].token == e.token for e in content)
    assert bytes(b for e in content for b in e.bytes) == b"Hello there!"
    streamed = [e for c in chat(client, "hi", logprobs=True, stream=True, extra_body=OFF)
                if c.choices[0].logprobs for e in c.choices[0].logprobs.content or []]
    assert [e.logprob for e in streamed] == [e.logprob for e in content]


def test_stop_strings(client):
    for stop in ["STOP", ["x", "ST"]]:
        r = chat(client, "[stop]", stop=stop, extra_body=OFF)
        assert r.choices[0].message.content == "one two " and r.choices[0].finish_reason == "stop"
        chunks = list(chat(client, "[stop]", stop=stop, stream=True, extra_body=OFF))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "one two "


def test_several_choices(client):
    r = chat(client, "hi", n=3, extra_body=OFF)
    assert [c.index for c in r.choices] == [0, 1, 2]
    assert {c.message.content for c in r.choices} == {"Hello there!"}
    texts = {}
    for c in chat(client, "hi", n=2, stream=True, extra_body=OFF):
        for choice in c.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert texts == {0: "Hello there!", 1: "Hello there!"}


def test_limits_of_length(client):
    for field in ["max_tokens", "max_completion_tokens"]:
        r = chat(client, "[long]", **{field: 7}, extra_body=OFF)
        assert r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 7
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        chat(client, "word " * 70000, extra_body=OFF)


def test_errors_raise_the_right_class(client):
    with pytest.raises(openai.BadRequestError) as e:
        chat(client, "hi", temperature=9)
    assert "temperature" in str(e.value)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="tiny", messages=[])
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "a"}])
    with pytest.raises(openai.InternalServerError):
        chat(client, "[error]", extra_body=OFF)
    with pytest.raises(openai.APIError, match="script"):
        list(chat(client, "[error]", stream=True, extra_body=OFF))
    with pytest.raises(openai.APIError, match="script"):
        list(client.completions.create(model="tiny", prompt="[error]", max_tokens=99, stream=True))


def test_stopping_a_stream_cancels_the_request(server, client):
    stream = chat(client, "[long]", stream=True, extra_body=OFF)
    next(iter(stream))
    stream.close()
    server.wait_metric("deepinfer_requests_running", 0, timeout=1)


def test_a_time_out_cancels_the_request(server, client):
    with pytest.raises(openai.APITimeoutError):
        chat(client, "[long]", timeout=0.5, extra_body=OFF)
    server.wait_metric("deepinfer_requests_running", 0, timeout=1)


def test_a_stop_string_ends_the_work_behind_it(server, client):
    r = chat(client, "[long]", stop="word word", extra_body=OFF)
    assert r.choices[0].message.content == ""
    server.wait_metric("deepinfer_requests_running", 0, timeout=1)


class Person(pydantic.BaseModel):
    name: str
    age: int


def test_parse_with_a_pydantic_model(server, client):
    try:
        r = client.chat.completions.parse(model="tiny", response_format=Person, extra_body=OFF,
                                          messages=[{"role": "user", "content": "[json]"}])
    except openai.APIStatusError as e:
        assert e.status_code == 501 and e.code == "constrained_output_unavailable"
        pytest.skip("no constraint library (tools/llguidance.sh)")
    assert r.choices[0].message.parsed == Person(name="Ada", age=36)


def test_bad_schemas_are_named(server, client):
    def ask(schema):
        chat(client, "[json]", extra_body=OFF, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})

    try:
        ask({"type": "object"})
    except openai.APIStatusError as e:
        assert e.status_code == 501
        pytest.skip("no constraint library (tools/llguidance.sh)")
    for schema in [{"type": "nothing"}, {"$ref": "#/$defs/none"},
                   {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}]:
        with pytest.raises(openai.BadRequestError):
            ask(schema)


def test_completions(client):
    r = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=50, logprobs=1)
    assert [c.text for c in r.choices] == ["Hello there!"] * 2
    assert r.choices[0].logprobs.tokens[0] == "H" or r.choices[0].logprobs.tokens
    text = "".join(c.choices[0].text for c in client.completions.create(
        model="tiny", prompt="a", max_tokens=50, stream=True) if c.choices)
    assert text == "Hello there!"


def test_responses_whole(client):
    r = client.responses.create(model="tiny", input="[think]", instructions="be brief")
    assert r.output_text == "It is 4." and r.status == "completed"
    assert [o.type for o in r.output] == ["reasoning", "message"]
    assert r.usage.input_tokens > 0 and r.usage.output_tokens > 0
    r = client.responses.create(model="tiny", input="[long]", max_output_tokens=5,
                                reasoning={"effort": "none"})
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens"


def test_responses_streamed(client):
    events = list(client.responses.create(model="tiny", input="[think]", stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    types = [e.type for e in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] == "response.completed"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "It is 4."
    assert events[-1].response.output_text == "It is 4."
    with client.responses.stream(model="tiny", input="hi", reasoning={"effort": "none"}) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "Hello there!"


def test_responses_with_tools(client):
    tools = [{"type": "function", "strict": False, **t["function"]} for t in TOOLS]
    r = client.responses.create(model="tiny", input="[call]", tools=tools,
                                reasoning={"effort": "none"})
    calls = [o for o in r.output if o.type == "function_call"]
    assert [c.name for c in calls] == ["weather", "now"]
    assert json.loads(calls[0].arguments)["days"] == 3
    r = client.responses.create(model="tiny", tools=tools, reasoning={"effort": "none"}, input=[
        {"role": "user", "content": "x"},
        *[o.model_dump(exclude_none=True) for o in r.output],
        *[{"type": "function_call_output", "call_id": c.call_id, "output": "1"} for c in calls]])
    assert r.output_text == "Hello there!"


def test_responses_failing_in_mid_stream(client):
    events = list(client.responses.create(model="tiny", input="[error]", stream=True,
                                          reasoning={"effort": "none"}))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message


def test_keys(tmp_path):
    with serve("--api-key", "sesame") as s:
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0).models.list()
        assert openai.OpenAI(base_url=s.url + "/v1", api_key="sesame").models.list().data


def test_a_busy_server_is_tried_again(tmp_path):
    with serve("--max-running", 1, "--max-queued", 1, "--script-step-us", 20000) as s:
        import concurrent.futures
        c = openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=20, timeout=30)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            jobs = [pool.submit(c.completions.create, model="tiny", prompt="a", max_tokens=5)
                    for _ in range(6)]
            assert len({j.result().choices[0].text for j in jobs}) == 1
        assert s.metric("deepinfer_rejected_busy_total") > 0


def test_the_addresses_of_deepseeks_own_service(server):
    """Its documentation gives clients a base without /v1."""
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    answer = client.chat.completions.create(model="tiny", extra_body=OFF,
                                            messages=[{"role": "user", "content": "x"}])
    assert answer.choices[0].message.content == "Hello there!"
    assert client.completions.create(model="tiny", prompt="x", max_tokens=1).usage.completion_tokens == 1
    assert client.models.retrieve("tiny").id == "tiny"
    assert server.request("GET", "/chat/completions")[0] == 405
    assert server.request("GET", "/v1/health")[0] == server.request("GET", "/model")[0] == 404
