"""deepinfer recipe: requests to prompts and outputs to events, from the outside."""
import json
import os
import subprocess

BINARY = os.environ["DEEPINFER"]
TOKENIZER = "models/tiny/tokenizer.json"
CHAT = {"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "Hi <｜User｜>"}]}


def recipe(*args, text):
    p = subprocess.run([BINARY, "recipe", *args], input=text, capture_output=True, text=True)
    return p.returncode, json.loads(p.stdout) if p.stdout else p.stderr


def test_render_prints_prompt_and_ids():
    rc, out = recipe("render", "--tokenizer", TOKENIZER, text=json.dumps(CHAT))
    assert rc == 0
    assert out["prompt"].endswith("<｜User｜>Hi <｜User｜><｜Assistant｜><think>")
    assert len(out["special"]) == 5 and out["ids"][0] == 0
    assert out["parsing"]["stage"] == "ReasoningStart"


def test_render_of_each_protocol_gives_the_same_prompt():
    bodies = {"chat": CHAT, "messages": {**CHAT, "max_tokens": 5},
              "responses": {"model": CHAT["model"], "input": "Hi <｜User｜>"}}
    prompts = {recipe("render", "--protocol", p, text=json.dumps(b))[1]["prompt"] for p, b in bodies.items()}
    assert len(prompts) == 1


def test_render_says_that_an_image_is_a_placeholder():
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    body = {**CHAT, "messages": [{"role": "user", "content": [image, image]}]}
    p = subprocess.run([BINARY, "recipe", "render"], input=json.dumps(body), capture_output=True, text=True)
    assert p.returncode == 0 and len(json.loads(p.stdout)["images"]) == 2
    assert "2 images" in p.stderr and "placeholder" in p.stderr and "refuses" in p.stderr
    assert not subprocess.run([BINARY, "recipe", "render"], input=json.dumps(CHAT), capture_output=True,
                              text=True).stderr


def test_a_refused_request_is_reported_with_its_body():
    rc, out = recipe("render", "--recipe", "strict", text=json.dumps({**CHAT, "messages": []}))
    assert rc == 1
    assert out["stage"] == "convert" and out["status"] == 400
    assert out["error"]["error"]["message"] == "Empty input messages"


def test_parse_of_a_chunk_list():
    rc, out = recipe("parse", text='["rea", "son</th", "ink>\\n\\nans", ["wer", 2]]')
    assert rc == 0
    message = out["response"]["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("reason", "answer")
    deltas = [e[2]["choices"][0]["delta"] for e in out["events"]]
    assert "".join(d.get("content") or "" for d in deltas) == "answer"
    assert out["response"]["usage"]["completion_tokens"] == 5
    assert out["done"] == "[DONE]"


def test_parse_answers_the_body_that_it_is_given():
    tool = {"type": "function", "function": {"name": "f"}}
    line = {"body": {**CHAT, "thinking": {"type": "disabled"}, "tools": [tool]}, "finish": "Stop",
            "chunks": ['<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>']}
    rc, out = recipe("parse", text=json.dumps(line))
    choice = out["response"]["choices"][0]
    assert rc == 0 and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_wrong_use_is_refused():
    assert recipe(text="")[0] == 2
    assert recipe("parse", text='[{"ids": [1]}]')[0] == 2
    assert recipe("parse", text="{")[0] == 2
