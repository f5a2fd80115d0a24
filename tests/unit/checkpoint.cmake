di_test(test_checkpoint_config SOURCES unit/checkpoint_config_test.c unit/checkpoint_maker.c
        USES base formats checkpoint LABELS unit)
di_test(test_checkpoint_safetensors SOURCES unit/checkpoint_safetensors_test.c
        USES base formats checkpoint LABELS unit)
di_test(test_checkpoint SOURCES unit/checkpoint_test.c unit/checkpoint_maker.c
        USES base formats checkpoint LABELS unit)

# Sparse skeletons of the released model and of the small configuration are written first, and removed
# again.
set(skeleton ${CMAKE_BINARY_DIR}/tests/skeleton)
find_package(Python3 COMPONENTS Interpreter REQUIRED)
foreach(which flash small)
  add_test(NAME make_skeleton_${which}
           COMMAND ${Python3_EXECUTABLE} tools/make_skeleton.py
                   tests/data/checkpoint/config.${which}.json ${skeleton}/${which}
                   --shards $<IF:$<STREQUAL:${which},flash>,48,5>
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(make_skeleton_${which} PROPERTIES LABELS unit FIXTURES_SETUP skeleton)
endforeach()
add_test(NAME remove_skeletons COMMAND ${CMAKE_COMMAND} -E rm -rf ${skeleton})
set_tests_properties(remove_skeletons PROPERTIES LABELS unit FIXTURES_CLEANUP skeleton)
di_test(test_checkpoint_sizes SOURCES unit/checkpoint_sizes_test.c
        USES base formats checkpoint LABELS unit ARGS ${skeleton}/flash ${skeleton}/small)
set_tests_properties(test_checkpoint_sizes PROPERTIES FIXTURES_REQUIRED skeleton)
