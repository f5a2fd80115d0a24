# The model against golden vectors.
set(model_uses base formats checkpoint tensor kernels tokenizer kv model)
di_program(golden_model
           SOURCES ${CMAKE_CURRENT_LIST_DIR}/golden_model.c ${CMAKE_CURRENT_LIST_DIR}/rig.c
                   ${CMAKE_CURRENT_LIST_DIR}/golden_file.c
                   ${CMAKE_CURRENT_LIST_DIR}/golden_end.c
                   ${CMAKE_CURRENT_LIST_DIR}/golden_sublayers.c
                   ${CMAKE_CURRENT_LIST_DIR}/golden_trained.c
           USES ${model_uses} LINK m)
target_include_directories(golden_model PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_compile_definitions(golden_model PRIVATE DI_DATA_DIR="${DI_DATA_DIR}")
set_target_properties(golden_model PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_dependencies(golden_model di_data)

foreach(name mini-b mini-f tiny)
  file(GLOB packed RELATIVE ${PROJECT_SOURCE_DIR}/tests/data CONFIGURE_DEPENDS
       ${PROJECT_SOURCE_DIR}/tests/data/golden/model/${name}/*.xz)
  di_unpack(${packed})
endforeach()

# In parts, so that they run beside each other and name what is wrong.
function(golden_test part)
  set(name golden_${part})
  if(ARGN)
    set(name ${name}_${ARGN})
    list(PREPEND ARGN --only)
  endif()
  add_test(NAME ${name} COMMAND golden_model --part ${part} ${ARGN}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS model TIMEOUT 900)
endfunction()
golden_test(f32 mini-b)
golden_test(f32 mini-f)
golden_test(f32 tiny)
golden_test(cache mini-b)
golden_test(cache tiny)
golden_test(sublayers)
golden_test(trained)
# Long, and the same code as the others: not under a sanitizer.
foreach(name golden_f32_tiny golden_cache_tiny golden_trained)
  set_tests_properties(${name} PROPERTIES LABELS "model;slow")
endforeach()

di_test(chunking_test
        SOURCES ${CMAKE_CURRENT_LIST_DIR}/chunking_test.c ${CMAKE_CURRENT_LIST_DIR}/rig.c
        USES ${model_uses} LINK m LABELS model TIMEOUT 900)
