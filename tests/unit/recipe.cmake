di_unpack(tokenizer-v4/tokenizer.json.xz)
di_test(test_recipe SOURCES ${CMAKE_CURRENT_LIST_DIR}/recipe_test.c USES base tokenizer recipe
        LABELS unit)
di_test(test_text_stream SOURCES ${CMAKE_CURRENT_LIST_DIR}/text_stream_test.c USES base tokenizer
        recipe LABELS unit)
