"""Random answers under every golden schema, checked with an independent validator."""
import json
import os
import pathlib
import subprocess

import pytest

jsonschema = pytest.importorskip("jsonschema")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["DEEPINFER"]).parent
DATA = BUILD / "data/structured"


class Twice(Exception):
    """A key stands twice: open objects may do that, and the validator would see one of them."""


def pairs(items):
    if len({key for key, _ in items}) != len(items):
        raise Twice
    return dict(items)


@pytest.mark.parametrize("name, walks, least", [("random", 4, 800), ("schema", 6, 150), ("jsts_2020_12", 4, 300)])
def test_random_answers_are_valid(name, walks, least):
    schemas = {}
    for line in filter(None, (DATA / f"{name}.jsonl").read_text().split("\n")):
        case = json.loads(line)
        schemas[case["id"]] = case.get("spec")
    done = subprocess.run([BUILD / "tests/grammar_walks", "--data", DATA / f"{name}.jsonl", "--tokenizer",
                           ROOT / "models/tiny/tokenizer.json", "--walks", str(walks)],
                          capture_output=True, text=True, timeout=300)
    if done.returncode == 77:
        pytest.skip("no constraint library")
    assert done.returncode == 0, done.stderr
    checked = 0
    for line in filter(None, done.stdout.split("\n")):
        answer = json.loads(line)
        schema = schemas[answer["id"]]
        try:
            value = json.loads(answer["text"], object_pairs_hook=pairs)
        except Twice:
            continue
        try:
            jsonschema.Draft202012Validator(schema).validate(value)
        except jsonschema.ValidationError as error:
            pytest.fail(f"{answer['id']}: {answer['text']!r}: {error.message}")
        except Exception as error:  # a reference that this validator does not find
            assert "Unresolvable" in type(error).__name__ + str(error), (answer, error)
            continue
        checked += 1
    assert checked >= least
