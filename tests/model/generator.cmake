if(TARGET di_cli)
  di_test(test_generator SOURCES ${CMAKE_CURRENT_LIST_DIR}/generator_test.c
          USES base formats checkpoint tensor kernels tokenizer recipe kv model sampler cli
          LABELS model)
endif()
