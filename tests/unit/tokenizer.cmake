foreach(name tokenizer_test tokenizer_load_test)
  di_test(${name} SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/unit/${name}.c USES base tokenizer
          LABELS unit thread)
endforeach()
