di_test(kv_store_test SOURCES ${PROJECT_SOURCE_DIR}/tests/unit/kv_store_test.c
        USES base formats tensor kv LABELS unit)
