di_bench(bench_http SOURCES http.c USES base)
