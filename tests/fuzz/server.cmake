if(TARGET di_server)
  set(fuzz_server_uses base formats checkpoint tensor kernels tokenizer grammar recipe kv model sampler engine
      server)
  di_fuzzer(fuzz_http SOURCES fuzz/fuzz_http.c USES ${fuzz_server_uses})
  di_fuzzer(fuzz_completion SOURCES fuzz/fuzz_completion.c USES ${fuzz_server_uses})
endif()
