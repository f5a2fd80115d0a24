#!/usr/bin/env bash
# On a machine with a Hopper GPU: tools/gpu.sh test | bench. Ends with 1 when something is wrong.
set -uo pipefail
cd "$(dirname "$0")/.."
build=build/cuda
export DI_BACKEND=cuda

compile() {
    tools/setup.sh --test --cuda && cmake --preset cuda >/dev/null &&
        cmake --build --preset cuda -j "$(nproc)" --target deepinfer_cuda "$@"
}

failed=0
run() {
    local name=$1
    shift
    if "$@" >"$build/gpu-$name.log" 2>&1; then
        echo "gpu: $name ok"
    else
        echo "gpu: $name FAILED (whole log: $build/gpu-$name.log)"
        tail -n 20 "$build/gpu-$name.log"
        failed=1
    fi
}

case ${1:-} in
test)
    compile di_data deepinfer test_kernel_backends test_kernel_formulas test_kernel_sample golden_model \
        chunking_test one_answer engine_test life_test lossless_test preempt_test cases_test || exit 1
    run ops $build/tests/test_kernel_backends
    run real $build/tests/test_kernel_backends real
    run formulas $build/tests/test_kernel_formulas
    run sample $build/tests/test_kernel_sample
    run sublayers $build/tests/golden_model --backend cuda --part sublayers
    run texts $build/tests/golden_model --backend cuda --part trained
    grep -h "ran on the device" $build/gpu-texts.log
    run chunks $build/tests/chunking_test
    run selftest $build/deepinfer selftest --backend cuda --model models/tiny
    models="--model tests/data/models/mini-f --model tests/data/models/mini-b --model models/tiny"
    run one_answer $build/tests/one_answer $models --backend cuda --rounds 100 --demand
    grep -h "ran on the device" $build/gpu-one_answer.log
    run one_answer_tiny $build/tests/one_answer $models --backend cuda --rounds 20 --from 180
    DI_NO_GRAPHS=1 run one_answer_plain $build/tests/one_answer $models --backend cuda --rounds 20
    for name in engine life lossless preempt cases; do
        LEAK_REQUESTS=60 run $name $build/tests/${name}_test
    done
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    if [ -x "$sanitizer" ]; then
        for tool in memcheck synccheck; do
            run $tool "$sanitizer" --tool $tool --error-exitcode 9 $build/tests/test_kernel_backends
        done
        run memcheck_engine "$sanitizer" --tool memcheck --error-exitcode 9 \
            $build/tests/one_answer --model tests/data/models/mini-f --backend cuda --rounds 1
        # racecheck does not see that a bulk copy ends before its barrier lets readers in
        run racecheck "$sanitizer" --tool racecheck --error-exitcode 9 \
            --kernel-name-exclude kernel_substring=gemm_kernel $build/tests/test_kernel_backends
    else
        echo "gpu: no compute-sanitizer here: memory and races were not checked"
    fi
    exit $failed
    ;;
bench)
    compile bench_cuda bench_load bench_device || exit 1
    tools/nvcc.sh -gencode=arch=compute_90a,code=sm_90a -O3 -I$build/inc/kernels bench/cuda_floor.cu \
        -cudart=static -o $build/bench/cuda_floor || exit 1
    tools/nvcc.sh -gencode=arch=compute_90a,code=sm_90a -O3 -fmad=false -Iinclude -Isrc -I$build/inc/base \
        -I$build/inc/formats -I$build/inc/tensor -I$build/inc/kernels bench/cuda_invariance.cu -cudart=static \
        -o $build/bench/cuda_invariance || exit 1
    mkdir -p bench/out
    $build/bench/cuda_floor | tee bench/out/cuda_floor.csv
    $build/bench/bench_cuda | tee bench/out/cuda.csv
    $build/bench/bench_device --ops 1 --sustain 8 | tee bench/out/cuda_steps.csv
    $build/bench/cuda_invariance | tee bench/out/cuda_invariance.csv
    shards=$(mktemp -d) # 8 GB
    python3 tools/make_skeleton.py bench/layers.json "$shards" --shards 4 --experts 192 --fill
    $build/bench/bench_load --model "$shards" | tee bench/out/cuda_load.csv
    rm -r "$shards"
    ;;
*)
    sed -n 2p "$0"
    exit 2
    ;;
esac
