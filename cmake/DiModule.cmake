# Modules: one static library each, and an include path that shows only the modules it may use, so
# that a wrong dependency does not compile.
#
#   di_module(kv SOURCES pool.c prefix.c USES base formats tensor [LINK pkg::lib])
#   di_test(test_pool SOURCES pool_test.c USES base kv LABELS unit [ARGS ...])
#   di_program(deepinfer SOURCES main.c USES base cli)
#
# Headers are included as "module/header.h". build/inc/<module>/<module> is a link to src/<module>:
# a target that USES base and kv gets -I build/inc/base -I build/inc/kv and nothing else.

set(DI_INC ${CMAKE_BINARY_DIR}/inc)

function(di_expose module)
  file(MAKE_DIRECTORY ${DI_INC}/${module})
  if(NOT EXISTS ${DI_INC}/${module}/${module})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${module} ${DI_INC}/${module}/${module} SYMBOLIC)
  endif()
endfunction()

function(di_paths target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  foreach(m ${ARGN})
    di_expose(${m})
    target_include_directories(${target} PRIVATE ${DI_INC}/${m})
  endforeach()
endfunction()

function(di_module name)
  cmake_parse_arguments(M "" "" "SOURCES;USES;LINK" ${ARGN})
  list(TRANSFORM M_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/src/${name}/)
  add_library(di_${name} STATIC ${M_SOURCES})
  di_paths(di_${name} ${name} ${M_USES})
  foreach(m ${M_USES})
    target_link_libraries(di_${name} PUBLIC di_${m})
  endforeach()
  if(M_LINK)
    target_link_libraries(di_${name} PUBLIC ${M_LINK})
  endif()
endfunction()

function(di_program name)
  cmake_parse_arguments(P "" "" "SOURCES;USES;LINK" ${ARGN})
  add_executable(${name} ${P_SOURCES})
  di_paths(${name} ${P_USES})
  foreach(m ${P_USES})
    target_link_libraries(${name} PRIVATE di_${m})
  endforeach()
  if(P_LINK)
    target_link_libraries(${name} PRIVATE ${P_LINK})
  endif()
endfunction()

# A cmocka test program under build/<preset>/tests/, run from the repository root. DI_DATA_DIR is
# where DiData.cmake unpacks the compressed test data.
function(di_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;USES;LINK;LABELS;ARGS" ${ARGN})
  di_program(${name} SOURCES ${T_SOURCES} USES ${T_USES} LINK ${T_LINK} cmocka)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE DI_DATA_DIR="${DI_DATA_DIR}")
  add_dependencies(${name} di_data)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} ${T_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  if(DI_SANITIZE) # several times slower
    math(EXPR T_TIMEOUT "${T_TIMEOUT} * 4")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${T_LABELS}" SKIP_RETURN_CODE 77
                       TIMEOUT ${T_TIMEOUT})
endfunction()

# A pytest file as one test: di_pytest(test_cli tests/client/test_cli.py LABELS client)
# It finds the program in the environment variable DEEPINFER. The interpreter is the one of build/venv
# (tools/setup.sh --test); looked for anew at each configuration, because it may have come since.
if(EXISTS ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
  set(DI_PYTHON ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
else()
  set(DI_PYTHON python3)
endif()
function(di_pytest name file)
  cmake_parse_arguments(T "" "TIMEOUT" "LABELS" ${ARGN})
  add_test(NAME ${name} COMMAND ${DI_PYTHON} -m pytest -q -p no:cacheprovider ${file}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  if(DI_SANITIZE) # several times slower
    math(EXPR T_TIMEOUT "${T_TIMEOUT} * 4")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT} ENVIRONMENT
                       "DEEPINFER=$<TARGET_FILE:deepinfer>;PYTHONDONTWRITEBYTECODE=1")
endfunction()

# A libFuzzer program of the preset fuzz: fuzz_<what>, with its corpus in tests/fuzz/corpus/<what>.
# tools/fuzz.sh runs them; the target `fuzzers` builds them all.
function(di_fuzzer name)
  cmake_parse_arguments(F "" "" "SOURCES;USES;LINK" ${ARGN})
  if(NOT DI_FUZZ)
    return()
  endif()
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  di_program(${name} SOURCES ${F_SOURCES} USES ${F_USES} LINK ${F_LINK})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  add_dependencies(fuzzers ${name})
endfunction()
