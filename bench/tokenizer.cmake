di_bench(bench_tokenizer SOURCES tokenizer.c USES base tokenizer LINK m)
