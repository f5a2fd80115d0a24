#!/usr/bin/env bash
# Compile every CUDA source for Hopper into build/cuda; prints what was compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
shopt -s nullglob globstar
sources=(src/kernels/cuda/**/*.cu)
if ((${#sources[@]} == 0)); then
    echo "cuda: there are no CUDA sources"
    exit 0
fi
tools/setup.sh --cuda
mkdir -p build/cuda build/cuda/inc
for module in base formats tensor kernels; do
    mkdir -p "build/cuda/inc/$module"
    ln -sfn "$PWD/src/$module" "build/cuda/inc/$module/$module"
done
compile() {
    local object=build/cuda/$(basename "$1" .cu).o
    tools/nvcc.sh -arch=sm_90a -lineinfo -Xcompiler=-Wall,-Wextra -Iinclude -Ibuild/cuda/inc/base \
        -Ibuild/cuda/inc/formats -Ibuild/cuda/inc/tensor -Ibuild/cuda/inc/kernels -c "$1" -o "$object"
    echo "cuda: $1"
}
export -f compile
printf '%s\0' "${sources[@]}" | xargs -0 -n1 -P"$(nproc)" bash -c 'compile "$0"'
