if(TARGET di_cli)
  di_fuzzer(fuzz_request SOURCES fuzz/fuzz_request.c
            USES base formats checkpoint tensor kernels tokenizer recipe kv model sampler cli)
endif()
