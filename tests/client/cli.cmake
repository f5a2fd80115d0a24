# Whole programs from the outside. The Python of tools/setup.sh --test where it is there.
find_program(DI_TEST_PYTHON NAMES python3 HINTS ${PROJECT_SOURCE_DIR}/build/venv/bin
             NO_CMAKE_SYSTEM_PATH)
if(NOT DI_TEST_PYTHON)
  find_program(DI_TEST_PYTHON NAMES python3 REQUIRED)
endif()
if(TARGET deepinfer)
  add_test(NAME test_cli
           COMMAND ${DI_TEST_PYTHON} -m pytest -q -p no:cacheprovider tests/client/test_cli.py
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(test_cli PROPERTIES LABELS client TIMEOUT 600
                       ENVIRONMENT "DEEPINFER=$<TARGET_FILE:deepinfer>;PYTHONDONTWRITEBYTECODE=1")
endif()
