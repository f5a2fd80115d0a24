#!/usr/bin/env bash
# Compile every CUDA source for Hopper: build/cuda/libdeepinfer_cuda.so.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh --cuda
cmake --preset cuda >/dev/null
cmake --build --preset cuda --target deepinfer_cuda "$@"
echo "cuda: $(du -h build/cuda/libdeepinfer_cuda.so | cut -f1) build/cuda/libdeepinfer_cuda.so"
