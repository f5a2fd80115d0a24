"""HTTPS, where the build has it (-DDI_TLS=ON)."""
import http.client
import json
import ssl
import subprocess

import pytest
from serving import BINARY, TINY, serve

FOX = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    path = tmp_path_factory.mktemp("pem")
    try:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost",
                        "-keyout", path / "key", "-out", path / "cert", "-days", "2"],
                       check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl program")
    return path


@pytest.fixture(scope="module")
def server(pem):
    try:
        with serve("--tls-cert", pem / "cert", "--tls-key", pem / "key", "--script-step-us", 500) as s:
            yield s
    except RuntimeError as e:
        assert "no TLS" in str(e)
        pytest.skip("this build has no TLS")


def connection(server, pem):
    context = ssl.create_default_context(cafile=pem / "cert")
    context.check_hostname = False
    return http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=20)


def ask(c, body):
    c.request("POST", "/v1/completions", json.dumps({"model": "tiny", "prompt": "a", **body}))
    return c.getresponse()


def test_answers_and_streams(server, pem):
    c = connection(server, pem)
    for _ in range(3):
        r = ask(c, {"max_tokens": 2})
        assert r.status == 200 and json.loads(r.read())["choices"][0]["text"] == "The quick"
    text = ask(c, {"max_tokens": 60, "stream": True}).read().decode()
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    got = "".join(e["choices"][0]["text"] for e in events)
    assert (FOX * 20).startswith(got) and len(got) > 100
    c.close()


def test_a_large_body_and_a_large_answer(server, pem):
    c = connection(server, pem)
    c.request("POST", "/tokenize", json.dumps({"prompt": "word " * 200000}))
    r = c.getresponse()
    assert r.status == 200 and json.loads(r.read())["count"] > 100000
    c.close()


def test_leaving_cancels(server, pem):
    c = connection(server, pem)
    r = ask(c, {"max_tokens": 50000, "stream": True})
    r.read(100)
    quiet = connection(server, pem)
    r.close()
    c.sock.close()
    for _ in range(200):
        quiet.request("GET", "/metrics")
        if b"\ndeepinfer_requests_running 0\n" in quiet.getresponse().read():
            return
    raise AssertionError("the request runs on")


def test_plain_http_on_the_port_does_no_harm(server, pem):
    assert server.raw(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").find(b"200 OK") < 0
    c = connection(server, pem)
    c.request("GET", "/health")
    assert c.getresponse().status == 200
    c.close()


def test_wrong_files_are_refused(pem):
    for args in [["--tls-cert", pem / "cert"], ["--tls-cert", pem / "cert", "--tls-key", pem / "cert"]]:
        done = subprocess.run([BINARY, "serve", "--model", TINY, "--load-format", "script", "--port", "0",
                               *args], capture_output=True, text=True, timeout=20)
        assert done.returncode == 2 and "deepinfer serve: " in done.stderr
