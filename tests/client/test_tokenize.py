"""deepinfer tokenize: the same ids as the `tokenizers` package on any text, and the program's ways."""
import json
import os
import pathlib
import subprocess

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("DEEPINFER", str(ROOT / "build/release/deepinfer"))
TINY = ROOT / "models/tiny"
PEER = Tokenizer.from_file(str(TINY / "tokenizer.json"))
ADDED = [t.content for t in PEER.get_added_tokens_decoder().values()]


def run(*args, stdin=b""):
    done = subprocess.run([BINARY, "tokenize", *map(str, args)], input=stdin, capture_output=True,
                          timeout=60)
    return done.returncode, done.stdout, done.stderr.decode()


def ok(*args, stdin=b""):
    rc, out, err = run(*args, stdin=stdin)
    assert rc == 0, err
    return out


# Texts of many kinds: any character, the kana range with its symbols, blanks, added tokens.
parts = st.one_of(
    st.text(max_size=8),
    st.text(alphabet=st.characters(min_codepoint=0x3030, max_codepoint=0x3110), max_size=6),
    st.text(alphabet=" \t\r\n\u00a0\u3000\u200b", max_size=4),
    st.text(alphabet="abcde.!(~$_-'\"<>｜", max_size=12),
    st.text(alphabet="0123456789٣½", max_size=8),
    st.sampled_from(ADDED),
    st.integers(0, PEER.get_vocab_size() - 1).map(lambda i: PEER.decode([i], skip_special_tokens=False)),
)
texts = st.lists(parts, max_size=8).map("".join)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(texts)
def test_any_text_has_the_ids_of_the_reference_and_comes_back(text):
    ids = [int(i) for i in ok("-m", TINY, "-f", "-", stdin=text.encode()).split()]
    assert ids == PEER.encode(text, add_special_tokens=False).ids
    assert ok("-m", TINY, "--decode", stdin=" ".join(map(str, ids)).encode()) == text.encode()


def test_plain_keeps_control_tokens_as_text():
    marked = json.loads(ok("-m", TINY, "--json", "--pieces", "<think>x"))
    plain = json.loads(ok("-m", TINY, "--json", "--pieces", "--plain", "<think>x"))
    assert marked["pieces"] == ["<think>", "x"] and marked["n"] == len(marked["ids"]) == 2
    assert "".join(plain["pieces"]) == "<think>x" and plain["n"] > 2


def test_pieces_are_listed_one_id_a_line():
    lines = ok("-m", TINY, "--pieces", "a\n b").decode().splitlines()
    assert "".join(json.loads(line.split("\t")[1]) for line in lines) == "a\n b"


def test_tokenizer_file_and_input_file(tmp_path):
    source = tmp_path / "text"
    source.write_bytes(b"one two")
    by_file = ok("--tokenizer", TINY / "tokenizer.json", "--file", source)
    assert by_file == ok("-m", TINY, "one two") and by_file.endswith(b"\n")
    assert ok("-m", TINY, stdin=b"") == b""


def test_ill_formed_text_is_read_as_replacement_characters():
    assert ok("-m", TINY, stdin=b"a\xff\xe4\xbd") == ok("-m", TINY, "a\ufffd\ufffd")


def test_decode_reads_json_and_skips_special_tokens():
    assert ok("-m", TINY, "-d", "[0, 42, 1]") == "<｜begin▁of▁sentence｜>H<｜end▁of▁sentence｜>".encode()
    assert ok("-m", TINY, "-d", "--skip-special", "0", "42", "1") == b"H"
    assert json.loads(ok("-m", TINY, "-d", "--json", "42"))["text"] == "H"


@pytest.mark.parametrize("args, says", [
    ([], "either --model DIR or --tokenizer FILE"),
    (["-m", TINY, "--tokenizer", "x"], "either --model DIR or --tokenizer FILE"),
    (["-m", TINY, "a", "b"], "put it in quotes"),
    (["-m", TINY, "--file", "x", "a"], "not both"),
    (["-m", TINY, "--file", "no-such-file"], "no-such-file"),
    (["-m", ROOT / "no-such-model", "a"], "no-such-model/tokenizer.json"),
    (["--tokenizer", TINY / "config.json", "a"], "config.json"),
    (["-m", TINY, "-d", "6400"], "ids run from 0 to 6399"),
    (["-m", TINY, "-d", "1 x"], "not an integer"),
    (["-m", TINY, "-d", "99999999999999999999"], "not an integer"),
    (["-m", TINY, "-d", "[1,"], "the command line"),
    (["-m", TINY, "-d", "--plain", "1"], "--plain"),
    (["-m", TINY, "--skip-special", "a"], "--decode"),
])
def test_bad_use_is_refused_in_one_line_with_status_2(args, says):
    rc, out, err = run(*args)
    assert rc == 2 and out == b"" and err.count("\n") == 1
    assert says in err
