di_bench(bench_recipe SOURCES recipe.c bench.c USES base formats tensor kernels tokenizer recipe LINK m)
