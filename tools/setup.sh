#!/usr/bin/env bash
# Install what building and testing need, where it is missing (Debian 12, Ubuntu 24.04).
#
#   tools/setup.sh           what the build needs, and the library of constrained output, from PyPI
#                            into build/third_party (tools/llguidance.sh); without it everything
#                            else works
#   tools/setup.sh --test    and the Python packages of the tests, in build/venv
#   tools/setup.sh --dev     and the second compiler, clang-format, clang-tidy, fuzzer runtime, and where
#                            it is a package (Debian) the browser for the tests of the page
#   tools/setup.sh --cuda    and the CUDA compiler, from PyPI into build/cuda-toolkit, unless one is
#                            installed already
#   tools/setup.sh --check   only say what is missing; exit status 1 when something is
#
# Debian packages are installed with apt-get as root or through sudo; nothing else outside build/
# is touched.
set -euo pipefail
cd "$(dirname "$0")/.."

check=0 want_test=0 want_dev=0 want_cuda=0
for arg; do
    case $arg in
    --check) check=1 ;;
    --test) want_test=1 ;;
    --dev) want_test=1 want_dev=1 ;;
    --cuda) want_cuda=1 ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "setup: unknown option \"$arg\"; see tools/setup.sh --help" >&2; exit 2 ;;
    esac
done

missing=() packages=()

# need PACKAGE WHAT PROBE...: the probe fails when WHAT is missing and PACKAGE would bring it.
need() {
    local package=$1 what=$2
    shift 2
    if ! "$@" >/dev/null 2>&1; then
        missing+=("$what (Debian package $package)")
        packages+=("$package")
    fi
}

has() { command -v "$1"; }
compiles() { echo '#include <stdlib.h>' | "$1" -E -o /dev/null -; }
cmake_new() { printf '3.25\n%s\n' "$(cmake --version | sed -n '1s/[^0-9]*//p')" | sort -CV; }
fuzzes() {
    local dir rc=0
    dir=$(mktemp -d)
    echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n > 9; }' |
        clang -fsanitize=fuzzer,address -x c -o "$dir/probe" - || rc=1
    rm -r "$dir"
    return $rc
}

probe_packages() {
    missing=() packages=()
    need build-essential "a C compiler" compiles cc
    need cmake "cmake 3.25 or newer" cmake_new
    need ninja-build ninja has ninja
    need pkg-config pkg-config has pkg-config
    need xz-utils xz has xz
    need python3 Python has python3
    need libpcre2-dev "the PCRE2 library" pkg-config --exists libpcre2-8
    need libutf8proc-dev "the utf8proc library" pkg-config --exists libutf8proc
    need libxxhash-dev "the xxHash library" pkg-config --exists libxxhash
    need libevent-dev "the libevent library" pkg-config --exists libevent_core
    need libcmocka-dev "the cmocka library" pkg-config --exists cmocka
    if ((want_test || want_cuda)) || ! [ -e build/third_party/llguidance/version ]; then
        need python3-venv "Python with venv" python3 -c 'import ensurepip, venv'
        need ca-certificates "certificates for downloads" test -s /etc/ssl/certs/ca-certificates.crt
    fi
    if ((want_test)); then
        need curl curl has curl
    fi
    if ((want_dev)); then
        # Version 14 everywhere: other versions format and find differently.
        need clang-format-14 "clang-format 14" has clang-format-14
        need clang-tidy-14 "clang-tidy 14" has clang-tidy-14
        need clang clang compiles clang
        if has clang >/dev/null; then
            need "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev" "clang's sanitizers" fuzzes
        fi
    fi
}

install_packages() {
    local as_root=()
    if ! has apt-get >/dev/null; then
        echo "setup: there is no apt-get here; please install by hand: ${missing[*]}" >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        has sudo >/dev/null || { echo "setup: run as root, or install sudo" >&2; exit 1; }
        as_root=(sudo)
    fi
    echo "setup: installing ${packages[*]}"
    "${as_root[@]}" apt-get update -q >/dev/null
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null
}

venv_ready() { cmp -s tools/requirements.txt build/venv/requirements.installed; }

make_venv() {
    echo "setup: Python packages of the tests into build/venv"
    mkdir -p build
    python3 -m venv --clear build/venv
    build/venv/bin/pip install -q --disable-pip-version-check -r tools/requirements.txt
    cp tools/requirements.txt build/venv/requirements.installed
}

# One CUDA release for all wheels: the compiler, its front end and the headers belong together.
cuda_wheels=(nvidia-cuda-nvcc==13.0.* nvidia-cuda-crt==13.0.* nvidia-nvvm==13.0.*
    nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.*)

make_cuda() {
    echo "setup: the CUDA compiler into build/cuda-toolkit"
    rm -rf build/cuda-toolkit build/cuda-pip
    python3 -m venv build/cuda-pip
    build/cuda-pip/bin/pip install -q --disable-pip-version-check --no-deps \
        --target build/cuda-toolkit "${cuda_wheels[@]}"
    rm -rf build/cuda-pip
    tools/nvcc.sh --version | grep release
}

probe_packages
if ((check)); then
    if ((want_test)) && ! venv_ready; then
        missing+=("Python packages in build/venv")
    fi
    if ((want_cuda)) && ! tools/nvcc.sh --version >/dev/null 2>&1; then
        missing+=("the CUDA compiler")
    fi
    if ((${#missing[@]})); then
        printf 'setup: missing: %s\n' "${missing[@]}"
        echo "setup: run the same command without --check to install"
        exit 1
    fi
    echo "setup: nothing is missing"
    exit 0
fi

# The second round is for what only the first makes visible (the runtime of a new clang).
for _ in 1 2; do
    ((${#packages[@]} == 0)) && break
    install_packages
    probe_packages
done
if ((${#missing[@]})); then
    printf 'setup: still missing: %s\n' "${missing[@]}" >&2
    exit 1
fi
# Without a browser the tests of the page are skipped, so this may fail. Ubuntu has it as a snap.
if ((want_dev)) && ! has chromium >/dev/null && grep -qs '^ID=debian' /etc/os-release; then
    packages=(chromium)
    (install_packages) || echo "setup: no chromium: the tests of the page will be skipped" >&2
fi
if ((want_test)) && ! venv_ready; then
    make_venv
fi
if ((want_cuda)) && ! tools/nvcc.sh --version >/dev/null 2>&1; then
    make_cuda
fi
mkdir -p build
if ! tools/llguidance.sh 2>build/llguidance.log; then
    echo "setup: no library for constrained output ($(tail -n 1 build/llguidance.log)): schemas," \
        "regexes, grammars and tools in requests will be refused, their tests skipped" >&2
fi
