di_fuzzer(fuzz_recipe_body SOURCES fuzz/fuzz_recipe_body.c USES base tokenizer recipe)
di_fuzzer(fuzz_recipe_parse SOURCES fuzz/fuzz_recipe_parse.c USES base tokenizer recipe)
