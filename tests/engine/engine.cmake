# The one-answer property: random requests alone and in random company (make soak runs it for long).
set(engine_uses base formats checkpoint tensor kernels tokenizer kv recipe model dspark sampler sched
                engine)
di_program(one_answer SOURCES ${CMAKE_CURRENT_LIST_DIR}/one_answer.c USES ${engine_uses})
set_target_properties(one_answer PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

# A sanitizer build is many times slower: it runs fewer rounds, too few to demand every event.
function(one_answer_test model rounds)
  get_filename_component(name ${model} NAME)
  set(demand --demand)
  if(DI_SANITIZE)
    set(rounds 1)
    set(demand)
  endif()
  add_test(NAME one_answer_${name} COMMAND one_answer --model ${model} --rounds ${rounds} ${demand}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(one_answer_${name} PROPERTIES LABELS "engine" TIMEOUT 1200)
endfunction()
one_answer_test(tests/data/models/mini-f 8)
one_answer_test(tests/data/models/mini-b 8)
