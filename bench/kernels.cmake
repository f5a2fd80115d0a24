di_bench(bench_roofline SOURCES roofline.c bench.c USES base formats tensor kernels LINK m)
di_bench(bench_kernels SOURCES kernels.c kernels_matrix.c kernels_rows.c bench.c
         ../tests/kernels/cases.c ../tests/kernels/op_inst.c ../tests/kernels/op_rows.c
         ../tests/kernels/op_seq.c
         USES base formats tensor kernels LINK m)
target_include_directories(bench_kernels PRIVATE ${PROJECT_SOURCE_DIR}/tests)
di_bench(bench_steps SOURCES steps.c bench.c
         USES base formats checkpoint tensor kernels tokenizer kv model LINK m)
di_bench(bench_cuda SOURCES cuda_kernels.c USES base formats tensor kernels)
