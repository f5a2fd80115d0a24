"""A running `deepinfer serve` for tests: scripted replies by default, so that no model is needed."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("DEEPINFER", str(ROOT / "build/release/deepinfer"))
TINY = ROOT / "models/tiny"
VOCAB = 6400
# Sanitizers keep freed memory for a while: their builds are not held to its size.
SANITIZED = b"__asan_init" in pathlib.Path(BINARY).read_bytes()


class Server:
    def __init__(self, *args, script=None, model=TINY, tmp_path=None, real=False):
        command = [BINARY, "serve", "--model", str(model), "--port", "0",
                   "--served-model-name", "tiny"]
        if not real:
            command += ["--load-format", "script"]
        if script is not None:
            path = tmp_path / "script.jsonl"
            path.write_text("".join(json.dumps(rule) + "\n" for rule in script))
            command += ["--script", str(path)]
        self.lines = []
        self.process = subprocess.Popen(command + [str(a) for a in args], stderr=subprocess.PIPE,
                                        stdout=subprocess.DEVNULL, text=True)
        self.port = None
        while self.port is None:
            line = self.process.stderr.readline()
            if not line:
                raise RuntimeError("".join(self.lines) or "the server ended without a word")
            self.lines.append(line)
            found = re.search(r"https?://(?:\[[^ ]*\]|[^ :]*):(\d+)", line)
            if found:
                self.port = int(found.group(1))
        self.url = f"http://127.0.0.1:{self.port}"
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)

    def log(self, needle, timeout=5):
        """The first log line with `needle`; waits for it."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            for line in list(self.lines):
                if needle in line:
                    return line
            time.sleep(0.02)
        raise AssertionError(f"no line with {needle!r} in:\n" + "".join(self.lines))

    def stop(self, how=signal.SIGTERM, timeout=60):
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(timeout)
        self.reader.join(5)
        return status

    # ---- requests without any library ----

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Returns (status, headers, bytes)."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        try:
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            return r.status, {k.lower(): v for k, v in r.getheaders()}, r.read()
        finally:
            c.close()

    def post(self, path, body, status=200, **kwargs):
        got, headers, text = self.request("POST", path, body, **kwargs)
        assert got == status, (got, text)
        return json.loads(text)

    def get(self, path, status=200, **kwargs):
        got, _, text = self.request("GET", path, **kwargs)
        assert got == status, (got, text)
        return text.decode()

    def complete(self, prompt="Hi", **fields):
        return self.post("/v1/completions", {"model": "tiny", "prompt": prompt, **fields})

    def events(self, path, body, headers=None, raw=False):
        """The "data:" payloads of a stream; "[DONE]" stays text."""
        status, _, text = self.request("POST", path, {**body, "stream": True}, headers)
        assert status == 200, text
        if raw:
            return text.decode()
        data = [line[6:] for line in text.decode().split("\n") if line.startswith("data: ")]
        return [d if d == "[DONE]" else json.loads(d) for d in data]

    def raw(self, data, timeout=10, shut=False):
        """Send bytes as they are; returns everything until the server closes or is silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            s.sendall(data)
            if shut:
                s.shutdown(socket.SHUT_WR)
            got = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                while piece := s.recv(65536):
                    got += piece
            return got

    def metric(self, name):
        """The value of a metric as it stands in the text, labels included in the name."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name}")

    def wait_metric(self, name, value, timeout=5):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if self.metric(name) == value:
                return
            time.sleep(0.02)
        raise AssertionError(f"{name} is {self.metric(name)}, not {value}")


@contextlib.contextmanager
def serve(*args, **kwargs):
    server = Server(*args, **kwargs)
    try:
        yield server
    finally:
        status = server.stop()
    assert status == 0, "".join(server.lines)
