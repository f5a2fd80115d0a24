di_bench(bench_recipe SOURCES recipe.c bench.c peak.c peak_loops.c USES base tokenizer recipe LINK m)
