di_bench(bench_roofline SOURCES roofline.c bench.c peak.c peak_loops.c USES base)
di_bench(bench_kernels SOURCES kernels.c kernels_matrix.c bench.c peak.c peak_loops.c
         USES base formats tensor kernels)
