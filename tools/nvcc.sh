#!/usr/bin/env bash
# Run the CUDA compiler: of the PATH, of /usr/local/cuda, or of build/cuda-toolkit (setup.sh --cuda).
root=$(cd "$(dirname "$0")/.." && pwd)
for nvcc in "$(command -v nvcc)" /usr/local/cuda/bin/nvcc "$root"/build/cuda-toolkit/nvidia/cu*/bin/nvcc; do
    [ -x "$nvcc" ] || continue
    lib=$(dirname "$(dirname "$nvcc")")/lib # the wheels have no lib64, where nvcc looks
    [ -f "$lib/libcudart_static.a" ] && set -- "-L$lib" "$@"
    exec "$nvcc" "$@"
done
echo "nvcc: no CUDA compiler found; tools/setup.sh --cuda installs one" >&2
exit 1
