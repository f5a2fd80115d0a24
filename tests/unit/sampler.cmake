di_test(test_sampler SOURCES ${CMAKE_CURRENT_LIST_DIR}/sampler_test.c USES base kernels sampler
        LINK m LABELS unit)
