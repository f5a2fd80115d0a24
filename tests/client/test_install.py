"""The installed library from the outside: a staging installation, pkg-config, the example program."""
import os
import pathlib
import shlex
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DEEPINFER", str(ROOT / "build/release/deepinfer"))).parent
PREFIX = "/opt/engine"


def call(*command, **env):
    done = subprocess.run(list(map(str, command)), env={**os.environ, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """An installation in a staging folder: the place that PREFIX will be copied from."""
    folder = tmp_path_factory.mktemp("stage")
    call("cmake", "--install", BUILD, "--prefix", PREFIX, DESTDIR=str(folder))
    return folder


def package(stage, *question):
    folder = next(stage.rglob("deepinfer.pc")).parent
    return shlex.split(call("pkg-config", *question, "deepinfer", PKG_CONFIG_PATH=str(folder)))


def build(stage, source, target):
    call(os.environ.get("CC", "cc"), "-Wall", "-Wextra", "-Werror", source,
         *package(stage, "--cflags", "--libs"), "-o", target)


def test_everything_lies_below_the_prefix(stage):
    assert [p.name for p in stage.iterdir()] == ["opt"]
    names = {str(p.relative_to(stage / PREFIX[1:])) for p in stage.rglob("*") if p.is_file()}
    assert {"bin/deepinfer", "include/deepinfer/deepinfer.h", "include/deepinfer/status.h"} <= names
    assert any(n.endswith("libdeepinfer.a") for n in names)
    assert not any(n.startswith("include/") and "/deepinfer/" not in n for n in names)


def test_the_package_has_the_version_of_the_program(stage):
    version = call(stage / PREFIX[1:] / "bin/deepinfer", "--version").split()[-1]
    assert package(stage, "--modversion") == [version]


def test_the_example_builds_and_streams_an_answer(stage, tmp_path):
    source = ROOT / "examples/minimal.c"
    assert len(source.read_text().splitlines()) <= 60
    assert source.read_text() in (ROOT / "docs/api-c.md").read_text()
    build(stage, source, tmp_path / "minimal")
    answers = [call(tmp_path / "minimal", ROOT / "models/tiny", "What is the capital of") for _ in range(2)]
    assert answers[0] == answers[1]
    text, count = answers[0].rsplit("\n[", 1)
    assert len(text) > 5 and 1 <= int(count.split()[0]) <= 40
    failed = subprocess.run([tmp_path / "minimal", tmp_path, "x"], capture_output=True, text=True)
    assert failed.returncode == 1 and "config.json" in failed.stderr


def test_a_program_may_use_the_names_of_the_modules(stage, tmp_path):
    """Only what the header declares is visible: a program's own pool_new is its own."""
    source = tmp_path / "own.c"
    source.write_text('#include <deepinfer/deepinfer.h>\n'
                      'int pool_new(void);\nint pool_new(void) { return 41; }\n'
                      'int log_write(void);\nint log_write(void) { return 1; }\n'
                      'int main(void)\n{\n    di_model *m;\n'
                      '    return di_model_open(&m, "nowhere", 0, 0) == DI_OK || pool_new() + log_write() != 42;\n}\n')
    build(stage, source, tmp_path / "own")
    call(tmp_path / "own")


def test_the_header_is_good_for_cxx(stage, tmp_path):
    source = tmp_path / "use.cc"
    source.write_text('#include <deepinfer/deepinfer.h>\n'
                      'int main() { return di_code_http(DI_E_BUSY) != 429; }\n')
    call("c++", "-Wall", "-Wextra", "-Werror", source, *package(stage, "--cflags", "--libs"),
         "-o", tmp_path / "use")
    call(tmp_path / "use")
