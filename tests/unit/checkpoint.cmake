di_test(test_checkpoint_config SOURCES unit/checkpoint_config_test.c unit/checkpoint_maker.c
        USES base formats checkpoint LABELS unit)
di_test(test_checkpoint_safetensors SOURCES unit/checkpoint_safetensors_test.c
        USES base formats checkpoint LABELS unit)
di_test(test_checkpoint SOURCES unit/checkpoint_test.c unit/checkpoint_maker.c
        USES base formats checkpoint LABELS unit)

# The sparse skeleton of the released model is written first, and removed again.
set(skeleton ${CMAKE_BINARY_DIR}/tests/skeleton)
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_test(NAME make_skeleton
         COMMAND ${Python3_EXECUTABLE} tools/make_skeleton.py
                 tests/data/checkpoint/config.flash.json ${skeleton}
         WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_test(NAME remove_skeleton COMMAND ${CMAKE_COMMAND} -E rm -rf ${skeleton})
set_tests_properties(make_skeleton PROPERTIES LABELS unit FIXTURES_SETUP skeleton)
set_tests_properties(remove_skeleton PROPERTIES LABELS unit FIXTURES_CLEANUP skeleton)
di_test(test_checkpoint_sizes SOURCES unit/checkpoint_sizes_test.c
        USES base formats checkpoint LABELS unit ARGS ${skeleton})
set_tests_properties(test_checkpoint_sizes PROPERTIES FIXTURES_REQUIRED skeleton)
