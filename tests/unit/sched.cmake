di_test(sched_test SOURCES ${PROJECT_SOURCE_DIR}/tests/unit/sched_test.c
        USES base formats tensor kv sched LABELS unit)
