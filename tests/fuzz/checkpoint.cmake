di_fuzzer(fuzz_safetensors SOURCES fuzz/fuzz_safetensors.c USES base formats checkpoint)
di_fuzzer(fuzz_config SOURCES fuzz/fuzz_config.c USES base formats checkpoint)
di_fuzzer(fuzz_index SOURCES fuzz/fuzz_index.c USES base formats checkpoint)
