if(TARGET di_cli)
  di_fuzzer(fuzz_request SOURCES fuzz/fuzz_request.c
            USES base formats checkpoint tensor kernels tokenizer grammar recipe kv model sampler cli)
endif()
