di_test(tokenizer_test SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/unit/tokenizer_test.c
        USES base tokenizer LABELS unit)
