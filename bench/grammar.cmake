di_bench(bench_grammar SOURCES grammar.c USES base tokenizer grammar)
