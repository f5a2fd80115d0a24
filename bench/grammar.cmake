di_bench(bench_grammar SOURCES grammar.c grammar_large.c USES base tokenizer grammar)
