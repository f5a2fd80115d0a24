di_unpack(tokenizer-v4/tokenizer.json.xz recipe/prompts.jsonl.xz recipe/errors.jsonl.xz
          recipe/resolve.jsonl.xz recipe/streams.jsonl.xz)
di_test(golden_recipe SOURCES ${CMAKE_CURRENT_LIST_DIR}/golden_recipe.c ${CMAKE_CURRENT_LIST_DIR}/golden.c
        ${CMAKE_CURRENT_LIST_DIR}/golden_requests.c ${CMAKE_CURRENT_LIST_DIR}/golden_streams.c
        USES base tokenizer recipe LABELS unit)
di_test(test_recipe_parse SOURCES ${CMAKE_CURRENT_LIST_DIR}/parse_test.c USES base tokenizer recipe LABELS unit)
di_test(test_recipe_client SOURCES ${CMAKE_CURRENT_LIST_DIR}/client_test.c USES base tokenizer recipe LABELS unit)
di_test(test_recipe_hostile SOURCES ${CMAKE_CURRENT_LIST_DIR}/hostile_test.c ${CMAKE_CURRENT_LIST_DIR}/golden.c
        USES base tokenizer recipe grammar LABELS unit)
di_test(test_recipe_strict SOURCES ${CMAKE_CURRENT_LIST_DIR}/strict_test.c USES base tokenizer recipe LABELS unit)
di_test(test_recipe_types SOURCES ${CMAKE_CURRENT_LIST_DIR}/types_test.c USES base recipe LABELS unit)
di_test(test_recipe_body SOURCES ${CMAKE_CURRENT_LIST_DIR}/body_test.c USES base recipe LABELS unit)
di_test(test_recipe_prompt SOURCES ${CMAKE_CURRENT_LIST_DIR}/prompt_test.c USES base tokenizer recipe LABELS unit)
di_test(test_recipe_think SOURCES ${CMAKE_CURRENT_LIST_DIR}/think_test.c USES base tokenizer recipe LABELS unit)
