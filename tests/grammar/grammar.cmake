di_unpack(tokenizer-v4/tokenizer.json.xz)
foreach(name dsml ebnf jsts_2020_12 protocol random regex schema)
  di_unpack(structured/${name}.jsonl.xz)
endforeach()

# Runs over any folder of cases; here over tests/data/structured. 77 = the library is absent.
di_program(golden_structured SOURCES ${CMAKE_CURRENT_LIST_DIR}/golden_structured.c
           USES base tokenizer grammar)
add_dependencies(golden_structured di_data)
set_target_properties(golden_structured PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_test(NAME golden_structured
         COMMAND golden_structured --data ${DI_DATA_DIR}/structured
                 --tokenizer ${DI_DATA_DIR}/tokenizer-v4/tokenizer.json)
set_tests_properties(golden_structured PROPERTIES LABELS "unit" SKIP_RETURN_CODE 77 TIMEOUT 600)

# Through the engine, on small models with random weights.
di_test(constrained_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/constrained_test.c
        ${PROJECT_SOURCE_DIR}/tests/engine/rig.c
        USES base formats checkpoint tensor kernels tokenizer kv recipe model dspark sampler sched
             engine grammar
        LABELS engine TIMEOUT 900)

foreach(name grammar_test cache_test)
  di_test(${name} SOURCES ${CMAKE_CURRENT_LIST_DIR}/${name}.c ${CMAKE_CURRENT_LIST_DIR}/rig.c
          USES base tokenizer grammar LABELS unit thread)
endforeach()

# Names of the library with the wrong version.
add_library(fake_llguidance SHARED ${CMAKE_CURRENT_LIST_DIR}/fake_llguidance.c)
di_test(library_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/library_test.c USES base tokenizer grammar
        LABELS unit)
add_dependencies(library_test fake_llguidance)
target_compile_definitions(library_test PRIVATE FAKE_LIBRARY="$<TARGET_FILE:fake_llguidance>")

# Random answers under every golden schema, checked by the Python package jsonschema.
di_program(grammar_walks SOURCES ${CMAKE_CURRENT_LIST_DIR}/walks.c USES base tokenizer grammar)
add_dependencies(grammar_walks di_data)
set_target_properties(grammar_walks PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
if(TARGET deepinfer)
  di_pytest(test_walks tests/grammar/test_walks.py LABELS unit TIMEOUT 600)
endif()
