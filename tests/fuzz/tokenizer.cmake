di_fuzzer(fuzz_tokenizer SOURCES fuzz/fuzz_tokenizer.c USES base tokenizer)
