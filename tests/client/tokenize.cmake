if(TARGET deepinfer)
  add_test(NAME test_tokenize
           COMMAND ${DI_TEST_PYTHON} -m pytest -q -p no:cacheprovider tests/client/test_tokenize.py
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(test_tokenize PROPERTIES LABELS client TIMEOUT 600
                       ENVIRONMENT "DEEPINFER=$<TARGET_FILE:deepinfer>;PYTHONDONTWRITEBYTECODE=1")
endif()
