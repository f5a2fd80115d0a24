di_fuzzer(fuzz_grammar SOURCES fuzz/fuzz_grammar.c USES base tokenizer grammar)
