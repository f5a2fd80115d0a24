# One case table, for the tests here and for bench_kernels.
add_library(di_op_cases STATIC kernels/cases.c kernels/op_inst.c kernels/op_rows.c kernels/op_seq.c)
di_paths(di_op_cases base formats tensor kernels)
target_include_directories(di_op_cases PUBLIC ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(di_op_cases PUBLIC di_kernels di_tensor di_formats di_base m)
di_test(test_kernel_backends SOURCES kernels/backend_test.c
        USES base formats tensor kernels LINK di_op_cases LABELS kernels TIMEOUT 1200)
add_test(NAME test_kernel_backends_real COMMAND test_kernel_backends real)
set_tests_properties(test_kernel_backends_real PROPERTIES LABELS "kernels;slow"
                     SKIP_RETURN_CODE 77 TIMEOUT 600)
di_test(test_kernel_formulas SOURCES kernels/formula_test.c USES base formats tensor kernels
        LINK m LABELS kernels)
di_test(test_kernel_dispatch SOURCES kernels/dispatch_test.c USES base formats tensor kernels
        LABELS kernels)
di_test(test_kernel_state SOURCES kernels/state_test.c USES base formats tensor kernels
        LINK m LABELS kernels)
di_test(test_kernel_sample SOURCES kernels/sample_test.c USES base formats tensor kernels
        LINK m LABELS kernels)
