di_test(dspark_test SOURCES ${PROJECT_SOURCE_DIR}/tests/unit/dspark_test.c
        USES base dspark LINK m LABELS unit)
