# The public API on small checkpoints: cache, speculation, numerics; life of requests; the law of
# sampled chains.
foreach(what engine_test life_test lossless_test preempt_test cases_test masks_test)
  di_test(${what} SOURCES ${CMAKE_CURRENT_LIST_DIR}/${what}.c ${CMAKE_CURRENT_LIST_DIR}/rig.c
          USES ${engine_uses} LINK m LABELS engine TIMEOUT 900)
endforeach()

# The leak test at length.
add_test(NAME leak_soak COMMAND life_test *left_behind WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(leak_soak PROPERTIES LABELS soak TIMEOUT 7200 ENVIRONMENT LEAK_REQUESTS=10000)
if(DI_SANITIZE) # the leak test in short
  set_tests_properties(life_test PROPERTIES ENVIRONMENT LEAK_REQUESTS=60)
endif()
