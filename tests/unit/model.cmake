di_test(model_plan_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/model_plan_test.c
        USES base formats checkpoint tensor model LABELS unit)
di_test(kv_seq_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/kv_seq_test.c
        USES base tensor kv LABELS unit)
