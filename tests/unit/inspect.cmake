# On the skeletons that checkpoint.cmake writes.
add_test(NAME test_inspect
         COMMAND ${Python3_EXECUTABLE} tests/unit/inspect_test.py $<TARGET_FILE:deepinfer>
                 ${skeleton}/flash ${skeleton}/small
         WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(test_inspect PROPERTIES LABELS unit FIXTURES_REQUIRED skeleton TIMEOUT 300)
