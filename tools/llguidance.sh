#!/usr/bin/env bash
# The library behind constrained output: build/third_party/llguidance/libllguidance.so.
#
#   tools/llguidance.sh             from the pinned wheel on PyPI, SHA-256 checked; nothing when it
#                                   is there already
#   tools/llguidance.sh LIBRARY     link to one that was built from source (docs/constraints.md)
#
# The wheel's library names functions of CPython that its C interface never calls; libpystub.so
# defines them, so that it loads without Python. Without the library everything works but
# constraints: those are refused.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.9.1
dir=build/third_party/llguidance

if [ $# -gt 0 ]; then
    [ -f "$1" ] || { echo "llguidance: there is no \"$1\"" >&2; exit 1; }
    mkdir -p "$dir"
    rm -f "$dir/libpystub.so" "$dir/version"
    ln -sf "$(realpath "$1")" "$dir/libllguidance.so"
    echo "own $(realpath "$1")" >"$dir/version"
    exit 0
fi

grep -qs "^$version\|^own" "$dir/version" && exit 0

case $(uname -sm) in
"Linux x86_64" | "Linux aarch64") ;;
*) echo "llguidance: no wheel is pinned for $(uname -sm)" >&2; exit 1 ;;
esac

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cat >"$tmp/pin" <<PIN
llguidance==$version \\
    --hash=sha256:dfac6021d9c4c5ef16b3a1d336c05ca5e8208ff30dec29d1c63ebcafbee3a346 \\
    --hash=sha256:31b75c9f6e09d000d062ef7e4eb3bcb3759fc1eda5619be50fdd8a830b0e8bdf
PIN

python=python3
[ -x build/venv/bin/python ] && python=build/venv/bin/python
if ! $python -m pip --version >/dev/null 2>&1; then
    python3 -m venv "$tmp/venv" >/dev/null 2>&1 || { echo "llguidance: there is no pip here" >&2; exit 1; }
    python=$tmp/venv/bin/python
fi
$python -m pip download -q --disable-pip-version-check --no-cache-dir --timeout 10 --retries 1 \
    --no-deps --only-binary=:all: --require-hashes -r "$tmp/pin" -d "$tmp/dl"
$python -m zipfile -e "$tmp"/dl/*.whl "$tmp/wheel"

nm -D --undefined-only "$tmp/wheel/llguidance/_lib.abi3.so" |
    sed -n 's/.* U \(_\{0,1\}Py[A-Za-z0-9_]*\)$/char \1[256];/p' >"$tmp/pystub.c"
cc -shared -fPIC -o "$tmp/libpystub.so" "$tmp/pystub.c"

mkdir -p "$dir"
mv "$tmp/libpystub.so" "$dir/libpystub.so"
mv "$tmp/wheel/llguidance/_lib.abi3.so" "$dir/libllguidance.so"
mv "$tmp"/wheel/llguidance-*.dist-info/licenses/LICENSE "$dir/LICENSE"
echo "$version" >"$dir/version"
