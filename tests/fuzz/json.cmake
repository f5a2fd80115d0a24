di_fuzzer(fuzz_json SOURCES fuzz/fuzz_json.c USES base LINK m)
