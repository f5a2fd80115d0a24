di_test(test_kernel_exact SOURCES kernels/linear_exact_test.c USES base formats tensor kernels
        LINK m LABELS kernels)
