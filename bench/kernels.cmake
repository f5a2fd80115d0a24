di_bench(bench_roofline SOURCES roofline.c bench.c USES base formats tensor kernels LINK m)
di_bench(bench_kernels SOURCES kernels.c bench.c USES base formats tensor kernels LINK di_op_cases)
di_bench(bench_steps SOURCES steps.c bench.c
         USES base formats checkpoint tensor kernels tokenizer kv model LINK m)
di_bench(bench_cuda SOURCES cuda_kernels.c USES base formats tensor kernels)
di_bench(bench_load SOURCES load.c USES base formats checkpoint tensor kernels model)
di_bench(bench_device SOURCES device.c USES base formats checkpoint tensor kernels kv model)
