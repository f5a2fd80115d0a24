"""The examples of README and docs/api.md do what is said there."""
import json
import re
import subprocess
import sys

import pytest
from serving import ROOT, serve

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def server():
    with serve(real=True) as s:
        yield s


def test_curl(server):
    found = re.search(r"^\$ (curl -s http://127.*?')\n(\{.*?\})\n```", README, re.S | re.M)
    command = found.group(1).replace(":8000", f":{server.port}")
    got = json.loads(subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout)
    want = json.loads(found.group(2).replace("\n", ""))
    # the same request may be in the cache already; other back ends have other fingerprints
    for answer in (got, want):
        for key in ["id", "created", "usage", "system_fingerprint"]:
            assert answer.pop(key)
    assert got == want


@pytest.mark.parametrize("file, package", [("README.md", "openai"), ("docs/api.md", "anthropic")])
def test_python(server, file, package):
    pytest.importorskip(package)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(), re.S)
    assert len(blocks) == 1 and package in blocks[0]
    done = subprocess.run([sys.executable, "-c", blocks[0].replace(":8000", f":{server.port}")],
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 100
