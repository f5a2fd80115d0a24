# The one-answer property: random requests alone and in random company (make soak runs it for long).
set(engine_uses base formats checkpoint tensor kernels tokenizer kv recipe model dspark sampler sched
                engine)
di_program(one_answer SOURCES ${CMAKE_CURRENT_LIST_DIR}/one_answer.c USES ${engine_uses})
set_target_properties(one_answer PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

# 300 schedules, one set in twenty on the shipped model. A sanitizer build is many times slower: it
# runs fewer rounds, too few to demand every event.
set(one_answer_models --model tests/data/models/mini-f --model tests/data/models/mini-b
                      --model models/tiny)
foreach(part RANGE 2)
  math(EXPR from "${part} * 100")
  set(length --rounds 100 --demand)
  if(DI_SANITIZE)
    set(length --rounds 10)
  endif()
  add_test(NAME one_answer_${from} COMMAND one_answer ${one_answer_models} --from ${from} ${length}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(one_answer_${from} PROPERTIES LABELS "engine" TIMEOUT 1200)
endforeach()
