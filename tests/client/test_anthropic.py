"""Programs written for the `anthropic` package work unchanged: messages, streams, tools, counting."""
import pytest
from serving import serve

anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed "
                                                    "(tools/setup.sh --test)")

D = "｜DSML｜"
SCRIPT = [
    {"when": "[think]", "reply": "Let me see.\n</think>\n\nIt is 4.", "step_us": 200},
    {"when": "[call]", "reply": f'I look.\n\n<{D} calls>\n<{D} invoke name="weather">\n'
     f'<{D} parameter name="city" string="true">Rome</{D} parameter>\n</{D} invoke>\n</{D} calls>',
     "step_us": 200},
    {"when": "[bad]", "reply": f'\n\n<{D} calls>\n<{D} invoke name="weather">\n'
     f'<{D} parameter name="city" string="false">not json</{D} parameter>\n</{D} invoke>\n</{D} calls>',
     "step_us": 200},
    {"when": "[long]", "reply": "word ", "repeat": 100000, "step_us": 3000},
    {"when": "[stop]", "reply": "one STOP two", "step_us": 200},
    {"when": "[late]", "reply": "at last", "wait_ms": 2500},
    {"when": "[error]", "reply": "some words", "finish": "error", "step_us": 200},
    {"reply": "Hello there!", "step_us": 200},
]
OFF = {"thinking": {"type": "disabled"}}
TOOLS = [{"name": "weather", "description": "d", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}}}}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve("--keepalive", 1, script=SCRIPT, tmp_path=tmp_path_factory.mktemp("s")) as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=30)


def ask(text, **fields):
    return {"model": "claude-any", "max_tokens": 100,
            "messages": [{"role": "user", "content": text}], **OFF, **fields}


def test_message_whole(client):
    m = client.messages.create(**ask("hi", system="be brief"))
    assert [b.type for b in m.content] == ["text"] and m.content[0].text == "Hello there!"
    assert m.stop_reason == "end_turn" and m.role == "assistant"
    assert m.usage.input_tokens > 0 and m.usage.output_tokens > 0


def test_message_streamed(client):
    with client.messages.stream(**ask("hi")) as stream:
        assert "".join(stream.text_stream) == "Hello there!"
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn" and final.usage.output_tokens > 0
    types = [e.type for e in client.messages.create(**ask("hi"), stream=True)]
    assert types[0] == "message_start" and types[-1] == "message_stop"


def test_thinking(client):
    fields = ask("[think]", thinking={"type": "enabled", "budget_tokens": 1024})
    m = client.messages.create(**fields)
    assert [b.type for b in m.content] == ["thinking", "text"]
    assert m.content[0].thinking == "Let me see." and m.content[0].signature
    with client.messages.stream(**fields) as stream:
        final = stream.get_final_message()
    assert [b.type for b in final.content] == ["thinking", "text"]
    # the whole answer goes back as history
    again = client.messages.create(**{**fields, "messages": [
        {"role": "user", "content": "[think]"}, {"role": "assistant", "content": final.content},
        {"role": "user", "content": "and now?"}]})
    assert again.content[-1].text


def test_tools(client):
    m = client.messages.create(**ask("[call]", tools=TOOLS))
    assert m.stop_reason == "tool_use" and [b.type for b in m.content] == ["text", "tool_use"]
    call = m.content[1]
    assert call.name == "weather" and call.input == {"city": "Rome"}
    with client.messages.stream(**ask("[call]", tools=TOOLS)) as stream:
        final = stream.get_final_message()
    assert final.content[1].input == {"city": "Rome"}
    m = client.messages.create(**{**ask("x", tools=TOOLS), "messages": [
        {"role": "user", "content": "x"}, {"role": "assistant", "content": m.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                      "content": "sunny"}]}]})
    assert m.content[0].text == "Hello there!"


def test_arguments_that_are_no_json_do_not_break_the_stream(client):
    with client.messages.stream(**ask("[bad]", tools=TOOLS)) as stream:
        final = stream.get_final_message()
    assert final.content[0].input == {"city": "not json"}


def test_tools_as_coding_agents_send_them(client):
    tools = [{**TOOLS[0], "type": "custom", "cache_control": {"type": "ephemeral"}}]
    m = client.messages.create(**ask("hi", tools=tools, system=[
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]),
        extra_headers={"anthropic-beta": "something-new"}, extra_body={"unknown": 1})
    assert m.content[0].text == "Hello there!"


def test_stop_sequences_and_length(client):
    m = client.messages.create(**ask("[stop]", stop_sequences=["STOP"]))
    assert m.stop_reason == "stop_sequence" and m.stop_sequence == "STOP"
    assert m.content[0].text == "one "
    assert client.messages.create(**ask("[long]")).stop_reason == "max_tokens"


def test_counting_tokens(client):
    n = client.messages.count_tokens(model="claude-any", **{
        k: v for k, v in ask("hi").items() if k in ("messages", "thinking")}).input_tokens
    assert n == client.messages.create(**ask("hi")).usage.input_tokens


def test_models(client):
    assert [m.id for m in client.models.list()] == ["tiny"]


def test_errors_raise_the_right_class(client):
    with pytest.raises(anthropic.BadRequestError) as e:
        client.messages.create(**ask("hi"), extra_body={"temperature": 9})
    assert e.value.body["type"] == "error" and e.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model="claude-any", max_tokens=1, messages=[])
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**ask("hi") | {"model": "nothing"})
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(**ask("[error]"))
    with pytest.raises(anthropic.APIError, match="script"):
        with client.messages.stream(**ask("[error]")) as stream:
            stream.get_final_message()


def test_comments_in_a_silent_stream_are_no_trouble(client):
    with client.messages.stream(**ask("[late]")) as stream:
        assert stream.get_final_message().content[0].text == "at last"


def test_leaving_a_stream_cancels_the_request(server, client):
    with client.messages.stream(**ask("[long]", max_tokens=50000)) as stream:
        next(iter(stream))
    server.wait_metric("deepinfer_requests_running", 0, timeout=1)


def test_keys(tmp_path):
    with serve("--api-key", "sesame") as s:
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=s.url, api_key="x", max_retries=0).messages.create(
                **ask("hi"))
        for client in [anthropic.Anthropic(base_url=s.url, api_key="sesame"),
                       anthropic.Anthropic(base_url=s.url, auth_token="sesame")]:
            assert client.messages.create(**ask("hi")).content


def test_the_address_of_deepseeks_own_service(server):
    client = anthropic.Anthropic(base_url=server.url + "/anthropic", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": "x"}]
    answer = client.messages.create(model="tiny", max_tokens=9, messages=messages, **OFF)
    assert answer.content[0].text == "Hello there!"
    assert client.messages.count_tokens(model="tiny", messages=messages).input_tokens > 0
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(anthropic.NotFoundError) as e:
        client.messages.create(model="nix", max_tokens=9, messages=messages)
    assert e.value.body["type"] == "error"
