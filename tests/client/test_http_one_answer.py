"""One answer over HTTP: whatever the company, clients get the tokens that `generate` gives."""
import concurrent.futures
import json
import random
import subprocess

import pytest
from serving import BINARY, TINY, serve

QUESTIONS = ["What is the capital of France?", "What is 17 + 25?", "Tell me a story about a fox.",
             "Copy this: blue green red", "Count from 1 to 9.", "Spell the word house."]


def cases():
    r = random.Random(5)
    for i in range(18):
        body = {"messages": [{"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}],
                "max_tokens": r.choice([12, 30, 48]), "seed": r.randrange(2 ** 40),
                "temperature": r.choice([0, 0.7, 1]), "top_p": r.choice([1, 0.9])}
        if i % 3:
            body["thinking"] = {"type": "disabled"}
        if i % 4 == 1:
            body["frequency_penalty"] = 0.5
        yield body


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Every request by itself, from the program that has no server."""
    path = tmp_path_factory.mktemp("a") / "in.jsonl"
    path.write_text("".join(json.dumps({**b, "model": "tiny"}) + "\n" for b in cases()))
    done = subprocess.run([BINARY, "generate", "--model", TINY, "--input", path, "--batch", "1",
                           "--draft-tokens", "0", "--no-prefix-cache", "--quiet"],
                          capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def streamed(server, body):
    content, reasoning, finish = "", "", None
    for event in server.events("/v1/chat/completions", body)[:-1]:
        choice = event["choices"][0]
        content += choice["delta"].get("content") or ""
        reasoning += choice["delta"].get("reasoning_content") or ""
        finish = choice["finish_reason"] or finish
    return content, reasoning, finish


def whole(server, body):
    choice = server.post("/v1/chat/completions", body)["choices"][0]
    message = choice["message"]
    return message["content"], message.get("reasoning_content") or "", choice["finish_reason"]


def test_clients_in_company_get_what_generate_gives(alone):
    want = [(a["text"], a.get("reasoning") or "", a["finish_reason"]) for a in alone]
    jobs = [(i, f, {**b, "model": "tiny"}) for i, b in enumerate(cases()) for f in (whole, streamed)]
    random.Random(1).shuffle(jobs)
    with serve("--max-running", 7, "--max-batched-tokens", 48, real=True) as s:
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            got = [(i, pool.submit(f, s, b)) for i, f, b in jobs]
            for i, job in got:
                assert job.result() == want[i], (i, list(cases())[i])
        assert s.metric("deepinfer_draft_accepted_total") > 0
        assert s.metric("deepinfer_cached_tokens_total") > 0
        # prompt = cached + computed (+ recomputed: computed again for their state)
        assert s.metric("deepinfer_prompt_tokens_total") == sum(
            s.metric(f"deepinfer_{part}_tokens_total") for part in ["cached", "computed", "recomputed"])
        assert s.metric("deepinfer_kv_blocks_total") == sum(
            s.metric(f"deepinfer_kv_blocks_{part}") for part in ["used", "cached", "free"])
        assert s.metric("deepinfer_kv_blocks_used") == 0


def test_n_choices_of_a_seed_differ_and_repeat():
    body = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 24, "seed": 11, "n": 3}
    with serve(real=True) as s:
        first = [c["text"] for c in s.post("/v1/completions", body)["choices"]]
        again = [c["text"] for c in s.post("/v1/completions", body)["choices"]]
        one = s.post("/v1/completions", {**body, "n": 1})["choices"][0]["text"]
    assert first == again and len(set(first)) == 3 and first[0] == one


def test_the_seed_that_was_drawn_gives_the_answer_again():
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me a story."}],
            "max_tokens": 24}
    with serve(real=True) as s:
        _, headers, text = s.request("POST", "/v1/chat/completions", body)
        first = json.loads(text)["choices"][0]["message"]
        again = s.post("/v1/chat/completions", {**body, "seed": int(headers["x-deepinfer-seed"])})
        assert again["choices"][0]["message"] == first


def test_a_second_turn_and_the_same_prompt_again_hit_the_cache():
    turn = [{"role": "user", "content": "Tell me a long story about a fox and a hare. " * 12}]
    body = {"model": "tiny", "messages": turn, "max_tokens": 40, "temperature": 0,
            "thinking": {"type": "disabled"}}
    with serve(real=True) as s:
        first = s.post("/v1/chat/completions", body)
        second = s.post("/v1/chat/completions", body)
        assert second["choices"] == first["choices"]
        usage = second["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 128
        turn = turn + [first["choices"][0]["message"], {"role": "user", "content": "Go on."}]
        third = s.post("/v1/chat/completions", {**body, "messages": turn})["usage"]
        assert third["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 128


def test_bad_ids_do_not_touch_a_request_that_runs():
    with serve(real=True) as s:
        body = {"prompt": "Once upon a time", "max_tokens": 60, "seed": 3}
        want = s.complete(**body)["choices"][0]["text"]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            job = pool.submit(s.complete, **body)
            for field, value in [("prompt", [6400]), ("prompt", [-1]), ("stop_token_ids", [6400]),
                                 ("logit_bias", {"6400": 1}), ("prompt", [2 ** 63])]:
                s.post("/v1/completions", {"model": "tiny", "prompt": "a", field: value}, status=400)
            assert job.result()["choices"][0]["text"] == want


def test_log_probabilities_of_a_prompt_alone():
    with serve(real=True) as s:
        for extra in [{}, {"n": 2}]:
            body = s.complete("The cat sat", max_tokens=0, echo=True, logprobs=2, **extra)
            for choice in body["choices"]:
                lp = choice["logprobs"]
                assert choice["finish_reason"] == "length" and choice["text"] == "The cat sat"
                assert "".join(lp["tokens"][1:]) == "The cat sat"
                assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
                assert all(v < 0 for v in lp["token_logprobs"][1:])
                assert all(len(t) >= 2 for t in lp["top_logprobs"][1:])
            assert body["usage"]["completion_tokens"] == 0
        none = s.complete("The cat sat", max_tokens=0)
        assert none["choices"][0]["text"] == "" and none["usage"]["completion_tokens"] == 0
